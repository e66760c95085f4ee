"""The operators of expressions and templates over plain data, each bounded before it does anything."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.flows.language.plain import (
    NUMBERS,
    SCALARS,
    Budget,
    Misuse,
    base_of,
    describe,
    elements,
    equal,
    exact,
    fits,
    kind,
    size,
    text,
    whole,
)
from holdfast.flows.language.writing import as_text

Binary = Callable[[Budget, Any, Any], Any]


def number(value: Any) -> int | float:
    """The value, which must be a number of ordinary size."""
    if kind(value) not in NUMBERS:
        raise Misuse(f"a number is needed here, not {describe(value)}")
    value = exact(value)
    if not fits(value):
        raise Misuse("the number is too large to be worked with")
    return value  # type: ignore[no-any-return]


def calculate(work: Callable[..., Any], *numbers: Any) -> Any:
    """The result of some arithmetic, if it can be had and is of ordinary size."""
    try:
        result = work(*map(number, numbers))
    except ZeroDivisionError:
        raise Misuse("this divides by zero") from None
    except (OverflowError, ValueError):
        raise Misuse("the result is not a number that can be worked with") from None
    return number(result)


def add(budget: Budget, left: Any, right: Any) -> Any:
    """The sum of two numbers; two texts or two lists one after the other."""
    kinds = (kind(left), kind(right))
    if kinds == ("text", "text"):
        budget.new_text(size(left) + size(right))
        return text(left) + text(right)
    if kinds == ("list", "list"):
        budget.new_list(size(left) + size(right))
        return [*elements(left), *elements(right)]
    if not NUMBERS.issuperset(kinds):
        hint = "; str(…) makes a text of any value" if "text" in kinds else ""
        raise Misuse(f"cannot add {describe(left)} and {describe(right)}{hint}")
    return calculate(operator.add, left, right)


def multiply(budget: Budget, left: Any, right: Any) -> Any:
    """The product of two numbers, or a text or list several times."""
    if kind(left) in NUMBERS and kind(right) in ("text", "list"):
        left, right = right, left
    if kind(left) not in ("text", "list"):
        return calculate(operator.mul, left, right)
    # Nothing is nothing however often, and too many times are more than Python itself can count.
    is_nothing = size(left) == 0 and type(exact(right)) is int
    times = 0 if is_nothing else max(0, whole(right))
    if kind(left) == "text":
        budget.new_text(size(left) * times)
        return text(left) * times
    budget.new_list(size(left) * times)
    return list(elements(left)) * times


def _numeric(work: Callable[[Any, Any], Any]) -> Binary:
    def run(budget: Budget, left: Any, right: Any) -> Any:
        return calculate(work, left, right)

    return run


def remainder(budget: Budget, left: Any, right: Any) -> Any:
    """The remainder of a division. Texts have no `%`: it would be a way to make them endless."""
    if kind(left) == "text":
        raise Misuse("% does not fill in texts; join them with + or ~")
    return calculate(operator.mod, left, right)


def concatenate(budget: Budget, *values: Any) -> str:
    """The texts of all values one after the other."""
    texts = [as_text(budget, value) for value in values]
    budget.new_text(sum(map(len, texts)))
    return "".join(texts)


def ordered(symbol: str, work: Callable[[Any, Any], bool]) -> Binary:
    """A comparison by order, which only two numbers or two texts have."""

    def run(budget: Budget, left: Any, right: Any) -> bool:
        kinds = {kind(left), kind(right)}
        if kinds == {"text"}:
            budget.characters(min(size(left), size(right)))
            return bool(work(text(left), text(right)))
        if not kinds <= NUMBERS:
            raise Misuse(
                f"cannot compare {describe(left)} {symbol} {describe(right)}: "
                "only two numbers or two texts have an order"
            )
        return bool(work(number(left), number(right)))

    return run


def contains(budget: Budget, container: Any, item: Any) -> bool:
    """Whether a text has that part, a list that item, or a mapping that key."""
    found = kind(container)
    if found == "text":
        if kind(item) != "text":
            raise Misuse(f"{describe(item)} cannot be in a text; only a text can")
        budget.characters(size(container) + size(item))
        return text(item) in text(container)
    if found == "mapping":
        if kind(item) in ("list", "mapping"):
            raise Misuse(f"{describe(item)} cannot be a key of a mapping")
        return kind(item) in SCALARS and dict.__contains__(container, exact(item))
    if found != "list":
        raise Misuse(f"nothing can be in {describe(container)}; use a text, list or mapping")
    budget.items(size(container))
    return any(equal(budget, element, item) for element in elements(container))


def negative(budget: Budget, value: Any) -> Any:
    """The number with its sign turned."""
    return calculate(operator.neg, value)


def positive(budget: Budget, value: Any) -> Any:
    """The number itself."""
    return calculate(operator.pos, value)


def part(budget: Budget, value: Any, bounds: slice) -> Any:
    """A slice of a text or a list."""
    if kind(value) not in ("text", "list"):
        raise Misuse(f"only a text or a list has [from:to], not {describe(value)}")
    ends = [None if end is None else whole(end) for end in (bounds.start, bounds.stop, bounds.step)]
    if ends[2] == 0:
        raise Misuse("the step of [from:to:step] cannot be 0")
    wanted = slice(*ends)
    length = len(range(*wanted.indices(size(value))))
    if kind(value) == "text":
        budget.new_text(length)
        return text(value)[wanted]
    budget.new_list(length)
    return list(base_of(value).__getitem__(value, wanted))


BINARY: Mapping[str, Binary] = {
    "+": add,
    "-": _numeric(operator.sub),
    "*": multiply,
    "/": _numeric(operator.truediv),
    "//": _numeric(operator.floordiv),
    "%": remainder,
}
COMPARISONS: Mapping[str, Binary] = {
    "==": equal,
    "!=": lambda budget, left, right: not equal(budget, left, right),
    "<": ordered("<", operator.lt),
    "<=": ordered("<=", operator.le),
    ">": ordered(">", operator.gt),
    ">=": ordered(">=", operator.ge),
    "in": lambda budget, item, container: contains(budget, container, item),
    "not in": lambda budget, item, container: not contains(budget, container, item),
}
