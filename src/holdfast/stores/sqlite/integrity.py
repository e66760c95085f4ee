"""The inspector of a SQLite file: it asks SQLite itself, and reads row by row past what is damaged."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from holdfast.errors import CorruptJournal, StoreError, problem_of
from holdfast.stores.base import DEFAULT_NAMESPACE, FACTS, LAST_SEQ, Entry, Message, RunInfo, Snapshot
from holdfast.stores.inspection import (
    Found,
    Keep,
    Listing,
    Observed,
    TableInspector,
    changed_meanwhile,
    plain_json,
    put_aside,
)
from holdfast.stores.sqlite.connection import (
    APPLICATION_ID,
    SCHEMA,
    STATISTICS,
    StepLimit,
    connect,
    expected_schema,
    failure,
)
from holdfast.stores.sqlite.writing import COLUMNS, PUT_FACTS, Writer, facts_of, facts_row, value_of

if TYPE_CHECKING:
    from holdfast.stores.sqlite.store import SqliteStore


_MOST_PROBLEMS = 100
_DEFAULTS = {"tags": "", "queue": "", "priority": 0, "due_at": None, "parent": b"", "origin": "?"}
"""What stands for facts of a damaged row that cannot be read; for others an empty text, or the time 0."""

_OF_RUN = "FROM entries WHERE id BETWEEN ?1 AND ?2"
_ENDS = f"SELECT (SELECT min(id) {_OF_RUN}), (SELECT max(id) {_OF_RUN})"

Value = TypeVar("Value", Snapshot, Message)
Version = tuple[tuple[Any, ...], Any, Any]


class SqliteInspector(TableInspector):
    """Reads the tables themselves, never through an index, which may be what is damaged."""

    TABLES = ("entries", "snapshots", "inbox")
    STRAY = "FROM {table} WHERE id >> 32 NOT IN (SELECT no FROM runs NOT INDEXED)"
    store: SqliteStore

    def __init__(self, store: SqliteStore, timeout: float) -> None:
        super().__init__(store)
        self._reader = connect(store.path, timeout)
        self._limit = StepLimit(self._reader, store.path)
        self._numbers: dict[str, int] = {}

    def close(self) -> None:
        self._reader.close(True)

    def problems(self) -> list[str]:
        return [*self._checked(), *super().problems()]

    def beside_runs(self) -> list[str]:
        path, found = self.store.path, super().beside_runs()
        if self.store.namespace != DEFAULT_NAMESPACE:
            return found
        pattern = f"{glob.escape(path.stem)}@*{glob.escape(path.suffix)}"
        return found + [f"another namespace, {other.name}" for other in sorted(path.parent.glob(pattern))]

    def _checked(self) -> list[str]:
        """Return what SQLite finds."""
        found = []
        try:
            rows = self.rows(f"PRAGMA integrity_check({_MOST_PROBLEMS})")
            found += [f"integrity_check: {row[0]}" for row in rows if row[0] != "ok"]
            if next(iter(self.rows("PRAGMA application_id")))[0] != APPLICATION_ID:
                found.append("its application_id is not that of Holdfast")
            expected = {row[1]: row for row in sorted(expected_schema(), key=lambda row: str(row[1]))}
            there = {row[1]: tuple(row) for row in self.rows(SCHEMA) if row[1] not in STATISTICS}
            found += [f"{expected[name][0]} {name} is missing" for name in expected if name not in there]
            changed = [row for name, row in there.items() if row != expected.get(name)]
            found += [f"{row[0]} {row[1]} is not as it was made" for row in changed]
        except StoreError as error:
            found.append(problem_of(error))
        return found

    def runs(self) -> Listing:
        """Return all runs whose rows can be read from either end, if something in the middle cannot."""
        query = f"SELECT no, {', '.join(COLUMNS)} FROM runs NOT INDEXED ORDER BY no"
        rows: list[Sequence[Any]] = []
        infos: list[RunInfo] = []
        problems: list[str] = []
        try:
            rows.extend(self.rows(query))
        except StoreError as error:
            problems.append(f"table runs cannot be read as a whole: {error}")
            seen = {row[0] for row in rows}
            with suppress(StoreError):
                rows.extend(row for row in self.rows(f"{query} DESC") if row[0] not in seen)
        for number, *row in rows:
            observed = _observed(tuple(row), None)
            if observed is None or observed.problem:
                problems.append(observed.problem if observed else f"row {number} of table runs is damaged")
            if observed is not None:
                self._numbers[observed.info.run] = number
                infos.append(observed.info)
        return Listing(infos, problems)

    def observe(self, run: str) -> Observed | None:
        for _ in range(2):
            if run not in self._numbers:
                self.runs()
            if run not in self._numbers:
                return None
            version = self._version(self._reader, self._numbers[run])
            if version is not None and version[0][0] == run:
                return _observed(version[0], version)
            del self._numbers[run]  # It was deleted, and perhaps another begun under its id.
        return None

    def _version(self, connection: apsw.Connection, number: int) -> Version | None:
        """Return the row of a run and its first and last entry, as far as they can be read."""
        query = f"SELECT {', '.join(COLUMNS)} FROM runs NOT INDEXED WHERE no = ?"
        try:
            rows = connection.execute(query, (number,)).fetchall()
        except (apsw.Error, UnicodeError) as error:
            raise failure(error, self.store.path, 0.0) from error
        if not rows:
            return None
        try:
            ((first, last),) = connection.execute(_ENDS, (number << 32, number << 32 | LAST_SEQ)).fetchall()
        except apsw.Error as error:
            return tuple(rows[0]), problem_of(error), None
        return tuple(rows[0]), first, last

    def entries(self, run: str) -> Iterator[Entry]:
        for row in self._of_run("at, chain, body, mark FROM entries", run):
            yield value_of(Entry, row, run)

    def snapshots(self, run: str) -> list[Found]:
        return self._found("at, chain, body FROM snapshots", run, Snapshot)

    def messages(self, run: str) -> list[Found]:
        return self._found("at, body FROM inbox", run, Message)

    def _found(self, query: str, run: str, kind: type[Value]) -> list[Found]:
        found: list[Found] = []
        try:
            for row in self._of_run(query, run):
                raw = row[-1] if isinstance(row[-1], bytes) else b""
                try:
                    found.append(Found(row[0], raw, value_of(kind, row, run)))
                except CorruptJournal as error:
                    found.append(Found(row[0], raw, None, problem_of(error)))
        except StoreError as error:
            found.append(Found(0, b"", None, problem_of(error)))
        return found

    def _of_run(self, query: str, run: str) -> Iterator[Sequence[Any]]:
        first = self._number(run) << 32
        text = f"SELECT id & {LAST_SEQ}, {query} NOT INDEXED WHERE id BETWEEN ? AND ? ORDER BY id"
        return self.rows(text, first, first | LAST_SEQ)

    def drop_snapshot(self, run: str, number: int, raw: bytes) -> None:
        place = self._number(run) << 32 | number
        self.change("DELETE FROM snapshots WHERE id = ? AND (body = ? OR typeof(body) <> 'blob')", place, raw)

    def blank_message(self, run: str, number: int) -> None:
        statement = "INSERT OR REPLACE INTO inbox (id, at, body) VALUES (?, 0.0, x'')"
        self.change(statement, self._number(run) << 32 | number)

    def put_facts(self, info: RunInfo, head: int, seen: Observed) -> None:
        """Replace the run's row, found by its row number, since the index of run ids may be damaged."""
        number = self._number(info.run)

        def put(writer: Writer) -> None:
            if self._version(writer.connection, number) != seen.version:
                raise changed_meanwhile(info.run)
            writer.connection.execute(PUT_FACTS, (*facts_row(info, head), number))

        self.store.change(put)

    def leftovers(self) -> list[str]:
        return put_aside(self.lost_and_found())

    def lost_and_found(self) -> Path:
        return self.store.path.with_name(f"{self.store.path.name}.lost+found")

    def repair(self, keep: Keep) -> list[str]:
        done = super().repair(keep)
        if any("index" in problem for problem in self._checked()):
            self.change("REINDEX")
            done.append("the indexes are rebuilt")
        return done

    def _number(self, run: str) -> int:
        if run not in self._numbers:
            self.runs()
        if run not in self._numbers:
            raise StoreError(f"run {run!r} is not in table runs of {self.store.path}")
        return self._numbers[run]

    def rows(self, query: str, *values: Any) -> Iterator[Sequence[Any]]:
        """Yield row by row, so that those before a damaged one are seen."""
        self._limit.begin()
        try:
            yield from self._reader.execute(query, values)
        except (apsw.Error, UnicodeError) as error:
            raise failure(error, self.store.path, 0.0) from error

    def change(self, statement: str, *values: Any) -> None:
        self.store.change(lambda writer: writer.connection.execute(statement, values))


def _observed(row: tuple[Any, ...], version: object) -> Observed | None:
    """Return the facts of a row as far as they can be read; `None` if it does not say which run it is of."""
    raw = plain_json(dict(zip(COLUMNS, row, strict=True)))
    try:
        return Observed(facts_of(row), row[-2], version, raw=raw)
    except CorruptJournal as error:
        info = _readable_facts(row)
        return None if info is None else Observed(info, 0, version, problem_of(error), raw)


def _readable_facts(row: Sequence[Any]) -> RunInfo | None:
    values = dict(zip(FACTS, row, strict=False))
    if not isinstance(values["run"], str) or not isinstance(values["key"], bytes):
        return None
    for name, value in values.items():
        default = _DEFAULTS.get(name, 0.0 if name.endswith("_at") else "")
        expected = float if name == "due_at" else type(default)
        if name not in ("run", "key") and not isinstance(value, expected):
            values[name] = default
    try:
        tags = tuple(str(tag) for tag in json.loads(values["tags"]))
    except (ValueError, TypeError):
        tags = ()
    return RunInfo(**{**values, "tags": tags, "owner": ""})
