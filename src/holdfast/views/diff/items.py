"""Differences of lists: which items came and went, and which are the same ones, changed in themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from holdfast.data.codec import Unknown
from holdfast.data.marks import stored_class
from holdfast.views.diff.aligning import Region, align, gaps, rising
from holdfast.views.diff.changes import Change, ItemChanged, ItemEdit, ItemsInserted, ItemsRemoved
from holdfast.views.diff.numbering import Numbering

Compare = Callable[[Any, Any], Change]


def item_edits(
    one: Sequence[Any], other: Sequence[Any], numbering: Numbering, compare: Compare
) -> Iterator[ItemEdit]:
    """The edits that make one list the other, in order; `compare` says what differs in a changed item."""
    before, after = numbering.numbers(one), numbering.numbers(other)
    for gap in gaps(align(before, after), len(one), len(other)):
        yield from _edits(one, other, gap, _changed(one, other, gap, numbering), compare)


def _edits(
    one: Sequence[Any],
    other: Sequence[Any],
    gap: Region,
    changed: Iterable[tuple[int, int]],
    compare: Compare,
) -> Iterator[ItemEdit]:
    i, j = gap.before, gap.after
    for before, after in [*changed, (gap.before_end, gap.after_end)]:
        if i < before:
            yield ItemsRemoved(i, j, tuple(one[i:before]))
        if j < after:
            yield ItemsInserted(before, j, tuple(other[j:after]))
        if before < gap.before_end:
            yield ItemChanged(before, after, compare(one[before], other[after]))
        i, j = before + 1, after + 1


def _changed(
    one: Sequence[Any], other: Sequence[Any], gap: Region, numbering: Numbering
) -> Iterator[tuple[int, int]]:
    """The places of items that are taken for the same item, changed."""
    i, j = gap.before, gap.after
    if i == gap.before_end or j == gap.after_end:
        return
    related = [] if _is_even(gap) and _is_one(gap) else rising(_related(one, other, gap, numbering))
    for before, after in [*related, (gap.before_end, gap.after_end)]:
        yield from _in_step(one, other, Region(i, before, j, after))
        if before < gap.before_end:
            yield before, after
        i, j = before + 1, after + 1


def _is_even(gap: Region) -> bool:
    return gap.before_end - gap.before == gap.after_end - gap.after


def _is_one(gap: Region) -> bool:
    return gap.before_end - gap.before == 1


def _in_step(one: Sequence[Any], other: Sequence[Any], gap: Region) -> Iterator[tuple[int, int]]:
    """What is left by position if there are as many items as before and they are of a kind, else by shape."""
    if not _is_even(gap):
        yield from rising(_only_ones(one, other, gap))
        return
    for offset in range(gap.before_end - gap.before):
        i, j = gap.before + offset, gap.after + offset
        if _is_one(gap) or _are_alike(one[i], other[j]):
            yield i, j


def _only_ones(one: Sequence[Any], other: Sequence[Any], gap: Region) -> Iterator[tuple[int, int]]:
    """The containers that are the only ones of their shape among those that came, and those that went."""
    if gap.before == gap.before_end or gap.after == gap.after_end:
        return
    mine, theirs = (
        _alone((_shape(values[place]), place) for place in range(start, end))
        for values, start, end in ((one, *gap[:2]), (other, *gap[2:]))
    )
    for shape, place in mine.items():
        if place >= 0 and theirs.get(shape, -1) >= 0:
            yield place, theirs[shape]


def _alone(places: Iterable[tuple[Any, int]]) -> dict[Any, int]:
    """The place of what is there once; -1 for what is there more often."""
    found: dict[Any, int] = {}
    for what, place in places:
        if what is not None:
            found[what] = place if what not in found else -1
    return found


def _shape(value: Any) -> Any:
    """What a container has in common with its changed self; `None` for what is no container."""
    cls = stored_class(value)
    if cls is dict:
        return frozenset(value)
    if cls is Unknown:
        return value.type_name
    return cls if cls in (list, tuple, set, frozenset) else None


def _are_alike(one: Any, other: Any) -> bool:
    kind = _kind(one)
    if kind != _kind(other):
        return False
    if kind is dict:
        shared = len(one.keys() & other.keys())
        return 2 * shared >= max(len(one), len(other))
    return kind is not Unknown or one.type_name == other.type_name


def _kind(value: Any) -> type:
    cls = stored_class(value)
    return float if cls is int else cls


def _related(
    one: Sequence[Any], other: Sequence[Any], gap: Region, numbering: Numbering
) -> Iterator[tuple[int, int]]:
    """Each old item with the new one with which it shares most of what no other items have."""
    mine = _owners(one, range(gap.before, gap.before_end), numbering)
    theirs = _owners(other, range(gap.after, gap.after_end), numbering)
    votes: dict[int, Counter[int]] = {}
    for feature, place in mine.items():
        found = theirs.get(feature, -1)
        if place >= 0 and found >= 0:
            votes.setdefault(place, Counter())[found] += 1
    for place in sorted(votes):
        yield place, max(votes[place].items(), key=lambda vote: (vote[1], -vote[0]))[0]


def _owners(values: Sequence[Any], places: range, numbering: Numbering) -> dict[Any, int]:
    """The place of the only item that has a feature; -1 if several have it."""
    return _alone((feature, place) for place in places for feature in _features(values[place], numbering))


def _features(value: Any, numbering: Numbering) -> set[Any]:
    """What tells that a changed item is still the same: its parts, a text's lines or words."""
    cls = stored_class(value)
    if cls is Unknown:
        return _features(value.data, numbering)
    number = numbering.number
    if cls is dict:
        return {(cls, number(key), number(item)) for key, item in value.items()}
    if cls in (list, tuple, set, frozenset):
        return {(list, number(item)) for item in value}
    if cls is str:
        return {(str, part) for part in (value.split("\n") if "\n" in value else value.split())}
    return set()
