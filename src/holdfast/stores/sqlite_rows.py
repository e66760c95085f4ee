"""Rows of a SQLite file as the values of stores, each looked at before it is believed.

SQLite keeps no checksums: what a damaged page holds can come back as a row of any types.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from holdfast.errors import CorruptJournal
from holdfast.stores.base import Entry, Mark, Message, RunInfo, Snapshot

FACTS = tuple(field.name for field in fields(RunInfo))
"""The columns of a run's facts, its id and its key first."""

Row = Sequence[Any]


def entry_of(row: Row, run: str) -> Entry:
    """An entry of a row with seq, at, chain, body and mark."""
    seq, at, chain, body, mark = row
    if type(at) is float and type(chain) is type(body) is bytes and (mark is None or type(mark) is bytes):
        return Entry(seq, at, chain, body, mark)
    raise _damaged(f"entry {seq}", run, seq)


def mark_of(row: Row, run: str) -> Mark:
    """A mark of a row with seq, at, mark and size."""
    seq, at, mark, size = row
    if type(at) is float and type(mark) is bytes and type(size) is int:
        return Mark(seq, at, mark, size)
    raise _damaged(f"the checkpoint at {seq}", run, seq)


def snapshot_of(row: Row, run: str) -> Snapshot:
    """A snapshot of a row with seq, at, chain and body."""
    seq, at, chain, body = row
    if type(at) is float and type(chain) is type(body) is bytes:
        return Snapshot(seq, at, chain, body)
    raise _damaged(f"the snapshot at {seq}", run, seq)


def message_of(row: Row, run: str) -> Message:
    """A message of a row with number, at and body."""
    number, at, body = row
    if type(at) is float and type(body) is bytes:
        return Message(number, at, body)
    raise _damaged(f"message {number}", run, None)


def facts_of(row: Row) -> RunInfo:
    """The facts of a row with the columns `FACTS`, the head and a checksum, which earlier versions did not write."""
    *values, head, sum_ = row
    facts = dict(zip(FACTS, values, strict=True))
    run = facts["run"]
    if not all(isinstance(value, kinds) for value, kinds in zip(values, _KINDS, strict=True)):
        raise _unlike(run)
    if sum_ is not None and sum_ != sum_of(run, values[2:], head):
        raise _unlike(run)
    try:
        return RunInfo(**{**facts, "tags": tuple(json.loads(facts["tags"])) if facts["tags"] else ()})
    except (ValueError, TypeError):
        raise _unlike(run) from None


_KINDS: tuple[Any, ...] = (
    str,
    bytes,
    str,
    str,
    float,
    float,
    str,
    str,
    str,
    int,
    (float, type(None)),
    bytes,
    str,
)


def sum_of(run: str, values: Sequence[Any], head: int) -> bytes:
    """The checksum of a run's facts, which are in the order of `FACTS`, without its id and its key, and its head."""
    plain = [
        float(value) if name in _TIMES and value is not None else value
        for name, value in zip(FACTS[2:], values, strict=True)
    ]
    text = repr((run, *plain, head)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).digest()


_TIMES = ("created_at", "updated_at", "due_at")


def _damaged(what: str, run: str, seq: int | None) -> CorruptJournal:
    return CorruptJournal(f"run {run!r}: {what} is damaged (its row holds other types)", run=run, seq=seq)


def _unlike(run: object) -> CorruptJournal:
    return CorruptJournal(
        f"the facts of run {run!r} are damaged; `holdfast fsck --repair` rights them by its journal",
        run=run if isinstance(run, str) else None,
    )
