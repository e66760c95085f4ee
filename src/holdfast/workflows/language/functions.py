"""The table of functions of expressions, which are the filters of templates: `upper(x)`, `x | upper`."""

from __future__ import annotations

import inspect
import json
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.suggestions import did_you_mean
from holdfast.workflows.language.evaluation import (
    COMPARISONS,
    Part,
    calculate,
    call,
    constant,
    contains,
    exists,
    fallback,
    number,
    part,
    remainder,
)
from holdfast.workflows.language.values import (
    MAX_LENGTH,
    NUMBERS,
    Budget,
    Missing,
    Misuse,
    as_json,
    as_text,
    describe,
    elements,
    entries,
    equal,
    exact,
    kind,
    look_up,
    size,
    text,
    truth,
    whole,
)

# Functions of lists, mappings and numbers for expressions and templates. Each is paid for beforehand.


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


# Functions of texts for expressions and templates. Results are measured before they are made.


def to_text(budget: Budget, value: Any) -> str:
    return as_text(budget, value)


def recased(change: Callable[[str], str]) -> Callable[..., Any]:
    def run(budget: Budget, value: Any) -> str:
        budget.new_text(3 * size(text(value)) if not text(value).isascii() else size(value))
        return change(text(value))

    return run


def strip(budget: Budget, value: Any, characters: Any = None) -> str:
    budget.new_text(size(text(value)))
    if characters is None:
        return text(value).strip()
    # Each character that is looked at is searched among these.
    unwanted = "".join(set(text(characters)))
    budget.characters(size(characters) + size(value) * len(unwanted))
    return text(value).strip(unwanted)


def split(budget: Budget, value: Any, separator: Any = None, most: Any = -1) -> list[str]:
    budget.new_text(size(text(value)))
    if separator is None:
        budget.new_list(size(value) // 2)
    elif not text(separator):
        raise Misuse("split needs a separator that is not empty, or none at all to split at white space")
    else:
        budget.new_list(text(value).count(text(separator)) + 1)
    return text(value).split(None if separator is None else text(separator), whole(most))


def lines(budget: Budget, value: Any) -> list[str]:
    budget.new_text(size(text(value)))
    budget.new_list(size(value))
    return text(value).splitlines()


def join(budget: Budget, values: Any, separator: Any = "", attribute: Any = None) -> str:
    texts = [as_text(budget, item) for item in map(field_of(budget, attribute), items_of(budget, values))]
    budget.new_text(sum(map(len, texts)) + len(texts) * size(text(separator)))
    return text(separator).join(texts)


def replace(budget: Budget, value: Any, old: Any, new: Any) -> str:
    budget.characters(size(text(value)))
    times = text(value).count(text(old))
    budget.new_text(size(value) + times * max(0, size(text(new)) - size(old)))
    return text(value).replace(text(old), text(new))


def starts_with(budget: Budget, value: Any, beginning: Any) -> bool:
    budget.characters(size(text(beginning)))
    return text(value).startswith(text(beginning))


def ends_with(budget: Budget, value: Any, ending: Any) -> bool:
    budget.characters(size(text(ending)))
    return text(value).endswith(text(ending))


def truncate(budget: Budget, value: Any, length: Any = 255, killwords: Any = False, end: Any = "…") -> str:
    if size(text(value)) <= whole(length):
        return text(value)
    kept = max(0, whole(length) - size(text(end)))
    budget.new_text(kept + size(end))
    cut = text(value)[:kept]
    return (cut if truth(killwords) else cut.rsplit(" ", 1)[0]) + text(end)


def indent(budget: Budget, value: Any, width: Any = 4, first: Any = False) -> str:
    margin = text(width) if kind(width) == "text" else spaces(budget, width)
    budget.characters(size(text(value)))
    budget.new_text(size(value) + (text(value).count("\n") + 1) * len(margin))
    head, *rest = text(value).split("\n")
    indented = [margin + line if line else line for line in rest]
    return "\n".join([margin + head if truth(first) else head, *indented])


def spaces(budget: Budget, width: Any) -> str:
    budget.new_text(max(0, whole(width)))
    return " " * whole(width)


def to_json(budget: Budget, value: Any, indent: Any = None) -> str:
    return as_json(budget, value, None if indent is None else max(0, min(16, whole(indent))))


def from_json(budget: Budget, value: Any) -> Any:
    if size(text(value)) > MAX_LENGTH:
        raise Misuse(f"the JSON has more than {MAX_LENGTH:,} characters; read it in a python step")
    budget.characters(8 * size(value))
    try:
        return json.loads(text(value))
    except RecursionError:
        raise Misuse("the JSON is nested too deeply") from None
    except ValueError as error:
        raise Misuse(f"{describe(value)} is not JSON: {error}") from None


def url_quoted(budget: Budget, value: Any) -> str:
    if kind(value) == "mapping":
        each = [f"{url_quoted(budget, key)}={url_quoted(budget, item)}" for key, item in entries(value)]
        return join(budget, each, "&")
    found = as_text(budget, value)
    budget.new_text(len(found) if found.isascii() and found.isalnum() else 12 * len(found))
    try:
        return urllib.parse.quote(found, safe="")
    except UnicodeEncodeError:
        raise Misuse(f"{describe(value)} has half of a character, which has no place in an address") from None


# Tests (`x is even`), and the functions that pick, change and group the items of a list.


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


def change_each(
    budget: Budget,
    values: Any,
    function: Any = None,
    *arguments: Any,
    attribute: Any = None,
    default: Any = None,
) -> list[Any]:
    """`map`: an attribute of each item, or what a function makes of each."""
    items = items_of(budget, values)
    budget.charge(len(items))
    if function is None:
        read = field_of(budget, attribute)
        return [_attribute(read, item, default) for item in items]
    work = FUNCTIONS.get(text(function))
    if work is None:
        raise Misuse(f"map cannot use {text(function)!r:.60}; {known(text(function))}")
    try:
        return [work(budget, item, *arguments) for item in items]
    except TypeError:
        raise Misuse(f"{text(function)} was given too few or too many values by map") from None


def _attribute(read: Any, item: Any, default: Any) -> Any:
    try:
        return read(item)
    except Missing:
        if default is None:
            raise
        return default


FUNCTIONS: Mapping[str, Any] = {
    **dict.fromkeys(("len", "length", "count"), length),
    **dict.fromkeys(("strip", "trim"), strip),
    **dict.fromkeys(("sorted", "sort"), in_order),
    **dict.fromkeys(("str", "string"), to_text),
    **dict.fromkeys(("lines", "splitlines"), lines),
    **{word: recased(getattr(str, word)) for word in ("lower", "upper", "title", "capitalize")},
    **SELECTIONS,
    "map": change_each,
    "min": extreme(min, "smallest value"),
    "max": extreme(max, "largest value"),
    "sum": total,
    "abs": absolute,
    "round": rounded,
    "int": to_int,
    "float": to_float,
    "bool": to_bool,
    "any": any_true,
    "all": all_true,
    "keys": keys,
    "values": values,
    "items": pairs,
    "dictsort": sorted_pairs,
    "get": get,
    "first": first,
    "last": last,
    "list": as_list,
    "reverse": backwards,
    "unique": unique,
    "range": numbers_between,
    "contains": contains,
    "split": split,
    "join": join,
    "replace": replace,
    "startswith": starts_with,
    "endswith": ends_with,
    "truncate": truncate,
    "indent": indent,
    "tojson": to_json,
    "fromjson": from_json,
    "urlencode": url_quoted,
}
_LAZY = ("default", "d", "defined")
_METHODS = frozenset(
    {
        *("lower", "upper", "title", "capitalize", "strip", "split", "splitlines", "join", "replace"),
        *("startswith", "endswith", "keys", "values", "items", "get"),
    }
)


def known(wanted: str) -> str:
    """Which functions there are, and which one may have been meant."""
    every = sorted({*FUNCTIONS, *_LAZY})
    return did_you_mean(wanted, every) or f"there are {', '.join(every)}"


def calling(called: str, values: Sequence[Part], named: Mapping[str, Part]) -> Part:
    """A call by name; refused if there is no such function, or it does not take these values."""
    if called == "defined":
        _fit(called, lambda budget, value: None, values, named)
        return exists(values[0])
    if called in _LAZY:
        _fit(called, lambda budget, value, fallback="", boolean=False: None, values, named)
        rest = {**dict(zip(("fallback", "boolean"), values[1:], strict=False)), **named}
        return fallback(values[0], rest.get("fallback", constant("")), rest.get("boolean", constant(False)))
    if called not in FUNCTIONS:
        raise Misuse(f"there is no function {called!r:.60}; {known(called)}")
    _fit(called, FUNCTIONS[called], values, named)
    return call(FUNCTIONS[called], values, named)


def calling_method(called: str, target: Part, values: Sequence[Part], named: Mapping[str, Part]) -> Part:
    """`x.upper()`, which is another way to write `upper(x)`, for a few functions."""
    if called not in _METHODS:
        raise Misuse(f".{called:.60}(…) cannot be called; {known(called)}")
    if called == "join":
        _fit("join", lambda budget, values: None, values, named)
        return calling(called, [*values, target], named)
    return calling(called, [target, *values], named)


def testing(called: str, test: Test, values: Sequence[Part]) -> Part:
    """A call of a test."""
    _fit(called, test, values, {})
    return call(test, values, {})


def _fit(called: str, work: Any, values: Sequence[Part], named: Mapping[str, Part]) -> None:
    signature = inspect.signature(work)
    try:
        signature.bind(None, *values, **named)
    except TypeError:
        takes = ", ".join(str(parameter) for parameter in [*signature.parameters.values()][1:])
        takes = takes.replace(": 'Any'", "").replace(" = ", "=")
        raise Misuse(f"{called} takes ({takes})") from None
