"""Opening a SQLite file as a Holdfast database: identity, migrations, errors in plain words."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import apsw

from holdfast.errors import CorruptJournal, StoreError
from holdfast.stores.disk import make_folders

APPLICATION_ID = 0x484F4C44
"""`HOLD`: marks a SQLite file as ours."""

BUSY = (apsw.BusyError, apsw.LockedError, apsw.ProtocolError)

_SCRIPTS = Path(__file__).parent / "sql" / "sqlite"

Result = TypeVar("Result")
Migration = tuple[int, str]


def connect(path: Path, patience: float) -> apsw.Connection:
    """Open `path` as an up-to-date Holdfast database, waiting up to `patience` seconds for others.

    Creates the file (readable by its owner only) and its folder. Refuses, untouched, a file that
    is no database, belongs to another program, or was made by a newer version.
    """
    try:
        make_folders(path.parent)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(f"cannot create {path}: {error.strerror}; choose another path") from error
    try:
        return _insisting(lambda: _opened(path, patience), patience)
    except apsw.Error as error:
        raise failure(error, path, patience) from error
    except UnicodeEncodeError:
        raise StoreError(
            f"{str(path)!a} is not Unicode, as SQLite's paths are; choose another path"
        ) from None


def failure(error: Exception, path: Path, patience: float) -> StoreError:
    """What went wrong with the database, and the way out, for whoever reads the message."""
    match error:
        case apsw.CorruptError():
            return CorruptJournal(f"{path} is damaged ({error}); restore it from a backup")
        case apsw.NotADBError():
            return StoreError(f"{path} is not a SQLite database; choose another path")
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return StoreError(
                f"{path} stayed locked by another program for {patience:g} s; "
                "end whatever holds it (a shell, a backup, a stuck process) and resume"
            )
        case apsw.FullError():
            return StoreError(f"no room left to write {path}; free some space and resume")
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreError(f"{path} may only be read; make the file and its folder writable")
        case apsw.CantOpenError():
            return StoreError(f"cannot open {path} ({error}); check the path and its permissions")
        case apsw.IOError():
            return StoreError(f"the disk failed while using {path} ({error}); check it, then resume")
        case _:
            return StoreError(f"{path}: {error}")


def migrations() -> list[Migration]:
    """The numbered migrations that come with this version, in order."""
    files = sorted((file.name, file.read_text("utf-8")) for file in _SCRIPTS.iterdir())
    return [(int(name[:4]), script) for name, script in files if name.endswith(".sql")]


def migration_names() -> dict[int, str]:
    """The names of the migrations by their numbers."""
    names = sorted(file.name for file in _SCRIPTS.iterdir() if file.name.endswith(".sql"))
    return {int(name[:4]): name.removesuffix(".sql") for name in names}


def stored_version(path: Path) -> int:
    """The version of the schema in a file, which is left as it is; 0 if the file is not there."""
    if not path.exists():
        return 0
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return _version(connection, path, max(migration_names()))
        finally:
            connection.close()
    except apsw.Error as error:
        raise failure(error, path, 0.0) from error


def migrate(connection: apsw.Connection, path: Path, known: Iterable[Migration]) -> None:
    """Bring the database to the newest schema, all or nothing; harmless if it is there already."""
    steps = sorted(known)
    newest = steps[-1][0]
    if _version(connection, path, newest) == newest:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        current = _version(connection, path, newest)
        for number, script in steps:
            if number > current:
                connection.execute(script)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {newest}")
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def roll_back(connection: apsw.Connection) -> None:
    """Leave the connection outside any transaction, whatever failed before."""
    if connection.in_transaction:
        with suppress(apsw.Error):
            connection.execute("ROLLBACK")


def _opened(path: Path, patience: float) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(int(patience * 1000))
        known = migrations()
        _version(connection, path, known[-1][0])
        connection.execute("PRAGMA journal_mode = WAL")
        if sys.platform == "darwin":
            connection.execute("PRAGMA fullfsync = ON; PRAGMA checkpoint_fullfsync = ON")
        migrate(connection, path, known)
    except BaseException:
        connection.close()
        raise
    return connection


def _insisting(action: Callable[[], Result], patience: float) -> Result:
    """Repeat `action` while others hold the file in ways that SQLite's own waiting does not cover."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return action()
        except BUSY:
            if time.monotonic() >= deadline:
                raise
            time.sleep(random.uniform(0.001, 0.02))


def _version(connection: apsw.Connection, path: Path, newest: int) -> int:
    """The schema's version, read in one go; raises `StoreError` if the database is not for us."""
    row: tuple[Any, ...] = connection.execute(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) "
        "FROM pragma_application_id, pragma_user_version"
    ).fetchall()[0]
    application, version, objects = row
    if application != APPLICATION_ID and (application or version or objects):
        raise StoreError(f"{path} is a database of another program; choose another path")
    if version > newest:
        raise StoreError(
            f"{path} was made by a newer version of Holdfast "
            f"(schema {version}, this version knows {newest}); upgrade holdfast"
        )
    return int(version)
