"""`python`: a function of the user's, in a module or in a file beside the workflow."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from holdfast.engine.context import Context, PauseSignal
from holdfast.errors import HoldfastError
from holdfast.graph.validation import THREADS, ExecutorChoice, choice_of, missing_package
from holdfast.journal.records import Noted
from holdfast.names import LazyModule
from holdfast.state.ops import ReadOnly
from holdfast.state.state import State
from holdfast.workflows.kinds.kind import Kind, Paths, Result
from holdfast.workflows.model import Step
from holdfast.workflows.scope import Resources, StepFailed

if TYPE_CHECKING:
    from holdfast.engine.executors import executors, remote
else:
    executors = LazyModule("engine.executors.executors")
    remote = LazyModule("engine.executors.remote")

# Finding the Python function that a workflow names: in a file beside it, or in a module.


_OUR_PREFIX = "_holdfast_"
"""How the names begin of modules that are files beside a workflow."""


@dataclass(frozen=True)
class Target:
    """A function by the name that a workflow has for it: each caller looks it up."""

    name: str
    base: Path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return find_function(self.name, self.base)(*args, **kwargs)


def by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is sent to other machines with its code, if it is from a file that only this one has."""
    module = sys.modules[function.__module__]
    if module.__name__.startswith(_OUR_PREFIX):
        cloudpickle: Any = importlib.import_module("cloudpickle")
        cloudpickle.register_pickle_by_value(module)
    return function


def find_function(target: str, base: Path) -> Callable[..., Any]:
    """The function that `module:function` or `file.py:function` names; modules are also looked for in `base`."""
    place, _, name = target.rpartition(":")
    file = base / (place if place.endswith(".py") else f"{place.replace('.', '/')}.py")
    if place.endswith(".py") or ("." not in place and file.is_file()):
        module = _load_file(file, target)
    else:
        module = _load_module(place, base, target)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        names = [key for key, value in vars(module).items() if inspect.isfunction(value) and key[0] != "_"]
        there = ", ".join(names[:20]) or "none"
        raise HoldfastError(f"{place} has no function {name!r}; it has {there}")
    if inspect.isclass(found):
        raise HoldfastError(f"{target} is a class; name a function that uses it")
    if not callable(found):
        raise HoldfastError(f"{target} is not a function but {type(found).__name__}")
    if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        raise HoldfastError(f"{target} is a generator, which yields; let it return a list")
    return found  # type: ignore[no-any-return]


def _load_module(place: str, base: Path, target: str) -> ModuleType:
    _look_in(base)
    try:
        module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise HoldfastError(
                f"there is no module {place!r}; install it, or put it beside the workflow file"
            ) from None
        raise _broken(target, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(target, error) from error
    own, file = base / place.partition(".")[0], module.__file__
    if own.is_dir() and file is not None and not Path(file).resolve().is_relative_to(own.resolve()):
        raise HoldfastError(f"{place!r} is loaded from {file} already, not from {own}; rename one of the two")
    return module


def _load_file(path: Path, target: str) -> ModuleType:
    """Return the module that a file is, loaded again if the file has changed; another file may have the same name."""
    try:
        status = path.stat()
    except OSError:
        raise HoldfastError(f"there is no file {path}; paths are relative to the workflow file") from None
    stamp = f"{path.resolve()}\n{status.st_mtime_ns}\n{status.st_size}"
    name = f"{_OUR_PREFIX}{path.stem}_{hashlib.sha256(stamp.encode(errors='replace')).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _look_in(path.parent)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, (Exception, SystemExit)):
            raise _broken(target, error) from error
        raise
    return module


def _look_in(folder: Path) -> None:
    """Let modules import those beside them; the standard library and what is installed come first."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _broken(target: str, error: BaseException) -> HoldfastError:
    """Return what kept a module from being loaded, with the line that it happened in."""
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
    else:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if len(frames) > 1 else target
    return HoldfastError(f"{target} cannot be loaded: {where}: {type(error).__name__}: {error}")


# What a function that is given secrets may ask of the engine: the same as any other, with the secrets left.


class Discreet(Context):
    """A context that lets no secret through to events, logs, questions and what is remembered."""

    __slots__ = ("_inner", "_resources", "_streaming")

    def __init__(self, inner: Context, resources: Resources) -> None:
        self._inner, self._resources = inner, resources
        self._streaming = Streaming(resources, super().stream, waits=True)
        super().__init__(inner._host, inner._step, inner.config, inner._is_async)

    @property
    def _beat(self) -> float:
        return self._inner._beat

    @_beat.setter
    def _beat(self, time: float) -> None:
        self._inner._beat = time

    @property
    def _left(self) -> PauseSignal | None:
        return self._inner._left

    @_left.setter
    def _left(self, pause: PauseSignal | None) -> None:
        self._inner._left = pause

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """As in every context, without secrets."""
        plain = super().log
        return _DiscreetLog(plain.logger, plain.extra, self._resources)

    def emit(self, message: Any = None, /, **data: Any) -> None:
        """As in every context, without secrets."""
        super().emit(self._resources.hide(message), **self._resources.hide(data))

    def stream(self, text: str) -> None:
        """As in every context, without secrets: in whole lines."""
        self._streaming.piece(text) if isinstance(text, str) else super().stream(text)

    def finish_stream(self) -> None:
        """Stream the end of the text, which is no whole line."""
        self._streaming.rest()

    def ask(self, prompt: str, **options: Any) -> Any:
        """As in every context, without secrets."""
        return super().ask(self._resources.hide(prompt), **self._resources.hide(options))

    def ask_all(self, questions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """As in every context, without secrets."""
        return super().ask_all(self._resources.hide(dict(questions)))

    @property
    def _is_over(self) -> bool:
        return self._inner._is_over

    @_is_over.setter
    def _is_over(self, is_over: bool) -> None:
        self._inner._is_over |= is_over

    def _stored_key(self, key: str) -> str:
        """Return a key as it is stored, without secrets."""
        return str(self._resources.hide(super()._stored_key(key)))

    def _noted(self, key: str, value: Any) -> Noted:
        """Return what is stored under a key, without secrets."""
        return super()._noted(self._resources.hide(key), self._resources.hide(value))


class Streaming:
    """Hands on a text as it comes. Where there are secrets it is whole lines, so that none of them comes in pieces."""

    def __init__(self, resources: Resources, stream: Callable[[str], None], waits: bool = False) -> None:
        self._resources, self._stream = resources, stream
        self._waits = waits or bool(resources.secrets.remembered())
        self._line = ""

    def piece(self, text: str) -> None:
        """Hand on a piece, as far as it can be said that no secret is in it."""
        if not self._waits:
            self._stream(text)
            return
        *lines, self._line = f"{self._line}{text}".split("\n")
        for line in lines:
            self._stream(f"{self._resources.hide(line)}\n")

    def rest(self) -> None:
        """Hand on what is left at the end."""
        line, self._line = self._line, ""
        if line:
            self._stream(self._resources.hide(line))


class _DiscreetLog(logging.LoggerAdapter[logging.Logger]):
    def __init__(self, logger: logging.Logger, extra: Any, resources: Resources) -> None:
        super().__init__(logger, extra)
        self._resources = resources

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log without secrets, those in the traceback included."""
        if not self.isEnabledFor(level):
            return
        text = str(msg) % args if args else str(msg)
        failure = kwargs.pop("exc_info", None)
        error = failure if isinstance(failure, BaseException) else sys.exc_info()[1] if failure else None
        if error is not None:
            text = f"{text}\n{self._resources.scrubber.scrub_exception(error)}"
        text, options = self.process(str(self._resources.hide(text)), kwargs)
        self.logger.log(level, "%s", text, **options)


_GIVEN = ("inputs", "steps", "visits", "vars", "workflow", "state", "ctx")
_OUR_FOLDER = str(Path(__file__).parents[2])
_COMMON = (dict, list, str, int, float, bool, type(None))
_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class CallPython(Kind):
    """Calls a function with the arguments of `with`, or with what its parameters name of the scope."""

    def __init__(self, step: Step, resources: Resources) -> None:
        super().__init__(step, resources)
        assert step.python is not None
        self._target = step.python
        self._function = find_function(step.python, resources.base)
        elsewhere = step.executor if step.executor not in (None, THREADS) else None
        for problem in missing_package(elsewhere) if elsewhere is not None else ():
            raise HoldfastError(f"it has {problem}")
        self._executor = None if elsewhere is None else choice_of(elsewhere)
        self.is_async = inspect.iscoroutinefunction(self._function) or self._executor is not None
        self._title, self._is_timed = f"step {step.name!r}", step.timeout is not None
        self._parameters, self._takes_any = _parameters(self._function)
        self._with = self.tree("with", step.with_) if step.with_ else None
        item = (step.for_each.as_, "index", "key") if step.for_each is not None else ()
        given = step.with_ if step.with_ else dict.fromkeys((*_GIVEN, *item))
        self._check(given, [*_GIVEN, *item])
        self._named = [name for name in self._parameters if name in given or name in ("state", "ctx")]
        self.asks_engine, self.takes_state = "ctx" in self._named, "state" in self._named
        self._discreet = any(path[0] == "secrets" for path in self._paths)

    def _check(self, given: Mapping[str, Any], scope: list[str]) -> None:
        """Refuse arguments that the function does not take, and the lack of those that it needs."""
        for name, parameter in self._parameters.items():
            if parameter.default is parameter.empty and name not in (*given, "state", "ctx"):
                raise HoldfastError(
                    f"{self._target} needs an argument {name!r}; give it with `with: {{{name}: …}}`"
                    + ("" if self._with is not None else f", or use one of {', '.join(scope)}")
                )
        if self._with is not None and not self._takes_any:
            for name in given:
                if name not in self._parameters:
                    takes = ", ".join(self._parameters) or "none"
                    raise HoldfastError(f"{self._target} takes no argument {name!r}; it takes {takes}")

    def paths(self) -> Paths:
        if self._with is not None:
            return self._paths
        named = {(name,) for name in ("inputs", "vars", "workflow") if name in self._named}
        return self._paths | named | ({("steps",)} if {"steps", "visits"} & set(self._named) else set())

    def functions(self) -> Sequence[Callable[..., Any]]:
        return (self._function,)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Any:
        if self.asks_engine and (self._discreet or self._resources.secrets.remembered()):
            ctx = Discreet(ctx, self._resources)
        if self._executor is not None:
            return self._elsewhere(self._executor, scope, state, ctx)
        positional, named = self._arguments(scope, {"state": state, "ctx": ctx})
        try:
            value = self._function(*positional, **named)
        except ReadOnly as error:
            raise self._mutation(error) from None
        return self._later(value, ctx) if self.is_async else self._result(value, ctx)

    async def _elsewhere(
        self, executor: ExecutorChoice, scope: Mapping[str, Any], state: State, ctx: Context
    ) -> Result:
        """Have an executor call the function; all the rest is done here."""
        own: dict[str, Any] = {"ctx": remote.Facts.of(ctx, str(executor))}
        if "state" in self._named:
            own["state"] = remote.SentState.of(state, executor.by_value)
        positional, named = self._arguments(scope, own)
        target = Target(self._target, self._resources.base)
        function = by_value(self._function) if executor.is_dask else target
        task = remote.Task.of(self._title, executor, function, positional, named)
        value = executors.done_elsewhere(executor, task, ctx, ctx if self._is_timed else None)
        return await self._later(value, ctx)

    def _arguments(
        self, scope: Mapping[str, Any], own: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        given = {} if self._with is None else self._with.render(scope)
        found = dict(given)
        for name in self._named:
            if name not in found:
                found[name] = own[name] if name in own else scope[name]
        alone = [one for one in self._parameters.values() if one.kind == _POSITIONAL]
        return [found.pop(one.name, one.default) for one in alone], found

    def _result(self, value: Any, ctx: Context) -> Result:
        if isinstance(ctx, Discreet):
            ctx.finish_stream()
        return Result(output=self._checked(value))

    async def _later(self, value: Awaitable[Any], ctx: Context) -> Result:
        try:
            return self._result(await value, ctx)
        except ReadOnly as error:
            raise self._mutation(error) from None

    def _checked(self, value: Any) -> Any:
        if type(value) in _COMMON:
            return value
        if inspect.isgenerator(value) or inspect.isasyncgen(value) or inspect.isawaitable(value):
            kind = type(value).__name__
            raise StepFailed(f"{self._target} returned a {kind}, which cannot be stored; let it return data")
        return value

    def _mutation(self, error: ReadOnly) -> StepFailed:
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if not frame.filename.startswith(_OUR_FOLDER)]
        where = f"{theirs[-1].filename}:{theirs[-1].lineno}: " if theirs else ""
        return StepFailed(
            f"{where}{self._target} changed a value that it was given, which would be lost; change a copy "
            "(list(value), dict(value), copy.deepcopy(value)) and return it"
        )


def _parameters(function: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the parameters that a function can be given by name or place, and whether it takes any other by name."""
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}, True
    takes_any = any(parameter.kind == parameter.VAR_KEYWORD for parameter in found.values())
    kinds = (_POSITIONAL, *_BY_NAME)
    return {name: parameter for name, parameter in found.items() if parameter.kind in kinds}, takes_any
