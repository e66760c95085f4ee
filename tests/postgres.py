"""PostgreSQL servers for tests: one per process that runs tests, a schema of its own for each test."""

from __future__ import annotations

import itertools
import os
import pwd
import select
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from holdfast.stores.postgres.embedded import Programs

DEBIAN = Path("/usr/lib/postgresql/15/bin")
"""Where Debian keeps the programs of its PostgreSQL, if it is installed."""

_PREFIX = "holdfast-pg-"
_schemas = itertools.count(1)


class PostgresServer:
    """A server in a folder of its own, that tests may stop and start as they like."""

    def __init__(self, programs: Programs, folder: Path) -> None:
        self.programs, self.folder = programs, folder
        self._emptied: list[str] = []

    def create(self) -> None:
        self.programs.make_folder(self.folder)
        self._run("initdb", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        with (self.folder / "postgresql.conf").open("a") as settings:
            # What a killed server wrote survives without syncs, for only the machine's death would lose it.
            settings.write(
                f"listen_addresses = ''\nfsync = off\nmax_connections = 200\n"
                f"unix_socket_directories = '{self.folder}'\n"
            )

    def start(self) -> None:
        self._run("pg_ctl", "start", "-w", "-l", str(self.folder / "server.log"))

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "stop", "-w", "-m", mode)

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def url(self, schema: str = "holdfast", *, user: str = "postgres", **parameters: object) -> str:
        given = "".join(f"&{name}={value}" for name, value in parameters.items())
        return f"postgresql://{user}@/postgres?host={self.folder}&schema={schema}{given}"

    def sql(self, statement: str, *values: object, user: str = "postgres") -> list[tuple[Any, ...]]:
        """What a statement answers, asked on a connection of its own."""
        with psycopg.connect(
            host=str(self.folder), user=user, dbname="postgres", autocommit=True
        ) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def schema(self) -> Iterator[str]:
        """The name of a schema that nobody has used, and that is gone afterwards."""
        name = f"t{next(_schemas)}"
        yield name
        self._drop(name)

    @contextmanager
    def emptied_schema(self) -> Iterator[str]:
        """The name of a schema without runs, which others may have used before: made sooner than a new one."""
        name = self._emptied.pop() if self._emptied else f"t{next(_schemas)}"
        yield name
        tables = self.sql("SELECT tablename FROM pg_tables WHERE schemaname = %s", name)
        if ("migration",) not in tables:
            self._drop(name)
            return
        self.sql("; ".join(f'DELETE FROM "{name}"."{table}"' for (table,) in tables if table != "migration"))
        self._emptied.append(name)

    def _drop(self, name: str) -> None:
        self.sql(f'SET client_min_messages = warning; DROP SCHEMA IF EXISTS "{name}" CASCADE')

    def _run(self, program: str, *arguments: str) -> None:
        self.programs.run(program, "-D", str(self.folder), *arguments)


_READY = b"Z\0\0\0\5I"
"""The end of every answer of a server that is outside any transaction."""


class LossyWay:
    """A way to a server that can lose an answer: the server has done its work, and nobody hears of it."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self.folder, self._target = folder, str(server.folder / ".s.PGSQL.5432")
        self.lost = 0
        self._marker: bytes | None = None
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / ".s.PGSQL.5432"))
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answer_to(self, marker: bytes) -> None:
        """Lose the answer to the next request that has these bytes."""
        self._marker = marker

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listening.accept()[0]
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        is_meant = False
        with client, server:
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    if source is client:
                        if self._marker is not None and self._marker in data:
                            self._marker, is_meant = None, True
                        server.sendall(data)
                    elif is_meant and data.endswith(_READY):
                        self.lost += 1
                        return
                    else:
                        client.sendall(data)


@contextmanager
def running(programs: Programs) -> Iterator[PostgresServer]:
    """A new server, stopped and removed afterwards."""
    _sweep()
    with open_folder() as folder:
        server = PostgresServer(programs, folder / "data")
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that a server can reach, whoever runs it; the folders that pytest makes are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep() -> None:
    """Stop and remove the servers of tests that were killed before they could."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not _is_running(int(owner)):
            with suppress(OSError, ValueError):
                pid = int((folder / "data" / "postmaster.pid").read_text().partition("\n")[0])
                os.kill(pid, signal.SIGQUIT)
            shutil.rmtree(folder, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def debian_programs() -> Programs:
    """Debian's programs, run by somebody who is not root."""
    if os.geteuid() != 0:
        return Programs(DEBIAN)
    user = pwd.getpwnam("postgres")
    return Programs(DEBIAN, user.pw_uid, user.pw_gid)
