"""`after`: steps that wait for others, what runs at once, and what is skipped when something fails."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import ExecutionError, GraphChanged
from holdfast.values import RunStatus
from tests.workflows.workshop import Workshop


def say(name: str, after: str = "", more: str = "") -> str:
    waits = f"after: [{after}], " if after else ""
    return f'- {{name: {name}, {waits}{more}python: "steps.py:say", with: {{word: {name}}}}}'


def fragile(name: str, after: str = "", more: str = "", how: str = "fail_until") -> str:
    arguments = f"with: {{word: {name}, fixed: fixed-{name}}}"
    return say(name, after, more).partition("python:")[0] + f'python: "steps.py:{how}", {arguments}}}'


def flow(*steps: str) -> str:
    return "steps:\n" + "\n".join(f"  {step}" for step in steps)


def statuses(outcome: Any, names: str) -> dict[str, str]:
    return {name: (outcome.state.get(name) or {}).get("status", "pending") for name in names}


DIAMOND = (say("a"), say("b", "a"), say("c", "a"), say("d", "b, c"))


def test_steps_run_when_those_before_them_are_done(shop: Workshop) -> None:
    """R2.1, R2.2: waves from what steps wait for."""
    outcome = shop.run(flow(*DIAMOND))

    calls = shop.calls()
    assert outcome.status == RunStatus.COMPLETED
    assert (calls[0], sorted(calls[1:3]), calls[3]) == ("a", ["b", "c"], "d")


def test_the_order_of_the_file_means_nothing(shop: Workshop) -> None:
    shop.run(flow(*reversed(DIAMOND)))

    assert shop.calls()[0] == "a" and shop.calls()[-1] == "d"


def test_what_does_not_wait_begins_at_once(shop: Workshop) -> None:
    wait = "while [ ! -e {} ]; do sleep 0.02; done"
    outcome = shop.run(
        flow(
            f"- {{name: a, shell: 'touch a; {wait.format('b')}', timeout: 20s}}",
            f"- {{name: b, shell: 'touch b; {wait.format('a')}', timeout: 20s}}",
            say("c", "a, b"),
        )
    )

    assert outcome.status == RunStatus.COMPLETED and shop.calls() == ["c"]


def test_after_one_step_by_its_name_alone(shop: Workshop) -> None:
    shop.run(flow(say("b").replace("name: b,", "name: b, after: a,"), say("a")))

    assert shop.calls() == ["a", "b"]


def test_the_output_of_a_workflow_without_one_is_that_of_the_step_that_ran_last(shop: Workshop) -> None:
    assert shop.output(flow(*DIAMOND)) == "d"


# Failures.


def test_steps_that_need_a_failed_one_are_skipped_and_so_on(shop: Workshop) -> None:
    """R2.2: a failed block marks its dependents skipped."""
    outcome = shop.run(
        flow(
            fragile("a", more="on_error: continue, "),
            say("b"),
            say("c", "a"),
            say("d", "c, b"),
            say("e", "{step: a, required: false}, b"),
        )
    )

    assert statuses(outcome, "abcde") == {
        "a": "failed",
        "b": "completed",
        "c": "skipped",
        "d": "skipped",
        "e": "completed",
    }
    assert outcome.state["c"]["reason"] == "it needs 'a', which is failed"
    assert outcome.state["d"]["reason"] == "it needs 'c', which is skipped"
    assert sorted(shop.calls()) == ["a", "b", "e"]


def test_a_step_that_may_do_without_those_before_it(shop: Workshop) -> None:
    """R2.2: `required: false`."""
    outcome = shop.run(
        flow(
            fragile("a", more="on_error: continue, "),
            say("b", more="when: 'false', "),
            say("c", "{step: a, required: false}, {step: b, required: false}"),
        )
    )

    assert statuses(outcome, "abc") == {"a": "failed", "b": "skipped", "c": "completed"}


def test_a_failure_fails_the_run_and_a_resume_does_the_rest(shop: Workshop) -> None:
    text = flow(say("a"), fragile("b", "a"), say("c", "a"), say("d", "b, c"))
    with pytest.raises(ExecutionError, match="b is broken"):
        shop.run(text)

    shop.fix("fixed-b")
    assert shop.resume().status == RunStatus.COMPLETED
    assert sorted(shop.calls()) == ["a", "b", "b", "c", "d"]


def test_a_crash_repeats_only_what_was_under_way(shop: Workshop) -> None:
    shop.load(flow(say("a"), say("c"), fragile("b", "a", how="die_until"), say("d", "b, c")))
    assert shop.drive() == 9

    assert shop.resume().status == RunStatus.COMPLETED
    assert sorted(shop.calls()) == ["a", "b", "b", "c", "d"]


def test_workflows_that_go_on_after_every_failure(shop: Workshop) -> None:
    outcome = shop.run(
        "workflow:\n  name: test\n  checkpoint: {on_failure: continue}\n"
        + flow(fragile("a"), say("b", "a"), say("c"))
    )

    assert statuses(outcome, "abc") == {"a": "failed", "b": "skipped", "c": "completed"}


# With steps of several nodes.


def test_waiting_for_groups_items_and_workflows(shop: Workshop) -> None:
    shop.write(
        "workflow: {name: i}\nsteps: [{name: o, python: 'steps.py:say', with: {word: inner}}]", "inner.yaml"
    )
    outcome = shop.run(
        flow(
            "- {name: g, parallel: [{name: m, set: {n: 1}}, {name: n, for_each: {in: [1]}, set: {n: 2}}]}",
            '- {name: e, for_each: {in: [1, 2]}, python: "steps.py:say", with: {word: "{{ item }}"}}',
            "- {name: w, workflow: inner.yaml}",
            say("x", "g, e, w"),
            say("y", "e"),
        )
    )

    calls = shop.calls()
    assert outcome.status == RunStatus.COMPLETED
    assert sorted(calls) == ["1", "2", "inner", "x", "y"] and calls.index("x") > calls.index("inner")


# With routes.


CHOICE = """
workflow:
  name: test
  inputs: {n: {type: integer}}
steps:
  - {name: a, set: {n: "{{ inputs.n }}"}, routes: [{to: left, when: output.n == 1}, {to: right, when: output.n == 2}]}
  - {name: left, python: "steps.py:say", with: {word: left}}
  - {name: right, python: "steps.py:say", with: {word: right}}
  - {name: other, python: "steps.py:say", with: {word: other}}
  - {name: waits, after: [a], python: "steps.py:say", with: {word: waits}}
  - {name: joins, after: [a, other], python: "steps.py:say", with: {word: joins}}
"""


@pytest.mark.parametrize(
    ("n", "calls"),
    [(1, ["left", "other"]), (2, ["other", "right"]), (3, ["joins", "other", "waits"])],
)
def test_a_route_is_taken_instead_of_what_waits(shop: Workshop, n: int, calls: list[str]) -> None:
    assert shop.run(CHOICE, {"n": n}).status == RunStatus.COMPLETED
    assert sorted(shop.calls()) == calls


def test_a_loop_among_steps_that_wait(shop: Workshop) -> None:
    outcome = shop.run(
        "workflow:\n  name: test\n  entry: a\n"
        + flow(
            say("other"),
            '- {name: a, python: "steps.py:say", with: {word: "a{{ visits.a }}"}, '
            "routes: [{to: a, when: visits.a < 3}]}",
            say("b", "a, other"),
        )
    )

    assert outcome.status == RunStatus.COMPLETED
    assert sorted(shop.calls()) == ["a0", "a1", "a2", "b", "other"]


# Files that change.


def test_steps_that_are_added_while_the_run_is_under_way_are_done(shop: Workshop) -> None:
    shop.error(flow(say("a"), fragile("b", "a")))
    shop.fix("fixed-b")

    outcome = shop.resume(
        flow(say("a"), fragile("b", "a"), say("root"), say("c", "a"), say("d", "b, root, c"))
    )

    assert set(statuses(outcome, "abcd").values()) == {"completed"}
    assert sorted(shop.calls()) == ["a", "b", "b", "c", "d", "root"] and shop.calls()[-1] == "d"


def test_a_join_that_gets_one_more_step_to_wait_for(shop: Workshop) -> None:
    shop.error(flow(say("a"), fragile("b"), say("d", "a, b")))
    shop.fix("fixed-b")

    outcome = shop.resume(flow(say("a"), fragile("b"), say("c"), say("d", "a, b, c")))

    assert statuses(outcome, "abcd") == dict.fromkeys("abcd", "completed")
    assert sorted(shop.calls()) == ["a", "b", "b", "c", "d"]


def test_a_join_that_was_reached_and_is_gone(shop: Workshop) -> None:
    shop.error(flow(say("a"), say("b"), fragile("c", "b"), say("d", "a, c")))

    with pytest.raises(GraphChanged):
        shop.resume(flow(say("a"), say("b"), fragile("c", "b"), say("d", "b, c")))


def test_nothing_is_due_where_a_route_leads_past(shop: Workshop) -> None:
    outcome = shop.run(CHOICE, {"n": 1})

    assert statuses(outcome, ["waits", "joins"]) == {"waits": "pending", "joins": "pending"}  # type: ignore[arg-type]
