"""Whether an output fits a schema."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from holdfast.agents.schema import misfit, unsupported

TREE = {"type": "object", "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}


@pytest.mark.parametrize(
    ("schema", "fitting", "wrong"),
    [
        ({"type": "string"}, ["", "a"], [1, None, ["a"]]),
        ({"type": "integer"}, [1, -1, 2.0], [True, 1.5, "1", float("inf"), float("nan")]),
        ({"type": "number"}, [1, 1.5], [True, "1"]),
        ({"type": "boolean"}, [True], [1, "true"]),
        ({"type": ["string", "null"]}, ["a", None], [0]),
        ({"enum": ["a", 1, None]}, ["a", 1, None], ["b", True]),
        ({"const": {"a": 1}}, [{"a": 1}], [{"a": 2}, None]),
        ({"minimum": 1, "maximum": 2}, [1, 2, "x"], [0, 3]),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 2}, [1.5], [1, 2]),
        ({"multipleOf": 5}, [10, 0], [3]),
        ({"minLength": 1, "maxLength": 2}, ["a", 5], ["", "abc"]),
        ({"pattern": "^[a-z]+$"}, ["abc", 5], ["A1"]),
        ({"minItems": 1, "maxItems": 2}, [[1]], [[], [1, 2, 3]]),
        (
            {"uniqueItems": True},
            [[1, 2], [1, True], [[1], [True]]],
            [[1, 1], [{}, {}], [1, 1.0], [{"a": [1]}, {"a": [1.0]}]],
        ),
        ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}], [{}, {"a": 1, "b": 2}]),
        ({"type": "array", "items": {"type": "integer"}}, [[], [1]], [["a"], {}]),
        ({"prefixItems": [{"type": "string"}], "items": False}, [["a"], []], [[1], ["a", "b"]]),
        ({"required": ["a"]}, [{"a": None}], [{}]),
        ({"properties": {"a": {"type": "string"}}}, [{}, {"a": "x", "b": 1}], [{"a": 1}]),
        ({"properties": {"a": {}}, "additionalProperties": False}, [{"a": 1}], [{"b": 1}]),
        ({"additionalProperties": {"type": "integer"}}, [{"a": 1}], [{"a": "x"}]),
        ({"anyOf": [{"type": "string"}, {"minimum": 5}]}, ["a", 6], [1]),
        ({"oneOf": [{"type": "integer"}, {"minimum": 5}]}, [1, 5.5], [6, 1.5]),
        ({"allOf": [{"type": "integer"}, {"minimum": 5}]}, [6], [1, 5.5]),
        ({"not": {"type": "null"}}, [1], [None]),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}, [1], ["x"]),
        ({**TREE, "$defs": {"tree": TREE}}, [{"below": [{"below": []}]}], [{"below": [{"below": [1]}]}]),
    ],
)
def test_values_fit_or_do_not(schema: Any, fitting: list[Any], wrong: list[Any]) -> None:
    assert unsupported(schema) is None
    for value in fitting:
        assert misfit(value, schema) is None, value
    for value in wrong:
        assert misfit(value, schema) is not None, value


def test_a_misfit_says_where_it_is() -> None:
    schema = {"properties": {"a": {"items": {"properties": {"b": {"type": "integer"}}}}}}

    assert misfit({"a": [{}, {"b": "x"}]}, schema) == "the output.a[1].b must be of type integer, not 'x'"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"patternProperties": {}}, "the schema uses 'patternProperties'"),
        ({"properties": {"a": {"items": {"tpye": "string"}}}}, "the schema.properties.a.items uses 'tpye'"),
        ({"type": "text"}, "names the type 'text'"),
        ({"anyOf": [{"type": ["string", "text"]}]}, "the schema.anyOf[0] names the type 'text'"),
        ({"$ref": "#/$defs/a"}, "'#/$defs/a', which is not there"),
        ({"$ref": "https://example.com/schema"}, "which is not there"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "refers to itself"),
        ({"pattern": "("}, "not a regular expression"),
        ({"pattern": "(a)\\1"}, "backreferences are not supported"),
        ({"pattern": "(a{1000}){1000}"}, "exceeds size limit"),
        ({"pattern": 3}, "a pattern has to be a text"),
        ({"items": ["string"]}, "the schema.items must be a mapping"),
        ("string", "must be a mapping"),
    ],
)
def test_what_would_not_be_checked_is_refused(schema: Any, reason: str) -> None:
    found = unsupported(schema)

    assert found is not None and reason in found


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(a|ab?)*$", "(x+x+)+y", "a*a*a*a*a*a*b"])
def test_a_pattern_takes_no_longer_than_the_text_is_long(pattern: str) -> None:
    """Trying every way to match would take longer than anybody waits."""
    text = "a" * 100_000 + "x" * 100_000 + "!"

    assert unsupported({"pattern": pattern}) is None
    assert misfit(text, {"pattern": pattern}) is not None


def test_a_pattern_matches_a_part_of_any_text() -> None:
    assert misfit("one two", {"pattern": "t.o"}) is None
    assert misfit("h\u00e9 \ud800", {"pattern": "^h\u00e9"}) is None
    assert misfit("two\n", {"pattern": "two$"}) is not None


def test_options_that_nest_are_each_checked_once() -> None:
    """If every branch were checked separately, 60 levels of two options each would never end."""
    again = {"type": "array", "items": {"$ref": "#/$defs/tree"}}
    options = [{"type": "object", "properties": {"args": again, "op": {"const": op}}} for op in ("and", "or")]
    schema = {"$defs": {"tree": {"anyOf": options}}, "$ref": "#/$defs/tree"}
    right: Any = {"args": [], "op": "or"}
    wrong: Any = {"args": [], "op": "nor"}
    for _ in range(60):
        right, wrong = ({"args": [tree], "op": "and"} for tree in (right, wrong))

    assert unsupported(schema) is None and misfit(right, schema) is None
    reason = misfit(wrong, schema)
    assert reason is not None and reason.startswith(
        "the output fits none of its options: the output.args[0] fits none"
    )
    assert len(reason) < 10_000


def test_unique_items_are_not_compared_each_with_all() -> None:
    """100,000 numbers of one hash, as a model may send them, would take minutes."""
    numbers = [number * sys.hash_info.modulus for number in range(100_000)]

    assert misfit(numbers, {"uniqueItems": True}) is None
    assert misfit([*numbers, numbers[-1]], {"uniqueItems": True}) == "the output must not have an item twice"
