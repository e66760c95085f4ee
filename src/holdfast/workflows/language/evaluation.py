"""The parts that expressions and templates are made of once they are read.

A part is a function from an evaluation to a value. Every part pays one step, and puts the place it
came from on the errors that arise in it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.workflows.language.values import (
    MAX_DEPTH,
    NUMBERS,
    SCALARS,
    Budget,
    Missing,
    Misuse,
    as_text,
    base_of,
    describe,
    elements,
    equal,
    exact,
    fits,
    kind,
    look_up,
    missing_text,
    size,
    text,
    truth,
    whole,
)

# The operators of expressions and templates over plain data, each bounded before it does anything.


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


Place = tuple[str, int]
"""The source of a part, and the offset at which it begins."""


class Evaluation(Budget):
    """One evaluation: the values in sight, and how much may still be done."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        super().__init__()
        self.scope = scope
        self.local: dict[str, Any] = {}

    def read(self, name: str) -> Any:
        """The value of that name."""
        if name in self.local:
            return self.local[name]
        if name not in self.scope:
            known = self.local
            raise Missing(lambda: missing_text(name, [*known, *self.scope], None))
        return exact(self.scope[name])


Part = Callable[[Evaluation], Any]


def at(place: Place, run: Part) -> Part:
    """The part, which pays its step and says where it stands if it fails."""

    def placed(evaluation: Evaluation) -> Any:
        try:
            evaluation.charge(1)
            return run(evaluation)
        except Misuse as error:
            error.where = error.where or place
            raise

    return placed


def constant(value: Any) -> Part:
    """Always that value."""
    return lambda evaluation: value


def name(called: str) -> Part:
    """The value of a name."""
    return lambda evaluation: evaluation.read(called)


def item(container: Part, key: Part, called: str) -> Part:
    """An item of a mapping or list; `called` is what the container is called."""
    return lambda evaluation: look_up(container(evaluation), key(evaluation), called)


def piece(container: Part, ends: Sequence[Part]) -> Part:
    """A slice of a text or list."""

    def run(evaluation: Evaluation) -> Any:
        value = container(evaluation)
        return part(evaluation, value, slice(*(end(evaluation) for end in ends)))

    return run


def either(parts: Sequence[Part], *, stop_at: bool) -> Part:
    """`or` stops at the first part that is true, `and` at the first that is false; else the last."""

    def run(evaluation: Evaluation) -> Any:
        value: Any = None
        for each in parts:
            value = each(evaluation)
            if truth(value) is stop_at:
                break
        return value

    return run


def opposite(operand: Part) -> Part:
    """`not`."""
    return lambda evaluation: not truth(operand(evaluation))


def comparison(first: Part, rest: Sequence[tuple[str, Part]]) -> Part:
    """A chain of comparisons such as `1 < x <= 5`, which stops at the first that does not hold."""
    tests = [(COMPARISONS[symbol], operand) for symbol, operand in rest]

    def run(evaluation: Evaluation) -> bool:
        left = first(evaluation)
        for test, operand in tests:
            right = operand(evaluation)
            if not test(evaluation, left, right):
                return False
            left = right
        return True

    return run


def binary(symbol: str, left: Part, right: Part) -> Part:
    """Arithmetic, and what `+` and `*` mean for texts and lists."""
    work = BINARY[symbol]
    return lambda evaluation: work(evaluation, left(evaluation), right(evaluation))


def conditional(test: Part, then: Part, otherwise: Part) -> Part:
    """`then if test else otherwise`."""
    return lambda evaluation: (then if truth(test(evaluation)) else otherwise)(evaluation)


def listing(items: Sequence[Part]) -> Part:
    """A list of what the parts come to."""
    return lambda evaluation: [each(evaluation) for each in items]


def mapping(pairs: Sequence[tuple[Part, Part]]) -> Part:
    """A mapping; its keys must be texts, numbers, booleans or null."""

    def run(evaluation: Evaluation) -> dict[Any, Any]:
        result = {}
        for key, value in pairs:
            found = key(evaluation)
            if kind(found) not in SCALARS:
                raise Misuse(f"{describe(found)} cannot be a key; use a text or a number")
            result[found] = value(evaluation)
        return result

    return run


def call(work: Callable[..., Any], values: Sequence[Part], named: Mapping[str, Part]) -> Part:
    """A call of a function of the table."""

    def run(evaluation: Evaluation) -> Any:
        given = [value(evaluation) for value in values]
        by_name = {called: value(evaluation) for called, value in named.items()}
        return exact(work(evaluation, *given, **by_name))

    return run


def fallback(value: Part, instead: Part, for_false: Part) -> Part:
    """`default`: another value where the first is missing or null, or, if so asked, not true."""

    def run(evaluation: Evaluation) -> Any:
        try:
            found = value(evaluation)
        except Missing:
            return instead(evaluation)
        if found is None or (truth(for_false(evaluation)) and not truth(found)):
            return instead(evaluation)
        return found

    return run


def exists(value: Part) -> Part:
    """`defined`: whether reading the value finds anything."""

    def run(evaluation: Evaluation) -> bool:
        try:
            value(evaluation)
        except Missing:
            return False
        return True

    return run


def check_shape(root: Any, children: Callable[[Any], Iterable[Any]], most: int) -> None:
    """Refuse what has too many parts or is nested too deeply to be evaluated."""
    level, count = [root], 0
    for _ in range(MAX_DEPTH):
        count += len(level)
        level = [child for node in level for child in children(node)]
        if not level:
            break
        if count + len(level) > most:
            raise Misuse(f"this has more than {most:,} parts; do some of it in a step before")
    else:
        raise Misuse(f"this is nested more than {MAX_DEPTH} levels deep; do some of it in a step before")
