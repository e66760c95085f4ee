"""`fold`: what a run's records add up to. Pure, and free of the user's code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from holdfast.errors import CodecError
from holdfast.journal import records
from holdfast.journal.records import Record, Target
from holdfast.journal.run_state import (
    BEGUN,
    DONE,
    EVERY_KEY,
    EXPIRED,
    FAILED,
    GATED,
    IN_DOUBT,
    INTERRUPTED,
    MORE_BUDGET,
    MORE_ITERATIONS,
    ONE_OFF,
    PATH_LENGTH,
    READY,
    REFUSALS,
    RETRYING,
    RUNNING,
    SLEEP,
    STILL_IN_DOUBT,
    WAITING,
    WHOLE,
    Annotation,
    Frame,
    Pause,
    Refusal,
    RunState,
    Spending,
    Step,
    Write,
    copy_run,
    forget_notes,
    frame_of,
    names_within,
    node_of,
    once_question,
    renamed_path,
    step_id,
)
from holdfast.state.codec import Codec
from holdfast.state.ops import Op, advance
from holdfast.values import RunStatus

Kind = TypeVar("Kind")
Folding = Callable[[RunState, Kind, float], None]

APPLY: dict[type[Record], Folding[Any]] = {}
"""What each kind of record does to a run, in place."""


def folds(kind: type[Kind]) -> Callable[[Folding[Kind]], Folding[Kind]]:
    """Return a decorator for the function that applies one kind of record to a run at a time."""

    def declare(function: Folding[Kind]) -> Folding[Kind]:
        APPLY[kind] = function  # type: ignore[index]
        return function

    return declare


def fold(timed: Iterable[tuple[Record, float]]) -> RunState:
    """Rebuild a run from its records and their times. Total: any prefix of a valid history folds."""
    run = RunState()
    for record, at in timed:
        apply(run, record, at)
    return run


def apply(run: RunState, record: Record, at: float) -> None:
    """Take one more record into `run`, in place."""
    run.updated_at = at
    APPLY[type(record)](run, record, at)


def parts_of(record: Record) -> tuple[Record, ...]:
    """Return the simple records that a record stands for: itself, unless several things happened at once."""
    if type(record) is records.StepAdvanced:
        finished = records.StepFinished(record.step, record.ops, None, record.seconds)
        wave = records.WaveFinished("", (), (records.Target(record.next.rpartition("#")[0]),))
        return finished, wave, records.StepStarted(record.next, 1)
    if type(record) is records.StepCalled and record.starts:
        name = step_id(record.frame, record.node, record.visit, record.key)
        return record._replace(starts=False), records.StepStarted(name, 1)
    return (record,)


@folds(records.StepCalled)
def _call_step(run: RunState, record: records.StepCalled, at: float) -> None:
    path, node, visit, key, item, starts = record
    frame = run.frames.get(path)
    if frame is None:
        run.step(path)  # It runs the function that calls.
        frame = run.frames[path] = Frame(path)
    name = step_id(path, node, visit, key)
    if name in run.frames:
        _drop_frames(run, name)
    step = frame.active[name] = Step(name, node, path, visit, key, item)
    if starts:
        step.status, step.attempt, step.tried = RUNNING, 1, 1
    frame.visits[node] = max(visit, frame.visits.get(node, 0))
    frame.waves += 1


@folds(records.StepStarted)
def _start_step(run: RunState, record: records.StepStarted, at: float) -> None:
    step = run.step(record.step)
    step.status, step.attempt, step.retry_at = RUNNING, record.attempt, None
    step.tried += 1
    if step.answers:
        step.answers.pop(INTERRUPTED, None)
    if step.notes:
        step.notes.pop(STILL_IN_DOUBT, None)


@folds(records.Noted)
def _note(run: RunState, record: records.Noted, at: float) -> None:
    notes = run.step(record.step).notes
    notes[record.key] = record.value
    notes.pop(f"{BEGUN}{record.key.partition(':')[2]}", None)


@folds(records.OnceStarted)
def _start_once(run: RunState, record: records.OnceStarted, at: float) -> None:
    step = run.step(record.step)
    step.notes[f"{BEGUN}{record.key}"] = b""
    step.answers.pop(once_question(record.key), None)


@folds(records.OnceFailed)
def _fail_once(run: RunState, record: records.OnceFailed, at: float) -> None:
    run.step(record.step).notes.pop(f"{BEGUN}{record.key}", None)


@folds(records.Spent)
def _spend(run: RunState, record: records.Spent, at: float) -> None:
    node = node_of(record.step)
    known = run.spending.get(node) or Spending()
    run.spending[node] = Spending(
        known.calls + record.calls,
        known.input_tokens + record.input_tokens,
        known.output_tokens + record.output_tokens,
        known.cost + (record.cost or 0.0),
        known.unpriced + record.calls * (record.cost is None),
    )


@folds(records.Described)
def _describe(run: RunState, record: records.Described, at: float) -> None:
    run.facts = record.facts


@folds(records.RunAnnotated)
def _annotate(run: RunState, record: records.RunAnnotated, at: float) -> None:
    known = run.annotations.get(record.at) or Annotation()
    notes = (*known.notes, (at, record.by, record.text)) if record.text else known.notes
    tags = [*(tag for tag in known.tags if tag not in record.remove), *record.add]
    keep = known.keep if record.keep is None else record.keep
    run.annotations[record.at] = Annotation(notes, tuple(dict.fromkeys(tags)), keep)


@folds(records.Migrated)
def _migrate(run: RunState, record: records.Migrated, at: float) -> None:
    """Replace the migrated keys; what finished steps of an unfinished wave did to them is a part of that already."""
    frame, changed = run.frames[record.frame], {op.key for op in record.ops}
    frame.cells = advance(frame.cells, record.ops)
    for step in frame.active.values():
        if step.ops:
            step.ops = tuple(op for op in step.ops if op.key not in changed)
    log = frame.log
    if log is None:
        return
    dropped = {op.key for op in record.ops if op.kind == "drop"}
    if frame.shared != EVERY_KEY and dropped.intersection(frame.shared):
        kept = [key for key in frame.shared if key not in dropped]
        frame.shared = tuple(dict.fromkeys([*kept, *sorted(changed - dropped)]))
    touched = any(key in log for key in changed)
    for op in record.ops:
        if op.kind == "drop":
            log.pop(op.key, None)
        elif touched and (frame.shared == EVERY_KEY or op.key in frame.shared):
            log[op.key] = [op]


@folds(records.StateEdited)
def _edit(run: RunState, record: records.StateEdited, at: float) -> None:
    frame = run.frames[record.frame]
    frame.cells = advance(frame.cells, record.ops)
    for step in frame.active.values() if record.over else ():
        step.ops = tuple(op for op in step.ops if op.key not in record.over)
    if frame.log is not None:
        keep_ops(frame.log, [op for op in record.ops if op.kind in WHOLE and op.key in frame.log])


@folds(records.Commanded)
def _command(run: RunState, record: records.Commanded, at: float) -> None:
    run.inbox_seen = record.number
    if record.refused:
        run.refused += 1
        run.refusals.append(Refusal(record.number, record.command, record.refused, record.by))
        del run.refusals[:-REFUSALS]


@folds(records.RunStarted)
def _start(run: RunState, record: records.RunStarted, at: float) -> None:
    run.workflow, run.config, run.outline = record.workflow, record.config, record.outline
    run.owner, run.parent, run.started_at = record.owner, record.parent, at
    run.frames[""] = Frame("", advance({}, record.ops))
    activate(run.root, record.next)


@folds(records.Forked)
def _fork(run: RunState, record: records.Forked, at: float) -> None:
    copy = copy_run(record.run)
    for name in RunState.__dataclass_fields__:
        setattr(run, name, getattr(copy, name))
    run.parent, run.owner, run.config = (record.parent, record.seq), record.owner, record.config or run.config
    run.started_at = run.updated_at = at
    run.saved_seq = run.inbox_seen = run.refused = run.generation = run.resets = 0
    run.refusals, run.annotations, run.facts, run.reuse = [], {}, b"", None
    run.inherited, run.inherited_seconds = dict(run.spending), run.seconds
    forget_notes(run, record.forget)


_OF_THE_PLACE = (
    *("frames", "pauses", "config", "outline", "path"),
    *("fault", "fault_node", "faults", "steps_done", "reuse"),
)
"""What a run takes over from where it is reset to. What it used up, and what was said of it, stays."""


@folds(records.Reset)
def _reset(run: RunState, record: records.Reset, at: float) -> None:
    copy = copy_run(record.run)
    for name in _OF_THE_PLACE:
        setattr(run, name, getattr(copy, name))
    run.resets += 1
    run.generation += record.renew
    forget_notes(run, record.forget)


@folds(records.Reusing)
def _reuse(run: RunState, record: records.Reusing, at: float) -> None:
    run.reuse = record


def activate(frame: Frame, targets: Iterable[Target]) -> None:
    """Make steps of targets, each node's visit counted once per wave."""
    counted: set[str] = set()
    for target in targets:
        node, key, item = target
        if node not in counted:
            counted.add(node)
            frame.visits[node] = frame.visits.get(node, 0) + 1
        visit = frame.visits[node]
        name = step_id(frame.path, node, visit, key)
        frame.active[name] = Step(name, node, frame.path, visit, key, item)


@folds(records.Steered)
def _steer(run: RunState, record: records.Steered, at: float) -> None:
    frame = run.frames[record.frame]
    for name in record.drop:
        dropped = frame.active.pop(name)
        if record.uncounted and all(step.node != dropped.node for step in frame.active.values()):
            frame.visits.pop(dropped.node, None)
        _drop_pauses(run, name)
        if name in run.frames:
            _drop_frames(run, name)
    if record.replan:
        frame.waiting = {}
        for step in frame.active.values():
            step.notes[ONE_OFF] = b""
            step.goto = () if step.status == DONE else None
    for name, item in record.items:
        frame.active[name].item = item
    for step in _added(frame, record.add):
        frame.active[step.id] = step
        if record.one_off:
            step.notes[ONE_OFF] = b""


def _added(frame: Frame, targets: Iterable[Target]) -> list[Step]:
    """Return steps of targets from outside: each is a visit of its own, but items join those that are under way."""
    under_way = {step.node: step.visit for step in frame.active.values() if step.key is not None}
    steps = []
    for node, key, item in targets:
        visit = under_way.get(node) if key is not None else None
        if visit is None:
            visit = frame.visits[node] = frame.visits.get(node, 0) + 1
            if key is not None:
                under_way[node] = visit
        name = step_id(frame.path, node, visit, key)
        steps.append(Step(name, node, frame.path, visit, key, item, begun=frame.waves))
    return steps


@folds(records.FrameOpened)
def _open_frame(run: RunState, record: records.FrameOpened, at: float) -> None:
    step = run.step(record.step)
    step.status, step.attempt = RUNNING, 1
    parent = run.frames[step.frame].cells
    keys = tuple(parent) if record.keys == EVERY_KEY else record.keys
    cells = {key: parent[key] for key in keys if key in parent}
    frame = Frame(step.id, advance(cells, record.ops), log={}, shared=record.keys, reduced=record.reduced)
    run.frames[step.id] = frame
    activate(frame, record.next)


def _is_function(run: RunState, step: Step) -> bool:
    """Return whether a step is the function of the whole workflow: nothing is known of the order of what it calls."""
    inner = None if step.frame else run.outline.get("nodes", {}).get(step.node, {}).get("graph")
    return inner is not None and not inner["edges"] and not inner["routes"]


@folds(records.StepFinished)
def _finish(run: RunState, record: records.StepFinished, at: float) -> None:
    step = run.step(record.step)
    step.status, step.goto, step.skipped = DONE, record.goto, record.skipped
    if step.notes and ONE_OFF in step.notes:
        step.goto = ()
    if record.skipped and step.fault is not None:
        run.faults.append((step.id, step.fault))
        del run.faults[:-PATH_LENGTH]
    step.fault = None
    run.seconds += seconds_once(run, record)
    if record.promoted:
        log = run.frames.pop(step.id).log or {}
        step.ops = record.ops or tuple(op for ops in log.values() for op in ops)
    else:
        step.ops = record.ops
    run.steps_done += not _is_function(run, step)  # What it calls is counted.
    run.path.append(step.node)
    if len(run.path) > 2 * PATH_LENGTH:
        del run.path[:-PATH_LENGTH]
    if run.pauses:
        _drop_pauses(run, step.id)


@folds(records.WaveFinished)
def _finish_wave(run: RunState, record: records.WaveFinished, at: float) -> None:
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
            keep_ops(frame.log, _handed_up(frame, steps, record))
    if steps:
        frame.last_node = steps[-1].node
    frame.waves += 1
    frame.waiting = dict(record.waiting) if record.waiting else {}
    activate(frame, record.next)
    if record.steps is not None:
        _remember_writes(frame, steps, record.next)
    elif frame.writes:
        frame.writes = {}  # All steps have ended: whatever begins now follows them.


def _remember_writes(frame: Frame, finished: Iterable[Step], begun: Iterable[Target]) -> None:
    for step in finished:
        for op in step.ops:
            frame.writes[op.key] = Write(step.id, step.node, op.kind in WHOLE, frame.waves)
    for node, key, _ in begun:
        frame.active[step_id(frame.path, node, frame.visits[node], key)].begun = frame.waves


@folds(records.StepAdvanced)
def _advance_step(run: RunState, record: records.StepAdvanced, at: float) -> None:
    ident, ops, name, seconds = record
    frame = run.frames[""]
    left = frame.active[ident].node
    node, _, visit = name.rpartition("#")
    if ops:
        frame.cells = advance(frame.cells, ops)
    frame.last_node = left
    frame.waves += 1
    frame.visits[node] = number = int(visit)
    begun = Step(name, node, "", number)
    begun.status, begun.attempt, begun.tried = RUNNING, 1, 1
    frame.active = {name: begun}
    run.steps_done += 1
    run.seconds += seconds
    run.path.append(left)
    if len(run.path) > 2 * PATH_LENGTH:
        del run.path[:-PATH_LENGTH]


def keep_ops(log: dict[str, list[Op]], ops: Iterable[Op]) -> None:
    """Add changes to a log by key; what is set again makes the earlier changes of its key pointless."""
    for op in ops:
        if op.kind in WHOLE:
            log[op.key] = [op]
        else:
            log.setdefault(op.key, []).append(op)


def _handed_up(frame: Frame, steps: Iterable[Step], record: records.WaveFinished) -> Iterable[Op]:
    """Return what a wave of a sub-graph changes for its parent."""
    reduced = frame.reduced
    ops = [op for step in steps for op in step.ops if op.kind != "reduce" or op.key in reduced]
    ops += [op for op in record.ops if op.key not in reduced]
    return ops if frame.shared == EVERY_KEY else [op for op in ops if op.key in frame.shared]


@folds(records.StepFailed)
def _fail(run: RunState, record: records.StepFailed, at: float) -> None:
    step = run.step(record.step)
    if step.status == IN_DOUBT:
        step.notes[STILL_IN_DOUBT] = b""
        step.answers.pop(INTERRUPTED, None)
    step.fault, step.retry_at = record.fault, record.retry_at
    step.status = RETRYING if record.retry_at is not None else FAILED
    run.seconds += seconds_once(run, record)


def seconds_once(run: RunState, record: records.StepFinished | records.StepFailed) -> float:
    """Return the time of an attempt that is about to be folded; a step made of others took none beside theirs."""
    return 0.0 if record.step in run.frames else record.seconds


@folds(records.Paused)
def _pause(run: RunState, record: records.Paused, at: float) -> None:
    run.pauses[record.pause] = Pause(*record[:7], record.since or at, record.expires_at)
    if record.kind != "after":
        run.step(record.step).status = GATED if record.kind == "before" else WAITING
    path = frame_of(record.step)
    while path and run.frames[path].is_body:  # The function that called the step waits with it.
        run.step(path).status = WAITING
        path = frame_of(path)


@folds(records.Answered)
def _answer(run: RunState, record: records.Answered, at: float) -> None:
    pause = run.pauses.pop(record.pause)
    step = run.step(pause.step)
    if pause.kind != SLEEP:
        step.answers[pause.name] = record.value
    if pause.kind == "poison":
        step.crashes = 0
    if (question := pause.name.partition("#")[0]) in (MORE_ITERATIONS, MORE_BUDGET):
        key = question if question == MORE_BUDGET else f"{frame_of(pause.step)}:{question}"
        run.granted[key] = run.granted.get(key, 0.0) + _allowed(record.value)
    if not any(other.step == step.id for other in run.pauses.values()):
        step.status = IN_DOUBT if pause.kind in ("in_doubt", "poison") else READY
        # To have slept is no attempt.
        step.tried = max(0, step.tried - 1) if pause.kind == SLEEP else 0


_MOST = 1e12


def _allowed(value: bytes) -> float:
    """Return how much more an answer allows; nothing if it is no number."""
    try:
        found = Codec().decode(value)
    except CodecError:
        return 0.0
    is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
    return float(found) if is_number and 0 < found < _MOST else 0.0


def _drop_pauses(run: RunState, step: str) -> None:
    for pause_id in [pause.id for pause in run.pauses.values() if pause.step == step]:
        del run.pauses[pause_id]


def _drop_frames(run: RunState, step: str) -> None:
    """Forget a sub-graph that is under way, and all that is nested in it."""
    for path in [path for path in run.frames if path == step or path.startswith(f"{step}/")]:
        for name in run.frames.pop(path).active:
            _drop_pauses(run, name)


@folds(records.Resumed)
def _resume(run: RunState, record: records.Resumed, at: float) -> None:
    crashed = run.status == RunStatus.RUNNING
    run.status, run.owner, run.fault, run.fault_node = RunStatus.RUNNING, record.owner, None, ""
    if record.config:
        run.config = record.config
    for step in run.active():
        own = run.frames.get(step.id)
        if own is not None and not own.is_body:
            step.status = RUNNING
        elif own is not None and (step.status == RUNNING or _is_unfinished(own)):
            step.status = READY  # Its function runs again; what that has called and is finished does not.
        elif step.status == RUNNING:
            step.status = IN_DOUBT
            step.crashes += crashed
        elif step.status == FAILED:
            in_doubt = step.notes.pop(STILL_IN_DOUBT, None) is not None
            about_once = once_question("")
            asked = [
                name
                for name, value in step.answers.items()
                if value == EXPIRED or name.startswith(about_once)
            ]
            for name in asked:
                del step.answers[name]  # It is asked again.
            step.status, step.tried = IN_DOUBT if in_doubt else READY, 0
        elif step.status == GATED and record.approve:
            step.status, step.passed = READY, True
    if record.approve:
        for pause_id in [p.id for p in run.pauses.values() if p.kind in ("before", "after")]:
            del run.pauses[pause_id]


def _is_unfinished(body: Frame) -> bool:
    """Return whether a step that a workflow's function called neither is finished nor waits."""
    return any(step.status not in (DONE, WAITING) for step in body.active.values())


@folds(records.GraphChanged)
def _change_graph(run: RunState, record: records.GraphChanged, at: float) -> None:
    run.outline, run.config = record.outline, record.config or run.config
    if not record.remap:
        return
    remap = dict(record.remap)
    for frame in run.frames.values():
        renamed = names_within(frame.path, remap)
        for step in frame.active.values():
            step.node = renamed.get(step.node, step.node)
        for old, new in renamed.items():
            if old in frame.visits:
                frame.visits[new] = max(frame.visits.pop(old), frame.visits.get(new, 0))
        frame.waiting = {
            _renamed_join(join, renamed): tuple(renamed.get(node, node) for node in arrived)
            for join, arrived in frame.waiting.items()
        }
        frame.writes = {
            key: write._replace(node=renamed.get(write.node, write.node))
            for key, write in frame.writes.items()
        }
    _move_frames(run, {path: renamed_path(path, remap) for path in run.frames})


def _move_frames(run: RunState, moved: dict[str, str]) -> None:
    """Let open sub-graphs whose nodes were renamed, and their steps, be known by the new names."""
    if all(old == new for old, new in moved.items()):
        return
    steps: dict[str, str] = {}
    for frame in run.frames.values():
        frame.path = moved[frame.path]
        for step in frame.active.values():
            own = step.id.rpartition("/")[2]
            name = moved.get(step.id) or (f"{frame.path}/{own}" if frame.path else own)
            steps[step.id], step.id, step.frame = name, name, frame.path
        frame.active = {step.id: step for step in frame.active.values()}
    run.frames = {frame.path: frame for frame in run.frames.values()}
    for pause in run.pauses.values():
        pause.step = steps.get(pause.step, pause.step)


def _renamed_join(join: str, renamed: dict[str, str]) -> str:
    target, *sources = (renamed.get(node, node) for node in join.split("/"))
    return "/".join([target, *sorted(sources)])


@folds(records.Confirmed)
def _confirm(run: RunState, record: records.Confirmed, at: float) -> None:
    """Change nothing: a stranger's journal can hold such a record, so only the facts of a run are believed."""


@folds(records.RunEnded)
def _end(run: RunState, record: records.RunEnded, at: float) -> None:
    run.status, run.fault, run.fault_node, run.owner = record.status, record.fault, record.node, ""
