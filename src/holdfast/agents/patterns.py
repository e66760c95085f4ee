"""Regular expressions of JSON Schemas, matched in time that is proportional to the text, whatever they are."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema

Path = tuple[str | int, ...]

_NAMED = ("properties", "$defs", "definitions")
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
        return (
            str(error)
            .strip()
            .rpartition("\n")[2]
            .removeprefix("error: ")
            .removeprefix("SchemaError: ")
            .strip()
        )
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
            yield from patterns_in(part, (*path, key), named=key in _NAMED)
