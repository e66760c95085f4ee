"""`while_loop`: steps that are repeated as long as a condition holds, resumed in the middle."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.events import Event
from holdfast.values import RunStatus
from holdfast.workflows.reading.problems import WorkflowInvalid
from tests.workflows.workshop import Workshop

GROW = """
steps:
  - name: grow
    while_loop:
      condition: len(steps.longer.output.text if visits.longer else '') < inputs.enough
      LIMIT
      steps:
        - {name: longer, set: {text: "{{ steps.longer.output.text if visits.longer else '' }}x"}}
        - {name: note, python: "steps.py:say", with: {word: "{{ steps.longer.output.text }}"}}
  - {name: last, set: {text: "{{ steps.grow.output }}", rounds: "{{ steps.grow.iterations }}"}}
output: "{{ steps.last.output }}"
"""


def grow(limit: str = "max_iterations: 10") -> str:
    return "  inputs: {enough: {type: integer, default: 3}}" + GROW.replace("LIMIT", limit)


def test_steps_are_repeated_as_long_as_the_condition_holds(shop: Workshop) -> None:
    """R4.4: while_loop with a condition, a body and max_iterations; each iteration is a step of its own."""
    heard: list[Event] = []
    outcome = shop.run(grow(), observer=heard.append)

    assert outcome.state["output"] == {"text": "xxx", "rounds": 3}
    assert shop.calls() == ["x", "xx", "xxx"]
    ran = [event.data["step"] for event in heard if event.type == "node.complete"]
    assert [step for step in ran if step.startswith("longer")] == ["longer#1", "longer#2", "longer#3"]


def test_a_condition_that_never_holds_runs_nothing(shop: Workshop) -> None:
    output = shop.output(grow(), {"enough": 0})

    assert output == {"text": None, "rounds": 0} and shop.calls() == []


def test_a_loop_is_resumed_in_the_middle_of_an_iteration(shop: Workshop) -> None:
    text = """
    steps:
      - name: loop
        while_loop:
          condition: iteration < 3
          steps:
            - {name: before, python: "steps.py:say", with: {word: "before {{ visits.before + 1 }}"}}
            - name: middle
              when: visits.middle == 1
              python: steps.py:fail_until
              with: {word: middle, fixed: fixed}
            - {name: behind, python: "steps.py:say", with: {word: "behind {{ visits.behind + 1 }}"}}
    """
    assert "middle is broken" in shop.error(text)
    shop.fix()

    outcome = shop.resume()

    assert outcome.status == RunStatus.COMPLETED and outcome.state["loop"]["iterations"] == 3
    assert shop.calls() == [
        "before 1",
        "behind 1",
        "before 2",
        "middle",
        "middle",
        "behind 2",
        "before 3",
        "behind 3",
    ]


def test_a_killed_process_repeats_only_the_step_that_was_running(shop: Workshop) -> None:
    shop.load(
        """
        steps:
          - name: loop
            while_loop:
              condition: iteration < 2
              steps:
                - {name: one, python: "steps.py:say", with: {word: one}}
                - {name: two, python: "steps.py:die_until", with: {word: two, fixed: "fixed{{ visits.two }}"}}
        """
    )
    assert [shop.drive(), shop.drive(), shop.drive()] == [9, 9, 0]

    assert shop.calls() == ["one", "two", "two", "one", "two", "two"]


@pytest.mark.parametrize(("limit", "rounds"), [("max_iterations: 2\n      on_limit: stop", 2)])
def test_a_loop_may_end_at_its_limit(shop: Workshop, limit: str, rounds: int) -> None:
    assert shop.output(grow(limit))["rounds"] == rounds


def test_a_loop_fails_at_its_limit_and_goes_on_with_a_higher_one(shop: Workshop) -> None:
    assert "the condition still holds after 2 iterations" in shop.error(grow("max_iterations: 2"))

    assert shop.resume(grow("max_iterations: 3")).state["output"]["rounds"] == 3
    assert shop.calls() == ["x", "xx", "xxx"]


def test_a_person_is_asked_for_more_iterations(shop: Workshop) -> None:
    """R1.6: at the limit of a loop a person can allow more, again and again, or end it."""
    text = grow("max_iterations: 1\n      on_limit: ask")
    flow = shop.load(text)
    app = flow.open(shop.url)

    def pauses(outcome: Any) -> list[str]:
        return [pause.prompt for pause in outcome.pauses]

    outcome = app.invoke(flow.begin({"enough": 4}), run_id="r", config=flow.config())
    assert pauses(outcome) == [
        "grow: the condition still holds after 1 iterations. How many more? 0 ends the loop."
    ]
    outcome = app.resume("r", answers={"grow.more": 2})
    assert pauses(outcome)[0].startswith("grow: the condition still holds after 3 iterations")
    outcome = app.resume("r", answers={"grow.more": 0})

    assert outcome.state["output"] == {"text": "xxx", "rounds": 3} and shop.calls() == ["x", "xx", "xxx"]
    app.store.close()


def test_loops_hold_for_each_and_workflows_and_are_come_to_again(shop: Workshop) -> None:
    shop.write(
        "workflow: {name: inner, inputs: {n: {type: integer}}}\n"
        "steps: [{name: a, set: {n: '{{ inputs.n }}'}}]\noutput: '{{ steps.a.output.n }}'\n",
        "inner.yaml",
    )
    output = shop.output(
        """
        steps:
          - name: loop
            while_loop:
              condition: iteration < 2
              steps:
                - {name: each, for_each: {in: [1, 2]}, set: {n: "{{ item }}"}}
                - {name: sub, workflow: inner.yaml, with: {n: "{{ visits.sub + 1 }}"}}
            routes:
              - {to: loop, when: visits.loop < 2}
              - {to: $end}
        output: {sub: "{{ steps.sub.output }}", rounds: "{{ steps.loop.iterations }}", each: "{{ steps.each.outputs }}"}
        """
    )

    assert output == {"sub": 4, "rounds": 2, "each": [{"n": 1}, {"n": 2}]}


def test_a_loop_is_skipped_by_its_condition_when(shop: Workshop) -> None:
    state = shop.run(
        "steps:\n  - {name: x, when: 'false', while_loop: {condition: 'true', steps: [{name: a, set: {}}]}}\n"
    ).state

    assert state["x"]["status"] == "skipped" and "a" not in state


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("while_loop: {condition: 'true', steps: []}", "the list is empty"),
        ("while_loop: {condition: 'tru e', steps: [{name: a, set: {}}]}", "while_loop.condition"),
        (
            "while_loop: {condition: 'true', steps: [{name: a, parallel: [{name: b, set: {}}]}]}",
            "inside another step",
        ),
        ("while_loop: {condition: 'true', steps: [{name: a, set: {}, after: [x]}]}", "inside a loop"),
        ("while_loop: {condition: 'true', steps: [{name: a, set: {}}]}, retry: {}", "takes no retry"),
        (
            "while_loop: {condition: 'true', steps: [{name: a, set: {}}]}, on_error: continue",
            "takes no on_error",
        ),
        ("while_loop: {steps: [{name: a, set: {}}]}", "has no 'condition'"),
    ],
)
def test_a_wrong_loop_is_refused_with_its_line(shop: Workshop, step: str, words: str) -> None:
    with pytest.raises(WorkflowInvalid, match=words) as caught:
        shop.load(f"steps:\n  - {{name: x, {step}}}\n")

    assert {problem.position.line for problem in caught.value.problems} == {4}
