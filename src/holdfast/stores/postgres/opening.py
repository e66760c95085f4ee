"""Finding the server of a URL, and what can be done with a schema without opening a store."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from psycopg import errors

from holdfast.errors import StoreError
from holdfast.stores.postgres.address import Address, read_address
from holdfast.stores.postgres.connecting import Connection, Connections, Server, literal, quoted
from holdfast.stores.postgres.migrations import Version, bring_up, standing

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
