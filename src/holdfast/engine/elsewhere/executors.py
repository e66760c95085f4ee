"""Running steps where their `executor` says: in threads, in processes, on a Dask cluster, in the user's own pool."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
import pickle
import threading
from collections.abc import Callable, Mapping
from typing import Any

from holdfast import clock
from holdfast.data.state import State
from holdfast.engine.driving.context import Context
from holdfast.engine.elsewhere.dask_client import is_loss
from holdfast.engine.elsewhere.remote import Reply, SentState, Task, perform
from holdfast.engine.elsewhere.remote_context import Facts
from holdfast.engine.elsewhere.shared_executors import shared
from holdfast.errors import ExecutorLost, HoldfastError
from holdfast.journal.records import Spent
from holdfast.journal.threads import Escaped, in_thread
from holdfast.plan.executor_choice import ExecutorChoice, choice_of
from holdfast.plan.graph import Node

_GLANCE = 0.25
"""How often, in seconds, work that waits for its turn is looked at; its timeout does not begin before."""

Submit = Callable[[], concurrent.futures.Future[Any]]


async def elsewhere(node: Node, state: State, context: Context | None, config: Mapping[str, Any]) -> Any:
    """What a node's function returns where its executor runs it."""
    choice, function = choice_of(node.executor), node.function
    assert function is not None
    timed = context if node.timeout is not None else None
    given: dict[str, Any] = {"state": state, "ctx": context, "config": config}
    if choice.in_threads:
        args, kwargs = _named(node, given)
        return await _in_threads(choice, functools.partial(function, *args, **kwargs), timed)
    wanted = {*node.wants, *node.named}
    if "state" in wanted:
        given["state"] = SentState.of(state, choice.by_value)
    if "ctx" in wanted:
        assert context is not None
        given["ctx"] = Facts.of(context, str(choice))
    if "config" in wanted:
        given["config"] = dict(config)
    args, kwargs = _named(node, given)
    task = Task.of(f"node {node.name!r}", choice, function, args, kwargs)
    return await done_elsewhere(choice, task, context, timed, state)


def _named(node: Node, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    return [given[name] for name in node.wants], {name: given[name] for name in node.named}


async def done_elsewhere(
    choice: ExecutorChoice,
    task: Task,
    context: Context | None = None,
    timed: Context | None = None,
    state: State | None = None,
) -> Any:
    """What a task comes to in another process. What it logs and spends is told to `context`.

    If the step has a timeout, `timed` is its context. `state` is the one that the task was given.
    """
    data = task.packed()
    try:
        raw = await _result(lambda: shared.executor(choice).submit(perform, data), choice, timed)
    except Exception as error:
        raise _trouble(task, error) from error
    reply = Reply(*pickle.loads(raw))
    if context is not None:
        for level, text in reply.log:
            context.log.log(level, "%s", text)
        context.take_spent(Spent(*line) for line in reply.spent)
    return reply.settled(task, state)


def _trouble(task: Task, error: Exception) -> HoldfastError:
    """What an executor that failed to do a task means for the step."""
    if isinstance(error, HoldfastError):
        return error
    told = f"{type(error).__name__}: {error}"
    lost = (concurrent.futures.BrokenExecutor, OSError, TimeoutError)
    if isinstance(error, lost) or is_loss(error):
        return ExecutorLost(f"{task.what}: {task.where} was lost before the step was finished: {told}")
    return HoldfastError(f"{task.what} cannot be run by {task.where}: {told}")


async def _result(submit: Submit, choice: ExecutorChoice, timed: Context | None) -> Any:
    """What a future comes to. If nobody waits for it any more, it is cancelled."""
    submitted: list[concurrent.futures.Future[Any]] = []
    unwanted = threading.Event()

    def work() -> concurrent.futures.Future[Any]:
        submitted.append(submit())
        if unwanted.is_set():
            submitted[0].cancel()
        return submitted[0]

    try:
        # In a thread: it may take a while, be it to reach a cluster or because the pool makes its users wait.
        future = await in_thread(work)
        result = asyncio.wrap_future(future)
        while timed is not None and choice.tells_beginning and not (future.running() or future.done()):
            timed._beat = clock.monotonic() + _GLANCE
            await asyncio.wait({result}, timeout=_GLANCE)
        return await result
    except Escaped as escaped:
        raise escaped.error from None
    except asyncio.CancelledError:
        unwanted.set()
        for future in submitted:
            future.cancel()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ExecutorLost(f"{choice} gave the step up before it was finished") from None


async def _in_threads(choice: ExecutorChoice, function: Callable[[], Any], timed: Context | None) -> Any:
    call = _Call(function)
    pool = choice.own
    try:
        if pool is None:
            return await in_thread(call)
        run = contextvars.copy_context().run
        value, error = await _result(lambda: pool.submit(run, call.caught), choice, timed)
    except asyncio.CancelledError:
        call.cancel()
        raise
    except RuntimeError as error:
        raise HoldfastError(f"{choice} takes no more steps: {error}") from error
    if error is not None:
        raise Escaped(error)
    return value


class _Call:
    """A call in a thread. An async function is awaited there, in an event loop of its own."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function, self._is_cancelled = function, False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def __call__(self) -> Any:
        value = self._function()
        if not inspect.isawaitable(value):
            return value
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            return runner.run(self._awaited(value))

    def caught(self) -> tuple[Any, BaseException | None]:
        """What it returns and what it raises, which may be something that no future can carry."""
        try:
            return self(), None
        except BaseException as error:
            return None, error

    async def _awaited(self, value: Any) -> Any:
        self._task = asyncio.current_task()
        if self._is_cancelled:
            raise asyncio.CancelledError
        return await value

    def cancel(self) -> None:
        """Leave it, if it is awaited; a sync function goes on."""
        self._is_cancelled = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
