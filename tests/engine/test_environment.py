"""The environment of a run: journalled once, again if it changes, and without slowing the run down."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, CodecError, HoldfastError
from holdfast.engine.environment import SWITCH, Repository, read_head
from holdfast.journal.records import Described
from holdfast.stores.base import Store
from holdfast.views.runs import run_view
from holdfast.views.timeline import (
    commit_text,
    environment_changes,
    environment_text,
    read_environment,
    timeline,
)
from tests.cli.processes import CHAIN, call, environment, write
from tests.graphs import chain

SOURCE = Path(__file__).parents[2] / "src"
GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]


def git(folder: Path, *words: str) -> str:
    done = subprocess.run([*GIT, *words], cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A working copy with one commit on the branch `work/here`."""
    folder = tmp_path / "copy"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "work/here")
    (folder / "file").write_text("one")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def described(app: App, run: str = "r") -> list[dict[str, Any]]:
    journal = app._settings.journal
    _, history = journal.history(journal.info(run), app._settings.codec)
    found = [record for _, records in history for record in records if isinstance(record, Described)]
    return [read_environment(record.facts) for record in found]


def test_a_run_knows_where_it_was_driven(store: Store) -> None:
    """S3.23: environment and versions are kept with every run, on every store."""
    importlib.import_module("pydantic")
    app = chain("a", "b").compile(store, facts={"team": "blue"})
    app.invoke({"n": 1}, run_id="r")

    facts = run_view(app._settings.journal, "r").facts
    assert facts["host"] == socket.gethostname() and facts["team"] == "blue"
    assert facts["python"] == ".".join(map(str, sys.version_info[:3])) and facts["packages"]["pydantic"]
    assert not {"argv", "env", "environ", "user", "pid", "cwd"} & set(facts)
    told = next(moment for moment in timeline(app._settings.journal, "r") if moment.type == "run.describe")
    assert f"executed on {socket.gethostname()}" in told.text


def test_it_costs_no_append_and_is_noted_once() -> None:
    def commits(**options: Any) -> int:
        return chain("a", "b", "c").compile("memory://", **options).invoke({"n": 1}).stats.commits

    assert commits() == commits(facts=False)
    app = chain("a", "b", "c").compile("memory://", interrupt_before=["b", "c"])
    app.invoke({"n": 1}, run_id="r")
    before = len(described(app))
    app.resume("r")
    app.resume("r")
    noted = described(app)
    # Git may have answered only after the first drive.
    assert 1 <= before <= len(noted) <= 2 and noted[0]["host"] == noted[-1]["host"]


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    off = chain("a", "b").compile("memory://", facts=False)
    off.invoke({"n": 1}, run_id="r")
    monkeypatch.setenv(SWITCH, "0")
    switched = chain("a", "b").compile("memory://")
    switched.invoke({"n": 1}, run_id="r")

    assert described(off) == described(switched) == []


@pytest.mark.parametrize("facts", ["yes", {1: 2}, None])
def test_other_facts_are_refused(facts: Any) -> None:
    with pytest.raises(HoldfastError, match="facts must be True, False or a mapping"):
        chain("a").compile("memory://", facts=facts)


def test_facts_that_cannot_be_stored_are_refused() -> None:
    with pytest.raises(CodecError, match="facts: "):
        chain("a").compile("memory://", facts={"odd": object()})


def test_another_place_is_noted_on_resume(store: Store) -> None:
    graph = chain("a", "b")
    graph.compile(store, facts={"team": "blue"}, interrupt_before=["b"]).invoke({"n": 1}, run_id="r")
    app = graph.compile(store, facts={"team": "red"}, interrupt_before=["b"])
    app.resume("r")

    assert described(app)[0]["team"] == "blue"
    assert described(app)[-1]["team"] == "red"
    told = [moment.text for moment in timeline(app._settings.journal, "r") if moment.type == "run.describe"]
    assert any("another team: red, was: blue" in text for text in told)


def test_facts_are_sealed_with_the_rest(tmp_path: Path) -> None:
    app = chain("a", "b").compile(
        f"sqlite:///{tmp_path}/runs.db", encryption_key=bytes(range(32)).hex(), facts={"team": "do-not-look"}
    )
    app.invoke({"n": 1}, run_id="r")
    app.store.close()

    assert b"do-not-look" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


# The commit.


def test_the_commit_is_read_from_gits_own_files(copy: Path) -> None:
    commit = git(copy, "rev-parse", "HEAD")
    inner = copy / "deep" / "er"
    inner.mkdir(parents=True)
    assert read_head(inner) == read_head(copy) == (commit, "work/here", None)

    git(copy, "pack-refs", "--all")
    assert read_head(copy) == (commit, "work/here", None)
    git(copy, "worktree", "add", "-q", "-b", "aside", "../aside")
    assert read_head(copy.parent / "aside") == (commit, "aside", None)
    git(copy, "checkout", "-q", "--detach")
    assert read_head(copy) == (commit, "", None)


def test_where_there_is_no_commit_nothing_is_said(tmp_path: Path) -> None:
    assert read_head(tmp_path / "nowhere") is None
    git(tmp_path, "init", "-q")
    assert read_head(tmp_path) is None
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/../../../etc\0passwd")
    assert read_head(tmp_path) is None
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / ".git").write_text("not a place")
    assert read_head(tmp_path / "sub") is None


def test_git_says_later_whether_files_are_changed(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy)
    known = Repository()
    first = known.head()
    assert first is not None and first.branch == "work/here"
    known.settle(60)
    assert known.head() == first._replace(dirty=False)

    (copy / "new").touch()
    changed = Repository()
    changed.settle(60)
    head = changed.head()
    assert head is not None and head.dirty is True


def test_what_waits_for_git_is_called(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy)
    known, called = Repository(), list[str]()
    known.when_known(lambda: called.append("before it is asked"))
    known.head()
    known.when_known(lambda: called.append("asked"))
    known.settle(60)
    known.when_known(lambda: called.append("known"))
    assert called == ["asked", "known"]


SLOW = """
import sys, time
from holdfast import START, StateGraph
from holdfast.engine.environment import repository

def waits(state):
    repository.settle(60)
    return {}

graph = StateGraph(dict)
graph.add_node("a", waits)
graph.add_node("b", lambda state: {})
graph.add_edge(START, "a")
graph.add_edge("a", "b")
graph.compile(sys.argv[1]).invoke({}, run_id="r")
"""


def test_what_git_says_during_a_run_is_noted_by_that_run(copy: Path) -> None:
    """S3.23: the commit, and whether the code has changes that are in none."""
    (copy / "file").write_text("two")
    url = f"sqlite:///{copy.parent}/runs.db"
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    subprocess.run([sys.executable, "-c", SLOW, url], cwd=copy, env=env, check=True, timeout=60)
    app = chain("a", "b").compile(url)
    noted = [facts["git"] for facts in described(app)]
    app.store.close()

    commit = git(copy, "rev-parse", "HEAD")
    assert noted[-1] == {"commit": commit, "branch": "work/here", "dirty": True}
    assert all(facts["commit"] == commit for facts in noted) and len(noted) <= 2


# In words.


def test_facts_and_changes_in_words() -> None:
    one = {
        "host": "box", "platform": "Linux 6 x86_64", "python": "3.12.1", "holdfast": "1.0",
        "packages": {"numpy": "2.0"}, "git": {"commit": "a" * 40, "branch": "main"}, "team": "blue",
    }  # fmt: skip
    other = {
        **one, "host": "tower", "packages": {"numpy": "2.1"},
        "git": {"commit": "b" * 40, "branch": "main", "dirty": True},
    }  # fmt: skip

    assert environment_text(one) == (
        "box, Linux 6 x86_64, Python 3.12.1, holdfast 1.0, commit aaaaaaaaaa on main, numpy 2.0, team: blue"
    )
    assert commit_text(other) == "commit bbbbbbbbbb on main, with changes" and commit_text({}) == ""
    assert environment_changes(one, other) == [
        "another host: tower, was: box",
        "another commit: bbbbbbbbbb, was: aaaaaaaaaa",
        "the code has changes that are in no commit",
        "another numpy: 2.1, was: 2.0",
    ]
    assert environment_changes(other, {**other, "packages": {}}) == ["no numpy any more"]
    assert read_environment(b"") == read_environment(b"\xc1") == {}


def test_show_tells_it(copy: Path) -> None:
    write(copy, "chain.yaml", CHAIN)
    (copy / "open").touch()
    assert call(copy, "run", "chain.yaml", "--quiet").returncode == 0

    shown = call(copy, "show", "chain").stdout
    assert f"executed on  {socket.gethostname()}" in shown and "work/here, with changes" in shown
    facts = json.loads(call(copy, "show", "chain", "--json").stdout)["facts"]
    assert facts["git"]["branch"] == "work/here" and facts["git"]["dirty"] is True

    off = call(copy, "run", "chain.yaml", "--quiet", "--json", env=environment(**{SWITCH: "0"}))
    run = json.loads(off.stdout)["run_id"]
    assert json.loads(call(copy, "show", run, "--json").stdout)["facts"] == {}
