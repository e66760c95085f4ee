"""The hold on a SQLite file: its lock outlives what other SQLite libraries in this process do to the file.

POSIX locks belong to a process: whoever closes the file anywhere in it drops the locks of all. A second copy of the
SQLite library, such as Python's `sqlite3`, then takes itself for the last user of the file and unlinks the WAL that
we go on writing to.
"""

from __future__ import annotations

import os
import struct
import weakref
from contextlib import suppress
from pathlib import Path

if os.name == "posix":
    import fcntl

_FIRST_SHARED, _SHARED = 0x40000002, 510
"""The bytes that SQLite locks for sharing a file, and for itself alone before it unlinks a WAL."""

_SET_OWN_LOCK = getattr(fcntl, "F_OFD_SETLK", None) if os.name == "posix" else None


class Hold:
    """Keeps everybody from unlinking the WAL of an open database, and knows whether somebody did.

    Where the system has locks of open files (Linux), nobody can; elsewhere it is only noticed. Raises `BlockingIOError`
    or `FileNotFoundError` if somebody is about to unlink the WAL, or has.
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
        """Whether the database and its WAL are still the files that were opened."""
        try:
            return self._found() == self._files
        except OSError:
            return False

    def is_replaced(self) -> bool:
        """Whether others may use another database, or another WAL, in place of those that were opened."""
        return not self.is_intact() and (os.path.exists(self._wal) or not os.path.exists(self._path))  # noqa: PTH110

    def release(self) -> None:
        """Let the last user of the file clear up behind itself."""
        with suppress(OSError):
            self._lock(shared=False)

    def close(self) -> None:
        """Close the file, which drops the locks that this process has on it: after the connections."""
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
    """Whether something in this process still has a file open that is no longer the one at `path`, or its WAL."""
    holds = [found for hold in list(_holds.values()) if (found := hold()) is not None]
    return any(hold.path == path and not hold.is_intact() for hold in holds)
