"""Connections to PostgreSQL: opening them, sharing them, and retrying when the server went away."""

from __future__ import annotations

import errno
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from holdfast.errors import CorruptJournal, Remedy, StoreError
from holdfast.stores.postgres.address import Address

REFUSALS = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "permission denied",
    "Permission denied",
    "is not permitted to log in",
    "not currently accepting connections",
    "certificate",
    "does not support SSL",
    "root.crt",
    "invalid",
)
"""Errors of a server or libpq, before there is a connection, that waiting does not change."""


class Verdict(Enum):
    """Whether a retry may succeed."""

    REFUSED = "no"
    CLASHED = "at once"
    LOST = "once there is a connection"


_CLASHES = (errors.SerializationFailure, errors.DeadlockDetected)
_LOSSES = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.TooManyConnections,
    errors.IdleSessionTimeout,
    errors.IdleInTransactionSessionTimeout,
)


def judge(error: psycopg.Error) -> Verdict:
    """Return whether to retry what failed with `error`."""
    if isinstance(error, _CLASHES):
        return Verdict.CLASHED
    if isinstance(error, _LOSSES):
        return Verdict.LOST
    if error.sqlstate is not None:
        return Verdict.LOST if error.sqlstate.startswith("08") else Verdict.REFUSED
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        said = str(error)
        is_refusal = any(each in said for each in REFUSALS) and "No such file" not in said
        return Verdict.REFUSED if is_refusal else Verdict.LOST
    return Verdict.REFUSED


def explain(error: Exception, url: str, waited: float = 0.0) -> StoreError:
    """Return a `StoreError` that says what went wrong with the store at `url`, and the remedy."""
    said = _one_line(error)
    match error:
        case UnicodeError():
            return StoreError(f"{url}: a text cannot be stored ({said}); use text without lone surrogates")
        case errors.InsufficientPrivilege():
            return StoreError(
                f"{url}: {said}; grant the role what it needs: "
                "SELECT admit('ROLE', 'NAMESPACE') in the store's schema, as its owner"
            )
        case errors.ReadOnlySqlTransaction():
            return StoreError(
                f"{url} may only be read ({said}); connect to the primary server "
                "(target_session_attrs=read-write chooses it among several hosts)"
            )
        case errors.UndefinedTable() | errors.UndefinedColumn() | errors.UndefinedFunction():
            return StoreError(f"{url}: {said}", remedies=Remedy("migrate"))
        case errors.DiskFull():
            return StoreError(f"no room left on the server of {url} ({said}); free some space and resume")
        case errors.DataCorrupted() | errors.IndexCorrupted():
            return CorruptJournal(f"{url} is damaged ({said}); restore it from a backup")
        case errors.ProgramLimitExceeded():
            return StoreError(f"{url}: {said}; use shorter run ids and names, and values below 1 GB")
        case errors.QueryCanceled() | errors.LockNotAvailable():
            return StoreError(f"{url}: {said}; raise the server's time limits for this role, and resume")
    if isinstance(error, psycopg.Error) and judge(error) is Verdict.LOST:
        return StoreError(
            f"cannot reach {url} ({said}){f', tried for {waited:.0f} s' if waited else ''}; "
            "start the server or check the address, then resume"
        )
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return StoreError(f"cannot connect to {url}: {said}; {_remedy(said)}")
    return StoreError(f"{url}: {said}")


def _remedy(said: str) -> str:
    if "password" in said:
        return "set PGPASSWORD, or put the password into a password file (~/.pgpass)"
    if "database" in said and "does not exist" in said:
        return "create it (createdb), or name another"
    if "role" in said and "does not exist" in said:
        return "create the role, or name another user"
    return "check the address and what the server allows (pg_hba.conf)"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


logger = logging.getLogger("holdfast")

Connection = psycopg.Connection[tuple[Any, ...]]
Result = TypeVar("Result")

IDLE_CONNECTIONS = 6
"""The connections that a store keeps open for the next reader."""

LONGEST_DELAY = 1.0
WARN_AFTER = 3.0

_SESSION = (
    "SELECT set_config('search_path', %s, false), "
    "set_config('default_transaction_isolation', 'read committed', false), "
    "set_config('client_min_messages', 'warning', false), "
    "set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
    "ELSE current_setting('synchronous_commit') END, false)"
)
"""The settings of every session. A server's default does not weaken the durability that was asked for."""

_abandoned: list[Connection] = []
"""The connections of a parent process: its children must neither use nor close them."""


class Host(Protocol):
    """A keeper of a server, such as the embedded one."""

    def enter(self) -> None: ...
    def revive(self) -> None: ...
    def leave(self) -> None: ...


class Server:
    """The server at one address. Every method may be called from any thread."""

    def __init__(self, address: Address, host: Host | None = None) -> None:
        self.address = address
        self._host = host
        self.closed = threading.Event()

    def reset(self) -> None:
        """Reset in a forked child, where a lock that its parent held is never released."""
        is_closed, self.closed = self.closed.is_set(), threading.Event()
        if is_closed:
            self.closed.set()

    def close(self) -> None:
        """End every wait for the server."""
        self.closed.set()

    def leave(self) -> None:
        """Release the server, once no connection is needed any more."""
        if self._host is not None:
            self._host.leave()

    def check_open(self) -> None:
        """Raise `StoreError` once the store is closed."""
        if self.closed.is_set():
            raise StoreError(f"the store {self.address.url} is closed; open it again")

    def connect(self) -> Connection:
        """Open a connection, in one attempt: autocommit, with the store's schema as its search path."""
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

    def retry(self, attempt: Callable[[], Result], timeout: float | None = None) -> Result:
        """Repeat `attempt` while the server is away, up to the address's timeout, or while others clash with it."""
        began, delay = time.monotonic(), 0.02
        limit = self.address.timeout if timeout is None else timeout
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
    """A small pool of connections that any thread may borrow."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.reset()

    def reset(self) -> None:
        """Reset in a forked child."""
        _abandoned.extend(getattr(self, "_idle", ()))
        self._idle: list[Connection] = []

    def run(self, action: Callable[[Connection], Result], timeout: float | None = None) -> Result:
        """Return what `action` returns for a connection; retry on another if the server goes away meanwhile."""

        def attempt() -> Result:
            with self.borrowed() as connection:
                return action(connection)

        return self.server.retry(attempt, timeout)

    @contextmanager
    def borrowed(self) -> Iterator[Connection]:
        """Borrow a connection for this block."""
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
        """Close the idle connections."""
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
    """Return a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a quoted SQL literal."""
    return "'" + text.replace("'", "''") + "'"
