"""Routes: loops, choices, ends, and what happens when no way leads on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import load_workflow
from holdfast.errors import ExecutionError, GraphChanged, MaxIterationsExceeded
from holdfast.values import RunStatus
from holdfast.workflows.scope import NoRoute
from tests.workflows.workshop import Workshop


def choose(routes: str, when: str = "") -> str:
    return f"""
        workflow:
          name: test
          inputs: {{n: {{type: integer, default: 1}}}}
        steps:
          - name: first
            set: {{n: "{{{{ inputs.n }}}}"}}
            {when}
            routes: {routes}
          - {{name: one, python: "steps.py:say", with: {{word: one}}, routes: [{{to: $end}}]}}
          - {{name: two, python: "steps.py:say", with: {{word: two}}, routes: [{{to: $end}}]}}
        """


ROUTES = "[{to: one, when: output.n == 1}, {to: two, when: output.n == 2}, {to: $end, when: output.n < 9}]"


@pytest.mark.parametrize(("n", "calls"), [(1, ["one"]), (2, ["two"]), (3, [])])
def test_the_first_route_that_holds_is_taken(shop: Workshop, n: int, calls: list[str]) -> None:
    """R1.3: ordered routes, of which the first true one is taken."""
    assert shop.run(choose(ROUTES), {"n": n}).status == RunStatus.COMPLETED
    assert shop.calls() == calls


def test_no_route_holds(shop: Workshop) -> None:
    with pytest.raises(
        ExecutionError, match="step 'first': no route holds; add one without `when`"
    ) as caught:
        shop.run(choose(ROUTES), {"n": 10})

    assert isinstance(caught.value.cause, NoRoute) and caught.value.node == "first"


def test_a_run_whose_routes_did_not_hold_goes_on_once_one_does(shop: Workshop) -> None:
    shop.error(choose(ROUTES), {"n": 10})

    outcome = shop.resume(choose(ROUTES.replace("output.n == 1", "output.n == 10")))

    assert outcome.status == RunStatus.COMPLETED and shop.calls() == ["one"]


def test_a_route_that_cannot_be_evaluated_is_named(shop: Workshop) -> None:
    told = shop.error(choose("[{to: one, when: output.n == 5}, {to: two, when: output.m == 1}, {to: $end}]"))

    assert "step 'first': route 2 (to: two) cannot be evaluated: in 'output.m == 1'" in told
    assert "routing after" not in told and "Error(" not in told


def test_routes_see_inputs_steps_and_visits(shop: Workshop) -> None:
    shop.run(
        choose(
            "[{to: two, when: inputs.n == 1 and steps.first.output.n == 1 and visits.first == 1}, {to: one}]"
        )
    )

    assert shop.calls() == ["two"]


def test_a_step_that_is_skipped_takes_its_route_without_condition(shop: Workshop) -> None:
    shop.run(choose("[{to: one, when: output.n == 1}, {to: two}]", "when: 'false'"))

    assert shop.calls() == ["two"]


def test_a_step_that_is_skipped_and_has_no_such_route(shop: Workshop) -> None:
    told = shop.error(
        choose("[{to: one, when: output.n == 1}]".replace("]", ", {to: two, when: 'true'}]"), "when: 'false'")
    )

    assert "step 'first': it was skipped, and none of its routes is without a condition" in told


def test_a_step_that_is_skipped_leads_to_the_next(shop: Workshop) -> None:
    outcome = shop.run(
        """
        steps:
          - {name: a, when: "false", python: "steps.py:say", with: {word: a}}
          - {name: b, python: "steps.py:say", with: {word: b}}
        """
    )

    assert shop.calls() == ["b"]
    assert outcome.state["a"]["status"] == "skipped"
    assert outcome.state["a"]["reason"] == "its condition does not hold: false"


def test_routes_after_a_failure_that_is_passed_over(shop: Workshop) -> None:
    text = """
        steps:
          - name: a
            shell: exit 1
            on_error: continue
            routes: [{to: repair, when: "status == 'failed' and 'code 1' in error"}, {to: $end}]
          - {name: repair, python: "steps.py:say", with: {word: repair}}
        """
    shop.run(text)

    assert shop.calls() == ["repair"]


def test_a_condition_that_cannot_be_evaluated(shop: Workshop) -> None:
    told = shop.error("steps: [{name: a, set: {}}, {name: b, when: steps.a.output.n > 1, set: {}}]")

    assert "'b'" in told and "`when`: in 'steps.a.output.n > 1'" in told


LOOP = """
    workflow:
      name: test
      limits: {max_iterations: 30}
    steps:
      - {name: start, python: "steps.py:say", with: {word: start}}
      - name: turn
        python: "steps.py:say"
        with: {word: "{{ visits.turn }}"}
        routes: [{to: turn, when: "visits.turn < 4"}, {to: done}]
      - {name: done, python: "steps.py:say", with: {word: "{{ steps.turn.output }}"}}
    """


def test_a_loop_counts_its_visits(shop: Workshop) -> None:
    """R1.3: routes may lead back."""
    outcome = shop.run(LOOP)

    assert shop.calls() == ["start", "0", "1", "2", "3", "3"]
    assert outcome.state["turn"] == {"status": "completed", "output": 3, "visits": 4}


def test_an_endless_loop_ends_and_can_go_on_with_a_higher_limit(shop: Workshop) -> None:
    endless = LOOP.replace("visits.turn < 4", "visits.turn < 40")
    with pytest.raises(MaxIterationsExceeded, match="30"):
        shop.run(endless)

    outcome = shop.resume(endless.replace("max_iterations: 30", "max_iterations: 100"))

    assert outcome.status == RunStatus.COMPLETED and outcome.state["turn"]["visits"] == 40
    assert shop.calls() == ["start", *map(str, range(40)), "39"]


def test_a_crash_in_the_middle_of_a_loop(shop: Workshop) -> None:
    text = """
        workflow: {name: test}
        steps:
          - name: a
            python: "steps.py:say"
            with: {word: "a{{ visits.a }}"}
          - name: b
            python: "steps.py:die_until"
            with: {word: "b{{ visits.b }}", fixed: "{{ 'fixed' if visits.b == 1 else 'steps.py' }}"}
            routes: [{to: a, when: "visits.b < 3"}, {to: $end}]
        """
    shop.write(text)
    assert shop.drive() == 9

    assert shop.resume().status == RunStatus.COMPLETED
    assert shop.calls() == ["a0", "b0", "a1", "b1", "b1", "a2", "b2"]


def test_entry_says_where_a_run_begins(shop: Workshop) -> None:
    shop.run(
        """
        workflow:
          name: test
          entry: b
        steps:
          - {name: a, python: "steps.py:say", with: {word: a}, routes: [{to: $end}]}
          - {name: b, python: "steps.py:say", with: {word: b}, routes: [{to: a}]}
        """
    )

    assert shop.calls() == ["b", "a"]


# Files that change.


CHAIN = """
    steps:
      - {name: a, python: "steps.py:say", with: {word: a}}
      - {name: b, python: "steps.py:fail_until", with: {word: b, fixed: fixed}}
      - {name: c, python: "steps.py:say", with: {word: c}}
    """


def edited(*changes: tuple[str, str]) -> str:
    text = CHAIN
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    ("changes", "options", "calls"),
    [
        ([("word: b,", "word: better,")], {}, ["better", "c"]),
        ([("word: a}", "word: other}")], {}, ["b", "c"]),
        ([('- {name: c, python: "steps.py:say", with: {word: c}}', "")], {}, ["b"]),
        (
            [("- {name: c", "- {name: new, python: 'steps.py:say', with: {word: new}}\n      - {name: c")],
            {},
            ["b", "new", "c"],
        ),
        ([("{name: b", "{name: renamed")], {"remap": {"b": "renamed"}}, ["b", "c"]),
    ],
)
def test_a_file_that_changed_between_run_and_resume(
    shop: Workshop, changes: Any, options: Any, calls: list[str]
) -> None:
    shop.error(CHAIN)
    shop.fix()

    outcome = shop.resume(edited(*changes), **options)

    assert outcome.status == RunStatus.COMPLETED
    assert shop.calls() == ["a", "b", *calls]


def test_a_step_that_is_next_and_was_removed(shop: Workshop) -> None:
    shop.error(CHAIN)
    gone = edited(('- {name: b, python: "steps.py:fail_until", with: {word: b, fixed: fixed}}', ""))

    with pytest.raises(GraphChanged, match="'b', which the workflow no longer has"):
        shop.resume(gone)


def test_a_change_that_is_to_be_refused(shop: Workshop) -> None:
    shop.error(CHAIN)

    with pytest.raises(GraphChanged):
        shop.resume(edited(("word: b,", "word: better,")), on_change="fail")


def test_a_long_file_may_have_more_waves_than_a_short_one(shop: Workshop) -> None:
    steps = "".join(f"\n  - {{name: s{number}, set: {{n: {number}}}}}" for number in range(150))

    assert shop.run(f"steps:{steps}").status == "completed"


def test_visits_are_those_that_are_over_as_the_reference_says(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(
        "workflow: {name: again}\nsteps:\n"
        '  - {name: a, set: {seen: "{{ visits.a }}"}, routes: [{to: a, when: visits.a < 2}, {to: b}]}\n'
        '  - {name: b, set: {seen: "{{ visits.a }}", last: "{{ steps.a.output.seen }}"}}\n'
    )
    flow = load_workflow(tmp_path / "flow.yaml")
    outcome = flow.open("memory://").invoke(flow.begin({}), config=flow.config())

    assert flow.output(outcome.state) == {"seen": 2, "last": 1}
    reference = (Path(__file__).parents[2] / "docs/reference/workflow.md").read_text()
    assert "at its first visit 0 in its templates, 1 in its routes" in reference
