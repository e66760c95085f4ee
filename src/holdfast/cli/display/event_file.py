"""A run's events as NDJSON: one JSON object a line, appended to a file or written to stdout."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast.cli.display.text import plain, visible
from holdfast.errors import StoreError
from holdfast.events import Event

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
