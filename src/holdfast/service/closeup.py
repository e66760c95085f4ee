"""Reading one run for a page of it: as much as a page shows, however long the run is and however large its values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from holdfast import clock
from holdfast.engine.owner import has_owner
from holdfast.engine.time_travel.checkpoints import find_position
from holdfast.errors import CheckpointNotFound
from holdfast.journal.checkpoint_ids import decode_checkpoint
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
from holdfast.state.state import slots_of
from holdfast.stores.base import wait_for_change
from holdfast.values import RunStatus
from holdfast.views import usage
from holdfast.views.drawing import svg
from holdfast.views.history import CheckpointView
from holdfast.views.plain import Room, ViewCodec, plain, read_or_unread, user_trace
from holdfast.views.run_view import FaultView, RunView
from holdfast.views.runs import run_view
from holdfast.views.timeline import commit_text, host_text
from holdfast.views.waterfall import Waterfall

TURN = 1.5
"""Seconds that a process which waits for an answer has to go on by itself, before workers get the run."""

_LOOK = 0.05

MOST_READ = 1_000_000
"""A stored value of more bytes is not read where only some of it would be shown."""

MOST_PARTS = 1_000
"""A value of more parts (items, keys) is cut where only some of it is shown."""


class CloseReader(Reader):
    """What the pages of one run ask a service for."""

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
            "is_known": any(offered.name == line.workflow for offered in self.catalogue.offered),
            **{name: some(value) for name, value in values.items()},
        }

    def _svg(self, view: RunView, link: Callable[[str], str] | None) -> str:
        states = {step.name: step.as_json() for step in view.steps}
        return svg(view.outline, states, link=link, title=view.line.workflow) if view.outline else ""

    def waterfall(self, run_id: str, first: int | None = None, limit: int = 50) -> dict[str, Any]:
        """Return executions of steps in the order they began, from one of them on, or the last ones."""
        info = self._info(run_id)
        config = self.journal.load(info, ViewCodec()).run.config
        found = Waterfall(self.journal, run_id, of_file=b"workflow_file" in config)
        found.read()
        total = len(found.spans)
        start = (
            max(0, total - checked_limit(limit)) if first is None else min(max(0, first), max(0, total - 1))
        )
        spans = [span.as_json() for span in found.spans[start : start + limit]]
        return {"spans": spans, "first": start, "total": total, "now": clock.time()}

    def closeup(self, run_id: str, name: str) -> dict[str, Any]:
        """Return what a page says of a step: its executions, its errors, what it cost; large values are cut."""
        view = self._view(run_id)
        found = view.step(name)
        if found is None:
            raise RequestInvalid(f"run {run_id!r:.200} has no step {name!r:.200}")
        view.codec.renew()
        cost = [row for row in usage.ledger(self.journal, view.run_id).by_step() if row.name == name]
        executed = Waterfall(self.journal, run_id, of_file=view.workflow_file is not None)
        executed.read()
        spans = [span.as_json() for span in executed.spans if span.name == name]
        events = [each for each in self.follow(run_id).read() if is_of(each["step"], name)]
        before = [point for point in self.points(run_id) if name in point["next"]]
        errors = {} if found.items is None else found.item_errors
        return {
            **found.as_json(),
            "error": _fault(found.fault),
            "output": some(found.output),
            "errors": some(dict(itertools.islice(errors.items(), MOST_LISTED))),
            "cost": cost[0].as_json() if cost else None,
            "spans": spans[-MOST_LISTED:],
            "executions": len(spans),
            "events": events[-MOST_LISTED:],
            "before": before[-1]["checkpoint_id"] if before else None,
            "now": clock.time(),
        }

    def points(self, run_id: str) -> list[dict[str, Any]]:
        """Return the positions of all checkpoints of a run, the first saved first."""
        info = self._info(run_id)
        stored = self.store.checkpoints(info.run)
        found = (CheckpointView(info.run, decode_checkpoint(info.key, each, info.run)) for each in stored)
        return [point.as_json() for point in found][::-1]

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
            found = [each for each in self.follow(run_id, start).read_until(end[0]) if _place(each) < end]
            if len(found) > limit or not start:
                break
            size *= 8
        shown = found[-limit:]
        return {"events": shown, "before": shown[0]["id"] if len(found) > len(shown) else None}

    def _is_continued(self, run_id: str) -> bool:
        """Return whether a process that waited for an answer goes on with its run by itself."""
        end = clock.monotonic() + TURN
        while clock.monotonic() < end:
            info = self._info(run_id)
            if info.status != RunStatus.PAUSED or has_owner(self.store, info):
                return True
            wait_for_change(self.store, run_id, _LOOK)
        return False


def some(value: Any) -> Any:
    """Return a value as plain data, without what is too much to be shown at first."""
    return plain(value, 0, Room(MOST_PARTS))


def _fault(fault: FaultView | None) -> dict[str, Any] | None:
    """Return why something failed, with the frames of the user's code only."""
    return None if fault is None else {**fault.as_json(), "trace": user_trace(fault.trace)}


def _place(event: Mapping[str, Any]) -> tuple[int, int]:
    return read_event_id(event["id"])
