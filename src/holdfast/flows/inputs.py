"""What a workflow is given: checked against what it declares, with its defaults."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from holdfast.flows.errors import InputInvalid
from holdfast.flows.model import Input, Workflow

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
}
_TRUE, _FALSE = {"true", "yes", "1", "on"}, {"false", "no", "0", "off"}


def read_inputs(
    workflow: Workflow, given: Mapping[str, Any], text: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Every declared input; `given` as they are, `text` read as their types say. `InputInvalid` tells all problems."""
    problems: list[str] = []
    values: dict[str, Any] = {}
    text = text or {}
    for name in (*given, *text):
        if name not in workflow.inputs:
            problems.append(_unknown(name, workflow))
    for name, declared in workflow.inputs.items():
        try:
            values[name] = _value(name, declared, given, text)
        except ValueError as error:
            problems.append(f"input {name!r} {error}")
    if problems:
        raise InputInvalid(workflow.name, problems)
    return values


def _value(name: str, declared: Input, given: Mapping[str, Any], text: Mapping[str, str]) -> Any:
    if name in text:
        value = _read(declared.type, text[name])
    elif name in given:
        value = given[name]
    elif declared.required and declared.default is None:
        about = f" ({declared.description})" if declared.description else ""
        raise ValueError(f"is missing{about}; give it with --input {name}=…")
    else:
        return declared.default
    return _checked(declared, value)


def _checked(declared: Input, value: Any) -> Any:
    if value is None and not declared.required:
        return value
    if declared.type != "any" and not fits(declared.type, value):
        raise ValueError(f"must be of type {declared.type}, not {type(value).__name__}: {value!r:.80}")
    if declared.choices is not None and value not in declared.choices:
        raise ValueError(f"must be one of {', '.join(map(repr, declared.choices))}, not {value!r:.80}")
    return value


def fits(kind: str, value: Any) -> bool:
    """Whether a value is of a declared type."""
    if isinstance(value, bool) and kind in ("integer", "number"):
        return False
    return isinstance(value, _TYPES.get(kind, (object,)))


def _read(kind: str, text: str) -> Any:
    if kind == "string":
        return text
    if kind == "boolean":
        word = text.strip().lower()
        if word not in _TRUE | _FALSE:
            raise ValueError(f"must be true or false, not {text!r:.80}")
        return word in _TRUE
    try:
        value = json.loads(text)
    except ValueError:
        if kind == "any":
            return text
        if kind == "array":
            return [part.strip() for part in text.split(",")]
        raise ValueError(f"must be of type {kind}, not {text!r:.80}") from None
    if (
        kind == "number"
        and isinstance(value, float)
        and (value != value or value in (float("inf"), -float("inf")))
    ):
        raise ValueError(f"must be a number, not {text!r:.80}")
    return value


def _unknown(name: str, workflow: Workflow) -> str:
    close = difflib.get_close_matches(name, workflow.inputs, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"there is no input {name!r}{hint} (declared: {', '.join(workflow.inputs) or 'none'})"
