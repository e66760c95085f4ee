"""What is wrong with a schema on PostgreSQL, as far as that can be asked cheaply of the server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from holdfast.stores.mending import Keep, Mender
from holdfast.stores.postgres.text import to_column

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PostgresStore

_TABLES = ("entry", "snapshot", "inbox")
_STRAY = "FROM {table} WHERE NOT EXISTS (SELECT 1 FROM run WHERE no = run_no)"
_INVALID = (
    "SELECT c.relname FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid "
    "JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s AND NOT (i.indisvalid AND i.indisready)"
)
_FAILURES = "SELECT checksum_failures FROM pg_stat_database WHERE datname = current_database()"
_OF_RUN = "run_no = (SELECT no FROM run WHERE namespace = %s AND run = %s)"


class PostgresMender(Mender):
    """Rows that belong to no run can only be told from those of other namespaces by who may see all of them."""

    def __init__(self, store: PostgresStore) -> None:
        super().__init__(store)
        self._postgres = store

    def problems(self) -> list[str]:
        found = [
            f"index {name} is not valid; REINDEX it" for (name,) in self._ask(_INVALID, self._postgres.schema)
        ]
        for (failures,) in self._ask(_FAILURES):
            if failures:
                found.append(
                    f"the server has found {failures} damaged pages in this database (pg_stat_database)"
                )
        for table in _TABLES if self._sees_all() else ():
            ((count,),) = self._ask(f"SELECT count(*) {_STRAY.format(table=table)}")
            if count:
                found.append(f"{count} rows of table {table} are of no run")
        return found

    def drop_snapshot(self, run: str, number: int) -> None:
        self._do(
            f"DELETE FROM snapshot WHERE {_OF_RUN} AND seq = %s",
            self._postgres.namespace,
            to_column(run),
            number,
        )

    def void_message(self, run: str, number: int) -> None:
        statement = f"UPDATE inbox SET body = '', at = 0 WHERE {_OF_RUN} AND number = %s"
        self._do(statement, self._postgres.namespace, to_column(run), number)

    def mend(self, keep: Keep) -> list[str]:
        done = []
        for table in _TABLES if self._sees_all() else ():
            stray = _STRAY.format(table=table)
            rows = self._ask(f"SELECT * {stray}")
            if rows:
                keep(f"{table}.json", json.dumps(rows, default=_plain).encode())
                self._do(f"DELETE {stray}")
                done.append(f"{len(rows)} rows of table {table} that were of no run are put aside")
        return done

    def _sees_all(self) -> bool:
        """Whether row-level security hides nothing from this role."""
        ((active,),) = self._ask("SELECT row_security_active('run')")
        return not active

    def _ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._postgres.transaction() as connection:
            return connection.execute(query.encode(), values).fetchall()

    def _do(self, statement: str, *values: Any) -> None:
        with self._postgres.transaction() as connection:
            connection.execute(statement.encode(), values)


def _plain(value: Any) -> str:
    return bytes(value).hex() if isinstance(value, (bytes, memoryview)) else str(value)
