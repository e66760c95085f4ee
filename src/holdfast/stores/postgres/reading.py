"""What is read from the tables, as the values of stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from psycopg.types.numeric import Int8

from holdfast.errors import CorruptJournal
from holdfast.stores.base import (
    PAGE_BYTES,
    PAGE_ENTRIES,
    Entry,
    Mark,
    Message,
    RunInfo,
    Snapshot,
    end_of_prefix,
)
from holdfast.stores.postgres.appending import FACTS
from holdfast.stores.postgres.connecting import Connection
from holdfast.stores.postgres.text import from_column, to_column

Row = tuple[Any, ...]
Fetch = Callable[[Connection], list[Row]]

LAST = (1 << 63) - 1
"""Above every seq."""

_LATEST = "ORDER BY updated_at DESC, run LIMIT %(limit)s"
_NUMBER = "(SELECT no FROM run WHERE namespace = %(namespace)s AND run = %(run)s)"

# The sizes of bodies are known without reading them. A run without such entries answers one row, with its head.
_PAGE = (
    "SELECT head, seq, at, chain, body, mark FROM "
    "(SELECT no, head FROM run WHERE namespace = %(namespace)s AND run = %(run)s) AS the_run "
    "LEFT JOIN LATERAL (SELECT seq, at, chain, body, mark, "
    "sum(octet_length(body)) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) - octet_length(body) AS before FROM entry "
    f"WHERE run_no = no AND seq > %(after)s AND seq <= %(last)s ORDER BY seq LIMIT {PAGE_ENTRIES}) AS page "
    f"ON before < {PAGE_BYTES} ORDER BY seq"
)
_MARKS = (
    f"SELECT seq, at, mark, octet_length(body) FROM entry WHERE run_no = {_NUMBER} "
    "AND seq < %(before)s AND mark IS NOT NULL ORDER BY seq DESC LIMIT %(limit)s"
)
_NEWEST = (
    "SELECT run, newest.* FROM run CROSS JOIN LATERAL (SELECT seq, at, mark, octet_length(body) FROM entry "
    "WHERE run_no = no AND mark IS NOT NULL ORDER BY seq DESC LIMIT 1) AS newest "
    "WHERE namespace = %(namespace)s AND run = ANY(%(runs)s::text[])"
)
_SNAPSHOT = (
    f"SELECT seq, at, chain, body FROM snapshot WHERE run_no = {_NUMBER} AND seq <= %(upto)s "
    "ORDER BY seq DESC LIMIT 1"
)
_INBOXES = (
    "SELECT run, messages.* FROM unnest(%(runs)s::text[], %(after)s::int8[]) AS wanted(name, seen) "
    "JOIN run ON namespace = %(namespace)s AND run = name CROSS JOIN LATERAL "
    "(SELECT number, at, body FROM inbox WHERE run_no = no AND number > seen ORDER BY number) AS messages"
)


class Reader:
    """Reads one namespace through any connection."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def page(self, connection: Connection, run: str, after: int, last: int) -> tuple[list[Entry], bool]:
        """The entries that follow, as many as belong on a page, and whether there may be more."""
        entries, more, head = self.rest(connection, run, after, last)
        missing = (entries[-1].seq if entries else after) + 1
        # Up to a `last` before the head there may be nothing: the run was pruned.
        if not more and missing <= head <= last:
            raise CorruptJournal(f"run {run!r}: entry {missing} is missing", run=run, seq=missing)
        return entries, more

    def rest(self, connection: Connection, run: str, after: int, last: int) -> tuple[list[Entry], bool, int]:
        """As `page`, whatever is missing at the end, and the last entry that there should be at least."""
        rows = self._ask(connection, _PAGE, run=to_column(run), after=Int8(after), last=Int8(min(last, LAST)))
        entries = [Entry(*row[1:]) for row in rows if row[1] is not None]
        is_full = len(entries) == PAGE_ENTRIES or sum(len(entry.body) for entry in entries) >= PAGE_BYTES
        return entries, is_full, rows[0][0] if rows else 0

    def marks(self, connection: Connection, run: str, before: int | None, limit: int | None) -> list[Mark]:
        below = Int8(LAST if before is None else min(before, LAST))
        most = None if limit is None else Int8(limit)
        rows = self._ask(connection, _MARKS, run=to_column(run), before=below, limit=most)
        return [Mark(*row) for row in rows]

    def newest(self, connection: Connection, runs: Sequence[str]) -> dict[str, Mark]:
        rows = self._ask(connection, _NEWEST, runs=[to_column(run) for run in runs])
        return {from_column(row[0]): Mark(*row[1:]) for row in rows}

    def snapshot(self, connection: Connection, run: str, upto: int | None) -> Snapshot | None:
        rows = self._ask(
            connection, _SNAPSHOT, run=to_column(run), upto=Int8(LAST if upto is None else min(upto, LAST))
        )
        return Snapshot(*rows[0]) if rows else None

    def inboxes(self, connection: Connection, after: Mapping[str, int]) -> dict[str, list[Message]]:
        runs = [to_column(run) for run in after]
        found: dict[str, list[Message]] = {}
        for run, *message in self._ask(connection, _INBOXES, runs=runs, after=[*map(Int8, after.values())]):
            found.setdefault(from_column(run), []).append(Message(*message))
        return found

    def runs(
        self,
        connection: Connection,
        run: str | None,
        key: bytes | None,
        workflow: str | None,
        status: Sequence[str] | None,
        limit: int | None,
        prefix: str | None,
        before: float | None,
        parent: bytes | None,
    ) -> list[RunInfo]:
        begin = None if prefix is None else to_column(prefix)
        given: dict[str, tuple[str, Any]] = {
            "run": ("run =", None if run is None else to_column(run)),
            "key": ("key =", key),
            "workflow": ("workflow =", None if workflow is None else to_column(workflow)),
            "begin": ("run >=", begin),
            "end": ("run <", None if begin is None else end_of_prefix(begin)),
            "before": ("updated_at <", before),
            "parent": ("parent =", parent),
        }
        values = {name: value for name, (_, value) in given.items() if value is not None}
        where = ["namespace = %(namespace)s", *(f"{given[name][0]} %({name})s" for name in values)]
        if status is not None:
            values["statuses"] = sorted({to_column(each) for each in status})
            where.append("status = wanted")
        query = f"SELECT {', '.join(FACTS)} FROM run WHERE {' AND '.join(where)} {_LATEST}"
        if status is not None:
            # The latest of each status first: an index has those in order.
            query = f"SELECT run.* FROM unnest(%(statuses)s::text[]) AS wanted, LATERAL ({query}) AS run {_LATEST}"
        rows = self._ask(connection, query, limit=None if limit is None else Int8(limit), **values)
        return [read_facts(row) for row in rows]

    def _ask(self, connection: Connection, text: str, **values: Any) -> list[Row]:
        cursor = connection.cursor(binary=True)
        return cursor.execute(text.encode(), {"namespace": self.namespace, **values}, prepare=True).fetchall()


def read_facts(row: Row) -> RunInfo:
    """The facts of a row with the columns `FACTS`."""
    facts = RunInfo(*row)
    return replace(
        facts,
        run=from_column(facts.run),
        workflow=from_column(facts.workflow),
        status=from_column(facts.status),
        driver=from_column(facts.driver),
        tags=tuple(from_column(tag) for tag in facts.tags),
        queue=from_column(facts.queue),
        origin=from_column(facts.origin),
    )
