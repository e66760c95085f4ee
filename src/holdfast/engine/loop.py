"""The loop: decide, record, attempt, record, until a run is finished, paused, failed or stopped."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from holdfast import clock
from holdfast.engine.attempt import Attempt, Results
from holdfast.engine.commands.inbox import PAUSE, POLL, Inbox, RunCommand
from holdfast.engine.context import Context
from holdfast.engine.decide import (
    AskWhat,
    CloseFrame,
    Decision,
    End,
    ExceedIterations,
    Gate,
    OpenFrame,
    ParallelWrites,
    Reconcile,
    RefuseStep,
    RouteFailed,
    RouteOn,
    SkipStep,
    Start,
    decide,
    elapsed,
)
from holdfast.engine.once import StopSignal
from holdfast.engine.saving import StepHost
from holdfast.engine.settings import Caller, Settings
from holdfast.engine.waves import Ending, Waves
from holdfast.errors import ExecutionError, Remedy, ResourceExhausted, RunConflict, StoreError, problem_of
from holdfast.journal.records import StepFinished, StepStarted
from holdfast.journal.run_state import INTERRUPTED, Step
from holdfast.journal.writer import Writer
from holdfast.names import LazyModule
from holdfast.threads import in_background, refuse_while_loading, start
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.engine import speculation
    from holdfast.engine.commands import handlers
    from holdfast.engine.time_travel import reuse
    from holdfast.engine.time_travel.reuse import ReusableSteps
else:
    speculation = LazyModule("engine.speculation")
    handlers = LazyModule("engine.commands.handlers")
    reuse = LazyModule("engine.time_travel.reuse")


logger = logging.getLogger("holdfast")

_ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What ends an execution where nothing can be awaited any more."""

GATHERING = 0.02
"""How long, in seconds, a finished step waits for its running siblings before it is saved without them."""


class Execution(StepHost):
    """One process's work on one run, from start or resume until it stops.

    `private` says that the event loop is this execution's own, so that nodes and saves may block it.
    `idle_timeout` is how long, in seconds, it waits when all there is to do is to wait; then it leaves the run until
    its time has come. Without one it waits for as long as it takes.
    """

    def __init__(
        self,
        settings: Settings,
        writer: Writer,
        caller: Caller,
        config: Mapping[str, Any],
        *,
        if_interrupted: str | None = None,
        resumed: bool = False,
    ) -> None:
        refuse_while_loading()
        super().__init__(settings, writer, caller, config, if_interrupted)
        self.stop_reason = ""
        self.pausing: tuple[RunStatus, str] | None = None
        """How and why the run is to stop once what is under way is finished."""
        self._writes = ParallelWrites(self.rules.barrier)
        self.results = Results(self, self._writes)
        self._waves = Waves(self, self.results)
        self.speculation = None if settings.guesses is None else speculation.Speculation(self, self._waves)
        """The steps that run ahead on guessed inputs, if there are guesses."""
        self._record, self._say = self.saving.record, self.saving.say
        self.reusable: ReusableSteps | None = None
        """What steps are given instead of being run, if the run reuses what another has finished."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._finished: list[Attempt] = []
        self._wake: asyncio.Event | None = None
        self._idle: asyncio.Event | None = None
        self._wake_at: float | None = None
        self._home: asyncio.AbstractEventLoop | None = None
        """The event loop that this execution began in, also when it has left the run."""
        self._is_given_up = False
        self._main: asyncio.Task[Any] | None = None
        self._work: Coroutine[Any, Any, RunStatus] | None = None
        self._task_error: BaseException | None = None
        """Why a task ended without a result for its step: the run is another's, or an exception came in between."""
        self._awaiting = False
        self.inbox = Inbox(
            self.saving,
            lambda command: handlers.apply_command(self.saving, self.graph, command),
            self._follow,
            resumed=resumed,
            by_worker=self.idle_timeout is not None,
        )
        self.ending = Ending(self.saving, self.results, self.inbox)
        self._poll_handle: asyncio.TimerHandle | None = None

    # Being stopped.

    def request_stop(self, status: RunStatus, reason: str) -> None:
        """Stop soon: save, and leave what is running. May be called from any thread or a signal handler."""
        if self.stop in (None, RunStatus.QUEUED):
            if status == RunStatus.QUEUED and self.pausing is not None:
                status, reason = self.pausing
            self.stop, self.stop_reason = status, reason
        self._call_soon(self._cancel_running)

    def _call_soon(self, callback: Callable[[], None]) -> None:
        """Have something called in the event loop, if it still runs. May be called from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(callback)

    def request_pause(self, reason: str, status: RunStatus = RunStatus.INTERRUPTED) -> None:
        """Save and stop as soon as what is under way is finished. May be called from any thread."""
        # What a person wants comes before a hand-over.
        if self.pausing is None or status != RunStatus.QUEUED:
            self.pausing = status, reason
        self._call_soon(self._wake_up)

    def _wake_up(self) -> None:
        if self._wake is not None:
            self._wake.set()

    def _cancel_running(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        self._wake_up()
        if self._awaiting and self._main is not None:
            self._main.cancel()

    def _record_interruption(self) -> bool:
        """Record that the run is interrupted, from wherever it is; `False` if it has ended, or cannot be relied on."""
        if self._is_given_up:
            return False
        if self.saving.writer.was_interrupted:
            logger.warning("run %s was interrupted while a change was being recorded; resume it", self.run_id)
            return False
        if self.run.status != RunStatus.RUNNING:
            return False
        self._record_results()
        left = RunStatus.INTERRUPTED if self.idle_timeout is None else RunStatus.QUEUED
        self._record_stop(self.stop or left, self.stop_reason or "the process was asked to stop")
        return True

    def request(self, command: RunCommand) -> None:
        """Stop, at once or after what is under way, because this process asked for it. From any thread."""
        self.inbox.note(command)
        if command.kind == PAUSE:
            self.request_pause(command.reason)
        else:
            self.request_stop(RunStatus.CANCELLED, command.reason)

    def request_look(self) -> None:
        """Look into the inbox as soon as can be. May be called from any thread."""
        self.inbox.polled = float("-inf")
        self._call_soon(self._poll)

    def _follow(self, command: RunCommand) -> None:
        """Stop as a command asks, be it to go on with another definition."""
        if command.redefines:
            in_fleet = bool(self.saving.writer.info.queue)
            self.pausing = RunStatus.QUEUED if in_fleet else RunStatus.INTERRUPTED, "replanned"
        elif command.kind == PAUSE:
            self.pausing = RunStatus.INTERRUPTED, command.reason
        elif self.stop in (None, RunStatus.QUEUED):
            self.stop, self.stop_reason = RunStatus.CANCELLED, command.reason

    def _schedule_poll(self) -> None:
        if self._poll_handle is None and self._loop is not None:
            self._poll_handle = self._loop.call_later(clock.glance(POLL), self._poll)

    def _poll(self) -> None:
        if self._poll_handle is not None:
            self._poll_handle.cancel()
            self._poll_handle = None
        if self._loop is None:
            return
        if self.private:
            self.inbox.look()
            self._looked()
        else:
            looking = self._loop.create_task(in_background(self.inbox.look))
            looking.add_done_callback(lambda _: self._looked())

    def _looked(self) -> None:
        if self._loop is None:
            return
        if self.stop is not None:
            self._cancel_running()
            return
        if self.inbox.waiting:
            self._wake_up()
        if self._tasks or self._awaiting or self._wake_at is not None:
            self._schedule_poll()

    # The loop.

    def begun(self) -> Coroutine[Any, Any, RunStatus]:
        """Return `execute()`, to be awaited; by it `is_over` is known."""
        self._work = self.execute()
        return self._work

    @property
    def is_over(self) -> bool:
        """Whether this execution has ended, in whatever way, or never goes on: its event loop is closed."""
        return self._is_given_up or self.has_ended or (self._home is not None and self._home.is_closed())

    @property
    def has_ended(self) -> bool:
        """Whether nothing of this execution's work is left."""
        return self._work is not None and inspect.getcoroutinestate(self._work) == inspect.CORO_CLOSED

    def give_up(self) -> None:
        """Leave the run as it is stored, from outside of an event loop that does not run any more."""
        self._is_given_up, self._loop = True, None
        self.saving.writer.close()

    def close(self) -> None:
        """Save and release a run whose event loop ended early, as by an exception while it was closing."""
        try:
            if self._work is not None:
                self._work.close()
        except (ExecutionError, RunConflict, StoreError, RuntimeError) as error:
            logger.warning("run %s was broken off, and could not be saved: %s", self.run_id, error)
        finally:
            self.give_up()

    async def execute(self) -> RunStatus:
        """Advance the run as far as it goes and return its status. Why it failed is left in `ending.failure`."""
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        self._home = self._loop
        self.thread = threading.get_ident()
        timer = self._timer()
        try:
            if self.run.reuse is not None:
                await self._find_reusable()
            while True:
                launches = await self._advance()
                if self.private:
                    self.saving.save_here()
                else:
                    await self.saving.save()
                if self.run.status != RunStatus.RUNNING:
                    return RunStatus(self.run.status)
                try:
                    await self._execute(launches)
                except asyncio.CancelledError:
                    if self.stop is None:
                        raise
                    if self._main is not None:
                        self._main.uncancel()
        except (asyncio.CancelledError, ResourceExhausted, *_ENDS) as error:
            if self._record_interruption():
                if self.private or isinstance(error, _ENDS):
                    self.saving.flush()
                else:
                    await self.saving.flush_async()
                self.saving.tell_saved()
            raise
        except MemoryError as error:  # What was being recorded may be half done: nothing more is stored.
            raise ResourceExhausted(
                f"run {self.run_id!r} stopped for want of memory; what is stored is intact",
                remedies=Remedy("resume", self.run_id),
            ) from error
        finally:
            self._awaiting = False
            if timer is not None:
                timer.cancel()
            if self._poll_handle is not None:
                self._poll_handle.cancel()
            for task in () if self._home.is_closed() else self._tasks.values():
                task.cancel()
            if self.speculation is not None and not self._home.is_closed():
                self.speculation.close()
            self._loop = None
            # Others may have the run now: not even what steps that were left behind have to say is stored.
            if self.private or isinstance(sys.exception(), _ENDS):
                self.saving.writer.close()
            else:
                await self.saving.writer.close_async()

    def _record_stop(self, status: RunStatus, reason: str) -> None:
        if status == RunStatus.FAILED:
            self.ending.fail(reason, self.run.root.last_node, None)
        else:
            self.ending.end(status, reason)

    def _timer(self) -> threading.Timer | None:
        """Start a timer that stops the run when its time is used up, whatever it is doing then."""
        limit = self.settings.time_limit
        if limit is None:
            return None
        reason = f"the time limit of {limit:g} s is used up; what was running is in doubt"
        timer = threading.Timer(limit, self.request_stop, (RunStatus.FAILED, reason))
        timer.daemon = True
        start(timer, "a time limit")
        return timer

    async def _advance(self) -> list[Step]:
        """Record every decision that can be made now; return the steps to run."""
        launches: list[Step] = []
        self._wake_at = None
        if self.speculation is not None:
            self.speculation.hold()
        if self.inbox.is_due:
            await self.look_now()
        if self.inbox.waiting:
            applied = await self._apply_commands()
            if self.run.status != RunStatus.RUNNING or not (applied or self.stop):
                return launches  # What is under way is finished first.
        if self.pausing is not None and self.stop is None:
            if self._tasks:
                return launches  # What is under way is finished first.
            self.stop, self.stop_reason = self.pausing
        if self.stop is not None:
            self._record_results()
            self._record_stop(self.stop, self.stop_reason)
            return launches
        if self.run.pauses:
            for answered in elapsed(self.run, lambda at: self.time_left(at) <= 0):
                self._record(answered)
            times = [pause.expires_at for pause in self.run.pauses.values() if pause.expires_at is not None]
            self._wake_at = min(times, default=None)
        progress = True
        while progress and self.run.status == RunStatus.RUNNING:
            progress = False
            for decision in decide(self.graph, self.run, self.rules):
                kind = type(decision)
                if (
                    self.reusable is not None
                    and isinstance(decision, Start | Gate)
                    and self._reuses(decision.step)
                ):
                    progress = True
                elif kind is Start:
                    if self._begin(decision.step, decision.at):  # type: ignore[union-attr]
                        launches.append(decision.step)  # type: ignore[union-attr]
                        progress = progress or len(launches) > 1 or bool(self._tasks)
                elif kind is RouteOn and self._waves.by_edge(*decision):  # type: ignore[misc]
                    progress = True
                else:
                    progress = await self._settle(decision)
                    if not progress:
                        break
        idle = self.run.status == RunStatus.RUNNING and not launches and not self._tasks
        wake_at, longest = self._wake_at, self.idle_timeout
        if idle and wake_at is not None and longest is not None and self.time_left(wake_at) > longest:
            self.ending.end(RunStatus.QUEUED, "nothing to do before its time", due_at=wake_at)
        if launches and self.saving.observer is not None:
            self._say("wave.start", wave=self.run.root.waves + 1, nodes=[step.node for step in launches])
            for step in launches:
                self.saving.say_start(step)
        return launches

    async def _apply_commands(self) -> bool:
        """Apply the waiting commands in order; return False if they have to wait for running steps."""
        self._record_results()
        self._writes.recount()
        while self.inbox.waiting and self.run.status == RunStatus.RUNNING:
            if self.inbox.is_about_next_steps:
                found = decide(self.graph, self.run, self.rules)
                moves = [decision for decision in found if isinstance(decision, (RouteOn, CloseFrame))]
                for move in moves:
                    if not await self._settle(move):
                        break
                if moves:
                    continue
            if not self.inbox.apply_next(busy=bool(self._tasks)):
                return False
        return True

    async def _find_reusable(self) -> None:
        """Find which finished results of another run, or of this one, may be reused."""
        of = reuse.ReusableSteps.of
        look = partial(of, self.settings.journal, self.graph, self.codec, self.run, self.run_id)
        self.reusable = look() if self.private else await in_background(look)
        if self.reusable is not None:
            self._waves.reused = self.reusable.steps

    def _reuses(self, step: Step) -> bool:
        """Let a step that is about to begin have the result that it is given; `False` if it has to run."""
        assert self.reusable is not None
        finished = self.reusable.taken(step)
        if finished is None:
            return False
        self.saving.part()
        self._record(finished)
        self._writes.recount()
        if self.saving.observer is not None:
            update = {op.key: op.value for op in finished.ops if op.kind != "drop"}
            self._say("node.reuse", step.node, step=step.id, origin=finished.origin, update=update)
        return True

    def _begin(self, step: Step, at: float | None) -> bool:
        """Record the intent to run a step, unless it is to wait until `at`."""
        if at is not None and self.time_left(at) > 0:
            self._wake_at = at if self._wake_at is None else min(at, self._wake_at)
            return False
        if self.graph.has_breakers and not self.results.passes_circuit(step):
            return False
        if step.answers.get(INTERRUPTED) == b"rerun":
            self.wanted_again.add(step.id)
        self._record(StepStarted(step.id, step.attempt + 1))
        return True

    async def _settle(self, decision: Decision) -> bool:
        """Record a decision that starts no step; `False` if the run is over with it."""
        try:
            match decision:
                case RouteOn(frame, names):
                    await self._waves.by_choice(frame, names)
                case OpenFrame(step):
                    await self._waves.open_frame(step)
                    self.saving.say_start(step)
                case CloseFrame(step):
                    self.results.close_frame(step)
                case Gate(step):
                    self.results.pause_at("before", step)
                case AskWhat(step, kind):
                    self.results.ask_what(step, kind)
                case SkipStep(step):
                    self._record(StepFinished(step.id, skipped="interrupted"))
                case RefuseStep(step):
                    self.results.refuse(step)
                case Reconcile(step):
                    await self._reconcile(step)
                    return self.stop is None
                case ExceedIterations(frame, limit):
                    self.ending.exceed(frame, limit)
                    return False
                case End(status):
                    if status in (RunStatus.COMPLETED, RunStatus.PAUSED):
                        await self.look_now()
                    if self.inbox.waiting:
                        return await self._apply_commands()
                    self.ending.end(status)
                    return False
                case Start():
                    raise AssertionError("started by the loop itself")
                case _:
                    assert_never(decision)
        except RouteFailed as error:
            self.ending.fail(problem_of(error), error.node, error.__cause__ or error)
            return False
        return True

    # Running steps.

    def _check_owner(self) -> None:
        """Refuse if the run was left or taken over, in the thread of a step: that is not the step's failure."""
        if self.has_left_run:
            raise StopSignal
        with self.storing():
            self.lease.refuse()

    async def _execute(self, launches: list[Step]) -> None:
        if self.speculation is not None:
            self.speculation.begin(launches)
        if len(launches) == 1 and not self._tasks and self._wake_at is None:
            self._take(await self._run_alone(launches[0]))
            return
        assert self._loop is not None
        if self._wake is None:
            self._wake, self._idle = asyncio.Event(), asyncio.Event()
        for step in launches:
            task = self._tasks[step.id] = self._loop.create_task(self._attempt_task(step))
            task.add_done_callback(partial(self._task_ended, step.id))
        await self._gather()

    async def _run_alone(self, step: Step) -> Attempt:
        """Return the attempt of a lone step, or of the last of those that the fast path ran after it."""
        step, attempt = self._waves.run_on(step)
        if attempt is None:
            self.lease.refuse()
            attempt = self.prepare(step)
            if self.speculation is not None or not (self.private and attempt.node.runs_inline):
                self._schedule_poll()
                self._awaiting = True
                try:
                    return await self._run_aside(attempt)
                finally:
                    self._awaiting = False
            self.inline = True
            try:
                if self.stop is None:
                    attempt.run_here()
                else:
                    attempt.error = StopSignal()
            finally:
                self.inline = False
        if attempt.seconds < 0:
            await attempt.run()
        return attempt

    async def _attempt_task(self, step: Step) -> None:
        self.lease.refuse()
        attempt = await self._run_aside(self.prepare(step))
        self._finished.append(attempt)

    async def _run_aside(self, attempt: Attempt) -> Attempt:
        """Return an attempt once it has run, without blocking the event loop: itself, or one that ran ahead of it."""
        ahead = None if self.speculation is None else await self.speculation.finish(attempt)
        if ahead is not None:
            return ahead
        await attempt.run(self._check_owner)
        return attempt

    def _task_ended(self, step: str, task: asyncio.Task[None]) -> None:
        assert self._wake is not None and self._idle is not None
        if self._tasks.get(step) is task:  # Not that of the step's next attempt.
            del self._tasks[step]
        if not task.cancelled():
            error = task.exception()  # Asked of each task, or asyncio logs that nobody did.
            self._task_error = self._task_error or error
        elif not task.cancelling():  # Nobody asked for that.
            self._task_error = self._task_error or asyncio.CancelledError()
        self._wake.set()
        if not self._tasks:
            self._idle.set()

    async def _gather(self) -> None:
        """Wait for steps to finish, and a little longer for those that finish together."""
        assert self._wake is not None and self._idle is not None
        self._schedule_poll()
        if not self._finished and self.stop is None:
            self._wake.clear()
            timeout = None if self._wake_at is None else max(0.0, self.time_left(self._wake_at))
            if self._tasks or timeout is not None:
                await _wait(self._wake, timeout)
        if self._tasks and self._finished and self.stop is None:
            self._idle.clear()
            # Shorter while steps wait for a place, unless deciding is slow.
            full = len(self._tasks) + len(self._finished) >= self.rules.max_parallel
            few = full and sum(len(frame.active) for frame in self.run.frames.values()) < 2000
            await _wait(self._idle, GATHERING / 10 if few else GATHERING)
        self._record_results()
        if self._task_error is not None:
            self._flush_rest()
            raise self._task_error

    def _record_results(self) -> None:
        attempts, self._finished = self._finished, []
        unsaved = None
        for attempt in attempts:
            if any(attempt.error is error for error in self.unsaved):
                unsaved = unsaved or attempt.error
            else:
                self._take(attempt)
        if unsaved is not None:
            self._flush_rest()
            raise unsaved

    def _flush_rest(self) -> None:
        with suppress(ExecutionError, RunConflict, StoreError):
            self.saving.flush()

    def _take(self, attempt: Attempt) -> None:
        for error in self.unsaved:
            if attempt.error is error:
                raise error
        self.results.take(attempt)
        if self.results.stopped and self.stop is None:
            self.stop = RunStatus.INTERRUPTED

    async def _reconcile(self, step: Step) -> None:
        """Ask the node's own function whether an interrupted step was done."""
        attempt = self.prepare(step)
        look = attempt.node.if_interrupted
        assert callable(look)
        attempt.context = Context(self, step, self.config, False)
        attempt.node = dataclasses.replace(
            attempt.node, function=look, wants=("ctx",), named=(), is_async=False, timeout=None
        )
        attempt.run_here()
        if attempt.seconds < 0:
            await attempt.run()
        error, value = attempt.error, attempt.value
        if isinstance(error, StopSignal) or any(error is other for other in self.unsaved):
            self._take(attempt)
        elif error is not None:
            self.results.failed(step, error, 0.0, repeatable=False)
        elif value is None or value is False:
            step.answers[INTERRUPTED] = b"rerun"
        else:
            attempt.value = None if value is True else value
            self._take(attempt)


async def _wait(event: asyncio.Event, timeout: float | None) -> None:
    if timeout is None:
        await event.wait()
        return
    try:
        async with asyncio.timeout(timeout):
            await event.wait()
    except TimeoutError:
        return
