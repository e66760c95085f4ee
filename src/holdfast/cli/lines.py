"""A run as it goes on: plain lines, one per event, and the observers of an execution."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeVar

from holdfast.cli.options import ExecutionOptions
from holdfast.cli.render import clock
from holdfast.cli.run_files import Scrub, StateFiles, event_file, text_file, trace_file
from holdfast.events import Event, MultiObserver, Observer
from holdfast.threads import started
from holdfast.views.progress import DONE, ITEM, Progress, Tally, place_in, place_of, step_of_pause
from holdfast.views.terminal import duration, one_line

if TYPE_CHECKING:
    pass

Answer = TypeVar("Answer")
_LONGEST = 2_000

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
        self._texts: dict[str, str] = {}
        """By step: the line that it is streaming."""
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
            "node.stream": self._streamed,
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
        self._write_streamed(event, self._texts.pop(step, ""))
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
        self._write_streamed(event, self._texts.pop(event.data.get("step", ""), ""))
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

    def _streamed(self, event: Event) -> str:
        """Write the whole lines that a step streams; what is left of them, when it ends."""
        step = event.data.get("step", "")
        *lines, rest = f"{self._texts.get(step, '')}{event.data.get('text', '')}".split("\n")
        if len(rest) > _LONGEST:
            lines, rest = [*lines, rest], ""
        self._texts[step] = rest
        for line in lines:
            self._write_streamed(event, line)
        return ""

    def _write_streamed(self, event: Event, line: str) -> None:
        if line.strip():
            self._write(event.timestamp, f"{place_in(event).label}: {self._text(line)}")

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
            from holdfast.views.live import LiveView  # It loads rich.

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
