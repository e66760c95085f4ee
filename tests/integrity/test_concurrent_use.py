"""Checking and repairing beside others who work: nothing healthy is harmed, and nothing is said that is not so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import RunConflict, open_store
from holdfast.integrity import check_store, repair_run, repair_store
from holdfast.integrity.check import RunCheck
from holdfast.integrity.repair import NewRun
from holdfast.integrity.report import Damage, Part, RunReport
from holdfast.journal.copying import delete_run
from holdfast.journal.journal import Journal
from holdfast.stores.base import Append, Store
from holdfast.stores.files import frames
from holdfast.stores.files.store import FileStore
from holdfast.stores.inspection import inspecting
from tests.graphs import chain, one
from tests.integrity.damage import damage_entry


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_runs_that_others_finish_while_a_store_is_repaired_are_left_as_they_are(store: Store) -> None:
    app = one(lambda state, ctx: {"log": [ctx.ask("well?")]}).compile(store)
    for run in ("r", "s"):
        app.invoke({"n": 1}, run_id=run)

    def others(done: int, total: int, run: str) -> None:
        for each in ("r", "s") if done == 0 else ():
            app.resume(each, answer="yes")
            app.tag(each, "important")

    repair = repair_store(store, progress=others)

    assert repair.did_nothing and check_store(store).is_fine
    assert {(info.status, info.tags, info.owner) for info in store.runs()} == {
        ("completed", ("important",), "")
    }


def test_facts_are_written_only_to_a_run_that_stands_as_it_was_checked(store: Store) -> None:
    app = chain("a").compile(store)
    app.invoke({"n": 1}, run_id="r")
    with inspecting(store) as inspector:
        seen = inspector.observe("r")
        assert seen is not None and inspector.observe("r") == seen and inspector.observe("x") is None
        app.tag("r", "important")
        with pytest.raises(RunConflict, match="was changed while it was being repaired"):
            inspector.put_facts(replace(seen.info, status="running"), seen.head, seen)
        assert store.runs(run="r")[0].tags == ("important",)

        now = inspector.observe("r")
        assert now is not None
        inspector.put_facts(replace(now.info, priority=7), len(list(store.read("r"))), now)
    assert [(info.priority, info.tags) for info in store.runs(run="r")] == [(7, ("important",))]
    assert check_store(store).is_fine


def test_a_repair_that_comes_too_late_leaves_no_second_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain("a", "b").compile(store).invoke({"n": 1}, run_id="r")
    info, last = store.runs(run="r")[0], len(list(store.read("r")))
    damage_entry(store, "r", 2)
    write = NewRun.write

    def slow(self: NewRun) -> str:
        name = write(self)
        if isinstance(store, FileStore):  # Nobody appends to a damaged journal there.
            (store.directory / "r" / "run.json").write_bytes(
                frames.facts_json(replace(info, priority=3), last)
            )
        else:
            assert store.commit([Append("r", last, (), replace(info, priority=3))]) == [None]
        return name

    with monkeypatch.context() as patched:
        patched.setattr(NewRun, "write", slow)
        with pytest.raises(RunConflict, match="was changed"):
            repair_run(store, "r")

    assert [(found.run, found.status) for found in store.runs()] == [("r", "completed")]
    assert repair_run(store, "r").new_run == "r-repaired"


def test_runs_that_are_deleted_meanwhile_are_passed_over(store: Store) -> None:
    app = chain("a", "b").compile(store)
    for run in ("r", "s", "t"):
        app.invoke({"n": 1}, run_id=run)

    def others(done: int, total: int, run: str) -> None:
        if done == 0:
            delete_run(Journal(store), "r")
        if done == 1:
            assert delete_run(Journal(store), run)

    report = check_store(store, progress=others)
    assert report.is_fine and len(report.runs) == 1
    assert repair_store(store, progress=lambda done, total, run: None).did_nothing


def test_what_is_seen_only_once_is_no_damage(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    chain("a").compile(memory).invoke({"n": 1}, run_id="r")
    looks: list[RunReport] = []
    whole = RunCheck.report

    def flickering(self: RunCheck) -> RunReport:
        looks.append(
            replace(
                whole(self), damages=(Damage(Part.FACTS, f"look {len(looks)}"),) if len(looks) < 2 else ()
            )
        )
        return looks[-1]

    monkeypatch.setattr(RunCheck, "report", flickering)

    assert check_store(memory).is_fine and len(looks) == 3


def test_a_run_that_is_damaged_and_changes_all_the_time_is_told_and_not_repaired(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain("a", "b").compile(memory).invoke({"n": 1}, run_id="r")
    damage_entry(memory, "r", 2)
    whole = RunCheck.report

    def advancing(self: RunCheck) -> RunReport:
        stored = memory._runs["r"]
        stored.info = replace(stored.info, priority=stored.info.priority + 1)
        return whole(self)

    monkeypatch.setattr(RunCheck, "report", advancing)

    (damaged,) = check_store(memory).damaged
    assert [damage.seq for damage in damaged.damages if damage.part == "journal"] == [2]
    with pytest.raises(RunConflict, match="was changed"):
        repair_run(memory, "r")
    assert [info.run for info in memory.runs()] == ["r"]


def test_a_key_that_is_claimed_before_its_run_is_there_stays(tmp_path: Path) -> None:
    """Whoever begins a run holds the lock of its folder, and claims its key before the journal is written."""
    store = open_store(f"file://{tmp_path / 'runs'}")
    assert isinstance(store, FileStore)
    chain("a").compile(store).invoke({"n": 1}, run_id="r")
    key = next((store.directory / ".keys").iterdir())
    with inspecting(store) as inspector:
        listing = inspector.runs()
        inspector.runs = lambda: listing._replace(infos=[])  # type: ignore[method-assign]
        assert inspector.problems() == [] and inspector.repair(lambda name, data: None) == []
    assert key.read_text() == "r"
    store.close()
