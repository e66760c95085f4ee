"""The parts that expressions and templates are made of once they are read.

A part is a function from an evaluation to a value. Every part pays one step, and puts the place it
came from on the errors that arise in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.flows.language.operators import BINARY, COMPARISONS, part
from holdfast.flows.language.plain import (
    MAX_DEPTH,
    SCALARS,
    Budget,
    Missing,
    Misuse,
    describe,
    exact,
    kind,
    look_up,
    missing_text,
    truth,
)

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
