"""Bytes as a row of choices: structured inputs that can still be changed, cut and replayed as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

Thing = TypeVar("Thing")


class Choices:
    """Reads choices from bytes. Where they end, every choice is the first one."""

    __slots__ = ("_at", "_data", "_size")

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._size = data, 0, len(data)

    @property
    def is_over(self) -> bool:
        """Whether all bytes were used."""
        return self._at >= self._size

    def byte(self) -> int:
        """The next byte, or 0."""
        at = self._at
        if at >= self._size:
            return 0
        self._at = at + 1
        return self._data[at]

    def below(self, limit: int) -> int:
        """A number from 0 to `limit` - 1."""
        if limit <= 256:
            return self.byte() % limit
        return self.number(8) % limit

    def number(self, width: int) -> int:
        """A number of so many bytes."""
        return int.from_bytes(self.raw(width), "big")

    def raw(self, length: int) -> bytes:
        """The next bytes; fewer at the end."""
        found = self._data[self._at : self._at + length]
        self._at += length
        return found

    def rest(self) -> bytes:
        """All that is left."""
        return self.raw(self._size)

    def of(self, things: Sequence[Thing]) -> Thing:
        """One of some things."""
        return things[self.below(len(things))]

    def chance(self, one_in: int) -> bool:
        """True once in so many times."""
        return self.byte() % one_in == one_in - 1


def random_choices(rng: Random) -> bytes:
    """Choices at random: few, or many."""
    return rng.randbytes(rng.choice((4, 12, 24, 48, 96, 200)))
