"""The inputs of a workflow that is a function: its parameters as a JSON Schema, and values checked against them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

from holdfast.engine.answers import answer_schema, misfit
from holdfast.errors import HoldfastError, suggestion
from holdfast.functions.workflows import WorkflowFunction
from holdfast.workflows.scope import InputInvalid

_VARYING: Mapping[Any, dict[str, Any]] = {
    inspect.Parameter.VAR_POSITIONAL: {"type": "array"},
    inspect.Parameter.VAR_KEYWORD: {"type": "object"},
}


def function_schema(function: WorkflowFunction[Any, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a function's parameters; an annotation that is not simple takes any value."""
    hints, parameters = _hints(function), function.signature.parameters
    needed = [name for name, each in parameters.items() if _is_needed(each)]
    return {
        "type": "object",
        "properties": {name: _parameter(each, hints.get(name)) for name, each in parameters.items()},
        "required": needed,
        "additionalProperties": False,
    }


def function_inputs(function: WorkflowFunction[Any, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by name, defaults included; `InputInvalid` tells all that does not fit."""
    parameters, properties = function.signature.parameters, function_schema(function)["properties"]
    declared = ", ".join(parameters) or "none"
    problems = [
        f"there is no input {name!r}{suggestion(name, parameters)} (declared: {declared})"
        for name in given
        if name not in parameters
    ]
    found: dict[str, Any] = {}
    for name, each in parameters.items():
        if name in given:
            problems += filter(None, [misfit(given[name], properties[name], f"input {name!r}")])
            found[name] = given[name]
        elif _is_needed(each):
            problems.append(f"input {name!r} is missing")
        else:
            found[name] = _default(each)
    if problems:
        raise InputInvalid(function.name, problems)
    return found


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in _VARYING


def _default(parameter: inspect.Parameter) -> Any:
    if parameter.kind in _VARYING:
        return [] if parameter.kind is parameter.VAR_POSITIONAL else {}
    return parameter.default


def _hints(function: WorkflowFunction[Any, Any]) -> dict[str, Any]:
    try:
        return inspect.get_annotations(function.function, eval_str=True)
    except Exception:  # Names that only type checkers know.
        return {}


def _parameter(parameter: inspect.Parameter, hint: Any) -> dict[str, Any]:
    """Return the schema of a parameter: its type, if that is simple, and its default, if JSON has it."""
    if parameter.kind in _VARYING:
        return dict(_VARYING[parameter.kind])
    found = {} if hint is None else _simple(hint)
    if parameter.default is None and isinstance(found.get("type"), str):
        found["type"] = [found["type"], "null"]
    if parameter.default not in (parameter.empty, None) and _is_json(parameter.default):
        found["default"] = parameter.default
    return found


def _simple(hint: Any) -> dict[str, Any]:
    """Return the schema of an annotation of plain data; that of a choice with `None` as a list of types."""
    try:
        found = answer_schema(hint, None) or {}
    except (HoldfastError, TypeError):
        return {}
    options = found.get("anyOf", ())
    kinds = [option.get("type") for option in options if list(option) == ["type"]]
    if options and len(kinds) == len(options) and all(isinstance(kind, str) for kind in kinds):
        return {"type": kinds}
    return {} if "properties" in found or "properties" in found.get("items", {}) else found


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
