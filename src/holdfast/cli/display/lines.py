"""A run told in plain lines, one per fact: for pipes, logs and terminals that can do no more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import IO, Any

from holdfast.cli.display.progress import ITEM, Place, place_of, step_of_pause
from holdfast.cli.display.text import clock, duration, one_line
from holdfast.cli.errors import worded
from holdfast.events import Event
from holdfast.starting import started

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
        return one_line(worded(str(self._scrub(value))))

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
