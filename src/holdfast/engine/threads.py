"""Worker threads for steps. They are daemons: a step that hangs for ever cannot keep the process alive."""

from __future__ import annotations

import contextvars
import os
import queue
import threading
from collections.abc import Callable

_IDLE_SECONDS = 5.0


class Workers:
    """Runs functions in threads, reusing idle ones. How many run at once is the caller's business."""

    def __init__(self) -> None:
        self.reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Begin anew: a forked child has none of its parent's threads."""
        self._jobs: queue.SimpleQueue[tuple[contextvars.Context, Callable[[], None]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0

    def submit(self, function: Callable[[], None]) -> None:
        """Run `function` soon. It must not raise."""
        job = (contextvars.copy_context(), function)
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
                self._jobs.put(job)
                return
        threading.Thread(target=self._work, args=(job,), name="holdfast-step", daemon=True).start()

    def _work(self, job: tuple[contextvars.Context, Callable[[], None]] | None) -> None:
        while job is not None:
            context, function = job
            context.run(function)
            del context, function
            with self._lock:
                self._idle += 1
            job = self._next()

    def _next(self) -> tuple[contextvars.Context, Callable[[], None]] | None:
        while True:
            try:
                return self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._idle -= 1
                        return None


workers = Workers()
