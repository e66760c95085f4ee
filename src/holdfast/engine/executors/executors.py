"""Executors of steps: threads, processes, Dask clusters, and the user's own pools."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import functools
import importlib
import inspect
import os
import pickle
import threading
from collections.abc import Callable, Mapping
from typing import Any

from holdfast import clock
from holdfast.engine.context import Context
from holdfast.engine.executors.process_pool import ProcessPool
from holdfast.engine.executors.remote import Facts, Reply, SentState, Task, perform
from holdfast.errors import ExecutorLost, HoldfastError
from holdfast.graph.graph import RESULTS, Node
from holdfast.graph.validation import DASK, ExecutorChoice, choice_of
from holdfast.journal.records import Spent
from holdfast.state.ops import thaw
from holdfast.state.state import State
from holdfast.threads import Escaped, in_thread

_CONNECT_SECONDS = 10.0
_CLOSE_SECONDS = 2.0
_LOSSES = ("KilledWorker", "CommClosedError", "FutureCancelledError")
"""The errors by which Dask says that a worker or the scheduler is gone."""


class _Cluster:
    """One Dask scheduler, and the client that talks to it once it is needed."""

    def __init__(self, address: str) -> None:
        self._address, self._lock = address, threading.Lock()
        self.client: Any = None

    def executor(self) -> concurrent.futures.Executor:
        with self._lock:
            if self.client is None or self.client.status in ("closing", "closed"):
                self.client = _connected(self._address)
            # No two tasks are equal, so Dask need not look whether they are.
            executor: concurrent.futures.Executor = self.client.get_executor(pure=False)
            return executor

    def shutdown(self) -> None:
        if self.client is not None:
            with contextlib.suppress(Exception):
                self.client.close(timeout=_CLOSE_SECONDS)

    def forget(self) -> None:
        """Leave the client to the parent of this forked process, which alone has its threads."""
        if self.client is not None:
            self.client.status = "closed"


def _connected(address: str) -> Any:
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise HoldfastError(
            f"executor 'dask:{address}' needs a package that is not installed: pip install 'holdfast[dask]'"
        ) from None
    try:
        return distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False, name="holdfast")
    except (OSError, TimeoutError) as error:
        raise ExecutorLost(f"the Dask scheduler at {address} cannot be reached: {error}") from error
    except ValueError as error:
        raise HoldfastError(f"executor 'dask:{address}' does not name a Dask scheduler: {error}") from error


class SharedExecutors:
    """The executors that all runs of this process share: process pools by size, Dask clusters by address.

    They are made when they are first used, and end with the process.
    """

    def __init__(self) -> None:
        self._reset()
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave_to_parent)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[ExecutorChoice, ProcessPool | _Cluster] = {}

    def _leave_to_parent(self) -> None:
        for made in self._made.values():
            made.forget()
        self._reset()

    def executor(self, choice: ExecutorChoice) -> concurrent.futures.Executor:
        """Return the executor that was chosen. To reach a cluster may take a while."""
        if choice.own is not None:
            return choice.own
        with self._lock:
            if choice not in self._made:
                is_dask = choice.kind == DASK
                self._made[choice] = _Cluster(choice.address) if is_dask else ProcessPool(choice.size)
            made = self._made[choice]
        return made.executor() if isinstance(made, _Cluster) else made

    def close(self) -> None:
        """End the processes and leave the clusters; both are made again when they are needed."""
        with self._lock:
            made, self._made = self._made, {}
        for executor in made.values():
            executor.shutdown()


shared = SharedExecutors()


_GLANCE = 0.25
"""Seconds between two looks at work that waits for its turn; its timeout does not begin before."""

Submit = Callable[[], concurrent.futures.Future[Any]]


async def elsewhere(node: Node, state: State, context: Context | None, config: Mapping[str, Any]) -> Any:
    """Return what a node's function returns where its executor runs it."""
    choice, function = choice_of(node.executor), node.function
    assert function is not None
    timed = context if node.timeout is not None else None
    given: dict[str, Any] = {"state": state, "ctx": context, "config": config, "node": node.name}
    if RESULTS in (*node.wants, *node.named):
        given[RESULTS] = thaw(state[RESULTS])
    if choice.in_threads:
        given["graph"] = context._graph if context is not None and node.wants_graph else None
        args, kwargs = node.arguments(given)
        return await _in_threads(choice, functools.partial(function, *args, **kwargs), timed)
    wanted = {*node.wants, *node.named}
    if "state" in wanted:
        given["state"] = SentState.of(state, choice.by_value)
    if "ctx" in wanted:
        assert context is not None
        given["ctx"] = Facts.of(context, str(choice))
    if "config" in wanted:
        given["config"] = dict(config)
    args, kwargs = node.arguments(given)
    task = Task.of(f"node {node.name!r}", choice, function, args, kwargs)
    return await done_elsewhere(choice, task, context, timed, state)


async def done_elsewhere(
    choice: ExecutorChoice,
    task: Task,
    context: Context | None = None,
    timed: Context | None = None,
    state: State | None = None,
) -> Any:
    """Return what a task comes to in another process. What it logs and spends is given to `context`.

    If the step has a timeout, `timed` is its context. `state` is the one that the task was given.
    """
    data = task.packed()
    try:
        raw = await _result(lambda: shared.executor(choice).submit(perform, data), choice, timed)
    except Exception as error:
        if isinstance(error, HoldfastError):
            raise
        reason = f"{type(error).__name__}: {error}"
        lost = (concurrent.futures.BrokenExecutor, OSError, TimeoutError)
        if isinstance(error, lost) or type(error).__name__ in _LOSSES:
            problem = f"{task.what}: {task.where} was lost before the step was finished: {reason}"
            raise ExecutorLost(problem) from error
        raise HoldfastError(f"{task.what} cannot be run by {task.where}: {reason}") from error
    reply = Reply(*pickle.loads(raw))
    if context is not None:
        for level, text in reply.log:
            context.log.log(level, "%s", text)
        for line in reply.spent:  # It is stored with the outcome of the step.
            context._host.spend(Spent(*line), False)
    return reply.settled(task, state)


async def _result(submit: Submit, choice: ExecutorChoice, timed: Context | None) -> Any:
    """Return what a future comes to. If nobody waits for it any more, it is cancelled."""
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
        """Return what it returns and what it raises, which may be something that no future can carry."""
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
                self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())
