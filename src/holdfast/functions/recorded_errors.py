"""Errors of steps as data: what a workflow's function caught is raised again when it runs again.

Nothing is imported by a name that data holds: only exception classes that are loaded already are found, and none of
their own code runs: what makes an error is the constructor of the built-in class that it is based on.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from types import MemberDescriptorType
from typing import Any

from holdfast.engine.attempt import fault_of
from holdfast.errors import CodecError, StepError
from holdfast.state.codec import Codec

DEEPEST = 4
"""How many errors within errors are recorded, as causes, arguments or members of a group."""

MOST_MEMBERS = 100
"""How many errors of one group, or bases of one type, are recorded."""

Data = dict[str, Any]


def error_data(error: BaseException, codec: Codec, depth: int = DEEPEST) -> Data:
    """Return an error as data: its type and what that is based on, its arguments and attributes, its cause."""
    kind = type(error)
    attributes = {**vars(error), **_members(error)}
    data: Data = {
        "type": kind.__qualname__,
        "module": kind.__module__,
        "message": fault_of(error).message,
        "bases": [[each.__qualname__, each.__module__] for each in kind.__mro__[1:MOST_MEMBERS]],
        "args": [_stored(value, codec, depth) for value in _arguments(error)],
        "attributes": {
            name: _stored(value, codec, depth)
            for name, value in attributes.items()
            if name == "__notes__" or not name.startswith("__")
        },
    }
    if error.__cause__ is not None and depth:
        data["cause"] = error_data(error.__cause__, codec, depth - 1)
    return data


def _arguments(error: BaseException) -> Sequence[Any]:
    """Return what the built-in base of an error's type is called with to make such an error."""
    if isinstance(error, OSError):
        made = OSError.__reduce__(error)  # Its `args` lack the names of files.
        return made[1] if isinstance(made, tuple) and isinstance(made[1], tuple) else error.args
    return error.args


def _members(error: BaseException) -> Data:
    """Return the attributes of an error that are no part of its dictionary."""
    found: Data = {}
    for name in _descriptors(type(error)):
        value = getattr(error, name, None)
        if value is not None:
            found[name] = value
    return found


def _descriptors(kind: type[BaseException]) -> dict[str, MemberDescriptorType]:
    found = {name: value for each in reversed(kind.__mro__) for name, value in vars(each).items()}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, MemberDescriptorType) and not name.startswith("__")
    }


def _stored(value: Any, codec: Codec, depth: int) -> Data:
    """Return a part of an error as data: as it is, as the errors that it is, or else as text."""
    if isinstance(value, BaseException) and depth:
        return {"error": error_data(value, codec, depth - 1)}
    if isinstance(value, (list, tuple)) and value and depth:
        errors = [each for each in value[:MOST_MEMBERS] if isinstance(each, BaseException)]
        if errors:
            return {"errors": [error_data(each, codec, depth - 1) for each in errors]}
    try:
        codec.encode(value)
    except (CodecError, RecursionError):
        return {"text": _text(value)}
    return {"value": value}


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def error_of(data: Mapping[str, Any]) -> Exception:
    """Return an error that was recorded: of its own type, if that is loaded.

    If not, it is a `StepError` that is of the nearest of its bases as well, so that what catches these catches it.
    """
    error = _made(_kind_of(data), [_restored(each) for each in data.get("args") or ()])
    if isinstance(error, StepError):
        name, module, message = (str(data.get(each)) for each in ("type", "module", "message"))
        error.args = (f"{name}: {message} (recorded; the type {module}.{name} is not loaded here)",)
        error.type, error.message = name, message
    _set_attributes(error, data.get("attributes"))
    if isinstance(data.get("cause"), Mapping):
        error.__cause__ = error_of(data["cause"])
    return error


def _restored(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    if "errors" in part:
        return [error_of(each) for each in part["errors"]]
    return error_of(part["error"]) if "error" in part else part.get("value", part.get("text"))


def _kind_of(data: Mapping[str, Any]) -> type[Exception]:
    name = str(data.get("type"))
    if kind := _loaded(name, str(data.get("module"))):
        return kind
    bases = (_loaded(str(each[0]), str(each[1])) for each in data.get("bases") or ())
    base = next((each for each in bases if each not in (None, Exception)), StepError)
    if base is StepError:
        return StepError
    try:
        own = name.rpartition(".")[2]
        return type(own if own.isidentifier() else "StepError", (StepError, base), {})
    except TypeError:  # These two cannot be combined.
        return StepError


def _made(kind: type[Exception], args: Sequence[Any]) -> Exception:
    """Return an error of a type, made by the built-in class that this is based on."""
    base: Any = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    try:
        error: Exception = base.__new__(kind, *args)
        base.__init__(error, *args)
    except (TypeError, ValueError):  # It was made of something else.
        return Exception.__new__(StepError)
    return error


def _set_attributes(error: Exception, attributes: Any) -> None:
    if not isinstance(attributes, Mapping):
        return
    members = _descriptors(type(error))
    for name, part in attributes.items():
        value = _restored(part)
        if name in members:
            try:
                members[name].__set__(error, value)
            except (TypeError, AttributeError):  # It cannot be set, or not to that.
                continue
        elif hasattr(error, "__dict__"):
            error.__dict__[name] = value


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
