"""Forks: started at a checkpoint of another run, by reference, edited, and independent of their parent."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import Annotated, Any

import pytest

from holdfast import (
    END,
    START,
    CheckpointNotFound,
    CommandRefused,
    ExecutionError,
    GraphChanged,
    RunConflict,
    RunExists,
    RunFinished,
    StateGraph,
    StateInvalid,
    append,
    open_store,
)
from holdfast.capsules import copy_runs
from holdfast.checkpoints import JournalCheckpointStore
from holdfast.engine.retention import prune_workflow
from holdfast.engine.settings import Retention
from holdfast.errors import HoldfastError
from holdfast.journal.copying import delete_run, prune_run
from holdfast.journal.journal import Journal
from holdfast.stores.base import Measured, RunInfo, Store
from holdfast.stores.files.store import FileStore
from holdfast.stores.memory import MemoryStore
from tests.cli.in_process import asks, boom
from tests.graphs import Log, chain, says


def test_a_fork_goes_on_from_where_its_parent_stood(store: Store) -> None:
    """S0.15: nothing executes until it is resumed, and the parent stays as it is."""
    app = chain("a", "b", "c").compile(store)
    app.invoke({"n": 1}, run_id="parent")

    fork = app.fork("parent", at=1, update={"n": 7}, run_id="child", tags=["try"])

    (info,) = store.runs(run=fork)
    assert (info.status, info.tags, info.workflow) == ("interrupted", ("try",), app.name)
    assert dict(app.get_state(fork)) == {"n": 7, "log": ["a"]}
    assert dict(app.resume(fork).state) == {"n": 7, "log": ["a", "b", "c"]}
    assert dict(app.get_state("parent")) == {"n": 1, "log": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("at", "log"),
    [
        (0, []),
        ("@0", []),
        (2, ["a", "b"]),
        ("@-1", ["a", "b"]),
        ("@a", ["a"]),
        (None, ["a", "b", "c"]),
        ("id of 1", ["a"]),
    ],
)
def test_a_fork_begins_at_any_place(memory: Store, at: Any, log: list[str]) -> None:
    app = chain("a", "b", "c").compile(memory)
    app.invoke({"n": 1}, run_id="parent")
    place = app.checkpoints("parent")[0].id if at == "id of 1" else at

    assert app.get_state(app.fork("parent", at=place))["log"] == log


def test_a_completed_run_goes_on_from_a_node_that_returned_something_else(store: Store) -> None:
    app = chain("a", "b", "c").compile(store)
    app.invoke({"n": 1}, run_id="parent")

    fork = app.fork("parent", update={"log": ["better"]}, as_node="a")

    assert app.get_state(fork)["log"] == ["a", "b", "c", "better"], "seen at once, as the reducer takes it"
    assert app.history(fork)[0].next == ("b",)
    assert app.resume(fork).state["log"] == ["a", "b", "c", "better", "b", "c"]


def routed() -> StateGraph:
    graph = StateGraph(Log, name="routed")
    for name in ("judge", "good", "bad"):
        graph.add_node(name, says(name))
    graph.add_edge(START, "judge")
    graph.add_conditional_edges("judge", lambda state: "good" if state["n"] > 5 else "bad", ["good", "bad"])
    return graph


def test_what_follows_a_node_that_was_spoken_for_is_chosen_when_the_fork_is_driven(memory: Store) -> None:
    app = routed().compile(memory)
    app.invoke({"n": 1}, run_id="r")
    assert app.get_state("r")["log"] == ["judge", "bad"]

    fork = app.fork("r", at=0, update={"n": 9}, as_node="judge")

    assert app.resume(fork).state["log"] == ["good"], "the judge did not run, and its route saw the update"


def test_a_step_that_failed_waits_or_is_next_can_be_spoken_for(memory: Store) -> None:
    failing = chain("a", "b", "c", nodes={"b": boom}, name="failing").compile(memory)
    with pytest.raises(ExecutionError):
        failing.invoke({"n": 1}, run_id="failed")
    asking = chain("a", "b", "c", nodes={"b": asks}, name="asking").compile(memory)
    asking.invoke({"n": 1}, run_id="asked")

    for app, run in ((failing, "failed"), (asking, "asked")):
        assert app.resume(app.fork(run, update={"log": ["B"]}, as_node="b")).state["log"] == ["a", "B", "c"]
        app.update_state(run, {"log": ["B"]}, as_node="b", by="ada", reason="she knows")
        assert app.resume(run).state["log"] == ["a", "B", "c"]
        assert any("by ada: she knows" in text for point in app.history(run) for text in point.events)


def test_finished_siblings_stay_finished_when_one_is_spoken_for(memory: Store) -> None:
    graph = StateGraph(Log, name="siblings")
    graph.add_node("good", says("good"))
    graph.add_node("bad", boom)
    graph.add_node("after", says("after"))
    for name in ("good", "bad"):
        graph.add_edge(START, name)
    graph.add_edge(["good", "bad"], "after")
    app = graph.compile(memory)
    with pytest.raises(ExecutionError):
        app.invoke({"n": 1}, run_id="r")

    app.update_state("r", {"n": 2}, as_node="bad")

    assert dict(app.resume("r").state) == {"n": 2, "log": ["good", "after"]}


def nested(node: Callable[..., Any]) -> StateGraph:
    inner = StateGraph(Log, name="inner")
    inner.add_node("x", says("x"))
    inner.add_node("y", node)
    inner.add_edge(START, "x")
    inner.add_edge("x", "y")
    inner.add_edge("y", END)
    outer = StateGraph(Log, name="outer")
    outer.add_node("first", says("first"))
    outer.add_node("sub", inner)
    outer.add_node("last", says("last"))
    for source, target in ((START, "first"), ("first", "sub"), ("sub", "last"), ("last", END)):
        outer.add_edge(source, target)
    return outer


def test_a_step_of_a_sub_graph_can_be_spoken_for(memory: Store) -> None:
    app = nested(boom).compile(memory)
    with pytest.raises(ExecutionError):
        app.invoke({"n": 1}, run_id="r")

    fork = app.fork("r", update={"log": ["Y"]}, as_node="sub/y")

    assert app.resume(fork).state["log"] == ["first", "x", "Y", "last"]


def test_a_sub_graph_under_way_gives_way_to_a_node_around_it(memory: Store) -> None:
    app = nested(asks).compile(memory)
    app.invoke({"n": 1}, run_id="r")
    assert app.pauses("r")

    app.update_state("r", {"log": ["all of it"]}, as_node="sub")

    assert not app.pauses("r")
    assert app.resume("r").state["log"] == ["first", "all of it", "last"]


def test_what_cannot_be_is_refused_with_the_way_out(memory: Store) -> None:
    app = chain("a", "b").compile(memory)
    other = chain("a", name="other").compile(memory)
    app.invoke({"n": 1}, run_id="r")
    app.invoke({"n": 1}, run_id="s")

    with pytest.raises(CommandRefused, match=r"there is no node 'aa'.*'a'"):
        app.fork("r", as_node="aa")
    with pytest.raises(CommandRefused, match="no sub-graph 'b' is under way"):
        app.fork("r", as_node="b/x")
    with pytest.raises(CommandRefused, match="@0"):
        app.fork("r", as_node=START)
    with pytest.raises(CommandRefused, match="'m'"):
        app.fork("r", update={"m": 1})
    with pytest.raises(CheckpointNotFound, match="it is one of run 's'"):
        app.fork("r", at=app.checkpoints("s")[0].id)
    with pytest.raises(CheckpointNotFound, match="wave 9"):
        app.fork("r", at=9)
    with pytest.raises(StateInvalid, match="named by its id"):
        app.fork("r", at=1.5)  # type: ignore[arg-type]
    with pytest.raises(StateInvalid, match="tags"):
        app.fork("r", tags="abc")
    with pytest.raises(RunExists):
        app.fork("r", run_id="s")
    with pytest.raises(GraphChanged, match="workflow"):
        other.fork("r")
    with pytest.raises(RunFinished, match="as_node"):
        app.update_state("r", {"n": 2})
    with pytest.raises(CommandRefused, match="give an update"):
        app.update_state("r")
    assert {info.run for info in memory.runs()} == {"r", "s"}, "what was refused left nothing behind"


def test_a_driven_run_is_not_changed_behind_its_driver(memory: Store) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(state: Any) -> dict[str, Any]:
        inside.set()
        assert go_on.wait(60)
        return {"log": ["slow"]}

    app = chain("a", "b", nodes={"b": slow}).compile(memory)
    driving = threading.Thread(target=lambda: app.invoke({"n": 1}, run_id="r"))
    driving.start()
    try:
        assert inside.wait(60)
        with pytest.raises(RunConflict, match=r"edit\(…\)"):
            app.update_state("r", {"n": 2})
        with pytest.raises(RunConflict, match="pause or cancel"):
            app.rollback("r", 0)
        fork = app.fork("r")
    finally:
        go_on.set()
        driving.join()
    assert app.resume(fork).state["log"] == ["a", "slow"], "a fork takes nothing from its parent's driver"


def test_an_update_makes_a_checkpoint(store: Store) -> None:
    app = chain("a", "b", "c", nodes={"b": asks}).compile(store)
    app.invoke({"n": 1}, run_id="r")

    ident = app.update_state("r", {"n": 5}, by="ada")

    newest = app.history("r")[0]
    assert (newest.id, newest.kind, newest.changes[0].key) == (ident, "edit", "n")
    assert newest.events == ("state changed from outside by ada: n",)
    assert app.state_at("r", ident)["n"] == 5
    assert app.state_at("r", "@-1")["n"] == 1
    assert store.runs(run="r")[0].status == "paused", "it still waits for its answer"
    assert app.resume("r", "a").state["log"] == ["a", "a", "c"]


def test_a_queued_run_is_forked_and_a_fork_is_queued(memory: Store) -> None:
    app = chain("a", "b").compile(memory)
    app.submit({"n": 1}, run_id="queued")

    fork = app.fork("queued", update={"n": 2})
    info = app.requeue(fork, queue="nightly")

    assert (info.status, info.queue) == ("queued", "nightly")
    assert app.resume(fork).state["n"] == 2


def big(state: Any) -> dict[str, Any]:
    return {"data": random.Random(1).randbytes(10_000_000)}


def large_run(store: Store) -> Any:
    graph = StateGraph({"data": bytes, "log": Annotated[list[str], append]}, name="large")
    graph.add_node("fill", big)
    graph.add_node("rest", says("rest"))
    graph.add_edge(START, "fill")
    graph.add_edge("fill", "rest")
    graph.add_edge("rest", END)
    app = graph.compile(store, durability="process")
    app.invoke({}, run_id="parent")
    return app


def size_of(store: Store, run: str) -> int:
    assert isinstance(store, Measured)
    size = next(each for each in store.sizes() if each.run == run)
    return size.entry_bytes + size.snapshot_bytes


def test_a_fork_shares_its_parents_journal(store: Store) -> None:
    """A fork of a run with a state of 10 MB adds less than 10 KB."""
    app = large_run(store)
    assert len(app.get_state("parent")["data"]) == 10_000_000

    fork = app.fork("parent", at=1, update={"log": ["edited"]})

    assert size_of(store, fork) < 10_000
    assert app.resume(fork).state["log"] == ["edited", "rest"]
    assert size_of(store, fork) < 10_000


def test_a_fork_survives_whatever_becomes_of_its_parent(store: Store) -> None:
    app = chain(*"abcdef").compile(store)
    app.invoke({"n": 1}, run_id="parent")
    early, late = app.fork("parent", at=1), app.fork("parent", at=5)
    of_fork = app.fork(early, update={"n": 2})
    app.resume(late)
    journal = Journal(store)

    assert prune_workflow(journal, app.name, Retention(max_checkpoints=2, per="run", max_age=None)) > 0
    assert app.get_state(early)["log"] == ["a"]
    assert app.delete("parent")

    assert app.get_state(early)["log"] == ["a"] and app.get_state(of_fork)["n"] == 2
    assert app.get_state(late)["log"] == list("abcdef")
    assert app.delete(early)
    assert dict(app.resume(of_fork).state) == {"n": 2, "log": list("abcdef")}
    assert app.forks(of_fork)[of_fork].branch is not None


def test_a_fork_goes_on_while_its_parent_is_deleted(store: Store) -> None:
    app: Any = None

    def deletes(state: Any) -> dict[str, Any]:
        app.delete("parent")
        return {"log": ["b"]}

    app = chain("a", "b", "c").compile(store)
    app.invoke({"n": 1}, run_id="parent")
    app.fork("parent", at=1, run_id="child")
    app = chain("a", "b", "c", nodes={"b": deletes}).compile(store)

    assert app.resume("child").state["log"] == ["a", "b", "c"]
    assert app.get_state("child")["log"] == ["a", "b", "c"]


def test_a_chain_of_sixty_forks_is_read(store: Store) -> None:
    app = chain("a", "b").compile(store, durability="process")
    app.invoke({"n": 0}, run_id="f0")
    for number in range(1, 61):
        app.fork(f"f{number - 1}", at=1 if number == 1 else None, update={"n": number}, run_id=f"f{number}")

    assert dict(app.get_state("f60")) == {"n": 60, "log": ["a"]}
    assert [member.depth for member in app.forks("f30")] == list(range(61))
    for number in range(0, 60, 7):
        assert delete_run(Journal(store), f"f{number}")
    assert dict(app.resume("f60").state) == {"n": 60, "log": ["a", "b"]}
    assert dict(app.get_state("f17")) == {"n": 17, "log": ["a"]}


@pytest.mark.parametrize("keep_parent", [True, False])
def test_a_fork_that_is_copied_alone_reads_the_same(store: Store, tmp_path: Path, keep_parent: bool) -> None:
    app = chain("a", "b", "c").compile(store)
    app.invoke({"n": 1}, run_id="parent")
    app.fork("parent", at=1, update={"n": 2}, run_id="child")
    for target in (
        open_store("memory://"),
        open_store(f"file://{tmp_path / 'there'}"),
        open_store(f"{tmp_path / 'there.db'}"),
    ):
        assert copy_runs(store, target, runs=["parent", "child"] if keep_parent else ["child"]).runs
        there = chain("a", "b", "c").compile(target)
        branch = there.forks("child")["child"].branch
        assert branch is not None and (branch.run_id, branch.is_there) == ("parent", keep_parent)
        assert dict(there.get_state("child")) == {"n": 2, "log": ["a"]}
        assert dict(there.resume("child").state) == {"n": 2, "log": ["a", "b", "c"]}
        target.close()


def test_gates_are_closed_and_questions_asked_again_in_a_fork(memory: Store) -> None:
    app = chain("a", "b", "c", nodes={"b": asks}).compile(memory, interrupt_before=["c"])
    app.invoke({"n": 1}, run_id="r")
    app.resume("r", "a")
    app.resume("r")
    assert app.get_state("r")["log"] == ["a", "a", "c"]

    fork = app.fork("r", at="@a")

    assert [pause.name for pause in app.resume(fork).pauses] == ["q"]
    assert [pause.kind for pause in app.resume(fork, "b").pauses] == ["before"]
    assert app.resume(fork).state["log"] == ["a", "b", "c"]


def hammer(store: Store, destroy: Callable[[Journal, str], object], rounds: int) -> list[str]:
    """Fork a run from one thread while another takes it away, until it was in time; the forks that there were."""
    app = chain("a", "b").compile(store, durability="process")
    forks: list[str] = []
    for number in range(20 * rounds):
        if number >= rounds and forks:
            break
        parent = f"parent{number}"
        app.invoke({"n": number}, run_id=parent)
        begin = threading.Barrier(2)

        def take_away(run: str = parent, begin: threading.Barrier = begin) -> None:
            begin.wait(60)
            destroy(Journal(store), run)

        thread = threading.Thread(target=take_away)
        thread.start()
        begin.wait(60)
        try:
            while True:
                forks.append(app.fork(parent, at=1, run_id=f"{parent}-{len(forks)}"))
                if len(forks) % 5 == 0:
                    break
        except HoldfastError:
            pass
        thread.join()
    return forks


@pytest.mark.parametrize("how", ["delete", "prune"])
def test_a_fork_that_was_begun_while_its_parent_went_is_readable(store: Store, how: str) -> None:
    def prune(journal: Journal, run: str) -> None:
        info = journal.info(run)
        prune_run(journal, info, journal.store.checkpoints(run, limit=1)[0].seq)

    forks = hammer(store, delete_run if how == "delete" else prune, 12)

    app = chain("a", "b").compile(store)
    assert forks
    for fork in forks:
        assert app.get_state(fork)["log"] == ["a"], fork


def test_the_store_sees_a_fork_that_came_between(store: Store) -> None:
    """Whoever deletes a run names the forks that it knows of; another one stops it."""
    app = chain("a", "b").compile(store)
    app.invoke({"n": 1}, run_id="parent")
    app.fork("parent", at=1, run_id="child")
    (child,) = store.runs(run="child")
    newest = Journal(store).make_snapshot(
        Journal(store).load(store.runs(run="parent")[0], app._settings.codec), app._settings.codec
    )

    assert not store.delete("parent", forks=()) and store.prune("parent", newest, forks=()) == 0
    assert store.runs(run="parent") and app.checkpoints("parent")[0].seq < newest.seq
    assert store.prune("parent", newest, forks=[child.key]) > 0
    assert store.delete("parent", forks=[child.key, b"12345678"])


def test_file_journals_are_read_from_the_middle(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "runs")
    app = chain(*(f"s{place}" for place in range(300))).compile(store, durability="process")
    app.invoke({"n": 1}, run_id="r")
    every = list(store.read("r"))

    for fresh in (store, FileStore(tmp_path / "runs")):
        for after, upto in ((0, 1), (63, 66), (64, 64), (127, 140), (250, None), (299, 500)):
            wanted = [entry for entry in every if after < entry.seq and (upto is None or entry.seq <= upto)]
            assert list(fresh.read("r", after, upto)) == wanted
        marks = [mark.seq for mark in fresh.checkpoints("r")]
        assert marks == sorted(marks, reverse=True) and len(marks) == 300
        for before in (2, 3, 64, 65, 66, 129, 300, 900):
            assert [mark.seq for mark in fresh.checkpoints("r", before, 5)] == [
                seq for seq in marks if seq < before
            ][:5]


def test_a_fork_that_comes_after_the_look_for_forks_stops_the_deletion() -> None:
    class Interrupted(MemoryStore):
        """A store that forks a run right after somebody has looked for its forks."""

        app: Any = None

        def runs(self, **filters: Any) -> list[RunInfo]:
            found = super().runs(**filters)
            if filters.get("parent") is not None and (app := self.app) is not None:
                self.app = None
                app.fork("parent", at=1, run_id="child")
            return found

    for destroy in (lambda journal: delete_run(journal, "parent"), _prune_to_the_end):
        store = Interrupted()
        app = chain("a", "b").compile(store)
        app.invoke({"n": 1}, run_id="parent")
        store.app = app

        destroy(Journal(store))

        assert not store.runs(run="parent") or len(app.checkpoints("parent")) == 1
        assert app.resume("child").state["log"] == ["a", "b"]


def _prune_to_the_end(journal: Journal) -> None:
    prune_run(journal, journal.info("parent"), journal.store.checkpoints("parent", limit=1)[0].seq)


DELETER = """
import sys, time
from holdfast import open_store
from holdfast.journal.journal import Journal
from holdfast.journal.copying import delete_run
journal = Journal(open_store(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    print(delete_run(journal, line.strip()), flush=True)
"""


@pytest.mark.parametrize("kind", ["sqlite", "file", "postgres"])
def test_forks_are_readable_although_another_process_deletes_their_parents_and_is_killed(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    urls = {"sqlite": f"sqlite:///{tmp_path / 'runs.db'}", "file": f"file://{tmp_path / 'runs'}"}
    url = urls.get(kind) or str(request.getfixturevalue("emptied_postgres_url"))
    store = open_store(url)
    app = chain("a", "b").compile(store, durability="process")
    parents = [f"parent{number}" for number in range(16)]
    for parent in parents:
        app.invoke({"n": 1}, run_id=parent)
    other = subprocess.Popen([sys.executable, "-c", DELETER, url], stdin=PIPE, stdout=PIPE, text=True)
    assert other.stdin is not None and other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    forks = []
    for place, parent in enumerate(parents):
        forks.append(app.fork(parent, at=1, run_id=f"{parent}-before"))
        other.stdin.write(f"{parent}\n")
        other.stdin.flush()
        with contextlib.suppress(HoldfastError):
            for number in range(4):
                forks.append(app.fork(parent, at=1, run_id=f"{parent}-{number}"))
        if place == len(parents) - 1:
            other.send_signal(signal.SIGKILL)
        else:
            other.stdout.readline()
    other.communicate()

    for fork in forks:
        assert app.get_state(fork)["log"] == ["a"], fork
    assert app.resume(forks[-1]).state["log"] == ["a", "b"]
    store.close()


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_fork_is_copied_to_a_server_without_its_parent(
    kind: str, tmp_path: Path, postgres_url: str
) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}" if kind == "sqlite" else f"file://{tmp_path / 'runs'}"
    source, target = open_store(url), open_store(postgres_url)
    app = chain("a", "b").compile(source)
    app.invoke({"n": 1}, run_id="parent")
    app.fork("parent", at=1, update={"n": 2}, run_id="child")

    copy_runs(source, target, runs=["child"])

    assert dict(chain("a", "b").compile(target).resume("child").state) == {"n": 2, "log": ["a", "b"]}
    source.close()
    target.close()


def test_a_parent_is_moved_away_from_its_fork(store: Store, memory: Store) -> None:
    app = chain("a", "b").compile(store)
    app.invoke({"n": 1}, run_id="parent")
    app.fork("parent", at=1, run_id="child")

    copy_runs(store, memory, runs=["parent"], move=True)

    assert not store.runs(run="parent") and memory.runs(run="parent")
    assert app.resume("child").state["log"] == ["a", "b"]


def test_a_fork_is_a_place_for_checkpoints_like_any_run(store: Store) -> None:
    app = chain("a", "b").compile(store)
    app.invoke({"n": 1}, run_id="parent")
    app.fork("parent", at=1, update={"n": 2}, run_id="child")
    app.resume("child")
    checkpoints = JournalCheckpointStore(store)

    newest = app.history("child")[0].id
    loaded = checkpoints.load(newest)

    assert loaded is not None and loaded.state["log"] == ["a", "b"] and loaded.state["n"] == 2
    app.delete("parent")
    assert checkpoints.load(newest) == loaded


def test_a_sealed_run_is_forked_looked_at_and_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", "5a" * 32)
    store = open_store(f"sqlite:///{tmp_path / 'runs.db'}")
    app = chain("a", "b", "c").compile(store)
    app.invoke({"n": 1}, run_id="parent")

    fork = app.fork("parent", at=1, update={"n": 2})
    app.resume(fork)
    app.promote(fork)
    assert [change.key for change in app.history(fork)[-1].changes] == ["n"]
    assert app.get_state("parent")["n"] == 2
    app.rollback("parent", 2)
    assert app.resume("parent").state["n"] == 1
    assert app.delete("parent") and app.get_state(fork)["n"] == 2
    store.close()


@pytest.mark.parametrize("when", [None, 1000])
def test_a_queued_run_stays_in_its_queue_when_a_node_was_spoken_for(
    memory: Store, when: float | None
) -> None:
    app = chain("a", "b", "c").compile(memory)
    app.submit({"n": 1}, run_id="r", when=when)
    due = memory.runs(run="r")[0].due_at
    app.update_state("r", {"log": ["A"]}, as_node="a")

    info = memory.runs(run="r")[0]
    assert (info.status, info.queue, info.due_at) == ("queued", "default", due)
    if when is None:
        assert asyncio.run(app.aexecute("r")).state["log"] == ["A", "b", "c"]


def test_a_refused_fork_is_told_by_the_name_that_people_know(memory: Store) -> None:
    app = chain("a", "b").compile(memory)
    app.invoke(run_id="r")

    with pytest.raises(CommandRefused, match=r"^run 'r': there is no node 'nobody'"):
        app.fork("r", 1, as_node="nobody")
    assert len(memory.runs()) == 1


def test_a_run_that_waits_for_a_worker_is_queued_when_it_was_spoken_for(memory: Store) -> None:
    app = chain("a", "b", "c", nodes={"b": asks}).compile(memory)
    app.submit({"n": 1}, run_id="r", queue="nightly")
    asyncio.run(app.aexecute("r"))
    assert memory.runs(run="r")[0].status == "paused"

    app.update_state("r", {"log": ["B"]}, as_node="b")

    assert (memory.runs(run="r")[0].status, memory.runs(run="r")[0].queue) == ("queued", "nightly")
    assert asyncio.run(app.aexecute("r")).state["log"] == ["a", "B", "c"]


def sized(tmp_path: Path) -> Any:
    graph = StateGraph(Log).add_node("choose", says("choose")).add_edge(START, "choose")
    graph.add_node("large", says("large")).add_node("small", says("small"))
    graph.add_conditional_edges("choose", lambda s: "large" if s.get("n") else "small", ["large", "small"])
    app = graph.compile(f"sqlite:///{tmp_path / 'runs.db'}")
    app.invoke({"n": 0}, run_id="r")
    return app


def test_an_edit_after_a_route_was_chosen_warns_and_the_way_out_that_it_names_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = sized(tmp_path)
    unchanged = app.fork("r", 1, update={"n": 1})

    assert "the way on from 'choose' was chosen before this edit" in caplog.text
    assert "next is 'small'; a fork as node 'choose' has it chosen" in caplog.text
    assert app.resume(unchanged).state["log"][-1] == "small"
    caplog.clear()
    chosen = app.fork("r", 1, update={"n": 1}, as_node="choose")
    assert app.resume(chosen).state["log"][-1] == "large" and not caplog.messages


def test_an_edit_command_to_a_fork_warns_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = sized(tmp_path)
    app.edit(app.fork("r", 1), {"n": 1})

    assert "a fork as node 'choose' has it chosen" in caplog.text


def test_an_update_with_a_resume_warns_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = sized(tmp_path)
    out = app.resume(app.fork("r", 1), update={"n": 1})

    assert out.state["log"][-1] == "small"
    assert "next is 'small'; a fork as node 'choose' has it chosen" in caplog.text


@pytest.mark.parametrize("by_condition", [True, False])
def test_an_edit_before_the_first_nodes_warns_that_they_were_chosen_and_a_new_run_chooses_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, by_condition: bool
) -> None:
    graph = StateGraph(Log).add_node("large", says("large")).add_node("small", says("small"))
    if by_condition:
        graph.add_edge(START, "large", when=lambda s: s["n"] > 0).add_edge(START, "small")
    else:
        graph.add_conditional_edges(START, lambda s: "large" if s.get("n") else "small", ["large", "small"])
    app = graph.compile(f"sqlite:///{tmp_path / 'runs.db'}")
    app.invoke({"n": 0}, run_id="r")
    fork = app.fork("r", 0, update={"n": 1})

    assert (
        "the first nodes were chosen before this edit and are not chosen again: next is 'small'"
        in caplog.text
    )
    assert app.resume(fork).state["log"] == ["small"]
    assert "a new run with the edited values as its input has them chosen" in caplog.text
    assert app.invoke(app.get_state(fork).set("log", [])).state["log"] == ["large"]


def test_an_edit_where_nothing_was_chosen_does_not_warn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = chain("a", "b").compile(f"sqlite:///{tmp_path / 'runs.db'}")
    app.invoke(run_id="r")
    app.fork("r", 1, update={"n": 1})

    assert not caplog.messages
