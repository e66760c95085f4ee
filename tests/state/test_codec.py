"""Everything a state may hold comes back exactly; everything else is refused, at once, by name."""

import contextlib
import datetime as dt
import enum
import io
import math
import socket
import struct
import subprocess
import sys
import threading
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import FrameType
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy
import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import CodecError
from holdfast.state.codec import ALIASES, Codec, Unknown, alias
from holdfast.state.types import Types, register_type


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


class Level(enum.StrEnum):
    LOW = "low"


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: Any = 0


@dataclass(frozen=True)
class Note:
    text: str
    tags: tuple[str, ...] = ()
    more: Any = None


@dataclass
class Tree:
    left: Any = None
    sock: Any = None
    notes: list[Any] = field(default_factory=list)


CODEC = Codec(Types.of(Colour, Level, Access, Point, Note, Tree))


def shape(value: Any) -> Any:
    """What makes two values exactly the same: types, order and bits, at every level."""
    kind = type(value)
    if isinstance(value, numpy.ndarray | numpy.generic):
        return kind, value.dtype.str, value.shape, value.tobytes()
    if kind is float:
        return kind, "nan" if math.isnan(value) else struct.pack("<d", value)
    if kind is complex:
        return kind, shape(value.real), shape(value.imag)
    if kind in (set, frozenset):
        return kind, tuple(sorted((shape(item) for item in value), key=repr))
    if isinstance(value, dict):
        factory = getattr(value, "default_factory", None)
        return kind, factory, tuple((shape(key), shape(item)) for key, item in value.items())
    if isinstance(value, list | tuple | deque):
        return kind, getattr(value, "maxlen", None), tuple(shape(item) for item in value)
    if isinstance(value, dt.datetime | dt.time):
        return kind, repr(value), value.fold, shape(value.tzinfo)
    if isinstance(value, Note | Tree):
        return kind, tuple((name, shape(item)) for name, item in vars(value).items())
    return kind, repr(value)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


UTC_NOON = dt.datetime(2026, 1, 2, 12, 0, 0, 7, tzinfo=dt.UTC)
IN_BERLIN = dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
UNLIKE_KEYS = {
    1: "int",
    "1": "str",
    2.5: "float",
    None: "none",
    (1, "a"): "tuple",
    b"1": "bytes",
    Colour.RED: 0,
}

VALUES: dict[str, Any] = {
    "none": None,
    "booleans": [True, False],
    "integers": [0, -1, 2**63, -(2**63), 2**64 - 1],
    "big integers": [2**64, -(2**63) - 1, 10**400, -(10**400), 2**71, -(2**71)],
    "floats": [0.0, -0.0, 1e308, 5e-324, math.inf, -math.inf, math.nan],
    "text": ["", "plain", "naïve ☃ 𝄞", "\x00"],
    "lone surrogates": ["\ud800", {"\udfff": "a\ud800b"}, {"ok": {"\udc80": 1}}],
    "bytes": [b"", b"\x00\xff"],
    "bytearray": bytearray(b"abc"),
    "lists": [[], [[]], [1, [2, [3]]]],
    "tuples": ((), (1,), ((2, [3]), {"a": (4,)})),
    "sets": [set(), {1, "a", None, (1, 2)}, frozenset({frozenset(), b"x"})],
    "dict": {"a": {"b": {}}},
    "unlike keys": UNLIKE_KEYS,
    "a key that is true": {True: 1, "True": 2},
    "insertion order": {"z": 1, "a": 2, "m": 3},
    "frozenset keys": {frozenset({1}): {2}},
    "ordered dict": OrderedDict([("b", 1), (2, [OrderedDict()])]),
    "default dicts": [defaultdict(list, {"a": [1]}), defaultdict(None, {1: 2}), defaultdict(int)],
    "counter": Counter({"a": 2, 7: -1}),
    "deques": [deque([1, (2,)], maxlen=5), deque(), deque([None])],
    "naive datetime": dt.datetime(1, 1, 1),
    "aware datetimes": [
        UTC_NOON,
        IN_BERLIN,
        UTC_NOON.astimezone(dt.timezone(dt.timedelta(hours=-3.5), "here")),
    ],
    "dates and times": [dt.date.max, dt.time(1, 2, 3, 4, fold=1), dt.time(5, tzinfo=dt.UTC)],
    "timedeltas": [dt.timedelta.min, dt.timedelta.max, dt.timedelta(-1, 5, 7)],
    "zones": [dt.UTC, dt.timezone(dt.timedelta(seconds=61)), ZoneInfo("Asia/Kolkata")],
    "decimals": [Decimal(text) for text in ("NaN", "sNaN123", "-0", "Infinity", "1.10", "1E-4000", "9" * 50)],
    "fraction": Fraction(-1, 10**30),
    "uuid": uuid.UUID(int=5),
    "uuid key": {uuid.UUID(int=5): dt.date(2026, 1, 1), dt.date(2026, 1, 1): 1},
    "paths": [Path("/a/b"), PurePosixPath("c"), PureWindowsPath("c:/d"), Path("bad\udcff")],
    "complex": [complex(-0.0, math.nan), 1j],
    "ranges": [range(5), range(10, 0, -3), range(10**30)],
    "enums": [Colour.RED, Level.LOW, {Level.LOW: Colour.BLUE}],
    "flags": [Access.READ, Access.READ | Access.WRITE, Access(0)],
    "named tuples": [Point(1), Point(1, Point(2, (3,)))],
    "dataclasses": [Note("a", ("b",), {1: {2}}), Tree(Tree(), None, [Note("x")])],
    "set of dataclasses": {Note("a"), Note("b")},
    "arrays": [
        numpy.arange(6, dtype="int16").reshape(2, 3),
        numpy.array([[True], [False]]),
        numpy.array([1.5, math.nan], dtype=">f4"),
        numpy.array(["2026-01-01", "NaT"], dtype="datetime64[ns]"),
        numpy.array(["a", "ünï"]),
        numpy.array([b"x", b"yz"]),
        numpy.zeros((0, 3)),
        numpy.array(3 + 4j),
    ],
    "array scalars": [
        numpy.float64(1.5),
        numpy.int8(-3),
        numpy.bool_(True),
        numpy.str_("a\x00"),
        numpy.bytes_(b"a\x00"),
        numpy.datetime64("2026-01-01T00:00", "m"),
        numpy.timedelta64("NaT"),
    ],
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_exactly(name: str) -> None:
    value = VALUES[name]
    for stored in (value, {"key": [value, (value,)]}):
        before = shape(stored)
        back = CODEC.decode(CODEC.encode(stored))
        assert shape(back) == before
        assert shape(stored) == before, "encoding must leave the value as it was"


@pytest.mark.parametrize("plain", [True, False])
def test_lists_may_be_nested_500_deep(plain: bool) -> None:
    back, depth = CODEC.decode(CODEC.encode(nested(500), plain=plain)), 1
    while back:
        back, depth = back[0], depth + 1
    assert depth == 500


def test_a_deep_chain_of_objects_comes_back_although_it_is_stored_deeper_than_msgpack_packs() -> None:
    chain = None
    for _ in range(400):
        chain = Tree(chain)

    back = CODEC.decode(CODEC.encode(chain))

    depth = 0
    while back is not None:
        assert type(back) is Tree
        back, depth = back.left, depth + 1
    assert depth == 400


def test_a_stored_array_can_be_written_to() -> None:
    array = CODEC.decode(CODEC.encode(numpy.arange(3)))
    array[0] = 9
    assert array.tolist() == [9, 1, 2]


PLAIN = {"role": "user", "n": [1, 2.5, None, True, b"x"], "more": {"a": [{}]}}


def test_plain_data_has_the_same_bytes_with_and_without_the_promise() -> None:
    assert CODEC.encode(PLAIN, plain=True) == CODEC.encode(PLAIN)
    assert CODEC.decode(CODEC.encode(PLAIN, plain=True)) == PLAIN


@pytest.mark.parametrize("name", [name for name in VALUES if name not in ("bytearray",)])
def test_a_promise_of_plain_data_that_is_broken_does_no_harm(name: str) -> None:
    assert shape(CODEC.decode(CODEC.encode(VALUES[name], plain=True))) == shape(VALUES[name])


def test_an_alias_is_stored_as_what_it_stands_for() -> None:
    class Watched(list[Any]):
        pass

    class WatchedSet(set[Any]):
        pass

    alias(Watched, list)
    alias(WatchedSet, set)
    try:
        value = Watched([1, Watched([(2,)]), {"a": WatchedSet({3})}])
        assert shape(CODEC.decode(CODEC.encode(value))) == shape([1, [(2,)], {"a": {3}}])
        assert CODEC.encode(Watched([1]), plain=True) == CODEC.encode([1])
    finally:
        del ALIASES[Watched], ALIASES[WatchedSet]


@pytest.mark.parametrize("base", [list, dict, str, int, float, tuple, set, bytes, dt.datetime, OrderedDict])
def test_a_subclass_is_never_flattened(base: type) -> None:
    class Special(base):  # type: ignore[misc]
        pass

    value = Special(2026, 1, 1) if base is dt.datetime else Special()
    with pytest.raises(CodecError, match="Special"):
        CODEC.encode({"a": value})


def test_equal_sets_have_equal_bytes() -> None:
    colliding = [n << 20 for n in range(5)]
    forwards, backwards = frozenset(colliding), frozenset(colliding[::-1])
    assert list(forwards) != list(backwards)
    assert CODEC.encode(forwards) == CODEC.encode(backwards)
    assert CODEC.encode({forwards, 1}) == CODEC.encode({1, backwards})
    assert CODEC.encode({2**64: set(forwards)}) == CODEC.encode({2**64: set(backwards)})


SOCKET = socket.socket
UNSTORABLE = [
    ({"meta": [0, 1, 2, Tree(sock=SOCKET)]}, "value['meta'][3].sock", "make it where it is used"),
    ((1, (2, open)), "value[1][1]", "builtin_function_or_method"),
    ({(1, 2): {3: deque([0, open])}}, "value[(1, 2)][3][1]", "return plain data"),
    ({open: 1}, "value.keys()[0]", "builtin_function_or_method"),
    ({"a": {1, open}}, "value['a'].<item>", "return plain data"),
    ({"d": defaultdict(lambda: 1)}, "value['d']", "defaultdict"),
    ({"d": defaultdict(list, {"k": open})}, "value['d']['k']", "builtin_function_or_method"),
    ([numpy.array([object()])], "value[0]", "|O"),
    ([numpy.zeros(2, dtype="i4,f8")], "value[0]", "dtype"),
    (memoryview(b"x"), "value", "memoryview"),
    (dt.datetime(2026, 1, 1, tzinfo=type("Odd", (dt.tzinfo,), {})()), "value.tzinfo", "Odd"),
    (ormsgpack.Ext(1, b""), "value", "Ext"),
    (numpy.ma.masked_array([1]), "value", "MaskedArray"),
]


@pytest.mark.parametrize(("value", "path", "reason"), UNSTORABLE, ids=[row[1] for row in UNSTORABLE])
def test_what_cannot_be_stored_is_named_with_its_place_and_the_way_out(
    value: Any, path: str, reason: str
) -> None:
    with pytest.raises(CodecError) as caught:
        CODEC.encode(value)
    assert str(caught.value).startswith(f"cannot store {path}: ")
    assert reason in str(caught.value)


def itself() -> Any:
    value: list[Any] = []
    value.extend([{"again": value}, (value, value)])
    return value


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("make", [itself, lambda: nested(501), lambda: nested(100_000)])
def test_a_value_without_end_is_refused(make: Any, plain: bool) -> None:
    value = make()
    with pytest.raises(CodecError, match="nested deeper than 500 levels, or contains itself"):
        CODEC.encode(value, plain=plain)
    while isinstance(value, list) and value:
        value = value.pop()


def test_a_type_that_encodes_to_itself_is_refused() -> None:
    class Loop:
        pass

    types = Types.of()
    types._own.add(type(CODEC.types.find(Note))("Loop", Loop, lambda value: value, lambda data: data))
    with pytest.raises(CodecError, match="nested deeper"):
        Codec(types).encode(Loop())


def test_a_type_outside_the_allow_list_is_refused_and_named() -> None:
    raw = CODEC.encode({"a": [Note("x")]})
    with pytest.raises(CodecError, match="'Note' is not allowed here"):
        Codec().decode(raw)


def test_a_lenient_reader_sees_unknown_types_as_data_and_writes_them_back() -> None:
    value = {"a": [Note("x", ("y",)), Colour.RED], "b": {Note("k")}, "c": {Point(1): Tree(Tree())}}
    raw = CODEC.encode(value)

    seen = Codec().decode(raw, lenient=True)

    assert seen["a"] == [
        Unknown("Note", {"text": "x", "tags": ("y",), "more": None}),
        Unknown("Colour", "RED"),
    ]
    assert shape(CODEC.decode(Codec().encode(seen))) == shape(value)


def test_a_lenient_reader_survives_a_zone_that_this_machine_does_not_have() -> None:
    raw = CODEC.encode(IN_BERLIN).replace(b"Europe/Berlin", b"Europe/Brelin")
    with pytest.raises(CodecError, match="zoneinfo:ZoneInfo"):
        CODEC.decode(raw)

    seen = CODEC.decode(raw, lenient=True)

    assert seen == Unknown("datetime:datetime", [2026, 10, 25, 2, 30, 0, 0, 1, seen.data[-1]])
    repaired = CODEC.encode(seen).replace(b"Europe/Brelin", b"Europe/Berlin")
    assert shape(CODEC.decode(repaired)) == shape(IN_BERLIN)


@pytest.mark.parametrize("raw", [b"", b"\x00\xc0", b"\x02\xc0", b"\xff"])
def test_bytes_of_another_version_are_refused(raw: bytes) -> None:
    with pytest.raises(CodecError, match="known is version 1"):
        CODEC.decode(raw)


def crafted(*items: Any) -> bytes:
    return b"\x01" + ormsgpack.packb(list(items))


def mark(code: int) -> ormsgpack.Ext:
    return ormsgpack.Ext(code, b"")


def nested_bytes(levels: int) -> bytes:
    body = b"\xc0"
    for _ in range(levels):
        body = ormsgpack.packb(ormsgpack.Ext(26, body))
    return b"\x01" + body


CRAFTED = {
    "array larger than its bytes": crafted(mark(24), "<f8", [10**12], b""),
    "array of memory never written": crafted(mark(24), "<f8", [10], b""),
    "array of a negative size": crafted(mark(24), "<f8", [-1], b""),
    "array of objects": crafted(mark(24), "|O", [1], b"12345678"),
    "array of wide text": crafted(mark(24), "<U999999999", [1], b""),
    "odd number of keys and values": crafted(mark(7), 1),
    "mark alone": b"\x01" + ormsgpack.packb(mark(4)),
    "mark in the middle": crafted(1, mark(4)),
    "mark as a value": b"\x01" + ormsgpack.packb({"a": mark(4)}),
    "unhashable in a set": crafted(mark(5), [1]),
    "unknown code": crafted(mark(99)),
    "user type without a name": crafted(mark(127), [1], 2),
    "nested without end": nested_bytes(50),
    "user type cut short": crafted(mark(127)),
    "factory that is not allowed": crafted(mark(9), "eval"),
    "zone outside the database": crafted(mark(17), "../../etc/passwd"),
    "declared length": b"\x01\xdd\xff\xff\xff\xff",
    "many declared lengths": b"\x01" + b"\xdd\xff\xff\xff\xff" * 1000,
    "deep": b"\x01" + b"\x91" * 1_000_000,
    "fraction of nothing": crafted(mark(19), 1, 0),
    "member that is gone": crafted(mark(127), "Colour", "GREEN"),
    "field that is missing": crafted(mark(127), "Note", {}),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_bytes_are_refused(name: str) -> None:
    with pytest.raises(CodecError):
        CODEC.decode(CRAFTED[name])


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(codec=None), max_size=8)
    | st.binary(max_size=8)
)
HASHABLE = st.recursive(
    SCALARS
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.uuids()
    | st.dates()
    | st.datetimes(timezones=st.none() | st.timezones())
    | st.times()
    | st.timedeltas()
    | st.complex_numbers()
    | st.sampled_from([Colour.RED, Level.LOW, Access.WRITE, range(3), PurePosixPath("a")]),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.frozensets(inner, max_size=3)
        | st.builds(Point, inner, inner)
        | st.builds(Note, st.text(max_size=3), st.just(()), inner)
    ),
    max_leaves=5,
)
ANY = st.recursive(
    HASHABLE | st.binary(max_size=5).map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
        | st.dictionaries(HASHABLE, inner, max_size=4)
        | st.dictionaries(HASHABLE, inner, max_size=3).map(OrderedDict)
        | st.lists(inner, max_size=3).map(lambda items: deque(items, maxlen=4))
        | st.sets(HASHABLE, max_size=3)
        | st.builds(Tree, inner, inner, st.lists(inner, max_size=2))
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(ANY)
def test_any_value_comes_back_exactly(value: Any) -> None:
    assert shape(CODEC.decode(CODEC.encode(value))) == shape(value)


PLAIN_VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec=None), max_size=4), inner, max_size=4)
    ),
)


@settings(max_examples=200, deadline=None)
@given(PLAIN_VALUES)
def test_any_plain_value_has_the_same_bytes_with_and_without_the_promise(value: Any) -> None:
    assert CODEC.encode(value, plain=True) == CODEC.encode(value)
    assert shape(CODEC.decode(CODEC.encode(value, plain=True))) == shape(value)


def refused_or_read(raw: bytes) -> None:
    for lenient in (False, True):
        with contextlib.suppress(CodecError):
            CODEC.decode(raw, lenient=lenient)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_garbage_is_read_or_refused_and_nothing_else(body: bytes) -> None:
    refused_or_read(body)
    refused_or_read(b"\x01" + body)


MARKED = st.recursive(
    st.none()
    | st.integers(-5, 70)
    | st.text(max_size=3)
    | st.sampled_from(["Note", "<f8", "list", "UTC", "PosixPath"]),
    lambda inner: (
        st.builds(
            lambda code, items: [mark(code), *items],
            st.integers(0, 30) | st.just(127),
            st.lists(inner, max_size=9),
        )
        | st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=500, deadline=None)
@given(MARKED)
def test_well_formed_nonsense_is_read_or_refused_and_nothing_else(tree: Any) -> None:
    refused_or_read(b"\x01" + ormsgpack.packb(tree))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(VALUES)), st.data())
def test_a_flipped_byte_is_read_or_refused_and_nothing_else(name: str, data: st.DataObject) -> None:
    raw = bytearray(CODEC.encode(VALUES[name]))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    refused_or_read(bytes(raw))
    refused_or_read(bytes(raw[: data.draw(st.integers(0, len(raw)))]))


def test_the_codec_alone_is_light() -> None:
    heavy = "{'pydantic', 'numpy', 'cryptography'} & set(sys.modules)"
    code = f"import sys, holdfast.state.codec; raise SystemExit(str({heavy} or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


class Table:
    """No dataclass, model, enum or named tuple: like a data frame."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows


def test_the_way_out_for_a_class_without_a_shape_names_encode_and_decode_and_works() -> None:
    with pytest.raises(CodecError, match=r"holdfast.register_type\(Table, encode=…, decode=…\)"):
        CODEC.encode(Table([1]))
    register_type(Table, encode=lambda table: table.rows, decode=Table)

    assert CODEC.decode(CODEC.encode(Table([1]))).rows == [1]


@pytest.mark.parametrize(
    "value", [threading.Lock(), lambda: 1, threading.current_thread(), iter([]), io.BytesIO()]
)
def test_what_belongs_to_the_process_is_never_to_be_registered(value: Any) -> None:
    with pytest.raises(CodecError, match="make it where it is used, and return plain data") as caught:
        CODEC.encode(value)

    assert "register_type" not in str(caught.value)


@pytest.mark.no_cover
def test_an_exception_that_comes_while_a_value_is_read_is_not_taken_for_damage() -> None:
    raw = Codec().encode({"at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC)})

    def see(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_name == "_value" and event == "line":
            raise KeyboardInterrupt
        return see

    sys.settrace(see)
    try:
        with pytest.raises(KeyboardInterrupt):
            Codec().decode(raw)
    finally:
        sys.settrace(None)
    assert Codec().decode(raw) == {"at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC)}
