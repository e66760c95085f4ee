"""Predicates for edges: what they say, how they combine, and how events call them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import END, START, HoldfastError, StateGraph
from holdfast.checkpoints import ConfiguredGraph, GraphConfig
from holdfast.graph.fingerprint import fingerprint
from holdfast.patterns import always, and_, key_equals, key_exists, not_, or_
from tests.graphs import Heard


@pytest.mark.parametrize(
    ("predicate", "state", "holds"),
    [
        (always, {}, True),
        (key_exists("a"), {"a": None}, True),
        (key_exists("a"), {"b": 1}, False),
        (key_equals("a", 1), {"a": 1}, True),
        (key_equals("a", 1), {"a": 2}, False),
        (key_equals("a", None), {}, False),
        (not_(key_exists("a")), {}, True),
        (and_(key_exists("a"), key_equals("b", 2)), {"a": 1, "b": 2}, True),
        (and_(key_exists("a"), key_equals("b", 2)), {"a": 1, "b": 3}, False),
        (or_(key_exists("a"), key_equals("b", 2)), {"b": 2}, True),
        (or_(key_exists("a"), key_equals("b", 2)), {}, False),
        (and_(), {}, True),
        (or_(), {}, False),
    ],
)
def test_a_predicate_says_whether_a_state_has_it(predicate: Any, state: dict[str, Any], holds: bool) -> None:
    """R3.2: AlwaysTransition, KeyExists, KeyEquals, Not, And, Or."""
    assert predicate(state) is holds


def test_a_combination_asks_no_more_than_it_has_to() -> None:
    def never(state: Any) -> bool:
        raise AssertionError("asked")

    assert and_(key_exists("a"), never)({}) is False
    assert or_(always, never)({}) is True


async def test_async_predicates_can_be_combined() -> None:
    async def later(state: Any) -> bool:
        return "a" in state

    for state, holds in (({"a": 1}, True), ({}, False)):
        assert await and_(always, later, always)(state) is holds
        assert await or_(not_(always), later)(state) is holds
        assert await not_(later)(state) is not holds
        assert await and_(later, later)(state) is holds


def test_edges_are_chosen_by_predicates_and_named_in_the_events() -> None:
    """R3.1, R3.2: conditional edges, a cycle, several exit points; names in edge.evaluate and edge.transition."""
    heard = Heard()
    graph = StateGraph(dict)
    graph.add_node("work", lambda s: {"n": s.get("n", 0) + 1})
    graph.add_node("odd", lambda s: {"end": "odd"}).add_node("full", lambda s: {"end": "full"})
    graph.set_entry_point("work").set_exit_point("odd").set_exit_point("full")
    graph.add_edge("work", "full", key_equals("n", 3), label="enough")
    graph.add_edge("work", "odd", and_(key_exists("odd"), always))
    graph.add_edge("work", "work", always)

    assert graph.compile("memory://").invoke({}, observer=heard).state == {"n": 3, "end": "full"}
    taken = [(event["to"], event["name"]) for event in heard.of("edge.transition")]
    assert taken == [("work", "always"), ("work", "always"), ("full", "enough")]
    asked = [(event["to"], event["name"], event["result"]) for event in heard.of("edge.evaluate")][:3]
    assert asked == [
        ("full", "enough", False),
        ("odd", "and_(key_exists('odd'), always)", False),
        ("work", "always", True),
    ]
    assert graph.compile("memory://").invoke({"odd": 1}).state["end"] == "odd"


def test_a_plain_edge_is_named_by_its_label() -> None:
    heard = Heard()
    graph = StateGraph(dict).add_node("a", lambda s: None).add_node("b", lambda s: None).add_edge(START, "a")
    graph.add_edge("a", "b", label="on").add_edge("b", END).compile("memory://").invoke({}, observer=heard)

    assert [event["name"] for event in heard.of("edge.transition")] == ["on"]


def test_a_configured_graph_takes_predicates() -> None:
    """S3.20: `add_edge(from, to, predicate)`."""
    graph = ConfiguredGraph(GraphConfig("g", observer="noop"))
    graph.add_node("a", lambda state: state.set("n", 1)).add_node("b", lambda state: state)
    graph.set_entry_point("a").set_exit_point("b")
    graph.add_edge("a", "b", key_equals("n", 1))

    assert graph.execute({}).checkpoint_node == "b"


def test_what_is_no_predicate_is_refused() -> None:
    with pytest.raises(HoldfastError, match="a predicate is a function of the state, not 'answer'"):
        and_("answer")  # type: ignore[arg-type]


def test_another_predicate_has_another_fingerprint() -> None:
    assert fingerprint(key_equals("a", 1)) == fingerprint(key_equals("a", 1))
    different = [key_equals("a", 2), key_equals("b", 1), key_exists("a"), not_(key_equals("a", 1)), always]
    prints = {fingerprint(each) for each in (key_equals("a", 1), *different)}
    assert len(prints) == 6
    assert fingerprint(and_(key_exists("a"))) != fingerprint(or_(key_exists("a")))
