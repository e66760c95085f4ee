"""Functions told apart by their byte code: as the first journals hold it, and for code that has no source at hand."""

from __future__ import annotations

import functools
import hashlib
import opcode
import sys
import types
from typing import Any

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
_LOAD, _STORE, _EXTENDED = (opcode.opmap[name] for name in ("LOAD_GLOBAL", "STORE_GLOBAL", "EXTENDED_ARG"))
_A_FUNCTION = 0x1
"""The flag of code that is a function's, and not a class's or a module's."""


def digest(text: str) -> str:
    """A short text that differs for different texts."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def shallow_fingerprint(subject: Any) -> str:
    """A fingerprint of a callable's own byte code, defaults and simple closed-over values.

    It stays as it ever was, so that runs which were saved with it can be compared.
    """
    bound: list[str] = []
    while isinstance(subject, functools.partial):
        bound += [*map(_simple, subject.args), *(f"{k}={_simple(v)}" for k, v in subject.keywords.items())]
        subject = subject.func
    function = getattr(subject, "__func__", subject)
    if not isinstance(function, types.FunctionType):
        function = getattr(type(subject), "__call__", None)  # noqa: B004
    if not isinstance(function, types.FunctionType):
        return f"name:{digest(getattr(subject, '__qualname__', type(subject).__qualname__))}"
    try:
        text = _describe(function) + repr(bound) * bool(bound)
    except RecursionError:  # What it holds contains itself.
        text = repr(_code(function.__code__))
    return f"py{PYTHON}:{digest(text)}"


def byte_code(code: types.CodeType) -> tuple[Any, ...]:
    """What a piece of code does, without its docstrings; only comparable within one version of Python."""
    constants = list(code.co_consts)
    documented = code.co_flags & _A_FUNCTION and not code.co_name.startswith("<")
    if documented and constants and isinstance(constants[0], str):
        constants[0] = None
    inner = [byte_code(item) if isinstance(item, types.CodeType) else _simple(item) for item in constants]
    return code.co_code.hex(), tuple(inner), code.co_names, code.co_varnames, code.co_freevars


@functools.lru_cache(maxsize=2048)
def globals_of(code: types.CodeType) -> frozenset[str]:
    """The names of its module that a piece of code reads, but does not set itself."""
    read: set[str] = set()
    set_here: set[str] = set()
    raw, names, extended = code.co_code, code.co_names, 0
    for place in range(0, len(raw), 2) if names else ():
        operation, argument = raw[place], raw[place + 1] | extended
        extended = argument << 8 if operation == _EXTENDED else 0
        if operation == _LOAD:
            read.add(names[argument >> 1])
        elif operation == _STORE:
            set_here.add(names[argument])
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            read |= globals_of(constant)
    return frozenset(read - set_here)


@functools.lru_cache(maxsize=2048)
def names_of(code: types.CodeType) -> frozenset[str]:
    """All names that a piece of code uses, those of attributes too."""
    inner = (names_of(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(code.co_names).union(*inner)


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
