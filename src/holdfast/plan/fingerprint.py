"""A short text that changes when a piece of code or data changes."""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from typing import Any

_PYTHON = f"py{sys.version_info[0]}.{sys.version_info[1]}"


def fingerprint(subject: Any) -> str:
    """The fingerprint of a function or of plain data.

    A function's covers its code, defaults and the simple values it closes over, not its comments or
    layout. As byte code differs between Python versions, it begins with that version.
    """
    if subject is None or isinstance(subject, (str, dict)):
        return f"data:{_digest(repr(subject))}"
    bound: list[str] = []
    while isinstance(subject, functools.partial):
        bound += [*map(_simple, subject.args), *(f"{k}={_simple(v)}" for k, v in subject.keywords.items())]
        subject = subject.func
    function = getattr(subject, "__func__", subject)
    if not isinstance(function, types.FunctionType):
        function = getattr(type(subject), "__call__", None)  # noqa: B004
    if not isinstance(function, types.FunctionType):
        return f"name:{_digest(getattr(subject, '__qualname__', type(subject).__qualname__))}"
    return f"{_PYTHON}:{_digest(_describe(function) + repr(bound) * bool(bound))}"


def same_code(one: str, other: str) -> bool:
    """Whether two fingerprints tell of the same code, as far as they can be compared."""
    if one.startswith("py") and other.startswith("py") and one.partition(":")[0] != other.partition(":")[0]:
        return True
    return one == other


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _describe(function: types.FunctionType) -> str:
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(_simple(cell.cell_contents))
        except ValueError:
            cells.append("unset")
    defaults = [_simple(value) for value in function.__defaults__ or ()]
    named = {key: _simple(value) for key, value in (function.__kwdefaults__ or {}).items()}
    return repr((_code(function.__code__), defaults, named, cells))


def _code(code: types.CodeType) -> tuple[Any, ...]:
    constants = tuple(
        _code(item) if isinstance(item, types.CodeType) else _simple(item) for item in code.co_consts
    )
    return (code.co_code.hex(), constants, code.co_names, code.co_varnames)


def _simple(value: Any) -> str:
    if isinstance(value, (str, int, float, bool, bytes, type(None))):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({','.join(map(_simple, value))})"
    if isinstance(value, frozenset):
        return f"frozenset({','.join(sorted(map(_simple, value)))})"
    if isinstance(value, types.FunctionType):
        return repr(_code(value.__code__))
    return type(value).__qualname__
