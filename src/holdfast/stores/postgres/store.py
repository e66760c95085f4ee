"""The store on PostgreSQL: journals that any number of machines share."""

from __future__ import annotations

import os
import uuid
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import psycopg
from psycopg.types.numeric import Int8

from holdfast.errors import CorruptJournal, StoreError
from holdfast.stores.base import (
    PAGE_BYTES,
    PAGE_ENTRIES,
    Append,
    Conflict,
    Entry,
    Mark,
    Message,
    RunInfo,
    Snapshot,
    check,
    end_of_prefix,
    paged,
)
from holdfast.stores.integrity import Mender
from holdfast.stores.maintenance import Footprint, RunSize
from holdfast.stores.postgres.connection import Connection, Connections, Server, explain
from holdfast.stores.postgres.leases import LeaseKeeper
from holdfast.stores.postgres.migrations import opening_patience, prepare, server_at
from holdfast.stores.postgres.notifications import Announcer, Look, Topics, Watch
from holdfast.stores.postgres.writing import FACTS, Desk, from_column, to_column

# What is read from the tables, as the values of stores.


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


QUEUED = "queued"


class PostgresStore:
    """Keeps journals in a schema of a PostgreSQL database, of which it sees one namespace.

    `url` is `postgresql://…` with, beside what libpq knows, `schema` (default `holdfast`), `namespace`,
    `lease` (how many seconds a process counts as alive after its last sign of life, 15) and `patience` (how
    many seconds to wait for a server that went away, 60); or `pg-embedded:PATH`. A server that restarts
    meanwhile is waited for by every method. `store.url` never has a password: it opens the same store again
    in this process, and elsewhere with `PGPASSWORD` or a password file.

    An append that is not `durable` survives the death of this process. If the server dies, the last half
    second of such appends may be gone, whole ones and the newest only; a driver that goes on from one of them
    is refused. Connect to the server itself, or through a pooler that keeps a session for each connection.
    """

    def __init__(self, url: str, *, namespace: str | None = None) -> None:
        self._server = server_at(url, namespace)
        address = self._server.address
        self.url, self.schema, self.namespace = address.url, address.schema, address.namespace
        self.lease_seconds = address.lease
        self._parts = _Parts(self._server)
        self._connections, self._desk = self._parts.connections, self._parts.desk
        self._watch, self._announcer = self._parts.watch, self._parts.announcer
        self._reader = Reader(self.namespace)
        self._close = weakref.finalize(self, self._parts.close)
        try:
            key = self._connections.run(
                lambda connection: prepare(connection, address), opening_patience(self._server)
            )
        except BaseException:
            self._close()
            raise
        self._topics = Topics(self.namespace, key)
        self._watch.queues = self._topics.of()
        _stores.add(self)

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        for append in appends:
            check(append)
        if not appends:
            return []
        answers = self._desk.write(lambda writer: writer.commit(appends))
        self._tell([append for append, answer in zip(appends, answers, strict=True) if answer is None])
        return answers

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        last = LAST if upto is None else upto

        def fetch(after: int) -> tuple[list[Entry], bool]:
            return self._connections.run(lambda connection: self._reader.page(connection, run, after, last))

        return paged(fetch, run, max(0, after), upto)

    def marks(self, run: str, before: int | None = None, limit: int | None = None) -> list[Mark]:
        return self._connections.run(lambda connection: self._reader.marks(connection, run, before, limit))

    def newest_marks(self, runs: Sequence[str]) -> dict[str, Mark]:
        """The newest checkpoint of each of these runs that has one, in one round trip."""
        return self._connections.run(lambda connection: self._reader.newest(connection, runs)) if runs else {}

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        return self._connections.run(lambda connection: self._reader.snapshot(connection, run, upto))

    def runs(
        self,
        *,
        run: str | None = None,
        key: bytes | None = None,
        workflow: str | None = None,
        status: Sequence[str] | None = None,
        limit: int | None = None,
        prefix: str | None = None,
        before: float | None = None,
        parent: bytes | None = None,
    ) -> list[RunInfo]:
        return self._connections.run(
            lambda connection: self._reader.runs(
                connection, run, key, workflow, status, limit, prefix, before, parent
            )
        )

    def prune(self, run: str, horizon: Snapshot, *, forks: Collection[bytes] | None = None) -> int:
        return self._desk.write(lambda writer: writer.prune(run, horizon, forks))

    def delete(self, run: str, *, forks: Collection[bytes] | None = None) -> bool:
        is_gone = self._desk.write(lambda writer: writer.delete(run, forks))
        self._tell_of(run)
        return is_gone

    def post(self, run: str, body: bytes, number: int | None = None) -> int:
        token, topic = uuid.uuid4(), self._topics.of(run)
        notice = (self._watch.run_channel, topic)
        posted = self._desk.write(lambda writer: writer.post(run, body, number, token, notice))
        if posted is None:
            raise StoreError(f"no run {run!r} is stored, so it has no inbox")
        if isinstance(posted, Conflict):
            raise posted
        self._watch.heard([topic])
        return posted

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        return self.inboxes({run: after}).get(run, [])

    def inboxes(self, after: Mapping[str, int]) -> dict[str, list[Message]]:
        """As `inbox` for each of these runs, in one round trip."""
        self._server.check_open()
        looks = [Look(run, self._topics.of(run), number) for run, number in after.items()]
        return self._watch.look(
            looks,
            lambda wanted: self._connections.run(lambda connection: self._reader.inboxes(connection, wanted)),
        )

    def lease(self) -> str:
        """The name of this process's lease, which is renewed from now until the store is closed."""
        return self._parts.leases.name()

    def is_live(self, lease: str) -> bool:
        """Whether a lease was renewed in time, by the server's clock."""
        return self._parts.leases.is_live(lease, self._connections)

    def lapses(self) -> int:
        """A number that changes while this process cannot renew its lease in time, and once more when it can."""
        return self._parts.leases.lapses()

    def changed(self, run: str, timeout: float) -> bool:
        """Wait until something of a run may have changed since this thread was last told; `False` after `timeout`.

        Who asks for the first time is answered at once: look first, then ask.
        """
        self._server.check_open()
        return self._watch.wait(self._topics.of(run), timeout)

    def listen_queue(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback`, in a thread of the store's, whenever a run may have been queued; answers how to stop."""
        self._server.check_open()
        return self._watch.on_queue(callback)

    def footprint(self) -> Footprint:
        """The store as a whole, with all namespaces of its schema."""

        return self._connections.run(lambda connection: footprint(connection, self.url, self.schema))

    def sizes(self) -> list[RunSize]:
        """How much each run of the namespace holds."""

        return self._connections.run(lambda connection: sizes(connection, self.namespace))

    def mender(self) -> Mender:
        """What looks at the tables, whatever is wrong with what they hold."""
        from holdfast.stores.postgres.integrity import PostgresMender

        return PostgresMender(self)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A connection in a transaction, with the store's schema as its search path; for SQL of one's own."""
        try:
            with ExitStack() as stack:
                yield self._server.insist(lambda: self._begun(stack))
        except psycopg.Error as error:
            raise explain(error, self.url) from error

    def close(self) -> None:
        self._close()

    def _begun(self, stack: ExitStack) -> Connection:
        with ExitStack() as trial:
            connection = trial.enter_context(self._connections.borrowed())
            trial.enter_context(connection.transaction())
            stack.push(trial.pop_all())
        return connection

    def _tell(self, appends: Sequence[Append]) -> None:
        """Let others know of what was written."""
        topics = [self._topics.of(append.run) for append in appends]
        facts = [append.info for append in appends if append.info is not None]
        is_queued = any(info.queue and (info.status == QUEUED or info.due_at is not None) for info in facts)
        self._watch.heard(topics)
        self._announcer.tell(topics, [self._watch.queues] if is_queued else [], urgent=bool(facts))

    def _tell_of(self, run: str) -> None:
        topic = self._topics.of(run)
        self._watch.heard([topic])
        self._announcer.tell([topic], urgent=True)

    def _after_fork(self) -> None:
        self._parts.reset()


class _Parts:
    """What a store is made of, and what is left to be closed when nobody has the store any more."""

    def __init__(self, server: Server) -> None:
        channels = (f"{server.address.schema}:run", f"{server.address.schema}:queue")
        self.server = server
        self.connections = Connections(server)
        self.desk = Desk(server)
        self.leases = LeaseKeeper(server)
        self.watch = Watch(server, *channels)
        self.announcer = Announcer(self.connections, *channels)

    def close(self) -> None:
        """Tell what is left to tell, then end every thread and close every connection."""
        self.announcer.close()
        self.server.close()
        self.leases.close()
        self.watch.close()
        self.desk.close()
        self.connections.close()
        self.server.leave()

    def reset(self) -> None:
        """In a forked child: begin anew, and leave alone what is the parent's."""
        self.server.reset()
        for part in (self.connections, self.desk, self.leases, self.watch, self.announcer):
            part.reset()


_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# How much a schema holds: counted by the server, which reads no body for it.


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
