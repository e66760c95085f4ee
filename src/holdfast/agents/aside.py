"""Async work for a caller that is not: a private event loop beside the caller's thread."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from holdfast.errors import ResourceExhausted
from holdfast.threads import start

_Result = TypeVar("_Result")
_Value = TypeVar("_Value")

_GRACE_SECONDS = 1.0
_LOOK_EVERY = 1.0


class Late(Exception):
    """The work was not done in time."""


class Aside(Generic[_Result]):
    """Runs one coroutine in a thread of its own and, while waiting, what it wants run in the caller's thread.

    So it matters neither whether the caller has an event loop, nor whether what is called back may only be
    used in the caller's thread. What a function that was called back raises leaves `run` as it is.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._result: list[_Result] = []
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[_Result] | None = None
        self._left = False

    def run(self, work: Callable[[], Coroutine[Any, Any, _Result]], timeout: float | None) -> _Result:
        """Return what the coroutine returns. `Late` after `timeout` seconds; the coroutine is then cancelled."""
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run, args=(self._run_loop, work), name="holdfast-agent", daemon=True
        )
        is_over = start(thread, "an agent")
        try:
            self._serve(None if timeout is None else time.monotonic() + timeout, is_over)
        except BaseException:
            self._leave(thread)
            raise
        thread.join()
        if self._error is not None:
            raise self._error
        if not self._result:
            raise ResourceExhausted(
                "the thread of an agent ended without a word, as one does that has no memory left"
            )
        return self._result[0]

    async def call(self, function: Callable[[], _Value]) -> _Value:
        """Inside the coroutine: what `function` returns when it is called in the caller's thread."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Value] = loop.create_future()

        def settle(value: _Value) -> None:
            if not answer.done():
                answer.set_result(value)

        def job() -> None:
            loop.call_soon_threadsafe(settle, function())

        self._jobs.put(job)
        return await answer

    def _serve(self, deadline: float | None, is_over: Callable[[], bool]) -> None:
        """Do what the coroutine asks for until it ends; its thread may be gone without a word if there is no memory."""
        while True:
            was_over = is_over()
            left = (
                _LOOK_EVERY if deadline is None else max(0.0, min(_LOOK_EVERY, deadline - time.monotonic()))
            )
            try:
                job = self._jobs.get(timeout=0.0 if was_over else left)
            except queue.Empty:
                if was_over:
                    return
                if deadline is not None and time.monotonic() >= deadline:
                    raise Late from None
                continue
            if job is None:
                return
            job()

    def _leave(self, thread: threading.Thread) -> None:
        """Have the coroutine cancelled, and wait a second so that it can close its connections."""
        self._left = True
        if self._loop is not None and self._task is not None:
            try:
                self._loop.call_soon_threadsafe(self._task.cancel)
            except RuntimeError:
                return  # The loop has ended by itself meanwhile.
        thread.join(_GRACE_SECONDS)

    def _run_loop(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> None:
        try:
            with asyncio.Runner() as runner:
                self._result.append(runner.run(self._main(work)))
        except BaseException as error:
            self._error = error
        finally:
            self._jobs.put(None)

    async def _main(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._left:
            raise asyncio.CancelledError
        return await work()
