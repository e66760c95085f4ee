"""The loop: decide, record, attempt, record, until a run is finished, paused, failed or stopped."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, assert_never

from holdfast.data.ops import Op, Slot, advance
from holdfast.data.schema import as_mapping
from holdfast.data.state import State
from holdfast.engine import files
from holdfast.engine.attempt import Result, attempt_async, attempt_here, fault_of
from holdfast.engine.context import Context, PauseSignal, StopSignal
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
    qualified,
)
from holdfast.engine.inbox import read_message
from holdfast.engine.route import RouteFailed, choose, merge_targets, to_targets
from holdfast.engine.settings import Settings
from holdfast.errors import (
    CodecError,
    ExecutionError,
    HoldfastError,
    MaxIterationsExceeded,
    StateInvalid,
    StoreError,
)
from holdfast.events import Event, Observer, tell
from holdfast.journal.checkpoints import checkpoint_id, encode_mark
from holdfast.journal.fold import DONE, EVERY_KEY, FAILED, INTERRUPTED, Frame, RunState, Step
from holdfast.journal.journal import Writer
from holdfast.journal.records import (
    Commanded,
    FrameOpened,
    Noted,
    Paused,
    Record,
    RunEnded,
    StepFailed,
    StepFinished,
    StepStarted,
    Target,
    WaveFinished,
)
from holdfast.plan.graph import Command, Graph, Node
from holdfast.values import END, START, RunStatus

logger = logging.getLogger("holdfast")

LINGER = 0.02
"""How long, in seconds, a finished step waits for its running siblings before it is saved without them."""

POLL = 0.25
"""How often, in seconds, a run looks into its inbox."""

LARGE_CHECKPOINT = 500 * 1024


class Drive:
    """One process's work on one run, from taking it up to leaving it."""

    def __init__(
        self,
        settings: Settings,
        writer: Writer,
        *,
        config: Mapping[str, Any],
        observer: Observer | None,
        private: bool,
        if_interrupted: str | None = None,
    ) -> None:
        self.settings, self.writer, self.config, self.observer = settings, writer, config, observer
        self.private = private
        self.graph, self.codec = settings.graph, settings.codec
        self.rules = settings.rules
        if if_interrupted is not None:
            self.rules = dataclasses.replace(self.rules, if_interrupted=if_interrupted)
        self.run_id = writer.info.run
        self.run: RunState = writer.run
        self._saves_always = settings.policy.interval == 1 and settings.policy.durability != "exit"
        self.causes: dict[str, BaseException] = {}
        self.stop: RunStatus | None = None
        self.stop_reason = ""
        self.inline = False
        self.retries = self.save_errors = self.steps_run = 0
        self._error: HoldfastError | None = None
        self._late_errors = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._results: list[Result] = []
        self._events: list[tuple[str, str, dict[str, Any]]] = []
        self._wake: asyncio.Event | None = None
        self._idle: asyncio.Event | None = None
        self._wake_at: float | None = None
        self._due = False
        self._marked = False
        self._mark_place = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[Any] | None = None
        self._polled = time.monotonic()
        self._poll_handle: asyncio.TimerHandle | None = None
        self._awaiting = False
        self._paths: dict[str, str | None] = {}

    # What a context asks of its host.

    def note(self, record: Noted) -> None:
        """Record what a step must remember, and store it before returning."""
        self.writer.record(record, time.time())
        if self.settings.policy.saves_wave(0):
            self._flush_guarded()

    def emit(self, type: str, node: str = "", /, **data: Any) -> None:
        """Tell the observers, if there are any."""
        if self.observer is not None:
            tell(self.observer, Event(type, self.run_id, node, data))

    def stop_wanted(self) -> bool:
        """Whether the run is to stop; looks into the inbox now and then."""
        if self.stop is None and time.monotonic() - self._polled > POLL:
            self._read_inbox(record=False)
        return self.stop is not None

    # Being stopped.

    def request_stop(self, status: RunStatus, reason: str) -> None:
        """Stop soon: save, and leave what is running. May be called from any thread or a signal handler."""
        if self.stop is None:
            self.stop, self.stop_reason = status, reason
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel_running)

    def _cancel_running(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        if self._wake is not None:
            self._wake.set()
        if self._awaiting and self._main is not None:
            self._main.cancel()

    # The loop.

    async def drive(self) -> RunStatus:
        """Advance the run as far as it goes; the status it then has. Failures are left in `failure`."""
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        try:
            while True:
                launches = await self._advance()
                if self.private:
                    self._save_here()
                else:
                    await self._save()
                if self.run.status != RunStatus.RUNNING:
                    return RunStatus(self.run.status)
                try:
                    await self._execute(launches)
                except asyncio.CancelledError:
                    if self.stop is None:
                        raise
                    if self._main is not None:
                        self._main.uncancel()
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
            self.abandon("the process was asked to stop")
            raise
        finally:
            self._awaiting = False
            if self._poll_handle is not None:
                self._poll_handle.cancel()
            for task in self._tasks.values():
                task.cancel()
            self._loop = None

    def abandon(self, reason: str) -> None:
        """Save the run as interrupted, from wherever it was."""
        if self.run.status != RunStatus.RUNNING:
            return
        self._finish_results()
        self._end(self.stop or RunStatus.INTERRUPTED, self.stop_reason or reason)
        self._flush_guarded()
        self._tell_saved()

    def _finish_results(self) -> None:
        results, self._results = self._results, []
        for result in results:
            self._take(result)

    async def _advance(self) -> list[Step]:
        """Record every decision that can be made now; the steps that are to be run."""
        launches: list[Step] = []
        if time.monotonic() - self._polled > POLL:
            self._read_inbox(record=True)
        if self.stop is not None:
            self._finish_results()
            self._end(self.stop, self.stop_reason)
            return launches
        self._wake_at = None
        progress = True
        while progress and self.run.status == RunStatus.RUNNING:
            progress = False
            for decision in decide(self.graph, self.run, self.rules):
                if type(decision) is Start:
                    if self._begin(decision.step, decision.at):
                        launches.append(decision.step)
                        progress = progress or len(launches) > 1 or bool(self._tasks)
                elif type(decision) is RouteOn:
                    frame = decision.frame
                    progress = self._route_plainly(frame) or await self._route(frame, decision.steps)
                    if not progress:
                        break
                else:
                    progress = await self._settle(decision)
                    if not progress:
                        break
        if launches and self.observer is not None:
            self._say("wave.start", wave=self.run.root.waves + 1, nodes=[step.node for step in launches])
            for step in launches:
                self._say_start(step)
        return launches

    def _begin(self, step: Step, at: float | None) -> bool:
        """Record the intent to run a step, unless it is to wait until `at`."""
        if at is not None and at > time.time():
            self._wake_at = at if self._wake_at is None else min(at, self._wake_at)
            return False
        self._record(StepStarted(step.id, step.attempt + 1))
        return True

    async def _settle(self, decision: Decision) -> bool:
        """Record a decision that starts no step; `False` if the run is over with it."""
        match decision:
            case End(status):
                self._end(status)
                return False
            case OpenFrame(step):
                return await self._open_frame(step)
            case CloseFrame(step):
                self._record(StepFinished(step.id, promoted=True))
                self._say("node.complete", step.node, step=step.id, error=False)
            case Gate(step):
                self._gate(step)
            case AskWhat(step, kind):
                self._ask_what(step, kind)
            case SkipStep(step):
                self._record(StepFinished(step.id, skipped="interrupted"))
            case RefuseStep(step):
                self._refuse(step)
            case Reconcile(step):
                await self._reconcile(step)
            case ExceedIterations(frame, limit):
                self._exceed(frame, limit)
                return False
            case Start() | RouteOn():
                raise AssertionError("handled by the loop itself")
            case _:
                assert_never(decision)
        return True

    def _record(self, record: Record) -> None:
        self.writer.record(record, time.time())

    # Saving.

    def _save_here(self) -> None:
        if self._is_due():
            self._flush_guarded()
        if self._events:
            self._tell_saved()

    async def _save(self) -> None:
        if self._is_due():
            try:
                await self.writer.flush_async()
            except StoreError as error:
                self._save_failed(error)
            else:
                self._saved()
        self._tell_saved()

    def _is_due(self) -> bool:
        status = self.run.status
        if status == RunStatus.RUNNING:
            return self._saves_always or self._due
        policy = self.settings.policy
        leaves_nothing = status == RunStatus.FAILED and policy.on_failure == "rollback"
        unsaved_end = leaves_nothing or (status == RunStatus.COMPLETED and policy.interval == 0)
        return not unsaved_end or self.writer.stored > 0

    def _flush_guarded(self) -> None:
        try:
            self.writer.flush()
        except StoreError as error:
            self._save_failed(error)
        else:
            self._saved()

    def _saved(self) -> None:
        self._late_errors = 0
        self._due = False
        if self._marked:
            self._marked = False
            if self.writer.last_size > LARGE_CHECKPOINT:
                logger.warning(
                    "run %s: a checkpoint of %d KB was saved; large values slow every resume",
                    self.run_id,
                    self.writer.last_size // 1024,
                )
            if self.observer is not None:
                self._say(
                    "checkpoint.save",
                    self.run.root.last_node,
                    node=self.run.root.last_node,
                    checkpoint_id=self.checkpoint_id,
                    timestamp=time.time(),
                    run_id=self.run_id,
                    size=self.writer.last_size,
                )
                # Told where it was marked: after the wave that it saves, before what follows.
                self._events.insert(self._mark_place, self._events.pop())

    def _save_failed(self, error: StoreError) -> None:
        self.save_errors += 1
        self._late_errors += 1
        self.emit("checkpoint.fail", error=str(error), consecutive=self._late_errors)
        if self.settings.policy.on_save_error == "fail":
            raise ExecutionError(
                f"checkpoint save failed: {error}",
                node=self.run.root.last_node,
                state=self.state(),
                path=self.run.path,
                run_id=self.run_id,
                cause=error,
                resume_hint=f"what was saved before can be resumed with app.resume({self.run_id!r})",
            ) from error
        logger.warning("run %s: checkpoint save failed, going on without: %s", self.run_id, error)

    def _say(self, type: str, node: str = "", /, **data: Any) -> None:
        """Tell the observers something once it is saved."""
        if self.observer is not None:
            self._events.append((type, node, data))

    def _tell_saved(self) -> None:
        if self._events:
            events, self._events, self._mark_place = self._events, [], 0
            for type_, node, data in events:
                self.emit(type_, node, **data)

    @property
    def checkpoint_id(self) -> str:
        """The newest checkpoint; empty before the first."""
        seq = self.run.saved_seq
        return checkpoint_id(self.writer.info.key, seq) if seq else ""

    def state(self, frame: Frame | None = None) -> State:
        """The state now."""
        frame = self.run.root if frame is None else frame
        key, seq = self.writer.info.key, self.run.saved_seq
        ident: Any = partial(checkpoint_id, key, seq) if seq else ""
        return State.view(frame.cells, self.codec, self.run_id, ident, frame.last_node, self.run.updated_at)

    # Running steps.

    async def _execute(self, launches: list[Step]) -> None:
        if len(launches) == 1 and not self._tasks and self._wake_at is None:
            self._take(await self._attempt_alone(launches[0]))
            return
        assert self._loop is not None
        if self._wake is None:
            self._wake, self._idle = asyncio.Event(), asyncio.Event()
        for step in launches:
            self._tasks[step.id] = self._loop.create_task(self._attempt_task(step))
        await self._gather()

    async def _attempt_alone(self, step: Step) -> Result:
        node, state, context = self._prepare(step)
        self.steps_run += 1
        if self.private and not node.is_async and node.timeout is None:
            self.inline = True
            try:
                if self.stop is not None:
                    return Result(step, error=StopSignal())
                result = attempt_here(node, step, state, context, self.config)
            finally:
                self.inline = False
            if result.seconds >= 0:
                return result
            return await attempt_async(node, step, state, context, self.config, result.value)
        self._schedule_poll()
        self._awaiting = True
        try:
            return await attempt_async(node, step, state, context, self.config)
        finally:
            self._awaiting = False

    def _prepare(self, step: Step) -> tuple[Node, State, Context]:
        frame = self.run.frames[step.frame]
        node = (self.graph if not step.frame else self.graph.at(step.frame)).nodes[step.node]
        state = self.state(frame)
        if step.item:
            state = state.overlaid(advance({}, step.item))
        return node, state, Context(self, step, self.config, node.is_async)

    async def _attempt_task(self, step: Step) -> None:
        assert self._wake is not None and self._idle is not None
        node, state, context = self._prepare(step)
        self.steps_run += 1
        try:
            result = await attempt_async(node, step, state, context, self.config)
            self._results.append(result)
        finally:
            del self._tasks[step.id]
            self._wake.set()
            if not self._tasks:
                self._idle.set()

    async def _gather(self) -> None:
        """Wait for steps to finish, and a moment longer for those that finish together."""
        assert self._wake is not None and self._idle is not None
        self._schedule_poll()
        if not self._results and self.stop is None:
            self._wake.clear()
            timeout = None if self._wake_at is None else max(0.0, self._wake_at - time.time())
            if self._tasks or timeout is not None:
                await _wait(self._wake, timeout)
        if self._tasks and self._results and self.stop is None:
            self._idle.clear()
            await _wait(self._idle, LINGER)
        self._finish_results()

    def _schedule_poll(self) -> None:
        if self._poll_handle is None and self._loop is not None:
            self._poll_handle = self._loop.call_later(POLL, self._poll)

    def _poll(self) -> None:
        self._poll_handle = None
        if self._loop is None:
            return
        self._read_inbox(record=False)
        if self.stop is not None:
            self._cancel_running()
        elif self._tasks or self._awaiting:
            self._schedule_poll()

    def _read_inbox(self, *, record: bool) -> None:
        """Look for a wish to cancel; take messages in only where records may be written."""
        self._polled = time.monotonic()
        try:
            messages = self.settings.journal.store.inbox(self.run_id, self.run.inbox_seen)
        except StoreError as error:
            logger.warning("run %s: the inbox cannot be read: %s", self.run_id, error)
            return
        for message in messages:
            command, reason = read_message(message.body)
            if record:
                refused = "" if command == "cancel" else f"unknown command {command!r}"
                self._record(Commanded(message.number, command, refused))
            if command == "cancel" and self.stop is None:
                self.stop, self.stop_reason = RunStatus.CANCELLED, reason

    # What came of an attempt.

    def _take(self, result: Result) -> None:
        step, error = result.step, result.error
        if error is None:
            try:
                ops, goto = self._changes(step, result.value)
            except (StateInvalid, CodecError, RouteFailed) as problem:
                self._failed(step, problem, result.seconds, repeatable=False)
                return
            self._record(StepFinished(step.id, ops, goto, result.seconds))
            if self.observer is not None:
                update = {op.key: op.value for op in ops}
                self._say(
                    "node.complete",
                    step.node,
                    step=step.id,
                    error=False,
                    seconds=result.seconds,
                    update=update,
                )
        elif isinstance(error, PauseSignal):
            self._record(error.paused)
        elif isinstance(error, StopSignal):
            self.stop = self.stop or RunStatus.INTERRUPTED
        else:
            self._failed(step, error, result.seconds)

    def _changes(self, step: Step, value: Any) -> tuple[tuple[Op, ...], tuple[Target, ...] | None]:
        goto: tuple[Target, ...] | None = None
        graph = self.graph if not step.frame else self.graph.at(step.frame)
        cells = self.run.frames[step.frame].cells
        if type(value) is dict:
            return tuple(graph.schema.resolve(self.codec, cells, value)), None
        if isinstance(value, Command):
            if value.goto is not None:
                chosen = value.goto if isinstance(value.goto, (list, tuple)) else (value.goto,)
                targets = to_targets(graph, step.node, chosen, self.codec)
                goto = merge_targets(graph, [(step.node, targets)])
            value = value.update
        if value is None:
            return (), goto
        if isinstance(value, State):
            return tuple(self._state_changes(graph, cells, step, value)), goto
        update = as_mapping(value, f"what node {step.node!r} returns")
        return tuple(graph.schema.resolve(self.codec, cells, update)), goto

    def _state_changes(self, graph: Graph, cells: dict[str, Slot], step: Step, state: State) -> list[Op]:
        """The changes between two whole states: what a node that returns a `State` means."""
        overlay = {op.key: op.value for op in step.item}
        values = {key: state[key] for key in state if key not in overlay or state[key] is not overlay[key]}
        ops = graph.schema.replace(self.codec, cells, values)
        ops += [Op("drop", key, b"") for key in cells if key not in state]
        return ops

    def _failed(self, step: Step, error: BaseException, seconds: float, repeatable: bool = True) -> None:
        node = self.graph.at(step.frame).nodes[step.node]
        fault = fault_of(error)
        delay = node.retry.delay_after(step.tried, error) if node.retry and repeatable else None
        retry_at = None if delay is None else time.time() + delay
        self.causes[step.id] = error
        self._record(StepFailed(step.id, step.attempt, fault, retry_at, seconds))
        self._say("node.error", step.node, step=step.id, attempt=step.attempt, error=str(fault))
        if delay is not None:
            self.retries += 1
            self._say("node.retry", step.node, step=step.id, attempt=step.attempt, delay=delay)
            return
        if self.settings.policy.on_failure == "continue":
            logger.warning("run %s: node %r failed, going on without: %s", self.run_id, step.node, fault)
            self._record(StepFinished(step.id, skipped=str(fault)))
            self._say("node.warning", step.node, step=step.id, error=str(fault))
        self._say("node.complete", step.node, step=step.id, error=True, seconds=seconds)

    # Moving on.

    def _route_plainly(self, frame: Frame) -> bool:
        """Record the end of a wave of one step after which there is no choice; `False` if this is none."""
        if len(frame.active) != 1:
            return False
        (step,) = frame.active.values()
        graph = self.graph if not frame.path else self.graph.at(frame.path)
        only = graph.only_next.get(step.node)
        if only is None or step.goto is not None:
            return False
        for op in step.ops:
            if op.kind == "reduce":
                return False
        targets = (Target(only),) if only in graph.nodes else ()
        self._record(WaveFinished(frame.path, (), targets, tuple(frame.waiting.items())))
        self._after_wave(graph, frame, [step], targets)
        return True

    async def _route(self, frame: Frame, names: tuple[str, ...] | None) -> bool:
        """Record the end of a wave; `False` if what follows cannot be found, which fails the run."""
        graph = self.graph if not frame.path else self.graph.at(frame.path)
        steps = list(frame.active.values()) if names is None else [frame.active[name] for name in names]
        reduced: list[Op] = []
        try:
            cells = advance(frame.cells, [op for step in steps for op in step.ops])
            if any(op.kind == "reduce" for step in steps for op in step.ops):
                reduced = graph.schema.reduce(self.codec, cells, [list(step.ops) for step in steps])
                cells = advance(cells, reduced)
            after = State.view(cells, self.codec, self.run_id, "", steps[-1].node, time.time())
            targets, waiting = await self._find_next(graph, steps, after, frame.waiting)
        except Exception as error:
            self._route_failed(steps[-1], error)
            return False
        self._record(WaveFinished(frame.path, tuple(reduced), targets, tuple(waiting.items()), names))
        self._after_wave(graph, frame, steps, targets)
        return True

    async def _find_next(
        self, graph: Graph, steps: list[Step], state: State, waiting: dict[str, tuple[str, ...]]
    ) -> tuple[tuple[Target, ...], dict[str, tuple[str, ...]]]:
        found: list[tuple[str, list[Target]]] = []
        waiting = dict(waiting)
        chosen_for: set[str] = set()
        emit = self.emit if self.observer is not None else None
        for step in steps:
            if step.goto is not None:
                found.append((step.node, list(step.goto)))
                continue
            if step.node in chosen_for:
                continue
            chosen_for.add(step.node)
            try:
                chosen = await choose(graph, step.node, state, emit)
            except RouteFailed:
                raise
            except Exception as error:
                raise RouteFailed(step.node, f"routing after node {step.node!r} failed: {error!r}") from error
            found.append((step.node, to_targets(graph, step.node, chosen, self.codec)))
            for join in graph.joins_from.get(step.node, ()):
                arrived = waiting.get(join.id, ())
                arrived = arrived if step.node in arrived else (*arrived, step.node)
                if len(arrived) == len(join.sources):
                    waiting.pop(join.id, None)
                    found.append((step.node, to_targets(graph, step.node, [join.target], self.codec)))
                else:
                    waiting[join.id] = arrived
        return merge_targets(graph, found), waiting

    def _after_wave(self, graph: Graph, frame: Frame, steps: list[Step], targets: tuple[Target, ...]) -> None:
        if not self._saves_always and self.settings.policy.saves_wave(frame.waves):
            self._due = True
        self._mark(frame, [step.node for step in steps], [target.node for target in targets])
        for step in steps if self.settings.interrupt_after else ():
            if qualified(step) in self.settings.interrupt_after:
                self._pause("after", step)
        if self.observer is None:
            return
        for step in steps:
            for target in targets:
                self._say("edge.transition", step.node, **{"from": step.node, "to": target.node})
        self._say("state.update", keys=sorted({op.key for step in steps for op in step.ops}))
        for name in dict.fromkeys(target.node for target in targets):
            if frame.visits[name] > 1:
                self._say(
                    "cycle.detected",
                    name,
                    node=name,
                    visit_count=frame.visits[name],
                    iteration=frame.waves + 1,
                    path_length=self.run.steps_done + 1,
                )
        if not targets and not frame.active:
            for join, arrived in frame.waiting.items():
                self._say("join.incomplete", node=join.rpartition(">")[2], arrived=list(arrived))

    def _mark(self, frame: Frame, nodes: list[str], next_: list[str]) -> None:
        policy = self.settings.policy
        if policy.interval > 1 and frame.waves % policy.interval and nodes:
            return
        self.writer.mark(encode_mark(frame.waves, nodes, list(dict.fromkeys(next_)), frame.path))
        self._marked, self._mark_place = True, len(self._events)

    def _route_failed(self, step: Step, error: Exception) -> None:
        node = error.node if isinstance(error, RouteFailed) else step.node
        cause = error.__cause__ if isinstance(error, RouteFailed) and error.__cause__ else error
        self._error = self._execution_error(str(error), node, cause)
        self._end(RunStatus.FAILED, str(error), node)

    def _exceed(self, frame: Frame, limit: int) -> None:
        node = next(iter(frame.active.values())).node
        self._error = self._execution_error(
            f"max iterations ({limit}) exceeded", node, None, MaxIterationsExceeded
        )
        self._end(RunStatus.FAILED, f"max iterations ({limit}) exceeded", node)

    async def _open_frame(self, step: Step) -> bool:
        parent = self.graph.at(step.frame)
        child = parent.nodes[step.node].graph
        assert child is not None
        if child.schema.is_open:
            shared: tuple[str, ...] = EVERY_KEY if parent.schema.is_open else tuple(parent.schema.channels)
        else:
            shared = tuple(
                k for k in child.schema.channels if parent.schema.is_open or k in parent.schema.channels
            )
        cells = self.run.frames[step.frame].cells
        inherited = {key for key in cells if shared == EVERY_KEY or key in shared}
        own = [op for op in step.item if child.schema.is_open or op.key in child.schema.channels]
        known = inherited | {op.key for op in own}
        fresh = [op for op in child.schema.initial(self.codec, {}) if op.key not in known]
        try:
            state = State.view(
                advance({key: cells[key] for key in inherited}, [*fresh, *own]),
                self.codec,
                self.run_id,
                "",
                step.node,
                time.time(),
            )
            targets = await first_targets(child, state, self.codec)
        except Exception as error:
            self._route_failed(step, error)
            return False
        reduced = tuple(key for key in shared if child.schema.reduces(key) and parent.schema.reduces(key))
        self._record(FrameOpened(step.id, shared, (*fresh, *own), targets, reduced))
        self._say_start(step)
        return True

    async def _reconcile(self, step: Step) -> None:
        """Let the node's own function look at the world and say whether the step was done."""
        node = self.graph.at(step.frame).nodes[step.node]
        look = node.if_interrupted
        assert callable(look)
        looking = dataclasses.replace(node, function=look, wants=("ctx",), is_async=False, timeout=None)
        _, state, context = self._prepare(step)
        result = attempt_here(looking, step, state, context, self.config)
        if result.seconds < 0:
            result = await attempt_async(looking, step, state, context, self.config, result.value)
        if result.error is not None:
            self._failed(step, result.error, 0.0, repeatable=False)
        elif result.value is None or result.value is False:
            step.answers[INTERRUPTED] = b"rerun"
        else:
            result.value = None if result.value is True else result.value
            self._take(result)

    # Pausing and ending.

    def _gate(self, step: Step) -> None:
        self._pause("before", step)
        if self.settings.notify:
            step.passed = True

    def _pause(self, kind: str, step: Step) -> None:
        path = self._save_file(step, kind)
        if self.settings.notify:
            facts = {"kind": kind, "step": step.id, "state": self.state(), "notify": True}
            self._say("pause", step.node, **facts, checkpoint_path=path)
            return
        self._paths[f"{step.id}:{kind}"] = path
        self._record(
            Paused(
                f"{step.id}:{kind}",
                kind,
                step.id,
                step.node,
                prompt=f"paused {kind} {step.node!r}",
                since=time.time(),
            )
        )

    def _save_file(self, step: Step, kind: str) -> str | None:
        """Write the checkpoint file of a gate, if there is a folder for them; its path."""
        directory = self.settings.checkpoint_dir
        if directory is None:
            return None
        upcoming = [other for other in self.run.active() if other.status != DONE]
        if len(upcoming) > 1 or step.frame:
            logger.warning(
                "run %s: a checkpoint file at node %r holds the main state only; %d other steps are under way",
                self.run_id,
                step.node,
                len(upcoming) - (kind == "before"),
            )
        nodes = tuple(dict.fromkeys(other.node for other in upcoming)) or (END,)
        node = step.node if kind == "before" else nodes[0]
        path = files.automatic_path(directory, step.node)
        try:
            files.save(path, self.state(), node, self.config, nodes, node if kind == "before" else "")
        except (StoreError, CodecError) as error:
            self._save_failed(error if isinstance(error, StoreError) else StoreError(str(error)))
            return None
        return str(path)

    def _ask_what(self, step: Step, kind: str) -> None:
        if kind == "poison":
            prompt = f"step {step.id!r} was running {step.crashes} times when the process died; rerun, skip or fail it?"
        else:
            prompt = f"step {step.id!r} was interrupted and may or may not have taken effect; rerun, skip or fail it?"
        schema = self.codec.encode({"enum": ["rerun", "skip", "fail"]})
        pause = f"{step.id}:{kind}"
        self._record(Paused(pause, kind, step.id, step.node, INTERRUPTED, prompt, schema, since=time.time()))

    def _refuse(self, step: Step) -> None:
        error = HoldfastError(
            f"step {step.id!r} was interrupted and may or may not have taken effect, and its node may not be "
            "repeated unasked; look, then resume with if_interrupted='rerun' or 'skip'"
        )
        self._failed(step, error, 0.0, repeatable=False)

    def _end(self, status: RunStatus, reason: str = "", node: str = "") -> None:
        run = self.run
        if status == RunStatus.FAILED and self._error is None:
            failed = next(step for step in run.active() if step.status == FAILED)
            cause = self.causes.get(failed.id)
            fault = failed.fault
            node, reason = failed.node, str(fault)
            self._error = self._execution_error(f"node {qualified(failed)!r} failed: {fault}", node, cause)
        if (
            status in (RunStatus.PAUSED, RunStatus.FAILED, RunStatus.INTERRUPTED, RunStatus.CANCELLED)
            and not self._marked
        ):
            waiting = [step.node for step in run.active() if step.status != DONE]
            self._mark(run.root, [], waiting)
        fault_record = fault_of(self._error) if status == RunStatus.FAILED and self._error else None
        self._record(RunEnded(status, fault_record, node))
        self.writer.set_info(
            dataclasses.replace(self.writer.info, status=str(status), updated_at=time.time(), driver="")
        )
        if self.observer is not None:
            self._say_end(status, reason)

    def _say_start(self, step: Step) -> None:
        self._say(
            "node.start",
            step.node,
            step=step.id,
            attempt=step.attempt,
            iteration=self.run.frames[step.frame].waves + 1,
        )

    def _say_end(self, status: RunStatus, reason: str) -> None:
        run = self.run
        if status == RunStatus.COMPLETED:
            self._say("graph.complete", exit_point=run.root.last_node, iterations=run.root.waves)
        elif status == RunStatus.FAILED:
            self._say("graph.fail", error=reason)
        elif status == RunStatus.PAUSED:
            for pause in run.pauses.values():
                self._say(
                    "pause",
                    pause.node,
                    kind=pause.kind,
                    pause=pause.id,
                    name=pause.name,
                    prompt=pause.prompt,
                    state=self.state(),
                    checkpoint_path=self._paths.get(pause.id),
                )
        else:
            self._say("graph.cancel", status=str(status), reason=reason)

    @property
    def failure(self) -> HoldfastError | None:
        """Why the run failed, ready to be raised."""
        return self._error

    def _execution_error(
        self,
        message: str,
        node: str,
        cause: BaseException | None,
        kind: type[ExecutionError] = ExecutionError,
    ) -> ExecutionError:
        error = kind(
            f"run {self.run_id!r}: {message}",
            node=node,
            state=self.state(),
            path=[*self.run.path, node],
            run_id=self.run_id,
            cause=cause,
            resume_hint=self._resume_hint(),
        )
        error.__cause__ = cause
        return error

    def _resume_hint(self) -> str:
        if self.settings.policy.on_failure == "rollback":
            return "the run was rolled back: nothing of it is kept"
        return f"finished steps are kept, resume with app.resume({self.run_id!r})"


async def _wait(event: asyncio.Event, timeout: float | None) -> None:
    if timeout is None:
        await event.wait()
        return
    try:
        async with asyncio.timeout(timeout):
            await event.wait()
    except TimeoutError:
        return


async def first_targets(graph: Graph, state: State, codec: Any) -> tuple[Target, ...]:
    """The nodes a graph begins with."""
    chosen = await choose(graph, START, state, None)
    return merge_targets(graph, [(START, to_targets(graph, START, chosen, codec))])
