"""`holdfast store fsck`: exit codes, what is printed, `--json`, `--repair`, and stores that do not open."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import open_store
from holdfast.stores.sqlite.store import SqliteStore
from tests.cli.in_process import Call, caller
from tests.cli.processes import Session
from tests.graphs import chain
from tests.integrity.damage import damage_entry, sql

URL = "sqlite:///runs.db"


@pytest.fixture(name="call")
def called(capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(capsys)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", URL)


@pytest.fixture
def damaged() -> None:
    """Two runs, one of them damaged."""
    store = open_store(URL)
    app = chain("a", "b", "c").compile(store)
    app.invoke({"n": 1}, run_id="broken-run")
    app.invoke({"n": 1}, run_id="whole-run")
    damage_entry(store, "broken-run", 3)
    store.close()


def test_what_is_damaged_and_intact_is_told_and_the_exit_code_says_it(call: Call, damaged: None) -> None:
    told = call("store", "fsck")

    assert told.code == 1 and "whole-run" not in told.out
    assert "damaged run broken-run (workflow graph, completed)" in told.out
    assert "entry 3 is damaged (its checksum does not match)" in told.out
    assert "intact: entries 1 to 2 of 4" in told.out and "wave 1 after a, " in told.out
    assert (
        "remedy: a repair writes a new run" in told.out
        and "repair with: holdfast store fsck --repair" in told.out
        and "1 run fine, 1 run damaged" in told.out
    )


def test_as_json_it_is_one_document(call: Call, damaged: None) -> None:
    told = call("store", "fsck", "--json")

    assert told.code == 1 and told.json["fine"] is False and told.json["repair"] is None
    runs = {run["run_id"]: run for run in told.json["runs"]}
    assert runs["whole-run"]["fine"] and not runs["broken-run"]["fine"]
    assert runs["broken-run"]["damages"][0] | {"text": ""} == {"part": "journal", "seq": 3, "text": ""}
    assert runs["broken-run"]["intact"] == {"after": 0, "to": 2}
    assert runs["broken-run"]["last_good_checkpoint"]["nodes"] == ["a"]


def test_runs_can_be_named_by_their_beginning(call: Call, damaged: None) -> None:
    assert call("store", "fsck", "whole").code == 0
    assert call("store", "fsck", "broken").code == 1
    refused = call("store", "fsck", "nobody")
    assert refused.code == 1 and "no run 'nobody'" in refused.err and refused.out == ""


def test_repair_needs_a_yes_where_nobody_can_be_asked(call: Call, damaged: None) -> None:
    refused = call("store", "fsck", "--repair")
    assert refused.code == 2 and "this would repair 1 run" in refused.err and "--yes" in refused.err

    done = call("store", "fsck", "--repair", "--yes", "--json")

    assert done.code == 0 and done.json["fine"] is True
    assert done.json["repair"]["runs"][0]["new_run_id"] == "broken-run-repaired"
    again = call("store", "fsck", "--repair", "--yes")
    assert again.code == 0 and "repaired run broken-run (" in again.out
    assert "entry 3 is damaged (its checksum does not match)" in again.out
    assert "2 runs fine, 1 run damaged and repaired as another\n" in again.out
    listed = {run["run_id"]: run["status"] for run in call("runs", "--json").json["runs"]}
    assert listed == {
        "broken-run": "damaged",
        "broken-run-repaired": "interrupted",
        "whole-run": "completed",
    }


def test_a_run_that_cannot_be_read_at_all_stays_damaged_after_a_repair(call: Call, damaged: None) -> None:
    store = open_store(URL)
    damage_entry(store, "broken-run", 1)
    store.close()

    done = call("store", "fsck", "--repair", "--yes", "--json")

    assert done.code == 1 and done.json["fine"] is False
    (run,) = (run for run in done.json["runs"] if not run["fine"])
    assert run["repaired_as"] is None and run["intact"] is None and run["status"] == "damaged"
    assert run["remedy"] == "nothing of it can be read; restore it from a backup, or delete it"
    (repair,) = done.json["repair"]["runs"]
    assert repair["new_run_id"] is None and "nothing of it can be read" in repair["refused"]
    for words in ((), ("--repair", "--yes")):
        again = call("store", "fsck", *words)
        assert again.code == 1 and "unreadable run broken-run (workflow graph, damaged)" in again.out
        assert "remedy: nothing of it can be read; restore it from a backup, or delete it" in again.out
        assert "1 run fine, 1 run damaged" in again.out and "repaired run" not in again.out
    assert "not repaired: run broken-run: nothing of it can be read" in again.err
    assert call("delete", "broken-run", "--yes").code == 0 and call("store", "fsck").code == 0


def test_on_a_terminal_it_asks_first(tmp_path: Path, damaged: None) -> None:
    session = Session(tmp_path, "store", "fsck", "--repair")
    session.expect("Repair 1 run of sqlite")
    session.write("n\n")
    assert session.end() != 0

    session = Session(tmp_path, "store", "fsck", "--repair")
    session.expect("Repair 1 run of sqlite")
    session.write("y\n")
    session.expect("run 'broken-run-repaired' has what is intact, and can be resumed")
    assert session.end() == 0


def test_what_is_replaced_is_put_where_it_is_asked_to_be(call: Call, tmp_path: Path) -> None:
    store = open_store(URL)
    assert isinstance(store, SqliteStore)
    chain("a").compile(store).invoke({"n": 1}, run_id="r")
    sql(store, "INSERT INTO inbox VALUES (99 << 32 | 1, 1.0, x'00')")
    store.close()

    done = call("store", "fsck", "--repair", "--yes", "--aside", "kept")

    assert (
        done.code == 0
        and "put aside: kept/inbox.json" in done.out
        and (tmp_path / "kept" / "inbox.json").is_file()
    )


@pytest.mark.parametrize("words", [("--yes",), ("--aside", "x")])
def test_options_of_repair_alone_are_refused(call: Call, damaged: None, words: tuple[str, ...]) -> None:
    refused = call("store", "fsck", *words)

    assert refused.code == 2 and "belong to --repair" in refused.err


def test_a_store_that_cannot_even_be_opened_is_damaged(call: Call, tmp_path: Path) -> None:
    (tmp_path / "runs.db").write_bytes(b"no database at all" * 400)

    told = call("store", "fsck", "--json")

    assert told.code == 1 and told.json["fine"] is False and "not a SQLite database" in told.json["medium"][0]
    assert call("store", "fsck").code == 1


def test_who_reads_a_damaged_run_is_told_of_fsck(call: Call, damaged: None) -> None:
    refused = call("show", "broken-run")

    assert (
        refused.code == 1
        and "entry 3 is damaged" in refused.err
        and "`holdfast store fsck` tells what is intact" in refused.err
    )


def test_a_store_that_is_not_there_is_refused(call: Call) -> None:
    refused = call("store", "fsck", "--store", "sqlite:///nowhere.db")

    assert refused.code == 1 and "there are no runs at" in refused.err and not Path("nowhere.db").exists()


def test_a_resume_of_a_repaired_run_names_the_run_that_has_what_could_be_read(
    call: Call, damaged: None
) -> None:
    call("store", "fsck", "--repair", "--yes")

    for words in (
        ("resume", "broken-run"),
        ("rerun", "broken-run", "--from", "b"),
        ("answer", "broken-run", "x"),
    ):
        refused = call(*words)
        assert refused.code == 1 and "broken-run-repaired" in refused.err, words
