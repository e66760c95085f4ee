"""Which items of two sequences are the same ones: near-linear, whatever the sequences are."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple


class Block(NamedTuple):
    """`length` items that are the same, from `before` on in one sequence and from `after` on in the other."""

    before: int
    after: int
    length: int


class Region(NamedTuple):
    """A stretch of each sequence: from the first index up to the second."""

    before: int
    before_end: int
    after: int
    after_end: int


Pairs = Iterable[tuple[int, int]]

_SMALL = 4096
"""How large the product of the lengths of two stretches may be to be compared exhaustively."""


def align(one: Sequence[int], other: Sequence[int]) -> list[Block]:
    """The blocks that both have, in order and without overlap.

    What both begin and end with first; then items that each has once; between those again; and what
    is left exhaustively if it is little, else by occurrences: the second of a kind is taken for the second.
    """
    ways = (_unique, _unique, _rest)
    return list(_joined(_blocks(one, other, Region(0, len(one), 0, len(other)), ways)))


def _blocks(
    one: Sequence[int], other: Sequence[int], region: Region, ways: tuple[Callable[..., Pairs], ...]
) -> Iterator[Block]:
    start = _same_start(one, other, region)
    end = _same_end(one, other, region, start)
    if start:
        yield Block(region.before, region.after, start)
    before, before_end = region.before + start, region.before_end - end
    after, after_end = region.after + start, region.after_end - end
    if ways and before < before_end and after < after_end:
        inner = Region(before, before_end, after, after_end)
        for i, j in [*rising(ways[0](one, other, inner)), (before_end, after_end)]:
            if before < i and after < j:
                yield from _blocks(one, other, Region(before, i, after, j), ways[1:])
            if i < before_end:
                yield Block(i, j, 1)
            before, after = i + 1, j + 1
    if end:
        yield Block(before_end, after_end, end)


def _same_start(one: Sequence[int], other: Sequence[int], region: Region) -> int:
    length = min(region.before_end - region.before, region.after_end - region.after)
    for offset in range(length):
        if one[region.before + offset] != other[region.after + offset]:
            return offset
    return length


def _same_end(one: Sequence[int], other: Sequence[int], region: Region, start: int) -> int:
    length = min(region.before_end - region.before, region.after_end - region.after) - start
    for offset in range(length):
        if one[region.before_end - 1 - offset] != other[region.after_end - 1 - offset]:
            return offset
    return length


def _unique(one: Sequence[int], other: Sequence[int], region: Region) -> Pairs:
    """The places of what each stretch has exactly once."""
    mine = Counter(one[region.before : region.before_end])
    theirs = Counter(other[region.after : region.after_end])
    places = {
        other[place]: place
        for place in range(region.after, region.after_end)
        if theirs[other[place]] == 1 and mine.get(other[place]) == 1
    }
    for place in range(region.before, region.before_end):
        if one[place] in places:
            yield place, places[one[place]]


def _rest(one: Sequence[int], other: Sequence[int], region: Region) -> Pairs:
    """What is left: as many pairs as there can be in a small stretch, else by occurrences."""
    rows, columns = region.before_end - region.before, region.after_end - region.after
    return (_most if rows * columns <= _SMALL else _occurrences)(one, other, region)


def _most(one: Sequence[int], other: Sequence[int], region: Region) -> Pairs:
    """A longest common subsequence, by the table of those of all ends."""
    mine = one[region.before : region.before_end]
    theirs = other[region.after : region.after_end]
    table = [[0] * (len(theirs) + 1) for _ in range(len(mine) + 1)]
    for i in range(len(mine) - 1, -1, -1):
        row, below = table[i], table[i + 1]
        for j in range(len(theirs) - 1, -1, -1):
            row[j] = below[j + 1] + 1 if mine[i] == theirs[j] else max(below[j], row[j + 1])
    i = j = 0
    while i < len(mine) and j < len(theirs):
        if mine[i] == theirs[j]:
            yield region.before + i, region.after + j
            i, j = i + 1, j + 1
        elif table[i + 1][j] >= table[i][j + 1]:
            i += 1
        else:
            j += 1


def _occurrences(one: Sequence[int], other: Sequence[int], region: Region) -> Pairs:
    """The places of the first of a kind in each, of the second, and so on."""
    places: dict[int, list[int]] = {}
    for place in range(region.after_end - 1, region.after - 1, -1):
        places.setdefault(other[place], []).append(place)
    for place in range(region.before, region.before_end):
        left = places.get(one[place])
        if left:
            yield place, left.pop()


def rising(pairs: Pairs) -> list[tuple[int, int]]:
    """The most pairs, which are given in order of their first part, whose second parts rise too."""
    found = list(pairs)
    tops: list[int] = []
    at_top: list[int] = []
    below: list[int] = []
    for index, (_, second) in enumerate(found):
        pile = bisect_left(tops, second)
        if pile == len(tops):
            tops.append(second)
            at_top.append(index)
        else:
            tops[pile], at_top[pile] = second, index
        below.append(at_top[pile - 1] if pile else -1)
    chosen = []
    index = at_top[-1] if at_top else -1
    while index >= 0:
        chosen.append(found[index])
        index = below[index]
    return chosen[::-1]


def _joined(blocks: Iterable[Block]) -> Iterator[Block]:
    """Blocks that touch as one."""
    last: Block | None = None
    for block in blocks:
        if last is not None and (last.before + last.length, last.after + last.length) == block[:2]:
            last = Block(last.before, last.after, last.length + block.length)
            continue
        if last is not None:
            yield last
        last = block
    if last is not None:
        yield last


def gaps(blocks: Iterable[Block], one_length: int, other_length: int) -> Iterator[Region]:
    """What lies between the blocks, before the first and after the last."""
    before = after = 0
    for block in [*blocks, Block(one_length, other_length, 0)]:
        if block.before > before or block.after > after:
            yield Region(before, block.before, after, block.after)
        before, after = block.before + block.length, block.after + block.length
