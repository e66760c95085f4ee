"""The graph as a frozen value, however it was written."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import END, START, Command, Retry, Send, StateGraph
from holdfast.graph.graph import Edge, Join
from tests.graphs import Log, chain, says


def nothing(state: Any) -> None:
    return None


def test_a_graph_is_frozen_and_the_builder_goes_on_without_it() -> None:
    builder = chain("a", "b")
    graph = builder.build()
    builder.add_node("c", says("c"))

    assert list(graph.nodes) == ["a", "b"] and list(builder.build().nodes) == ["a", "b", "c"]
    with pytest.raises(AttributeError):
        graph.name = "other"  # type: ignore[misc]


def test_building_can_be_chained() -> None:
    app = (
        StateGraph(Log).add_node("a", says("a")).add_edge(START, "a").set_exit_point("a").compile("memory://")
    )

    assert app.invoke().state["log"] == ["a"]


def test_a_function_can_bring_its_own_name() -> None:
    graph = StateGraph(Log).add_node(nothing).set_entry_point("nothing").build()

    assert list(graph.nodes) == ["nothing"]
    assert graph.edges == (Edge(START, "nothing"),)


def test_after_makes_edges_joins_and_entries() -> None:
    graph = (
        StateGraph(Log)
        .add_node("a", nothing)
        .add_node("b", nothing, after=[])
        .add_node("c", nothing, after="a")
        .add_node("d", nothing, after=["b", "c", "b"])
        .build()
    )

    assert set(graph.edges) == {Edge(START, "a"), Edge(START, "b"), Edge("a", "c")}
    assert graph.joins == (Join(("b", "c"), "d"),)


def test_a_list_of_one_source_is_a_plain_edge() -> None:
    graph = StateGraph(Log).add_node("a", nothing).add_node("b", nothing).add_edge(["a"], "b").build()

    assert graph.edges == (Edge("a", "b"),) and graph.joins == ()


def test_nodes_know_what_their_functions_take() -> None:
    def all_three(state: Any, ctx: Any, config: Any) -> None: ...
    def in_another_order(ctx: Any, state: Any) -> None: ...
    def by_place(anything: Any) -> None: ...
    def none_at_all() -> None: ...
    def with_defaults(state: Any, size: int = 3) -> None: ...
    async def later(state: Any) -> None: ...

    graph = StateGraph(Log)
    for function in (all_three, in_another_order, by_place, none_at_all, with_defaults, later):
        graph.add_node(function)
    nodes = graph.build().nodes

    assert nodes["all_three"].wants == ("state", "ctx", "config")
    assert nodes["in_another_order"].wants == ("ctx", "state")
    assert nodes["by_place"].wants == ("state",)
    assert nodes["none_at_all"].wants == ()
    assert nodes["with_defaults"].wants == ("state",)
    assert nodes["later"].is_async and not nodes["by_place"].is_async


def test_the_node_after_which_there_is_no_choice_is_known() -> None:
    graph = (
        chain("a", "b")
        .add_node("c", nothing)
        .add_edge("c", "a", when=lambda s: True)
        .set_exit_point("b")
        .build()
    )

    assert graph.only_next["a"] == "b" and graph.only_next["b"] == END and "c" not in graph.only_next


def test_a_frames_path_leads_to_its_graph() -> None:
    inner = chain("x", name="inner")
    middle = StateGraph(Log, name="middle").add_node("inner", inner).add_edge(START, "inner")
    outer = (
        StateGraph(Log).add_node("middle", middle).add_node("leaf", nothing).add_edge(START, "middle").build()
    )

    assert outer.at("").name == "graph"
    assert outer.at("middle#1").name == "middle"
    assert outer.at("middle#1/inner#12[a b]").name == "inner"
    for path in ("leaf#1", "nowhere#1"):
        with pytest.raises(KeyError):
            outer.at(path)


def test_an_outline_is_plain_data() -> None:
    import ormsgpack

    graph = (
        StateGraph(Log, name="g", max_iterations=7)
        .add_node("a", nothing)
        .add_node("b", chain("x", name="sub"))
        .add_node("c", nothing)
        .add_edge(START, "a")
        .add_edge("a", "b", when=nothing, label="why")
        .add_edge("a", "c")
        .add_conditional_edges("b", nothing, {"one": "c", "two": END, "three": "c"})
        .add_edge(["b", "c"], END)
        .set_exit_point("c")
    )
    outline = graph.build().outline()

    assert ormsgpack.unpackb(ormsgpack.packb(outline)) == outline
    assert outline["name"] == "g" and outline["max_iterations"] == 7 and outline["exits"] == ["c"]
    assert outline["edges"] == [[START, "a", "", False], ["a", "b", "why", True], ["a", "c", "", False]]
    assert outline["routes"] == [["b", [END, "c"]]]
    assert outline["joins"] == [[["b", "c"], END]]
    assert list(outline["nodes"]) == ["a", "b", "c"]
    assert outline["nodes"]["b"]["graph"]["name"] == "sub"


def test_a_compiled_graph_can_be_a_node() -> None:
    inner = chain("x").compile("memory://")

    assert StateGraph(Log).add_node("in", inner).build().nodes["in"].graph is inner.graph


def test_send_and_command_are_values() -> None:
    assert Send("a", {"n": 1}) == Send("a", {"n": 1}, None)
    assert Command({"n": 1}, "a") == Command(update={"n": 1}, goto="a")
    assert Retry(2) == Retry(attempts=2)
