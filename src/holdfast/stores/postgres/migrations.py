"""Bringing a schema to the newest version, one numbered file after the other."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from psycopg import errors

from holdfast.errors import Remedy, StoreError
from holdfast.stores.postgres.connection import (
    Address,
    Connection,
    Connections,
    Server,
    literal,
    quoted,
    read_address,
)

OLDEST_SERVER = 15
"""The oldest PostgreSQL whose views can heed the rights of who asks."""

_NEEDS = re.compile(r"^-- needs: (\d+)$", re.MULTILINE)
_TABLES = ("run", "entry", "snapshot", "inbox", "lease")
_REMEMBER = (
    "CREATE TABLE IF NOT EXISTS migration (number integer PRIMARY KEY, name text NOT NULL, "
    "needs integer NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
)


class Migration(NamedTuple):
    """One numbered file. `needs` is the lowest version of the code that can work with its result."""

    number: int
    name: str
    script: str
    needs: int


class Version(NamedTuple):
    """How a schema stands: its newest migration, 0 if it has none, and the names of those that it lacks."""

    current: int
    newest: int
    missing: tuple[str, ...]


@cache
def migrations() -> tuple[Migration, ...]:
    """The migrations that come with this version, in order."""
    folder = Path(__file__).parents[1] / "sql" / "postgres"
    files = sorted((file.name, file.read_text("utf-8")) for file in folder.iterdir())
    return tuple(_read(name, script) for name, script in files if name.endswith(".sql"))


def _read(name: str, script: str) -> Migration:
    number = int(name[:4])
    needs = _NEEDS.search(script)
    return Migration(number, name.removesuffix(".sql"), script, int(needs[1]) if needs else number)


def standing(connection: Connection, address: Address, known: Sequence[Migration] | None = None) -> Version:
    """How the schema stands; one that this version cannot work with is refused."""
    steps = migrations() if known is None else known
    newest = steps[-1].number
    applied = _applied(connection, address)
    needs = max((needed for number, needed in applied.items() if number > newest), default=0)
    if needs > newest:
        raise StoreError(
            f"{address.url} was made by a newer version of Holdfast (schema {max(applied)} needs {needs}, "
            f"this version knows {newest}); upgrade holdfast"
        )
    missing = tuple(step.name for step in steps if step.number not in applied)
    return Version(max(applied, default=0), newest, missing)


def bring_up(connection: Connection, address: Address, known: Sequence[Migration] | None = None) -> list[str]:
    """Apply what the schema lacks, each file in a transaction of its own; the names of what was applied."""
    steps = migrations() if known is None else known
    if not standing(connection, address, steps).missing:
        return []
    _check_server(connection, address)
    try:
        with _alone(connection, address):
            missing = standing(connection, address, steps).missing
            for step in steps:
                if step.name in missing:
                    _apply(connection, address, step)
            return list(missing)
    except errors.InsufficientPrivilege as error:
        raise StoreError(
            f"{address.url}: the schema {address.schema} lacks {', '.join(missing_of(connection, address, steps))} "
            f"and this role may not change it ({error})",
            remedies=Remedy("migrate"),
        ) from error


def missing_of(connection: Connection, address: Address, steps: Sequence[Migration]) -> tuple[str, ...]:
    """The names of the migrations that a schema lacks."""
    return standing(connection, address, steps).missing


def _apply(connection: Connection, address: Address, step: Migration) -> None:
    with connection.transaction():
        if connection.execute("SELECT to_regnamespace(%s)", (quoted(address.schema),)).fetchone() == (None,):
            connection.execute(f"CREATE SCHEMA {quoted(address.schema)}".encode())
        connection.execute(_REMEMBER)
        connection.execute(step.script.replace("@schema@", quoted(address.schema)).encode())
        connection.execute(
            "INSERT INTO migration (number, name, needs) VALUES (%s, %s, %s)",
            (step.number, step.name, step.needs),
        )


def _applied(connection: Connection, address: Address) -> dict[int, int]:
    """The numbers of the applied migrations, each with the version of the code that it needs."""
    names = [f"{quoted(address.schema)}.{table}" for table in ("migration", *_TABLES)]
    found = connection.execute(
        "SELECT to_regclass(name) FROM unnest(%s::text[]) AS name", (names,)
    ).fetchall()
    if found[0] == (None,):
        if any(table != (None,) for table in found):
            raise StoreError(
                f"{address.url}: the schema {address.schema} has tables of another program; "
                "choose another with ?schema=NAME"
            )
        return {}
    try:
        rows = connection.execute("SELECT number, needs FROM migration").fetchall()
    except errors.UndefinedColumn as error:
        raise StoreError(
            f"{address.url}: the schema {address.schema} belongs to another program; "
            "choose another with ?schema=NAME"
        ) from error
    return dict(rows)


def _check_server(connection: Connection, address: Address) -> None:
    version = connection.info.server_version // 10000
    if version < OLDEST_SERVER:
        raise StoreError(f"{address.url} is PostgreSQL {version}; version {OLDEST_SERVER} or newer is needed")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(
            f"the database of {address.url} is encoded in {encoding}; make one that is encoded in UTF8: "
            "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )


@contextmanager
def _alone(connection: Connection, address: Address) -> Iterator[None]:
    """While this block runs, nobody else changes this schema."""
    digest = hashlib.blake2b(f"holdfast {address.schema}".encode(), digest_size=8).digest()
    key = int.from_bytes(digest, "big", signed=True)
    connection.execute("SELECT pg_advisory_lock(%s::bigint)", (key,))
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("SELECT pg_advisory_unlock(%s::bigint)", (key,))


# Finding the server of a URL, and what can be done with a schema without opening a store.


EMBEDDED = "pg-embedded:"

OPENING_PATIENCE = 10.0
"""How long opening a store waits for its server, in seconds, if its patience is longer."""

_PLACE = re.compile(r"(?://(?=/|~|\.))?([^?]*)(?:\?(.*))?", re.DOTALL)

Result = TypeVar("Result")


def server_at(url: str, namespace: str | None = None) -> Server:
    """The server of a `postgresql://…` or `pg-embedded:PATH` URL; nothing is asked of it yet."""
    if url.lower().startswith(EMBEDDED):
        return _embedded(url[len(EMBEDDED) :], namespace)
    return Server(read_address(url, namespace))


def migrate(url: str) -> list[str]:
    """Bring the schema at `url` to the newest version; the names of the migrations that it lacked."""
    return _ask(url, bring_up)


def version(url: str) -> Version:
    """How the schema at `url` stands."""
    return _ask(url, standing)


def prepare(connection: Connection, address: Address) -> bytes:
    """Make sure that the schema is up to date and that this role may use the namespace; the key of its topics."""
    bring_up(connection, address)
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
    return _topic_key(connection, address.namespace)


def _topic_key(connection: Connection, namespace: str) -> bytes:
    """The key of a namespace's topics. `admit` has made it where somebody else than the owner asks.

    Who may not write, and comes before anybody who may, gets one of their own: nothing was ever told there.
    """
    wanted = ("SELECT key FROM topic_key WHERE namespace = %s", (namespace,))
    row = connection.execute(*wanted).fetchone()
    if row is None:
        with suppress(errors.ReadOnlySqlTransaction, errors.InsufficientPrivilege):
            connection.execute(
                "INSERT INTO topic_key (namespace) VALUES (%s) ON CONFLICT DO NOTHING", (namespace,)
            )
            row = connection.execute(*wanted).fetchone()
    return os.urandom(32) if row is None else bytes(row[0])


def _ask(url: str, action: Callable[[Connection, Address], Result]) -> Result:
    server = server_at(url)
    connections = Connections(server)
    try:
        return connections.run(
            lambda connection: action(connection, server.address), opening_patience(server)
        )
    finally:
        server.close()
        connections.close()
        server.leave()


def opening_patience(server: Server) -> float:
    """How long the first connection is waited for."""
    return min(OPENING_PATIENCE, server.address.patience)


def _embedded(rest: str, namespace: str | None) -> Server:
    try:
        from holdfast.stores.postgres.embedded import SUPERUSER, EmbeddedServer
    except ImportError as error:
        raise StoreError(
            "embedded PostgreSQL needs POSIX file locks; use a server, or sqlite:///PATH"
        ) from error
    match = _PLACE.fullmatch(rest)
    path, query = (match[1], match[2] or "") if match else ("", "")
    if not path.strip("/"):
        raise StoreError(f"{EMBEDDED}{rest} names no folder; write {EMBEDDED}PATH")
    strange = [part for part in query.split("&") if part and part.partition("=")[0] not in _KNOWN]
    if strange:
        raise StoreError(
            f"{EMBEDDED}{rest}: {strange[0].partition('=')[0]!r} is no parameter here; known: {', '.join(_KNOWN)}"
        )
    folder = Path(path).expanduser().resolve()
    host = EmbeddedServer(folder)
    place = f"postgresql://{SUPERUSER}@/postgres?host={quote(str(host.socket_folder))}"
    address = read_address(f"{place}&{query}" if query else place, namespace)
    shown = address.url.removeprefix(place).removeprefix("&")
    return Server(replace(address, url=f"{EMBEDDED}{folder}{'?' if shown else ''}{shown}"), host)


_KNOWN = ("schema", "namespace", "lease", "patience")
