"""The history of a run: its checkpoints, what happened between them, its forks; in Python and as a command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    START,
    CheckpointNotFound,
    CorruptJournal,
    ExecutionError,
    Retry,
    Send,
    StateGraph,
    StateInvalid,
    open_store,
)
from holdfast.engine.retention import prune_workflow
from holdfast.engine.settings import Retention
from holdfast.journal.journal import Journal
from holdfast.stores.base import Entry, Store
from holdfast.stores.memory import MemoryStore
from holdfast.views import run_forks, run_history
from tests.cli.in_process import Call, asks, boom, caller
from tests.graphs import Log, chain, one, says


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(capsys)


def test_every_checkpoint_is_told_newest_first(store: Store) -> None:
    """S3.23: node, wave, next, duration, size, and what changed."""
    app = chain("a", "b", "c", nodes={"c": asks}).compile(store)
    app.invoke({"n": 1}, run_id="r")

    found = app.history("r")

    assert [(point.kind, point.wave, point.nodes, point.next) for point in found] == [
        ("pause", 2, (), ("c",)),
        ("wave", 2, ("b",), ("c",)),
        ("wave", 1, ("a",), ("b",)),
    ]
    assert [point.id for point in found] == [point.id for point in reversed(app.checkpoints("r"))]
    assert [change.key for change in found[-1].changes] == ["log", "n"]
    assert [(change.key, change.kinds) for change in found[-2].changes] == [("log", ("append",))]
    assert all(point.size > 0 and point.seconds >= 0 for point in found)
    assert any("Which one?" in text for text in found[0].events)
    assert not found.more and found.status == "paused"


def test_a_history_comes_in_pages_that_join(store: Store) -> None:
    app = chain(*"abcdefghi").compile(store)
    app.invoke({"n": 1}, run_id="r")
    whole = [point.id for point in app.history("r")]

    page = app.history("r", limit=4)
    ids = [point.id for point in page]
    while page.more:
        page = app.history("r", limit=4, before=page[-1].id)
        ids += [point.id for point in page]

    assert ids == whole and len(whole) == 9
    assert [point.wave for point in app.history("r", limit=2, before="@3")] == [2, 1]
    assert [point.wave for point in app.history("r@3", limit=2)] == [3, 2]
    assert not app.history("r", before="@1").points


def test_failed_attempts_are_told_apart(memory: Store) -> None:
    left = [2]

    def flaky(state: Any) -> dict[str, Any]:
        left[0] -= 1
        if left[0] >= 0:
            raise ConnectionError("lost")
        return {"log": ["b"]}

    app = one(flaky, retry=Retry(attempts=3, delay=0.001)).compile(memory)
    app.invoke({"n": 1}, run_id="r")

    newest = app.history("r")[0]
    assert newest.failed_attempts == 2 and newest.kind == "end"


def test_what_was_done_from_outside_is_told(memory: Store) -> None:
    app = chain("a", "b", nodes={"b": boom}).compile(memory)
    with pytest.raises(ExecutionError):
        app.invoke({"n": 1}, run_id="r")
    app.edit("r", {"n": 2}, by="ada", reason="wrong")

    found = app.history("r")
    assert found[0].kind == "failure" and "b#1 failed (attempt 1): ValueError: no" in found[0].events[0]
    assert found.since.events == ("state changed from outside by ada: n",)
    fork = app.fork("r", at=1)
    (point,) = app.history(fork)
    assert (point.kind, point.events) == ("fork", ("run forked from r at entry 2",))


def test_money_is_told_per_checkpoint(memory: Store) -> None:
    def spends(state: Any, ctx: Any) -> dict[str, Any]:
        ctx.spend("m", input_tokens=10, output_tokens=5, cost=0.25)
        return {"log": ["b"]}

    app = chain("a", "b", nodes={"b": spends}).compile(memory)
    app.invoke({"n": 1}, run_id="r")

    assert [(point.cost, point.spending.input_tokens) for point in app.history("r")] == [(0.25, 10), (0.0, 0)]


def test_a_pruned_run_has_the_rest_of_its_history(store: Store) -> None:
    app = chain(*"abcdef").compile(store)
    app.invoke({"n": 1}, run_id="r")
    prune_workflow(Journal(store), app.name, Retention(max_checkpoints=3, per="run", max_age=None))

    assert [point.wave for point in app.history("r")] == [6, 5, 4]
    assert [point.wave for point in app.history("r", limit=2)] == [6, 5]


def test_a_page_reads_no_entry_before_it() -> None:
    class Counted(MemoryStore):
        seen: set[int] = set()

        def read(self, run: str, after: int = 0, upto: int | None = None) -> Any:
            for entry in super().read(run, after, upto):
                self.seen.add(entry.seq)
                yield entry

    store = Counted()
    app = chain(*(f"s{place}" for place in range(300))).compile(store, durability="process")
    app.invoke({"n": 1}, run_id="r")
    Counted.seen = set()

    assert len(app.history("r", limit=10)) == 10
    assert len(store.seen) <= 12 and min(store.seen) > 280


def test_a_damaged_entry_of_a_page_is_found(memory: MemoryStore) -> None:
    app = chain("a", "b", "c").compile(memory)
    app.invoke({"n": 1}, run_id="r")
    entries = memory._runs["r"].entries
    seq, at, link, body, mark = entries[2]
    entries[2] = Entry(seq, at, link, body + b"!", mark)

    with pytest.raises(CorruptJournal, match="entry 3 is damaged"):
        app.history("r", limit=2)


def test_the_state_at_any_place(store: Store) -> None:
    """S1.15: state_at takes an id, a wave, or what follows the @ of a checkpoint's name."""
    app = chain("a", "b", "c").compile(store)
    app.invoke({"n": 1}, run_id="r")

    for place, log in ((0, []), (1, ["a"]), ("@b", ["a", "b"]), ("-1", ["a", "b"]), ("@3", ["a", "b", "c"])):
        assert app.state_at("r", place)["log"] == log, place
    assert app.state_at("r", app.checkpoints("r")[1].id)["log"] == ["a", "b"]
    with pytest.raises(CheckpointNotFound, match="'nobody'"):
        app.state_at("r", "@nobody")


def test_wrong_limits_are_refused(memory: Store) -> None:
    app = chain("a").compile(memory)
    app.invoke({"n": 1}, run_id="r")

    with pytest.raises(StateInvalid, match="limit"):
        app.history("r", limit=0)


def test_the_family_of_a_run(store: Store) -> None:
    app = chain("a", "b").compile(store)
    app.invoke({"n": 1}, run_id="root")
    app.fork("root", at=1, run_id="left")
    app.fork("root", at=2, run_id="right")
    app.fork("left", run_id="inner")

    family = run_forks(store, "inner")

    assert [(each.run_id, each.depth) for each in family] == [
        ("root", 0),
        ("left", 1),
        ("inner", 2),
        ("right", 1),
    ]
    branch = family["left"].branch
    assert branch is not None and (branch.run_id, branch.wave, branch.nodes) == ("root", 1, ("a",))
    assert family.forks_of("root") == ["left", "right"]

    app.delete("root")
    family = app.forks("right")
    assert [(each.run_id, each.depth) for each in family] == [("left", 0), ("inner", 1), ("right", 0)]
    branch = family["right"].branch
    assert branch is not None and (branch.run_id, branch.is_there) == ("root", False)


def test_the_history_command(sqlite_url: str, call: Call) -> None:
    with_runs = open_store(sqlite_url)
    app = chain(*"abcde", nodes={"e": asks}).compile(with_runs)
    app.invoke({"n": 1}, run_id="run1")
    app.fork("run1", at=2, run_id="fork1")

    told = call("history", "run1", "-n", "2", "--store", sqlite_url)
    assert told.code == 0 and "pause" in told.out and "Which one?" in told.out
    words = shlex.split(told.lines[-1].partition("older ones: ")[2])
    older = call(*words[words.index("history") :])
    assert older.code == 0 and len(older.lines) == 4, "the header and the other three"

    page = call("history", "run1", "--all", "--json", "--store", sqlite_url).json
    assert page["run_id"] == "run1" and not page["more"]
    assert (
        page["checkpoints"] == json.loads(json.dumps(run_history(with_runs, "run1").as_json()))["checkpoints"]
    )
    assert {"seconds", "bytes", "cost", "changes", "kind", "events"} <= set(page["checkpoints"][0])

    tree = call("history", "fork1", "--tree", "--store", sqlite_url)
    assert tree.lines[0].startswith("run1") and tree.lines[1].startswith("  * fork1")
    assert "forked after wave 2 (b)" in tree.lines[1]
    members = call("history", "fork1", "--tree", "--json", "--store", sqlite_url).json["members"]
    assert [each["run_id"] for each in members] == ["run1", "fork1"]

    assert call("history", "run1", "--tree", "-n", "2", "--store", sqlite_url).code == 2
    assert call("history", "nobody", "--store", sqlite_url).code == 1
    with_runs.close()


def test_a_deep_tree_is_cut(sqlite_url: str, call: Call) -> None:
    store = open_store(sqlite_url)
    app = chain("a", "b").compile(store, durability="process")
    app.invoke({"n": 0}, run_id="f0")
    for number in range(1, 105):
        app.fork(f"f{number - 1}", run_id=f"f{number}")
    store.close()

    tree = call("history", "f0", "--tree", "--store", sqlite_url)

    assert tree.lines[-1] == "… 5 more runs; --all shows them"
    assert max(map(len, tree.lines)) < 160
    assert len(call("history", "f0", "--tree", "--all", "--store", sqlite_url).lines) == 105


@pytest.mark.parametrize("place", ["run1@2", "run1@-1", "run1@b"])
def test_commands_that_show_a_checkpoint_take_moments(sqlite_url: str, call: Call, place: str) -> None:
    store = open_store(sqlite_url)
    chain("a", "b", "c").compile(store).invoke({"n": 1}, run_id="run1")
    store.close()

    shown = call("checkpoints", "show", place, "--json", "--store", sqlite_url).json
    assert (shown["wave"], shown["state"]["log"]) == (2, ["a", "b"])
    state = call("show", place, "--state", "--store", sqlite_url)
    assert json.loads(state.out)["log"] == ["a", "b"]
    assert "as of wave 2" in call("show", place, "--store", sqlite_url).out


def test_tags_and_notes_are_told_on_every_page(store: Store) -> None:
    app = chain(*"abcd").compile(store)
    app.invoke({"n": 1}, run_id="r")
    second = app.history("r")[2].id
    app.tag("r", "good", checkpoint=second)
    app.note("r", "look here", checkpoint=second, by="ada")

    for page in (app.history("r"), app.history("r", limit=2, before=app.history("r")[1].id)):
        point = next(point for point in page if point.id == second)
        assert point.tags == ("good",) and point.as_json()["notes"] == ["look here"]
    assert len(app.history("r").since.events) == 2


def test_sub_graphs_and_items_are_told_with_their_place(memory: Store) -> None:
    inner = chain("x", "y", name="inner")
    graph = StateGraph(Log, name="outer")
    graph.add_node("sub", inner)
    graph.add_node("each", lambda state: {"log": [state["word"]]})
    graph.add_edge(START, "sub")
    graph.add_conditional_edges(
        "sub", lambda state: [Send("each", {"word": word}) for word in "ab"], ["each"]
    )
    app = graph.compile(memory)
    app.invoke({"n": 1}, run_id="r")

    found = app.history("r")

    assert [point.nodes for point in found if not point.frame] == [("each", "each"), ("sub",)]
    assert {point.frame for point in found} == {"", "sub#1"}
    inside = next(point for point in found if point.frame and point.nodes == ("x",))
    assert [(change.key, change.frame) for change in inside.changes][-1] == ("log", "sub#1")


def test_history_and_names_of_moments_count_waves_alike_also_around_sub_graphs(tmp_path: Path) -> None:
    inner = chain("x", "y", name="inner")
    graph = (
        StateGraph(Log, name="outer").add_node("a", says("a")).add_node("sub", inner).add_node("b", says("b"))
    )
    graph.add_edge(START, "a").add_edge("a", "sub").add_edge("sub", "b")
    app = graph.compile(f"sqlite:///{tmp_path / 'runs.db'}")
    app.invoke(run_id="r")
    points = list(app.history("r"))

    assert {point.wave for point in points if point.frame} == {None}
    numbered = {point.wave: point for point in reversed(points) if point.wave is not None}
    assert sorted(numbered) == [1, 2, 3]
    for wave, point in numbered.items():
        assert app.state_at("r", wave).checkpoint_id == point.id
    with pytest.raises(CheckpointNotFound, match="its newest is after wave 3"):
        app.state_at("r", 9)
