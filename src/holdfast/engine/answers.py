"""The answers that a pause takes, described and checked with a small part of JSON Schema."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.errors import HoldfastError

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}
_SIMPLE = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
    tuple: "array",
}
_KNOWN = {
    "type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf",
    "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    "title", "description", "default", "examples",
}  # fmt: skip


def answer_schema(schema: Any, choices: Sequence[Any] | None) -> dict[str, Any] | None:
    """Return the JSON Schema of the answers that fit, as plain data; `None` if any does."""
    described = None if schema is None else _describe(schema)
    if choices is not None:
        described = {**(described or {}), "enum": list(choices)}
    if described is not None:
        _refuse_unknown(described)
    return described


def _describe(schema: Any) -> dict[str, Any]:
    if isinstance(schema, Mapping):
        return dict(schema)
    if schema in _SIMPLE:
        return {"type": _SIMPLE[schema]}
    if schema is type(None) or schema is None:
        return {"type": "null"}
    origin, args = typing.get_origin(schema), typing.get_args(schema)
    if origin is typing.Literal:
        return {"enum": list(args)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_describe(arg) for arg in args]}
    if origin is list:
        return {"type": "array", "items": _describe(args[0])}
    if origin is dict:
        return {"type": "object"}
    if dataclasses.is_dataclass(schema) or typing.is_typeddict(schema):
        required = [
            field.name
            for field in (dataclasses.fields(schema) if dataclasses.is_dataclass(schema) else ())
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        ]
        hints = typing.get_type_hints(schema)
        return {
            "type": "object",
            "properties": {name: _describe(hint) for name, hint in hints.items()},
            "required": sorted(schema.__required_keys__) if typing.is_typeddict(schema) else required,
            "additionalProperties": False,
        }
    raise HoldfastError(
        f"{schema!r} cannot describe an answer: give a JSON Schema, str, int, float, bool, list, dict, "
        "Literal, a union, a TypedDict or a dataclass"
    )


def _refuse_unknown(schema: Mapping[str, Any]) -> None:
    for key in schema:
        if key not in _KNOWN:
            raise HoldfastError(
                f"an answer's schema cannot use {key!r}; it knows {', '.join(sorted(_KNOWN))}"
            )
    named = schema.get("type", [])
    for kind in named if isinstance(named, list) else [named]:
        if kind not in _TYPES:
            raise HoldfastError(f"an answer's schema names the type {kind!r}; it knows {', '.join(_TYPES)}")
    for part in (*schema.get("properties", {}).values(), *schema.get("anyOf", ())):
        _refuse_unknown(part)
    if "items" in schema:
        _refuse_unknown(schema["items"])


def misfit(value: Any, schema: Mapping[str, Any], where: str = "the answer") -> str | None:
    """Return why `value` does not fit, or `None` if it does."""
    if "anyOf" in schema:
        reasons = [misfit(value, option, where) for option in schema["anyOf"]]
        if None not in reasons:
            return "; ".join(reason for reason in reasons if reason)
    if "enum" in schema and not any(_equal(value, option) for option in schema["enum"]):
        return f"{where} must be one of {', '.join(map(repr, schema['enum']))}, not {value!r}"
    if "const" in schema and not _equal(value, schema["const"]):
        return f"{where} must be {schema['const']!r}, not {value!r}"
    if "type" in schema:
        wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        kinds = [kind for kind in wanted if not (isinstance(value, bool) and kind in ("integer", "number"))]
        if not any(isinstance(value, _TYPES.get(kind, ())) for kind in kinds):
            return f"{where} must be of type {' or '.join(wanted)}, not {type(value).__name__}: {value!r:.80}"
    return _misfit_bounds(value, schema, where) or _misfit_parts(value, schema, where)


def _equal(one: Any, other: Any) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


_BOUNDS: tuple[tuple[tuple[type, ...], str, Callable[[Any], float], str, str], ...] = (
    ((int, float), "", lambda value: value, "minimum", "maximum"),
    ((str,), "have a length of ", len, "minLength", "maxLength"),
    ((list, tuple), "have a length of ", len, "minItems", "maxItems"),
)


def _misfit_bounds(value: Any, schema: Mapping[str, Any], where: str) -> str | None:
    for kinds, what, measure, low, high in _BOUNDS:
        if not isinstance(value, kinds):
            continue
        size, note = measure(value), "" if what else f", not {value!r}"
        be = what or "be "
        if low in schema and size < schema[low]:
            return f"{where} must {be}at least {schema[low]}{note}"
        if high in schema and size > schema[high]:
            return f"{where} must {be}at most {schema[high]}{note}"
    return None


def _misfit_parts(value: Any, schema: Mapping[str, Any], where: str) -> str | None:
    if isinstance(value, (list, tuple)) and "items" in schema:
        for index, item in enumerate(value):
            if reason := misfit(item, schema["items"], f"{where}[{index}]"):
                return reason
    if isinstance(value, dict):
        for key in schema.get("required", ()):
            if key not in value:
                return f"{where} lacks {key!r}"
        properties = schema.get("properties", {})
        for key, item in value.items():
            if key in properties:
                if reason := misfit(item, properties[key], f"{where}[{key!r}]"):
                    return reason
            elif schema.get("additionalProperties", True) is False:
                return f"{where} has an unknown key {key!r}"
    return None
