"""What is righted in place: facts by the journal, messages that are gone, and what is not ours is left alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import open_store
from holdfast.engine.commands.inbox import RunCommand, write_message
from holdfast.integrity import check_store, repair_store
from holdfast.stores.base import Store
from holdfast.stores.files.store import FileStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from tests.graphs import chain, one
from tests.integrity.damage import lose_message, sql


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def sqlite(sqlite_url: str) -> Any:
    opened = open_store(sqlite_url)
    yield opened
    opened.close()


@pytest.fixture
def files(tmp_path: Path) -> Any:
    opened = open_store(f"file://{tmp_path / 'runs'}")
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "change",
    [
        "tags = replace(tags, 'first', 'fjrst')",
        "tags = '[\"al'",
        "created_at = created_at + 1e8",
        "sum = x'00'",
    ],
)
def test_damaged_facts_are_made_anew_of_the_journal_and_not_believed(
    sqlite: SqliteStore, change: str
) -> None:
    app = chain("a", "b").compile(sqlite)
    app.invoke({"n": 1}, run_id="r", config={"tags": ["first", "gone"]})
    app.tag("r", "added", remove=["gone"])
    was = sqlite.runs(run="r")[0]
    sql(sqlite, f"UPDATE runs SET {change}, queue = 'q', priority = 3")

    repair = repair_store(sqlite)

    now = sqlite.runs(run="r")[0]
    assert now.tags == ("first", "added") == was.tags
    assert abs(now.created_at - was.created_at) < 60 and (now.queue, now.priority) == ("q", 3)
    assert "could not be verified: queue, priority, due time" in repair.runs[0].done[1]
    (row,) = [json.loads(Path(kept).read_text()) for kept in repair.aside]
    assert row["run"] == "r" and row["priority"] == 3
    assert check_store(sqlite).is_fine and repair_store(sqlite).did_nothing


def test_the_tags_that_a_fork_began_with_are_kept_and_said_to_be_unverified(sqlite: SqliteStore) -> None:
    app = chain("a", "b").compile(sqlite)
    app.invoke({"n": 1}, run_id="r", config={"tags": ["first"]})
    app.fork("r", run_id="f", tags=["own"])
    sql(sqlite, "UPDATE runs SET priority = 3 WHERE run = 'f'")

    (repair,) = repair_store(sqlite).runs

    assert "own" in sqlite.runs(run="f")[0].tags and "could not be verified: tags" in repair.done[1]


def test_tags_that_the_facts_lack_are_found_and_added(memory: MemoryStore) -> None:
    app = chain("a").compile(memory)
    app.invoke({"n": 1}, run_id="r")
    app.tag("r", "one", "two")
    memory._runs["r"].info = replace(memory._runs["r"].info, tags=("two", "three"))

    assert check_store(memory).problems == ("run 'r': its facts lack tags that its journal has: one",)
    repair_store(memory)

    assert set(memory.runs(run="r")[0].tags) == {"one", "two", "three"} and check_store(memory).is_fine


def test_an_empty_message_stands_for_one_that_is_lost(store: Store) -> None:
    app = one(lambda state, ctx: {"log": [ctx.ask("well?")]}).compile(store)
    app.invoke({"n": 1}, run_id="r")
    for name in ("fly", "swim", "walk"):
        store.post("r", write_message(RunCommand(name, by="ada")))
    lose_message(store, "r", 2)
    lose_message(store, "r", 1)
    assert [str(damage) for damage in check_store(store).runs[0].damages][:2] == [
        "message 1 is missing",
        "message 2 is missing",
    ]

    (repair,) = repair_store(store).runs

    assert repair.done[0] == "message 1 is lost; an empty one replaces it; the run will refuse it"
    assert [message.number for message in store.inbox("r")] == [1, 2, 3]
    assert check_store(store).is_fine and repair_store(store).did_nothing
    assert app.resume("r", answer="yes").state["log"] == ["yes"]


def test_repairing_a_journal_in_which_facts_follow_the_damage_is_done_once(files: FileStore) -> None:
    app = one(lambda state, ctx: {"log": [ctx.ask("well?")]}).compile(files)
    app.invoke({"n": 1}, run_id="r")
    app.resume("r", answer="yes")
    journal = files.directory / "r" / "journal"
    whole = journal.read_bytes()
    for place in range(len(whole) // 2, len(whole), len(whole) // 12):
        journal.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        repair_store(files)
        assert repair_store(files).did_nothing and check_store(files).is_fine
        assert [info.run for info in files.runs() if info.run != "r"] in ([], ["r-repaired"])
        assert files.runs(run="r")[0].status == "damaged"
        app.delete("r-repaired")
        journal.write_bytes(whole)
        repair_store(files)
        assert files.runs(run="r")[0].status == "completed"


def test_files_that_begin_with_a_dot_are_of_others(files: FileStore) -> None:
    chain("a").compile(files).invoke({"n": 1}, run_id="r")
    root = files.directory
    (root / ".git").mkdir()
    for path in (root / ".git" / "HEAD", root / ".gitignore", root / "r" / ".gitattributes"):
        path.write_text("theirs")

    assert check_store(files).is_fine and repair_store(files).did_nothing
    assert (root / ".gitignore").exists() and (root / "r" / ".gitattributes").exists()
