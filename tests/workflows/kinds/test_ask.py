"""`ask` steps: questions that pause a run, and the answers they take."""

from __future__ import annotations

import time
from typing import Any

import pytest

from holdfast.errors import AnswerRejected, ExecutionError
from holdfast.testing import skipping_time
from holdfast.values import RunStatus
from tests.workflows.workshop import Workshop


def names(outcome: Any) -> list[str]:
    return [pause.name for pause in outcome.pauses]


def test_a_question_pauses_the_run_and_its_answer_goes_on(shop: Workshop) -> None:
    text = """
        workflow:
          name: test
          inputs: {topic: {default: tides}}
        steps:
          - {name: before, python: "steps.py:say", with: {word: before}}
          - {name: x, ask: "Publish {{ inputs.topic }}?"}
          - {name: after, set: {said: "{{ steps.x.answer }}"}}
        """
    paused = shop.run(text)

    assert paused.status == RunStatus.PAUSED
    assert (names(paused), paused.pauses[0].prompt) == (["x"], "Publish tides?")
    done = shop.resume(answer="sure")
    assert done.state["x"] == {"status": "completed", "output": "sure", "answer": "sure", "visits": 1}
    assert done.state["after"]["output"] == {"said": "sure"}
    assert shop.calls() == ["before"]


@pytest.mark.parametrize("choice", ["yes", 1, 2.5, True, None, ["a"]])
def test_choices_of_any_type(shop: Workshop, choice: Any) -> None:
    shop.run("steps: [{name: x, ask: {prompt: which?, choices: [yes, 1, 2.5, true, null, [a]]}}]")

    if choice is None:
        found = shop.resume(answers={"x": None})
    else:
        found = shop.resume(answer=choice)
    assert (
        found.state["x"]["output"] == choice and type(found.state["x"]["output"]) is not int
    ) or choice == 1


@pytest.mark.parametrize("answer", ["maybe", True, 0, "Yes", ["yes"]])
def test_an_answer_that_is_no_choice_is_refused_and_asked_for_again(shop: Workshop, answer: Any) -> None:
    """`yes` and `no` are texts in YAML 1.2, not true and false."""
    shop.run("steps: [{name: x, ask: {prompt: sure?, choices: [yes, no]}}]")

    with pytest.raises(AnswerRejected, match="must be one of 'yes', 'no'"):
        shop.resume(answer=answer)
    assert shop.resume(answer="yes").state["x"]["output"] == "yes"


def test_choices_with_labels_are_described_in_the_prompt(shop: Workshop) -> None:
    text = """
        steps:
          - name: x
            ask:
              prompt: And now?
              choices: [{value: 1, label: go on, description: with care}, {value: 2, label: stop}, 3]
            routes: [{to: stop, when: "answer == 2"}, {to: $end}]
          - {name: stop, set: {n: "{{ steps.x.answer }}"}}
        """
    paused = shop.run(text)

    assert paused.pauses[0].prompt == "And now?\n  1: go on - with care\n  2: stop"
    assert shop.resume(answer=2).state["stop"]["output"] == {"n": 2}


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("string", "a", 1),
        ("integer", 3, 3.5),
        ("number", 3.5, "3.5"),
        ("boolean", True, "true"),
        ("array", [1], "1"),
        ("object", {"a": 1}, [1]),
    ],
)
def test_answers_of_a_type(shop: Workshop, kind: str, good: Any, bad: Any) -> None:
    shop.run(f"steps: [{{name: x, ask: {{prompt: what?, type: {kind}}}}}]")

    with pytest.raises(AnswerRejected, match=f"must be of type {kind}"):
        shop.resume(answer=bad)
    assert shop.resume(answer=good).state["x"]["output"] == good


QUESTIONS = """
    steps:
      - {name: a, python: "steps.py:say", with: {word: a}}
      - name: x
        ask:
          questions:
            - {name: who, prompt: Who?}
            - {name: how_many, prompt: "How many for {{ steps.a.output }}?", type: integer}
      - {name: b, set: {text: "{{ steps.x.answers.who }} {{ steps.x.output.how_many }}"}}
    """


def test_several_questions_are_asked_at_once_and_each_answer_is_kept(shop: Workshop) -> None:
    """R1.5: partial answers survive."""
    assert names(shop.run(QUESTIONS)) == ["x.who", "x.how_many"]
    assert names(shop.resume(answers={"x.who": "me"})) == ["x.how_many"]
    with pytest.raises(AnswerRejected):
        shop.resume(answer="many")

    done = shop.resume(answer=2)

    assert done.state["x"]["answers"] == {"who": "me", "how_many": 2}
    assert done.state["b"]["output"] == {"text": "me 2"}
    assert shop.calls() == ["a"]


def test_questions_for_each_item_are_asked_at_once(shop: Workshop) -> None:
    text = """
        steps:
          - name: x
            for_each: {in: {a: 1, b: 2, c: 3}, as: number}
            ask: {prompt: "Is {{ number }} good?", choices: [yes, no]}
        """
    paused = shop.run(text)

    assert names(paused) == ["x[a]", "x[b]", "x[c]"]
    assert [pause.prompt for pause in paused.pauses] == [f"Is {n} good?" for n in (1, 2, 3)]
    assert names(shop.resume(answers={"x[b]": "yes"})) == ["x[a]", "x[c]"]
    done = shop.resume(answers={"x[a]": "no", "x[c]": "no"})
    assert [item["output"] for item in done.state["x:items"].values()] == ["no", "yes", "no"]


def test_questions_in_a_group_are_asked_at_once(shop: Workshop) -> None:
    text = """
        steps:
          - name: both
            parallel:
              - {name: a, ask: A?}
              - {name: b, ask: B?}
              - {name: c, python: "steps.py:say", with: {word: c}}
        """

    assert names(shop.run(text)) == ["a", "b"]
    assert names(shop.resume(answers={"a": 1})) == ["b"]
    assert shop.resume(answers={"b": 2}).status == RunStatus.COMPLETED
    assert shop.calls() == ["c"]


def test_a_question_in_a_loop_is_asked_each_time(shop: Workshop) -> None:
    text = """
        steps:
          - name: x
            ask: "Enough after {{ visits.x }}?"
            routes: [{to: x, when: "answer != 'yes'"}, {to: $end}]
        """

    assert shop.run(text).pauses[0].prompt == "Enough after 0?"
    assert shop.resume(answer="no").pauses[0].prompt == "Enough after 1?"
    assert shop.resume(answer="yes").status == RunStatus.COMPLETED


@pytest.mark.parametrize(
    ("ask", "assumed"),
    [
        ("{prompt: a?, default: b}", "b"),
        ("{prompt: a?, default: false}", False),
        ("{prompt: a?, choices: [c, d]}", "c"),
        ("{prompt: a?, choices: [{value: 5, label: five}], type: integer}", 5),
        ("{prompt: a?, choices: [c, d], default: d}", "d"),
    ],
)
def test_gates_that_are_skipped_take_the_default_or_the_first_choice(
    shop: Workshop, ask: str, assumed: Any
) -> None:
    """R1.5: `--skip-gates`."""
    found = shop.run(f"steps: [{{name: x, ask: {ask}}}]", skip_gates=True)

    assert found.status == RunStatus.COMPLETED and found.state["x"]["output"] == assumed


def test_a_gate_that_cannot_be_skipped(shop: Workshop) -> None:
    with pytest.raises(ExecutionError, match=r"'x' failed.*neither choices nor a default; give it a default"):
        shop.run("steps: [{name: x, ask: really?}]", skip_gates=True)


def test_an_answer_that_comes_too_late(shop: Workshop) -> None:
    shop.run("steps: [{name: x, ask: {prompt: quick?, timeout: 50ms}}]")
    time.sleep(0.1)

    with pytest.raises(AnswerRejected, match="too late"):
        shop.resume(answer="yes")


def test_answers_survive_a_change_of_the_prompt(shop: Workshop) -> None:
    shop.run(QUESTIONS)
    shop.resume(answers={"x.who": "me"})

    done = shop.resume(QUESTIONS.replace("How many for", "So how many for"), answer=3)

    assert done.state["x"]["answers"] == {"who": "me", "how_many": 3}


def test_what_nobody_answers_in_time_is_answered_by_the_default(shop: Workshop) -> None:
    shop.run("steps: [{name: x, ask: {prompt: quick?, timeout: 50ms, default: later}}]")
    time.sleep(0.06)

    assert shop.resume().state["x"]["answer"] == "later"


def test_without_a_default_the_step_fails_and_is_asked_anew(shop: Workshop) -> None:
    with skipping_time() as clock:
        shop.run("steps: [{name: x, ask: {prompt: quick?, timeout: 1h}}]")
        clock.advance(3601)

        with pytest.raises(ExecutionError, match="nobody answered 'x' in time"):
            shop.resume()

        assert shop.resume().status == RunStatus.PAUSED
        assert shop.resume(answer="now").state["x"]["answer"] == "now"
