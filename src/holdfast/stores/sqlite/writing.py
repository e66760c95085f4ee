"""The writing connection of a SQLite store: the fence, and every change to the tables; rows as values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar, cast

import apsw

from holdfast.errors import CorruptJournal, Remedy
from holdfast.stores.base import (
    FACTS,
    LAST_SEQ,
    Append,
    Conflict,
    Entry,
    Message,
    RunInfo,
    Snapshot,
    StoredCheckpoint,
    check_number,
    no_inbox,
)
from holdfast.stores.sqlite.connection import roll_back

Row = Sequence[Any]
Value = TypeVar("Value", Entry, StoredCheckpoint, Snapshot, Message)

_NONE = type(None)
_SHAPES: dict[type, tuple[str, tuple[tuple[type, ...], ...]]] = {
    Entry: ("entry", ((int, float, bytes, bytes, _NONE), (int, float, bytes, bytes, bytes))),
    StoredCheckpoint: ("the checkpoint at", ((int, float, bytes, int),)),
    Snapshot: ("the snapshot at", ((int, float, bytes, bytes),)),
    Message: ("message", ((int, float, bytes),)),
}
"""The name of each kind of rows, and the types that their columns may have."""


def value_of(kind: type[Value], row: Row, run: str) -> Value:
    """Return the value of a row that has the fields of `kind`; raise `CorruptJournal` if it holds other types."""
    what, shapes = _SHAPES[kind]
    if tuple(map(type, row)) in shapes:
        return kind(*row)
    seq = None if kind is Message else row[0]
    text = f"run {run!r}: {what} {row[0]} is damaged (its row holds other types)"
    raise CorruptJournal(text, run=run, seq=seq)


def facts_of(row: Row) -> RunInfo:
    """Return the facts of a row with the columns `FACTS`, the head and a checksum."""
    *values, head, sum_ = row
    run = values[0]
    try:
        if all(map(isinstance, values, _TYPES)) and sum_ == _sum_of(run, values[2:], head):
            facts = dict(zip(FACTS, values, strict=True))
            return RunInfo(**{**facts, "tags": tuple(json.loads(facts["tags"])) if facts["tags"] else ()})
    except (ValueError, TypeError):
        pass
    raise CorruptJournal(
        f"the facts of run {run!r} are damaged",
        remedies=Remedy("repair"),
        run=run if isinstance(run, str) else None,
    )


_TYPES: tuple[Any, ...] = (str, bytes, str, str, float, float, str, str, str, int, float | None, bytes, str)


def facts_row(info: RunInfo, head: int) -> tuple[Any, ...]:
    """Return the values of all of `FACTS` but the id and the key, the last entry that there is, and their checksum."""
    tags = json.dumps(info.tags, ensure_ascii=False) if info.tags else ""
    times = (float(info.created_at), float(info.updated_at))
    due_at = None if info.due_at is None else float(info.due_at)
    place = (info.queue, info.priority, due_at, info.parent, info.origin)
    values = (info.workflow, info.status, *times, info.owner, tags, *place)
    return (*values, head, _sum_of(info.run, values, head))


def _sum_of(run: str, values: Sequence[Any], head: int) -> bytes:
    """Return the checksum of a row: of the id, the values from the workflow on, and the head."""
    text = repr((run, *values, head)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).digest()


Result = TypeVar("Result")

_CACHED_RUNS = 10_000

# Where the head (?6) is missing, `at` becomes NULL and the row is ignored. Cheaper than a WHERE on
# the table being written, for which SQLite would first copy the row to a temporary table.
_FENCED_ENTRY = (
    "INSERT OR IGNORE INTO entries (id, at, chain, mark, body) "
    "VALUES (?1, (SELECT ?2 FROM entries WHERE id = ?6), ?3, ?4, ?5)"
)
_ENTRY = "INSERT INTO entries (id, at, chain, mark, body) VALUES (?, ?, ?, ?, ?)"
_IS_HEAD = (
    "SELECT EXISTS (SELECT 1 FROM entries WHERE id = ?1) "
    "AND NOT EXISTS (SELECT 1 FROM entries WHERE id = ?1 + 1)"
)
COLUMNS = (*FACTS, "head", "sum")
_NEW_RUN = (
    f"INSERT INTO runs ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) ON CONFLICT DO NOTHING"
)
PUT_FACTS = f"UPDATE runs SET {', '.join(f'{name} = ?' for name in COLUMNS[2:])} WHERE no = ?"
_IS_THERE = "SELECT 1 FROM entries WHERE id = ?"
_FORKS = "SELECT key FROM runs WHERE parent <> x'' AND parent = (SELECT key FROM runs WHERE run = ?)"
_SNAPSHOT = "INSERT OR REPLACE INTO snapshots (id, at, chain, body) VALUES (?, ?, ?, ?)"


class Writer:
    """The writing connection of a database. Not thread-safe: its owner holds a lock.

    Every method leaves the connection outside any transaction, also when it raises.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self._execute, self._changes = connection.cursor().execute, connection.changes
        self._numbers: dict[str, int] = {}
        self._durable: bool | None = None

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        """Write the appends in one transaction; return an answer for each as `Store.commit` promises."""
        if len(appends) == 1 and self._written_alone(appends[0]):
            return [None]
        durable = any(append.durable for append in appends)
        return self.transact(durable, lambda: [self._apply(append) for append in appends])

    def transact(self, durable: bool, action: Callable[[], Result]) -> Result:
        """Return what `action` returns in a transaction, which is committed, or undone if anything is raised."""
        try:
            self._sync(durable)
            self._execute("BEGIN IMMEDIATE")
            result = action()
            self._execute("COMMIT")
            return result
        except BaseException:
            self._numbers.clear()
            roll_back(self.connection)
            raise

    def prune(self, run: str, horizon: Snapshot, forks: Collection[bytes] | None) -> int:
        """Do as `Store.prune` promises, in a transaction."""
        number = self._look_up(run, forks)
        if number is None or not self._first(_IS_THERE, number << 32 | horizon.seq):
            return 0
        bounds = (number << 32, number << 32 | horizon.seq)
        self._execute("DELETE FROM snapshots WHERE id > ? AND id < ?", bounds)
        self._execute("DELETE FROM entries WHERE id > ? AND id < ?", bounds)
        dropped = self._changes()
        self._execute(_SNAPSHOT, (bounds[1], horizon.at, horizon.chain, horizon.body))
        return dropped

    def delete(self, run: str, forks: Collection[bytes] | None) -> bool:
        """Do as `Store.delete` promises, in a transaction."""
        number = self._look_up(run, forks)
        if number is None:
            return False
        self._numbers.pop(run, None)
        bounds = (number << 32, number << 32 | LAST_SEQ)
        for table in ("entries", "snapshots", "inbox"):
            self._execute(f"DELETE FROM {table} WHERE id BETWEEN ? AND ?", bounds)
        self._execute("DELETE FROM runs WHERE no = ?", (number,))
        return True

    def post(self, run: str, at: float, body: bytes, number: int | None) -> int:
        """Do as `Store.post` promises, in a transaction."""
        no = self._look_up(run)
        if no is None:
            raise no_inbox(run)
        last = self._last("inbox", no) or 0
        check_number(run, number, last)
        self._execute("INSERT INTO inbox (id, at, body) VALUES (?, ?, ?)", (no << 32 | last + 1, at, body))
        return last + 1

    def _written_alone(self, append: Append) -> bool:
        """Write `append` if it is one entry of a known run; return whether it is written. One statement is its own
        transaction."""
        run, after, entries, info, snapshots, durable, _ = append
        number = self._numbers.get(run)
        if number is None or info is not None or len(entries) != 1 or snapshots:
            return False
        if durable is not self._durable:
            self._sync(durable)
        return self._fenced(number, after, entries[0])

    def _apply(self, append: Append) -> Conflict | None:
        run, after, entries, info, snapshots, _, _ = append
        head = entries[-1].seq if entries else after
        if after == 0:
            assert info is not None
            self._execute(_NEW_RUN, (run, info.key, *facts_row(info, head)))
            number = self._look_up(run) if self._changes() else None
        else:
            number = self._numbers.get(run)
            if number is None or not self._begins(number, append):
                number = self._look_up(run)
                if number is not None and not self._begins(number, append):
                    number = None
            entries = entries[1:]
        if number is None:
            number = self._look_up(run)
            return Conflict(run, after, None if number is None else self._last("entries", number))
        for seq, at, chain, body, mark in entries:
            self._execute(_ENTRY, (number << 32 | seq, at, chain, mark, body))
        if after and info is not None:
            self._execute(PUT_FACTS, (*facts_row(info, head), number))
        for each in snapshots:
            self._execute(_SNAPSHOT, (number << 32 | each.seq, each.at, each.chain, each.body))
        return None

    def _begins(self, number: int, append: Append) -> bool:
        """Write the first entry, if any, if `after` is the head; return whether it is."""
        if append.entries:
            return self._fenced(number, append.after, append.entries[0])
        return bool(self._first(_IS_HEAD, number << 32 | append.after))

    def _fenced(self, number: int, after: int, entry: Entry) -> bool:
        """Write `entry` if, and only if, `after` is the head: it exists and `entry` does not; return whether it is."""
        seq, at, chain, body, mark = entry
        base = number << 32
        self._execute(_FENCED_ENTRY, (base | seq, at, chain, mark, body, base | after))
        return self._changes() == 1

    def _look_up(self, run: str, forks: Collection[bytes] | None = None) -> int | None:
        """Return the number of a run; `None` if it is not there, or has other forks than those with these keys."""
        number: int | None = self._first("SELECT no FROM runs WHERE run = ?", run)
        if number is None:
            self._numbers.pop(run, None)
            return None
        if len(self._numbers) >= _CACHED_RUNS:
            self._numbers.clear()
        self._numbers[run] = number
        if forks is None:
            return number
        children: list[Any] = self._execute(_FORKS, (run,)).fetchall()
        return None if any(bytes(key) not in forks for (key,) in children) else number

    def _last(self, table: str, number: int) -> int | None:
        bounds = (number << 32, number << 32 | LAST_SEQ)
        query = f"SELECT max(id) & {LAST_SEQ} FROM {table} WHERE id BETWEEN ? AND ?"
        last: list[Any] = self._execute(query, bounds).fetchall()
        return cast(int | None, last[0][0])

    def _first(self, sql: str, value: str | int) -> Any:
        rows = self._execute(sql, (value,)).fetchall()
        return rows[0][0] if rows else None

    def _sync(self, durable: bool) -> None:
        """Choose what the next commit survives: power loss, or only the death of the process."""
        if durable is not self._durable:
            self._durable = None
            self._execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._durable = durable
