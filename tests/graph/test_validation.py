"""The validator: every kind of problem, all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest

from holdfast import END, START, GraphInvalid, HoldfastError, Retry, StateGraph, open_store
from tests.graphs import Log, chain, fan, says


def nothing(state: Any) -> None:
    return None


def graph(*names: str) -> StateGraph:
    """START -> a -> b … with nodes that do nothing; nothing leads to END."""
    built = StateGraph(Log)
    for name in names:
        built.add_node(name, nothing)
    for source, target in zip((START, *names), names, strict=False):
        built.add_edge(source, target)
    return built


PROBLEMS: dict[str, tuple[Callable[[], StateGraph], str]] = {
    "no node": (lambda: StateGraph(Log), "there is no node; add one"),
    "no entry": (lambda: StateGraph(Log).add_node("a", nothing), "nothing follows START; add_edge(START"),
    "duplicate node": (lambda: graph("a").add_node("a", nothing), "node 'a' is added twice"),
    "duplicate edge": (lambda: graph("a", "b").add_edge("a", "b"), "edge 'a' -> 'b' is added twice"),
    "missing target": (
        lambda: graph("fetch").add_edge("fetch", "fecth"),
        "edge 'fetch' -> 'fecth': node not found: fecth; did you mean 'fetch'?",
    ),
    "missing source": (lambda: graph("a").add_edge("z", "a"), "edge 'z' -> 'a': node not found: z"),
    "missing route target": (
        lambda: graph("a").add_conditional_edges("a", nothing, ["nowhere"]),
        "the routes of 'a': node not found: nowhere",
    ),
    "missing route source": (
        lambda: graph("a").add_conditional_edges("z", nothing, ["a"]),
        "the routes of 'z': node not found: z",
    ),
    "missing join source": (
        lambda: graph("a").add_edge(["a", "z"], END),
        "the join before '__end__': node not found: z",
    ),
    "missing join target": (
        lambda: graph("a", "b").add_edge(["a", "b"], "z"),
        "the join of 'a', 'b': node not found: z",
    ),
    "missing after": (
        lambda: graph("a").add_node("b", nothing, after="z"),
        "edge 'z' -> 'b': node not found: z",
    ),
    "missing exit": (lambda: graph("a").set_exit_point("z"), "the exit points: node not found: z"),
    "missing goto": (
        lambda: graph().add_node("a", nothing, goto=["z"]).add_edge(START, "a"),
        "goto of node 'a': node not found: z",
    ),
    "edge into START": (lambda: graph("a").add_edge("a", START), "'__start__' cannot be used there"),
    "edge out of END": (lambda: graph("a").add_edge(END, "a"), "'__end__' cannot be used there"),
    "unreachable": (lambda: graph("a").add_node("b", nothing), "node 'b' cannot be reached from START"),
    "cycle without exit": (
        lambda: graph("a", "b").add_edge("b", "a"),
        "cycle without exit: no path leads from 'a', 'b' to END",
    ),
    "dead end beside an exit point": (
        lambda: (
            graph("a")
            .add_node("b", nothing)
            .add_node("c", nothing)
            .add_edge("a", "b")
            .add_edge("a", "c")
            .set_exit_point("b")
        ),
        "no outgoing edges from node: c",
    ),
    "forbidden character": (lambda: graph("a/b"), "node name 'a/b' may not contain"),
    "control character": (lambda: graph("a\nb"), "may not contain"),
    "empty name": (lambda: graph(""), "'' cannot be a node's name"),
    "reserved name": (lambda: StateGraph(Log).add_node(END, nothing), "'__end__' cannot be a node's name"),
    "bad reducer": (
        lambda: (
            StateGraph({"n": Annotated[int, lambda old: old]}).add_node("a", nothing).add_edge(START, "a")
        ),
        "state key 'n' has a bad reducer",
    ),
    "bad timeout": (
        lambda: graph().add_node("a", nothing, timeout=0).add_edge(START, "a"),
        "node 'a' has timeout=0; it must be a number of seconds above 0",
    ),
    "bad if_interrupted": (
        lambda: graph().add_node("a", nothing, if_interrupted="retry").add_edge(START, "a"),
        "node 'a' has if_interrupted='retry'",
    ),
    "edges and a route": (
        lambda: graph("a", "b").add_conditional_edges("a", nothing, ["b"]),
        "node 'a' has both edges and a routing function",
    ),
    "two routes": (
        lambda: graph("a").add_conditional_edges("a", nothing).add_conditional_edges("a", nothing),
        "node 'a' has two routing functions",
    ),
    "no iterations": (
        lambda: chain("a", max_iterations=0),
        "max_iterations must be a whole number of at least 1",
    ),
    "no function": (
        lambda: StateGraph(Log).add_node("a").add_edge(START, "a"),
        "node 'a' needs a function or a graph",
    ),
    "unknown parameter": (
        lambda: StateGraph(Log).add_node("a", lambda state, db: None).add_edge(START, "a"),
        "node 'a': its parameter 'db' is none of state, ctx, config",
    ),
    "keyword-only parameter": (
        lambda: StateGraph(Log).add_node("a", _keyword_only).add_edge(START, "a"),
        "its parameter 'db' is none of state, ctx, config, node, graph and has no default",
    ),
    "condition that is no function": (
        lambda: graph("a").add_node("b", nothing).add_edge("a", "b", when="n > 0"),  # type: ignore[arg-type]
        "edge 'a' -> 'b': when is a function of the state, not 'n > 0', such as when=lambda state:",
    ),
    "route that is no function": (
        lambda: graph("a").add_conditional_edges("a", {"x": "a"}, ["a"]),  # type: ignore[arg-type]
        "the routes of 'a': what chooses is a function of the state that returns a node's name, not {'x': 'a'}",
    ),
    "condition on a join": (
        lambda: graph("a", "b").add_edge(["a", "b"], END, when=nothing),
        "the join before '__end__' cannot have a condition",
    ),
    "join of nothing": (lambda: graph("a").add_edge([], "a"), "the join before 'a' has no sources"),
    "inside a sub-graph": (
        lambda: StateGraph(Log).add_node("sub", graph("x").add_node("y", nothing)).add_edge(START, "sub"),
        "in sub-graph 'sub': node 'y' cannot be reached",
    ),
    "retry of a sub-graph": (
        lambda: StateGraph(Log).add_node("sub", chain("x"), retry=Retry()).add_edge(START, "sub"),
        "node 'sub' is a sub-graph and takes no retry",
    ),
    "timeout of a sub-graph": (
        lambda: StateGraph(Log).add_node("sub", chain("x"), timeout=3).add_edge(START, "sub"),
        "node 'sub' is a sub-graph and takes no timeout",
    ),
    "if_interrupted of a sub-graph": (
        lambda: StateGraph(Log).add_node("sub", chain("x"), if_interrupted="ask").add_edge(START, "sub"),
        "node 'sub' is a sub-graph and takes no if_interrupted; set it on its nodes",
    ),
    "idempotent of a sub-graph": (
        lambda: StateGraph(Log).add_node("sub", chain("x"), idempotent=False).add_edge(START, "sub"),
        "node 'sub' is a sub-graph and takes no if_interrupted; set it on its nodes",
    ),
}


def _keyword_only(state: Any, *, db: Any) -> None:
    return None


@pytest.mark.parametrize("kind", PROBLEMS)
def test_a_graph_with_a_problem_is_refused_with_the_reason(kind: str) -> None:
    make, reason = PROBLEMS[kind]

    with pytest.raises(GraphInvalid) as caught:
        make().compile("memory://")

    assert any(reason in problem for problem in caught.value.problems), caught.value
    assert make().problems() == list(caught.value.problems)


def test_every_problem_is_reported_at_once() -> None:
    bad = StateGraph({"n": Annotated[int, lambda old: old]}, name="bad", max_iterations=0)
    bad.add_node("a", nothing).add_node("a", nothing).add_node("b/c", nothing, timeout=-1)
    bad.add_edge(START, "a").add_edge("a", "nowhere").set_exit_point("neither")

    with pytest.raises(GraphInvalid) as caught:
        bad.compile("memory://", interrupt_before=["nobody"])

    text = str(caught.value)
    assert text.startswith("graph 'bad' has 10 problem(s):")
    for part in (
        "node 'b/c' cannot be reached",
        "no outgoing edges from node: b/c",
        "added twice",
        "b/c",
        "timeout=-1",
        "bad reducer",
        "nowhere",
        "neither",
        "max_iterations",
        "nobody",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    "make",
    [
        lambda: chain("a", "b", "c"),
        lambda: fan("a", "b"),
        lambda: graph("a", "b"),
        lambda: graph("a", "b").set_exit_point("b").add_edge("b", "a"),
        lambda: graph("a", "b").add_edge("b", "a", when=nothing).add_edge("b", END),
        lambda: graph("a").add_node("b", nothing).add_conditional_edges("a", nothing),
        lambda: graph().add_node("a", nothing, goto=["b"]).add_node("b", nothing).add_edge(START, "a"),
        lambda: (
            graph("a", "b")
            .add_edge("b", "a", when=nothing)
            .add_edge("b", "a", when=nothing)
            .add_edge("b", END)
        ),
        lambda: StateGraph(Log).add_node("a", nothing, after=[]).add_node("b", nothing, after=["a"]),
        lambda: StateGraph(Log).add_node("sub", chain("x")).add_edge(START, "sub"),
        lambda: StateGraph(Log).add_node("a", nothing).add_conditional_edges(START, nothing, ["a"]),
    ],
)
def test_good_graphs_have_no_problems(make: Callable[[], StateGraph]) -> None:
    assert make().problems() == []


def test_interrupts_must_name_nodes_also_inside_sub_graphs() -> None:
    outer = StateGraph(Log).add_node("sub", chain("x", name="inner")).add_node("leaf", says("l"))
    outer.add_edge(START, "sub").add_edge("sub", "leaf")

    outer.compile("memory://", interrupt_before=["sub/x"], interrupt_after=["leaf", "sub"])
    for name in ("sub/y", "leaf/x", "lef"):
        with pytest.raises(GraphInvalid, match="node not found"):
            outer.compile("memory://", interrupt_before=[name])


@pytest.mark.parametrize(
    "options",
    [
        {"interrupt": "perhaps"},
        {"on_change": "perhaps"},
        {"max_parallel": 0},
        {"durability": "perhaps"},
        {"observer": "nobody"},
        {"observer": 3},
        {"store": "nobody"},
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    """S3.11, S3.21"""
    with pytest.raises(HoldfastError):
        chain("a").compile(**{"store": open_store("memory://"), **options})
