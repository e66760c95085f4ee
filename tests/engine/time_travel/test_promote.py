"""Promoting a fork's result, and rolling a run back: recorded, reversible, harmless to do twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import CheckpointNotFound, CommandRefused, ExecutionError, RunNotFound, open_store
from holdfast.checkpoints import JournalCheckpointStore
from holdfast.journal.journal import Journal
from holdfast.stores.base import Store
from holdfast.testing import Crash, CrashingStore, raise_crash
from holdfast.views.runs import run_view
from tests.cli import processes
from tests.cli.in_process import Call, asks, boom, caller
from tests.graphs import chain


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(capsys)


def test_what_a_fork_came_to_becomes_the_outcome_of_its_run(store: Store) -> None:
    app = chain("a", "b", "c").compile(store)
    app.invoke({"n": 1}, run_id="r")
    fork = app.fork("r", at=1, update={"n": 9})
    app.resume(fork)

    ident = app.promote(fork, by="ada", reason="it is better")

    assert dict(app.get_state("r")) == {"n": 9, "log": ["a", "b", "c"]}
    assert store.runs(run="r")[0].status == "completed" and store.runs(run=fork)
    newest = app.history("r")[0]
    assert (newest.id, newest.kind) == (ident, "promotion")
    assert "promoted by ada: it is better" in newest.events[0]
    assert app.state_at("r", "@-1")["n"] == 1, "its own history stays"
    assert app.delete(fork) and app.get_state("r")["n"] == 9, "it does not need the fork"


def test_promoting_twice_is_harmless(store: Store) -> None:
    app = chain("a", "b").compile(store)
    app.invoke({"n": 1}, run_id="r")
    fork = app.fork("r", at=1, update={"n": 2})

    first = app.promote(fork)
    assert app.promote(fork) == first
    assert len(app.history("r")) == 3

    app.resume(fork)
    assert app.promote(fork) != first, "the fork went on meanwhile"
    assert dict(app.get_state("r")) == {"n": 2, "log": ["a", "b"]}


def test_a_run_waits_for_what_its_fork_waits_for(store: Store) -> None:
    app = chain("a", "b", "c", nodes={"b": asks}).compile(store)
    app.invoke({"n": 1}, run_id="r")
    app.resume("r", "a")
    fork = app.fork("r", at=1, update={"n": 2})
    assert app.resume(fork).pauses

    app.promote(fork)

    assert [pause.name for pause in app.pauses("r")] == ["q"]
    assert store.runs(run="r")[0].status == "paused"
    assert dict(app.resume("r", "b").state) == {"n": 2, "log": ["a", "b", "c"]}
    assert app.pauses(fork), "the fork still waits"


def test_a_failed_fork_makes_its_run_fail(memory: Store) -> None:
    app = chain("a", "b").compile(memory)
    app.invoke({"n": 1}, run_id="r")
    broken = chain("a", "b", nodes={"b": boom}).compile(memory)
    fork = broken.fork("r", at=1)
    with pytest.raises(ExecutionError):
        broken.resume(fork)

    app.promote(fork)

    assert memory.runs(run="r")[0].status == "failed"
    assert app.resume("r").state["log"] == ["a", "b"]


def test_only_ancestors_promote(memory: Store) -> None:
    app = chain("a", "b").compile(memory)
    app.invoke({"n": 1}, run_id="root")
    app.fork("root", at=1, run_id="child")
    app.fork("child", update={"n": 3}, run_id="grandchild")
    app.fork("root", at=1, run_id="sibling")

    app.promote("grandchild", into="root")
    assert app.get_state("root")["n"] == 3 and app.get_state("child")["n"] == 1
    with pytest.raises(CommandRefused, match="'child', 'root'"):
        app.promote("grandchild", into="sibling")
    with pytest.raises(CommandRefused, match="itself"):
        app.promote("child", into="child")
    with pytest.raises(CommandRefused, match="not a fork"):
        app.promote("root")
    app.delete("root")
    with pytest.raises(RunNotFound, match="is gone"):
        app.promote("sibling")


def test_a_run_is_rolled_back_and_forth(store: Store) -> None:
    """S3.23: history with rollback; nothing is deleted."""
    ran: list[str] = []

    def c(state: Any) -> dict[str, Any]:
        ran.append("c")
        return {"log": [f"c{len(ran)}"]}

    app = chain("a", "b", "c", nodes={"c": c}).compile(store)
    app.invoke({"n": 1}, run_id="r")
    end = app.history("r")[0].id

    app.rollback("r", 2, by="ada", reason="once more")
    assert store.runs(run="r")[0].status == "interrupted"
    assert app.get_state("r")["log"] == ["a", "b"]
    shown = run_view(Journal(store), "r")
    assert [(step.name, step.status) for step in shown.steps] == [
        ("a", "completed"),
        ("b", "completed"),
        ("c", "next"),
    ]
    assert (loaded := JournalCheckpointStore(store).load("r")) is not None and loaded.completed == ("a", "b")
    assert app.resume("r").state["log"] == ["a", "b", "c2"]

    app.rollback("r", end)
    assert store.runs(run="r")[0].status == "completed"
    assert app.get_state("r")["log"] == ["a", "b", "c1"]
    assert [point.kind for point in app.history("r")][:4] == ["rollback", "end", "rollback", "end"]
    assert app.history("r")[2].events == ("rolled back to entry 3 by ada: once more",)
    assert Journal(store).load(store.runs(run="r")[0], app._settings.codec).run.pauses == {}


def test_a_rollback_asks_again_and_closes_gates(memory: Store) -> None:
    app = chain("a", "b", "c", nodes={"b": asks}).compile(memory, interrupt_before=["c"])
    app.invoke({"n": 1}, run_id="r")
    app.resume("r", "a")
    app.resume("r")

    app.rollback("r", 1)

    assert [pause.name for pause in app.resume("r").pauses] == ["q"]
    assert [pause.kind for pause in app.resume("r", "b").pauses] == ["before"]
    assert app.resume("r").state["log"] == ["a", "b", "c"]


def test_a_rollback_needs_a_place_of_the_run(memory: Store) -> None:
    app = chain("a", "b").compile(memory)
    app.invoke({"n": 1}, run_id="r")
    app.invoke({"n": 1}, run_id="s")

    with pytest.raises(CheckpointNotFound, match="one of run 's'"):
        app.rollback("r", app.history("s")[0].id)
    with pytest.raises(CheckpointNotFound, match="wave 7"):
        app.rollback("r", 7)


def test_a_large_state_survives_a_rollback_and_what_follows(store: Store) -> None:
    """Values that are stored as differences against what a rollback left behind are read right."""

    def grows(letter: str) -> Any:
        return lambda state: {"log": [letter * 5000], "n": state["n"] + 1}

    app = chain(*"abcd", nodes={letter: grows(letter) for letter in "abcd"}).compile(store)
    app.invoke({"n": 0}, run_id="r")

    app.rollback("r", 2)
    app.resume("r")

    assert [text[:1] for text in app.get_state("r")["log"]] == list("abcd")
    assert [text[:1] for text in app.state_at("r", app.history("r")[1].id)["log"]] == list("abc")


@pytest.mark.parametrize("what", ["rollback", "promote", "update_state"])
@pytest.mark.parametrize("point", ["before", "committed"])
def test_a_crash_leaves_a_run_as_it_was_or_as_it_was_to_be(what: str, point: Any) -> None:
    inner = open_store("memory://")
    app = chain("a", "b", "c", nodes={"c": boom}).compile(inner)
    with pytest.raises(ExecutionError):
        app.invoke({"n": 1}, run_id="r")
    fork = app.fork("r", at=1, update={"n": 2})
    crashing = CrashingStore(inner, 1, point, raise_crash)
    doomed = chain("a", "b", "c", nodes={"c": boom}).compile(crashing)
    before = dict(app.get_state("r"))

    with pytest.raises(Crash):
        if what == "rollback":
            doomed.rollback("r", 1)
        elif what == "promote":
            doomed.promote(fork)
        else:
            doomed.update_state("r", {"n": 2}, as_node="a")

    after = dict(app.get_state("r"))
    assert (after == before) == (point == "before")
    whole = chain("a", "b", "c").compile(inner)
    assert whole.resume("r").state["log"][-1] == "c"


def test_the_commands(sqlite_url: str, call: Call, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "open").touch()
    processes.write(tmp_path, "chain.yaml", processes.CHAIN)
    assert call("run", "chain.yaml", "--run-id", "r", "--store", sqlite_url, "--quiet").code == 0
    url = ("--store", sqlite_url)

    made = call("fork", "r@first", "--run-id", "child", "--json", *url).json
    assert (made["run_id"], made["parent"], made["status"]) == ("child", "r", "interrupted")
    told = call("fork", "r@second", "--as-node", "second", "--set", 'steps.second.output:={"count": 7}', *url)
    assert "resume with" in told.out
    other = told.lines[0].split()[1]
    assert call("resume", other, "--quiet", *url).code == 0
    assert call("show", other, "--output", *url).json == {"result": "through", "count": 7}
    ran = processes.ran(tmp_path)

    assert call("fork", "r@first", "--run", "--json", *url).json["status"] == "completed"
    assert processes.ran(tmp_path) == [*ran, "second", "gated"]
    quietly = call("fork", "r@second", "--run", "--no-interactive", "--quiet", *url)
    assert quietly.code == 0 and json.loads(quietly.out) == {"result": "through", "count": 2}

    compared = call("runs", "compare", "r", other, "--json", *url).json
    assert compared["related"] and compared["ancestor"]["run_id"] == "r"
    assert "diverging" in call("runs", "compare", "r", other, *url).out

    promoted = call("runs", "promote", other, "--reason", "seven is better", "--json", *url).json
    assert (promoted["run_id"], promoted["status"]) == ("r", "completed")
    assert call("show", "r", "--output", *url).json["count"] == 7
    assert "promoted" in call("history", "r", *url).out

    rolled = call("runs", "rollback", "r@first", *url)
    assert rolled.code == 0 and "holdfast resume r" in rolled.out.replace("-m ", "")
    assert call("resume", "r", "--quiet", *url).code == 0
    assert call("show", "r", "--output", *url).json["count"] == 2

    for words in (
        ("runs", "rollback", "r"),
        ("runs", "promote", "r"),
        ("runs", "promote", "child@1"),
        ("fork", "r", "--run-id", "child"),
        ("fork", "r", "--as-node", "nobody"),
        ("fork", "r", "--set", "steps.first=1"),
        ("fork", "r", "--no-interactive"),
        ("fork", "r", "--quiet"),
    ):
        refused = call(*words, *url)
        assert refused.code == 2 and refused.err.startswith("holdfast: "), words
    assert call("fork", "r@99", *url).code == 1


def test_a_run_of_a_python_graph_is_forked_without_its_graph(sqlite_url: str, call: Call) -> None:
    store = open_store(sqlite_url)
    app = chain("a", "b").compile(store)
    app.invoke({"n": 1}, run_id="r")

    assert call("fork", "r@1", "--run-id", "child", "--store", sqlite_url).code == 0
    assert app.resume("child").state["log"] == ["a", "b"]
    refused = call("fork", "r@1", "--set", "n=3", "--store", sqlite_url)
    assert refused.code == 2 and "app.fork('r@1', update={…})" in refused.err
    store.close()


def test_a_resume_from_a_moment_begins_a_fork(
    sqlite_url: str, call: Call, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "open").touch()
    processes.write(tmp_path, "chain.yaml", processes.CHAIN)
    url = ("--store", sqlite_url)
    call("run", "chain.yaml", "--run-id", "r", "--quiet", *url)

    assert call("resume", "r@second", "--json", *url).json["status"] == "completed"
    assert processes.ran(tmp_path) == ["first", "second", "gated", "gated"]
    refused = call("resume", "r@0", *url)
    assert refused.code == 1 and "holdfast fork r@0 --run --store" in refused.err and "--run" in refused.err
