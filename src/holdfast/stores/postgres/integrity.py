"""What is wrong with a schema on PostgreSQL, as far as that can be asked cheaply of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.stores.base import Entry, RunInfo, paged
from holdfast.stores.integrity import Keep, Mender, Standing, changed_meanwhile
from holdfast.stores.postgres.store import LAST, Reader, read_facts
from holdfast.stores.postgres.writing import FACTS, LOCK, REPLACE_FACTS, facts_of, to_column

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PostgresStore


_TABLES = ("entry", "snapshot", "inbox")
_STRAY = "FROM {table} WHERE NOT EXISTS (SELECT 1 FROM run WHERE no = run_no)"
_INVALID = (
    "SELECT c.relname FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid "
    "JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s AND NOT (i.indisvalid AND i.indisready)"
)
_FAILURES = "SELECT checksum_failures FROM pg_stat_database WHERE datname = current_database()"
_THE_RUN = "namespace = %(namespace)s AND run = %(run)s"
_OF_RUN = f"run_no = (SELECT no FROM run WHERE {_THE_RUN})"
_STANDING = (
    "SELECT no, head, (SELECT min(seq) FROM entry WHERE run_no = no), (SELECT max(seq) FROM entry WHERE run_no = no), "
    f"{', '.join(FACTS)} FROM run WHERE {_THE_RUN}"
)


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

    def standing(self, run: str) -> Standing | None:
        with self._postgres.transaction() as connection:
            found = connection.execute(_STANDING.encode(), self._of(run)).fetchone()
        return None if found is None else _standing(found)

    def entries(self, run: str) -> Iterator[Entry]:
        """Also those of a journal that has lost its end."""
        reader = Reader(self._postgres.namespace)

        def fetch(after: int) -> tuple[list[Entry], bool]:
            with self._postgres.transaction() as connection:
                return reader.rest(connection, run, after, LAST)[:2]

        return paged(fetch, run, 0, None)

    def drop_snapshot(self, run: str, number: int, raw: bytes) -> None:
        statement = f"DELETE FROM snapshot WHERE {_OF_RUN} AND seq = %(number)s AND body = %(raw)s"
        self._do(statement, {**self._of(run), "number": number, "raw": raw})

    def void_message(self, run: str, number: int) -> None:
        statement = (
            "INSERT INTO inbox (run_no, number, at, body, token) "
            f"SELECT no, %(number)s, 0, '', gen_random_uuid() FROM run WHERE {_THE_RUN} "
            "ON CONFLICT (run_no, number) DO UPDATE SET at = 0, body = ''"
        )
        self._do(statement, {**self._of(run), "number": number})

    def put_facts(self, info: RunInfo, head: int, seen: Standing) -> None:
        with self._postgres.transaction() as connection:
            connection.execute(LOCK.encode(), self._of(info.run))
            found = connection.execute(_STANDING.encode(), self._of(info.run)).fetchone()
            if found is None or _standing(found).stamp != seen.stamp:
                raise changed_meanwhile(info.run)
            values = {**facts_of(info), "head": head, "no": found[0]}
            connection.execute(REPLACE_FACTS.encode(), values)

    def _of(self, run: str) -> dict[str, Any]:
        return {"namespace": self._postgres.namespace, "run": to_column(run)}

    def mend(self, keep: Keep) -> list[str]:
        done = []
        for table in _TABLES if self._sees_all() else ():
            stray = _STRAY.format(table=table)
            rows = self._ask(f"SELECT * {stray}")
            if rows:
                keep(f"{table}.json", json.dumps(rows, default=_plain).encode())
                self._do(f"DELETE {stray}", {})
                done.append(f"{len(rows)} rows of table {table} that were of no run are put aside")
        return done

    def _sees_all(self) -> bool:
        """Whether row-level security hides nothing from this role."""
        ((active,),) = self._ask("SELECT row_security_active('run')")
        return not active

    def _ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._postgres.transaction() as connection:
            return connection.execute(query.encode(), values).fetchall()

    def _do(self, statement: str, values: dict[str, Any]) -> None:
        with self._postgres.transaction() as connection:
            connection.execute(statement.encode(), values)


def _standing(row: tuple[Any, ...]) -> Standing:
    _, head, _, _, *facts = row
    info = read_facts(tuple(facts))
    raw = json.dumps(dict(zip(FACTS, facts, strict=True)), default=_plain).encode()
    return Standing(info, head, (row[:4], info), raw=raw)


def _plain(value: Any) -> str:
    return bytes(value).hex() if isinstance(value, (bytes, memoryview)) else str(value)
