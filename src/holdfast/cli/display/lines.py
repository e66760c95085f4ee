"""A run as plain lines, one per event: for pipes, logs and simple terminals; and its events as NDJSON."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

from holdfast.cli.command_lines import store_words
from holdfast.cli.display.progress import ITEM, Place, Progress, place_of, step_of_pause
from holdfast.cli.errors import explain
from holdfast.cli.options import STDOUT, ExecutionOptions
from holdfast.cli.output import visible
from holdfast.cli.render import clock, duration, json_text, local_time, one_line
from holdfast.errors import StoreError
from holdfast.events import Event, MultiObserver, Observer
from holdfast.threads import started
from holdfast.values import utc_time
from holdfast.views.plain import plain

if TYPE_CHECKING:
    from holdfast.fleet.worker import WorkerEvent

DONE = "done"
"""The helper node that gathers the results of items or members."""

Answer = TypeVar("Answer")
Scrub = Callable[[Any], Any]
_LONGEST = 2_000


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
            "checkpoint.fail": self._not_saved,
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
        place, step = _place(event), event.data.get("step", "")
        if place.role not in ("", ITEM):
            return ""
        self._running[step] = (place.label, time.monotonic())
        attempt = 1 if place.path[-1] in self._questions else event.data.get("attempt", 1)
        return f"{place.label} started" + (f" (attempt {attempt})" if attempt > 1 else "")

    def _completed(self, event: Event) -> str:
        place, step, data = _place(event), event.data.get("step", ""), event.data
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
        if place.role == DONE:
            step, seconds = self._whole(place, step)
        self._running.pop(step, None)
        if status == "skipped":
            return f"{place.label} skipped"
        if status == "failed":
            return f"{place.label} failed and is passed over: {self._text(record.get('error'))}"
        if place.role == DONE and status is None:
            return ""
        return f"{place.label} done in {duration(seconds)}"

    def _whole(self, place: Place, step: str) -> tuple[str, float]:
        """Return the step that a gathering node ends, and how long it has taken."""
        whole = step.replace(f":{DONE}#", "#")
        since = self._running.get(whole, (place.label, time.monotonic()))[1]
        return whole, time.monotonic() - since

    def _failed(self, event: Event) -> str:
        self._errors[event.data.get("step", "")] = self._text(event.data.get("error"))
        return ""

    def _retried(self, event: Event) -> str:
        step = event.data.get("step", "")
        self._running.pop(step, None)
        error, delay = self._errors.pop(step, ""), duration(event.data.get("delay", 0.0))
        return f"{_place(event).label} retry {event.data.get('attempt', 1) + 1} in {delay}: {error}"

    def _passed_over(self, event: Event) -> str:
        """Remember the error for the line of the step's end; a failed item is a failure of its step."""
        place, step = _place(event), event.data.get("step", "")
        self._errors[step] = self._text(event.data.get("error"))
        if place.key is None:
            self._passed.add(step)
        return ""

    def _message(self, event: Event) -> str:
        message = event.data.get("message")
        return f"{_place(event).label}: {self._text(message)}" if message is not None else ""

    def _resumed(self, event: Event) -> str:
        names = (name.partition(":")[0] for name in event.data.get("resume_node", "").split(", "))
        upcoming = ", ".join(dict.fromkeys(names))
        return f"run {event.run_id} resumed" + (f" with {upcoming}" if upcoming else "")

    def _changed(self, event: Event) -> str:
        changes = dict.fromkeys(self._text(change) for change in event.data.get("changes", ()))
        return f"the workflow changed since the run was saved: {'; '.join(changes)}"

    def _not_saved(self, event: Event) -> str:
        return f"a checkpoint could not be saved: {self._text(event.data.get('error'))}"

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


def _place(event: Event) -> Place:
    return place_of(event.data.get("step", ""), event.node)


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


# Events as NDJSON.


_ACCOMPANYING = frozenset(
    {"wave.start", "state.update", "state.create", "edge.transition", "edge.evaluate", "checkpoint.save"}
)
"""Events that others follow at once, with which they are written."""

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=plain).encode


class EventFile:
    """An observer that writes every event, without secrets, in whole lines."""

    def __init__(self, descriptor: int, scrub: Scrub | None = None) -> None:
        self._descriptor, self._scrub = descriptor, scrub or (lambda value: value)
        self._lock = threading.Lock()
        self._waiting = b""
        self._gone = False

    def on_event(self, event: Event) -> None:
        """Write one event; once the reader is gone, nothing more."""
        if self._gone:
            return
        line = self._text(event).encode("utf-8", "backslashreplace") + b"\n"
        with self._lock:
            self._waiting += line
            if event.type not in _ACCOMPANYING:
                self._flush()

    def close(self) -> None:
        """Write the lines that still wait."""
        with self._lock:
            self._flush()

    def _text(self, event: Event) -> str:
        content = {
            "type": event.type,
            "timestamp": event.timestamp,
            "run_id": event.run_id,
            "node": event.node,
            "data": {key: value for key, value in event.data.items() if key != "state"},
        }
        try:
            text = _encode(content)
        except (TypeError, ValueError):
            text = json.dumps(plain(content), ensure_ascii=False)
        if self._scrub(text) != text:
            text = json.dumps(self._scrub(plain(content)), ensure_ascii=False)
        return visible(text)

    def _flush(self) -> None:
        lines, self._waiting = self._waiting, b""
        try:
            while lines:
                lines = lines[os.write(self._descriptor, lines) :]
        except OSError:
            self._gone = True


@contextlib.contextmanager
def event_file(target: str, scrub: Scrub | None = None) -> Iterator[EventFile]:
    """Open an `EventFile` that appends to a file, whose folders are created, or that writes to stdout for `-`."""
    with contextlib.ExitStack() as stack:
        if target == STDOUT:
            sys.stdout.flush()
            descriptor = sys.stdout.fileno()
        else:
            descriptor = _appended(Path(target))
            stack.callback(os.close, descriptor)
        file = EventFile(descriptor, scrub)
        stack.callback(file.close)
        yield file


def _appended(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise StoreError(
            f"events cannot be written to {path}: {error.strerror}; choose another file"
        ) from None


# The observers of an execution.


class ExecutionView(Protocol):
    """A view that shows an execution from its events."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


class Watch:
    """Runs functions while the views of an execution are shown."""

    def __init__(self, views: Iterable[ExecutionView], observers: Iterable[Observer]) -> None:
        self._views, observers = tuple(views), tuple(observers)
        self.observer: Observer | None = observers[0] if len(observers) == 1 else None
        if len(observers) > 1:
            self.observer = MultiObserver(*observers)

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
    options: ExecutionOptions, progress: Progress, title: str, run_id: str, store: str, scrub: Scrub
) -> Iterator[Watch]:
    """Set up the views that the options ask for: the live view or plain lines, and the file of events."""
    views: list[Any] = []
    with contextlib.ExitStack() as stack:
        if options.is_live:
            from holdfast.cli.display.live import LiveView  # It loads rich.

            views.append(LiveView(progress, title, run_id, store))
        elif options.is_verbose:
            questions = [row.name for row in progress.rows.values() if row.kind == "ask"]
            views.append(Lines(options.out, scrub, options.heartbeat, questions))
        observers = list(views)
        if options.events is not None:
            observers.append(stack.enter_context(event_file(options.events, scrub)))
        has_lines = bool(views) and not options.is_live
        stack.enter_context(scrubbed_records(scrub))
        stack.enter_context(logged_warnings(scrub, logging.ERROR if has_lines else logging.WARNING))
        yield Watch(views, observers)


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


# What a worker does.


class WorkerLines:
    """Lines on stderr, or NDJSON on stdout, of what a worker does; may be called from any thread."""

    def __init__(self, name: str, as_json: bool, scrub: Scrub, url: str) -> None:
        self._name, self._as_json, self._scrub = name, as_json, scrub
        self._where = store_words(url)
        self._lock = threading.Lock()

    def begin(self, store: str, queues: tuple[str, ...], concurrency: int) -> None:
        """Write that the worker has started."""
        of = f"the queues {', '.join(queues)}" if queues else "every queue"
        self._write(
            f"worker {self._name} executes runs of {of} in {store}, {concurrency} at once; Ctrl+C stops it",
            {"kind": "started", "store": store, "queues": list(queues), "concurrency": concurrency},
        )

    def end(self) -> None:
        """Write that the worker has stopped."""
        self._write(f"worker {self._name} has stopped", {"kind": "stopped"})

    def tell(self, event: WorkerEvent) -> None:
        """Write what became of a run."""
        text = explain(str(self._scrub(event.text)), event.remedies, self._where, detach=True)
        due = None if event.due_at is None else utc_time(event.due_at)
        facts = {"run_id": event.run, "workflow": event.workflow, "queue": event.queue, "text": text}
        self._write(
            f"{event.run} {event.workflow}: {_result(event.kind, text, due)}",
            {"kind": event.kind, **facts, "due_at": due},
        )

    def _write(self, line: str, facts: dict[str, Any]) -> None:
        at = time.time()
        with self._lock:
            if self._as_json:
                when = dt.datetime.fromtimestamp(at, dt.UTC)
                out, text = sys.stdout, json_text({"at": when, "worker": self._name, **facts}, indent=None)
            else:
                out, text = sys.stderr, f"{clock(at)} {one_line(line, 1000)}"
            out.write(text + "\n")
            out.flush()


def _result(kind: str, text: str, due: dt.datetime | None) -> str:
    """Return what became of a run in a few words."""
    details = f": {text}" if text else ""
    match kind:
        case "taken":
            return f"started ({text})"
        case "conflict":
            return f"left to another worker{details}"
        case "refused":
            return f"cannot be executed{details}"
        case "queued" | "paused" if due is not None:
            return f"released until {local_time(due)}"
        case "queued":
            return "released"
        case "paused":
            return f"paused, waits for {text}" if text else "paused"
        case _:
            return f"{kind}{details}"
