"""Every choice that a simulation makes: drawn from a seed, or given, and written down either way."""

from __future__ import annotations

import random
from _random import Random
from collections.abc import Sequence


class Choices:
    """Numbers that a simulation asks for. The same seed, or the same list, makes the same simulation.

    What a list lacks is 0, which is always the harmless choice; so any list is a whole simulation, and a shorter
    one, or one with more zeros, is a simpler one.
    """

    def __init__(self, seed: int | str = 0, *, given: Sequence[int] | None = None) -> None:
        self.seed, self.made = seed, list[int]()
        # That of `_random` is the same for a number, and is made in half the time.
        self._draw = (Random if isinstance(seed, int) else random.Random)(seed).random
        self._given = None if given is None else iter(given)
        self._bits = 0

    def pick(self, size: int) -> int:
        """One of 0 … `size` - 1, each as likely as the others."""
        if self._given is None:
            chosen = int(self._draw() * size)
        else:
            chosen = next(self._given, 0)
            if chosen >= size:
                chosen = size - 1
        self.made.append(chosen)
        return chosen

    def uniform(self, low: float, high: float) -> float:
        """One of a few numbers from `low` to `high`."""
        return low + (high - low) * self.pick(_GRAIN) / (_GRAIN - 1)

    def randbits(self, bits: int) -> int:
        """Return this many bits. They are only identifiers: the same in every simulation, and not recorded."""
        self._bits += 1
        return self._bits * _SCATTER & ((1 << bits) - 1)


_GRAIN = 8
_SCATTER = 0x9E3779B97F4A7C15F39CC0605CEDC835
