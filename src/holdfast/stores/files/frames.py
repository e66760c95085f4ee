"""The bytes of the file store: frames, each all or nothing, checked before they are believed.

A frame is a header, then the run's facts as JSON (perhaps none), then entries. A journal is a row
of frames; a snapshot and a message are each a file of one frame with one entry.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any
from zlib import crc32

from holdfast.errors import CorruptJournal, HoldfastError, StoreError
from holdfast.stores.base import Entry, RunInfo

MAGIC, VERSION = b"HFJ", 1
_HEADER = struct.Struct(">3sBQIIIQI")
"""Magic, version, after, entries, facts' size and checksum, entries' size and checksum."""
_CHECK = struct.Struct(">I")
_ENTRY = struct.Struct(">QdHQq")
"""Seq, time, sizes of chain, body and mark (-1: no mark)."""

HEADER_SIZE = _HEADER.size + _CHECK.size
_SECTOR = 512
"""The bytes that a disk writes all or nothing of."""
_CHUNK = 1 << 14
"""The bytes of a journal that are read at once: most frames are small, and their headers close together."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The position of a frame in its file, and the fields of its header."""

    start: int
    header: bytes
    after: int
    count: int
    facts_size: int
    facts_crc: int
    entries_size: int
    entries_crc: int

    @property
    def end(self) -> int:
        return self.start + HEADER_SIZE + self.facts_size + self.entries_size

    @property
    def head(self) -> int:
        return self.after + self.count


def encode(after: int, entries: Sequence[Entry], info: RunInfo | None = None) -> bytes:
    """Return one frame as bytes."""
    facts = b"" if info is None else facts_json(info)
    parts: list[bytes] = []
    for seq, at, chain, content, mark in entries:
        sizes = (len(chain), len(content), -1 if mark is None else len(mark))
        parts += (_ENTRY.pack(seq, at, *sizes), chain, content, mark or b"")
    body = b"".join(parts)
    header = _HEADER.pack(
        MAGIC, VERSION, after, len(entries), len(facts), crc32(facts), len(body), crc32(body)
    )
    return b"".join((header, _CHECK.pack(crc32(header)), facts, body))


def scan(fd: int, start: int, size: int, run: str) -> Iterator[Frame]:
    """Yield the frames from byte `start` on, by their headers alone.

    Stops before a torn tail: a last frame of which the file holds only the beginning, or in whose header
    are only zeros, or a sector of zeros, as a power loss leaves them. Anything else that is no frame raises
    `CorruptJournal`.
    """
    known, begin = b"", start
    while start < size:
        place = start - begin
        if place + HEADER_SIZE > len(known):
            known, begin, place = os.pread(fd, _CHUNK, start), start, 0
        header = known[place : place + HEADER_SIZE]
        if len(header) < HEADER_SIZE:
            return
        if not any(header) and not any(os.pread(fd, size - start, start)):
            return
        try:
            frame = parse(header, start, run)
        except CorruptJournal:
            if _has_lost_sector(header, start) and not _is_followed(fd, start, size, run):
                return
            raise
        if frame.end > size:
            return
        yield frame
        start = frame.end


def scan_whole(fd: int, start: int, size: int, run: str) -> Iterator[Frame]:
    """Yield as `scan` does, but without a last frame that lost sectors in a power loss: it was never acknowledged."""
    last = None
    try:
        for frame in scan(fd, start, size, run):
            if last is not None:
                yield last
            last = frame
    except HoldfastError:
        if last is not None:
            yield last
        raise
    if last is not None and not is_torn(fd, last):
        yield last


def is_torn(fd: int, frame: Frame) -> bool:
    """Return whether a frame is damaged because some of its sectors were never written."""
    data = os.pread(fd, frame.end - frame.start, frame.start)
    facts_end = HEADER_SIZE + frame.facts_size
    if crc32(data[HEADER_SIZE:facts_end]) == frame.facts_crc and crc32(data[facts_end:]) == frame.entries_crc:
        return False
    return _has_lost_sector(data, frame.start)


def _has_lost_sector(data: bytes, start: int) -> bool:
    """Return whether a sector holds only zeros, as far as it belongs to `data`, which begins at `start`."""
    edges = [0, *range(_SECTOR - start % _SECTOR, len(data), _SECTOR), len(data)]
    return any(not any(data[begin:end]) for begin, end in itertools.pairwise(edges))


def _is_followed(fd: int, start: int, size: int, run: str) -> bool:
    """Return whether a frame begins somewhere after `start`: what lies before it was not written last."""
    data = os.pread(fd, size - start, start)
    place = data.find(MAGIC, 1)
    while place >= 0:
        with suppress(CorruptJournal, StoreError, struct.error):
            parse(data[place : place + HEADER_SIZE], start + place, run)
            return True
        place = data.find(MAGIC, place + 1)
    return False


def read_facts(fd: int, frame: Frame, run: str) -> RunInfo | None:
    """Return the facts that a frame carries, if any."""
    if not frame.facts_size:
        return None
    facts = os.pread(fd, frame.facts_size, frame.start + HEADER_SIZE)
    if crc32(facts) != frame.facts_crc:
        raise corrupt(run, frame.start, frame.after + 1)
    return parse_facts(facts)


def read_entries(fd: int, frame: Frame, run: str) -> list[Entry]:
    """Return the entries of a frame; raise `CorruptJournal` if their checksum is wrong."""
    body = os.pread(fd, frame.entries_size, frame.start + HEADER_SIZE + frame.facts_size)
    if len(body) != frame.entries_size or crc32(body) != frame.entries_crc:
        raise corrupt(run, frame.start, frame.after + 1)
    return _parse_entries(frame, body)


def salvage_entries(fd: int, frame: Frame) -> list[Entry]:
    """Return the entries of a frame whatever their checksum says; none if their sizes do not add up."""
    body = os.pread(fd, frame.entries_size, frame.start + HEADER_SIZE + frame.facts_size)
    try:
        entries = _parse_entries(frame, body)
    except struct.error:
        return []
    size = sum(_ENTRY.size + len(e.chain) + len(e.body) + len(e.mark or b"") for e in entries)
    return entries if size == frame.entries_size else []


def _parse_entries(frame: Frame, body: bytes) -> list[Entry]:
    entries, position = [], 0
    for _ in range(frame.count):
        seq, at, *sizes = _ENTRY.unpack_from(body, position)
        position += _ENTRY.size
        parts: list[bytes | None] = []
        for part_size in sizes:
            parts.append(None if part_size < 0 else body[position : position + part_size])
            position += max(0, part_size)
        chain, content, mark = parts
        entries.append(Entry(seq, at, chain or b"", content or b"", mark))
    return entries


def read_sizes(fd: int, frame: Frame, run: str) -> tuple[int, int]:
    """Return how many checkpoints a frame has and the size of its bodies, by the headers of its entries alone."""
    marks, size, position = 0, 0, frame.start + HEADER_SIZE + frame.facts_size
    for _ in range(frame.count):
        header = os.pread(fd, _ENTRY.size, position)
        if len(header) < _ENTRY.size or position >= frame.end:
            raise corrupt(run, frame.start, frame.after + 1)
        _, _, chain_size, body_size, mark_size = _ENTRY.unpack(header)
        marks, size = marks + (mark_size >= 0), size + body_size
        position += _ENTRY.size + chain_size + body_size + max(0, mark_size)
    return marks, size


_UNLESS_GIVEN = ("tags", "queue", "priority", "due_at", "parent", "origin")
"""Facts that are left out where a run has none."""


def facts_json(info: RunInfo, head: int | None = None) -> bytes:
    """Return a run's facts as readable JSON; with `head`, the last entry that there is, also with a checksum."""
    fields = {**asdict(info), "key": info.key.hex(), "parent": info.parent.hex()}
    plain = {name: value for name, value in fields.items() if name not in _UNLESS_GIVEN or value}
    if head is not None:
        plain["head"] = head
        plain["sum"] = _sum(plain)
    return _json(plain)


def parse_head(facts: bytes) -> int | None:
    """Return the last entry that `run.json` names; `None` if it is not as it was written."""
    fields = _fields(facts)
    head, found = fields.get("head"), fields.pop("sum", None)
    return head if found == _sum(fields) and isinstance(head, int) else None


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, indent=1).encode()


def _sum(fields: dict[str, Any]) -> str:
    return f"{crc32(_json(fields)):08x}"


def parse_facts(facts: bytes) -> RunInfo:
    """Return the facts that `facts_json` wrote; raise `ValueError`, `TypeError` or `KeyError` for anything else."""
    fields = {name: value for name, value in _fields(facts).items() if name not in ("head", "sum")}
    keys = {"key": bytes.fromhex(fields["key"]), "parent": bytes.fromhex(fields.get("parent", ""))}
    return RunInfo(**{**fields, **keys, "tags": tuple(fields.get("tags", ()))})


def _fields(facts: bytes) -> dict[str, Any]:
    fields = json.loads(facts)
    if not isinstance(fields, dict):
        raise TypeError("facts are an object")
    return fields


def parse(header: bytes, start: int, run: str) -> Frame:
    """Return the frame that begins with `header`; raise `CorruptJournal` if it is none."""
    magic, version, *fields = _HEADER.unpack_from(header)
    if magic != MAGIC or _CHECK.unpack_from(header, _HEADER.size)[0] != crc32(header[: _HEADER.size]):
        raise corrupt(run, start, None)
    if version != VERSION:
        raise StoreError(
            f"run {run!r} was written by another version of Holdfast "
            f"(format {version}, this version has {VERSION}); use that version"
        )
    return Frame(start, header, *fields)


def corrupt(run: str, start: int, seq: int | None) -> CorruptJournal:
    """Return the error for damage at byte `start`, where the frame with entry `seq` begins if known."""
    where = f"byte {start}" if seq is None else f"byte {start}, entry {seq}"
    return CorruptJournal(
        f"run {run!r} is damaged at {where}: what is stored is not what was written; restore a backup",
        run=run,
        seq=seq,
    )
