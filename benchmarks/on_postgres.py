"""Benchmarks of the PostgreSQL store, on an embedded server with its default, durable settings."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from figures import ROUNDS, SESSION, Row, chain, one_more_async, rows_of

from holdfast import open_store
from holdfast.stores.postgres.store import PostgresStore

Connection = psycopg.Connection[tuple[Any, ...]]


def url_of(folder: Path, **parameters: object) -> str:
    """Return the URL of a store named like the folder, on the server that all benchmarks of a session share."""
    given = "".join(f"&{name}={value}" for name, value in parameters.items())
    server = next(place for place in folder.parents if place.name.startswith(SESSION)) / "server"
    return f"pg-embedded:{server}?schema={folder.name}{given}"


@contextmanager
def opened(url: str) -> Iterator[PostgresStore]:
    """Open a store, and drop its tables afterwards."""
    store = open_store(url)
    assert isinstance(store, PostgresStore)
    try:
        yield store
        with connected(store, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA "{store.schema}" CASCADE'.encode())
    finally:
        store.close()


@contextmanager
def connected(store: PostgresStore, *, autocommit: bool) -> Iterator[Connection]:
    """Open a plain connection to the server of a store."""
    with store.transaction() as borrowed:
        place = borrowed.info
        address = {"host": place.host, "user": place.user, "dbname": place.dbname, "port": place.port}
    with psycopg.connect(**address, autocommit=autocommit) as connection:  # type: ignore[arg-type]
        connection.execute("SET client_min_messages = warning")
        connection.execute(f'SET search_path = "{store.schema}"'.encode())
        if not autocommit:
            connection.commit()
        yield connection


class RawLoop:
    """The floor: a plain loop with one prepared INSERT per step, each its own commit."""

    def __init__(self, connection: Connection, table: str) -> None:
        self._connection, self._runs = connection, 0
        connection.execute(
            f"CREATE TABLE {table} (run_no bigint, seq bigint, at double precision, chain bytea, mark bytea, "
            "body bytea, PRIMARY KEY (run_no, seq))".encode()
        )
        self._insert = f"INSERT INTO {table} VALUES (%s, %s, %s, %b, %b, %b)".encode()

    def seconds(self, rows: list[tuple[bytes, bytes, bytes]], finish: Callable[[], None]) -> float:
        """Return the seconds per row; `finish` is called after each."""
        execute, insert = self._connection.execute, self._insert
        self._runs += 1
        begun = time.perf_counter()
        for seq, (link, mark, body) in enumerate(rows):
            execute(insert, (self._runs, seq, time.time(), link, mark, body), prepare=True)
            finish()
        return (time.perf_counter() - begun) / len(rows)


def bench_chain(folder: Path, tiny: bool) -> Iterator[Row]:
    """Measure a chain of 200 steps against a raw psycopg loop with one insert and one commit per step."""
    length, rounds = (10, 1) if tiny else (200, 3 * ROUNDS)
    with (
        opened(url_of(folder)) as store,
        connected(store, autocommit=False) as committing,
        connected(store, autocommit=True) as autocommitting,
    ):
        app = chain(length).compile(store)
        raw, alone = RawLoop(committing, "raw_commit"), RawLoop(autocommitting, "raw_autocommit")
        committing.commit()
        app.invoke({"n": 0})
        ours, floor, least = [], [], []
        for _ in range(rounds):
            begun = time.perf_counter()
            outcome = app.invoke({"n": 0})
            ours.append((time.perf_counter() - begun) / length)
            rows = rows_of(app, outcome.run_id)
            floor.append(raw.seconds(rows, committing.commit))
            least.append(alone.seconds(rows, lambda: None))
    for name, theirs, target in (("insert + commit", floor, 1.5), ("autocommit", least, None)):
        yield Row(
            f"chain of {length} on PostgreSQL v {name}",
            f"{statistics.median(ours) * 1e6:.0f} µs/step",
            f"{statistics.median(theirs) * 1e6:.0f} µs raw",
            statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
            target,
        )


def bench_concurrent(folder: Path, tiny: bool) -> Iterator[Row]:
    """Measure 100 concurrent runs of 20 steps against one run, in steps per second."""
    at_once, rounds = (5, 1) if tiny else (100, ROUNDS)
    with opened(url_of(folder)) as store:
        app = chain(20, one_more_async).compile(store)

        async def many(count: int) -> float:
            begun = time.perf_counter()
            await asyncio.gather(*(app.ainvoke({"n": 0}) for _ in range(count)))
            return count * 20 / (time.perf_counter() - begun)

        asyncio.run(many(3))
        alone, together = [], []
        for _ in range(rounds):
            alone.append(statistics.median(asyncio.run(many(1)) for _ in range(3)))
            together.append(asyncio.run(many(at_once)))
    yield Row(
        f"{at_once} runs at once v one, PostgreSQL",
        f"{statistics.median(together):.0f} steps/s",
        f"{statistics.median(alone):.0f} steps/s",
        statistics.median(a / b for a, b in zip(together, alone, strict=True)),
        4.0,
        better=">=",
    )
