"""Comparing two runs: where they part, which steps only one ran, whose results differ, and what each cost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import END, START, App, ExecutionError, StateGraph, open_store
from holdfast.stores.base import Store
from holdfast.views import compare_runs
from tests.cli.in_process import Call, boom, caller
from tests.graphs import Log, chain, fan, says


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(capsys)


def doubling(store: Store) -> App:
    def double(state: Any) -> dict[str, Any]:
        return {"n": state["n"] * 2}

    return chain("a", "b", "double", "c", nodes={"double": double}).compile(store)


def test_two_forks_are_compared(store: Store) -> None:
    app = doubling(store)
    app.invoke({"n": 1}, run_id="root")
    one, other = app.fork("root", at=1), app.fork("root", at=2, update={"n": 5}, run_id="edited")
    app.resume(one)
    app.resume(other)

    found = app.compare(one, other)

    assert found.ancestor is not None
    assert (found.ancestor.run_id, found.ancestor.wave, found.ancestor.nodes) == ("root", 1, ("a",))
    assert (found.diverging, found.same) == ("double#1", 2)
    assert not found.only_one and not found.only_other and not found.problems
    (step,) = found.differing
    assert step.result is not None and step.result.as_json()["changed"]["n"]["to"] == 10
    assert found.other.interventions == ("state changed from outside: n",)
    assert (found.one.steps, found.other.steps) == (3, 3), (
        "the step before the later fork is its own history, too"
    )
    assert found.state.before["n"] == 2 and found.state.after["n"] == 10


def test_a_run_is_compared_with_its_fork_and_with_itself(memory: Store) -> None:
    app = doubling(memory)
    app.invoke({"n": 1}, run_id="root")
    fork = app.fork("root", at=2)
    app.resume(fork)

    found = app.compare("root", fork)
    assert found.ancestor is not None and found.ancestor.wave == 2
    assert found.diverging is None and found.same == 2 and not found.state
    found = app.compare("root@1", "root")
    assert found.ancestor is not None and found.ancestor.wave == 1
    assert found.only_other == ("b#1", "double#1", "c#1") and found.diverging == "b#1"
    found = app.compare("root", "root")
    assert (found.diverging, found.one.steps, found.other.steps) == (None, 0, 0)


def test_a_step_whose_result_was_given_is_told_from_a_skipped_one(memory: Store) -> None:
    app = doubling(memory)
    app.invoke({"n": 1}, run_id="root")
    app.resume(app.fork("root", at=2, update={"n": 7}, as_node="double", run_id="given"))
    app.resume(app.fork("root", at=2, update={"n": 2}, as_node="double", run_id="alike"))

    (step,) = app.compare("root", "given").differing
    assert (step.step, step.reason) == ("double#1", "its result was given in given")
    assert step.result is not None and step.result.as_json()["changed"]["n"]["to"] == 7
    (step,) = app.compare("alike", "root").differing
    assert (step.step, step.reason, bool(step.result)) == ("double#1", "its result was given in alike", False)


def test_the_order_of_siblings_makes_no_difference(memory: Store) -> None:
    app = fan("x", "y", "z").compile(memory)
    app.invoke({"n": 1}, run_id="one")
    app.invoke({"n": 1}, run_id="other")

    found = app.compare("one", "other")

    assert (found.is_related, found.diverging, found.same) == (False, None, 3)


def test_steps_that_only_one_ran_money_and_code(memory: Store) -> None:
    def routed(says_c: str, cost: float) -> App:
        def judge(state: Any, ctx: Any) -> dict[str, Any]:
            ctx.spend("m", input_tokens=3, output_tokens=4, cost=cost)
            return {"log": ["judge"]}

        graph = StateGraph(Log, name="routed")
        graph.add_node("judge", judge, version="1")
        graph.add_node("good", says("good"))
        graph.add_node("bad", says(says_c), version=says_c)
        graph.add_edge(START, "judge")
        graph.add_conditional_edges("judge", lambda state: "good" if state["n"] else "bad", ["good", "bad"])
        graph.add_edge("good", END)
        graph.add_edge("bad", END)
        return graph.compile(memory)

    app = routed("bad", 0.5)
    app.invoke({"n": 1}, run_id="root")
    fork = app.fork("root", at=0, update={"n": 0})
    routed("worse", 0.25).resume(fork)

    found = app.compare("root", fork)

    assert (found.diverging, found.only_one, found.only_other) == ("good#1", ("good#1",), ("bad#1",))
    assert (found.one.spending.cost, found.other.spending.cost) == (0.5, 0.25)
    assert list(found.code) == ["bad"]


def test_runs_of_different_workflows_are_compared_as_far_as_that_goes(memory: Store) -> None:
    chain("a", "b", name="first").compile(memory).invoke({"n": 1}, run_id="one")
    failing = chain("a", "c", nodes={"c": boom}, name="second").compile(memory)
    with pytest.raises(ExecutionError):
        failing.invoke({"n": 2}, run_id="other")

    found = compare_runs(memory, "one", "other")

    assert not found.is_related and (found.only_one, found.only_other) == (("b#1",), ())
    assert (found.one.status, found.other.status) == ("completed", "failed")
    assert found.other.failed_attempts == 1 and found.code == {}


def test_what_is_gone_is_said(store: Store) -> None:
    app = doubling(store)
    app.invoke({"n": 1}, run_id="root")
    app.fork("root", at=1, run_id="middle")
    app.resume("middle")
    app.fork("middle", at=2, update={"n": 4}, run_id="leaf")
    app.resume("leaf")
    app.fork("root", at=1, run_id="sibling")
    app.resume("sibling")
    app.delete("root")

    found = app.compare("middle", "sibling")
    assert found.ancestor is not None and (found.ancestor.run_id, found.ancestor.is_there) == ("root", False)
    assert found.same == 3
    app.delete("middle")
    found = app.compare("leaf", "sibling")
    assert not found.is_related, "nothing is known any more of where the middle one came from"
    assert found.problems and "middle" in found.problems[0]


def test_a_rolled_back_step_counts_no_more(memory: Store) -> None:
    app = doubling(memory)
    app.invoke({"n": 1}, run_id="root")
    fork = app.fork("root", at=1)
    app.resume(fork)
    app.rollback(fork, "@b")

    found = app.compare("root", fork)

    assert found.only_one == ("double#1", "c#1") and found.same == 1
    app.rollback(fork, app.history(fork)[1].id)
    assert app.compare("root", fork).same == 3, "and back again"


def test_a_promoted_run_did_what_its_fork_did(memory: Store) -> None:
    app = doubling(memory)
    app.invoke({"n": 1}, run_id="root")
    app.fork("root", at=1, update={"n": 5}, run_id="child")
    app.resume("child")
    app.fork("child", at=3, run_id="grandchild")
    app.resume("grandchild")
    app.promote("grandchild", into="root")

    found = app.compare("root", "child")
    assert (found.diverging, found.same, found.only_one, found.only_other) == (None, 1, (), ())
    assert found.ancestor is not None and found.ancestor.run_id == "child"
    app.delete("grandchild")
    assert app.compare("root", "child").problems


def test_the_command(sqlite_url: str, call: Call) -> None:
    store = open_store(sqlite_url)
    app = doubling(store)
    app.invoke({"n": 1}, run_id="root")
    app.fork("root", at=2, update={"n": 5, "log": ["\x1b[31mred"]}, run_id="fork1")
    app.resume("fork1")

    told = call("runs", "compare", "root", "fork1", "--store", sqlite_url)
    assert told.code == 0
    assert "root, after wave 2 (b)" in told.out and "double" in told.out and "\x1b" not in told.out
    found = call("runs", "compare", "root", "fork1", "--json", "--store", sqlite_url).json
    assert found.pop("store") == store.url
    assert found == json.loads(json.dumps(app.compare("root", "fork1").as_json()))
    assert call("runs", "compare", "root", "nobody", "--store", sqlite_url).code == 1
    store.close()
