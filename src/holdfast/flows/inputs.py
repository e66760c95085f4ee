"""What a workflow is given: checked against what it declares, with its defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from holdfast.flows.errors import InputInvalid
from holdfast.flows.model import Input, Workflow
from holdfast.flows.reading.words import given
from holdfast.suggestions import suggestion

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
    workflow: Workflow,
    values: Mapping[str, Any],
    text: Mapping[str, str] | None = None,
    how: str = "--input {name}=…",
) -> dict[str, Any]:
    """Every declared input; `values` as they are, `text` read as their types say. `InputInvalid` tells all problems.

    `how` says in these how an input is given.
    """
    problems: list[str] = []
    found: dict[str, Any] = {}
    text = text or {}
    for name in (*values, *text):
        if name not in workflow.inputs:
            problems.append(_unknown(name, workflow))
    for name, declared in workflow.inputs.items():
        try:
            found[name] = _value(name, declared, values, text, how.format(name=name))
        except ValueError as error:
            problems.append(f"input {name!r} {error}")
    if problems:
        raise InputInvalid(workflow.name, problems)
    return found


def _value(name: str, declared: Input, values: Mapping[str, Any], text: Mapping[str, str], how: str) -> Any:
    if name in text:
        value = _read(declared.type, text[name])
    elif name in values:
        value = values[name]
    elif declared.required and declared.default is None:
        about = f" ({declared.description})" if declared.description else ""
        raise ValueError(f"is missing{about}; give it with {how}")
    else:
        return declared.default
    return _checked(declared, value)


def _checked(declared: Input, value: Any) -> Any:
    if value is None and not declared.required:
        return value
    if declared.type != "any" and not fits(declared.type, value):
        raise ValueError(f"must be of type {declared.type}, not {given(value)}")
    if declared.choices is not None and not any(_same(value, choice) for choice in declared.choices):
        listed = ", ".join(json.dumps(choice, ensure_ascii=False, default=str) for choice in declared.choices)
        raise ValueError(f"must be one of {listed}, not {given(value)}")
    return value


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


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
    if kind == "array" and not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",")] if text.strip() else []
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        if kind == "any":
            return text
        raise ValueError(f"must be of type {kind}, not {text!r:.80}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number that can be stored")


def _unknown(name: str, workflow: Workflow) -> str:
    declared = ", ".join(workflow.inputs) or "none"
    return f"there is no input {name!r}{suggestion(name, workflow.inputs)} (declared: {declared})"
