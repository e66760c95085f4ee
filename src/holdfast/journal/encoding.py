"""Records and runs as bytes, and back.

A body is one version byte and MessagePack. How a value is stored follows from its declared type: `form_of` makes a
writer and a reader of a type hint once, and the reader refuses what has another shape. State values stay encoded
inside, so reading a journal decodes only what somebody looks at, and needs none of the user's code.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import ormsgpack

from holdfast.errors import CodecError
from holdfast.journal.records import (
    CHANGES,
    DERIVED,
    FRAME,
    NEXT,
    RECORDS,
    STEP,
    TEXT,
    Forked,
    Keyed,
    Record,
    Reset,
    Steered,
    StepAdvanced,
    StepCalled,
    StepFinished,
    Target,
)
from holdfast.journal.run_state import RunState, Step, frame_of
from holdfast.state.codec import DELTA, LEAST_COMPRESSED, Codec, pack, unpack
from holdfast.state.ops import KINDS, PLAIN, UNREAD, Op, Slot

VERSION = 1
HEAD = bytes([VERSION])

_SET = KINDS.index("set")
_KIND_CODE = {kind: code for code, kind in enumerate(KINDS)}
_LARGE = 1024
"""From this size on a value is remembered, so that its next version can be stored as a difference."""

_ITEM_BYTES = 64
"""What an item of a for-each takes beside its values."""

_LATEST = 253402300800.0
"""The first second of the year 10000: strangers may claim no later time, nor a longer one."""

_SEVERAL = ("append", "keep", "merge", "union")
_CONTAINER_STARTS = frozenset(bytes([code]) for code in (*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF))
"""How lists and mappings begin in MessagePack: the operand of a change of several."""


class Track:
    """What reading and writing a journal keep in step: the last versions of large values, and sizes.

    With `skims`, large values are left as they are stored, so that an entry can be read without those before. With
    `strict`, for what strangers wrote, times have to be possible and operands have to fit their changes.
    """

    __slots__ = ("_items", "_sizes", "bases", "codec", "found", "frame", "live", "skims", "strict", "work")

    def __init__(self, *, skims: bool = False, strict: bool = False) -> None:
        self.skims, self.strict = skims, strict
        self.frame, self.codec = "", _CODEC
        """The frame that the changes being read or written belong to, and what decodes their values."""
        self.found: dict[tuple[str, str], int] = {}
        """The true sizes of what the keys hold, while they are measured."""
        self.work = 0
        """How many bytes a reader since the last snapshot has to rebuild from differences."""
        self.clear()

    def clear(self) -> None:
        """Forget all values and sizes, but not the work of a reader."""
        self.bases: dict[tuple[str, str], bytes] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        self._items: dict[str, int] = {}
        self.live = 0

    def copy_from(self, other: Track) -> None:
        """Take over the values and sizes of another track."""
        self.bases, self._sizes, self._items = dict(other.bases), dict(other._sizes), dict(other._items)
        self.live, self.work = other.live, other.work

    def measure(self) -> None:
        """Take the true sizes that were found of what the keys hold now."""
        self._sizes, self.live = self.found, sum(self.found.values()) + sum(self._items.values())

    def count(self, op: Op) -> None:
        """Count a change in the current frame, and remember a large value that was set."""
        place, size = (self.frame, op.key), len(op.raw)
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

    def count_items(self, targets: Sequence[Target | Step]) -> None:
        """Set the size of the current frame's items to that of this wave, replacing that of the previous wave."""
        size = _ITEM_BYTES * len(targets)
        for target in targets:
            if target.item:
                size += sum([len(op.raw) for op in target.item])
        known = self._items.get(self.frame, 0)
        if size != known:
            self.live += size - known
            self._items[self.frame] = size

    def close_frame(self, frame: str) -> None:
        """Forget a frame that has ended."""
        for place in [place for place in self._sizes if place[0] == frame]:
            self.live -= self._sizes.pop(place)
            self.bases.pop(place, None)
        self.live -= self._items.pop(frame, 0)


_CODEC = Codec()

# How values of a declared type are stored.


Convert = Callable[[Any, Track], Any]


class Form(NamedTuple):
    """How values of one type are stored: without `write` as they are; `read` checks and rebuilds them.

    Values of the types `plain` are read as they are. Empty ones are written as they are, unless the form is `eager`.
    """

    write: Convert | None
    read: Convert
    plain: tuple[type, ...] = ()
    eager: bool = False


@functools.cache
def form_of(hint: Any) -> Form:
    """Return how values of a type are stored."""
    if hint in _BASIC:
        return _BASIC[hint]
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _annotated(*inner)
    if origin in (typing.Union, types.UnionType):
        return _optional(*(form_of(each) for each in inner if each is not types.NoneType))
    if origin is list or (origin is tuple and inner[-1] is Ellipsis):
        return _many(origin, form_of(inner[0]))
    if origin is tuple:
        return _fields(_as_tuple, [form_of(each) for each in inner])
    if origin is dict:
        return _mapping(*inner)
    return _declared(hint)


def _scalar(*kinds: type) -> Form:
    def read(value: Any, track: Track) -> Any:
        if type(value) not in kinds:
            raise TypeError(f"{type(value).__name__} in place of {kinds[0].__name__}")
        return value

    return Form(None, read, kinds)


def _read_float(value: Any, track: Track) -> Any:
    if type(value) not in (float, int):
        raise TypeError(f"{type(value).__name__} in place of float")
    if track.strict and not (math.isfinite(value) and -_LATEST < value < _LATEST):
        raise ValueError(f"{value} is no time")
    return value


def safe_text(text: str) -> str:
    """Return text that MessagePack can hold: a lone surrogate in somebody's message must not lose the record."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _optional(form: Form) -> Form:
    write, read, plain, _ = form
    return Form(
        None if write is None else lambda value, track: None if value is None else write(value, track),
        lambda value, track: None if value is None else read(value, track),
        (*plain, types.NoneType),
    )


def _many(kind: type, form: Form) -> Form:
    write, read_one = form.write, form.read

    def read(values: Any, track: Track) -> Any:
        if type(values) is not list:
            raise TypeError(f"{type(values).__name__} in place of {kind.__name__}")
        return kind([read_one(value, track) for value in values])

    return Form(
        None if write is None else lambda values, track: [write(each, track) for each in values], read
    )


def _mapping(key: Any, value: Any) -> Form:
    if key is not str:
        pairs = form_of(tuple[tuple[key, value], ...])
        write_pairs = pairs.write or (lambda found, track: found)
        return Form(
            lambda found, track: write_pairs(list(found.items()), track),
            lambda found, track: dict(pairs.read(found, track)),
            eager=True,
        )
    write, read_one = form_of(value)[:2]

    def read(found: Any, track: Track) -> Any:
        if type(found) is not dict:
            raise TypeError(f"{type(found).__name__} in place of dict")
        return {name: read_one(each, track) for name, each in found.items()}

    if write is None:
        return Form(None, read)
    return Form(lambda found, track: {name: write(each, track) for name, each in found.items()}, read)


def _annotated(hint: Any, mark: Any) -> Form:
    if isinstance(mark, Keyed):
        return _keyed(form_of(typing.get_args(hint)[1]), mark.field)
    return {TEXT: _TEXT, FRAME: _FRAME, STEP: _STEP, CHANGES: _CHANGES, NEXT: _NEXT, DERIVED: _DERIVED}[mark]


def _keyed(form: Form, field: str) -> Form:
    """Mappings whose keys are a field of their values: stored as a list of these."""
    write, read = _many(list, form)[:2]
    assert write is not None
    return Form(
        lambda found, track: write(found.values(), track),
        lambda found, track: {getattr(each, field): each for each in read(found, track)},
        eager=True,
    )


def _declared(kind: Any, code: int | None = None) -> Form:
    """Named tuples and dataclasses: stored as a list of their fields; records after their code."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if hasattr(kind, "_fields"):
        defaults = list(kind._field_defaults.values())
        return _fields(kind, [form_of(hints[name]) for name in kind._fields], defaults, code)
    names = [field.name for field in dataclasses.fields(kind)]
    write, read = _fields(_as_tuple, [form_of(hints[name]) for name in names])[:2]
    assert write is not None
    return Form(
        lambda value, track: write([getattr(value, name) for name in names], track),
        lambda value, track: kind(**dict(zip(names, read(value, track), strict=True))),
    )


def _fields(
    make: Callable[..., Any], forms: Sequence[Form], defaults: Sequence[Any] = (), code: int | None = None
) -> Form:
    """Lists of one value for each form, after a code if there is one; the last may be missing if they have defaults.

    Journals are read and written field by field, so that this is compiled: one function to write, and one to read.
    """
    head = [] if code is None else [str(code)]
    stored = [f"v{index}" for index, form in enumerate(forms) if form is not _DERIVED]
    scope: dict[str, Any] = {
        "make": make,
        "complete": functools.partial(_complete, len(head) + len(stored), defaults),
    }
    written, read = list(head), []
    for index, form in enumerate(forms):
        value = f"v{index}"
        scope |= {f"write{index}": form.write, f"read{index}": form.read, f"plain{index}": form.plain}
        if form is _DERIVED:
            read.append("None")
            continue
        keeps = f"{value} if type({value}) in plain{index} else " if form.plain else ""
        read.append(f"{keeps}read{index}({value}, track)")
        if_any = "" if form.eager else f" if {value} else {value}"
        written.append(value if form.write is None else f"write{index}({value}, track){if_any}")
    exec(
        f"def write(fields, track):\n"
        f"    {''.join(f'v{index}, ' for index in range(len(forms)))} = fields\n"
        f"    return [{', '.join(written)}]\n"
        f"def read(fields, track):\n"
        f"    if type(fields) is not list or len(fields) != {len(head) + len(stored)}: fields = complete(fields)\n"
        f"    {''.join(f'{name}, ' for name in [*map('_{}'.format, head), *stored])} = fields\n"
        f"    return make({', '.join(read)})\n",
        scope,
    )
    return Form(scope["write"], scope["read"], eager=True)


def _as_tuple(*values: Any) -> tuple[Any, ...]:
    return values


def _complete(most: int, defaults: Sequence[Any], fields: Any) -> list[Any]:
    """Return fields with the defaults of the last ones, which they lack; refuse any others."""
    lacking = most - len(fields)
    if type(fields) is not list or not 0 < lacking <= len(defaults):
        raise ValueError(f"not the {most} fields that there should be")
    return fields + [list(value) if type(value) is tuple else value for value in defaults[-lacking:]]


# Changes of state, and what they belong to.


def _write_op(op: Op, track: Track) -> list[Any]:
    wire = [_KIND_CODE[op.kind], op.key, *pack(op.raw)]
    return [*wire, op.limit] if op.limit else wire


def _read_op(wire: Any, track: Track) -> Op:
    how, data = wire[2], wire[3]
    return _checked_op(wire, unpack(how, data) if how else data, track)


def _checked_op(wire: Any, raw: Any, track: Track) -> Op:
    kind, key, limit = KINDS[wire[0]], wire[1], 0
    if len(wire) > 4:
        (limit,) = wire[4:]
    if type(key) is not str or type(raw) is not bytes or type(limit) is not int:
        raise TypeError("not a change")
    if track.strict and kind in _SEVERAL and raw[1:2] not in _CONTAINER_STARTS:
        raise ValueError(f"not an operand of {kind!r}")
    return Op(kind, key, raw, UNREAD, PLAIN, limit, track.codec)


def _write_changes(ops: Sequence[Op], track: Track) -> list[Any]:
    wires: list[Any] = []
    for op in ops:
        kind, raw = op.kind, op.raw
        if len(raw) >= LEAST_COMPRESSED:
            base = track.bases.get((track.frame, op.key)) if kind == "set" else None
            how, data = pack(raw, base)
            if how == DELTA:
                track.work += len(raw)
            wire: list[Any] = [_KIND_CODE[kind], op.key, how, data]
        else:
            wire = [_KIND_CODE[kind], op.key, 0, raw]
        if op.limit:
            wire.append(op.limit)
        wires.append(wire)
        track.count(op)
    return wires


def _read_changes(wires: Any, track: Track) -> tuple[Op, ...]:
    ops = []
    for wire in wires:
        how, raw = wire[2], wire[3]
        if how and not track.skims:
            raw = unpack(how, raw, track.bases.get((track.frame, wire[1])) if how == DELTA else None)
        if how == DELTA:
            track.work += len(raw)
        op = _checked_op(wire, raw, track)
        track.count(op)
        ops.append(op)
    return tuple(ops)


def _write_target(target: Target, track: Track) -> Any:
    node, key, item = target
    return node if key is None and not item else [node, key, [_write_op(op, track) for op in item]]


def _read_target(wire: Any, track: Track) -> Target:
    if type(wire) is str:
        return Target(wire)
    found: Target = _TARGET.read(wire, track)
    return found


def _write_next(targets: Sequence[Target], track: Track) -> list[Any]:
    track.count_items(targets)
    return [_write_target(target, track) for target in targets]


def _read_next(wires: Any, track: Track) -> tuple[Target, ...]:
    targets = tuple([_read_target(wire, track) for wire in wires])
    track.count_items(targets)
    return targets


def _within(find: Callable[[str], str]) -> Form:
    """Texts that name the frame of the changes in the same record: `find` returns its path."""

    def write(text: str, track: Track) -> str:
        track.frame = find(text)
        return text

    return Form(write, lambda text, track: write(_STR.read(text, track), track), eager=True)


def _write_cells(cells: dict[str, Slot], track: Track) -> list[Any]:
    wires: list[Any] = []
    for key, slot in cells.items():
        raw = slot.encoded(track.codec)
        track.found[track.frame, key] = len(raw)
        wires.append([key, -1, b""] if track.bases.get((track.frame, key)) == raw else [key, *pack(raw)])
    return wires


def _read_cells(wires: Any, track: Track) -> dict[str, Slot]:
    cells: dict[str, Slot] = {}
    for key, how, data in wires:
        base = track.bases.get((track.frame, key))
        raw = base if how < 0 and base is not None else unpack(how, data)
        op = _checked_op((_SET, key), raw, track)
        cells[key] = Slot(op, None)
        track.count(op)
        if base is not None:
            track.bases[track.frame, key] = base
        else:
            track.bases.pop((track.frame, key), None)
    return cells


_STR = _scalar(str)
_TEXT = Form(lambda text, track: safe_text(text), _STR.read, (str,))
_FRAME, _STEP = _within(str), _within(frame_of)
_CHANGES, _NEXT = Form(_write_changes, _read_changes), Form(_write_next, _read_next, eager=True)
_DERIVED = Form(None, lambda value, track: None)
_OP = Form(_write_op, _read_op)
_BASIC: dict[Any, Form] = {
    str: _STR,
    int: _scalar(int),
    bool: _scalar(bool),
    bytes: _scalar(bytes),
    float: Form(None, _read_float),
    Any: Form(None, lambda value, track: value),
    dict[str, Any]: _scalar(dict),
    dict[str, Slot]: Form(_write_cells, _read_cells, eager=True),
    Op: _OP,
    Target: Form(_write_target, _read_target),
}
_TARGET = _fields(Target, [_STR, _optional(_STR), _many(tuple, _OP)], [None, ()])

# Records: the body of an entry.


def encode_records(records: Sequence[Record], track: Track) -> bytes:
    """Return the body of an entry with these records; update `track` with the values and sizes in them."""
    wires = []
    for record in records:
        write, effect = _FORMS[type(record)][0]
        track.frame = ""
        if effect is not None:
            effect(record, track)
        wires.append(write(record, track))
    return HEAD + ormsgpack.packb(wires)


FindBase = Callable[[Forked, Track], RunState]
"""Finds the run that a fork began as, and sets a track to that."""


def decode_records(body: bytes, track: Track, codec: Codec, base: FindBase | None = None) -> list[Record]:
    """Return the records of a body. Values are decoded with `codec` when they are first read.

    A fork's first records refer to what its parent holds, so that they cannot be read without its `base`.
    """
    track.codec = codec
    records: list[Record] = []
    try:
        for wire in _unpack(body):
            read, effect = _FORMS[wire[0]][1]
            track.frame = ""
            record = read(wire, track)
            if effect is not None:
                record = effect(record, track)
            if base is not None and not records and isinstance(record, Forked):
                record = record._replace(run=base(record, track))
            records.append(record)
    except _MALFORMED as error:
        raise CodecError(f"a record cannot be read: {type(error).__name__}: {error}") from None
    return records


_MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError)


def _unpack(body: bytes) -> Any:
    if body[:1] != HEAD:
        found = body[0] if body else "nothing"
        raise CodecError(
            f"the record format is {found}, this version of holdfast reads {VERSION}; upgrade holdfast"
        )
    try:
        return ormsgpack.unpackb(memoryview(body)[1:])
    except ValueError as error:
        raise CodecError(f"a record is damaged: {error}") from None


class _Forms(dict[Any, Any]):
    """What writes and reads each kind of record, by the kind and by its code, each with what that does to a track.

    They are made when they are first needed.
    """

    def __missing__(self, key: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        kind = key if isinstance(key, type) else RECORDS[key]
        code = next(code for code, known in RECORDS.items() if known is kind)
        form, effect = _declared(kind, code), _EFFECTS.get(kind)
        self[kind] = self[code] = found = (form.write, effect), (form.read, effect)
        return found


_FORMS = _Forms()


def _end_step(record: StepFinished, track: Track) -> StepFinished:
    if record.promoted or record.step in track._items:
        track.close_frame(record.step)
    return record


def _call_step(record: StepCalled, track: Track) -> StepCalled:
    size = _ITEM_BYTES + sum([len(op.raw) for op in record.item])
    track.live += size
    track._items[record.frame] = track._items.get(record.frame, 0) + size
    return record


def _advance_step(record: StepAdvanced, track: Track) -> StepAdvanced:
    if track._items.get("") != _ITEM_BYTES:
        track.count_items(_ONE)
    return record


def _steer(record: Steered, track: Track) -> Steered:
    items = [*(item for _, item in record.items), *(each.item for each in record.add)]
    size = sum(_ITEM_BYTES + sum([len(op.raw) for op in item]) for item in items)
    track.live += size
    track._items[record.frame] = track._items.get(record.frame, 0) + size
    return record


def _reset(record: Reset, track: Track) -> Reset:
    track.clear()
    return record._replace(run=decode_run(record.body, track, track.codec))


_ONE = (Target(""),)
_EFFECTS: dict[type, Callable[[Any, Track], Any]] = {
    StepFinished: _end_step,
    StepCalled: _call_step,
    StepAdvanced: _advance_step,
    Steered: _steer,
    Reset: _reset,
}
"""What records do to a track beside the changes that they hold, whether they are read or written."""


# Folded runs: the body of a snapshot.


def encode_run(run: RunState, track: Track, codec: Codec) -> bytes:
    """Return the body of a snapshot: a folded run, and the versions that later differences refer to.

    `track` learns the true sizes of what the run holds.
    """
    track.codec, track.found = codec, {}
    wire = {}
    for name, form in _run_forms().items():
        value = getattr(run, name)
        wire[name] = value if form.write is None else form.write(value, track)
    wire["bases"] = [[frame, key, *pack(raw)] for (frame, key), raw in track.bases.items()]
    track.measure()
    return HEAD + ormsgpack.packb(wire)


def decode_run(body: bytes, track: Track, codec: Codec) -> RunState:
    """Return a folded run from a snapshot's body; `track` is set to what it holds."""
    track.codec = codec
    wire = _unpack(body)
    try:
        for frame, key, how, data in wire["bases"]:
            track.bases[frame, key] = unpack(how, data)
        run = RunState(**{name: form.read(wire[name], track) for name, form in _run_forms().items()})
        for path, frame in run.frames.items():
            if any(step.frame != path for step in frame.active.values()):
                raise ValueError("a step is in another frame than its own")
            track.frame = path
            track.count_items(list(frame.active.values()))
    except _MALFORMED as error:
        raise CodecError(f"a snapshot cannot be read: {type(error).__name__}: {error}") from None
    return run


@functools.cache
def _run_forms() -> dict[str, Form]:
    return {
        name: form_of(hint) for name, hint in typing.get_type_hints(RunState, include_extras=True).items()
    }
