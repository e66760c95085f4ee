"""The schema of a PostgreSQL store: creating it, its version, and opening the server of a URL."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from psycopg import errors

from holdfast.errors import Remedy, StoreError
from holdfast.stores.base import SCHEMA_VERSION, other_version
from holdfast.stores.postgres.connection import (
    OWN_PARAMETERS,
    Address,
    Connection,
    Connections,
    Server,
    literal,
    quoted,
    read_address,
)

OLDEST_SERVER = 15
"""The oldest PostgreSQL whose views respect the rights of the role that reads them."""

# The version is looked up last: another process may create all of them meanwhile, in one transaction.
_TABLES = ("run", "entry", "snapshot", "inbox", "lease", "schema_version")
_SCRIPT = Path(__file__).parents[1] / "sql" / "postgres.sql"


def read_version(connection: Connection, address: Address) -> int:
    """Return the version of the schema, 0 if there is none; raise `StoreError` if it is not ours."""
    names = [f"{quoted(address.schema)}.{table}" for table in _TABLES]
    found = connection.execute(
        "SELECT to_regclass(name) FROM unnest(%s::text[]) AS name", (names,)
    ).fetchall()
    if all(table == (None,) for table in found):
        return 0
    try:
        rows = (
            []
            if found[-1] == (None,)
            else connection.execute("SELECT version FROM schema_version").fetchall()
        )
    except errors.UndefinedColumn:
        rows = []
    if len(rows) != 1 or not isinstance(rows[0][0], int):
        raise StoreError(
            f"{address.url}: the schema {address.schema} has tables of another program; "
            "choose another with ?schema=NAME"
        )
    if rows[0][0] != SCHEMA_VERSION:
        raise other_version(address.url, rows[0][0])
    return SCHEMA_VERSION


def create(connection: Connection, address: Address) -> None:
    """Create the schema if it is missing, in one transaction; harmless if another process has just done so."""
    if read_version(connection, address):
        return
    version = connection.info.server_version // 10000
    if version < OLDEST_SERVER:
        raise StoreError(f"{address.url} is PostgreSQL {version}; version {OLDEST_SERVER} or newer is needed")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(
            f"the database of {address.url} is encoded in {encoding}; make one that is encoded in UTF8: "
            "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )
    try:
        # A transaction that begins behind the lock sees what the holder before it has created.
        with _locked(connection, address), connection.transaction():
            if read_version(connection, address):
                return
            name = quoted(address.schema)
            if connection.execute("SELECT to_regnamespace(%s)", (name,)).fetchone() == (None,):
                connection.execute(f"CREATE SCHEMA {name}".encode())
            connection.execute(_SCRIPT.read_text("utf-8").replace("@schema@", name).encode())
            connection.execute("INSERT INTO schema_version VALUES (%s)", (SCHEMA_VERSION,))
    except errors.InsufficientPrivilege as error:
        raise StoreError(
            f"{address.url}: the schema {address.schema} is missing and this role may not create it ({error})",
            remedies=Remedy("migrate"),
        ) from error


@contextmanager
def _locked(connection: Connection, address: Address) -> Iterator[None]:
    """Keep other processes from creating this schema while the block runs."""
    digest = hashlib.blake2b(f"holdfast {address.schema}".encode(), digest_size=8).digest()
    key = int.from_bytes(digest, "big", signed=True)
    connection.execute("SELECT pg_advisory_lock(%s::bigint)", (key,))
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("SELECT pg_advisory_unlock(%s::bigint)", (key,))


def prepare(connection: Connection, address: Address) -> bytes:
    """Create the schema if need be and check that this role may use the namespace; return the key of its topics."""
    create(connection, address)
    row = connection.execute(
        "SELECT row_security_active('run') AND NOT %s = ANY (own_namespaces()), current_user",
        (address.namespace,),
    ).fetchone()
    if row is not None and row[0]:
        raise StoreError(
            f"{address.url}: the role {row[1]} is not admitted to the namespace {address.namespace!r}; "
            f"SELECT {quoted(address.schema)}.admit({literal(row[1])}, {literal(address.namespace)}) "
            "as the owner of the schema, or use another namespace"
        )
    # `admit` has made the key where the role is not the owner. A role that may not write, and comes before any that
    # may, gets a key of its own: nothing was announced there yet.
    wanted = ("SELECT key FROM topic_key WHERE namespace = %s", (address.namespace,))
    row = connection.execute(*wanted).fetchone()
    if row is None:
        with suppress(errors.ReadOnlySqlTransaction, errors.InsufficientPrivilege):
            new = "INSERT INTO topic_key (namespace) VALUES (%s) ON CONFLICT DO NOTHING"
            connection.execute(new, (address.namespace,))
            row = connection.execute(*wanted).fetchone()
    return os.urandom(32) if row is None else bytes(row[0])


EMBEDDED = "pg-embedded:"

OPENING_TIMEOUT = 10.0
"""The seconds that opening a store waits for its server, if its timeout is longer."""

_FOLDER = re.compile(r"(?://(?=/|~|\.))?([^?]*)(?:\?(.*))?", re.DOTALL)


def stored_version(url: str) -> int:
    """Return the version of the schema at `url`, 0 if there is none; nothing is changed."""
    server = server_at(url)
    connections = Connections(server)
    try:
        return connections.run(
            lambda connection: read_version(connection, server.address), opening_timeout(server)
        )
    finally:
        server.close()
        connections.close()
        server.leave()


def opening_timeout(server: Server) -> float:
    """Return how long the first connection is waited for."""
    return min(OPENING_TIMEOUT, server.address.timeout)


def server_at(url: str, namespace: str | None = None) -> Server:
    """Return the server of a `postgresql://…` or `pg-embedded:PATH` URL; nothing is asked of it yet."""
    if not url.lower().startswith(EMBEDDED):
        return Server(read_address(url, namespace))
    try:
        from holdfast.stores.postgres.embedded import SUPERUSER, EmbeddedServer
    except ImportError as error:
        raise StoreError(
            "embedded PostgreSQL needs POSIX file locks; use a server, or sqlite:///PATH"
        ) from error
    match = _FOLDER.fullmatch(url[len(EMBEDDED) :])
    path, query = (match[1], match[2] or "") if match else ("", "")
    if not path.strip("/"):
        raise StoreError(f"{url} names no folder; write {EMBEDDED}PATH")
    names = [part.partition("=")[0] for part in query.split("&") if part]
    if unknown := [name for name in names if name not in OWN_PARAMETERS]:
        raise StoreError(f"{url}: {unknown[0]!r} is no parameter here; known: {', '.join(OWN_PARAMETERS)}")
    folder = Path(path).expanduser().resolve()
    host = EmbeddedServer(folder)
    place = f"postgresql://{SUPERUSER}@/postgres?host={quote(str(host.socket_folder))}"
    address = read_address(f"{place}&{query}" if query else place, namespace)
    shown = address.url.removeprefix(place).removeprefix("&")
    return Server(replace(address, url=f"{EMBEDDED}{folder}{'?' if shown else ''}{shown}"), host)
