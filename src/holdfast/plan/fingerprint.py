"""A short text that changes when a piece of code or data changes."""

from __future__ import annotations

import dataclasses
import enum
import functools
import opcode
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.plan.byte_code import PYTHON, byte_code, digest, shallow_fingerprint
from holdfast.plan.source_code import source_of

_FUNCTIONS = 200
"""How many functions are followed from one node; the rest count by their names."""
_VALUES = 20_000
"""How many values that they hold are looked into."""
_DEPTH = 8
_SCALARS = (str, int, float, complex, bool, bytes, type(None), type(...), range)
_LOAD, _STORE, _EXTENDED = (opcode.opmap[name] for name in ("LOAD_GLOBAL", "STORE_GLOBAL", "EXTENDED_ARG"))
_TELLING = frozenset({"datetime", "decimal", "fractions", "uuid"})
"""The modules whose values tell what they are by their `repr`."""


class Fingerprint(str):
    """A text that is a fingerprint already. As a node's `version` it is taken as it is."""

    __slots__ = ()


def fingerprint(subject: Any) -> str:
    """The fingerprint of a function or of plain data: one or two forms of it, each `form:digest`.

    A function's covers what it does (not its comments, layout, docstrings or annotations), its defaults, what it
    closes over, what a partial or an instance gives it, and the functions and constants of its own package that
    it uses, however indirectly. Where its source is at hand, all versions of Python agree on it (`src`); else it
    tells of the version that it was made with (`code3.12`). The second form (`py3.12`) is that of older journals.
    """
    if isinstance(subject, Fingerprint):
        return subject
    if subject is None or isinstance(subject, (str, dict)):
        return f"data:{digest(repr(subject))}"
    shallow = shallow_fingerprint(subject)
    holds = isinstance(subject, functools.partial) or hasattr(subject, "__wrapped__")
    if shallow.startswith("name:") and not holds:
        return shallow
    deep = _Description(subject)
    return f"{deep.form('src', 'code')}:{digest(deep.text)} {shallow}"


def definition_fingerprint(text: str, functions: Iterable[Any], older: str) -> Fingerprint:
    """The fingerprint of something that is written as data and calls functions; `older` is as journals had the text.

    It has two forms as a function's has.
    """
    functions = list(functions)
    told = [_Description(function) for function in functions]
    form = "def" if all(each.of_source for each in told) else f"def{PYTHON}"
    # It was the fingerprint of a version that was a fingerprint itself, of the text and of byte code.
    before = f"data:{digest(repr(older + ' '.join(map(shallow_fingerprint, functions))))}"
    return Fingerprint(
        f"{form}:{digest(repr((text, [each.text for each in told])))} data:{digest(repr(before))}"
    )


def same_code(one: str, other: str) -> bool:
    """Whether two fingerprints tell of the same code, as far as they can be compared."""
    form = _common(one, other)
    if form is not None:
        return _forms(one)[form] == _forms(other)[form]
    return bool(_of_python(_forms(one)) and _of_python(_forms(other)))


def digest_of(one: str, other: str) -> tuple[str, str]:
    """Two fingerprints, short, as they are told to people who ask what differs."""
    form = _common(one, other)
    parts = (_forms(each) for each in (one, other))
    first, second = (part[form] if form is not None else next(iter(part.values()), "") for part in parts)
    return first[:8], second[:8]


def _forms(text: str) -> dict[str, str]:
    return {form: value for form, _, value in (part.partition(":") for part in text.split(" "))}


def _common(one: str, other: str) -> str | None:
    """The best form that both have."""
    mine, known = _forms(one), _forms(other)
    form = next((form for form in mine if form in known), None)
    # Of code that is only known as byte code, other forms hold byte code too.
    other_python = _of_python(mine) and _of_python(known) and _of_python(mine) != _of_python(known)
    return None if other_python and form not in ("src", "def") else form


def _of_python(forms: Mapping[str, str]) -> str:
    """The version of Python that fingerprints depend on; empty if on none."""
    return next((found[0] for form in forms if (found := re.findall(r"\d+\.\d+$", form))), "")


class _Description:
    """All that a callable does, in words, and whether it was told by source alone."""

    def __init__(self, subject: Any) -> None:
        self.of_source = True
        self._seen: dict[int, int] = {}
        self._package: str | None = None
        self._values = 0
        self._parts: list[str] = []
        self._waiting: list[types.FunctionType] = []
        first = self._told(subject, 0)
        while self._waiting:
            self._parts.append(self._function(self._waiting.pop(0)))
        self.text = "\n".join([first, *self._parts])

    def form(self, by_source: str, by_code: str) -> str:
        return by_source if self.of_source else f"{by_code}{PYTHON}"

    def _told(self, value: Any, depth: int) -> str:
        if isinstance(value, _SCALARS) and not isinstance(value, enum.Enum):
            return f"{type(value).__name__} {value!r}"
        self._values += 1
        if depth > _DEPTH or self._values > _VALUES:
            return f"a {self._name(type(value))}"
        if isinstance(value, types.FunctionType):
            return self._met(value)
        if isinstance(value, types.MethodType):
            return f"{self._told(value.__func__, depth)} of {self._instance(value.__self__, value.__func__, depth)}"
        if isinstance(value, functools.partial):
            return (
                f"{self._told(value.func, depth)} given {self._told((value.args, value.keywords), depth + 1)}"
            )
        return self._plain(value, depth) or self._object(value, depth)

    def _plain(self, value: Any, depth: int) -> str:
        """A container or one of the simple kinds of objects; nothing if it is neither."""
        if isinstance(value, (list, tuple)):
            return f"{self._name(type(value))}({', '.join(self._told(item, depth + 1) for item in value)})"
        if isinstance(value, (set, frozenset)):
            return f"{self._name(type(value))}({', '.join(sorted(self._told(item, depth + 1) for item in value))})"
        if isinstance(value, Mapping):
            return f"{self._name(type(value))}({', '.join(self._pairs(value.items(), depth))})"
        if isinstance(value, enum.Enum):
            return f"{self._name(type(value))}.{value.name}"
        if isinstance(value, re.Pattern):
            return f"pattern {value.pattern!r} {value.flags}"
        if type(value).__module__ in _TELLING:
            return repr(value)
        return ""

    def _pairs(self, pairs: Iterable[tuple[Any, Any]], depth: int) -> Iterator[str]:
        for key, value in pairs:
            yield f"{self._told(key, depth + 1)}={self._told(value, depth + 1)}"

    def _object(self, value: Any, depth: int) -> str:
        wrapped = getattr(value, "__wrapped__", None)
        if isinstance(wrapped, types.FunctionType):
            return f"a {self._name(type(value))} around {self._met(wrapped)}"
        if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
            return self._name(value)
        call = type(value).__dict__.get("__call__")
        if dataclasses.is_dataclass(value):
            fields = [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
            told = f"{self._name(type(value))}({', '.join(self._pairs(fields, depth))})"
            return f"{told} {self._met(call)}" if isinstance(call, types.FunctionType) else told
        if depth == 0 and isinstance(call, types.FunctionType):
            return f"{self._met(call)} of {self._instance(value, call, depth)}"
        return f"a {self._name(type(value))}"

    def _instance(self, value: Any, method: Any, depth: int) -> str:
        """An object by its simple attributes and those of its class's methods that one of them uses."""
        kind = value if isinstance(value, type) else type(value)
        known = getattr(value, "__dict__", {}) if not isinstance(value, type) else {}
        attributes = sorted((key, item) for key, item in known.items() if not key.startswith("__"))
        told = [
            f"a {self._name(kind)}",
            *(f"{key}={self._told(item, depth + 1)}" for key, item in attributes),
        ]
        seen, names = {""}, list(getattr(getattr(method, "__code__", None), "co_names", ()))
        while names:
            name = names.pop(0)
            function = getattr(kind, name, None) if name not in seen else None
            seen.add(name)
            if isinstance(function, types.FunctionType) and name not in known:
                told.append(f"{name} is {self._met(function)}")
                names += function.__code__.co_names
        return ", ".join(told)

    def _met(self, function: types.FunctionType) -> str:
        """A function by its number; what it does is told once, and only if it is of the node's own package."""
        if self._package is None:
            self._package = _package_of(function)
        if id(function) in self._seen:
            return f"function {self._seen[id(function)]}"
        number = self._seen[id(function)] = len(self._seen)
        if number >= _FUNCTIONS:
            return self._name(function)
        self._waiting.append(function)
        return f"function {number}"

    def _function(self, function: types.FunctionType) -> str:
        given = [
            self._told(function.__defaults__ or (), 1),
            self._told(dict(sorted((function.__kwdefaults__ or {}).items())), 1),
            *self._closure(function),
        ]
        wrapped = getattr(function, "__wrapped__", None)
        if isinstance(wrapped, types.FunctionType):
            given.append(f"around {self._met(wrapped)}")
        if _package_of(function, wrapper=True) != self._package:
            return f"{self._name(function)} with {given}"
        code = source_of(function.__code__)
        if code is None:
            self.of_source = False
            code = repr(byte_code(function.__code__))
        return f"{code} with {given} using {list(self._used(function))}"

    def _name(self, value: Any) -> str:
        """The name of a function, a class or a module; the node's own package may be called differently elsewhere."""
        module = str(getattr(value, "__module__", ""))
        own = module.partition(".")[0] in (self._package, "__main__", "builtins")
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
        return str(name) if own else f"{module}.{name}"

    def _closure(self, function: types.FunctionType) -> Iterator[str]:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            try:
                yield f"{name}={self._told(cell.cell_contents, 1)}"
            except ValueError:
                yield f"{name} unset"

    def _used(self, function: types.FunctionType) -> Iterator[str]:
        """The functions and constants of its module that a function uses."""
        space = function.__globals__
        for name in sorted(_globals_of(function.__code__)):
            value = space.get(name, space)
            value = (
                getattr(value, "__wrapped__", value) if not isinstance(value, types.FunctionType) else value
            )
            if isinstance(value, types.FunctionType):
                own = _package_of(value) == self._package
                yield f"{name} is {self._met(value) if own else self._name(value)}"
            elif isinstance(value, (*_SCALARS, tuple, frozenset)) or (name.isupper() and value is not space):
                yield f"{name} is {self._told(value, 1)}"


def _package_of(function: Any, *, wrapper: bool = False) -> str:
    """The outermost package that a function is of; of what a decorator made that of what it decorates."""
    while not wrapper and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    space = getattr(function, "__globals__", {})
    return str(space.get("__package__") or space.get("__name__", "")).partition(".")[0]


@functools.lru_cache(maxsize=2048)
def _globals_of(code: types.CodeType) -> frozenset[str]:
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
            read |= _globals_of(constant)
    return frozenset(read - set_here)
