"""The bytes of a capsule: a head, then sections that each have a length and a checksum, then a digest of it all.

Facts, entries, a snapshot and messages are written in one way only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from holdfast.errors import CapsuleInvalid, Remedy
from holdfast.stores.base import DEFAULT_NAMESPACE, Entry, Message, RunInfo, Snapshot
from holdfast.values import RunStatus

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


class Sink(Protocol):
    """Where a capsule is written."""

    def write(self, data: bytes, /) -> object: ...


class Origin(Protocol):
    """Where a capsule is read: bytes of a known number, at any place."""

    size: int

    def read_at(self, place: int, length: int) -> bytes:
        """Return the bytes there; fewer at the end."""
        ...


class Section(NamedTuple):
    """A section that was read and is whole. `place` is where it begins, `after` where the next one does."""

    kind: Kind
    place: int
    after: int
    payload: bytes
    check: bytes


def head(mode: int) -> bytes:
    """Return how a capsule begins."""
    return HEAD.pack(MAGIC, VERSION, mode)


def read_head(data: bytes) -> int:
    """Return the mode of a capsule, plain or encrypted; raise if it is no capsule, or of a newer version."""
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
        for data in (start, payload, _check(start, payload)):
            self._put(data)

    def add_part(self, part: Facts | Entry | Snapshot | Message) -> None:
        """Write a part of a run as a section."""
        self.add(_KIND_OF[type(part)], payload_of(part))

    def close(self) -> bytes:
        """Write the end; return the digest of all before it, which is what is signed."""
        digest = self._digest.digest()
        self.add(Kind.END, digest)
        return digest

    def _put(self, data: bytes) -> None:
        self._sink.write(data)
        self._digest.update(data)
        self.size += len(data)


def read_sections(origin: Origin) -> Iterator[Section]:
    """Yield every section in order, each checked before it is yielded; the end is yielded once the digest is right."""
    start = origin.read_at(0, HEAD.size)
    if read_head(start) != PLAIN:
        raise CapsuleInvalid("its head is damaged")
    digest = hashlib.blake2b(start, digest_size=DIGEST_BYTES)
    place, last, seen = HEAD.size, None, set[Kind]()
    while place < origin.size:
        if last == Kind.SIGNATURE or (last == Kind.END and origin.read_at(place, 1)[0] != Kind.SIGNATURE):
            raise CapsuleInvalid(f"data follows its end, from byte {place} on")
        section = read_section(origin, place)
        _check_order(last, section.kind)
        if section.kind == Kind.END:
            _check_end(section.payload, digest.digest(), seen)
        for data in (_SECTION.pack(section.kind, len(section.payload)), section.payload, section.check):
            digest.update(data)
        yield section
        seen.add(section.kind)
        last, place = section.kind, section.after
    if Kind.END not in seen:
        raise CapsuleInvalid("it is cut short: its end is missing")


def read_section(origin: Origin, place: int) -> Section:
    """Return the section that begins at `place`, checked."""
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
    if last is not None and (kind < last or (kind == last and kind not in (Kind.ENTRY, Kind.MESSAGE))):
        raise CapsuleInvalid("its sections are out of order")
    if kind == Kind.SIGNATURE and last != Kind.END:
        raise CapsuleInvalid("it has a signature before its end")


def _check_end(said: bytes, found: bytes, seen: set[Kind]) -> None:
    if said != found:
        raise CapsuleInvalid("it is damaged: its digest does not match")
    if not {Kind.FACTS, Kind.ENTRY} <= seen:
        raise CapsuleInvalid("it holds no run")


# The parts of a run as sections: facts, entries, a snapshot, messages.


LONGEST_NAME = 1000
"""How many characters a run id, a workflow's name or a tag may have."""

MOST_TAGS = 1000
LONGEST_FACTS, LONGEST_SUMMARY = 2_000_000, 4_000_000
"""How many bytes the facts of a run, or the summary of it, may have: reading JSON takes many times its size."""

KEY_BYTES = 8
_LAST_SECOND = 253402300800.0
_ENTRY, _SNAPSHOT, _MESSAGE = struct.Struct(">Qd16si"), struct.Struct(">Qd16s"), struct.Struct(">Q")
_OWNED = (RunStatus.RUNNING, RunStatus.QUEUED)
_STORED = ("run", "key", "workflow", "status", "created_at", "updated_at", "tags", "parent")
"""The facts of a capsule that a store keeps, too."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The plain facts of a run that travel. `first` and `last` are those of its entries.

    Its status is that of a run without an owner: `under_way` says that its journal ends within an execution.
    """

    run: str
    key: bytes
    workflow: str
    status: str
    under_way: bool
    created_at: float
    updated_at: float
    tags: tuple[str, ...]
    parent: bytes
    first: int
    last: int
    namespace: str = DEFAULT_NAMESPACE
    """The one that it is from: what is sealed with the key of a store opens as of there."""

    @classmethod
    def of(cls, info: RunInfo, first: int, last: int, *, under_way: bool, namespace: str) -> Facts:
        """Return those of a stored run, without its owner and its queue."""
        stored = {name: getattr(info, name) for name in _STORED} | {"status": stopped(info.status)}
        return cls(**stored, first=first, last=last, under_way=under_way, namespace=namespace)

    def info(self) -> RunInfo:
        """Return the facts as a store keeps them."""
        return RunInfo(**{name: getattr(self, name) for name in _STORED})


def stopped(status: str) -> str:
    """Return the status of a run that has no owner."""
    return (RunStatus.INTERRUPTED if status in _OWNED else RunStatus(status)).value


def canonical(data: Any) -> bytes:
    """Return plain data as JSON, always the same bytes."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def read_canonical(payload: bytes) -> Any:
    """Return data that `canonical` wrote."""
    try:
        data = json.loads(payload)
        if canonical(data) == payload:
            return data
    except (ValueError, RecursionError):
        pass
    raise CapsuleInvalid("it was not written by holdfast: a section of it is not in its one form")


_KIND_OF: dict[type, Kind] = {
    Facts: Kind.FACTS,
    Snapshot: Kind.SNAPSHOT,
    Entry: Kind.ENTRY,
    Message: Kind.MESSAGE,
}


def payload_of(part: Facts | Entry | Snapshot | Message) -> bytes:
    """Return a part of a run as the payload of a section."""
    match part:
        case Facts():
            data = dataclasses.asdict(part) | {"key": part.key.hex(), "parent": part.parent.hex()}
            if part.namespace == DEFAULT_NAMESPACE:
                del data["namespace"]
            return canonical(data)
        case Entry():
            mark = part.mark or b""
            start = _ENTRY.pack(part.seq, part.at, part.chain, -1 if part.mark is None else len(mark))
            return b"".join((start, mark, part.body))
        case Snapshot():
            return _SNAPSHOT.pack(part.seq, part.at, part.chain) + part.body
        case Message():  # When it came is left out: a store dates it when it gets it.
            return _MESSAGE.pack(part.number) + part.body


def read_facts(payload: bytes) -> Facts:
    """Return the facts of a section; nothing that a stranger writes there is taken unseen."""
    if len(payload) > LONGEST_FACTS:
        raise CapsuleInvalid("the facts in it are too long to be those of a run")
    data = read_canonical(payload)
    try:
        key, parent = bytes.fromhex(data.pop("key")), bytes.fromhex(data.pop("parent"))
        facts = Facts(key=key, parent=parent, **{**data, "tags": tuple(data["tags"])})
        if _is_sound(facts) and payload_of(facts) == payload:
            return facts
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    raise CapsuleInvalid("the facts in it are not those of a run")


def _is_sound(facts: Facts) -> bool:
    texts = (facts.run, facts.workflow, facts.namespace, *facts.tags)
    return (
        all(isinstance(text, str) and len(text) <= LONGEST_NAME for text in texts)
        and bool(facts.run)
        and len(facts.tags) <= MOST_TAGS
        and len(facts.key) == KEY_BYTES
        and facts.key[0] < 0x80
        and len(facts.parent) in (0, KEY_BYTES)
        and facts.status in set(RunStatus) - set(_OWNED)
        and isinstance(facts.under_way, bool)
        and all(isinstance(at, float) and is_time(at) for at in (facts.created_at, facts.updated_at))
        and type(facts.first) is type(facts.last) is int
        and 1 <= facts.first <= facts.last < 1 << 56
    )


def is_time(at: float) -> bool:
    """Return True if a time is one that calendars have."""
    return math.isfinite(at) and 0 <= at < _LAST_SECOND


def read_entry(payload: bytes) -> Entry:
    """Return the entry of a section."""
    seq, at, chain, length = _unpacked(_ENTRY, payload)
    inside, marked = _ENTRY.size, max(length, 0)
    if length < -1 or marked > len(payload) - inside or not is_time(at):
        raise CapsuleInvalid("an entry in it is not one of a journal")
    mark = payload[inside : inside + marked] if length >= 0 else None
    return Entry(seq, at, chain, payload[inside + marked :], mark)


def read_snapshot(payload: bytes) -> Snapshot:
    """Return the snapshot of a section."""
    seq, at, chain = _unpacked(_SNAPSHOT, payload)
    if not is_time(at):
        raise CapsuleInvalid("the snapshot in it is not one of a run")
    return Snapshot(seq, at, chain, payload[_SNAPSHOT.size :])


def read_message(payload: bytes) -> Message:
    """Return the message of a section."""
    (number,) = _unpacked(_MESSAGE, payload)
    return Message(number, 0.0, payload[_MESSAGE.size :])


def _unpacked(shape: struct.Struct, payload: bytes) -> tuple[Any, ...]:
    if len(payload) < shape.size:
        raise CapsuleInvalid("a section in it is too short to be what it says")
    return shape.unpack_from(payload)


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
    """Return the size that the compressed values of a MessagePack body claim to unpack to; raise if it is malformed.

    Elements are skipped, not built: a list that claims a billion members costs nothing. Records can contain whole
    runs, whose values count too; `within` is the number of runs that enclose this one.
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
    """Return what a compressed value says it has; one that only looks compressed says nothing."""
    try:
        return int(zstd.get_frame_info(start).decompressed_size or 0)
    except (zstd.ZstdError, ValueError):
        return 0
