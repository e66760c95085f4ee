"""Values that a file promises to fit a type: defaults and choices of inputs and questions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.flows.model import Ask
from holdfast.flows.reading.checks.reading import Placed, Reading
from holdfast.flows.reading.problems import Problem, listed
from holdfast.flows.reading.source import DataPath
from holdfast.flows.reading.words import given

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
_CHOICE = {"value", "label", "description"}


def fits(kind: str, value: Any) -> bool:
    """Whether a value is of a type that an input or a question may have."""
    if kind == "any":
        return True
    return isinstance(value, _TYPES[kind]) and isinstance(value, bool) == (kind == "boolean")


def check_inputs(reading: Reading) -> Iterator[Problem]:
    """Defaults and choices of inputs that do not fit."""
    for name, declared in reading.definition.workflow.inputs.items():
        path = ("workflow", "inputs", name)
        choices = list(declared.choices or ())
        yield from _choices(reading, path, declared.type, choices, f"input {name!r}")
        yield from _default(reading, path, declared.type, declared.default, choices, f"input {name!r}")


def check_ask(reading: Reading, placed: Placed) -> Iterator[Problem]:
    """Defaults and choices of questions that do not fit."""
    ask = placed.step.ask
    if not isinstance(ask, Ask):
        return
    if ask.timeout == 0:
        yield reading.source.problem((*placed.path, "ask", "timeout"), "a timeout of 0", "give it above 0")
    asked: list[tuple[DataPath, Any]] = [((*placed.path, "ask"), ask)]
    asked += [((*placed.path, "ask", "questions", i), item) for i, item in enumerate(ask.questions)]
    for path, question in asked:
        choices = [_value(choice) for choice in question.choices or ()]
        owner = f"the question of {placed.title}"
        yield from _forms(reading, path, question.choices or [])
        yield from _choices(reading, path, question.type, choices, owner)
        yield from _default(reading, path, question.type, question.default, choices, owner)


def _value(choice: Any) -> Any:
    return choice["value"] if isinstance(choice, dict) and "value" in choice else choice


def _forms(reading: Reading, path: DataPath, choices: list[Any]) -> Iterator[Problem]:
    for index, choice in enumerate(choices):
        if isinstance(choice, dict) and ("value" not in choice or set(choice) - _CHOICE):
            message = "a choice with fields needs a value, and may have a label and a description"
            yield reading.source.problem((*path, "choices", index), message, f"use {listed(sorted(_CHOICE))}")


def _choices(
    reading: Reading, path: DataPath, kind: str, choices: list[Any], owner: str
) -> Iterator[Problem]:
    for index, choice in enumerate(choices):
        place = (*path, "choices", index)
        if not _is_open(choice) and not fits(kind, choice):
            message = f"a choice of {owner} is {given(choice)}, which is not of type {kind}"
            yield reading.source.problem(place, message, "change the choice or the type")


def _default(
    reading: Reading, path: DataPath, kind: str, default: Any, choices: list[Any], owner: str
) -> Iterator[Problem]:
    if default is None or _is_open(default):
        return
    place = (*path, "default")
    if not fits(kind, default):
        message = f"the default of {owner} is {given(default)}, which is not of type {kind}"
        hint = _quotes(kind, default)
        yield reading.source.problem(place, message, hint)
    elif choices and default not in choices and not any(map(_is_open, choices)):
        message = f"the default of {owner} is not one of its choices"
        yield reading.source.problem(place, message, f"the choices are {listed(map(str, choices))}")


def _quotes(kind: str, default: Any) -> str:
    if kind == "string" and isinstance(default, (int, float)):
        return "put it in quotes, or change the type"
    if isinstance(default, str) and kind in ("integer", "number", "boolean"):
        return "write it without quotes (true and false for a boolean), or change the type"
    return "change the default or the type"


def _is_open(value: Any) -> bool:
    """Whether a value is known only when the run comes to it."""
    return isinstance(value, str) and ("{{" in value or "{%" in value)
