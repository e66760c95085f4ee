"""The bytes of a capsule: a head, then sections that each have a length and a checksum, then a digest of it all."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple, Protocol

from holdfast.errors import CapsuleInvalid

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
        raise CapsuleInvalid("it is not a capsule; `holdfast export RUN -o FILE` writes one")
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
        raise CapsuleInvalid("its sections are out of order, or something was added to it")
    if kind == Kind.SIGNATURE and last != Kind.END:
        raise CapsuleInvalid("it has a signature before its end")


def _check_end(said: bytes, found: bytes, seen: set[Kind]) -> None:
    if said != found:
        raise CapsuleInvalid("it is damaged: its digest does not match")
    if any(kind not in seen for kind in _NEEDED if kind != Kind.END):
        raise CapsuleInvalid("it holds no run")
