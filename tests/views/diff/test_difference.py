"""Differences of values, and their cost, which is proportional to the values."""

from __future__ import annotations

import dataclasses
import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import StateInvalid
from holdfast.state import Unknown
from holdfast.state.ops import freeze
from holdfast.views import apply_difference, difference
from holdfast.views.changes import (
    Change,
    ItemChanged,
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
from holdfast.views.differences import gaps
from tests.views.diff.values import same


def change(one: Any, other: Any) -> Change:
    found = difference(one, other)
    assert same(apply_difference(found, one), other)
    assert found.change is not None
    return found.change


def edits(one: list[Any], other: list[Any]) -> tuple[Any, ...]:
    found = change(one, other)
    assert isinstance(found, ListEdited)
    return found.edits


def test_a_mapping_tells_what_came_what_went_and_what_changed() -> None:
    """S1.17."""
    found = change({"a": 1, "b": 2, "c": {"d": 1}}, {"b": 2, "c": {"d": 3}, "e": 5})

    assert found == MapEdited({"e": 5}, {"a": 1}, {"c": MapEdited({}, {}, {"d": Replaced(1, 3)})})
    assert found.count == 3


def test_dicts_in_another_order_are_the_same() -> None:
    assert not difference({"a": 1, "b": [{"c": 1, "d": []}]}, {"b": [{"d": [], "c": 1}], "a": 1})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0, False),
        (0.0, -0.0),
        ([1], (1,)),
        ({1}, frozenset({1})),
        (b"a", bytearray(b"a")),
        ("1", 1),
        (None, "None"),
        ({1: "a"}, {True: "a"}),
        ({1}, {True}),
        ([[1]], [[True]]),
        ({"a": 2**70}, {"a": 2.0**70}),
        (OrderedDict(a=1), {"a": 1}),
    ],
)
def test_types_count(one: Any, other: Any) -> None:
    change(one, other)


def test_a_change_of_type_is_told() -> None:
    assert change(1, 1.0).as_json() == {
        "kind": "value",
        "from": 1,
        "to": 1.0,
        "delta": 0.0,
        "types": ["int", "float"],
    }
    assert change([1], (1,)).as_json()["types"] == ["list", "tuple"]
    assert "delta" not in change(1, True).as_json()


def test_nan_is_the_same_as_nan() -> None:
    nan, other = float("nan"), float("inf") - float("inf")

    assert not difference([nan, {"a": nan}], [other, {"a": other}])
    assert not difference({1: [nan]}, {1: [other]})


@pytest.mark.parametrize(
    ("one", "other", "delta"),
    [(1, 4, 3), (2.5, 2.0, -0.5), (1, 1.5, 0.5), (1e308, -1e308, None), (10**400, 1.5, None), (1, "2", None)],
)
def test_numbers_tell_by_how_much_they_changed(one: Any, other: Any, delta: Any) -> None:
    found = change(one, other)

    assert isinstance(found, Replaced) and found.delta == delta


def test_items_that_came_and_went_are_told_with_their_places() -> None:
    assert edits(["a", "b", "c", "d"], ["b", "x", "y", "c", "d"]) == (
        ItemsRemoved(0, 0, ("a",)),
        ItemsInserted(2, 1, ("x", "y")),
    )


def test_an_item_that_changed_inside_is_a_change_of_that_item() -> None:
    before = [{"id": n, "text": f"message {n}", "read": False} for n in range(5)]
    after = [dict(item) for item in before]
    after[3]["read"] = True
    after.insert(1, {"id": 9, "text": "new", "read": False})
    del after[5]

    assert edits(before, after) == (
        ItemsInserted(1, 1, ({"id": 9, "text": "new", "read": False},)),
        ItemChanged(3, 4, MapEdited({}, {}, {"read": Replaced(False, True)})),
        ItemsRemoved(4, 5, (before[4],)),
    )


def test_a_changed_item_is_found_among_others_that_came_and_went() -> None:
    before = [{"id": n, "text": f"message {n}"} for n in range(40)]
    after = [{**item, "seen": True} for item in before if item["id"] % 3]

    found = edits(before, after)

    assert all(isinstance(edit, ItemsRemoved | ItemChanged) for edit in found)
    changed = [edit for edit in found if isinstance(edit, ItemChanged)]
    assert [edit.before for edit in changed] == [n for n in range(40) if n % 3]
    assert {edit.change.count for edit in changed} == {1}


def test_a_long_text_in_a_list_is_found_again_by_its_words() -> None:
    before = ["the quick brown fox jumps over the lazy dog " * 3 + "once", "another text"]
    after = ["something new", before[0] + " more", "another text"]

    assert [type(edit) for edit in edits(before, after)] == [ItemsInserted, ItemChanged]


def test_items_of_a_kind_in_the_same_place_are_changed_ones() -> None:
    assert [type(edit) for edit in edits([1, 2, 3, 4], [1, 7, 8, 4])] == [ItemChanged, ItemChanged]
    assert [type(edit) for edit in edits([1, 2, "a", 4], [1, "b", 8, 4])] == [ItemsRemoved, ItemsInserted]
    assert [type(edit) for edit in edits([1, 2, 4], [1, "b", 4])] == [ItemChanged]


def test_repeated_items_are_aligned_as_well_as_can_be() -> None:
    found = gaps([0, 1, 1, 0, 0, 0], [1, 0, 1, 1, 1, 1])

    assert sum(gap.before_end - gap.before for gap in found) == 3


def test_the_only_item_of_a_shape_is_the_same_item_whatever_became_of_it() -> None:
    assert edits([1, {"a": 1}], [1, 2, {"a": 2}, 3]) == (
        ItemsInserted(1, 1, (2,)),
        ItemChanged(1, 2, MapEdited({}, {}, {"a": Replaced(1, 2)})),
        ItemsInserted(2, 3, (3,)),
    )
    assert [type(edit) for edit in edits([{"a": 1}, {"a": 2}], [{"a": 3}])] == [ItemsRemoved, ItemsInserted]


def test_long_texts_are_told_by_lines_with_some_around() -> None:
    lines = [f"line {n}" for n in range(40)]
    changed = [*lines[:10], "new", *lines[11:30], *lines[31:]]

    found = change("\n".join(lines), "\n".join(changed))

    assert isinstance(found, TextEdited)
    assert [hunk.heading for hunk in found.hunks] == ["@@ -8,7 +8,7 @@", "@@ -28,7 +28,6 @@"]
    assert found.hunks[0].lines == (
        *((" ", f"line {n}") for n in (7, 8, 9)),
        ("-", "line 10"),
        ("+", "new"),
        *((" ", f"line {n}") for n in (11, 12, 13)),
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("", "a\nb"),
        ("a\nb", ""),
        ("a\n", "a"),
        ("a", "a\n"),
        ("\n", "\n\n"),
        ("x\nx", "x\nx\nx"),
        ("p\nq\n", "p\nr\nq\n"),
        ("a\r\nb", "a\nb"),
        ("a\x0bb\n\u2028c", "a\x0bb\n\u2028d"),
        ("\ud800\na" * 9, "\ud800\nb" * 9),
    ],
)
def test_texts_are_the_same_to_the_last_character_after_a_difference(one: str, other: str) -> None:
    assert isinstance(change(one, other), TextEdited)


def test_one_long_line_tells_the_span_that_was_replaced() -> None:
    one = "word " * 100

    found = change(one, one[:200] + "NEW" + one[205:])

    assert found == SpanReplaced(200, "word ", "NEW", one[170:200], one[205:235])


def test_sets_tell_items_and_unknown_types_what_changed_in_them() -> None:
    assert change({1, 2}, {2, 3}) == SetEdited((3,), (1,))
    assert change(frozenset("ab"), frozenset("a")) == SetEdited((), ("b",))
    assert change(Unknown("Plan", {"n": 1}), Unknown("Plan", {"n": 2})) == ObjectEdited(
        "Plan", MapEdited({}, {}, {"n": Replaced(1, 2)})
    )
    assert isinstance(change(Unknown("Plan", {}), Unknown("Draft", {})), Replaced)


def test_keys_and_items_that_cannot_be_told_apart_are_replaced_with_what_holds_them() -> None:
    nan, other = float("nan"), float("inf") - float("inf")

    assert not difference({nan: 1, other: 2}, {other: 2, nan: 1})
    assert isinstance(change({nan: 1, other: 2}, {nan: 1, other: 3}), Replaced)
    assert isinstance(change({nan, other}, {nan, 1}), Replaced)
    assert change({nan: 1, "a": 1}, {other: 1, "a": 2}).count == 1


def test_read_only_values_are_compared_as_what_they_are_copies_of() -> None:
    value = {"a": [1, {"b": {1, 2}}]}

    assert not difference(freeze(value)[0], value)
    assert difference(freeze(value)[0], {"a": [1, {"b": {1}}]}).count == 1


@dataclasses.dataclass
class Point:
    x: int


class Vague:
    """Equal to nothing, and says so with an error."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("who knows")


def test_other_values_are_compared_as_a_whole() -> None:
    assert not difference([Point(1)], [Point(1)])
    assert change([Point(1)], [Point(2)]).count == 1
    vague = Vague()
    assert not difference([vague, 1], [vague, 1])
    assert difference([vague, 1], [Vague(), 1]).count == 1


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = [1]
    loop.append({"again": loop})

    with pytest.raises(ValueError, match="contains itself"):
        difference(loop, [1])


def test_a_value_in_many_places_is_fine() -> None:
    shared = [{"a": 1}]

    assert (
        change({"a": shared, "b": [shared, shared]}, {"a": shared, "b": [shared, shared, shared]}).count == 1
    )


@pytest.mark.parametrize(
    ("one", "other", "wrong"),
    [
        (1, 2, 3),
        ({"a": 1}, {"a": 2}, {"a": True}),
        ({"a": 1}, {}, {"b": 1}),
        ({}, {"a": 1}, {"a": 1}),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [2]}}, {"a": {"b": [3, 2]}}),
        ([1, {"a": 1}], [1, {"a": 2}], [1]),
        ({1, 2}, {2}, {2}),
        ("a\nb", "a\nc", "a\nd"),
        ("a\nb", "a\nc", 5),
        ("x" * 100, "x" * 90, "x" * 9),
        ([1], [2], {"a": 1}),
        ({"a": 1}, {"a": 2}, [1]),
        ({1}, {2}, [1]),
        (Unknown("A", [1]), Unknown("A", [2]), Unknown("B", [1])),
    ],
)
def test_a_difference_is_refused_by_a_value_that_it_is_not_of(one: Any, other: Any, wrong: Any) -> None:
    with pytest.raises(StateInvalid, match=r"does not fit: the value.* is not what it was"):
        apply_difference(difference(one, other), wrong)


def nested(levels: int, value: Any, wrap: Callable[[Any], Any]) -> Any:
    for _ in range(levels):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "wrap", [lambda value: [value], lambda value: {"a": value, "b": [1]}, lambda value: (value,)]
)
def test_five_thousand_levels_are_compared_and_below_sixty_replaced(wrap: Callable[[Any], Any]) -> None:
    one, other = nested(5000, 1, wrap), nested(5000, 2, wrap)

    found = difference(one, other)

    assert found.count == 1
    assert same(apply_difference(found, one), other)
    assert not difference(one, nested(5000, 1, wrap))


MANY = 20_000
NOISE = random.Random(5)
ADVERSARIES: dict[str, tuple[Any, Any]] = {
    "all equal": ([7] * MANY, [7] * (MANY + 3)),
    "all equal but the ends": ([0, *[7] * MANY, 1], [2, *[7] * (MANY + 3), 3]),
    "all different": (list(range(MANY)), list(range(MANY, 2 * MANY))),
    "reversed": (list(range(MANY)), list(range(MANY))[::-1]),
    "shuffled": (list(range(MANY)), NOISE.sample(range(MANY), MANY)),
    "two kinds": ([NOISE.randrange(2) for _ in range(MANY)], [NOISE.randrange(2) for _ in range(MANY)]),
    "numbers of one hash": (
        [n * (2**61 - 1) for n in range(MANY)],
        [n * (2**61 - 1) + 5 for n in range(MANY)],
    ),
    "a huge line": ("x" * 10_000_000, "x" * 5_000_000 + "y" + "x" * 5_000_000),
    "another huge line": ("x" * 10_000_000, "y" * 10_000_000),
    "nothing but line ends": ("\n" * 3_000_000, "\n" * 3_000_001),
    "many equal lines": ("a\nb\n" * MANY, "b\na\n" * MANY),
    "very many lines": ("a\n" * 1_100_000, "b\n" * 1_100_000),
    "many keys": ({f"k{n}": n for n in range(MANY)}, {f"k{n}": n + n % 2 for n in range(5, MANY)}),
    "every third item changed": (list(range(5 * MANY)), [n if n % 3 else -n for n in range(5 * MANY)]),
    "lists of one item": ([[n] for n in range(MANY)], [[n + 1] for n in range(MANY)]),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ADVERSARIES)
def test_no_value_is_made_that_takes_quadratic_time(name: str) -> None:
    one, other = ADVERSARIES[name]

    found = difference(one, other)

    assert found.count > 0 and same(apply_difference(found, one), other)
