"""Mermaid drawings."""

from __future__ import annotations

from typing import Any

from holdfast import END, START, StateGraph
from holdfast.graph.graph import mermaid
from tests.graphs import Log, chain


def ready(state: Any) -> bool:
    return True


def nothing(state: Any) -> None:
    return None


def test_a_chain_is_drawn_from_start_to_end() -> None:
    """R4.8: graphs as Mermaid."""
    assert chain("a", "b").compile("memory://").draw() == (
        "flowchart TD\n"
        "    start((start))\n"
        '    n0["a"]\n'
        '    n1["b"]\n'
        "    finish((end))\n"
        "    start --> n0\n"
        "    n0 --> n1\n"
        "    n1 --> finish\n"
    )


def test_conditions_routes_joins_exits_and_sinks_are_drawn() -> None:
    graph = StateGraph(Log)
    for name in "abcde":
        graph.add_node(name, nothing)
    graph.add_edge(START, "a").add_edge("a", "b", when=ready).add_edge("a", "c", when=lambda s: 1).add_edge(
        "a", "e"
    )
    graph.add_conditional_edges("b", nothing, {"x": "c", "y": END}).add_edge(["b", "c"], "d")
    lines = graph.compile("memory://").draw().splitlines()

    for line in (
        '    n0 -.->|"ready"| n1',
        "    n0 -.-> n2",
        "    n0 --> n4",
        "    n1 -.-> finish",
        "    n1 -.-> n2",
        "    n1 --> n3",
        "    n2 --> n3",
        "    n3 --> finish",
        "    n4 --> finish",
    ):
        assert line in lines, line
    assert "    n2 --> finish" not in lines


def test_a_route_without_a_mapping_may_lead_anywhere() -> None:
    graph = StateGraph(Log).add_node("a", nothing).add_node("b", nothing).add_edge(START, "a")
    lines = graph.add_conditional_edges("a", nothing).compile("memory://").draw()

    assert "n0 -.-> n1" in lines and "n0 -.-> finish" in lines and "n0 -.-> n0" in lines


def test_sub_graphs_are_drawn_inside() -> None:
    graph = StateGraph(Log).add_node("sub", chain("x", name="inner")).add_edge(START, "sub")
    text = graph.compile("memory://").draw()

    assert (
        'subgraph n0["sub"]' in text and '        n0_n0["x"]' in text and "        n0_start --> n0_n0" in text
    )
    assert text.count("\n    end\n") == 1


def test_an_exit_point_is_drawn_as_one() -> None:
    graph = StateGraph(Log).add_node("a", nothing).add_edge(START, "a").add_edge("a", "a").set_exit_point("a")

    assert "n0 --> finish" in graph.compile("memory://").draw()


def test_names_are_escaped() -> None:
    assert (
        '["say &quot;hi&quot; &lt;b&gt; &amp; go"]' in chain('say "hi" <b> & go').compile("memory://").draw()
    )


def test_routes_to_anywhere_in_a_large_graph_are_one_arrow_each() -> None:
    names = [f"n{number}" for number in range(300)]
    outline = {
        "nodes": {name: {} for name in names},
        "edges": [],
        "routes": [[name, []] for name in names],
        "joins": [],
        "exits": names * 3,
    }

    drawn = mermaid(outline)

    assert drawn.count("-.->") == 300 and "n7 -.-> anywhere{{any node}}" in drawn
    assert mermaid({**outline, "nodes": {"n1": {}, "n2": {}}, "routes": [["n1", []]]}).count("-.->") == 3
