"""Names of checkpoints: `RUN@3`, `RUN@-1`, `RUN@NODE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    END,
    START,
    CheckpointNotFound,
    CorruptJournal,
    ExecutionError,
    RunNotFound,
    StateGraph,
    open_store,
)
from holdfast.engine.time_travel.checkpoints import checkpoint_at, find_position
from holdfast.journal.checkpoint_ids import (
    decode_checkpoint,
    encode_mark,
    moved_mark,
    sealed_mark,
    times_reset,
)
from holdfast.stores.base import Store, StoredCheckpoint
from tests.cli.in_process import boom
from tests.graphs import Log, chain, says
from tests.workflows.workshop import Workshop


def seqs(store: Store, run: str) -> list[int]:
    return [mark.seq for mark in reversed(store.checkpoints(run))]


def test_a_run_a_workflow_and_a_checkpoint_are_moments(store: Store) -> None:
    app = chain("a", "b", name="w").compile(store)
    app.invoke(run_id="r@1")
    first = app.checkpoints("r@1")[0]

    assert find_position(store, "r@1").seq is None and find_position(store, "w").info.run == "r@1"
    assert (find_position(store, first.id).info.run, find_position(store, first.id).seq) == ("r@1", first.seq)
    with pytest.raises(RunNotFound):
        find_position(store, "nobody@1")


def test_moments_count_waves_and_checkpoints_back(store: Store) -> None:
    names = [f"n{number}" for number in range(30)]
    app = chain(*names, name="w").compile(store)
    app.invoke(run_id="r")
    marks = seqs(store, "r")

    assert [find_position(store, f"r@{wave}").seq for wave in range(1, 31)] == marks
    assert [find_position(store, f"r@-{back}").seq for back in range(30)] == marks[::-1]
    assert find_position(store, "r@0").seq == 1 and app._settings.journal.load(
        app.runs()[0], app._settings.codec, 1
    )
    with pytest.raises(CheckpointNotFound, match=r"no checkpoint after wave 31.*newest is after wave 30"):
        find_position(store, "r@31")
    with pytest.raises(CheckpointNotFound, match="no checkpoint 30 before its newest; it has 30"):
        find_position(store, "r@-30")


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

    assert len(root) == 4 and {wave: find_position(store, f"r@{wave}").seq for wave in root} == root
    inside = [point.seq for point in app.checkpoints("r") if point.frame]
    assert find_position(store, "r@sub/y").seq == inside[1]


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

    assert find_position(store, "r@count").seq == marks[4] and find_position(store, "r@rest").seq == marks[5]
    assert [find_position(store, f"r@count#{visit}").seq for visit in (1, 2, 3)] == [
        marks[0],
        marks[2],
        marks[4],
    ]
    with pytest.raises(
        CheckpointNotFound, match=r"after 'count' for the 4\. time.*the last to finish were rest, count"
    ):
        find_position(store, "r@count#4")
    with pytest.raises(CheckpointNotFound, match="did you mean 'count'"):
        find_position(store, "r@cuont")


def test_a_run_that_was_saved_only_at_its_end_has_no_beginning(store: Store) -> None:
    chain("a", "b", name="w").compile(store, durability="exit").invoke(run_id="r")

    with pytest.raises(CheckpointNotFound, match="no checkpoint after wave 0"):
        find_position(store, "r@0")


def test_a_wave_is_meant_as_the_run_last_came_to_it(store: Store) -> None:
    version = "1"

    def node(name: str) -> Any:
        return lambda state: {"log": [name + version]}

    app = chain(*"abcde", nodes={name: node(name) for name in "abcde"}, name="w").compile(store)
    app.invoke(run_id="r")
    never = [mark.facts for mark in store.checkpoints("r")]
    version = "2"
    app.rollback("r", 1)
    assert app.state_at("r", 3)["log"] == ["a1", "b1", "c1"], "it has not been there again"
    assert app.resume("r").state["log"] == ["a1", "b2", "c2", "d2", "e2"]

    assert [list(app.state_at("r", wave)["log"])[-1] for wave in range(1, 6)] == [
        "a1",
        "b2",
        "c2",
        "d2",
        "e2",
    ]
    fork = app.fork("r", 3)
    assert app.get_state(fork)["log"] == ["a1", "b2", "c2"]
    counts = [times_reset(mark.facts) for mark in reversed(store.checkpoints("r"))]
    assert counts == [0] * 5 + [1] * 5 and [mark.facts for mark in store.checkpoints("r")][5:] == never
    assert [times_reset(mark.facts) for mark in store.checkpoints(fork)] == [0], "a fork was never taken back"
    app.rollback("r", 2)
    assert times_reset(store.checkpoints("r", None, 1)[0].facts) == 2


def test_a_wave_is_meant_as_it_ended_whatever_was_saved_after_it(memory: Store) -> None:
    app = chain(*"abc", nodes={"c": boom}, name="w").compile(memory)
    for _ in range(2):
        with pytest.raises(ExecutionError):
            app.resume("r") if memory.runs(run="r") else app.invoke(run_id="r")
        points = [point for point in app.checkpoints("r") if point.wave == 2]
        assert len(points) > 1 and find_position(memory, "r@2").seq == points[0].seq
    ident = app.rollback("r", 2)
    with pytest.raises(ExecutionError):
        app.resume("r")

    assert app.checkpoints("r")[-1].wave == 2 and app.checkpoints("r")[-1].id != ident
    assert checkpoint_at(memory, find_position(memory, "r@2")).id == ident  # type: ignore[union-attr]


def test_how_often_a_run_was_reset_is_sealed_with_its_marks() -> None:
    key, plain = b"k" * 8, encode_mark(3, ["a"], ["b"], "")
    mark = sealed_mark(plain, key, 7, 1.5, 2)

    assert decode_checkpoint(key, StoredCheckpoint(7, 1.5, mark, 0), "r").wave == 3 and times_reset(mark) == 2
    moved = moved_mark(mark, b"o" * 8, 8, 2.5)
    assert (
        times_reset(moved) == 2
        and decode_checkpoint(b"o" * 8, StoredCheckpoint(8, 2.5, moved, 0), "r").wave == 3
    )
    for place in range(len(mark)):
        damaged = mark[:place] + bytes([mark[place] ^ 1]) + mark[place + 1 :]
        with pytest.raises(CorruptJournal):
            decode_checkpoint(key, StoredCheckpoint(7, 1.5, damaged, 0), "r")


def test_a_step_of_several_nodes_is_named_after_its_end(tmp_path: Path) -> None:
    """S1.15: `RUN@STEP` of a group is where all of its members are done."""
    shop = Workshop(tmp_path)
    shop.run("""
    steps:
      - {name: both, parallel: [{name: l, set: {x: 1}}, {name: r, set: {x: 1}}]}
      - {name: z, set: {x: 1}}
    """)
    store = open_store(shop.url)

    found = find_position(store, "r@both")
    first = find_position(store, "r@both#1")
    left = find_position(store, "r@l")
    point = checkpoint_at(store, found)

    assert found.seq is not None and found.seq == first.seq and left.seq is not None and found.seq > left.seq
    assert point is not None and point.next == ("z",)
