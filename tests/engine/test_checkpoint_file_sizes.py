"""Untrusted checkpoint files: a small pickle makes nothing large, and takes no quadratic time."""

from __future__ import annotations

import collections
import datetime as dt
import fractions
import pickle
import pickletools
import sys
import tracemalloc
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.checkpoint_files import load
from holdfast.errors import CodecError, HoldfastError

LARGE = 100_000_000


class _Call:
    """Pickled as a call."""

    def __init__(self, function: Callable[..., Any], *given: Any) -> None:
        self.call = (function, given)

    def __reduce__(self) -> Any:
        return self.call


def _doubled(times: int, make: Callable[[Any, Any], Any]) -> Any:
    value: Any = make(1, 1)
    for _ in range(times):
        value = make(value, value)
    return value


def _itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


BOMBS: dict[str, Any] = {
    "bytearray": _Call(bytearray, LARGE),
    "fraction": _Call(fractions.Fraction, "1e100000000"),
    "deque": _Call(collections.deque, range(LARGE // 10)),
    "list": _Call(list, range(LARGE // 10)),
    "set": _Call(set, range(LARGE // 10)),
    "frozenset": _Call(frozenset, range(LARGE // 10)),
    "tuple": _Call(tuple, range(LARGE // 10)),
    "dict": _Call(dict.fromkeys, range(LARGE // 10)),
    "counter": _Call(collections.Counter, range(LARGE // 10)),
    "text": _Call(str, b"x", "punycode"),
    "doubled lists": _doubled(40, lambda one, other: [one, other]),
    "a list in itself": _itself(),
}


def _file(path: Path, value: Any) -> bytes:
    data = pickle.dumps({"state": {"x": value}, "node": "b", "config": {}, "version": "1.0"}, 4)
    path.write_bytes(data)
    return data


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_pickle_that_makes_something_large_is_refused(name: str, tmp_path: Path) -> None:
    data = _file(tmp_path / "c.pkl", BOMBS[name])
    assert len(data) < 1000

    tracemalloc.start()
    try:
        with pytest.raises(HoldfastError):
            load(tmp_path / "c.pkl")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 5_000_000


def test_a_key_whose_hash_takes_years_is_refused(tmp_path: Path) -> None:
    """A tuple of the same tuple twice, and so on: each level is three bytes, and twice the work."""
    levels = b"".join(b"q" + bytes([level]) + b"h" + bytes([level]) + b"\x86" for level in range(60))
    (tmp_path / "c.pkl").write_bytes(b"\x80\x04}(K\x01" + levels + b"K\x01u.")

    with pytest.raises(CodecError, match="comes to more than"):
        load(tmp_path / "c.pkl")


def test_keys_of_one_hash_are_refused_and_others_are_not(tmp_path: Path) -> None:
    alike = {number * sys.hash_info.modulus: 1 for number in range(101)}
    _file(tmp_path / "c.pkl", alike)
    with pytest.raises(CodecError, match="same hash"):
        load(tmp_path / "c.pkl")
    _file(tmp_path / "c.pkl", {(key, 1) for key in alike})
    with pytest.raises(CodecError, match="same hash"):
        load(tmp_path / "c.pkl")

    many = {
        "numbers": dict.fromkeys(range(10_000)),
        "flags": {tuple(bool(number >> bit & 1) for bit in range(9)): number for number in range(512)},
        "days": {dt.date.fromordinal(day): day for day in range(1, 6001)},
        "ids": {uuid.UUID(int=number) for number in range(300)},
        "half": fractions.Fraction(1, 2),
        "bytes": bytearray(b"abc"),
        "default": collections.defaultdict(set, {"k": {1}}),
    }
    _file(tmp_path / "c.pkl", many)

    assert load(tmp_path / "c.pkl")["state"]["x"] == many


def test_what_is_used_twice_is_read_twice(tmp_path: Path) -> None:
    shared = ["a"]
    _file(tmp_path / "c.pkl", [shared, shared])

    assert load(tmp_path / "c.pkl")["state"]["x"] == [["a"], ["a"]]


@pytest.mark.parametrize(
    "program",
    [b"cdatetime\ndatetime\n}b.", b"cbuiltins\nlist\n}b.", b"(K\x01K\x021.", b"K\x01K\x02.", b"K\x012."],
)
def test_a_pickle_that_does_what_no_pickler_writes_is_refused(program: bytes, tmp_path: Path) -> None:
    (tmp_path / "c.pkl").write_bytes(b"\x80\x04" + program)

    with pytest.raises(HoldfastError):
        load(tmp_path / "c.pkl")


RAW_BOMBS = {
    "LONG_BINPUT": b"\x80\x04]r" + (50_000_000).to_bytes(4, "little") + b".",
    "BINPUT": b"\x80\x04]q\xff.",
    "PUT": b"]p50000000\n.",
    "BINBYTES8": b"\x80\x04\x8e" + (500_000_000).to_bytes(8, "little") + b".",
    "BYTEARRAY8": b"\x80\x05\x96" + (500_000_000).to_bytes(8, "little") + b".",
    "FRAME": b"\x80\x04\x95" + (500_000_000).to_bytes(8, "little") + b"].",
    "LONG4": b"\x80\x04\x8b" + (500_000_000).to_bytes(4, "little") + b".",
}


@pytest.mark.parametrize("name", RAW_BOMBS)
def test_a_number_in_a_pickle_makes_no_room_that_its_bytes_do_not_fill(name: str, tmp_path: Path) -> None:
    (tmp_path / "c.pkl").write_bytes(RAW_BOMBS[name])

    tracemalloc.start()
    try:
        with pytest.raises(HoldfastError) as refused:
            load(tmp_path / "c.pkl")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000
    if name.endswith("PUT"):
        assert "which no pickle of its size has" in str(refused.value)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_a_pickle_refers_to_again_is_read_under_every_protocol(protocol: int, tmp_path: Path) -> None:
    shared = [f"text {number}" for number in range(400)]
    content = {"state": {"x": [shared, shared]}, "node": "b", "config": {}, "version": "1.0"}
    for data in (pickle.dumps(content, protocol), pickletools.optimize(pickle.dumps(content, protocol))):
        (tmp_path / "c.pkl").write_bytes(data)
        assert load(tmp_path / "c.pkl")["state"]["x"] == [shared, shared]


@pytest.mark.no_cover
@pytest.mark.parametrize("number", [100_000, 100_001])
def test_lists_nested_deep_are_refused_before_they_are_all_made(number: int, tmp_path: Path) -> None:
    is_even = number % 2 == 0
    deep = b"]" * number + b"a" * (number - 1) if is_even else b"]" + b"\x85" * number
    (tmp_path / "c.pkl").write_bytes(b"\x80\x04" + deep + b".")

    tracemalloc.start()
    try:
        with pytest.raises(CodecError, match="nested deeper than 2,000 levels"):
            load(tmp_path / "c.pkl")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200 * number if is_even else peak < 2_000_000


def test_depth_that_a_list_gets_after_it_was_put_into_another_is_found(tmp_path: Path) -> None:
    # Each list is put into the one before while it is empty: ] memoised, [ memoised, appended, then fetched again.
    program = b"]\x94"
    for number in range(3000):
        program += b"j" + number.to_bytes(4, "little") + b"]\x94a\x86" if number else b"]\x94a"
    (tmp_path / "c.pkl").write_bytes(b"\x80\x04" + program + b".")

    with pytest.raises(CodecError, match="nested deeper than 2,000 levels"):
        load(tmp_path / "c.pkl")
