"""Tests of the SQLite store alone: schema, foreign files, locks, forks, failing disks."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.errors import CorruptJournal, StoreError
from holdfast.stores.base import SCHEMA_VERSION, Append, Conflict
from holdfast.stores.sqlite import connection as sqlite_file
from holdfast.stores.sqlite.connection import APPLICATION_ID
from holdfast.stores.sqlite.store import SqliteStore
from tests.stores.journals import (
    add,
    create,
    entry,
    finish,
    hammered,
    info,
    killed_while_appending,
    seqs,
    snapshot,
    start,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    store.close()


def sql(path: Path, *statements: str) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(path))
    try:
        return [row for statement in statements for row in connection.execute(statement).fetchall()]
    finally:
        connection.close()


def writing_connection(store: SqliteStore) -> apsw.Connection:
    assert store._writer is not None
    return store._writer.connection


def test_a_new_file_is_private_marked_as_ours_and_in_wal_mode(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "runs.db"
    SqliteStore(path).close()

    assert path.stat().st_mode & 0o777 == 0o600
    assert sql(path, "PRAGMA application_id", "PRAGMA user_version", "PRAGMA journal_mode") == [
        (APPLICATION_ID,),
        (SCHEMA_VERSION,),
        ("wal",),
    ]


def test_an_empty_file_or_empty_database_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    sql(tmp_path / "vacuumed", "CREATE TABLE t (x)", "DROP TABLE t", "VACUUM")

    for name in ("empty", "vacuumed"):
        store = SqliteStore(tmp_path / name)
        create(store)
        assert seqs(store) == [1]
        store.close()


def test_a_database_of_another_version_is_refused_and_left_alone(path: Path) -> None:
    """S0.3, S0.23."""
    SqliteStore(path).close()
    sql(path, "PRAGMA user_version = 99", "PRAGMA journal_mode = DELETE")
    before = path.read_bytes()

    with pytest.raises(StoreError, match=r"another version of Holdfast \(schema 99, this version has \d+\)"):
        SqliteStore(path)

    assert path.read_bytes() == before


def test_a_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    sql(path, "CREATE TABLE theirs (x)")
    before = path.read_bytes()

    with pytest.raises(StoreError, match="another program"):
        SqliteStore(path)

    assert path.read_bytes() == before


_ENDLESS = (
    "AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS no, x AS run FROM n"
)

HOSTILE = {
    "an endless view for a table": ("ALTER TABLE runs RENAME TO hidden", f"CREATE VIEW runs {_ENDLESS}"),
    "a view beside the tables": (f"CREATE VIEW extra {_ENDLESS}",),
    "a table named like a function": ("CREATE TABLE pragma_application_id (application_id)",),
    "a view named like a function": (f"CREATE VIEW pragma_user_version {_ENDLESS}",),
    "a trigger": ("CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM entries; END",),
    "an index on an expression": ("CREATE INDEX more ON runs (hex(zeroblob(no)))",),
    "a changed table": ("ALTER TABLE inbox ADD COLUMN more TEXT GENERATED ALWAYS AS (hex(zeroblob(id)))",),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_file_with_a_schema_that_is_not_ours_is_refused_before_it_is_read(path: Path, how: str) -> None:
    """The views of a foreign file may be endless, and its triggers run with every write."""
    SqliteStore(path).close()
    sql(path, *HOSTILE[how])

    with pytest.raises(StoreError, match="not as Holdfast makes it"):
        SqliteStore(path)


def test_a_file_that_was_analyzed_is_opened(path: Path) -> None:
    SqliteStore(path).close()
    sql(path, "ANALYZE")

    store = SqliteStore(path)
    create(store)

    assert seqs(store) == [1]


def test_a_query_that_does_not_come_to_an_end_is_ended(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages of a foreign file may form a loop."""
    monkeypatch.setattr(sqlite_file, "_LEAST_ROUNDS", 2)
    create(store)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"

    with pytest.raises(CorruptJournal, match="a query of it does not end"):
        store._rows(endless, ())

    assert seqs(store) == [1]


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("dear diary, " * 500)

    with pytest.raises(StoreError, match=r"runs\.db is not a SQLite database"):
        SqliteStore(path)

    assert path.read_text() == "dear diary, " * 500


def test_a_path_where_no_file_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StoreError, match="cannot create"):
        SqliteStore(tmp_path / "file" / "runs.db")
    with pytest.raises(StoreError, match=str(tmp_path)):
        SqliteStore(tmp_path)


def test_many_processes_may_create_the_database_together(path: Path) -> None:
    url = f"sqlite:///{path}"
    started = [start("create(store, sys.argv[2]); store.close()", url, f"run {each}") for each in range(6)]
    for process in started:
        finish(process)

    store = SqliteStore(path)
    assert len(store.runs()) == 6
    store.close()


def test_two_processes_lose_and_double_nothing(store: SqliteStore) -> None:
    hammered(store)


def test_every_acknowledged_entry_survives_kill_9(path: Path) -> None:
    acknowledged = killed_while_appending(f"sqlite:///{path}")

    store = SqliteStore(path)
    assert acknowledged >= 60
    assert len(seqs(store)) >= acknowledged
    assert seqs(store) == list(range(1, len(seqs(store)) + 1))
    store.close()


def test_parent_and_child_both_go_on_after_a_fork(path: Path) -> None:
    FORKING = """
import os
create(store, "r")
store.runs()
child = os.fork()
name = "r" if child else "child"
if not child:
    create(store, name)
for seq in range(1, 50):
    assert add(store, name, seq) is None
if not child:
    store.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert add(store, "child", 50) is None
print(len(seqs(store, "r")), len(seqs(store, "child")))
store.close()
"""
    assert finish(start(FORKING, f"sqlite:///{path}")) == "50 51\n"


def test_a_fork_waits_for_a_commit_under_way_and_the_child_can_write(path: Path) -> None:
    FORKING = """
import os, threading
create(store, "r")
stop = threading.Event()
def write():
    seq = 1
    while not stop.is_set():
        assert add(store, "r", seq) is None
        seq += 1
writer = threading.Thread(target=write)
writer.start()
for number in range(10):
    child = os.fork()
    if not child:
        create(store, f"child {number}")
        store.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
writer.join()
assert seqs(store, "r") == list(range(1, len(seqs(store, "r")) + 1))
print(len(store.runs()))
store.close()
"""
    assert finish(start(FORKING, f"sqlite:///{path}")) == "11\n"


def test_a_connection_of_a_parent_is_never_used_even_after_a_fork_that_went_unnoticed(
    store: SqliteStore,
) -> None:
    create(store)
    parents = writing_connection(store)
    store._pid -= 1

    assert add(store, "r", 1) is None

    assert writing_connection(store) is not parents
    assert parents.execute("SELECT count(*) FROM entries").fetchall() == [(2,)]
    parents.close()


def test_a_full_disk_is_reported_and_the_store_stays_usable(store: SqliteStore) -> None:
    create(store)
    writing_connection(store).pragma("max_page_count", 40)
    big = entry(2, b"x" * 1_000_000)

    with pytest.raises(StoreError, match="no room left"):
        store.commit([Append("r", 1, [big])])
    with pytest.raises(StoreError, match="no room left"):
        store.commit([Append("new", 0, [entry(1)], info("new")), Append("r", 1, [big], info("r"))])

    assert [each.run for each in store.runs()] == ["r"] and seqs(store) == [1]
    assert add(store, "r", 1) is None
    create(store, "new", upto=2)
    assert seqs(store) == seqs(store, "new") == [1, 2]


def test_a_database_that_may_only_be_read_is_reported_and_the_store_stays_usable(store: SqliteStore) -> None:
    create(store)
    writing_connection(store).pragma("query_only", True)

    for write in (
        lambda: add(store, "r", 1),
        lambda: create(store, "s"),
        lambda: store.post("r", b"x"),
        lambda: store.delete("r"),
        lambda: store.prune("r", snapshot(1)),
    ):
        with pytest.raises(StoreError, match=r"runs\.db may only be read"):
            write()

    writing_connection(store).pragma("query_only", False)
    assert add(store, "r", 1) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write any file")
def test_a_file_without_write_permission_is_refused_clearly(path: Path) -> None:
    SqliteStore(path).close()
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        with pytest.raises(StoreError, match=r"runs\.db"):
            create(SqliteStore(path))
    finally:
        path.parent.chmod(0o700)


def test_a_damaged_database_is_reported_as_damage(path: Path, store: SqliteStore) -> None:
    create(store)
    for seq in range(1, 30):
        store.commit([Append("r", seq, [entry(seq + 1, b"x" * 3000)])])
    store.close()
    pages = bytearray(path.read_bytes())
    pages[4096 * 8 :] = b"\xee" * (len(pages) - 4096 * 8)
    path.write_bytes(pages)

    damaged = SqliteStore(path)
    with pytest.raises(CorruptJournal, match=r"runs\.db is damaged"):
        list(damaged.read("r"))
    damaged.close()


def test_a_short_lock_by_another_program_is_waited_for(path: Path, store: SqliteStore) -> None:
    create(store)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.3, lambda: other.execute("COMMIT"))
    release.start()

    assert add(store, "r", 1) is None

    release.join()
    other.close()


def test_a_lock_that_never_ends_is_reported_with_what_to_do(path: Path) -> None:
    store = SqliteStore(path, timeout=0.1)
    create(store)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreError, match=r"runs\.db stayed locked .* end whatever holds it"):
        add(store, "r", 1)

    other.execute("ROLLBACK")
    other.close()
    assert add(store, "r", 1) is None
    store.close()


def test_opening_waits_for_a_program_that_holds_the_whole_file(path: Path) -> None:
    other = apsw.Connection(str(path))
    other.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(0.3, lambda: other.execute("ROLLBACK"))
    release.start()

    store = SqliteStore(path)

    create(store)
    store.close()
    release.join()
    other.close()


def test_opening_gives_up_on_a_file_that_stays_locked(path: Path) -> None:
    other = apsw.Connection(str(path))
    other.execute("BEGIN EXCLUSIVE")

    with pytest.raises(StoreError, match=r"runs\.db stayed locked"):
        SqliteStore(path, timeout=0.1)

    other.close()


def test_opening_insists_where_sqlite_itself_would_not_wait(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_for_real, refusals = sqlite_file._opened, [apsw.BusyError("busy"), apsw.ProtocolError("protocol")]

    def refuse_twice(path: Path, timeout: float) -> apsw.Connection:
        if refusals:
            raise refusals.pop()
        return open_for_real(path, timeout)

    monkeypatch.setattr(sqlite_file, "_opened", refuse_twice)
    store = SqliteStore(path)
    create(store)
    store.close()
    assert refusals == []


def test_a_value_that_cannot_be_stored_undoes_its_batch_and_the_store_stays_usable(
    store: SqliteStore,
) -> None:
    create(store)
    wrong = entry(1)._replace(body="text")  # type: ignore[arg-type]

    with pytest.raises(StoreError, match=r"runs\.db"):
        store.commit([Append("r", 1, [entry(2)]), Append("s", 0, [wrong], info("s"))])

    assert [each.run for each in store.runs()] == ["r"] and seqs(store) == [1]
    assert add(store, "r", 1) is None
    create(store, "s")


def test_reading_does_not_wait_for_a_writer(path: Path, store: SqliteStore) -> None:
    create(store)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE; DELETE FROM entries")

    assert seqs(store) == [1] and store.checkpoints("r") and store.runs(), (
        "whoever waits is told that it stayed locked"
    )

    other.execute("ROLLBACK")
    other.close()


def test_each_commit_is_as_durable_as_its_most_demanding_append(store: SqliteStore) -> None:
    create(store, "a")
    create(store, "b")
    normal, full = 1, 2

    def after(*durable: bool) -> object:
        heads = {run: seqs(store, run)[-1] for run in "ab"}
        appends = [
            Append(run, heads[run], [entry(heads[run] + 1)], durable=each)
            for run, each in zip("ab", durable, strict=False)
        ]
        assert not any(store.commit(appends))
        return writing_connection(store).pragma("synchronous")

    assert after(False) == normal
    assert after(True) == full
    assert after(False, False) == normal
    assert after(False, True) == full
    assert after(False) == normal


def test_numbers_of_deleted_runs_are_not_used_again(path: Path, store: SqliteStore) -> None:
    create(store, "a")
    create(store, "b")
    [(last,)] = sql(path, "SELECT max(no) FROM runs")
    assert isinstance(last, int)
    store.delete("b")
    create(store, "c")

    assert sql(path, "SELECT no FROM runs WHERE run = 'c'") == [(last + 1,)]


def test_a_run_rolled_back_is_not_remembered(store: SqliteStore) -> None:
    writing_connection(store).pragma("max_page_count", 30)
    with pytest.raises(StoreError):
        store.commit([Append("a", 0, [entry(1, b"x" * 1_000_000)], info("a"))])
    create(store, "b")

    conflict = add(store, "a", 1)

    assert isinstance(conflict, Conflict) and conflict.head is None
    assert seqs(store, "b") == [1]


def test_deleting_lets_space_be_used_again(path: Path, store: SqliteStore) -> None:
    def fill(run: str) -> int:
        store.commit([Append(run, 0, [entry(1, b"x" * 2_000_000)], info(run))])
        store.delete(run)
        [(pages,)] = sql(path, "PRAGMA page_count")
        assert isinstance(pages, int)
        return pages

    first = fill("a")
    assert max(fill(f"run {number}") for number in range(5)) <= first + 5


def test_the_newest_checkpoints_of_a_long_run_are_listed_without_reading_the_run(
    path: Path, store: SqliteStore
) -> None:
    create(store)
    entries = [entry(seq, b"x" * 500)._replace(mark=b"m" if seq % 3 else None) for seq in range(2, 10_001)]
    store.commit([Append("r", 1, entries)])

    def steps(limit: int | None) -> int:
        """How many steps SQLite's machine takes, in tens."""
        taken = []
        assert store._reader is not None
        store._reader.set_progress_handler(lambda: bool(taken.append(1)), 10)  # type: ignore[func-returns-value]
        store.checkpoints("r", limit=limit)
        return len(taken)

    marks = store.checkpoints("r", limit=50)
    assert len(marks) == 50 and marks[0].seq == 10_000
    assert 0 < steps(50) < steps(None) / 5
