"""What fields expect and what was given instead, in plain words."""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any, Literal

from pydantic import BaseModel

from holdfast.flows.model import STEP_NAME, Step, seconds
from holdfast.flows.reading.problems import listed
from holdfast.suggestions import did_you_mean

_SIMPLE = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_NAME_RULE = "use letters, digits, _ and -; do not begin with a digit; at most 64 characters"
_RULES = {
    "greater_than_equal": ("has to be at least {ge}", "ge"),
    "greater_than": ("has to be above {gt}", "gt"),
    "less_than_equal": ("can be at most {le}", "le"),
    "less_than": ("has to be below {lt}", "lt"),
}


def options(annotation: Any) -> list[Any]:
    """The types that a field's annotation allows, one by one, without `None`."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        found = [option for arg in typing.get_args(annotation) for option in options(arg)]
        return [option for option in found if option is not type(None)]
    return [annotation]


def bare(annotation: Any) -> Any:
    """A type without what `Annotated` adds to it."""
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation


def shape(annotation: Any) -> str:
    """Whether a type is written as `fields`, as a `list`, as a `value`, or in `any` way."""
    plain = bare(annotation)
    if plain is Any:
        return "any"
    if typing.get_origin(plain) is dict or (isinstance(plain, type) and issubclass(plain, BaseModel)):
        return "fields"
    return "list" if typing.get_origin(plain) is list else "value"


def shape_of(data: Any) -> str:
    """The shape that data has."""
    return "fields" if isinstance(data, dict) else "list" if isinstance(data, list) else "value"


def expected(annotation: Any) -> str:
    """What a type stands for: `text`, `a list of steps`, `one of a, b`."""
    return " or ".join(dict.fromkeys(_expected(option) for option in options(annotation)))


def _expected(option: Any) -> str:
    plain = bare(option)
    if is_duration(option):
        return "a duration such as 30s or 1h30m"
    if is_step_name(option):
        return "a step's name"
    if typing.get_origin(plain) is Literal:
        return "one of " + listed(map(str, typing.get_args(plain)))
    if typing.get_origin(plain) is list:
        return f"a list of {_plural(typing.get_args(plain)[0])}"
    if typing.get_origin(plain) is dict:
        return "fields (`name: value`)"
    if isinstance(plain, type) and issubclass(plain, BaseModel):
        return f"fields ({listed(field_names(plain), 6)})"
    return _SIMPLE.get(plain, "a value")


def _plural(annotation: Any) -> str:
    first = options(annotation)[0]
    plain = bare(first)
    if is_step_name(first):
        return "step names"
    if isinstance(plain, type) and issubclass(plain, BaseModel):
        return "steps" if plain is Step else f"{plain.__name__.lower()}s"
    return {str: "texts", int: "whole numbers"}.get(plain, "values")


def is_duration(annotation: Any) -> bool:
    """Whether a type is a duration."""
    return any(getattr(part, "func", None) is seconds for part in typing.get_args(annotation)[1:])


def is_step_name(annotation: Any) -> bool:
    """Whether a type is the name of a step."""
    for part in typing.get_args(annotation)[1:]:
        pattern = getattr(part, "pattern", None)
        pieces = [getattr(piece, "pattern", None) for piece in getattr(part, "metadata", ())]
        if STEP_NAME in (pattern, *pieces):
            return True
    return False


def field_names(model: type[BaseModel]) -> list[str]:
    """The fields of a part as they are written in a file."""
    return [field.alias or name for name, field in model.model_fields.items()]


def given(data: Any) -> str:
    """What was given: `text 'x'`, `a list`, `nothing`."""
    if data is None:
        return "nothing"
    if isinstance(data, bool):
        return str(data).lower()
    if isinstance(data, (int, float)):
        return f"the number {data}"
    if isinstance(data, str):
        return f"text {_short(data)!r}"
    return "a list" if isinstance(data, list) else "fields"


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "…"


def failure(annotation: Any, data: Any, error: dict[str, Any]) -> tuple[str, str]:
    """What is wrong with a value, and the cure, from what pydantic says of it."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "value_error":
        cure = "write it as 30s, 5m, 1h30m or 2d" if "duration" in str(context["error"]) else "change it"
        return f"{context['error']}, got {given(data)}", cure
    if kind == "string_pattern_mismatch":
        rule = _NAME_RULE if STEP_NAME in str(context["pattern"]) else f"it has to match {context['pattern']}"
        return f"{data!r} cannot be a name", rule
    if kind in _RULES:
        words, key = _RULES[kind]
        rule = words.format(**{key: context[key]})
        return f"the value {rule}, got {data}", f"give a number that fits: it {rule}"
    if kind == "too_short":
        return "the list is empty", "add an item, or leave the field out"
    message = f"expected {expected(annotation)}, got {given(data)}"
    return message, _choice(annotation, data) or _cure(annotation, data)


def _choice(annotation: Any, data: Any) -> str:
    """A close one of the words that a field takes."""
    known = [
        str(word)
        for option in options(annotation)
        if typing.get_origin(bare(option)) is Literal
        for word in typing.get_args(bare(option))
    ]
    return did_you_mean(data, known) if isinstance(data, str) else ""


def _cure(annotation: Any, data: Any) -> str:
    shapes = {shape(option) for option in options(annotation)}
    if data is None:
        return "give it a value, or leave the field out"
    if "list" in shapes and not isinstance(data, list):
        return "begin each item with `- `"
    if shapes == {"fields"}:
        return "write its fields on lines of their own, each as `name: value`"
    if isinstance(data, (int, float, bool)) and any(bare(option) is str for option in options(annotation)):
        return f'put it in quotes: "{given(data).removeprefix("the number ")}"'
    return f"write {expected(annotation)}"
