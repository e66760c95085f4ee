"""The calls of a workflow's function: which recorded step each one is, and running those that are not finished."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from holdfast import clock
from holdfast.engine.attempt import fault_of
from holdfast.engine.context import Context
from holdfast.engine.decide import AskWhat, Reconcile, RefuseStep, SkipStep, Start, next_of, output_of
from holdfast.engine.loop import Execution
from holdfast.engine.once import BodyLeft, StopSignal
from holdfast.errors import HoldfastError, Remedy, StepChanged
from holdfast.functions.call_attempts import CallAttempt, WholeCall, _current
from holdfast.functions.recorded_errors import error_chain, error_data, error_of, handled_errors
from holdfast.functions.saving import BodySaving
from holdfast.functions.step_nodes import StepNodes
from holdfast.graph.graph import Node
from holdfast.journal.records import Paused, StepCalled, StepFailed, StepFinished, StepStarted
from holdfast.journal.run_state import (
    DONE,
    FAILED,
    IN_DOUBT,
    INTERRUPTED,
    READY,
    RETRYING,
    RUNNING,
    SLEEP,
    WAITING,
    Step,
    frame_of,
    step_id,
)
from holdfast.state.codec import Codec
from holdfast.state.ops import SCALARS, Op
from holdfast.threads import locked, run_beside, synchronized
from holdfast.values import step_label
from holdfast.views.plain import preview_raw

if TYPE_CHECKING:
    from holdfast.functions.steps import Call, StepFunction

logger = logging.getLogger("holdfast")

ERROR = "error"
"""The key of an error that a step raised and its caller handled."""

DEEPEST = 100
"""How deep workflows may call each other."""


_executing: set[Calls] = set()
"""The functions of workflows that this process executes now."""


def current_calls(name: str) -> Calls | None:
    """Return the calls of the function at hand, or `None` where a step is the plain function."""
    found = _current.get()
    if isinstance(found, Calls):
        return found
    if found is None and _executing and threading.current_thread().name != "MainThread":
        _warn_of_thread(name, threading.current_thread().name)
    return None


@functools.cache
def _warn_of_thread(name: str, thread: str) -> None:
    logger.warning(
        "%s was called in thread %s, outside of any workflow, and is not recorded; if a workflow started that thread, "
        "give it holdfast.functions.carried(…), or use asyncio.to_thread or %s.map",
        *(name, thread, name),
    )


def carried(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that belongs to the workflow at hand in whatever thread it is called.

    Threads that a workflow starts itself know nothing of it: `pool.submit(carried(fetch), url)`.
    """
    found = _current.get()

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        token = _current.set(found)
        try:
            return function(*args, **kwargs)
        finally:
            _current.reset(token)

    return call


def current_context(what: str) -> Context:
    """Return the context of the step, or else of the workflow's function, at hand."""
    found = _current.get()
    if found is None:
        raise HoldfastError(
            f"{what} works in a workflow only: call it in a function under @workflow or @step that a workflow runs"
        )
    return found.context


class UnderWay:
    """Stands for a call that is not over; nothing but the code that makes the call refers to it."""

    __slots__ = ("__weakref__",)


class Claimed(NamedTuple):
    """A call, and the recorded step that it is, if it is one."""

    call: Call
    step: Step | None
    id: str
    visit: int


class Calls:
    """The calls of one execution of a workflow's function. May be used from any thread and task of it."""

    def __init__(self, context: Context, nodes: StepNodes) -> None:
        self.context, self.path = context, context.step
        if self.path.count("/") >= DEEPEST:
            raise RecursionError(
                f"workflows call each other more than {DEEPEST} deep; use a loop, or plain functions"
            )
        self.host = host = cast(Execution, context._host)
        self._nodes, self._results = nodes, host.results
        self._declared: dict[str, StepFunction[Any, Any]] = {}
        self._lock = threading.RLock()
        self._counts: dict[tuple[str, str | None], int] = {}
        self._claimed: set[str] = set()
        frame = host.run.frames.get(self.path)
        recorded = {} if frame is None else frame.active
        self._alike: dict[tuple[str, str | None, bytes], list[str]] = {}
        for step in recorded.values():
            self._alike.setdefault((step.node, step.key, _identity(step)), []).append(step.id)
        self.saving = BodySaving(host, self.path, self._refuse)
        self._failures: dict[str, BaseException] = {}
        """The failures of steps that the function has not gone on after."""
        self._raised: list[tuple[BaseException, str]] = []
        """What failed steps have raised, with their ids."""
        self._under_way: weakref.WeakSet[object] = weakref.WeakSet()
        """What stands for each call that is not over. One that an exception took by surprise leaves by itself."""
        self._is_over = False
        self._begun_in = _place()
        self.left: BaseException | None = None
        """Why the function is to be left: a pause, a command, a save that failed."""

    # Which recorded step a call is.

    def codec_for(self, function: StepFunction[Any, Any]) -> Codec:
        """Return the codec, which can store what a step declares."""
        codec = self.host.codec
        known = self._declared.get(function.name)
        if known is None:
            if missing := [each for each in function.types if each not in codec.types]:
                codec.types = codec.types.including(missing)
            self._nodes.learn(function.node)
            self._declared[function.name] = function
        elif known.function is not function.function:
            raise HoldfastError(
                f"two steps are named {function.name!r}; give one of them another name: @step(name=…)"
            )
        return codec

    @synchronized
    def claim(self, call: Call) -> Claimed:
        """Return the recorded step that a call is: the one of its number, or the first other with its arguments."""
        node, key = call.function.name, call.key
        number = self._counts[node, key] = self._counts.get((node, key), 0) + 1
        name = step_id(self.path, node, number, key)
        frame = self.host.run.frames.get(self.path)
        known = None if frame is None or name in self._claimed else frame.active.get(name)
        if known is not None and _identity(known) != call.identity:
            other = self._unclaimed(node, key, call.identity)
            if other is None and self._is_aside():
                known, name, number = None, *self._free(node, key, number)
            else:
                known = self._changed(known, call) if other is None else other
        elif known is None and frame is not None:
            known = self._unclaimed(node, key, call.identity)
            if known is None and name in self._claimed:
                name, number = self._free(node, key, number)
        name, number = (name, number) if known is None else (known.id, known.visit)
        self._claimed.add(name)
        return Claimed(call, known, name, number)

    def _free(self, node: str, key: str | None, number: int) -> tuple[str, int]:
        """Return the id and the number of a new step: the first that no other step has."""
        active = self.host.run.frames[self.path].active
        while (name := step_id(self.path, node, number, key)) in self._claimed or name in active:
            number += 1
        return name, number

    def _is_aside(self) -> bool:
        """Return whether this is a task or a thread beside the function's own: the order of its calls is by chance."""
        return _place() != self._begun_in

    def _unclaimed(self, node: str, key: str | None, identity: bytes) -> Step | None:
        """Return a recorded step with these arguments that no call has claimed."""
        for name in self._alike.get((node, key, identity), ()):
            if name not in self._claimed:
                return self.host.run.step(name)
        return None

    def _changed(self, step: Step, call: Call) -> Step | None:
        """Return a finished step that is called with other arguments, if it counts; `None` if it starts over."""
        is_done, on_change = step.status == DONE, call.function.on_change
        if on_change == "rerun" or not (is_done or self._is_in_doubt(step)):
            return None
        if is_done and on_change == "keep":
            return step
        raise self._refusal(self._step_changed(step, call))

    def _is_in_doubt(self, step: Step) -> bool:
        """Return whether a step may have taken effect, and must not start over by itself for that."""
        policy = self.host.rules.if_interrupted or self._nodes[step.node].if_interrupted
        may_rerun = policy == "rerun" or step.answers.get(INTERRUPTED) == b"rerun"
        return step.status in (IN_DOUBT, RUNNING, WAITING) and not may_rerun

    def _step_changed(self, step: Step, call: Call) -> StepChanged:
        codec, run = self.host.codec, self.host.run_id
        recorded = preview_raw(step.item[0].raw, codec, 200) if step.item else "?"
        given = preview_raw(call.item[0].raw, codec, 200)
        what = (
            f"is finished, and its result was recorded for {recorded}; now it is called with {given}. Its result is "
            "not given for other arguments."
        )
        if step.status != DONE:
            what = (
                f"was interrupted and may have taken effect with {recorded}; now it is called with {given}. What its "
                "if_interrupted says holds for the same arguments only."
            )
        return StepChanged(
            f"run {run!r}: step {step_label(step.id)!r} {what} Make the arguments "
            "depend on nothing but the workflow's input and recorded results (holdfast.now(), "
            f"random(), uuid()); give calls that move a key ({call.function.name}.options(key=…)); say what a change "
            f"means with @step(on_change='rerun') or 'keep'; or run step {step.id!r} again, and all after it: that "
            "makes a new run, or, with in_place=True (--in-place), repairs this one",
            remedies=Remedy("rerun", run, {"step": step.id}),
            step=step.id,
            recorded=recorded,
            given=given,
        )

    def _refusal(self, error: BaseException) -> BaseException:
        """Return an error to leave the function with, which it cannot swallow."""
        if self.left is None or isinstance(self.left, BodyLeft):
            self.left = error
        return error

    def _refuse(self, error: BaseException) -> NoReturn:
        raise self._refusal(error)

    # Running calls.

    def run(self, claimed: Claimed) -> Any:
        """Return what a call comes to, in a sync function."""
        if claimed.step is not None and claimed.step.status == DONE:
            return self._output(claimed.step)
        under_way = UnderWay()
        try:
            if claimed.step is not None and (delay := self._delay_of(under_way, claimed.step)):
                self._wait(delay)
            step, runs = self._begin(under_way, claimed, claimed.call.function.asks)
            while runs:
                self.saving.save(step)
                attempt = self._attempt(step, claimed.call)
                self._run_here(attempt)
                if delay := self._take(attempt):
                    self.saving.save()
                    self._wait(delay)
                runs = step.status != DONE and self._runs_again(step, claimed)
            return self._output(step)
        finally:
            self._ended(under_way)

    async def run_async(self, claimed: Claimed, aside: bool = False) -> Any:
        """As `run`, in the event loop; with `aside` sync functions run in threads of their own."""
        if claimed.step is not None and claimed.step.status == DONE:
            return self._output(claimed.step)
        under_way = UnderWay()
        try:
            if claimed.step is not None and (delay := self._delay_of(under_way, claimed.step)):
                await self._wait_async(delay)
            step, runs = self._begin(under_way, claimed)
            while runs:
                await self.saving.save_async(step)
                attempt = self._attempt(step, claimed.call)
                if delay := await self._shielded(self._tried(attempt, aside)):
                    await self.saving.save_async()
                    await self._wait_async(delay)
                runs = step.status != DONE and self._runs_again(step, claimed)
            return self._output(step)
        finally:
            self._ended(under_way)

    def run_aside(self, claimed: Claimed) -> Coroutine[Any, Any, Any]:
        """As `run_async`, where a sync function runs in a thread of its own."""
        return self.run_async(claimed, aside=True)

    async def _tried(self, attempt: CallAttempt, aside: bool) -> float:
        """Run an attempt and record what came of it; return the seconds until it is tried again, if it is."""
        await self._run_in_loop(attempt, aside)
        return self._take(attempt)

    async def _shielded(self, work: Coroutine[Any, Any, float]) -> float:
        """Return what an attempt comes to. It goes on if its caller is cancelled because another step waits."""
        task: asyncio.Task[float] | None = None
        try:
            task = asyncio.get_running_loop().create_task(work)
            return await asyncio.shield(task)
        except BaseException as error:
            if task is None:
                work.close()
            elif not isinstance(error, asyncio.CancelledError):
                task.cancel()
            elif isinstance(self.left, BodyLeft) and not task.done():
                self._under_way.add(task)
                task.add_done_callback(self._ended)
            else:
                task.cancel()
                await asyncio.wait({task})
            raise

    def _ended(self, call: object) -> None:
        self._under_way.discard(call)
        if isinstance(call, asyncio.Task) and not call.cancelled():
            call.exception()  # Nobody else asks for it.

    @synchronized
    def _begin(self, under_way: object, claimed: Claimed, asks: bool = False) -> tuple[Step, bool]:
        """Let a call begin, which `under_way` stands for; return its step, and whether that is about to run."""
        self._enter(under_way, asks)
        if claimed.step is None and self._starts_at_once(claimed.call.function.node):
            step = self._called(claimed, starts=True)
            self.host.saving.say_start(step)
            return step, True
        step = self._called(claimed)
        return step, self._must_run(step, claimed)

    def _starts_at_once(self, node: Node) -> bool:
        """Return whether nothing can keep a new step from running, so that its call and its start are one record."""
        host = self.host
        return host.reusable is None and node.circuit_breaker is None and not host.rules.interrupt_before

    def _enter(self, call: object, asks: bool = False) -> None:
        if self._failures and not self._is_over and not self.host.has_left_run:
            self.pass_failures()  # Whatever becomes of this call, the function has gone on.
        if self._is_over or self.host.stop is not None or self.host.has_left_run:
            raise StopSignal
        if self.left is not None and not (asks and isinstance(self.left, BodyLeft)):
            raise self.left
        self._under_way.add(call)

    def _called(self, claimed: Claimed, starts: bool = False) -> Step:
        """Return the step of a call, recorded as called."""
        host, step, call = self.host, claimed.step, claimed.call
        if host.pausing is not None or host.inbox.waiting:
            self._refuse(BodyLeft())
        if step is None:
            name, path = call.function.name, self.path
            host.saving.record(StepCalled(path, name, claimed.visit, call.key, call.item, starts))
            step = host.run.frames[path].active[claimed.id]
            if host.reusable is not None:
                host._reuses(step)
        return step

    @synchronized
    def _runs_again(self, step: Step, claimed: Claimed) -> bool:
        return self._must_run(step, claimed)

    def _must_run(self, step: Step, claimed: Claimed) -> bool:
        """Record what is to be done with a step; return whether it is about to run."""
        host = self.host
        if step.id in host.run.frames and step.status in (RUNNING, WAITING):
            step.status = READY  # A workflow, whose own calls know what is finished.
        elif step.status == RUNNING:
            step.status = IN_DOUBT  # It was left in the middle by the function, not by a crash.
        elif step.status == WAITING:
            self._wait_with_it()
            self._refuse(BodyLeft())
        if step.status not in (READY, RETRYING, IN_DOUBT):
            return False
        node = self._nodes[step.node]
        if node.circuit_breaker is not None and not self._results.passes_circuit(step):
            return step.status == RETRYING
        decision = next_of(host.graph.at(self.path), step, host.rules)
        if isinstance(decision, Reconcile):
            self._reconcile(step)
            return step.status == READY and self._must_run(step, claimed)
        match decision:
            case AskWhat(_, kind):
                self._results.ask_what(step, kind)
                self._refuse(BodyLeft())
            case SkipStep():
                host.saving.record(StepFinished(step.id, output_of(host.codec, None), skipped="interrupted"))
            case RefuseStep():
                self._results.refuse(step)
            case Start():
                host.saving.record(StepStarted(step.id, step.attempt + 1))
                host.saving.say_start(step)
                return True
        return False

    def _wait_with_it(self) -> None:
        """Have the functions that called a step wait with it, as when it paused: one may have failed since then."""
        run, path = self.host.run, self.path
        while path and run.frames[path].is_body:
            caller = run.step(path)
            if caller.status == RUNNING:
                caller.status = WAITING
            path = frame_of(path)

    def _reconcile(self, step: Step) -> None:
        """Ask the step's own function whether it was done when it was interrupted."""
        node = self._nodes[step.node]
        assert callable(node.if_interrupted)
        context = Context(self.host, step, self.host.config, False)
        attempt = CallAttempt(node, step, context, (), {})
        attempt.node = dataclasses.replace(node, function=node.if_interrupted, is_async=False, timeout=None)
        attempt.args = () if node.wants else (context,)
        attempt.run_here()
        if attempt.seconds < 0:
            self.wait_for(attempt.run())
        if attempt.error is None and (attempt.value is None or attempt.value is False):
            step.status = READY
            return
        if attempt.error is not None and not isinstance(attempt.error, StopSignal):
            self._results.failed(step, attempt.error, 0.0, repeatable=False)
            return
        attempt.value = None if attempt.value is True else attempt.value
        self._take(attempt)

    def _attempt(self, step: Step, call: Call) -> CallAttempt:
        host, node = self.host, self._nodes[step.node]
        host.steps_run += 1
        context = Context(host, step, host.config, node.is_async)
        if node.executor is not None:
            node = dataclasses.replace(node, function=WholeCall(call), wants=("ctx",))
        return CallAttempt(node, step, context, call.args, call.kwargs)

    def _run_here(self, attempt: CallAttempt) -> None:
        """Run an attempt to its end in this thread, or, if it has to be watched, in an event loop."""
        host = self.host
        self.saving.refuse_taken_over()
        if not attempt.node.runs_inline:
            self.wait_for(attempt.run(host._check_owner))
            return
        is_own = host.private and threading.get_ident() == host.thread
        host.inline = host.inline or is_own
        try:
            attempt.run_here()
        finally:
            if is_own:
                host.inline = False
        if attempt.seconds < 0:
            self.wait_for(attempt.run())

    async def _run_in_loop(self, attempt: CallAttempt, aside: bool) -> None:
        await self.saving.refuse_taken_over_async()
        if aside or attempt.node.is_async or not attempt.node.runs_inline:
            await attempt.run(self.host._check_owner)
            return
        attempt.run_here()
        if attempt.seconds < 0:
            await attempt.run()

    def wait_for(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return what a coroutine comes to, from a sync function.

        Not in the run's event loop, which a function that waits, be it for its own threads, may block; nor in one that
        another call waits for.
        """
        loop = self.host._loop
        if loop is None or loop.is_closed():
            work.close()
            raise StopSignal
        return run_beside(work)

    @synchronized
    def _take(self, attempt: CallAttempt) -> float:
        """Record what came of an attempt; return the seconds until it is tried again, if it is."""
        step, host = attempt.step, self.host
        error = attempt.error
        try:
            host._take(attempt)
        except HoldfastError as unsaved:
            self._refuse(unsaved)
        if isinstance(error, StopSignal):
            raise StopSignal
        if isinstance(error, (BodyLeft, StepChanged)):  # Of a workflow that this one called.
            self._refuse(error)
        if step.status == DONE:
            self.saving.finished(step)
        elif step.status == WAITING:
            self._wait_with_it()
            self._refuse(BodyLeft())
        elif step.status == FAILED:
            self._failures[step.id] = self._results.causes[step.id]
            self.saving.finished(step)
        elif step.status == RETRYING and step.retry_at is not None:
            return self._delay(step, step.retry_at)
        return 0.0

    @synchronized
    def _delay_of(self, under_way: object, step: Step) -> float:
        """Return the seconds until a recorded step whose last attempt failed is tried again."""
        if step.status != RETRYING or step.retry_at is None:
            return 0.0
        self._enter(under_way)
        return self._delay(step, step.retry_at)

    def _delay(self, step: Step, retry_at: float) -> float:
        """Return the seconds until another attempt; leave the run until then, if that is for workers."""
        left, longest = self.host.time_left(retry_at), self.host.idle_timeout
        if longest is not None and left > longest:
            pause, container = f"{self.path}:retry:{step.id}", self.context._step
            about = (container.id, container.node, f"retry:{step.id}", "")
            self.host.saving.record(Paused(pause, SLEEP, *about, b"", retry_at, clock.time()))
            self._refuse(BodyLeft())
        return max(left, 0.0)

    def _wait(self, seconds: float) -> None:
        """Wait for the next attempt of a step."""
        until = clock.monotonic() + seconds
        while (left := until - clock.monotonic()) > 0:
            self._refuse_waiting()
            clock.sleep(min(left, clock.glance(0.2)))

    async def _wait_async(self, seconds: float) -> None:
        until = clock.monotonic() + seconds
        while (left := until - clock.monotonic()) > 0:
            self._refuse_waiting()
            await asyncio.sleep(min(left, clock.glance(0.2)))

    @synchronized
    def _refuse_waiting(self) -> None:
        """Leave the function if there is something to do before the next attempt of a step."""
        if not self._goes_on:
            raise StopSignal
        if self.host.pausing is not None or self.host.inbox.waiting:
            self._refuse(BodyLeft())

    # What a call comes to.

    def _output(self, step: Step) -> Any:
        """Return, or raise, what a step came to."""
        if step.status != DONE:
            error = self._failures.get(step.id) or self._results.causes.get(step.id)
            if error is None:
                raise StopSignal
            self._raised.append((error, step.id))
            raise error
        if self.left is not None:
            raise self.left
        if not step.ops:  # Somebody skipped it.
            return None
        op = step.ops[-1]
        if op.key == ERROR:
            error = error_of(self.host.codec.decode(op.raw))
            self._raised.append((error, step.id))
            raise error
        value = op.value
        return value if type(value) in SCALARS else self.host.codec.decode(op.raw)

    def pass_failures(self, but: Collection[str] = ()) -> None:
        """Record that the function went on after the failures that it has seen: a resume raises them again."""
        codec = self.host.codec
        for name in [name for name in self._failures if name not in but]:
            raw = codec.encode(error_data(self._failures[name], codec))
            fault = str(self.host.run.step(name).fault)
            self.host.saving.record(StepFinished(name, (Op("set", ERROR, raw, codec=codec),), skipped=fault))
            del self._failures[name]

    def record_value(self, call: Call, make: Callable[[], Any]) -> Any:
        """Return a value that is made once, and given again on a resume."""
        claimed = self.claim(call)
        if claimed.step is not None and claimed.step.status == DONE:
            return self._output(claimed.step)
        under_way = UnderWay()
        try:
            return locked(self._lock, self._made, under_way, claimed, make)
        finally:
            self._ended(under_way)

    def _made(self, under_way: object, claimed: Claimed, make: Callable[[], Any]) -> Any:
        self._enter(under_way)
        step = self._called(claimed)
        ops = output_of(self.host.codec, make())
        self.host.saving.record(StepFinished(step.id, ops))
        return self._output(step)

    # The end.

    def begin(self) -> None:
        """Let this process know that the function runs, here."""
        self._begun_in = _place()
        _executing.add(self)

    def wait_until_idle(self) -> None:
        """Wait for the steps that are still under way in other threads; then no further one begins."""
        while self._under_way and self._goes_on:
            clock.sleep(clock.glance(0.005))
        self.close()

    async def wait_until_idle_async(self) -> None:
        """As `wait_until_idle`, in the event loop."""
        while self._under_way and self._goes_on:
            await asyncio.sleep(0.002)
        self.close()

    @property
    def _goes_on(self) -> bool:
        return self.host.stop is None and not self.host.has_left_run

    @synchronized
    def close(self) -> None:
        self._is_over = True
        _executing.discard(self)
        self.saving.close()

    def returned(self) -> None:
        """Refuse the result of a function that went on although it was to be left; record what it has passed over."""
        if self.left is not None:
            raise self.left
        self.pass_failures()
        self.saving.mark_end()
        frame = self.host.run.frames.get(self.path)
        gone = [] if frame is None else [name for name in frame.active if name not in self._claimed]
        if gone:
            text = "run %s: %d recorded steps were not called again, and their results are not used: %s"
            logger.warning(text, self.host.run_id, len(gone), ", ".join(map(step_label, gone[:10])))

    def reason(self, error: BaseException) -> BaseException:
        """Return what the function ends with: why it was left, or the error that it raised itself.

        The steps that failed with that error run again on a resume.
        """
        self.saving.mark_stop()
        if self.left is not None:
            return self.left
        if isinstance(error, Exception):
            causes = {id(each) for each in error_chain(error)}
            if not any(
                error is raised for raised, _ in self._raised
            ):  # The function's own, while it handled another.
                causes |= {id(each) for each in handled_errors(error)}
            self.pass_failures(but=[name for raised, name in self._raised if id(raised) in causes])
            for raised, name in self._raised:
                step = self.host.run.step(name)
                if id(raised) in causes and step.status == DONE:
                    self.host.saving.record(StepFailed(name, step.attempt, fault_of(raised)))
        return error


def _place() -> tuple[int, asyncio.Task[Any] | None]:
    """Return the thread and the task at hand."""
    task = None if asyncio._get_running_loop() is None else asyncio.current_task()
    return threading.get_ident(), task


def _identity(step: Step) -> bytes:
    """Return what a step was called with, as `Call.identity`."""
    return step.item[-1].raw if step.item else b""
