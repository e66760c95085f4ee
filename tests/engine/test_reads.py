"""`reads=`: a node that declares what of the state it looks at is given that, and nothing else."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from holdfast import END, START, ExecutionError, GraphInvalid, Send, StateGraph, append

KEYS = {"a": int, "b": int, "log": Annotated[list[Any], append]}


def run(function: Any, reads: list[str], **values: Any) -> Any:
    graph = StateGraph(KEYS).add_node("n", function, reads=reads).add_edge(START, "n").add_edge("n", END)
    return graph.compile("memory://").invoke({"a": 1, "b": 2, **values}).state


def test_a_node_sees_what_it_declares() -> None:
    seen: list[Any] = []

    def node(state: Any) -> dict[str, Any]:
        seen.extend([state["a"], state.a, dict(state), "a" in state, len(state), state.get("a")])
        return {"b": 5, "log": [1]}

    assert run(node, ["a"])["b"] == 5
    assert seen == [1, 1, {"a": 1}, True, 1, 1]


@pytest.mark.parametrize(
    "look",
    [
        lambda state: state["b"],
        lambda state: state.get("b"),
        lambda state: "b" in state,
        lambda state: state.b,
        lambda state: {**state, "x": state["b"]},
    ],
)
def test_anything_else_is_an_error_that_names_the_declaration(look: Any) -> None:
    with pytest.raises(
        ExecutionError, match="node 'n' declares that it reads 'a', and not 'b'; add it to reads="
    ):
        run(lambda state: {"log": [look(state)]}, ["a"])


def test_a_key_that_the_state_has_not_is_simply_not_there() -> None:
    graph = StateGraph(dict).add_node("n", lambda s: {"x": [s.get("zz"), "zz" in s]}, reads=["a"])

    assert list(graph.add_edge(START, "n").compile("memory://").invoke({"a": 1}).state["x"]) == [None, False]


def test_a_whole_state_may_be_returned_and_the_rest_stays() -> None:
    assert run(lambda state: state.set("a", 7), ["a"]).to_dict() == {"a": 7, "b": 2, "log": []}


def test_an_item_of_a_for_each_is_always_seen() -> None:
    graph = StateGraph(KEYS).add_node("n", lambda s: {"log": [s["a"]]}, reads=[])
    graph.add_conditional_edges(START, lambda s: [Send("n", {"a": n}) for n in range(3)])

    assert list(graph.compile("memory://").invoke({"b": 1}).state["log"]) == [0, 1, 2]


def test_an_async_node_and_a_thread_see_the_same() -> None:
    async def node(state: Any) -> dict[str, Any]:
        return {"log": [dict(state)]}

    graph = (
        StateGraph(KEYS)
        .add_node("x", node, reads=["a"])
        .add_node("y", lambda s: {"log": [dict(s)]}, reads=["b"])
    )
    out = graph.add_edge(START, "x").add_edge(START, "y").compile("memory://").invoke({"a": 1, "b": 2})

    assert list(out.state["log"]) == [{"a": 1}, {"b": 2}]


def test_it_is_part_of_the_outline_and_checked() -> None:
    graph = StateGraph(KEYS).add_node("n", lambda s: None, reads=["a", "b", "a"]).add_edge(START, "n")
    assert graph.build().outline()["nodes"]["n"]["reads"] == ["a", "b"]
    assert "reads" not in StateGraph(KEYS).add_node("n", lambda s: None).build().outline()["nodes"]["n"]

    with pytest.raises(
        GraphInvalid, match="node 'm' reads 'bb', which is no key of the state; did you mean 'b'"
    ):
        graph.add_node("m", lambda s: None, reads="bb").compile("memory://")
    with pytest.raises(GraphInvalid, match="node 'sub' is a sub-graph and takes no reads"):
        StateGraph(KEYS).add_node("sub", graph, reads=["a"]).compile("memory://")
