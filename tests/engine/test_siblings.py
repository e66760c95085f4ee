"""Steps that run side by side: their updates apply in node order, and none is lost or made up."""

from __future__ import annotations

import asyncio
import operator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from holdfast import END, START, Command, ExecutionError, Send, State, StateGraph, append


class S(TypedDict, total=False):
    x: int
    last: int
    items: list[Any]
    total: Annotated[int, operator.add]
    log: Annotated[list[Any], append]


def side_by_side(**nodes: Any) -> StateGraph:
    graph = StateGraph(S)
    for name, node in nodes.items():
        graph.add_node(name, node).add_edge(START, name)
    return graph


def for_each(work: Any, numbers: tuple[int, ...]) -> StateGraph:
    graph = StateGraph(S).add_node("plan", lambda s: None).add_node("work", work).add_edge(START, "plan")
    return graph.add_conditional_edges("plan", lambda s: [Send("work", {"x": n}) for n in numbers])


def refused(graph: StateGraph, given: Any = None, **options: Any) -> str:
    with pytest.raises(ExecutionError) as error:
        graph.compile("memory://", **options).invoke(given, run_id="r")
    return str(error.value)


def inner(name: str, node: Any) -> StateGraph:
    return StateGraph(S, name=name).add_node("n", node).add_edge(START, "n").add_edge("n", END)


@pytest.mark.parametrize(
    ("second", "barrier"),
    [({"x": 1}, True), ({"x": 0}, True), ({"x": 2}, True), ({"x": 2}, False)],
    ids=["same value", "old value", "other value", "other value, no barrier"],
)
def test_two_parallel_writers_of_a_key_without_a_reducer_are_refused_by_name(
    second: dict[str, int], barrier: bool
) -> None:
    told = refused(side_by_side(a=lambda s: {"x": 1}, b=lambda s: second), {"x": 0}, barrier=barrier)

    assert "'a' and 'b' both set state key 'x', which has no reducer" in told.replace(
        "'b' and 'a'", "'a' and 'b'"
    )
    assert "x: Annotated[list, append]" in told and "app.invoke(reuse='r')" in told


@pytest.mark.parametrize("barrier", [True, False])
def test_items_that_set_a_key_without_a_reducer_are_refused(barrier: bool) -> None:
    told = refused(for_each(lambda s: {"last": s["x"]}, (2, 1, 0)), barrier=barrier)

    assert "both set state key 'last', which has no reducer" in told and "'work[" in told


def test_lists_without_a_reducer_are_not_joined_by_parallel_steps() -> None:
    graph = side_by_side(a=lambda s: {"items": [*s["items"], "a"]}, b=lambda s: {"items": [*s["items"], "b"]})

    assert "both set state key 'items'" in refused(graph, {"items": ["z"]})


def test_parallel_sub_graphs_follow_the_same_rule() -> None:
    graph = StateGraph(S)
    graph.add_node("a", inner("a", lambda s: {"x": 1})).add_edge(START, "a")
    graph.add_node("b", inner("b", lambda s: {"x": 0})).add_edge(START, "b")

    text = refused(graph, {"x": 0}).replace("'b' and 'a'", "'a' and 'b'")
    assert "'a' and 'b' both set state key 'x'" in text


@pytest.mark.parametrize("last_is_first", [True, False])
def test_without_a_barrier_steps_that_do_not_follow_each_other_are_parallel(last_is_first: bool) -> None:
    """`last` follows `fast` and not `other`; both write `x`, and whichever comes second is refused."""
    written = asyncio.Event()

    async def other(state: Any) -> dict[str, Any]:
        if last_is_first:
            await written.wait()
        return {"x": 1}

    async def fast(state: Any) -> None:
        if not last_is_first:
            await asyncio.sleep(0.05)

    async def last(state: Any) -> dict[str, Any]:
        written.set()
        return {"x": 2}

    graph = side_by_side(other=other, fast=fast).add_node("last", last).add_edge("fast", "last")

    assert "both set state key 'x'" in refused(graph, {"x": 0}, barrier=False)


def test_without_a_barrier_a_follower_may_set_what_its_predecessor_set() -> None:
    async def slow(state: Any) -> None:
        await asyncio.sleep(0.05)

    graph = side_by_side(slow=slow, first=lambda s: {"x": 1}).add_node("then", lambda s: {"x": s["x"] + 1})
    graph.add_edge("first", "then").add_node("joined", lambda s: {"x": s["x"] + 1})
    graph.add_edge(["then", "slow"], "joined")

    assert graph.compile("memory://", barrier=False).invoke({"x": 0}).state["x"] == 3


def test_the_cure_for_parallel_writers_works_and_keeps_what_is_not_affected(tmp_path: Path) -> None:
    class Cured(TypedDict, total=False):
        x: int
        last: Annotated[list[int], append]

    ran: list[str] = []

    def build(schema: Any) -> Any:
        def plan(state: Any) -> None:
            ran.append("plan")

        graph = StateGraph(schema, name="each").add_edge(START, "plan")
        graph.add_node("plan", plan, reads=[], version="1")
        graph.add_node("work", lambda s: {"last": [s["x"]]})
        graph.add_conditional_edges("plan", lambda s: [Send("work", {"x": n}) for n in range(5)])
        return graph.compile(f"sqlite:///{tmp_path / 'runs.db'}")

    with pytest.raises(ExecutionError, match=r"app.invoke\(reuse='r'\)"):
        build({"x": int, "last": list}).invoke(run_id="r")
    with pytest.raises(ExecutionError, match="finished before the key had its reducer"):
        build(Cured).resume("r")

    assert build(Cured).invoke(reuse="r").state["last"] == [0, 1, 2, 3, 4]
    assert ran == ["plan"]


def test_a_thousand_items_are_compared_without_comparing_each_with_each() -> None:
    out = for_each(lambda s: {"log": [s["x"]]}, tuple(range(1000))).compile("memory://").invoke()

    assert len(out.state["log"]) == 1000


def test_a_value_that_a_sibling_merely_passes_on_is_not_written() -> None:
    graph = side_by_side(a=lambda s: {"items": ["new"]}, b=lambda s: {"items": s["items"], "x": 1})

    assert graph.compile("memory://").invoke({"items": ["old"]}).state["items"] == ["new"]


def test_a_node_that_returns_a_state_changes_only_what_it_changed() -> None:
    async def slow(state: State) -> State:
        await asyncio.sleep(0.1)
        return state.set("x", 1)

    graph = side_by_side(slow=slow, fast=lambda s: {"last": 7}).add_node(
        "after", lambda s: {"log": ["after"]}
    )
    graph.add_edge("fast", "after")
    out = graph.compile("memory://", barrier=False).invoke({"x": 0, "last": 0})

    assert (out.state["x"], out.state["last"], out.state["log"]) == (1, 7, ["after"])


@pytest.mark.parametrize("joined", [False, True])
def test_without_a_barrier_a_node_waits_for_all_items_of_its_predecessor(joined: bool) -> None:
    async def work(state: Any) -> dict[str, Any]:
        await asyncio.sleep(0.03 * state["x"])
        return {"log": [state["x"]]}

    graph = for_each(work, (1, 2, 3)).add_node("other", lambda s: None).add_edge(START, "other")
    graph.add_node("collect", lambda s: {"log": [f"collected {len(s['log'])}"]})
    graph.add_edge(["work", "other"] if joined else "work", "collect")
    out = graph.compile("memory://", barrier=False).invoke()

    assert out.state["log"] == [1, 2, 3, "collected 3"]


def test_items_may_each_send_further_items() -> None:
    graph = for_each(lambda s: Command(goto=Send("next", {"x": s["x"]})), (2, 1, 0))
    graph.add_node("next", lambda s: {"log": [s["x"]]})

    assert graph.compile("memory://").invoke().state["log"] == [2, 1, 0]


def test_a_reducer_from_the_standard_library_starts_with_an_empty_value() -> None:
    graph = side_by_side(a=lambda s: {"total": 2}, b=lambda s: {"total": 3})

    assert graph.compile("memory://").invoke().state["total"] == 5


def test_a_for_each_with_few_places_refills_them_without_waiting_long() -> None:
    running, most = [0], [0]

    async def work(state: Any) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.001 * (1 + state["x"] % 5))
        running[0] -= 1

    out = for_each(work, tuple(range(60))).compile("memory://", max_parallel=4).invoke()

    assert most[0] == 4 and out.stats.steps_run == 61


def sub_graph(node: Any, schema: Any = S) -> StateGraph:
    return StateGraph(schema, name="sub").add_node("i", node).add_edge(START, "i")


def test_a_sub_graph_that_sets_what_a_parallel_step_has_set_meanwhile_is_refused() -> None:
    async def slow(state: Any) -> dict[str, Any]:
        await asyncio.sleep(0.1)
        return {"x": 0}

    graph = StateGraph(S).add_node("w", sub_graph(slow)).add_edge(START, "w")
    graph.add_node("o", lambda s: {"x": 5}).add_edge(START, "o")

    assert "'o' and 'w' both set state key 'x'" in refused(graph, {"x": 0}, barrier=False)


def test_a_sub_graph_hands_up_what_it_got_with_its_item() -> None:
    def node(state: Any) -> dict[str, Any]:
        return {"x": state["x"], "items": [*state["items"], "new"]}

    graph = (
        StateGraph(S).add_node("plan", lambda s: None).add_node("w", sub_graph(node)).add_edge(START, "plan")
    )
    item = {"x": 5, "items": ["i"]}
    graph.add_conditional_edges("plan", lambda s: [Send("w", item, key="0")])
    out = graph.compile("memory://").invoke({"x": 0, "items": ["p"]})

    assert out.state["x"] == 5 and out.state["items"] == ["i", "new"]


def test_a_sub_graph_hands_up_the_defaults_that_it_returns() -> None:
    @dataclass
    class Inner:
        items: list[str] = field(default_factory=lambda: ["d"])
        x: int = 5

    graph = StateGraph(S).add_node("w", sub_graph(lambda s: {"items": [*s["items"], "new"], "x": 5}, Inner))
    out = graph.add_edge(START, "w").compile("memory://").invoke()

    assert out.state["x"] == 5 and out.state["items"] == ["d", "new"]


def test_an_edit_on_resume_is_not_undone_by_an_open_sub_graph() -> None:
    ok = [False]

    def last(state: Any) -> dict[str, Any]:
        if not ok[0]:
            raise ValueError("429")
        return {"items": [state["x"]]}

    inner = StateGraph(S, name="sub").add_node("a", lambda s: {"x": 1}).add_node("b", last)
    app = StateGraph(S).add_node("w", inner.add_edge(START, "a").add_edge("a", "b")).add_edge(START, "w")
    app = app.compile("memory://")
    with pytest.raises(ExecutionError):
        app.invoke({"x": 0}, run_id="r")
    ok[0] = True
    out = app.resume("r", update={"x": 7})

    assert out.state["x"] == 7 and out.state["items"] == [7]


@pytest.mark.parametrize("forked", [True, False], ids=["a fork", "the run"])
@pytest.mark.parametrize("meanwhile", [True, False], ids=["written meanwhile", "written before"])
def test_without_a_barrier_a_resumed_run_refuses_what_an_uninterrupted_one_refuses(
    meanwhile: bool, forked: bool, tmp_path: Path
) -> None:
    """`first` writes `x` and is led on from; then the run fails, and what writes `x` too runs after the resume."""

    def app(broken: bool) -> Any:
        then_began = asyncio.Event()

        async def other(state: Any) -> dict[str, Any]:
            if broken:
                await then_began.wait()
                raise ValueError("not yet")
            return {"x": 2} if meanwhile else {}

        async def then(state: Any) -> None:
            then_began.set()

        graph = side_by_side(first=lambda s: {"x": 1}, other=other)
        graph.add_node("then", then).add_edge("first", "then")
        graph.add_node("after", lambda s: {"x": 3}).add_edge("other", "after")
        return graph.compile(f"sqlite:///{tmp_path / 'runs.db'}", barrier=False)

    with pytest.raises(ExecutionError, match="not yet"):
        app(broken=True).invoke({"x": 0}, run_id="r")
    with pytest.raises(ExecutionError, match=r"'first' and '(other|after)' both set state key 'x'"):
        cured = app(broken=False)
        cured.resume(cured.fork("r") if forked else "r")
