"""`repair_run` and `repair_store`: a resumable run of what is intact, nothing lost, nothing done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import CorruptJournal, Retention, RunConflict, RunFinished, RunNotFound, open_store
from holdfast.engine.commands.inbox import RunCommand, write_message
from holdfast.engine.retention import prune_workflow
from holdfast.integrity import check_store, repair_run, repair_store
from holdfast.journal import writer as writer_module
from holdfast.journal.journal import Journal
from holdfast.journal.sealing import Seal
from holdfast.state.codec import Codec
from holdfast.stores.base import Store
from holdfast.stores.files.store import FileStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.views.runs import run_list
from tests.graphs import chain, one
from tests.integrity.damage import damage_entry, damage_snapshot, flipped, sql
from tests.processes import unmeasured


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a store is not on the disk, what is replaced is put aside in the current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def snapshots_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "SNAPSHOT_FLOOR", -4000)


def made(store: Store, run: str = "r", **options: Any) -> Any:
    app = chain("a", "b", "c", "d").compile(store, **options)
    app.invoke({"n": 1}, run_id=run, config={"tags": ["mine"]})
    return app


def contents(store: Store, run: str) -> Any:
    return (
        list(store.read(run))
        if not isinstance(store, FileStore)
        else _bytes(store.directory / run / "journal")
    )


def _bytes(path: Path) -> bytes:
    return path.read_bytes()


def test_a_damaged_run_goes_on_as_a_new_one_from_its_last_good_entry(store: Store) -> None:
    """A new run up to the last good entry, resumable; the damaged one is left as it is."""
    app = made(store)
    damage_entry(store, "r", 4)
    before = contents(store, "r")

    repair = repair_run(store, "r")

    assert repair.new_run == "r-repaired"
    info = store.runs(run="r-repaired")[0]
    assert (info.status, info.workflow, info.tags, info.owner) == ("interrupted", "graph", ("mine",), "")
    assert app.get_state("r-repaired")["log"] == ["a", "b"]
    assert app.resume("r-repaired").state["log"] == ["a", "b", "c", "d"]
    assert isinstance(store, FileStore) or contents(store, "r") == before
    old = store.runs(run="r")[0]
    assert old.status == "damaged" and "repaired-as:r-repaired" in old.tags and old.key != info.key
    assert check_store(store).is_fine


def test_the_journal_of_a_repaired_run_says_where_it_comes_from(memory: Store) -> None:
    made(memory)
    damage_entry(memory, "r", 4)
    repair_run(memory, "r")

    loaded = Journal(memory).load(memory.runs(run="r-repaired")[0], Codec())
    (note,) = loaded.run.annotations[0].notes
    assert note[1:] == ("holdfast store fsck", "repaired from run 'r', up to entry 3 of 5")
    assert loaded.run.fault is not None and loaded.run.fault.type == "Repaired"


def test_repairing_again_does_nothing(store: Store) -> None:
    made(store)
    made(store, "other")
    damage_entry(store, "r", 4)
    assert not repair_store(store).did_nothing
    runs = {info.run: info for info in store.runs()}

    again = repair_store(store)

    assert again.did_nothing and again.aside == () and repair_run(store, "r").done == ()
    assert {info.run: info for info in store.runs()} == runs


def test_a_damaged_run_is_in_nobody_s_way(memory: Store) -> None:
    """Its workflow's name means the repaired run, and once that is completed, nothing is left to resume."""
    app = made(memory)
    damage_entry(memory, "r", 4)
    with pytest.raises(CorruptJournal):
        app.get_state("r")
    repair_run(memory, "r")

    assert app.resume("graph").run_id == "r-repaired"
    with pytest.raises(RunFinished):
        app.resume("graph")


def test_a_damaged_run_is_listed_left_by_retention_and_can_be_deleted(store: Store) -> None:
    app = made(store)
    damage_entry(store, "r", 4)
    repair_run(store, "r")
    journal = Journal(store)

    assert {line.run_id: line.status for line in run_list(journal)} == {
        "r": "damaged",
        "r-repaired": "interrupted",
    }
    assert prune_workflow(journal, "graph", Retention(max_checkpoints=1)) > 0
    assert app.delete("r") and [info.run for info in store.runs()] == ["r-repaired"]
    assert check_store(store).is_fine


def test_names_that_are_taken_are_counted_on(memory: Store) -> None:
    made(memory)
    made(memory, "r-repaired")
    damage_entry(memory, "r", 3)

    assert repair_run(memory, "r").new_run == "r-repaired-2"


def test_a_later_snapshot_keeps_all_of_the_state(snapshots_soon: None, store: Store) -> None:
    app = made(store)
    damage_entry(store, "r", 2)

    assert repair_run(store, "r").new_run == "r-repaired"

    assert app.get_state("r-repaired")["log"] == ["a", "b", "c", "d"]
    assert store.runs(run="r-repaired")[0].status == "completed"
    assert check_store(store).is_fine


def test_a_snapshot_does_not_stand_for_a_damaged_first_entry(
    snapshots_soon: None, memory: MemoryStore
) -> None:
    """A repaired run would begin with the damaged entry, which its readers then trust."""
    made(memory)
    assert memory.snapshot("r", 1) is not None
    del memory._runs["r"].entries[1:]
    damage_entry(memory, "r", 1)

    with pytest.raises(CorruptJournal, match="nothing of it can be read"):
        repair_run(memory, "r")

    assert [info.run for info in memory.runs()] == ["r"]


def test_a_paused_run_keeps_its_question_and_its_messages(memory: Store) -> None:
    app = one(lambda state, ctx: {"log": [ctx.ask("well?")]}).compile(memory)
    app.invoke({"n": 1}, run_id="r")
    memory.post("r", write_message(RunCommand("fly", by="ada")))
    app.cancel("r")
    last = len(list(memory.read("r")))
    damage_entry(memory, "r", last)

    repair_run(memory, "r")

    assert [pause.prompt for pause in app.pauses("r-repaired")] == ["well?"]
    assert len(memory.inbox("r-repaired")) == len(memory.inbox("r")) > 0
    assert app.resume("r-repaired", answer="yes").state["log"] == ["yes"]


def test_steps_that_were_under_way_are_in_doubt(memory: Store) -> None:
    app = chain("a", "b", nodes={"b": lambda state: {"log": ["again"]}}).compile(memory)
    app.invoke({"n": 1}, run_id="r")
    damage_entry(memory, "r", 3)
    repair_run(memory, "r")

    (step,) = [step for step in app.plan_resume("r-repaired").steps if step.node == "b"]
    assert "it was running when its process stopped" in step.reason
    assert app.resume("r-repaired").state["log"] == ["a", "again"]


def test_damaged_snapshots_are_written_anew_and_the_old_bytes_kept(
    snapshots_soon: None, store: Store
) -> None:
    app = made(store)
    was = store.snapshot("r", 3)
    damage_snapshot(store, "r", 3)

    repair = repair_store(store)

    assert repair.runs[0].done == ("the snapshot at 3 is written again",) and repair.runs[0].new_run is None
    now = store.snapshot("r", 3)
    assert (
        was is not None and now is not None and (now.seq, now.chain, now.at) == (was.seq, was.chain, was.at)
    )
    (kept,) = repair.aside
    assert flipped(was.body) in Path(kept).read_bytes() and check_store(store).is_fine
    assert app.get_state("r")["log"] == ["a", "b", "c", "d"]


def test_facts_are_made_what_the_journal_says(memory: MemoryStore) -> None:
    made(memory)
    memory._runs["r"].info = replace(memory._runs["r"].info, status="running", workflow="x", owner="{}")

    repair = repair_run(memory, "r")

    assert repair.done == ("its facts agree with its journal again",) and check_store(memory).is_fine
    info = memory.runs(run="r")[0]
    assert (info.status, info.workflow, info.owner, info.tags) == ("completed", "graph", "", ("mine",))


def test_a_damaged_row_of_facts_is_righted(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    assert isinstance(store, SqliteStore)
    made(store)
    made(store, "other")
    sql(store, "UPDATE runs SET status = 'bompleted' WHERE run = 'r'")

    assert [repair.run for repair in repair_store(store).runs] == ["r"]

    assert {info.run: info.status for info in store.runs()} == {"r": "completed", "other": "completed"}
    assert check_store(store).is_fine
    store.close()


def test_indexes_are_made_anew_and_rows_of_no_run_put_aside(sqlite_url: str, tmp_path: Path) -> None:
    store = open_store(sqlite_url)
    assert isinstance(store, SqliteStore)
    made(store)
    sql(store, "INSERT INTO entries VALUES (99 << 32 | 1, 1.0, x'00', NULL, x'abcd')")

    repair = repair_store(store)

    assert repair.medium == ("1 rows of table entries that were of no run are put aside",)
    (kept,) = repair.aside
    assert Path(kept).parent == tmp_path / "runs.db.lost+found" and "abcd" in Path(kept).read_text()
    assert check_store(store).is_fine and repair_store(store).did_nothing
    store.close()


def test_a_damaged_message_is_put_aside_and_the_run_refuses_it(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path / 'runs'}")
    assert isinstance(store, FileStore)
    app = one(lambda state, ctx: {"log": [ctx.ask("well?")]}).compile(store)
    app.invoke({"n": 1}, run_id="r")
    store.post("r", write_message(RunCommand("fly", by="ada")))
    path = store.directory / "r" / "inbox" / "0000000001"
    damaged = flipped(path.read_bytes())
    path.write_bytes(damaged)
    with pytest.raises(CorruptJournal):
        store.inbox("r")

    repair = repair_store(store)

    assert [Path(kept).read_bytes() for kept in repair.aside] == [damaged]
    assert Path(repair.aside[0]).parent == tmp_path / "runs.lost+found"
    assert check_store(store).is_fine and app.resume("r", answer="yes").state["log"] == ["yes"]
    store.close()


def test_keys_and_stray_files_of_a_file_store_are_righted(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path / 'runs'}")
    assert isinstance(store, FileStore)
    made(store)
    key = next((store.directory / ".keys").iterdir())
    key.write_text("elsewhere")
    (store.directory / "r" / "notes.txt").write_text("mine")
    facts = store.directory / "r" / "run.json"
    facts.write_text(facts.read_text().replace("completed", "cancelled"))

    repair = repair_store(store, aside=tmp_path / "kept")

    assert key.read_text() == "r" and '"completed"' in facts.read_text()
    notes, shown = [Path(kept).read_text() for kept in repair.aside]
    assert notes == "mine" and '"cancelled"' in shown
    assert check_store(store).is_fine and repair_store(store).did_nothing
    store.close()


def test_what_cannot_be_read_at_all_is_not_repaired_and_not_executed(memory: Store) -> None:
    made(memory)
    damage_entry(memory, "r", 1)

    with pytest.raises(CorruptJournal, match="nothing of it can be read"):
        repair_run(memory, "r")

    assert memory.runs(run="r")[0].status == "damaged" and memory.runs(run="r")[0].tags == ("mine",)
    assert not check_store(memory).is_fine and repair_store(memory).did_nothing


def test_forks_of_a_damaged_run_stay_readable(memory: Store) -> None:
    app = made(memory)
    fork = app.resume(app.checkpoints("r")[0].id).run_id
    damage_entry(memory, "r", 4)

    repair_store(memory)

    assert app.get_state(fork)["log"] == ["a", "b", "c", "d"] and check_store(memory).is_fine


def test_a_damaged_fork_is_repaired_as_a_fork(memory: Store) -> None:
    app = made(memory)
    fork = app.resume(app.checkpoints("r")[0].id).run_id
    damage_entry(memory, fork, 3)

    new = repair_run(memory, fork).new_run

    assert memory.runs(run=new)[0].parent == memory.runs(run="r")[0].key
    assert app.resume(new).state["log"] == ["a", "b", "c", "d"] and check_store(memory).is_fine


def test_encrypted_runs_are_repaired_with_their_key_and_refused_without(memory: Store) -> None:
    app = made(memory, encryption_key=bytes(32))
    damage_entry(memory, "r", 4)
    with pytest.raises(RunConflict, match="encrypted; set HOLDFAST_KEY"):
        repair_run(memory, "r")

    seal = Seal([bytes(32)])
    assert repair_run(memory, "r", seal=seal).new_run == "r-repaired"

    assert app.resume("r-repaired").state["log"] == ["a", "b", "c", "d"]
    assert check_store(memory, seal=seal).is_fine


def test_a_run_that_is_not_there_is_refused(memory: Store) -> None:
    with pytest.raises(RunNotFound):
        repair_run(memory, "r")


DRIVING = """
import sys, time
from tests.graphs import chain
from holdfast import open_store
def wait(state):
    print("driving", flush=True)
    time.sleep(600)
chain("a", "b", "c", nodes={"c": wait}).compile(open_store(sys.argv[1])).invoke({"n": 1}, run_id="r")
"""


def test_a_run_that_is_being_driven_is_refused_until_its_driver_is_dead(sqlite_url: str) -> None:
    root = Path(__file__).parents[2]
    env = {**unmeasured(), "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVING, sqlite_url], stdout=subprocess.PIPE, text=True, env=env
    )
    assert process.stdout is not None and process.stdout.readline() == "driving\n"
    store = open_store(sqlite_url)
    try:
        damage_entry(store, "r", 2)
        with pytest.raises(RunConflict, match="is being executed by process"):
            repair_run(store, "r")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    deadline = time.monotonic() + 60
    while not (repair := repair_run(store, "r")).new_run:
        assert time.monotonic() < deadline
    assert repair.new_run == "r-repaired"
    assert chain("a", "b", "c").compile(store).resume("r-repaired").state["log"] == ["a", "b", "c"]
    store.close()
