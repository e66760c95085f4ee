"""Connections to PostgreSQL: opening them, sharing them, and trying again when the server went away."""

from __future__ import annotations

import errno
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.errors import StoreError
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.trouble import Verdict, explain, judge

logger = logging.getLogger("holdfast")

Connection = psycopg.Connection[tuple[Any, ...]]
Result = TypeVar("Result")

IDLE_CONNECTIONS = 6
"""How many connections a store keeps open for the next reader."""

LONGEST_DELAY = 1.0
WARN_AFTER = 3.0

_SESSION = (
    "SELECT set_config('search_path', %s, false), "
    "set_config('default_transaction_isolation', 'read committed', false), "
    "set_config('client_min_messages', 'warning', false), "
    "set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
    "ELSE current_setting('synchronous_commit') END, false)"
)
"""What every session is told. Nobody who asked for durability gets less because of a server's default."""

_abandoned: list[Connection] = []
"""The connections of a parent process: its children must neither use nor close them."""


class Host(Protocol):
    """Whoever keeps a server running for those who use it."""

    def enter(self) -> None: ...
    def revive(self) -> None: ...
    def leave(self) -> None: ...


class Server:
    """The way to one address. Every method may be called from any thread."""

    def __init__(self, address: Address, host: Host | None = None) -> None:
        self.address = address
        self._host = host
        self.closed = threading.Event()

    def reset(self) -> None:
        """Begin anew in a forked child, where a lock that its parent held is never released."""
        is_closed, self.closed = self.closed.is_set(), threading.Event()
        if is_closed:
            self.closed.set()

    def close(self) -> None:
        """End every wait for the server."""
        self.closed.set()

    def leave(self) -> None:
        """Let go of the server, once no connection is needed any more."""
        if self._host is not None:
            self._host.leave()

    def check_open(self) -> None:
        """Raise `StoreError` once the store is closed."""
        if self.closed.is_set():
            raise StoreError(f"the store {self.address.url} is closed; open it again")

    def connect(self) -> Connection:
        """A new connection, in one attempt: autocommit, with the store's schema as its search path."""
        with ExitStack() as undo:
            connection = self._connected()
            undo.callback(connection.close)
            connection.execute(_SESSION, (quoted(self.address.schema),))
            undo.pop_all()
        return connection

    def _connected(self) -> Connection:
        if self._host is not None:
            self._host.enter()
        try:
            return psycopg.connect(**self.address.parameters, autocommit=True)  # type: ignore[arg-type]
        except psycopg.OperationalError:
            if self._host is None:
                raise
            self._host.revive()
            return psycopg.connect(**self.address.parameters, autocommit=True)  # type: ignore[arg-type]

    def insist(self, attempt: Callable[[], Result], patience: float | None = None) -> Result:
        """Repeat `attempt` while the server is away, up to the address's patience, or while others clash with it."""
        began, delay = time.monotonic(), 0.02
        limit = self.address.patience if patience is None else patience
        warned = False
        while True:
            self.check_open()
            try:
                return attempt()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                    raise
                raise StoreError(
                    f"cannot use {self.address.url}: {error}; close files and sockets of this process or raise its "
                    "limit (ulimit -n), and resume"
                ) from error
            except (psycopg.Error, UnicodeError) as error:
                waited = time.monotonic() - began
                verdict = judge(error) if isinstance(error, psycopg.Error) else Verdict.REFUSED
                if verdict is Verdict.REFUSED or waited >= limit:
                    raise explain(error, self.address.url, waited) from error
                if waited > WARN_AFTER and not warned:
                    warned = True
                    logger.warning("%s; trying again for %.0f s", explain(error, self.address.url), limit)
            pause = 0.005 if verdict is Verdict.CLASHED else delay
            self.closed.wait(
                min(random.uniform(pause / 2, pause), max(0.0, began + limit - time.monotonic()))
            )
            delay = min(delay * 2, LONGEST_DELAY)


class Connections:
    """A few connections that any thread may borrow."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.reset()

    def reset(self) -> None:
        """Begin anew in a forked child."""
        _abandoned.extend(getattr(self, "_idle", ()))
        self._idle: list[Connection] = []

    def run(self, action: Callable[[Connection], Result], patience: float | None = None) -> Result:
        """What `action` makes of a connection; done again, on another, if the server goes away meanwhile."""

        def attempt() -> Result:
            with self.borrowed() as connection:
                return action(connection)

        return self.server.insist(attempt, patience)

    @contextmanager
    def borrowed(self) -> Iterator[Connection]:
        """A connection for this block."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self.server.connect()
        try:
            yield connection
            self._take_back(connection)
        except Exception as error:
            if isinstance(error, psycopg.Error) and judge(error) is Verdict.LOST:
                self.close()
            self._take_back(connection)
            raise
        except BaseException:  # What interrupted it may have left it in the middle of an answer.
            connection.close()
            raise

    def close(self) -> None:
        """Close what nobody is using."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take_back(self, connection: Connection) -> None:
        usable = not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE
        if connection in self._idle:
            return
        if usable and len(self._idle) < IDLE_CONNECTIONS and not self.server.closed.is_set():
            self._idle.append(connection)
        else:
            connection.close()


def abandon(connection: Connection | None) -> None:
    """Never use a connection again, and never close it: it is a parent process's."""
    if connection is not None:
        _abandoned.append(connection)


def quoted(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"
