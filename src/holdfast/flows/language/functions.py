"""The table of functions of expressions, which are the filters of templates: `upper(x)`, `x | upper`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.flows.language import list_functions as lists
from holdfast.flows.language import text_functions as texts
from holdfast.flows.language.evaluation import Part, call, constant, exists, fallback
from holdfast.flows.language.list_functions import field_of, items_of
from holdfast.flows.language.operators import contains
from holdfast.flows.language.plain import Budget, Missing, Misuse, text
from holdfast.flows.language.selections import SELECTIONS, Test
from holdfast.suggestions import did_you_mean


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
    **dict.fromkeys(("len", "length", "count"), lists.length),
    **dict.fromkeys(("strip", "trim"), texts.strip),
    **dict.fromkeys(("sorted", "sort"), lists.in_order),
    **dict.fromkeys(("str", "string"), texts.to_text),
    **dict.fromkeys(("lines", "splitlines"), texts.lines),
    **{word: texts.recased(getattr(str, word)) for word in ("lower", "upper", "title", "capitalize")},
    **SELECTIONS,
    "map": change_each,
    "min": lists.extreme(min, "smallest value"),
    "max": lists.extreme(max, "largest value"),
    "sum": lists.total,
    "abs": lists.absolute,
    "round": lists.rounded,
    "int": lists.to_int,
    "float": lists.to_float,
    "bool": lists.to_bool,
    "any": lists.any_true,
    "all": lists.all_true,
    "keys": lists.keys,
    "values": lists.values,
    "items": lists.pairs,
    "dictsort": lists.sorted_pairs,
    "get": lists.get,
    "first": lists.first,
    "last": lists.last,
    "list": lists.as_list,
    "reverse": lists.backwards,
    "unique": lists.unique,
    "range": lists.numbers_between,
    "contains": contains,
    "split": texts.split,
    "join": texts.join,
    "replace": texts.replace,
    "startswith": texts.starts_with,
    "endswith": texts.ends_with,
    "truncate": texts.truncate,
    "indent": texts.indent,
    "tojson": texts.to_json,
    "fromjson": texts.from_json,
    "urlencode": texts.url_quoted,
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
