"""`python`: a function of the user's, in a module or in a file beside the workflow."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.data.state import State
from holdfast.engine.context import Context
from holdfast.errors import HoldfastError
from holdfast.flows.kinds.kind import Plain, Result, rendered
from holdfast.flows.model import Step
from holdfast.flows.world import World
from holdfast.plan.fingerprint import fingerprint


class CallPython(Plain):
    """Calls a function with the arguments of `with`, or with what its parameters name of the scope."""

    def __init__(self, step: Step, world: World) -> None:
        super().__init__()
        assert step.python is not None
        self._target = step.python
        self._function = find_function(step.python, world.base)
        self._arguments = self.texts.tree(step.with_) if step.with_ else None
        self._parameters = _parameters(self._function)
        item = step.for_each.as_ if step.for_each else None
        if self._arguments is None:
            self._check(step.name, item)

    def _check(self, step: str, item: str | None) -> None:
        known = {
            "inputs",
            "steps",
            "visits",
            "vars",
            "workflow",
            "ctx",
            "state",
            "item",
            "index",
            "key",
            item,
        }
        for name, parameter in self._parameters.items():
            if parameter.default is parameter.empty and name not in known:
                raise HoldfastError(
                    f"{self._target} needs an argument {name!r}; give it with `with: {{{name}: …}}`, or use one of "
                    "inputs, steps, item, index, key, vars, workflow, state, ctx"
                )

    def paths(self) -> set[tuple[str, ...]]:
        found = self.texts.paths()
        if self._arguments is None and {"steps", "visits"} & set(self._parameters):
            found = found | {("steps",)}
        return found

    def code(self) -> str:
        return fingerprint(self._function)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Any:
        given = {**scope, "ctx": ctx, "state": state}
        if self._arguments is None:
            arguments = {name: given[name] for name in self._parameters if name in given}
        else:
            arguments = rendered(self._arguments, scope)
            arguments |= {name: given[name] for name in ("ctx", "state") if name in self._parameters}
        value = self._function(**arguments)
        return _later(value) if inspect.isawaitable(value) else Result(output=value)


async def _later(value: Any) -> Result:
    return Result(output=await value)


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: parameter for name, parameter in found.items() if parameter.kind in kinds}


def find_function(target: str, base: Path) -> Callable[..., Any]:
    """The function that `module:function` or `file.py:function` names; modules are also looked for in `base`."""
    place, _, name = target.rpartition(":")
    module = _load_file(base / place, target) if place.endswith(".py") else _load_module(place, base, target)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise HoldfastError(f"{target}: {place} has no function {name!r}")
    return found  # type: ignore[no-any-return]


def _load_module(place: str, base: Path, target: str) -> Any:
    folder = str(base)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise HoldfastError(
            f"{target}: module {place!r} cannot be imported ({error}); install it, or put it beside the workflow file"
        ) from error


def _load_file(path: Path, target: str) -> Any:
    if not path.is_file():
        raise HoldfastError(f"{target}: there is no file {path}; paths are relative to the workflow file")
    name = f"_holdfast_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception):
            raise HoldfastError(
                f"{target}: {path} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        raise
    return module
