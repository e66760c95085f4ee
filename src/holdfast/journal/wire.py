"""The parts that stored records and stored runs have in common, as bytes and back.

A body is one version byte and MessagePack. State values stay encoded inside it, so reading a journal
decodes only what somebody looks at, and needs none of the user's code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ormsgpack

from holdfast.data.codec import Codec
from holdfast.data.compress import SMALLEST, pack, unpack
from holdfast.data.ops import KINDS, Op
from holdfast.errors import CodecError
from holdfast.journal.records import Fault, Target

VERSION = 1
HEAD = bytes([VERSION])
KIND_CODE = {kind: code for code, kind in enumerate(KINDS)}
_LARGE = 1024
"""From this size on a value is remembered, so that its next version can be stored as a difference."""


class Track:
    """What reading and writing a journal keep in step: the last versions of large values, and sizes."""

    __slots__ = ("_items", "_sizes", "bases", "live", "skims", "work")

    def __init__(self, *, skims: bool = False) -> None:
        self.skims = skims
        """Whether large values are left as they are stored, so that an entry can be read without those before."""
        self.bases: dict[tuple[str, str], bytes] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        self._items: dict[str, int] = {}
        self.live = 0
        self.work = 0
        """How many bytes a reader since the last snapshot has to rebuild from differences."""

    def measured(self, sizes: dict[tuple[str, str], int]) -> None:
        """Take the true sizes of what the keys hold now."""
        self._sizes = dict(sizes)
        self.live = sum(sizes.values()) + sum(self._items.values())

    def saw(self, frame: str, op: Op) -> None:
        """Count an op, and remember a large value that was set."""
        place, size = (frame, op.key), len(op.raw)
        if op.kind == "set":
            known = self._sizes.get(place, 0)
            if size != known:
                self.live += size - known
                self._sizes[place] = size
            if size >= _LARGE:
                self.bases[place] = op.raw
            elif self.bases and place in self.bases:
                del self.bases[place]
        elif op.kind != "reduce":
            self.live += size
            self._sizes[place] = self._sizes.get(place, 0) + size

    def saw_items(self, frame: str, targets: Sequence[Target]) -> None:
        """Count what the items of a wave hold, in place of those of the wave before."""
        size = 64 * len(targets)
        for target in targets:
            if target.item:
                size += sum([len(op.raw) for op in target.item])
        known = self._items.get(frame, 0)
        if size != known:
            self.live += size - known
            self._items[frame] = size

    def added_items(self, frame: str, items: Sequence[Sequence[Op]]) -> None:
        """Count what further items of a wave hold."""
        size = sum(64 + sum([len(op.raw) for op in item]) for item in items)
        self.live += size
        self._items[frame] = self._items.get(frame, 0) + size

    def forget(self) -> None:
        """Forget all, but not what work a reader has had."""
        self.bases, self._sizes, self._items, self.live = {}, {}, {}, 0

    def follow(self, other: Track) -> None:
        """Stand where another track stands."""
        self.bases, self._sizes, self._items = dict(other.bases), dict(other._sizes), dict(other._items)
        self.live, self.work = other.live, other.work

    def closed(self, frame: str) -> None:
        """Forget a frame that has ended."""
        for place in [place for place in self._sizes if place[0] == frame]:
            self.live -= self._sizes.pop(place)
            self.bases.pop(place, None)
        self.live -= self._items.pop(frame, 0)


def unpack_body(body: bytes) -> Any:
    if body[:1] != HEAD:
        found = body[0] if body else "nothing"
        raise CodecError(
            f"the record format is {found}, this version of holdfast reads {VERSION}; upgrade holdfast"
        )
    try:
        return ormsgpack.unpackb(memoryview(body)[1:])
    except ValueError as error:
        raise CodecError(f"a record is damaged: {error}") from None


def write_ops(ops: Sequence[Op], frame: str, track: Track) -> list[Any]:
    wires: list[Any] = []
    for op in ops:
        kind, raw = op.kind, op.raw
        if len(raw) >= SMALLEST:
            base = track.bases.get((frame, op.key)) if kind == "set" else None
            how, data = pack(raw, base)
            if how == 2:
                track.work += len(raw)
            wire: list[Any] = [KIND_CODE[kind], op.key, how, data]
        else:
            wire = [KIND_CODE[kind], op.key, 0, raw]
        if op.limit:
            wire.append(op.limit)
        wires.append(wire)
        track.saw(frame, op)
    return wires


def read_ops(wires: list[Any], frame: str, track: Track, codec: Codec) -> tuple[Op, ...]:
    ops = []
    for wire in wires:
        kind, key, how, data = KINDS[wire[0]], wire[1], wire[2], wire[3]
        raw = data
        if how and not track.skims:
            raw = unpack(how, data, track.bases.get((frame, key)) if how == 2 else None)
        if how == 2:
            track.work += len(raw)
        op = Op(kind, key, raw, limit=wire[4] if len(wire) > 4 else 0, codec=codec)
        track.saw(frame, op)
        ops.append(op)
    return tuple(ops)


def write_item(ops: Sequence[Op]) -> list[Any]:
    return [[KIND_CODE[op.kind], op.key, *pack(op.raw)] for op in ops]


def read_item(wires: list[Any], codec: Codec) -> tuple[Op, ...]:
    return tuple(Op(KINDS[w[0]], w[1], unpack(w[2], w[3]) if w[2] else w[3], codec=codec) for w in wires)


def write_targets(targets: Sequence[Target]) -> list[Any]:
    return [t.node if t.key is None else [t.node, t.key, write_item(t.item)] for t in targets]


def read_targets(wires: list[Any], codec: Codec) -> tuple[Target, ...]:
    return tuple(
        Target(w) if isinstance(w, str) else Target(w[0], w[1], read_item(w[2], codec)) for w in wires
    )


def write_fault(fault: Fault | None) -> list[Any] | None:
    return (
        None if fault is None else [safe_text(fault.type), safe_text(fault.message), safe_text(fault.trace)]
    )


def safe_text(text: str) -> str:
    """Text that MessagePack can hold: a lone surrogate in somebody's message must not lose the record."""
    return text.encode("utf-8", "backslashreplace").decode() if not text.isascii() else text


def read_fault(wire: list[Any] | None) -> Fault | None:
    return None if wire is None else Fault(*wire)


def read_pairs(wire: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((name, tuple(values)) for name, values in wire)
