"""Checkpoints: their ids, and the marks beside their entries."""

from __future__ import annotations

import datetime as dt
import secrets
import struct
import uuid
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import ormsgpack

from holdfast.errors import CheckpointNotFound, CorruptJournal
from holdfast.stores.base import StoredCheckpoint

_LOW = (1 << 56) - 1
_FACTOR = 0x9E3779B97F4A7
_INVERSE = pow(_FACTOR, -1, 1 << 56)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A position in a run's journal where the run can be resumed, inspected, forked.

    `wave` counts the completed waves of the run, or, inside a sub-graph, of that: `frame` names it. `nodes` have just
    finished, `next` are about to run; `size` is what this checkpoint added to the store, in bytes.
    """

    id: str
    seq: int
    wave: int
    nodes: tuple[str, ...]
    next: tuple[str, ...]
    created_at: dt.datetime
    size: int
    frame: str = ""

    @property
    def run_wave(self) -> int | None:
        """The wave of the run itself, which `RUN@N` counts; `None` inside a sub-graph."""
        return None if self.frame else self.wave


def new_run_key() -> bytes:
    """Return eight random bytes that mark a run's checkpoint ids as its own; the top bit is free for SQL."""
    return (secrets.randbits(63)).to_bytes(8, "big")


def checkpoint_id(key: bytes, seq: int) -> str:
    """Return the id of the checkpoint at `seq`: a version 4 UUID, so that looking it up needs no index.

    It holds 66 bits that only the run has, and 56 bits of the position, scrambled with them.
    """
    run = int.from_bytes(key, "big")
    value = (run << 58 | ((seq * _FACTOR + run) & _LOW) << 2) & ((1 << 122) - 1)
    high, middle, low = value >> 74, value >> 62 & 0xFFF, value & ((1 << 62) - 1)
    return str(uuid.UUID(int=high << 80 | 0x4 << 76 | middle << 64 | 0b10 << 62 | low))


def locate_checkpoint(ident: str) -> tuple[bytes, int]:
    """Return the run key and the position that a checkpoint id names."""
    try:
        number = uuid.UUID(ident).int
    except ValueError:
        raise CheckpointNotFound(f"checkpoint not found: {ident} (a checkpoint id is a UUID)") from None
    value = number >> 80 << 74 | (number >> 64 & 0xFFF) << 62 | number & ((1 << 62) - 1)
    run = value >> 58
    return run.to_bytes(8, "big"), ((value >> 2 & _LOW) - run) * _INVERSE & _LOW


def is_checkpoint_id(text: str) -> bool:
    """Return whether `text` has the form of a checkpoint id."""
    try:
        return len(text) == 36 and uuid.UUID(text).version == 4
    except ValueError:
        return False


# Marks: a MessagePack list of wave, nodes, next nodes, frame and resets, and a checksum for its position.


_FIVE = b"\x95"
_SUM, _POSITION = struct.Struct(">I"), struct.Struct(">8sQd")


def encode_mark(wave: int, nodes: list[str], next_: list[str], frame: str) -> bytes:
    """Return the plain facts of a checkpoint; `sealed_mark` makes of them what is stored beside an entry."""
    return ormsgpack.packb([wave, nodes, next_, frame])


def sealed_mark(facts: bytes, key: bytes, seq: int, at: float, resets: int) -> bytes:
    """Return a mark: the facts of a checkpoint, how often the run had been reset, and a checksum for its position."""
    return _summed(b"".join((_FIVE, facts[1:], ormsgpack.packb(resets))), key, seq, at)


def moved_mark(mark: bytes, key: bytes, seq: int, at: float) -> bytes:
    """Return a mark with a checksum for another position."""
    return _summed(mark[: -_SUM.size], key, seq, at)


def mark_facts(mark: bytes) -> bytes:
    """Return the facts of a checkpoint, as `encode_mark` made them, of its mark."""
    return ormsgpack.packb(ormsgpack.unpackb(mark[: -_SUM.size])[:4])


def _summed(own: bytes, key: bytes, seq: int, at: float) -> bytes:
    return own + _SUM.pack(crc32(own, crc32(_POSITION.pack(key, seq, at))))


def times_reset(mark: bytes) -> int:
    """Return how often the run had been reset when this mark was made."""
    return int(ormsgpack.unpackb(mark[: -_SUM.size])[4])


def decode_checkpoint(key: bytes, stored: StoredCheckpoint, run: str) -> Checkpoint:
    """Return a checkpoint that a store lists."""
    try:
        wave, nodes, next_, frame = _facts(key, stored)
        at = dt.datetime.fromtimestamp(stored.at, dt.UTC)
    except (ValueError, TypeError, OverflowError, OSError, struct.error):
        raise CorruptJournal(
            f"the checkpoint at {stored.seq} of run {run!r} has damaged facts", run=run, seq=stored.seq
        ) from None
    ident = checkpoint_id(key, stored.seq)
    return Checkpoint(ident, stored.seq, wave, tuple(nodes), tuple(next_), at, stored.size, frame)


def _facts(key: bytes, stored: StoredCheckpoint) -> tuple[int, list[str], list[str], str]:
    """Return the facts of a checkpoint; raise `ValueError` or `TypeError` if they are not what was written."""
    if stored.facts != moved_mark(stored.facts, key, stored.seq, stored.at):
        raise ValueError("its checksum does not match")
    wave, nodes, next_, frame, resets = ormsgpack.unpackb(stored.facts[: -_SUM.size])
    if type(wave) is not int or type(resets) is not int or type(frame) is not str:
        raise TypeError("it has other parts than a checkpoint")
    if not (_are_texts(nodes) and _are_texts(next_)):
        raise TypeError("it has other parts than a checkpoint")
    return wave, nodes, next_, frame


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
