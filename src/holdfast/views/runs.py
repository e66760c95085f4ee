"""Reading views of runs from their journals, without the workflow and without its code."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.errors import CheckpointNotFound, CodecError, CorruptJournal, Remedy
from holdfast.graph.graph import base_name, outline_names
from holdfast.journal.checkpoint_ids import (
    checkpoint_id,
    decode_checkpoint,
    is_checkpoint_id,
    locate_checkpoint,
)
from holdfast.journal.fold import apply
from holdfast.journal.journal import Journal, unknown_run
from holdfast.journal.provenance import Provenance
from holdfast.journal.records import (
    Commanded,
    Fault,
    Forked,
    FrameOpened,
    Paused,
    Record,
    Reset,
    Resumed,
    RunStarted,
    StepFailed,
    StepFinished,
    StepStarted,
)
from holdfast.journal.run_state import (
    DONE,
    FAILED,
    GATED,
    IN_DOUBT,
    READY,
    RETRYING,
    RUNNING,
    WAITING,
    Pause,
    RunState,
    Step,
    node_of,
)
from holdfast.state.ops import Op, advance
from holdfast.state.state import State, state_view
from holdfast.stores.base import RunInfo, StoredCheckpoint, newest_checkpoints
from holdfast.values import START, RunStatus
from holdfast.views.charges import total
from holdfast.views.plain import CODEC, Unread, ViewCodec, read_or_unread, when
from holdfast.views.progress import ending_of
from holdfast.views.run_view import (
    UNKNOWN,
    AppPlace,
    Counts,
    FaultView,
    Items,
    Owner,
    PauseView,
    RunLine,
    RunView,
    StepView,
    annotation_views,
    app_in,
    counted,
    function_in,
    groups_of,
    mark_shared_names,
)
from holdfast.views.timeline import read_environment

IsAlive = Callable[[str], bool]
"""Returns True if the owner that a run's facts name may still be alive."""


def run_list(
    journal: Journal,
    *,
    workflow: str | None = None,
    status: Sequence[str] | None = None,
    queue: str | None = None,
    tag: str | None = None,
    limit: int | None = 50,
    is_alive: IsAlive | None = None,
) -> list[RunLine]:
    """Return the runs that match, the last changed first. No run's values are read."""
    if queue is None and tag is None:
        found = journal.store.runs(workflow=workflow, status=status, limit=limit)
    else:
        every = journal.store.runs(workflow=workflow, status=status)
        found = [info for info in every if queue in (None, info.queue) and (tag is None or tag in info.tags)]
        found = found[:limit]
    return lines_of(journal, found, is_alive)


def lines_of(journal: Journal, found: Sequence[RunInfo], is_alive: IsAlive | None = None) -> list[RunLine]:
    """Return runs as lines of a list, in the same order."""
    stored = newest_checkpoints(
        journal.store, [info.run for info in found if info.status != RunStatus.DAMAGED]
    )
    asked_once = None if is_alive is None else functools.cache(is_alive)
    looked_after = [(info, *_looked_after(journal, info, asked_once)) for info in found]
    return [
        _line(now, stored.get(info.run), alive) if now is info else run_line(journal, now, is_alive)
        for info, now, alive in looked_after
    ]


def run_line(journal: Journal, info: RunInfo, is_alive: IsAlive | None = None) -> RunLine:
    """Return one run as a line of a list."""
    info, alive = _looked_after(journal, info, is_alive)
    stored = journal.store.checkpoints(info.run, limit=1) if info.status != RunStatus.DAMAGED else []
    return _line(info, stored[0] if stored else None, alive)


def _line(info: RunInfo, stored: StoredCheckpoint | None, alive: bool | None) -> RunLine:
    try:
        newest = None if stored is None else decode_checkpoint(info.key, stored, info.run)
        return RunLine(
            run_id=info.run,
            workflow=info.workflow,
            status=RunStatus(info.status),
            owner=Owner.read(info.owner, alive),
            started_at=when(info.created_at),
            updated_at=max(when(info.updated_at), newest.created_at) if newest else when(info.updated_at),
            wave=newest.run_wave if newest else 0,
            next=tuple(dict.fromkeys(map(base_name, newest.next))) if newest else (),
            queue=info.queue,
            priority=info.priority,
            due_at=None if info.due_at is None else when(info.due_at),
            tags=info.tags,
        )
    except (ValueError, OverflowError, OSError) as error:
        text = f"the facts of run {info.run!r} are damaged ({error})"
        raise CorruptJournal(text, run=info.run) from None


def _looked_after(journal: Journal, info: RunInfo, is_alive: IsAlive | None) -> tuple[RunInfo, bool | None]:
    """Return a run's facts and whether its owner is alive. One that seems dead is read again."""
    if is_alive is None or info.status != RunStatus.RUNNING:
        return info, None
    if is_alive(info.owner):
        return info, True
    info = journal.info(info.run)
    return (info, is_alive(info.owner)) if info.status == RunStatus.RUNNING else (info, None)


def find_run_info(journal: Journal, target: str) -> RunInfo:
    """Return the run of a run id, a checkpoint id or a workflow's name (its latest run)."""
    store = journal.store
    if found := store.runs(run=target) or store.runs(workflow=target, limit=1):
        return found[0]
    if is_checkpoint_id(target) and (found := store.runs(key=locate_checkpoint(target)[0])):
        return found[0]
    raise unknown_run(store, target)


def find_checkpoint_info(journal: Journal, ident: str) -> tuple[RunInfo, int]:
    """Return the run and the entry of a checkpoint; raise `CheckpointNotFound` if it is not stored."""
    key, seq = locate_checkpoint(ident)
    for info in journal.store.runs(key=key):
        if any(stored.seq == seq for stored in journal.store.checkpoints(info.run, before=seq + 1, limit=1)):
            return info, seq
    raise CheckpointNotFound(
        f"checkpoint not found: {ident}", remedies=Remedy("list_checkpoints"), store=journal.store.url
    )


TtlOf = Callable[[Mapping[str, Any], RunInfo], float | None]
"""Returns how many seconds the questions of a run take answers, by its config: no journal has the retention."""


def run_pauses(journal: Journal, info: RunInfo, ttl_of: TtlOf | None = None) -> tuple[PauseView, ...]:
    """Return the pauses of a run, read from its nearest snapshot on."""
    codec = ViewCodec()
    run = journal.load(info, codec).run
    config = _config(run, codec)
    return _pauses(info, run, codec, config, recorded_app(journal, info, run, config) or UNKNOWN, ttl_of)


MOST_ANCESTORS = 20
"""How many runs that a fork comes from are asked where their app is."""


def recorded_app(
    journal: Journal, info: RunInfo, run: RunState, config: Mapping[str, Any]
) -> AppPlace | None:
    """Return where the app of a Python run is, as far as that is known; `None` for a run of a workflow file.

    A fork that was never executed has the app of the run that it comes from.
    """
    if "workflow_file" in config:
        return None
    function = function_in(run.outline)
    for _ in range(MOST_ANCESTORS):
        found = app_in(read_environment(run.facts), is_foreign=bool(info.origin))
        parents = journal.store.runs(key=info.parent) if info.parent and not found else []
        if not parents:
            return AppPlace(found, function)
        info = parents[0]
        run = journal.load(info, ViewCodec()).run
    return AppPlace("", function)


def run_view(
    journal: Journal,
    run_id: str,
    *,
    upto: int | None = None,
    is_alive: IsAlive | None = None,
    ttl_of: TtlOf | None = None,
) -> RunView:
    """Return a run as it is now, or as it was at entry `upto`, in one pass over its journal."""
    return journal.read_whole(run_id, lambda: _run_view(journal, run_id, upto, is_alive, ttl_of))


def _run_view(
    journal: Journal, run_id: str, upto: int | None, is_alive: IsAlive | None, ttl_of: TtlOf | None
) -> RunView:
    info = journal.info(run_id)
    line = run_line(journal, info, is_alive)
    codec = ViewCodec()
    run, history = journal.history(info, codec, upto)
    tallies, initial = Tallies(run), tuple[Op, ...]()
    count = size = newest = 0
    asked: Commanded | None = None
    for entry, found in history:
        for record in found:
            tallies.take(record, entry.at)
            if isinstance(record, RunStarted):
                initial = record.ops
            elif isinstance(record, Commanded | Resumed):
                asked = _stopping(record, asked)
        size += len(entry.body)
        if entry.mark is not None:
            newest, count = entry.seq, count + 1
    ident = checkpoint_id(info.key, newest) if newest else ""
    state = state_view(run.root.cells, codec, run_id, ident, run.root.last_node, run.updated_at)
    # What is read first is read whatever the rest needs: what the run is, what it waits for, its inputs, its output.
    config = _config(run, codec)
    app = recorded_app(journal, info, run, config) or UNKNOWN
    pauses, facts = _pauses(info, run, codec, config, app, ttl_of), read_environment(run.facts, codec)
    is_file = isinstance(config.get("workflow_file"), Mapping)
    inputs: Mapping[str, Any] = state_view(advance({}, initial), codec, run_id, ident, "", 0.0)
    done = Counts(run.steps_done)
    if is_file:
        found = read_or_unread(lambda: state.get("inputs"))
        inputs = (
            {"inputs": found} if isinstance(found, Unread) else found if isinstance(found, Mapping) else {}
        )
        read_or_unread(lambda: state.get("output"))
        with contextlib.suppress(CodecError):  # If it takes more than can be read, every node counts.
            done = counted(run)
    return RunView(
        line=line,
        steps=_steps(tallies, line, state if is_file else None),
        pauses=pauses,
        inputs=inputs,
        state=state,
        config=config,
        outline=run.outline,
        ledger=total(*run.spending.values()),
        fault=_fault(run),
        done=done,
        seconds=run.seconds,
        checkpoints=count,
        checkpoint_id=ident,
        size=size,
        parent=run.parent,
        commands_refused=run.refused,
        refusals=tuple(run.refusals),
        facts=facts,
        app=app,
        annotations=annotation_views(info, run),
        provenance=Provenance.of(info),
        stopped_by=asked if line.status in (RunStatus.INTERRUPTED, RunStatus.CANCELLED) else None,
        codec=codec,
    )


def _stopping(record: Commanded | Resumed, before: Commanded | None) -> Commanded | None:
    """Return the command that stops a run, after a record."""
    if isinstance(record, Resumed):
        return None
    return record if record.command in ("pause", "cancel") and not record.refused else before


def _steps(tallies: Tallies, line: RunLine, state: State | None) -> tuple[StepView, ...]:
    executed = line.status == RunStatus.RUNNING and not line.is_dead
    views = step_views(tallies, tallies.run.outline, executed=executed, is_file=state is not None)
    if state is not None:
        views = tuple(_as_kept(view, state) for view in views)
    groups, previews = groups_of(tallies.run.outline) if state is not None else {}, ViewCodec()
    return tuple(
        replace(view, _previews=previews, _state=state, _members=groups.get(view.name, ())) for view in views
    )


def _as_kept(view: StepView, state: State) -> StepView:
    """Return a step that ended before what is stored, with what the state of a workflow file still says of it."""
    record = read_or_unread(lambda: state.get(view.name))
    if view.started_at is not None or view.status != "completed" or not isinstance(record, Mapping):
        return view
    known = replace(view, items=view.items or _items_in(state, view.name, record.get("visits")))
    return _with_record(known, record)


def _items_in(state: State, name: str, visit: Any) -> Items | None:
    """Return how the items of a finished for-each ended."""
    found = read_or_unread(lambda: state.get(f"{name}:items"))
    if not isinstance(found, Mapping):
        return None
    own = [item for item in found.values() if isinstance(item, Mapping) and item.get("visit") == visit]
    failed = sum("error" in item for item in own)
    return Items(len(own), len(own) - failed, failed)


def _config(run: RunState, codec: ViewCodec) -> Mapping[str, Any]:
    try:
        config = codec.decode(run.config) if run.config else {}
    except CodecError:
        return {}
    return config if isinstance(config, Mapping) else {}


def _fault(run: RunState) -> FaultView | None:
    """Return why the run stopped: as the failed step says it, which knows nothing of runs and resumes."""
    own = [(step.node, step.fault) for step in run.active() if step.fault is not None]
    passed = [(node_of(name).rpartition("/")[2], each) for name, each in run.faults[::-1]]
    of_steps = (each for name, each in (*own, *passed) if name == run.fault_node)
    fault = next(of_steps, run.fault) if run.fault is not None else None
    if fault is None:
        return None
    return FaultView(base_name(run.fault_node), fault.type, fault.message, fault.trace)


def _pauses(
    info: RunInfo,
    run: RunState,
    codec: ViewCodec,
    config: Mapping[str, Any],
    app: AppPlace,
    ttl_of: TtlOf | None,
) -> tuple[PauseView, ...]:
    is_of_program = not info.queue and "workflow_file" not in config
    found: list[PauseView] = []
    open_ended = any(pause.kind == "ask" and pause.expires_at is None for pause in run.pauses.values())
    ttl = ttl_of(config, info) if ttl_of is not None and open_ended else None
    for pause in run.pauses.values():
        schema = codec.decode(pause.schema) if pause.schema else None
        view = PauseView(
            run_id=info.run,
            id=pause.id,
            kind=pause.kind,
            step=base_name(pause.node),
            name=pause.name,
            prompt=pause.prompt,
            schema=schema if isinstance(schema, Mapping) else None,
            since=when(pause.since),
            until=_until(pause, ttl),
            node=pause.node,
            is_of_program=is_of_program,
            app=app,
        )
        found.append(view)
    return mark_shared_names(found)


def _until(pause: Pause, ttl: float | None) -> dt.datetime | None:
    """Return when a pause ends by itself: as the question says, or as the retention says for questions."""
    if pause.expires_at is not None:
        return when(pause.expires_at)
    return None if ttl is None or pause.kind != "ask" else when(pause.since + ttl)


# Tallies of a run's nodes, counted while its records are folded: attempts, times, results.


_SHOWN = {
    WAITING: "waiting",
    GATED: "waiting",
    FAILED: "failed",
    RETRYING: "retrying",
    RUNNING: "running",
    IN_DOUBT: "interrupted",
    READY: "next",
}
"""What the states of an unfinished step are called, the most telling first."""

_SMALL = 64 * 1024

FINAL = "output"
"""The node that makes the output of a workflow file."""


@dataclass(slots=True)
class Tally:
    """The attempts and results of one node so far."""

    visits: int = 0
    attempts: int = 0
    seconds: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    status: str = "pending"
    fault: Fault | None = None
    note: str = ""
    ops: tuple[Op, ...] = ()
    rounds: dict[str, list[int]] = field(default_factory=dict)
    """Of a for-each, per frame: its last visit, and how many items of it are completed, skipped and failed."""


Counted = StepStarted | StepFailed | FrameOpened | StepFinished
"""The records that are counted."""


class Tallies:
    """A fold that also counts what a fold forgets: attempts, times, what finished steps left behind."""

    def __init__(self, run: RunState) -> None:
        self.run = run
        self.of: dict[str, Tally] = {}
        self._asked: set[str] = set()
        """Steps that paused for an answer: resuming them is no other attempt."""
        self._take_over()

    def _take_over(self) -> None:
        """Take in what is known of steps from before the first record that is read."""
        for frame in self.run.frames.values():
            prefix = _outer(frame.path)
            for node, visits in frame.visits.items():
                if node != START:
                    self.of[prefix + node] = Tally(visits, visits, status="completed")
        for step in self.run.active():
            if step.node == START:
                continue
            tally = self._tally(step)
            if self.is_item(step):
                counts = tally.rounds.setdefault(step.frame, [step.visit, 0, 0, 0])
                counts[1] += step.status == DONE
            elif step.attempt == 0 and tally.visits:
                tally.visits = tally.attempts = tally.visits - 1

    def take(self, record: Record, at: float) -> None:
        """Fold one record and count it."""
        if isinstance(record, Counted):
            step = self.run.step(record.step)
            if step.node != START:
                self._count(self._tally(step), step, record, at)
        elif isinstance(record, Paused) and record.kind == "ask":
            self._asked.add(record.step)
        apply(self.run, record, at)
        if isinstance(record, Forked):
            self._take_over()
        elif isinstance(record, Reset):
            # What the run was set back to knows nothing of is forgotten; what is known of the rest stays its past.
            known, self.of = self.of, {}
            self._asked.clear()
            self._take_over()
            for name, tally in self.of.items():
                before = known.get(name)
                if before is not None and before.visits == tally.visits and before.status == "completed":
                    self.of[name] = replace(before, ops=(), rounds=tally.rounds)

    def is_item(self, step: Step) -> bool:
        """Return whether a step is an item of a for-each; the keys of calls that a function makes are names."""
        frame = self.run.frames.get(step.frame)
        return step.key is not None and not (frame is not None and frame.is_body)

    def _tally(self, step: Step) -> Tally:
        name = step.node if not step.frame else _outer(step.frame) + step.node
        tally = self.of.get(name)
        if tally is None:
            tally = self.of[name] = Tally()
        return tally

    def _count(self, tally: Tally, step: Step, record: Counted, at: float) -> None:
        is_item = self.is_item(step)
        if step.attempt == 0:  # A visit is counted at its first step.
            if not is_item:
                tally.visits += 1
            elif tally.rounds.get(step.frame, [0])[0] != step.visit:
                tally.rounds[step.frame] = [step.visit, 0, 0, 0]
                tally.visits += 1
        if isinstance(record, StepStarted | FrameOpened):
            tally.attempts += record.step not in self._asked
            self._asked.discard(record.step)
            tally.started_at, tally.ended_at, tally.status = at, None, "running"
            return
        tally.ended_at = at
        if isinstance(record, StepFailed):
            tally.seconds += record.seconds
            tally.fault, tally.status = record.fault, "failed"
            return
        tally.seconds += record.seconds if not record.promoted else max(0.0, at - (tally.started_at or at))
        # A failure that is passed over ends as skipped, its reason being the failure.
        how = ending_of(record.skipped, "" if step.fault is None else str(step.fault))
        tally.status, tally.note = how, record.skipped
        if how == "completed":
            tally.fault = None
        if record.ops:
            tally.ops = record.ops
        if is_item and step.frame in tally.rounds:
            tally.rounds[step.frame][("", "completed", "skipped", "failed").index(how)] += 1


def _outer(frame: str) -> str:
    """Return what comes before the name of a node in that frame: `outer/` for `outer#1[a]`."""
    return "".join(part.rpartition("#")[0] + "/" for part in frame.split("/")) if frame else ""


def step_views(
    tallies: Tallies, outline: Mapping[str, Any], *, executed: bool, is_file: bool
) -> tuple[StepView, ...]:
    """Return every step of the workflow, in its order, then those that only the journal knows.

    Unless the run is being `executed`, what counts as running was interrupted. The node that
    makes the output of a workflow file (`is_file`) is no step.
    """
    nodes: dict[str, list[str]] = {}
    for name in (*outline_names(outline), *tallies.of):
        if is_file and name.rpartition("/")[2] == FINAL:
            continue
        group = nodes.setdefault(base_name(name), [])
        if name not in group:
            group.append(name)
    active: dict[str, list[Step]] = {}
    for step in tallies.run.active():
        if step.node != START:
            active.setdefault(base_name(_outer(step.frame) + step.node), []).append(step)
    views = []
    for name, group in nodes.items():
        known, begun = [tallies.of[node] for node in group if node in tallies.of], active.get(name, [])
        items = _items(known, [step for step in begun if tallies.is_item(step)])
        views.append(_view(name, known, begun, items, executed))
    if function_in(outline):  # The order in which a function names its steps is not that of its calls.
        views.sort(key=lambda view: view.status == "pending")
    return tuple(views)


def _view(
    name: str, tallies: list[Tally], active: list[Step], items: Items | None, executed: bool
) -> StepView:
    found = {step.status for step in active}
    now = next((shown for status, shown in _SHOWN.items() if status in found), None)
    now = "interrupted" if now == "running" and not executed else now
    if not tallies:
        return StepView(name, now or "pending", items=items)
    last = max(tallies, key=lambda tally: (tally.started_at or 0.0, tally.ended_at or 0.0))
    status = now or last.status
    started = [tally.started_at for tally in tallies if tally.started_at is not None]
    ended = [tally.ended_at for tally in tallies if tally.ended_at is not None]
    fault = next((step.fault for step in active if step.fault is not None), None) or last.fault
    view = StepView(
        name=name,
        status=status,
        visits=max(tally.visits for tally in tallies),
        attempts=max(tally.attempts for tally in tallies),
        seconds=sum(tally.seconds for tally in tallies),
        started_at=when(max(started)) if started else None,
        ended_at=when(max(ended)) if ended and status in ("completed", "skipped", "failed") else None,
        retry_at=next((when(step.retry_at) for step in active if step.retry_at is not None), None),
        items=items,
        fault=None if fault is None else FaultView(name, fault.type, fault.message, fault.trace),
        note=last.note,
        _ops=_ops(name, tallies, last),
    )
    return _with_file_status(view) if status in ("completed", "skipped", "failed") and not active else view


def _items(tallies: list[Tally], active: list[Step]) -> Items | None:
    """Return how far the items of a for-each have come, those under way included."""
    rounds = [round_ for tally in tallies for round_ in tally.rounds.values()]
    open_items = [step for step in active if step.status != DONE]
    if not rounds and not open_items:
        return None
    completed, skipped, failed = (sum(round_[place] for round_ in rounds) for place in (1, 2, 3))
    statuses = [step.status for step in open_items]
    return Items(
        completed + skipped + failed + len(statuses),
        completed,
        failed + statuses.count(FAILED),
        skipped,
        statuses.count(RUNNING),
    )


def _ops(name: str, tallies: list[Tally], last: Tally) -> tuple[Op, ...]:
    """Return the result of a step: the update of the node that set the step's own key, else the last one."""
    for tally in reversed(tallies):
        if any(op.key == name and op.kind == "set" for op in tally.ops):
            return tally.ops
    return last.ops


def _with_file_status(view: StepView) -> StepView:
    """Return a step of a workflow file with the status in its result: it may have failed or been skipped."""
    own = [op for op in view._ops if op.kind == "set" and op.key == view.name]
    if not own or len(own[0].raw) > _SMALL:
        return view
    result = CODEC.decode(own[0].raw)
    return _with_record(view, result) if isinstance(result, dict) else view


def _with_record(view: StepView, result: Mapping[str, Any]) -> StepView:
    """Return a step with the status that the state has of it."""
    status = result.get("status")
    if status == "skipped":
        return replace(view, status="skipped", note=str(result.get("reason") or view.note))
    if status == "failed" and view.fault is None and result.get("error"):
        kind, _, message = str(result["error"]).partition(": ")
        return replace(view, status="failed", fault=FaultView(view.name, kind, message))
    return replace(view, status="failed") if status == "failed" else view
