"""Leases by the server's clock, and notifications of changes instead of polling."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from holdfast.stores.base import Append, Leases, Watched
from holdfast.stores.postgres.store import PostgresStore
from tests.postgres import PostgresServer
from tests.stores.journals import add, create, entry, info, start


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(f"{postgres_url}&lease=3")
    yield store
    store.close()


@pytest.fixture
def other(store: PostgresStore) -> Iterator[PostgresStore]:
    """As another machine would have it."""
    other = PostgresStore(store.url)
    yield other
    other.close()


def wait_until(happened: Callable[[], bool], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def ask(store: PostgresStore, statement: str) -> list[tuple[object, ...]]:
    with store.transaction() as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def test_a_store_has_leases_and_tells_of_changes(store: PostgresStore) -> None:
    assert isinstance(store, Leases) and isinstance(store, Watched)


def test_while_a_lease_is_late_it_says_so_each_time_it_is_asked(
    postgres_url: str, other: PostgresStore
) -> None:
    """Others may take over at any time: an owner checks before every step, not only before the first."""
    store = PostgresStore(f"{postgres_url}&lease=1")
    store.lease()

    with other.transaction() as connection:
        connection.execute("LOCK TABLE lease IN ACCESS EXCLUSIVE MODE")
        wait_until(lambda: len({store.lapses() for _ in range(5)}) == 5)

    wait_until(lambda: len({store.lapses() for _ in range(5)}) == 1)
    store.close()


def test_a_lease_lives_while_its_process_renews_it(store: PostgresStore, other: PostgresStore) -> None:
    mine = store.lease()
    [(first,)] = ask(store, "SELECT until FROM lease")

    assert store.lease() == mine and other.lease() != mine
    wait_until(lambda: ask(store, f"SELECT until FROM lease WHERE id = '{mine}'") > [(first,)])
    assert store.is_live(mine) and other.is_live(mine)
    assert not store.is_live("0b7e9a40-7b0a-4d3c-9a35-6a9d8a1f2d11") and not store.is_live("nonsense")

    store.close()
    assert not other.is_live(mine)
    assert ask(other, f"SELECT 1 FROM lease WHERE id = '{mine}'") == []


def test_the_lease_of_a_killed_process_ends_by_itself(store: PostgresStore) -> None:
    process = start(
        "import time; print(store.lease(), flush=True); time.sleep(60)",
        store.url.replace("lease=3", "lease=1.5"),
    )
    assert process.stdout is not None and process.stderr is not None
    theirs = process.stdout.readline().strip()
    assert store.is_live(theirs)

    process.send_signal(signal.SIGKILL)
    wait_until(lambda: not store.is_live(theirs))

    process.wait()
    process.stdout.close()
    process.stderr.close()


def test_a_lease_is_taken_up_again_after_a_restart_of_the_server(
    store: PostgresStore, postgres_server: PostgresServer
) -> None:
    mine = store.lease()
    postgres_server.restart("immediate")
    ask(store, "DELETE FROM lease")

    wait_until(lambda: store.is_live(mine))
    assert store.lease() == mine


def test_leases_that_are_dead_for_long_are_forgotten(store: PostgresStore, other: PostgresStore) -> None:
    other.lease()
    ask(
        store,
        "INSERT INTO lease (id, namespace, host, pid, until) VALUES "
        "('0b7e9a40-7b0a-4d3c-9a35-6a9d8a1f2d11', 'default', '', 1, now() - interval '25 hours'), "
        "('0b7e9a40-7b0a-4d3c-9a35-6a9d8a1f2d12', 'default', '', 2, now() - interval '1 hour'), "
        "('0b7e9a40-7b0a-4d3c-9a35-6a9d8a1f2d13', 'elsewhere', '', 3, now() - interval '25 hours')",
    )

    store.lease()

    assert {row[0] for row in ask(store, "SELECT pid FROM lease")} == {2, 3, os.getpid()}


def listening(store: PostgresStore, run: str = "r") -> None:
    """Return when the store receives notifications, and has received the earlier ones."""
    store.changed(run, 0)
    wait_until(lambda: store._watch.epoch > 0)
    while store.changed(run, 0.2):
        pass


def test_whoever_waits_is_told_of_appends_and_messages_of_others(
    store: PostgresStore, other: PostgresStore
) -> None:
    create(store)
    create(store, "s")
    listening(store)

    for change in (
        lambda: add(other, "r", 1),
        lambda: other.post("r", b"hello"),
        lambda: other.commit([Append("r", 2, [], info("r", status="paused"))]),
        lambda: other.delete("r"),
        lambda: create(store, "r"),
    ):
        change()
        assert store.changed("r", 30)
        while store.changed("r", 0.2):
            pass

    add(other, "s", 1)
    assert not store.changed("r", 0.2)


def test_a_change_between_a_look_and_the_wait_is_not_missed(
    store: PostgresStore, other: PostgresStore
) -> None:
    create(store)
    listening(store)
    told: list[bool] = []
    waiting = threading.Thread(target=lambda: told.extend((store.changed("r", 0), store.changed("r", 30))))
    waiting.start()
    waiting.join(0.1)
    add(other, "r", 1)
    waiting.join()
    assert told == [True, True]

    add(other, "r", 2)
    wait_until(lambda: store._watch._ticks != {} and store.runs() != [])
    assert store.changed("r", 30)


def test_a_wait_goes_on_through_a_restart_of_the_server(
    store: PostgresStore, other: PostgresStore, postgres_server: PostgresServer
) -> None:
    create(store)
    listening(store)

    postgres_server.restart("immediate")
    assert store.changed("r", 30), "what happened meanwhile was not heard"
    listening(store)
    add(other, "r", 1)

    assert store.changed("r", 30)


def test_many_appends_are_announced_in_few_words(
    store: PostgresStore, postgres_server: PostgresServer
) -> None:
    with psycopg.connect(host=str(postgres_server.folder), user="postgres", autocommit=True) as ear:
        ear.execute(f'LISTEN "{store.schema}:run"'.encode())
        create(store)
        for seq in range(1, 200):
            add(store, "r", seq)
        store.close()
        heard = list(ear.notifies(timeout=0.2))

    assert 1 <= len(heard) < 60


def test_an_inbox_that_is_known_to_be_empty_is_not_read_again(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store)
    reads: list[int] = []
    read = store._read_inboxes

    def counted(*given: object) -> object:
        reads.append(1)
        return read(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_read_inboxes", counted)
    store.inbox("r")
    store.inbox("r")
    wait_until(lambda: store._watch.epoch > 0)
    store.inbox("r")
    before = len(reads)

    for _ in range(100):
        assert store.inbox("r") == []
    assert len(reads) <= before + 1

    other.post("r", b"one")
    wait_until(lambda: [each.body for each in store.inbox("r")] == [b"one"])
    store.post("r", b"two")
    assert [each.number for each in store.inbox("r")] == [1, 2]
    assert [each.number for each in store.inbox("r", after=1)] == [2]
    assert store.inbox("r", after=2) == []
    assert [each.number for each in store.inbox("r")] == [1, 2]


def test_messages_are_found_while_nobody_can_tell_of_them(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store._watch, "start", lambda: None)
    create(store)
    assert store.inbox("r") == []
    other.post("r", b"one")

    assert len(store.inbox("r")) == 1
    assert store.changed("r", 0.05) and store.changed("r", 0.05)


def test_who_listens_to_the_queues_of_a_namespace_hears_of_queued_runs(
    store: PostgresStore, other: PostgresStore
) -> None:
    stranger = PostgresStore(store.url, namespace="elsewhere")
    heard = threading.Semaphore(0)
    stop = store.listen_queue(heard.release)
    wait_until(lambda: store._watch.epoch > 0)
    while heard.acquire(timeout=0.2):
        pass

    create(other, "driven", queue="q", status="running")
    create(other, "plain", status="queued")
    create(stranger, "theirs", queue="q", status="queued")
    assert not heard.acquire(timeout=0.2)
    create(other, "queued", queue="q", status="queued")
    assert heard.acquire(timeout=30)
    other.commit([Append("driven", 1, [entry(2)], info("driven", queue="q", status="paused", due_at=5.0))])
    assert heard.acquire(timeout=30)

    stop()
    create(other, "later", queue="q", status="queued")
    assert not heard.acquire(timeout=0.2)
    stranger.close()


def test_a_listener_that_fails_does_not_stop_the_others(
    store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    heard = threading.Event()
    store.listen_queue(lambda: 1 / 0)
    store.listen_queue(heard.set)
    create(store, "r", queue="q", status="queued")

    assert heard.wait(30)
    wait_until(lambda: "ZeroDivisionError" in caplog.text)


def test_closing_wakes_whoever_waits(store: PostgresStore) -> None:
    create(store)
    listening(store)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            store.changed("r", 60)
            store.changed("r", 60)
        except BaseException as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.1)
    store.close()
    waiting.join(30)

    assert not waiting.is_alive() and "closed" in str(errors[0])
