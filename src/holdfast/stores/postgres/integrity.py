"""The inspector of a schema on PostgreSQL, as far as the server can be asked cheaply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.stores.base import LAST_SEQ, Entry, RunInfo
from holdfast.stores.integrity import Observed, TableInspector, changed_meanwhile, plain_json
from holdfast.stores.postgres.store import read_facts
from holdfast.stores.postgres.writing import FACTS, LOCK, REPLACE_FACTS, facts_of, to_column

if TYPE_CHECKING:
    from holdfast.stores.postgres.connection import Connection
    from holdfast.stores.postgres.store import PostgresStore


_INVALID = (
    "SELECT c.relname FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid "
    "JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s AND NOT (i.indisvalid AND i.indisready)"
)
_FAILURES = "SELECT checksum_failures FROM pg_stat_database WHERE datname = current_database()"
_THE_RUN = "FROM run WHERE namespace = %s AND run = %s"
_OBSERVE = (
    "SELECT no, head, (SELECT min(seq) FROM entry WHERE run_no = no), (SELECT max(seq) FROM entry WHERE run_no = no), "
    f"{', '.join(FACTS)} {_THE_RUN}"
)


class PostgresInspector(TableInspector):
    """Reads the tables. Only a role that may see all rows can tell those of no run from those of other namespaces."""

    TABLES = ("entry", "snapshot", "inbox")
    STRAY = "FROM {table} WHERE NOT EXISTS (SELECT 1 FROM run WHERE no = run_no)"
    store: PostgresStore

    def problems(self) -> list[str]:
        found = [
            f"index {name} is not valid; REINDEX it" for (name,) in self.rows(_INVALID, self.store.schema)
        ]
        for (failures,) in self.rows(_FAILURES):
            if failures:
                found.append(
                    f"the server has found {failures} damaged pages in this database (pg_stat_database)"
                )
        return [*found, *super().problems()]

    def tables(self) -> Sequence[str]:
        ((is_restricted,),) = self.rows("SELECT row_security_active('run')")
        return () if is_restricted else self.TABLES

    def observe(self, run: str) -> Observed | None:
        with self.store.transaction() as connection:
            return self._observe(connection, run)

    def _observe(self, connection: Connection, run: str) -> Observed | None:
        row = connection.execute(_OBSERVE.encode(), self._of(run)).fetchone()
        if row is None:
            return None
        info = read_facts(row[4:])
        raw = plain_json(dict(zip(FACTS, row[4:], strict=True)))
        return Observed(info, row[1], (row[:4], info), raw=raw)

    def entries(self, run: str) -> Iterator[Entry]:
        """Yield the entries, also those of a journal that has lost its end."""
        after, more = 0, True
        while more:
            page, more, _ = self.store.page(run, after, LAST_SEQ)
            yield from page
            after = page[-1].seq if page else after

    def drop_snapshot(self, run: str, number: int, raw: bytes) -> None:
        of_run = f"run_no = (SELECT no {_THE_RUN})"
        self.change(
            f"DELETE FROM snapshot WHERE {of_run} AND seq = %s AND body = %s", *self._of(run), number, raw
        )

    def blank_message(self, run: str, number: int) -> None:
        self.change(
            "INSERT INTO inbox (run_no, number, at, body, token) "
            f"SELECT no, %s, 0, '', gen_random_uuid() {_THE_RUN} "
            "ON CONFLICT (run_no, number) DO UPDATE SET at = 0, body = ''",
            number,
            *self._of(run),
        )

    def put_facts(self, info: RunInfo, head: int, seen: Observed) -> None:
        with self.store.transaction() as connection:
            values = {**facts_of(info), "namespace": self.store.namespace, "head": head}
            connection.execute(LOCK.encode(), values)
            found = self._observe(connection, info.run)
            if found is None or found.version != seen.version:
                raise changed_meanwhile(info.run)
            connection.execute(REPLACE_FACTS.encode(), values)

    def _of(self, run: str) -> tuple[str, str]:
        return self.store.namespace, to_column(run)

    def rows(self, query: str, *values: Any) -> Iterator[Sequence[Any]]:
        with self.store.transaction() as connection:
            yield from connection.execute(query.encode(), values).fetchall()

    def change(self, statement: str, *values: Any) -> None:
        with self.store.transaction() as connection:
            connection.execute(statement.encode(), values)
