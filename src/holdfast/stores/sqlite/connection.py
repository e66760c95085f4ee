"""Connections to a SQLite file: its identity, its schema, its lock, and errors with their remedies."""

from __future__ import annotations

import errno
import functools
import os
import random
import stat
import struct
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import apsw

from holdfast.errors import CorruptJournal, StoreError
from holdfast.stores.base import SCHEMA_VERSION, make_folders, other_version

if os.name == "posix":
    import fcntl


_FIRST_SHARED, _SHARED = 0x40000002, 510
"""The bytes that SQLite locks for sharing a file, and for itself alone before it unlinks a WAL."""

_SET_OWN_LOCK = getattr(fcntl, "F_OFD_SETLK", None) if os.name == "posix" else None


class Hold:
    """A lock that keeps others from unlinking the WAL of an open database, whatever SQLite library they use.

    Where the system has locks of open files (Linux), nobody can unlink it; elsewhere `is_intact` notices. Raises
    `BlockingIOError` or `FileNotFoundError` if somebody is about to unlink the WAL, or has.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._path, self._wal = path, str(path), f"{path}-wal"
        self._file: int | None = None
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            with suppress(_Unsupported):
                self._lock(shared=True)
            self._files = self._found()
        except BaseException:
            self.close()
            raise
        _holds[id(self)] = weakref.ref(self)

    def is_intact(self) -> bool:
        """Return whether the database and its WAL are still the files that were opened."""
        try:
            return self._found() == self._files
        except OSError:
            return False

    def is_replaced(self) -> bool:
        """Return whether others may use another database or WAL in place of those that were opened."""
        return not self.is_intact() and (os.path.exists(self._wal) or not os.path.exists(self._path))  # noqa: PTH110

    def has_open(self, found: os.stat_result) -> bool:
        """Return whether that is the database that was opened, under whichever name."""
        return (found.st_ino, found.st_dev) == self._files[::2]

    def release(self) -> None:
        """Release the lock, so that the last user of the file can remove its WAL."""
        with suppress(OSError):
            self._lock(shared=False)

    def close(self) -> None:
        """Close the file, after the connections: that drops all locks of this process on it."""
        _holds.pop(id(self), None)
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    __del__ = close

    def _found(self) -> tuple[int, int, int, int]:
        database, wal = os.stat(self._path), os.stat(self._wal)  # noqa: PTH116  # Twice as fast as of a `Path`.
        return database.st_ino, wal.st_ino, database.st_dev, wal.st_dev

    def _lock(self, *, shared: bool) -> None:
        if _SET_OWN_LOCK is None or self._file is None:
            return
        kind = fcntl.F_RDLCK if shared else fcntl.F_UNLCK
        request = struct.pack("hhqqi0q", kind, os.SEEK_SET, _FIRST_SHARED, _SHARED, 0)
        try:
            fcntl.fcntl(self._file, _SET_OWN_LOCK, request)
        except (BlockingIOError, PermissionError):
            raise BlockingIOError(f"{self._path} is locked by one alone") from None
        except OSError as error:
            raise _Unsupported from error


class _Unsupported(OSError):
    """The file system has no locks of open files."""


_holds: dict[int, weakref.ref[Hold]] = {}


def is_lost(path: Path) -> bool:
    """Return whether this process has a file open that is no longer the one at `path`, or its WAL."""
    holds = [found for hold in list(_holds.values()) if (found := hold()) is not None]
    return any(hold.path == path and not hold.is_intact() for hold in holds)


APPLICATION_ID = 0x484F4C44
"""`HOLD`: marks a SQLite file as ours."""

_MARK = APPLICATION_ID.to_bytes(4, "big")
_MARK_AT = 68
"""Where it is on the first page, of the file or in its WAL."""
_BESIDE = ("-wal", "-shm", "-journal")
_MOST_FRAMES = 64

BUSY = (apsw.BusyError, apsw.LockedError, apsw.ProtocolError)

STATISTICS = ("sqlite_stat1", "sqlite_stat4")
"""The tables that ANALYZE makes."""

SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_schema"
_MOST_OBJECTS = 1000
_MORE_FILES = "close files or raise their limit, and try again"
_SCRIPT = Path(__file__).parents[1] / "sql" / "sqlite.sql"

Result = TypeVar("Result")


def is_store(path: Path) -> bool:
    """Return whether a file is a Holdfast database, or one of those that SQLite keeps beside one.

    What this process has open is known without reading it: closing the file would drop SQLite's locks on it.
    """
    names = [path.name, *(path.name.removesuffix(end) for end in _BESIDE if path.name.endswith(end))]
    return any(_is_marked(path.with_name(name)) for name in names if name)


def _is_marked(path: Path) -> bool:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if any(hold.has_open(found) for each in list(_holds.values()) if (hold := each()) is not None):
        return True
    if not stat.S_ISREG(found.st_mode):
        return False
    with path.open("rb") as file:
        header = file.read(100)
    is_database = header.startswith(b"SQLite format 3\0")
    return is_database and (
        header[_MARK_AT : _MARK_AT + 4] == _MARK or _is_marked_in_wal(Path(f"{path}-wal"))
    )


def _is_marked_in_wal(path: Path) -> bool:
    """Return whether a WAL begins by marking its database as ours: it is not in the file before it is copied there."""
    try:
        with path.open("rb") as wal:
            size = struct.unpack_from(">8xI", wal.read(32).ljust(32, b"\0"))[0]
            for _ in range(_MOST_FRAMES if 512 <= size <= 65536 else 0):
                number, page = wal.read(24)[:4], wal.read(size)
                if number == b"\0\0\0\1" and page[_MARK_AT : _MARK_AT + 4] == _MARK:
                    return True
    except FileNotFoundError:
        pass
    return False


def connect(path: Path, timeout: float) -> apsw.Connection:
    """Open `path` as a Holdfast database, waiting up to `timeout` seconds for others.

    Creates the file (readable by its owner only), its folder and its tables. Refuses, untouched, a file that
    is no database, belongs to another program, or was made by another version.
    """
    return _insisting(lambda: _opened(path, timeout), path, timeout)


def connect_held(path: Path, timeout: float) -> tuple[apsw.Connection, Hold]:
    """Open `path` as `connect` does, and hold it for as long as the connection is open."""

    def opened() -> tuple[apsw.Connection, Hold]:
        connection = _opened(path, timeout)
        try:
            return connection, Hold(path)
        except BaseException as error:
            connection.close()
            if isinstance(error, BlockingIOError | FileNotFoundError):
                raise apsw.BusyError(str(error)) from error
            raise

    return _insisting(opened, path, timeout)


def _insisting(opening: Callable[[], Result], path: Path, timeout: float) -> Result:
    """Repeat `opening` while others hold the file in ways that SQLite's own waiting does not cover."""
    try:
        make_folders(path.parent)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        remedy = _MORE_FILES if error.errno in (errno.EMFILE, errno.ENFILE) else "choose another path"
        raise StoreError(f"cannot create {path}: {error.strerror}; {remedy}") from error
    deadline = time.monotonic() + timeout
    while True:
        try:
            return opening()
        except BUSY as error:
            if time.monotonic() >= deadline:
                raise failure(error, path, timeout) from error
            time.sleep(random.uniform(0.001, 0.02))
        except apsw.Error as error:
            raise failure(error, path, timeout) from error
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error}; {_MORE_FILES}") from error
        except UnicodeEncodeError:
            raise StoreError(
                f"{str(path)!a} is not Unicode, as SQLite's paths are; choose another path"
            ) from None


def failure(error: Exception, path: Path, timeout: float) -> StoreError:
    """Return a `StoreError` that says what went wrong with the database, and the remedy."""
    match error:
        case apsw.CorruptError():
            return CorruptJournal(f"{path} is damaged ({error}); restore it from a backup")
        case apsw.NotADBError():
            return StoreError(f"{path} is not a SQLite database; choose another path")
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return StoreError(
                f"{path} stayed locked by another program for {timeout:g} s; "
                "end whatever holds it (a shell, a backup, a stuck process) and resume"
            )
        case apsw.FullError():
            return StoreError(f"no room left to write {path}; free some space and resume")
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreError(f"{path} may only be read; make the file and its folder writable")
        case apsw.CantOpenError():
            # SQLite does not say that descriptors are used up.
            try:
                os.close(os.open(os.devnull, os.O_RDONLY))
            except OSError as reason:
                if reason.errno in (errno.EMFILE, errno.ENFILE):
                    error.__cause__ = reason
                    return StoreError(f"cannot open {path}: {reason.strerror}; {_MORE_FILES}")
            return StoreError(f"cannot open {path} ({error}); check the path and its permissions")
        case apsw.NoMemError():
            error.__cause__ = MemoryError("SQLite was given no memory")
            return StoreError(f"{path}: {error}; free memory of this process or raise its limit, and resume")
        case apsw.InterruptError():
            return CorruptJournal(f"{path} is damaged: a query of it does not end; restore it from a backup")
        case apsw.IOError():
            return StoreError(
                f"the disk failed while using {path} ({error}); check it and the limits of file sizes, then resume"
            )
        case _:
            return StoreError(f"{path}: {error}")


def stored_version(path: Path) -> int:
    """Return the version of the schema in a file, which is left as it is; 0 if the file is not there."""
    if not path.exists():
        return 0
    try:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            return _version(connection, path)
    except apsw.Error as error:
        raise failure(error, path, 0.0) from error


def roll_back(connection: apsw.Connection) -> None:
    """Leave the connection outside any transaction, whatever failed before."""
    if connection.in_transaction:
        with suppress(apsw.Error):
            connection.execute("ROLLBACK")


def _opened(path: Path, timeout: float) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(int(timeout * 1000))
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.execute("PRAGMA cell_size_check = ON")
        version = _check_schema(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        if sys.platform == "darwin":
            connection.execute("PRAGMA fullfsync = ON; PRAGMA checkpoint_fullfsync = ON")
        if version == 0:
            _create_schema(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _create_schema(connection: apsw.Connection, path: Path) -> None:
    """Make the tables, all or nothing; harmless if another process has just made them."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _version(connection, path) == 0:
            connection.execute(_SCRIPT.read_text("utf-8"))
            connection.execute(
                f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}"
            )
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def _check_schema(connection: apsw.Connection, path: Path) -> int:
    """Return the schema's version; refuse a file with any object that we did not make: a table may be an endless view.

    Nothing but the schema is read. What is missing is not refused: that is damage, which `fsck` reports.
    """
    with _unchanging(connection):
        version = _version(connection, path)
        try:
            objects = connection.execute(f"{SCHEMA} LIMIT {_MOST_OBJECTS}").fetchall()
        except UnicodeDecodeError as error:
            raise CorruptJournal(f"{path} is damaged ({error}); restore it from a backup") from None
    for row in objects:
        if tuple(row) not in expected_schema() and row[1] not in STATISTICS:
            raise StoreError(
                f"{path} has the {row[0]} {row[1]!r:.80}, which is not as Holdfast makes it; if you made it, drop it "
                "with sqlite3; if the file came from others, do not use it"
            )
    return version


@functools.cache
def expected_schema() -> frozenset[tuple[Any, ...]]:
    """Return the tables and indexes that we make, as rows of the schema."""
    with closing(apsw.Connection(":memory:")) as fresh:
        fresh.execute(_SCRIPT.read_text("utf-8"))
        return frozenset(map(tuple, fresh.execute(SCHEMA).fetchall()))


def _version(connection: apsw.Connection, path: Path) -> int:
    """Return the schema's version, 0 if there is none; raise `StoreError` if the database is not for us."""
    # Not by the functions of the same names: a file may have tables that are called like them.
    asked = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_schema")
    with _unchanging(connection):
        found: list[Any] = [connection.execute(sql).fetchall()[0][0] for sql in asked]
    application, version, objects = found
    if application != APPLICATION_ID and (application or version or objects):
        raise StoreError(f"{path} is a database of another program; choose another path")
    if version not in (0, SCHEMA_VERSION):
        raise other_version(str(path), version)
    return int(version)


@contextmanager
def _unchanging(connection: apsw.Connection) -> Iterator[None]:
    """Run the block in one read transaction."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        roll_back(connection)


class StepLimit:
    """A limit for queries that take far more work than a file of its size has rows.

    A file of a stranger may have pages that lead to each other without end. Each byte of a file allows some steps of
    SQLite's machine, far more than any query takes.
    """

    def __init__(self, connection: apsw.Connection, path: Path) -> None:
        self._path, self._rounds = path, 0
        connection.set_progress_handler(self._is_over, _STEPS)

    def begin(self) -> None:
        """Count from 0: a query begins."""
        self._rounds = 0

    def _is_over(self) -> bool:
        self._rounds += 1
        return (
            self._rounds > _LEAST_ROUNDS
            and self._rounds * _STEPS > _STEPS_PER_BYTE * self._path.stat().st_size
        )


_STEPS, _LEAST_ROUNDS, _STEPS_PER_BYTE = 1_000_000, 50, 100
