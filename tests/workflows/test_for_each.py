"""`for_each`: items are worked on one by one or at once, kept one by one, and tried again one by one."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import ExecutionError, GraphChanged
from holdfast.values import RunStatus
from holdfast.workflows.scope import Layout
from tests.workflows.workshop import Workshop

WORK = '''
import os
import time
from pathlib import Path

HERE = Path(__file__).parent


def work(item, index, key):
    """Note the item, and do with it what a file of its name says."""
    with (HERE / "calls").open("a") as file:
        file.write(f"{item}\\n")
    wish = HERE / f"{item}.wish"
    if wish.exists():
        how = wish.read_text()
        if how == "fail":
            raise ValueError(f"{item} is broken")
        if how == "die":
            time.sleep(0.3)
            wish.unlink()
            os._exit(9)
    return f"{index}:{key}:{item}"
'''


def outputs(shop: Workshop, outcome: Any, name: str = "x") -> Any:
    return Layout(shop.load().definition).view(outcome.state, name)


@pytest.fixture
def work(shop: Workshop) -> Workshop:
    shop.write(WORK, "work.py")
    return shop


def wish(shop: Workshop, how: str, *items: str) -> None:
    for item in items:
        shop.write(how, f"{item}.wish")


def step(more: str = "", items: str = "[a, b, c, d]") -> str:
    return f"""
        steps:
          - name: x
            for_each: {{in: {items}{", " + more if more else ""}}}
            python: work.py:work
          - {{name: after, set: {{outputs: "{{{{ steps.x.outputs }}}}", errors: "{{{{ steps.x.errors }}}}"}}}}
        """


# What is worked on.


def test_every_item_in_order(work: Workshop) -> None:
    outcome = work.run(step())

    assert outcome.state["after"]["output"] == {
        "outputs": ["0:0:a", "1:1:b", "2:2:c", "3:3:d"],
        "errors": {},
    }
    assert outcome.state["x"] == {"status": "completed", "visits": 1, "count": 4}
    assert sorted(work.calls()) == ["a", "b", "c", "d"]


def test_fields_give_their_keys(work: Workshop) -> None:
    outcome = work.run(step(items="{one: a, two: b}"))

    assert outputs(work, outcome)["outputs"] == ["0:one:a", "1:two:b"]


def test_keys_by_an_expression_and_a_name_for_the_item(shop: Workshop) -> None:
    """R1.4, R2.1: key, index and the name of the item."""
    outcome = shop.run(
        """
        workflow:
          name: test
          inputs: {orders: {type: array, default: [{id: 7, n: 1}, {id: 9, n: 2}]}}
        steps:
          - name: x
            for_each: {in: "{{ inputs.orders }}", as: order, key: "'order-' + str(order.id)"}
            set: {text: "{{ key }} {{ index }} {{ order.n }}"}
        """
    )

    assert {key: item["output"] for key, item in outcome.state["x:items"].items()} == {
        "order-7": {"text": "order-7 0 1"},
        "order-9": {"text": "order-9 1 2"},
    }


def test_no_items_at_all(work: Workshop) -> None:
    outcome = work.run(step(items="[]"))

    assert outcome.state["x"] == {"status": "completed", "visits": 1, "count": 0}
    assert outcome.state["after"]["output"] == {"outputs": [], "errors": {}}


def test_one_after_the_other(work: Workshop) -> None:
    work.run(step("mode: sequential"))

    assert work.calls() == ["a", "b", "c", "d"]


def test_a_condition_is_asked_once_for_the_whole_step(work: Workshop) -> None:
    outcome = work.run(step().replace("python: work", "when: 'false'\n            python: work"))

    assert outcome.state["x"]["status"] == "skipped" and outcome.state["after"]["output"]["outputs"] == []
    assert work.calls() == []


@pytest.mark.parametrize(
    ("items", "more", "words"),
    [
        (
            '"{{ steps.before.output.n }}"',
            "",
            "for_each.in: a list or fields are needed, and this gives a number",
        ),
        ('"{{ steps.before.output.m }}"', "", "for_each.in: in 'steps.before.output.m'"),
        ("[a, a]", "key: item", "items 0 and 1 have one key, 'a'"),
        ("[{a: 1}, {b: 2}]", "key: item.a", "for_each.key of item 1: in 'item.a'"),
        ("[[1]]", "key: item", "a text or a number is needed, not a list"),
        ("['']", "key: item", "for_each.key of item 0"),
    ],
)
def test_items_that_make_no_sense(work: Workshop, items: str, more: str, words: str) -> None:
    text = step(more, items).replace("steps:\n", "steps:\n          - {name: before, set: {n: 5}}\n", 1)

    told = work.error(text)

    assert "'x'" in told and words in told


def test_items_that_make_no_sense_can_be_repaired(work: Workshop) -> None:
    work.error(step("key: item", "[a, a]"))

    assert outputs(work, work.resume(step("key: item", "[a, b]")))["outputs"] == ["0:a:a", "1:b:b"]


# Failures.


def test_the_first_failure_fails_the_run_and_a_resume_does_the_rest(work: Workshop) -> None:
    """R1.4: `fail_fast`, the default."""
    wish(work, "fail", "b")
    told = work.error(step("mode: sequential"))
    assert "item '1'" in told and "b is broken" in told and work.calls() == ["a", "b"]

    (work.folder / "b.wish").unlink()
    outcome = work.resume()

    assert outputs(work, outcome)["outputs"] == ["0:0:a", "1:1:b", "2:2:c", "3:3:d"]
    assert work.calls() == ["a", "b", "b", "c", "d"]


def test_failures_that_the_others_go_on_after(work: Workshop) -> None:
    """R1.4: `on_error: continue`, with outputs and errors by item."""
    wish(work, "fail", "b", "d")
    outcome = work.run(step("on_error: continue"))

    assert outcome.state["x"]["status"] == "completed"
    assert outcome.state["after"]["output"] == {
        "outputs": ["0:0:a", "2:2:c"],
        "errors": {"1": "ValueError: b is broken", "3": "ValueError: d is broken"},
    }


def test_if_every_item_fails_the_step_has_failed(work: Workshop) -> None:
    wish(work, "fail", "a", "b")
    outcome = work.run(step("on_error: continue", "[a, b]"))

    assert (outcome.state["x"]["status"], outcome.state["x"]["error"]) == ("failed", "every item failed")


def test_all_or_nothing_tries_only_those_again_that_failed(work: Workshop) -> None:
    """R1.4: `all_or_nothing`."""
    wish(work, "fail", "b", "d")
    told = work.error(step("on_error: all_or_nothing"))
    assert "2 of 4 items failed (1: ValueError: b is broken; 3: ValueError: d is broken)" in told

    (work.folder / "b.wish").unlink()
    with pytest.raises(ExecutionError, match="1 of 4 items failed"):
        work.resume()
    (work.folder / "d.wish").unlink()
    outcome = work.resume()

    assert outputs(work, outcome)["outputs"] == ["0:0:a", "1:1:b", "2:2:c", "3:3:d"]
    assert sorted(work.calls()) == ["a", "b", "b", "c", "d", "d", "d"]


def test_all_or_nothing_keeps_to_the_items_it_began_with(work: Workshop) -> None:
    wish(work, "fail", "b")
    work.error(step("on_error: all_or_nothing", "[a, b]"))
    (work.folder / "b.wish").unlink()

    outcome = work.resume(step("on_error: all_or_nothing", "[z]"))

    assert outputs(work, outcome)["outputs"] == ["0:0:a", "1:1:b"]
    assert outcome.state["after"]["status"] == "completed"


def test_a_step_that_goes_on_after_its_failure(work: Workshop) -> None:
    wish(work, "fail", "b")
    outcome = work.run(step().replace("python: work", "on_error: continue\n            python: work"))

    assert outcome.state["x"]["status"] == "failed" and "1 of 4 items failed" in outcome.state["x"]["error"]
    assert outcome.state["after"]["status"] == "completed"


def test_a_step_that_goes_on_although_its_items_make_no_sense(work: Workshop) -> None:
    text = step("key: item", "[a, a]").replace("python: work", "on_error: continue\n            python: work")
    outcome = work.run(text)

    assert outcome.state["x"]["status"] == "failed" and "have one key" in outcome.state["x"]["error"]
    assert outcome.state["after"]["output"] == {"outputs": [], "errors": {}}


def test_items_are_retried_on_their_own(shop: Workshop) -> None:
    """R1.7: a step's retries."""
    shop.run(
        """
        steps:
          - name: x
            for_each: {in: [a, b]}
            shell: {run: 'echo $I >> tries; [ $I = a ] || [ -e $I ] || { touch $I; exit 1; }', env: {I: "{{ item }}"}}
            retry: {attempts: 2, delay: 1ms}
        """
    )

    assert sorted((shop.folder / "tries").read_text().split()) == ["a", "b", "b"]


# Crashes.


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_a_crash_loses_and_repeats_nothing_that_was_finished(work: Workshop, mode: str) -> None:
    calm = outputs(work, work.run(step(f"mode: {mode}")))
    (work.folder / "calls").unlink()
    (work.folder / "runs.db").unlink()
    wish(work, "die", "c")

    assert work.drive() == 9
    before = work.calls()
    outcome = work.resume()

    assert outputs(work, outcome) == calm
    again = work.calls()[len(before) :]
    assert "c" in again and "a" not in again[1:] and sorted({*before, *again}) == ["a", "b", "c", "d"]
    if mode == "sequential":
        assert (before, again) == (["a", "b", "c"], ["c", "d"])


def test_a_crash_of_an_item_that_may_not_be_repeated(work: Workshop) -> None:
    text = step("mode: sequential").replace("python: work", "idempotent: false\n            python: work")
    work.load(text)
    wish(work, "die", "b")
    assert work.drive() == 9

    with pytest.raises(ExecutionError, match="is not repeated unasked"):
        work.resume()
    outcome = work.resume(if_interrupted="skip")

    assert outcome.status == RunStatus.COMPLETED and work.calls() == ["a", "b", "c", "d"]
    assert outputs(work, outcome)["outputs"] == ["0:0:a", "2:2:c", "3:3:d"]


# Loops.


def test_a_loop_that_comes_back_begins_afresh(shop: Workshop) -> None:
    outcome = shop.run(
        """
        workflow:
          name: test
          vars: {rounds: [[a, b, c], [b], [c, d]]}
        steps:
          - name: x
            for_each: {in: "{{ vars.rounds[visits.x] }}", key: item}
            set: {round: "{{ visits.x }}", item: "{{ item }}"}
          - name: seen
            set: {now: "{{ steps.x.outputs }}", before: "{{ steps.seen.output if visits.seen else [] }}"}
            routes: [{to: x, when: "visits.x < 3"}, {to: $end}]
        """
    )

    third = outcome.state["seen"]["output"]
    assert [item["item"] for item in third["now"]] == ["c", "d"]
    assert [item["item"] for item in third["before"]["now"]] == ["b"]
    assert [item["item"] for item in third["before"]["before"]["now"]] == ["a", "b", "c"]
    assert {item["round"] for item in third["now"]} == {2}, "as in any other step: the visits before this one"


def test_items_see_what_became_of_the_round_before(shop: Workshop) -> None:
    outcome = shop.run(
        """
        steps:
          - name: x
            for_each: {in: [1, 2]}
            set: {n: "{{ steps.x.outputs[index].n * 10 if visits.x else item }}"}
            routes: [{to: x, when: "visits.x < 3"}, {to: $end}]
        """
    )

    assert outputs(shop, outcome)["outputs"] == [{"n": 100}, {"n": 200}]


def test_a_loop_after_failures_does_not_see_those_of_the_round_before(work: Workshop) -> None:
    text = """
        steps:
          - name: x
            for_each: {in: [a, b], on_error: continue}
            python: work.py:work
          - name: repair
            shell: rm -f b.wish
            routes: [{to: x, when: "steps.x.errors"}, {to: $end}]
        """
    wish(work, "fail", "b")
    outcome = work.run(text)

    assert outputs(work, outcome)["errors"] == {} and outcome.state["x"]["visits"] == 2
    assert sorted(work.calls()) == ["a", "a", "b", "b"]


# Files that change.


def test_items_that_were_handed_out_are_kept_when_the_list_changes(work: Workshop) -> None:
    wish(work, "fail", "b")
    work.error(step("mode: sequential"))
    (work.folder / "b.wish").unlink()

    outcome = work.resume(step("mode: sequential", "[x, y, z]"))

    assert outputs(work, outcome)["outputs"] == ["0:0:a", "1:1:b", "2:2:c", "3:3:d"]


def test_a_step_that_is_no_longer_done_for_each_cannot_go_on_with_its_items(work: Workshop) -> None:
    wish(work, "fail", "b")
    work.error(step("mode: sequential"))

    with pytest.raises(
        GraphChanged, match="'x', or rather its part 'x:item', which the workflow no longer has"
    ):
        work.resume("steps: [{name: x, set: {n: 1}}]")


def test_many_items(shop: Workshop) -> None:
    shop.write("def numbers():\n    return list(range(1000))\n", "own.py")
    outcome = shop.run(
        """
        workflow:
          name: test
          limits: {max_parallel: 50}
        steps:
          - {name: list, python: "own.py:numbers"}
          - {name: x, for_each: {in: "{{ steps.list.output }}", max_parallel: 50}, set: {n: "{{ item * 2 }}"}}
          - {name: total, set: {sum: "{{ steps.x.outputs | map(attribute='n') | sum }}"}}
        """
    )

    assert outcome.state["total"]["output"] == {"sum": 999_000}
