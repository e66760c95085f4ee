"""Which nodes have to run again when others do."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import END, START, StateGraph
from holdfast.engine.time_travel.rerun import affected_nodes


def nothing(state: Any) -> None:
    return None


def graph(*edges: tuple[Any, Any], nodes: dict[str, dict[str, Any]] | None = None) -> StateGraph:
    built = StateGraph(dict)
    ends = [
        each
        for source, target in edges
        for each in (*(source if isinstance(source, list) else [source]), target)
    ]
    for name in dict.fromkeys([*ends, *(nodes or {})]):
        if name not in (START, END):
            options = dict((nodes or {}).get(name, {}))
            built.add_node(name, options.pop("graph", nothing), **options)
    for source, target in edges:
        built.add_edge(source, target)
    return built


def cone_of(built: StateGraph, *seeds: str, **more: Any) -> list[str]:
    found = affected_nodes(built.compile("memory://").graph, dict.fromkeys(seeds, "changed"), **more)
    assert all(found[seed] == "changed" for seed in seeds)
    return list(found)


CHAIN = ((START, "a"), ("a", "b"), ("b", "c"), ("c", END))
DIAMOND = ((START, "a"), ("a", "b"), ("a", "c"), (["b", "c"], "d"), ("d", END))


@pytest.mark.parametrize(
    ("edges", "seed", "expected"),
    [
        (CHAIN, "a", ["a", "b", "c"]),
        (CHAIN, "c", ["c"]),
        (DIAMOND, "b", ["b", "d"]),
        (DIAMOND, "a", ["a", "b", "c", "d"]),
    ],
)
def test_it_is_the_seed_and_what_comes_after_it(edges: Any, seed: str, expected: list[str]) -> None:
    assert cone_of(graph(*edges), seed) == expected


def test_a_cycle_brings_back_what_was_before() -> None:
    built = graph((START, "plan"), ("plan", "draft"), ("draft", "review"))
    built.add_conditional_edges("review", lambda state: END, {"again": "draft", "done": END})

    assert cone_of(built, "review") == ["draft", "review"]


def test_declared_gotos_and_the_last_node_count() -> None:
    built = graph((START, "a"), ("a", END), ("b", END), nodes={"a": {"goto": ["b"]}, "z": {}})
    built.set_last_node("z")

    assert cone_of(built, "a") == ["a", "b", "z"]
    assert cone_of(built, "b") == ["b", "z"]


def test_a_route_that_does_not_say_where_it_leads_leads_where_it_was_seen_to_and_where_nothing_else_does() -> (
    None
):
    built = graph((START, "a"), ("b", "d"), ("c", "d"), ("d", END), nodes={"e": {}})
    built.add_edge("e", END)
    built.add_conditional_edges("a", lambda state: "b")

    assert cone_of(built, "a", followed={"a": {"b"}}) == ["a", "b", "d", "c", "e"]
    assert cone_of(graph(*CHAIN), "b") == ["b", "c"]


def test_a_change_inside_a_sub_graph_spares_its_beginning() -> None:
    inner = graph((START, "x"), ("x", "y"), ("y", END))
    built = graph((START, "a"), ("a", "in"), ("in", "z"), ("z", END), nodes={"in": {"graph": inner}})

    assert cone_of(built, "in/y") == ["in/y", "z"]
    assert cone_of(built, "in/x") == ["in/x", "in/y", "z"]
    assert cone_of(built, "a") == ["a", "in", "in/x", "in/y", "z"]
    assert cone_of(built, "in") == ["in", "in/x", "in/y", "z"]


def test_what_follows_an_outer_graph_of_an_outer_graph_is_affected() -> None:
    innermost = graph((START, "x"), ("x", END))
    inner = graph((START, "deep"), ("deep", END), nodes={"deep": {"graph": innermost}})
    built = graph((START, "in"), ("in", "z"), ("z", END), nodes={"in": {"graph": inner}})

    assert cone_of(built, "in/deep/x") == ["in/deep/x", "z"]


def test_the_reason_names_the_node_that_it_begins_with() -> None:
    found = affected_nodes(graph(*CHAIN).compile("memory://").graph, {"a": "code changed"})

    assert found == {"a": "code changed", "b": "downstream of 'a'", "c": "downstream of 'a'"}


def test_a_node_that_is_gone_affects_nothing_itself() -> None:
    assert affected_nodes(graph(*CHAIN).compile("memory://").graph, {"x": "removed", "in/x": "removed"}) == {}


def test_who_declares_to_read_what_an_affected_node_writes_is_affected() -> None:
    parts = ((START, "a"), (START, "b"), ("b", "c"), ("a", END), ("c", END))
    reads = {"c": {"reads": ["found"]}, "b": {"reads": ["topic"]}}
    built = graph(*parts, nodes=reads).compile("memory://").graph

    found = affected_nodes(built, {"a": "changed"}, written={"a": {"found"}})

    assert found == {"a": "changed", "c": "it reads 'found', which 'a' writes"}
