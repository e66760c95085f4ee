"""Which store a command uses, and the words that start the program again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast import RunNotFound
from holdfast.cli.command_lines import command_line, program
from holdfast.cli.store_option import (
    DEFAULT_STORE,
    chosen_url,
    default_url,
    exists,
    open_existing,
    same_store,
)
from tests.cli.processes import CHAIN, call, write


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
    assert short.returncode == 2 and "no run" in short.stderr


def test_the_program_is_named_as_it_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "bin" / "holdfast"
    script.parent.mkdir()
    script.touch(mode=0o755)
    monkeypatch.setenv("PATH", "")
    assert program([str(script)]) == [str(script)]
    monkeypatch.setenv("PATH", str(script.parent))

    assert program([str(script)]) == ["holdfast"]
    assert program(["pytest"]) == [sys.executable, "-m", "holdfast"]
