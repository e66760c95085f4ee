"""Parallel edges: branches on copies of the state, whose final states the fan-in combines."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from typing import Any

import pytest

from holdfast import (
    END,
    START,
    ExecutionError,
    GraphInvalid,
    Retry,
    RunStatus,
    StateGraph,
    StepTimeout,
)
from holdfast.testing import crash_everywhere
from holdfast.workflows import CircuitBreaker
from tests.graphs import Heard

SCHEMA = {"value": int, "total": int, "rounds": int, "why": list}


def total(state: Any, parallel_results: Any) -> dict[str, Any]:
    """A fan-in: the sum of what the branches came to, and why some did not."""
    return {
        "total": sum(result["value"] for result in parallel_results if "error" not in result),
        "why": [result["error"] for result in parallel_results if "error" in result],
    }


def times(factor: int) -> Any:
    return lambda state: {"value": state["value"] * factor}


def fan(schema: Any = SCHEMA, *, ten: Any = None, hundred: Any = None, **options: Any) -> StateGraph:
    """start, then ten and hundred beside each other, then total; `options` are those of both parallel edges."""
    graph = StateGraph(schema, name="fan")
    graph.add_node("start", lambda state: {"value": state["value"] + 1})
    graph.add_node("ten", ten or times(10))
    graph.add_node("hundred", hundred or times(100))
    graph.add_fanin_node("total", total)
    graph.set_entry_point("start")
    for name in ("ten", "hundred"):
        graph.add_parallel_edge("start", name, "total", **options)
        graph.add_edge(name, "total")
    graph.set_finish_point("total")
    return graph


@pytest.fixture
def run() -> str:
    """The id of a run that no other test has."""
    return str(uuid.uuid4())


@pytest.mark.parametrize("schema", [SCHEMA, dict, None])
def test_each_branch_has_a_copy_of_the_state_and_the_fan_in_gets_all_of_them(schema):
    """R4.1: both branches set the same key, and the state keeps its own value; the results are gone afterwards."""
    outcome = fan(schema).compile().invoke({"value": 1})
    assert outcome.state == {"value": 2, "total": 220, "why": []}


def test_the_results_are_in_the_state_of_the_fan_in_in_the_order_of_the_branches():
    """R4.1, S4.13: as the key parallel_results, whichever branch ends first."""
    seen: list[Any] = []

    async def slow(state: Any) -> dict[str, Any]:
        await asyncio.sleep(0.05)
        return {"value": 7}

    graph = StateGraph(dict, name="fan")
    graph.add_node("ten", slow)
    graph.add_node("hundred", times(100))
    graph.add_fanin_node("total", lambda state: seen.extend(state["parallel_results"]))
    graph.add_parallel_edge(START, "ten", "total")
    graph.add_parallel_edge(START, "hundred", "total")
    graph.compile().invoke({"value": 1})
    assert [dict(result) for result in seen] == [{"value": 7}, {"value": 100}]


@pytest.mark.parametrize("is_resumed", [False, True])
def test_the_results_are_gone_for_what_follows_the_fan_in(is_resumed, run):
    """R4.1, S0.9: also where a plain chain follows, and in a run that is resumed after the fan-in."""
    seen: list[bool] = []
    graph = StateGraph(dict, name="fan")
    graph.add_node("ten", times(10))
    graph.add_node("hundred", times(100))
    graph.add_fanin_node("total", total)
    graph.add_node("look", lambda state: seen.append("parallel_results" in state) or {"looked": True})
    graph.add_parallel_edge(START, "ten", "total")
    graph.add_parallel_edge(START, "hundred", "total")
    graph.add_edge("total", "look")
    graph.add_edge("look", END)
    app = graph.compile(interrupt_before=["look"] if is_resumed else [])
    out = app.invoke({"value": 1}, run_id=run)
    out = app.resume(run) if is_resumed else out
    assert out.state == {"value": 1, "total": 110, "why": [], "looked": True} and seen == [False]


def test_a_branch_goes_along_its_edges_choices_and_loops_to_the_fan_in():
    """R4.1: conditional edges, routes and cycles inside a branch."""
    graph = StateGraph(dict, name="ways")
    graph.add_node("count", lambda state: {"value": state["value"] + 1})
    graph.add_node("left", lambda state: {"way": "left"})
    graph.add_node("right", lambda state: {"way": "right"})
    graph.add_node("choose", lambda state: None)
    graph.add_fanin_node("join", lambda state: {"seen": [dict(each) for each in state["parallel_results"]]})
    graph.add_parallel_edge(START, "count", "join")
    graph.add_parallel_edge(START, "choose", "join")
    graph.add_edge("count", "count", when=lambda state: state["value"] < 5)
    graph.add_edge("count", "join")
    graph.add_conditional_edges(
        "choose", lambda state: state["side"], {"l": "left", "r": "right", "no": "join"}
    )
    graph.add_edge("left", "join")
    app = graph.compile()

    for side, way in (("l", {"way": "left"}), ("r", {"way": "right"}), ("no", {})):
        seen = app.invoke({"value": 1, "side": side}).state["seen"]
        assert seen == [{"value": 5, "side": side}, {"value": 1, "side": side, **way}]


def test_branches_may_have_branches_and_be_entered_again():
    """R4.1: each fan-in gets the results of its own branches, of this round."""
    graph = StateGraph(dict, name="nested")
    graph.add_node("start", lambda state: {"rounds": state.get("rounds", 0) + 1})
    graph.add_node("outer", lambda state: {"value": 1})
    graph.add_node("inner_a", lambda state: {"value": state["value"] + 10})
    graph.add_node("inner_b", lambda state: {"value": state["value"] + 20})
    graph.add_fanin_node(
        "inner_join", lambda state: {"value": sum(r["value"] for r in state["parallel_results"])}
    )
    graph.add_node("other", lambda state: {"value": 1000})
    graph.add_fanin_node(
        "join",
        lambda state: {"sums": [*state.get("sums", []), [r["value"] for r in state["parallel_results"]]]},
    )
    graph.set_entry_point("start")
    graph.add_parallel_edge("start", "outer", "join")
    graph.add_parallel_edge("start", "other", "join")
    graph.add_parallel_edge("outer", "inner_a", "inner_join")
    graph.add_parallel_edge("outer", "inner_b", "inner_join")
    graph.add_edge("inner_join", "join")
    graph.add_edge("join", "start", when=lambda state: state["rounds"] < 2)
    graph.add_edge("join", END)

    state = graph.compile().invoke({}).state
    assert state == {"rounds": 2, "sums": [[32, 1000], [32, 1000]]}


def test_a_main_branch_by_a_plain_edge_is_waited_for_too():
    """R4.1: the fan-in waits for everything that leads to it; the main branch changes the state itself."""
    graph = fan(dict)
    graph.add_node("main", lambda state: {"main": True})
    graph.add_edge("start", "main")
    graph.add_edge("main", "total")
    state = graph.compile().invoke({"value": 1}).state
    assert state == {"value": 2, "main": True, "total": 220, "why": []}


# Failures.


def broken(state: Any) -> dict[str, Any]:
    raise ValueError("no")


def test_a_failing_branch_stops_the_run_and_a_resume_runs_only_that_one(run):
    """R4.7: fail_fast, the default; the other branch's result is kept."""
    calls: list[str] = []

    def flaky(state: Any) -> dict[str, Any]:
        calls.append("ten")
        if len(calls) == 1:
            raise ValueError("no")
        return {"value": 20}

    def hundred(state: Any) -> dict[str, Any]:
        calls.append("hundred")
        return {"value": 200}

    app = fan(ten=flaky, hundred=hundred).compile(max_parallel=1)
    with pytest.raises(ExecutionError, match="ValueError: no"):
        app.invoke({"value": 1}, run_id=run)
    assert app.resume(run).state["total"] == 220
    assert sorted(calls) == ["hundred", "ten", "ten"]


def test_without_fail_fast_the_others_go_on_and_the_result_says_why():
    """R4.7: fail_fast=False; the rest of the failed branch does not run."""
    ran: list[str] = []
    graph = StateGraph(SCHEMA, name="fan")
    graph.add_node("ten", broken)
    graph.add_node("after_ten", lambda state: ran.append("after_ten"))
    graph.add_node("hundred", times(100))
    graph.add_fanin_node("total", total)
    graph.add_parallel_edge(START, "ten", "total", fail_fast=False)
    graph.add_parallel_edge(START, "hundred", "total", fail_fast=False)
    graph.add_edge("ten", "after_ten")
    graph.add_edge("after_ten", "total")
    heard = Heard()

    outcome = graph.compile().invoke({"value": 1}, observer=heard)

    assert outcome.status == RunStatus.COMPLETED and ran == []
    assert outcome.state == {"value": 1, "total": 100, "why": ["ValueError: no"]}
    assert [event.node for event in heard.of("node.warning")] == ["ten"]
    assert any("ValueError" in warning for warning in outcome.warnings)


def test_a_retry_and_a_circuit_breaker_of_a_branch_hold_for_its_nodes():
    """R4.7: a node that has its own keeps it."""
    calls: list[str] = []

    def flaky(state: Any) -> dict[str, Any]:
        calls.append("ten")
        if len(calls) < 3:
            raise ConnectionError("busy")
        return {"value": 20}

    app = fan(ten=flaky, retry=Retry(3, delay=0)).compile()
    assert app.invoke({"value": 1}).state["total"] == 220

    guarded = fan(
        ten=broken, circuit_breaker=CircuitBreaker(failures=1, reset=3600), fail_fast=False
    ).compile()
    first, second = (guarded.invoke({"value": 1}).state["why"] for _ in range(2))
    assert first == ["ValueError: no"] and second[0].startswith("CircuitOpen: node 'ten/ten' is not tried")


def test_a_branch_that_takes_too_long_fails_as_a_whole():
    """R4.7: the timeout of a branch counts from its first step, over all its nodes."""

    async def forever(state: Any) -> None:
        await asyncio.sleep(3600)

    graph = fan(ten=forever, timeout=0.05)
    with pytest.raises(ExecutionError) as caught:
        graph.compile().invoke({"value": 1})
    assert isinstance(caught.value.cause, StepTimeout)
    assert "step 'ten' ran when its branch had used up its timeout of 0.05 s" in str(caught.value)

    lenient = fan(ten=forever, timeout=0.05, fail_fast=False).compile()
    assert lenient.invoke({"value": 1}).state["why"][0].startswith("StepTimeout")


def test_a_long_node_of_a_branch_can_look_whether_the_run_is_cancelled():
    """R4.7: `ctx.cancelled` is the cancellation token of all branches."""
    noticed = threading.Event()

    def waits(state: Any, ctx: Any, graph: Any) -> dict[str, Any]:
        graph.cancel(ctx.run_id, "enough")
        while not ctx.cancelled:
            time.sleep(0.001)
        noticed.set()
        return {"value": 1}

    assert fan(ten=waits).compile().invoke({"value": 1}).status == RunStatus.CANCELLED
    assert noticed.wait(60)


def test_observers_are_the_callbacks_of_branches():
    """R4.7: the start, the end and the failure of each branch are events."""
    heard = Heard()
    fan().compile().invoke({"value": 1}, observer=heard)
    begun = [event.node for event in heard.of("node.start") if event.data["step"] in ("ten#1", "hundred#1")]
    ended = [
        event.node for event in heard.of("node.complete") if event.data["step"] in ("ten#1", "hundred#1")
    ]
    assert sorted(begun) == sorted(ended) == ["hundred", "ten"]


# Interrupts, crashes and files.


@pytest.mark.parametrize("kind", ["before", "after"])
def test_an_interrupt_at_a_node_of_a_branch_stops_there(kind, run, tmp_path, caplog):
    """S4.13: a file that is written while branches are under way holds the main state, and a warning is logged."""
    app = fan().compile(**{f"interrupt_{kind}": ["ten"]}, checkpoint_dir=tmp_path)
    with caplog.at_level(logging.WARNING, "holdfast"):
        paused = app.invoke({"value": 1}, run_id=run)

    assert [(pause.kind, pause.node) for pause in paused.pauses] == [(kind, "ten")]
    assert "holds the main state only" in caplog.text
    (path,) = tmp_path.glob("ten_*.pkl")
    assert StateGraph.load_checkpoint(path)["state"]["value"] == 2
    assert app.resume(run).state["total"] == 220


def test_a_file_at_the_fan_in_has_the_results(tmp_path):
    """S4.13: parallel_results are included."""
    app = fan().compile(interrupt_before=["total"], checkpoint_dir=tmp_path)
    app.invoke({"value": 1})
    (path,) = tmp_path.iterdir()
    checkpoint = StateGraph.load_checkpoint(path)
    assert checkpoint["node"] == "total"
    assert checkpoint["state"] == {"value": 2, "parallel_results": [{"value": 20}, {"value": 200}]}
    assert app.invoke(checkpoint=path).state["total"] == 220


def test_a_crash_anywhere_loses_nothing_and_repeats_nothing(tmp_path):
    """S4.13: the store has every branch, step by step."""
    for graph in (fan(), fan(ten=broken, fail_fast=False)):
        report = crash_everywhere(graph, {"value": 1}, mode="fast", check=False, limit=None)
        assert report.passed, report


@pytest.mark.parametrize("url", ["sqlite", "file"])
def test_large_states_of_branches_are_stored_and_read_again(tmp_path, url):
    """S4.13: values that are compressed, or stored as a difference, come back as they were."""
    text = "".join(map(str, range(20_000)))
    store = f"sqlite:///{tmp_path}/runs.db" if url == "sqlite" else f"file://{tmp_path}/runs"
    graph = StateGraph(dict, name="large")
    graph.add_node("a", lambda state: {"text": state["text"] + "a"})
    graph.add_node("b", lambda state: {"text": state["text"] + "b"})
    graph.add_fanin_node(
        "join", lambda state: {"ends": [each["text"][-1] for each in state["parallel_results"]]}
    )
    graph.add_parallel_edge(START, "a", "join")
    graph.add_parallel_edge(START, "b", "join")
    graph.compile(store, interrupt_before=["join"]).invoke({"text": text}, run_id="r")

    app = graph.compile(store)
    assert [each["text"] for each in app.get_state("r")["parallel_results"]] == [text + "a", text + "b"]
    assert app.resume("r").state == {"text": text, "ends": ["a", "b"]}


# What cannot be.


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda g: g.add_parallel_edge("start", "nobody", "total"), "there is no node 'nobody'"),
        (lambda g: g.add_parallel_edge("start", "ten", "total"), "'ten' begins two branches"),
        (lambda g: g.add_parallel_edge("start", "total", "total"), "a branch has a node of its own"),
        (lambda g: g.add_edge("start", "ten"), "'ten' also follows another node by a plain edge"),
        (lambda g: g.add_edge("start", END, when=lambda s: True), "parallel edges and edges with conditions"),
        (lambda g: g.add_fanin_node("more", total), "fan-in node 'more' has no parallel edge"),
    ],
)
def test_a_wrong_parallel_edge_is_refused_with_the_reason(edit, problem):
    """R4.1: when the graph is compiled."""
    graph = fan()
    edit(graph)
    with pytest.raises(GraphInvalid) as caught:
        graph.compile()
    assert problem in str(caught.value)
