"""A run told in plain lines, one per fact: for pipes, logs and terminals that can do no more."""

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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

import click

from holdfast.cli.display.progress import ITEM, Place, Progress, place_of, step_of_pause
from holdfast.cli.display.show import place_of_store
from holdfast.cli.display.tables import json_text
from holdfast.cli.display.text import clock, duration, moment, one_line, plain, visible
from holdfast.cli.errors import told as explained
from holdfast.errors import StoreError
from holdfast.events import Event, MultiObserver, Observer
from holdfast.threads import started
from holdfast.values import moment as time_of

if TYPE_CHECKING:
    from holdfast.fleet.worker import WorkerEvent


DONE = "done"
"""The helper node that gathers what became of items or members."""


_LONGEST = 2_000
_WHO_AND_WHY = ((" by ", "by"), (": ", "reason"))


class Lines:
    """An observer that writes a line for every fact, at once. A reader who leaves is no error."""

    def __init__(
        self,
        out: IO[str],
        scrub: Callable[[Any], Any] | None = None,
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
            "node.error": self._erred,
            "node.retry": self._retried,
            "node.warning": self._passed_over,
            "node.message": self._said,
            "checkpoint.fail": self._not_saved,
            "pause": self._paused,
            "command": self._asked_for,
        }

    @property
    def wants(self) -> Collection[str]:
        """The events that have a line."""
        return self._handlers

    def start(self) -> None:
        """Begin to tell which steps take long, if that is wanted."""
        if self._beat is not None:
            self._beat.start()

    def stop(self) -> None:
        """Tell nothing more of time."""
        if self._beat is not None:
            self._beat.stop()

    def on_event(self, event: Event) -> None:
        """Write the line of an event, if it has one."""
        handler = self._handlers.get(event.type)
        if handler is not None and (text := handler(event)):
            self._write(f"{clock(event.timestamp)} {one_line(text, _LONGEST)}\n")

    def _write(self, line: str) -> None:
        with self._lock:
            try:
                self._out.write(line)
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
        said: Any = (data.get("update") or {}).get(place.path[-1])
        status = said.get("status") if isinstance(said, Mapping) else None
        if status == "running":
            return ""
        if place.role == DONE:
            step, seconds = self._whole(place, step)
        self._running.pop(step, None)
        if status == "skipped":
            return f"{place.label} skipped"
        if status == "failed":
            return f"{place.label} failed and is passed over: {self._text(said.get('error'))}"
        if place.role == DONE and status is None:
            return ""
        return f"{place.label} done in {duration(seconds)}"

    def _whole(self, place: Place, step: str) -> tuple[str, float]:
        """The step that a gathering node ends, and how long that has taken."""
        whole = step.replace(f":{DONE}#", "#")
        since = self._running.get(whole, (place.label, time.monotonic()))[1]
        return whole, time.monotonic() - since

    def _erred(self, event: Event) -> str:
        self._errors[event.data.get("step", "")] = self._text(event.data.get("error"))
        return ""

    def _retried(self, event: Event) -> str:
        step = event.data.get("step", "")
        self._running.pop(step, None)
        error, delay = self._errors.pop(step, ""), duration(event.data.get("delay", 0.0))
        return f"{_place(event).label} retry {event.data.get('attempt', 1) + 1} in {delay}: {error}"

    def _passed_over(self, event: Event) -> str:
        """The step's own end tells it; an item that fails is told of as a failure of its step."""
        place, step = _place(event), event.data.get("step", "")
        self._errors[step] = self._text(event.data.get("error"))
        if place.key is None:
            self._passed.add(step)
        return ""

    def _said(self, event: Event) -> str:
        message = event.data.get("message")
        return f"{_place(event).label}: {self._text(message)}" if message is not None else ""

    def _resumed(self, event: Event) -> str:
        names = (name.partition(":")[0] for name in event.data.get("resume_node", "").split(", "))
        upcoming = ", ".join(dict.fromkeys(names))
        return f"run {event.run_id} goes on" + (f" with {upcoming}" if upcoming else "")

    def _changed(self, event: Event) -> str:
        changes = dict.fromkeys(self._text(change) for change in event.data.get("changes", ()))
        return f"the workflow changed since the run was saved: {'; '.join(changes)}"

    def _not_saved(self, event: Event) -> str:
        return f"a checkpoint could not be saved: {self._text(event.data.get('error'))}"

    def _paused(self, event: Event) -> str:
        step = step_of_pause(event)
        self._running.pop(step, None)
        self._questions.add(place_of(step, event.node).path[-1])
        return f"{place_of(step, event.node).label} waits: {self._text(event.data.get('prompt'))}"

    def _asked_for(self, event: Event) -> str:
        data = event.data
        by, why = (f"{mark}{data[name]}" if data.get(name) else "" for mark, name in _WHO_AND_WHY)
        told = f" is refused: {data['refused']}" if data.get("refused") else f", as asked for{why}"
        return self._text(f"{data.get('command')}{by}{told}")

    def _text(self, value: Any) -> str:
        return one_line(str(self._scrub(value)))

    def _still_running(self) -> None:
        now = time.monotonic()
        for label, since in list(self._running.values()):
            text = f"{label} still running ({duration(now - since)})"
            self._write(f"{clock(time.time())} {one_line(text, _LONGEST)}\n")


def _place(event: Event) -> Place:
    return place_of(event.data.get("step", ""), event.node)


class Heartbeat:
    """Calls a function every so many seconds, in a thread of its own, until it is stopped."""

    def __init__(self, seconds: float, beat: Callable[[], None]) -> None:
        self._seconds, self._beat = seconds, beat
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._stopped.clear()
        thread = threading.Thread(target=self._run, name="holdfast-heartbeat", daemon=True)
        with suppress(RuntimeError, MemoryError):  # Without a thread there is no heartbeat, and all else.
            started(thread)
            self._thread = thread

    def stop(self) -> None:
        """End, and wait for a beat under way."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._beat()


# A run's events as NDJSON: one JSON object a line, appended to a file or written to stdout.


STDOUT = "-"


_ACCOMPANYING = frozenset(
    {"wave.start", "state.update", "state.create", "edge.transition", "edge.evaluate", "checkpoint.save"}
)
"""Events that others follow at once, with which they are written."""

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=plain).encode


class EventFile:
    """An observer that writes every event, without secrets, in whole lines."""

    def __init__(self, descriptor: int, scrub: Callable[[Any], Any] | None = None) -> None:
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
                self._write_waiting()

    def close(self) -> None:
        """Write what still waits."""
        with self._lock:
            self._write_waiting()

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

    def _write_waiting(self) -> None:
        lines, self._waiting = self._waiting, b""
        try:
            while lines:
                lines = lines[os.write(self._descriptor, lines) :]
        except OSError:
            self._gone = True


@contextlib.contextmanager
def event_file(target: str, scrub: Callable[[Any], Any] | None = None) -> Iterator[EventFile]:
    """An `EventFile` that appends to a file, whose folders are made, or that writes to stdout for `-`."""
    if target == STDOUT:
        sys.stdout.flush()
        file = EventFile(sys.stdout.fileno(), scrub)
        try:
            yield file
        finally:
            file.close()
        return
    path = Path(target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise StoreError(
            f"events cannot be written to {path}: {error.strerror}; choose another file"
        ) from None
    file = EventFile(descriptor, scrub)
    try:
        yield file
    finally:
        file.close()
        os.close(descriptor)


# Which observers a drive is watched by: the live view or plain lines, and the file of events.


Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Display:
    """How a drive is shown."""

    quiet: bool = False
    as_json: bool = False
    events: str | None = None
    heartbeat: float | None = None

    @property
    def is_talkative(self) -> bool:
        """Whether people are told how it goes, on stdout."""
        return not (self.quiet or self.as_json)

    @property
    def is_live(self) -> bool:
        """Whether there is a terminal that can be drawn on."""
        drawable = sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        return self.is_talkative and drawable and self.events != STDOUT

    def check(self) -> Display:
        """Itself, unless two things want stdout."""
        if self.as_json and self.events == STDOUT:
            raise click.UsageError("--json and --events - both want stdout; write the events to a file")
        return self

    @property
    def out(self) -> IO[str]:
        """Where people are talked to."""
        return sys.stderr if self.events == STDOUT or self.as_json else sys.stdout


class View(Protocol):
    """Shows a drive from its events."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


class Watch:
    """Runs drives while their views are shown."""

    def __init__(self, views: Iterable[View], observers: Iterable[Observer], progress: Progress) -> None:
        self._views, self.progress = tuple(views), progress
        observers = tuple(observers)
        self.observer: Observer | None = observers[0] if len(observers) == 1 else None
        if len(observers) > 1:
            self.observer = MultiObserver(*observers)

    def during(self, drive: Callable[[Observer | None], Answer]) -> Answer:
        """What a drive answers, shown while it goes on."""
        for view in self._views:
            view.start()
        try:
            return drive(self.observer)
        finally:
            for view in self._views:
                view.stop()


@contextlib.contextmanager
def watching(
    display: Display, progress: Progress, title: str, run_id: str, store: str, scrub: Callable[[Any], Any]
) -> Iterator[Watch]:
    """The watch that a display asks for. With nothing to show, nobody listens, and nothing is paid for it."""
    views: list[Any] = []
    with contextlib.ExitStack() as stack:
        if display.is_live:
            from holdfast.cli.display.live import LiveView, terminal_console

            views.append(LiveView(progress, title, run_id, store, terminal_console()))
        elif display.is_talkative:
            questions = [row.name for row in progress.rows.values() if row.kind == "ask"]
            views.append(Lines(display.out, scrub, display.heartbeat, questions))
        observers = list(views)
        if display.events is not None:
            observers.append(stack.enter_context(event_file(display.events, scrub)))
        told = bool(views) and not display.is_live
        stack.enter_context(scrubbed_records(scrub))
        stack.enter_context(told_warnings(scrub, logging.ERROR if told else logging.WARNING))
        yield Watch(views, observers, progress)


@contextlib.contextmanager
def told_warnings(scrub: Callable[[Any], Any], level: int = logging.WARNING) -> Iterator[None]:
    """Tell what is logged on stderr, without secrets; plain lines have told the warnings already."""
    handler = _Teller(scrub, level)
    log = logging.getLogger("holdfast")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


@contextlib.contextmanager
def scrubbed_records(scrub: Callable[[Any], Any]) -> Iterator[None]:
    """Keep secrets out of whatever is logged meanwhile, by the workflow's own functions too."""
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


class _Teller(logging.Handler):
    def __init__(self, scrub: Callable[[Any], Any], level: int) -> None:
        super().__init__(level)
        self._scrub = scrub

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"holdfast: {one_line(str(self._scrub(record.getMessage())), 1000)}\n")


# What a worker does, told as lines on stderr or as NDJSON on stdout.


class WorkerLines:
    """Tells what a worker does; may be called from any thread."""

    def __init__(self, name: str, as_json: bool, scrub: Callable[[Any], Any], url: str) -> None:
        self._name, self._as_json, self._scrub = name, as_json, scrub
        self._place = place_of_store(url)
        self._lock = threading.Lock()

    def begin(self, store: str, queues: tuple[str, ...], concurrency: int) -> None:
        """The worker is at work."""
        of = f"the queues {', '.join(queues)}" if queues else "every queue"
        self._write(
            f"worker {self._name} takes up runs of {of} in {store}, {concurrency} at once; Ctrl+C stops it",
            {"kind": "started", "store": store, "queues": list(queues), "concurrency": concurrency},
        )

    def end(self) -> None:
        """The worker is done."""
        self._write(f"worker {self._name} has stopped", {"kind": "stopped"})

    def tell(self, event: WorkerEvent) -> None:
        """Something became of a run."""
        text = explained(str(self._scrub(event.text)), event.remedies, self._place, detach=True)
        due = None if event.due_at is None else time_of(event.due_at)
        facts = {"run_id": event.run, "workflow": event.workflow, "queue": event.queue}
        when = None if due is None else due.isoformat(timespec="milliseconds")
        self._write(
            f"{event.run} {event.workflow}: {_what(event.kind, text, due)}",
            {"kind": event.kind, **facts, "text": text, "due_at": when},
        )

    def _write(self, line: str, facts: dict[str, Any]) -> None:
        at = time.time()
        with self._lock:
            if self._as_json:
                when = dt.datetime.fromtimestamp(at, dt.UTC).isoformat(timespec="milliseconds")
                print_to = sys.stdout
                text = json_text({"at": when, "worker": self._name, **facts}, indent=None)
            else:
                print_to, text = sys.stderr, f"{clock(at)} {one_line(line, 1000)}"
            print_to.write(text + "\n")
            print_to.flush()


def _what(kind: str, text: str, due: dt.datetime | None) -> str:
    """What became of a run, in a few words."""
    told = f": {text}" if text else ""
    match kind:
        case "taken":
            return f"taken up ({text})"
        case "conflict":
            return f"left to another{told}"
        case "refused":
            return f"cannot be taken up{told}"
        case "queued" | "paused" if due is not None:
            return f"left until {moment(due)}"
        case "queued":
            return "handed over"
        case "paused":
            return f"paused, waits for {text}" if text else "paused"
        case _:
            return f"{kind}{told}"
