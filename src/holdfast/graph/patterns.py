"""Patterns of work: chains, parallel work and choices over items, as functions and as nodes of graphs.

The functions that do the work may be sync or async; with an async one the result is to be awaited.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import HoldfastError, suggestion
from holdfast.events import Event, Observer, ObserverLike, resolve_observer, tell
from holdfast.state.state import State, changed_since, observer_of

MOST_WORKERS = 16
"""How many items are processed at once unless the caller says another number."""

Function = Callable[..., Any]
Progress = Callable[[int, int, Any], object]
"""Called after each item with how many are done, how many there are, and the last result."""


@dataclass(frozen=True, slots=True)
class ChainResult:
    """What came of a chain: the last value, and the values on the way, the first one included."""

    final: Any
    intermediate: tuple[Any, ...] = ()
    steps: int = 0


@dataclass(frozen=True, slots=True)
class TaskError:
    """An item that failed: its index, the item, and the exception."""

    index: int
    item: Any
    error: Exception


@dataclass(frozen=True, slots=True)
class ParallelResult:
    """What came of parallel work: the results of items that succeeded, and the errors, in the order of the items."""

    results: tuple[Any, ...] = ()
    errors: tuple[TaskError, ...] = ()


@dataclass(frozen=True, slots=True)
class _Teller:
    """Tells an observer, if there is one, of the work in a node or outside of graphs."""

    observer: Observer | None
    run_id: str = ""
    node: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_node(cls, state: State, context: Any) -> _Teller:
        return cls(observer_of(state), context.run_id, context.node, {"step": context.step})

    def __call__(self, type: str, **data: Any) -> None:
        if self.observer is not None:
            tell(self.observer, Event(type, self.run_id, self.node, {**self.facts, **data}))


# Chains: each item changes the value that the item before it has left.


def process_chain(
    items: Iterable[Any],
    initial: Any,
    step: Function,
    *,
    intermediate: bool = True,
    progress: Progress | None = None,
    observer: ObserverLike = None,
) -> Any:
    """Return a `ChainResult`: `step(item, value)` gives the next value, beginning with `initial`.

    With `intermediate` the values on the way are kept. What `step` raises ends the chain, with a note that says which
    item it was.
    """
    _check(step, "step")
    say = _Teller(resolve_observer(observer))
    work = _chain(
        _listed(items), initial, lambda index, item, value: step(item, value), intermediate, progress, say
    )
    return _result(work, step)


async def _chain(
    items: Sequence[Any], value: Any, step: Function, keep: bool, progress: Progress | None, say: _Teller
) -> ChainResult:
    total, values = len(items), [value]
    say("chain.start", items=total)
    for index, item in enumerate(items):
        say("step.start", index=index, total=total)
        try:
            value = await _settled(step(index, item, value))
        except Exception as error:
            say("step.complete", index=index, total=total, error=True)
            say("chain.complete", steps=index, error=True)
            error.add_note(f"in step {index + 1} of a chain of {total}")
            raise
        say("step.complete", index=index, total=total, error=False)
        if keep:
            values.append(value)
        if progress is not None:
            progress(index + 1, total, value)
    say("chain.complete", steps=total, error=False)
    return ChainResult(value, tuple(values) if keep else (), total)


# Parallel work: the items do not depend on each other.


def process_parallel(
    items: Iterable[Any],
    process: Function,
    *,
    workers: int | None = None,
    fail_fast: bool = True,
    progress: Progress | None = None,
    observer: ObserverLike = None,
) -> Any:
    """Return a `ParallelResult`: `process(item)` of each item, several at once, in the order of the items.

    A sync function runs in threads, an async one in tasks. By default twice as many workers as there are processors,
    at most 16, and never more than items. With `fail_fast` the first exception is raised once what is being processed
    has ended, and no further item begins; without it the exceptions are in `errors`. `progress` is called by the
    workers, one call at a time.
    """
    _check(process, "process")
    say = _Teller(resolve_observer(observer))
    return _parallel(
        _listed(items), lambda index, item: process(item), process, workers, fail_fast, progress, say
    )


def worker_count(items: int, workers: int | None = None) -> int:
    """Return how many workers process so many items."""
    if workers is not None and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 1):
        raise HoldfastError(f"workers must be a whole number of at least 1, not {workers!r}")
    most = min(2 * (os.cpu_count() or 1), MOST_WORKERS) if workers is None else workers
    return min(most, items)


def _parallel(
    items: Sequence[Any],
    process: Function,
    kind: Function,
    workers: int | None,
    fail_fast: bool,
    progress: Progress | None,
    say: _Teller,
) -> Any:
    count = worker_count(len(items), workers)
    work = _Work(items, process, fail_fast, progress, say)
    say("parallel.start", items=len(items), workers=count, fail_fast=fail_fast)
    if not _is_async(kind):
        work.in_threads(count)
        return work.result()

    async def in_tasks() -> ParallelResult:
        await asyncio.gather(*(work.run(worker) for worker in range(count)))
        return work.result()

    return in_tasks()


class _Work:
    """Items that several workers take one after the other, and what came of them."""

    def __init__(
        self,
        items: Sequence[Any],
        process: Function,
        fail_fast: bool,
        progress: Progress | None,
        say: _Teller,
    ) -> None:
        self._items, self._process, self._fail_fast = items, process, fail_fast
        self._progress, self._say = progress, say
        self._lock, self._left = threading.Lock(), iter(enumerate(items))
        self._is_stopped = False
        self._results: dict[int, Any] = {}
        self._errors: dict[int, TaskError] = {}

    def in_threads(self, count: int) -> None:
        """Process the items in so many threads; when the caller is interrupted, no further item begins."""
        if not count:
            return
        with ThreadPoolExecutor(count, "holdfast-parallel") as pool:
            try:
                running = [
                    pool.submit(contextvars.copy_context().run, _finished, self.run(worker))
                    for worker in range(count)
                ]
                for future in running:
                    future.result()
            finally:
                self._is_stopped = True

    async def run(self, worker: int) -> None:
        """Process items until none is left."""
        self._say("worker.start", worker=worker)
        done = 0
        try:
            while (taken := self._take()) is not None:
                await self._process_one(*taken)
                done += 1
        except BaseException:
            self._is_stopped = True
            raise
        finally:
            self._say("worker.complete", worker=worker, items=done)

    def _take(self) -> tuple[int, Any] | None:
        with self._lock:
            return None if self._is_stopped else next(self._left, None)

    async def _process_one(self, index: int, item: Any) -> None:
        try:
            result = await _settled(self._process(index, item))
        except Exception as error:
            error.add_note(f"in item {index + 1} of {len(self._items)}")
            with self._lock:
                self._errors[index] = TaskError(index, item, error)
                self._is_stopped = self._is_stopped or self._fail_fast
            return
        with self._lock:
            self._results[index] = result
            if self._progress is not None:
                self._progress(len(self._results) + len(self._errors), len(self._items), result)

    def result(self) -> ParallelResult:
        """Return what came of the items; raise the first error if one is enough."""
        results = tuple(result for _, result in sorted(self._results.items(), key=lambda pair: pair[0]))
        errors = tuple(self._errors[index] for index in sorted(self._errors))
        self._say("parallel.complete", results=len(results), errors=len(errors))
        if errors and self._fail_fast:
            raise errors[0].error
        return ParallelResult(results, errors)


# Choices: a function names the one of several functions that is called.


def process_conditional(
    state: Any,
    choose: Function,
    routes: Mapping[str, Function],
    *,
    default: Function | None = None,
    observer: ObserverLike = None,
) -> Any:
    """Return what the route that `choose(state)` names makes of the state.

    What is chosen and is no route goes to `default`, or, if there is none, is refused.
    """
    return _choice(state, choose, routes, default, _Teller(resolve_observer(observer)))


def _choice(
    state: Any, choose: Function, routes: Mapping[str, Function], default: Function | None, say: _Teller
) -> Any:
    _check(choose, "choose")
    for name, route in routes.items():
        _check(route, f"the route {name!r}")
    functions = [choose, *routes.values(), *([] if default is None else [default])]
    return _result(_conditional(state, choose, routes, default, say), *functions)


async def _conditional(
    state: Any, choose: Function, routes: Mapping[str, Function], default: Function | None, say: _Teller
) -> Any:
    name = await _settled(choose(state))
    say("route.evaluate", route=name)
    is_known = isinstance(name, Hashable) and name in routes
    route = routes[name] if is_known else default
    if route is None:
        known = ", ".join(map(repr, routes)) or "none"
        raise HoldfastError(
            f"there is no route {name!r} (known: {known}), and no default{suggestion(str(name), routes)}"
        )
    say("route.select", route=name, is_default=not is_known)
    try:
        result = await _settled(route(state))
    except Exception:
        say("route.execute", route=name, error=True)
        raise
    say("route.execute", route=name, error=False)
    return result


# The same as nodes of graphs.


Items = Iterable[Any] | Callable[[State], Iterable[Any]]


def chain_node(
    items: Items, step: Function, *, progress: Progress | None = None, remember: bool = True
) -> Function:
    """Return a node that calls `step(item, state)` for each item, each with the state that the one before has left.

    `items` are the items, or a function of the state that returns them. A step returns a new state
    (`state.set("n", 1)`) or a mapping of new values. With `remember` each finished step is stored (`ctx.once`): if the
    node is interrupted, a resume goes on with the next one.
    """
    _check(step, "step")

    def node(state: State, ctx: Any) -> Any:
        def remembered(index: int, item: Any, current: State) -> Any:
            changes = _changes(step, item, current)
            found = ctx.once(f"chain {index}", changes) if remember else changes()
            return _then(found, current.merge)

        work = _chain(_items(items, state), state, remembered, False, progress, _Teller.of_node(state, ctx))
        return _then(_result(work, step), lambda result: result.final)

    return node


def parallel_node(
    items: Items,
    process: Function,
    into: str | Callable[[ParallelResult, State], Any],
    *,
    workers: int | None = None,
    fail_fast: bool = True,
    progress: Progress | None = None,
    remember: bool = True,
) -> Function:
    """Return a node that calls `process(item)` for each item, several at once, as `process_parallel` does.

    `into` is the key of the state that gets the list of results, or a function of the `ParallelResult` and the state
    that returns the update. With `remember` each result is stored when its item ends (`ctx.once`): if the node is
    interrupted, a resume processes only the other items.
    """
    _check(process, "process")

    def node(state: State, ctx: Any) -> Any:
        def remembered(index: int, item: Any) -> Any:
            call = _partial(process, item)
            return ctx.once(f"item {index}", call) if remember else call()

        say, found = _Teller.of_node(state, ctx), _items(items, state)
        done = _parallel(found, remembered, process, workers, fail_fast, progress, say)
        return _then(
            done,
            lambda result: {into: list(result.results)} if isinstance(into, str) else into(result, state),
        )

    return node


def conditional_node(
    choose: Function, routes: Mapping[str, Function], *, default: Function | None = None
) -> Function:
    """Return a node that calls the route that `choose(state)` names, and returns its update of the state."""
    _check(choose, "choose")
    return lambda state, ctx: _choice(state, choose, routes, default, _Teller.of_node(state, ctx))


# Functions that may be sync or async.


def _check(function: object, what: str) -> None:
    if not callable(function):
        raise HoldfastError(f"{what} must be a function, not {function!r:.80}")


def _items(items: Items, state: State) -> list[Any]:
    return _listed(items(state) if callable(items) else items)


def _listed(items: Iterable[Any]) -> list[Any]:
    if not isinstance(items, Iterable):
        raise HoldfastError(f"items must be a list or another iterable, not {items!r:.80}")
    return list(items)


def _is_async(function: Function) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _partial(function: Function, *args: Any) -> Callable[[], Any]:
    """Return a function without parameters that is async if the function is."""
    if not _is_async(function):
        return lambda: function(*args)

    async def call() -> Any:
        return await function(*args)

    return call


def _changes(step: Function, item: Any, state: State) -> Callable[[], Any]:
    """Return a function that calls a step and returns what it changed, as plain data that can be stored."""

    def changes(found: Any) -> dict[str, Any]:
        if isinstance(found, State):
            return changed_since(found, state)
        if found is None or isinstance(found, Mapping):
            return dict(found or {})
        raise HoldfastError(
            f"a step of a chain returns a state or a mapping of new values, not {found!r:.80}"
        )

    call = _partial(step, item, state)
    if not _is_async(call):
        return lambda: changes(call())

    async def call_changes() -> dict[str, Any]:
        return changes(await call())

    return call_changes


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _then(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return what a function makes of a value; of one that is to be awaited, later."""
    if not inspect.isawaitable(value):
        return function(value)

    async def later() -> Any:
        return function(await value)

    return later()


def _result(work: Coroutine[Any, Any, Any], *functions: Function) -> Any:
    """Return the result of some work, or, if one of its functions is async, the work itself to be awaited."""
    return work if any(map(_is_async, functions)) else _finished(work)


def _finished(work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of work that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise HoldfastError(
        "a plain function returned an awaitable; write it as `async def`, and await the result"
    )
