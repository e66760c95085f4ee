"""Reading one run for a page of it: as much as a page shows, however long the run is and however large its values."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import operator
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, overload

from holdfast import clock
from holdfast.engine.owner import has_owner
from holdfast.engine.time_travel.checkpoints import find_position
from holdfast.errors import CheckpointNotFound, CodecError
from holdfast.functions.steps import ARGUMENTS, DIGEST
from holdfast.journal.checkpoint_ids import decode_checkpoint
from holdfast.journal.encoding import Track
from holdfast.journal.fold import parts_of
from holdfast.journal.journal import Journal
from holdfast.journal.records import Record, StepCalled, StepFinished
from holdfast.journal.run_state import OUTPUT, step_id
from holdfast.service.catalogue import Catalogue
from holdfast.service.reading import (
    MOST_LISTED,
    WHOLE_ENTRY,
    Reader,
    RequestInvalid,
    checked_limit,
    is_of,
    pause_facts,
    progress_of,
    read_event_id,
)
from holdfast.state.ops import Op
from holdfast.state.state import slots_of
from holdfast.stores.base import RunInfo, StoredCheckpoint, wait_for_change
from holdfast.values import RunStatus
from holdfast.views import usage
from holdfast.views.drawing import svg
from holdfast.views.history import CheckpointView
from holdfast.views.plain import CODEC, Room, ViewCodec, plain, read_or_unread, user_trace
from holdfast.views.run_view import FaultView, RunView, is_function
from holdfast.views.runs import find_checkpoint_info, run_line, run_view
from holdfast.views.timeline import commit_text, host_text
from holdfast.views.waterfall import WAITING, Span, Waterfall

TURN = 1.5
"""Seconds that a process which waits for an answer has to go on by itself, before workers get the run."""

_LOOK = 0.05

MOST_READ = 1_000_000
"""A stored value of more bytes is not read where only some of it would be shown."""

MOST_PARTS = 1_000
"""A value of more parts (items, keys) is cut where only some of it is shown."""


MOST_EXECUTIONS = 100
"""How many executions and events of one step are returned."""

MOST_CALLS = 20
"""Of how many calls of a step of a function the arguments and outputs are returned."""

MOST_REMEMBERED = 8
"""Of how many runs the executions of steps are remembered."""


class Points(Sequence[dict[str, Any]]):
    """The checkpoints of a run, the first saved first; each is read when it is looked at."""

    def __init__(self, journal: Journal, info: RunInfo, stored: Sequence[StoredCheckpoint]) -> None:
        self._journal, self._info, self._stored = journal, info, stored

    def __len__(self) -> int:
        return len(self._stored)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Sequence[dict[str, Any]]:
        if isinstance(index, slice):
            return Points(self._journal, self._info, self._stored[index])
        saved = decode_checkpoint(self._info.key, self._stored[index], self._info.run)
        return CheckpointView(self._info.run, saved).as_json()

    def number(self, ident: str) -> int:
        """Return the number of a checkpoint, from 1 on."""
        info, seq = find_checkpoint_info(self._journal, ident)
        found = bisect.bisect_left(self._stored, seq, key=operator.attrgetter("seq"))
        if info.run != self._info.run or found == len(self) or self._stored[found].seq != seq:
            raise CheckpointNotFound(f"checkpoint {ident} is none of run {self._info.run!r}")
        return found + 1

    def until(self, seq: int) -> dict[str, Any] | None:
        """Return the newest checkpoint up to an entry."""
        found = bisect.bisect_right(self._stored, seq, key=operator.attrgetter("seq"))
        return self[found - 1] if found else None


class CloseReader(Reader):
    """What the pages of one run ask a service for."""

    def __init__(self, journal: Journal, workflows: Catalogue) -> None:
        super().__init__(journal, workflows)
        self._waterfalls: OrderedDict[tuple[str, bytes], Waterfall] = OrderedDict()
        self._lock = threading.Lock()

    def overview(self, run_id: str, link: Callable[[str], str] | None = None) -> dict[str, Any]:
        """Return what a page says of a run: large values are cut. `link` leads from the nodes of its drawing."""
        view = self._view(run_id)
        line = view.line
        values = {"inputs": view.inputs or None, "output": read_or_unread(lambda: view.output)}
        return {
            **line.as_json(),
            "goes_on": line.goes_on,
            "owner": line.owner.as_json(),
            "held": self._held(line),
            "workflow_file": view.file,
            "parent": view.fork,
            "stopped_by": view.stopped_by and view.stopped_by._asdict(),
            "provenance": view.foreign,
            "error": _fault(view.fault),
            "pauses": [pause_facts(pause) for pause in view.pauses],
            "progress": progress_of(view),
            "seconds": view.seconds,
            "ledger": view.ledger._asdict(),
            "checkpoints": view.checkpoints,
            "checkpoint_id": view.checkpoint_id,
            "bytes": view.size,
            "refusals": view.refused,
            "notes": [note.as_json() for said in view.annotations for note in said.notes],
            "environment": ", ".join(filter(None, (host_text(view.facts), commit_text(view.facts)))),
            "steps": [step.as_json() for step in view.steps],
            "drawing": self._svg(view, link),
            "begins": self.begins(run_id),
            "is_known": self._knows(line.workflow),
            "is_taken": bool(line.queue) or self.catalogue.allows_inline or self._knows(line.workflow),
            **{name: some(value) for name, value in values.items()},
        }

    def _knows(self, workflow: str) -> bool:
        return any(offered.name == workflow for offered in self.catalogue.offered)

    def _svg(self, view: RunView, link: Callable[[str], str] | None) -> str:
        states = {step.name: step.as_json() for step in view.steps}
        return svg(view.outline, states, link=link, title=view.line.workflow) if view.outline else ""

    def begins(self, run_id: str) -> float | None:
        """Return when the stored history of a run begins, if what was before is deleted."""
        first = next(iter(self.store.read(self._info(run_id).run)), None)
        return None if first is None or first.seq == 1 else first.at

    def waterfall(self, run_id: str, first: int | None = None, limit: int = 50) -> dict[str, Any]:
        """Return executions of steps in the order they began, from one of them on, or the last ones."""
        checked_limit(limit)
        with self._executions(run_id) as spans:
            total = len(spans)
            start = max(0, total - limit) if first is None else min(max(0, first), max(0, total - 1))
            shown = self._shown(run_id, spans[start : start + limit], spans)
        return {"spans": shown, "first": start, "total": total, "now": clock.time()}

    def _shown(self, run_id: str, spans: Sequence[Span], every: Sequence[Span]) -> list[dict[str, Any]]:
        """Return executions as plain data; in a run that no process executes none is running."""
        info = self._info(run_id)
        line = run_line(self.journal, info, self._is_alive)
        if line.status != RunStatus.RUNNING or line.is_dead:
            waiting = [span.step for span in every if span.status == WAITING]
            spans = [span.stopped(info.updated_at, waiting) for span in spans]
        return [span.as_json() for span in spans]

    @contextlib.contextmanager
    def _executions(self, run_id: str) -> Iterator[list[Span]]:
        """Give the executions of steps so far; those of the latest runs are remembered, and read on from there."""
        info = self._info(run_id)
        with self._lock:
            found = self._waterfalls.pop((run_id, info.key), None)
        if found is None:
            config = self.journal.load(info, ViewCodec()).run.config
            found = Waterfall(self.journal, run_id, of_file=b"workflow_file" in config)
        self.journal.read_whole(run_id, found.read)
        yield found.spans
        with self._lock:
            self._waterfalls[run_id, info.key] = found
            while len(self._waterfalls) > MOST_REMEMBERED:
                self._waterfalls.popitem(last=False)

    def closeup(self, run_id: str, name: str) -> dict[str, Any]:
        """Return what a page says of a step: its executions, its errors, what it cost; large values are cut."""
        view = self._view(run_id)
        found = view.step(name)
        if found is None:
            raise RequestInvalid(f"run {run_id!r:.200} has no step {name!r:.200}")
        view.codec.renew()
        cost = [row for row in usage.ledger(self.journal, view.run_id).by_step() if row.name == name]
        with self._executions(run_id) as executed:
            own = [span for span in executed if span.name == name]
            spans = self._shown(run_id, own[-MOST_EXECUTIONS:], executed)
            calls = self._calls(view, name, own)
        events = self._events_of(run_id, name, spans)
        before = self.points(run_id).until(own[-1].first) if own else None
        errors = {} if found.items is None else found.item_errors
        return {
            **found.as_json(),
            "error": _fault(found.fault),
            "output": some(
                found.output if calls is not None or not is_function(view.outline) else view.output
            ),
            "calls": calls and [{**call, **_shortened(call)} for call in calls[-MOST_CALLS:]],
            "errors": some(dict(itertools.islice(errors.items(), MOST_LISTED))),
            "cost": cost[0].as_json() if cost else None,
            "spans": spans,
            "executions": len(own),
            "is_known": self._knows(view.line.workflow),
            "before_fork": view.fork and view.fork["run_id"] if found.visits and not own else None,
            "events": events,
            "before": before and before["checkpoint_id"],
            "now": clock.time(),
        }

    def _calls(self, view: RunView, name: str, spans: Sequence[Span]) -> list[dict[str, Any]] | None:
        """Return the last calls of a step of a function; `None` of another step, and of the function itself."""
        if not is_function(view.outline) or "/" not in name:
            return None
        return calls_of(self.journal, view.run_id, spans[-MOST_CALLS:], MOST_READ)

    def call(self, run_id: str, ident: str) -> dict[str, Any]:
        """Return one call of a step of a function, by the id of the step: its arguments and its output, whole."""
        with self._executions(run_id) as executed:
            own = [span for span in executed if span.step == ident]
        if not own:
            raise RequestInvalid(f"run {run_id!r:.200} has no step {ident!r:.200}")
        return calls_of(self.journal, run_id, own, 1 << 40)[0]

    def _events_of(self, run_id: str, name: str, spans: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the last events that tell of a step's executions."""
        if not spans:
            return []
        first, last = spans[0]["first"], max(span["last"] for span in spans)
        events = self.follow(run_id, first - 1).read_until(last)
        return list(deque((each for each in events if is_of(each["step"], name)), MOST_EXECUTIONS))

    def points(self, run_id: str) -> Points:
        """Return the positions of all checkpoints of a run, the first saved first."""
        info = self._info(run_id)
        return Points(self.journal, info, self.store.checkpoints(info.run)[::-1])

    def keys(self, run_id: str, checkpoint: str | None = None) -> list[dict[str, Any]]:
        """Return the keys of a run's state, now or at a checkpoint; large values are cut, very large ones unread."""
        view = self._view_at(run_id, checkpoint)
        hidden = ":" if view.workflow_file is not None else None
        found = []
        for key, slot in slots_of(view.state).items():
            if hidden is None or hidden not in key:
                size = sum(len(change[1]) for change in slot.written() or ())
                value = None if size > MOST_READ else some(read_or_unread(partial(view.value, key)))
                found.append({"key": key, "value": value, "unread": size if size > MOST_READ else 0})
        return found

    def _view_at(self, run_id: str, checkpoint: str | None) -> RunView:
        if checkpoint is None:
            return self._view(run_id)
        found = find_position(self.store, f"{run_id}{checkpoint}" if checkpoint[:1] == "@" else checkpoint)
        if found.info.run != run_id:
            raise CheckpointNotFound(f"checkpoint {checkpoint} is one of run {found.info.run!r}")
        return run_view(self.journal, run_id, upto=found.seq)

    def tail(self, run_id: str, before: str | None = None, limit: int = 50) -> dict[str, Any]:
        """Return the last events of a run, or those before one of them, and the id that the page before ends at."""
        if before is None:
            end = self.follow(run_id, None).place[0], WHOLE_ENTRY
        else:
            end = read_event_id(before)
        size = checked_limit(limit)
        while True:
            start = max(0, end[0] - size - 1)
            found = self.journal.read_whole(run_id, partial(self._between, run_id, start, end))
            if len(found) > limit or not start:
                break
            size *= 8
        shown = found[-limit:]
        return {"events": shown, "before": shown[0]["id"] if len(found) > len(shown) else None}

    def _between(self, run_id: str, start: int, end: tuple[int, int]) -> list[dict[str, Any]]:
        """Return the events after an entry, up to an event."""
        return [each for each in self.follow(run_id, start).read_until(end[0]) if _place(each) < end]

    def _is_continued(self, run_id: str) -> bool:
        """Return whether a process that waited for an answer goes on with its run by itself."""
        end = clock.monotonic() + TURN
        while clock.monotonic() < end:
            info = self._info(run_id)
            if info.status != RunStatus.PAUSED or has_owner(self.store, info):
                return True
            wait_for_change(self.store, run_id, _LOOK)
        return False


def _shortened(call: Mapping[str, Any]) -> dict[str, Any]:
    return {name: some(call[name]) for name in ("arguments", "output") if name in call}


def some(value: Any) -> Any:
    """Return a value as plain data, without what is too much to be shown at first."""
    return plain(value, 0, Room(MOST_PARTS))


def _fault(fault: FaultView | None) -> dict[str, Any] | None:
    """Return why something failed, with the frames of the user's code only."""
    return None if fault is None else {**fault.as_json(), "trace": user_trace(fault.trace)}


def _place(event: Mapping[str, Any]) -> tuple[int, int]:
    return read_event_id(event["id"])


# The calls of the steps of a function.


def calls_of(journal: Journal, run_id: str, spans: Sequence[Span], most: int) -> list[dict[str, Any]]:
    """Return the calls that executions of steps are of; a value of more than `most` bytes is `None`, with its size.

    `arguments` of calls before what is stored are missing; of large ones there is a preview.
    """
    ends = {span.step: span for span in spans}
    found: dict[str, dict[str, Any]] = {
        span.step: {"step": span.step, "label": span.label, "status": span.status} for span in spans
    }
    for record in _records(journal, run_id, spans):
        match record:
            case StepCalled(frame, node, visit, key, item) if (
                ident := step_id(frame, node, visit, key)
            ) in ends:
                given = {op.key: op for op in item}
                found[ident] |= _part("arguments", given.get(ARGUMENTS), most)
                found[ident]["is_preview"] = DIGEST in given
            case StepFinished(step=ident, ops=ops) if ident in ends:
                found[ident] |= _part("output", next((op for op in ops if op.key == OUTPUT), None), most)
    return list(found.values())


def _records(journal: Journal, run_id: str, spans: Sequence[Span]) -> Iterator[Record]:
    """Yield the records from the begin of the first execution to the end of the last."""
    if not spans:
        return
    info, first = journal.info(run_id), next(iter(journal.store.read(run_id)), None)
    start = min(span.first for span in spans) - 1
    if first is not None and first.seq > 1:  # What came before was pruned.
        start = max(start, first.seq)
    track = journal.load(info, CODEC, start).track if start > 0 else Track()
    for entry in journal.store.read(run_id, max(0, start)):
        if entry.seq > max(span.last for span in spans):
            return
        for record in journal.records(info, entry, track, CODEC):
            yield from parts_of(record)


def _part(name: str, op: Op | None, most: int) -> Mapping[str, Any]:
    """Return a value of a call under its name, and its size if it is too large to be read."""
    if op is None:
        return {}
    if len(op.raw) > most:
        return {name: None, f"{name}_bytes": len(op.raw)}
    try:
        return {name: ViewCodec().decode(op.raw)}
    except CodecError as error:
        return {name: f"<unreadable here: {error}>"}
