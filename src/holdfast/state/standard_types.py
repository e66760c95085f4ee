"""How values of the standard library and of numpy become lists of simpler values, and back, exactly."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import os
import pathlib
import re
import sys
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from holdfast.errors import CodecError

# How much stored bytes may come to once they are read: measured on the bytes, before anything is made of t.


UNMEASURED = 4_000_000
"""A value of fewer bytes is never too much: the lightest parts grow a hundredfold."""

MOST_MEMORY = 512_000_000
"""How much memory a value may need, in bytes, or `RATIO` times its own size if that is more."""

RATIO = 8

MOST_ALIKE = 100
"""How many different keys or members with one hash are taken: each is compared with all the others."""

MOST_ROWS = 1_000_000
"""How many rows an array without any data may have."""

MOST_TOGETHER = 128_000_000
"""How much memory the values that are read for one view may need together, in bytes."""

MOST_MEASURED = 4_000_000
"""How many parts of values are measured one by one for a view, over all its values."""

_CONTAINER, _TEXT, _NUMBER, _SPECIAL, _SMALL = 64, 56, 32, 800, 8
"""What parts need at most, beyond the bytes that they are stored in. Special values may be as large as a deque."""

_LIGHT = bytes(range(0x80, 0xC0))
_LARGE = bytes([*_LIGHT, *range(0xC4, 0xC7), *range(0xCA, 0xD4), *range(0xD9, 0xE0)])
_EXTENSIONS = bytes([0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9)])
_NESTED = 26
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_SIZED_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_COUNTED = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}


def check_memory(raw: bytes) -> None:
    """Refuse MessagePack that would need far more memory than it has bytes, such as a million empty lists.

    Small values pass. Of large ones the bytes that may begin a part are counted; only if these might be too many, the
    parts themselves are.
    """
    if len(raw) <= UNMEASURED:
        return
    most = max(MOST_MEMORY, RATIO * len(raw))
    light = len(raw) - len(raw.translate(None, _LIGHT))
    special = len(raw) - len(raw.translate(None, _EXTENSIONS))
    may_be_more = light * _CONTAINER + special * _SPECIAL > most
    if may_be_more and _measure(raw, most + len(raw), len(raw))[0] > most + len(raw):
        raise CodecError(
            f"its {len(raw):,} bytes have so many small parts that they would need more than {most:,} bytes of "
            "memory; keep it in a file, or as a numpy array, and its path in the state"
        )


def most_memory(raw: bytes) -> int:
    """Return what a stored value needs at most, in bytes: every byte counts as if it began a part."""
    large = len(raw) - len(raw.translate(None, _LARGE))
    special = len(raw) - len(raw.translate(None, _EXTENSIONS))
    return len(raw) * (1 + _SMALL) + large * _CONTAINER + special * _SPECIAL


class Allowance:
    """The memory that the values of one view may need together; they are measured before they are read."""

    def __init__(self, memory: int | None = None) -> None:
        self._memory = MOST_TOGETHER if memory is None else memory
        self._measured = MOST_MEASURED

    def takes(self, *raws: bytes) -> bool:
        """Return whether stored values fit into the rest of the allowance, and subtract what they need."""
        needed = sum(map(most_memory, raws))
        if needed > self._memory and sum(map(len, raws)) <= self._memory:
            needed = 0
            for raw in raws:
                found, parts = _measure(raw, self._memory - needed, self._measured)
                needed, self._measured = needed + found, self._measured - parts
        if needed > self._memory:
            return False
        self._memory -= needed
        return True


def _measure(raw: bytes, most: int, most_parts: int) -> tuple[int, int]:
    """Return what a stored value needs, its own bytes included, and how many parts were looked at.

    More than `most` means: more than that, or more than `most_parts` parts.
    """
    place, end, needed, parts = 1, len(raw), len(raw), 0
    while place < end:
        first = raw[place]
        place += 1
        parts += 1
        if first <= 0x7F or first >= 0xE0 or 0xC0 <= first <= 0xC3:
            needed += _SMALL
        elif first <= 0x9F:
            needed += _CONTAINER
        elif first <= 0xBF:
            place += first & 0x1F
            needed += _TEXT
        elif first in _FIXED:
            place += _FIXED[first]
            needed += _NUMBER
        elif first in _SIZED:
            width = _SIZED[first]
            place += width + int.from_bytes(raw[place : place + width], "big")
            needed += _TEXT
        elif first in _COUNTED:
            place += _COUNTED[first]
            needed += _CONTAINER
        else:
            size = _FIXED_EXTENSIONS.get(first)
            if size is None:
                width = _SIZED_EXTENSIONS[first]
                size = int.from_bytes(raw[place : place + width], "big")
                place += width
            # What is nested deep is stored as an extension whose body is made of parts again.
            place += 1 if raw[place : place + 1] == bytes([_NESTED]) else 1 + size
            needed += _SPECIAL
        if needed > most:
            break
        if parts >= most_parts and place < end:
            return most + 1, parts
    return needed, parts


def distinct(keys: Iterable[Any]) -> list[Any]:
    """Return the keys of a mapping or the members of a set, as they are; refused if too many have the same hash."""
    found = list(keys)
    if len(found) > MOST_ALIKE:
        hashes = Counter(map(hash, found))
        ((most, count),) = hashes.most_common(1)
        if count > MOST_ALIKE:
            alike = itertools.islice((key for key in found if hash(key) == most), MOST_ALIKE + 1)
            if len(set(alike)) > MOST_ALIKE:
                raise CodecError(f"more than {MOST_ALIKE} of its keys or members have the same hash")
    return found


# How numpy arrays and scalars are stored; numpy itself is imported only to rebuild one.


DTYPE = re.compile(r"[<>|](?:[biufc][0-9]{1,2}|[SU][0-9]{1,9}|[mM]8(?:\[[0-9]{0,9}[a-zA-Z]{1,2}\])?)")
TEXT_KINDS = "SU"
_MOST_SIZES = 64


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise CodecError("the stored value holds numpy data: pip install numpy") from None
    return numpy


def _dtype(text: Any) -> Any:
    if not isinstance(text, str) or not DTYPE.fullmatch(text):
        raise CodecError(f"arrays of dtype {text!r} cannot be stored; convert to a list or a numeric array")
    return _numpy().dtype(text)


def array_items(array: Any) -> list[Any]:
    """Return the dtype, the shape and the bytes in C order. Object, structured and void dtypes are refused."""
    _dtype(array.dtype.str)
    if not array.nbytes and rows(array.shape) > MOST_ROWS:
        raise CodecError(
            f"an array of shape {array.shape} has more than {MOST_ROWS:,} rows, and no data in them"
        )
    return [array.dtype.str, list(array.shape), array.tobytes()]


def rows(shape: Iterable[int]) -> int:
    """Return how many lists, or items, an array without data would be as lists: its sizes up to the first 0."""
    return math.prod(itertools.takewhile(bool, shape))


def array_build(items: list[Any]) -> Any:
    """Return a new, writable array; refuses a shape that its bytes do not fill."""
    text, shape, raw = items
    dtype = _dtype(text)
    sizes = [size for size in shape if type(size) is int and size >= 0]
    if sizes != shape or len(sizes) > _MOST_SIZES or (not raw and rows(sizes) > MOST_ROWS):
        raise CodecError("the stored array has a shape that no array has")
    if not dtype.itemsize and 0 not in sizes:
        raise CodecError("the stored array has items without any data; numpy has no such array")
    if type(raw) is not bytes or math.prod(sizes) * dtype.itemsize != len(raw):
        raise CodecError("the stored array has another size than its data")
    array = _numpy().empty(sizes, dtype)
    if raw:
        array[...] = _numpy().frombuffer(raw, dtype).reshape(sizes)
    return array


def scalar_items(scalar: Any) -> list[Any]:
    """Return the dtype and the bytes; text and bytes whole, since `str` and arrays drop trailing NULs."""
    kind = scalar.dtype.kind
    if kind in TEXT_KINDS:
        return [kind, "".join((scalar,)) if kind == "U" else bytes(scalar)]
    _dtype(scalar.dtype.str)
    return [scalar.dtype.str, scalar.tobytes()]


def scalar_build(items: list[Any]) -> Any:
    """Return the scalar of the stored dtype."""
    text, raw = items
    numpy = _numpy()
    if text in TEXT_KINDS:
        # Of a number numpy would make as many zeros.
        if type(raw) is not (str if text == "U" else bytes):
            raise CodecError("the stored scalar is another kind of value than it says")
        return numpy.str_(raw) if text == "U" else numpy.bytes_(raw)
    dtype = _dtype(text)
    if dtype.kind in TEXT_KINDS or len(raw) != dtype.itemsize:
        raise CodecError("the stored scalar has another size than its data")
    return numpy.frombuffer(raw, dtype)[0]


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
    """Return keys and values in turn, in the order of the mapping."""
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


def _zone_items(value: zoneinfo.ZoneInfo) -> list[Any]:
    if value.key is None:
        raise CodecError("a ZoneInfo without a key: only zones made by name can be stored")
    return [value.key]


def _zone_build(items: list[Any]) -> zoneinfo.ZoneInfo:
    (key,) = items
    if not ZONE_KEY.fullmatch(key):
        raise CodecError(f"{key!r} is no time zone")
    return zoneinfo.ZoneInfo(key)


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


SETS = (set, frozenset)

_TABLE: list[tuple[int, type, Callable[[Any], list[Any]], Callable[[list[Any]], Any]]] = [
    (4, tuple, list, tuple),
    (5, set, distinct, lambda items: set(distinct(items))),
    (6, frozenset, distinct, lambda items: frozenset(distinct(items))),
    (7, dict, pairs, lambda items: dict(_mapping(items))),
    (8, OrderedDict, pairs, lambda items: OrderedDict(_mapping(items))),
    (9, defaultdict, _default_items, _default_build),
    (10, Counter, pairs, lambda items: Counter(dict(_mapping(items)))),
    (11, deque, lambda value: [value.maxlen, *value], lambda items: deque(items[1:], items[0])),
    (12, dt.datetime, lambda at: [at.year, at.month, at.day, *_time_items(at)], _datetime_build),
    (13, dt.date, lambda day: [day.year, day.month, day.day], lambda items: dt.date(*items)),
    (14, dt.time, _time_items, _time_build),
    (15, dt.timedelta, lambda d: [d.days, d.seconds, d.microseconds], lambda items: dt.timedelta(*items)),
    (16, dt.timezone, lambda zone: list(zone.__getinitargs__()), lambda items: dt.timezone(*items)),
    (17, zoneinfo.ZoneInfo, _zone_items, _zone_build),
    (18, Decimal, lambda number: [str(number)], lambda items: Decimal(items[0], EXACT)),
    (19, Fraction, lambda f: [f.numerator, f.denominator], _fraction_build),
    (20, uuid.UUID, lambda value: [value.bytes], lambda items: uuid.UUID(bytes=items[0])),
    (22, complex, lambda number: [number.real, number.imag], lambda items: complex(*items)),
    (23, range, lambda r: [r.start, r.stop, r.step], lambda items: range(*items)),
]

PATH = Standard(21, "pathlib:PurePath", lambda path: [type(path).__name__, str(path)], _path_build)
ARRAY = Standard(24, "numpy:ndarray", array_items, array_build)
SCALAR = Standard(25, "numpy:generic", scalar_items, scalar_build)

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
    """Return how to store instances of exactly `cls`, if every codec knows it."""
    numpy = sys.modules.get("numpy")
    if cls in STANDARD or numpy is None:
        return STANDARD.get(cls)
    if cls is getattr(numpy, "ndarray", None):
        return ARRAY
    generic = getattr(numpy, "generic", None)
    is_scalar = generic is not None and issubclass(cls, generic) and cls.__module__ == "numpy"
    return SCALAR if is_scalar else None
