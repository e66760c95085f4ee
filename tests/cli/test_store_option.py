"""Which store a command uses, and the words that start the program again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from holdfast import RunNotFound
from holdfast.cli.command_lines import command_line, program
from holdfast.cli.store_option import (
    DEFAULT_STORE,
    chosen_url,
    default_url,
    open_existing,
    same_store,
)
from holdfast.stores.inspection import exists
from tests.cli.processes import CHAIN, call, environment, ran, write


def test_what_is_given_wins_then_the_environment_then_the_file() -> None:
    env = {"HOLDFAST_STORE": "sqlite:///env.db"}

    assert chosen_url("sqlite:///given.db", "sqlite:///flow.db", env) == "sqlite:///given.db"
    assert chosen_url(None, "sqlite:///flow.db", env) == "sqlite:///env.db"
    assert chosen_url(None, "sqlite:///flow.db", {}) == "sqlite:///flow.db"
    assert chosen_url(None, None, {}) == default_url({}) == DEFAULT_STORE


def test_the_older_variables_are_understood_too() -> None:
    def of(backend: str, dsn: str) -> str:
        return default_url({"WORKFLOW_CHECKPOINT_BACKEND": backend, "WORKFLOW_CHECKPOINT_DSN": dsn})

    assert of("sqlite", "runs.db") == "sqlite:///runs.db" and of("file", "runs") == "file:runs"
    assert of("sqlite", "sqlite:///x.db") == "sqlite:///x.db" and of("", "runs.db") == "runs.db"


def test_a_backend_that_cannot_be_used_is_refused_and_not_replaced(tmp_path: Path) -> None:
    """S2.19: a command never keeps runs in a file where the environment asks for a server."""
    write(tmp_path, "chain.yaml", CHAIN)
    for backend, problem in (
        ("postgres", "WORKFLOW_CHECKPOINT_BACKEND=postgres needs postgresql://USER@HOST/DATABASE"),
        ("redis", "unknown checkpoint store: redis (from WORKFLOW_CHECKPOINT_BACKEND)"),
    ):
        env = environment(WORKFLOW_CHECKPOINT_BACKEND=backend)
        for words in (["run", "chain.yaml"], ["runs"]):
            done = call(tmp_path, *words, env=env)
            assert done.returncode != 0 and problem in done.stderr, done.stderr
        assert not (tmp_path / ".holdfast").exists()
    given = call(tmp_path, "run", "chain.yaml", "--store", "sqlite:///own.db", env=env)
    assert (
        "unknown checkpoint store" not in given.stderr
        and f"--store sqlite:///{tmp_path}/own.db" in given.stderr
    )


def test_stores_are_the_same_if_their_places_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert same_store(DEFAULT_STORE, f"sqlite:///{tmp_path}/.holdfast/runs.db")
    assert same_store("file:runs", f"file://{tmp_path}/runs")
    assert not same_store(DEFAULT_STORE, "sqlite:///other.db") and not same_store("memory://", DEFAULT_STORE)


def test_looking_for_runs_makes_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    for url in (DEFAULT_STORE, "file:runs", "runs.db"):
        assert not exists(url)
        with pytest.raises(RunNotFound, match="nothing has been run there yet"):
            open_existing(url)
    assert list(tmp_path.iterdir()) == []
    open_existing("memory://").close()


def test_a_command_to_paste_is_quoted_and_guards_odd_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/lib/holdfast/__main__.py"])
    start = " ".join([sys.executable, "-m", "holdfast"])

    assert command_line("resume", "r1", store=DEFAULT_STORE) == f"{start} resume r1"
    assert command_line("resume", "a b", "--answer", "it's", store="sqlite:///x y.db") == (
        f"{start} resume 'a b' --store 'sqlite:///{tmp_path}/x y.db' --answer 'it'\"'\"'s'"
    )
    assert command_line("answer", "-r", "-5", store=DEFAULT_STORE) == f"{start} answer -- -r -5"
    assert (
        command_line("resume", "-r", "--answer", "x", store=DEFAULT_STORE)
        == f"{start} resume --answer x -- -r"
    )


def test_a_run_is_meant_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    for name in ("abcd-one", "abcd-two"):
        call(tmp_path, "run", "chain.yaml", "--run-id", name)

    assert call(tmp_path, "runs", "status", "abcd-o").stdout.startswith("abcd-one ")
    assert "'abcd-one'" in call(tmp_path, "resume", "abcd-o", "--plan", "--json").stdout.replace('"', "'")
    assert call(tmp_path, "cancel", "abcd-t").stdout == "run abcd-two is cancelled\n"
    both, short = call(tmp_path, "show", "abcd"), call(tmp_path, "show", "abc")
    assert both.returncode == 2 and "abcd-one" in both.stderr and "give more of the id" in both.stderr
    assert short.returncode == 1 and "no run" in short.stderr


def test_the_program_is_named_as_it_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "bin" / "holdfast"
    script.parent.mkdir()
    script.touch(mode=0o755)
    monkeypatch.setenv("PATH", "")
    assert program([str(script)]) == [str(script)]
    monkeypatch.setenv("PATH", str(script.parent))

    assert program([str(script)]) == ["holdfast"]
    assert program(["pytest"]) == [sys.executable, "-m", "holdfast"]


KEPT = """
workflow:
  name: long-analysis
  checkpoint:
    storage: {storage}
    {place}
steps:
  - name: first
    python: acts.py:first
  - name: gate
    ask: Go on?
  - name: second
    python: acts.py:second
"""
APART = "path: .conductor/checkpoints/${workflow.name}/"


@pytest.fixture
def apart(tmp_path: Path) -> Path:
    """A folder with a run whose store only its file names, and another run in the usual store."""
    write(tmp_path, "long.yaml", KEPT.format(storage="sqlite", place=APART))
    write(tmp_path, "usual.yaml", "workflow: {name: usual}\nsteps: [{name: only, set: {done: true}}]\n")
    assert call(tmp_path, "run", "long.yaml", "--run-id", "w1").returncode == 4
    assert call(tmp_path, "run", "usual.yaml", "--run-id", "u1").returncode == 0
    assert (tmp_path / ".conductor/checkpoints/long-analysis/runs.db").is_file()
    return tmp_path


def test_every_command_finds_runs_by_name_where_their_file_keeps_them(apart: Path) -> None:
    """S1.6, S1.8: resume, checkpoints list, show, prune and clear, given the name, the run, or the file."""
    place = ".conductor/checkpoints/long-analysis/runs.db, which long.yaml names"
    listed = call(apart, "checkpoints", "list", "--workflow", "long-analysis", "--json")
    points = json.loads(listed.stdout)["checkpoints"]
    assert [point["run_id"] for point in points] == ["w1", "w1"] and place in listed.stderr
    assert call(apart, "checkpoints", "list", "--workflow", "long.yaml", "--json").stdout == listed.stdout
    for words in (
        ("show", "w1"),
        ("checkpoints", "show", points[0]["checkpoint_id"]),
        ("history", "w1"),
    ):
        assert call(apart, *words).returncode == 0, words
    assert json.loads(call(apart, "show", "u1", "--json").stdout)["status"] == "completed"

    done = call(apart, "resume", "--checkpoint-id", points[0]["checkpoint_id"], "--answer", "yes")
    assert done.returncode == 0 and ran(apart)[-1] == "second", done.stderr
    dry = call(
        apart, "checkpoints", "prune", "--keep", "1", "--workflow", "long-analysis", "--dry-run", "--json"
    )
    assert [gone["run_id"] for gone in json.loads(dry.stdout)["removed"]] == ["w1"]
    cleared = call(apart, "checkpoints", "clear", "long-analysis", "--yes")
    assert cleared.returncode == 0 and "removed 1 run" in cleared.stdout
    assert call(apart, "show", "u1").returncode == 0


def test_from_another_folder_the_file_says_where_its_runs_are(apart: Path) -> None:
    """S1.8: a file of another folder names its store from there; `--file` goes with every name."""
    elsewhere = apart / "elsewhere"
    elsewhere.mkdir()

    shown = call(elsewhere, "show", "long-analysis", "--file", "../long.yaml", "--json")
    assert json.loads(shown.stdout)["run_id"] == "w1", shown.stderr
    assert call(elsewhere, "resume", "../long.yaml", "--answer", "yes").returncode == 0
    both = call(elsewhere, "show", "w1", "--file", "../long.yaml", "--store", "runs.db")
    assert both.returncode == 2 and "give one of them" in both.stderr


def test_runs_are_found_by_name_where_a_file_in_a_sub_folder_keeps_them(tmp_path: Path) -> None:
    """S1.8: `run workflows/long.yaml`, then `resume long-analysis` in the same folder."""
    (tmp_path / "workflows").mkdir()
    write(tmp_path / "workflows", "long.yaml", KEPT.format(storage="sqlite", place=APART))
    assert call(tmp_path, "run", "workflows/long.yaml", "--run-id", "w1").returncode == 4

    listed = call(tmp_path, "checkpoints", "list", "--workflow", "long-analysis", "--json")
    assert len(json.loads(listed.stdout)["checkpoints"]) == 2, listed.stderr
    done = call(tmp_path, "resume", "long-analysis", "--answer", "yes")
    assert done.returncode == 0 and "which workflows/long.yaml names" in done.stderr
    assert call(tmp_path, "checkpoints", "clear", "long-analysis", "--yes").returncode == 0


def test_what_is_nowhere_is_an_error_that_says_where_was_looked(apart: Path) -> None:
    """S1.8: nothing found is a failure, and nothing is created by looking."""
    names = [("show", "nobody"), ("resume", "nobody"), ("checkpoints", "clear", "nobody", "--yes")]
    names += [("checkpoints", "list", "--workflow", "nobody")]
    names += [("checkpoints", "prune", "--keep", "1", "--workflow", "nobody")]
    for words in names:
        missing = call(apart, *words)
        assert missing.returncode == 1 and missing.stdout == "", words
        assert "no run, checkpoint or workflow 'nobody' was found" in missing.stderr
        assert f"sqlite:///{apart}/.holdfast/runs.db: it is not there" in missing.stderr
        assert (
            f"sqlite:///{apart}/.conductor/checkpoints/long-analysis/runs.db: it is not there"
            in missing.stderr
        )
    (apart / "long.yaml").unlink()
    missing = call(apart, "resume", "w1")
    assert missing.returncode == 1 and f"{apart}/.holdfast/runs.db" in missing.stderr


def test_a_file_can_keep_its_runs_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    """S1.2, S1.6: `storage: postgres` with a URL; who looks there by name is informed of it first."""
    write(tmp_path, "long.yaml", KEPT.format(storage="postgres", place=f"url: {postgres_url}"))
    paused = call(tmp_path, "run", "long.yaml", "--run-id", "w1")
    assert paused.returncode == 4 and not (tmp_path / ".holdfast").exists(), paused.stderr

    listed = call(tmp_path, "checkpoints", "list", "--workflow", "long-analysis", "--json")
    assert len(json.loads(listed.stdout)["checkpoints"]) == 2
    assert f"looking in {postgres_url}, which long.yaml names" in listed.stderr
    asked = call(tmp_path, "show", "w1")
    assert asked.returncode == 1 and "--file long.yaml looks there" in asked.stderr, (
        "a run's id is sent to no server"
    )
    assert call(tmp_path, "show", "w1", "--file", "long.yaml").returncode == 0
    done = call(tmp_path, "resume", "long-analysis", "--answer", "yes")
    assert done.returncode == 0 and ran(tmp_path) == ["first", "second"], done.stderr
    cleared = call(tmp_path, "checkpoints", "clear", "long.yaml", "--yes")
    assert cleared.returncode == 0 and call(tmp_path, "show", "w1").returncode == 1


def test_the_environment_can_name_the_server_of_a_file(tmp_path: Path, postgres_url: str) -> None:
    """S1.6, S2.19: `storage: postgres` without a URL."""
    write(tmp_path, "long.yaml", KEPT.format(storage="postgres", place="enabled: true"))
    env = {"WORKFLOW_CHECKPOINT_BACKEND": "postgres", "WORKFLOW_CHECKPOINT_DSN": postgres_url}

    assert call(tmp_path, "run", "long.yaml", "--run-id", "w1", env=environment(**env)).returncode == 4
    assert (
        call(tmp_path, "resume", "long-analysis", "--answer", "yes", env=environment(**env)).returncode == 0
    )
    nowhere = {"PGHOST": str(tmp_path), "PGCONNECT_TIMEOUT": "1"}
    failed = call(
        tmp_path, "run", "long.yaml", "--store", "postgresql:///?timeout=0", env=environment(**nowhere)
    )
    assert failed.returncode == 3 and str(tmp_path) in failed.stderr
