"""Connections to PostgreSQL: addresses without their passwords, opening, sharing, and retrying for a lost server."""

from __future__ import annotations

import errno
import functools
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from holdfast.errors import CorruptJournal, Remedy, StoreError, closest
from holdfast.stores.base import (
    DEFAULT_NAMESPACE,
    chosen_namespace,
    in_namespace,
    is_cut_short,
    wanted_namespace,
)

if TYPE_CHECKING:
    from holdfast.stores.postgres.embedded import EmbeddedServer

PASSWORD_VARIABLE, PASSWORD_FILE_VARIABLE = "HOLDFAST_STORE_PASSWORD", "HOLDFAST_STORE_PASSWORD_FILE"
DEFAULT_SCHEMA = "holdfast"
LONGEST_SCHEMA = 50
"""In bytes: the names of notification channels are built from it, and those have at most 63."""

Given = Sequence[tuple[str, str]]

_URL = re.compile(r"(postgres(?:ql)?)://([^?]*)(?:\?(.*))?", re.DOTALL | re.IGNORECASE)
OWN_PARAMETERS = ("schema", "namespace", "lease", "timeout")
_SECRET = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")

_DEFAULTS: Mapping[str, str] = {
    "fallback_application_name": "holdfast",
    "connect_timeout": "10",
    # A server that vanished without a word is noticed within half a minute.
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}

_secrets: dict[str, Mapping[str, str]] = {}
"""The secrets of the URLs that this process has seen, by the URLs as they are shown, without our parameters."""


@dataclass(frozen=True, slots=True)
class Address:
    """A database, a schema in it, and a namespace. `url` may be shown; `parameters` are for libpq alone."""

    url: str
    schema: str
    namespace: str
    lease: float
    timeout: float
    parameters: Mapping[str, str] = field(repr=False)


def read_address(url: str, namespace: str | None = None) -> Address:
    """Return the address of `postgresql://…?schema=…&namespace=…&lease=…&timeout=…`.

    Other parameters go to libpq as they are. `Address.url` has no password: it opens the same store again in
    this process, which remembers the password, and elsewhere with `PGPASSWORD` or a password file.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise StoreError("a PostgreSQL store is named by postgresql://USER@HOST:PORT/DATABASE?PARAMETERS")
    if is_cut_short(match[2], match[3] or ""):
        raise StoreError("a ? in the password of a PostgreSQL URL ends it; write special characters as %XX")
    pairs = [part.partition("=") for part in (match[3] or "").split("&") if part]
    base, given = f"postgresql://{match[2]}", [(unquote(key), unquote(value)) for key, _, value in pairs]
    for key, _ in given:
        if key not in OWN_PARAMETERS and key not in _known_to_libpq():
            close = closest(key, [*OWN_PARAMETERS, *_known_to_libpq()])
            question = f"; did you mean {close}?" if close else ""
            raise StoreError(
                f"a PostgreSQL URL has no parameter {key!r:.80}{question} (ours: {', '.join(OWN_PARAMETERS)}; "
                "all others are those of libpq)"
            )
    own = {key: value for key, value in given if key in OWN_PARAMETERS}
    name = chosen_namespace(namespace, own.get("namespace"))
    shown = _shown(base, [(key, value) for key, value in given if key != "namespace"])
    if name != DEFAULT_NAMESPACE or wanted_namespace() != DEFAULT_NAMESPACE:
        shown = in_namespace(shown, name)
    schema = own.get("schema", DEFAULT_SCHEMA)
    size = len(schema.encode("utf-8", "surrogatepass"))
    if not schema or size > LONGEST_SCHEMA or "\0" in schema or schema.lower().startswith("pg_"):
        raise StoreError(
            f"{shown}: {schema!r} cannot be the schema; use a name of at most {LONGEST_SCHEMA} bytes "
            "that does not begin with pg_"
        )
    return Address(
        shown,
        schema,
        name,
        _seconds("lease", own.get("lease", "15"), 0.1, shown),
        _seconds("timeout", own.get("timeout", "60"), 0.0, shown),
        MappingProxyType(_parameters(base, given, shown)),
    )


@functools.cache
def _known_to_libpq() -> frozenset[str]:
    """Return the parameters of a URL that libpq takes; `ssl` it takes in URLs only."""
    return frozenset((*(option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()), "ssl"))


def _shown(base: str, given: Given) -> str:
    place = base.removeprefix("postgresql://")
    user, at, host = place.rpartition("@")
    name = user.partition(":")[0]
    query = "&".join(f"{key}={quote(value, safe='/,:')}" for key, value in given if key not in _SECRET)
    return f"postgresql://{name}{at if name else ''}{host}{'?' if query else ''}{query}"


def _parameters(base: str, given: Given, shown: str) -> dict[str, str]:
    """Return the parameters for libpq, secrets included."""
    query = "&".join(
        f"{quote(key)}={quote(value, safe='')}" for key, value in given if key not in OWN_PARAMETERS
    )
    found: dict[str, Any] | None = None
    with suppress(psycopg.Error):
        # A slash in a password would be taken for the end of the host, and what follows for the database.
        if "@" not in base.removeprefix("postgresql://").partition("/")[2]:
            found = conninfo_to_dict(f"{base}?{query}")
    if found is None or not re.fullmatch("[0-9,]*", found.get("port") or ""):
        raise StoreError(
            f"{shown} is not a URL that PostgreSQL understands; write special characters in names and passwords "
            "as %XX"
        )
    plain = {key: str(value) for key, value in found.items() if value not in (None, "")}
    secret = {key: value for key, value in plain.items() if key in _SECRET}
    database = _shown(base, [(key, value) for key, value in given if key not in OWN_PARAMETERS])
    if secret:
        _secrets[database] = secret
    known = {**_password(os.environ), **plain, **_secrets.get(database, {})}
    return {**_DEFAULTS, **known, "client_encoding": "utf8"}


def _password(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the password of the environment, or of the file that it names; else libpq looks for one."""
    if password := environ.get(PASSWORD_VARIABLE):
        return {"password": password}
    file = environ.get(PASSWORD_FILE_VARIABLE)
    if not file:
        return {}
    try:
        return {"password": Path(file).read_text("utf-8").rstrip("\r\n")}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise StoreError(
            f"{PASSWORD_FILE_VARIABLE} names {file}, which cannot be read: {reason}; name a file with the password"
        ) from None


def _seconds(name: str, text: str, least: float, shown: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value < 1e9:
        raise StoreError(f"{shown}: {name}={text} is not a number of seconds, at least {least:g}")
    return value


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
    said = " ".join(str(error).split())
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
        remedies = (remedy for words, remedy in _REMEDIES.items() if all(word in said for word in words))
        return StoreError(f"cannot connect to {url}: {said}; {next(remedies)}")
    return StoreError(f"{url}: {said}")


_REMEDIES: Mapping[tuple[str, ...], str] = {
    ("password",): "set PGPASSWORD, or put the password into a password file (~/.pgpass)",
    ("database", "does not exist"): "create it (createdb), or name another",
    ("role", "does not exist"): "create the role, or name another user",
    (): "check the address and what the server allows (pg_hba.conf)",
}
"""The remedies for what a server said when it refused a connection: the first whose words are all there."""


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


class Server:
    """The server at one address. Every method may be called from any thread."""

    def __init__(self, address: Address, host: EmbeddedServer | None = None) -> None:
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
            raise StoreError(f"the store {self.address.url} is closed; open it again", is_closed=True)

    def connect(self) -> Connection:
        """Open a connection, in one attempt: autocommit, with the store's schema as its search path."""
        parameters: dict[str, Any] = {**self.address.parameters, "autocommit": True}
        if self._host is not None:
            self._host.enter()
        with ExitStack() as undo:
            try:
                connection = psycopg.connect(**parameters)
            except psycopg.OperationalError:
                if self._host is None:
                    raise
                self._host.revive()
                connection = psycopg.connect(**parameters)
            undo.callback(connection.close)
            connection.execute(_SESSION, (quoted(self.address.schema),))
            undo.pop_all()
        return connection

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
