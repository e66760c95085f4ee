"""How much stored bytes may come to once they are read: measured on the bytes, before anything is made of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

from holdfast.errors import CodecError

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
    if light * _CONTAINER + special * _SPECIAL > most:
        _check_parts(raw, most)


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
        """Return whether stored bytes fit in with what was taken so far; if so, they are taken too."""
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


def _check_parts(raw: bytes, most: int) -> None:
    if _measure(raw, most + len(raw), len(raw))[0] > most + len(raw):
        raise CodecError(
            f"its {len(raw):,} bytes have so many small parts that they would need more than {most:,} bytes of "
            "memory; keep it in a file, or as a numpy array, and its path in the state"
        )


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
    """The keys of a mapping or the members of a set, as they are; refused if too many have the same hash."""
    found = list(keys)
    if len(found) > MOST_ALIKE:
        hashes = Counter(map(hash, found))
        ((most, count),) = hashes.most_common(1)
        if count > MOST_ALIKE:
            alike = itertools.islice((key for key in found if hash(key) == most), MOST_ALIKE + 1)
            if len(set(alike)) > MOST_ALIKE:
                raise CodecError(f"more than {MOST_ALIKE} of its keys or members have the same hash")
    return found
