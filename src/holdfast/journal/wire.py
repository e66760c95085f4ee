"""Records and folded runs as bytes, and back. The form is versioned and needs none of the user's code.

A body is one version byte and a MessagePack list of records, each a list that begins with its code.
State values stay encoded inside, so reading a journal decodes only what somebody looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ormsgpack

from holdfast.data.codec import Codec
from holdfast.data.compress import pack, unpack
from holdfast.data.ops import KINDS, Op, Slot
from holdfast.errors import CodecError
from holdfast.journal.fold import Frame, Pause, RunState, Step
from holdfast.journal.records import (
    Answered,
    Commanded,
    Fault,
    Forked,
    FrameOpened,
    GraphChanged,
    Noted,
    Paused,
    Record,
    Resumed,
    RunEnded,
    RunStarted,
    StateEdited,
    StepFailed,
    StepFinished,
    StepStarted,
    Target,
    WaveFinished,
)

VERSION = 1
_HEAD = bytes([VERSION])
_KIND_CODE = {kind: code for code, kind in enumerate(KINDS)}
_LARGE = 1024
"""From this size on a value is remembered, so that its next version can be stored as a difference."""


class Track:
    """What reading and writing a journal keep in step: the last versions of large values, and sizes."""

    __slots__ = ("_items", "_sizes", "bases", "live")

    def __init__(self) -> None:
        self.bases: dict[tuple[str, str], bytes] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        self._items: dict[str, int] = {}
        self.live = 0

    def saw(self, frame: str, op: Op) -> None:
        """Count an op, and remember a large value that was set."""
        place, size = (frame, op.key), len(op.raw)
        if op.kind == "set":
            self.live += size - self._sizes.get(place, 0)
            self._sizes[place] = size
            if size >= _LARGE:
                self.bases[place] = op.raw
            elif place in self.bases:
                del self.bases[place]
        elif op.kind != "reduce":
            self.live += size
            self._sizes[place] = self._sizes.get(place, 0) + size

    def saw_items(self, frame: str, targets: Sequence[Target]) -> None:
        """Count what the items of a wave hold, in place of those of the wave before."""
        size = 64 * len(targets)
        for target in targets:
            for op in target.item:
                size += len(op.raw)
        self.live += size - self._items.get(frame, 0)
        self._items[frame] = size

    def closed(self, frame: str) -> None:
        """Forget a frame that has ended."""
        for place in [place for place in self._sizes if place[0] == frame]:
            self.live -= self._sizes.pop(place)
            self.bases.pop(place, None)
        self.live -= self._items.pop(frame, 0)


def encode_records(records: Sequence[Record], track: Track) -> bytes:
    """The body of an entry. `track` learns what the records hold."""
    return _HEAD + ormsgpack.packb([_WRITERS[type(record)](record, track) for record in records])


def decode_records(body: bytes, track: Track, codec: Codec) -> list[Record]:
    """The records of a body. Values are decoded with `codec` when they are first read."""
    wires = _unpack(body)
    try:
        return [_READERS[wire[0]](wire, track, codec) for wire in wires]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CodecError(f"a record cannot be read: {type(error).__name__}: {error}") from None


def _unpack(body: bytes) -> Any:
    if body[:1] != _HEAD:
        found = body[0] if body else "nothing"
        raise CodecError(
            f"the record format is {found}, this version of holdfast reads {VERSION}; upgrade holdfast"
        )
    try:
        return ormsgpack.unpackb(memoryview(body)[1:])
    except ValueError as error:
        raise CodecError(f"a record is damaged: {error}") from None


def _ops(ops: Sequence[Op], frame: str, track: Track) -> list[Any]:
    wires: list[Any] = []
    for op in ops:
        base = track.bases.get((frame, op.key)) if op.kind == "set" else None
        how, data = pack(op.raw, base)
        wire: list[Any] = [_KIND_CODE[op.kind], op.key, how, data]
        if op.limit:
            wire.append(op.limit)
        wires.append(wire)
        track.saw(frame, op)
    return wires


def _read_ops(wires: list[Any], frame: str, track: Track, codec: Codec) -> tuple[Op, ...]:
    ops = []
    for wire in wires:
        kind, key, how, data = KINDS[wire[0]], wire[1], wire[2], wire[3]
        raw = unpack(how, data, track.bases.get((frame, key)) if how == 2 else None) if how else data
        op = Op(kind, key, raw, limit=wire[4] if len(wire) > 4 else 0, codec=codec)
        track.saw(frame, op)
        ops.append(op)
    return tuple(ops)


def _item_ops(ops: Sequence[Op]) -> list[Any]:
    return [[_KIND_CODE[op.kind], op.key, *pack(op.raw)] for op in ops]


def _read_item_ops(wires: list[Any], codec: Codec) -> tuple[Op, ...]:
    return tuple(Op(KINDS[w[0]], w[1], unpack(w[2], w[3]) if w[2] else w[3], codec=codec) for w in wires)


def _targets(targets: Sequence[Target]) -> list[Any]:
    return [t.node if t.key is None else [t.node, t.key, _item_ops(t.item)] for t in targets]


def _read_targets(wires: list[Any], codec: Codec) -> tuple[Target, ...]:
    return tuple(
        Target(w) if isinstance(w, str) else Target(w[0], w[1], _read_item_ops(w[2], codec)) for w in wires
    )


def _fault(fault: Fault | None) -> list[Any] | None:
    return None if fault is None else [_text(fault.type), _text(fault.message), _text(fault.trace)]


def _text(text: str) -> str:
    """Text that MessagePack can hold: a lone surrogate in somebody's message must not lose the record."""
    return text.encode("utf-8", "backslashreplace").decode() if not text.isascii() else text


def _read_fault(wire: list[Any] | None) -> Fault | None:
    return None if wire is None else Fault(*wire)


def _frame_of(step: str) -> str:
    return step.rpartition("/")[0] if "/" in step else ""


def _write_finished(r: StepFinished, track: Track) -> list[Any]:
    if r.promoted:
        track.closed(r.step)
    goto = None if r.goto is None else _targets(r.goto)
    return [2, r.step, _ops(r.ops, _frame_of(r.step), track), goto, r.seconds, r.promoted, r.skipped]


def _write_wave(r: WaveFinished, track: Track) -> list[Any]:
    track.saw_items(r.frame, r.next)
    return [4, r.frame, _ops(r.ops, r.frame, track), _targets(r.next), r.waiting, r.steps]


def _write_run_started(r: RunStarted, track: Track) -> list[Any]:
    track.saw_items("", r.next)
    ops = _ops(r.ops, "", track)
    return [0, r.workflow, ops, _targets(r.next), r.config, r.outline, r.driver, r.parent]


def _write_frame(r: FrameOpened, track: Track) -> list[Any]:
    track.saw_items(r.step, r.next)
    return [13, r.step, r.keys, _ops(r.ops, r.step, track), _targets(r.next), r.reduced]


def _write_paused(r: Paused, track: Track) -> list[Any]:
    texts = [_text(r.name), _text(r.prompt)]
    return [5, r.pause, r.kind, r.step, r.node, *texts, r.schema, r.expires_at, r.since]


def _write_forked(r: Forked, track: Track) -> list[Any]:
    decode_run(r.body, track, Codec())
    return [14, r.parent, r.seq, r.body, r.driver, r.config]


_WRITERS: dict[type[Record], Callable[[Any, Track], list[Any]]] = {
    RunStarted: _write_run_started,
    StepStarted: lambda r, track: [1, r.step, r.attempt],
    StepFinished: _write_finished,
    StepFailed: lambda r, track: [3, r.step, r.attempt, _fault(r.fault), r.retry_at, r.seconds],
    WaveFinished: _write_wave,
    Paused: _write_paused,
    Answered: lambda r, track: [6, r.pause, r.value, r.by],
    Noted: lambda r, track: [7, r.step, r.key, r.value],
    StateEdited: lambda r, track: [8, r.frame, _ops(r.ops, r.frame, track), r.by],
    GraphChanged: lambda r, track: [9, r.outline, r.remap],
    Commanded: lambda r, track: [10, r.number, r.command, r.refused],
    Resumed: lambda r, track: [11, r.driver, r.approve, r.config],
    RunEnded: lambda r, track: [12, r.status, _fault(r.fault), r.node],
    FrameOpened: _write_frame,
    Forked: _write_forked,
}


def _pairs(wire: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((name, tuple(values)) for name, values in wire)


def _read_run_started(w: list[Any], track: Track, codec: Codec) -> Record:
    next_ = _read_targets(w[3], codec)
    track.saw_items("", next_)
    parent = tuple(w[7]) if w[7] else None
    return RunStarted(w[1], _read_ops(w[2], "", track, codec), next_, w[4], w[5], w[6], parent)


def _read_finished(w: list[Any], track: Track, codec: Codec) -> Record:
    goto = None if w[3] is None else _read_targets(w[3], codec)
    if w[5]:
        track.closed(w[1])
    return StepFinished(w[1], _read_ops(w[2], _frame_of(w[1]), track, codec), goto, w[4], w[5], w[6])


def _read_failed(w: list[Any], track: Track, codec: Codec) -> Record:
    fault = _read_fault(w[3])
    if fault is None:
        raise ValueError("a failure without a reason")
    return StepFailed(w[1], w[2], fault, w[4], w[5])


def _read_wave(w: list[Any], track: Track, codec: Codec) -> Record:
    next_ = _read_targets(w[3], codec)
    track.saw_items(w[1], next_)
    steps = None if w[5] is None else tuple(w[5])
    return WaveFinished(w[1], _read_ops(w[2], w[1], track, codec), next_, _pairs(w[4]), steps)


def _read_frame(w: list[Any], track: Track, codec: Codec) -> Record:
    next_ = _read_targets(w[4], codec)
    track.saw_items(w[1], next_)
    return FrameOpened(w[1], tuple(w[2]), _read_ops(w[3], w[1], track, codec), next_, tuple(w[5]))


def _read_forked(w: list[Any], track: Track, codec: Codec) -> Record:
    return Forked(w[1], w[2], w[3], decode_run(w[3], track, codec), w[4], w[5])


_READERS: dict[int, Callable[[list[Any], Track, Codec], Record]] = {
    0: _read_run_started,
    1: lambda w, track, codec: StepStarted(w[1], w[2]),
    2: _read_finished,
    3: _read_failed,
    4: _read_wave,
    5: lambda w, track, codec: Paused(*w[1:10]),
    6: lambda w, track, codec: Answered(*w[1:4]),
    7: lambda w, track, codec: Noted(*w[1:4]),
    8: lambda w, track, codec: StateEdited(w[1], _read_ops(w[2], w[1], track, codec), w[3]),
    9: lambda w, track, codec: GraphChanged(w[1], tuple((old, new) for old, new in w[2])),
    10: lambda w, track, codec: Commanded(*w[1:4]),
    11: lambda w, track, codec: Resumed(*w[1:4]),
    12: lambda w, track, codec: RunEnded(w[1], _read_fault(w[2]), w[3]),
    13: _read_frame,
    14: _read_forked,
}


def encode_run(run: RunState, track: Track, codec: Codec) -> bytes:
    """The body of a snapshot: a folded run, and the versions that later differences refer to."""
    frames = [_frame_to_wire(frame, track, codec) for frame in run.frames.values()]
    bases = [[frame, key, *pack(raw)] for (frame, key), raw in track.bases.items()]
    pauses = [
        [p.id, p.kind, p.step, p.node, _text(p.name), _text(p.prompt), p.schema, p.since, p.expires_at]
        for p in run.pauses.values()
    ]
    wire = {
        "workflow": run.workflow,
        "status": run.status,
        "frames": frames,
        "bases": bases,
        "pauses": pauses,
        "config": run.config,
        "outline": run.outline,
        "path": run.path,
        "driver": run.driver,
        "parent": run.parent,
        "fault": _fault(run.fault),
        "fault_node": run.fault_node,
        "faults": [[step, _fault(fault)] for step, fault in run.faults],
        "steps_done": run.steps_done,
        "seconds": run.seconds,
        "inbox_seen": run.inbox_seen,
        "started_at": run.started_at,
        "updated_at": run.updated_at,
        "saved_seq": run.saved_seq,
    }
    return _HEAD + ormsgpack.packb(wire)


def decode_run(body: bytes, track: Track, codec: Codec) -> RunState:
    """A folded run from a snapshot's body; `track` is set to where it stood."""
    wire = _unpack(body)
    try:
        run = RunState(
            workflow=wire["workflow"],
            status=wire["status"],
            config=wire["config"],
            outline=wire["outline"],
            path=wire["path"],
            driver=wire["driver"],
            parent=tuple(wire["parent"]) if wire["parent"] else None,
            fault=_read_fault(wire["fault"]),
            fault_node=wire["fault_node"],
            faults=[(step, Fault(*fault)) for step, fault in wire["faults"]],
            steps_done=wire["steps_done"],
            seconds=wire["seconds"],
            inbox_seen=wire["inbox_seen"],
            started_at=wire["started_at"],
            updated_at=wire["updated_at"],
            saved_seq=wire["saved_seq"],
        )
        for frame, key, how, data in wire["bases"]:
            track.bases[(frame, key)] = unpack(how, data)
        for frame_wire in wire["frames"]:
            frame = _frame_from_wire(frame_wire, track, codec)
            run.frames[frame.path] = frame
        run.pauses = {pause[0]: Pause(*pause) for pause in wire["pauses"]}
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CodecError(f"a snapshot cannot be read: {type(error).__name__}: {error}") from None
    return run


def _frame_to_wire(frame: Frame, track: Track, codec: Codec) -> list[Any]:
    cells = []
    for key, slot in frame.cells.items():
        raw = slot.encoded(codec)
        if track.bases.get((frame.path, key)) == raw:
            cells.append([key, -1, b""])
        else:
            cells.append([key, *pack(raw)])
    steps = [_step_to_wire(step) for step in frame.active.values()]
    log = None if frame.log is None else [_op_to_wire(op) for op in frame.log]
    waiting = list(frame.waiting.items())
    keys = [frame.shared, frame.reduced]
    return [frame.path, cells, steps, frame.visits, waiting, frame.waves, frame.last_node, log, keys]


def _frame_from_wire(wire: list[Any], track: Track, codec: Codec) -> Frame:
    path, cells, steps, visits, waiting, waves, last_node, log, (shared, reduced) = wire
    frame = Frame(
        path,
        visits=visits,
        waiting=dict(_pairs(waiting)),
        waves=waves,
        last_node=last_node,
        shared=tuple(shared),
        reduced=tuple(reduced),
    )
    for key, how, data in cells:
        base = track.bases.get((path, key))
        raw = base if how < 0 and base is not None else unpack(how, data)
        op = Op("set", key, raw, codec=codec)
        frame.cells[key] = Slot(op, None)
        known = track.bases.get((path, key))
        track.saw(path, op)
        if known is not None:
            track.bases[(path, key)] = known
        else:
            track.bases.pop((path, key), None)
    frame.active = {step.id: step for step in (_step_from_wire(path, w, codec) for w in steps)}
    track.saw_items(path, [Target(step.node, step.key, step.item) for step in frame.active.values()])
    frame.log = None if log is None else [_op_from_wire(w, codec) for w in log]
    return frame


def _op_to_wire(op: Op) -> list[Any]:
    return [_KIND_CODE[op.kind], op.key, *pack(op.raw), op.limit]


def _op_from_wire(w: list[Any], codec: Codec) -> Op:
    return Op(KINDS[w[0]], w[1], unpack(w[2], w[3]), limit=w[4], codec=codec)


def _step_to_wire(step: Step) -> list[Any]:
    return [
        step.id,
        step.node,
        step.visit,
        step.key,
        _item_ops(step.item),
        step.status,
        step.attempt,
        step.tried,
        step.crashes,
        step.passed,
        [_op_to_wire(op) for op in step.ops],
        None if step.goto is None else _targets(step.goto),
        step.retry_at,
        _fault(step.fault),
        step.notes,
        step.answers,
        step.skipped,
    ]


def _step_from_wire(frame: str, w: list[Any], codec: Codec) -> Step:
    return Step(
        id=w[0],
        node=w[1],
        frame=frame,
        visit=w[2],
        key=w[3],
        item=_read_item_ops(w[4], codec),
        status=w[5],
        attempt=w[6],
        tried=w[7],
        crashes=w[8],
        passed=w[9],
        ops=tuple(_op_from_wire(op, codec) for op in w[10]),
        goto=None if w[11] is None else _read_targets(w[11], codec),
        retry_at=w[12],
        fault=_read_fault(w[13]),
        notes=w[14],
        answers=w[15],
        skipped=w[16],
    )
