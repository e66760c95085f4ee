"""Real PostgreSQL servers for disturbing: with passwords by TCP, with a replica, with little room."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from holdfast.stores.postgres.connection import quoted
from holdfast.stores.postgres.embedded import Programs
from tests.postgres import PostgresServer
from tests.proof.server.proxy import Backends

_TABLES = ("run", "entry", "snapshot", "inbox", "lease")
_DEAD_WITHIN = 0.5


class Control:
    """Somebody with a connection of its own to a server, who terminates the backends of others."""

    def __init__(self, server: PostgresServer, schema: str) -> None:
        self._server, self._schema = server, schema
        self._connection: psycopg.Connection[Any] | None = None
        self._lock = threading.Lock()

    @property
    def backends(self) -> Backends:
        """What a proxy needs to know."""
        return Backends(self.terminate, self.terminate_within)

    def terminate(self, backend: int) -> None:
        """Terminate a backend, and wait until it is gone."""
        self.ask("SELECT pg_terminate_backend(%s)", backend)
        deadline = time.monotonic() + _DEAD_WITHIN
        while Path(f"/proc/{backend}").exists() and time.monotonic() < deadline:
            time.sleep(0.0002)

    def terminate_within(self, backend: int, send: Callable[[], None]) -> None:
        """Send a statement while nobody may use the tables, and terminate its backend as soon as it waits for them.

        A transaction that has used the tables already cannot be kept from them: its backend is terminated at once.
        """
        tables = ", ".join(f"{quoted(self._schema)}.{each}" for each in _TABLES)
        held = True
        try:
            self.ask("BEGIN")
            self.ask("SET LOCAL lock_timeout = 20")
            self.ask(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE")
        except psycopg.errors.LockNotAvailable:
            held = False
        send()
        if held:
            self._wait_until_it_waits(backend)
        else:
            self.ask("ROLLBACK")
        self.terminate(backend)
        if held:
            self.ask("ROLLBACK")

    def _wait_until_it_waits(self, backend: int) -> None:
        deadline = time.monotonic() + 0.02
        while time.monotonic() < deadline:
            if self.ask("SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted", backend):
                return

    def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """What a statement answers; on a new connection if the last one broke."""
        with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(
                    host=str(self._server.folder),
                    port=port_of(self._server),
                    user="postgres",
                    dbname="postgres",
                    autocommit=True,
                )
            cursor = self._connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()


def port_of(server: PostgresServer) -> int:
    """The port of a server, which is also a part of its socket's name."""
    return server.port if isinstance(server, TcpServer) else 5432


def socket_of(server: PostgresServer) -> str:
    """The path of a server's socket."""
    return str(server.folder / f".s.PGSQL.{port_of(server)}")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class TcpServer(PostgresServer):
    """A server that also listens on a port of this machine, where it asks for passwords by SCRAM."""

    PASSWORD = "not-a-secret"

    def __init__(self, programs: Programs, folder: Path) -> None:
        super().__init__(programs, folder)
        self.port = free_port()

    def create(self, **settings: object) -> None:
        """Make the server, with these settings beside its own."""
        super().create()
        lines = {
            "listen_addresses": "'127.0.0.1'",
            "port": self.port,
            "password_encryption": "'scram-sha-256'",
            "wal_level": "replica",
            "max_wal_senders": 4,
            "wal_keep_size": "'64MB'",
            **settings,
        }
        with (self.folder / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in lines.items())
        (self.folder / "pg_hba.conf").write_text(
            "local all all trust\nlocal replication all trust\n"
            "host all postgres 127.0.0.1/32 scram-sha-256\nhost replication postgres 127.0.0.1/32 trust\n"
        )

    def url(self, schema: str = "holdfast", *, user: str = "postgres", **parameters: object) -> str:
        return super().url(schema, user=user, port=self.port, **parameters)

    def sql(self, statement: str, *values: object, user: str = "postgres") -> list[tuple[Any, ...]]:
        with psycopg.connect(
            host=str(self.folder), port=self.port, user=user, dbname="postgres", autocommit=True
        ) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def protect(self) -> None:
        """Give the superuser the password that TCP connections need."""
        self.sql(f"ALTER USER postgres PASSWORD '{self.PASSWORD}'")

    def tcp_url(self, schema: str, port: int | None = None, **parameters: object) -> str:
        """The URL of a store by TCP, with the password in it."""
        given = "".join(f"&{name}={value}" for name, value in parameters.items())
        place = f"postgres:{self.PASSWORD}@127.0.0.1:{port or self.port}"
        return f"postgresql://{place}/postgres?schema={schema}{given}"
