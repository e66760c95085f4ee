"""`difference`: what makes one value another."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import ormsgpack

from holdfast.errors import CodecError
from holdfast.state.codec import Codec, Unknown, stored_class
from holdfast.views.diff.changes import (
    Change,
    Difference,
    ItemChanged,
    ItemEdit,
    ItemsInserted,
    ItemsRemoved,
    ListEdited,
    MapEdited,
    ObjectEdited,
    Region,
    Replaced,
    SetEdited,
    align,
    gaps,
    is_long,
    rising,
    text_change,
)
from holdfast.views.plain import MAX_DEPTH

# Numbers for values: two values have the same number exactly if they are the same, types included.


CONTAINERS = frozenset((dict, list, tuple, set, frozenset, Unknown))
"""What is looked into; everything else is compared as a whole."""

_FLAT = frozenset((str, int, float, bool, type(None), bytes))
_TEXT = frozenset((str,))
_MOST_ALIKE = 64
_LARGE = 2**60
"""Larger numbers are known by their digits: any number of them can be made to have the same hash."""

_CODEC = Codec()


class Numbering:
    """Numbers values, each container once: linear in their sizes, and not bound by how deep they are nested.

    Containers are told apart by identity while this lives, so they have to stay as they are and alive.
    """

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}
        self._containers: dict[int, int] = {}
        self._odd: dict[type, list[tuple[Any, int]]] = {}

    def number(self, value: Any) -> int:
        """The number of a value. Equal dicts have the same in whatever order, NaN is the same as NaN."""
        if type(value) is str:
            return self._intern(value)
        if stored_class(value) not in CONTAINERS:
            return self._leaf(value)
        found = self._containers.get(id(value))
        return self._all(value) if found is None else found

    def numbers(self, values: Iterable[Any]) -> list[int]:
        """The number of each."""
        return [self.number(value) for value in values]

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
        """The number of a container whose own containers are numbered."""
        cls, number = stored_class(value), self.number
        if cls is dict:
            pairs = sorted((number(key), number(item)) for key, item in value.items())
            return self._intern((dict, *pairs))
        if cls is Unknown:
            return self._intern((Unknown, value.type_name, number(value.data)))
        items = [number(item) for item in value]
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
        """A value of another type: by its stored form if it has one, else by equality."""
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
            if other is value or _equal(other, value):
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
    """A container of nothing but plain scalars as bytes, which are the same for the same values; else `None`."""
    cls = stored_class(value)
    if cls is dict:
        if not _TEXT.issuperset(map(type, value)):
            return None
        items: Iterable[Any] = value.values()
    elif cls is list or cls is tuple:
        items = value
    else:
        return None
    types = set(map(type, items))
    if not _FLAT.issuperset(types) or (float in types and any(item != item for item in items)):
        return None
    try:
        if cls is dict:
            return b"d" + ormsgpack.packb(value, option=ormsgpack.OPT_SORT_KEYS)
        return cls.__name__[0].encode() + ormsgpack.packb(value if cls is list else list(value))
    except TypeError:
        return None


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        return False


# Differences of lists: which items came and went, and which are the same ones, changed in themselves.


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


def difference(one: Any, other: Any) -> Difference:
    """What makes `one` the `other`, as a tree; `apply_difference(difference(a, b), a)` is `b`.

    Types count: 1, True and 1.0 differ, as do a list and a tuple, 0.0 and -0.0; NaN is the same as NaN.
    Dicts in another order are the same. Below 60 levels what differs is replaced as a whole. Takes time
    and memory in proportion to both sizes.
    """
    numbering = Numbering()
    if one is other or numbering.number(one) == numbering.number(other):
        return Difference()
    return Difference(_Comparison(numbering).change(one, other, 0))


class _Comparison:
    """Two values being compared, down to a depth."""

    def __init__(self, numbering: Numbering) -> None:
        self.numbering = numbering

    def change(self, one: Any, other: Any, depth: int) -> Change:
        """What differs between values that differ."""
        cls = stored_class(one)
        if cls is not stored_class(other):
            return Replaced(one, other)
        if cls is str:
            return text_change(one, other) if is_long(one) or is_long(other) else Replaced(one, other)
        if cls not in CONTAINERS or depth >= MAX_DEPTH:
            return Replaced(one, other)
        if cls is dict:
            return self.of_maps(one, other, depth)
        if cls is Unknown:
            return self.of_objects(one, other, depth)
        if cls in (set, frozenset):
            return self.of_sets(one, other)
        edits = item_edits(one, other, self.numbering, lambda a, b: self.change(a, b, depth + 1))
        return ListEdited(tuple(edits))

    def of_maps(self, one: dict[Any, Any], other: dict[Any, Any], depth: int) -> Change:
        number = self.numbering.number
        mine, theirs = self.by_key(one), self.by_key(other)
        if len(mine) != len(one) or len(theirs) != len(other):
            return Replaced(one, other)
        return MapEdited(
            {key: other[key] for name, key in theirs.items() if name not in mine},
            {key: one[key] for name, key in mine.items() if name not in theirs},
            {
                key: self.change(one[key], other[theirs[name]], depth + 1)
                for name, key in mine.items()
                if name in theirs and number(one[key]) != number(other[theirs[name]])
            },
        )

    def by_key(self, value: Mapping[Any, Any]) -> dict[int, Any]:
        """The keys by their numbers: dicts take 1 and True for the same key."""
        return {self.numbering.number(key): key for key in value}

    def of_objects(self, one: Unknown, other: Unknown, depth: int) -> Change:
        if one.type_name != other.type_name:
            return Replaced(one, other)
        return ObjectEdited(one.type_name, self.change(one.data, other.data, depth + 1))

    def of_sets(self, one: set[Any], other: set[Any]) -> Change:
        mine, theirs = self.by_item(one), self.by_item(other)
        if len(mine) != len(one) or len(theirs) != len(other):
            return Replaced(one, other)
        return SetEdited(
            tuple(sorted((theirs[name] for name in theirs.keys() - mine.keys()), key=repr)),
            tuple(sorted((mine[name] for name in mine.keys() - theirs.keys()), key=repr)),
        )

    def by_item(self, value: set[Any]) -> dict[int, Any]:
        return {self.numbering.number(item): item for item in value}
