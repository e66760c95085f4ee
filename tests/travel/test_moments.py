"""Naming a moment of a run the way people do."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import END, START, CheckpointNotFound, RunNotFound, StateGraph
from holdfast.engine.travel.moments import find_moment
from holdfast.stores.base import Store
from tests.graphs import Log, chain, says


def seqs(store: Store, run: str) -> list[int]:
    return [mark.seq for mark in reversed(store.marks(run))]


def test_a_run_a_workflow_and_a_checkpoint_are_moments(store: Store) -> None:
    app = chain("a", "b", name="w").compile(store)
    app.invoke(run_id="r@1")
    first = app.checkpoints("r@1")[0]

    assert find_moment(store, "r@1").seq is None and find_moment(store, "w").info.run == "r@1"
    assert (find_moment(store, first.id).info.run, find_moment(store, first.id).seq) == ("r@1", first.seq)
    with pytest.raises(RunNotFound):
        find_moment(store, "nobody@1")


def test_moments_count_waves_and_checkpoints_back(store: Store) -> None:
    names = [f"n{number}" for number in range(30)]
    app = chain(*names, name="w").compile(store)
    app.invoke(run_id="r")
    marks = seqs(store, "r")

    assert [find_moment(store, f"r@{wave}").seq for wave in range(1, 31)] == marks
    assert [find_moment(store, f"r@-{back}").seq for back in range(30)] == marks[::-1]
    assert find_moment(store, "r@0").seq == 1 and app.settings.journal.load(
        app.runs()[0], app.settings.codec, 1
    )
    with pytest.raises(CheckpointNotFound, match=r"no checkpoint after wave 31.*newest is after wave 30"):
        find_moment(store, "r@31")
    with pytest.raises(CheckpointNotFound, match="no checkpoint 30 before its newest; it has 30"):
        find_moment(store, "r@-30")


def test_waves_are_found_where_they_do_not_simply_count_up(store: Store) -> None:
    inner = chain("x", "y", "z", name="inner")
    graph = StateGraph(Log, name="w")
    for name in "abc":
        graph.add_node(name, says(name))
    graph.add_node("sub", inner)
    for source, target in ((START, "a"), ("a", "sub"), ("sub", "b"), ("b", "c"), ("c", END)):
        graph.add_edge(source, target)
    app = graph.compile(store)
    app.invoke(run_id="r")
    root = {point.wave: point.seq for point in app.checkpoints("r") if not point.frame}

    assert len(root) == 4 and {wave: find_moment(store, f"r@{wave}").seq for wave in root} == root
    inside = [point.seq for point in app.checkpoints("r") if point.frame]
    assert find_moment(store, "r@sub/y").seq == inside[1]


def test_nodes_name_the_moment_after_them(store: Store) -> None:
    def count(state: Any) -> dict[str, Any]:
        return {"n": state.get("n", 0) + 1, "log": ["count"]}

    graph = StateGraph(Log, name="w")
    graph.add_node("count", count)
    graph.add_node("rest", says("rest"))
    graph.add_edge(START, "count").add_edge("count", "rest")
    graph.add_conditional_edges("rest", lambda state: "count" if state["n"] < 3 else END, ["count", END])
    app = graph.compile(store)
    app.invoke(run_id="r")
    marks = seqs(store, "r")

    assert find_moment(store, "r@count").seq == marks[4] and find_moment(store, "r@rest").seq == marks[5]
    assert [find_moment(store, f"r@count#{visit}").seq for visit in (1, 2, 3)] == [
        marks[0],
        marks[2],
        marks[4],
    ]
    with pytest.raises(
        CheckpointNotFound, match=r"after 'count' for the 4\. time.*the last to finish were rest, count"
    ):
        find_moment(store, "r@count#4")
    with pytest.raises(CheckpointNotFound, match="did you mean 'count'"):
        find_moment(store, "r@cuont")


def test_a_run_that_was_saved_only_at_its_end_has_no_beginning(store: Store) -> None:
    chain("a", "b", name="w").compile(store, durability="exit").invoke(run_id="r")

    with pytest.raises(CheckpointNotFound, match="no checkpoint after wave 0"):
        find_moment(store, "r@0")
