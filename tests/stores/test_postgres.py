"""What is PostgreSQL's own: the fence, servers that restart, connections that break, forks, large appends."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast.errors import StoreError
from holdfast.journal.journal import Journal
from holdfast.journal.records import Commanded
from holdfast.journal.writer import Writer as JournalWriter
from holdfast.state.codec import Codec
from holdfast.stores import open_store
from holdfast.stores.base import Append, Conflict, Entry, shown_url
from holdfast.stores.postgres import writing as appending
from holdfast.stores.postgres.connection import read_address
from holdfast.stores.postgres.store import PostgresStore
from tests.postgres import LossyWay, PostgresServer, open_folder
from tests.stores.journals import (
    SOURCE,
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
def store(postgres_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    yield store
    store.close()


def ask(store: PostgresStore, statement: str, *values: object) -> list[tuple[object, ...]]:
    with store.transaction() as connection:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


def writing_connection(store: PostgresStore) -> psycopg.Connection[tuple[object, ...]]:
    writer = store._writing._writer
    assert writer is not None
    return writer.connection


def test_a_link_to_another_predecessor_is_refused(store: PostgresStore) -> None:
    create(store, upto=2)

    def linked(link: bytes, *entries: Entry) -> Conflict | None:
        return store.commit([Append("r", 2, entries, info("r"), link=link)])[0]

    for entries in ((entry(3),), (entry(3), entry(4)), ()):
        conflict = linked(b"another", *entries)
        assert conflict is not None and conflict.head == 2
    assert seqs(store) == [1, 2]
    assert linked(b"chain2") is None and linked(b"chain2", entry(3), entry(4)) is None
    assert seqs(store) == [1, 2, 3, 4]


def test_in_a_batch_each_link_is_looked_at(store: PostgresStore) -> None:
    for run in "abc":
        create(store, run, upto=2)

    links = {"a": b"chain2", "b": b"another", "c": b""}
    answers = store.commit([Append(run, 2, [entry(3)], link=link) for run, link in links.items()])

    assert [answer and answer.head for answer in answers] == [None, 2, None]
    assert [seqs(store, run) for run in "abc"] == [[1, 2, 3], [1, 2], [1, 2, 3]]


def test_plans_that_are_made_while_tables_are_empty_are_good_for_large_ones(store: PostgresStore) -> None:
    create(store, "a")
    create(store, "b")
    add(store, "a", 1)
    store.commit([Append("a", 2, [entry(3)]), Append("b", 1, [entry(2)])])

    connection = writing_connection(store)
    prepared = (
        "SELECT name, cardinality(parameter_types) FROM pg_prepared_statements "
        "WHERE statement ~ '^(WITH|INSERT INTO entry)'"
    )
    plans = [
        str(line)
        for name, count in connection.execute(prepared).fetchall()
        for (line,) in connection.execute(f"EXPLAIN EXECUTE {name} ({', '.join(['NULL'] * count)})".encode())
    ]

    scans = [plan for plan in plans if re.search("Scan.* on run", plan)]
    assert len(scans) == 3 and all("run_by_name" in scan for scan in scans), scans
    assert not [plan for plan in plans if "Seq Scan" in plan]


def test_two_processes_lose_and_double_nothing(store: PostgresStore) -> None:
    hammered(store)


def test_every_acknowledged_entry_survives_kill_9(postgres_url: str) -> None:
    acknowledged = killed_while_appending(postgres_url)

    store = PostgresStore(postgres_url)
    assert acknowledged >= 60 and len(seqs(store)) >= acknowledged
    assert seqs(store) == list(range(1, len(seqs(store)) + 1))
    store.close()


def test_an_append_of_several_entries_writes_nothing_behind_a_conflict(store: PostgresStore) -> None:
    create(store, upto=2)

    several = [entry(2, b"other"), entry(3), entry(4)]
    [conflict] = store.commit([Append("r", 1, several, info("r", status="done"), [snapshot(4)])])

    assert conflict is not None and conflict.head == 2
    assert [each.body for each in store.read("r")] == [b"body 1", b"body 2"]
    assert store.snapshot("r") is None and store.runs()[0].status == "running"


@pytest.mark.parametrize("count", [3, 10])
def test_an_append_too_large_for_one_statement_is_written_whole_or_not_at_all(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(appending, "LARGE_BYTES", 250)
    create(store, upto=2)
    create(store, "s")
    entries = [entry(seq, b"%d" % seq * 100) for seq in range(3, 3 + count)]

    [conflict, other] = store.commit([Append("r", 1, [entry(2), *entries]), Append("s", 1, [entry(2)])])
    assert conflict is not None and conflict.head == 2 and other is None
    assert seqs(store) == [1, 2] and seqs(store, "s") == [1, 2]

    assert store.commit([Append("r", 2, entries, info("r", status="done"), [snapshot(4)])]) == [None]
    assert list(store.read("r", 2)) == entries and store.snapshot("r") == snapshot(4)
    first = [entry(seq, b"x" * 100) for seq in range(1, 1 + count)]
    assert store.commit([Append("new", 0, first, info("new"))]) == [None]
    assert list(store.read("new")) == first


def test_facts_alone_wait_for_an_append_under_way_and_see_it(store: PostgresStore) -> None:
    """Two owners: the one that only updates the status must not overrule the one that advanced the run."""
    create(store)
    other = PostgresStore(store.url)
    answers: list[Conflict | None] = []
    with store.transaction() as connection:
        append = appending.steps_of(Append("r", 1, [entry(2)], info("r", status="ahead")), "default")
        for text, values in append.first:
            connection.execute(text.encode(), values)
        late = threading.Thread(
            target=lambda: answers.extend(other.commit([Append("r", 1, [], info("r", status="behind"))]))
        )
        late.start()
        wait_until(lambda: bool(waiting(store)))
    late.join()

    assert isinstance(answers[0], Conflict) and answers[0].head == 2
    assert store.runs()[0].status == "ahead"
    other.close()


def waiting(store: PostgresStore) -> list[tuple[object, ...]]:
    """The sessions that wait for a lock."""
    with psycopg.connect(**store._server.address.parameters) as connection:  # type: ignore[arg-type]
        return connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        ).fetchall()


def wait_until(happened: Callable[[], bool], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_a_run_is_not_deleted_under_an_append(store: PostgresStore) -> None:
    create(store)
    other = PostgresStore(store.url)
    with store.transaction() as connection:
        for text, values in appending.steps_of(Append("r", 1, [entry(2)]), "default").first:
            connection.execute(text.encode(), values)
        deleting = threading.Thread(target=other.delete, args=("r",))
        deleting.start()
        wait_until(lambda: bool(waiting(store)))
    deleting.join()

    assert ask(store, "SELECT count(*) FROM entry") == [(0,)]
    other.close()


def test_batches_that_clash_are_tried_again(postgres_url: str) -> None:
    """Two transactions that lock runs in opposite order: one is thrown out by the server, and tried again.

    The server looks once after its time-out; by then the rival waits, too, also on a busy machine.
    """
    store = PostgresStore(f"{postgres_url}&options=-c%20deadlock_timeout=1s")
    create(store, "a")
    create(store, "b")
    answers: list[Conflict | None] = []
    batch = [Append(run, 1, [entry(2)], info(run, status="done")) for run in "ab"]
    with psycopg.connect(**store._server.address.parameters) as rival:  # type: ignore[arg-type]
        rival.execute(f'SET search_path TO "{store.schema}"; SET deadlock_timeout = "60s"')
        rival.execute("SELECT 1 FROM run WHERE run = 'b' FOR UPDATE")
        committing = threading.Thread(target=lambda: answers.extend(store.commit(batch)))
        committing.start()
        wait_until(lambda: bool(waiting(store)))
        rival.execute("SELECT 1 FROM run WHERE run = 'a' FOR UPDATE")
        rival.commit()
    committing.join()

    assert answers == [None, None] and seqs(store, "a") == seqs(store, "b") == [1, 2]
    store.close()


def test_numbers_of_deleted_runs_are_not_used_again(store: PostgresStore) -> None:
    create(store, "a")
    create(store, "b")
    [(last,)] = ask(store, "SELECT max(no) FROM run")
    store.delete("b")
    create(store, "c")

    [(new,)] = ask(store, "SELECT no FROM run WHERE run = 'c'")
    assert isinstance(new, int) and isinstance(last, int) and new > last


def test_each_commit_is_as_durable_as_its_most_demanding_append(store: PostgresStore) -> None:
    create(store, "a")
    create(store, "b")

    def after(*durable: bool) -> object:
        heads = {run: seqs(store, run)[-1] for run in "ab"}
        appends = [
            Append(run, heads[run], [entry(heads[run] + 1)], durable=each)
            for run, each in zip("ab", durable, strict=False)
        ]
        assert not any(store.commit(appends))
        return writing_connection(store).execute("SHOW synchronous_commit").fetchall()[0][0]

    assert after(False) == "off"
    assert after(True) == "on"
    assert after(False, False) == "off"
    assert after(False, True) == "on"
    assert after(False) == "off"
    store.post("a", b"must not get lost")
    assert writing_connection(store).execute("SHOW synchronous_commit").fetchall() == [("on",)]


def test_a_server_that_syncs_nothing_by_default_still_does_for_us(
    store: PostgresStore, postgres_server: PostgresServer
) -> None:
    postgres_server.sql("ALTER DATABASE postgres SET synchronous_commit = off")
    try:
        other = PostgresStore(store.url)
        create(other)
        assert writing_connection(other).execute("SHOW synchronous_commit").fetchall() == [("on",)]
        other.close()
    finally:
        postgres_server.sql("ALTER DATABASE postgres RESET synchronous_commit")


class Appending:
    """A thread that goes on appending to a run of its own, and knows what was acknowledged."""

    def __init__(self, store: PostgresStore, run: str) -> None:
        self.store, self.run, self.seq = store, run, 1
        self.errors: list[object] = []
        self._stop = threading.Event()
        create(store, run)
        self._thread = threading.Thread(target=self._append)
        self._thread.start()

    def _append(self) -> None:
        try:
            while not self._stop.is_set():
                new = Entry(self.seq + 1, 1.0, uuid.uuid4().bytes, b"%d" % (self.seq + 1))
                [conflict] = self.store.commit([Append(self.run, self.seq, [new])])
                if conflict is not None:
                    # The reply got lost, not the entry: the journal's writer looks for it the same way.
                    [stored] = self.store.read(self.run, self.seq)
                    assert conflict.head == new.seq and stored.chain == new.chain
                self.seq += 1
        except BaseException as error:
            self.errors.append(error)

    def wait_for_more(self, count: int = 20) -> None:
        seen = self.seq
        wait_until(lambda: self.seq >= seen + count or bool(self.errors))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self.errors == []
        bodies = [each.body for each in self.store.read(self.run, 1)]
        assert bodies == [b"%d" % seq for seq in range(2, self.seq + 1)]


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_of_the_server_loses_and_doubles_nothing(
    store: PostgresStore, postgres_server: PostgresServer, mode: str
) -> None:
    other = PostgresStore(store.url)
    at_work = [Appending(store, "a"), Appending(other, "b")]
    for _ in range(2):
        for each in at_work:
            each.wait_for_more()
        postgres_server.restart(mode)
    for each in at_work:
        each.wait_for_more()
        each.stop()

    assert store.post("a", b"hello") == 1 and store.inbox("a")[0].body == b"hello"
    other.close()


def test_every_verb_survives_a_restart(store: PostgresStore, postgres_server: PostgresServer) -> None:
    create(store, upto=3)
    store.commit([Append("r", 3, [], snapshots=[snapshot(1)])])
    store.post("r", b"one")
    verbs: list[Callable[[], object]] = [
        lambda: seqs(store),
        lambda: store.checkpoints("r"),
        lambda: store.snapshot("r"),
        lambda: store.runs(),
        lambda: store.inbox("r"),
        lambda: ask(store, "SELECT 1"),
        lambda: store.is_live(store.lease()),
        lambda: store.post("r", b"two"),
        lambda: add(store, "r", 3) is None,
        lambda: store.prune("r", snapshot(2)),
        lambda: store.delete("r"),
    ]
    for verb in verbs:
        terminate_all(store)
        assert verb() not in ([], None, False, 0)
    postgres_server.restart("immediate")
    assert store.runs() == []


def terminate_all(store: PostgresStore) -> None:
    """End every session but the asking one, as an administrator would, and wait until they are gone."""
    others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    left = "SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s)"
    with psycopg.connect(**store._server.address.parameters, autocommit=True) as connection:  # type: ignore[arg-type]
        ended = [
            pid for pid, _ in connection.execute(f"SELECT pid, pg_terminate_backend(pid) {others}".encode())
        ]
        wait_until(lambda: not connection.execute(left, (ended,)).fetchall())


@pytest.fixture
def lossy(store: PostgresStore, postgres_server: PostgresServer) -> Iterator[tuple[LossyWay, PostgresStore]]:
    """A store that is reached over a way that can lose answers."""
    with open_folder() as folder:
        way = LossyWay(postgres_server, folder)
        far = PostgresStore(store.url.replace(str(postgres_server.folder), str(folder)))
        yield way, far
        far.close()
        way.close()


def test_a_message_whose_receipt_got_lost_is_not_posted_twice(lossy: tuple[LossyWay, PostgresStore]) -> None:
    way, far = lossy
    create(far)
    way.lose_answer_to(b"said once")

    assert far.post("r", b"said once") == 1

    assert way.lost == 1
    assert [each.body for each in far.inbox("r")] == [b"said once"]
    assert far.post("r", b"again") == 2


def test_a_commit_whose_reply_got_lost_is_recognised_by_the_journal(
    lossy: tuple[LossyWay, PostgresStore], store: PostgresStore
) -> None:
    way, far = lossy
    create(far, "first")
    writer = JournalWriter.create(Journal(far), info("lost and found"), Codec(), durable=True)
    for number in range(3):
        writer.record(Commanded(number, "pause"))
        way.lose_answer_to(b"lost and found")
        writer.flush()

    assert way.lost == 3 and writer.stored == 3
    assert seqs(store, "lost and found") == [1, 2, 3]
    assert store.runs(run="lost and found") == [info("lost and found")]


def test_a_server_that_stays_away_is_reported_after_the_timeout(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    store = PostgresStore(f"{postgres_url}&timeout=0.2")
    create(store)
    postgres_server.stop()
    try:
        for call in (store.runs, lambda: add(store, "r", 1), lambda: PostgresStore(store.url)):
            with pytest.raises(StoreError, match=r"cannot reach postgresql://.*start the server or check"):
                call()
    finally:
        postgres_server.start()
    assert add(store, "r", 1) is None
    store.close()


def test_closing_ends_a_wait_for_the_server(postgres_url: str, postgres_server: PostgresServer) -> None:
    store = PostgresStore(postgres_url)
    create(store)
    errors: list[StoreError] = []

    def wait() -> None:
        try:
            add(store, "r", 1)
        except StoreError as error:
            errors.append(error)

    postgres_server.stop()
    try:
        thread = threading.Thread(target=wait)
        thread.start()
        store.close()
        thread.join(timeout=30)
    finally:
        postgres_server.start()
    assert "closed" in str(errors[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("/postgres?", "/nowhere?"), r'database "nowhere" does not exist; create it \(createdb\)'),
        (("postgres@", "nobody@"), r'role "nobody" does not exist; create the role'),
        (
            ("schema=", "leese=4&schema="),
            r"no parameter 'leese'; did you mean lease\? \(ours: schema, namespace, lease, timeout; .* libpq\)",
        ),
        (("schema=", "port=x&schema="), "is not a URL that PostgreSQL understands"),
        (("schema=", "schema=pg_mine"), "cannot be the schema"),
        (("schema=", f"schema={'x' * 51}"), "at most 50 bytes"),
        (("schema=", "timeout=soon&schema="), "timeout=soon is not a number of seconds"),
        (("schema=", "lease=0&schema="), "lease=0 is not a number of seconds, at least 0.1"),
    ],
)
def test_what_waiting_cannot_mend_is_refused_at_once(
    postgres_url: str, change: tuple[str, str], message: str
) -> None:
    with pytest.raises(StoreError, match=message):
        PostgresStore(postgres_url.replace(*change))


def test_a_server_that_may_only_be_read_is_reported_and_can_be_read(store: PostgresStore) -> None:
    create(store)
    reading = PostgresStore(f"{store.url}&options=-c%20default_transaction_read_only=on")

    for write in (lambda: add(reading, "r", 1), lambda: reading.post("r", b""), lambda: reading.delete("r")):
        with pytest.raises(StoreError, match=r"may only be read .*target_session_attrs=read-write"):
            write()
    assert seqs(reading) == [1] and reading.runs() == store.runs()
    reading.close()


@pytest.mark.parametrize(
    "text",
    ["postgresql://me:s%C3%A9cret@nowhere.invalid/db", "postgres://me@nowhere.invalid/db?password=sécret"],
)
def test_a_password_is_never_shown(text: str, caplog: pytest.LogCaptureFixture) -> None:
    address = read_address(f"{text}{'&' if '?' in text else '?'}schema=s")

    assert address.url == "postgresql://me@nowhere.invalid/db?schema=s"
    assert address.parameters["password"] == "sécret"
    assert "cret" not in repr(address) + shown_url(text)
    with pytest.raises(StoreError) as caught:
        PostgresStore(f"{text}{'&' if '?' in text else '?'}timeout=0")
    told = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "cret" not in told.replace(text, "") and "nowhere.invalid" in told


def test_a_url_that_cannot_be_read_does_not_show_its_password() -> None:
    for url in (
        "postgresql://me:s/cret@host/db",
        "postgresql://me:cret@host:port/db",
        "postgresql://me:cr%zzet@h/d",
        "postgresql://me:cr?et@h/d",
        "postgresql://me:c?cret=e@h/d",
    ):
        with pytest.raises(StoreError, match="special characters") as caught:
            PostgresStore(url)
        for told in (str(caught.value), shown_url(url)):
            assert "cret" not in told and "cr%" not in told and "et@" not in told


def test_a_process_knows_the_password_of_a_database_whatever_is_ours_in_the_url() -> None:
    read_address("postgresql://me:cret@host/db?sslmode=prefer&schema=a")

    again = read_address("postgresql://me@host/db?sslmode=prefer&schema=b&lease=3&namespace=n")

    assert again.parameters["password"] == "cret"
    assert "password" not in read_address("postgresql://you@host/db?sslmode=prefer").parameters


def test_a_question_mark_in_a_url_s_parameters_is_no_password() -> None:
    address = read_address("postgresql://[::1]:5432/db?user=me@there&schema=s")

    assert address.parameters["user"] == "me@there" and address.schema == "s"


def test_a_store_s_own_url_has_no_password_and_opens_it_again(postgres_url: str) -> None:
    store = PostgresStore(postgres_url.replace("postgres@", "postgres:unneeded@"))
    assert "unneeded" not in store.url
    create(store)

    again = open_store(store.url)

    assert isinstance(again, PostgresStore) and seqs(again) == [1] and again.url == store.url
    assert again._server.address.parameters["password"] == "unneeded"
    again.close()
    store.close()


def test_a_value_that_cannot_be_stored_undoes_its_batch_and_the_store_stays_usable(
    store: PostgresStore,
) -> None:
    create(store)
    wrong = entry(2)._replace(body="text")  # type: ignore[arg-type]

    for malformed in (Append("r", 1, [wrong]), Append("s", 0, [entry(1)], info("s", workflow="\ud800"))):
        with pytest.raises(StoreError, match="postgresql://"):
            store.commit([Append("r", 1, [entry(2)]), malformed])
    with pytest.raises(StoreError, match="use shorter run ids"):
        create(store, "".join(map(chr, range(0x4E00, 0x6000))), key=b"12345678")

    assert [each.run for each in store.runs()] == ["r"] and seqs(store) == [1]
    assert add(store, "r", 1) is None


@pytest.mark.parametrize("odd", ["a\0b", "\1", "\1\1\0\1\2\0\0", "\0"])
def test_any_text_can_be_a_fact(store: PostgresStore, odd: str) -> None:
    facts = info(
        "r", workflow=odd, status=odd, owner=odd, tags=(odd, "b"), queue=odd, priority=-3, due_at=2.5
    )
    create(store, "r", **{name: getattr(facts, name) for name in ("workflow", "status", "owner", "tags")})
    store.commit([Append("r", 1, [], facts)])

    assert store.runs(workflow=odd, status=[odd]) == store.runs(status=["x", odd]) == [facts]


def test_sql_of_one_s_own_is_a_transaction_in_the_store_s_schema(store: PostgresStore) -> None:
    create(store)
    with pytest.raises(ZeroDivisionError), store.transaction() as connection:
        connection.execute("UPDATE run SET held = 'x'")
        raise ZeroDivisionError
    with pytest.raises(StoreError, match="no_such_table"), store.transaction() as connection:
        connection.execute("SELECT * FROM no_such_table")

    assert ask(store, "SELECT held, current_schema() FROM run") == [(None, store.schema)]
    terminate_all(store)
    with store.transaction() as connection:
        connection.execute("UPDATE run SET held = 'y'")
    assert ask(store, "SELECT held FROM run") == [("y",)]


def test_parent_and_child_both_go_on_after_a_fork(postgres_url: str) -> None:
    FORKING = """
import os, threading
create(store, "r")
store.runs(), store.inbox("r"), store.inbox("r"), store.changed("r", 0)
mine = store.lease()
stop = threading.Event()
def write():
    seq = 1
    while not stop.is_set():
        assert add(store, "r", seq) is None
        seq += 1
writer = threading.Thread(target=write)
writer.start()
for number in range(5):
    child = os.fork()
    if not child:
        create(store, f"child {number}")
        for seq in range(1, 20):
            assert add(store, f"child {number}", seq) is None
        assert store.lease() != mine and store.is_live(store.lease()) and store.is_live(mine)
        store.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
writer.join()
assert seqs(store, "r") == list(range(1, len(seqs(store, "r")) + 1))
assert store.lease() == mine and store.is_live(mine)
print(len(store.runs()), [len(seqs(store, f"child {number}")) for number in range(5)])
store.close()
"""
    assert finish(start(FORKING, postgres_url)) == "6 [20, 20, 20, 20, 20]\n"


def test_a_closed_store_leaves_no_thread_and_no_connection(store: PostgresStore) -> None:
    before = set(threading.enumerate())
    other = PostgresStore(f"{store.url}&application_name=counted")
    create(other)
    other.lease()
    other.changed("r", 0)
    other.listen_queue(print)
    other.close()

    assert set(threading.enumerate()) <= before
    wait_until(lambda: not ask(store, "SELECT 1 FROM pg_stat_activity WHERE application_name = 'counted'"))
    for call in (other.lease, lambda: other.changed("r", 0), lambda: other.transaction().__enter__()):
        with pytest.raises(StoreError, match="closed"):
            call()


def test_a_store_that_is_forgotten_ends_its_threads(store: PostgresStore) -> None:
    before = set(threading.enumerate())
    forgotten = PostgresStore(store.url)
    create(forgotten)
    lease = forgotten.lease()
    del forgotten
    gc.collect()

    assert set(threading.enumerate()) <= before
    assert not store.is_live(lease)


def test_without_psycopg_the_error_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text("raise ImportError('no libpq', name='psycopg')")
    program = (
        "from holdfast.stores import open_store\n"
        "try: open_store('postgresql://host/db')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{SOURCE}"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ)

    assert (
        done.stdout
        == "StoreError PostgreSQL stores need the package psycopg: pip install 'holdfast[postgres]'\n"
    )
