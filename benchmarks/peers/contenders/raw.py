"""The lower bound: a plain loop over a database without an engine, one commit per step with only the change."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ormsgpack
from workloads import Place, Work, digest, fresh, message, step_begins


class Race:
    """Rows of (run, seq, delta). It survives the same crashes as the contenders, and has no other feature."""

    def __init__(self, place: Place) -> None:
        self._rows = Postgres(place) if place.kind == "postgres" else Sqlite(place)

    def chain(self, steps: int) -> Work:
        return lambda: self._count(fresh("chain"), steps)

    def messages(self, steps: int) -> Work:
        def work() -> str:
            run, kept = fresh("messages"), []
            for seq in range(steps):
                kept.append(message(len(kept)))
                self._rows.add(run, seq, kept[-1])
            return digest(kept)

        return work

    def wave(self, width: int) -> Work:
        def work() -> int:
            run, squares = fresh("wave"), []
            self._rows.add(run, 0, 0)
            for number in range(width):
                squares.append(number * number)
                self._rows.add(run, 1 + number, squares[-1])
            self._rows.add(run, 1 + width, sum(squares))
            return sum(squares)

        return work

    def concurrent(self, runs: int, steps: int) -> Work:
        return lambda: [self._count(fresh("run"), steps) for _ in range(runs)]

    def untouched(self, value: list[str], steps: int) -> Work:
        def work() -> list[Any]:
            run = fresh("untouched")
            self._rows.add(run, -1, value)
            return [self._count(run, steps), digest(value)]

        return work

    def starting(self, steps: int) -> Work:
        return lambda: self._count("stopped", steps, step_begins)

    def resuming(self, steps: int) -> Work:
        def work() -> int:
            n = max(self._rows.read("stopped"), default=0)
            return self._count("stopped", steps, step_begins, n)

        return work

    def close(self) -> None:
        self._rows.close()

    def _count(self, run: str, steps: int, begun: Callable[[int], None] | None = None, n: int = 0) -> int:
        for seq in range(n, steps):
            if begun is not None:
                begun(n)
            n = n + 1
            self._rows.add(run, seq, n)
        return n


class Sqlite:
    """The same pragmas as Holdfast's store with durability="full"."""

    def __init__(self, place: Place) -> None:
        import apsw

        self._connection = apsw.Connection(place.path)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS delta (run TEXT, seq INTEGER, at REAL, body BLOB, "
            "PRIMARY KEY (run, seq)) WITHOUT ROWID"
        )
        self._execute = self._connection.cursor().execute

    def add(self, run: str, seq: int, value: Any) -> None:
        self._execute("BEGIN IMMEDIATE")
        self._execute(
            "INSERT INTO delta VALUES (?, ?, ?, ?)", (run, seq, time.time(), ormsgpack.packb(value))
        )
        self._execute("COMMIT")

    def read(self, run: str) -> list[Any]:
        rows = self._execute("SELECT body FROM delta WHERE run = ? ORDER BY seq", (run,))
        return [ormsgpack.unpackb(body) for (body,) in rows]

    def close(self) -> None:
        self._connection.close()


class Postgres:
    """One prepared insert, each its own transaction, synced by the server before it answers."""

    def __init__(self, place: Place) -> None:
        import psycopg

        self._connection = psycopg.connect(place.conninfo, autocommit=True)
        self._connection.execute("SET client_min_messages = warning")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS delta (run text, seq bigint, at double precision, body bytea, "
            "PRIMARY KEY (run, seq))"
        )

    def add(self, run: str, seq: int, value: Any) -> None:
        values = (run, seq, time.time(), ormsgpack.packb(value))
        self._connection.execute("INSERT INTO delta VALUES (%s, %s, %s, %b)", values, prepare=True)

    def read(self, run: str) -> list[Any]:
        rows = self._connection.execute(
            "SELECT body FROM delta WHERE run = %s ORDER BY seq", (run,), binary=True
        )
        return [ormsgpack.unpackb(body) for (body,) in rows.fetchall()]

    def close(self) -> None:
        self._connection.close()
