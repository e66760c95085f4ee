"""A run as it goes on: its progress, a row per step, and plain lines, one per event."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote

from holdfast.cli.options import ExecutionOptions
from holdfast.cli.render import clock, duration, one_line
from holdfast.cli.run_files import Scrub, StateFiles, event_file, text_file, trace_file
from holdfast.events import Event, MultiObserver, Observer
from holdfast.journal.run_state import frame_of
from holdfast.threads import started
from holdfast.views.run_view import Counts

if TYPE_CHECKING:
    from holdfast.graph.graph import Graph

Answer = TypeVar("Answer")
_LONGEST = 2_000

PENDING, RUNNING, RETRYING, DONE, KEPT = "pending", "running", "retrying", "done", "kept"
SKIPPED, FAILED, WAITING, STOPPED = "skipped", "failed", "waiting", "stopped"
ITEM = "item"
HELPERS = {"output": "output"}
"""Nodes that are no steps of the workflow file: the one that makes its output."""


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
def place_of(step: str, node: str = "") -> Place:
    """Return the parts of a step id such as `outer#1/publish:item#2[key]`."""
    if not step:
        parts = node.split("/")
        role = parts[-1].partition(":")[2] or HELPERS.get(parts[-1], "")
        return Place(tuple(part.partition(":")[0] for part in parts), role)
    *around, own = step.split("/")
    name, _, rest = own.partition("#")
    visit, bracket, key = rest.partition("[")
    base, _, role = name.partition(":")
    role = role or HELPERS.get(base, "")
    path = (*(part.partition("#")[0].partition(":")[0] for part in around), base)
    number = int(visit) if visit.isdigit() else 1
    return Place(path, role, number, unquote(key[:-1]) if bracket else None)


def place_in(event: Event) -> Place:
    """Return the step that an event is about."""
    return place_of(event.data.get("step", ""), event.node)


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
    """The rows that the events of a run add up to; events may come from any thread."""

    def __init__(self, steps: Iterable[tuple[str, int, str]] = (), scrub: Any = None) -> None:
        self.rows: dict[tuple[str, ...], Row] = {
            (name,): Row(name, depth, kind) for name, depth, kind in steps
        }
        self.lock = threading.Lock()
        self.cost = 0.0
        self.is_stopped = False
        """Whether the run was stopped from outside, and is saved."""
        self._scrub: Callable[[Any], Any] = scrub or (lambda value: value)
        self._handlers = {
            "node.start": self._started,
            "node.complete": self._completed,
            "node.reuse": self._reused,
            "node.spend": self._spent,
            "node.error": self._erred,
            "node.retry": self._retried,
            "node.message": self._said,
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
        if handler is not None and event.node not in HELPERS:
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
        status = _status_in(event.data.get("update") or {}, row.name)
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
            row.attempt = 1 if row.kind == "ask" else event.data.get("attempt", 1)
        if row.status not in (RUNNING, RETRYING):
            row.began = time.time()
        row.status, row.error, row.message = RUNNING, "", ""

    def _completed(self, event: Event) -> None:
        data, (place, row) = event.data, self._row_of(event)
        failed, update = bool(data.get("error")), data.get("update") or {}
        status = FAILED if failed else _status_in(update, row.name)
        if place.role == ITEM or place.key is not None:
            row.count_item(data.get("step", ""), FAILED if failed else DONE)
            if not failed and (place.role == ITEM or row.done + row.failed < row.total):
                return
        if status != RUNNING:
            row.seconds, row.began = row.elapsed(time.time()), 0.0
        row.status = status

    def _row_of(self, event: Event) -> tuple[Place, Row]:
        place = place_in(event)
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

    def _handed_out(self, event: Event) -> None:
        """Count the edges from a step to its items, one for every item."""
        name, _, role = str(event.data.get("to", "")).partition(":")
        if role == ITEM and event.data.get("from") == name and (row := self.rows.get((name,))) is not None:
            row.expected += 1

    def _paused(self, event: Event) -> None:
        row = self.row(place_of(step_of_pause(event), event.node))
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

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ran: set[tuple[str, str, bool]] = set()

    def on_event(self, event: Event) -> None:
        """Count a step that ended; one that failed has not."""
        if event.type not in self.wants:
            return
        place, step = place_in(event), event.data.get("step", "")
        if event.data.get("error") or self._is_made_of_others(step):
            return
        status = _status_in(event.data.get("update") or {}, place.path[-1])
        if place.role in ("", ITEM) and status not in (RUNNING, SKIPPED):
            self._ran.add((event.run_id, step, place.key is not None))

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
        return f"{name}:{DONE}" in nodes or (name in nodes and nodes[name].graph is not None)


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


# A line per event, for pipes, logs and simple terminals.


class Lines:
    """An observer that writes a line for every event at once. A reader who leaves is no error."""

    def __init__(
        self,
        out: IO[str],
        scrub: Scrub | None = None,
        heartbeat: float | None = None,
        questions: Collection[str] = (),
    ) -> None:
        self._out, self._scrub = out, scrub or (lambda value: value)
        self._questions = set(questions)
        """Steps that ask: being asked again once they are answered is no other attempt."""
        self._lock = threading.Lock()
        self._errors: dict[str, str] = {}
        self._passed: set[str] = set()
        self._running: dict[str, tuple[str, float]] = {}
        self._beat = Heartbeat(heartbeat, self._still_running) if heartbeat else None
        self._handlers: dict[str, Callable[[Event], str]] = {
            "graph.start": lambda event: f"run {event.run_id} started",
            "checkpoint.resume": self._resumed,
            "graph.changed": self._changed,
            "node.start": self._started,
            "node.complete": self._completed,
            "node.error": self._failed,
            "node.retry": self._retried,
            "node.warning": self._passed_over,
            "node.message": self._message,
            "checkpoint.fail": lambda event: (
                f"a checkpoint could not be saved: {self._text(event.data.get('error'))}"
            ),
            "pause": self._paused,
            "command": self._command,
        }

    @property
    def wants(self) -> Collection[str]:
        """The events that have a line."""
        return self._handlers

    def start(self) -> None:
        """Start the heartbeat, if one is wanted."""
        if self._beat is not None:
            self._beat.start()

    def stop(self) -> None:
        """Stop the heartbeat."""
        if self._beat is not None:
            self._beat.stop()

    def on_event(self, event: Event) -> None:
        """Write the line of an event, if it has one."""
        handler = self._handlers.get(event.type)
        if handler is not None and (text := handler(event)):
            self._write(event.timestamp, text)

    def _write(self, at: float, text: str) -> None:
        with self._lock:
            try:
                self._out.write(f"{clock(at)} {one_line(text, _LONGEST)}\n")
                self._out.flush()
            except (OSError, ValueError):
                self._handlers = {}

    def _started(self, event: Event) -> str:
        place, step = place_in(event), event.data.get("step", "")
        if place.role not in ("", ITEM):
            return ""
        self._running[step] = (place.label, time.monotonic())
        attempt = 1 if place.path[-1] in self._questions else event.data.get("attempt", 1)
        return f"{place.label} started" + (f" (attempt {attempt})" if attempt > 1 else "")

    def _completed(self, event: Event) -> str:
        place, step, data = place_in(event), event.data.get("step", ""), event.data
        seconds = data.get("seconds", 0.0)
        error = self._errors.pop(step, "")
        if data.get("error"):
            self._running.pop(step, None)
            passed_over = " and is passed over" if step in self._passed else ""
            self._passed.discard(step)
            return f"{place.label} failed{passed_over}" + (f": {error}" if error else "")
        if place.role not in ("", ITEM, DONE):
            return ""
        record: Any = (data.get("update") or {}).get(place.path[-1])
        status = record.get("status") if isinstance(record, Mapping) else None
        if status == "running":
            return ""
        if place.role == DONE:  # It ends the whole step.
            step, now = step.replace(f":{DONE}#", "#"), time.monotonic()
            seconds = now - self._running.get(step, ("", now))[1]
        self._running.pop(step, None)
        if status == "skipped":
            return f"{place.label} skipped"
        if status == "failed":
            return f"{place.label} failed and is passed over: {self._text(record.get('error'))}"
        if place.role == DONE and status is None:
            return ""
        return f"{place.label} done in {duration(seconds)}"

    def _failed(self, event: Event) -> str:
        self._errors[event.data.get("step", "")] = self._text(event.data.get("error"))
        return ""

    def _retried(self, event: Event) -> str:
        step = event.data.get("step", "")
        self._running.pop(step, None)
        error, delay = self._errors.pop(step, ""), duration(event.data.get("delay", 0.0))
        return f"{place_in(event).label} retry {event.data.get('attempt', 1) + 1} in {delay}: {error}"

    def _passed_over(self, event: Event) -> str:
        """Remember the error for the line of the step's end; a failed item is a failure of its step."""
        place, step = place_in(event), event.data.get("step", "")
        self._errors[step] = self._text(event.data.get("error"))
        if place.key is None:
            self._passed.add(step)
        return ""

    def _message(self, event: Event) -> str:
        message = event.data.get("message")
        return f"{place_in(event).label}: {self._text(message)}" if message is not None else ""

    def _resumed(self, event: Event) -> str:
        names = (name.partition(":")[0] for name in event.data.get("resume_node", "").split(", "))
        upcoming = ", ".join(dict.fromkeys(names))
        return f"run {event.run_id} resumed" + (f" with {upcoming}" if upcoming else "")

    def _changed(self, event: Event) -> str:
        changes = dict.fromkeys(self._text(change) for change in event.data.get("changes", ()))
        return f"the workflow changed since the run was saved: {'; '.join(changes)}"

    def _paused(self, event: Event) -> str:
        step = step_of_pause(event)
        self._running.pop(step, None)
        place = place_of(step, event.node)
        self._questions.add(place.path[-1])
        return f"{place.label} waits: {self._text(event.data.get('prompt'))}"

    def _command(self, event: Event) -> str:
        data = event.data
        by = f" by {data['by']}" if data.get("by") else ""
        reason = f": {data['reason']}" if data.get("reason") else ""
        result = f" is refused: {data['refused']}" if data.get("refused") else f", as asked for{reason}"
        return self._text(f"{data.get('command')}{by}{result}")

    def _text(self, value: Any) -> str:
        return one_line(str(self._scrub(value)))

    def _still_running(self) -> None:
        now = time.monotonic()
        for label, since in list(self._running.values()):
            self._write(time.time(), f"{label} still running ({duration(now - since)})")


class Heartbeat:
    """A thread that calls a function every so many seconds until it is stopped."""

    def __init__(self, seconds: float, beat: Callable[[], None]) -> None:
        self._seconds, self._beat = seconds, beat
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._stopped.clear()
        thread = threading.Thread(target=self._run, name="holdfast-heartbeat", daemon=True)
        with contextlib.suppress(RuntimeError, MemoryError):  # Without a thread there is no heartbeat.
            started(thread)
            self._thread = thread

    def stop(self) -> None:
        """Stop the thread, and wait for it."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._beat()


# The observers of an execution.


class Watch:
    """Runs functions while the views of an execution are shown."""

    def __init__(
        self, views: Iterable[Any], observers: Sequence[Observer], log: IO[str] | None = None
    ) -> None:
        self._views, self._log = tuple(views), log
        self.observer: Observer | None = observers[0] if len(observers) == 1 else None
        if len(observers) > 1:
            self.observer = MultiObserver(*observers)

    def note(self, lines: Iterable[str]) -> None:
        """Write lines to the log file, if there is one."""
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.write("".join(f"{line}\n" for line in lines))

    def during(self, execute: Callable[[Observer | None], Answer]) -> Answer:
        """Return what a function returns, and show the views while it runs."""
        for view in self._views:
            view.start()
        try:
            return execute(self.observer)
        finally:
            for view in self._views:
                view.stop()


@contextlib.contextmanager
def watching(
    options: ExecutionOptions,
    progress: Progress,
    title: str,
    run_id: str,
    store: str,
    scrub: Scrub,
    read_state: Callable[[str, str], Any],
    tally: Tally,
) -> Iterator[Watch]:
    """Set up the views that the options ask for: the live view or plain lines, and the files; and a tally."""
    views: list[Any] = []
    log: IO[str] | None = None
    questions = [row.name for row in progress.rows.values() if row.kind == "ask"]
    with contextlib.ExitStack() as stack:
        if options.is_live:
            from holdfast.cli.live import LiveView  # It loads rich.

            views.append(LiveView(progress, title, run_id, store))
        elif options.is_verbose:
            views.append(Lines(options.out, scrub, options.heartbeat, questions))
        has_lines = bool(views) and not options.is_live
        if options.log_file is not None:
            log = stack.enter_context(text_file(options.log_file))
            views.append(Lines(log, scrub, options.heartbeat, questions))
        observers: list[Any] = [*views, tally]
        if options.trace_file is not None:
            observers.append(stack.enter_context(trace_file(options.trace_file, scrub)))
        if options.debug_state is not None:
            observers.append(StateFiles(options.debug_state, read_state, scrub))
        if options.events is not None:
            file = event_file(options.events, scrub, options.events_dialect)
            observers.append(stack.enter_context(file))
        stack.enter_context(scrubbed_records(scrub))
        stack.enter_context(logged_warnings(scrub, logging.ERROR if has_lines else logging.WARNING))
        yield Watch(views, observers, log)


@contextlib.contextmanager
def logged_warnings(scrub: Scrub, level: int = logging.WARNING) -> Iterator[None]:
    """Print log records on stderr, without secrets; plain lines show the warnings already."""
    handler = _StderrHandler(scrub, level)
    log = logging.getLogger("holdfast")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


@contextlib.contextmanager
def scrubbed_records(scrub: Scrub) -> Iterator[None]:
    """Keep secrets out of all log records, those of the workflow's own functions included."""
    before = logging.getLogRecordFactory()

    def make(*args: Any, **facts: Any) -> logging.LogRecord:
        record: logging.LogRecord = before(*args, **facts)
        with contextlib.suppress(TypeError, ValueError, KeyError):
            text = record.getMessage()
            scrubbed = str(scrub(text))
            if scrubbed != text:
                record.msg, record.args = scrubbed, None
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = str(scrub(logging.Formatter().formatException(record.exc_info)))
        return record

    logging.setLogRecordFactory(make)
    try:
        yield
    finally:
        logging.setLogRecordFactory(before)


class _StderrHandler(logging.Handler):
    def __init__(self, scrub: Scrub, level: int) -> None:
        super().__init__(level)
        self._scrub = scrub

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"holdfast: {one_line(str(self._scrub(record.getMessage())), 1000)}\n")
