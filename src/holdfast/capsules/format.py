"""The bytes of a capsule: a head, then sections that each have a length and a checksum, then a digest of it all."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import sys
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from holdfast.errors import CapsuleInvalid, CodecError, Remedy
from holdfast.graph.graph import is_outline
from holdfast.journal import records
from holdfast.journal.checkpoint_ids import decode_checkpoint
from holdfast.journal.journal import Journal
from holdfast.journal.records import Record
from holdfast.journal.run_state import RunState
from holdfast.journal.sealing import is_sealed
from holdfast.state.codec import Codec
from holdfast.state.ops import Op
from holdfast.state.standard_types import MOST_MEMORY
from holdfast.stores.base import Entry, RunInfo, StoredCheckpoint
from holdfast.values import RunStatus
from holdfast.views.plain import ViewCodec, iso, plain, read_or_unread, when

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


MAGIC = b"\x89HFCAP\r\n"
VERSION = 1
PLAIN, ENCRYPTED = 0, 1
HEAD = struct.Struct(">8sBB")
"""Magic, version, and whether what follows is encrypted."""

CHECK_BYTES = 16
DIGEST_BYTES = 32
_SECTION = struct.Struct(">BQ")


class Kind(IntEnum):
    """What a section holds. Sections come in this order."""

    FACTS = 1
    SUMMARY = 2
    SNAPSHOT = 3
    ENTRY = 4
    MESSAGE = 5
    END = 9
    SIGNATURE = 10


_SEVERAL = (Kind.ENTRY, Kind.MESSAGE)
_NEEDED = (Kind.FACTS, Kind.ENTRY, Kind.END)


class Sink(Protocol):
    """Where a capsule is written."""

    def write(self, data: bytes, /) -> object: ...


class Origin(Protocol):
    """Where a capsule is read: bytes of a known number, at any place."""

    size: int

    def read_at(self, place: int, length: int) -> bytes:
        """The bytes there; fewer at the end."""
        ...


class Section(NamedTuple):
    """A section that was read and is whole. `place` is where it begins, `after` where the next one does."""

    kind: Kind
    place: int
    after: int
    payload: bytes
    check: bytes


def head(mode: int) -> bytes:
    """How a capsule begins."""
    return HEAD.pack(MAGIC, VERSION, mode)


def read_head(data: bytes) -> int:
    """Whether a capsule that begins so is encrypted; what is no capsule, or a newer one, is refused."""
    if not data.startswith(MAGIC[: len(data)]) or not data:
        raise CapsuleInvalid("it is not a capsule", remedies=Remedy("export"))
    if len(data) < HEAD.size:
        raise CapsuleInvalid("it is cut short")
    _, version, mode = HEAD.unpack(data[: HEAD.size])
    if version > VERSION:
        raise CapsuleInvalid(
            f"it is a capsule of version {version}, this holdfast reads up to {VERSION}; upgrade holdfast"
        )
    if version < 1 or mode not in (PLAIN, ENCRYPTED):
        raise CapsuleInvalid("its head is damaged")
    return int(mode)


class Writer:
    """Writes the sections of a capsule, and closes it with the digest of them all."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.size = 0
        self._put(head(PLAIN))

    def add(self, kind: Kind, payload: bytes) -> None:
        """Write one section."""
        start = _SECTION.pack(kind, len(payload))
        self._put(start)
        self._put(payload)
        self._put(_check(start, payload))

    def close(self) -> bytes:
        """Write the end; the digest of all before it, which is what is signed."""
        digest = self._digest.digest()
        self.add(Kind.END, digest)
        return digest

    def _put(self, data: bytes) -> None:
        self._sink.write(data)
        self._digest.update(data)
        self.size += len(data)


def read_sections(origin: Origin) -> Iterator[Section]:
    """Every section in order, each checked before it is given; the end is given once the digest is right."""
    if read_head(origin.read_at(0, HEAD.size)) != PLAIN:
        raise CapsuleInvalid("its head is damaged")
    digest = hashlib.blake2b(origin.read_at(0, HEAD.size), digest_size=DIGEST_BYTES)
    place, last = HEAD.size, None
    seen: set[Kind] = set()
    while place < origin.size:
        if last == Kind.SIGNATURE or (last == Kind.END and origin.read_at(place, 1)[0] != Kind.SIGNATURE):
            raise CapsuleInvalid(f"data follows its end, from byte {place} on")
        section = read_section(origin, place)
        _check_order(last, section.kind)
        if section.kind == Kind.END:
            _check_end(section.payload, digest.digest(), seen)
        digest.update(_SECTION.pack(section.kind, len(section.payload)))
        digest.update(section.payload)
        digest.update(section.check)
        yield section
        seen.add(section.kind)
        last, place = section.kind, section.after
    if Kind.END not in seen:
        raise CapsuleInvalid("it is cut short: its end is missing")


def read_section(origin: Origin, place: int) -> Section:
    """The section that begins at `place`, checked."""
    start = origin.read_at(place, _SECTION.size)
    if len(start) < _SECTION.size:
        raise CapsuleInvalid(f"it is cut short at byte {place}")
    number, length = _SECTION.unpack(start)
    inside = place + _SECTION.size
    if length > origin.size - inside - CHECK_BYTES:
        raise CapsuleInvalid(f"it is damaged or cut short: the section at byte {place} leads beyond its end")
    data = origin.read_at(inside, length + CHECK_BYTES)
    payload, check = data[:length], data[length:]
    if _check(start, payload) != check or number not in iter(Kind):
        raise CapsuleInvalid(f"it is damaged: the section at byte {place} is not what was written")
    return Section(Kind(number), place, inside + length + CHECK_BYTES, payload, check)


def _check(start: bytes, payload: bytes) -> bytes:
    check = hashlib.blake2b(start, digest_size=CHECK_BYTES)
    check.update(payload)
    return check.digest()


def _check_order(last: Kind | None, kind: Kind) -> None:
    if last is None and kind != Kind.FACTS:
        raise CapsuleInvalid("it does not begin with the facts of a run")
    if last is not None and (kind < last or (kind == last and kind not in _SEVERAL)):
        raise CapsuleInvalid("its sections are out of order")
    if kind == Kind.SIGNATURE and last != Kind.END:
        raise CapsuleInvalid("it has a signature before its end")


def _check_end(said: bytes, found: bytes, seen: set[Kind]) -> None:
    if said != found:
        raise CapsuleInvalid("it is damaged: its digest does not match")
    if any(kind not in seen for kind in _NEEDED if kind != Kind.END):
        raise CapsuleInvalid("it holds no run")


# A run as lines of JSON, one record each: for reading and searching, not for carrying.


# Each line reads its own values. Together they may need what one value may need, so that each alone is always read.


def lines_of(journal: Journal, run: str) -> Iterator[str]:
    """The facts of a run, and then every record of its journal, each as one line of JSON."""
    info = journal.info(run)
    begun, history = journal.history(info, ViewCodec(MOST_MEMORY))
    yield _line(_facts(info))
    for number, (entry, found) in enumerate(history):
        if number == 0 and not found:
            yield _line(_at(entry, "Beginning") | {"state": _state(begun)})
        for record in found:
            yield _line(_at(entry, type(record).__name__) | _fields(record, ViewCodec(MOST_MEMORY)))
        if entry.mark is not None:
            yield _line(_checkpoint(info, entry))


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _facts(info: RunInfo) -> dict[str, Any]:
    return {
        "holdfast": VERSION,
        "run_id": plain(info.run),
        "workflow": plain(info.workflow),
        "status": info.status,
        "created_at": iso(when(info.created_at)),
        "updated_at": iso(when(info.updated_at)),
        "tags": [plain(tag) for tag in info.tags],
    }


def _at(entry: Entry, kind: str) -> dict[str, Any]:
    return {"seq": entry.seq, "at": iso(when(entry.at)), "type": kind}


def _checkpoint(info: RunInfo, entry: Entry) -> dict[str, Any]:
    found = decode_checkpoint(info.key, StoredCheckpoint.of(entry), info.run)
    facts = {"checkpoint_id": found.id, "wave": found.wave, "nodes": found.nodes, "next": found.next}
    facts_shown: dict[str, Any] = plain({**facts, "frame": found.frame, "bytes": found.size})
    return _at(entry, "Checkpoint") | facts_shown


def _state(run: RunState) -> dict[str, Any]:
    """The state of every frame where the journal begins in the middle."""
    return {
        path: {key: plain(read_or_unread(slot.get)) for key, slot in frame.cells.items()}
        for path, frame in run.frames.items()
    }


def _fields(record: Record, codec: Codec) -> dict[str, Any]:
    """The fields of any record; what it began as follows from what it was begun from."""
    return {name: _plain(value, codec) for name, value in record._asdict().items() if name not in _LEFT_OUT}


_LEFT_OUT = ("run", "body", "chain")


def _plain(value: Any, codec: Codec) -> Any:
    if isinstance(value, Op):
        change = {"op": value.kind, "key": plain(value.key), "bytes": len(value.raw)}
        return change if value.kind == "drop" else {**change, "value": _decoded(value.raw, codec)}
    if isinstance(value, bytes):
        return _decoded(value, codec) if value else None
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(item, codec) for name, item in value._asdict().items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, codec) for item in value]
    return plain(value)


def _decoded(raw: bytes, codec: Codec) -> Any:
    """A stored value as JSON has it; bytes that are none as they are."""
    try:
        return plain(codec.decode(raw))
    except CodecError as error:
        if is_sealed(raw):
            raise
        if raw.isascii():
            return raw.decode("ascii")
        return {"$type": "bytes", "base64": base64.b64encode(raw).decode(), "text": f"not read: {error}"}


# How much stored bytes ask for once they are read: measured on the bytes, before anything is made of them.


MOST_PARTS = 5_000_000
"""How many parts one body may have: texts, numbers, lists. A part needs some 60 bytes once it is read."""

_DEEPEST = 200
_ZSTD = b"\x28\xb5\x2f\xfd"
_LONGEST_HEAD = 18
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8} | {
    0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17
}  # fmt: skip
"""By the first byte of a part of MessagePack, how many more it has."""

_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_COUNTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
_BYTES = (0xC4, 0xC5, 0xC6)
_EXTENSIONS = (0xC7, 0xC8, 0xC9)
_OF_A_RECORD = 3
"""How many lists are open where the fields of a record are read."""

_WITH_A_RUN, _RUN = (17,), 3
"""The codes of the records that hold a whole run, and the field that it is in."""

_NESTED = 4
"""How many bodies, one in the other, are looked into: a record has a run, a run has values, and these are not read."""


def unpacked_bytes(body: bytes, most_parts: int = MOST_PARTS, within: int = 0) -> int:
    """How many bytes the compressed values of a MessagePack body say that they have; `CapsuleInvalid` for no such body.

    Parts are passed over, not made: a list that claims a billion members costs nothing. Records may hold whole runs,
    whose values count too; `within` says in how many others this one is.
    """
    place, parts, total, open_, fields, code = 1, 0, 0, [1], 0, -1
    while open_:
        if not open_[-1]:
            open_.pop()
            continue
        open_[-1] -= 1
        parts += 1
        if place >= len(body) or parts > most_parts or len(open_) > _DEEPEST:
            raise CapsuleInvalid("a record in it is cut short, nested too deep, or has too many parts")
        first = body[place]
        place += 1
        in_record = len(open_) == _OF_A_RECORD
        field = fields - open_[-1] - 1
        if in_record and field == 0:
            code = first
        if first <= 0x7F or first >= 0xE0:
            continue
        if first <= 0x8F:
            open_.append(2 * (first & 0x0F))
        elif first <= 0x9F:
            open_.append(first & 0x0F)
        elif first <= 0xBF:
            place += first & 0x1F
        elif first in _FIXED:
            place += _FIXED[first]
        elif first in _SIZED:
            width = _SIZED[first]
            size = int.from_bytes(body[place : place + width], "big") + (first in _EXTENSIONS)
            place += width
            if first in _BYTES and body.startswith(_ZSTD, place):
                total += _declared(body[place : place + _LONGEST_HEAD])
            elif in_record and field == _RUN and code in _WITH_A_RUN and size and within < _NESTED:
                total += unpacked_bytes(body[place : place + size], most_parts - parts, within + 1)
            place += size
        elif first in _COUNTED:
            width, each = _COUNTED[first]
            open_.append(each * int.from_bytes(body[place : place + width], "big"))
            place += width
        else:
            raise CapsuleInvalid("a record in it is not MessagePack")
        if len(open_) == _OF_A_RECORD and not in_record:
            fields = open_[-1]
    if place != len(body):
        raise CapsuleInvalid("a record in it is cut short, or has grown")
    return total


def _declared(start: bytes) -> int:
    """What a compressed value says it has; one that only looks compressed says nothing."""
    try:
        return int(zstd.get_frame_info(start).decompressed_size or 0)
    except (zstd.ZstdError, ValueError):
        return 0


# What reading a record of a stranger does not check by itself.


def check_record(record: Record) -> None:
    """Refuse a record whose fields cannot be what they say."""
    outline = getattr(record, "outline", None)
    if outline and not is_outline(outline):
        raise CapsuleInvalid("the definition in it is not the outline of a graph")
    if isinstance(record, records.RunEnded) and record.status not in set(RunStatus):
        raise CapsuleInvalid("a run in it ended in no known way")


def check_run(run: RunState) -> None:
    """Refuse a run whose parts are not what they should be."""
    if run.status not in set(RunStatus) or "" not in run.frames:
        raise CapsuleInvalid("the run in it is not of the shape of one")
    if run.outline and not is_outline(run.outline):
        raise CapsuleInvalid("the definition in it is not the outline of a graph")
