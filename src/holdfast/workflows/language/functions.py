"""Operators and functions of expressions, which are also the filters of templates: `upper(x)`, `x | upper`.

Each is paid for at the meter before it does anything, and its result is measured before it is made.
"""

from __future__ import annotations

import json
import operator
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.errors import did_you_mean
from holdfast.workflows.language.values import (
    MAX_LENGTH,
    NUMBERS,
    SCALARS,
    Meter,
    Missing,
    Misuse,
    as_json,
    as_text,
    base_of,
    describe,
    elements,
    entries,
    equal,
    exact,
    kind,
    look_up,
    number,
    size,
    text,
    truth,
    whole,
)

_LONGEST_NUMBER = 100


def known(wanted: str, names: Iterable[str]) -> str:
    """Return the name that may be meant, or all that there are."""
    return did_you_mean(wanted, names) or f"there are {', '.join(sorted(names))}"


# Operators.


def calculate(work: Callable[..., Any], *numbers: Any) -> Any:
    """Return the result of some arithmetic; raise if there is none of ordinary size."""
    try:
        result = work(*map(number, numbers))
    except ZeroDivisionError:
        raise Misuse("this divides by zero") from None
    except (OverflowError, ValueError):
        raise Misuse("the result is not a number that can be worked with") from None
    return number(result)


def _numeric(work: Callable[..., Any]) -> Callable[..., Any]:
    return lambda meter, *values: calculate(work, *values)


def add(meter: Meter, left: Any, right: Any) -> Any:
    """Add two numbers, or join two texts or two lists."""
    kinds = (kind(left), kind(right))
    if kinds == ("text", "text"):
        meter.new_text(size(left) + size(right))
        return text(left) + text(right)
    if kinds == ("list", "list"):
        meter.new_list(size(left) + size(right))
        return [*elements(left), *elements(right)]
    if not NUMBERS.issuperset(kinds):
        hint = "; str(…) makes a text of any value" if "text" in kinds else ""
        raise Misuse(f"cannot add {describe(left)} and {describe(right)}{hint}")
    return calculate(operator.add, left, right)


def multiply(meter: Meter, left: Any, right: Any) -> Any:
    """Multiply two numbers, or repeat a text or list."""
    if kind(left) in NUMBERS and kind(right) in ("text", "list"):
        left, right = right, left
    if kind(left) not in ("text", "list"):
        return calculate(operator.mul, left, right)
    # Nothing is nothing however often, and too many times are more than Python itself can count.
    is_nothing = size(left) == 0 and type(exact(right)) is int
    times = 0 if is_nothing else max(0, whole(right))
    if kind(left) == "text":
        meter.new_text(size(left) * times)
        return text(left) * times
    meter.new_list(size(left) * times)
    return list(elements(left)) * times


def remainder(meter: Meter, left: Any, right: Any) -> Any:
    """Return the remainder of a division. Texts have no `%`: it could make them endless."""
    if kind(left) == "text":
        raise Misuse("% does not fill in texts; join them with + or ~")
    return calculate(operator.mod, left, right)


def concatenate(meter: Meter, *values: Any) -> str:
    """Join the texts of all values."""
    texts = [as_text(meter, value) for value in values]
    meter.new_text(sum(map(len, texts)))
    return "".join(texts)


def _ordered(symbol: str, work: Callable[[Any, Any], bool]) -> Callable[..., bool]:
    """Return a comparison by order, which only two numbers or two texts have."""

    def run(meter: Meter, left: Any, right: Any) -> bool:
        kinds = {kind(left), kind(right)}
        if kinds == {"text"}:
            meter.characters(min(size(left), size(right)))
            return bool(work(text(left), text(right)))
        if not kinds <= NUMBERS:
            raise Misuse(
                f"cannot compare {describe(left)} {symbol} {describe(right)}: "
                "only two numbers or two texts have an order"
            )
        return bool(work(number(left), number(right)))

    return run


def contains(meter: Meter, container: Any, item: Any) -> bool:
    """Return True if a text has that part, a list that item, or a mapping that key."""
    found = kind(container)
    if found == "text":
        if kind(item) != "text":
            raise Misuse(f"{describe(item)} cannot be in a text; only a text can")
        meter.characters(size(container) + size(item))
        return text(item) in text(container)
    if found == "mapping":
        if kind(item) in ("list", "mapping"):
            raise Misuse(f"{describe(item)} cannot be a key of a mapping")
        return kind(item) in SCALARS and dict.__contains__(container, exact(item))
    if found != "list":
        raise Misuse(f"nothing can be in {describe(container)}; use a text, list or mapping")
    meter.items(size(container))
    return any(equal(meter, element, item) for element in elements(container))


def cut(meter: Meter, value: Any, start: Any = None, stop: Any = None, step: Any = None) -> Any:
    """Return a slice of a text or a list."""
    if kind(value) not in ("text", "list"):
        raise Misuse(f"only a text or a list has [from:to], not {describe(value)}")
    wanted = slice(*(None if end is None else whole(end) for end in (start, stop, step)))
    if wanted.step == 0:
        raise Misuse("the step of [from:to:step] cannot be 0")
    length = len(range(*wanted.indices(size(value))))
    if kind(value) == "text":
        meter.new_text(length)
        return text(value)[wanted]
    meter.new_list(length)
    return list(base_of(value).__getitem__(value, wanted))


UNARY: Mapping[str, Callable[..., Any]] = {"-": _numeric(operator.neg), "+": _numeric(operator.pos)}
BINARY: Mapping[str, Callable[..., Any]] = {
    "+": add,
    "-": _numeric(operator.sub),
    "*": multiply,
    "/": _numeric(operator.truediv),
    "//": _numeric(operator.floordiv),
    "%": remainder,
}
COMPARISONS: Mapping[str, Callable[..., bool]] = {
    "==": equal,
    "!=": lambda meter, left, right: not equal(meter, left, right),
    "<": _ordered("<", operator.lt),
    "<=": _ordered("<=", operator.le),
    ">": _ordered(">", operator.gt),
    ">=": _ordered(">=", operator.ge),
    "in": lambda meter, item, container: contains(meter, container, item),
    "not in": lambda meter, item, container: not contains(meter, container, item),
}

# Functions of lists, mappings and numbers.


def items_of(meter: Meter, values: Any) -> list[Any]:
    """Return the items of a list, or the keys of a mapping, as built-in scalars where they are scalars."""
    items = elements(values)
    meter.new_list(size(values))
    return [exact(item) for item in items]


def field_of(meter: Meter, attribute: Any) -> Callable[..., Any]:
    """Return a reader of `attribute`, which may be dotted, of an item; without one, of the item itself.

    The reader takes a default, which stands for an attribute that is missing.
    """
    if attribute is None:
        return lambda item, default=None: item
    keys = text(attribute).split(".") if kind(attribute) == "text" else [whole(attribute)]
    called = f"the item (for attribute {attribute!r:.60})"
    meter.characters(size(attribute) if kind(attribute) == "text" else 0)

    def read(item: Any, default: Any = None) -> Any:
        meter.charge(len(keys))
        try:
            for key in keys:
                item = look_up(item, key, called)
        except Missing:
            if default is None:
                raise
            return default
        return item

    return read


def _sortable(meter: Meter, keys: Iterable[Any]) -> list[Any]:
    """Return the keys; raise unless all are numbers or all are texts."""
    found = list(keys)
    kinds = {kind(key) for key in found}
    if not (kinds <= NUMBERS or kinds == {"text"}):
        odd = next(key for key in found if kind(key) != kind(found[0]) or kind(key) not in {"text", "number"})
        raise Misuse(f"only numbers or only texts have an order; among the values is {describe(odd)}")
    meter.charge(len(found))
    meter.characters(sum(map(size, found)) * 8 if kinds == {"text"} else 0)
    return found


def _extreme(pick: Callable[..., Any], called: str) -> Callable[..., Any]:
    def run(meter: Meter, *values: Any, attribute: Any = None) -> Any:
        items = items_of(meter, values[0] if len(values) == 1 else list(values))
        if not items:
            raise Misuse(f"an empty list has no {called}; test len(…) > 0 first")
        keys = _sortable(meter, map(field_of(meter, attribute), items))
        return items[pick(range(len(items)), key=keys.__getitem__)]

    return run


def _sum(meter: Meter, values: Any, attribute: Any = None, start: Any = 0) -> Any:
    meter.charge(size(values))
    result = start
    for item in map(field_of(meter, attribute), items_of(meter, values)):
        result = calculate(operator.add, result, item)
    return result


def _sort(meter: Meter, values: Any, reverse: Any = False, attribute: Any = None) -> list[Any]:
    items = items_of(meter, values)
    keys = _sortable(meter, map(field_of(meter, attribute), items))
    order = sorted(range(len(items)), key=keys.__getitem__, reverse=truth(reverse))
    return [items[index] for index in order]


def _pairs(meter: Meter, value: Any) -> list[Any]:
    found = entries(value)
    meter.new_list(size(value))
    return [[exact(key), exact(item)] for key, item in found]


def _unique(meter: Meter, values: Any, attribute: Any = None) -> list[Any]:
    read = field_of(meter, attribute)
    kept: dict[Any, Any] = {}
    for item in items_of(meter, values):
        kept.setdefault(_identity(meter, read(item)), item)
    return list(kept.values())


def _identity(meter: Meter, value: Any) -> Any:
    """Return what equal values have in common. Numbers become texts: many numbers can share a hash, texts cannot."""
    meter.charge(1)
    found, value = kind(value), exact(value)
    if found == "text":
        meter.characters(size(value))
        return "text", value
    if found not in NUMBERS:
        return None if value is None else as_json(meter, value)
    if number(value) != value:
        return value
    return "number", f"{int(value):x}" if isinstance(value, int) or value.is_integer() else repr(value)


def _range(meter: Meter, start: Any, stop: Any = None, step: Any = 1) -> list[int]:
    ends = (0, whole(start)) if stop is None else (whole(start), whole(stop))
    if not whole(step):
        raise Misuse("the step of range cannot be 0")
    meter.new_list(max(0, (ends[1] - ends[0]) // whole(step)))
    return list(range(*ends, whole(step)))


def _converted(convert: Callable[[Any], Any], wanted: str) -> Callable[..., Any]:
    def run(meter: Meter, value: Any, default: Any = None) -> Any:
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

    return run


# Functions of texts.


def _recased(change: Callable[[str], str]) -> Callable[..., Any]:
    def run(meter: Meter, value: Any) -> str:
        meter.new_text(3 * size(text(value)) if not text(value).isascii() else size(value))
        return change(text(value))

    return run


def _strip(meter: Meter, value: Any, characters: Any = None) -> str:
    meter.new_text(size(text(value)))
    if characters is None:
        return text(value).strip()
    # Each character that is looked at is searched among these.
    unwanted = "".join(set(text(characters)))
    meter.characters(size(characters) + size(value) * len(unwanted))
    return text(value).strip(unwanted)


def _split(meter: Meter, value: Any, separator: Any = None, most: Any = -1) -> list[str]:
    meter.new_text(size(text(value)))
    if separator is None:
        meter.new_list(size(value) // 2)
    elif not text(separator):
        raise Misuse("split needs a separator that is not empty, or none at all to split at white space")
    else:
        meter.new_list(text(value).count(text(separator)) + 1)
    return text(value).split(None if separator is None else text(separator), whole(most))


def _lines(meter: Meter, value: Any) -> list[str]:
    meter.new_text(size(text(value)))
    meter.new_list(size(value))
    return text(value).splitlines()


def _join(meter: Meter, values: Any, separator: Any = "", attribute: Any = None) -> str:
    texts = [as_text(meter, item) for item in map(field_of(meter, attribute), items_of(meter, values))]
    meter.new_text(sum(map(len, texts)) + len(texts) * size(text(separator)))
    return text(separator).join(texts)


def _replace(meter: Meter, value: Any, old: Any, new: Any) -> str:
    meter.characters(size(text(value)))
    times = text(value).count(text(old))
    meter.new_text(size(value) + times * max(0, size(text(new)) - size(old)))
    return text(value).replace(text(old), text(new))


def _affixed(test: Callable[[str, str], bool]) -> Callable[..., bool]:
    def run(meter: Meter, value: Any, affix: Any) -> bool:
        meter.characters(size(text(affix)))
        return test(text(value), text(affix))

    return run


def _truncate(meter: Meter, value: Any, length: Any = 255, killwords: Any = False, end: Any = "…") -> str:
    if size(text(value)) <= whole(length):
        return text(value)
    kept = max(0, whole(length) - size(text(end)))
    meter.new_text(kept + size(end))
    shortened = text(value)[:kept]
    return (shortened if truth(killwords) else shortened.rsplit(" ", 1)[0]) + text(end)


def _indent(meter: Meter, value: Any, width: Any = 4, first: Any = False) -> str:
    margin = text(width) if kind(width) == "text" else multiply(meter, " ", width)
    meter.characters(size(text(value)))
    meter.new_text(size(value) + (text(value).count("\n") + 1) * len(margin))
    head, *rest = text(value).split("\n")
    indented = [margin + line if line else line for line in rest]
    return "\n".join([margin + head if truth(first) else head, *indented])


def _from_json(meter: Meter, value: Any) -> Any:
    if size(text(value)) > MAX_LENGTH:
        raise Misuse(f"the JSON has more than {MAX_LENGTH:,} characters; read it in a python step")
    meter.characters(8 * size(value))
    try:
        return json.loads(text(value))
    except RecursionError:
        raise Misuse("the JSON is nested too deeply") from None
    except ValueError as error:
        raise Misuse(f"{describe(value)} is not JSON: {error}") from None


def _url_quoted(meter: Meter, value: Any) -> str:
    if kind(value) == "mapping":
        each = [f"{_url_quoted(meter, key)}={_url_quoted(meter, item)}" for key, item in entries(value)]
        return _join(meter, each, "&")
    found = as_text(meter, value)
    meter.new_text(len(found) if found.isascii() and found.isalnum() else 12 * len(found))
    try:
        return urllib.parse.quote(found, safe="")
    except UnicodeEncodeError:
        raise Misuse(f"{describe(value)} has half of a character, which has no place in an address") from None


# Tests (`x is even`), and the functions that pick, change and group the items of a list.


def _of_kind(*kinds: str) -> Callable[..., bool]:
    return lambda meter, value: kind(value) in kinds


def _is(wanted: Any) -> Callable[..., bool]:
    return lambda meter, value: exact(value) is wanted


def _divisible(meter: Meter, value: Any, by: Any) -> bool:
    return bool(remainder(meter, value, by) == 0)


TESTS: Mapping[str, Callable[..., bool]] = {
    **COMPARISONS,
    **{word: COMPARISONS[sign] for word, sign in (("eq", "=="), ("equalto", "=="), ("ne", "!="))},
    **{word: COMPARISONS[sign] for word, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))},
    **{word: COMPARISONS[sign] for word, sign in (("lessthan", "<"), ("greaterthan", ">"))},
    **dict.fromkeys(("none", "None", "null"), _is(None)),
    **dict.fromkeys(("true", "True"), _is(True)),
    **dict.fromkeys(("false", "False"), _is(False)),
    "boolean": _of_kind("boolean"),
    "number": _of_kind("number"),
    "string": _of_kind("text"),
    "mapping": _of_kind("mapping"),
    "sequence": _of_kind("list"),
    "iterable": _of_kind("list", "mapping"),
    "even": lambda meter, value: _divisible(meter, value, 2),
    "odd": lambda meter, value: not _divisible(meter, value, 2),
    "divisibleby": _divisible,
}


def _selection(keep: bool, by_attribute: bool) -> Callable[..., list[Any]]:
    def run(meter: Meter, values: Any, *arguments: Any) -> list[Any]:
        if by_attribute and not arguments:
            raise Misuse("say which attribute the items are picked by, such as selectattr('status')")
        read = field_of(meter, arguments[0] if by_attribute else None)
        called, *rest = arguments[by_attribute:] or (None,)
        test = FUNCTIONS["bool"] if called is None else TESTS.get(text(called))
        if test is None:
            raise Misuse(f"there is no test {called!r:.60}; {known(text(called), TESTS)}")
        return [item for item in items_of(meter, values) if passes(meter, read, test, item, rest) is keep]

    def passes(meter: Meter, read: Any, test: Any, item: Any, rest: list[Any]) -> bool:
        """Return True if an item passes a test; an item without the attribute does not."""
        meter.charge(1)
        try:
            value = read(item)
        except Missing:
            return False
        try:
            return bool(test(meter, value, *rest))
        except TypeError:
            raise Misuse("the test was given too few or too many values") from None

    return run


def _group(meter: Meter, values: Any, attribute: Any) -> list[Any]:
    """Pair each value of the attribute with the items that have it, in the order of these values."""
    read = field_of(meter, attribute)
    groups: list[Any] = []
    for item in _sort(meter, values, attribute=attribute):
        meter.charge(1)
        if groups and equal(meter, groups[-1][0], read(item)):
            groups[-1][1].append(item)
        else:
            groups.append([read(item), [item]])
    return groups


def _map(
    meter: Meter,
    values: Any,
    function: Any = None,
    *arguments: Any,
    attribute: Any = None,
    default: Any = None,
) -> list[Any]:
    """Return an attribute of each item, or what a function makes of each."""
    items = items_of(meter, values)
    meter.charge(len(items))
    if function is None:
        read = field_of(meter, attribute)
        return [read(item, default) for item in items]
    work = FUNCTIONS.get(text(function))
    if work is None:
        raise Misuse(f"map cannot use {text(function)!r:.60}; {known(text(function), FUNCTIONS)}")
    try:
        return [work(meter, item, *arguments) for item in items]
    except TypeError:
        raise Misuse(f"{text(function)} was given too few or too many values by map") from None


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("len", "length", "count"), lambda meter, value: size(value)),
    **dict.fromkeys(("strip", "trim"), _strip),
    **dict.fromkeys(("sorted", "sort"), _sort),
    **dict.fromkeys(("str", "string"), lambda meter, value: as_text(meter, value)),
    **dict.fromkeys(("lines", "splitlines"), _lines),
    **{word: _recased(getattr(str, word)) for word in ("lower", "upper", "title", "capitalize")},
    "select": _selection(True, False),
    "reject": _selection(False, False),
    "selectattr": _selection(True, True),
    "rejectattr": _selection(False, True),
    "groupby": _group,
    "map": _map,
    "min": _extreme(min, "smallest value"),
    "max": _extreme(max, "largest value"),
    "sum": _sum,
    "abs": lambda meter, value: calculate(abs, value),
    "round": lambda meter, value, digits=None: calculate(
        lambda found: round(found, None if digits is None else max(-100, min(100, whole(digits)))), value
    ),
    "int": _converted(int, "a whole number"),
    "float": _converted(float, "a number"),
    "bool": lambda meter, value: truth(value),
    "any": lambda meter, values: any(map(truth, items_of(meter, values))),
    "all": lambda meter, values: all(map(truth, items_of(meter, values))),
    "keys": lambda meter, value: [key for key, _ in _pairs(meter, value)],
    "values": lambda meter, value: [item for _, item in _pairs(meter, value)],
    "items": _pairs,
    "dictsort": lambda meter, value: _sort(meter, _pairs(meter, value), attribute=0),
    "get": lambda meter, value, key, default=None: (
        look_up(value, key, "the mapping") if entries(value) and contains(meter, value, key) else default
    ),
    "first": lambda meter, value: look_up(value, 0, "the list"),
    "last": lambda meter, value: look_up(value, -1, "the list"),
    "list": items_of,
    "reverse": lambda meter, value: cut(meter, value, step=-1),
    "unique": _unique,
    "range": _range,
    "contains": contains,
    "split": _split,
    "join": _join,
    "replace": _replace,
    "startswith": _affixed(str.startswith),
    "endswith": _affixed(str.endswith),
    "truncate": _truncate,
    "indent": _indent,
    "tojson": lambda meter, value, indent=None: as_json(
        meter, value, None if indent is None else max(0, min(16, whole(indent)))
    ),
    "fromjson": _from_json,
    "urlencode": _url_quoted,
}
