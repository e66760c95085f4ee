"""Values at random, what differs a little from them, and telling whether two are the same."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from typing import Any

from hypothesis import strategies as st

from holdfast.state.codec import Unknown
from holdfast.views.differences import Numbering

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf")]),
    st.text(max_size=5),
    st.text("ab\n ", max_size=200),
    st.binary(max_size=4),
    st.decimals(),
    st.dates(),
)
KEYS = st.one_of(
    st.text(max_size=3), st.integers(-2, 2), st.booleans(), st.none(), st.sampled_from([1.0, 0.0])
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=8),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=6),
        st.dictionaries(KEYS, inner, max_size=4),
        st.sets(st.integers(-5, 5) | st.booleans() | st.text(max_size=2), max_size=5),
        st.frozensets(st.integers(-5, 5), max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(lambda data: Unknown("Plan", data)),
    )


VALUES: st.SearchStrategy[Any] = st.recursive(SCALARS, _containers, max_leaves=25)


def edited(value: Any, chance: random.Random) -> Any:
    """A value that differs a little from another, here and there."""
    if chance.random() < 0.08:
        return chance.choice([None, True, 1, 1.0, "x", [], {}, (), decimal.Decimal(2), dt.date(2026, 1, 1)])
    if isinstance(value, dict):
        found = {key: edited(item, chance) for key, item in value.items() if chance.random() > 0.15}
        if chance.random() < 0.3:
            found[chance.choice(["a", "b", 1, True])] = chance.randrange(9)
        return found
    if type(value) in (list, tuple):
        items = [edited(item, chance) for item in value if chance.random() > 0.2]
        if chance.random() < 0.4:
            items.insert(chance.randrange(len(items) + 1), chance.choice([0, "new", [1], {"a": 1}]))
        if chance.random() < 0.2:
            chance.shuffle(items)
        return items if type(value) is list else tuple(items)
    if isinstance(value, str) and value:
        place = chance.randrange(len(value))
        return value[:place] + chance.choice(["", "\n", "zz"]) + value[place + chance.randrange(2) :]
    return value


PAIRS: st.SearchStrategy[tuple[Any, Any]] = st.one_of(
    st.tuples(VALUES, VALUES),
    st.tuples(VALUES, st.randoms(use_true_random=False)).map(lambda made: (made[0], edited(*made))),
)


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same, types included, however deep they are."""
    numbering = Numbering()
    return numbering.number(one) == numbering.number(other)


def size(value: Any) -> int:
    """How many values there are in a value, itself included."""
    total, waiting = 0, [value]
    while waiting:
        total += 1
        part = waiting.pop()
        if isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, (list, tuple, set, frozenset)):
            waiting += part
        elif isinstance(part, Unknown):
            waiting.append(part.data)
    return total
