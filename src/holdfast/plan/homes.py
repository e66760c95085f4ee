"""Whose code it is: of the same package or folder as other code, or of a library."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = Path(os.__file__).resolve().parent


class Home(NamedTuple):
    """Where code is at home: the folder that its outermost package lies in, or, installed, the package itself."""

    place: str
    root: str
    """The folder in which modules are found by their full names; empty if there is none."""
    is_library: bool


def home_of(space: Mapping[str, Any]) -> Home:
    """The home of a module, given the names that it holds."""
    package = str(space.get("__package__") or "")
    return _home(str(space.get("__file__") or ""), package, package or str(space.get("__name__", "")))


def space_of_class(kind: type) -> Mapping[str, Any]:
    """What the module of a class holds; as its methods see it, since the module may be known under another name."""
    for member in vars(kind).values():
        function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        if isinstance(function, types.FunctionType) and function.__module__ == kind.__module__:
            return function.__globals__
    module = sys.modules.get(kind.__module__)
    return vars(module) if module is not None else {"__name__": kind.__module__}


def home_of_class(kind: type) -> Home:
    """The home of the module that a class is of."""
    return home_of(space_of_class(kind))


@functools.lru_cache(maxsize=4096)
def _home(file: str, package: str, name: str) -> Home:
    outermost = name.partition(".")[0]
    known = outermost in sys.stdlib_module_names and outermost != "__main__"
    if known or outermost == __package__.partition(".")[0]:
        return Home(outermost, "", True)
    if not file:
        return Home(outermost, "", False)
    root = Path(file).resolve().parent
    for _ in package.split(".") if package else ():
        root = root.parent
    installed = root.name in _INSTALLED or root == _STANDARD
    return Home(outermost if installed else str(root), str(root), installed)


def files_of_import(home: Home, package: str, level: int, module: str, names: list[str]) -> Iterator[Path]:
    """The files of this home that an import statement in one of its modules reads."""
    try:
        full = importlib.util.resolve_name("." * level + module, package or None) if level else module
    except ImportError:
        return
    if not home.root or (home.is_library and full.partition(".")[0] != home.place):
        return
    for name in [full, *(f"{full}.{each}" for each in names)]:
        path = Path(home.root, *name.split("."))
        for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
            if file.is_file():
                yield file
                break
