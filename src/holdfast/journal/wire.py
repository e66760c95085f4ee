"""The parts that stored records and stored runs have in common, as bytes and back.

A body is one version byte and MessagePack. State values stay encoded inside it, so reading a journal
decodes only what somebody looks at, and needs none of the user's code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ormsgpack

from holdfast.errors import CodecError
from holdfast.journal.records import Fault, Target
from holdfast.journal.run_state import Frame, Pause, Refusal, Remark, Reuse, RunState, Spending, Step, Write
from holdfast.state.codec import LEAST_COMPRESSED as SMALLEST
from holdfast.state.codec import Codec, pack, unpack
from holdfast.state.ops import KINDS, Op, Slot

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


# Folded runs as bytes, and back: what a snapshot holds.


def encode_run(run: RunState, track: Track, codec: Codec) -> bytes:
    """The body of a snapshot: a folded run, and the versions that later differences refer to.

    `track` learns the true sizes of what the run holds.
    """
    sizes: dict[tuple[str, str], int] = {}
    frames = [_frame_to_wire(frame, track, codec, sizes) for frame in run.frames.values()]
    track.measured(sizes)
    bases = [[frame, key, *pack(raw)] for (frame, key), raw in track.bases.items()]
    pauses = [
        [
            p.id,
            p.kind,
            p.step,
            p.node,
            safe_text(p.name),
            safe_text(p.prompt),
            p.schema,
            p.since,
            p.expires_at,
        ]
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
        "fault": write_fault(run.fault),
        "fault_node": run.fault_node,
        "faults": [[step, write_fault(fault)] for step, fault in run.faults],
        "steps_done": run.steps_done,
        "seconds": run.seconds,
        "inbox_seen": run.inbox_seen,
        "refused": run.refused,
        "refusals": [[r.number, *map(safe_text, (r.command, r.reason, r.by))] for r in run.refusals],
        "started_at": run.started_at,
        "updated_at": run.updated_at,
        "saved_seq": run.saved_seq,
        "spending": _spending_to_wire(run.spending),
        "inherited": _spending_to_wire(run.inherited),
        "facts": run.facts,
        "remarks": [_remark_to_wire(seq, remark) for seq, remark in run.remarks.items()],
        "reuse": None if run.reuse is None else list(run.reuse),
        "generation": run.generation,
        "resets": run.resets,
    }
    if run.parent is not None and run.inherited_seconds != run.seconds:
        wire["inherited_seconds"] = run.inherited_seconds
    return HEAD + ormsgpack.packb(wire)


def decode_run(body: bytes, track: Track, codec: Codec) -> RunState:
    """A folded run from a snapshot's body; `track` is set to where it stood."""
    wire = unpack_body(body)
    try:
        run = RunState(
            workflow=wire["workflow"],
            status=wire["status"],
            config=wire["config"],
            outline=wire["outline"],
            path=wire["path"],
            driver=wire["driver"],
            parent=tuple(wire["parent"]) if wire["parent"] else None,
            fault=read_fault(wire["fault"]),
            fault_node=wire["fault_node"],
            faults=[(step, Fault(*fault)) for step, fault in wire["faults"]],
            steps_done=wire["steps_done"],
            seconds=wire["seconds"],
            inbox_seen=wire["inbox_seen"],
            refused=wire.get("refused", 0),
            refusals=[Refusal(*refusal) for refusal in wire.get("refusals", ())],
            started_at=wire["started_at"],
            updated_at=wire["updated_at"],
            saved_seq=wire["saved_seq"],
            spending=_spending_from_wire(wire.get("spending", ())),
            inherited=_spending_from_wire(wire.get("inherited", ())),
            inherited_seconds=wire.get("inherited_seconds", wire["seconds"] if wire["parent"] else 0.0),
            facts=wire.get("facts", b""),
            remarks={seq: _remark_from_wire(*remark) for seq, *remark in wire.get("remarks", ())},
            reuse=_reuse_from_wire(wire.get("reuse")),
            generation=wire.get("generation", 0),
            resets=wire.get("resets", 0),
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


def _spending_to_wire(spending: Mapping[str, Spending]) -> list[Any]:
    return [[node, *spent] for node, spent in spending.items()]


def _spending_from_wire(wire: Iterable[Any]) -> dict[str, Spending]:
    return {node: Spending(*spent) for node, *spent in wire}


def _remark_to_wire(seq: int, remark: Remark) -> list[Any]:
    notes = [[at, safe_text(by), safe_text(text)] for at, by, text in remark.notes]
    return [seq, notes, [safe_text(tag) for tag in remark.tags], remark.keep]


def _remark_from_wire(notes: list[Any], tags: list[str], keep: bool) -> Remark:
    return Remark(tuple((at, by, text) for at, by, text in notes), tuple(tags), keep)


def _reuse_from_wire(wire: list[Any] | None) -> Reuse | None:
    if wire is None:
        return None
    source, key, after, upto, rerun, *more = wire
    remap = tuple((old, new) for old, new in more[0]) if more else ()
    needs = tuple((other, seq) for other, seq in more[1]) if len(more) > 1 else ()
    return Reuse(source, key, after, upto, None if rerun is None else tuple(rerun), remap, needs)


def _frame_to_wire(frame: Frame, track: Track, codec: Codec, sizes: dict[tuple[str, str], int]) -> list[Any]:
    cells = []
    for key, slot in frame.cells.items():
        raw = slot.encoded(codec)
        sizes[(frame.path, key)] = len(raw)
        if track.bases.get((frame.path, key)) == raw:
            cells.append([key, -1, b""])
        else:
            cells.append([key, *pack(raw)])
    steps = [_step_to_wire(step) for step in frame.active.values()]
    log = None if frame.log is None else [_op_to_wire(op) for ops in frame.log.values() for op in ops]
    waiting = list(frame.waiting.items())
    keys = [frame.shared, frame.reduced]
    told = [frame.path, cells, steps, frame.visits, waiting, frame.waves, frame.last_node, log, keys]
    return [*told, {key: tuple(write) for key, write in frame.writes.items()}] if frame.writes else told


def _frame_from_wire(wire: list[Any], track: Track, codec: Codec) -> Frame:
    path, cells, steps, visits, waiting, waves, last_node, log, keys, *writes = wire
    # The first version stored only the keys that are shared.
    shared, reduced = keys if keys and not isinstance(keys[0], str) else (keys, ())
    frame = Frame(
        path,
        visits=visits,
        waiting=dict(read_pairs(waiting)),
        waves=waves,
        last_node=last_node,
        shared=tuple(shared),
        reduced=tuple(reduced),
        writes={key: Write(*write) for key, write in writes[0].items()} if writes else {},
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
    if log is not None:
        frame.log = {}
        for op in (_op_from_wire(w, codec) for w in log):
            frame.log.setdefault(op.key, []).append(op)
    return frame


def _op_to_wire(op: Op) -> list[Any]:
    return [KIND_CODE[op.kind], op.key, *pack(op.raw), op.limit]


def _op_from_wire(w: list[Any], codec: Codec) -> Op:
    return Op(KINDS[w[0]], w[1], unpack(w[2], w[3]), limit=w[4], codec=codec)


def _step_to_wire(step: Step) -> list[Any]:
    return [
        step.id,
        step.node,
        step.visit,
        step.key,
        write_item(step.item),
        step.status,
        step.attempt,
        step.tried,
        step.crashes,
        step.passed,
        [_op_to_wire(op) for op in step.ops],
        None if step.goto is None else write_targets(step.goto),
        step.retry_at,
        write_fault(step.fault),
        step.notes,
        step.answers,
        step.skipped,
        *([step.begun] if step.begun else []),
    ]


def _step_from_wire(frame: str, w: list[Any], codec: Codec) -> Step:
    return Step(
        id=w[0],
        node=w[1],
        frame=frame,
        visit=w[2],
        key=w[3],
        item=read_item(w[4], codec),
        status=w[5],
        attempt=w[6],
        tried=w[7],
        crashes=w[8],
        passed=w[9],
        ops=tuple(_op_from_wire(op, codec) for op in w[10]),
        goto=None if w[11] is None else read_targets(w[11], codec),
        retry_at=w[12],
        fault=read_fault(w[13]),
        notes=w[14],
        answers=w[15],
        skipped=w[16],
        **({"begun": w[17]} if len(w) > 17 else {}),
    )
