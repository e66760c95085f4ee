"""Changed routes: they count as a change, and their targets run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import END, START, App, StateGraph, open_store
from holdfast.engine.graph_changes import changed_nodes, changes_between
from holdfast.stores.base import Store
from tests.graphs import Log, says

Way = Callable[[StateGraph, str], Any]


def by_function(graph: StateGraph, to: str) -> None:
    graph.add_conditional_edges("a", lambda state: to, ["b", "c"])


def by_function_alone(graph: StateGraph, to: str) -> None:
    graph.add_conditional_edges("a", lambda state: to)


def by_mapping(graph: StateGraph, to: str) -> None:
    graph.add_conditional_edges("a", lambda state: True, {True: to, False: "c" if to == "b" else "b"})


def by_condition(graph: StateGraph, to: str) -> None:
    graph.add_edge("a", "b", when=lambda state: to == "b").add_edge("a", "c")


def app(store: Store, way: Way, to: str) -> App:
    graph = StateGraph(Log, name="w")
    for name in "abcd":
        graph.add_node(name, says(name), version="1")
    way(graph.add_edge(START, "a"), to)
    return graph.add_edge("b", "d").add_edge("c", "d").add_edge("d", END).compile(store)


@pytest.mark.parametrize(
    ("way", "kept"),
    [(by_function, ["a#1"]), (by_function_alone, []), (by_mapping, ["a#1"]), (by_condition, ["a#1"])],
)
def test_another_way_is_taken_when_changes_run_again(way: Way, kept: list[str]) -> None:
    """S2.18: what came before the choice is kept; where a function does not say where it leads, not even that."""
    store = open_store("memory://")
    app(store, way, "b").invoke({}, run_id="r")
    again = app(store, way, "c")

    planned = again.plan_changes("r")
    assert planned is not None and [step.step for step in planned.of("kept")] == kept
    assert list(again.resume("r", rerun_changed=True).state["log"]) == ["a", "c", "d"]
    assert again.plan_changes("r") is None, "now it is as the graph says"


@pytest.mark.parametrize("way", [by_function, by_mapping, by_condition])
def test_the_same_way_is_no_change_nor_is_one_of_which_nothing_was_saved(way: Way) -> None:
    store = open_store("memory://")
    now, other = app(store, way, "b").outline(), app(store, way, "c").outline()
    older = {key: value for key, value in now.items() if key != "choices"}

    assert changed_nodes(now, app(store, way, "b").outline()) == {}
    assert changed_nodes(older, other) == {}
    assert changes_between(now, other)[-1] == "the way on from 'a' is chosen otherwise"


def test_the_way_from_the_beginning_counts() -> None:
    def begun(to: str) -> App:
        graph = StateGraph(Log, name="w").add_node("b", says("b")).add_node("c", says("c"))
        return graph.add_conditional_edges(START, lambda state: to, ["b", "c"]).compile(store)

    store = open_store("memory://")
    begun("b").invoke({}, run_id="r")

    assert list(begun("c").resume("r", rerun_changed=True).state["log"]) == ["c"]


def test_an_outline_is_made_once() -> None:
    """What functions hold may change as they run; that is no change of the graph."""
    held = [1]
    graph = StateGraph(Log).add_node("a", lambda state: {"log": [held[0]]}).set_entry_point("a").build()
    before = graph.outline()
    held.append(2)

    assert graph.outline() == before
