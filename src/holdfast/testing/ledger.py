"""A ledger outside the store of what really happened, and what Holdfast promises, held against it and the journal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError
from holdfast.journal.encoding import Track, decode_records
from holdfast.journal.journal import genesis, verified
from holdfast.journal.records import Record, StepAdvanced, StepStarted
from holdfast.state.codec import Codec
from holdfast.stores.base import Store

START = "start"
"""The body of a step began; the key is the step."""
FINISHED = "finished"
"""A step was reported as finished, or found it so in the journal; the key is the step."""
EFFECT = "effect"
"""Something happened outside of the workflow; the key is the idempotency key that it was done with."""
STORED = "stored"
"""A store acknowledged an entry; the key is `RUN:SEQ`, the detail its chain."""


class Line(NamedTuple):
    """One thing that happened."""

    what: str
    key: str
    detail: str = ""


class FileLedger:
    """Lines in a file, in the order in which they were written, that outlive any process.

    With `sync` they outlive a power cut too: each is on the disk before `write` returns.
    """

    def __init__(self, path: Path | str, *, sync: bool = True) -> None:
        self.path, self._sync = Path(path), sync

    def write(self, what: str, key: str, detail: str = "") -> None:
        """Add a line. On return it outlives whatever the ledger is to outlive."""
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, f"{what}\t{key}\t{detail}\n".encode())
            if self._sync:
                os.fsync(handle)
        finally:
            os.close(handle)

    def lines(self) -> list[Line]:
        """Return all lines, from the first."""
        if not self.path.exists():
            return []
        return [Line(*line.split("\t")) for line in self.path.read_text().splitlines()]


class Journalled(NamedTuple):
    """A run's journal as stored: the seq and chain of each entry, and all records in order."""

    entries: dict[int, str]
    records: list[tuple[int, Record]]


def read_journal(store: Store, run: str, codec: Codec | None = None) -> Journalled:
    """What a store holds of a run that was neither pruned nor forked; every checksum is verified."""
    codec, track = codec or Codec(), Track()
    found = store.runs(run=run)
    entries: dict[int, str] = {}
    records: list[tuple[int, Record]] = []
    if found:
        for entry in verified(store, run, 0, genesis(run, found[0].key), sealed=False):
            entries[entry.seq] = entry.chain.hex()
            records.extend((entry.seq, record) for record in decode_records(entry.body, track, codec))
    return Journalled(entries, records)


def broken_promises(lines: Sequence[Line], store: Store, run: str, codec: Codec) -> list[tuple[str, str]]:
    """Return the promises that Holdfast or a store did not keep in a run: the name of each, and what happened."""
    try:
        journal = read_journal(store, run, codec)
    except HoldfastError as error:
        return [("corruption", f"the journal of {run!r} cannot be read: {error}")]
    return [*_repeated(lines), *_unknown_to(journal, lines, run)]


def _repeated(lines: Sequence[Line]) -> Iterator[tuple[str, str]]:
    finished: set[str] = set()
    for what, key, _ in lines:
        if what == FINISHED:
            finished.add(key)
        elif what == START and key in finished:
            yield "finished", f"step {key!r} ran again after it had finished"


def _unknown_to(journal: Journalled, lines: Sequence[Line], run: str) -> Iterator[tuple[str, str]]:
    intended = {record.step for _, record in plain_records(journal) if isinstance(record, StepStarted)}
    for what, key, detail in lines:
        if what == STORED and key.rpartition(":")[0] == run:
            stored = journal.entries.get(int(key.rpartition(":")[2]))
            if stored != detail:
                yield "acknowledged", f"{key!r} was acknowledged and is {'another' if stored else 'gone'}"
        elif what == START and key.partition(":once:")[0] not in intended:
            yield "intent", f"step {key!r} ran, and the journal does not know that it began"


def plain_records(journal: Journalled) -> Iterator[tuple[int, Any]]:
    """Yield the records of a journal, those that stand for several taken apart."""
    for seq, record in journal.records:
        parts = record.parts() if isinstance(record, StepAdvanced) else (record,)
        yield from ((seq, part) for part in parts)
