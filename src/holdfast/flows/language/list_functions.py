"""Functions of lists, mappings and numbers for expressions and templates. Each is paid for beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.flows.language.operators import calculate, contains, number, part
from holdfast.flows.language.plain import (
    NUMBERS,
    Budget,
    Misuse,
    describe,
    elements,
    entries,
    exact,
    kind,
    look_up,
    size,
    text,
    truth,
    whole,
)
from holdfast.flows.language.writing import as_json

_LONGEST_NUMBER = 100


def items_of(budget: Budget, values: Any) -> list[Any]:
    items = elements(values)
    budget.new_list(size(values))
    return [exact(item) for item in items]


def field_of(budget: Budget, attribute: Any) -> Callable[[Any], Any]:
    """Reads `attribute`, which may be dotted, of an item; without one, the item itself."""
    if attribute is None:
        return lambda item: item
    keys = text(attribute).split(".") if kind(attribute) == "text" else [whole(attribute)]

    called = f"the item (for attribute {attribute!r:.60})"
    budget.characters(size(attribute) if kind(attribute) == "text" else 0)

    def read(item: Any) -> Any:
        budget.charge(len(keys))
        for key in keys:
            item = look_up(item, key, called)
        return item

    return read


def _in_order(budget: Budget, keys: Iterable[Any]) -> list[Any]:
    """The keys, if all are numbers or all are texts, so that they have an order."""
    found = list(keys)
    kinds = {kind(key) for key in found}
    if not (kinds <= NUMBERS or kinds == {"text"}):
        odd = next(key for key in found if kind(key) != kind(found[0]) or kind(key) not in {"text", "number"})
        raise Misuse(f"only numbers or only texts have an order; among the values is {describe(odd)}")
    budget.charge(len(found))
    budget.characters(sum(map(size, found)) * 8 if kinds == {"text"} else 0)
    return found


def length(budget: Budget, value: Any) -> int:
    return size(value)


def extreme(pick: Callable[..., Any], called: str) -> Callable[..., Any]:
    def run(budget: Budget, *values: Any, attribute: Any = None) -> Any:
        items = items_of(budget, values[0] if len(values) == 1 else list(values))
        if not items:
            raise Misuse(f"an empty list has no {called}; test len(…) > 0 first")
        keys = _in_order(budget, map(field_of(budget, attribute), items))
        return items[pick(range(len(items)), key=keys.__getitem__)]

    return run


def total(budget: Budget, values: Any, attribute: Any = None, start: Any = 0) -> Any:
    budget.charge(size(values))
    result = start
    for item in map(field_of(budget, attribute), items_of(budget, values)):
        result = calculate(lambda one, other: one + other, result, item)
    return result


def any_true(budget: Budget, values: Any) -> bool:
    return any(truth(item) for item in items_of(budget, values))


def all_true(budget: Budget, values: Any) -> bool:
    return all(truth(item) for item in items_of(budget, values))


def in_order(budget: Budget, values: Any, reverse: Any = False, attribute: Any = None) -> list[Any]:
    items = items_of(budget, values)
    keys = _in_order(budget, map(field_of(budget, attribute), items))
    order = sorted(range(len(items)), key=keys.__getitem__, reverse=truth(reverse))
    return [items[index] for index in order]


def keys(budget: Budget, value: Any) -> list[Any]:
    return [key for key, _ in _entries(budget, value)]


def values(budget: Budget, value: Any) -> list[Any]:
    return [item for _, item in _entries(budget, value)]


def pairs(budget: Budget, value: Any) -> list[Any]:
    return [[key, item] for key, item in _entries(budget, value)]


def _entries(budget: Budget, value: Any) -> list[tuple[Any, Any]]:
    found = entries(value)
    budget.new_list(size(value))
    return [(exact(key), exact(item)) for key, item in found]


def sorted_pairs(budget: Budget, value: Any) -> list[Any]:
    return in_order(budget, pairs(budget, value), attribute=0)


def get(budget: Budget, value: Any, key: Any, default: Any = None) -> Any:
    entries(value)
    return look_up(value, key, "the mapping") if contains(budget, value, key) else default


def first(budget: Budget, value: Any) -> Any:
    return look_up(value, 0, "the list")


def last(budget: Budget, value: Any) -> Any:
    return look_up(value, -1, "the list")


def as_list(budget: Budget, values: Any) -> list[Any]:
    return items_of(budget, values)


def backwards(budget: Budget, value: Any) -> Any:
    return part(budget, value, slice(None, None, -1))


def unique(budget: Budget, values: Any, attribute: Any = None) -> list[Any]:
    seen: set[Any] = set()
    kept = []
    read = field_of(budget, attribute)
    for item in items_of(budget, values):
        mark = _mark(budget, read(item))
        if mark not in seen:
            seen.add(mark)
            kept.append(item)
    return kept


def _mark(budget: Budget, value: Any) -> Any:
    """What equal values have in common. Numbers become texts: very many numbers can have one hash, texts cannot."""
    budget.charge(1)
    found, value = kind(value), exact(value)
    if found == "text":
        budget.characters(size(value))
        return "text", value
    if found not in NUMBERS:
        return None if value is None else as_json(budget, value)
    if number(value) != value:
        return value
    return "number", f"{int(value):x}" if isinstance(value, int) or value.is_integer() else repr(value)


def numbers_between(budget: Budget, start: Any, stop: Any = None, step: Any = 1) -> list[int]:
    ends = (0, whole(start)) if stop is None else (whole(start), whole(stop))
    if not whole(step):
        raise Misuse("the step of range cannot be 0")
    counted = range(*ends, whole(step))
    distance = (ends[1] - ends[0]) // whole(step)
    budget.new_list(max(0, distance))
    return list(counted)


def absolute(budget: Budget, value: Any) -> Any:
    return calculate(abs, value)


def rounded(budget: Budget, value: Any, digits: Any = None) -> Any:
    places = None if digits is None else max(-100, min(100, whole(digits)))
    return calculate(lambda found: round(found, places), value)


def to_int(budget: Budget, value: Any, default: Any = None) -> Any:
    return _to_number(int, "a whole number", value, default)


def to_float(budget: Budget, value: Any, default: Any = None) -> Any:
    return _to_number(float, "a number", value, default)


def _to_number(convert: Callable[[Any], Any], wanted: str, value: Any, default: Any) -> Any:
    try:
        if kind(value) in NUMBERS:
            return number(convert(number(value)))
        if kind(value) == "text" and size(value) <= _LONGEST_NUMBER:
            return number(convert(text(value)))
    except (ValueError, OverflowError):
        pass
    if default is not None:
        return default
    raise Misuse(f"{describe(value)} is not {wanted}")


def to_bool(budget: Budget, value: Any) -> bool:
    return truth(value)
