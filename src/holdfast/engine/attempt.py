"""Attempts: running a node's function once, and recording what comes of it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast import clock
from holdfast.engine.context import Context, Terminated
from holdfast.engine.decide import (
    Meaning,
    ParallelWrite,
    ParallelWrites,
    RouteFailed,
    meaning,
    output_of,
    qualified,
)
from holdfast.engine.once import BodyLeft, PauseSignal, StepInterrupted, StopSignal, doubt_pause
from holdfast.errors import CircuitOpen, CodecError, ExecutorLost, StepTimeout, StoreError, problem_of
from holdfast.graph.graph import AFTER_A_LOSS, RESULTS, CircuitBreaker, Node, base_name
from holdfast.journal.records import Fault, Noted, Paused, StepFailed, StepFinished
from holdfast.journal.run_state import (
    DONE,
    IN_DOUBT,
    INTERRUPTED,
    MORE_ITERATIONS,
    READY,
    RUNNING,
    STILL_IN_DOUBT,
    Frame,
    Step,
)
from holdfast.names import LazyModule
from holdfast.state.ops import Op, make_op
from holdfast.state.state import State, check_untouched, was_handed_out
from holdfast.threads import Escaped, in_thread
from holdfast.values import END, step_label

if TYPE_CHECKING:
    from holdfast.engine.executors import executors
    from holdfast.engine.saving import StepHost
    from holdfast.graph import branches
else:
    executors = LazyModule("engine.executors.executors")
    branches = LazyModule("graph.branches")

logger = logging.getLogger("holdfast")


_PLAIN = frozenset({dict, list, tuple, str, bytes, int, float, bool, type(None)})
"""Types of what nodes mostly return, which nobody awaits."""


class Attempt:
    """One attempt of a step: what it is made with, and what came of it: a value, an error, or a pause."""

    __slots__ = ("config", "context", "error", "node", "seconds", "state", "step", "value")

    def __init__(
        self, node: Node, step: Step, state: State, context: Context | None, config: Mapping[str, Any]
    ) -> None:
        self.node, self.step, self.state, self.context, self.config = node, step, state, context, config
        self.value: Any = None
        self.error: BaseException | None = None
        self.seconds = 0.0
        """How long it took; below zero if the value is yet to be awaited."""

    def call(self) -> Any:
        """Call the node's function with what it names."""
        node, function = self.node, self.node.function
        assert function is not None
        if node.wants_state_only:
            return function(self.state)
        given: dict[str, Any] = {"state": self.state, "ctx": self.context, "config": self.config}
        given["node"] = node.name
        if RESULTS in node.wants or RESULTS in node.named:
            given[RESULTS] = self.state[RESULTS]
        if self.context is not None and node.wants_graph:
            given["graph"] = self.context._graph
        args, kwargs = node.arguments(given)
        return function(*args, **kwargs)

    def known(self, frame: Frame) -> Frame:
        """Return the frame that the node's changes are found by."""
        return frame

    def run_here(self) -> None:
        """Run a sync node in this thread. `KeyboardInterrupt` and the like are passed on."""
        loop = asyncio._get_running_loop()
        if loop is None:
            self.run_inline()
            return
        # A sync node may run an event loop of its own here just as it may in a worker thread.
        asyncio._set_running_loop(None)
        try:
            self.run_inline()
        finally:
            asyncio._set_running_loop(loop)

    def run_inline(self) -> None:
        """As `run_here`, where no event loop is seen to run."""
        begun, context, is_over = clock.perf_counter(), self.context, True
        try:
            value = self.call()
            if type(value) not in _PLAIN and inspect.isawaitable(value):
                is_over = False
                self.value, self.seconds = value, -1.0
                return
            if self.state._handed is not None:
                check_untouched(self.state)
            if context is not None and context._left is not None:
                context._check_left()
        except (KeyboardInterrupt, Terminated, GeneratorExit):
            raise
        except BaseException as error:
            if isinstance(error, SystemExit) and _is_of_handler(error):
                raise
            self.error, self.seconds = error, clock.perf_counter() - begun
        else:
            self.value, self.seconds = value, clock.perf_counter() - begun
        finally:
            if context is not None and is_over:
                context._is_over = True

    async def run(self, look: Callable[[], None] | None = None) -> None:
        """Run the node without blocking the event loop, or await its value if that is yet to be done.

        It runs where its executor says, an async one here, a sync one in a worker thread, where `look` comes first:
        the process may have been suspended since the thread was asked for.
        """

        def work_in_thread() -> Any:
            if look is not None:
                look()
            return self.call()

        begun, is_begun = clock.perf_counter(), self.seconds < 0
        node, state, context = self.node, self.state, self.context
        is_threaded = not is_begun and node.executor is None and not node.is_async
        # Where no thread can be started nothing of the step has run, and it has not failed.
        working = in_thread(work_in_thread) if is_threaded else None
        try:
            if working is not None:
                value = await _within(node, context, working)
                if inspect.isawaitable(value):
                    value = await _within(node, context, value)
            elif not is_begun and node.executor is not None:
                value = await _within(node, context, executors.elsewhere(node, state, context, self.config))
            else:
                value = await _within(node, context, self.value if is_begun else self.call())
            if was_handed_out(state):
                check_untouched(state)
            if context is not None and context._left is not None:
                context._check_left()
        except (KeyboardInterrupt, Terminated, GeneratorExit):
            raise
        except BaseException as error:
            if isinstance(error, SystemExit) and _is_of_handler(error):
                raise
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            failure = error.error if isinstance(error, Escaped) else error
            self.error, self.seconds = failure, clock.perf_counter() - begun
        else:
            self.value, self.seconds = value, clock.perf_counter() - begun
        finally:
            if context is not None:
                context._is_over = True


async def _within(node: Node, context: Context | None, work: Any) -> Any:
    """Return the result of `work`, unless it takes longer than the node's timeout since its last heartbeat."""
    try:
        if context is None or (node.timeout is None and context._due is None):
            return await work
        return await _watch(asyncio.ensure_future(work), node, context)
    except Escaped as escaped:
        if isinstance(escaped.error, StopIteration):
            raise  # No coroutine can raise it itself.
        raise escaped.error from None


async def _watch(task: asyncio.Future[Any], node: Node, context: Context) -> Any:
    try:
        while (left := _left(node, context)) > 0:
            done, _ = await asyncio.wait({task}, timeout=left)
            if done:
                return task.result()
    except asyncio.CancelledError:
        task.cancel()
        raise
    task.cancel()
    if isinstance(task, asyncio.Task):
        await asyncio.wait({task}, timeout=1.0)
        if task.done() and not task.cancelled():
            task.exception()
    if node.timeout is None or (context._due is not None and clock.monotonic() >= context._due):
        raise StepTimeout(
            f"step {base_name(node.name)!r} ran when its branch had used up its timeout of {node.branch_timeout:g} s"
        )
    raise StepTimeout(f"step {base_name(node.name)!r} ran longer than its timeout of {node.timeout:g} s")


def _left(node: Node, context: Context) -> float:
    """Return for how many seconds an attempt may go on."""
    ends = [] if node.timeout is None else [context._beat + node.timeout]
    ends += [] if context._due is None else [context._due]
    return min(ends) - clock.monotonic()


def _is_of_handler(error: SystemExit) -> bool:
    """Return True if the handler of a signal exited, and not the node: then the process is to end."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def fault_of(error: BaseException) -> Fault:
    """Return an exception as data, for the journal."""
    try:
        message, trace = problem_of(error), "".join(traceback.format_exception(error))
    except Exception as trouble:
        message, trace = f"(its message cannot be shown: {type(trouble).__name__})", ""
    return Fault(type(error).__qualname__, message, trace[-4000:])


_QUESTIONS = {
    "poison": "was started {crashes} times without a stored outcome",
    "in_doubt": "was interrupted and may or may not have taken effect",
}


class Results:
    """The recorder of one execution's attempt results and pauses."""

    def __init__(self, host: StepHost, writes: ParallelWrites) -> None:
        self._host, self._graph, self._saving, self._writes = host, host.graph, host.saving, writes
        self._record, self._say = host.saving.record, host.saving.say
        self.files: dict[str, str | None] = {}
        """The checkpoint file of each gate, by its pause."""
        self.causes: dict[str, BaseException] = {}
        """The exceptions of the last failures, by step."""
        self.retries = 0
        self.stopped = False
        """Whether a node was left because the run is to stop."""

    def take(self, attempt: Attempt) -> None:
        """Record what came of an attempt. One that was left because the run is to stop changes nothing."""
        step, error, seconds = attempt.step, attempt.error, attempt.seconds
        attempt.error = None  # It refers to the attempt by its traceback.
        if attempt.node.circuit_breaker is not None:
            self._count(attempt.node.circuit_breaker, step, error)
        if error is None:
            try:
                frame = attempt.known(self._saving.run.frames[step.frame])
                ops, goto = self._meaning(step, attempt.value, attempt.state, frame)
            except Exception as problem:
                self.failed(step, problem, seconds, repeatable=False)
                return
            self._record(StepFinished(step.id, ops, goto, seconds, step.id in self._saving.run.frames))
            self._saving.say_complete(step, ops, seconds)
        elif isinstance(error, PauseSignal):
            for paused in error.asked:
                self._record(paused)
        elif isinstance(error, StopSignal):
            self.stopped = True
        elif isinstance(error, BodyLeft):
            if step.status == RUNNING:
                step.status = READY
        elif isinstance(error, ExecutorLost) and not self._may_rerun(step):
            # It is what it is: interrupted, as by a crash.
            self._record(Noted(step.id, STILL_IN_DOUBT, b""))
            step.status, step.crashes = IN_DOUBT, step.crashes + 1
            self._say("node.error", step.node, step=step.id, attempt=step.attempt, error=str(fault_of(error)))
        else:
            self.failed(step, error, seconds, repeatable=not isinstance(error, StepInterrupted))

    def _count(self, breaker: CircuitBreaker, step: Step, error: BaseException | None) -> None:
        """Count the outcome of an attempt of a node that has a circuit breaker."""
        node, circuits = qualified(step), self._host.settings.circuits
        if error is None:
            if circuits.succeeded(node):
                self._say("circuit.close", step.node, step=step.id)
        elif isinstance(error, Exception) and (failures := circuits.failed(node, breaker)):
            seconds = breaker.seconds
            text = "run %s: node %r failed %d times in a row, and is left alone for %g s"
            logger.warning(text, self._saving.run_id, node, failures, seconds)
            self._say("circuit.open", step.node, step=step.id, failures=failures, seconds=seconds)

    def passes_circuit(self, step: Step) -> bool:
        """Return whether a step may begin; if its node is to be left alone, record that it failed for that."""
        node = self._graph.at(step.frame).nodes[step.node]
        if node.circuit_breaker is None:
            return True
        refusal = self._host.settings.circuits.refusal(qualified(step), node.circuit_breaker)
        if refusal is not None:
            self.failed(step, refusal, 0.0)
        return refusal is None

    def _meaning(self, step: Step, value: Any, given: State | None, frame: Frame) -> Meaning:
        """Return the changes and the next nodes that a step's value asks for; raise if they cannot be applied."""
        if frame.is_body:
            return output_of(self._host.codec, value), None
        graph = self._graph.at(step.frame)
        ops, goto = meaning(graph, self._host.codec, frame, step, value, given)
        self._writes.check(graph, frame, step, ops)
        return ops, goto

    def close_frame(self, step: Step) -> None:
        """Record that the sub-graph that a step is has come to its end, with what it hands to its parent."""
        graph, frames = self._graph.at(step.frame), self._saving.run.frames
        own: tuple[Op, ...] = ()
        if graph.nodes[step.node].is_branch:
            result = branches.result_of(self._saving.state(frames[step.id]))
            own = (make_op(self._host.codec, "append", RESULTS, [result]),)
        ops = own or [op for logged in (frames[step.id].log or {}).values() for op in logged]
        try:
            self._writes.check(graph, frames[step.frame], step, ops)
        except ParallelWrite as error:
            raise RouteFailed(step.node, problem_of(error)) from error
        self._record(StepFinished(step.id, own, promoted=True))
        self._saving.say_complete(step, ops, 0.0)

    def _may_rerun(self, step: Step) -> bool:
        """Return whether a step may be repeated unasked although it may have taken effect."""
        node = self._graph.at(step.frame).nodes[step.node]
        return (self._host.rules.if_interrupted or node.if_interrupted) == "rerun"

    def failed(self, step: Step, error: BaseException, seconds: float, repeatable: bool = True) -> None:
        """Record a failure: it is tried again, passed over, or the end of the run."""
        node = self._graph.at(step.frame).nodes[step.node]
        fault = fault_of(error)
        delay = _delay(node, step, error) if repeatable else None
        retry_at = None
        if delay is not None:
            retry_at = self._host.deadline_after(delay)
        self.causes[step.id] = error
        self._record(StepFailed(step.id, step.attempt, fault, retry_at, seconds))
        self._say("node.error", step.node, step=step.id, attempt=step.attempt, error=str(fault))
        if delay is not None:
            self.retries += 1
            self._say("node.retry", step.node, step=step.id, attempt=step.attempt, delay=delay)
            return
        if node.on_error is not None and self._used_on_error(node, step, error, seconds):
            return
        if self._saving.policy.on_failure == "continue":
            text = "run %s: node %r failed, going on without: %s"
            logger.warning(text, self._saving.run_id, step.node, fault)
            self._record(StepFinished(step.id, skipped=str(fault)))
            self._say("node.warning", step.node, step=step.id, error=str(fault))
        self._saving.say_complete(step, None, seconds)

    def _used_on_error(self, node: Node, step: Step, error: BaseException, seconds: float) -> bool:
        """Return whether the node's `on_error` gave a result that stands in for the failed step's own."""
        assert node.on_error is not None
        state = self._saving.state_for(step)
        try:
            value = node.on_error(state, error)
            ops, goto = self._meaning(step, value, state, self._saving.run.frames[step.frame])
        except Exception as problem:
            if problem is not error:
                logger.exception("run %s: on_error of node %r failed", self._saving.run_id, step.node)
            return False
        fault = str(fault_of(error))
        logger.warning("run %s: node %r failed, going on: %s", self._saving.run_id, step.node, fault)
        self._record(StepFinished(step.id, ops, goto, 0.0, skipped=fault))
        self._say("node.warning", step.node, step=step.id, error=fault)
        self._saving.say_complete(step, None, seconds)
        return True

    def refuse(self, step: Step) -> None:
        """Record that an interrupted step may not be repeated."""
        error = StepInterrupted(
            f"step {step_label(step.id)!r} was interrupted and may or may not have taken effect; "
            "it is not repeated unasked"
        )
        self.failed(step, error, 0.0, repeatable=False)

    def ask_what(self, step: Step, kind: str) -> None:
        """Pause until somebody says what to do with an interrupted step, or allows more iterations."""
        if kind == MORE_ITERATIONS:
            self._record(self._more_iterations(step))
            return
        what = _QUESTIONS[kind].format(crashes=step.crashes)
        prompt = f"step {step_label(step.id)!r} {what}; rerun, skip or fail it?"
        self._record(doubt_pause(self._host.codec, step, kind, kind, INTERRUPTED, prompt))

    def _more_iterations(self, step: Step) -> Paused:
        run, frame = self._saving.run, step.frame
        used = run.frames[frame].waves
        prompt = f"the run has used {used} iterations, all that it may. How many more? 0 lets it fail."
        schema = self._host.codec.encode({"type": "integer", "minimum": 0})
        about = (step.id, step.node, MORE_ITERATIONS, prompt, schema)
        return Paused(f"{step.id}:{MORE_ITERATIONS}", "ask", *about, since=clock.time())

    def pause_at(self, kind: str, step: Step) -> None:
        """Pause before or after a step, as `kind` says, or only say so."""
        path = self._save_file(step, kind)
        if self._host.settings.notify:
            facts = {"kind": kind, "step": step.id, "state": self._saving.state(), "notify": True}
            self._say("pause", step.node, **facts, checkpoint_path=path)
            step.passed = True
            return
        pause = f"{step.id}:{kind}"
        self.files[pause] = path
        prompt = f"paused {kind} {base_name(step.node)!r}"
        self._record(Paused(pause, kind, step.id, step.node, prompt=prompt, since=clock.time()))

    def _save_file(self, step: Step, kind: str) -> str | None:
        """Write the checkpoint file of a gate, if there is a folder for them; its path."""
        directory = self._host.settings.checkpoint_dir
        if directory is None:
            return None
        from holdfast.engine import checkpoint_files as files

        run = self._saving.run
        upcoming = [other for other in run.active() if other.status != DONE]
        if len(upcoming) > 1 or step.frame:
            text = (
                "run %s: a checkpoint file at node %r holds the main state only; %d other steps are under way"
            )
            logger.warning(text, self._saving.run_id, step.node, len(upcoming) - (kind == "before"))
        nodes = tuple(dict.fromkeys(other.node for other in run.root.active.values() if other.status != DONE))
        nodes = nodes or (END,)
        gate = step.node if kind == "before" and not step.frame else ""
        state, config = self._saving.state(), self._host.config
        try:
            return str(files.save_of_interrupt(directory, step.node, state, config, gate, *nodes))
        except (StoreError, CodecError) as error:
            self._saving.failed(error if isinstance(error, StoreError) else StoreError(problem_of(error)))
            return None


def _delay(node: Node, step: Step, error: BaseException) -> float | None:
    """Return seconds until a failed attempt is repeated, or `None`; a retry rule that fails repeats nothing."""
    rule = node.retry if node.retry is not None else AFTER_A_LOSS
    try:
        delay = rule.delay_after(step.tried, error)
        if delay is None or not isinstance(error, CircuitOpen):
            return delay
        # To be refused is no attempt, so that only the wait keeps it from being repeated for ever.
        return max(delay, error.retry_after)
    except Exception:
        logger.exception("the retry rule of node %r failed", node.name)
        return None
