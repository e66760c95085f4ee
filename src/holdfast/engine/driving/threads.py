"""Worker threads for steps. They are daemons: a step that hangs for ever cannot keep the process alive."""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

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
            del context, function, job  # Nothing that it was given is kept while it waits.
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


class Escaped(Exception):
    """Carries any exception through a future, `StopIteration` and `BaseException`s included."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def in_thread(function: Callable[[], Any]) -> asyncio.Future[Any]:
    """What `function` returns in a worker thread; what it raises comes as an `Escaped`."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(Escaped(error))
        else:
            future.set_result(value)

    def work() -> None:
        value, failure = None, None
        if future.cancelled():
            return  # The run was left before the thread began; whoever drives it now does this.
        try:
            value = function()
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, value, failure)
        except RuntimeError:
            return  # The drive was left and its loop closed; nobody waits for this any more.

    workers.submit(work)
    return future
