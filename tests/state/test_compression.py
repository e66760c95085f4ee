"""Stored bodies are small, and nothing but what was packed ever comes out."""

import os
import random

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import CodecError
from holdfast.state.codec import pack, unpack


def prose(size: int, seed: int = 1) -> bytes:
    chance = random.Random(seed)
    words = ["".join(chance.choices("abcdefghijklmnop", k=chance.randint(3, 9))) for _ in range(5000)]
    return " ".join(chance.choices(words, k=size // 4)).encode()[:size]


def edited(text: bytes) -> bytes:
    middle = len(text) // 2
    return text[:middle] + b" EDITED " + text[middle + 5 :]


@pytest.mark.parametrize("raw", [b"", b"x", b"x" * 511, os.urandom(10_000)], ids=["0", "1", "511", "random"])
def test_what_is_small_or_dense_is_stored_as_it_is(raw: bytes) -> None:
    assert pack(raw) == (0, raw)
    assert unpack(0, raw) == raw


@pytest.mark.parametrize("size", [512, 5_000, 2_000_000])
def test_prose_shrinks_and_comes_back(size: int) -> None:
    raw = prose(size)
    how, data = pack(raw)
    assert how == 1 and len(data) < 0.9 * size
    assert unpack(how, data) == raw


@pytest.mark.parametrize("size", [600, 50_000, 900_000, 1_100_000, 5_000_000])
def test_a_one_word_edit_of_a_large_body_costs_next_to_nothing(size: int) -> None:
    base = prose(size)
    raw = edited(base)
    how, data = pack(raw, base)
    assert how == 2 and len(data) < 2_000
    assert unpack(how, data, base) == raw


def test_a_base_helps_even_where_the_body_alone_cannot_be_compressed() -> None:
    base = os.urandom(100_000)
    raw = edited(base)
    how, data = pack(raw, base)
    assert how == 2 and len(data) < 1_000
    assert unpack(how, data, base) == raw


def test_a_small_base_is_not_used() -> None:
    how, data = pack(prose(5_000), b"x" * 511)
    assert how == 1
    assert unpack(how, data) == prose(5_000)


def test_the_wrong_base_is_noticed() -> None:
    base = os.urandom(100_000)
    how, data = pack(edited(base), base)
    for other in (os.urandom(100_000), base[:-1] + bytes([base[-1] ^ 1]), base[:50_000], None):
        with pytest.raises(CodecError):
            unpack(how, data, other)


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    writer = zstd.ZstdCompressor()
    writer.set_pledged_input_size((1 << 30) + 1)
    head = writer.compress(b"x" * 100_000, zstd.ZstdCompressor.FLUSH_BLOCK)
    with pytest.raises(CodecError, match="claims 1073741825 bytes"):
        unpack(1, head)


def test_a_frame_that_does_not_say_its_length_is_refused() -> None:
    writer = zstd.ZstdCompressor()
    data = writer.compress(b"x" * 1000) + writer.flush()
    with pytest.raises(CodecError, match="claims None"):
        unpack(1, data)


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: data + data]
)
def test_a_body_cut_short_or_grown_is_refused(change: object) -> None:
    how, data = pack(prose(5_000))
    with pytest.raises(CodecError):
        unpack(how, change(data))  # type: ignore[operator]


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(CodecError, match="unknown way 9"):
        unpack(9, b"")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=100), st.sampled_from([1, 2]))
def test_garbage_is_refused(data: bytes, how: int) -> None:
    for damaged in (data, b"\x28\xb5\x2f\xfd" + data):
        try:
            out = unpack(how, damaged, b"base" * 200)
        except CodecError:
            continue
        assert len(out) <= 1 << 20


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.integers(1, 60), st.binary(max_size=40), st.integers(1, 60))
def test_any_body_comes_back(part: bytes, times: int, base: bytes, base_times: int) -> None:
    raw, earlier = part * times, base * base_times
    for other in (None, earlier):
        how, data = pack(raw, other)
        assert len(data) <= len(raw)
        assert unpack(how, data, other) == raw
