"""The loop: decide, record, attempt, record, until a run is finished, paused, failed or stopped."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from holdfast import clock
from holdfast.engine.attempt import Result, attempt_async, attempt_here
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
    Reconcile,
    RefuseStep,
    RouteOn,
    SkipStep,
    Start,
    decide,
    elapsed,
)
from holdfast.engine.executors.remote import refuse_while_loading
from holdfast.engine.moves import Ending, Glide, Moves
from holdfast.engine.once import Policy, StopSignal
from holdfast.engine.owner import LeaseCheck
from holdfast.engine.routing import ParallelWrites, RouteFailed
from holdfast.engine.saving import Gates, Results, Saving, graph_of, state_for
from holdfast.engine.settings import Settings
from holdfast.errors import ExecutionError, Remedy, ResourceExhausted, RunConflict, StoreError, problem_of
from holdfast.events import Observer
from holdfast.graph.graph import Node
from holdfast.journal.records import Noted, OnceFailed, OnceStarted, Spent, StepFinished, StepStarted
from holdfast.journal.run_state import INTERRUPTED, RunState, Step, node_of
from holdfast.journal.writer import Writer
from holdfast.state.state import State, limited
from holdfast.threads import in_background, start
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.engine.time_travel.reuse import ReusableSteps


logger = logging.getLogger("holdfast")

GATHERING = 0.02
"""How long, in seconds, a finished step waits for its running siblings before it is saved without them."""


class Execution:
    """One process's work on one run, from taking it up to leaving it.

    `private` says that the event loop is this drive's own, so that it may be blocked by nodes and saves.
    `idle_timeout` is how long, in seconds, it waits when all there is to do is to wait; then it leaves the run to
    whoever takes it up when the time has come. Without one it waits for as long as it takes.
    """

    def __init__(
        self,
        settings: Settings,
        writer: Writer,
        *,
        config: Mapping[str, Any],
        observer: Observer | None,
        private: bool,
        if_interrupted: str | None = None,
        resumed: bool = False,
        idle_timeout: float | None = None,
    ) -> None:
        refuse_while_loading()
        self.idle_timeout = idle_timeout
        self.settings, self.config, self.private = settings, config, private
        self.graph, self.codec, self.rules = settings.graph, settings.codec, settings.rules
        if if_interrupted is not None:
            self.rules = dataclasses.replace(self.rules, if_interrupted=if_interrupted)
        self.saving = Saving(settings, writer, observer)
        self.run: RunState = writer.run
        self.run_id, self.generation = writer.info.run, writer.run.generation
        self.stop: RunStatus | None = None
        self.stop_reason = ""
        self.pausing: str | None = None
        """Why the run is to stop once what is under way is finished."""
        self._pausing_as = RunStatus.INTERRUPTED
        self.inline = False
        """Whether a node is running in this very thread."""
        self.steps_run = 0
        self._gates = Gates(self.saving, config)
        self._writes = ParallelWrites(self.rules.barrier)
        self._moves = Moves(self.graph, self.saving, self._gates)
        self._results = Results(self.graph, self.rules, self.saving, self._writes)
        self._record, self._say = self.saving.record, self.saving.say
        gated = self.rules.interrupt_before or settings.interrupt_after
        looks_up = gated or self.run.reuse is not None
        glides = private and self.rules.barrier and not looks_up
        self._glide = Glide(self, self.graph, self.saving, config) if glides else None
        self.reusable: ReusableSteps | None = None
        """What steps are given instead of being run, if the run reuses what another has finished."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._finished: list[Result] = []
        self._wake: asyncio.Event | None = None
        self._idle: asyncio.Event | None = None
        self._wake_at: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home: asyncio.AbstractEventLoop | None = None
        """The event loop that this drive began in, also when it has left the run."""
        self._is_given_up = False
        self._main: asyncio.Task[Any] | None = None
        self._work: Coroutine[Any, Any, RunStatus] | None = None
        self.overtaking = LeaseCheck(settings.journal.store, writer)
        self._overtaken: BaseException | None = None
        """Why a task ended without a result for its step: the run is another's, or an exception came in between."""
        self._unsaved: list[ExecutionError | RunConflict | StoreError] = []
        """Why something that steps had to have stored was not."""
        self._awaiting = False
        self._thread = 0
        """The thread of the event loop."""
        self._wanted_again: set[str] = set()
        """The interrupted steps of which somebody said that they are to run again."""
        self.inbox = Inbox(
            self.saving, self._apply, self._follow, resumed=resumed, by_worker=idle_timeout is not None
        )
        self._ending = Ending(self.saving, self._gates, self._results, self.inbox)
        self._poll_handle: asyncio.TimerHandle | None = None

    @property
    def failure(self) -> ExecutionError | None:
        """Why the run failed."""
        return self._ending.failure

    @property
    def retries(self) -> int:
        """How many attempts are to be repeated."""
        return self._results.retries

    # What a context asks of its host.

    @property
    def is_left(self) -> bool:
        """Whether this drive is over, or is to be at once: steps that still run are left to themselves."""
        return self.stop is not None or self._loop is None

    @property
    def thread(self) -> int:
        """The thread that this execution's event loop runs in."""
        return self._thread

    @property
    def has_left_run(self) -> bool:
        """Whether this execution has left the run: nothing that its steps still say is recorded."""
        return self._loop is None or self.run.status != RunStatus.RUNNING

    def record_of_step(self, record: Noted | OnceStarted | OnceFailed, context: Context) -> None:
        """Record something of a step; one whose attempt, or whose run, was left gets a `StopSignal` instead."""
        with (
            self.saving.writer.lock
        ):  # What ends an attempt or the run is recorded either before this or after it.
            if context.is_over or self.has_left_run:
                raise StopSignal
            self._record(record)

    def note(self, record: Noted | OnceStarted, context: Context) -> None:
        """Record what a step must remember, and store it before returning."""
        inline = self.inline and threading.get_ident() == self._thread
        if inline:
            self.inline = False  # A signal must not part a commit from its acknowledgement.
        try:
            self.record_of_step(record, context)
            if self.settings.policy.saves_wave(0):
                with self._keeping(context):
                    self.saving.flush()
                    self.overtaking.refuse()
        finally:
            if inline:
                self.inline = True
        if inline and self.stop is not None:
            raise StopSignal

    async def note_async(self, record: Noted | OnceStarted, context: Context) -> None:
        """As `note`, without blocking an event loop that is not this drive's own."""
        if self.private or asyncio.get_running_loop() is not self._loop:
            self.note(record, context)
            return
        self.record_of_step(record, context)
        if self.settings.policy.saves_wave(0):
            with self._keeping(context):
                await self.saving.flush_async()
                if self.overtaking.is_possible:
                    await in_background(self.overtaking.refuse)

    def once_policy(self, step: Step, policy: Policy | None) -> Policy:
        """What is done about a function given to `once` that was interrupted, if its own policy is `policy`.

        The caller of this execution comes first, then that policy, then the node's. Where a node's own function has
        looked, or somebody has said that the step is to run again, that holds for its functions, too.
        """
        own = self.rules.if_interrupted or policy
        if own is not None:
            return own
        of_node = graph_of(self.graph, step).nodes[step.node].if_interrupted
        return "rerun" if callable(of_node) or step.id in self._wanted_again else of_node

    def spend(self, record: Spent, store: bool) -> None:
        """Record what a step used up; with `store` it is stored before returning, wherever that blocks nobody."""
        if self.run.status != RunStatus.RUNNING:
            logger.warning(
                "run %s: step %s spent something after the run had stopped", self.run_id, record.step
            )
            return
        self._record(record)
        self.saving.emit("node.spend", node_of(record.step).rpartition("/")[2], **record._asdict())
        blocks = not self.private and self._loop is not None and asyncio._get_running_loop() is self._loop
        if not store or blocks or not self.settings.policy.saves_wave(0):
            return
        # A signal must not part a commit from its acknowledgement. What was paid for is not thrown away for one either.
        inline, self.inline = self.inline, False
        try:
            with self._keeping():
                self.saving.flush()
        finally:
            self.inline = inline

    @contextmanager
    def _keeping(self, context: Context | None = None) -> Iterator[None]:
        """While a step has something stored: what goes wrong with that is not the step's failure."""
        try:
            yield
        except (ExecutionError, RunConflict, StoreError) as error:
            if context is not None and (context.is_over or self.has_left_run):
                raise StopSignal from None
            self._unsaved.append(error)
            raise

    def spent(self) -> float:
        """US dollars that the run's steps are known to have spent."""
        return sum(spending.cost for spending in list(self.run.spending.values()))

    def emit(self, type: str, node: str = "", /, **data: Any) -> None:
        """Tell the observers, if there are any."""
        self.saving.emit(type, node, **data)

    def deadline_after(self, seconds: float) -> float:
        """Return the wall time that is so many seconds away, and begin to wait for it."""
        return self.settings.journal.deadlines.after(self.run_id, seconds)

    def time_left(self, deadline: float) -> float:
        """Return how many seconds this process still waits for a deadline of the run; 0 or less if it has passed."""
        return self.settings.journal.deadlines.left(self.run_id, deadline)

    def stop_wanted(self) -> bool:
        """Whether the run is to stop; looks into the inbox now and then."""
        if self.stop is None and self.inbox.is_due:
            self.inbox.look()
        return self.stop is not None

    # Being stopped.

    def request_stop(self, status: RunStatus, reason: str) -> None:
        """Stop soon: save, and leave what is running. May be called from any thread or a signal handler."""
        if self.stop in (None, RunStatus.QUEUED):
            if status == RunStatus.QUEUED and self.pausing is not None:
                status, reason = self._pausing_as, self.pausing
            self.stop, self.stop_reason = status, reason
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._cancel_running)

    def request_pause(self, reason: str, status: RunStatus = RunStatus.INTERRUPTED) -> None:
        """Save and stop as soon as what is under way is finished. May be called from any thread."""
        if (
            self.pausing is None or status != RunStatus.QUEUED
        ):  # What a person wants comes before a hand-over.
            self._pausing_as, self.pausing = status, reason
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake_up)

    def _wake_up(self) -> None:
        if self._wake is not None:
            self._wake.set()

    def _cancel_running(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        if self._wake is not None:
            self._wake.set()
        if self._awaiting and self._main is not None:
            self._main.cancel()

    def _abandoned(self) -> bool:
        """Record that the run is interrupted, from wherever it is; `False` if it has ended, or cannot be relied on."""
        if self._is_given_up:
            return False
        if self.saving.writer.was_interrupted:
            logger.warning("run %s was interrupted while a change was being recorded; resume it", self.run_id)
            return False
        if self.run.status != RunStatus.RUNNING:
            return False
        self._take_results()
        left = RunStatus.INTERRUPTED if self.idle_timeout is None else RunStatus.QUEUED
        self._stop_here(self.stop or left, self.stop_reason or "the process was asked to stop")
        return True

    async def _close(self, error: BaseException | None) -> None:
        """Store nothing more, not even what steps that were left behind have to say: others may have the run now."""
        if self.private or isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
            self.saving.writer.close()
        else:
            await self.saving.writer.close_async()

    async def _save_left(self) -> None:
        """Save what `_abandoned` recorded, without blocking an event loop that is not this drive's own."""
        if self.private:
            self.saving.flush()
        else:
            await self.saving.flush_async()
        self.saving.tell_saved()

    def request(self, command: RunCommand) -> None:
        """Stop, at once or after what is under way, for this very process wishes it. From any thread."""
        self.inbox.note(command)
        if command.kind == PAUSE:
            self.request_pause(command.reason)
        else:
            self.request_stop(RunStatus.CANCELLED, command.reason)

    def request_look(self) -> None:
        """Look into the inbox as soon as can be. May be called from any thread."""
        self.inbox.polled = float("-inf")
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        if self._poll_handle is not None:
            self._poll_handle.cancel()
        self._poll()

    def _follow(self, command: RunCommand) -> None:
        """Stop as a command asks, be it to go on with another definition."""
        if command.redefines:
            in_fleet = bool(self.saving.writer.info.queue)
            self._pausing_as = RunStatus.QUEUED if in_fleet else RunStatus.INTERRUPTED
            self.pausing = "replanned"
        elif command.kind == PAUSE:
            self._pausing_as, self.pausing = RunStatus.INTERRUPTED, command.reason
        elif self.stop in (None, RunStatus.QUEUED):
            self.stop, self.stop_reason = RunStatus.CANCELLED, command.reason

    def _schedule_poll(self) -> None:
        if self._poll_handle is None and self._loop is not None:
            self._poll_handle = self._loop.call_later(clock.glance(POLL), self._poll)

    def _poll(self) -> None:
        self._poll_handle = None
        if self._loop is None:
            return
        if self.private:
            self.inbox.look()
            self._looked()
        else:
            looking = self._loop.create_task(in_background(self.inbox.look))
            looking.add_done_callback(lambda _: self._looked())

    async def _look_now(self) -> None:
        """Look into the inbox, without blocking an event loop that is not this drive's own."""
        if self.private:
            self.inbox.look()
        else:
            await self.inbox.look_async()

    def _looked(self) -> None:
        if self._loop is None:
            return
        if self.stop is not None:
            self._cancel_running()
            return
        if self.inbox.has_commands and self._wake is not None:
            self._wake.set()
        if self._tasks or self._awaiting or self._wake_at is not None:
            self._schedule_poll()

    # The loop.

    def begun(self) -> Coroutine[Any, Any, RunStatus]:
        """Return `drive()`, to be awaited; by it `is_over` is known."""
        self._work = self.drive()
        return self._work

    @property
    def is_over(self) -> bool:
        """Whether this drive has ended, in whatever way, or never goes on, for its event loop is closed."""
        return self._is_given_up or self.has_ended or (self._home is not None and self._home.is_closed())

    @property
    def has_ended(self) -> bool:
        """Whether nothing of this drive's work is left."""
        return self._work is not None and inspect.getcoroutinestate(self._work) == inspect.CORO_CLOSED

    def give_up(self) -> None:
        """Leave the run as it is stored, from outside of an event loop that does not run any more."""
        self._is_given_up, self._loop = True, None
        self.saving.writer.close()

    def close(self) -> None:
        """Save and leave a run whose event loop was broken off, as by an exception while it was being closed."""
        try:
            if self._work is not None:
                self._work.close()
        except (ExecutionError, RunConflict, StoreError, RuntimeError) as error:
            logger.warning("run %s was broken off, and could not be saved: %s", self.run_id, error)
        finally:
            self.give_up()

    async def drive(self) -> RunStatus:
        """Advance the run as far as it goes; the status it then has. Why it failed is left in `failure`."""
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        self._home = self._loop
        self._thread = threading.get_ident()
        timer = self._timer()
        try:
            if self.run.reuse is not None:
                await self._look_back()
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
        except (asyncio.CancelledError, ResourceExhausted):
            if self._abandoned():
                await self._save_left()
            raise
        except MemoryError as error:  # What was being recorded may be half done: nothing more is stored.
            raise ResourceExhausted(
                f"run {self.run_id!r} stopped for want of memory; what is stored is intact",
                remedies=Remedy("resume", self.run_id),
            ) from error
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            if self._abandoned():
                self.saving.flush()
                self.saving.tell_saved()
            raise
        finally:
            self._awaiting = False
            if timer is not None:
                timer.cancel()
            if self._poll_handle is not None:
                self._poll_handle.cancel()
            for task in () if self._home.is_closed() else self._tasks.values():
                task.cancel()
            self._loop = None
            await self._close(sys.exception())

    def _stop_here(self, status: RunStatus, reason: str) -> None:
        if status == RunStatus.FAILED:
            self._ending.fail(reason, self.run.root.last_node, None)
        else:
            self._ending.end(status, reason)

    def _timer(self) -> threading.Timer | None:
        """Stops the run when its time is used up, whatever it is doing then."""
        limit = self.settings.time_limit
        if limit is None:
            return None
        reason = f"the time limit of {limit:g} s is used up; what was running is in doubt"
        timer = threading.Timer(limit, self.request_stop, (RunStatus.FAILED, reason))
        timer.daemon = True
        start(timer, "a time limit")
        return timer

    async def _advance(self) -> list[Step]:
        """Record every decision that can be made now; the steps that are to be run."""
        launches: list[Step] = []
        self._wake_at = None
        if self.inbox.is_due:
            await self._look_now()
        if self.inbox.has_commands:
            applied = await self._apply_commands()
            if self.run.status != RunStatus.RUNNING or not (applied or self.stop):
                return launches  # What is under way is finished first.
        if self.pausing is not None and self.stop is None:
            if self._tasks:
                return launches  # What is under way is finished first.
            self.stop, self.stop_reason = self._pausing_as, self.pausing
        if self.stop is not None:
            self._take_results()
            self._stop_here(self.stop, self.stop_reason)
            return launches
        if self.run.pauses:
            self._expire_pauses()
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
                elif kind is RouteOn and self._moves.plainly(*decision):  # type: ignore[misc]
                    progress = True
                else:
                    progress = await self._settle(decision)
                    if not progress:
                        break
        idle = self.run.status == RunStatus.RUNNING and not launches and not self._tasks
        if idle and self._wake_at is not None and self._is_long(self._wake_at):
            self._ending.end(RunStatus.QUEUED, "nothing to do before its time", due_at=self._wake_at)
        if launches and self.saving.observer is not None:
            self._say("wave.start", wave=self.run.root.waves + 1, nodes=[step.node for step in launches])
            for step in launches:
                self._say_start(step)
        return launches

    def _apply(self, command: RunCommand) -> str:
        """Record what a message asks; answers why it is refused, or nothing."""
        from holdfast.engine.commands.handlers import apply_command  # Most runs are never sent a message.

        return apply_command(self.saving, self.graph, command)

    async def _apply_commands(self) -> bool:
        """Do what was asked for, one command after the other; `False` if it has to wait for what is under way."""
        self._take_results()
        self._writes.recount()
        while self.inbox.has_commands and self.run.status == RunStatus.RUNNING:
            if self.inbox.is_about_next_steps and await self._route_finished():
                continue
            if not self.inbox.apply_next(busy=bool(self._tasks)):
                return False
        return True

    async def _route_finished(self) -> bool:
        """Let what is finished lead on; `False` if nothing did."""
        found = decide(self.graph, self.run, self.rules)
        moves = [decision for decision in found if isinstance(decision, (RouteOn, CloseFrame))]
        for move in moves:
            if not await self._settle(move):
                break
        return bool(moves)

    def _expire_pauses(self) -> None:
        """Settle the waits that are over; wake up for the next."""
        for answered in elapsed(self.run, lambda at: self.time_left(at) <= 0):
            self._record(answered)
        times = [pause.expires_at for pause in self.run.pauses.values() if pause.expires_at is not None]
        self._wake_at = min(times, default=None)

    def _is_long(self, until: float) -> bool:
        return self.idle_timeout is not None and self.time_left(until) > self.idle_timeout

    async def _look_back(self) -> None:
        """Learn what the run may be given of what another, or it itself, has finished."""
        from holdfast.engine.time_travel.reuse import ReusableSteps

        look = partial(ReusableSteps.of, self.settings.journal, self.graph, self.codec, self.run, self.run_id)
        self.reusable = look() if self.private else await in_background(look)
        if self.reusable is not None:
            self._moves.reused = self.reusable.steps

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
        if step.answers.get(INTERRUPTED) == b"rerun":
            self._wanted_again.add(step.id)
        self._record(StepStarted(step.id, step.attempt + 1))
        return True

    async def _settle(self, decision: Decision) -> bool:
        """Record a decision that starts no step; `False` if the run is over with it."""
        try:
            return await self._do(decision)
        except RouteFailed as error:
            self._ending.fail(problem_of(error), error.node, error.__cause__ or error)
            return False

    async def _do(self, decision: Decision) -> bool:
        match decision:
            case RouteOn(frame, names):
                await self._moves.by_choice(frame, names)
            case OpenFrame(step):
                await self._moves.open_frame(step)
                self._say_start(step)
            case CloseFrame(step):
                self._results.close_frame(step)
            case Gate(step):
                self._gates.before(step)
            case AskWhat(step, kind):
                self._gates.ask_what(step, kind)
            case SkipStep(step):
                self._record(StepFinished(step.id, skipped="interrupted"))
            case RefuseStep(step):
                self._results.refuse(step)
            case Reconcile(step):
                await self._reconcile(step)
                return self.stop is None
            case ExceedIterations(frame, limit):
                self._ending.exceed(frame, limit)
                return False
            case End(status):
                if status in (RunStatus.COMPLETED, RunStatus.PAUSED):
                    await self._look_now()
                if self.inbox.has_commands:
                    return await self._apply_commands()
                self._ending.end(status)
                return False
            case Start():
                raise AssertionError("started by the loop itself")
            case _:
                assert_never(decision)
        return True

    # Running steps.

    def _look_first(self) -> None:
        """Refuse if the run was left or overtaken, in the thread of a step: that is not the step's failure."""
        if self.has_left_run:
            raise StopSignal
        with self._keeping():
            self.overtaking.refuse()

    async def _execute(self, launches: list[Step]) -> None:
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

    async def _run_alone(self, step: Step) -> Result:
        """What came of a lone step, or of the last of those that could be run at once after it."""
        result: Result | None = None
        if self._glide is not None and self._glide.may_begin():
            step, result = self._glide.run_on(step)
        if result is None:
            result = await self._attempt_alone(step)
        if result.seconds >= 0:
            return result
        node = graph_of(self.graph, step).nodes[step.node]
        state, context = result.state, result.context
        assert state is not None
        return await attempt_async(node, step, state, context, self.config, result.value)

    async def _attempt_alone(self, step: Step) -> Result:
        self.overtaking.refuse()
        node, state, context = self.prepare(step)
        if self.private and node.runs_inline:
            self.inline = True
            try:
                if self.stop is not None:
                    return Result(step, error=StopSignal())
                return attempt_here(node, step, state, context, self.config)
            finally:
                self.inline = False
        self._schedule_poll()
        self._awaiting = True
        try:
            return await attempt_async(node, step, state, context, self.config, look=self._look_first)
        finally:
            self._awaiting = False

    def prepare(self, step: Step) -> tuple[Node, State, Context | None]:
        """What an attempt of a step is made with."""
        self.steps_run += 1
        node = graph_of(self.graph, step).nodes[step.node]
        state = state_for(self.saving, step)
        if node.reads is not None:
            state = limited(state, node.reads, node.name, [op.key for op in step.item])
        context = Context(self, step, self.config, node.is_async) if node.wants_context else None
        return node, state, context

    async def _attempt_task(self, step: Step) -> None:
        self.overtaking.refuse()
        node, state, context = self.prepare(step)
        result = await attempt_async(node, step, state, context, self.config, look=self._look_first)
        self._finished.append(result)

    def _task_ended(self, step: str, task: asyncio.Task[None]) -> None:
        assert self._wake is not None and self._idle is not None
        self._tasks.pop(step, None)
        if not task.cancelled():
            error = task.exception()  # Asked of each task, or asyncio logs that nobody did.
            self._overtaken = self._overtaken or error
        elif not task.cancelling():  # Nobody asked for that.
            self._overtaken = self._overtaken or asyncio.CancelledError()
        self._wake.set()
        if not self._tasks:
            self._idle.set()

    async def _gather(self) -> None:
        """Wait for steps to finish, and a moment longer for those that finish together."""
        assert self._wake is not None and self._idle is not None
        self._schedule_poll()
        if not self._finished and self.stop is None:
            self._wake.clear()
            timeout = None if self._wake_at is None else max(0.0, self.time_left(self._wake_at))
            if self._tasks or timeout is not None:
                await _wait(self._wake, timeout)
        if self._tasks and self._finished and self.stop is None:
            self._idle.clear()
            await _wait(self._idle, self._gathering_seconds())
        self._take_results()
        if self._overtaken is not None:
            self._keep_the_rest()
            raise self._overtaken

    def _gathering_seconds(self) -> float:
        """Short while further steps wait for a place, unless there are so many that deciding takes its time."""
        full = len(self._tasks) + len(self._finished) >= self.rules.max_parallel
        return (
            GATHERING / 10
            if full and sum(len(f.active) for f in self.run.frames.values()) < 2000
            else GATHERING
        )

    def _take_results(self) -> None:
        results, self._finished = self._finished, []
        unsaved = None
        for result in results:
            if any(result.error is error for error in self._unsaved):
                unsaved = unsaved or result.error
            else:
                self._take(result)
        if unsaved is not None:
            self._keep_the_rest()
            raise unsaved

    def _keep_the_rest(self) -> None:
        with suppress(ExecutionError, RunConflict, StoreError):
            self.saving.flush()

    def _take(self, result: Result) -> None:
        for error in self._unsaved:
            if result.error is error:
                raise error
        self._results.take(result)
        if self._results.stopped and self.stop is None:
            self.stop = RunStatus.INTERRUPTED

    async def _reconcile(self, step: Step) -> None:
        """Let the node's own function look at the world and say whether the step was done."""
        node, state, _ = self.prepare(step)
        context = Context(self, step, self.config, False)
        look = node.if_interrupted
        assert callable(look)
        looking = dataclasses.replace(
            node, function=look, wants=("ctx",), named=(), is_async=False, timeout=None
        )
        result = attempt_here(looking, step, state, context, self.config)
        if result.seconds < 0:
            result = await attempt_async(looking, step, state, context, self.config, result.value)
        if isinstance(result.error, StopSignal) or any(result.error is e for e in self._unsaved):
            self._take(result)
        elif result.error is not None:
            self._results.failed(step, result.error, 0.0, repeatable=False)
        elif result.value is None or result.value is False:
            step.answers[INTERRUPTED] = b"rerun"
        else:
            result.value = None if result.value is True else result.value
            self._take(result)

    def _say_start(self, step: Step) -> None:
        iteration = self.run.frames[step.frame].waves + 1
        self._say("node.start", step.node, step=step.id, attempt=step.attempt, iteration=iteration)


async def _wait(event: asyncio.Event, timeout: float | None) -> None:
    if timeout is None:
        await event.wait()
        return
    try:
        async with asyncio.timeout(timeout):
            await event.wait()
    except TimeoutError:
        return
