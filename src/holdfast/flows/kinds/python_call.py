"""`python`: a function of the user's, in a module or in a file beside the workflow."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.data.frozen import ReadOnly
from holdfast.data.state import State
from holdfast.engine.driving.context import Context
from holdfast.engine.elsewhere.executors import done_elsewhere
from holdfast.engine.elsewhere.remote import SentState, Task
from holdfast.engine.elsewhere.remote_context import Facts
from holdfast.errors import HoldfastError
from holdfast.flows.errors import StepFailed
from holdfast.flows.kinds.discreet import Discreet
from holdfast.flows.kinds.kind import Paths, Plain, Result
from holdfast.flows.kinds.python_target import Target, by_value, find_function
from holdfast.flows.model import Step
from holdfast.flows.world import World
from holdfast.plan.executor_choice import THREADS, ExecutorChoice, choice_of, missing_package

_GIVEN = ("inputs", "steps", "visits", "vars", "workflow", "state", "ctx")
_OURS = str(Path(__file__).parents[2])
_COMMON = (dict, list, str, int, float, bool, type(None))
_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class CallPython(Plain):
    """Calls a function with the arguments of `with`, or with what its parameters name of the scope."""

    def __init__(self, step: Step, world: World) -> None:
        super().__init__()
        assert step.python is not None
        self._target, self._world = step.python, world
        self._function = find_function(step.python, world.base)
        self._executor = _executor_of(step)
        self.is_async = inspect.iscoroutinefunction(self._function) or self._executor is not None
        self._title, self._is_timed = f"step {step.name!r}", step.timeout is not None
        self._parameters, self._takes_any = _parameters(self._function)
        self._with = self.texts.tree("with", step.with_) if step.with_ else None
        item = (step.for_each.as_, "index", "key") if step.for_each is not None else ()
        given = step.with_ if step.with_ else dict.fromkeys((*_GIVEN, *item))
        self._check(given, [*_GIVEN, *item])
        self._named = [name for name in self._parameters if name in given or name in ("state", "ctx")]
        self.asks_engine, self.takes_state = "ctx" in self._named, "state" in self._named
        self._discreet = any(path[0] == "secrets" for path in self.texts.paths())

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
        found = self.texts.paths()
        if self._with is None and {"steps", "visits"} & set(self._named):
            found = found | {("steps",)}
        if self._with is None and "inputs" in self._named:
            found = found | {("inputs",)}
        if self._with is None:
            found = found | {(name,) for name in ("vars", "workflow") if name in self._named}
        return found

    def functions(self) -> Sequence[Callable[..., Any]]:
        return (self._function,)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Any:
        if self.asks_engine and (self._discreet or self._world.secrets.remembered()):
            ctx = Discreet(ctx, self._world)
        if self._executor is not None:
            return self._elsewhere(self._executor, scope, state, ctx)
        positional, named = self._arguments(scope, {"state": state, "ctx": ctx})
        try:
            value = self._function(*positional, **named)
        except ReadOnly as error:
            raise self._mutation(error) from None
        return self._later(value) if self.is_async else Result(output=self._checked(value))

    async def _elsewhere(
        self, executor: ExecutorChoice, scope: Mapping[str, Any], state: State, ctx: Context
    ) -> Result:
        """The function called by an executor; all the rest is done here."""
        own: dict[str, Any] = {"ctx": Facts.of(ctx, str(executor))}
        if "state" in self._named:
            own["state"] = SentState.of(state, executor.by_value)
        positional, named = self._arguments(scope, own)
        target = Target(self._target, self._world.base)
        function = by_value(self._function) if executor.is_dask else target
        task = Task.of(self._title, executor, function, positional, named)
        value = done_elsewhere(executor, task, ctx, ctx if self._is_timed else None)
        return await self._later(value)

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

    async def _later(self, value: Awaitable[Any]) -> Result:
        try:
            return Result(output=self._checked(await value))
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
        theirs = [frame for frame in frames if not frame.filename.startswith(_OURS)]
        where = f"{theirs[-1].filename}:{theirs[-1].lineno}: " if theirs else ""
        return StepFailed(
            f"{where}{self._target} changed a value that it was given, which would be lost; change a copy "
            "(list(value), dict(value), copy.deepcopy(value)) and return it"
        )


def _executor_of(step: Step) -> ExecutorChoice | None:
    """Which other processes do the step's work, if it is not done in this one."""
    if step.executor is None or step.executor == THREADS:
        return None
    for problem in missing_package(step.executor):
        raise HoldfastError(f"it has {problem}")
    return choice_of(step.executor)


def _parameters(function: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """The parameters that a function can be given by name or place, and whether it takes any other by name."""
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}, True
    takes_any = any(parameter.kind == parameter.VAR_KEYWORD for parameter in found.values())
    kinds = (_POSITIONAL, *_BY_NAME)
    return {name: parameter for name, parameter in found.items() if parameter.kind in kinds}, takes_any
