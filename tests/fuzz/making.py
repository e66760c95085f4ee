"""Making inputs from nothing: MessagePack that means something to us, and values that are hard to store."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import pathlib
import struct
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

from tests.fuzz.choices import Choices
from tests.fuzz.mutating import NUMBERS, TEXTS

_CODES = (*range(1, 28), 127, 0, 255)
_SCALARS = (
    b"\xc0",
    b"\xc2",
    b"\xc3",
    b"\x00",
    b"\x05",
    b"\xff",
    b"\xa0",
    b"\xa1a",
    b"\xa3key",
    b"\xc4\x00",
    b"\xc4\x02\x01\x05",
)


def packed(rng: Random) -> bytes:
    """One value of MessagePack, with our marks in it, mostly whole and sometimes not."""
    out: list[bytes] = []
    _pack(out, rng.random, 0)
    if rng.random() < 0.1:
        out.pop(int(rng.random() * len(out)))
    return b"".join(out)


def _pack(out: list[bytes], random: Any, depth: int) -> None:
    kind = int(random() * (14 if depth < 6 else 8))
    if kind < 3:
        out.append(_SCALARS[int(random() * len(_SCALARS))])
    elif kind == 3:
        number = NUMBERS[int(random() * len(NUMBERS))]
        out.append(
            b"\xcf" + (number & (2**64 - 1)).to_bytes(8, "big") if random() < 0.5 else bytes([number & 0x7F])
        )
    elif kind == 4:
        out.append(
            b"\xcb" + struct.pack(">d", (0.0, -0.0, 1.5, math.nan, math.inf, 5e-324)[int(random() * 6)])
        )
    elif kind == 5:
        text = TEXTS[int(random() * len(TEXTS))][:255]
        out.append(b"\xd9" + bytes([len(text)]) + text)
    elif kind == 6:
        size = (0, 1, 2, 4, 8, 16)[int(random() * 6)]
        out.append(b"\xc7" + bytes([size, _CODES[int(random() * len(_CODES))]]) + bytes(size))
    elif kind == 7:
        inner: list[bytes] = []
        if depth < 6:
            _pack(inner, random, depth + 1)
        body = b"".join(inner)[:255]
        out.append(b"\xc7" + bytes([len(body), 26 if random() < 0.8 else 1 + int(random() * 3)]) + body)
    elif kind < 11:
        count = int(random() * 5)
        out.append(bytes([0x91 + count]) + b"\xc7\x00" + bytes([_CODES[int(random() * len(_CODES))]]))
        for _ in range(count):
            _pack(out, random, depth + 1)
    elif kind < 13:
        count = int(random() * 5)
        out.append(bytes([0x90 + count]))
        for _ in range(count):
            _pack(out, random, depth + 1)
    else:
        count = int(random() * 4)
        out.append(bytes([0x80 + count]))
        for number in range(count):
            out.append(b"\xa1" + bytes([0x61 + number]) if random() < 0.9 else b"\x05")
            _pack(out, random, depth + 1)


_ZONES = (
    None,
    dt.UTC,
    dt.timezone(dt.timedelta(minutes=-1)),
    dt.timezone(dt.timedelta(hours=5, seconds=1), "odd"),
)
_WORDS = tuple(text.decode("utf-8", "surrogatepass") for text in TEXTS if len(text) < 100)


def value(choices: Choices, depth: int = 0) -> Any:
    """Any value that can be stored, the awkward ones preferred."""
    kind = choices.below(40 if depth < 5 else 24)
    if kind < 24:
        return scalar(choices, kind)
    items = [value(choices, depth + 1) for _ in range(choices.below(5))]
    match kind:
        case 24 | 25 | 26:
            return items
        case 27 | 28:
            return tuple(items)
        case 29 | 30 | 31:
            return {choices.of(_WORDS) + str(number): item for number, item in enumerate(items)}
        case 32:
            return {key(choices): item for item in items}
        case 33:
            return {key(choices) for _ in items}
        case 34:
            return frozenset(key(choices) for _ in items)
        case 35:
            return OrderedDict((key(choices), item) for item in items)
        case 36:
            return defaultdict(choices.of((None, list, int, dict)), {key(choices): item for item in items})
        case 37:
            return Counter({key(choices): choices.below(9) - 4 for _ in items})
        case 38:
            return deque(items, choices.of((None, 2, 9)))
        case _:
            deep: Any = items
            for _ in range(choices.below(256)):
                deep = [deep] if choices.below(2) else {"d": deep}
            return deep


def key(choices: Choices) -> Any:
    """Something that can be a key or be in a set."""
    found = scalar(choices, choices.below(24))
    if isinstance(found, bytearray) or (isinstance(found, Decimal) and found.is_snan()):
        found = str(found)
    return (found, choices.byte()) if choices.chance(8) else found


def scalar(choices: Choices, kind: int) -> Any:
    """A value without parts."""
    match kind:
        case 0:
            return choices.of((None, True, False))
        case 1 | 2:
            return choices.of(NUMBERS) * choices.of((1, -1, 3**90))
        case 3:
            return choices.byte() - 128
        case 4:
            return choices.of((0.0, -0.0, 1.5, math.nan, -math.nan, math.inf, -math.inf, 5e-324, 1e308, 0.1))
        case 5:
            return struct.unpack(">d", choices.raw(8).rjust(8, b"\0"))[0]
        case 6 | 7:
            return "".join(choices.of(_WORDS) for _ in range(choices.below(4)))
        case 8:
            return choices.raw(choices.below(20)).decode("utf-8", "surrogateescape")
        case 9:
            return choices.raw(choices.below(20))
        case 10:
            return bytearray(choices.raw(choices.below(20)))
        case 11:
            text = choices.of(
                ("0", "-0", "1E+999999", "NaN", "sNaN", "-Infinity", "0.1", "1" * 60, "1E-6176")
            )
            return Decimal(text)
        case 12:
            return dt.date.fromordinal(1 + choices.below(3_652_059))
        case 13 | 14:
            when = dt.datetime.fromordinal(1 + choices.below(3_652_059))
            zone = choices.of((*_ZONES, zoneinfo.ZoneInfo("Europe/Berlin")))
            return when.replace(
                microsecond=choices.below(1_000_000),
                hour=choices.below(24),
                tzinfo=zone,
                fold=choices.below(2),
            )
        case 15:
            return dt.time(
                choices.below(24),
                choices.below(60),
                59,
                999_999,
                tzinfo=choices.of(_ZONES),
                fold=choices.below(2),
            )
        case 16:
            return dt.timedelta(
                choices.below(1_999_999_998) - 999_999_999, choices.below(86_400), choices.below(10**6)
            )
        case 17:
            return uuid.UUID(bytes=choices.raw(16).rjust(16, b"\0"))
        case 18:
            return Fraction(choices.below(2**70) - 2**69, 1 + choices.below(2**66))
        case 19:
            return complex(choices.of((0.0, -0.0, math.nan, math.inf)), choices.byte())
        case 20:
            return range(choices.byte(), choices.of(NUMBERS), 1 + choices.byte())
        case 21:
            return choices.of(
                (pathlib.PurePosixPath("a/é"), pathlib.PureWindowsPath("c:\\x"), pathlib.Path("/"))
            )
        case 22:
            return choices.of(
                (dt.UTC, zoneinfo.ZoneInfo("America/New_York"), dt.timezone(dt.timedelta(hours=-23)))
            )
        case _:
            return choices.of(("", "x" * 300, b"\0" * 300, 2**63, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1))


def are_same(one: Any, other: Any) -> bool:
    """Whether two values have the same types, order and bits, however deep they are nested."""
    return _flat(exact(one)) == _flat(exact(other))


def _flat(tree: Any) -> list[Any]:
    found, left = [], [tree]
    while left:
        part = left.pop()
        if isinstance(part, tuple | list):
            found.append((type(part), len(part)))
            left += part
        else:
            found.append(part)
    return found


def exact(found: Any) -> Any:
    """A value as plain data that shows its types, its order and every bit; written apart from what is tested."""
    kind = type(found)
    name = kind.__name__
    if kind is float:
        return name, "nan" if math.isnan(found) else struct.pack(">d", found)
    if kind is complex:
        return name, exact(found.real), exact(found.imag)
    if kind in (dict, OrderedDict, Counter):
        return name, [(exact(key), exact(item)) for key, item in found.items()]
    if kind is defaultdict:
        return name, str(found.default_factory), [(exact(key), exact(item)) for key, item in found.items()]
    if kind in (set, frozenset):
        return name, sorted((exact(item) for item in found), key=repr)
    if kind in (list, tuple):
        return name, [exact(item) for item in found]
    if kind is deque:
        return name, found.maxlen, [exact(item) for item in found]
    if kind in (dt.datetime, dt.time):
        return name, found.replace(tzinfo=None).isoformat(), found.fold, repr(found.tzinfo)
    if dataclasses.is_dataclass(found):
        return name, [(field.name, exact(getattr(found, field.name))) for field in dataclasses.fields(found)]
    return name, repr(found)
