"""Resuming with a graph that is not the one the run started with."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from holdfast import (
    END,
    START,
    Event,
    ExecutionError,
    GraphChanged,
    HoldfastError,
    RunStatus,
    StateGraph,
    append,
)
from holdfast.stores.memory import MemoryStore

Step = tuple[str, Callable[..., Any]]


def says(name: str) -> Step:
    return name, lambda state: {"log": [*state.get("log", []), name]}


def fails(name: str) -> Step:
    def node(state: Any) -> None:
        raise RuntimeError("down")

    return name, node


def chain(*steps: Step) -> StateGraph:
    graph = StateGraph(dict, name="w")
    previous = START
    for name, function in steps:
        graph.add_node(name, function)
        graph.add_edge(previous, name)
        previous = name
    graph.add_edge(previous, END)
    return graph


@pytest.fixture
def store() -> MemoryStore:
    """Holds run `r`, which finished `a` and failed in `b`."""
    store = MemoryStore()
    with pytest.raises(ExecutionError):
        chain(says("a"), fails("b"), says("c")).compile(store).invoke({}, run_id="r")
    return store


@pytest.fixture
def empty() -> MemoryStore:
    return MemoryStore()


def log_of(outcome: Any) -> list[str]:
    assert outcome.status == RunStatus.COMPLETED
    return list(outcome.state["log"])


def test_a_changed_graph_is_warned_of_and_the_run_goes_on(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """S0.14, S0.15: a mismatch warns, and the resume does its best."""
    events: list[Event] = []
    app = chain(says("a"), says("b"), says("between"), says("c")).compile(store)

    with caplog.at_level(logging.WARNING, "holdfast"):
        outcome = app.resume("r", observer=events.append)

    assert log_of(outcome) == ["a", "b", "between", "c"]
    (changed,) = [event for event in events if event.type == "graph.changed"]
    assert changed.data["changes"] == [
        "'between' was added",
        "the code of 'b' changed",
        "the edges changed",
    ]
    assert "run r goes on with a changed graph: 'between' was added" in caplog.text


def test_of_many_changes_the_first_are_told(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    app = chain(*(says(name) for name in "abcdefghijklmno")).compile(store)

    with caplog.at_level(logging.WARNING, "holdfast"):
        app.resume("r")

    assert "'d' was added; 'e' was added" in caplog.text and "; and 4 more" in caplog.text
    assert "'o'" not in caplog.text


def test_a_graph_that_did_not_change_is_not_warned_of(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    app = chain(says("a"), fails("b"), says("c")).compile(store)

    with pytest.raises(ExecutionError), caplog.at_level(logging.WARNING, "holdfast"):
        app.resume("r", observer=events.append)

    assert "changed graph" not in caplog.text
    assert "graph.changed" not in {event.type for event in events}


def test_a_change_is_warned_of_once(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    """What the run went on with is its graph from then on."""
    app = chain(says("a"), fails("b"), says("new"), says("c")).compile(store)
    for _ in range(2):
        with pytest.raises(ExecutionError), caplog.at_level(logging.WARNING, "holdfast"):
            app.resume("r")

    assert caplog.text.count("changed graph") == 1


@pytest.mark.parametrize("where", ["compile", "resume"])
def test_a_changed_graph_can_be_refused(store: MemoryStore, where: str) -> None:
    steps = says("a"), says("b"), says("c")
    app = chain(*steps).compile(store, on_change="fail" if where == "compile" else "warn")
    before = list(store.read("r"))

    with pytest.raises(GraphChanged, match=r"changed since run 'r' was saved: the code of 'b' changed"):
        app.resume("r", on_change="fail" if where == "resume" else None)

    assert list(store.read("r")) == before
    assert log_of(app.resume("r", on_change="warn")) == ["a", "b", "c"]


def test_the_saved_structure_can_be_used_with_the_new_code(store: MemoryStore) -> None:
    app = chain(says("a"), says("b"), says("between"), says("c")).compile(store)

    assert log_of(app.resume("r", on_change="use_saved")) == ["a", "b", "c"]


def test_the_saved_structure_cannot_be_used_without_its_nodes(store: MemoryStore) -> None:
    app = chain(says("a"), says("b")).compile(store)

    with pytest.raises(GraphChanged, match="the saved graph needs nodes 'c' that the workflow no longer has"):
        app.resume("r", on_change="use_saved")


def test_a_missing_next_node_is_an_error_and_never_a_silent_end(store: MemoryStore) -> None:
    """S3.17, S3.19: "node not found"; the run is left as it was; that it was loaded is reported."""
    app = chain(says("a"), says("bb"), says("c")).compile(store)
    before, events = list(store.read("r")), list[Event]()

    with pytest.raises(
        GraphChanged, match=r"is to go on with 'b' \(did you mean 'bb'\?\).* remap=\{'b': 'bb'\}"
    ) as caught:
        app.resume("r", observer=events.append)

    assert [(event.type, dict(event.data)) for event in events] == [
        ("checkpoint.load", {"node": "a", "run_id": "r"})
    ]

    assert "the workflow no longer has" in str(caught.value)
    assert list(store.read("r")) == before
    assert app.runs()[0].status == RunStatus.FAILED


def test_a_renamed_node_is_found_by_remap(store: MemoryStore) -> None:
    app = chain(says("a"), says("bb"), says("c")).compile(store)

    assert log_of(app.resume("r", remap={"b": "bb"})) == ["a", "bb", "c"]


def test_a_remap_to_an_unknown_node_is_refused(store: MemoryStore) -> None:
    app = chain(says("a"), says("bb"), says("c")).compile(store)

    with pytest.raises(GraphChanged, match="remap leads to 'bx', which is not a node"):
        app.resume("r", remap={"b": "bx"})


@pytest.mark.parametrize("remap", [{"x": "ask"}, {"ask": "x"}])
@pytest.mark.parametrize("on_change", [None, "use_saved"])
def test_a_remap_of_unknown_names_is_refused_where_a_run_waits(
    remap: dict[str, str], on_change: str | None
) -> None:
    def ask(state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": [ctx.ask("Publish?", name="publish")]}

    app = chain(says("a"), ("ask", ask)).compile(MemoryStore())
    app.invoke({}, run_id="r")

    with pytest.raises(GraphChanged, match=r"remap .* 'x', which .*; there are 'a', 'ask'"):
        app.resume("r", remap=remap, on_change=on_change)
    assert "'x'" in app.plan_resume("r", remap=remap, on_change=on_change).refused
    assert log_of(app.resume("r", "yes"))[-1] == "yes"


def test_a_renamed_paused_node_is_an_error_until_it_is_remapped() -> None:
    def ask(state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": [ctx.ask("Publish?", name="publish")]}

    store = MemoryStore()
    chain(("ask", ask)).compile(store).invoke({}, run_id="r")
    app = chain(("question", ask)).compile(store)

    with pytest.raises(GraphChanged, match="is to go on with 'ask'"):
        app.resume("r", answer="yes")
    assert app.runs()[0].status == RunStatus.PAUSED
    assert log_of(app.resume("r", answer="yes", remap={"ask": "question"})) == ["yes"]


def test_a_node_removed_behind_the_run_does_not_matter(store: MemoryStore) -> None:
    app = chain(says("b"), says("c")).compile(store)

    assert log_of(app.resume("r")) == ["a", "b", "c"]


def test_a_node_removed_ahead_of_the_run_is_left_out(store: MemoryStore) -> None:
    app = chain(says("a"), says("b")).compile(store)

    assert log_of(app.resume("r")) == ["a", "b"]


def test_a_version_names_the_code_of_a_node() -> None:
    def graph(function: Callable[..., Any], version: str) -> StateGraph:
        graph = StateGraph(dict, name="w")
        graph.add_node("a", function, version=version)
        graph.add_edge(START, "a")
        graph.add_edge("a", END)
        return graph

    store = MemoryStore()
    with pytest.raises(ExecutionError):
        graph(fails("a")[1], "1").compile(store).invoke({}, run_id="r")

    with pytest.raises(GraphChanged, match="the code of 'a' changed"):
        graph(says("a")[1], "2").compile(store).resume("r", on_change="fail")
    assert log_of(graph(says("a")[1], "1").compile(store).resume("r", on_change="fail")) == ["a"]


def test_a_missing_node_inside_a_sub_graph_is_an_error() -> None:
    def nested(inner: StateGraph) -> StateGraph:
        return chain(("outer", inner))

    store = MemoryStore()
    with pytest.raises(ExecutionError):
        nested(chain(says("x"), fails("y"))).compile(store).invoke({}, run_id="r")

    with pytest.raises(GraphChanged, match="is to go on with 'outer/y'"):
        nested(chain(says("x"), says("z"))).compile(store).resume("r")
    assert log_of(nested(chain(says("x"), says("y"))).compile(store).resume("r")) == ["x", "y"]


def test_an_unknown_way_to_treat_a_change_is_refused(store: MemoryStore) -> None:
    app = chain(says("a"), says("b"), says("c")).compile(store)

    with pytest.raises(HoldfastError, match="on_change must be one of 'warn', 'fail', 'use_saved'"):
        app.resume("r", on_change="ignore")


def test_a_route_that_is_no_longer_there_is_not_silently_lost() -> None:
    """What was chosen is stored: a resume does not ask the old condition again."""
    asked: list[str] = []

    def choose(state: Any) -> str:
        asked.append("asked")
        return "b"

    def graph(step: Step, route: Callable[..., str]) -> StateGraph:
        graph = StateGraph(dict, name="w")
        for name, function in (says("a"), step, says("other")):
            graph.add_node(name, function)
        graph.add_edge(START, "a")
        graph.add_conditional_edges("a", route, ["b", "other"])
        return graph

    store = MemoryStore()
    with pytest.raises(ExecutionError):
        graph(fails("b"), choose).compile(store).invoke({}, run_id="r")

    outcome = graph(says("b"), lambda state: "other").compile(store).resume("r")

    assert log_of(outcome) == ["a", "b"] and asked == ["asked"]


def joined(first: str, sources: list[str], *, broken: bool) -> StateGraph:
    def work(state: Any) -> dict[str, Any]:
        if broken:
            raise ValueError("429")
        return {"log": ["b"]}

    graph = StateGraph({"log": Annotated[list[str], append]}, name="joined")
    graph.add_node(first, lambda s: {"log": ["a"]}).add_node("wait", lambda s: None).add_node("b", work)
    graph.add_node("c", lambda s: {"log": ["c"]})
    graph.add_edge(START, first).add_edge(START, "wait").add_edge("wait", "b")
    return graph.add_edge(sources, "c")


def half_joined(empty: MemoryStore) -> None:
    with pytest.raises(ExecutionError):
        joined("a", ["a", "b"], broken=True).compile(empty).invoke({}, run_id="r")


def test_a_half_arrived_join_survives_another_order_of_its_sources(empty: MemoryStore) -> None:
    half_joined(empty)

    out = joined("a", ["b", "a"], broken=False).compile(empty).resume("r")

    assert out.state["log"] == ["a", "b", "c"] and out.warnings == ()


def test_a_half_arrived_join_survives_a_renamed_source(empty: MemoryStore) -> None:
    half_joined(empty)

    out = joined("a2", ["a2", "b"], broken=False).compile(empty).resume("r", remap={"a": "a2"})

    assert out.state["log"] == ["a", "b", "c"]


def test_a_half_arrived_join_that_is_gone_is_an_error_not_an_early_end(empty: MemoryStore) -> None:
    half_joined(empty)

    with pytest.raises(
        GraphChanged, match="waits at the join of 'a', 'b' before 'c', which the workflow no longer"
    ):
        joined("a", ["a", "b", "wait"], broken=False).compile(empty).resume("r")


def test_a_join_that_never_filled_is_warned_of() -> None:
    graph = StateGraph(dict).add_node("a", lambda s: None).add_node("b", lambda s: None)
    graph.add_node("c", lambda s: None).add_edge(START, "a").add_edge("a", "b", when=lambda s: False)
    out = graph.add_edge("a", END).add_edge(["a", "b"], "c").compile("memory://").invoke()

    assert out.warnings == ("'c' did not run: it waits for 'b', which did not run either",)


def test_the_saved_structure_covers_sub_graphs(empty: MemoryStore) -> None:
    ok = [False]

    def last(state: Any) -> dict[str, Any]:
        if not ok[0]:
            raise ValueError("429")
        return {"log": ["last"]}

    def build(*inner: str) -> StateGraph:
        sub = StateGraph({"log": Annotated[list[str], append]}, name="sub")
        for before, name in zip((START, *inner), inner, strict=False):
            sub.add_node(name, last if name == "i3" else lambda s, name=name: {"log": [name]}).add_edge(
                before, name
            )
        outer = StateGraph({"log": Annotated[list[str], append]}, name="outer")
        return outer.add_node("sub", sub).add_edge(START, "sub")

    with pytest.raises(ExecutionError):
        build("i1", "i3").compile(empty).invoke({}, run_id="r")
    ok[0] = True
    changed = build("i1", "i3", "new").compile(empty)

    assert changed.resume("r", on_change="use_saved").state["log"] == ["i1", "last"]


def test_a_key_that_the_schema_gained_has_its_default_after_a_resume(empty: MemoryStore) -> None:
    @dataclass
    class Before:
        n: int = 1

    @dataclass
    class After:
        n: int = 1
        tries: int = 5

    def build(schema: type) -> StateGraph:
        graph = StateGraph(schema, name="grown").add_node("a", lambda s: None)
        return graph.add_node("b", lambda s: {"n": s["tries"]}).add_edge(START, "a").add_edge("a", "b")

    build(Before).compile(empty, interrupt_before=["b"]).invoke({}, run_id="r")

    assert build(After).compile(empty).resume("r").state["n"] == 5
