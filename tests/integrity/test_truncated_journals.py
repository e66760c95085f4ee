"""A journal that has lost its end is damaged, whatever it says, and is not gone on with in place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast import CorruptJournal, open_store
from holdfast.integrity import check_store, repair_store
from holdfast.stores.base import Store
from holdfast.stores.files.store import FileStore
from holdfast.stores.memory import MemoryStore
from tests.graphs import chain
from tests.integrity.damage import cut


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def files(tmp_path: Path) -> Any:
    opened = open_store(f"file://{tmp_path / 'runs'}")
    yield opened
    opened.close()


def made(store: Store) -> Any:
    app = chain("a", "b", "c").compile(store)
    app.invoke({"n": 1}, run_id="r")
    return app


def journal_damage(store: Store) -> list[str]:
    report = check_store(store)
    return [str(damage) for run in report.damaged for damage in run.damages if damage.part == "journal"]


def test_a_lost_end_is_damage_of_the_journal_and_goes_on_as_a_new_run(store: Store) -> None:
    app = made(store)
    last = len(list(store.read("r")))
    cut(store, "r", last - 1)

    (damaged,) = check_store(store).damaged
    assert damaged.needs_new_run and [damage.part for damage in damaged.damages] == ["journal"]
    assert f"up to entry {last - 2}" in damaged.remedy
    done = repair_store(store)

    assert done.runs[0].new_run == "r-repaired" and store.runs(run="r")[0].status == "damaged"
    assert app.resume("r-repaired").state["log"] == ["a", "b", "c"]
    assert check_store(store).is_fine and repair_store(store).did_nothing


def test_a_lost_end_that_leaves_the_status_as_it_was_is_found_too(store: Store) -> None:
    app = made(store)
    app.note("r", "important")
    last = len(list(store.read("r")))
    cut(store, "r", last)

    if isinstance(store, MemoryStore):  # It has nothing that outlives what is in its list.
        assert check_store(store).is_fine
        return
    assert journal_damage(store) == [f"entry {last} is missing at its end: its facts are newer"]
    if not isinstance(store, FileStore):
        with pytest.raises(CorruptJournal, match=f"entry {last} is missing"):
            app.get_state("r")
    repair_store(store)
    (repaired,) = [run for run in check_store(store).runs if run.run == "r"]
    assert repaired.repaired_as == "r-repaired" and repaired.damages and app.get_state("r-repaired")["log"]


def test_a_damaged_run_json_is_no_lost_end(files: FileStore) -> None:
    app = made(files)
    app.tag("r", "good")
    path = files.directory / "r" / "run.json"
    whole = path.read_text()
    for old, new in (('"head": 5', '"head": 9'), ("good", "goof"), ('"head": 5', '"head": 1')):
        assert old in whole
        path.write_text(whole.replace(old, new))
        assert journal_damage(files) == []
        repair_store(files)
        assert files.runs(run="r")[0].tags == ("good",) and check_store(files).is_fine


@pytest.mark.parametrize("left", [0, 30, 200, None])
def test_a_run_of_which_nothing_is_left_is_damaged_listed_and_can_be_deleted(
    files: FileStore, left: int | None
) -> None:
    app = made(files)
    journal = files.directory / "r" / "journal"
    if left is None:
        journal.unlink()
    else:
        journal.write_bytes(journal.read_bytes()[:left])
    assert journal_damage(files)

    done = repair_store(files)

    assert "nothing of it can be read" in (done.runs[0].refused or "") and done.runs[0].new_run is None
    assert not check_store(files).is_fine and repair_store(files).did_nothing
    assert [info.status for info in files.runs()] == ["damaged"]
    assert app.delete("r") and files.runs() == [] and not (files.directory / "r").exists()


def test_a_journal_and_a_run_json_of_other_runs_are_damage_and_nothing_is_lost_twice(
    files: FileStore,
) -> None:
    app = made(files)
    app.invoke({"n": 1}, run_id="s")
    for name in ("journal", "run.json"):
        one, other, spare = (files.directory / run / name for run in ("r", "s", ".spare"))
        spare.parent.mkdir(exist_ok=True)
        one.rename(spare)
        other.rename(one)
        spare.rename(other)
        spare.parent.rmdir()
        if name == "journal":
            assert len(journal_damage(files)) == 2
            kept = shutil.copytree(files.directory, files.directory.with_name("kept"))
            repair_store(files)
            assert {info.status for info in files.runs()} == {"damaged"} and repair_store(files).did_nothing
            shutil.rmtree(files.directory)
            kept.rename(files.directory)
            for run in ("r", "s"):  # As they were, to change the other file.
                (files.directory / run / "journal").rename(files.directory / f"{run}.journal")
            (files.directory / "r.journal").rename(files.directory / "s" / "journal")
            (files.directory / "s.journal").rename(files.directory / "r" / "journal")
        else:
            assert journal_damage(files) == []
            repair_store(files)
            assert {info.status for info in files.runs()} == {"completed"}
    assert check_store(files).is_fine
