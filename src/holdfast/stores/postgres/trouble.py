"""What an error of PostgreSQL means: whether to try again, and what to tell whoever reads it."""

from __future__ import annotations

from enum import Enum

import psycopg
from psycopg import errors

from holdfast.errors import CorruptJournal, StoreError

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
            return StoreError(f"{url}: {said}; run `holdfast store migrate` as the owner of the schema")
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
