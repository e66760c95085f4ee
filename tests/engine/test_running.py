"""Running graphs: nodes, edges, joins, for-each, cycles, sub-graphs, and what a state may be."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import pytest
from pydantic import BaseModel, Field

from holdfast import (
    END,
    START,
    CodecError,
    Command,
    Context,
    ExecutionError,
    MaxIterationsExceeded,
    RunNotFound,
    RunStatus,
    Send,
    State,
    StateGraph,
    StateInvalid,
    add,
    append,
    keep_last,
    merge,
    union,
)
from holdfast.state.ops import ReadOnly
from holdfast.stores.base import Store
from tests.graphs import Heard, Log, chain, fan, one, says

# Nodes.


def test_a_chain_runs_in_order_and_its_outcome_says_so(store: Store) -> None:
    app = chain("a", "b", "c").compile(store)

    out = app.invoke({"n": 1}, run_id="r1")

    assert (
        out.status == RunStatus.COMPLETED and out.run_id == "r1" and out.pauses == () and out.warnings == ()
    )
    assert out.state == {"n": 1, "log": ["a", "b", "c"]}
    assert (out.stats.steps_run, out.stats.steps_kept, out.stats.waves, out.stats.retries) == (
        3,
        0,
        3,
        0,
    )
    assert out.checkpoint_id == app.checkpoints("r1")[-1].id == out.state.checkpoint_id
    assert out.state.checkpoint_node == "c" and out.state.run_id == "r1"
    assert app.get_state("r1") == out.state


def test_async_nodes_and_sync_nodes_mix(store: Store) -> None:
    async def later(state: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"log": [f"later {state['log']}"]}

    out = chain("a", "b", "c", nodes={"b": later}).compile(store).invoke()

    assert out.state["log"] == ["a", "later ['a']", "c"]


def test_nodes_receive_what_they_name() -> None:
    seen: dict[str, Any] = {}

    def everything(config: Any, ctx: Context, state: State) -> None:
        seen.update(config=dict(config), run=ctx.run_id, step=ctx.step, node=ctx.node, state=dict(state))
        seen.update(attempt=ctx.attempt, visit=ctx.visit, item=ctx.item_key, same=ctx.config == config)

    app = chain("a", nodes={"a": everything}).compile("memory://")
    app.invoke({"n": 1}, run_id="r1", config={"k": [1]})

    assert seen == {
        "config": {"k": [1]},
        "run": "r1",
        "step": "a#1",
        "node": "a",
        "state": {"n": 1, "log": []},
        "attempt": 1,
        "visit": 1,
        "item": None,
        "same": True,
    }


def test_any_callable_can_be_a_node() -> None:
    class Machine:
        async def __call__(self, state: Any) -> dict[str, Any]:
            return {"log": ["machine"]}

        def method(self, state: Any, ctx: Context) -> dict[str, Any]:
            return {"log": [ctx.node]}

    def greet(greeting: str, state: Any) -> dict[str, Any]:
        return {"log": [greeting]}

    nodes = {
        "a": Machine(),
        "b": Machine().method,
        "c": functools.partial(greet, "hello"),
        "d": lambda: {"log": ["nothing wanted"]},
        "e": lambda state: asyncio.sleep(0, {"log": ["awaitable"]}),
    }
    out = chain(*"abcde", nodes=nodes).compile("memory://").invoke()

    assert out.state["log"] == ["machine", "b", "hello", "nothing wanted", "awaitable"]


def test_siblings_may_be_functions_that_return_awaitables() -> None:
    nodes = {"a": lambda state: asyncio.sleep(0, {"log": ["awaited"]})}

    assert fan("a", "b", nodes=nodes).compile("memory://").invoke().state["log"] == ["awaited", "b"]


def test_a_nodes_log_knows_its_run_and_step(caplog: pytest.LogCaptureFixture) -> None:
    one(lambda s, ctx: ctx.log.warning("careful")).compile("memory://").invoke(run_id="r")

    [record] = [record for record in caplog.records if record.getMessage() == "careful"]
    assert (record.name, vars(record)["run_id"], vars(record)["step"]) == ("holdfast.nodes", "r", "work#1")


def test_the_config_is_read_only() -> None:
    def change(config: Any) -> None:
        config["k"].append(1)

    with pytest.raises(ExecutionError, match="read-only"):
        one(change).compile("memory://").invoke(config={"k": []})


@pytest.mark.parametrize("value", [None, {}])
def test_a_node_may_change_nothing(value: Any) -> None:
    assert one(lambda state: value).compile("memory://").invoke({"n": 1}).state == {"n": 1, "log": []}


def test_a_node_may_return_a_whole_state() -> None:
    """S3.3"""

    def replace(state: State) -> State:
        return state.merge({"n": 7, "log": ["only this"]})

    out = chain("a", "b", nodes={"b": replace}).compile("memory://").invoke({"n": 1})

    assert out.state == {"n": 7, "log": ["only this"]}


def test_a_whole_state_without_a_key_removes_it() -> None:
    graph = one(lambda state: State({"kept": 1}), dict)

    assert graph.compile("memory://").invoke({"kept": 0, "lost": 1}).state == {"kept": 1}


def test_a_lone_sync_node_runs_in_the_callers_thread_and_siblings_in_others() -> None:
    here = threading.get_ident()
    seen: dict[str, int] = {}

    def where(name: str) -> Any:
        return lambda state: seen.update({name: threading.get_ident()})

    graph = StateGraph(Log)
    for name in "abc":
        graph.add_node(name, where(name))
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("a", "c")
    graph.compile("memory://").invoke()

    assert seen["a"] == here and seen["b"] != here and seen["c"] != here


def test_context_variables_reach_nodes_in_worker_threads() -> None:
    import contextvars

    who: contextvars.ContextVar[str] = contextvars.ContextVar("who")
    who.set("ann")
    out = fan("a", "b", nodes={"a": lambda s: {"log": [who.get()]}}).compile("memory://").invoke()

    assert out.state["log"] == ["ann", "b"]


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


# For-each.


def mapper(items: list[Send], work: Any, **options: Any) -> StateGraph:
    graph = StateGraph(Log, **options).add_node("item", work).add_node("end", lambda s: {"n": len(s["log"])})
    return graph.add_conditional_edges(START, lambda s: items, ["item"]).add_edge("item", "end")


def test_each_item_sees_its_own_state_and_updates_apply_in_item_order(store: Store) -> None:
    def work(state: Any) -> dict[str, Any]:
        time.sleep(0.02 if state["n"] == 0 else 0)
        return {"log": [f"item {state['n']}"]}

    out = mapper([Send("item", {"n": n}) for n in range(5)], work).compile(store).invoke({"n": 99})

    assert out.state == {"n": 5, "log": [f"item {n}" for n in range(5)]}


def test_an_item_is_not_written_into_the_state() -> None:
    out = one(says("x"), dict).add_node("item", lambda s: {"seen": s["secret"]})
    out.add_conditional_edges("work", lambda s: [Send("item", {"secret": 7})])
    out._edges = [edge for edge in out._edges if edge.source != "work"]

    assert out.compile("memory://").invoke().state == {"log": ["x"], "seen": 7}


def test_items_have_keys_that_name_their_steps() -> None:
    steps: list[tuple[str, str | None]] = []
    items = [Send("item", {}, key) for key in ("b", "a/b", None)] + [Send("item", {}, 7)]  # type: ignore[arg-type]

    mapper(items, lambda s, ctx: steps.append((ctx.step, ctx.item_key))).compile(
        "memory://", max_parallel=1
    ).invoke()

    assert steps == [("item#1[b]", "b"), ("item#1[a%2Fb]", "a/b"), ("item#1[2]", "2"), ("item#1[7]", "7")]


def test_an_item_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(StateInvalid, match=r"item key .* is not valid text"):
        mapper([Send("item", {}, "\ud800")], says("x")).compile("memory://").invoke()


def test_no_items_means_nothing_follows() -> None:
    assert mapper([], says("x")).compile("memory://").invoke().state == {"log": []}


def test_an_item_may_hold_keys_that_the_state_does_not_have() -> None:
    out = mapper([Send("item", {"own": 1})], lambda s: {"log": [str(s["own"])]}).compile("memory://").invoke()

    assert out.state["log"] == ["1"]


def test_at_most_so_many_steps_run_at_once() -> None:
    running, most, lock = [0], [0], threading.Lock()

    def work(state: Any) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.005)
        with lock:
            running[0] -= 1

    mapper([Send("item", {}) for _ in range(12)], work).compile("memory://", max_parallel=3).invoke()

    assert 1 <= most[0] <= 3


def test_siblings_do_run_at_the_same_time() -> None:
    together = threading.Barrier(8)

    def meet(state: Any) -> None:
        together.wait(60)

    out = mapper([Send("item", {}) for _ in range(8)], meet).compile("memory://").invoke()

    assert out.status == RunStatus.COMPLETED


def test_a_wave_of_two_hundred_needs_at_most_five_commits(sqlite_url: str) -> None:
    graph = StateGraph(Log).add_node("item", lambda s: {"log": [str(s["n"])]})
    graph.add_conditional_edges(START, lambda s: [Send("item", {"n": n}) for n in range(200)])
    app = graph.compile(sqlite_url)

    out = app.invoke()

    assert out.state["log"] == [str(n) for n in range(200)] and out.stats.commits <= 5
    app.store.close()


def test_items_that_finish_one_shortly_after_the_other_share_commits() -> None:
    ended = [threading.Event() for _ in range(41)]
    ended[0].set()

    def work(state: Any) -> None:
        assert ended[state["n"]].wait(20)
        time.sleep(0.001)
        ended[state["n"] + 1].set()

    out = mapper([Send("item", {"n": n}) for n in range(40)], work).compile("memory://").invoke()

    assert out.stats.commits <= 20


# Order.


def test_siblings_see_the_same_state_and_apply_in_node_order_whoever_is_first() -> None:
    first = threading.Event()

    def slow(state: Any) -> dict[str, Any]:
        assert first.wait(60)
        return {"log": [f"slow saw {state['n']}"]}

    def quick(state: Any) -> dict[str, Any]:
        first.set()
        return {"log": [f"quick saw {state['n']}"]}

    for _ in range(5):
        first.clear()
        out = fan("slow", "quick", nodes={"slow": slow, "quick": quick}).compile("memory://").invoke({"n": 0})
        assert out.state == {"n": 0, "log": ["slow saw 0", "quick saw 0"]}


def test_siblings_apply_in_the_order_of_their_nodes_not_of_their_edges() -> None:
    graph = StateGraph(Log)
    for name in ("a", "b", "c"):
        graph.add_node(name, says(name))
    graph.add_edge(START, "c").add_edge(START, "b").add_edge(START, "a")

    assert graph.compile("memory://").invoke().state["log"] == ["a", "b", "c"]


def test_without_a_barrier_a_node_starts_when_its_own_predecessors_are_done() -> None:
    released = threading.Event()

    def slow(state: Any) -> dict[str, Any]:
        assert released.wait(60)
        return {"log": ["slow"]}

    def release(state: Any) -> dict[str, Any]:
        released.set()
        return {"log": ["release"]}

    graph = (
        StateGraph(Log).add_node("slow", slow).add_node("quick", says("quick")).add_node("release", release)
    )
    graph.add_node("end", says("end"))
    graph.add_edge(START, "slow").add_edge(START, "quick").add_edge("quick", "release")
    graph.add_edge(["slow", "release"], "end")
    out = graph.compile("memory://", barrier=False).invoke()

    assert out.state["log"][0] == "quick" and out.state["log"][-1] == "end"
    assert sorted(out.state["log"]) == ["end", "quick", "release", "slow"]


# Cycles.


def counter(limit: int, max_iterations: int = 1000, node: Any = None) -> StateGraph:
    graph = StateGraph(Log, max_iterations=max_iterations)
    graph.add_node("work", node or (lambda s: {"n": s["n"] + 1}))
    graph.add_edge(START, "work").add_edge("work", "work", when=lambda s: s["n"] < limit).add_edge(
        "work", END
    )
    return graph


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


# Commands.


def test_a_command_updates_and_chooses() -> None:
    graph = StateGraph(Log).add_node("a", lambda s: Command({"log": ["a"]}, "c"), goto=["c"])
    graph.add_node("b", says("b")).add_node("c", says("c")).add_edge(START, "a").add_edge("a", "b")

    assert graph.compile("memory://").invoke().state["log"] == ["a", "c"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (Command({"log": ["only an update"]}), ["only an update", "b"]),
        (Command(goto=END), []),
        (Command(goto=["b", "c"]), ["b", "c"]),
        (Command(goto=Send("c", {"n": 1})), ["c"]),
        (Command(goto=(Send("c", {}, "x"), Send("c", {}, "y"), "b")), ["b", "c", "c"]),
        (Command(), ["b"]),
    ],
)
def test_commands_of_every_shape(command: Command, expected: list[str]) -> None:
    graph = StateGraph(Log).add_node("a", lambda s: command, goto="bc")
    graph.add_node("b", says("b")).add_node("c", says("c")).add_edge(START, "a").add_edge("a", "b")

    assert graph.compile("memory://").invoke().state["log"] == expected


def test_a_command_to_nowhere_fails_the_step() -> None:
    with pytest.raises(ExecutionError, match="node not found: nowhere"):
        one(lambda s: Command(goto="nowhere")).compile("memory://").invoke()


# Sub-graphs.


def test_a_sub_graph_shares_the_keys_that_both_declare() -> None:
    class Inner(TypedDict, total=False):
        log: Annotated[list[str], append]
        own: str

    inner = StateGraph(Inner, name="inner")
    inner.add_node("x", lambda s: {"log": [f"x saw {s['log']}"], "own": "secret"})
    inner.add_node("y", lambda s: {"log": [s["own"]]}).add_edge(START, "x").add_edge("x", "y")
    graph = chain("a", "b")
    graph._nodes.clear()
    graph.add_node("a", inner).add_node("b", says("b"))
    out = graph.compile("memory://").invoke({"n": 1, "log": ["first"]})

    assert out.state == {"n": 1, "log": ["first", "x saw ['first']", "secret", "b"]}


def test_sub_graphs_nest(store: Store) -> None:
    steps: list[str] = []

    def leaf(state: Any, ctx: Context) -> dict[str, Any]:
        steps.append(ctx.step)
        return {"n": state["n"] + 1, "log": ["leaf"]}

    inner = chain("leaf", nodes={"leaf": leaf}, name="inner")
    middle = StateGraph(Log, name="middle").add_node("in", inner).add_edge(START, "in")
    middle.add_edge("in", "in", when=lambda s: s["n"] < 3).add_edge("in", END)
    outer = (
        StateGraph(Log)
        .add_node("mid", middle)
        .add_node("z", says("z"))
        .add_edge(START, "mid")
        .add_edge("mid", "z")
    )
    out = outer.compile(store).invoke({"n": 0})

    assert out.state == {"n": 3, "log": ["leaf"] * 3 + ["z"]}
    assert steps == ["mid#1/in#1/leaf#1", "mid#1/in#2/leaf#1", "mid#1/in#3/leaf#1"]


def test_a_sub_graph_runs_once_per_item(store: Store) -> None:
    class Inner(Log, total=False):
        tens: int

    inner = StateGraph(Inner, name="inner")
    inner.add_node("x", lambda s: {"log": [f"x{s['n']}"], "tens": s["n"] * 10})
    inner.add_node("y", lambda s: {"log": [f"y{s['tens']}"]}).add_edge(START, "x").add_edge("x", "y")
    graph = StateGraph(Log).add_node("each", inner).add_node("end", says("end")).add_edge("each", "end")
    graph.add_conditional_edges(START, lambda s: [Send("each", {"n": n}, f"k{n}") for n in (1, 2, 3)])
    out = graph.compile(store).invoke()

    assert out.state["log"] == ["x1", "y10", "x2", "y20", "x3", "y30", "end"]


def highest(old: int | None, new: int) -> int:
    return new if old is None else max(old, new)


def joined(old: list[int] | None, new: list[int]) -> list[int]:
    return [*(old or []), *new]


class Reduced(TypedDict, total=False):
    log: Annotated[list[str], append]
    facts: Annotated[dict[str, int], merge]
    total: Annotated[int, add]
    tags: Annotated[set[str], union]
    recent: Annotated[list[int], keep_last(2)]
    top: Annotated[int, highest]
    joined: Annotated[list[int], joined]


def test_a_sub_graphs_reducers_are_applied_once() -> None:
    def update(n: int) -> Any:
        return lambda s: {
            "total": n,
            "facts": {str(n): n},
            "tags": {str(n)},
            "recent": [n],
            "top": n,
            "joined": [n],
            "log": [f"{n}"],
        }

    inner = StateGraph(Reduced, name="inner").add_node("x", update(5)).add_node("y", update(2))
    inner.add_edge(START, "x").add_edge("x", "y")
    graph = StateGraph(Reduced).add_node("sub", inner).add_node("side", update(3)).add_node("last", update(1))
    graph.add_edge(START, "sub").add_edge(START, "side").add_edge(["sub", "side"], "last")
    out = graph.compile("memory://").invoke({"total": 100, "top": 4})

    assert out.state == {
        "log": ["5", "2", "3", "1"],
        "facts": {"5": 5, "2": 2, "3": 3, "1": 1},
        "total": 111,
        "tags": {"1", "2", "3", "5"},
        "recent": [3, 1],
        "top": 5,
        "joined": [5, 2, 3, 1],
    }


def plus(old: int | None, new: int) -> int:
    return (old or 0) + new


class Summed(TypedDict, total=False):
    n: int
    total: Annotated[int, plus]
    joined: Annotated[list[int], joined]


def summing() -> StateGraph:
    inner = StateGraph(Summed, name="inner").add_node("x", lambda s: {"total": s["n"], "joined": [s["n"]]})
    inner.add_node("y", lambda s: {"total": 100, "joined": [-s["joined"][-1]]})
    return inner.add_edge(START, "x").add_edge("x", "y")


@pytest.mark.parametrize(("total", "begin"), [(306, {}), (1306, {"total": 1000, "joined": [0]})])
def test_custom_reducers_of_sub_graphs_side_by_side_lose_nothing(
    store: Store, total: int, begin: Any
) -> None:
    graph = StateGraph(Summed).add_node("each", summing())
    graph.add_conditional_edges(START, lambda s: [Send("each", {"n": n}) for n in (1, 2, 3)])
    app = graph.compile(store)
    app.invoke(begin, run_id="r")

    state = app.get_state("r")
    assert state["total"] == total and state["joined"] == [*begin.get("joined", []), 1, -1, 2, -2, 3, -3]


def test_custom_reducers_of_nested_sub_graphs_beside_plain_nodes_lose_nothing() -> None:
    middle = StateGraph(Summed, name="middle").add_node("in", summing()).add_edge(START, "in")
    graph = StateGraph(Summed).add_node("a", middle).add_node("b", lambda s: {"total": 7, "joined": [7]})
    graph.add_node("c", summing()).add_edge(START, "a").add_edge(START, "b").add_edge(START, "c")
    out = graph.compile("memory://").invoke({"n": 5})

    assert out.state == {"n": 5, "total": 217, "joined": [5, -5, 7, 5, -5]}


def test_a_parent_without_the_reducer_gets_what_the_sub_graph_made_of_it() -> None:
    graph = (
        StateGraph({"n": int, "total": int, "joined": list[int]})
        .add_node("sub", summing())
        .add_edge(START, "sub")
    )

    assert graph.compile("memory://").invoke({"n": 5}).state == {"n": 5, "total": 105, "joined": [5, -5]}


def test_an_open_sub_graph_shares_everything_with_an_open_parent() -> None:
    inner = StateGraph(dict, name="inner").add_node("x", lambda s: {"b": s["a"] + 1}).add_edge(START, "x")
    graph = StateGraph(dict).add_node("sub", inner).add_node("y", lambda s: {"c": s["b"] + 1})
    graph.add_edge(START, "sub").add_edge("sub", "y")

    assert graph.compile("memory://").invoke({"a": 1}).state == {"a": 1, "b": 2, "c": 3}


def test_a_failure_in_a_sub_graph_names_the_inner_node_and_resumes_inside() -> None:
    calls: list[str] = []

    def first(state: Any) -> None:
        calls.append("first")

    def second(state: Any) -> dict[str, Any]:
        calls.append("second")
        if calls.count("second") == 1:
            raise ValueError("not yet")
        return {"log": ["done"]}

    inner = StateGraph(Log, name="inner").add_node("p", first).add_node("q", second)
    inner.add_edge(START, "p").add_edge("p", "q")
    app = StateGraph(Log).add_node("sub", inner).add_edge(START, "sub").compile("memory://")

    with pytest.raises(ExecutionError, match="step 'sub/q' failed: ValueError: not yet"):
        app.invoke(run_id="r")
    assert app.resume("r").state["log"] == ["done"] and calls == ["first", "second", "second"]


# Failures.


def test_a_failure_tells_all_and_ends_with_how_to_resume(sqlite_url: str) -> None:
    def fails(state: Any) -> None:
        raise KeyError("oh")

    app = chain("a", "b", nodes={"b": fails}).compile(sqlite_url)
    with pytest.raises(ExecutionError) as caught:
        app.invoke({"n": 1}, run_id="r")

    error = caught.value
    assert (error.node, error.run_id, error.path) == ("b", "r", ("a", "b"))
    assert (
        error.state == {"n": 1, "log": ["a"]}
        and isinstance(error.cause, KeyError)
        and error.__cause__ is error.cause
    )
    assert str(error) == (
        "run 'r': step 'b' failed: KeyError: 'oh'; finished steps are kept; resume with app.resume('r')"
    )
    assert app.runs(status="failed")[0].run == "r"


def test_siblings_of_a_failed_step_finish_and_are_kept() -> None:
    calls: list[str] = []

    def fails(state: Any) -> None:
        calls.append("bad")
        if calls.count("bad") == 1:
            raise ValueError("once")

    def good(state: Any) -> dict[str, Any]:
        calls.append("good")
        return {"log": ["good"]}

    app = fan("bad", "good", nodes={"bad": fails, "good": good}).compile("memory://")
    with pytest.raises(ExecutionError):
        app.invoke(run_id="r")

    assert app.resume("r").state["log"] == ["good"] and sorted(calls) == ["bad", "bad", "good"]


@pytest.mark.parametrize(
    "error", [StopIteration("x"), StopAsyncIteration("x"), AssertionError("x"), RecursionError("x")]
)
@pytest.mark.parametrize("parallel", [False, True])
def test_odd_exceptions_are_failures_like_any_other(error: Exception, parallel: bool) -> None:
    def fails(state: Any) -> None:
        raise error

    graph = fan("a", "b", nodes={"a": fails}) if parallel else one(fails)
    with pytest.raises(ExecutionError) as caught:
        graph.compile("memory://").invoke(run_id="r")
    assert caught.value.cause is error


def test_an_unknown_run_is_refused_with_the_nearest_name(memory: Store) -> None:
    app = chain("a", name="workflow_file").compile(memory)
    app.invoke(run_id="monday")

    with pytest.raises(RunNotFound, match="did you mean 'monday'"):
        app.resume("munday")
    with pytest.raises(RunNotFound, match="no run 'munday'"):
        app.get_state("munday")


@pytest.mark.parametrize("run_id", ["", "  ", "a\nb", 3])
def test_a_run_id_must_be_printable_text(run_id: Any) -> None:
    with pytest.raises(StateInvalid, match="a run id must be printable text"):
        chain("a").compile("memory://").invoke(run_id=run_id)


def test_odd_run_ids_are_fine(store: Store) -> None:
    app = chain("a").compile(store)
    for run_id in ("../up", "a/b", "ünï code", "x" * 200, "C:\\x", ".hidden", "CON"):
        assert app.invoke(run_id=run_id).run_id == run_id
        assert app.get_state(run_id)["log"] == ["a"]
    assert len(app.runs()) == 7


# Event loops.


async def test_invoke_works_inside_a_running_loop() -> None:
    async def later(state: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"log": ["later"]}

    app = chain("a", "b", nodes={"b": later}).compile("memory://")

    assert app.invoke(run_id="r").state["log"] == ["a", "later"]
    assert [event.type for event in app.stream()][-1] == "graph.complete"


async def _fetched() -> str:
    await asyncio.sleep(0)
    return "fetched"


@pytest.mark.parametrize("make", [one, lambda node: fan("a", "b", nodes={"b": node})])
def test_a_sync_node_may_run_an_event_loop_of_its_own(make: Any) -> None:
    async def after(state: Any) -> dict[str, Any]:
        return {"log": [await _fetched()]}

    graph = make(lambda state: {"log": [asyncio.run(_fetched())]})
    assert graph.compile("memory://").invoke().state["log"][-1] == "fetched"
    nodes = {"a": lambda state: asyncio.run(_fetched()) and None, "b": after}
    assert chain("a", "b", nodes=nodes).compile("memory://").invoke().state["log"] == ["fetched"]


def test_a_node_may_run_another_graph(store: Store) -> None:
    inner = chain("x", "y", nodes={"y": lambda s: asyncio.run(_fetched()) and {"log": ["y"]}}).compile(store)

    def work(state: Any, ctx: Context) -> dict[str, Any]:
        return {"log": list(inner.invoke(run_id=f"{ctx.run_id} inner").state["log"])}

    out = chain("a", "b", nodes={"b": work}).compile(store).invoke(run_id="r")

    assert out.state["log"] == ["a", "x", "y"]
    assert {info.run: info.status for info in store.runs()} == {"r": "completed", "r inner": "completed"}


async def test_ainvoke_does_not_block_the_loop() -> None:
    gate = threading.Event()

    def waits(state: Any) -> dict[str, Any]:
        return {"log": ["opened" if gate.wait(20) else "blocked"]}

    running = asyncio.ensure_future(chain("a", nodes={"a": waits}).compile("memory://").ainvoke())
    for _ in range(3):
        await asyncio.sleep(0.01)
    gate.set()

    assert (await running).state["log"] == ["opened"]


async def test_many_runs_share_one_loop(store: Store) -> None:
    async def work(state: Any) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        return {"log": [str(state["n"])]}

    app = chain("a", "b", nodes={"a": work, "b": work}).compile(store)
    outcomes = await asyncio.gather(*(app.ainvoke({"n": n}, run_id=f"r{n}") for n in range(20)))

    assert [outcome.state["log"] for outcome in outcomes] == [[str(n), str(n)] for n in range(20)]


# State.


def test_an_unknown_input_key_is_refused_before_anything_is_stored() -> None:
    app = chain("a").compile("memory://")

    with pytest.raises(StateInvalid, match="unknown state key 'm'"):
        app.invoke({"m": 1})
    with pytest.raises(StateInvalid, match="the input must be a dict"):
        app.invoke([1])
    assert app.runs() == []


def test_an_unknown_key_in_an_update_fails_the_step() -> None:
    calls: list[str] = []
    nodes = {"a": lambda s: {"lgo": ["x"]}, "b": lambda s: calls.append("b")}

    with pytest.raises(ExecutionError, match=r"unknown state key 'lgo'.*did you mean 'log'") as caught:
        chain("a", "b", nodes=nodes).compile("memory://").invoke()
    assert caught.value.node == "a" and isinstance(caught.value.cause, StateInvalid) and calls == []


@pytest.mark.parametrize(
    "value", [object(), lambda: 1, threading.Lock(), {"deep": [object()]}, (x for x in "a")]
)
@pytest.mark.parametrize("interval", [1, 10])
def test_a_value_that_cannot_be_stored_fails_its_step_at_once(value: Any, interval: int) -> None:
    from holdfast import CheckpointPolicy

    calls: list[str] = []
    graph = (
        StateGraph(dict).add_node("a", lambda s: {"bad": value}).add_node("b", lambda s: calls.append("b"))
    )
    app = (
        graph.add_edge(START, "a").add_edge("a", "b").compile("memory://", policy=CheckpointPolicy(interval))
    )

    with pytest.raises(ExecutionError, match="step 'a' failed: CodecError: state key 'bad'") as caught:
        app.invoke()
    assert isinstance(caught.value.cause, CodecError) and calls == []


@dataclass
class Basket:
    items: list[int] = field(default_factory=list)


class Held(TypedDict, total=False):
    items: list[Any]
    facts: dict[str, Any]
    tags: set[str]
    basket: Basket
    queue: deque[int]
    n: int


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["items"].append(9),
        lambda s: s["items"][1].append(9),
        lambda s: s["facts"].update(x=1),
        lambda s: s["facts"]["deep"]["er"].append(9),
        lambda s: s["tags"].add("x"),
        lambda s: s["basket"].items.append(9),
        lambda s: setattr(s["basket"], "items", [9]),
        lambda s: s["queue"].append(9),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_change_in_place_fails_the_step_and_is_never_kept(change: Any, is_async: bool) -> None:
    def change_it(state: Any) -> dict[str, Any]:
        change(state)
        return {"n": 1}

    async def change_later(state: Any) -> dict[str, Any]:
        return change_it(state)

    begin = {
        "items": [1, [2]],
        "facts": {"deep": {"er": []}},
        "tags": {"t"},
        "basket": Basket([1]),
        "queue": deque([1]),
    }
    app = one(change_later if is_async else change_it, Held).compile("memory://")

    with pytest.raises(ExecutionError, match="return") as caught:
        app.invoke(begin, run_id="r")
    assert isinstance(caught.value.cause, ReadOnly)
    assert app.get_state("r").to_dict() == begin


def test_a_node_that_catches_the_refusal_has_still_changed_nothing() -> None:
    def stubborn(state: Any) -> dict[str, Any]:
        try:
            state["items"].append(1)
        except TypeError:
            return {"n": len(state["items"])}
        return {"n": -1}

    assert one(stubborn, Held).compile("memory://").invoke({"items": [1]}).state["n"] == 1


def test_old_checkpoints_never_change_with_new_state(store: Store) -> None:
    app = counter(5, node=lambda s: {"n": s["n"] + 1, "log": [f"step {s['n']}"]}).compile(store)
    app.invoke({"n": 0}, run_id="r")

    states = [app.get_state("r", checkpoint_id=checkpoint.id) for checkpoint in app.checkpoints("r")]

    assert [state["n"] for state in states] == [1, 2, 3, 4, 5]
    assert [len(state["log"]) for state in states] == [1, 2, 3, 4, 5]
    assert [checkpoint.wave for checkpoint in app.checkpoints("r")] == [1, 2, 3, 4, 5]
    assert [checkpoint.nodes for checkpoint in app.checkpoints("r")] == [("work",)] * 5
    assert app.checkpoints("r")[0].next == ("work",) and app.checkpoints("r")[-1].next == ()


@dataclass
class AsDataclass:
    n: int = 0
    log: Annotated[list[str], append] = field(default_factory=list)


class AsModel(BaseModel):
    n: int = Field(default=0, ge=0)
    log: Annotated[list[str], append] = Field(default_factory=list)


@pytest.mark.parametrize(
    "schema", [Log, AsDataclass, AsModel, {"n": int, "log": Annotated[list[str], append]}]
)
def test_every_kind_of_schema_runs_alike(schema: Any, store: Store) -> None:
    graph = StateGraph(schema).add_node("a", lambda s: {"n": s.n + 1, "log": ["a"]}).add_node("b", says("b"))
    app = graph.add_edge(START, "a").add_edge("a", "b").compile(store)

    assert app.invoke({"n": 1}, run_id="r").state == {"n": 2, "log": ["a", "b"]}
    assert app.get_state("r") == {"n": 2, "log": ["a", "b"]}


@pytest.mark.parametrize(("schema", "make"), [(AsDataclass, AsDataclass), (AsModel, AsModel)])
def test_inputs_and_updates_may_be_instances(schema: Any, make: Any) -> None:
    app = one(lambda s: make(n=5), schema).compile("memory://")

    assert app.invoke(make(n=1, log=["first"])).state == {"n": 5, "log": ["first"]}


def test_a_model_refuses_a_bad_update_naming_the_key() -> None:
    with pytest.raises(ExecutionError, match="state key 'n' of AsModel"):
        one(lambda s: {"n": -1}, AsModel).compile("memory://").invoke()
    with pytest.raises(StateInvalid, match="state key 'n' of AsModel"):
        one(lambda s: None, AsModel).compile("memory://").invoke({"n": "many"})


def test_a_plain_dict_takes_any_key(store: Store) -> None:
    app = one(lambda s: {"new": s["old"] + 1}, dict).compile(store)

    assert app.invoke({"old": 1}).state == {"old": 1, "new": 2}


def test_objects_that_the_schema_declares_travel_through_a_run(store: Store) -> None:
    app = one(lambda s: {"basket": Basket([*s["basket"].items, 2])}, Held).compile(store)
    app.invoke({"basket": Basket([1])}, run_id="r")

    assert app.get_state("r")["basket"] == Basket([1, 2])


def test_all_reducers_work_across_siblings(store: Store) -> None:
    def update(n: int) -> Any:
        return lambda s: {
            "total": n,
            "facts": {str(n): n},
            "tags": {str(n)},
            "recent": [n],
            "top": n,
            "joined": [n],
            "log": [f"{n}"],
        }

    graph = StateGraph(Reduced)
    for n in (3, 1, 2):
        graph.add_node(f"n{n}", update(n)).add_edge(START, f"n{n}")
    app = graph.compile(store)
    app.invoke(run_id="r")

    assert app.get_state("r") == {
        "log": ["3", "1", "2"],
        "facts": {"3": 3, "1": 1, "2": 2},
        "total": 6,
        "tags": {"1", "2", "3"},
        "recent": [1, 2],
        "top": 3,
        "joined": [3, 1, 2],
    }


def grown(old: list[str] | None, new: list[str]) -> list[str]:
    return [*(old or []), *new]


def test_a_custom_reducer_that_grows_a_list_is_journalled_as_its_growth() -> None:
    schema = {"n": int, "log": Annotated[list[str], grown]}
    graph = StateGraph(schema, max_iterations=200)
    graph.add_node("a", lambda s: {"n": s["n"] + 1, "log": ["word " * 20]})
    graph.add_edge(START, "a").add_edge("a", "a", when=lambda s: s["n"] < 100).add_edge("a", END)
    out = graph.compile("memory://").invoke({"n": 0, "log": []})

    assert len(out.state["log"]) == 100
    assert out.stats.bytes_written < 100 * 100 * 6


def test_a_custom_reducer_that_raises_fails_the_run() -> None:
    def picky(old: Any, new: Any) -> Any:
        raise ValueError("not like this")

    graph = one(lambda s: {"n": 1}, {"n": Annotated[int, picky]})

    with pytest.raises(ExecutionError, match="not like this"):
        graph.compile("memory://").invoke()


def test_a_large_untouched_value_is_written_once() -> None:
    import random

    big = random.Random(1).randbytes(300_000)
    graph = StateGraph(dict, max_iterations=100).add_node("a", lambda s: {"n": s["n"] + 1})
    graph.add_edge(START, "a").add_edge("a", "a", when=lambda s: s["n"] < 50).add_edge("a", END)
    out = graph.compile("memory://").invoke({"n": 0, "big": big})

    assert out.stats.bytes_written < len(big) + 30_000
