"""Tallies of a run's nodes, counted while its records are folded: attempts, times, results."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.graph.graph import base_name, outline_names
from holdfast.journal.fold import apply
from holdfast.journal.records import (
    Fault,
    Forked,
    FrameOpened,
    Paused,
    Record,
    Reset,
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
    RunState,
    Step,
)
from holdfast.state.ops import Op
from holdfast.values import START
from holdfast.views.plain import CODEC, when
from holdfast.views.run_view import FaultView, Items, StepView

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
    retry_at: float | None = None
    status: str = "pending"
    fault: Fault | None = None
    note: str = ""
    ops: tuple[Op, ...] = ()
    rounds: dict[str, list[int]] = field(default_factory=dict)
    """Of a for-each, per frame: its last visit, and how many items of it are completed, skipped and failed."""

    def visit(self, step: Step) -> None:
        """Count a visit at its first step."""
        if step.key is None:
            self.visits += 1
        elif self.rounds.get(step.frame, [0])[0] != step.visit:
            self.rounds[step.frame] = [step.visit, 0, 0, 0]
            self.visits += 1


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
            if step.key is not None:
                counts = tally.rounds.setdefault(step.frame, [step.visit, 0, 0, 0])
                counts[1] += step.status == DONE
            elif step.attempt == 0 and tally.visits:
                tally.visits = tally.attempts = tally.visits - 1

    def take(self, record: Record, at: float) -> None:
        """Fold one record and count it."""
        if isinstance(record, StepStarted | StepFailed | FrameOpened | StepFinished):
            step = self.run.step(record.step)
            if step.node != START:
                self._count(self._tally(step), step, record, at)
        elif isinstance(record, Paused) and record.kind == "ask":
            self._asked.add(record.step)
        apply(self.run, record, at)
        if isinstance(record, Forked):
            self._take_over()
        elif isinstance(record, Reset):
            self._set_back()

    def _set_back(self) -> None:
        """Forget what the place that the run was set to knows nothing of; what is known of the rest stays its past."""
        known, self.of = self.of, {}
        self._asked.clear()
        self._take_over()
        for name, tally in self.of.items():
            before = known.get(name)
            if before is not None and before.visits == tally.visits and before.status == "completed":
                self.of[name] = dataclasses.replace(before, ops=(), rounds=tally.rounds)

    def _tally(self, step: Step) -> Tally:
        name = step.node if not step.frame else _outer(step.frame) + step.node
        tally = self.of.get(name)
        if tally is None:
            tally = self.of[name] = Tally()
        return tally

    def _count(
        self,
        tally: Tally,
        step: Step,
        record: StepStarted | StepFailed | FrameOpened | StepFinished,
        at: float,
    ) -> None:
        if step.attempt == 0:
            tally.visit(step)
        if isinstance(record, StepStarted | FrameOpened):
            tally.attempts += record.step not in self._asked
            self._asked.discard(record.step)
            tally.started_at, tally.ended_at, tally.retry_at, tally.status = at, None, None, "running"
        elif isinstance(record, StepFailed):
            tally.seconds += record.seconds
            tally.fault, tally.retry_at, tally.ended_at, tally.status = (
                record.fault,
                record.retry_at,
                at,
                "failed",
            )
        else:
            _finish(tally, step, record, at)


def _finish(tally: Tally, step: Step, record: StepFinished, at: float) -> None:
    tally.seconds += record.seconds if not record.promoted else max(0.0, at - (tally.started_at or at))
    tally.ended_at, tally.retry_at, tally.note = at, None, record.skipped
    # A failure that is passed over ends as skipped, its reason being the failure.
    how = "completed" if not record.skipped else "failed" if step.fault is not None else "skipped"
    tally.status = how
    if how == "completed":
        tally.fault = None
    if record.ops:
        tally.ops = record.ops
    if step.key is not None and step.frame in tally.rounds:
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
    return tuple(
        _view(
            name, [tallies.of[node] for node in group if node in tallies.of], active.get(name, []), executed
        )
        for name, group in nodes.items()
    )


def _view(name: str, tallies: list[Tally], active: list[Step], executed: bool) -> StepView:
    if not tallies:
        return StepView(name, _status(Tally(), active, executed), items=_items([], active))
    last = max(tallies, key=lambda tally: (tally.started_at or 0.0, tally.ended_at or 0.0))
    status = _status(last, active, executed)
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
        items=_items(tallies, active),
        fault=None if fault is None else FaultView(name, fault.type, fault.message, fault.trace),
        note=last.note,
        _ops=_ops(name, tallies, last),
    )
    return _with_file_status(view) if status in ("completed", "skipped", "failed") and not active else view


def _status(last: Tally, active: Iterable[Step], executed: bool) -> str:
    found = {step.status for step in active}
    for status, shown in _SHOWN.items():
        if status in found:
            return "interrupted" if shown == "running" and not executed else shown
    return last.status


def _items(tallies: list[Tally], active: list[Step]) -> Items | None:
    rounds = [round_ for tally in tallies for round_ in tally.rounds.values()]
    open_items = [step for step in active if step.key is not None and step.status != DONE]
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
    status = result.get("status") if isinstance(result, dict) else None
    if status == "skipped":
        return dataclasses.replace(view, status="skipped", note=str(result.get("reason") or view.note))
    if status == "failed" and view.fault is None and result.get("error"):
        kind, _, message = str(result["error"]).partition(": ")
        return dataclasses.replace(view, status="failed", fault=FaultView(view.name, kind, message))
    return dataclasses.replace(view, status="failed") if status == "failed" else view
