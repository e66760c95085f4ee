"""Time that passes at once: what waits for a time, and for nothing else, need not really wait for it."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import contextlib
import enum
import functools
import selectors
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from types import CodeType, FrameType
from typing import Any, TypeVar

from holdfast import clock, threads
from holdfast.engine.executors import executors
from holdfast.errors import HoldfastError

Result = TypeVar("Result")

_ROUNDING = 1e-6
"""Late by this much, so that no sum of floats is early."""

_GLANCE = 3600.0
"""How often somebody looks whether waiting is still wanted: in skipped time a second is over too soon for that."""

_GRACE, _LONGEST_HOLD = 0.02, 10.0
"""For how many real seconds an event loop puts off a jump while strange threads are alive: to a timer of somebody who
may look what they have done, and while a future is awaited that one of them may be about to settle."""

_LOOK = 0.05
"""How often, meanwhile, it looks whether they still are."""

_OURS = ("holdfast-", "asyncio-waitpid-")
"""How threads are called whose work is counted wherever it is waited for."""

_STRANGE: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""The strange threads of times that are over: a connection that is kept may be used again in the next."""


class _Wait:
    """Somebody who waits until a time, by the skipping clock's `monotonic`, or for somebody else (`None`)."""

    __slots__ = ("counts", "thread", "until", "wake")

    def __init__(self, until: float | None, counts: bool, wake: Callable[[], object]) -> None:
        self.until, self.counts, self.wake = until, counts, wake
        self.thread = threading.get_ident()


class SkippedTime:
    """A clock that runs as the real one does, and jumps ahead when all that is at work only waits for a time.

    It jumps to the earliest of these times, never beyond, so that nothing is early and the order is kept. It does
    not jump while a step's function really runs, in whatever thread, or while a loop has a socket or a process to wait
    for. Threads that a function starts itself, and what they do, are not known. While one is alive, a loop jumps only
    soon, and for ten real seconds not at all if it awaits a future that such a thread may settle.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._offset = self._wall_offset = 0.0
        self._working = 0
        """How many threads and event loops are at work and do not wait."""
        self._waiting: list[_Wait] = []
        self._own = threading.local()
        self._counted: set[int] = set()
        """The threads that are within `at_work` or `counted_thread`."""
        self._there_before = weakref.WeakSet(set(threading.enumerate()).difference(_STRANGE))

    def now(self) -> float:
        """The time, in seconds since the epoch, with all that was skipped."""
        return time.time() + self._offset + self._wall_offset

    def skipped(self) -> float:
        """How many seconds were skipped so far."""
        return self._offset

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass at once, as if nobody had looked meanwhile."""
        if not seconds >= 0:
            raise HoldfastError(f"time only goes forward: seconds must be 0 or more, not {seconds!r}")
        with self._changed:
            self._offset += seconds
            self._wake_those_due()

    def set_wall_clock(self, seconds: float) -> None:
        """Move the wall clock forward by `seconds`, or back if negative; no time passes for timers."""
        self._wall_offset += seconds

    def run(self, main: Coroutine[Any, Any, Result]) -> Result:
        """What a coroutine returns, in an event loop whose time is this clock's."""
        with asyncio.Runner(loop_factory=self.new_loop) as runner:
            return runner.run(main)

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop whose time is this clock's."""
        return _SkippingLoop(self)

    # What is put in place of the clock's functions.

    def monotonic(self) -> float:
        return time.monotonic() + self._offset

    def perf_counter(self) -> float:
        return time.perf_counter() + self._offset

    def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            return
        until = self.monotonic() + seconds
        with self._changed:
            wait = self._begin(until, self._changed.notify_all)
            while wait in self._waiting and (left := until - self.monotonic()) > 0:
                self._changed.wait(left)
            self._end(wait)

    # Who is at work, and who waits.

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Something is done in this thread; while it is, and does not wait, time does not jump."""
        is_counted = getattr(self._own, "depth", 0) > 0
        with contextlib.nullcontext() if is_counted else self.working(), self.counted_thread():
            yield

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Something is done, in whatever thread, before time may jump."""
        self.begin_work()
        try:
            yield
        finally:
            self.end_work()

    @contextlib.contextmanager
    def counted_thread(self) -> Iterator[None]:
        """This thread is at work, and counted as that already; while it waits, it is not."""
        depth = getattr(self._own, "depth", 0)
        self._own.depth = depth + 1
        with self._changed:
            self._counted.add(threading.get_ident())
        try:
            yield
        finally:
            self._own.depth = depth
            if not depth:
                with self._changed:
                    self._counted.discard(threading.get_ident())

    @contextlib.contextmanager
    def counting_itself(self) -> Iterator[None]:
        """What this thread hands over within this block is counted by the caller."""
        self._own.counts_itself = True
        try:
            yield
        finally:
            self._own.counts_itself = False

    def counts_itself(self) -> bool:
        """Whether this thread is within `counting_itself`."""
        return bool(getattr(self._own, "counts_itself", False))

    def steady(self) -> contextlib.AbstractContextManager[Any]:
        """While this is held, nobody begins or ends to work or to wait."""
        return self._changed

    def has_strangers(self) -> bool:
        """Whether a thread is alive that began in skipped time and is neither counted, nor waits by this clock."""
        with self._changed:
            known = self._counted.union(wait.thread for wait in self._waiting)
        return any(thread.ident not in known for thread in self._strangers())

    def remember_strangers(self) -> None:
        """Threads that began in this time are strangers in later ones too."""
        _STRANGE.update(self._strangers())

    def _strangers(self) -> list[threading.Thread]:
        alive = threading.enumerate()
        return [each for each in alive if each not in self._there_before and not _is_ours(each)]

    def begin_work(self) -> None:
        """Something has to be done before time may jump."""
        with self._changed:
            self._working += 1

    def end_work(self) -> None:
        """It is done."""
        with self._changed:
            self._working -= 1
            self._jump_if_idle()

    def begin_wait(self, until: float | None, wake: Callable[[], object]) -> _Wait | None:
        """This thread waits from now on; `None` if its time has come with that."""
        with self._changed:
            wait = self._begin(until, wake)
            return wait if wait in self._waiting else None

    def end_wait(self, wait: _Wait) -> None:
        """It waits no more. Others may say so for it, before they wake it."""
        with self._changed:
            self._end(wait)

    def _begin(self, until: float | None, wake: Callable[[], object]) -> _Wait:
        counts = getattr(self._own, "depth", 0) > 0
        wait = _Wait(until, counts, wake)
        self._waiting.append(wait)
        self._working -= counts
        self._jump_if_idle()
        return wait

    def _end(self, wait: _Wait) -> None:
        if wait in self._waiting:
            self._waiting.remove(wait)
            self._working += wait.counts

    def _jump_if_idle(self) -> None:
        times = [wait.until for wait in self._waiting if wait.until is not None]
        if self._working > 0 or not times:
            return
        self._offset += max(0.0, min(times) - self.monotonic() + _ROUNDING)
        self._wake_those_due()

    def _wake_those_due(self) -> None:
        now = self.monotonic()
        for wait in [wait for wait in self._waiting if wait.until is not None and wait.until <= now]:
            self._end(wait)  # It is at work from now on, whenever it really wakes up.
            wait.wake()


class _SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop that jumps to its next timer when there is nothing else to do."""

    def __init__(self, time_: SkippedTime) -> None:
        self._skipped = time_
        self._selector_of_loop = _SkippingSelector(self, time_)
        self._futures: weakref.WeakKeyDictionary[asyncio.Future[Any], _Settled] = weakref.WeakKeyDictionary()
        self._processes: set[Any] = set()
        self._ended: weakref.WeakSet[Any] = weakref.WeakSet()
        super().__init__(self._selector_of_loop)

    def time(self) -> float:
        return self._skipped.monotonic()

    def run_forever(self) -> None:
        with self._skipped.at_work():
            super().run_forever()

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        with self._skipped.steady():
            # As one: else it could be taken for waiting after the one who roused it has ended.
            self._selector_of_loop.rouse()
            return super().call_soon_threadsafe(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Counted until this loop has heard of the result, not only until there is one."""
        skipped = self._skipped

        def call() -> Any:
            with skipped.counted_thread():
                return func(*args)

        skipped.begin_work()
        try:
            with skipped.counting_itself():
                future = super().run_in_executor(executor, call)
        except BaseException:
            skipped.end_work()
            raise
        future.add_done_callback(lambda _: skipped.end_work())
        return future

    def create_future(self) -> asyncio.Future[Any]:
        future = super().create_future()
        self._futures[future] = _settled_by(sys._getframe(1))
        return future

    def longest_hold(self) -> float:
        """For how many real seconds strange threads may hold up this loop's next jump."""
        if self._awaits_strangers():
            return _LONGEST_HOLD
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]
        if not timers or str(getattr(timers[0]._callback, "__module__", "")).startswith("holdfast."):
            return 0.0
        ends = [self._futures.get(each) for each in timers[0]._args or () if isinstance(each, asyncio.Future)]
        return 0.0 if _Settled.BY_HOLDFAST in ends else _GRACE

    def _awaits_strangers(self) -> bool:
        awaited = [getattr(task, "_fut_waiter", None) for task in asyncio.all_tasks(self)]
        awaited += [future for future in list(self._futures) if future._callbacks]
        inside = (asyncio.Task, asyncio.tasks._GatheringFuture)  # type: ignore[attr-defined]
        waited_for = [each for each in awaited if each is not None and not isinstance(each, inside)]
        return any(
            not future.done() and self._futures.get(future, _Settled.ANYWHERE) is _Settled.ANYWHERE
            for future in waited_for
        )

    async def _make_subprocess_transport(self, *args: Any, **kwargs: Any) -> Any:
        """Counted until this loop has heard that the process has ended."""
        process = await super()._make_subprocess_transport(*args, **kwargs)  # type: ignore[misc]
        if process not in self._ended:
            self._processes.add(process)
            self._skipped.begin_work()
        return process

    def _child_watcher_callback(self, pid: int, returncode: int, process: Any) -> None:
        super()._child_watcher_callback(pid, returncode, process)  # type: ignore[misc]
        self._ended.add(process)
        self._forget(process)

    def close(self) -> None:
        super().close()
        for process in list(self._processes):
            self._forget(process)

    def _forget(self, process: Any) -> None:
        if process in self._processes:
            self._processes.remove(process)
            self._skipped.end_work()


class _Settled(enum.Enum):
    """From where a future is settled, as far as its maker shows."""

    BY_HOLDFAST = enum.auto()
    """What Holdfast waits for; it is counted where it is done."""
    INSIDE = enum.auto()
    """By a timer or a task of the loop."""
    ANYWHERE = enum.auto()


_INSIDE = ("asyncio.tasks", "asyncio.taskgroups", "asyncio.locks")

_ANYWHERE: tuple[CodeType, ...] = (asyncio.Event.wait.__code__, asyncio.Queue.get.__code__)
"""Where asyncio makes futures that threads settle as well, by way of `call_soon_threadsafe`."""


def _settled_by(maker: FrameType) -> _Settled:
    asker: FrameType | None = maker
    while asker is not None and _module(asker).startswith("asyncio.") and _module(asker) != "asyncio.events":
        asker = asker.f_back
    if asker is not None and _module(asker).startswith("holdfast."):
        return _Settled.BY_HOLDFAST
    is_inside = _module(maker) in _INSIDE and maker.f_code not in _ANYWHERE
    return _Settled.INSIDE if is_inside else _Settled.ANYWHERE


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_ours(thread: threading.Thread) -> bool:
    """Return whether a thread's work is counted when it is submitted: a thread of Holdfast, of asyncio or of a pool."""
    target = getattr(thread, "_target", None)
    return thread.name.startswith(_OURS) or target is concurrent.futures.thread._worker


class _SkippingSelector(selectors.DefaultSelector):
    """Waits for what a loop waits for; where that is only a time, the time comes at once."""

    def __init__(self, loop: _SkippingLoop, time_: SkippedTime) -> None:
        super().__init__()
        self._loop, self._time = loop, time_
        self._wait: _Wait | None = None
        self._held_since: float | None = None
        """Since when, by the real clock, jumps are put off because of strange threads."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        # A file descriptor other than the loop's own: something outside is waited for.
        if events or (timeout is not None and timeout <= 0) or len(self.get_map()) > 1:
            self._held_since = None
            return events or super().select(timeout)
        held = self._still_held()
        if held > 0:
            return super().select(held if timeout is None else min(held, timeout))
        self._held_since = None
        with self._time.steady():
            if self._loop._ready:  # type: ignore[attr-defined]
                return super().select(0)
            until = None if timeout is None else self._time.monotonic() + timeout
            wait = self._wait = self._time.begin_wait(until, self._loop._write_to_self)  # type: ignore[attr-defined]
        if wait is None:
            return []
        try:
            return super().select(timeout)
        finally:
            self._time.end_wait(wait)

    def rouse(self) -> None:
        """Say for the loop that it does not wait any more: there is something for it to do."""
        wait = self._wait
        if wait is not None:
            self._time.end_wait(wait)

    def _still_held(self) -> float:
        """For how many seconds to wait before strange threads are looked at again; 0 if they hold up nothing."""
        if not self._time.has_strangers():
            return 0.0
        now = time.monotonic()
        if self._held_since is None:
            self._held_since = now
        return max(0.0, min(_LOOK, self._held_since + self._loop.longest_hold() - now))


@contextlib.contextmanager
def skipping_time() -> Iterator[SkippedTime]:
    """Within this block, what Holdfast waits for as a time passes at once, and in order.

        with skipping_time() as clock:
            app.invoke({})           # ctx.sleep(3600), retries, `wait` steps: no real waiting
            clock.advance(86400)     # a day goes by; what has a timeout has it now

    That is `ctx.sleep`, the delays of retries, timeouts of nodes and of questions, due times of queued runs, and
    `asyncio.sleep` in async nodes that `invoke`, `resume` and `Worker.run` execute (for `ainvoke` use `clock.run`).
    What really takes time still does: `time.sleep` in a node, a program, a request. Runs of this process only.
    """
    if clock.loop_factory is not None:
        raise HoldfastError("time is skipped already; skipping_time() cannot be nested")
    skipped = SkippedTime()
    put: dict[str, Any] = {
        "time": skipped.now,
        "monotonic": skipped.monotonic,
        "perf_counter": skipped.perf_counter,
        "sleep": skipped.sleep,
        "loop_factory": skipped.new_loop,
        "glance": lambda seconds: max(seconds, _GLANCE),
    }
    with contextlib.ExitStack() as stack:
        submit, pool = threads.workers.submit, concurrent.futures.ThreadPoolExecutor
        replaced = (
            *((clock, name, value) for name, value in put.items()),
            (executors, "elsewhere", _counted_async(skipped, executors.elsewhere)),
            (threads.workers, "submit", lambda function: submit(_Working(skipped, function))),
            (pool, "submit", _counted_pool(skipped, pool.submit)),
        )
        for owner, name, value in replaced:
            stack.enter_context(_replaced(owner, name, value))
        stack.callback(skipped.remember_strangers)
        yield skipped


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    own = name in vars(owner)
    earlier = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, earlier)
        else:
            delattr(owner, name)


def _counted_pool(skipped: SkippedTime, submit: Any) -> Any:
    @functools.wraps(submit)
    def counted(pool: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if skipped.counts_itself():
            return submit(pool, function, *args, **kwargs)
        work = _Working(skipped, functools.partial(function, *args, **kwargs))
        future = submit(pool, work)
        future.add_done_callback(lambda done: skipped.end_work() if done.cancelled() else None)
        return future

    return counted


class _Working:
    """A function that counts as at work since it was handed over until it has run."""

    def __init__(self, skipped: SkippedTime, function: Callable[[], Any]) -> None:
        self._skipped, self._function = skipped, function
        skipped.begin_work()

    def __call__(self) -> Any:
        try:
            with self._skipped.counted_thread():
                return self._function()
        finally:
            self._skipped.end_work()


def _counted_async(skipped: SkippedTime, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def counted(*args: Any, **kwargs: Any) -> Any:
        with skipped.working():
            return await function(*args, **kwargs)

    return counted
