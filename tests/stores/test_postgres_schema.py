"""The schema of a PostgreSQL store: creating it, its version, and the views that people query."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast.errors import StoreError
from holdfast.journal.checkpoint_ids import checkpoint_id, encode_mark
from holdfast.stores.base import SCHEMA_VERSION
from holdfast.stores.postgres import schema
from holdfast.stores.postgres.connection import Connection, Server, read_address
from holdfast.stores.postgres.store import PostgresStore
from tests.graphs import chain
from tests.postgres import PostgresServer
from tests.stores.journals import create, finish, seqs, start


@pytest.fixture
def connection(postgres_url: str) -> Iterator[Connection]:
    """A connection in a schema that has no tables yet."""
    connection = Server(read_address(postgres_url)).connect()
    yield connection
    connection.close()


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    yield store
    store.close()


def rows(store: PostgresStore, statement: str, *values: object) -> list[dict[str, Any]]:
    with store.transaction() as connection:
        cursor = connection.cursor(row_factory=psycopg.rows.dict_row)
        return cursor.execute(statement.encode(), values or None).fetchall()


def test_many_processes_may_create_the_schema_together(postgres_url: str) -> None:
    program = "create(store, sys.argv[2]); store.close()"
    started = [start(program, postgres_url, f"run {each}") for each in range(3)]
    for process in started:
        finish(process)

    store = PostgresStore(postgres_url)
    assert len(store.runs()) == 3
    assert rows(store, "SELECT version FROM schema_version") == [{"version": SCHEMA_VERSION}]
    store.close()


def test_a_creation_that_fails_leaves_nothing(
    postgres_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = read_address(postgres_url)
    with monkeypatch.context() as patched:
        patched.setattr(schema, "SCHEMA_VERSION", None)
        with pytest.raises(psycopg.errors.NotNullViolation):
            schema.create(connection, address)

    assert schema.read_version(connection, address) == 0
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    schema.create(connection, address)
    assert schema.stored_version(postgres_url) == SCHEMA_VERSION


def test_a_schema_of_another_version_is_refused_and_left_alone(store: PostgresStore) -> None:
    """S0.3, S0.23."""
    create(store)
    with store.transaction() as connection:
        connection.execute("UPDATE schema_version SET version = 99")

    with pytest.raises(StoreError, match=r"another version of Holdfast \(schema 99, this version has \d+\)"):
        PostgresStore(store.url)
    with pytest.raises(StoreError, match="another version"):
        schema.stored_version(store.url)
    assert rows(store, "SELECT version FROM schema_version") == [{"version": 99}] and seqs(store) == [1]


def test_a_schema_of_another_program_is_refused_and_left_alone(
    postgres_url: str, connection: Connection, postgres_server: PostgresServer
) -> None:
    name = read_address(postgres_url).schema
    for table in ("run (x int)", "schema_version (x int)"):
        connection.execute(f"CREATE SCHEMA {name}; CREATE TABLE {name}.{table}".encode())
        with pytest.raises(StoreError, match=r"another program; choose another with \?schema=NAME"):
            PostgresStore(postgres_url)
        assert len(postgres_server.sql("SELECT 1 FROM pg_tables WHERE schemaname = %s", name)) == 1
        connection.execute(f"DROP SCHEMA {name} CASCADE".encode())


@pytest.mark.parametrize("name", ['Odd "name"; --', "ünï", "x" * 50])
def test_a_schema_may_have_any_name(postgres_server: PostgresServer, name: str) -> None:
    store = PostgresStore(postgres_server.url(_percent(name)))
    try:
        create(store)
        store.post("r", b"x")
        assert store.changed("r", 0) and store.schema == name
        again = PostgresStore(store.url)
        assert seqs(again) == [1]
        again.close()
    finally:
        store.close()
        quoted = name.replace('"', '""')
        postgres_server.sql(f'SET client_min_messages = warning; DROP SCHEMA "{quoted}" CASCADE')


def _percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def test_a_database_in_another_encoding_is_refused(postgres_server: PostgresServer) -> None:
    postgres_server.sql("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(StoreError, match="encoded in LATIN1; make one that is encoded in UTF8"):
            PostgresStore(postgres_server.url().replace("/postgres?", "/latin?"))
    finally:
        postgres_server.sql("DROP DATABASE latin WITH (FORCE)")


def test_a_server_that_is_too_old_is_refused(
    postgres_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "OLDEST_SERVER", 99)

    with pytest.raises(StoreError, match=r"is PostgreSQL \d+; version 99 or newer is needed"):
        PostgresStore(postgres_url)


def test_checkpoint_ids_of_sql_are_those_of_the_journal(store: PostgresStore) -> None:
    """The documented views name checkpoints as every other reader does."""
    chance = random.Random(4)
    keys = [chance.randbytes(8) for _ in range(100)] + [bytes(8), b"\xff" * 8]
    places = [chance.choice([chance.randrange(1, 50), chance.randrange(1 << 32)]) for _ in keys]

    with store.transaction() as connection:
        found = connection.execute(
            "SELECT checkpoint_id(key, seq)::text FROM unnest(%s::bytea[], %s::bigint[]) AS given (key, seq)",
            (keys, places),
        ).fetchall()

    expected = [checkpoint_id(key, seq) for key, seq in zip(keys, places, strict=True)]
    assert [ident for (ident,) in found] == expected


@pytest.mark.parametrize(
    ("wave", "nodes", "next_", "frame"),
    [
        (0, [], ["first"], ""),
        (127, ["a", "b"], [], "outer#1/inner"),
        (128, ["ä" * 20] * 15, ["x" * 40], ""),
        (40_000, [f"n{number}" for number in range(16)], ["y" * 300], "z" * 70_000),
        (1 << 20, [f"n{number}" for number in range(300)], [""], 'quo"ted'),
    ],
)
def test_sql_reads_marks_as_the_journal_writes_them(
    store: PostgresStore, wave: int, nodes: list[str], next_: list[str], frame: str
) -> None:
    [row] = rows(store, "SELECT read_mark(%s) AS mark", encode_mark(wave, nodes, next_, frame))

    assert row["mark"] == {"wave": wave, "nodes": nodes, "next": next_, "frame": frame}


@pytest.mark.parametrize(
    "damaged", [b"", b"mark", b"\xff", b"\xa5abc", b"\x94\x01\xa1\xff\x90\xa0", b"\x94\x01\x90"]
)
def test_a_mark_that_cannot_be_read_is_null(store: PostgresStore, damaged: bytes) -> None:
    assert rows(store, "SELECT read_mark(%s) AS mark", damaged) == [{"mark": None}]


def test_the_views_tell_in_plain_sql_how_runs_stand(store: PostgresStore) -> None:
    """S2.18, S2.4: status, tags and checkpoints of runs, for whoever knows SQL."""
    nodes = {"ask": lambda state, ctx: {"log": [ctx.ask("well?")]}}
    app = chain("first", "ask", "last", nodes=nodes, name="workflow_file").compile(store)
    app.invoke({"n": 1}, run_id="r", config={"tags": ["red", "blue"]})

    [run] = rows(store, "SELECT * FROM runs WHERE 'red' = ANY (tags)")
    assert (run["run"], run["namespace"], run["workflow"], run["status"]) == (
        "r",
        "default",
        "workflow_file",
        "paused",
    )
    assert run["owner_pid"] is None and run["owner_is_live"] is False
    assert run["created_at"] <= run["updated_at"] and run["due_at"] is None

    listed = app.checkpoints("r")
    shown = rows(store, "SELECT * FROM checkpoints WHERE run = 'r' ORDER BY seq")
    assert [str(each["checkpoint_id"]) for each in shown] == [each.id for each in listed]
    for theirs, ours in zip(shown, listed, strict=True):
        assert (theirs["seq"], theirs["wave"], theirs["bytes"]) == (ours.seq, ours.wave, ours.size)
        assert (tuple(theirs["nodes"]), tuple(theirs["next"])) == (ours.nodes, ours.next)
        assert abs(theirs["created_at"] - ours.created_at) <= dt.timedelta(
            microseconds=1
        )  # Rounded otherwise.

    steps = (
        "SELECT node, status, finished_at IS NOT NULL AS done FROM steps WHERE run = 'r' ORDER BY wave, node"
    )
    assert [tuple(row.values()) for row in rows(store, steps)] == [
        ("first", "finished", True),
        ("ask", "waiting", False),
    ]
    app.answer("r", "fine")
    app.resume("r")
    assert [tuple(row.values()) for row in rows(store, steps)] == [
        ("first", "finished", True),
        ("ask", "finished", True),
        ("last", "finished", True),
    ]

    ident = app.rollback("r", 1)
    [back] = rows(store, "SELECT * FROM checkpoints WHERE run = 'r' ORDER BY seq DESC LIMIT 1")
    assert (str(back["checkpoint_id"]), back["wave"], back["nodes"], back["next"]) == (
        ident,
        1,
        ["first"],
        ["ask"],
    )


def test_the_view_of_runs_says_whether_their_driver_is_alive(store: PostgresStore) -> None:
    other = PostgresStore(store.url)
    for run, driver in (
        ("mine", f'{{"host": "here", "pid": 7, "lease": "{store.lease()}"}}'),
        ("theirs", f'{{"host": "there", "pid": 8, "lease": "{other.lease()}"}}'),
        ("odd", '{"pid": "x", "lease": "nonsense"}'),
        ("none", ""),
    ):
        create(store, run, owner=driver)
    other.close()

    live = rows(store, "SELECT run, owner_host, owner_pid, owner_is_live FROM runs")
    assert {tuple(row.values()) for row in live} == {
        ("mine", "here", 7, True),
        ("theirs", "there", 8, False),
        ("odd", None, None, False),
        ("none", None, None, False),
    }


def test_lists_and_marks_of_large_stores_are_read_through_an_index(store: PostgresStore) -> None:
    with store.transaction() as connection:
        connection.execute(
            "INSERT INTO run (namespace, run, key, workflow, status, created_at, updated_at, owner, head) "
            "SELECT CASE WHEN n % 7 = 0 THEN 'other' ELSE 'default' END, 'r' || n, int8send(n), 'w' || n % 50, "
            "CASE WHEN n % 100 = 0 THEN 'failed' ELSE 'completed' END, n, n, '', 0 FROM generate_series(1, 5000) AS n"
        )
        connection.execute(
            "INSERT INTO entry SELECT no, seq, 1, 'chain', 'mark', 'body' FROM run, generate_series(1, 20) AS seq"
        )
    ours, latest = "namespace = 'default'", "ORDER BY updated_at DESC, run LIMIT 20"
    with store.transaction() as connection:
        connection.execute("ANALYZE run; ANALYZE entry")
        plans = [
            "".join(line for (line,) in connection.execute(f"EXPLAIN {query}".encode()).fetchall())
            for query in (
                f"SELECT * FROM run WHERE {ours} {latest}",
                f"SELECT * FROM run WHERE {ours} AND workflow = 'w7' {latest}",
                f"SELECT * FROM run WHERE {ours} AND status = 'failed' {latest}",
                f"SELECT * FROM run WHERE {ours} AND run = 'r8'",
                f"SELECT * FROM checkpoints WHERE {ours} AND run = 'r8'",
                f"SELECT * FROM steps WHERE {ours} AND run = 'r8'",
            )
        ]
    assert [plan for plan in plans if "Seq Scan" in plan or "Sort" in plan] == []
    assert [each.run for each in store.runs(limit=2)] == ["r5000", "r4999"]
    assert [each.run for each in store.runs(status=["failed"], workflow="w0", limit=1)] == ["r5000"]
