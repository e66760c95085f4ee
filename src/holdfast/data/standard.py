"""How values of the standard library and of numpy become lists of simpler values, and back, exactly."""

from __future__ import annotations

import datetime as dt
import os
import pathlib
import re
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from holdfast.data import arrays
from holdfast.data.budget import distinct
from holdfast.errors import CodecError

FACTORIES: dict[str, Any] = {
    factory.__name__: factory for factory in (list, dict, set, int, float, str, tuple, frozenset, bool)
}
PATHS = {
    "PurePosixPath": pathlib.PurePosixPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
    "PosixPath": pathlib.PurePosixPath if os.name == "nt" else pathlib.PosixPath,
    "WindowsPath": pathlib.WindowsPath if os.name == "nt" else pathlib.PureWindowsPath,
}
_SHORT = 10_000
EXACT = Context(traps=[InvalidOperation])
ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")


@dataclass(frozen=True, slots=True)
class Standard:
    """A type every codec knows: `code` marks it in storage, `name` in messages."""

    code: int
    name: str
    items: Callable[[Any], list[Any]]
    build: Callable[[list[Any]], Any]


def pairs(mapping: Any) -> list[Any]:
    """Keys and values in turn, in the order of the mapping."""
    distinct(mapping)
    return [part for pair in mapping.items() for part in pair]


def _mapping(items: list[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(distinct(items[::2]), items[1::2], strict=True)


def _default_items(value: defaultdict[Any, Any]) -> list[Any]:
    factory = value.default_factory
    if factory is None:
        return [None, *pairs(value)]
    name = getattr(factory, "__name__", "")
    if FACTORIES.get(name) is not factory:
        raise CodecError(
            f"a defaultdict with the factory {name or factory!r}: only {', '.join(FACTORIES)} and None "
            "can be stored; return dict(value)"
        )
    return [name, *pairs(value)]


def _default_build(items: list[Any]) -> Any:
    factory = None if items[0] is None else FACTORIES[items[0]]
    return defaultdict(factory, _mapping(items[1:]))


def _counter_build(items: list[Any]) -> Counter[Any]:
    return Counter(dict(_mapping(items)))


def _zone_items(value: zoneinfo.ZoneInfo) -> list[Any]:
    if value.key is None:
        raise CodecError("a ZoneInfo without a key: only zones made by name can be stored")
    return [value.key]


def _zone_build(items: list[Any]) -> zoneinfo.ZoneInfo:
    (key,) = items
    if not ZONE_KEY.fullmatch(key):
        raise CodecError(f"{key!r} is no time zone")
    return zoneinfo.ZoneInfo(key)


def _timezone_items(value: dt.timezone) -> list[Any]:
    return list(value.__getinitargs__())  # type: ignore[attr-defined]


def _datetime_items(value: dt.datetime) -> list[Any]:
    return [value.year, value.month, value.day, *_time_items(value)]


def _datetime_build(items: list[Any]) -> dt.datetime:
    year, month, day, hour, minute, second, microsecond, fold, zone = items
    return dt.datetime(year, month, day, hour, minute, second, microsecond, zone, fold=fold)


def _time_items(value: dt.time | dt.datetime) -> list[Any]:
    return [value.hour, value.minute, value.second, value.microsecond, value.fold, value.tzinfo]


def _time_build(items: list[Any]) -> dt.time:
    hour, minute, second, microsecond, fold, zone = items
    return dt.time(hour, minute, second, microsecond, zone, fold=fold)


def _fraction_build(items: list[Any]) -> Fraction:
    numerator, denominator = items
    # A text such as 1e999999999 would be a number too, of a size that no memory holds.
    if type(numerator) is not int or type(denominator) is not int or denominator <= 0:
        raise CodecError("a fraction is made of two whole numbers")
    if numerator.bit_length() + denominator.bit_length() <= _SHORT:
        return Fraction(numerator, denominator)
    # It was stored in lowest terms. Reducing it once more would take time that grows with the square of its length.
    made: Any = Fraction()
    made._numerator, made._denominator = numerator, denominator
    return made  # type: ignore[no-any-return]


def _path_build(items: list[Any]) -> pathlib.PurePath:
    flavour, text = items
    return PATHS[flavour](text)


def _deque_items(value: deque[Any]) -> list[Any]:
    return [value.maxlen, *value]


SETS = (set, frozenset)

_TABLE: list[tuple[int, type, Callable[[Any], list[Any]], Callable[[list[Any]], Any]]] = [
    (4, tuple, list, tuple),
    (5, set, distinct, lambda items: set(distinct(items))),
    (6, frozenset, distinct, lambda items: frozenset(distinct(items))),
    (7, dict, pairs, lambda items: dict(_mapping(items))),
    (8, OrderedDict, pairs, lambda items: OrderedDict(_mapping(items))),
    (9, defaultdict, _default_items, _default_build),
    (10, Counter, pairs, _counter_build),
    (11, deque, _deque_items, lambda items: deque(items[1:], items[0])),
    (12, dt.datetime, _datetime_items, _datetime_build),
    (13, dt.date, lambda day: [day.year, day.month, day.day], lambda items: dt.date(*items)),
    (14, dt.time, _time_items, _time_build),
    (15, dt.timedelta, lambda d: [d.days, d.seconds, d.microseconds], lambda items: dt.timedelta(*items)),
    (16, dt.timezone, _timezone_items, lambda items: dt.timezone(*items)),
    (17, zoneinfo.ZoneInfo, _zone_items, _zone_build),
    (18, Decimal, lambda number: [str(number)], lambda items: Decimal(items[0], EXACT)),
    (19, Fraction, lambda f: [f.numerator, f.denominator], _fraction_build),
    (20, uuid.UUID, lambda value: [value.bytes], lambda items: uuid.UUID(bytes=items[0])),
    (22, complex, lambda number: [number.real, number.imag], lambda items: complex(*items)),
    (23, range, lambda r: [r.start, r.stop, r.step], lambda items: range(*items)),
]

PATH = Standard(21, "pathlib:PurePath", lambda path: [type(path).__name__, str(path)], _path_build)
ARRAY = Standard(24, "numpy:ndarray", arrays.array_items, arrays.array_build)
SCALAR = Standard(25, "numpy:generic", arrays.scalar_items, arrays.scalar_build)

STANDARD: dict[type, Standard] = {
    cls: Standard(code, f"{cls.__module__}:{cls.__qualname__}", items, build)
    for code, cls, items, build in _TABLE
}
STANDARD.update(
    (cls, PATH)
    for cls in (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath)
)
BY_CODE = {known.code: known for known in (*STANDARD.values(), ARRAY, SCALAR)}
BY_NAME = {known.name: known for known in BY_CODE.values()}


def standard_of(cls: type) -> Standard | None:
    """How to store instances of exactly `cls`, if every codec knows it."""
    known = STANDARD.get(cls)
    if known is not None:
        return known
    if arrays.is_array(cls):
        return ARRAY
    return SCALAR if arrays.is_scalar(cls) else None
