"""The format of workflow files as JSON Schema, for editors and for the reference."""

from __future__ import annotations

from typing import Any

from holdfast.workflows.model import Definition

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a workflow file. Optional fields are left out, never null."""
    schema = Definition.model_json_schema(by_alias=True)
    parts = {name: _part(part) for name, part in schema.pop("$defs").items()}
    return {
        "$schema": DIALECT,
        "title": "Holdfast workflow",
        **{key: value for key, value in _part(schema).items() if key != "title"},
        "$defs": parts,
    }


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """A model's schema without the titles that its fields get by themselves."""
    cleaned = dict(part)
    fields = part.get("properties", {})
    if fields:
        cleaned["properties"] = {name: _field(field) for name, field in fields.items()}
    return cleaned


def _field(field: dict[str, Any]) -> dict[str, Any]:
    """A field's schema without its title, and without the null that stands for leaving it out."""
    cleaned = {key: value for key, value in field.items() if key != "title"}
    if cleaned.get("default", ...) is None or "$ref" in cleaned:
        cleaned.pop("default", None)
    options = [option for option in cleaned.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        del cleaned["anyOf"]
        cleaned = {**options[0], **cleaned}
    elif options:
        cleaned["anyOf"] = options
    return cleaned
