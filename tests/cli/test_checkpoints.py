"""`holdfast checkpoints`."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import open_store
from holdfast.cli.commands.checkpoints import carry_out, planned
from holdfast.journal.journal import Journal
from holdfast.stores.base import Append, Store
from tests.cli.in_process import SOURCE, Call, abandon, caller, three_runs
from tests.graphs import chain, one


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> Call:
    monkeypatch.setenv("HOLDFAST_STORE", sqlite_url)
    return caller(capsys)


def marks(store: Store) -> dict[str, int]:
    return {info.run: len(store.checkpoints(info.run)) for info in store.runs()}


class Later:
    """The same store, seen when everything in it is old."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch, days: float) -> None:
        now = time.time()
        monkeypatch.setattr("holdfast.cli.commands.checkpoints.time.time", lambda: now + days * 86400)
        monkeypatch.setattr("holdfast.clock.time", lambda: now + days * 86400)


# list


def test_checkpoints_are_listed_newest_first(call: Call, sqlite_url: str) -> None:
    store = three_runs(sqlite_url)

    found = call("checkpoints", "list", "--json").json["checkpoints"]

    assert len(found) == sum(marks(store).values())
    assert [each["created_at"] for each in found] == sorted(
        (each["created_at"] for each in found), reverse=True
    )
    assert set(found[0]) == {
        "checkpoint_id", "run_id", "seq", "wave", "nodes", "next", "created_at", "bytes",
    }  # fmt: skip
    listed = call("checkpoints", "list", "good", "--limit", "1")
    assert listed.lines[0].split()[:2] == ["CHECKPOINT", "RUN"] and len(listed.lines) == 2
    of_workflow = call("checkpoints", "list", "--workflow", "gate", "--json").json["checkpoints"]
    assert {each["run_id"] for each in of_workflow} == {"asked"}


def test_wrong_and_empty_lists(call: Call, sqlite_url: str, tmp_path: Path) -> None:
    assert "no checkpoints in" in call("checkpoints", "list").out and list(tmp_path.iterdir()) == []
    assert call("checkpoints", "list", "nobody").code == 1
    three_runs(sqlite_url)
    assert call("checkpoints", "list", "nobody").code == 1
    assert call("checkpoints", "list", "good", "--workflow", "fine").code == 2


# show


def test_a_checkpoint_shows_the_state_then_and_what_was_next(call: Call, sqlite_url: str) -> None:
    three_runs(sqlite_url)
    first = call("checkpoints", "list", "good", "--json").json["checkpoints"][-1]

    data = call("checkpoints", "show", first["checkpoint_id"], "--json").json
    text = call("checkpoints", "show", first["checkpoint_id"])

    assert data["state"] == {"n": 1, "log": ["a"]} and data["next"] == ["b"] and data["workflow"] == "fine"
    assert data["resume"].endswith(f"resume {first['checkpoint_id']}") and data["resume"] in text.out
    assert '"log": [\n    "a"\n  ]' in text.out


def test_unknown_checkpoints_are_refused(call: Call, sqlite_url: str) -> None:
    three_runs(sqlite_url)

    for ident in (str(uuid.uuid4()), "good", ""):
        refused = call("checkpoints", "show", ident)
        assert refused.code == 1 and "checkpoint not found" in refused.err


# prune


def test_keeping_the_newest_drops_the_oldest_and_no_state(call: Call, sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    app = chain("a", "b", "c", "d", name="w").compile(store)
    app.invoke({"n": 1}, run_id="r1")
    app.invoke({"n": 1}, run_id="r2")

    done = call("checkpoints", "prune", "--keep", "3", "--yes")

    assert done.out.strip() == "removed 1 run and 5 checkpoints"
    assert marks(store) == {"r2": 3}
    assert app.get_state("r2")["log"] == ["a", "b", "c", "d"]


def test_a_run_that_can_be_resumed_keeps_its_newest_checkpoint(call: Call, sqlite_url: str) -> None:
    store = three_runs(sqlite_url)
    chain("a", name="broken").compile(store).invoke({"n": 1}, run_id="later")

    call("checkpoints", "prune", "--keep", "1", "--yes")

    assert marks(store) == {"later": 1, "asked": 1, "bad": 1, "good": 1}
    assert call("show", "asked", "--json").json["pauses"][0]["name"] == "q"


def test_old_runs_go_but_not_the_last_successful_one(
    call: Call, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = three_runs(sqlite_url)
    chain("a", name="fine").compile(store).invoke({"n": 1}, run_id="newer")

    assert call("checkpoints", "prune", "--older-than", "7d", "--yes").out.strip() == "removed nothing"
    Later(store, monkeypatch, 8)
    would = call("checkpoints", "prune", "--older-than", "7d", "--dry-run", "--json").json
    assert would["dry_run"] is True and {gone["run_id"] for gone in would["removed"]} == {
        "good",
        "bad",
        "asked",
    }
    assert len(marks(store)) == 4
    call("checkpoints", "prune", "--older-than", "7d", "--workflow", "gate", "--yes")
    assert set(marks(store)) == {"good", "bad", "newer"}
    assert call("checkpoints", "prune", "--older-than", "1w", "--yes", "--json").json["runs"] == 2
    assert set(marks(store)) == {"newer"}


def test_a_dry_run_shows_and_changes_nothing(call: Call, sqlite_url: str) -> None:
    store = three_runs(sqlite_url)
    before = marks(store)

    shown = call("checkpoints", "prune", "--keep", "1", "--dry-run")

    assert (
        shown.lines[-1] == "would remove 0 runs and 3 checkpoints" and "its oldest checkpoints" in shown.out
    )
    assert marks(store) == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "say what may go"),
        (["--older-than", "soon"], "a duration is"),
        (["--keep", "0"], "0 is not in the range"),
        (["--keep", "1"], "--yes confirms it"),
    ],
)
def test_wrong_uses_of_prune(call: Call, sqlite_url: str, words: list[str], told: str) -> None:
    store = three_runs(sqlite_url)
    before = marks(store)

    refused = call("checkpoints", "prune", *words)

    assert refused.code == 2 and told in refused.err and marks(store) == before


def test_pruning_where_nothing_was_run_creates_nothing(call: Call, tmp_path: Path) -> None:
    assert call("checkpoints", "prune", "--keep", "1", "--yes").out.strip() == "removed nothing"
    assert list(tmp_path.iterdir()) == []


def test_a_driven_run_is_never_touched(sqlite_url: str, tmp_path: Path) -> None:
    """While another process executes a run, neither prune nor clear removes anything of it."""
    program = tmp_path / "waits.py"
    program.write_text(
        "import pathlib, sys, time\n"
        "from holdfast import START, END, StateGraph\n"
        "def work(state):\n"
        "    while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.02)\n"
        "graph = StateGraph(dict, name='slow')\n"
        "graph.add_node('a', lambda state: None)\n"
        "graph.add_node('b', lambda state: None)\n"
        "graph.add_node('work', work)\n"
        "names = [START, 'a', 'b', 'work', END]\n"
        "for one, two in zip(names, names[1:]): graph.add_edge(one, two)\n"
        "graph.compile(sys.argv[1]).invoke({'n': 0}, run_id='r')\n"
    )
    go = tmp_path / "go"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    running = subprocess.Popen([sys.executable, program, sqlite_url, str(go)], env=environment)
    try:
        while not (tmp_path / "runs.db").exists() or len(open_store(sqlite_url).checkpoints("r")) < 2:
            assert running.poll() is None
            time.sleep(0.02)
        store = open_store(sqlite_url)
        assert planned(Journal(store), before=time.time() + 10**6, keep=1) == []
        cleared = subprocess.run(
            [
                sys.executable,
                "-m",
                "holdfast",
                "checkpoints",
                "clear",
                "slow",
                "--yes",
                "--store",
                sqlite_url,
            ],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert cleared.returncode == 0 and "is being executed and stays" in cleared.stderr
        assert cleared.stdout.strip() == "removed nothing" and len(store.checkpoints("r")) == 2
    finally:
        go.touch()
        assert running.wait(timeout=60) == 0


def test_a_run_that_was_taken_up_meanwhile_stays(memory: Store) -> None:
    one(lambda state: {"n": 2}).compile(memory).invoke({"n": 1}, run_id="r")
    one(lambda state: {"n": 2}).compile(memory).invoke({"n": 1}, run_id="s")
    journal = Journal(memory)
    plan = planned(journal, before=time.time() + 10)
    assert [removal.info.run for removal in plan] == ["r"]
    info = memory.runs(run="r")[0]
    touched = replace(info, updated_at=info.updated_at + 1)
    head = list(memory.read("r"))[-1].seq
    assert memory.commit([Append("r", head, [], touched)]) == [None]

    assert carry_out(journal, plan) == []

    assert memory.runs(run="r")


# clear


def test_clear_removes_a_workflow_s_runs_and_no_others(call: Call, sqlite_url: str, tmp_path: Path) -> None:
    store = three_runs(sqlite_url)
    abandon(sqlite_url, "lost-1", folder=tmp_path)

    assert call("checkpoints", "clear", "broken", "--yes").out.strip() == "removed 1 run and 2 checkpoints"
    assert call("checkpoints", "clear", "lost", "--yes", "--json").json["runs"] == 1
    assert set(marks(store)) == {"good", "asked"}
    unknown = call("checkpoints", "clear", "broken", "--yes")
    assert unknown.code == 1 and "no runs of a workflow 'broken'" in unknown.err


def test_clear_without_a_terminal_needs_yes(call: Call, sqlite_url: str) -> None:
    store = three_runs(sqlite_url)

    refused = call("checkpoints", "clear", "fine")

    assert refused.code == 2 and "this would remove 1 run and 2 checkpoints" in refused.err
    assert len(marks(store)) == 3


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, 2), ("n", 130, 3)])
def test_on_a_terminal_clear_asks(sqlite_url: str, answer: str, code: int, left: int) -> None:
    store = three_runs(sqlite_url)
    master, slave = pty.openpty()
    words = ["checkpoints", "clear", "fine", "--store", sqlite_url]
    running: Any = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    os.close(slave)
    seen = b""
    while b"[y/N]" not in seen:
        seen += os.read(master, 1024)
    os.write(master, f"{answer}\n".encode())

    assert running.wait(timeout=60) == code
    os.close(master)

    assert b"Remove 1 run and 2 checkpoints?" in seen and len(marks(store)) == left
