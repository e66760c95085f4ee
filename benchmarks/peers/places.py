"""The stores of the contenders: a fresh SQLite file or a fresh database for each turn, on the same disk."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from workloads import Place

STORES = ("sqlite", "postgres")


class Ground:
    """A folder for SQLite files, and a server that is started when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count(1)
        self._closing = ExitStack()
        self._server: Any = None

    @contextmanager
    def place(self, store: str) -> Iterator[Place]:
        """Yield a new place, and remove it afterwards."""
        number = next(self._numbers)
        if store == "sqlite":
            folder = self.folder / f"turn{number}"
            folder.mkdir()
            try:
                yield Place("sqlite", str(folder / "runs.db"))
            finally:
                shutil.rmtree(folder)
            return
        name = f"turn{number}"
        self.ask(f"CREATE DATABASE {name}")
        try:
            yield Place("postgres", host=self._host(), database=name)
        finally:
            self.ask(f"DROP DATABASE {name} WITH (FORCE)")

    def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the server's reply."""
        import psycopg

        address = {"host": self._host(), "user": "postgres", "dbname": "postgres"}
        with psycopg.connect(**address, autocommit=True) as connection:  # type: ignore[arg-type]
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def wait_until_left(self, database: str) -> None:
        """Wait until nobody is connected: only then are the statistics complete."""
        deadline = time.monotonic() + 60
        question = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
        while self.ask(question, database)[0][0]:
            if time.monotonic() > deadline:
                raise SystemExit(f"somebody is still connected to {database} after a minute")
            time.sleep(0.02)

    def close(self) -> None:
        self._closing.close()

    def _host(self) -> str:
        if self._server is None:
            from holdfast.stores.postgres.embedded import EmbeddedServer

            server = EmbeddedServer(self.folder / "server")
            server.enter()
            self._closing.callback(server.leave)
            self._server = server
        return str(self._server.socket_folder)
