"""Running a node's function once: where, for how long, and what came of it."""

from __future__ import annotations

import asyncio
import inspect
import signal
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast import clock
from holdfast.engine.context import Context, Terminated
from holdfast.errors import StepTimeout, problem_of
from holdfast.graph.graph import Node, base_name
from holdfast.journal.records import Fault
from holdfast.journal.run_state import Step
from holdfast.state.state import State, check_untouched, was_handed_out
from holdfast.threads import Escaped, in_thread


@dataclass(slots=True)
class Result:
    """What came of one attempt: a value, an error, or a pause."""

    step: Step
    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0
    """How long it took; below zero if the value is yet to be awaited."""
    state: State | None = None
    context: Context | None = None


def call(node: Node, state: State, context: Context | None, config: Mapping[str, Any]) -> Any:
    """Call a node's function with what it names."""
    function = node.function
    assert function is not None
    wants = node.wants
    if node.wants_state_only:
        return function(state)
    given = {"state": state, "ctx": context, "config": config}
    return function(*(given[want] for want in wants), **{name: given[name] for name in node.named})


def attempt_here(
    node: Node, step: Step, state: State, context: Context | None, config: Mapping[str, Any]
) -> Result:
    """Run a sync node in this thread. `KeyboardInterrupt` and the like are passed on."""
    loop = asyncio._get_running_loop()
    # A sync node may run an event loop of its own here just as it may in a worker thread.
    asyncio._set_running_loop(None)
    try:
        return attempt_inline(node, step, state, context, config)
    finally:
        asyncio._set_running_loop(loop)


def attempt_inline(
    node: Node, step: Step, state: State, context: Context | None, config: Mapping[str, Any]
) -> Result:
    """As `attempt_here`, where no event loop is seen to run."""
    begun = clock.perf_counter()
    is_over = True
    try:
        value = call(node, state, context, config)
        if type(value) is not dict and inspect.isawaitable(value):
            is_over = False
            return Result(step, value, None, -1.0, state, context)
        if state._handed is not None:
            check_untouched(state)
        if context is not None and context.left is not None:
            context.check_left()
    except (KeyboardInterrupt, Terminated, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, SystemExit) and _is_of_handler(error):
            raise
        return Result(step, error=error, seconds=clock.perf_counter() - begun, state=state)
    finally:
        if context is not None and is_over:
            context.end()
    return Result(step, value, None, clock.perf_counter() - begun, state)


async def attempt_async(
    node: Node,
    step: Step,
    state: State,
    context: Context | None,
    config: Mapping[str, Any],
    awaitable: Any = None,
    look: Callable[[], None] | None = None,
) -> Result:
    """Run a node without blocking the event loop: where its executor says, an async one here, a sync one in a
    worker thread, where `look` comes first: the process may have been suspended since the thread was asked for.
    """

    def work_in_thread() -> Any:
        if look is not None:
            look()
        return call(node, state, context, config)

    begun = clock.perf_counter()
    is_threaded = awaitable is None and node.executor is None and not node.is_async
    # Where no thread can be started nothing of the step has run, and it has not failed.
    working = in_thread(work_in_thread) if is_threaded else None
    try:
        if working is not None:
            value = await _within(node, context, working)
            if inspect.isawaitable(value):
                value = await _within(node, context, value)
        elif awaitable is None and node.executor is not None:
            from holdfast.engine.executors.executors import elsewhere

            value = await _within(node, context, elsewhere(node, state, context, config))
        else:
            work = call(node, state, context, config) if awaitable is None else awaitable
            value = await _within(node, context, work)
        if was_handed_out(state):
            check_untouched(state)
        if context is not None and context.left is not None:
            context.check_left()
    except (KeyboardInterrupt, Terminated, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, SystemExit) and _is_of_handler(error):
            raise
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        failure = error.error if isinstance(error, Escaped) else error
        return Result(step, error=failure, seconds=clock.perf_counter() - begun, state=state)
    finally:
        if context is not None:
            context.end()
    return Result(step, value, seconds=clock.perf_counter() - begun, state=state)


async def _within(node: Node, context: Context | None, work: Any) -> Any:
    """Return the result of `work`, unless it takes longer than the node's timeout since its last heartbeat."""
    try:
        if node.timeout is None or context is None:
            return await work
        return await _watch(asyncio.ensure_future(work), node, context)
    except Escaped as escaped:
        if isinstance(escaped.error, StopIteration):
            raise  # No coroutine can raise it itself.
        raise escaped.error from None


async def _watch(task: asyncio.Future[Any], node: Node, context: Context) -> Any:
    assert node.timeout is not None
    try:
        while True:
            left = context._beat + node.timeout - clock.monotonic()
            if left <= 0:
                break
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
    raise StepTimeout(f"step {base_name(node.name)!r} ran longer than its timeout of {node.timeout:g} s")


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
