"""The scheduler of a simulation: its time, whose turn it is, and which fault happens when."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import StoreError
from holdfast.stores.base import Append, Conflict, RunInfo
from tests.simulator import faults
from tests.simulator.choices import Choices
from tests.simulator.faults import Fault
from tests.simulator.process import Crashed, Handle, Process
from tests.simulator.server import Server

EPOCH = 1_700_000_000.0
TICK = 1e-5
"""How long, in seconds, every moment takes."""

_DELAYS = (0.0002, 0.0004, 0.001, 0.0001, 0.002, 0.004, 0.0003, 0.02)
"""How long it may take until a thread runs, or a disk has written."""
_SLOWNESS = 200.0
_GLIMPSE = 0.005
_TURNS = (1, 1, 2, 3, 6, 12)

NEVER = float("inf")

_get_running_loop, _set_running_loop = asyncio._get_running_loop, asyncio._set_running_loop


def _ignore(process: Process) -> None:
    return None


def _untold(info: RunInfo) -> None:
    return None


class World:
    """One thread in which processes take turns. A point is an event of one of them, or a boundary of a store call.

    While a process is inside a call of the store, or sleeps, others continue: that is done by running their events
    inside that call. So whatever happens between two calls is one event, and nothing else is.
    """

    def __init__(self, choices: Choices, plan: Sequence[Fault] = ()) -> None:
        self.choices = choices
        self.now, self.moment = EPOCH, 0
        self.server = Server(self.true_time)
        self.processes: list[Process] = []
        self.current: Process | None = None
        self.armed: list[Fault] = []
        self.struck: list[Fault] = []
        """The faults that came about."""
        self.calm_at = EPOCH
        """When the last of what went wrong was over."""
        self.all_back_at = EPOCH
        """When the last process that stood still, or was cut off, goes on."""
        self.complaints: list[str] = []
        self.trace: list[str] | None = None
        self.on_death: Callable[[Process], None] = _ignore
        self.on_fault: Callable[[Fault, Process], None] = _no_such_fault
        """What is done about the faults that the world does not know."""
        self.drops_wakes = 0
        self.boundaries = 0
        """How many commits began or were stored."""
        self.crash_at = 0
        """The boundary at which the process that commits dies; 0 for none."""
        self._slow_until = 0.0
        self._plan = sorted(plan, key=lambda fault: -fault.at)
        self._next_fault = self._plan[-1].at if self._plan else NEVER
        self._timers: list[tuple[float, int, Process | None, Handle]] = []
        self._timer_count = 0
        self._until_turn = 1 + choices.pick(8)

    # Its clocks.

    def true_time(self) -> float:
        """The server's clock, and every monotonic one."""
        return self.now

    def wall_time(self) -> float:
        """The wall clock of the process that is at work."""
        return self.now if self.current is None else self.now + self.current.skew

    def delay(self) -> float:
        """How long it takes until a thread does what it is to do."""
        delay = _DELAYS[self.choices.pick(len(_DELAYS))]
        return delay * _SLOWNESS if self.now < self._slow_until else delay

    def set_timer(self, when: float, process: Process | None, handle: Handle) -> None:
        """Run a handle when its time has come."""
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, process, handle))

    def at(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """Call something when its time has come, whatever the processes do."""
        self.set_timer(when, None, Handle(callback, args, None))

    def sleep(self, seconds: float) -> None:
        """What `time.sleep` is in a process: others go on meanwhile."""
        process = self.current
        if process is None:
            raise RuntimeError("only a process sleeps")
        if not process.alive:
            raise Crashed
        self.stand_still(process, self.now + max(seconds, TICK))

    # Taking turns.

    def step(self, limit: float = NEVER) -> bool:
        """Let one process do one thing; `False`, and it is `limit`, if nobody has anything to do before that."""
        timers = self._timers
        if timers and timers[0][0] <= self.now:
            self._fire()
        while (process := self._whose_turn()) is None:
            if not timers or timers[0][0] > limit:
                self.now = max(self.now, limit) if limit != NEVER else self.now
                return False
            if timers[0][0] > self.now:
                self.now = timers[0][0]
            self._fire()
        handle = process.ready.popleft()
        callback = handle.callback
        if callback is None:
            return True
        self.moment += 1
        self.now += TICK
        if self.moment >= self._next_fault and not self._goes_on(process, handle):
            return True
        if self.trace is not None:
            self.trace.append(f"{self.now:.5f} {process.name} {_named(callback)}")
        before, self.current = self.current, process
        _set_running_loop(process)
        try:
            if handle.context is None:
                callback(*handle.args)
            else:
                handle.context.run(callback, *handle.args)
        except Crashed:
            pass
        except Exception as error:
            self.complain(process, error)
        finally:
            self.current = before
            _set_running_loop(None)
        return True

    def _whose_turn(self) -> Process | None:
        """One of those that have something to do."""
        found = others = None
        for process in self.processes:
            if process.ready and process.is_free:
                if found is None:
                    found = process
                elif others is None:
                    others = [found, process]
                else:
                    others.append(process)
        return found if others is None else others[self.choices.pick(len(others))]

    def _fire(self) -> None:
        """Make ready what is due."""
        timers, now = self._timers, self.now
        while timers and timers[0][0] <= now:
            _, _, process, handle = heapq.heappop(timers)
            if handle.callback is None:
                continue
            if process is None:
                handle.callback(*handle.args)
            elif process.alive:
                process.ready.append(handle)

    def stand_still(self, process: Process, until: float, turns: float = NEVER) -> None:
        """Keep a process where it is, in the middle of something, while others have so many turns."""
        loop = _get_running_loop()
        task = asyncio.current_task(process) if loop is process else None
        if task is not None:
            asyncio._leave_task(process, task)
        current, process.is_free, process.is_inside = self.current, False, True
        _set_running_loop(None)
        try:
            while process.alive and turns > 0 and self.now < until and self.step(until):
                turns -= 1
            while process.alive and self.now < process.paused_until:
                self.step(process.paused_until)
        finally:
            self.current = current
            _set_running_loop(loop)
            if task is not None:
                asyncio._enter_task(process, task)
            process.is_free, process.is_inside = process.alive, False
        if not process.alive:
            raise Crashed

    # Calls of the store.

    def call(self, process: Process, verb: str) -> None:
        """A process calls the store: what may happen before the call reaches it."""
        if not process.alive:
            raise Crashed
        self.moment += 1
        self.now += TICK
        if self.trace is not None:
            self.trace.append(f"{self.now:.5f} {process.name} calls {verb}")
        if self.moment >= self._next_fault:
            self._strike_inside(process)
        self._until_turn -= 1
        if self._until_turn <= 0:
            self._give_turns(process)
        if process.cut_off_until > self.now:
            self._hang(process)

    def reply(self, process: Process, verb: str) -> None:
        """What may happen before the answer of the store arrives."""
        self.moment += 1
        if self.moment >= self._next_fault:
            self._strike_inside(process)
        self._until_turn -= 1
        if self._until_turn <= 0:
            self._give_turns(process)

    def _give_turns(self, process: Process) -> None:
        pick = self.choices.pick
        self._until_turn = 2 + pick(16)
        if len(self.processes) > 1:
            until, turns = self.now + _GLIMPSE, _TURNS[pick(len(_TURNS))]
            if self._is_anything_to_do(process, until):
                self.stand_still(process, until, turns)
            else:
                self.now = until

    def _is_anything_to_do(self, process: Process, until: float) -> bool:
        """Whether others than a process have anything to do before a time, or something is due until then."""
        if self._timers and self._timers[0][0] <= until:
            return True
        return any(other.ready and other.is_free for other in self.processes if other is not process)

    def _hang(self, process: Process) -> None:
        """A call that does not reach the server fails at once, or when somebody has waited for long enough."""
        if self.choices.pick(2):
            self.stand_still(process, min(process.cut_off_until, self.now + 1.0))
        if process.cut_off_until > self.now:
            raise StoreError("the simulated server cannot be reached")

    def cross_boundary(self, process: Process) -> None:
        """A commit begins, or is stored: let the process die there, if it is to."""
        self.boundaries += 1
        if self.boundaries == self.crash_at:
            self.kill(process)
            raise Crashed

    def disturbed_commit(self, process: Process, appends: Sequence[Append]) -> list[Conflict | None]:
        """A commit at which something is to go wrong."""
        fault = self.armed.pop()
        self._note(fault, process)
        if fault.kind == faults.REFUSED:
            raise StoreError("the simulated commit was refused")
        if fault.kind == faults.CRASH_BEFORE:
            self.kill(process, fault.amount)
            raise Crashed
        stored = appends[: self.choices.pick(len(appends))] if fault.kind == faults.TORN else appends
        if stored:
            answers = self.server.commit(process, self.moment, stored)
            if self.trace is not None:
                self.trace_commit(process, stored, answers)
        if fault.kind == faults.LOST_REPLY:
            raise StoreError("the answer to the simulated commit was lost")
        self.kill(process, fault.amount)
        raise Crashed

    def trace_commit(
        self, process: Process, appends: Sequence[Append], answers: Sequence[Conflict | None]
    ) -> None:
        """Write down what was stored, and what was refused."""
        assert self.trace is not None
        for append, answer in zip(appends, answers, strict=True):
            chains = " ".join(entry.chain.hex()[:8] for entry in append.entries)
            what = f"stores {append.run} {append.after + 1}: {chains}" if answer is None else str(answer)
            self.trace.append(f"{self.now:.5f} {process.name} {what}")

    # What goes wrong.

    def _next(self) -> Fault:
        fault = self._plan.pop()
        self._next_fault = self._plan[-1].at if self._plan else NEVER
        return fault

    def _goes_on(self, process: Process, handle: Handle) -> bool:
        """Let a fault come about when a process is about to do something; whether it can still do it."""
        self._strike(process, self._next())
        if process.alive and not process.is_free:
            process.ready.appendleft(handle)
        return process.is_free

    def _strike_inside(self, process: Process) -> None:
        """Let a fault come about while a process is in the middle of something."""
        self._strike(process, self._next())
        if not process.alive:
            raise Crashed
        if process.paused_until > self.now:
            self.stand_still(process, process.paused_until)

    def _strike(self, process: Process, fault: Fault) -> None:
        kind, amount = fault.kind, fault.amount
        if kind in faults.AT_COMMIT:
            self.armed.append(fault)
            return
        self._note(fault, process)
        if kind == faults.CRASH:
            self.kill(process, amount)
        elif kind == faults.PAUSE:
            self.pause(process, amount)
        elif kind == faults.CUT_OFF:
            process.stop_renewing()
            process.cut_off_until = self.now + amount
            self.all_back_at = max(self.all_back_at, process.cut_off_until)
            self._lasts(amount)
            self.at(process.cut_off_until, process.renew)
        elif kind == faults.FULL:
            self.server.full_until = self.now + amount
            self._lasts(amount)
        elif kind == faults.SLOW:
            self._slow_until = self.now + amount
            self._lasts(amount)
        elif kind == faults.JUMP:
            process.skew += amount
            process.most_ahead = max(process.most_ahead, process.skew)
            self._lasts(abs(amount))
        elif kind == faults.LOST_WAKE:
            self.drops_wakes += 1
        else:
            self.on_fault(fault, process)

    def _note(self, fault: Fault, process: Process) -> None:
        self.struck.append(fault)
        self._lasts(0.0)
        if self.trace is not None:
            self.trace.append(f"{self.now:.5f} {process.name} !! {fault}")

    def _lasts(self, seconds: float) -> None:
        self.calm_at = max(self.calm_at, self.now + seconds)

    def pause(self, process: Process, seconds: float) -> None:
        """Let a process stand still, as a machine that sleeps does."""
        process.stop_renewing()
        process.paused_until = self.now + seconds
        self.all_back_at = max(self.all_back_at, process.paused_until)
        process.is_free = False
        self._lasts(seconds)
        self.at(process.paused_until, self._wake, process)
        self.at(process.paused_until + 0.02 * self.choices.pick(2), process.renew)

    def _wake(self, process: Process) -> None:
        """One that stands still in the middle of something wakes up there."""
        if process.alive and self.now >= process.paused_until and process is not self.current:
            process.is_free = not process.is_inside

    def kill(self, process: Process, back_after: float = 0.0) -> None:
        """End a process as a power cut does. It is there again after so many seconds."""
        process.die()
        if process in self.processes:
            self.processes.remove(process)
        self._lasts(back_after)
        if self.trace is not None:
            self.trace.append(f"{self.now:.5f} {process.name} is dead")
        self.at(self.now + back_after, self.on_death, process)

    def end(self) -> None:
        """Let go of everybody: what refers to each other would be kept until somebody looks for it."""
        self.current = None
        self.processes.clear()
        self.server.processes.clear()
        self._timers.clear()
        self.on_death, self.on_fault, self.server.told = _ignore, _no_such_fault, _untold

    def complain(self, process: Process, error: object) -> None:
        """Write down what should never have happened."""
        text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
        self.complaints.append(f"{process.name}: {text}")


def _named(callback: Any) -> str:
    return str(getattr(callback, "__qualname__", None) or type(callback).__name__)


def _no_such_fault(fault: Fault, process: Process) -> None:
    raise ValueError(f"nothing is known of a fault {fault.kind!r}")
