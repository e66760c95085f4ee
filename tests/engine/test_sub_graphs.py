"""Sub-graphs: shared keys, reducers, nesting, and failures inside."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest

from holdfast import (
    END,
    START,
    Context,
    ExecutionError,
    Send,
    StateGraph,
    append,
)
from holdfast.stores.base import Store
from tests.graphs import Log, Reduced, chain, joined, reduces, says


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


def test_a_sub_graphs_reducers_are_applied_once() -> None:
    inner = StateGraph(Reduced, name="inner").add_node("x", reduces(5)).add_node("y", reduces(2))
    inner.add_edge(START, "x").add_edge("x", "y")
    graph = (
        StateGraph(Reduced).add_node("sub", inner).add_node("side", reduces(3)).add_node("last", reduces(1))
    )
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
