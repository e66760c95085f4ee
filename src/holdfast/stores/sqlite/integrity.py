"""What is wrong with a SQLite file: asked of SQLite itself, and read row by row past what is damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from holdfast.errors import CorruptJournal, StoreError, problem_of
from holdfast.stores.base import Entry, Message, RunInfo, Snapshot
from holdfast.stores.integrity import Found, Keep, Listing, Mender, Standing, changed_meanwhile
from holdfast.stores.sqlite.connection import (
    APPLICATION_ID,
    SCHEMA,
    STATISTICS,
    StepLimit,
    connect,
    failure,
    made_by,
    migrations,
)
from holdfast.stores.sqlite.writing import (
    FACTS,
    Writer,
    entry_of,
    facts_of,
    facts_row,
    message_of,
    snapshot_of,
)

if TYPE_CHECKING:
    from holdfast.stores.sqlite.store import SqliteStore


_SEQ = (1 << 32) - 1
_MOST_PROBLEMS = 100
_TABLES = ("entries", "snapshots", "inbox")
_STRAY = "FROM {table} WHERE id >> 32 NOT IN (SELECT no FROM runs NOT INDEXED)"

_COLUMNS = (*FACTS, "head", "sum")

Value = TypeVar("Value", Snapshot, Message)
Plain = TypeVar("Plain", str, float, int, bytes)
Stamp = tuple[tuple[Any, ...], Any, Any]


class SqliteMender(Mender):
    """Reads the tables themselves, never through an index, which may be what is damaged."""

    def __init__(self, store: SqliteStore, patience: float) -> None:
        super().__init__(store)
        self._path, self._sqlite = store.path, store
        self._reader = connect(store.path, patience)
        self._limit = StepLimit(self._reader, store.path)
        self._numbers: dict[str, int] = {}

    def close(self) -> None:
        self._reader.close(True)

    def problems(self) -> list[str]:
        found = self._checked()
        for table in _TABLES:
            try:
                (count,) = next(iter(self._rows(f"SELECT count(*) {_STRAY.format(table=table)}")))
            except StoreError as error:
                found.append(f"table {table} cannot be read as a whole: {error}")
                continue
            if count:
                found.append(f"{count} rows of table {table} are of no run")
        return found

    def _checked(self) -> list[str]:
        """What SQLite finds."""
        found = []
        try:
            rows = list(self._rows(f"PRAGMA integrity_check({_MOST_PROBLEMS})"))
            found += [f"integrity_check: {row[0]}" for row in rows if row[0] != "ok"]
            rows = list(self._rows("PRAGMA foreign_key_check"))
            found += [f"foreign_key_check: {row}" for row in rows]
            if next(iter(self._rows("PRAGMA application_id")))[0] != APPLICATION_ID:
                found.append("its application_id is not that of Holdfast")
            found += self._schema_problems()
        except StoreError as error:
            found.append(problem_of(error))
        return found

    def _schema_problems(self) -> list[str]:
        """Tables and indexes that are not as the migrations make them."""
        expected = {row[1]: row for row in sorted(made_by(migrations()), key=lambda row: str(row[1]))}
        there = {row[1]: tuple(row) for row in self._rows(SCHEMA) if row[1] not in STATISTICS}
        missing = [f"{expected[name][0]} {name} is missing" for name in expected if name not in there]
        other = [
            f"{there[name][0]} {name} is not as it was made"
            for name in there
            if there[name] != expected.get(name)
        ]
        return missing + other

    def runs(self) -> Listing:
        infos: list[RunInfo] = []
        problems: list[str] = []
        for row in self._around("SELECT no, {columns} FROM runs NOT INDEXED", "no", problems):
            number, *facts = row
            try:
                info = facts_of(facts)
                self._numbers[info.run] = number
            except CorruptJournal as error:
                problems.append(problem_of(error))
                readable = self._as_far_as_it_goes(facts)
                if readable is None:
                    continue
                info = readable
                self._numbers[info.run] = number
            infos.append(info)
        return Listing(infos, problems)

    def _as_far_as_it_goes(self, row: Sequence[Any]) -> RunInfo | None:
        """The facts of a damaged row, if it says which run it is of."""
        values = dict(zip(FACTS, row, strict=False))
        run, key = values["run"], values["key"]
        if not isinstance(run, str) or not isinstance(key, bytes):
            return None

        def taken(name: str, kind: type[Plain], instead: Plain) -> Plain:
            value = values[name]
            return value if isinstance(value, kind) else instead

        return RunInfo(
            run,
            key,
            taken("workflow", str, ""),
            taken("status", str, ""),
            taken("created_at", float, 0.0),
            taken("updated_at", float, 0.0),
            tags=_tags(values["tags"]),
            queue=taken("queue", str, ""),
            priority=taken("priority", int, 0),
            due_at=taken("due_at", float, 0.0) or None,
            parent=taken("parent", bytes, b""),
            origin=taken("origin", str, "?"),
        )

    def standing(self, run: str) -> Standing | None:
        for _ in range(2):
            if run not in self._numbers:
                self.runs()
            if run not in self._numbers:
                return None
            stamp = self._stamp(self._reader, self._numbers[run])
            if stamp is not None and stamp[0][0] == run:
                return self._believed(stamp)
            del self._numbers[run]  # It was deleted, and perhaps another begun under its id.
        return None

    def _believed(self, stamp: Stamp) -> Standing | None:
        row, *_ = stamp
        raw = json.dumps(dict(zip(_COLUMNS, row, strict=True)), default=bytes.hex).encode()
        try:
            return Standing(facts_of(row), row[-2], stamp, raw=raw)
        except CorruptJournal as error:
            info = self._as_far_as_it_goes(row)
            return None if info is None else Standing(info, 0, stamp, problem_of(error), raw)

    def _stamp(self, connection: apsw.Connection, number: int) -> Stamp | None:
        """The row of a run and its first and last entry, as far as they can be read."""
        query = f"SELECT {', '.join(_COLUMNS)} FROM runs NOT INDEXED WHERE no = ?"
        try:
            rows = connection.execute(query, (number,)).fetchall()
        except (apsw.Error, UnicodeError) as error:
            raise failure(error, self._path, 0.0) from error
        return (tuple(rows[0]), *self._ends(connection, number)) if rows else None

    def _ends(self, connection: apsw.Connection, number: int) -> tuple[Any, Any]:
        text = "SELECT (SELECT min(id) {0}), (SELECT max(id) {0})"
        of_run = "FROM entries WHERE id BETWEEN ?1 AND ?2"
        bounds = (number << 32, number << 32 | _SEQ)
        try:
            ((first, last),) = connection.execute(text.format(of_run), bounds).fetchall()
        except apsw.Error as error:
            return problem_of(error), None
        return first, last

    def facts_problems(self, info: RunInfo) -> list[str]:
        try:
            return super().facts_problems(info)
        except StoreError as error:
            return [problem_of(error)]

    def entries(self, run: str) -> Iterator[Entry]:
        for row in self._of_run("SELECT id & {seq}, at, chain, body, mark FROM entries", run):
            yield entry_of(row, run)

    def snapshots(self, run: str) -> list[Found]:
        query = "SELECT id & {seq}, at, chain, body FROM snapshots"
        return self._found(query, run, lambda row: snapshot_of(row, run))

    def messages(self, run: str) -> list[Found]:
        return self._found("SELECT id & {seq}, at, body FROM inbox", run, lambda row: message_of(row, run))

    def _found(self, query: str, run: str, read: Callable[[Sequence[Any]], Value]) -> list[Found]:
        found: list[Found] = []
        try:
            for row in self._of_run(query, run):
                raw = row[-1] if isinstance(row[-1], bytes) else b""
                try:
                    found.append(Found(row[0], raw, read(row)))
                except CorruptJournal as error:
                    found.append(Found(row[0], raw, None, problem_of(error)))
        except StoreError as error:
            found.append(Found(0, b"", None, problem_of(error)))
        return found

    def drop_snapshot(self, run: str, number: int, raw: bytes) -> None:
        place = self._number(run) << 32 | number
        self._change(
            "DELETE FROM snapshots WHERE id = ? AND (body = ? OR typeof(body) <> 'blob')", place, raw
        )

    def void_message(self, run: str, number: int) -> None:
        statement = "INSERT OR REPLACE INTO inbox (id, at, body) VALUES (?, 0.0, x'')"
        self._change(statement, self._number(run) << 32 | number)

    def put_facts(self, info: RunInfo, head: int, seen: Standing) -> None:
        """The row is found by its number: its id may be what is damaged in the index."""
        names = ", ".join(f"{name} = ?" for name in (*FACTS[2:], "head", "sum"))
        number = self._number(info.run)

        def put(writer: Writer) -> None:
            if self._stamp(writer.connection, number) != seen.stamp:
                raise changed_meanwhile(info.run)
            row = (*facts_row(info, head), number)
            writer.connection.execute(f"UPDATE runs SET {names} WHERE no = ?", row)

        self._sqlite.change(put)

    def beside(self) -> Path:
        return self._path.with_name(f"{self._path.name}.lost+found")

    def mend(self, keep: Keep) -> list[str]:
        done = []
        for table in _TABLES:
            stray = _STRAY.format(table=table)
            try:
                rows = list(self._rows(f"SELECT * {stray}"))
                if rows:
                    keep(f"{table}.json", json.dumps(rows, default=bytes.hex).encode())
                    self._change(f"DELETE {stray}")
                    done.append(f"{len(rows)} rows of table {table} that were of no run are put aside")
            except StoreError:
                continue
        if any("index" in problem for problem in self._checked()):
            self._change("REINDEX")
            done.append("the indexes are made anew")
        return done

    def _of_run(self, query: str, run: str) -> Iterator[Sequence[Any]]:
        first = self._number(run) << 32
        text = f"{query.format(seq=_SEQ)} NOT INDEXED WHERE id BETWEEN ? AND ? ORDER BY id"
        return self._rows(text, (first, first | _SEQ))

    def _number(self, run: str) -> int:
        if run not in self._numbers:
            self.runs()
        if run not in self._numbers:
            raise StoreError(f"run {run!r} is not in table runs of {self._path}")
        return self._numbers[run]

    def _around(self, query: str, key: str, problems: list[str]) -> list[Sequence[Any]]:
        """All rows that can be read from either end, if something in the middle cannot."""
        text = query.format(columns=", ".join(_COLUMNS))
        found: list[Sequence[Any]] = []
        try:
            found.extend(self._rows(f"{text} ORDER BY {key}"))
        except StoreError as error:
            problems.append(f"table runs cannot be read as a whole: {error}")
            seen = {row[0] for row in found}
            with suppress(StoreError):
                rows = self._rows(f"{text} ORDER BY {key} DESC")
                found.extend(row for row in rows if row[0] not in seen)
        return found

    def _rows(self, query: str, values: Sequence[Any] = ()) -> Iterator[Sequence[Any]]:
        """Row by row, so that those before a damaged one are seen."""
        self._limit.begin()
        try:
            yield from self._reader.execute(query, values)
        except (apsw.Error, UnicodeError) as error:
            raise failure(error, self._path, 0.0) from error

    def _change(self, statement: str, *values: Any) -> None:
        self._sqlite.change(lambda writer: writer.connection.execute(statement, values))


def _tags(text: Any) -> tuple[str, ...]:
    try:
        return tuple(str(tag) for tag in json.loads(text)) if text else ()
    except (ValueError, TypeError):
        return ()
