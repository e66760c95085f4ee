"""What costs more than it is worth: small inputs that would become large, or take time that grows with their square."""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

import numpy
import ormsgpack

from holdfast.engine.checkpoint_files import Unpickler
from holdfast.errors import CodecError, suggestion
from holdfast.state.codec import Codec
from holdfast.state.standard_types import MOST_ALIKE, MOST_ROWS
from holdfast.state.types import Handler, Types
from holdfast.views.plain import MOST_PARTS, ViewCodec, plain
from holdfast.workflows.language.compiler import Evaluation
from holdfast.workflows.language.functions import FUNCTIONS
from holdfast.workflows.language.values import MAX_LENGTH, Misuse
from tests.fuzz.choices import Choices, random_choices
from tests.fuzz.target import MEGABYTE, Check, Target, Wrong

GROWTH, SMALL = 200, 200_000
"""Values may be so many times as large as their bytes, and of a few bytes so large."""


def size_of(value: Any) -> int:
    """How much memory a value needs, whatever it refers to several times counted once."""
    seen, total = set(), 0
    coming = [value]
    while coming:
        one = coming.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        if isinstance(one, Mapping):
            coming += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple, set, frozenset)):
            coming += one
    return total


def _check_growth(value: Any, data: bytes) -> None:
    if (size := size_of(value)) > GROWTH * len(data) + SMALL:
        raise Wrong(f"{len(data)} bytes become {size}")


_GLOBALS = [
    b"cbuiltins\n" + name + b"\n" for name in (b"bytearray", b"list", b"set", b"range", b"dict", b"tuple", b"complex")
] + [b"ccollections\n" + name + b"\n" for name in (b"deque", b"Counter", b"OrderedDict", b"defaultdict")] + [
    b"cfractions\nFraction\n", b"cdecimal\nDecimal\n", b"cdatetime\ntimedelta\n", b"cuuid\nUUID\n",
]  # fmt: skip
_VALUES = [
    b"K\x07", b"J\x00\x09\x3d\x00", b"\x8a\x05\x00\x00\x00\x00\x01", b"N", b"]", b"}", b")", b"\x8f",
    b"G?\xf0\0\0\0\0\0\0",
    b"\x8c\x041e99", b"\x8c\x091e9999999", b"\x8c\x031/3", b"C\x02ab", b"h\x00", b"h\x01", b"h\x02",
]  # fmt: skip
_DEEDS = [b"\x85", b"\x86", b"\x87", b"R", b"a", b"s", b"q\x00", b"q\x01", b"q\x02", b"(", b"e", b"u", b"t", b"l", b"d",
          b"p9999999\n", b"r\xff\xff\xff\x01", b"b", b"\x81", b"\x90", b"\x91", b"\x94", b"0", b"2"]  # fmt: skip


def pickle_program(rng: Random) -> bytes:
    """A pickle: mostly calls of something with something."""
    if rng.random() < 0.5:
        given = b"".join(rng.choice(_VALUES) for _ in range(rng.randrange(1, 3)))
        deeds = b"\x86" if len(given) > 6 and rng.random() < 0.5 else b"\x85"
        return b"\x80\x04" + rng.choice(_GLOBALS) + given + deeds + b"R."
    parts = [rng.choice((*_VALUES, *_DEEDS, *_GLOBALS)) for _ in range(rng.randrange(2, 24))]
    return b"\x80\x04" + b"".join(parts) + b"."


def pickles() -> Check:
    """Untrusted checkpoint files: what is read is no larger than its bytes allow."""

    def check(data: bytes) -> str:
        try:
            found = Unpickler(data, Types()).load()
        except CodecError:
            raise
        except Exception as error:
            return type(error).__name__  # A damaged file, as `load` says.
        _check_growth(found, data)
        return f"a {type(found).__name__}"

    return check


class Clash:
    """A value of the user's with a bad hash; its comparisons are counted."""

    compared = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return self.number % 3

    def __eq__(self, other: object) -> bool:
        Clash.compared += 1
        return isinstance(other, Clash) and other.number == self.number


_CLASHING = Codec(Types.of_handlers([Handler("Clash", Clash, lambda value: value.number, Clash)]))
TOGETHER = MEGABYTE
_DTYPES = ("|u1", "<f8", "|S0", "<U0", "|b1", "<U3")


def _mark(code: int, *items: Any) -> list[Any]:
    return [ormsgpack.Ext(code, b""), *items]


def _bomb(choices: Choices) -> Any:
    """A value that is stored in few bytes."""
    way = choices.below(5)
    if way == 0:
        shape = [choices.of((0, 1, 2, 1000, 1 << 20, 1 << 40)) for _ in range(choices.below(6))]
        return _mark(24, choices.of(_DTYPES), shape, bytes(choices.of((0, 1, 8, 16, 1000))))
    if way == 1:
        members = [_mark(127, "Clash", number) for number in range(choices.below(80) * 10)]
        return _mark(choices.of((5, 6, 4)), *members)
    if way == 2:
        keys = [part for number in range(choices.below(80) * 10) for part in (_mark(127, "Clash", number), 1)]
        return _mark(choices.of((7, 8, 10)), *keys)
    if way == 3:
        return [choices.of(([], {}, "", 0, _mark(11, None))) for _ in range(choices.below(250) * 40)]
    inner: Any = _bomb(choices) if not choices.is_over else 1
    return [inner] * (1 + choices.below(4))


def bombs() -> Check:
    """Stored values that are far more than their bytes: refused, or no larger than these allow, in memory and shown."""

    def check(data: bytes) -> str:
        raw = b"\x01" + ormsgpack.packb(_bomb(Choices(data)))
        Clash.compared = 0
        found = _CLASHING.decode(raw)
        if Clash.compared > 4 * MOST_ALIKE**2 * max(1, _hashed(found)):
            raise Wrong(f"{Clash.compared} comparisons for {len(raw)} bytes", "comparisons")
        for array in _arrays(found):
            rows = array.size or numpy.prod([size for size in array.shape if size], dtype=object)
            if not array.nbytes and array.shape and array.shape[0] > MOST_ROWS:
                raise Wrong(f"an array of {rows} rows and no data", "rows")
        shown = plain(found)
        if size_of(shown) > 100 * (MOST_PARTS + len(raw)):
            raise Wrong(f"{len(raw)} bytes are shown in {size_of(shown)}", "shown")
        if (size := size_of(_read_together(raw))) > 3 * TOGETHER:
            raise Wrong(f"a view of {TOGETHER} bytes reads {size}", "together")
        return type(found).__name__

    return check


def _hashed(value: Any) -> int:
    """How many sets and mappings there are in lists of lists: each may compare its own members."""
    if isinstance(value, list):
        return sum(map(_hashed, value))
    return int(isinstance(value, (set, frozenset, Mapping)))


def _read_together(raw: bytes) -> list[Any]:
    """What a view reads of a state that has the same value under several keys."""
    reader, kept = ViewCodec(TOGETHER), list[Any]()
    with contextlib.suppress(CodecError):
        for _ in range(8):
            kept.append(reader.decode(raw))
    return kept


def _arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, numpy.ndarray):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value[:5]:
            yield from _arrays(item)


def _large(choices: Choices) -> Any:
    count = choices.of((1, 100, 5_000, 30_000))
    kinds: list[Callable[[int], Any]] = [
        lambda number: number * sys.hash_info.modulus,
        lambda number: f"name{number % 1000}",
        lambda number: {"a": number, "b": {"a": number}},
        lambda number: [number, [number]],
        lambda number: number / 3,
        lambda number: None if number % 2 else True,
    ]
    make = choices.of(kinds)
    way = choices.below(4)
    if way == 0:
        return "ab\n" * count
    if way == 1:
        return {f"key{number}": make(number) for number in range(count)}
    return [make(number) for number in range(count)]


_SMALL = ("a", "", "a.b", "a." * 400, 3, -1, 10**9, "upper", "eq", True, None, "x" * 20_000)


def calls() -> Check:
    """Calls of every function of the language with large values: each pays for its work, or is refused."""
    names = sorted(FUNCTIONS)

    def check(data: bytes) -> str:
        choices = Choices(data)
        name = choices.of(names)
        given = [_large(choices), *(choices.of(_SMALL) for _ in range(choices.below(3)))]
        named = {"attribute": choices.of(_SMALL)} if choices.chance(4) else {}
        budget = Evaluation({})
        try:
            found = FUNCTIONS[name](budget, *given, **named)
        except TypeError:
            return "wrong values"
        if isinstance(found, (str, list)) and len(found) > 3 * MAX_LENGTH:
            raise Wrong(f"{name} made {len(found)}")
        return f"{name} {type(found).__name__}"

    return check


def _call_seeds() -> list[bytes]:
    """Each function with a list of many numbers that have one hash."""
    return [bytes([place, 3, 0, 2]) for place in range(len(FUNCTIONS))]


_FRAGMENTS = ("a", "a-", "step 'a", "#1", "[", "'", ":item#1", "\n", "node 'x' ", "\x1b[", " ", "1")


def suggestions() -> Check:
    """Misspelt names among very many known ones: told without comparing each with all."""

    def check(data: bytes) -> str:
        choices = Choices(data)
        text = "".join(
            choices.of(_FRAGMENTS) * choices.of((1, 50, 30_000)) for _ in range(1 + choices.below(5))
        )
        close = suggestion(
            text[: choices.below(80)], (text[place : place + 60] for place in range(len(text)))
        )
        return f"{len(text) > 1000} {bool(close)}"

    return check


TARGETS = [
    Target(
        "pickles",
        pickles,
        (CodecError,),
        make=pickle_program,
        words=(*_GLOBALS, *_VALUES, *_DEEDS),
        seeds=lambda: [
            *(pickle.dumps({"a": [1, (2, {3})], "b": bytearray(b"x")}, protocol) for protocol in (0, 2, 4)),
            b"\x80\x04]r\xff\xff\xff\x01.",
            b"\x80\x04" + b"]" * 140 + b"a" * 139 + b".",
        ],
        share=300,
        longest=300,
        memory=256 * MEGABYTE,
    ),
    Target(
        "bombs",
        bombs,
        (CodecError,),
        make=random_choices,
        fresh=0.6,
        share=30,
        longest=60,
        memory=768 * MEGABYTE,
    ),
    Target("calls", calls, (Misuse,), _call_seeds, random_choices, fresh=0.7, share=20, longest=40),
    Target("suggestions", suggestions, (), make=random_choices, fresh=0.7, share=20, longest=40),
]
