"""The default store: one SQLite file in WAL mode, shared by any number of threads and processes."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import apsw

from holdfast import clock
from holdfast.errors import CorruptJournal, StoreError
from holdfast.stores.base import (
    DEFAULT_NAMESPACE,
    LAST_SEQ,
    PAGE_BYTES,
    PAGE_ENTRIES,
    SCHEMA_VERSION,
    Append,
    BaseStore,
    Conflict,
    Entry,
    Footprint,
    Message,
    RunFilter,
    RunInfo,
    RunSize,
    Snapshot,
    StatusCount,
    StoredCheckpoint,
    check,
    check_namespace,
    end_of_prefix,
    file_of,
    own_url,
    within,
)
from holdfast.stores.sqlite.connection import Hold, StepLimit, connect, connect_held, failure, is_lost
from holdfast.stores.sqlite.writing import COLUMNS, Writer, facts_of, value_of
from holdfast.threads import locked

if TYPE_CHECKING:
    from holdfast.stores.inspection import Inspector


Result = TypeVar("Result")

_BASE = "(SELECT no << 32 FROM runs WHERE run = ?1)"
"""The id below the first entry, snapshot or message of a run."""
_PAGE = (
    f"SELECT id & {LAST_SEQ}, at, chain, body, mark FROM entries "
    f"WHERE id > {_BASE} + ?2 AND id <= {_BASE} + ?3 ORDER BY id LIMIT {PAGE_ENTRIES}"
)
_NEWEST = (
    f"SELECT head, (SELECT id & {LAST_SEQ} FROM entries WHERE id > no << 32 AND id <= (no << 32) + ?2 "
    "ORDER BY id DESC LIMIT 1) FROM runs WHERE run = ?1"
)
_MARKS = (
    f"SELECT id & {LAST_SEQ}, at, mark, length(body) FROM entries "
    f"WHERE id > {_BASE} AND id < {_BASE} + ?2 AND mark IS NOT NULL ORDER BY id DESC LIMIT ?3"
)
_SNAPSHOT = (
    f"SELECT id & {LAST_SEQ}, at, chain, body FROM snapshots "
    f"WHERE id > {_BASE} AND id <= {_BASE} + ?2 ORDER BY id DESC LIMIT 1"
)
_INBOX = (
    f"SELECT id & {LAST_SEQ}, at, body FROM inbox "
    f"WHERE id > {_BASE} + ?2 AND id <= {_BASE} + {LAST_SEQ} ORDER BY id"
)
_COUNT = (
    "{name} AS (SELECT no, count(id) AS n, {marks} AS marks, coalesce(sum(length(body)), 0) AS size FROM runs "
    f"LEFT JOIN {{table}} ON id BETWEEN runs.no << 32 AND runs.no << 32 | {LAST_SEQ} GROUP BY no)"
)
_SIZES = (
    f"WITH {_COUNT.format(name='e', marks='count(mark)', table='entries')}, "
    f"{_COUNT.format(name='s', marks='0', table='snapshots')}, {_COUNT.format(name='i', marks='0', table='inbox')} "
    "SELECT run, e.n, e.marks, e.size, s.n, s.size, i.n, i.size "
    "FROM runs JOIN e USING (no) JOIN s USING (no) JOIN i USING (no)"
)
_FILTERS = {
    "run": "run = ?",
    "key": "key = ?",
    "workflow": "workflow = ?",
    "prefix": "run >= ?",
    "before": "updated_at < ?",
    "parent": "parent = ?",
    "since": "updated_at >= ?",
}


class SqliteStore(BaseStore):
    """A store in the SQLite file at `path`, which is created with its folder if missing.

    Any number of processes may share the file; a second writer waits, up to `timeout` seconds.
    Survives `os.fork`: connections are closed before it and opened again on the next use. Each further
    namespace is a file of its own, `runs@NAME.db` beside `runs.db`.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, timeout: float = 60.0, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        place = Path(path).expanduser().resolve()
        super().__init__(own_url(f"sqlite:///{place}", namespace), check_namespace(namespace))
        self.path = file_of(place, namespace)
        self._timeout = timeout
        self._pid = os.getpid()
        self._abandoned: list[object] = []
        self._write_lock, self._read_lock = threading.Lock(), threading.Lock()
        self._writer: Writer | None = None
        self._hold: Hold | None = None
        self._reader: apsw.Connection | None = None
        self._limit: StepLimit
        self._is_reading = False
        """Whether the reader is in use; with the lock held, whether its last user was interrupted."""
        locked(self._write_lock, self._open_writer)
        locked(_stores_lock, _stores.add, self)

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        for append in appends:
            check(append)
        with self._write_lock: return self._written(lambda writer: writer.commit(appends))  # fmt: skip  # noqa: E701

    def change(self, action: Callable[[Writer], Result]) -> Result:
        """Return what `action` returns for the writer, in a transaction that is durable, all or nothing."""

        def transact(writer: Writer) -> Result:
            return writer.transact(True, lambda: action(writer))

        return locked(self._write_lock, self._written, transact)

    def _written(self, action: Callable[[Writer], Result]) -> Result:
        writer = self._writer
        if writer is None or self._closed or self._pid != os.getpid():
            writer = self._open_writer()
        try:
            answer = action(writer)
        except (apsw.Error, UnicodeError) as error:
            raise failure(error, self.path, self._timeout) from error
        if self._hold is not None and not self._hold.is_intact():
            # What was written is no longer the file at the path. The next use opens that one.
            locked(self._read_lock, self._disconnect)
            raise _replaced(self.path)
        return answer

    def _page(self, run: str, after: int, last: int) -> tuple[list[Entry], bool]:
        return locked(self._read_lock, self._asked, lambda connection: _page(connection, run, after, last))

    def checkpoints(
        self, run: str, before: int | None = None, limit: int | None = None
    ) -> list[StoredCheckpoint]:
        rows = self._rows(_MARKS, (run, within(before), -1 if limit is None else within(limit)))
        return [value_of(StoredCheckpoint, row, run) for row in rows]

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        rows = self._rows(_SNAPSHOT, (run, within(upto)))
        return value_of(Snapshot, rows[0], run) if rows else None

    def runs(self, **wanted: Unpack[RunFilter]) -> list[RunInfo]:
        limit, status, past = (
            wanted.pop("limit", None),
            wanted.pop("status", None),
            wanted.pop("past", None),
        )
        given = {name: value for name, value in wanted.items() if value is not None}
        where, values = [_FILTERS[name] for name in given], list(given.values())
        if (prefix := wanted.get("prefix")) and (end := end_of_prefix(prefix)):
            where.append("run < ?")
            values.append(end)
        if past is not None:
            where.append("updated_at <= ? AND (updated_at < ? OR run > ?)")
            values += [past[0], *past]
        if status is not None:
            where.append(f"status IN ({', '.join('?' * len(status))})")
            values.extend(status)
        # The plus keeps SQLite from walking through all runs in the order of time to find a few.
        latest = "+updated_at" if {"prefix", "parent"} & given.keys() else "updated_at"
        rows = self._rows(
            f"SELECT {', '.join(COLUMNS)} FROM runs "
            f"{'WHERE ' if where else ''}{' AND '.join(where)} ORDER BY {latest} DESC, run LIMIT ?",
            (*values, -1 if limit is None else within(limit)),
        )
        return [facts_of(row) for row in rows]

    def prune(self, run: str, horizon: Snapshot, *, forks: Collection[bytes] | None = None) -> int:
        return self.change(lambda writer: writer.prune(run, horizon, forks))

    def delete(self, run: str, *, forks: Collection[bytes] | None = None) -> bool:
        return self.change(lambda writer: writer.delete(run, forks))

    def post(self, run: str, body: bytes, number: int | None = None) -> int:
        return self.change(lambda writer: writer.post(run, clock.time(), body, number))

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        return [value_of(Message, row, run) for row in self._rows(_INBOX, (run, within(after)))]

    def count_runs(self) -> dict[str, StatusCount]:
        """Return how many runs there are of each status; an index has all that this reads."""
        rows = self._rows("SELECT status, count(*), min(updated_at) FROM runs GROUP BY status", ())
        return {status: StatusCount(runs, oldest) for status, runs, oldest in rows}

    def footprint(self) -> Footprint:
        """Return the place and the size of the file."""
        self._check_open()
        files = [Path(f"{self.path}{suffix}") for suffix in ("", "-wal", "-shm")]
        size = sum(file.stat().st_size for file in files if file.exists())
        return Footprint("sqlite", str(self.path), SCHEMA_VERSION, size)

    def sizes(self) -> list[RunSize]:
        """Return how much each run holds. `length` of a body does not read it."""
        return [RunSize(*row) for row in self._rows(_SIZES, ())]

    def inspector(self) -> Inspector:
        """Return an inspector, which reads the file past what is damaged in it."""
        from holdfast.stores.sqlite.integrity import SqliteInspector

        self._check_open()
        return SqliteInspector(self, self._timeout)

    def close(self) -> None:
        locked(self._write_lock, locked, self._read_lock, self._close)

    def _close(self) -> None:
        self._closed = True
        self._disconnect()

    def _disconnect(self) -> None:
        """Close what this process opened; never touch what a parent process opened."""
        if self._pid != os.getpid():
            self._abandoned += [self._writer, self._reader, self._hold]
            self._pid = os.getpid()
        else:
            hold = self._hold
            is_outdated = hold is not None and hold.is_replaced()
            if hold is not None:
                hold.release()
            for connection in (self._writer.connection if self._writer else None, self._reader):
                if connection is not None:
                    if is_outdated:  # What was written to the old files is no part of the new ones.
                        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                    connection.close(True)
            if hold is not None:
                hold.close()
        self._writer = self._reader = self._hold = None

    def _check_open(self) -> None:
        super()._check_open()
        if self._pid != os.getpid():
            self._disconnect()

    def _open_writer(self) -> Writer:
        self._check_open()
        if self._writer is None:
            if is_lost(self.path):  # SQLite shares its memory among all that have a file open.
                raise _replaced(self.path)
            connection, self._hold = connect_held(self.path, self._timeout)
            self._writer = Writer(connection)
        return self._writer

    def _asked(self, question: Callable[[apsw.Connection], Result]) -> Result:
        self._check_open()
        if self._is_reading and self._reader is not None:
            # A statement that is still open would show the database as it was then.
            self._reader.close(True)
            self._reader = None
        if self._reader is None:
            reader = connect(self.path, self._timeout)
            self._limit = StepLimit(reader, self.path)
            self._reader = reader
        self._limit.begin()
        self._is_reading = True
        try:
            answer = question(self._reader)
        except (apsw.Error, UnicodeError) as error:
            raise failure(error, self.path, self._timeout) from error
        self._is_reading = False
        return answer

    def _rows(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return locked(
            self._read_lock, self._asked, lambda connection: connection.execute(sql, values).fetchall()
        )

    def _before_fork(self) -> None:
        self._write_lock.acquire()
        self._read_lock.acquire()
        self._disconnect()

    def _after_fork(self) -> None:
        self._pid = os.getpid()
        self._read_lock.release()
        self._write_lock.release()


def _replaced(path: Path) -> StoreError:
    return StoreError(
        f"{path} or its -wal file was removed or replaced while this process had it open: by hand, or by another "
        "SQLite library in this process, such as Python's sqlite3 module; nothing was acknowledged. Use sqlite3 on it "
        "in another process, or open_store in this one; then resume"
    )


def _page(connection: apsw.Connection, run: str, after: int, last: int) -> tuple[list[Entry], bool]:
    for _ in range(2):  # Somebody may append, or delete the run, between the two looks.
        entries: list[Entry] = []
        size = 0
        cursor = connection.execute(_PAGE, (run, after, last))
        for row in cursor:
            entry = value_of(Entry, row, run)
            entries.append(entry)
            size += len(entry.body)
            if size >= PAGE_BYTES:
                break
        cursor.close(True)
        if size >= PAGE_BYTES or len(entries) == PAGE_ENTRIES:
            return entries, True
        # The last entry up to `last` that the run is known to have; if it was pruned, that may be none.
        rows = connection.execute(_NEWEST, (run, last)).fetchall()
        known = [seq for seq in (rows[0] if rows else ()) if isinstance(seq, int) and seq <= last]
        newest = max(known, default=0)
        if entries or newest <= after:
            return entries, newest > (entries[-1].seq if entries else after)
    raise CorruptJournal(f"run {run!r}: entry {after + 1} is missing", run=run, seq=after + 1)


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_stores_lock = threading.Lock()
_forking: list[SqliteStore] = []


def _before_fork() -> None:
    """Close all connections: SQLite's locks do not survive a fork, not even for a file opened again."""
    _stores_lock.acquire()
    _forking.extend(_stores)
    for store in _forking:
        store._before_fork()


def _after_fork() -> None:
    while _forking:
        _forking.pop()._after_fork()
    _stores_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
