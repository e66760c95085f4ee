"""Unpickling what strangers may have written: plain data and allowed types, and nothing that it names is run.

A pickle is a program. It may call only what is listed here, each with arguments that a pickle of such a value has, so
that no value is larger than the bytes that make it; and what it uses several times is counted each time.
"""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import fractions
import io
import pathlib
import pickle
import re
import uuid
from collections.abc import Callable
from typing import Any

from holdfast.data.budget import distinct
from holdfast.data.standard import FACTORIES
from holdfast.data.types import Types
from holdfast.engine.pickle_size import check_size
from holdfast.errors import CodecError

_RATIONAL = re.compile(r"[+-]?[0-9]+(/[0-9]+)?")
_HELD = (list, tuple)


class _Maker:
    """What stands for a type in a pickle: it can be called, and nothing else."""

    __slots__ = ("_make", "kind")

    def __init__(self, kind: Any, make: Callable[..., Any]) -> None:
        self.kind, self._make = kind, make

    def __call__(self, *given: Any) -> Any:
        return self._make(*given)

    def __setstate__(self, state: Any) -> None:
        raise CodecError("it changes a type")


def _made(make: Any, *allowed: tuple[Any, ...]) -> Callable[..., Any]:
    """Calls `make`, with one of the rows of types that are allowed for its arguments."""

    def call(*given: Any) -> Any:
        if not any(len(row) == len(given) and all(map(isinstance, given, row)) for row in allowed):
            kinds = ", ".join(type(each).__name__ for each in given)
            raise CodecError(f"it makes a {make.__name__} of ({kinds}), as no pickle of one does")
        return make(*given)

    return call


def _bytearray(content: bytes | str = b"", encoding: str = "latin-1") -> bytearray:
    if isinstance(content, bytes):
        return bytearray(content)
    if not isinstance(content, str) or encoding != "latin-1":
        raise CodecError("it makes a bytearray of something that is neither bytes nor text")
    return bytearray(content, encoding)


def _fraction(numerator: Any, denominator: Any = 1) -> fractions.Fraction:
    if isinstance(numerator, str) and denominator == 1 and _RATIONAL.fullmatch(numerator):
        return fractions.Fraction(numerator)
    if type(numerator) is int and type(denominator) is int:
        return fractions.Fraction(numerator, denominator)
    raise CodecError("it makes a fraction of something that is no whole number")


def _members(make: Callable[[Any], Any]) -> Callable[..., Any]:
    def call(members: Any = ()) -> Any:
        if not isinstance(members, _HELD):
            raise CodecError(f"it makes a set of a {type(members).__name__}, as no pickle of one does")
        return make(distinct(members))

    return call


def _mapping(make: Callable[[Any], Any]) -> Callable[..., Any]:
    def call(content: Any = ()) -> Any:
        if not isinstance(content, (dict, list, tuple)):
            raise CodecError(f"it makes a mapping of a {type(content).__name__}, as no pickle of one does")
        return make(content)

    return call


def _deque(items: Any = (), maxlen: int | None = None) -> collections.deque[Any]:
    if not isinstance(items, _HELD) or not (maxlen is None or isinstance(maxlen, int)):
        raise CodecError("it makes a deque of something that is no list")
    return collections.deque(items, maxlen)


def _default(factory: Any = None, content: Any = ()) -> Any:
    kind = factory.kind if isinstance(factory, _Maker) else factory
    if kind is not None and kind not in FACTORIES.values():
        raise CodecError("it makes a defaultdict with a factory that is not allowed")
    if not isinstance(content, (dict, list, tuple)):
        raise CodecError("it makes a defaultdict of something that is no mapping")
    return collections.defaultdict(kind, content)


_NUMBER = (int, float)
_PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path", "PurePath")


def _path(name: str) -> Callable[..., Any]:
    return lambda *parts: _made(getattr(pathlib, name), (str,) * len(parts))(*parts)


_SAFE: dict[tuple[str, str], Any] = {
    ("builtins", "set"): _Maker(set, _members(set)),
    ("builtins", "frozenset"): _Maker(frozenset, _members(frozenset)),
    ("builtins", "list"): _Maker(list, _made(list, (), (_HELD,))),
    ("builtins", "tuple"): _Maker(tuple, _made(tuple, (), (_HELD,))),
    ("builtins", "dict"): _Maker(dict, _mapping(dict)),
    ("builtins", "int"): _Maker(int, _made(int, ())),
    ("builtins", "float"): _Maker(float, _made(float, ())),
    ("builtins", "str"): _Maker(str, _made(str, ())),
    ("builtins", "bool"): _Maker(bool, _made(bool, ())),
    ("collections", "defaultdict"): _default,
    ("builtins", "bytearray"): _bytearray,
    ("builtins", "complex"): _made(complex, (_NUMBER, _NUMBER)),
    ("builtins", "range"): _made(range, (int, int, int)),
    ("builtins", "slice"): _made(slice, (object, object, object)),
    ("collections", "OrderedDict"): _mapping(collections.OrderedDict),
    ("collections", "Counter"): _mapping(collections.Counter),
    ("collections", "deque"): _deque,
    ("datetime", "datetime"): dt.datetime,
    ("datetime", "date"): dt.date,
    ("datetime", "time"): dt.time,
    ("datetime", "timedelta"): _made(dt.timedelta, (int, int, int)),
    ("datetime", "timezone"): _made(dt.timezone, (dt.timedelta,), (dt.timedelta, str)),
    ("decimal", "Decimal"): _made(decimal.Decimal, (str,)),
    ("fractions", "Fraction"): _fraction,
    ("uuid", "UUID"): uuid.UUID,
    ("uuid", "SafeUUID"): uuid.SafeUUID,
    **{("pathlib", name): _path(name) for name in _PATHS},
    **{("pathlib._local", name): _path(name) for name in _PATHS},
}
"""What a pickle may call, by module and name."""

_SAFE = {
    name: known if isinstance(known, (type, _Maker)) else _Maker(None, known) for name, known in _SAFE.items()
}


class Unpickler(pickle.Unpickler):
    """An unpickler that makes only plain data and the types on the allow-list."""

    def __init__(self, data: bytes, types: Types) -> None:
        check_size(data)
        super().__init__(io.BytesIO(data))
        self._types = types

    def find_class(self, module: str, name: str) -> Any:
        safe = _SAFE.get((module, name))
        if safe is not None:
            return safe
        for known in self._types.classes():
            if (known.__module__, known.__qualname__) == (module, name):
                return known
        raise CodecError(
            f"it names {module}.{name}, which is not on the list of allowed types; "
            "declare it in the state schema or register it with holdfast.register_type"
        )
