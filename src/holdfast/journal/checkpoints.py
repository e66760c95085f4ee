"""Checkpoint ids and marks: naming a position in a run's journal, and its plain facts."""

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
from holdfast.stores.base import Mark

_LOW = (1 << 56) - 1


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
    """Eight random bytes that mark a run's checkpoint ids as its own; the top bit is free for SQL."""
    return (secrets.randbits(63)).to_bytes(8, "big")


def checkpoint_id(key: bytes, seq: int) -> str:
    """The id of the checkpoint at `seq`: a version 4 UUID, so that looking it up needs no index.

    It holds 66 bits that only the run has, and 56 bits of the position, scrambled with them.
    """
    run = int.from_bytes(key, "big")
    value = (run << 58 | ((seq * 0x9E3779B97F4A7 + run) & _LOW) << 2) & ((1 << 122) - 1)
    high, middle, low = value >> 74, value >> 62 & 0xFFF, value & ((1 << 62) - 1)
    return str(uuid.UUID(int=high << 80 | 0x4 << 76 | middle << 64 | 0b10 << 62 | low))


_INVERSE = pow(0x9E3779B97F4A7, -1, 1 << 56)


def locate_checkpoint(ident: str) -> tuple[bytes, int]:
    """The run key and the position that a checkpoint id names."""
    try:
        number = uuid.UUID(ident).int
    except ValueError:
        raise CheckpointNotFound(f"checkpoint not found: {ident} (a checkpoint id is a UUID)") from None
    value = number >> 80 << 74 | (number >> 64 & 0xFFF) << 62 | number & ((1 << 62) - 1)
    run = value >> 58
    seq = ((value >> 2 & _LOW) - run) * _INVERSE & _LOW
    return run.to_bytes(8, "big"), seq


def is_checkpoint_id(text: str) -> bool:
    """Whether `text` has the form of a checkpoint id."""
    try:
        return len(text) == 36 and uuid.UUID(text).version == 4
    except ValueError:
        return False


def encode_mark(wave: int, nodes: list[str], next_: list[str], frame: str) -> bytes:
    """The plain facts of a checkpoint, as stored beside its entry."""
    return ormsgpack.packb([wave, nodes, next_, frame])


_LIST_OF_FOUR, _LIST_OF_SIX, _LIST_OF_SEVEN = b"\x94", b"\x96", b"\x97"
_SUM, _COUNT = struct.Struct(">BHBH"), struct.Struct(">BI")
_NUMBER, _LONG_NUMBER = 0xCD, 0xCE
_PLACE = struct.Struct(">8sQd")


def sealed_mark(mark: bytes, key: bytes, seq: int, at: float, resets: int | None = None) -> bytes:
    """A mark with a checksum for its place as two more numbers: whoever lists checkpoints sees no more of an entry.

    A mark that was sealed for another place is sealed anew. The mark of a run that was ever reset also says how often,
    as a last number; if that is not given, it is what the mark said before.
    """
    if mark[:1] != _LIST_OF_FOUR:
        resets = times_reset(mark) if resets is None else resets
        mark = plain_mark(mark)
    own = mark[1:]
    if resets:
        count = _COUNT.pack(_LONG_NUMBER, resets)
        high, low = divmod(_sum(own + count, key, seq, at), 1 << 16)
        return b"".join((_LIST_OF_SEVEN, own, _SUM.pack(_NUMBER, high, _NUMBER, low), count))
    high, low = divmod(_sum(own, key, seq, at), 1 << 16)
    return b"".join((_LIST_OF_SIX, own, _SUM.pack(_NUMBER, high, _NUMBER, low)))


def times_reset(mark: bytes) -> int:
    """How often the run had been reset when this mark was made."""
    return int(ormsgpack.unpackb(mark)[6]) if mark[:1] == _LIST_OF_SEVEN else 0


def _sum(own: bytes, key: bytes, seq: int, at: float) -> int:
    return crc32(own, crc32(_PLACE.pack(key, seq, at)))


def plain_mark(mark: bytes) -> bytes:
    """A mark as `encode_mark` made it, without a checksum."""
    return ormsgpack.packb(ormsgpack.unpackb(mark)[:4])


def _facts(key: bytes, mark: Mark) -> tuple[int, list[str], list[str], str]:
    """What a mark says; raises `ValueError` or `TypeError` if it is not what was written."""
    wave, nodes, next_, frame, *seal = ormsgpack.unpackb(mark.mark)
    if seal:
        high, low, *count = seal
        if _sum(_sealed(mark.mark), key, mark.seq, mark.at) != high << 16 | low or len(count) > 1:
            raise ValueError("its checksum does not match")
    elif ormsgpack.packb([wave, nodes, next_, frame]) != mark.mark:
        raise ValueError("something follows it")
    if (
        not isinstance(wave, int)
        or not isinstance(frame, str)
        or not (_are_texts(nodes) and _are_texts(next_))
    ):
        raise TypeError("it has other parts than a mark")
    return wave, nodes, next_, frame


def _sealed(mark: bytes) -> bytes:
    """The part of a mark that its checksum is for."""
    if mark[:1] != _LIST_OF_SEVEN:
        return mark[1 : -_SUM.size]
    return mark[1 : -_SUM.size - _COUNT.size] + mark[-_COUNT.size :]


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def read_mark(key: bytes, mark: Mark, run: str) -> Checkpoint:
    """A checkpoint from what the store lists. One of the first versions has a mark without a checksum."""
    try:
        wave, nodes, next_, frame = _facts(key, mark)
        at = dt.datetime.fromtimestamp(mark.at, dt.UTC)
    except (ValueError, TypeError, OverflowError, OSError, struct.error):
        raise CorruptJournal(
            f"the checkpoint at {mark.seq} of run {run!r} has a damaged mark", run=run, seq=mark.seq
        ) from None
    return Checkpoint(
        checkpoint_id(key, mark.seq), mark.seq, wave, tuple(nodes), tuple(next_), at, mark.size, frame
    )
