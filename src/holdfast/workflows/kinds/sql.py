"""`sql`: statements on SQLite or PostgreSQL, in one transaction, with values as bound parameters."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import unquote

from holdfast.engine.context import Context, StopSignal
from holdfast.state.state import State
from holdfast.workflows.folders import based, check_no_store, resolved_path
from holdfast.workflows.kinds.kind import Kind, Result, Tree
from holdfast.workflows.model import Sql, Step
from holdfast.workflows.scope import Resources, StepFailed, StepTimedOut
from holdfast.workflows.scripts import sql_parameters

DEFAULT_TIMEOUT = 60.0
"""How many seconds a step takes at most, unless it has a timeout."""
_ONE_TRANSACTION = (
    "a sql step is one transaction on one database: leave BEGIN, COMMIT, ROLLBACK and ATTACH out"
)
_LARGEST = 50_000_000
"""How many bytes one value or row of SQLite may have, unless the step takes more."""


class Statement(NamedTuple):
    """One statement: its SQL, the names of its parameters in the order in which it has them, and their values."""

    sql: str
    names: tuple[str, ...]
    values: Mapping[str, Any]

    def numbered(self) -> tuple[str, list[Any]]:
        """Return the SQL with `$1`, `$2` in place of names, and the values in that order."""
        order = {name: number for number, name in enumerate(dict.fromkeys(self.names), 1)}
        text = "".join(f"${order[name]}" if name else part for part, name in sql_parameters(self.sql))
        return text, [self.values[name] for name in order]


class RunSql(Kind):
    """Runs statements in one transaction: all of them count, or none."""

    transient_only: ClassVar[bool] = True

    def __init__(self, step: Step, resources: Resources) -> None:
        super().__init__(step, resources)
        assert step.sql is not None
        self._sql: Sql = step.sql
        given = [(query.query, query.params) for query in step.sql.queries]
        self._queries: list[tuple[str, Tree]] = [
            (text, self.tree(f"sql.queries.{index}.params", values))
            for index, (text, values) in enumerate(given)
        ] or [(step.sql.query, self.tree("sql.params", step.sql.params))]

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        own = {"run_id": ctx.run_id, "step": ctx.step, "idempotency_key": ctx.idempotency_key}
        statements = [
            self._statement(text, {**own, **values.render(scope)}) for text, values in self._queries
        ]
        url, limit = str(self.fill("url", scope)).strip(), self._step.timeout or DEFAULT_TIMEOUT
        if url.startswith("sqlite:"):
            found = self._on_sqlite(self._file(url, scope.get("tmp")), statements, limit, ctx)
        elif url.startswith(("postgresql:", "postgres:")):
            found = self._on_postgres(url, statements, limit)
        else:
            raise StepFailed("sql.url: it begins with sqlite:/// or postgresql://")
        outputs, counts = [rows for rows, _ in found], [count for _, count in found]
        return {"output": outputs if self._sql.queries else outputs[0], "count": sum(counts)}

    def _statement(self, text: str, values: Mapping[str, Any]) -> Statement:
        names = tuple(name for _, name in sql_parameters(text) if name)
        missing = sorted({name for name in names if name not in values})
        if missing:
            raise StepFailed(f"sql.params: {', '.join(missing)} is missing")
        return Statement(text, names, {name: values[name] for name in names})

    def _file(self, url: str, tmp: str | None) -> str:
        """Return the path of a SQLite file, which stays in the workflow's folder."""
        given = unquote(url.removeprefix("sqlite:").removeprefix("//")).removeprefix("/")
        if given == ":memory:":
            return given
        with self._naming("url", given):
            base, inside = based(given, self._resources.base, tmp)
            return str(resolved_path(base, inside, outside=self._sql.outside))

    # SQLite.

    def _on_sqlite(
        self, path: str, statements: Sequence[Statement], limit: float, ctx: Context
    ) -> list[tuple[list[Any], int]]:
        deadline = time.monotonic() + limit

        def is_over() -> bool:
            return time.monotonic() > deadline or ctx.cancelled

        try:
            with closing(sqlite3.connect(path, timeout=limit, isolation_level=None)) as connection:
                connection.set_progress_handler(is_over, 10_000)
                given = sum(
                    map(_length, (text for each in statements for text in (each.sql, *each.values.values())))
                )
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(_LARGEST, self._sql.max_bytes) + given)
                connection.execute("BEGIN")
                connection.set_authorizer(_anywhere if self._sql.outside else _in_one_file)
                try:
                    found = [self._ran(connection, each) for each in statements]
                finally:
                    connection.set_authorizer(None)
                connection.execute("COMMIT")
                return found
        except sqlite3.Error as error:
            if ctx.cancelled:
                raise StopSignal from None
            if time.monotonic() > deadline:
                raise StepTimedOut(f"sql: it took longer than {limit:g} s and was ended") from None
            busy = getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
            hint = f"; {_ONE_TRANSACTION}" if "not authorized" in str(error) else ""
            hint = "; use less of it, or raise max_bytes" if "too big" in str(error) else hint
            raise StepFailed(f"sql: {error}{hint}", transient=busy) from None

    def _ran(self, connection: sqlite3.Connection, statement: Statement) -> tuple[list[Any], int]:
        values = {name: _for_sqlite(value) for name, value in statement.values.items()}
        # A cursor that is not closed would keep the database locked after the connection is.
        with closing(connection.cursor()) as cursor:
            try:
                cursor.execute(statement.sql, values)
            except sqlite3.ProgrammingError as error:
                hint = "; give several statements as `queries`" if "one statement" in str(error) else ""
                raise StepFailed(f"sql: {error}{hint}") from None
            except OverflowError as error:
                raise StepFailed(f"sql.params: {error}") from None
            columns = [column[0] for column in cursor.description or ()]
            found = self._rows(cursor, columns), max(0, cursor.rowcount)
        self._check_attached(connection)
        return found

    def _check_attached(self, connection: sqlite3.Connection) -> None:
        """Refuse a store that a statement attached, before another statement can change it."""
        for _, name, file in (
            connection.execute("PRAGMA database_list").fetchall() if self._sql.outside else ()
        ):
            if name not in ("main", "temp") and file:
                with self._naming("query", file):
                    check_no_store(Path(file).resolve())

    # PostgreSQL.

    def _on_postgres(
        self, url: str, statements: Sequence[Statement], limit: float
    ) -> list[tuple[list[Any], int]]:
        try:
            import psycopg
        except ImportError:
            raise StepFailed("sql: PostgreSQL needs an extra: pip install 'holdfast[postgres]'") from None
        deadline, committing = time.monotonic() + limit, False
        try:
            with psycopg.connect(url, connect_timeout=max(2, int(limit))) as connection:
                connection.execute(
                    "SELECT set_config('statement_timeout', %s, true)", (str(int(limit * 1000)),)
                )
                found = [self._answered(psycopg.RawCursor(connection), each) for each in statements]
                committing = True
                connection.commit()
                return found
        except psycopg.errors.QueryCanceled:
            raise StepTimedOut(f"sql: it took longer than {limit:g} s and was ended") from None
        except psycopg.Error as error:
            late = time.monotonic() > deadline
            lost = isinstance(error, psycopg.OperationalError) or (error.sqlstate or "")[:2] in (
                "40",
                "53",
                "57",
            )
            text = " ".join(str(error).split())
            if committing and lost:
                text = f"{text}; whether the transaction was committed is not known"
            raise StepFailed(f"sql: {text}", transient=lost and not committing and not late) from None

    def _answered(self, cursor: Any, statement: Statement) -> tuple[list[Any], int]:
        text, values = statement.numbered()
        # Prepared, it is one statement and no more.
        cursor.execute(text.encode(), [_for_postgres(value) for value in values], prepare=True)
        if not cursor.connection.info.transaction_status:
            raise StepFailed(f"sql: {_ONE_TRANSACTION}")
        columns = [column.name for column in cursor.description or ()]
        return self._rows(cursor, columns) if columns else [], max(0, cursor.rowcount)

    def _rows(self, cursor: Any, columns: Sequence[str]) -> list[Any]:
        """Return the rows of a result, plain, and no more of them than the step takes."""
        rows: list[Any] = []
        left = self._sql.max_bytes
        for row in cursor if columns else ():
            if len(rows) == self._sql.max_rows:
                raise StepFailed(
                    f"sql: the result has more than {self._sql.max_rows} rows; add LIMIT, or raise max_rows"
                )
            if sum(map(_length, row)) <= left:  # A value that is far too large is not converted first.
                rows.append(dict(zip(columns, map(_plain, row), strict=True)))
                left -= len(repr(rows[-1]))
            else:
                left = -1
            if left < 0:
                raise StepFailed(
                    f"sql: the result has more than {self._sql.max_bytes:,} bytes; select less of it"
                )
        return rows


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, memoryview)) else 0


def _anywhere(action: int, *_: object) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


def _in_one_file(action: int, *_: object) -> int:
    is_other = action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
    return sqlite3.SQLITE_DENY if is_other else _anywhere(action)


def _for_sqlite(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list, tuple)) else value


def _for_postgres(value: Any) -> Any:
    """Return a parameter as PostgreSQL takes it: fields as JSON, lists of plain values as arrays."""
    if isinstance(value, (dict, list, tuple)):
        from psycopg.types.json import Jsonb

        is_array = not isinstance(value, dict) and not any(
            isinstance(item, (dict, list, tuple)) for item in value
        )
        return list(value) if is_array else Jsonb(value)
    return value


def _plain(value: Any) -> Any:
    """Return a value of a row as data that templates and JSON know."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, decimal.Decimal) and value.is_finite():
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, (bytes, memoryview)):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)
