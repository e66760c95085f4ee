"""Errors of steps as data: what a workflow's function caught is raised again when it runs again.

Nothing is imported by a name that data holds: only classes that are loaded already are found, exceptions only, and
their constructors are not called.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.engine.attempt import fault_of
from holdfast.errors import CodecError, StepError
from holdfast.state.codec import Codec


def error_data(error: BaseException, codec: Codec) -> dict[str, Any]:
    """Return an error as data: its type, its arguments, and those of its attributes that can be stored."""
    kind = type(error)
    attributes = {
        name: value
        for name, value in vars(error).items()
        if not name.startswith("__") and _is_storable(value, codec)
    }
    args = [value if _is_storable(value, codec) else str(value) for value in error.args]
    names = {"type": kind.__qualname__, "module": kind.__module__, "message": fault_of(error).message}
    return {**names, "args": args, "attributes": attributes}


def _is_storable(value: Any, codec: Codec) -> bool:
    try:
        codec.encode(value)
    except (CodecError, RecursionError):
        return False
    return True


def error_of(data: Mapping[str, Any]) -> Exception:
    """Return an error that was recorded: of its own type, if that is loaded, else a `StepError`."""
    name, module = str(data.get("type")), str(data.get("module"))
    message = str(data.get("message"))
    kind = _loaded(name, module)
    if kind is None:
        problem = f"{name}: {message} (recorded; the type {module}.{name} is not loaded here)"
        return StepError(problem, type=name, message=message)
    error = kind.__new__(kind)
    error.args = tuple(data.get("args") or ())
    attributes = data.get("attributes")
    if isinstance(attributes, Mapping) and hasattr(error, "__dict__"):
        error.__dict__.update(attributes)
    return error


def _loaded(name: str, module: str) -> type[Exception] | None:
    """Return the loaded exception class of that name, if there is one."""
    found = getattr(builtins, name, None) if module == "builtins" else None
    if isinstance(found, type) and issubclass(found, Exception):
        return found
    matches = (
        each for each in _subclasses(Exception) if each.__qualname__ == name and each.__module__ == module
    )
    return next(matches, None)


def _subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    waiting, seen = [kind], set[type[Exception]]()
    while waiting:
        for each in waiting.pop().__subclasses__():
            if each not in seen:
                seen.add(each)
                waiting.append(each)
                yield each


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, what caused it, and the members of groups."""
    waiting, seen = [error], set[int]()
    while waiting:
        at = waiting.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        yield at
        waiting += [] if at.__cause__ is None else [at.__cause__]
        waiting += at.exceptions if isinstance(at, BaseExceptionGroup) else ()


def handled_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that were being handled when an error was raised."""
    seen, at = set[int](), error.__context__
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__context__
