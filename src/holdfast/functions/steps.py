"""`@step`: a plain function that is a step of a run where a workflow's function calls it."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar, cast, overload

from holdfast.engine.settings import one_of
from holdfast.errors import CodecError, GraphInvalid, StateInvalid, suggestion
from holdfast.functions.calls import Calls, current_calls
from holdfast.graph.graph import CircuitBreaker, Node, Reconcile, Retry
from holdfast.graph.validation import PROCESSES, choice_of, executor_problems, missing_package
from holdfast.state.codec import Codec
from holdfast.state.ops import SCALARS, Op
from holdfast.state.types import declared_types
from holdfast.views.plain import preview

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result", covariant=True)
Value = TypeVar("Value")

ON_CHANGE = ("fail", "rerun", "keep")
"""What is done with a finished step that is called with other arguments on a resume."""

LONG = 4096
"""Of arguments that take more bytes than this, only a preview and a digest are stored."""

ARGUMENTS, DIGEST = "arguments", "digest"

OPTIONS = ("retry", "timeout", "if_interrupted", "executor", "circuit_breaker", "version")
"""The options of steps that are those of nodes."""

STEP_OPTIONS = ("name", *OPTIONS, "on_change", "ignore")

_FORBIDDEN = frozenset("#/[]%")


class Declaration(Generic[Parameters, Result]):
    """A decorated function: its name, its parameters and the types that it declares."""

    def __init__(self, function: Callable[Parameters, Result], name: str | None, what: str) -> None:
        refuse_generator(function, what)
        functools.update_wrapper(self, function)  # type: ignore[arg-type]
        self.__qualname__: str = function.__qualname__
        self.function, self.name = function, function.__name__ if name is None else name
        if not self.name.isprintable() or not self.name or _FORBIDDEN & set(self.name):
            raise GraphInvalid(
                self.name, [f"{self.name!r} cannot be the name of a {what}; use letters and _"], what
            )
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = inspect.signature(function)
        found = self.signature.parameters.values()
        simple = all(each.kind is each.POSITIONAL_OR_KEYWORD for each in found)
        self._names = tuple(each.name for each in found) if simple else None
        """The parameters by position, if that is all that there is to say of them."""

    @functools.cached_property
    def types(self) -> list[type]:
        """The classes that its annotations name, which may be stored."""
        try:
            hints = inspect.get_annotations(self.function, eval_str=True)
        except Exception:  # Names that only type checkers know.
            hints = inspect.get_annotations(self.function)
        return [each for hint in hints.values() for each in declared_types(hint)]

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by the names of their parameters, defaults included."""
        if self._names is not None and not kwargs and len(args) == len(self._names):
            return dict(zip(self._names, args, strict=True))
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None
        bound.apply_defaults()
        return bound.arguments

    def __reduce__(self) -> str:
        return self.__qualname__


def refuse_unknown(options: Iterable[str], known: Sequence[str], what: str) -> None:
    """Refuse options that a decorator does not have."""
    for each in options:
        if each not in known:
            near = suggestion(each, known) or f"; it has {', '.join(known)}"
            raise TypeError(f"@{what} has no option {each!r}{near}")


def refuse_generator(function: Any, what: str) -> None:
    """Refuse what cannot be recorded as one result."""
    if not callable(function):
        raise GraphInvalid(
            repr(function)[:80], [f"@{what} decorates a function, not {type(function).__name__}"], what
        )
    name = getattr(function, "__name__", repr(function)[:80])
    if isinstance(function, (staticmethod, classmethod)):
        raise GraphInvalid(
            name, [f"put @{what} under @{type(function).__name__}, next to the function"], what
        )
    if not hasattr(function, "__qualname__"):
        kind = type(function).__name__
        raise GraphInvalid(
            name, [f"@{what} decorates a function, not {kind}; call it in a function of yours"], what
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise GraphInvalid(
            name,
            [
                f"a {what} cannot be a generator: its result is stored once, when it is finished, and a half-used "
                "generator cannot be continued after a crash; return a list, or make a step of each piece"
            ],
            what,
        )


if TYPE_CHECKING:

    class Mapped(list[Value]):
        """What `map` of a sync step is to type checkers: a list, and in an async function something to await."""

        def __await__(self) -> Generator[Any, None, list[Value]]: ...


class StepFunction(Declaration[Parameters, Result]):
    """A step. In a workflow a call of it is recorded; anywhere else it is the plain function."""

    def __init__(
        self,
        function: Callable[Parameters, Result],
        *,
        name: str | None = None,
        on_change: str = "fail",
        ignore: Sequence[str] = (),
        asks: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(function, name, "step")
        refuse_unknown(options, STEP_OPTIONS, "step")
        self.asks = asks
        """Whether it does nothing but ask, so that it may begin while other questions wait."""
        one_of("on_change", on_change, ON_CHANGE)
        self.on_change = on_change
        known = list(self.signature.parameters)
        self.ignored = frozenset((ignore,) if isinstance(ignore, str) else ignore)
        for each in sorted(self.ignored - {*known}):
            raise GraphInvalid(
                self.name, [f"ignore names {each!r}, which is no parameter{suggestion(each, known)}"], "step"
            )
        if known[:1] == ["self"] or known[:1] == ["cls"]:
            self.ignored |= {known[0]}
        self.node = Node(self.name, function, wants=(), is_async=self.is_async, **options)
        start = f"node {self.name!r} "
        problems = [f"it {problem.removeprefix(start)}" for problem in self.node.option_problems()]
        if problems := problems or list(self._executor_problems(function)):
            raise GraphInvalid(self.name, problems, "step")

    def _executor_problems(self, function: Callable[..., Any]) -> Iterator[str]:
        executor = self.node.executor
        if executor is None:
            return
        found = list(executor_problems(executor, self.node.if_interrupted == "rerun"))
        if not found and choice_of(executor).kind == PROCESSES and "<" in function.__qualname__:
            found.append(
                f"executor={executor!r}, and another process cannot find a function inside another; define it at the "
                "top level of a module"
            )
        yield from (f"it has {problem}" for problem in found or missing_package(executor))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else BoundStep(self, instance)

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        calls = current_calls(self.name)
        if calls is None:
            return self.function(*args, **kwargs)
        return cast(Result, self.called(calls, args, kwargs))

    def called(
        self, calls: Calls, args: Sequence[Any], kwargs: Mapping[str, Any], key: str | None = None
    ) -> Any:
        """Return what a call in a workflow comes to; a coroutine of it, if that is what the caller can await."""
        call = self.call(calls.codec_for(self), args, kwargs, key)
        claimed = calls.claim(call)
        if self.is_async and asyncio._get_running_loop() is not None:
            return calls.run_async(claimed)
        return calls.run(claimed)

    def call(self, codec: Codec, args: Sequence[Any], kwargs: Mapping[str, Any], key: str | None) -> Call:
        """Return a call with what is recorded of its arguments."""
        given = self.bound(args, kwargs)
        if self.ignored:
            given = {name: value for name, value in given.items() if name not in self.ignored}
        try:
            raw = codec.encode(given, plain=SCALARS.issuperset(map(type, given.values())))
        except CodecError:
            raise self._unstorable(codec, given) from None
        except RecursionError:
            raise CodecError(
                f"an argument of step {self.name!r} is nested too deeply or contains itself"
            ) from None
        if len(raw) <= LONG:
            return Call(self, args, kwargs, key, (Op("set", ARGUMENTS, raw, codec=codec),))
        digest = codec.encode(hashlib.blake2b(raw, digest_size=16).hexdigest())
        shown = codec.encode({name: preview(value) for name, value in given.items()})
        return Call(
            self,
            args,
            kwargs,
            key,
            (Op("set", ARGUMENTS, shown, codec=codec), Op("set", DIGEST, digest, codec=codec)),
        )

    def _unstorable(self, codec: Codec, given: Mapping[str, Any]) -> CodecError:
        for name, value in given.items():
            try:
                codec.encode(value)
            except (CodecError, RecursionError) as error:
                return CodecError(
                    f"argument {name!r} of step {self.name!r} cannot be stored: {error}; pass plain data, or, if its "
                    f"result does not depend on it, leave it out of the record with @step(ignore=({name!r},))"
                )
        return CodecError(f"the arguments of step {self.name!r} cannot be stored")

    def options(self, *, key: str) -> Keyed:
        """Return this step under a key of its own: `fetch.options(key=url)(url)` is found again by that key."""
        return Keyed(self, _checked_key(key))

    @overload
    def map(  # type: ignore[overload-overlap]  # A coroutine function is the more special one.
        self: StepFunction[..., Coroutine[Any, Any, Value]],
        *items: Iterable[Any],
        max_parallel: int | None = None,
        key: Callable[..., Any] | None = None,
    ) -> Awaitable[list[Value]]: ...
    @overload
    def map(
        self: StepFunction[..., Value],
        *items: Iterable[Any],
        max_parallel: int | None = None,
        key: Callable[..., Any] | None = None,
    ) -> Mapped[Value]: ...
    def map(
        self,
        *items: Iterable[Any],
        max_parallel: int | None = None,
        key: Callable[..., Any] | None = None,
    ) -> Any:
        """Call this step for each item, each a step of its own; return the results in the order of the items.

        In an async function, `await` it. At most `max_parallel` steps run at once; `key` makes a key of an item, by
        which its step is found again. After a failure no further step begins; those that run are finished first.
        """
        if max_parallel is not None and (not isinstance(max_parallel, int) or max_parallel < 1):
            raise StateInvalid(
                f"max_parallel of {self.name}.map is a whole number of at least 1, not {max_parallel!r}"
            )
        rows = list(zip(*items, strict=True))
        calls, is_looped = current_calls(self.name), asyncio._get_running_loop() is not None
        if calls is None:
            if self.is_async:
                return _all([functools.partial(self.function, *row) for row in rows], max_parallel)
            results: list[Any] = [self.function(*row) for row in rows]  # type: ignore[call-arg]
            return _ready(results) if is_looped else results
        codec = calls.codec_for(self)
        keys = [None if key is None else _checked_key(str(key(*row))) for row in rows]
        made = [self.call(codec, row, {}, name) for row, name in zip(rows, keys, strict=True)]
        claimed = [calls.claim(each) for each in made]
        work = [functools.partial(calls.run_aside, each) for each in claimed]
        return _all(work, max_parallel) if is_looped else calls.wait_for(_all(work, max_parallel))


class Call(NamedTuple):
    """One call of a step: what it is given, and what is recorded of that."""

    function: StepFunction[Any, Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    key: str | None
    item: tuple[Op, ...]
    """Its arguments; of large ones a preview, and a digest of them."""

    @property
    def identity(self) -> bytes:
        """What calls with the same arguments have in common: these, or their digest."""
        return self.item[-1].raw


class BoundStep:
    """A step that is a method, of one object. The object is no part of what is recorded."""

    def __init__(self, function: StepFunction[Any, Any], instance: Any) -> None:
        self._function, self._instance = function, instance
        functools.update_wrapper(self, function.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(self._instance, *args, **kwargs)

    def options(self, *, key: str) -> Any:
        """Return this method under a key of its own; see `StepFunction.options`."""
        return functools.partial(self._function.options(key=key), self._instance)

    def map(self, *items: Iterable[Any], **options: Any) -> Any:
        """Call this method for each item; see `StepFunction.map`."""
        rows = [list(each) for each in items]
        own = [self._instance] * (len(rows[0]) if rows else 0)
        return self._function.map(own, *rows, **options)


class Keyed:
    """A step under a key: it is found again by that, however often the step is called before."""

    def __init__(self, function: StepFunction[Any, Any], key: str) -> None:
        self._function, self._key = function, key

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calls = current_calls(self._function.name)
        if calls is None:
            return self._function.function(*args, **kwargs)
        return self._function.called(calls, args, kwargs, self._key)


def _checked_key(key: Any) -> str:
    if not isinstance(key, str) or not key:
        raise StateInvalid(f"the key of a step is a text that names it, not {key!r:.80}")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise StateInvalid(f"{key!r} cannot be stored as a key: it is not valid text") from None
    return key


async def _ready(value: Any) -> Any:
    return value


async def _all(work: Sequence[Callable[[], Any]], max_parallel: int | None) -> list[Any]:
    """Return the results of coroutine functions, at most so many at once; after a failure no further one begins."""
    results: list[Any] = [None] * len(work)
    waiting, failures = iter(enumerate(work)), dict[int, BaseException]()

    async def take() -> None:
        for index, function in waiting:
            if failures:
                return
            try:
                results[index] = await function()
            except BaseException as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                    raise
                failures[index] = error
                return

    workers = min(len(work), max_parallel or len(work))
    await asyncio.gather(*(take() for _ in range(workers)))
    if failures:
        raise failures[min(failures)]
    return results


@overload
def step(function: Callable[Parameters, Result], /) -> StepFunction[Parameters, Result]: ...
@overload
def step(
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: float | None = None,
    if_interrupted: str | Reconcile = "rerun",
    executor: str | Executor | None = None,
    circuit_breaker: CircuitBreaker | None = None,
    version: str | None = None,
    on_change: str = "fail",
    ignore: Sequence[str] = (),
) -> Callable[[Callable[Parameters, Result]], StepFunction[Parameters, Result]]: ...
def step(function: Any = None, /, **options: Any) -> Any:
    """Make a function a step: where a workflow calls it, its result is stored, and never computed again.

    - `retry`, `timeout`, `if_interrupted`, `executor`, `circuit_breaker`, `version`: as for nodes of graphs.
    - `name`: what it is called in the journal, by default the function's name.
    - `on_change`: what a resume does if a finished step is called with other arguments: `"fail"` says so, `"rerun"`
      runs it again with the new ones, `"keep"` takes the recorded result.
    - `ignore`: parameters that are no part of the record, such as a connection.

    Called from another step, or outside of a workflow, it is the plain function.
    """
    refuse_unknown(options, STEP_OPTIONS, "step")
    return (
        StepFunction(function, **options)
        if function is not None
        else functools.partial(StepFunction, **options)
    )
