"""Steering the runs of workflow files: steps go by their names there, whatever nodes they are made of."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engine.app import App
from holdfast.errors import CommandRefused, ExecutionError
from holdfast.journal.records import Steered, Target
from holdfast.journal.writer import Writer
from holdfast.stores.base import Store
from holdfast.workflows.scope import place_in_state
from tests.workflows.workshop import Workshop

CHILD = """
    workflow:
      name: child
      inputs: {word: {type: string}}
    steps:
      - {name: inner, python: steps.py:fail_until, with: {word: "{{ inputs.word }}", fixed: fixed}}
      - {name: more, python: steps.py:say, with: {word: more}}
    output: "{{ steps.inner.output | default('none') }}"
"""

END = '- {name: end, python: steps.py:say, with: {word: "end {{ steps.x.status }}"}}'


def stopped(shop: Workshop, memory: Store, steps: str) -> App:
    """A run of these steps that failed, or waits."""
    shop.write(CHILD, "child.yaml")
    lines = "\n".join(f"  {line}" for line in (*steps.strip("\n").splitlines(), END))
    flow = shop.load(f'workflow:\n  name: test\nsteps:\n{lines}\noutput: "{{{{ steps.end.output }}}}"\n')
    app = flow.open(memory)
    try:
        app.invoke(flow.begin({}), run_id="r", config=flow.config())
    except ExecutionError:
        return app
    return app


FAILS = "python: steps.py:fail_until, with: {word: w, fixed: fixed}"
ITEMS = f"for_each: {{in: [a, b]}}, {FAILS}"


@pytest.mark.parametrize(
    ("steps", "name", "status"),
    [
        (f"- {{name: x, {FAILS}}}", "x", "skipped"),
        ("- {name: x, ask: 'well?'}", "x", "skipped"),
        (f"- {{name: x, {ITEMS}}}", "x", "completed"),
        (f"- {{name: x, for_each: {{in: [a, b], on_error: all_or_nothing}}, {FAILS}}}", "x", "skipped"),
        ("- {name: x, for_each: {in: '{{ nothing }}'}, ask: 'well?'}", "x", "skipped"),
        (f"- name: x\n  parallel: [{{name: m, {FAILS}}}, {{name: n, set: {{a: 1}}}}]", "m", "completed"),
        (f"- name: x\n  parallel: {{on_error: all_or_nothing, steps: [{{name: m, {FAILS}}}]}}", "x", "skipped"),
        ("- {name: x, workflow: child.yaml, with: {word: hello}}", "x/inner", "completed"),
        ("- {name: x, for_each: {in: [a]}, workflow: child.yaml, with: {word: hello}}", "x/inner", "completed"),
    ],
)  # fmt: skip
def test_a_step_is_skipped_by_its_name_and_the_file_sees_that_it_was(
    shop: Workshop, memory: Store, steps: str, name: str, status: str
) -> None:
    if "nothing" in steps:
        steps = steps.replace("'{{ nothing }}'", "'{{ steps.end.output }}'")
    app = stopped(shop, memory, steps)

    app.skip("r", name, by="ann", reason="no")
    outcome = app.resume("r")

    assert outcome.state["output"] == f"end {status}"
    if name == "x" and status == "skipped":
        assert outcome.state["x"]["reason"] == "asked for by ann: no"


def test_what_is_no_step_of_the_file_is_not_skipped(shop: Workshop, memory: Store) -> None:
    flow = shop.load(
        'workflow:\n  name: test\nsteps:\n  - {name: x, set: {a: 1}}\noutput: "{{ steps.y.z }}"\n'.replace(
            "y.z", "x.z"
        )
    )
    app = flow.open(memory)
    with pytest.raises(ExecutionError):
        app.invoke(flow.begin({}), run_id="r", config=flow.config())

    with pytest.raises(CommandRefused, match="it only leads on"):
        app.skip("r", "output")


def test_a_step_of_several_nodes_is_injected_as_a_whole_or_not_at_all(shop: Workshop, memory: Store) -> None:
    app = stopped(
        shop,
        memory,
        "- {name: x, for_each: {in: [a, b]}, set: {got: '{{ item }}'}}\n- {name: y, ask: 'well?'}",
    )

    with pytest.raises(CommandRefused, match=r"'x' is made of several nodes.*with follow"):
        app.inject("r", "x")
    with pytest.raises(CommandRefused, match="'x:item' is a part of 'x'"):
        app.inject("r", "x:item")
    app.inject("r", "x", follow=True)
    app.skip("r", "y")
    app.resume("r")
    state = app.resume("r", "yes").state

    assert state["x"]["visits"] == 2 and state["output"] == "end completed"


@pytest.mark.parametrize("command", ["inject", "replan"])
def test_a_step_does_not_run_beside_itself(shop: Workshop, memory: Store, command: str) -> None:
    app = stopped(shop, memory, "- {name: x, set: {got: 1}}\n- {name: y, ask: 'well?'}")
    again = getattr(app, command)

    with pytest.raises(CommandRefused, match=r"step 'x' is about to run.*has one result; ask again when"):
        again("r", ["x", "x"])
    app.inject("r", "x")
    with pytest.raises(CommandRefused, match="step 'x' is about to run"):
        app.inject("r", "x")
    with pytest.raises(CommandRefused, match="step 'y' is about to run"):
        app.inject("r", "y")
    state = app.resume("r", "yes").state

    assert state["x"]["visits"] == 2 and state["output"] == "end completed"


def test_a_run_whose_step_ran_beside_itself_goes_on_without_the_second_result(
    shop: Workshop, memory: Store
) -> None:
    app = stopped(shop, memory, "- {name: x, set: {got: 1}}\n- {name: y, ask: 'well?'}")
    journal, codec = app._settings.journal, app._settings.codec
    writer = Writer(journal, journal.load(journal.info("r"), codec), codec, durable=True)
    writer.record(Steered("", add=(Target("x"), Target("x")), one_off=True))
    writer.flush()

    for answer in ("yes", None):
        with pytest.raises(ExecutionError, match="both set state key 'x'") as caught:
            app.resume("r", answer)
    (remedy,) = [each for each in caught.value.remedies if each.action == "skip"]
    second = remedy.options["step"]  # Which of the two is second differs from run to run.
    assert second in ("x#2", "x#3")
    assert str(remedy) == f"app.skip('r', '{second}') leaves its result out, and then app.resume('r') goes on"
    app.skip("r", second)
    state = app.resume("r").state

    assert state["x"]["output"] == {"got": 1} and state["output"] == "end completed"


def test_a_step_that_is_half_done_is_not_broken_off_by_another_plan(shop: Workshop, memory: Store) -> None:
    app = stopped(shop, memory, f"- {{name: x, {ITEMS}}}\n- {{name: y, set: {{a: 1}}}}")

    with pytest.raises(CommandRefused, match="'x' is half done; skip it first"):
        app.replan("r", ["end"])
    app.skip("r", "x")
    with pytest.raises(CommandRefused, match="'x' is half done"):
        app.replan("r", ["end"])
    app.resume("r")


def test_a_failed_step_of_several_nodes_is_skipped_and_another_plan_made(
    shop: Workshop, memory: Store
) -> None:
    steps = f"- {{name: x, for_each: {{in: [a], on_error: all_or_nothing}}, {FAILS}}}\n- {{name: y, ask: 'well?'}}"
    app = stopped(shop, memory, steps)

    app.skip("r", "x")
    app.replan("r", ["end"])

    assert app.resume("r").state["output"] == "end skipped"


def test_steps_that_a_new_plan_leaves_out_are_not_made_up_for_at_the_end(
    shop: Workshop, memory: Store
) -> None:
    steps = """
- {name: x, ask: 'well?'}
- {name: y, after: x, set: {a: 1}}
"""
    app = stopped(shop, memory, steps)

    app.replan("r", [], by="ann")
    outcome = app.resume("r")

    assert outcome.status == "completed"
    assert outcome.state["x"] == {"status": "skipped", "reason": "replanned by ann", "visits": 1}
    assert outcome.state["y"]["status"] == "skipped"


OUTLINE: dict[str, Any] = {
    "nodes": {
        "a": {},
        "each": {},
        "each:item": {},
        "each:done": {},
        "sub": {},
        "sub:workflow": {"graph": {"nodes": {"b": {}, "e": {}, "e:item": {}, "e:done": {}}}},
        "many": {},
        "many:item": {"graph": {"nodes": {"c": {}}}},
        "many:done": {},
    }
}


@pytest.mark.parametrize(
    ("step", "name", "place"),
    [
        ("", "inputs.topic", ("inputs", "topic")),
        ("", "inputs.a.b", ("inputs", "a", "b")),
        ("a", "inputs.topic", ("inputs", "topic")),
        ("a", "steps.a.output.x", ("a", "output", "x")),
        ("each[3]", "item", ("each:each", "item")),
        ("each", "city.name", ("each:each", "item", "name")),
        ("sub/b", "inputs.topic", ("sub", "inputs", "topic")),
        ("sub/b", "steps.b.output", ("sub/b", "output")),
        ("sub/e[1]", "item", ("sub/e:each", "item")),
        ("many/c", "inputs.topic", ("many:each", "inputs", "topic")),
    ],
)
def test_where_the_state_keeps_what_a_step_sees(step: str, name: str, place: tuple[str, ...]) -> None:
    assert place_in_state(OUTLINE, name.split("."), step, "city") == place


@pytest.mark.parametrize(
    ("step", "name", "reason"),
    [
        ("", "topic", "'topic' cannot be changed; what can be is inputs.NAME and steps.NAME.output"),
        ("a", "item", "'item' cannot be changed"),
        ("each", "x", "inputs.NAME and steps.NAME.output and item"),
        ("", "steps.b.output", "there is no step 'b'"),
        ("", "steps.a", "'steps.a' cannot be changed"),
        ("", "steps.each.output", "the output of 'each' is put together from others"),
        ("sbu/b", "inputs.x", "there is no sub-workflow 'sbu'; did you mean 'sub'"),
    ],
)
def test_what_is_kept_nowhere_is_refused(step: str, name: str, reason: str) -> None:
    with pytest.raises(CommandRefused, match=reason):
        place_in_state(OUTLINE, name.split("."), step)
