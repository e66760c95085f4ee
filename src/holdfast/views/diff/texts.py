"""Differences of texts: by lines, and within one long line by what stands between its equal ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.views.diff.aligning import Region, align, gaps
from holdfast.views.diff.changes import Hunk, SpanReplaced, TextEdited

LONG = 80
"""A text of more characters, or of several lines, is compared inside."""

AROUND = 3
"""How many lines are shown around a change."""

NEARBY = 30
"""How many characters are shown around a replaced span."""

MOST_LINES = 1_000_000
"""Texts that differ in a stretch of more lines are compared as one line."""


def is_long(text: str) -> bool:
    """Whether a text is compared inside."""
    return len(text) > LONG or "\n" in text


def text_change(one: str, other: str) -> TextEdited | SpanReplaced:
    """What differs between two texts that differ."""
    start = common_start(one, other)
    end = common_end(one, other, start)
    middle = _Middle.of(one, other, start, end)
    if middle is None:
        return _span(one, other, start, end)
    return TextEdited(tuple(_hunks(middle)))


def _span(one: str, other: str, start: int, end: int) -> SpanReplaced:
    stop = len(one) - end
    lead, trail = one[max(0, start - NEARBY) : start], one[stop : stop + NEARBY]
    return SpanReplaced(start, one[start:stop], other[start : len(other) - end], lead, trail)


def common_start(one: str, other: str) -> int:
    """How many characters both begin with. Halves are compared, so that it is done at the speed of memory."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_end(one: str, other: str, start: int) -> int:
    """How many characters both end with, apart from the `start` that they begin with."""
    low, high = 0, min(len(one), len(other)) - start
    while low < high:
        middle = (low + high + 1) // 2
        if one[len(one) - middle : len(one) - low] == other[len(other) - middle : len(other) - low]:
            low = middle
        else:
            high = middle - 1
    return low


class _Middle(NamedTuple):
    """The lines in which two texts differ and some around them; `first` is the number of the first one."""

    first: int
    one: list[str]
    other: list[str]

    @classmethod
    def of(cls, one: str, other: str, start: int, end: int) -> _Middle | None:
        """`None` for texts that are not worth to be compared by lines."""
        if "\n" not in one and "\n" not in other:
            return None
        begin = start
        for _ in range(AROUND + 1):
            begin = one.rfind("\n", 0, max(begin - 1, 0)) + 1 if begin else 0
        stop = len(one) - end
        for _ in range(AROUND + 1):
            found = one.find("\n", stop + 1)
            stop = len(one) if found < 0 else found
        other_stop = len(other) - (len(one) - stop)
        most = max(one.count("\n", begin, stop), other.count("\n", begin, other_stop))
        if most > MOST_LINES:
            return None
        lines = one[begin:stop].split("\n"), other[begin:other_stop].split("\n")
        return cls(one.count("\n", 0, begin), *lines)


def _hunks(middle: _Middle) -> Iterator[Hunk]:
    """The changed stretches with the lines around them, those that are near to each other as one."""
    numbers: dict[str, int] = {}
    one, other = ([numbers.setdefault(line, len(numbers)) for line in lines] for lines in middle[1:])
    group: list[Region] = []
    for gap in gaps(align(one, other), len(one), len(other)):
        if group and gap.before - group[-1].before_end > 2 * AROUND:
            yield _hunk(middle, group)
            group = []
        group.append(gap)
    yield _hunk(middle, group)


def _hunk(middle: _Middle, group: list[Region]) -> Hunk:
    lead = min(AROUND, group[0].before)
    at = group[0].before - lead
    lines: list[tuple[str, str]] = []
    for gap in group:
        lines += [(" ", line) for line in middle.one[at : gap.before]]
        lines += [("-", line) for line in middle.one[gap.before : gap.before_end]]
        lines += [("+", line) for line in middle.other[gap.after : gap.after_end]]
        at = gap.before_end
    lines += [(" ", line) for line in middle.one[at : at + AROUND]]
    first = middle.first - lead
    return Hunk(first + group[0].before, first + group[0].after, tuple(lines))
