"""Tests (`x is even`), and the functions that pick, change and group the items of a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.flows.language.list_functions import field_of, in_order, items_of
from holdfast.flows.language.operators import COMPARISONS, remainder
from holdfast.flows.language.plain import Budget, Missing, Misuse, equal, exact, kind, text, truth

Test = Callable[..., bool]


def _of_kind(*kinds: str) -> Test:
    return lambda budget, value: kind(value) in kinds


def _is(wanted: Any) -> Test:
    return lambda budget, value: exact(value) is wanted


def _divisible(budget: Budget, value: Any, by: Any) -> bool:
    return bool(remainder(budget, value, by) == 0)


TESTS: Mapping[str, Test] = {
    **COMPARISONS,
    **{word: COMPARISONS[sign] for word, sign in (("eq", "=="), ("equalto", "=="), ("ne", "!="))},
    **{word: COMPARISONS[sign] for word, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))},
    **{word: COMPARISONS[sign] for word, sign in (("lessthan", "<"), ("greaterthan", ">"))},
    "none": _is(None),
    "null": _is(None),
    "true": _is(True),
    "false": _is(False),
    "boolean": _of_kind("boolean"),
    "number": _of_kind("number"),
    "string": _of_kind("text"),
    "mapping": _of_kind("mapping"),
    "sequence": _of_kind("list"),
    "iterable": _of_kind("list", "mapping"),
    "even": lambda budget, value: _divisible(budget, value, 2),
    "odd": lambda budget, value: not _divisible(budget, value, 2),
    "divisibleby": _divisible,
}


def _picker(called: Any, arguments: tuple[Any, ...]) -> Callable[[Budget, Any], bool]:
    if called is None:
        return lambda budget, value: truth(value)
    test = TESTS.get(text(called))
    if test is None:
        raise Misuse(f"there is no test {called!r:.60}; there are {', '.join(sorted(TESTS))}")
    return lambda budget, value: test(budget, value, *arguments)


def _select(keep: bool, by_attribute: bool) -> Callable[..., list[Any]]:
    def run(budget: Budget, values: Any, *arguments: Any) -> list[Any]:
        if by_attribute and not arguments:
            raise Misuse("say which attribute the items are picked by, such as selectattr('status')")
        read, rest = (
            (field_of(budget, arguments[0]), arguments[1:])
            if by_attribute
            else (field_of(budget, None), arguments)
        )
        fits = _picker(rest[0] if rest else None, rest[1:])
        return [item for item in items_of(budget, values) if _holds(budget, read, fits, item) is keep]

    return run


def _holds(budget: Budget, read: Callable[[Any], Any], fits: Callable[..., bool], item: Any) -> bool:
    """Whether an item passes; an item without the attribute does not."""
    budget.charge(1)
    try:
        value = read(item)
    except Missing:
        return False
    try:
        return fits(budget, value)
    except TypeError:
        raise Misuse("the test was given too few or too many values") from None


def group(budget: Budget, values: Any, attribute: Any) -> list[Any]:
    """Pairs of a value of the attribute and the items that have it, in the order of these values."""
    read = field_of(budget, attribute)
    groups: list[Any] = []
    for item in in_order(budget, values, attribute=attribute):
        budget.charge(1)
        if groups and equal(budget, groups[-1][0], read(item)):
            groups[-1][1].append(item)
        else:
            groups.append([read(item), [item]])
    return groups


SELECTIONS: Mapping[str, Callable[..., Any]] = {
    "select": _select(True, False),
    "reject": _select(False, False),
    "selectattr": _select(True, True),
    "rejectattr": _select(False, True),
    "groupby": group,
}
