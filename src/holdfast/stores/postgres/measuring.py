"""How much a schema holds: counted by the server, which reads no body for it."""

from __future__ import annotations

from holdfast.stores.postgres.connecting import Connection
from holdfast.stores.postgres.text import from_column
from holdfast.stores.usage import Footprint, RunSize

_SUM = "coalesce(sum(octet_length(body)), 0)::bigint AS size"
_SIZES = (
    "WITH own AS (SELECT no, run FROM run WHERE namespace = %s), "
    f"e AS (SELECT run_no, count(*) AS n, count(mark) AS marks, {_SUM} "
    "FROM entry JOIN own ON no = run_no GROUP BY run_no), "
    f"s AS (SELECT run_no, count(*) AS n, {_SUM} FROM snapshot JOIN own ON no = run_no GROUP BY run_no), "
    f"i AS (SELECT run_no, count(*) AS n, {_SUM} FROM inbox JOIN own ON no = run_no GROUP BY run_no) "
    "SELECT run, coalesce(e.n, 0), coalesce(e.marks, 0), coalesce(e.size, 0), coalesce(s.n, 0), "
    "coalesce(s.size, 0), coalesce(i.n, 0), coalesce(i.size, 0) FROM own "
    "LEFT JOIN e ON e.run_no = no LEFT JOIN s ON s.run_no = no LEFT JOIN i ON i.run_no = no"
)
_DISK = (
    "SELECT sum(pg_total_relation_size(c.oid))::bigint, (SELECT max(number) FROM migration) "
    "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE n.nspname = %s AND c.relkind IN ('r', 'm', 'p')"
)


def sizes(connection: Connection, namespace: str) -> list[RunSize]:
    """How much each run of a namespace holds."""
    rows = connection.execute(_SIZES, (namespace,)).fetchall()
    return [RunSize(from_column(run), *numbers) for run, *numbers in rows]


def footprint(connection: Connection, place: str, schema: str) -> Footprint:
    """The schema as a whole, with all its namespaces."""
    rows = connection.execute(_DISK, (schema,)).fetchall()
    disk, version = rows[0]
    return Footprint("postgresql", place, version, disk)
