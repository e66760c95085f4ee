"""A run as it goes on: a row per step, made of its events, and how much of it ran."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from holdfast.events import Event
from holdfast.journal.run_state import frame_of, node_of
from holdfast.views.run_view import Counts

if TYPE_CHECKING:
    from holdfast.graph.graph import Graph

PENDING, RUNNING, RETRYING, DONE, KEPT = "pending", "running", "retrying", "done", "kept"
SKIPPED, FAILED, WAITING, STOPPED = "skipped", "failed", "waiting", "stopped"
COMPLETED = "completed"
ITEM = "item"
MOST_OF_A_TEXT = 1000
"""How many characters of a text that a step streams are kept to be shown, the last ones."""
HELPERS = {"output": "output"}
"""Nodes that are no steps of the workflow file: the one that makes its output."""


def ending_of(skipped: str, fault: str) -> str:
    """Return how a step ended that was `skipped` for a reason; one that was passed over for its fault failed."""
    if not skipped:
        return COMPLETED
    return FAILED if skipped == fault else SKIPPED


class Place(NamedTuple):
    """The parts of a step id: the names of the steps around it and its own, the visit and the item.

    `role` is empty for the step itself, else what a helper node of it does.
    """

    path: tuple[str, ...]
    role: str = ""
    visit: int = 1
    key: str | None = None

    @property
    def label(self) -> str:
        """The name for people: `publish[3]`, `outer/inner`, `review (2)`."""
        item = "" if self.key is None else f"[{self.key}]"
        again = f" ({self.visit})" if self.visit > 1 else ""
        return f"{'/'.join(self.path)}{item}{again}"


@lru_cache(maxsize=1024)
def place_of(step: str, node: str = "", of_file: bool = True) -> Place:
    """Return the parts of a step id such as `outer#1/publish:item#2[key]`; only workflow files have helpers."""
    if not step:
        parts = node.split("/")
        role = parts[-1].partition(":")[2] or (HELPERS.get(parts[-1], "") if of_file else "")
        return Place(tuple(part.partition(":")[0] for part in parts), role)
    *around, own = step.split("/")
    name, _, rest = own.partition("#")
    visit, bracket, key = rest.partition("[")
    base, _, role = name.partition(":")
    role = role or (HELPERS.get(base, "") if of_file else "")
    path = (*(part.partition("#")[0].partition(":")[0] for part in around), base)
    number = int(visit) if visit.isdigit() else 1
    return Place(path, role, number, unquote(key[:-1]) if bracket else None)


def place_in(event: Event, of_file: bool = True) -> Place:
    """Return the step that an event is about."""
    return place_of(event.data.get("step", ""), event.node, of_file)


def graph_rows(graph: Graph) -> list[tuple[str, int, str]]:
    """Return the nodes of a graph, as `Progress` takes the steps of a workflow."""
    return [(name, 0, "") for name in graph.nodes]


@dataclass(slots=True)
class Row:
    """One step, over all its visits and items."""

    name: str
    depth: int = 0
    kind: str = ""
    status: str = PENDING
    visits: int = 0
    attempt: int = 0
    began: float = 0.0
    seconds: float = 0.0
    retry_at: float = 0.0
    message: str = ""
    error: str = ""
    expected: int = 0
    done: int = 0
    failed: int = 0
    items: dict[str, str] = field(default_factory=dict)
    """The items of a for-each that are known, by the names of their steps, with what became of them."""
    running: set[str] = field(default_factory=set)
    """The visits under way, by the names of their steps; calls of a function may run at the same time."""

    @property
    def total(self) -> int:
        """The number of items of a for-each, as far as it is known."""
        return max(self.expected, len(self.items))

    def count_item(self, step: str, status: str) -> None:
        """Set the status of an item; each counts once, however often it is tried."""
        before = self.items.get(step)
        self.done += (status == DONE) - (before == DONE)
        self.failed += (status == FAILED) - (before == FAILED)
        self.items[step] = status

    def begin_visit(self, visit: int) -> None:
        """Reset the counts of items if this is a new visit."""
        if visit > self.visits:
            self.visits, self.expected, self.done, self.failed, self.items = visit, 0, 0, 0, {}

    def elapsed(self, now: float) -> float:
        """Return the time that the step has taken so far."""
        return self.seconds + (now - self.began if self.status in (RUNNING, RETRYING) and self.began else 0.0)


class Progress:
    """The rows that the events of a run add up to; events may come from any thread.

    The steps of a workflow file, unlike nodes of a Python graph, have helpers, and say their status in the state.
    """

    def __init__(
        self, steps: Iterable[tuple[str, int, str]] = (), scrub: Any = None, *, of_file: bool = True
    ) -> None:
        self._of_file = of_file
        self.rows: dict[tuple[str, ...], Row] = {
            (name,): Row(name, depth, kind) for name, depth, kind in steps
        }
        self.lock = threading.Lock()
        self.cost = 0.0
        self.is_stopped = False
        """Whether the run was stopped from outside, and is saved."""
        self._texts: dict[str, tuple[int, str]] = {}
        """By step: the attempt that streams, and the end of its text."""
        self._scrub: Callable[[Any], Any] = scrub or (lambda value: value)
        self._handlers = {
            "node.start": self._started,
            "node.complete": self._completed,
            "node.reuse": self._reused,
            "node.spend": self._spent,
            "node.error": self._erred,
            "node.retry": self._retried,
            "node.message": self._said,
            "node.stream": self._streamed,
            "edge.transition": self._handed_out,
            "pause": self._paused,
            "graph.cancel": self._stopped,
        }

    @property
    def wants(self) -> Collection[str]:
        """The events that change it."""
        return self._handlers

    def on_event(self, event: Event) -> None:
        """Add one event."""
        handler = self._handlers.get(event.type)
        if handler is not None and not (self._of_file and event.node in HELPERS):
            with self.lock:
                handler(event)

    def keep(self, statuses: Mapping[str, str]) -> None:
        """Mark the steps that an earlier execution has finished."""
        for name, status in statuses.items():
            row = self.rows.get((name,))
            if row is not None and row.status == PENDING:
                row.status = {"skipped": SKIPPED, "failed": FAILED}.get(status, KEPT)

    def keep_items(self, items: Mapping[str, str]) -> None:
        """Count the items of for-each steps under way, by the names of their steps: what an earlier execution left."""
        for step, status in items.items():
            place = place_of(step)
            row = self.row(place)
            row.begin_visit(place.visit)
            row.count_item(step, status)

    def row(self, place: Place) -> Row:
        """Return the row of a step, added now if it is new."""
        found = self.rows.get(place.path)
        if found is None:
            found = self.rows[place.path] = Row(place.path[-1], len(place.path) - 1)
            *paths, path = self.rows
            around = [index for index, known in enumerate(paths) if known[: len(path) - 1] == path[:-1]]
            if len(path) > 1 and around:  # Right below the rows of the step around it.
                paths.insert(around[-1] + 1, path)
                self.rows = {known: self.rows[known] for known in paths}
        return found

    def _reused(self, event: Event) -> None:
        """Mark a step as kept if none of its parts runs."""
        place, row = self._row_of(event)
        status = self._status_in(event, row.name)
        if row.status in (PENDING, KEPT):
            row.status, row.visits = (
                {DONE: KEPT, RUNNING: KEPT}.get(status, status),
                max(row.visits, place.visit),
            )

    def _started(self, event: Event) -> None:
        place, row = self._row_of(event)
        if place.role == ITEM or place.key is not None:
            row.begin_visit(place.visit)
            row.count_item(event.data.get("step", ""), RUNNING)
        elif not place.role:
            row.begin_visit(place.visit)
            if not self._of_file:
                row.running.add(event.data.get("step", ""))
            row.attempt = 1 if row.kind == "ask" else event.data.get("attempt", 1)
        if row.status not in (RUNNING, RETRYING):
            row.began = time.time()
        row.status, row.error, row.message = RUNNING, "", ""

    def _completed(self, event: Event) -> None:
        data, (place, row) = event.data, self._row_of(event)
        failed = bool(data.get("error"))
        status = FAILED if failed else self._status_in(event, row.name)
        self._texts.pop(data.get("step", ""), None)
        if place.role == ITEM or place.key is not None:
            row.count_item(data.get("step", ""), FAILED if failed else DONE)
            if not failed and (place.role == ITEM or row.done + row.failed < row.total):
                return
        row.running.discard(data.get("step", ""))
        if status == DONE and row.running:
            return
        if status != RUNNING:
            row.seconds, row.began = row.elapsed(time.time()), 0.0
        row.status = status

    def _status_in(self, event: Event, name: str) -> str:
        return _status_in(event.data.get("update") or {}, name) if self._of_file else DONE

    def _row_of(self, event: Event) -> tuple[Place, Row]:
        place = place_in(event, self._of_file)
        return place, self.row(place)

    def _spent(self, event: Event) -> None:
        self.cost += event.data.get("cost") or 0.0

    def _erred(self, event: Event) -> None:
        self._row_of(event)[1].error = str(self._scrub(event.data.get("error")))

    def _retried(self, event: Event) -> None:
        row = self._row_of(event)[1]
        row.status, row.retry_at = RETRYING, event.timestamp + float(event.data.get("delay", 0))
        row.attempt = event.data.get("attempt", row.attempt)

    def _said(self, event: Event) -> None:
        row = self._row_of(event)[1]
        row.message = str(self._scrub(event.data.get("message", "")))
        if event.data.get("stopping") is True:
            self.is_stopped = True
            _stop(row)

    def _streamed(self, event: Event) -> None:
        """Show the end of the text that a step streams."""
        row, step = self._row_of(event)[1], event.data.get("step", "")
        before, text = self._texts.get(step, (0, ""))
        attempt = event.data.get("attempt", 1)
        text = (text if before == attempt else "") + str(event.data.get("text", ""))
        self._texts[step] = attempt, text[-MOST_OF_A_TEXT:]
        row.message = str(self._scrub(text[-MOST_OF_A_TEXT:].rstrip().rpartition("\n")[2]))

    def _handed_out(self, event: Event) -> None:
        """Count the edges from a step to its items, one for every item."""
        name, _, role = str(event.data.get("to", "")).partition(":")
        if role == ITEM and event.data.get("from") == name and (row := self.rows.get((name,))) is not None:
            row.expected += 1

    def _paused(self, event: Event) -> None:
        row = self.row(place_of(step_of_pause(event), event.node, self._of_file))
        row.running.discard(step_of_pause(event))
        if event.data.get("kind") != "after":
            row.seconds, row.began, row.status = row.elapsed(time.time()), 0.0, WAITING

    def _stopped(self, event: Event) -> None:
        """Mark the steps under way as stopped."""
        self.is_stopped = True
        for row in self.rows.values():
            _stop(row)


class Tally:
    """An observer that counts what ran: the steps and items that did something themselves, each once.

    A for-each, a group and a sub-workflow are made of others, which are counted instead.
    """

    wants = ("node.complete",)

    def __init__(self, graph: Graph, *, of_file: bool = True) -> None:
        self._graph, self._of_file = graph, of_file
        self._ran: set[tuple[str, str, bool]] = set()

    def on_event(self, event: Event) -> None:
        """Count a step that ended; one that failed has not."""
        if event.type not in self.wants:
            return
        place, step = place_in(event, self._of_file), event.data.get("step", "")
        if event.data.get("error") or self._is_made_of_others(step):
            return
        status = _status_in(event.data.get("update") or {}, "/".join(place.path)) if self._of_file else DONE
        if place.role in ("", ITEM) and status not in (RUNNING, SKIPPED):
            is_item = place.key is not None and not is_body(self._graph, frame_of(step))
            self._ran.add((event.run_id, step, is_item))

    def counts(self) -> Counts:
        """Return how many steps and items ran so far."""
        items = sum(is_item for _, _, is_item in self._ran)
        return Counts(len(self._ran) - items, items)

    def _is_made_of_others(self, step: str) -> bool:
        try:
            nodes = self._graph.at(frame_of(step)).nodes
        except KeyError:
            return False
        name = step.rpartition("/")[2].rpartition("#")[0]
        is_whole = self._of_file and f"{name}:{DONE}" in nodes
        return is_whole or (name in nodes and nodes[name].graph is not None)


def is_body(graph: Graph, frame: str) -> bool:
    """Return whether the steps of a frame are those that the function of a workflow has called."""
    try:
        node = graph.at(frame_of(frame)).nodes.get(node_of(frame).rpartition("/")[2]) if frame else None
    except KeyError:
        return False
    return node is not None and node.graph is not None and node.function is not None


def _stop(row: Row) -> None:
    if row.status in (RUNNING, RETRYING):
        row.seconds, row.began, row.status = row.elapsed(time.time()), 0.0, STOPPED


def step_of_pause(event: Event) -> str:
    """Return the step of a `pause` event, with which the pause's id begins."""
    data = event.data
    step: str = data.get("step") or str(data.get("pause", "")).removesuffix(
        f":{data.get('name') or data.get('kind')}"
    )
    return step


def _status_in(update: Mapping[str, Any], name: str) -> str:
    """Return the status that a workflow file's step has in the state."""
    said = update.get(name)
    status = said.get("status") if isinstance(said, Mapping) else None
    return {"skipped": SKIPPED, "failed": FAILED, "running": RUNNING}.get(str(status), DONE)
