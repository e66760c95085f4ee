"""`check_store`: what is damaged is found, named and located, and nothing else is; no damage stops it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import HoldfastError, RunNotFound, open_store
from holdfast.engine.commands.inbox import UNREADABLE, RunCommand, read_message, write_message
from holdfast.integrity import check_store
from holdfast.journal import writer as writer_module
from holdfast.journal.checkpoint_ids import moved_mark
from holdfast.journal.journal import Journal
from holdfast.journal.sealing import Seal
from holdfast.state.codec import Codec
from holdfast.stores.base import Append, Snapshot, Store
from holdfast.stores.files.store import FileStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from tests.graphs import chain, one
from tests.integrity.damage import damage_entry, damage_snapshot, flipped, number_of, sql


@pytest.fixture(autouse=True)
def snapshots_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "SNAPSHOT_FLOOR", -4000)


def made(store: Store, run: str = "r") -> Any:
    app = chain("a", "b", "c").compile(store)
    app.invoke({"n": 1}, run_id=run)
    return app


def problems(store: Store) -> list[str]:
    return list(check_store(store).problems)


def test_a_whole_store_is_fine(store: Store) -> None:
    """Completed, paused, forked and pruned runs, messages and snapshots."""
    app = made(store)
    app.resume(app.checkpoints("r")[0].id)
    asking = one(lambda state, ctx: {"log": [ctx.ask("well?")]}).compile(store)
    asking.invoke({"n": 1}, run_id="asked")
    store.post("asked", write_message(RunCommand("pause", by="ada")))
    made(store, "pruned")
    journal = Journal(store)
    loaded = journal.load(journal.info("pruned"), Codec(), store.checkpoints("pruned")[1].seq)
    assert store.prune("pruned", journal.make_snapshot(loaded, Codec())) > 0

    report = check_store(store)

    assert report.problems == () and report.is_fine and report.medium == () and len(report.runs) == 4
    assert all(run.intact is not None and run.last_good is not None for run in report.runs)
    assert {run.run: run.messages for run in report.runs}["asked"] == 1


def test_a_damaged_entry_is_located_and_what_is_intact_is_told(store: Store) -> None:
    """What is damaged, what is intact, and the last good checkpoint."""
    made(store)
    made(store, "other")
    for snapshot in [3, 4]:
        damage_snapshot(store, "r", snapshot)
    damage_entry(store, "r", 3)

    report = check_store(store)

    (damaged,) = report.damaged
    assert damaged.run == "r" and damaged.needs_new_run
    assert any(damage.part == "journal" and damage.seq == 3 for damage in damaged.damages)
    assert damaged.intact is not None and (damaged.intact.start, damaged.intact.end) == (0, 2)
    assert damaged.last_good is not None and damaged.last_good.nodes == ("a",)
    assert damaged.last_good.wave == 1
    assert "up to entry 2" in damaged.remedy


def test_a_later_snapshot_saves_what_follows_a_damaged_entry(memory: Store) -> None:
    made(memory)
    damage_entry(memory, "r", 2)

    (damaged,) = check_store(memory).damaged

    assert damaged.intact is not None and (damaged.intact.start, damaged.intact.end) == (2, 4)
    assert damaged.last_good is not None and damaged.last_good.nodes == ("c",)


def test_a_damaged_snapshot_is_found_and_costs_nothing(store: Store) -> None:
    app = made(store)
    damage_snapshot(store, "r", 3)

    (damaged,) = check_store(store).damaged

    assert [damage.part for damage in damaged.damages] == ["snapshot"] and damaged.damages[0].seq == 3
    assert not damaged.needs_new_run and damaged.intact is not None and damaged.intact.end == 4
    assert app.get_state("r")["log"] == ["a", "b", "c"]


def put(store: MemoryStore, snapshot: Snapshot) -> None:
    store._runs["r"].snapshots[snapshot.seq] = snapshot


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: replace(s, seq=2), "belongs to no entry"),
        (lambda s: replace(s, seq=9), "belongs to no entry"),
        (lambda s: replace(s, chain=flipped(s.chain)), "its checksum does not match"),
        (lambda s: replace(s, at=s.at + 1), "is not what the journal adds up to (time)"),
    ],
)
def test_a_snapshot_at_another_place_or_time_is_found_and_never_believed(
    memory: MemoryStore, change: Callable[[Snapshot], Snapshot], said: str
) -> None:
    app = made(memory)
    whole = [app.get_state("r", checkpoint_id=found.id) for found in app.checkpoints("r")]
    moved = change(memory._runs["r"].snapshots.pop(3))
    put(memory, moved)

    (found,) = problems(memory)
    assert said in found
    assert [app.get_state("r", checkpoint_id=found.id) for found in app.checkpoints("r")] == whole


def test_a_snapshot_of_another_state_is_found(memory: MemoryStore) -> None:
    made(memory)
    journal = Journal(memory)
    loaded = journal.load(journal.info("r"), Codec(), 3)
    loaded.run.root.visits["b"] = 7
    put(memory, journal.make_snapshot(loaded, Codec()))

    assert problems(memory) == ["run 'r': the snapshot at 3 is not what the journal adds up to (visits)"]


def test_missing_entries_and_a_missing_horizon_are_found(memory: MemoryStore) -> None:
    made(memory)
    stored = memory._runs["r"]
    stored.snapshots.clear()
    kept = list(stored.entries)
    stored.entries = [*kept[:1], *kept[2:]]
    assert "run 'r': entry 2 is missing" in problems(memory)

    stored.entries, stored.first = kept[1:], 2
    assert problems(memory)[0] == (
        "run 'r': the snapshot at 2, before which it was pruned, is missing or damaged"
    )

    stored.entries, stored.first = [], 1
    assert problems(memory) == ["run 'r': it has no entries"]


def test_a_fork_whose_parent_is_gone_is_damaged_unless_it_has_a_snapshot_of_its_own(
    memory: MemoryStore,
) -> None:
    app = made(memory)
    fork = app.resume(app.checkpoints("r")[0].id).run_id
    own = dict(memory._runs[fork].snapshots)
    memory.delete("r")
    assert 1 in own and problems(memory) == []

    memory._runs[fork].snapshots.clear()

    (damaged,) = check_store(memory).damaged
    assert "that run is gone" in str(damaged.damages[0]) and damaged.intact is None
    assert "restore it from a backup, or delete it" in damaged.remedy


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": "paused"}, "its facts say that it is paused, its journal completed"),
        ({"workflow": "other"}, "its facts say workflow 'other', its journal 'graph'"),
        ({"parent": b"12345678"}, "its facts name another run that it was forked from"),
    ],
)
def test_facts_that_disagree_with_the_journal_are_found(memory: MemoryStore, change: Any, said: str) -> None:
    made(memory)
    stored = memory._runs["r"]
    stored.info = replace(stored.info, **change)

    assert said in problems(memory)[0] and len(problems(memory)) == 1


def test_a_mark_that_disagrees_with_the_journal_is_found_where_it_is_listed_and_checked(
    memory: MemoryStore,
) -> None:
    app = made(memory)
    entries = memory._runs["r"].entries
    entry, key = entries[1], memory._runs["r"].info.key
    assert entry.mark is not None
    for place in range(len(entry.mark)):
        entries[1] = entry._replace(mark=flipped(entry.mark, place))
        with pytest.raises(HoldfastError, match="damaged facts"):
            app.checkpoints("r")
        assert problems(memory)
    for other in ({"seq": 3}, {"at": entry.at + 1}):
        place = {"seq": 2, "at": entry.at, **other}
        entries[1] = entry._replace(mark=moved_mark(entry.mark, key, **place))
        with pytest.raises(HoldfastError, match="damaged facts"):
            app.checkpoints("r")


def test_messages_that_are_damaged_or_missing_are_found(memory: MemoryStore) -> None:
    asking = one(lambda state, ctx: {"log": [ctx.ask("well?")]}).compile(memory)
    asking.invoke({"n": 1}, run_id="r")
    memory.post("r", b"\x01 no message")
    assert problems(memory) == ["run 'r': message 1 is damaged; the run will refuse it"]

    memory._runs["r"].inbox[0] = replace(memory._runs["r"].inbox[0], number=2)
    assert "run 'r': message 1 is missing" in problems(memory)


def test_a_changed_byte_of_a_message_makes_it_unreadable() -> None:
    body = write_message(RunCommand("cancel", reason="enough", by="ada"))

    assert read_message(body).kind == "cancel"
    for place in range(len(body)):
        assert read_message(flipped(body, place)).kind == UNREADABLE


def test_only_the_runs_that_are_named_are_looked_at(memory: MemoryStore) -> None:
    made(memory)
    made(memory, "s")
    damage_entry(memory, "s", 2)

    assert [run.run for run in check_store(memory, ["r"]).runs] == ["r"]
    assert check_store(memory, ["r"]).is_fine and not check_store(memory, ["r", "s"]).is_fine
    with pytest.raises(RunNotFound, match="no run 'x'"):
        check_store(memory, ["x"])


def test_of_encrypted_runs_without_their_key_the_chains_are_verified(memory: MemoryStore) -> None:
    seal = Seal([bytes(32)])
    app = chain("a", "b").compile(memory, encryption_key=bytes(32))
    app.invoke({"n": 1}, run_id="r")

    assert check_store(memory, seal=seal).is_fine and not check_store(memory, seal=seal).runs[0].sealed
    report = check_store(memory)
    assert report.is_fine and report.runs[0].sealed
    damage_entry(memory, "r", 2)
    assert not check_store(memory).is_fine


def test_it_is_told_how_far_a_check_is(memory: MemoryStore) -> None:
    made(memory)
    made(memory, "s")
    told: list[tuple[int, int, str]] = []

    check_store(memory, progress=lambda *facts: told.append(facts))

    assert [(done, total) for done, total, _ in told] == [(0, 2), (1, 2)] and {run for *_, run in told} == {
        "r",
        "s",
    }


# SQLite.


@pytest.fixture
def sqlite(sqlite_url: str) -> Any:
    opened = open_store(sqlite_url)
    yield opened
    opened.close()


@pytest.mark.parametrize("column", ["status", "workflow", "tags", "queue", "owner"])
def test_a_damaged_row_of_facts_is_refused_by_readers_and_found(sqlite: SqliteStore, column: str) -> None:
    made(sqlite)
    made(sqlite, "other")
    sql(sqlite, f"UPDATE runs SET {column} = 'cancelled' WHERE run = 'r'")

    with pytest.raises(
        HoldfastError, match="the facts of run 'r' are damaged; `holdfast store fsck --repair`"
    ):
        sqlite.runs()
    report = check_store(sqlite)
    assert len(report.runs) == 2 and [run.run for run in report.runs if run.is_fine] == ["other"]


def test_rows_of_no_run_missing_indexes_and_malformed_pages_are_found(sqlite: SqliteStore) -> None:
    made(sqlite)
    sql(sqlite, "INSERT INTO entries VALUES (99 << 32 | 1, 1.0, x'00', NULL, x'00')")
    assert problems(sqlite) == ["1 rows of table entries are of no run"]

    sql(sqlite, "DROP INDEX runs_by_time")
    assert "index runs_by_time is missing" in problems(sqlite)


def test_a_malformed_page_of_an_index_is_found(sqlite_url: str) -> None:
    """SQLite words the damage in another way when it meets the page again."""
    store = open_store(sqlite_url)
    assert isinstance(store, SqliteStore)
    for number in range(4):
        made(store, f"run {number}")
    sql(store, "PRAGMA wal_checkpoint(TRUNCATE)")
    ((page,),) = sql(store, "SELECT rootpage FROM sqlite_schema WHERE name = 'runs_by_time'")
    store.close()
    content = bytearray(store.path.read_bytes())
    cells = (page - 1) * 4096 + 3
    assert content[cells : cells + 2] == b"\x00\x04"
    content[cells + 1] = 64
    store.path.write_bytes(content)

    store = open_store(sqlite_url)
    with pytest.raises(HoldfastError, match="malformed"):
        store.runs()
    assert "Tree" in problems(store)[0] and "out of range" in problems(store)[0]
    store.close()


def test_malformed_pages_spare_the_other_runs(sqlite_url: str, tmp_path: Path) -> None:
    """A page in the middle of the file is lost: some runs cannot be read, the others are still checked."""
    store = open_store(sqlite_url)
    assert isinstance(store, SqliteStore)
    for number in range(40):
        made(store, f"run {number}")
    sql(store, "PRAGMA wal_checkpoint(TRUNCATE)")
    connection_pages = store.path.stat().st_size // 4096
    store.close()
    content = bytearray(store.path.read_bytes())
    place = connection_pages // 2 * 4096
    content[place : place + 4096] = bytes(4096)
    store.path.write_bytes(content)

    store = open_store(sqlite_url)
    report = check_store(store)
    store.close()

    assert not report.is_fine and 0 < len(report.damaged) < 40 and len(report.runs) == 40
    assert all(run.damages and run.remedy for run in report.damaged)


def test_a_journal_whose_end_is_lost_is_not_taken_for_one_that_ends_there(sqlite: SqliteStore) -> None:
    app = made(sqlite)
    last = number_of(sqlite, "r") << 32 | 4
    sql(sqlite, "DELETE FROM entries WHERE id = ?", last)
    sql(sqlite, "DELETE FROM snapshots WHERE id = ?", last)

    with pytest.raises(HoldfastError, match="entry 4 is missing"):
        app.get_state("r")
    assert problems(sqlite)


# Files.


@pytest.fixture
def files(tmp_path: Path) -> Any:
    opened = open_store(f"file://{tmp_path / 'runs'}")
    yield opened
    opened.close()


def test_a_torn_tail_is_no_damage_but_a_lost_end_is(files: FileStore) -> None:
    made(files)
    journal = files.directory / "r" / "journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole[:20])
    assert problems(files) == []

    entries = list(files.read("r"))
    start = whole.index(entries[-1].body)
    journal.write_bytes(whole[: start - 60])

    assert "run 'r': entry 4 is missing at its end: its facts are newer" in problems(files)


def test_other_files_keys_and_facts_of_a_folder_are_found(files: FileStore) -> None:
    made(files)
    (files.directory / "r" / "notes.txt").write_text("mine")
    (found,) = problems(files)
    assert "notes.txt was put there by nobody" in found
    (files.directory / "r" / "notes.txt").unlink()

    key = next((files.directory / ".keys").iterdir())
    key.write_text("elsewhere")
    assert any("does not name the folder r" in problem for problem in problems(files))
    assert files.runs(key=bytes.fromhex(key.name))[0].run == "r"
    key.write_bytes(b"\xff\x00")
    assert files.runs(key=bytes.fromhex(key.name))[0].run == "r"
    key.write_text("r")

    facts = files.directory / "r" / "run.json"
    facts.write_text(facts.read_text().replace("completed", "cancelled"))
    assert problems(files) == ["run 'r': its run.json says something else than its journal"]


def test_what_a_crash_leaves_is_left_over_and_no_damage(files: FileStore) -> None:
    made(files)
    (files.directory / "unborn").mkdir()
    (files.directory / "unborn" / "lock").touch()
    (files.directory / "r" / ".tmp-1").write_text("half")

    report = check_store(files)

    assert report.is_fine and len(report.leftovers) == 2


def test_a_store_of_somebody_else_s_is_checked_with_the_usual_verbs() -> None:
    """A store without its own repair."""

    class Own(MemoryStore):
        inspector = None  # type: ignore[assignment]

    store = Own()
    made(store)
    assert check_store(store).is_fine
    damage_entry(store, "r", 2)
    assert not check_store(store).is_fine
    assert store.commit([Append("r", 4, (), replace(store.runs(run="r")[0], status="failed"))]) == [None]
