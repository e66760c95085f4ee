"""The files that an execution writes: events and spans as lines of JSON, a log, and the state after each checkpoint."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from holdfast.cli.options import STDOUT
from holdfast.errors import HoldfastError, StoreError
from holdfast.events import EVENT_ALIASES, Event
from holdfast.views.plain import plain
from holdfast.views.terminal import visible

Scrub = Callable[[Any], Any]


def opened(target: str, what: str) -> int:
    """Open a file for appending, and create its folders; return its descriptor."""
    path = Path(target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise StoreError(
            f"{what} cannot be written to {path}: {error.strerror}; choose another file"
        ) from None


@contextlib.contextmanager
def text_file(target: str) -> Iterator[IO[str]]:
    """Open a file for appending lines of text."""
    with os.fdopen(opened(target, "the log"), "a", encoding="utf-8", errors="backslashreplace") as file:
        yield file


# Events as NDJSON.


_ACCOMPANYING = frozenset(
    {"wave.start", "state.update", "state.create", "edge.transition", "edge.evaluate", "checkpoint.save"}
)
"""Events that others follow at once, with which they are written."""

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=plain).encode


class EventFile:
    """An observer that writes every event, without secrets, in whole lines; in a dialect they are flat objects."""

    def __init__(self, descriptor: int, scrub: Scrub | None = None, dialect: str | None = None) -> None:
        self._descriptor, self._scrub = descriptor, scrub or (lambda value: value)
        self.dialect = dialect
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
            if EVENT_ALIASES.get(event.type, event.type) not in _ACCOMPANYING:
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
        if self.dialect is not None:
            content = {key: event[key] for key in event if key != "state" or self.dialect == "state"}
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
def event_file(target: str, scrub: Scrub | None = None, dialect: str | None = None) -> Iterator[EventFile]:
    """Open an `EventFile` that appends to a file, whose folders are created, or that writes to stdout for `-`."""
    with contextlib.ExitStack() as stack:
        if target == STDOUT:
            sys.stdout.flush()
            descriptor = sys.stdout.fileno()
        else:
            descriptor = opened(target, "events")
            stack.callback(os.close, descriptor)
        file = EventFile(descriptor, scrub, dialect)
        stack.callback(file.close)
        yield file


# Spans as lines of JSON.


_SPAN_ENDS = {"graph.complete": "ok", "graph.fail": "error", "graph.cancel": "cancelled"}


class TraceFile:
    """An observer that writes a span, one JSON object a line, for every attempt of a step and for the execution."""

    wants = frozenset(
        {
            *_SPAN_ENDS,
            "graph.start",
            "checkpoint.resume",
            "node.start",
            "node.complete",
            "node.error",
            "node.spend",
        }
    )

    def __init__(self, descriptor: int, scrub: Scrub) -> None:
        self._descriptor, self._scrub = descriptor, scrub
        self._lock = threading.Lock()
        self._open: dict[str, dict[str, Any]] = {}

    def on_event(self, event: Event) -> None:
        """Begin or end the span that an event is about."""
        if event.type not in self.wants:
            return
        step = str(event.data["step"]) if event.type.startswith("node.") else ""
        with self._lock:
            if event.type in ("graph.start", "checkpoint.resume", "node.start"):
                self._open[step] = self._begun(event, step)
            elif event.type == "node.spend":
                self._spend(step, event.data)
            elif event.type in _SPAN_ENDS:
                self._end("", event, _SPAN_ENDS[event.type])
            else:
                self._end(step, event, "error" if event.data.get("error") else "ok")

    def close(self) -> None:
        """Write the spans that have not ended: of steps that wait or were interrupted, and of a paused execution."""
        with self._lock:
            for step in [*filter(None, self._open), ""]:
                self._end(step, None, "unfinished")

    def _begun(self, event: Event, step: str) -> dict[str, Any]:
        name = event.node if step else "run" if event.type == "graph.start" else "resume"
        attempt = {"step": step, "attempt": event.data.get("attempt")} if step else {}
        return {"name": name, "run_id": event.run_id, **attempt, "start": event.timestamp}

    def _spend(self, step: str, data: Mapping[str, Any]) -> None:
        span = self._open.get(step, {})
        for name in ("input_tokens", "output_tokens", "cost"):
            if data.get(name):
                span[name] = span.get(name, 0) + data[name]

    def _end(self, step: str, event: Event | None, status: str) -> None:
        span = self._open.pop(step, None)
        if span is None:
            return
        if event is not None:
            span |= {"end": event.timestamp, "seconds": round(max(0.0, event.timestamp - span["start"]), 6)}
        error = event.data.get("error") if event is not None else None
        span |= {"status": status, **({"error": error} if error else {})}
        line = visible(json.dumps(self._scrub(plain(span)), ensure_ascii=False)) + "\n"
        with contextlib.suppress(OSError):
            os.write(self._descriptor, line.encode("utf-8", "backslashreplace"))


@contextlib.contextmanager
def trace_file(target: str, scrub: Scrub) -> Iterator[TraceFile]:
    """Open a `TraceFile` that appends to a file."""
    descriptor = opened(target, "the trace")
    try:
        file = TraceFile(descriptor, scrub)
        yield file
        file.close()
    finally:
        os.close(descriptor)


# The state after each checkpoint.


class StateFiles:
    """An observer that writes the state of a run, without secrets, to a folder whenever a checkpoint is stored."""

    wants = frozenset({"checkpoint.save"})

    def __init__(self, folder: str, read: Callable[[str, str], Any], scrub: Scrub) -> None:
        self._folder, self._read, self._scrub = Path(folder), read, scrub
        self._lock = threading.Lock()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            known = [path.stem for path in self._folder.glob("*.json")]
        except OSError as error:
            raise StoreError(
                f"states cannot be written to {folder}: {error.strerror}; choose another folder"
            ) from None
        numbers = (name.partition("-")[0] for name in known)
        self._number = max((int(number) for number in numbers if number.isdecimal()), default=0)

    def on_event(self, event: Event) -> None:
        """Write the state of the checkpoint that was stored."""
        if event.type not in self.wants:
            return
        checkpoint = str(event.data.get("checkpoint_id", ""))
        try:
            state = self._read(event.run_id, checkpoint)
        except HoldfastError:
            return  # Another process has pruned the checkpoint or deleted the run meanwhile.
        content = {
            "run_id": event.run_id,
            "checkpoint_id": checkpoint,
            "node": event.node,
            "timestamp": event.timestamp,
            "state": plain(state),
        }
        text = json.dumps(self._scrub(content), ensure_ascii=False, indent=2)
        with self._lock:
            self._number += 1
            name = "".join(sign if sign.isalnum() or sign in "_.-" else "_" for sign in event.node)[:80]
            path = self._folder / f"{self._number:04}-{name or 'start'}.json"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text + "\n")
