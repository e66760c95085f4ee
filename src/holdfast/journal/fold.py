"""`fold`: what a run's records add up to. Pure, and free of the user's code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from holdfast.data.ops import Cells, Op, advance
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
from holdfast.values import RunStatus

READY, RUNNING, IN_DOUBT, RETRYING, WAITING, GATED, FAILED, DONE = (
    "ready",
    "running",
    "in_doubt",
    "retrying",
    "waiting",
    "gated",
    "failed",
    "done",
)
INTERRUPTED = "if_interrupted"
"""The name under which people answer what to do with an interrupted step."""

STILL_IN_DOUBT = "in_doubt"
"""The note of an interrupted step that failed without having been started again."""

_PLAIN_KEY = "".join(map(chr, range(33, 127))).translate({ord(letter): None for letter in "%/[]#"}) + " "

EVERY_KEY = ("*",)

PATH_LENGTH = 200
"""How many of the last visited nodes a run remembers for its error messages."""


@dataclass(slots=True)
class Step:
    """One execution of one node, as far as it has come."""

    id: str
    node: str
    frame: str
    visit: int
    key: str | None = None
    item: tuple[Op, ...] = ()
    status: str = READY
    attempt: int = 0
    tried: int = 0
    """Attempts that count against the retry budget since the step was last (re)started by a resume."""
    crashes: int = 0
    passed: bool = False
    ops: tuple[Op, ...] = ()
    goto: tuple[Target, ...] | None = None
    retry_at: float | None = None
    fault: Fault | None = None
    notes: dict[str, bytes] = field(default_factory=dict)
    answers: dict[str, bytes] = field(default_factory=dict)
    skipped: str = ""


@dataclass(slots=True)
class Pause:
    """Something the run waits for. `id` is unique in the run; `name` is what people answer to."""

    id: str
    kind: str
    step: str
    node: str
    name: str
    prompt: str
    schema: bytes
    since: float
    expires_at: float | None


@dataclass(slots=True)
class Frame:
    """The part of a run that belongs to one (sub-)graph: its state and its place."""

    path: str
    cells: Cells = field(default_factory=dict)
    active: dict[str, Step] = field(default_factory=dict)
    visits: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, tuple[str, ...]] = field(default_factory=dict)
    waves: int = 0
    last_node: str = ""
    log: list[Op] | None = None
    """For a sub-graph: the changes made so far to keys that it shares, to be handed to the parent."""
    shared: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()


@dataclass(slots=True)
class RunState:
    """A run as its records tell it."""

    workflow: str = ""
    status: str = RunStatus.RUNNING
    frames: dict[str, Frame] = field(default_factory=dict)
    pauses: dict[str, Pause] = field(default_factory=dict)
    config: bytes = b""
    outline: dict[str, Any] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    driver: str = ""
    parent: tuple[str, int] | None = None
    fault: Fault | None = None
    fault_node: str = ""
    faults: list[tuple[str, Fault]] = field(default_factory=list)
    steps_done: int = 0
    seconds: float = 0.0
    inbox_seen: int = 0
    started_at: float = 0.0
    updated_at: float = 0.0
    saved_seq: int = 0
    """The entry of the newest checkpoint."""

    @property
    def root(self) -> Frame:
        return self.frames[""]

    def step(self, name: str) -> Step:
        """A step that is still active."""
        return self.frames[frame_of(name)].active[name]

    def active(self) -> Iterable[Step]:
        """Every active step of every frame."""
        for frame in self.frames.values():
            yield from frame.active.values()


def step_id(frame: str, node: str, visit: int, key: str | None) -> str:
    """The name of a step. Item keys are quoted, so that a slash always parts two frames."""
    own = f"{node}#{visit}" if key is None else f"{node}#{visit}[{quote(key, safe=_PLAIN_KEY)}]"
    return f"{frame}/{own}" if frame else own


def frame_of(step: str) -> str:
    """The path of the frame that a step belongs to: `outer#1` for `outer#1/inner#2[a]`."""
    return step.rpartition("/")[0] if "/" in step else ""


def fold(records: Iterable[tuple[Record, float]]) -> RunState:
    """Rebuild a run from its records and their times. Total: any prefix of a valid history folds."""
    run = RunState()
    for record, at in records:
        apply(run, record, at)
    return run


def apply(run: RunState, record: Record, at: float) -> None:
    """Take one more record into `run`, in place."""
    run.updated_at = at
    _APPLY[type(record)](run, record, at)


def _start_step(run: RunState, record: StepStarted, at: float) -> None:
    step = run.step(record.step)
    step.status, step.attempt, step.retry_at = RUNNING, record.attempt, None
    step.tried += 1
    if step.answers:
        step.answers.pop(INTERRUPTED, None)
    if step.notes:
        step.notes.pop(STILL_IN_DOUBT, None)


def _note(run: RunState, record: Noted, at: float) -> None:
    run.step(record.step).notes[record.key] = record.value


def _edit(run: RunState, record: StateEdited, at: float) -> None:
    frame = run.frames[record.frame]
    frame.cells = advance(frame.cells, record.ops)


def _command(run: RunState, record: Commanded, at: float) -> None:
    run.inbox_seen = record.number


def _start(run: RunState, record: RunStarted, at: float) -> None:
    run.workflow, run.config, run.outline = record.workflow, record.config, record.outline
    run.driver, run.parent, run.started_at = record.driver, record.parent, at
    run.frames[""] = Frame("", advance({}, record.ops))
    activate(run.root, record.next)


def _fork(run: RunState, record: Forked, at: float) -> None:
    copy = copy_run(record.run)
    for name in RunState.__dataclass_fields__:
        setattr(run, name, getattr(copy, name))
    run.parent, run.driver, run.started_at, run.updated_at = (
        (record.parent, record.seq),
        record.driver,
        at,
        at,
    )
    run.config = record.config or run.config
    run.saved_seq = run.inbox_seen = 0


def copy_run(run: RunState) -> RunState:
    """A copy that can be folded on without changing `run`."""
    frames = {}
    for path, frame in run.frames.items():
        steps = {
            name: replace(step, notes=dict(step.notes), answers=dict(step.answers))
            for name, step in frame.active.items()
        }
        frames[path] = replace(
            frame,
            cells=dict(frame.cells),
            active=steps,
            visits=dict(frame.visits),
            waiting=dict(frame.waiting),
            log=None if frame.log is None else list(frame.log),
        )
    return replace(run, frames=frames, pauses=dict(run.pauses), path=list(run.path), faults=list(run.faults))


def at_checkpoint(run: RunState) -> RunState:
    """The run as it stood at its checkpoint: nothing under way, no question open, gates closed again."""
    run = copy_run(run)
    run.status, run.pauses, run.driver, run.fault, run.fault_node = RunStatus.RUNNING, {}, "", None, ""
    for step in run.active():
        if step.status == DONE or step.id in run.frames:
            continue
        step.status, step.tried, step.crashes, step.retry_at, step.fault = READY, 0, 0, None, None
        step.passed = False
    return run


def activate(frame: Frame, targets: Iterable[Target]) -> None:
    """Make steps of targets, each node's visit counted once per wave."""
    counted: set[str] = set()
    for target in targets:
        node = target.node
        if node not in counted:
            counted.add(node)
            frame.visits[node] = frame.visits.get(node, 0) + 1
        visit = frame.visits[node]
        name = step_id(frame.path, node, visit, target.key)
        frame.active[name] = Step(name, node, frame.path, visit, target.key, target.item)


def _open_frame(run: RunState, record: FrameOpened, at: float) -> None:
    step = run.step(record.step)
    step.status, step.attempt = RUNNING, 1
    parent = run.frames[step.frame].cells
    keys = tuple(parent) if record.keys == EVERY_KEY else record.keys
    cells = {key: parent[key] for key in keys if key in parent}
    frame = Frame(step.id, advance(cells, record.ops), log=[], shared=record.keys, reduced=record.reduced)
    run.frames[step.id] = frame
    activate(frame, record.next)


def _finish(run: RunState, record: StepFinished, at: float) -> None:
    step = run.step(record.step)
    step.status, step.goto, step.skipped = DONE, record.goto, record.skipped
    step.fault = None
    if record.promoted:
        step.ops = tuple(run.frames.pop(step.id).log or ())
    else:
        step.ops = record.ops
    run.steps_done += 1
    run.seconds += record.seconds
    run.path.append(step.node)
    if len(run.path) > 2 * PATH_LENGTH:
        del run.path[:-PATH_LENGTH]
    if run.pauses:
        _drop_pauses(run, step.id)


def _finish_wave(run: RunState, record: WaveFinished, at: float) -> None:
    frame = run.frames[record.frame]
    active = frame.active
    if record.steps is None:
        steps = list(active.values())
        frame.active = {}
    else:
        steps = [active.pop(name) for name in record.steps]
    if len(steps) == 1 and not record.ops:
        ops: list[Op] | tuple[Op, ...] = steps[0].ops
    else:
        ops = [op for step in steps for op in step.ops]
        ops.extend(record.ops)
    if ops:
        frame.cells = advance(frame.cells, ops)
        if frame.log is not None:
            frame.log.extend(_handed_up(frame, steps, record))
    if steps:
        frame.last_node = steps[-1].node
    frame.waves += 1
    frame.waiting = dict(record.waiting) if record.waiting else {}
    activate(frame, record.next)


def _handed_up(frame: Frame, steps: Iterable[Step], record: WaveFinished) -> Iterable[Op]:
    """What a wave of a sub-graph changes for its parent."""
    reduced = frame.reduced
    ops = [op for step in steps for op in step.ops if op.kind != "reduce" or op.key in reduced]
    ops += [op for op in record.ops if op.key not in reduced]
    return ops if frame.shared == EVERY_KEY else [op for op in ops if op.key in frame.shared]


def _fail(run: RunState, record: StepFailed, at: float) -> None:
    step = run.step(record.step)
    if step.status == IN_DOUBT:
        step.notes[STILL_IN_DOUBT] = b""
        step.answers.pop(INTERRUPTED, None)
    step.fault, step.retry_at = record.fault, record.retry_at
    step.status = RETRYING if record.retry_at is not None else FAILED
    run.seconds += record.seconds
    run.faults.append((step.id, record.fault))
    del run.faults[:-PATH_LENGTH]


def _pause(run: RunState, record: Paused, at: float) -> None:
    run.pauses[record.pause] = Pause(
        record.pause,
        record.kind,
        record.step,
        record.node,
        record.name,
        record.prompt,
        record.schema,
        record.since,
        record.expires_at,
    )
    if record.kind == "after":
        return
    step = run.step(record.step)
    step.status = GATED if record.kind == "before" else WAITING


def _answer(run: RunState, record: Answered, at: float) -> None:
    pause = run.pauses.pop(record.pause)
    step = run.step(pause.step)
    step.answers[pause.name] = record.value
    if pause.kind == "poison":
        step.crashes = 0
    if not any(other.step == step.id for other in run.pauses.values()):
        step.status = IN_DOUBT if pause.kind in ("in_doubt", "poison") else READY
        step.tried = 0


def _drop_pauses(run: RunState, step: str) -> None:
    for pause_id in [pause.id for pause in run.pauses.values() if pause.step == step]:
        del run.pauses[pause_id]


def _resume(run: RunState, record: Resumed, at: float) -> None:
    crashed = run.status == RunStatus.RUNNING
    run.status, run.driver, run.fault, run.fault_node = RunStatus.RUNNING, record.driver, None, ""
    if record.config:
        run.config = record.config
    for step in run.active():
        if step.id in run.frames:
            step.status = RUNNING
        elif step.status == RUNNING:
            step.status = IN_DOUBT
            step.crashes += crashed
        elif step.status == FAILED:
            in_doubt = step.notes.pop(STILL_IN_DOUBT, None) is not None
            step.status, step.tried = IN_DOUBT if in_doubt else READY, 0
        elif step.status == GATED and record.approve:
            step.status, step.passed = READY, True
    if record.approve:
        for pause_id in [p.id for p in run.pauses.values() if p.kind in ("before", "after")]:
            del run.pauses[pause_id]


def _change_graph(run: RunState, record: GraphChanged, at: float) -> None:
    run.outline = record.outline
    renamed = dict(record.remap)
    for frame in run.frames.values():
        for step in frame.active.values():
            step.node = renamed.get(step.node, step.node)
        for old, new in renamed.items():
            if old in frame.visits:
                frame.visits[new] = max(frame.visits.pop(old), frame.visits.get(new, 0))
        frame.waiting = {
            join: tuple(renamed.get(node, node) for node in arrived)
            for join, arrived in frame.waiting.items()
        }


def _end(run: RunState, record: RunEnded, at: float) -> None:
    run.status, run.fault, run.fault_node, run.driver = record.status, record.fault, record.node, ""


_APPLY: dict[type[Record], Callable[[RunState, Any, float], None]] = {
    RunStarted: _start,
    Forked: _fork,
    StepStarted: _start_step,
    FrameOpened: _open_frame,
    StepFinished: _finish,
    StepFailed: _fail,
    WaveFinished: _finish_wave,
    Paused: _pause,
    Answered: _answer,
    Noted: _note,
    StateEdited: _edit,
    GraphChanged: _change_graph,
    Commanded: _command,
    Resumed: _resume,
    RunEnded: _end,
}
