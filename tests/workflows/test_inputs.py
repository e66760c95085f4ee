"""Inputs of a workflow: declared, given as values or as text, and refused all at once if they do not fit."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.workflows.scope import InputInvalid, read_inputs
from holdfast.workflows.settings import WorkflowSettings


def workflow(**inputs: Any) -> WorkflowSettings:
    return WorkflowSettings.model_validate({"name": "test", "inputs": inputs})


def refused(declared: Any, values: Any = None, text: Any = None) -> str:
    with pytest.raises(InputInvalid) as caught:
        read_inputs(workflow(x=declared), values or {}, text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "12", "12"),
        ("string", "", ""),
        ("string", "true", "true"),
        ("integer", "12", 12),
        ("integer", " -3 ", -3),
        ("number", "1.5", 1.5),
        ("number", "3", 3),
        ("boolean", "true", True),
        ("boolean", "No", False),
        ("boolean", "1", True),
        ("boolean", "off", False),
        ("array", '["a", 1]', ["a", 1]),
        ("array", "a, b,c", ["a", "b", "c"]),
        ("array", "5", ["5"]),
        ("array", "", []),
        ("object", '{"a": 1}', {"a": 1}),
        ("any", "a", "a"),
        ("any", "[1]", [1]),
        ("any", "null", None),
    ],
)
def test_text_is_read_as_the_type_says(kind: str, text: str, value: Any) -> None:
    assert read_inputs(workflow(x={"type": kind}), {}, {"x": text}) == {"x": value}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("integer", "1.5"),
        ("integer", "a"),
        ("integer", ""),
        ("integer", "true"),
        ("number", "NaN"),
        ("number", "Infinity"),
        ("number", "9" * 5000),
        ("boolean", "maybe"),
        ("array", "[1"),
        ("array", "[" * 100_000),
        ("object", "[1]"),
        ("object", "{a: 1}"),
    ],
)
def test_text_that_does_not_fit(kind: str, text: str) -> None:
    told = refused({"type": kind}, text={"x": text})

    assert "input 'x' must be" in told and len(told) < 400


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", 1),
        ("string", None),
        ("integer", True),
        ("integer", 1.0),
        ("number", "1"),
        ("boolean", 1),
        ("array", "a"),
        ("object", [1]),
    ],
)
def test_values_that_do_not_fit(kind: str, value: Any) -> None:
    told = refused({"type": kind, "required": True}, {"x": value})

    assert f"input 'x' must be of type {kind}, not " in told
    for jargon in ("NoneType", "str:", "bool:", "dict"):
        assert jargon not in told


@pytest.mark.parametrize("value", ["a", 1, 1.5, True, None, [1], {"a": 1}])
def test_any_value_fits_any(value: Any) -> None:
    assert read_inputs(workflow(x={"type": "any"}), {"x": value}) == {"x": value}


def test_defaults_and_nothing() -> None:
    declared = workflow(a={"default": "d"}, b={}, c={"required": True, "default": "e"}, f={"type": "integer"})

    assert read_inputs(declared, {}) == {"a": "d", "b": None, "c": "e", "f": None}
    assert read_inputs(declared, {"b": None, "f": None})["f"] is None


def test_text_wins_over_values() -> None:
    assert read_inputs(workflow(x={}), {"x": "value"}, {"x": "text"}) == {"x": "text"}


def test_choices_are_told_apart_by_type() -> None:
    declared = {"type": "any", "choices": [1, "yes", [2]]}

    assert read_inputs(workflow(x=declared), {"x": [2]}) == {"x": [2]}
    for wrong in (True, "1", "no"):
        assert 'must be one of 1, "yes", [2]' in refused(declared, {"x": wrong})


def test_every_problem_is_told_at_once_with_the_way_out() -> None:
    declared = workflow(
        topic={"required": True, "description": "what to write about"}, count={"type": "integer"}, mode={}
    )

    with pytest.raises(InputInvalid) as caught:
        read_inputs(declared, {"coutn": 1}, {"count": "many", "zzz": "1"})

    assert caught.value.problems == (
        "there is no input 'coutn'; did you mean 'count'? (declared: topic, count, mode)",
        "there is no input 'zzz' (declared: topic, count, mode)",
        "input 'topic' is missing (what to write about); give it with --input topic=…",
        "input 'count' must be of type integer, not 'many'",
    )
    assert str(caught.value).startswith("workflow 'test' cannot begin with these inputs:\n  - there is no")


def test_a_workflow_without_inputs_takes_none() -> None:
    with pytest.raises(InputInvalid, match=r"there is no input 'a' \(declared: none\)"):
        read_inputs(workflow(), {"a": 1})
