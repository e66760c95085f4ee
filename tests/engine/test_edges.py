"""Edges: conditions, routes, joins, cycles and exits."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import (
    END,
    START,
    Context,
    ExecutionError,
    MaxIterationsExceeded,
    Send,
    StateGraph,
)
from holdfast.stores.base import Store
from tests.graphs import Heard, Log, chain, counter, fan, says

# Edges.


def test_conditions_are_tried_in_order_and_the_plain_edge_is_the_fallback() -> None:
    graph = StateGraph(Log).add_node("a", says("a"))
    for name in ("small", "big", "other"):
        graph.add_node(name, says(name))
    graph.add_edge(START, "a").add_edge("a", "other")
    graph.add_edge("a", "small", when=lambda s: s["n"] < 10).add_edge("a", "big", when=lambda s: s["n"] < 100)
    app = graph.compile("memory://")

    assert [app.invoke({"n": n}).state["log"][1] for n in (5, 50, 500)] == ["small", "big", "other"]


def test_a_condition_sees_what_its_node_just_did() -> None:
    graph = StateGraph(Log).add_node("a", lambda s: {"n": 1}).add_node("b", says("b"))
    graph.add_edge(START, "a").add_edge("a", "b", when=lambda s: s["n"] == 1).add_edge("a", END)

    assert graph.compile("memory://").invoke({"n": 0}).state["log"] == ["b"]


def test_conditions_and_routes_may_be_async() -> None:
    async def yes(state: Any) -> bool:
        return True

    async def route(state: Any) -> str:
        return "c"

    graph = chain("a").add_node("b", says("b")).add_node("c", says("c")).add_edge("a", "b", when=yes)
    graph.add_conditional_edges("b", route)

    assert graph.compile("memory://").invoke().state["log"] == ["a", "b", "c"]


def test_no_true_condition_and_no_fallback_is_an_error_that_names_the_node() -> None:
    """S3.18, S3.19"""
    graph = StateGraph(Log).add_node("a", says("a")).add_node("b", says("b"))
    graph.add_edge(START, "a").add_edge("a", "b", when=lambda s: False)

    with pytest.raises(ExecutionError, match="no valid edge transition from node: a") as caught:
        graph.compile("memory://").invoke(run_id="r")
    assert caught.value.node == "a"


def test_several_plain_edges_fan_out() -> None:
    assert fan("a", "b", "c").compile("memory://").invoke().state["log"] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("chosen", "mapping", "expected"),
    [
        ("b", None, ["a", "b"]),
        (["b", "c"], None, ["a", "b", "c"]),
        (END, None, ["a"]),
        ([], None, ["a"]),
        (True, {True: "b", False: "c"}, ["a", "b"]),
        (["yes", "no"], {"yes": "c", "no": END}, ["a", "c"]),
        ("c", ["b", "c"], ["a", "c"]),
        (["b", "b"], None, ["a", "b"]),
    ],
)
def test_a_route_chooses_what_follows(chosen: Any, mapping: Any, expected: list[str]) -> None:
    graph = StateGraph(Log)
    for name in "abc":
        graph.add_node(name, says(name), goto="abc")
    graph.add_edge(START, "a").add_conditional_edges("a", lambda s: chosen, mapping)

    assert graph.compile("memory://").invoke().state["log"] == expected


@pytest.mark.parametrize(
    ("chosen", "mapping", "reason"),
    [
        (None, None, "returned None; return node names, Sends or END"),
        ("nowhere", None, "node not found: nowhere"),
        ("maybe", {"yes": "b"}, "returned 'maybe', which is not in its mapping"),
        (3, None, "returned 3; return node names, Sends or END"),
        (Send("nowhere", {}), None, "node not found: nowhere"),
        (Send("b", [1]), None, "needs a mapping to lay over the state"),  # type: ignore[arg-type]
        ([Send("b", {}, "k"), Send("b", {}, "k")], None, "two items for node 'b' have the key 'k'"),
    ],
)
def test_a_route_that_leads_nowhere_fails_the_run_with_the_reason(
    chosen: Any, mapping: Any, reason: str
) -> None:
    graph = StateGraph(Log).add_node("a", says("a")).add_node("b", says("b"))
    graph.add_edge(START, "a").add_conditional_edges("a", lambda s: chosen, mapping)
    app = graph.compile("memory://")

    with pytest.raises(ExecutionError, match=reason) as caught:
        app.invoke(run_id="r")
    assert caught.value.node == "a" and app.runs()[0].status == "failed"


def test_a_route_that_raises_fails_the_run_and_can_be_resumed_without_rerunning_the_node() -> None:
    broken = [True]

    def route(state: Any) -> str:
        if broken[0]:
            raise ZeroDivisionError("oh")
        return "b"

    calls: list[str] = []
    graph = StateGraph(Log).add_node("a", lambda s: calls.append("a")).add_node("b", says("b"))
    app = graph.add_edge(START, "a").add_conditional_edges("a", route).compile("memory://")
    with pytest.raises(ExecutionError, match=r"routing after 'a' failed.*oh") as caught:
        app.invoke(run_id="r")
    assert isinstance(caught.value.cause, ZeroDivisionError)
    broken[0] = False

    assert app.resume("r").state["log"] == ["b"] and calls == ["a"]


def test_the_first_node_may_be_chosen_by_a_route() -> None:
    graph = StateGraph(Log).add_node("a", says("a")).add_node("b", says("b"))
    app = graph.add_conditional_edges(START, lambda s: "b" if s.get("n") else "a").compile("memory://")

    assert app.invoke({"n": 1}).state["log"] == ["b"] and app.invoke().state["log"] == ["a"]


def test_a_first_choice_that_fails_leaves_no_run_behind() -> None:
    graph = StateGraph(Log).add_node("a", says("a")).add_conditional_edges(START, lambda s: s["missing"])
    app = graph.compile("memory://")

    with pytest.raises(ExecutionError, match="the first node cannot be chosen"):
        app.invoke(run_id="r")
    assert app.runs() == []


# Joins.


def test_a_join_waits_for_all_of_its_sources() -> None:
    graph = StateGraph(Log)
    for name in ("short", "long1", "long2", "end"):
        graph.add_node(name, says(name))
    graph.add_edge(START, "short").add_edge(START, "long1").add_edge("long1", "long2")
    graph.add_edge(["short", "long2"], "end")

    assert graph.compile("memory://").invoke().state["log"] == ["short", "long1", "long2", "end"]


def test_after_writes_a_dag() -> None:
    graph = StateGraph(Log)
    graph.add_node("fetch", says("fetch")).add_node("clean", says("clean"), after="fetch")
    graph.add_node("count", says("count"), after=["fetch"]).add_node(
        "report", says("report"), after=["clean", "count"]
    )
    out = graph.compile("memory://").invoke()

    assert out.state["log"] == ["fetch", "clean", "count", "report"] and out.stats.waves == 3


def test_two_plain_edges_into_one_node_of_the_next_wave_run_it_once() -> None:
    graph = fan("a", "b").add_node("end", says("end"))
    graph._edges = [edge for edge in graph._edges if edge.target != END]
    graph.add_edge("a", "end").add_edge("b", "end")

    assert graph.compile("memory://").invoke().state["log"] == ["a", "b", "end"]


def test_a_join_that_is_never_complete_is_told_about(heard: Heard) -> None:
    graph = StateGraph(Log).add_node("a", says("a")).add_node("b", says("b")).add_node("c", says("c"))
    graph.add_conditional_edges(START, lambda s: ["a"], ["a", "b"]).add_edge(["a", "b"], "c")
    out = graph.compile("memory://").invoke(observer=heard)

    assert out.state["log"] == ["a"]
    assert heard.of("join.incomplete")[0].data == {"node": "c", "arrived": ["a"]}


def test_a_join_in_a_loop_waits_anew_each_time_round() -> None:
    graph = StateGraph(Log)
    for name in ("a", "b", "c"):
        graph.add_node(name, says(name))
    graph.add_node("begin", lambda s: {"n": s.get("n", 0) + 1})
    graph.add_edge(START, "begin").add_edge("begin", "a").add_edge("begin", "b").add_edge(["a", "b"], "c")
    graph.add_edge("c", "begin", when=lambda s: s["n"] < 3).add_edge("c", END)

    assert graph.compile("memory://").invoke().state["log"] == ["a", "b", "c"] * 3


# Cycles.


def test_a_loop_runs_until_its_condition_says_so() -> None:
    steps: list[str] = []

    def work(state: Any, ctx: Context) -> dict[str, Any]:
        steps.append(ctx.step)
        return {"n": state["n"] + 1}

    out = counter(4, node=work).compile("memory://").invoke({"n": 0})

    assert out.state["n"] == 4 and steps == ["work#1", "work#2", "work#3", "work#4"]


def test_a_loop_may_use_all_of_its_iterations_and_not_one_more() -> None:
    assert counter(5, 5).compile("memory://").invoke({"n": 0}).state["n"] == 5
    with pytest.raises(MaxIterationsExceeded, match=r"max iterations \(5\) exceeded") as caught:
        counter(6, 5).compile("memory://").invoke({"n": 0}, run_id="r")
    assert caught.value.state is not None and caught.value.state["n"] == 5


def test_the_iteration_budget_survives_a_resume(store: Store) -> None:
    """S3.19"""
    calls: list[int] = []

    def work(state: Any) -> dict[str, Any]:
        calls.append(state["n"])
        if len(calls) == 3:
            raise ConnectionError("once")
        return {"n": state["n"] + 1}

    app = counter(1000, 5, work).compile(store)
    with pytest.raises(ExecutionError, match="once"):
        app.invoke({"n": 0}, run_id="r")
    for _ in range(2):
        with pytest.raises(MaxIterationsExceeded):
            app.resume("r")

    assert calls == [0, 1, 2, 2, 3, 4]
    assert counter(1000, 7, work).compile(store, on_change="warn").graph.max_iterations == 7


def test_a_larger_budget_lets_an_exhausted_run_go_on(store: Store) -> None:
    with pytest.raises(MaxIterationsExceeded):
        counter(8, 5).compile(store).invoke({"n": 0}, run_id="r")

    assert counter(8, 10).compile(store).resume("r").state["n"] == 8


# Exits.


def test_a_run_ends_after_an_exit_point_whatever_edges_lead_on(heard: Heard) -> None:
    """S3.15, S3.20"""
    graph = (
        StateGraph(Log)
        .add_node("a", says("a"))
        .add_node("early", says("early"))
        .add_node("late", says("late"))
    )
    graph.set_entry_point("a").add_edge("a", "early", when=lambda s: s["n"] == 0).add_edge("a", "late")
    graph.add_edge("early", "a").add_edge("late", "a").set_exit_point("early").set_finish_point("late")
    app = graph.compile("memory://")

    assert app.invoke({"n": 0}, observer=heard).state["log"] == ["a", "early"]
    assert app.invoke({"n": 1}, observer=heard).state["log"] == ["a", "late"]
    assert [event.data["exit_point"] for event in heard.of("graph.complete")] == ["early", "late"]
