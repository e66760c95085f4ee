"""A short text that changes when a piece of code or data changes."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import functools
import importlib.util
import inspect
import os
import pathlib
import re
import string
import sys
import types
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.graph.source_code import (
    PYTHON,
    Import,
    byte_code,
    class_written,
    digest,
    globals_of,
    imports_of,
    module_written,
    names_of,
    source_of,
)

# Whose code it is: of the same package or folder as other code, or of a library.


_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = Path(os.__file__).resolve().parent


class Home(NamedTuple):
    """Where code is at home: the folder that its outermost package lies in, or, installed, the package itself."""

    place: str
    root: str
    """The folder in which modules are found by their full names; empty if there is none."""
    is_library: bool


def home_of(space: Mapping[str, Any]) -> Home:
    """Return the home of a module, given the names that it holds."""
    package = str(space.get("__package__") or "")
    return _home(str(space.get("__file__") or ""), package, package or str(space.get("__name__", "")))


def space_of_class(kind: type) -> Mapping[str, Any]:
    """Return the names of the module of a class, as its methods see them: it may be known under another name."""
    for member in vars(kind).values():
        function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        if isinstance(function, types.FunctionType) and function.__module__ == kind.__module__:
            return function.__globals__
    module = sys.modules.get(kind.__module__)
    return vars(module) if module is not None else {"__name__": kind.__module__}


def home_of_class(kind: type) -> Home:
    """Return the home of the module that a class is of."""
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
    """Yield the files of this home that an import statement in one of its modules reads."""
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


# All that a callable does, in words: its own code, what it holds, and the code of its own that it uses.


_PIECES = 200
"""How many functions and classes are followed from one node; the rest count by their names."""
_VALUES = 20_000
"""How many values that they hold are looked into."""
_DEPTH = 60
_SCALARS = (str, int, float, complex, bool, bytes, type(None), type(...), range)
_TELLING = (
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
)
"""The types whose values tell what they are by their `repr`."""
_FIXED = (*_SCALARS, *_TELLING, tuple, frozenset, enum.Enum, re.Pattern, pathlib.PurePath, string.Template)
"""The types of constants, however they are called."""
_HELD = (functools.partial, types.MethodType)

Piece = types.FunctionType | type


class Description:
    """The text that changes with what a callable does, and whether it is made of source alone."""

    def __init__(self, subject: Any) -> None:
        self.of_source = True
        self._numbers: dict[int, int] = {}
        self._homes: set[str] = set()
        self._open: set[int] = set()
        """The containers that are being described."""
        self._values = 0
        self._waiting: collections.deque[Piece] = collections.deque()
        self._files: dict[pathlib.Path, None] = {}
        parts = [self._describe(subject, 0)]
        while self._waiting:
            piece = self._waiting.popleft()
            parts.append(self._class(piece) if isinstance(piece, type) else self._function(piece))
        self.text = "\n".join(parts)

    # Values.

    def _describe(self, value: Any, depth: int) -> str:
        if isinstance(value, _SCALARS) and not isinstance(value, enum.Enum):
            return f"{type(value).__name__} {value!r}"
        self._values += 1
        if depth > _DEPTH or self._values > _VALUES:
            return f"a {self._name(type(value))}"
        if id(value) in self._open:
            return "itself"
        self._open.add(id(value))
        try:
            return self._held(value, depth) or self._plain(value, depth) or self._object(value, depth)
        except Exception:  # It is no business of a fingerprint what goes wrong when an object is looked at.
            return f"a {self._name(type(value))}"
        finally:
            self._open.discard(id(value))

    def _held(self, value: Any, depth: int) -> str:
        """Return a function, or something that holds one; nothing if it is neither."""
        if isinstance(value, types.FunctionType):
            home = home_of(value.__globals__)
            if not home.is_library:
                self._homes.add(home.place)
            return self._numbered(value)
        if isinstance(value, types.MethodType):
            return f"{self._describe(value.__func__, depth)} of {self._describe(value.__self__, depth)}"
        if isinstance(value, functools.partial):
            given = self._describe((value.args, value.keywords), depth + 1)
            return f"{self._describe(value.func, depth)} given {given}"
        if isinstance(value, (staticmethod, classmethod)):
            return self._describe(value.__func__, depth)
        if isinstance(value, property):
            return f"property {self._describe((value.fget, value.fset, value.fdel), depth + 1)}"
        wrapped = None if isinstance(value, type) else getattr(value, "__wrapped__", None)
        if isinstance(wrapped, types.FunctionType):
            return f"a {self._name(type(value))} around {self._describe(wrapped, depth)}"
        return ""

    def _plain(self, value: Any, depth: int) -> str:
        """Return a container or one of the simple kinds of objects; nothing if it is neither."""
        kind = type(value)
        if isinstance(value, (list, tuple, collections.deque)):
            return f"{self._name(kind)}({', '.join(self._describe(item, depth + 1) for item in value)})"
        if isinstance(value, (set, frozenset)):
            items = sorted(value, key=_called)  # Functions and classes are numbered as they are met.
            return (
                f"{self._name(kind)}({', '.join(sorted(self._describe(item, depth + 1) for item in items))})"
            )
        if isinstance(value, Mapping):
            return f"{self._name(kind)}({', '.join(self._pairs(value.items(), depth))})"
        if isinstance(value, enum.Enum):
            return f"{self._kind(kind)}.{value.name}"
        if isinstance(value, re.Pattern):
            return f"pattern {value.pattern!r} {value.flags}"
        if isinstance(value, pathlib.PurePath):
            return f"path {value.as_posix()}"
        if isinstance(value, string.Template):
            return f"{self._kind(kind)} {value.template!r}"
        return repr(value) if isinstance(value, (*_TELLING, bytearray)) else ""

    def _pairs(self, pairs: Iterable[tuple[Any, Any]], depth: int) -> Iterator[str]:
        for key, value in pairs:
            yield f"{self._describe(key, depth + 1)}={self._describe(value, depth + 1)}"

    def _object(self, value: Any, depth: int) -> str:
        if isinstance(value, type):
            return self._kind(value)
        if isinstance(value, (types.ModuleType, types.BuiltinFunctionType)):
            return self._name(value)
        kind = type(value)
        if depth > 0 and not self._is_own(home_of_class(kind)) and not _is_record(kind):
            return f"a {self._name(kind)}"
        call = getattr(kind, "__call__", None) if depth == 0 else None  # noqa: B004
        called = f"{self._numbered(call)} of " if isinstance(call, types.FunctionType) else ""
        known = sorted(_attributes(value).items())
        described = ", ".join(f"{name}={self._describe(item, depth + 1)}" for name, item in known)
        return f"{called}a {self._kind(kind)}({described})"

    def _kind(self, kind: type) -> str:
        """Return a class: one of the node's own is described as a whole, others are named."""
        return self._numbered(kind) if self._is_own(home_of_class(kind)) else self._name(kind)

    def _is_own(self, home: Home) -> bool:
        return home.place in self._homes or not (self._homes or home.is_library)

    # Functions and classes.

    def _numbered(self, piece: Piece) -> str:
        """Return a function or a class by its number; it is described once."""
        number = self._numbers.get(id(piece))
        if number is None:
            number = self._numbers[id(piece)] = len(self._numbers)
            if number < _PIECES:
                self._waiting.append(piece)
        return f"piece {number}" if number < _PIECES else self._name(piece)

    def _function(self, function: types.FunctionType) -> str:
        given, home = self._given(function), home_of(function.__globals__)
        if not self._homes:
            self._homes.add(home.place)
        if home.place not in self._homes:
            return f"{self._name(function)} with {given}"
        code = function.__code__
        text = source_of(code)
        if text is None:
            self.of_source = False
            text = repr(byte_code(code))
        used = list(self._used(globals_of(code), names_of(code), function.__globals__))
        return (
            f"{text} with {given} using {used + list(self._imported(imports_of(code), function.__globals__))}"
        )

    def _given(self, function: types.FunctionType) -> list[str]:
        """Return what a function has beside its code."""
        given = [
            self._describe(function.__defaults__ or (), 1),
            self._describe(dict(sorted((function.__kwdefaults__ or {}).items())), 1),
            *self._closure(function),
        ]
        wrapped = getattr(function, "__wrapped__", None)
        if isinstance(wrapped, types.FunctionType):
            given.append(f"around {self._describe(wrapped, 1)}")
        return given

    def _closure(self, function: types.FunctionType) -> Iterator[str]:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            try:
                yield f"{name}={self._describe(cell.cell_contents, 1)}"
            except ValueError:
                yield f"{name} unset"

    def _class(self, kind: type) -> str:
        space = space_of_class(kind)
        home = home_of(space)
        if not self._homes:
            self._homes.add(home.place)
        members = sorted((name, item) for name, item in vars(kind).items())
        written = class_written(kind, str(space.get("__file__") or ""))
        if written is None:
            return (
                f"{self._name(kind)} of {self._describe(kind.__bases__, 1)} with {list(self._made(members))}"
            )
        functions = [_unwrapped(each) for _, item in members for each in _functions(item)]
        given = [self._given(each) for each in functions if each.__module__ == kind.__module__]
        used = list(self._used(written.names, written.attributes, space))
        return f"{written.text} with {given} using {used + list(self._imported(written.imports, space))}"

    def _made(self, members: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """Yield the members of a class that has no source at hand."""
        for name, item in members:
            functions = [each for each in _functions(item) if self._is_own(home_of(each.__globals__))]
            if functions:
                self.of_source = False
                yield f"{name} is {[self._numbered(each) for each in functions]}"
            elif not name.startswith("_") and isinstance(item, (*_FIXED, list, dict, set)):
                yield f"{name} is {self._describe(item, 1)}"

    def _name(self, value: Any) -> str:
        """Return the name of a function, class or module; the node's own package may have another name elsewhere."""
        module = str(getattr(value, "__module__", ""))
        known = sys.modules.get(module)
        own = module in ("__main__", "builtins", "") or (
            known is not None and self._is_own(home_of(vars(known)))
        )
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
        return str(name) if own else f"{module}.{name}"

    # What they use.

    def _used(
        self, names: Collection[str], attributes: Collection[str], space: Mapping[str, Any]
    ) -> Iterator[str]:
        """Yield the functions, classes and constants of a module, and of other modules of its own, that code names."""
        for name in sorted(names):
            if name in space:
                yield from self._use(name, space[name], attributes, ())

    def _use(self, name: str, value: Any, attributes: Collection[str], way: tuple[int, ...]) -> Iterator[str]:
        if isinstance(value, types.ModuleType):
            inside = vars(value)
            if id(value) not in way and self._is_own(home_of(inside)):
                for each in sorted(attributes & inside.keys()):
                    yield from self._use(f"{name}.{each}", inside[each], attributes, (*way, id(value)))
            return
        inner = value if isinstance(value, type) else _unwrapped(value)
        if isinstance(inner, types.FunctionType):
            outer = value if isinstance(value, types.FunctionType) else inner
            own = any(self._is_own(home_of(each.__globals__)) for each in (inner, outer))
            yield f"{name} is {self._numbered(outer) if own else self._name(inner)}"
        elif isinstance(value, type):
            yield f"{name} is {self._kind(value)}"
        elif isinstance(value, (*_FIXED, *_HELD)) or name.rpartition(".")[2].isupper():
            yield f"{name} is {self._describe(value, 1)}"
        elif self._is_own(home_of_class(type(value))):
            yield f"{name} is a {self._kind(type(value))}"

    def _imported(self, imports: Iterable[Import], space: Mapping[str, Any]) -> Iterator[str]:
        """Yield the own modules that code imports only when it runs: each counts as a whole, with its imports."""
        home, waiting = home_of(space), [(each, str(space.get("__package__") or "")) for each in imports]
        while waiting:
            (level, module, names), package = waiting.pop(0)
            for file in files_of_import(home, package, level, module, list(names)):
                written = module_written(str(file)) if file not in self._files else None
                self._files[file] = None
                if written is not None and len(self._files) <= _PIECES:
                    inside = ".".join(file.parent.relative_to(home.root).parts)
                    waiting += [(each, inside) for each in written.imports]
                    yield written.text


def _unwrapped(value: Any) -> Any:
    try:
        return inspect.unwrap(value)
    except Exception:  # It is around itself, or is nothing that can be asked.
        return value


def _called(value: Any) -> str:
    return str(getattr(value, "__qualname__", ""))


def _functions(member: Any) -> Iterator[types.FunctionType]:
    """Yield the functions that a member of a class consists of."""
    parts = (member.fget, member.fset, member.fdel) if isinstance(member, property) else (member,)
    for part in parts:
        inner = getattr(part, "__func__", None) or getattr(part, "func", None) or part
        if isinstance(inner, types.FunctionType):
            yield inner


def _is_record(kind: type) -> bool:
    """Return whether the attributes of a class's instances are what they are, even if the class is not its own."""
    marks = ("__dataclass_fields__", "__pydantic_fields__", "model_fields")
    return issubclass(kind, types.SimpleNamespace) or any(mark in vars(kind) for mark in marks)


def _attributes(value: Any) -> dict[str, Any]:
    """Return what an object holds, in its slots and else."""
    found: dict[str, Any] = {}
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if not name.startswith("__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return {
        **found,
        **{str(k): v for k, v in getattr(value, "__dict__", {}).items() if not str(k).startswith("__")},
    }


class Fingerprint(str):
    """A text that is a fingerprint already. As a node's `version` it is taken as it is."""

    __slots__ = ()


def fingerprint(subject: Any) -> str:
    """Return the fingerprint of a function or of plain data: `form:digest`.

    A function's covers what it does (not its comments, layout, docstrings or annotations), its defaults, what it
    closes over, what a partial or an instance gives it, and the functions, classes and constants of its own package
    or folder that it uses, however indirectly. Where its source is at hand, all versions of Python agree on it
    (`deep`); else it holds for the version that it was made with (`deep3.12`).
    """
    if isinstance(subject, Fingerprint):
        return subject
    if subject is None or isinstance(subject, (str, dict)):
        return f"data:{digest(repr(subject))}"
    if not _has_code(subject):
        return f"name:{digest(getattr(subject, '__qualname__', type(subject).__qualname__))}"
    described = Description(subject)
    return f"{_form('deep', [described])}:{digest(described.text)}"


def _has_code(subject: Any) -> bool:
    """Return whether something that can be called is made of Python code, or holds some."""
    if isinstance(subject, (types.FunctionType, types.MethodType, functools.partial, type)):
        return True
    call = getattr(type(subject), "__call__", None)  # noqa: B004
    return isinstance(call, types.FunctionType) or hasattr(subject, "__wrapped__")


def definition_fingerprint(text: str, functions: Iterable[Any]) -> Fingerprint:
    """Return the fingerprint of a definition: its text and the functions that it calls."""
    described = [Description(function) for function in functions]
    whole = repr((text, [each.text for each in described]))
    return Fingerprint(f"{_form('step', described)}:{digest(whole)}")


def _form(name: str, described: Iterable[Description]) -> str:
    return name if all(each.of_source for each in described) else f"{name}{PYTHON}"


def same_code(one: str, other: str) -> bool:
    """Return whether two fingerprints are of the same code; byte code of two versions of Python cannot be compared."""
    forms = {one.partition(":")[0], other.partition(":")[0]}
    return one == other or (len(forms) == 2 and all(re.search(r"\d\.\d+$", form) for form in forms))


def short_digests(one: str, other: str) -> tuple[str, str]:
    """Return two fingerprints, short, for people who ask what differs."""
    return one.partition(":")[2][:8], other.partition(":")[2][:8]
