"""Graphs as SVG drawings."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as Xml
from typing import Any

import pytest

from holdfast import END, START, StateGraph
from holdfast.views import svg
from holdfast.views.drawing import MOST_NODES

SVG = "{http://www.w3.org/2000/svg}"


def outline(nodes: dict[str, Any], *edges: tuple[str, str]) -> dict[str, Any]:
    drawn = [[source, target, "", False] for source, target in edges]
    return {"name": "w", "nodes": nodes, "edges": drawn, "routes": [], "joins": [], "exits": []}


def chain(*names: str) -> dict[str, Any]:
    return outline({name: {} for name in names}, *zip((START, *names), (*names, END), strict=True))


def boxes(drawing: str) -> dict[str, tuple[float, float, float, float]]:
    """The boxes of the nodes, by name."""
    found = {}
    for group in Xml.fromstring(drawing).iter(f"{SVG}g"):
        if "hf-node" in group.get("class", ""):
            box = group.findall(f"{SVG}rect[@class='hf-box']")[-1]
            places = [float(box.get(key, "0")) for key in ("x", "y", "width", "height")]
            found[group.findtext(f"{SVG}title") or ""] = (places[0], places[1], places[2], places[3])
    return found


def test_a_compiled_graph_is_drawn_from_top_to_bottom() -> None:
    graph = StateGraph(dict)
    graph.add_node("fetch", lambda state: {})
    graph.add_node("write", lambda state: {})
    graph.add_edge(START, "fetch")
    graph.add_edge("fetch", "write")

    found = boxes(svg(graph.compile()))

    assert list(found) == ["fetch", "write"]
    assert found["fetch"][1] < found["write"][1]


def test_loops_self_loops_and_nodes_that_nothing_leads_to_are_drawn() -> None:
    drawing = svg(
        outline({"a": {}, "b": {}, "alone": {}}, (START, "a"), ("a", "b"), ("b", "a"), ("b", "b"), ("b", END))
    )

    assert set(boxes(drawing)) == {"a", "b", "alone"}
    assert drawing.count('class="hf-edge"') == 6


def test_boxes_of_a_random_graph_never_overlap() -> None:
    names = [f"n{number}" for number in range(60)]
    edges = [(names[number * 7 % 60], names[number * 11 % 60]) for number in range(1, 120)]
    found = list(boxes(svg(outline({name: {} for name in names}, (START, "n0"), *edges))).values())

    assert len(found) == 60
    for at, (x, y, width, height) in enumerate(found):
        for x2, y2, width2, height2 in found[at + 1 :]:
            apart = x + width <= x2 or x2 + width2 <= x or y + height <= y2 or y2 + height2 <= y
            assert apart


def test_states_are_said_by_colour_sign_and_words() -> None:
    drawing = svg(chain("a", "b"), {"a": "completed", "b": {"status": "retrying", "attempts": 3}})

    assert 'class="hf-node hf-completed"' in drawing and "✓" in drawing
    assert "b (retrying, attempt 3) leads to the end." in drawing
    assert 'role="img"' in drawing and "<desc>" in drawing


def test_groups_and_for_each_steps_are_one_node_with_progress() -> None:
    inner = outline({"x": {}, "y": {}, "z": {}})
    drawing = svg(
        outline({"each": {}, "group": {"graph": inner}}, (START, "each"), ("each", "group")),
        {
            "each": {"status": "running", "items": {"total": 10, "completed": 4}},
            "group/x": "completed",
            "group/y": "failed",
        },
    )

    assert set(boxes(drawing)) == {"each", "group"}
    assert "4 of 10" in drawing and "1 of 3" in drawing
    assert 'class="hf-node hf-failed"' in drawing


@pytest.mark.parametrize(
    "name",
    ['<script>alert("1")</script>', "a\u202eb", "line\nbreak", "\x00\x1b[31m", "\ud800", "長" * 300, "]]>&'"],
)
def test_hostile_names_are_text(name: str) -> None:
    drawing = svg(chain(name), link=lambda node: f"?step={node!r}")

    drawing.encode()
    assert len(boxes(drawing)) == 1
    assert "<script" not in drawing and "\u202e" not in drawing and "\n" not in drawing


def test_nodes_are_links_where_addresses_are_given() -> None:
    drawing = svg(chain("a"), {"a": "failed"}, link=lambda name: f"steps/{name}?x=1&y=2")

    assert re.search(r'<a href="steps/a\?x=1&amp;y=2" aria-label="a, failed">', drawing)
    assert 'role="group"' in drawing


def test_a_route_that_says_no_targets_leads_to_what_nothing_else_leads_to() -> None:
    found = {**outline({"a": {}, "b": {}, "c": {}}, (START, "a")), "routes": [["a", []]]}

    assert "a leads to b, c." in svg(found)


def test_a_huge_graph_is_drawn_in_part() -> None:
    names = [f"n{number}" for number in range(5_000)]
    everything = outline({name: {} for name in names}, (START, "n0"))
    everything["edges"] += [["n0", name, "", False] for name in names[1:]]
    everything["edges"] += [[name, "n399", "", False] for name in names[1:300]]

    drawing = svg(everything)

    assert len(boxes(drawing)) == MOST_NODES
    assert f"and {5_000 - MOST_NODES:,} more nodes" in drawing


def layers(nodes: int, width: int = 10) -> dict[str, Any]:
    """A graph of layers, each node of which leads to two of the next."""
    names = [f"node-{number}" for number in range(nodes)]
    edges = [(START, name) for name in names[:width]] + [(name, END) for name in names[-width:]]
    for number in range(nodes - width):
        below = (number // width + 1) * width
        edges += [(names[number], names[below + (number + shift) % width]) for shift in (0, 1)]
    return outline({name: {} for name in names}, *edges)


def calls_of(nodes: int) -> int:
    """How many functions are called for a drawing of so many nodes, with their states and links."""
    graph, states = layers(nodes), {f"node-{number}": {"status": "running"} for number in range(nodes)}
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        svg(graph, states, link=lambda name: f"/steps/{name}")
    finally:
        sys.setprofile(None)
    return count


def test_the_work_of_a_drawing_grows_with_its_size_and_no_faster() -> None:
    assert calls_of(200) < 2.2 * calls_of(100) < 2.2 * 60_000
