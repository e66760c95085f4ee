"""Threads beside event loops, for steps and for stores. They are daemons: one that hangs keeps no process alive."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

from holdfast.errors import HoldfastError, ResourceExhausted

# Starting threads so that the start succeeds or fails, and never hangs.


_LOOK_EVERY = 0.05


def started(thread: threading.Thread) -> Callable[[], bool]:
    """Start a thread; returns a function that tells whether the thread is over.

    Raises `RuntimeError` or `MemoryError` if it cannot be started. Without memory a new thread may end before it has
    said that it runs; `Thread.start` alone would then wait for ever.
    """
    liveness = _Liveness(thread)
    # CPython gives these two to the new thread, and waits for the second.
    thread._bootstrap = liveness.first  # type: ignore[attr-defined]
    thread._started = _Started(liveness)  # type: ignore[attr-defined]
    thread.start()
    return liveness.is_over


class _Liveness:
    """Tells whether a thread is alive: while it is, it holds the only reference to the first function that it calls."""

    def __init__(self, thread: threading.Thread) -> None:
        self.thread = weakref.ref(thread)
        self.first: functools.partial[None] | None = functools.partial(thread._bootstrap)  # type: ignore[attr-defined]
        self._seen = weakref.ref(self.first)

    def begin(self) -> None:
        """Leave the function to the thread."""
        thread = self.thread()
        if thread is not None and self.first is not None:
            del thread._bootstrap  # type: ignore[attr-defined]
        self.first = None

    def is_over(self) -> bool:
        """Return whether nobody refers to it any more."""
        return self._seen() is None


class Flag(threading.Event):
    """An event that is set once. An interrupted wait raises the interrupt.

    `threading.Event` may raise `RuntimeError` instead, if Ctrl+C comes while it takes its lock again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._gate = threading.Lock()
        self._gate.acquire()

    def set(self) -> None:
        super().set()
        with suppress(RuntimeError):  # It was set before.
            self._gate.release()

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set() and self._gate.acquire(timeout=-1 if timeout is None else timeout):
            self._gate.release()
        return self.is_set()


class _Started(Flag):
    """What is waited for when a thread is started: that it runs, or that it was lost."""

    def __init__(self, liveness: _Liveness) -> None:
        super().__init__()
        self._liveness = liveness

    def wait(self, timeout: float | None = None) -> bool:
        self._liveness.begin()
        while not self.is_set():
            if self._liveness.is_over() and not self.is_set():
                raise RuntimeError("the new thread was lost before it could begin")
            try:
                super().wait(_LOOK_EVERY)
            except MemoryError:  # The thread may run all the same.
                time.sleep(_LOOK_EVERY)
        return True


logger = logging.getLogger("holdfast")

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_IDLE_SECONDS = 5.0


Job = tuple[contextvars.Context, Callable[[], None]]


def start(thread: threading.Thread, what: str) -> Callable[[], bool]:
    """Start a thread that `what` needs; raise `ResourceExhausted` if the system gives no more of them.

    Returns a function that tells whether the thread is over.
    """
    try:
        return started(thread)
    except (RuntimeError, MemoryError) as error:
        why = str(error) or "no memory is left"
        raise ResourceExhausted(
            f"{what} needs a thread, and no more can be started ({why}); end other work of this process or raise "
            "its limits of threads and memory (ulimit -u, a container's pids and memory limits), then resume"
        ) from error


class _Worker:
    """A thread that waits for its next job."""

    def __init__(self) -> None:
        self.thread, self.jobs = threading.current_thread(), queue.SimpleQueue[Job]()


class Workers:
    """Runs functions in threads, reusing idle ones. How many run at once is the caller's business."""

    def __init__(self) -> None:
        self.reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Forget all threads: a forked child has none of its parent's."""
        self._idle: list[_Worker] = []

    def submit(self, function: Callable[[], None]) -> None:
        """Run `function` soon. It must not raise."""
        job = (contextvars.copy_context(), function)
        while self._idle:
            with suppress(IndexError):
                worker = self._idle.pop()
                if worker.thread.is_alive():
                    worker.jobs.put(job)
                    return
        thread = threading.Thread(target=self._work, args=(job,), name="holdfast-step", daemon=True)
        start(thread, "a step that is not async, or not alone,")

    def _work(self, job: Job | None) -> None:
        worker = _Worker()
        while job is not None:
            context, function = job
            context.run(function)
            del context, function, job  # Nothing that it was given is kept while it waits.
            job = self._next(worker)

    def _next(self, worker: _Worker) -> Job | None:
        self._idle.append(worker)
        while True:
            try:
                return worker.jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with suppress(ValueError):  # The thread that took it out is about to give it a job.
                    self._idle.remove(worker)
                    return None


workers = Workers()


class Escaped(Exception):
    """Carries any exception through a future, `StopIteration` and `BaseException`s included."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Answer(asyncio.Future[Result]):
    """The result of a worker thread, which leaves it in `outcome` before it wakes the event loop."""

    outcome: tuple[Any, BaseException | None] | None = None

    def settle(self) -> None:
        """Set this future from the thread's outcome, if there is one. Safe to repeat after an interrupt."""
        if self.outcome is None or self.done():
            return
        value, error = self.outcome
        if error is not None:
            self.set_exception(Escaped(error))
        else:
            self.set_result(value)


def in_thread(function: Callable[[], Result]) -> asyncio.Future[Result]:
    """Return what `function` returns in a worker thread; what it raises comes as an `Escaped`."""
    loop = asyncio.get_running_loop()
    future: _Answer[Result] = _Answer(loop=loop)

    def tell(value: Any, error: BaseException | None) -> None:
        future.outcome = value, error
        with suppress(RuntimeError):  # The run was left and its loop closed; nobody waits for this any more.
            loop.call_soon_threadsafe(future.settle)

    def work(job: _Job) -> None:
        try:
            value, failure = None, None
            if future.cancelled():
                return  # The run was left before the thread began; the new owner of the run does this.
            try:
                value = function()
            except BaseException as error:
                failure = error
            tell(value, failure)
        except BaseException as error:
            tell(None, error)
        job.is_reported = True

    try:
        workers.submit(_Job(work, lambda: tell(None, ThreadLost("a worker thread was ended from outside"))))
    except BaseException:
        future.cancel()  # Nobody is given it.
        raise
    return future


class ThreadLost(HoldfastError):
    """The thread of a step was killed from outside before it reported the step's outcome."""


class _Job:
    """The job of a worker thread. If it is collected before anything was reported, the thread is gone."""

    def __init__(self, work: Callable[[_Job], None], lost: Callable[[], None]) -> None:
        self._work, self._lost, self.is_reported = work, lost, False

    def __call__(self) -> None:
        self._work(self)

    def __del__(self) -> None:
        if not self.is_reported:
            self._lost()


async def in_background(
    function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Call a blocking function of a store in a thread; in this one, if none can be started.

    A caller that is cancelled meanwhile is cancelled once the function has returned, so that nothing is left running.
    """
    call = functools.partial(function, *args, **kwargs)
    try:
        working = in_thread(call)
    except ResourceExhausted as error:
        warn_of_blocking(error)
        return call()
    try:
        return await settled(working)
    except Escaped as escaped:
        raise escaped.error from None


def warn_of_blocking(error: Exception) -> None:
    """Warn, once for each reason, that something blocks the event loop."""
    _warn(str(error.__cause__ or error))


@functools.lru_cache(maxsize=8)
def _warn(reason: str) -> None:
    logger.warning("no thread can be started (%s): the event loop waits for the store meanwhile", reason)


async def settled(future: asyncio.Future[Result]) -> Result:
    """Return what a future comes to. A task that is cancelled meanwhile is cancelled once the future is done."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            cancelled = error
            if isinstance(future, _Answer):
                future.settle()  # A signal's exception may have come in its way, and ended the loop.
    if cancelled is None:
        return future.result()
    if not future.cancelled():
        future.exception()  # Nobody else looks at it.
    raise cancelled


# Waiting, outside event loops, for what async functions come to.


class AwaitingLoop:
    """One event loop in a thread of its own, in which everybody has awaitables awaited."""

    def __init__(self) -> None:
        self.reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Begin again: a forked child has not its parent's thread."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def result(self, awaitable: Awaitable[Result]) -> Result:
        """Return what an awaitable comes to."""
        if threading.current_thread() is self._thread:
            raise HoldfastError("an async function was to be waited for inside another one; await it there")
        loop = locked(self._lock, self._started)
        return asyncio.run_coroutine_threadsafe(_awaited(awaitable), loop).result()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="holdfast-awaiting", daemon=True)
            start(thread, "an async store")
            self._loop, self._thread = loop, thread
        return self._loop


async def _awaited(awaitable: Awaitable[Result]) -> Result:
    return await awaitable


_awaiting = AwaitingLoop()


def resolved(value: Any) -> Any:
    """Return a value; if it is awaitable, what it comes to in an event loop that all of these share."""
    return _awaiting.result(value) if inspect.isawaitable(value) else value


# Holding locks so that they are free again whatever is raised where.


Args = ParamSpec("Args")


def locked(
    lock: AbstractContextManager[Any], action: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs
) -> Result:
    """Return what `action` returns while `lock`, one of the interpreter's own, is held.

    A signal handler, another thread or a debugger may raise an exception between any two lines. Between taking a lock
    and `try`, or in a `finally` before it is released, such an exception leaves the lock taken for ever. The
    interpreter itself takes and releases the lock of a `with` statement with nothing in between; and on one line
    the end of the block is no line of its own.
    """
    with lock: return action(*args, **kwargs)  # fmt: skip  # noqa: E701


def synchronized(
    method: Callable[Concatenate[Any, Args], Result],
) -> Callable[Concatenate[Any, Args], Result]:
    """Make a method hold the `_lock` of its object while it runs, as `locked` does."""

    @functools.wraps(method)
    def call(self: Any, /, *args: Args.args, **kwargs: Args.kwargs) -> Result:
        with self._lock: return method(self, *args, **kwargs)  # fmt: skip  # noqa: E701

    return call


# Event loops in threads of their own, for a thread that must wait for a coroutine.


_idle_loops: list[asyncio.AbstractEventLoop] = []

MOST_IDLE = 8
"""How many idle event loops are kept for later."""


def run_beside(work: Coroutine[Any, Any, Result]) -> Result:
    """Return what a coroutine comes to, from a thread that waits: it runs in an event loop of another thread."""
    loop = _idle_loop()
    value, error = asyncio.run_coroutine_threadsafe(_settled(work), loop).result()
    if (
        len(_idle_loops) < MOST_IDLE
    ):  # After an exception above it may still be at work, and is not used again.
        _idle_loops.append(loop)
    else:
        loop.call_soon_threadsafe(loop.stop)
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


async def _settled(work: Coroutine[Any, Any, Result]) -> tuple[Result | None, BaseException | None]:
    """Return what a coroutine comes to, or what it raises, which ends no event loop."""
    try:
        return await work, None
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, GeneratorExit) or (task is not None and task.cancelling()):
            raise
        return None, error


def _idle_loop() -> asyncio.AbstractEventLoop:
    with suppress(IndexError):
        return _idle_loops.pop()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_serve, args=(loop,), name="holdfast-beside", daemon=True)
    try:
        start(thread, "a step that is waited for")
    except BaseException:
        loop.close()
        raise
    return loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop until it is stopped; what a task raises to end it is given to those who wait for the task."""
    while True:
        with suppress(KeyboardInterrupt, SystemExit):
            loop.run_forever()
            break
    loop.close()


if hasattr(os, "register_at_fork"):  # A forked child has none of the threads.
    os.register_at_fork(after_in_child=_idle_loops.clear)


# Worker processes load the main program for its functions, and must not start runs meanwhile.


GUARD = (
    'put what starts the run under `if __name__ == "__main__":`, or define the nodes\' functions in a module '
    "of their own"
)


class MainLoading:
    """A flag that is set while a worker process imports the main program, which must not start runs meanwhile."""

    is_under_way = False


def refuse_while_loading() -> None:
    """Stop a program that starts runs while it is only loaded for the functions that it defines."""
    if MainLoading.is_under_way:
        raise HoldfastError(f"the program starts a run when it is loaded in a worker process; {GUARD}")
