"""Connections to PostgreSQL: opening them, sharing them, and trying again when the server went away."""

from __future__ import annotations

import errno
import functools
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, unquote

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from holdfast.errors import CorruptJournal, Remedy, StoreError
from holdfast.stores.base import DEFAULT_NAMESPACE
from holdfast.stores.namespaces import check_namespace, in_namespace, is_cut_short, wanted_namespace
from holdfast.suggestions import closest

# Where a PostgreSQL store is: its URL, what of it is ours, and what nobody gets to see.


PASSWORD_VARIABLE, PASSWORD_FILE_VARIABLE = "HOLDFAST_STORE_PASSWORD", "HOLDFAST_STORE_PASSWORD_FILE"
DEFAULT_SCHEMA = "holdfast"
LONGEST_SCHEMA = 50
"""In bytes: the names of notification channels are built from it, and those have at most 63."""

Given = Sequence[tuple[str, str]]

_URL = re.compile(r"(postgres(?:ql)?)://([^?]*)(?:\?(.*))?", re.DOTALL | re.IGNORECASE)
_OWN = ("schema", "namespace", "lease", "patience")
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
"""What was secret in the URLs that this process has seen, by the URLs as they are shown, without what is ours."""


@dataclass(frozen=True, slots=True)
class Address:
    """A database, a schema in it, and a namespace. `url` may be shown; `parameters` are for libpq alone."""

    url: str
    schema: str
    namespace: str
    lease: float
    patience: float
    parameters: Mapping[str, str] = field(repr=False)


def read_address(url: str, namespace: str | None = None) -> Address:
    """The address that `postgresql://…?schema=…&namespace=…&lease=…&patience=…` names.

    What is not ours goes to libpq as it is. `Address.url` has no password: it opens the same store again in
    this process, which remembers the password, and elsewhere with `PGPASSWORD` or a password file.
    """
    base, given = _split(url)
    _refuse_unknown(key for key, _ in given)
    own = {key: value for key, value in given if key in _OWN}
    name = _namespace(namespace, own.get("namespace"))
    shown = _shown(base, [(key, value) for key, value in given if key != "namespace"])
    if name != DEFAULT_NAMESPACE or wanted_namespace() != DEFAULT_NAMESPACE:
        shown = in_namespace(shown, name)
    return Address(
        shown,
        _schema(own.get("schema", DEFAULT_SCHEMA), shown),
        name,
        _seconds("lease", own.get("lease", "15"), 0.1, shown),
        _seconds("patience", own.get("patience", "60"), 0.0, shown),
        MappingProxyType(_parameters(base, given, shown)),
    )


def _split(url: str) -> tuple[str, Given]:
    """The URL up to its query, and the parameters of the query, in their order."""
    match = _URL.fullmatch(url)
    if match is None:
        raise StoreError("a PostgreSQL store is named by postgresql://USER@HOST:PORT/DATABASE?PARAMETERS")
    if is_cut_short(match[2], match[3] or ""):
        raise StoreError("a ? in the password of a PostgreSQL URL ends it; write special characters as %XX")
    pairs = [part.partition("=") for part in (match[3] or "").split("&") if part]
    return f"postgresql://{match[2]}", [(unquote(key), unquote(value)) for key, _, value in pairs]


def _refuse_unknown(names: Iterable[str]) -> None:
    known = _known_to_libpq()
    for name in names:
        if name not in _OWN and name not in known:
            close = closest(name, [*_OWN, *known])
            question = f"; did you mean {close}?" if close else ""
            raise StoreError(
                f"a PostgreSQL URL has no parameter {name!r:.80}{question} (ours: {', '.join(_OWN)}; "
                "all others are those of libpq)"
            )


@functools.cache
def _known_to_libpq() -> frozenset[str]:
    """What libpq takes as parameters of a URL; `ssl` it takes in URLs only."""
    return frozenset((*(option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()), "ssl"))


def _shown(base: str, given: Given) -> str:
    place = base.removeprefix("postgresql://")
    user, at, host = place.rpartition("@")
    name = user.partition(":")[0]
    query = "&".join(f"{key}={quote(value, safe='/,:')}" for key, value in given if key not in _SECRET)
    return f"postgresql://{name}{at if name else ''}{host}{'?' if query else ''}{query}"


def _namespace(given: str | None, of_url: str | None) -> str:
    if given is not None and of_url not in (None, check_namespace(given)):
        raise StoreError(f"the URL names the namespace {of_url!r}, and {given!r} is wanted; give one of them")
    return check_namespace(of_url) if of_url is not None else given or wanted_namespace()


def _parameters(base: str, given: Given, shown: str) -> dict[str, str]:
    """What libpq is told, secrets included."""
    query = "&".join(f"{quote(key)}={quote(value, safe='')}" for key, value in given if key not in _OWN)
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
    database = _shown(base, [(key, value) for key, value in given if key not in _OWN])
    if secret:
        _secrets[database] = secret
    known = {**_password(os.environ), **plain, **_secrets.get(database, {})}
    return {**_DEFAULTS, **known, "client_encoding": "utf8"}


def _password(environ: Mapping[str, str]) -> dict[str, str]:
    """The password that the environment has, or the file that it names; else libpq looks for one."""
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


def _schema(name: str, shown: str) -> str:
    size = len(name.encode("utf-8", "surrogatepass"))
    if not name or size > LONGEST_SCHEMA or "\0" in name or name.lower().startswith("pg_"):
        raise StoreError(
            f"{shown}: {name!r} cannot be the schema; use a name of at most {LONGEST_SCHEMA} bytes "
            "that does not begin with pg_"
        )
    return name


def _seconds(name: str, text: str, least: float, shown: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value < 1e9:
        raise StoreError(f"{shown}: {name}={text} is not a number of seconds, at least {least:g}")
    return value


# What an error of PostgreSQL means: whether to try again, and what to tell whoever reads it.


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
"""What a server or libpq says, before there is a connection, that waiting does not change."""


class Verdict(Enum):
    """Whether the same may work when it is tried again."""

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
    """Whether to try again what failed with `error`."""
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
    """What went wrong with the store at `url`, and the way out."""
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
        return StoreError(f"cannot connect to {url}: {said}; {_way_in(said)}")
    return StoreError(f"{url}: {said}")


def _way_in(said: str) -> str:
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
