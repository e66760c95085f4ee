"""A workflow file's data as a `Definition`, or every problem it has at once."""

from __future__ import annotations

import itertools
from typing import Any

from pydantic import ValidationError

from holdfast.workflows.model import KINDS, Definition
from holdfast.workflows.reading.checks import Reading, check_names, check_order
from holdfast.workflows.reading.problems import MOST_PROBLEMS, Problem, WorkflowInvalid
from holdfast.workflows.reading.shapes import Shape, read_shape
from holdfast.workflows.reading.source import Source
from holdfast.workflows.reading.step_checks import check_kinds, check_texts


def parse(source: Source) -> Definition:
    """The definition that a file holds; `WorkflowInvalid` lists everything that is wrong with it."""
    if not isinstance(source.data, dict):
        raise WorkflowInvalid([_no_fields(source)])
    shape = _shape(source)
    problems = list(shape.problems)
    definition = Definition.model_validate(shape.data, by_alias=True, by_name=False)
    problems += check(source, definition, shape)
    if problems:
        raise WorkflowInvalid(problems)
    return definition


def check(source: Source, definition: Definition, shape: Shape) -> list[Problem]:
    """What is wrong with the meaning of a definition, as far as its shape could be read."""
    reading = Reading(source, definition, frozenset(shape.unread), frozenset(shape.names))
    checks = [check_names, check_kinds, check_texts, *([] if shape.problems else [check_order])]
    found = itertools.chain.from_iterable(check(reading) for check in checks)
    return list(itertools.islice(found, MOST_PROBLEMS))


def _shape(source: Source) -> Shape:
    """The data as it is if the models take it, else what can be read of it."""
    try:
        Definition.model_validate(source.data, by_alias=True, by_name=False)
    except ValidationError:
        return read_shape(source)
    return Shape(source.data) if _kinds_are_clear(source.data["steps"]) else read_shape(source)


def _kinds_are_clear(steps: list[Any]) -> bool:
    for step in steps:
        if sum(step.get(kind) is not None for kind in KINDS) != 1:
            return False
        inner = step.get("parallel") or []
        if not _kinds_are_clear(inner if isinstance(inner, list) else inner["steps"]):
            return False
    return True


def _no_fields(source: Source) -> Problem:
    hint = "a workflow file begins with `workflow:` (with a `name`) and has a list of `steps:`"
    if source.data is None:
        return source.problem((), "the file is empty", hint)
    found = "a list" if isinstance(source.data, list) else "text or a number"
    return source.problem((), f"expected the fields workflow and steps, got {found}", hint)
