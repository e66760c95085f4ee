"""Forms for the questions of runs: fields made from the schema of the answers, and answers read from what was typed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.web.pages.wording import one_line

MOST_RADIOS = 6
"""Of more choices than this one is selected from a list."""

_SIMPLE = ("string", "integer", "number", "boolean")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form, as it is shown."""

    name: str
    label: str
    kind: str
    """`choice`, `list`, `flag`, `number`, `line`, `text` or `json`."""
    hint: str = ""
    value: str = ""
    """What was typed, or what is given at first."""
    choices: tuple[tuple[str, str], ...] = ()
    required: bool = True
    limits: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


class Read(NamedTuple):
    """What a form gives: a value, or what is wrong with which field."""

    value: Any
    problems: Mapping[str, str]


def fields_of(
    schema: Mapping[str, Any] | None,
    label: str,
    typed: Mapping[str, str] | None = None,
    problems: Mapping[str, str] | None = None,
) -> list[Field]:
    """Return the fields for a value that fits a schema, with what was typed into them before."""
    known, wrong = typed or {}, problems or {}
    if _has_parts(schema):
        assert schema is not None
        needed = schema.get("required", ())
        return [
            _field(f"value.{name}", each, name, known, wrong, required=name in needed)
            for name, each in schema["properties"].items()
        ]
    return [_field("value", schema or {}, label, known, wrong, required=True)]


def _has_parts(schema: Mapping[str, Any] | None) -> bool:
    """Return whether a value is an object of simple parts, each of which gets a field."""
    parts = (schema or {}).get("properties")
    if not isinstance(parts, Mapping) or not parts or "enum" in (schema or {}):
        return False
    return all(
        isinstance(each, Mapping) and ("enum" in each or each.get("type") in _SIMPLE)
        for each in parts.values()
    )


def _field(
    name: str,
    schema: Mapping[str, Any],
    label: str,
    typed: Mapping[str, str],
    problems: Mapping[str, str],
    *,
    required: bool,
) -> Field:
    kind, choices = _kind(schema), _choices(schema)
    first = _at_first(schema, kind, choices)
    limits = {
        attribute: schema[key]
        for attribute, key in (("min", "minimum"), ("max", "maximum"), ("maxlength", "maxLength"))
        if isinstance(schema.get(key), (int, float))
    }
    hint = schema.get("description")
    return Field(
        name,
        one_line(schema.get("title") or label, 120),
        kind,
        one_line(hint, 300) if isinstance(hint, str) else "",
        typed.get(name, first),
        tuple((str(number), one_line(_text(each), 200)) for number, each in enumerate(choices)),
        required,
        limits if kind in ("number", "line", "text") else {},
        problems.get(name, ""),
    )


def _kind(schema: Mapping[str, Any]) -> str:
    if _choices(schema):
        return "choice" if len(_choices(schema)) <= MOST_RADIOS else "list"
    kind = schema.get("type")
    if kind == "boolean":
        return "flag"
    if kind in ("integer", "number"):
        return "number"
    if kind == "string":
        short = isinstance(schema.get("maxLength"), int) and schema["maxLength"] <= 100
        return "line" if short else "text"
    return "json" if schema else "text"


def _choices(schema: Mapping[str, Any]) -> Sequence[Any]:
    found = schema.get("enum")
    return found if isinstance(found, (list, tuple)) else ()


def _at_first(schema: Mapping[str, Any], kind: str, choices: Sequence[Any]) -> str:
    if "default" not in schema:
        return ""
    default = schema["default"]
    if choices:
        return str(choices.index(default)) if default in choices else ""
    return json.dumps(default) if kind in ("json", "flag") else _text(default)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_value(schema: Mapping[str, Any] | None, form: Mapping[str, str]) -> Read:
    """Return the value that was typed into the fields of a schema."""
    if not _has_parts(schema):
        return _read("value", schema or {}, form, required=True)
    assert schema is not None
    found, problems = {}, {}
    for part, each in schema["properties"].items():
        name = f"value.{part}"
        required = part in schema.get("required", ())
        if not form.get(name, "") and not required:
            continue
        value, wrong = _read(name, each, form, required=required)
        problems |= wrong
        found[part] = value
    return Read(found, problems)


def _read(name: str, schema: Mapping[str, Any], form: Mapping[str, str], *, required: bool) -> Read:
    text, kind, choices = form.get(name, ""), _kind(schema), _choices(schema)
    if kind in ("choice", "list"):
        if not text.isdecimal() or int(text) >= len(choices):
            return Read(None, {name: "choose one of these"})
        return Read(choices[int(text)], {})
    if kind == "flag":
        if text not in ("true", "false"):
            return Read(None, {name: "choose yes or no"})
        return Read(text == "true", {})
    if kind == "number":
        return _number(name, text.strip(), whole=schema.get("type") == "integer")
    if kind == "json" or (not schema and form.get("as_json")):
        return read_json(name, text)
    # Browsers send lines that end in carriage returns.
    text = text.replace("\r\n", "\n")
    if not text and schema.get("minLength"):
        return Read(None, {name: "write something here"})
    return Read(text, {})


def _number(name: str, text: str, *, whole: bool) -> Read:
    try:
        return Read(int(text) if whole else float(text), {})
    except ValueError:
        kind = "a whole number" if whole else "a number"
        return Read(None, {name: f"write {kind}, not {one_line(text, 60)!r}" if text else f"write {kind}"})


def read_json(name: str, text: str) -> Read:
    """Return the value of a text that is JSON."""
    try:
        return Read(json.loads(text, parse_constant=_no_constant), {})
    except (ValueError, RecursionError) as error:
        return Read(None, {name: f"this is no JSON: {error}" if text.strip() else "write JSON here"})


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
