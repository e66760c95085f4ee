"""`difference`: what makes one value another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.data.codec import Unknown
from holdfast.data.marks import stored_class
from holdfast.views.diff.changes import (
    Change,
    Difference,
    ListEdited,
    MapEdited,
    ObjectEdited,
    Replaced,
    SetEdited,
)
from holdfast.views.diff.items import item_edits
from holdfast.views.diff.numbering import CONTAINERS, Numbering
from holdfast.views.diff.texts import is_long, text_change
from holdfast.views.plain import MAX_DEPTH


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
