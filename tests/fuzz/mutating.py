"""Small changes of bytes, as of a disk, an attacker or a careless program; the same seed makes the same changes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

SIZES = (1, 2, 4, 8)
NUMBERS = tuple(
    sorted(
        {
            0,
            1,
            2,
            3,
            7,
            8,
            *(2**n + d for n in (4, 5, 7, 8, 15, 16, 24, 31, 32, 53, 63, 64) for d in (-1, 0, 1)),
        }
    )
)
PACKED = bytes([0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, *range(0xC0, 0xE0), 0xE0, 0xFF])
"""The bytes that begin another kind of MessagePack value."""

TEXTS = tuple(
    text.encode("utf-8", "surrogatepass")
    for text in (
        "\0", "\n", "\r\n", "\t", " ", "'", '"', "\\", "/", "../", "~", "@", "#", "%", "$", "{", "}", "{{", "}}", "{%",
        "[", "]", "(", ")", ":", ";", ",", "-", "--", "*", "&", "|", "<", ">", "=", "==", "0", "-1", "1e999", "1e-400",
        "NaN", "-0.0", "9" * 20, "9" * 5000, "\u0663", "\u00b2", "\u2028", "\ufeff", "\ud800", "é", "\U0001f600",
        "null", "true", "1e99999999", "__class__", "\x1b[31m", "\x7f", "\x85", "İ",
    )
)  # fmt: skip
"""What readers of text stumble over."""


class Mutator:
    """Changes known inputs. `pool` may grow while it is used."""

    def __init__(
        self, rng: Random, pool: list[bytes], words: Sequence[bytes] = (), longest: int = 2048
    ) -> None:
        self._rng, self._random, self._pool, self._longest = rng, rng.random, pool, longest
        self._words = (*words, *words, *TEXTS) if words else TEXTS
        self._changes = (
            self._flip, self._flip, self._byte, self._byte, self._packed, self._number, self._insert, self._delete,
            self._delete, self._repeat, self._move, self._word, self._word, self._splice, self._cut, self._digit,
        )  # fmt: skip

    def __call__(self) -> bytes:
        """A known input with one change, or a few."""
        random, pool, changes = self._random, self._pool, self._changes
        data = bytearray(pool[int(random() * len(pool))])
        count = len(changes)
        while True:
            changes[int(random() * count)](data)
            if random() < 0.6:
                break
        return bytes(data[: self._longest])

    def _at(self, data: bytearray) -> int:
        return int(self._random() * len(data))

    def _span(self, data: bytearray) -> tuple[int, int]:
        at = self._at(data)
        most = 8 if self._random() < 0.7 else len(data)
        return at, min(len(data), at + 1 + int(self._random() * most))

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._at(data)] ^= 1 << int(self._random() * 8)

    def _byte(self, data: bytearray) -> None:
        if data:
            data[self._at(data)] = int(self._random() * 256)

    def _packed(self, data: bytearray) -> None:
        if data:
            data[self._at(data)] = PACKED[int(self._random() * len(PACKED))]

    def _number(self, data: bytearray) -> None:
        size = SIZES[int(self._random() * 4)]
        number = NUMBERS[int(self._random() * len(NUMBERS))]
        if self._random() < 0.1:
            raw = struct.pack(
                ">d", self._rng.choice((0.0, -0.0, float("nan"), float("inf"), -1e308, 5e-324, 1e18))
            )
        else:
            raw = (number & ((1 << 8 * size) - 1)).to_bytes(size, "big" if self._random() < 0.7 else "little")
        at = self._at(data)
        data[at : at + len(raw)] = raw

    def _insert(self, data: bytearray) -> None:
        at = int(self._random() * (len(data) + 1))
        data[at:at] = self._rng.randbytes(1 + int(self._random() * 6))

    def _delete(self, data: bytearray) -> None:
        if data:
            begin, end = self._span(data)
            del data[begin:end]

    def _repeat(self, data: bytearray) -> None:
        if data:
            begin, end = self._span(data)
            times = 1 if self._random() < 0.8 else int(self._random() * 40)
            data[end:end] = bytes(data[begin:end]) * times

    def _move(self, data: bytearray) -> None:
        if data:
            begin, end = self._span(data)
            piece = bytes(data[begin:end])
            at = self._at(data)
            if self._random() < 0.5:
                data[at : at + len(piece)] = piece
            else:
                del data[begin:end]
                data[at:at] = piece

    def _word(self, data: bytearray) -> None:
        word = self._words[int(self._random() * len(self._words))]
        at = int(self._random() * (len(data) + 1))
        data[at : at + (len(word) if self._random() < 0.3 else 0)] = word

    def _splice(self, data: bytearray) -> None:
        other = self._pool[int(self._random() * len(self._pool))]
        if not other:
            return
        begin = int(self._random() * len(other))
        end = len(other) if self._random() < 0.4 else min(len(other), begin + 1 + int(self._random() * 32))
        at = int(self._random() * (len(data) + 1))
        data[at : at + (end - begin if self._random() < 0.5 else 0)] = other[begin:end]

    def _cut(self, data: bytearray) -> None:
        if self._random() < 0.5:
            del data[self._at(data) :]
        elif data:
            del data[: self._at(data)]

    def _digit(self, data: bytearray) -> None:
        """Another digit in place of one, or another letter of the same text."""
        if not data:
            return
        at = self._at(data)
        for place in range(at, min(at + 16, len(data))):
            if 0x30 <= data[place] <= 0x39:
                data[place] = 0x30 + int(self._random() * 10)
                return
        data[at] = data[self._at(data)]
