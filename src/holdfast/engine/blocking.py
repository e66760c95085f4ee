"""Blocking calls on top of the async engine: event loops, threads, signals and streams."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import sys
import threading
import warnings
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
)
from dataclasses import dataclass
from types import FrameType
from typing import Any, Generic, TypeVar

from holdfast import clock
from holdfast.engine.context import Terminated
from holdfast.engine.loop import Execution
from holdfast.engine.runner import Main
from holdfast.engine.settings import Outcome, ignore
from holdfast.errors import Remedy, ResourceExhausted, with_remedies
from holdfast.events import Event
from holdfast.stores.base import in_memory_only
from holdfast.threads import Flag, start
from holdfast.values import RunStatus

Result = TypeVar("Result")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_LOOK_EVERY = 1.0
"""Seconds between two checks that the thread of a run is still there."""


PROGRESS = "HOLDFAST_PROGRESS"
"""The environment variable that keeps runs from being shown with `0`."""


def is_watched(progress: bool | None, observer: object) -> bool:
    """Return whether a run is shown while it executes: only where somebody looks at stdout, a terminal or a notebook.

    If nothing is said of it, that is where nothing else observes the run.
    """
    if progress is False or (progress is None and (observer is not None or os.environ.get(PROGRESS) == "0")):
        return False
    out = sys.stdout
    try:
        return in_notebook() or (out.isatty() and os.environ.get("TERM", "") not in ("", "dumb"))
    except (AttributeError, ValueError):
        return False


def in_notebook() -> bool:
    """Return whether this process executes the cells of a notebook: whether it is a kernel of Jupyter."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class RunInterrupted(KeyboardInterrupt):
    """Ctrl+C stopped a run, which was saved first; `run_id` can be resumed."""

    def __init__(self, run_id: str, kept: str = "") -> None:
        self.run_id = run_id
        self.problem = f"run {run_id!r} was interrupted and saved{kept}"
        self.remedies = (Remedy("resume", run_id),)
        super().__init__(run_id)

    def __str__(self) -> str:
        return with_remedies(self.problem, self.remedies)


class RunTerminated(Terminated):
    """SIGTERM stopped a run, which was saved first; `run_id` can be resumed."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(143)


def run_blocking(main: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Return what a coroutine returns in an event loop of its own; inside a running one, in another thread."""

    def work() -> Result:
        with new_loop() as runner:
            return runner.run(main())

    return _outside_loop(work)


def _outside_loop(work: Callable[[], Result], stop: Callable[[], None] = lambda: None) -> Result:
    """Return what `work` returns, in another thread if an event loop runs in this one; `stop` asks it to end early."""
    if asyncio._get_running_loop() is None:
        return work()
    thread = RunThread(work)
    try:
        thread.start("a call inside a running event loop")
        thread.wait()
    except BaseException:
        stop()
        thread.leave()
        raise
    return thread.result()


def new_loop() -> asyncio.Runner:
    """Return a runner with a new event loop; raise `ResourceExhausted` if there are too few descriptors for one."""
    runner = asyncio.Runner(loop_factory=clock.loop_factory)
    try:
        runner.get_loop()
    except OSError as error:
        raise ResourceExhausted(
            f"an event loop needs three descriptors, and cannot have them ({error}); close files and sockets of this "
            "process or raise its limit (ulimit -n), then try again"
        ) from error
    return runner


class RunThread(Generic[Result]):
    """A thread that does some work. Its end can be waited for again after a wait was interrupted, as by Ctrl+C.

    With `Thread.join` that cannot be done: up to Python 3.12 an interrupted one takes a running thread for ended.
    """

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work, self._begun, self._ended = work, threading.Lock(), Flag()
        self._is_gone: Callable[[], bool] = lambda: False
        self._results: list[Result] = []
        self._error: BaseException | None = None

    def start(self, what: str) -> None:
        """Begin to work; `what` says what for."""
        thread = threading.Thread(target=self._run, name="holdfast-run", daemon=True)
        self._is_gone = start(thread, what)

    def _run(self) -> None:
        if self._begun.acquire(blocking=False):
            try:
                self._results.append(self._work())
            except BaseException as error:
                self._error = error
            finally:
                self._ended.set()

    @property
    def is_over(self) -> bool:
        """Whether the work is done, or the thread is gone."""
        return self._ended.is_set() or self._is_gone()

    def wait(self) -> None:
        """Wait until the work is done, or its thread is gone: without memory it may not be able to say so."""
        while not self.is_over:
            self._ended.wait(_LOOK_EVERY)

    def leave(self) -> None:
        """Wait until the work is done, if it has begun; if not, it never does."""
        if self._begun.acquire(blocking=False):
            self._ended.set()
        self.wait()

    def result(self) -> Result:
        """Return what the work returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        if not self._results:
            raise ResourceExhausted(
                "the thread of the run was lost, as one is that has no memory left; end other work of this "
                "process or raise its limit of memory, then resume"
            )
        return self._results[0]


class Blocking:
    """One execution that is run to its end in an event loop of its own."""

    def __init__(self, main: Main) -> None:
        self._main = main
        self._execution: Execution | None = None
        self._signal: int | None = None
        self._stopped = False
        self._is_leaving = False

    def run(self) -> Outcome:
        """Return the outcome. Inside a running event loop the work is done in another thread meanwhile."""
        return _outside_loop(self.run_here, self.stop)

    def stop(self) -> None:
        """Ask the execution to save and stop."""
        self._stopped = True
        if self._execution is not None:
            self._execution.request_stop(RunStatus.INTERRUPTED, "the consumer left")

    def _hold(self, execution: Execution) -> None:
        self._execution = execution
        if self._stopped:
            self.stop()

    def run_here(self) -> Outcome:
        """Return the outcome, with the work done in this thread, which has no event loop."""
        with self._signals():
            try:
                with new_loop() as runner:
                    outcome = runner.run(self._main(True, self._hold))
            except KeyboardInterrupt:
                raise self.interrupted() from None
            finally:
                # An exception may have kept the event loop from leaving the run while it was being closed.
                if self._execution is not None and not self._execution.has_ended:
                    self._execution.close()
        if self._signal is None:
            return outcome
        is_term = self._signal == signal.SIGTERM
        if outcome.status == RunStatus.INTERRUPTED:
            raise self.interrupted(is_term)
        # The run was over before the signal could stop it; the process is to stop all the same.
        raise SystemExit(143) if is_term else KeyboardInterrupt

    def interrupted(self, terminated: bool = False) -> BaseException:
        """Return what to raise after Ctrl+C or SIGTERM: with the run that was saved, if there was one."""
        execution = self._execution
        if execution is None:
            return SystemExit(143) if terminated else KeyboardInterrupt()
        kept = in_memory_only(execution.settings.journal.store, execution.settings.store_option)
        return RunTerminated(execution.run_id) if terminated else RunInterrupted(execution.run_id, kept)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Make SIGINT and SIGTERM save and stop, where nobody else handles them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        saved: dict[int, Any] = {}
        try:
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if handler in (signal.SIG_DFL, signal.default_int_handler):
                    saved[number] = handler
                    signal.signal(number, self._on_signal)
            yield
        finally:
            self._is_leaving = True  # From here on a signal is only noted: all handlers are to be put back.
            for caught in reversed(saved):
                signal.signal(caught, saved[caught])

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again = self._signal is not None
        self._signal = number
        execution = self._execution
        if self._is_leaving:
            return
        if execution is None or again:
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated(143)
        execution.request_stop(RunStatus.INTERRUPTED, signal.Signals(number).name)
        if execution.inline:
            raise KeyboardInterrupt if number == signal.SIGINT else RunTerminated(execution.run_id)


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Let SIGTERM raise here, so that what is under way is saved; where nobody else handles it."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated(143)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@dataclass(frozen=True, slots=True)
class StreamStats:
    """How many events a stream has had so far. None is ever dropped: what is not taken waits in memory."""

    emitted: int
    taken: int
    by_type: Mapping[str, int]
    """The emitted events by their types, as the dialect of the stream names them."""

    @property
    def waiting(self) -> int:
        """The events that nobody has taken yet."""
        return self.emitted - self.taken


class EventStream(Generator[Event, None, None]):
    """The events of an execution that starts when the first of them is taken; one that never starts warns."""

    def __init__(self, events: Generator[Event, None, None], queue: StreamQueue) -> None:
        self._events, self._queue, self._is_used = events, queue, False

    @property
    def stats(self) -> StreamStats:
        """How many events there were so far, of which types, and how many were taken."""
        return self._queue.stats

    def send(self, value: None) -> Event:
        """Return the next event."""
        self._is_used = True
        return self._events.send(value)

    def throw(self, *error: Any) -> Event:
        """Raise an error where the stream waits; the run is saved and stopped."""
        self._is_used = True
        return self._events.throw(*error)

    def close(self) -> None:
        """Save and stop the run, if it is still executing."""
        self._is_used = True
        self._events.close()

    def __del__(self) -> None:
        if not self._is_used:
            message = (
                "nothing was run: a stream starts with its first event, and none was taken; iterate over it"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=2)


class StreamQueue:
    """An observer whose events somebody else takes, at their own pace. It never makes the run wait."""

    def __init__(self) -> None:
        self._lock, self._by_type, self._taken = threading.Lock(), Counter[str](), 0
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._async_events: asyncio.Queue[Event | None] | None = None

    @property
    def stats(self) -> StreamStats:
        """What went through so far."""
        with self._lock:
            by_type = dict(self._by_type)
        return StreamStats(sum(by_type.values()), self._taken, by_type)

    def on_event(self, event: Event) -> None:
        with self._lock:
            self._by_type[event.type] += 1
        if self._async_events is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._async_events.put_nowait, event)
        else:
            self._events.put(event)

    def drain(self, blocking: Blocking) -> Generator[Event, None, None]:
        """Start the work in a thread and yield its events until it ends; then raise what it raised."""

        def work() -> None:
            try:
                blocking.run_here()
            finally:
                self._events.put(None)

        thread = RunThread(work)
        try:
            thread.start("a stream")
            with _sigterm_raises():
                while (event := self._next(thread)) is not None:
                    self._taken += 1
                    yield event
        except (KeyboardInterrupt, Terminated) as error:
            blocking.stop()
            thread.leave()
            raise blocking.interrupted(isinstance(error, Terminated)) from None
        finally:
            blocking.stop()
            thread.leave()
        thread.result()

    def _next(self, thread: RunThread[None]) -> Event | None:
        """Return the next event, or `None` if there are no more."""
        while True:
            is_over = thread.is_over
            with contextlib.suppress(queue.Empty):
                return self._events.get(timeout=0 if is_over else _LOOK_EVERY)
            if is_over:
                return None

    async def drain_async(self, work: Coroutine[Any, Any, Outcome]) -> AsyncGenerator[Event, None]:
        """Start the work as a task and yield its events until it ends; then raise what it raised."""
        self._loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._async_events = events
        task = asyncio.ensure_future(work)
        loop = self._loop
        task.add_done_callback(lambda _: loop.call_soon(events.put_nowait, None))
        try:
            while (event := await events.get()) is not None:
                self._taken += 1
                yield event
        finally:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        task.result()


class AsyncEventStream(AsyncIterator[Event]):
    """As `EventStream`, in the running event loop; it is closed with `aclose`."""

    def __init__(self, queue: StreamQueue, main: Main) -> None:
        self._queue, self._events = queue, self._drain(main)

    async def _drain(self, main: Main) -> AsyncGenerator[Event, None]:
        async with contextlib.aclosing(self._queue.drain_async(main(False, ignore))) as events:
            async for event in events:
                yield event

    @property
    def stats(self) -> StreamStats:
        """How many events there were so far, of which types, and how many were taken."""
        return self._queue.stats

    def __anext__(self) -> Awaitable[Event]:
        return self._events.__anext__()

    async def aclose(self) -> None:
        """Save and stop the run, if it is still executed."""
        await self._events.aclose()
