"""A checker of plain data against a JSON Schema, in bounded time whatever the schema and the data are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema

Schema = Mapping[str, Any]

_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_number(value) and value == value // 1,
    "number": lambda value: _is_number(value),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}
_WITH_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_WITH_NAMED_SCHEMAS = ("properties", "$defs", "definitions")
_WITH_SCHEMA = ("items", "additionalProperties", "not")
_KNOWN = {
    *_WITH_SCHEMAS, *_WITH_NAMED_SCHEMAS, *_WITH_SCHEMA, "$ref", "type", "enum", "const", "required",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength",
    "pattern", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties",
    "$schema", "$id", "$comment", "title", "description", "default", "examples", "format", "deprecated",
}  # fmt: skip
_LENGTHS = (
    (str, "characters", "minLength", "maxLength"),
    (list, "items", "minItems", "maxItems"),
    (dict, "keys", "minProperties", "maxProperties"),
)
_BOUNDS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("at least", lambda value, bound: bool(value >= bound)),
    "maximum": ("at most", lambda value, bound: bool(value <= bound)),
    "exclusiveMinimum": ("more than", lambda value, bound: bool(value > bound)),
    "exclusiveMaximum": ("less than", lambda value, bound: bool(value < bound)),
    "multipleOf": ("a multiple of", lambda value, bound: bool(value % bound == 0)),
}
_LONGEST = 4000
"""A reason is cut after so many characters: that of options has those of all options within."""


def unsupported(schema: Any, root: Schema | None = None, where: str = "the schema") -> str | None:
    """Return why `schema` cannot be used to check an output, or `None` if it can. Finds keywords it would ignore."""
    if isinstance(schema, bool):
        return None
    if not isinstance(schema, Mapping):
        return f"{where} must be a mapping, not {type(schema).__name__}"
    root = schema if root is None else root
    for key in schema:
        if key not in _KNOWN:
            return f"{where} uses {key!r}, which is not supported; known are {', '.join(sorted(_KNOWN))}"
    for kind in _kinds(schema):
        if kind not in _TYPES:
            return f"{where} names the type {kind!r}; known are {', '.join(_TYPES)}"
    if reason := _bad_reference(schema, root):
        return f"{where} refers to {reason}"
    if "pattern" in schema and (reason := pattern_problem(schema["pattern"])):
        pattern = f"{where} has the pattern {schema['pattern']!r}"
        return f"{pattern}, which is not a regular expression that can be matched: {reason}"
    inside = (unsupported(part, root, place) for place, part in _parts(schema, where))
    return next(filter(None, inside), None)


def _bad_reference(schema: Schema, root: Schema) -> str | None:
    seen: list[Any] = []
    while isinstance(schema, Mapping) and "$ref" in schema:
        if schema["$ref"] in seen:
            return f"itself: {schema['$ref']!r}"
        seen.append(schema["$ref"])
        try:
            schema = _referred(schema["$ref"], root)
        except LookupError:
            return f"{seen[-1]!r}, which is not there; only '#/$defs/NAME' can be referred to"
    return None


def _parts(schema: Schema, where: str) -> Iterator[tuple[str, Any]]:
    for key in _WITH_SCHEMAS:
        yield from ((f"{where}.{key}[{place}]", part) for place, part in enumerate(schema.get(key, ())))
    for key in _WITH_NAMED_SCHEMAS:
        yield from ((f"{where}.{key}.{name}", part) for name, part in schema.get(key, {}).items())
    for key in _WITH_SCHEMA:
        if key in schema:
            yield f"{where}.{key}", schema[key]


def misfit(value: Any, schema: Any) -> str | None:
    """Return why `value` does not fit a supported schema, or `None` if it does."""
    return _Fitting(schema).misfit(value, schema, "the output")


class _Fitting:
    """Checks one value. Whether a part of it fits a part of the schema is found out once, however many options ask."""

    def __init__(self, root: Any) -> None:
        self._root, self._known = root, dict[tuple[int, int], str | None]()

    def misfit(self, value: Any, schema: Any, where: str) -> str | None:
        if isinstance(schema, bool):
            return None if schema else f"{where} must not be there"
        if not isinstance(value, (list, dict)):
            return self._misfit(value, schema, where)
        pair = (id(value), id(schema))
        if pair not in self._known:
            reason = self._misfit(value, schema, where)
            self._known[pair] = reason if reason is None else reason[:_LONGEST]
        return self._known[pair]

    def _misfit(self, value: Any, schema: Schema, where: str) -> str | None:
        if "$ref" in schema:
            referred = _referred(schema["$ref"], self._root)
            if reason := self.misfit(value, referred, where):
                return reason
        return (
            _misfit_alone(value, schema, where)
            or self._misfit_options(value, schema, where)
            or (self._misfit_items(value, schema, where) if isinstance(value, list) else None)
            or (self._misfit_keys(value, schema, where) if isinstance(value, dict) else None)
        )

    def _misfit_options(self, value: Any, schema: Schema, where: str) -> str | None:
        for part in schema.get("allOf", ()):
            if reason := self.misfit(value, part, where):
                return reason
        for key in ("anyOf", "oneOf"):
            reasons = [self.misfit(value, part, where) for part in schema.get(key, ())]
            if reasons and None not in reasons:
                return f"{where} fits none of its options: {'; '.join(filter(None, reasons))}"
            if key == "oneOf" and reasons.count(None) > 1:
                return f"{where} must fit only one of its options, not {reasons.count(None)}"
        if "not" in schema and self.misfit(value, schema["not"], where) is None:
            return f"{where} must not be {value!r:.80}"
        return None

    def _misfit_items(self, value: list[Any], schema: Schema, where: str) -> str | None:
        leading = schema.get("prefixItems", ())
        for place, item in enumerate(value):
            part = leading[place] if place < len(leading) else schema.get("items", True)
            if reason := self.misfit(item, part, f"{where}[{place}]"):
                return reason
        if schema.get("uniqueItems") and len(set(map(_mark, value))) < len(value):
            return f"{where} must not have an item twice"
        return None

    def _misfit_keys(self, value: dict[str, Any], schema: Schema, where: str) -> str | None:
        for key in schema.get("required", ()):
            if key not in value:
                return f"{where} lacks {key!r}"
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        for key, item in value.items():
            if key not in properties and others is False:
                return f"{where} has an unknown key {key!r}"
            if reason := self.misfit(item, properties.get(key, others), f"{where}.{key}"):
                return reason
        return None


def _misfit_alone(value: Any, schema: Schema, where: str) -> str | None:
    """Return why a value does not fit what a schema says of it as a whole: type, options, bounds, pattern."""
    kinds, shown = _kinds(schema), f"{value!r:.80}"
    if kinds and not any(_TYPES[kind](value) for kind in kinds):
        return f"{where} must be of type {' or '.join(kinds)}, not {shown}"
    if "enum" in schema and not any(_equal(value, option) for option in schema["enum"]):
        return f"{where} must be one of {', '.join(map(repr, schema['enum']))}, not {shown}"
    if "const" in schema and not _equal(value, schema["const"]):
        return f"{where} must be {schema['const']!r}, not {shown}"
    for key, (words, fits) in _BOUNDS.items() if _is_number(value) else ():
        if key in schema and not fits(value, schema[key]):
            return f"{where} must be {words} {schema[key]}, not {value!r}"
    for kind, unit, low, high in _LENGTHS:
        if isinstance(value, kind):
            if len(value) < schema.get(low, 0):
                return f"{where} must have at least {schema[low]} {unit}, not {len(value)}"
            if high in schema and len(value) > schema[high]:
                return f"{where} must have at most {schema[high]} {unit}, not {len(value)}"
    if isinstance(value, str) and "pattern" in schema and not is_match(schema["pattern"], value):
        return f"{where} must match {schema['pattern']!r}, not be {shown}"
    return None


def _kinds(schema: Schema) -> list[Any]:
    named = schema.get("type", [])
    return named if isinstance(named, list) else [named]


def _referred(reference: Any, root: Schema) -> Any:
    start, _, name = str(reference).rpartition("/")
    if start not in ("#/$defs", "#/definitions"):
        raise LookupError(reference)
    return root[start.removeprefix("#/")][name]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _mark(value: Any) -> Any:
    """Return a hashable key that is the same for equal values.

    Numbers become text, since many numbers can share one hash.
    """
    if isinstance(value, list):
        return ("list", *map(_mark, value))
    if isinstance(value, dict):
        return "object", frozenset((key, _mark(item)) for key, item in value.items())
    if _is_number(value):
        is_whole = isinstance(value, int) or value.is_integer()
        return "number", f"{int(value):x}" if is_whole else repr(value)
    return type(value).__name__, value


def _equal(one: Any, other: Any) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


# Patterns, matched in time that is proportional to the text, whatever they are.


Path = tuple[str | int, ...]

_DATA = ("const", "default", "enum", "examples")


@functools.lru_cache(maxsize=256)
def _compiled(pattern: str) -> SchemaValidator:
    # Python's own expressions try every way to match: `(a+)+$` takes hours for 40 characters. This engine does not, and
    # refuses what it would need that for: looking around and referring back.
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def pattern_problem(pattern: Any) -> str | None:
    """Return why a pattern cannot be matched, or `None` if it can."""
    if not isinstance(pattern, str):
        return f"a pattern has to be a text, not {type(pattern).__name__}"
    try:
        _compiled(_encodable(pattern))
    except SchemaError as error:
        last = str(error).strip().rpartition("\n")[2]
        return last.removeprefix("error: ").removeprefix("SchemaError: ").strip()
    return None


def is_match(pattern: str, text: str) -> bool:
    """Return whether a pattern matches a part of a text, as JSON Schema has it."""
    return _compiled(_encodable(pattern)).isinstance_python(_encodable(text))


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def patterns_in(schema: Any, path: Path = (), *, named: bool = False) -> Iterator[tuple[Path, Any]]:
    """Yield the patterns in a schema of any form, each with its place; if `named`, in the schemas of a mapping."""
    if isinstance(schema, list):
        for place, part in enumerate(schema):
            yield from patterns_in(part, (*path, place))
    if not isinstance(schema, Mapping):
        return
    for key, part in schema.items():
        if named:
            yield from patterns_in(part, (*path, key))
        elif key == "pattern":
            yield (*path, key), part
        elif key not in _DATA:
            yield from patterns_in(part, (*path, key), named=key in _WITH_NAMED_SCHEMAS)
