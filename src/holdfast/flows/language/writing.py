"""How values are written: in texts, and as JSON. The size is known before anything is written."""

from __future__ import annotations

import json
from typing import Any

from holdfast.flows.language.plain import (
    MAX_BITS,
    MAX_DEPTH,
    MAX_LENGTH,
    SCALARS,
    Budget,
    Misuse,
    describe,
    elements,
    entries,
    exact,
    fits,
    kind,
    size,
)


def as_text(budget: Budget, value: Any) -> str:
    """How a value looks in a text: null as nothing, `true`, numbers, lists and mappings as JSON."""
    found, value = kind(value), exact(value)
    if found == "text":
        return str(value)
    if found == "null":
        return ""
    if found == "boolean":
        return "true" if value else "false"
    if found == "number":
        if not fits(value):
            raise Misuse(f"the number has more than {MAX_BITS} bits and cannot be written")
        return str(value)
    return as_json(budget, value)


def as_json(budget: Budget, value: Any, indent: int | None = None) -> str:
    """A value as JSON, if it is plain data of reasonable size and depth."""
    copied = _copy(budget, value, [0], MAX_DEPTH)
    try:
        written = json.dumps(copied, ensure_ascii=False, indent=indent, allow_nan=False)
    except ValueError:
        raise Misuse("JSON has no way to write infinity or 'not a number'") from None
    budget.new_text(len(written))
    return written


def _copy(budget: Budget, value: Any, written: list[int], depth: int) -> Any:
    """A copy of built-in types only, made while counting, since shared parts are written each time."""
    found, value = kind(value), exact(value)
    written[0] += 2 + (len(value) if found == "text" else 0)
    budget.items(1)
    if written[0] > MAX_LENGTH or depth < 0:
        raise Misuse("the value is too large or too deeply nested to be written as text")
    if found == "list":
        return [_copy(budget, item, written, depth - 1) for item in elements(value)]
    if found == "mapping":
        return {_key(key, written): _copy(budget, item, written, depth - 1) for key, item in entries(value)}
    if found not in SCALARS:
        raise Misuse(f"{describe(value)} cannot be written as text; let the step return plain data")
    if found == "number" and not fits(value):
        raise Misuse(f"a number has more than {MAX_BITS} bits and cannot be written")
    return value


def _key(key: Any, written: list[int]) -> Any:
    if kind(key) not in SCALARS or not fits(exact(key)):
        raise Misuse(f"a mapping with {describe(key)} as a key cannot be written as text")
    written[0] += size(key) if kind(key) == "text" else 4
    return exact(key)
