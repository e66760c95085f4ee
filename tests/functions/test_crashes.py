"""Workflows of plain functions whose process is killed: what was finished is never done again."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from holdfast import open_store
from holdfast.values import RunStatus

KILLED = -9


class Program:
    """The program of `tests/functions/program.py` with a store and a folder of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder

    def run(self, *args: str) -> int:
        command = [sys.executable, "-m", "tests.functions.program", self.url, str(self.folder), *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode in (0, KILLED), done.stderr
        return done.returncode

    def crash_at(self, *names: str) -> None:
        for name in names:
            (self.folder / name).touch()

    def lines(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines()


@pytest.fixture(params=["sqlite", "file", "postgres"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Program:
    urls = {"sqlite": f"sqlite:///{tmp_path / 'runs.db'}", "file": f"file://{tmp_path / 'runs'}"}
    url = urls.get(request.param) or str(request.getfixturevalue("emptied_postgres_url"))
    return Program(url, tmp_path)


def test_a_killed_workflow_goes_on_with_the_same_line(program: Program) -> None:
    """Functions: a step in doubt runs again, a finished one never does, in whatever process."""
    program.crash_at("fetch-b", "count-CC")
    assert [program.run("report") for _ in range(3)] == [KILLED, KILLED, 0]
    assert program.lines()[-1] == "paused Publish?"

    assert program.run("report", "yes") == program.run("report") == 0

    lines, counts = program.lines(), Counter(program.lines())
    assert lines[-1] == lines[-2] == "result [['A', 'B', 'C'], 3, [2, 2, 2], 'charged 3', 'yes']"
    assert counts["charge 3"] == counts["refuse x"] == 1
    for page in "ac":  # It may have been running when its sibling killed the process.
        assert counts[f"fetch {page}"] in (1, 2)
    assert counts["count A"] == counts["count B"] == counts["count C"] == 1
    assert counts["count CC"] == 2
    assert (
        counts["caught LookupError ('x', 7)"] == 2
    )  # Raised again, of the same type, when the function runs again.
    assert len([line for line in lines if line.startswith("seen")]) == 1


def test_a_killed_sync_workflow_goes_on(sqlite_url: str, tmp_path: Path) -> None:
    program = Program(sqlite_url, tmp_path)
    program.crash_at("fetch-c", "count-B", "body")
    assert [program.run("plain") for _ in range(4)] == [KILLED, KILLED, KILLED, 0]
    assert program.run("plain", "yes") == 0

    counts = Counter(program.lines())
    assert counts["result [['A', 'B', 'C'], [1, 1, 1], 'yes']"] == 1
    assert counts["fetch a"] == 1 and counts["fetch c"] == 2
    assert counts["count A"] == 1 and counts["count B"] == 2
    assert counts["count C"] in (1, 2)  # The process was killed right after it, before it was stored.


def test_a_step_that_must_not_be_repeated_is_not(sqlite_url: str, tmp_path: Path) -> None:
    program = Program(sqlite_url, tmp_path)
    program.crash_at("charge")
    assert program.run("report") == KILLED

    command = [sys.executable, "-m", "tests.functions.program", sqlite_url, str(tmp_path), "report"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert done.returncode == 1
    assert "step 'report/charge' was interrupted and may or may not have taken effect" in done.stderr
    [info] = open_store(sqlite_url).runs(run="r")
    assert info.status == RunStatus.FAILED
    assert Counter(program.lines())["charge 3"] == 1


def test_a_run_can_be_read_where_the_code_is_not(sqlite_url: str, tmp_path: Path) -> None:
    """Functions: the journal is data only: input, arguments, results and the outcome."""
    program = Program(sqlite_url, tmp_path)
    program.run("plain")
    program.run("plain", "no")

    shown = _holdfast(sqlite_url, "show", "r")
    assert "plain/fetch" in shown and "plain/count" in shown and '["a", "b", "c"]' in shown
    assert '"result"' in shown and "completed" in shown
    assert "plain#1/fetch#2 done" in _holdfast(sqlite_url, "events", "r")
    assert "plain#1: fetch" in _holdfast(sqlite_url, "history", "r")


def _holdfast(url: str, *args: str) -> str:
    command = [sys.executable, "-m", "holdfast", args[0], "--store", url, *args[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
