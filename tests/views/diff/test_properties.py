"""Differences and patches of values at random: putting them on the one gives the other."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings

from holdfast.views.differences import apply_difference, difference
from holdfast.views.patch import apply_patch, json_patch
from holdfast.views.plain import plain
from tests.views.diff.values import PAIRS, VALUES, same, size


def exact(value: Any) -> Any:
    """A value as text that shows every type and the sign of zero; written apart from what is tested."""
    if isinstance(value, dict):
        return ("dict", sorted((repr(exact(key)), repr(exact(item))) for key, item in value.items()))
    if isinstance(value, (set, frozenset)):
        return (type(value).__name__, sorted(repr(exact(item)) for item in value))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [exact(item) for item in value])
    if type(value).__name__ == "Unknown":
        return ("Unknown", value.type_name, exact(value.data))
    return (type(value).__name__, repr(value).replace("-nan", "nan").replace("NaN", "nan"))


@settings(max_examples=250, deadline=None)
@given(PAIRS)
def test_the_difference_of_two_values_put_on_the_one_gives_the_other(pair: tuple[Any, Any]) -> None:
    """S1.17: the difference of two states says all that differs, exactly."""
    one, other = pair
    before = repr(one)

    found = difference(one, other)

    made = apply_difference(found, one)
    assert same(made, other) and exact(made) == exact(other)
    assert bool(found) is not same(one, other)
    assert (found.count > 0) is bool(found)
    assert repr(one) == before
    json.dumps(found.as_json())


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_a_value_does_not_differ_from_its_copy(value: Any) -> None:
    assert not difference(value, value)
    assert not difference(value, copy.deepcopy(value))


@settings(max_examples=250, deadline=None)
@given(PAIRS)
def test_the_patch_of_two_values_put_on_the_json_of_the_one_gives_that_of_the_other(
    pair: tuple[Any, Any],
) -> None:
    one, other = pair
    before, after = plain(one), plain(other)

    patch = json_patch(one, other)

    made = apply_patch(before, json.loads(json.dumps(patch)))
    assert same(made, after)
    assert same(before, plain(one)), "the document is left as it is"
    removed = sum(operation["op"] == "remove" for operation in patch)
    assert len(patch) - removed <= size(after)
    assert sum(size(operation["value"]) for operation in patch if "value" in operation) <= size(after)
    assert removed <= size(before)


@settings(max_examples=150, deadline=None)
@given(PAIRS)
def test_values_have_the_same_number_exactly_if_nothing_tells_them_apart(pair: tuple[Any, Any]) -> None:
    one, other = pair

    assert same(one, other) is (exact(one) == exact(other))
