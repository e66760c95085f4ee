"""Alignment of two sequences, and of the lines of two texts: near-linear in their lengths, whatever they hold."""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from holdfast.views.diff.changes import Hunk, SpanReplaced, TextEdited


class Region(NamedTuple):
    """A stretch of each of two sequences: from the first index up to the second."""

    before: int
    before_end: int
    after: int
    after_end: int


Pairs = Iterable[tuple[int, int]]
"""Indexes into one sequence and into the other."""

_SMALL = 4096
"""The largest product of the lengths of two stretches that `difflib` compares, for it may take quadratic time."""


def gaps(one: Sequence[int], other: Sequence[int]) -> Iterator[Region]:
    """Yield the stretches in which two sequences differ, in order.

    Aligned are what both begin and end with; then items that occur once in each; between those again; and the rest by
    `difflib` if it is small, else by occurrence: the second of a kind with the second of that kind.
    """
    region = Region(0, len(one), 0, len(other))
    before = after = 0
    ends = [(len(one), len(other))]
    for i, j in chain(_aligned(one, other, region, (_unique, _unique, _remaining)), ends):
        if i > before or j > after:
            yield Region(before, i, after, j)
        before, after = i + 1, j + 1


def _aligned(
    one: Sequence[int], other: Sequence[int], region: Region, ways: tuple[Callable[..., Pairs], ...]
) -> Iterator[tuple[int, int]]:
    before, before_end, after, after_end = region
    while before < before_end and after < after_end and one[before] == other[after]:
        yield before, after
        before, after = before + 1, after + 1
    tail = 0
    while before < before_end and after < after_end and one[before_end - 1] == other[after_end - 1]:
        before_end, after_end, tail = before_end - 1, after_end - 1, tail + 1
    if ways and before < before_end and after < after_end:
        inner = Region(before, before_end, after, after_end)
        for i, j in [*rising(ways[0](one, other, inner)), (before_end, after_end)]:
            yield from _aligned(one, other, Region(before, i, after, j), ways[1:])
            if i < before_end:
                yield i, j
            before, after = i + 1, j + 1
    yield from ((before_end + offset, after_end + offset) for offset in range(tail))


def _unique(one: Sequence[int], other: Sequence[int], region: Region) -> Pairs:
    """Yield the indexes of items that occur exactly once in each stretch."""
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


def _remaining(one: Sequence[int], other: Sequence[int], region: Region) -> Pairs:
    """Yield the indexes of equal items among what is left."""
    before, before_end, after, after_end = region
    if (before_end - before) * (after_end - after) <= _SMALL:
        mine, theirs = one[before:before_end], other[after:after_end]
        for i, j, length in difflib.SequenceMatcher(None, mine, theirs, False).get_matching_blocks():
            yield from ((before + i + offset, after + j + offset) for offset in range(length))
        return
    places: dict[int, list[int]] = {}
    for place in range(after_end - 1, after - 1, -1):
        places.setdefault(other[place], []).append(place)
    for place in range(before, before_end):
        if left := places.get(one[place]):
            yield place, left.pop()


def rising(pairs: Pairs) -> list[tuple[int, int]]:
    """Return the longest subsequence of pairs, ordered by their first index, whose second indexes rise too."""
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


# Texts: by lines, and within one long line by what lies between its equal ends.


LONG = 80
"""A text of more characters, or of several lines, is compared inside."""

AROUND = 3
"""The number of unchanged lines that a hunk has before and after a change."""

NEARBY = 30
"""The number of characters kept before and after a replaced span."""

MOST_LINES = 1_000_000
"""Texts that differ in a stretch of more lines are compared as one line."""


def is_long(text: str) -> bool:
    """Return True if a text is compared inside."""
    return len(text) > LONG or "\n" in text


def text_change(one: str, other: str) -> TextEdited | SpanReplaced:
    """Return what differs between two different texts."""
    start = common_start(one, other)
    end = common_start(one[start:][::-1], other[start:][::-1])
    if "\n" in one or "\n" in other:
        begin, stop = _around(one, start, len(one) - end)
        other_stop = len(other) - (len(one) - stop)
        if max(one.count("\n", begin, stop), other.count("\n", begin, other_stop)) <= MOST_LINES:
            lines = one[begin:stop].split("\n"), other[begin:other_stop].split("\n")
            return TextEdited(tuple(_hunks(one.count("\n", 0, begin), *lines)))
    stop = len(one) - end
    lead, trail = one[max(0, start - NEARBY) : start], one[stop : stop + NEARBY]
    return SpanReplaced(start, one[start:stop], other[start : len(other) - end], lead, trail)


def common_start(one: str, other: str) -> int:
    """Return how many characters both begin with; slices are compared, which is as fast as memory."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _around(text: str, begin: int, stop: int) -> tuple[int, int]:
    """Return where the lines begin and end that a hunk needs around a changed stretch of characters."""
    for _ in range(AROUND + 1):
        begin = text.rfind("\n", 0, max(begin - 1, 0)) + 1 if begin else 0
        found = text.find("\n", stop + 1)
        stop = len(text) if found < 0 else found
    return begin, stop


def _hunks(first: int, one: list[str], other: list[str]) -> Iterator[Hunk]:
    """Yield the changed lines with the lines around them; `first` is the number of the first line."""
    numbers: dict[str, int] = {}
    mine, theirs = ([numbers.setdefault(line, len(numbers)) for line in lines] for lines in (one, other))
    group: list[Region] = []
    for gap in gaps(mine, theirs):
        if group and gap.before - group[-1].before_end > 2 * AROUND:
            yield _hunk(first, one, other, group)
            group = []
        group.append(gap)
    yield _hunk(first, one, other, group)


def _hunk(first: int, one: list[str], other: list[str], group: list[Region]) -> Hunk:
    lead = min(AROUND, group[0].before)
    at = group[0].before - lead
    lines: list[tuple[str, str]] = []
    for gap in group:
        lines += [(" ", line) for line in one[at : gap.before]]
        lines += [("-", line) for line in one[gap.before : gap.before_end]]
        lines += [("+", line) for line in other[gap.after : gap.after_end]]
        at = gap.before_end
    lines += [(" ", line) for line in one[at : at + AROUND]]
    first -= lead
    return Hunk(first + group[0].before, first + group[0].after, tuple(lines))
