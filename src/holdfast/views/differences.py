"""`difference`: what turns one value into another, and `apply_difference`.

Sequences and the lines of texts are aligned near-linearly in their lengths, whatever they hold.
"""

from __future__ import annotations

import contextlib
import difflib
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import ormsgpack

from holdfast.errors import CodecError, StateInvalid
from holdfast.state.codec import Codec, Unknown, stored_class
from holdfast.views.changes import (
    Change,
    Difference,
    Hunk,
    ItemChanged,
    ItemEdit,
    ItemsInserted,
    ItemsRemoved,
    ListEdited,
    MapEdited,
    ObjectEdited,
    Replaced,
    SetEdited,
    SpanReplaced,
    TextEdited,
)
from holdfast.views.plain import MAX_DEPTH

CONTAINERS = frozenset((dict, list, tuple, set, frozenset, Unknown))
"""The types that are looked into; everything else is compared as a whole."""

_FLAT = frozenset((str, int, float, bool, type(None), bytes))
_TEXT = frozenset((str,))
_MOST_ALIKE = 64
_LARGE = 2**60
"""Larger numbers are known by their digits: any number of them can be made to have the same hash."""

_CODEC = Codec()


class Numbering:
    """Numbers for values: two values have the same number exactly if they are the same, types included.

    Linear in the sizes of the values, and not bound by how deep they are nested. Containers are known by their
    identity, so they have to stay as they are and alive.
    """

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}
        self._containers: dict[int, int] = {}
        self._odd: dict[type, list[tuple[Any, int]]] = {}

    def number(self, value: Any) -> int:
        """Return the number of a value. Equal dicts have the same in whatever order, NaN is the same as NaN."""
        if type(value) is str:
            return self._intern(value)
        if stored_class(value) not in CONTAINERS:
            return self._leaf(value)
        found = self._containers.get(id(value))
        return self._all(value) if found is None else found

    def numbers(self, values: Iterable[Any]) -> list[int]:
        """Return the number of each value."""
        return [self.number(value) for value in values]

    def keyed(self, values: Iterable[Any]) -> dict[int, Any]:
        """Map the number of each value to it: a dict or a set takes 1 and True for the same key."""
        return {self.number(value): value for value in values}

    def _all(self, root: Any) -> int:
        """Number the containers in `root`, inner ones first."""
        containers, under_way = self._containers, set[int]()
        waiting: list[tuple[Any, bool]] = [(root, False)]
        while waiting:
            value, is_ready = waiting.pop()
            ident = id(value)
            if is_ready:
                under_way.discard(ident)
                containers[ident] = self._combined(value)
            elif ident not in containers:
                flat = _flat_bytes(value)
                if flat is not None:
                    containers[ident] = self._intern(flat)
                    continue
                if ident in under_way:
                    raise ValueError("the value contains itself, so it cannot be compared")
                under_way.add(ident)
                waiting.append((value, True))
                waiting.extend(
                    (part, False)
                    for part in _parts(value)
                    if stored_class(part) in CONTAINERS and id(part) not in containers
                )
        return containers[id(root)]

    def _combined(self, value: Any) -> int:
        """Return the number of a container whose own containers are numbered."""
        cls, number = stored_class(value), self.number
        if cls is dict:
            pairs = sorted((number(key), number(item)) for key, item in value.items())
            return self._intern((dict, *pairs))
        if cls is Unknown:
            return self._intern((Unknown, value.type_name, number(value.data)))
        items = self.numbers(value)
        return self._intern((cls, *(items if cls in (list, tuple) else sorted(items))))

    def _leaf(self, value: Any) -> int:
        cls = type(value)
        if value is None:
            return self._intern(value)
        if cls is float:
            return self._intern((float, struct.pack("d", value) if value == value else "nan"))
        if cls is int and not -_LARGE < value < _LARGE:
            return self._intern((int, hex(value)))
        if cls in _FLAT:
            return self._intern((cls, value))
        return self._atom(value)

    def _atom(self, value: Any) -> int:
        """Number a value of another type: by its stored form if it has one, else by equality."""
        cls = type(value)
        try:
            return self._intern((cls, "stored", _CODEC.encode(value)))
        except (CodecError, RecursionError):
            pass
        try:
            return self._intern((cls, "equal", value))
        except (TypeError, RecursionError):
            pass
        alike = self._odd.setdefault(cls, [])
        for other, number in alike:
            with contextlib.suppress(Exception):
                if other is value or bool(other == value):
                    return number
        number = self._intern((cls, "odd", len(self._known)))
        if len(alike) < _MOST_ALIKE:
            alike.append((value, number))
        return number

    def _intern(self, key: Any) -> int:
        return self._known.setdefault(key, len(self._known))


def _parts(value: Any) -> list[Any]:
    cls = stored_class(value)
    if cls is dict:
        return [*value, *value.values()]
    return [value.data] if cls is Unknown else list(value)


def _flat_bytes(value: Any) -> bytes | None:
    """Return a container of nothing but plain scalars as bytes, the same for the same values; else `None`."""
    cls = stored_class(value)
    if cls not in (dict, list, tuple) or (cls is dict and not _TEXT.issuperset(map(type, value))):
        return None
    items = value.values() if cls is dict else value
    types = set(map(type, items))
    if not _FLAT.issuperset(types) or (float in types and any(item != item for item in items)):
        return None
    try:
        if cls is dict:
            return b"d" + ormsgpack.packb(value, option=ormsgpack.OPT_SORT_KEYS)
        return cls.__name__[0].encode() + ormsgpack.packb(value if cls is list else list(value))
    except TypeError:
        return None


# Alignment of two sequences.


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


# Differences.


def difference(one: Any, other: Any) -> Difference:
    """Return what turns `one` into `other`, as a tree; `apply_difference(difference(a, b), a)` is `b`.

    Types count: 1, True and 1.0 differ, as do a list and a tuple, 0.0 and -0.0; NaN is the same as NaN.
    Dicts in another order are the same. Below 60 levels what differs is replaced as a whole. Takes time
    and memory in proportion to both sizes.
    """
    comparison = _Comparison()
    if one is other or comparison.number(one) == comparison.number(other):
        return Difference()
    return Difference(comparison.change(one, other, 0))


class _Comparison(Numbering):
    """Two values being compared, down to a depth."""

    def change(self, one: Any, other: Any, depth: int) -> Change:
        """Return what differs between values that differ."""
        cls = stored_class(one)
        if cls is not stored_class(other):
            return Replaced(one, other)
        if cls is str and any(len(text) > LONG or "\n" in text for text in (one, other)):
            return text_change(one, other)
        if cls not in CONTAINERS or depth >= MAX_DEPTH:
            return Replaced(one, other)
        if cls is Unknown:
            if one.type_name != other.type_name:
                return Replaced(one, other)
            return ObjectEdited(one.type_name, self.change(one.data, other.data, depth + 1))
        if cls in (list, tuple):
            return ListEdited(tuple(self._edits(one, other, depth)))
        mine, theirs = self.keyed(one), self.keyed(other)
        if len(mine) != len(one) or len(theirs) != len(other):
            return Replaced(one, other)
        gone = [key for name, key in mine.items() if name not in theirs]
        came = [key for name, key in theirs.items() if name not in mine]
        if cls is not dict:
            return SetEdited(tuple(sorted(came, key=repr)), tuple(sorted(gone, key=repr)))
        changed = {
            key: self.change(one[key], other[theirs[name]], depth + 1)
            for name, key in mine.items()
            if name in theirs and self.number(one[key]) != self.number(other[theirs[name]])
        }
        return MapEdited({key: other[key] for key in came}, {key: one[key] for key in gone}, changed)

    def _edits(self, one: Sequence[Any], other: Sequence[Any], depth: int) -> Iterator[ItemEdit]:
        """Yield the edits that turn one list into the other, in order."""
        for gap in gaps(self.numbers(one), self.numbers(other)):
            i, j = gap.before, gap.after
            for before, after in [*self._changed(one, other, gap), (gap.before_end, gap.after_end)]:
                if i < before:
                    yield ItemsRemoved(i, j, tuple(one[i:before]))
                if j < after:
                    yield ItemsInserted(before, j, tuple(other[j:after]))
                if before < gap.before_end:
                    yield ItemChanged(before, after, self.change(one[before], other[after], depth + 1))
                i, j = before + 1, after + 1

    def _changed(self, one: Sequence[Any], other: Sequence[Any], gap: Region) -> Iterator[tuple[int, int]]:
        """Yield the indexes of items that count as the same item, changed.

        These are items that share what no others have, and between those, where as many items went as came, items of a
        kind at the same place.
        """
        i, j = gap.before, gap.after
        is_one = gap.before_end - i == gap.after_end - j == 1
        related = [] if is_one else rising(self._related(one, other, gap))
        for before, after in [*related, (gap.before_end, gap.after_end)]:
            length = before - i
            for offset in range(length if length == after - j else 0):
                if length == 1 or _are_alike(one[i + offset], other[j + offset]):
                    yield i + offset, j + offset
            if before < gap.before_end:
                yield before, after
            i, j = before + 1, after + 1

    def _related(self, one: Sequence[Any], other: Sequence[Any], gap: Region) -> Iterator[tuple[int, int]]:
        """Yield each old item with the new one with which it shares most of what no other items have."""
        mine = self._owners(one, range(gap.before, gap.before_end))
        theirs = self._owners(other, range(gap.after, gap.after_end))
        votes: dict[int, Counter[int]] = {}
        for feature, place in mine.items():
            found = theirs.get(feature, -1)
            if place >= 0 and found >= 0:
                votes.setdefault(place, Counter())[found] += 1
        for place in sorted(votes):
            yield place, max(votes[place].items(), key=lambda vote: (vote[1], -vote[0]))[0]

    def _owners(self, values: Sequence[Any], places: range) -> dict[Any, int]:
        """Map each feature to the index of the only item that has it; -1 if several do."""
        found: dict[Any, int] = {}
        for place in places:
            for feature in self._features(values[place]):
                found[feature] = -1 if feature in found else place
        return found

    def _features(self, value: Any) -> set[Any]:
        """Return what a changed item has in common with its old self: its shape, its parts, a text's lines or words."""
        cls = stored_class(value)
        if cls is Unknown:
            return {(Unknown, value.type_name), *self._features(value.data)}
        if cls is dict:
            pairs = {(dict, self.number(key), self.number(item)) for key, item in value.items()}
            return {frozenset(value), *pairs}
        if cls in CONTAINERS:
            return {cls, *((list, self.number(item)) for item in value)}
        if cls is str:
            return {(str, part) for part in (value.split("\n") if "\n" in value else value.split())}
        return set()


def _are_alike(one: Any, other: Any) -> bool:
    kind, other_kind = (float if stored_class(each) is int else stored_class(each) for each in (one, other))
    if kind != other_kind:
        return False
    if kind is dict:
        shared = len(one.keys() & other.keys())
        return 2 * shared >= max(len(one), len(other))
    return kind is not Unknown or one.type_name == other.type_name


def apply_difference(difference: Difference, value: Any) -> Any:
    """Return `value` with the difference applied; raise `StateInvalid` if it was made of another value.

    The value itself stays as it is.
    """
    return value if difference.change is None else _Application().to(difference.change, value, "the value")


class _Application(Numbering):
    """A difference being applied to a value; `where` names the part that is reached."""

    def to(self, change: Change, value: Any, where: str) -> Any:
        match change:
            case Replaced(before, after):
                self._expect(self.number(before) == self.number(value), where)
                return after
            case SpanReplaced(at, removed, added):
                self._expect(type(value) is str and value.startswith(removed, at), where)
                return f"{value[:at]}{added}{value[at + len(removed) :]}"
            case ObjectEdited(type_name, inner):
                self._expect(isinstance(value, Unknown) and value.type_name == type_name, where)
                return Unknown(type_name, self.to(inner, value.data, where))
            case TextEdited():
                self._expect(type(value) is str, where)
                return self._to_text(change, value, where)
            case MapEdited():
                self._expect(stored_class(value) is dict, where)
                return self._to_map(change, value, where)
            case ListEdited():
                self._expect(stored_class(value) in (list, tuple), where)
                return stored_class(value)(self._items(change, value, where))
            case SetEdited(added, removed):
                self._expect(stored_class(value) in (set, frozenset), where)
                gone = self.keyed(removed)
                kept = [item for item in value if self.number(item) not in gone]
                self._expect(len(kept) == len(value) - len(gone), where)
                return stored_class(value)({*kept, *added})

    def _expect(self, holds: bool, where: str) -> None:
        if not holds:
            raise StateInvalid(
                f"the difference does not fit: {where} is not what it was; apply it to the value that it was made of"
            )

    def _to_text(self, change: TextEdited, value: str, where: str) -> str:
        lines, result, at = value.split("\n"), list[str](), 0
        for hunk in change.hunks:
            self._expect(hunk.before >= at, where)
            result += lines[at : hunk.before]
            old = [text for sign, text in hunk.lines if sign != "+"]
            at = hunk.before + len(old)
            self._expect(lines[hunk.before : at] == old, where)
            result += [text for sign, text in hunk.lines if sign != "-"]
        return "\n".join([*result, *lines[at:]])

    def _to_map(self, change: MapEdited, value: Mapping[Any, Any], where: str) -> dict[Any, Any]:
        keys = self.keyed(value)
        gone, edits = self.keyed(change.removed), self.keyed(change.changed)
        self._expect(gone.keys() | edits.keys() <= keys.keys(), where)
        result = {
            key: self.to(change.changed[edits[name]], value[key], f"{where}[{key!r}]")
            if name in edits
            else value[key]
            for name, key in keys.items()
            if name not in gone
        }
        self._expect(not result.keys() & change.added.keys(), where)
        return {**result, **change.added}

    def _items(self, change: ListEdited, value: Sequence[Any], where: str) -> list[Any]:
        result: list[Any] = []
        at = 0
        for edit in change.edits:
            self._expect(at <= edit.before <= len(value), where)
            result += value[at : edit.before]
            at = edit.before
            match edit:
                case ItemsRemoved(items=items):
                    at += len(items)
                    self._expect(self.numbers(value[edit.before : at]) == self.numbers(items), where)
                case ItemsInserted(items=items):
                    result += items
                case ItemChanged(before, _, inner):
                    self._expect(before < len(value), where)
                    result.append(self.to(inner, value[before], f"{where}[{before}]"))
                    at += 1
        return [*result, *value[at:]]
