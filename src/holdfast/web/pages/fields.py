"""Forms made of JSON Schemas: a field for each property, and what was written in them as the values of the schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

WHOLE = ""
"""The name of the one field of a schema without properties."""

LONGEST_TEXT = 1_000_000
"""How many characters one field may have."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form: what it is for, what it takes, and what was written in it."""

    name: str
    kind: str
    """`text`, `number`, `integer`, `choice`, or `json`."""
    required: bool = False
    description: str = ""
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    """What a choice is sent as, and how it reads."""
    written: str = ""
    problem: str = ""

    @property
    def key(self) -> str:
        """The name under which the form sends it."""
        return f"field.{self.name}"

    def read(self, text: str) -> Any:
        """Return the value of what was written, `...` if nothing was; raise `ValueError` if it does not fit."""
        if len(text) > LONGEST_TEXT:
            raise ValueError(f"has {len(text):,} characters, and {LONGEST_TEXT:,} are the most")
        if not text.strip() and (self.kind != "text" or not self.required):
            if self.required:
                raise ValueError("is needed")
            return ...
        if self.kind == "text":
            return text.replace("\r\n", "\n")
        if self.kind == "choice" and text not in dict(self.choices):
            raise ValueError("must be one of the choices")
        try:
            value = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            expected = {"number": "a number", "integer": "a whole number"}.get(self.kind, "JSON")
            detail = f": {error}" if expected == "JSON" else f", not {text!r:.80}"
            raise ValueError(f"must be {expected}{detail}") from None
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self.kind == "number" and not is_number:
            raise ValueError(f"must be a number, not {text!r:.80}")
        if self.kind == "integer" and (not is_number or value != int(value)):
            raise ValueError(f"must be a whole number, not {text!r:.80}")
        return int(value) if self.kind == "integer" else value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def fields_of(schema: Mapping[str, Any]) -> list[Field]:
    """Return the fields of an object's schema; one for JSON if it does not say which properties there are."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return [Field(WHOLE, "json", hint="A JSON object; empty stands for {}.")]
    required = schema.get("required", ())
    return [
        _field(str(name), each if isinstance(each, Mapping) else {}, name in required)
        for name, each in properties.items()
    ]


def _field(name: str, schema: Mapping[str, Any], required: bool) -> Field:
    kinds = schema.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind != "null"]
    found = Field(name, "json", required, str(schema.get("description", "")))
    if isinstance(schema.get("enum"), Sequence):
        choices = [choice for choice in schema["enum"] if choice is not None]
        found = replace(found, kind="choice", choices=tuple((_json(each), _said(each)) for each in choices))
    elif kinds == ["boolean"]:
        found = replace(found, kind="choice", choices=(("true", "yes"), ("false", "no")))
    elif kinds in (["integer"], ["number"]):
        found = replace(found, kind=str(kinds[0]))
    elif kinds == ["string"]:
        found = replace(found, kind="text")
    notes = [f"JSON, of type {kinds[0]}." if len(kinds) == 1 else "JSON."] if found.kind == "json" else []
    if "default" in schema:
        notes.append(f"If left empty: {_said(schema['default'])}")
    return replace(found, hint=" ".join(notes))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _said(value: Any) -> str:
    return (
        {True: "yes", False: "no"}[value]
        if isinstance(value, bool)
        else value
        if isinstance(value, str)
        else _json(value)
    )


def read_fields(fields: Sequence[Field], form: Mapping[str, str]) -> tuple[dict[str, Any], list[Field]]:
    """Return the values of a form that was sent, and the fields with what was written and what is wrong with it."""
    values: dict[str, Any] = {}
    seen = []
    for field in fields:
        written, problem = form.get(field.key, ""), ""
        try:
            value = field.read(written)
        except ValueError as error:
            value, problem = ..., str(error)
        if field.name == WHOLE and value is not ...:
            if isinstance(value, dict):
                values = value
            else:
                problem = 'must be a JSON object, such as {"name": "you"}'
        elif value is not ...:
            values[field.name] = value
        seen.append(replace(field, written=written, problem=problem))
    return values, seen
