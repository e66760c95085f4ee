"""A simulated process: an event loop whose time, threads, pauses and death the simulation decides."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulator.world import World


_set_running_loop = asyncio._set_running_loop


class Crashed(BaseException):
    """The process that this is raised in is dead; nothing that it still does has any effect."""


class Handle:
    """A callback that is to be run."""

    __slots__ = ("_when", "args", "callback", "context")

    def __init__(
        self,
        callback: Callable[..., object] | None,
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        when: float = 0.0,
    ) -> None:
        self.callback, self.args, self.context, self._when = callback, args, context, when

    def cancel(self) -> None:
        """Never run it."""
        self.callback = None

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.callback is None

    def when(self) -> float:
        """The time that it is to be run at."""
        return self._when


class Lapse:
    """A time in which the server took a process for dead: from, and, once it is over, until."""

    __slots__ = ("began", "ended")

    def __init__(self, began: float, ended: float = float("inf")) -> None:
        self.began, self.ended = began, ended


class Process(asyncio.AbstractEventLoop):
    """One incarnation of a process on a machine. Its threads are events of the simulation, too, and never real ones."""

    def __init__(self, world: World, machine: str, number: int, lease_seconds: float) -> None:
        self.world, self.machine, self.number = world, machine, number
        self.name = f"{machine}.{number}"
        self.lease, self.lease_seconds = f"lease-{self.name}", lease_seconds
        self.ready: deque[Handle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        self.alive = self.is_free = True
        self.is_inside = False
        """Whether it stands still in the middle of something."""
        self.skew = 0.0
        """How far its wall clock is ahead."""
        self.most_ahead = 0.0
        """How far its wall clock was ahead at most: what it began to wait for then may be over by now."""
        self.paused_until = self.cut_off_until = 0.0
        self.looked_at = 0.0
        """When it last asked whether its lease may have lapsed."""
        self.lapses: list[Lapse] = []
        self._renewed_at: float | None = None
        self._lapse_count = 0
        self._pool_free_at = 0.0
        self._driver = ""

    def __repr__(self) -> str:
        return f"<{self.name}>"

    # What the engine asks of an event loop.

    def time(self) -> float:
        return self.world.now

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return not self.alive

    def is_running(self) -> bool:
        return True

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context)
        if self.alive:
            self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Handle:
        when = self.world.now + delay
        handle = Handle(callback, args, context, when)
        if self.alive:
            self.world.set_timer(when, self, handle)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Handle:
        handle = Handle(callback, args, context, when)
        if self.alive:
            self.world.set_timer(when, self, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=self.name, context=context)
        self.tasks.append(task)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.Future(loop=self)
        world = self.world
        if self.alive:
            when = world.now + world.delay()
            world.set_timer(when, self, Handle(self._thread, (func, args, future), None, when))
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.alive:
            self.world.complain(self, context.get("exception") or context["message"])

    # What it has for threads.

    def submit(self, function: Callable[..., Any], *args: Any) -> None:
        """Run a function in its one thread for commits, or, without arguments, in any thread."""
        when = self.world.now + self.world.delay()
        if args:
            self._pool_free_at = when = max(when, self._pool_free_at)
        self.call_at(when, self._thread, function, args, None)

    def _thread(self, function: Callable[..., Any], args: Any, future: asyncio.Future[Any] | None) -> None:
        """Where no event loop is seen to run. What is done here is one event, except where it calls the store."""
        _set_running_loop(None)
        try:
            value, error = function(*args), None
        except Exception as caught:
            value, error = None, caught
        finally:
            _set_running_loop(self)
        if future is None:
            if error is not None:
                raise error
        elif not future.done():
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

    # Its lease, which a thread of its own renews as long as it lives and reaches the server.

    @property
    def can_renew(self) -> bool:
        """Whether it is awake, and the server can be reached."""
        now = self.world.now
        return self.alive and now >= self.paused_until and now >= self.cut_off_until

    def stop_renewing(self) -> None:
        """Stop renewing the lease; the last renewal was just before."""
        if self._renewed_at is None:
            ago = self.lease_seconds / 3 * self.world.choices.pick(4) / 4
            self._renewed_at = self.world.now - ago
            self.lapses.append(Lapse(self._renewed_at + self.lease_seconds))

    def renew(self) -> None:
        """It renews its lease again, if nothing else keeps it from that."""
        if self._renewed_at is None or not self.can_renew:
            return
        if self.is_late:
            self._lapse_count += 2
            self.lapses[-1].ended = self.world.now
        else:
            self.lapses.pop()
        self._renewed_at = None

    @property
    def is_late(self) -> bool:
        """Whether its lease has run out."""
        at = self._renewed_at
        return at is not None and self.world.now - at > self.lease_seconds

    def count_lapses(self) -> int:
        """As `Leases.lapses`."""
        self.looked_at = self.world.now
        return self._lapse_count + self.is_late

    def was_thought_dead(self, after: float, before: float) -> bool:
        """Whether the server took it for dead at some time after it had looked and before it acted."""
        return any(lapse.began <= before and lapse.ended >= after for lapse in self.lapses)

    # Dying.

    def die(self) -> None:
        """Vanish: nothing that waits goes on, nothing that is open is closed."""
        if self.alive:
            self.stop_renewing()
            self.alive = self.is_free = False
            self.ready.clear()

    def bury(self) -> None:
        """Free what the tasks of a dead process hold, once nothing of it is under way.

        What they do when they are closed comes from a dead process, and has no effect.
        """
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            if task.done():
                continue
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            try:
                if coroutine is not None:
                    coroutine.close()
            except (Exception, Crashed):
                continue
