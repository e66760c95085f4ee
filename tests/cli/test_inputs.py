"""What people write for inputs and answers, and the values that are meant."""

from __future__ import annotations

import datetime as dt
from typing import Any

import click
import pytest

from holdfast import AnswerRejected, Pause
from holdfast.cli.questions import fitting, read_answers, read_inputs, read_pairs


def pause(name: str, kind: str = "ask", schema: dict[str, Any] | None = None, step: str = "") -> Pause:
    ident = f"{step or name}#1:{name}"
    return Pause(ident, kind, name, f"{name}#1", name, f"{name}?", schema, dt.datetime.now(dt.UTC), None)


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("yes", None, "yes"),
        ("3", None, 3),
        ('{"a": [1]}', None, {"a": [1]}),
        ("3", {"type": "string"}, "3"),
        ("true", {"type": "boolean"}, True),
        ("1", {"enum": ["1", "2"]}, "1"),
        ("1", {"enum": [1, 2]}, 1),
        ("YES", {"enum": ["yes", "no"]}, "yes"),
        ("null", {"type": "null"}, None),
    ],
)
def test_a_text_becomes_the_value_that_fits(text: str, schema: Any, value: Any) -> None:
    found = fitting(text, schema)
    assert found == value and type(found) is type(value)


def test_a_text_that_fits_no_way_is_refused_with_the_reason() -> None:
    with pytest.raises(AnswerRejected, match="must be of type integer"):
        fitting("x", {"type": "integer"})


def test_answers_find_their_pauses_by_name_id_or_being_alone() -> None:
    one, two = pause("one"), pause("two")

    assert read_answers(["a=b"], [one]) == {one.id: "a=b"}
    assert read_answers(["one=a=b"], [one]) == {one.id: "a=b"}
    assert read_answers([f"{two.id}=2", "one=1"], [one, two]) == {two.id: 2, one.id: 1}
    assert read_answers(["x"], [one, pause("gate", "before")]) == {one.id: "x"}


def test_answers_that_find_no_pause_or_several_are_refused() -> None:
    twins = [pause("same", step="a"), pause("same", step="b")]

    with pytest.raises(AnswerRejected, match="answer by id: 'a#1:same', 'b#1:same'"):
        read_answers(["same=1"], twins)
    with pytest.raises(AnswerRejected, match="names none of the open questions"):
        read_answers(["other=1"], [pause("one"), pause("two")])
    with pytest.raises(AnswerRejected, match="waits for no answer"):
        read_answers(["1"], [pause("gate", "after")])


def test_the_last_word_on_an_input_wins() -> None:
    assert read_inputs(None, ["a=1", "a:=2", "b:=[1]", "b=x"]) == ({"a": 2}, {"b": "x"})


def test_pairs_are_checked() -> None:
    assert read_pairs(["a=b=c"], "--remap") == {"a": "b=c"}
    with pytest.raises(click.BadParameter, match="--remap 'a'"):
        read_pairs(["a"], "--remap")
