"""`parallel`: members run together, and what becomes of the group when some fail, die or change."""

from __future__ import annotations

import itertools

import pytest

from holdfast.errors import ExecutionError, GraphChanged
from holdfast.values import RunStatus
from tests.workflows.workshop import Workshop


def group(*members: str, on_error: str = "fail_fast", after: str = "") -> str:
    listed = "\n".join(f"                - {member}" for member in members)
    return f"""
        steps:
          - name: g
            parallel:
              on_error: {on_error}
              steps:
{listed}
          - {{name: after, python: "steps.py:say", with: {{word: after}}}}
        {after}
        """


def say(name: str, word: str = "") -> str:
    return f'{{name: {name}, python: "steps.py:say", with: {{word: {word or name}}}}}'


def fragile(name: str, how: str = "fail_until", more: str = "") -> str:
    arguments = f"with: {{word: {name}, fixed: fixed-{name}}}"
    return f'{{name: {name}, python: "steps.py:{how}", {arguments}{more}}}'


# All goes well.


def test_members_run_together_and_their_outputs_are_those_of_the_group(shop: Workshop) -> None:
    text = """
        steps:
          - name: g
            parallel:
              - {name: a, shell: "touch a; while [ ! -e b ]; do sleep 0.02; done; echo 1", timeout: 20s}
              - {name: b, shell: "touch b; while [ ! -e a ]; do sleep 0.02; done; echo 2", timeout: 20s}
          - {name: sum, set: {n: "{{ steps.g.outputs.a + steps.g.output.b }}", errors: "{{ steps.g.errors }}"}}
        """

    outcome = shop.run(text)

    assert outcome.state["sum"]["output"] == {"n": 3, "errors": {}}
    assert outcome.state["g"] == {"status": "completed", "visits": 1}


def test_a_group_of_one(shop: Workshop) -> None:
    assert shop.run(group(say("a"))).status == RunStatus.COMPLETED
    assert shop.calls() == ["a", "after"]


def test_a_group_that_is_skipped(shop: Workshop) -> None:
    outcome = shop.run(
        group(say("a"), say("b")).replace("parallel:", "when: 'false'\n            parallel:", 1)
    )

    assert outcome.state["g"]["status"] == "skipped" and shop.calls() == ["after"]


def test_a_member_that_is_skipped(shop: Workshop) -> None:
    outcome = shop.run(group(say("a"), say("b").replace("{name", "{when: 'false', name")))

    assert outcome.state["b"]["status"] == "skipped" and outcome.state["g"]["status"] == "completed"


MIXED = """
    steps:
      - name: g
        parallel:
          - {name: plain, python: "steps.py:say", with: {word: plain}}
          - {name: each, for_each: {in: [a, b]}, python: "steps.py:say", with: {word: "{{ item }}"}}
          - {name: nested, workflow: inner.yaml, with: {word: n}}
      - {name: seen, set: {found: "{{ steps.g.outputs }}"}}
      - {name: after, python: "steps.py:say", with: {word: after}}
    """
INNER = """
    workflow: {name: inner, inputs: {word: {required: true}}}
    steps:
      - {name: one, python: "steps.py:say", with: {word: "{{ inputs.word }}1"}}
      - {name: two, python: "steps.py:say", with: {word: "{{ inputs.word }}2"}}
    output: "{{ steps.two.output }}"
    """


def test_members_of_several_nodes(shop: Workshop) -> None:
    shop.write(INNER, "inner.yaml")
    outcome = shop.run(MIXED)

    assert outcome.state["seen"]["output"] == {
        "found": {"plain": "plain", "each": ["a", "b"], "nested": "n2"}
    }
    assert sorted(shop.calls()) == ["a", "after", "b", "n1", "n2", "plain"]


def test_a_pause_after_a_group_of_several_nodes_comes_when_all_are_through(shop: Workshop) -> None:
    shop.write(INNER, "inner.yaml")
    paused = shop.run(MIXED, interrupt_after=["g"])

    assert paused.status == RunStatus.PAUSED and len(paused.pauses) == 1
    assert sorted(shop.calls()) == ["a", "b", "n1", "n2", "plain"]
    assert paused.state["g"]["status"] == "completed"
    assert shop.resume().status == RunStatus.COMPLETED


MEMBERS = {
    "plain": ('python: "steps.py:say", with: {word: plain}', ["plain"]),
    "each": ('for_each: {in: [a, b]}, python: "steps.py:say", with: {word: "{{ item }}"}', ["a", "b"]),
    "empty": ('for_each: {in: []}, python: "steps.py:say", with: {word: never}', []),
    "skipped": ('when: "false", for_each: {in: [1]}, python: "steps.py:say", with: {word: never}', []),
    "short": ("workflow: short.yaml", ["s"]),
    "long": ("workflow: inner.yaml, with: {word: n}", ["n1", "n2"]),
    "passed": ('when: "false", workflow: inner.yaml, with: {word: never}', []),
    "failing": ("for_each: {in: [1, 2, 3]}, shell: {run: 'exit $I', env: {I: '{{ item }}'}}", []),
}


@pytest.mark.parametrize(
    "names",
    [*itertools.combinations(MEMBERS, 2), *itertools.combinations(MEMBERS, 3), tuple(MEMBERS)],
    ids="-".join,
)
def test_what_follows_a_group_is_done_once_however_long_its_members_take(
    shop: Workshop, names: tuple[str, ...]
) -> None:
    shop.write(INNER, "inner.yaml")
    shop.write(
        "workflow: {name: s}\nsteps: [{name: o, python: 'steps.py:say', with: {word: s}}]", "short.yaml"
    )
    outcome = shop.run(
        group(*(f"{{name: {name}, {MEMBERS[name][0]}}}" for name in names), on_error="continue"),
        durability="process",
    )

    assert outcome.state["g"]["status"] == "completed"
    assert sorted(shop.calls()) == sorted(["after", *(call for name in names for call in MEMBERS[name][1])])


# Failures.


def test_the_first_failure_fails_the_run_and_a_resume_does_the_rest(shop: Workshop) -> None:
    told = shop.error(group(say("a"), fragile("b"), say("c")))
    assert "'b' failed: ValueError: b is broken" in told

    shop.fix("fixed-b")
    outcome = shop.resume()

    assert outcome.state["g"]["status"] == "completed"
    assert sorted(shop.calls()) == ["a", "after", "b", "b", "c"]


def test_failures_that_the_others_go_on_after(shop: Workshop) -> None:
    text = group(say("a"), fragile("b"), on_error="continue").replace(
        'python: "steps.py:say", with: {word: after}',
        'set: {errors: "{{ steps.g.errors }}", ok: "{{ steps.g.outputs }}"}',
    )
    outcome = shop.run(text)

    assert outcome.state["g"]["status"] == "completed" and outcome.state["b"]["status"] == "failed"
    assert outcome.state["after"]["output"] == {"errors": {"b": "ValueError: b is broken"}, "ok": {"a": "a"}}


def test_if_every_member_fails_the_group_has_failed(shop: Workshop) -> None:
    outcome = shop.run(group(fragile("a"), fragile("b"), on_error="continue"))

    assert (outcome.state["g"]["status"], outcome.state["g"]["error"]) == ("failed", "every member failed")


def test_all_or_nothing_tries_only_those_again_that_failed(shop: Workshop) -> None:
    told = shop.error(group(say("a"), fragile("b"), fragile("c"), on_error="all_or_nothing"))
    assert "2 of 3 members failed (b: ValueError: b is broken; c: ValueError: c is broken)" in told

    shop.fix("fixed-b")
    with pytest.raises(ExecutionError, match="1 of 3 members failed"):
        shop.resume()
    shop.fix("fixed-c")
    outcome = shop.resume()

    assert outcome.state["g"]["status"] == "completed"
    assert sorted(shop.calls()) == ["a", "after", "b", "b", "c", "c", "c"]


def test_all_or_nothing_goes_back_to_the_failed_items_of_a_member(shop: Workshop) -> None:
    items = "{name: x, for_each: {in: [a, b, c]}, python: 'steps.py:fail_until', "
    items += "with: {word: '{{ item }}', fixed: 'fixed-{{ item }}'}}"
    text = group(say("d"), items, on_error="all_or_nothing")
    shop.fix("fixed-a")
    assert "x: 2 of 3 items failed" in shop.error(text)

    shop.fix("fixed-b")
    shop.fix("fixed-c")
    outcome = shop.resume()

    assert outcome.state["x"]["status"] == "completed" and outcome.state["x"]["visits"] == 1
    assert sorted(shop.calls()) == ["a", "after", "b", "b", "c", "c", "d"]
    assert {key: item["output"] for key, item in outcome.state["x:items"].items()} == {
        "0": "a works",
        "1": "b works",
        "2": "c works",
    }


def test_all_or_nothing_with_a_sub_workflow_goes_on_where_it_failed(shop: Workshop) -> None:
    shop.write(
        """
        workflow: {name: inner}
        steps:
          - {name: one, python: "steps.py:say", with: {word: one}}
          - {name: two, python: "steps.py:fail_until", with: {word: two, fixed: fixed-two}}
        """,
        "inner.yaml",
    )
    text = group(say("a"), "{name: w, workflow: inner.yaml}", on_error="all_or_nothing")
    shop.error(text)

    shop.fix("fixed-two")
    assert shop.resume().status == RunStatus.COMPLETED
    assert sorted(shop.calls()) == ["a", "after", "one", "two", "two"]


def test_a_member_that_may_fail_does_not_fail_the_group(shop: Workshop) -> None:
    outcome = shop.run(group(say("a"), fragile("b", more=", on_error: continue"), on_error="all_or_nothing"))

    assert outcome.state["g"]["status"] == "completed" and outcome.state["b"]["status"] == "failed"


def test_a_group_that_may_fail(shop: Workshop) -> None:
    text = group(say("a"), fragile("b"), on_error="all_or_nothing")
    outcome = shop.run(text.replace("- name: g\n", "- name: g\n            on_error: continue\n"))

    assert outcome.state["g"]["status"] == "failed" and "1 of 2 members failed" in outcome.state["g"]["error"]
    assert "after" in shop.calls()


def test_members_of_several_nodes_that_fail_in_a_group_that_goes_on(shop: Workshop) -> None:
    shop.write(
        """
        workflow: {name: inner}
        steps:
          - {name: one, python: "steps.py:fail_until", with: {word: one, fixed: never}}
          - {name: two, python: "steps.py:say", with: {word: two}}
        """,
        "inner.yaml",
    )
    items = "{name: x, for_each: {in: [1, 2]}, shell: {run: 'exit $I', env: {I: '{{ item - 1 }}'}}}"
    outcome = shop.run(group(say("a"), items, "{name: w, workflow: inner.yaml}", on_error="continue"))

    assert outcome.state["g"]["status"] == "completed"
    assert outcome.state["x"]["status"] == "failed"
    assert outcome.state["w"]["error"] == "step 'one': ValueError: one is broken"
    assert sorted(shop.calls()) == ["a", "after", "one"]


# Crashes.


@pytest.mark.parametrize("on_error", ["fail_fast", "continue", "all_or_nothing"])
def test_a_crash_repeats_only_what_was_under_way(shop: Workshop, on_error: str) -> None:
    slow = "{name: slow, shell: 'echo slow >> calls; while [ ! -e go ]; do sleep 0.02; done'}"
    dying = "{name: dying, shell: 'echo dying >> calls; [ -e go ] || { while [ $(wc -l < calls) -lt 3 ]; "
    dying += "do sleep 0.02; done; sleep 0.3; kill -9 $PPID; sleep 9; }'}"
    shop.load(group(say("a"), slow, dying, on_error=on_error))
    assert shop.drive() == -9

    shop.fix("go")
    outcome = shop.resume()

    assert outcome.state["g"]["status"] == "completed"
    assert sorted(shop.calls()) == ["a", "after", "dying", "dying", "slow", "slow"]


def test_a_crash_in_a_member_of_several_nodes(shop: Workshop) -> None:
    shop.write(
        INNER.replace(
            'steps.py:say", with: {word: "{{ inputs.word }}2"}',
            'steps.py:die_until", with: {word: n2, fixed: fixed}',
        ),
        "inner.yaml",
    )
    shop.load(MIXED)
    assert shop.drive() == 9

    outcome = shop.resume()

    assert outcome.state["seen"]["output"]["found"] == {
        "plain": "plain",
        "each": ["a", "b"],
        "nested": "n2 lives",
    }
    calls = shop.calls()
    assert sorted(set(calls)) == ["a", "after", "b", "n1", "n2", "plain"]
    assert (calls.count("plain"), calls.count("n1"), calls.count("n2")) == (1, 1, 2)


# Loops.


def test_a_loop_that_comes_back_begins_afresh(shop: Workshop) -> None:
    outcome = shop.run(
        """
        steps:
          - name: g
            parallel:
              - {name: a, set: {n: "{{ visits.g }}"}}
              - {name: b, for_each: {in: "{{ [1] if visits.g else [1, 2] }}"}, set: {n: "{{ visits.g }}{{ item }}"}}
          - name: seen
            set: {now: "{{ steps.g.outputs }}"}
            routes: [{to: g, when: "visits.g < 2"}, {to: $end}]
        """
    )

    assert outcome.state["seen"]["output"] == {"now": {"a": {"n": 1}, "b": [{"n": "11"}]}}


def test_a_group_that_is_skipped_the_second_time_shows_nothing_of_the_first(shop: Workshop) -> None:
    outcome = shop.run(
        """
        steps:
          - name: g
            when: visits.g == 0
            parallel: [{name: a, set: {n: 1}}]
          - name: seen
            set: {now: "{{ steps.g.outputs }}"}
            routes: [{to: g, when: "visits.g < 2"}, {to: $end}]
        """
    )

    assert outcome.state["seen"]["output"] == {"now": {}}


def test_all_or_nothing_in_a_loop(shop: Workshop) -> None:
    text = group(
        say("a"),
        fragile("b"),
        on_error="all_or_nothing",
        after='  - {name: again, set: {}, routes: [{to: g, when: "visits.g < 2"}, {to: $end}]}',
    )
    shop.fix("fixed-b")
    shop.run(text)

    assert sorted(shop.calls()) == ["a", "a", "after", "after", "b", "b"]


# Files that change.


def test_a_member_that_is_added_while_the_group_is_under_way(shop: Workshop) -> None:
    shop.error(group(say("a"), fragile("b")))
    shop.fix("fixed-b")

    outcome = shop.resume(group(say("a"), fragile("b"), say("new")))

    assert outcome.state["new"]["output"] == "new" and outcome.state["g"]["status"] == "completed"
    assert sorted(shop.calls()) == ["a", "after", "b", "b", "new"]


def test_a_member_that_is_removed_although_it_is_to_run(shop: Workshop) -> None:
    shop.error(group(say("a"), fragile("b")))

    with pytest.raises(GraphChanged, match="'b'"):
        shop.resume(group(say("a")))


def test_a_member_that_is_removed_after_it_was_done(shop: Workshop) -> None:
    shop.error(group(say("a"), fragile("b")))
    shop.fix("fixed-b")
    outcome = shop.resume(group(fragile("b"), say("c")), remap={"a": "c"})

    assert outcome.status == RunStatus.COMPLETED


def test_a_member_that_is_renamed(shop: Workshop) -> None:
    shop.error(group(say("a"), fragile("b")))
    shop.fix("fixed-c")

    outcome = shop.resume(group(say("a"), fragile("c")), remap={"b": "c"})

    assert outcome.state["c"]["output"] == "c works"
    assert sorted(shop.calls()) == ["a", "after", "b", "c"]
