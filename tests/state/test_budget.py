"""Budgets of the codec: it refuses values that would need far more memory or time than their bytes."""

from __future__ import annotations

import dataclasses
import sys
import tracemalloc
from fractions import Fraction
from typing import Any

import numpy
import ormsgpack
import pytest

from holdfast.errors import CodecError
from holdfast.state import codec
from holdfast.state import standard_types as budget
from holdfast.state.codec import Codec, TolerantCodec, Unknown
from holdfast.state.types import Types
from holdfast.views.patch import PatchError, json_patch
from holdfast.views.plain import MOST_PARTS, plain

CODEC = Codec()


def _marked(code: int, *items: Any) -> bytes:
    return b"\x01" + ormsgpack.packb([ormsgpack.Ext(code, b""), *items])


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "part", [b"\x90", b"\x80", b"\xa1x", b"\x92\xc7\x00\x0b\xc0", b"\x91\xc7\x00\x05"], ids=bytes.hex
)
def test_very_many_small_parts_are_refused_before_they_are_made(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 KB of zstd hold 70 MB of empty lists, which would be 5 GB."""
    monkeypatch.setattr(budget, "MOST_MEMORY", 10_000_000)
    monkeypatch.setattr(budget, "UNMEASURED", 100_000)
    count = 1_200_000 // len(part)
    raw = b"\x01\xdd" + count.to_bytes(4, "big") + part * count

    tracemalloc.start()
    try:
        with pytest.raises(CodecError, match="so many small parts"):
            CODEC.decode(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 3 * len(raw)


def test_what_would_not_be_read_again_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST_MEMORY", 1_000_000)
    monkeypatch.setattr(budget, "UNMEASURED", 100_000)
    monkeypatch.setattr(codec, "UNMEASURED", 100_000)
    value: list[Any] = [[] for _ in range(100_001)]

    for plainly in (True, False):
        with pytest.raises(CodecError, match=r"cannot store the value: .*so many small parts"):
            CODEC.encode(value, plain=plainly)


def test_large_values_of_ordinary_parts_are_stored_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST_MEMORY", 1_000_000)
    monkeypatch.setattr(budget, "UNMEASURED", 100_000)
    rows: list[Any] = [
        {"name": f"row {number} " + "x" * 300, "value": number / 7, "ids": b"\x90" * 90}
        for number in range(2000)
    ]

    for value in (rows, [rows], {"deep": _deep(300), "rows": rows}, numpy.zeros(500_000), b"\x90" * 900_000):
        found = CODEC.decode(CODEC.encode(value))
        assert numpy.array_equal(found, value) if isinstance(value, numpy.ndarray) else found == value


def _deep(levels: int) -> list[Any]:
    value: list[Any] = ["x" * 1000]
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("|S0", [1 << 40]),
        ("|S0", [1000, 1000]),
        ("<U0", [3]),
        ("|u1", [1 << 40, 0]),
        ("<f8", [1 << 30, 1 << 30, 0]),
        ("|u1", [1] * 65),
        ("|u1", [1 << 62] * 5000),
    ],
)
def test_an_array_of_a_shape_without_data_is_refused(dtype: str, shape: list[int]) -> None:
    with pytest.raises(CodecError):
        CODEC.decode(_marked(24, dtype, shape, b"" if len(shape) != 65 else b"\0"))


def test_empty_arrays_of_ordinary_shapes_are_stored() -> None:
    for shape in [(0,), (0, 1 << 40), (768, 0), (3, 0, 5)]:
        found = CODEC.decode(CODEC.encode(numpy.zeros(shape, "u1")))
        assert found.shape == shape
    with pytest.raises(CodecError, match="rows"):
        CODEC.encode(numpy.zeros((1 << 40, 0)))


@dataclasses.dataclass(frozen=True)
class Ident:
    """A type that readers of a store may not know."""

    number: int


class Clash:
    """A value whose comparisons are counted."""

    compared = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        Clash.compared += 1
        return isinstance(other, Clash) and other.number == self.number


def test_a_set_of_unknown_types_is_read_without_comparing_each_with_all() -> None:
    raw = Codec(Types.of(Ident)).encode({Ident(number) for number in range(5000)})
    found = TolerantCodec().decode(raw)

    assert len(found) == 5000 and len({hash(each) for each in found}) > 4900
    assert TolerantCodec().encode(found) == raw
    assert hash(Unknown("T", {"a": [1, {2}], "b": None})) == hash(Unknown("T", {"b": None, "a": [1, {2}]}))


@pytest.mark.parametrize("code", [5, 6, 7, 8, 10])
def test_members_and_keys_of_one_hash_are_refused(code: int) -> None:
    numbers = [
        ormsgpack.Ext(1, (number * sys.hash_info.modulus).to_bytes(20, "little")) for number in range(5000)
    ]
    parts = numbers if code < 7 else [part for number in numbers for part in (number, 1)]

    with pytest.raises(CodecError, match="same hash"):
        CODEC.decode(_marked(code, *parts))


def test_what_would_be_refused_when_read_is_refused_when_stored() -> None:
    with pytest.raises(CodecError, match="same hash"):
        CODEC.encode({number * sys.hash_info.modulus for number in range(101)})
    with pytest.raises(CodecError, match="same hash"):
        CODEC.encode({number * sys.hash_info.modulus: 1 for number in range(101)})

    Clash.compared = 0
    with pytest.raises(CodecError, match="same hash"):
        budget.distinct([Clash(number) for number in range(5000)])
    assert Clash.compared <= (budget.MOST_ALIKE + 1) ** 2


def test_a_large_fraction_is_read_without_being_reduced_again() -> None:
    """Reducing it would take time that grows with the square of its 8 million bits."""
    value = Fraction(1)
    value._numerator, value._denominator = (1 << 8_000_000) - 1, 1 << 7_999_999  # type: ignore[attr-defined]

    found = CODEC.decode(CODEC.encode(value))

    assert (found.numerator, found.denominator) == (value.numerator, value.denominator)
    with pytest.raises(CodecError):
        CODEC.decode(_marked(19, 1, 0))


def test_a_view_says_what_it_leaves_out() -> None:
    rows = numpy.zeros([50_000] + [1] * 60, "u1")
    flat = numpy.zeros(MOST_PARTS + 1, "u1")

    assert plain(rows) == {
        "$type": "numpy.ndarray",
        "text": "3,050,000 parts, too many to be shown",
        "shape": list(rows.shape),
        "dtype": "uint8",
    }
    shown = plain({"a": flat, "b": list(range(MOST_PARTS)), "c": 1})
    assert "too many" in shown["a"]["text"] and "too many" in shown["b"]["text"] and shown["c"] == 1
    assert plain(numpy.arange(3)) == {"$type": "numpy.ndarray", "value": [0, 1, 2]}
    with pytest.raises(PatchError, match="2,000,000 parts"):
        json_patch({"a": flat}, {})


def test_a_range_of_very_large_numbers_is_shown() -> None:
    assert plain(range(10**5000)) == {"$type": "range", "text": "<range of very large numbers>"}
