"""Finding the Python function that a workflow names: in a file beside it, or in a module."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.errors import HoldfastError

_OURS = "_holdfast_"
"""How the names begin of modules that are files beside a workflow."""


@dataclass(frozen=True)
class Target:
    """A function by the name that a workflow has for it: whoever calls it finds it for himself."""

    name: str
    base: Path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return find_function(self.name, self.base)(*args, **kwargs)


def by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is sent to other machines with its code, if it is from a file that only this one has."""
    module = sys.modules[function.__module__]
    if module.__name__.startswith(_OURS):
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
        raise HoldfastError(f"{place} has no function {name!r}; it has {_functions(module)}")
    _check(found, target)
    return found  # type: ignore[no-any-return]


def _check(found: Any, target: str) -> None:
    if inspect.isclass(found):
        raise HoldfastError(f"{target} is a class; name a function that uses it")
    if not callable(found):
        raise HoldfastError(f"{target} is not a function but {type(found).__name__}")
    if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        raise HoldfastError(f"{target} is a generator, which yields; let it return a list")


def _functions(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if inspect.isfunction(value) and name[0] != "_"]
    return ", ".join(names[:20]) or "none"


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
    own = base / place.partition(".")[0]
    if own.is_dir() and not _is_in(module, own):
        raise HoldfastError(
            f"{place!r} is loaded from {module.__file__} already, not from {own}; rename one of the two"
        )
    return module


def _is_in(module: ModuleType, folder: Path) -> bool:
    return module.__file__ is None or Path(module.__file__).resolve().is_relative_to(folder.resolve())


def _load_file(path: Path, target: str) -> ModuleType:
    """The module that a file is, loaded anew if the file has changed; another file may have the same name."""
    try:
        status = path.stat()
    except OSError:
        raise HoldfastError(f"there is no file {path}; paths are relative to the workflow file") from None
    stamp = f"{path.resolve()}\n{status.st_mtime_ns}\n{status.st_size}"
    name = f"{_OURS}{path.stem}_{hashlib.sha256(stamp.encode(errors='replace')).hexdigest()[:16]}"
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
    """What kept a module from being loaded, with the line that it happened in."""
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
    else:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if len(frames) > 1 else target
    return HoldfastError(f"{target} cannot be loaded: {where}: {type(error).__name__}: {error}")
