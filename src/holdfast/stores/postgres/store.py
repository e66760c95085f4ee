"""The store on PostgreSQL: journals that any number of machines share."""

from __future__ import annotations

import os
import uuid
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Unpack

import psycopg
from psycopg.types.numeric import Int8

from holdfast.errors import CorruptJournal
from holdfast.stores.base import (
    FACTS,
    LAST_SEQ,
    PAGE_BYTES,
    PAGE_ENTRIES,
    SCHEMA_VERSION,
    Append,
    BaseStore,
    Conflict,
    Entry,
    Footprint,
    Message,
    RunFilter,
    RunInfo,
    RunSize,
    Snapshot,
    StatusCount,
    StoredCheckpoint,
    check,
    end_of_prefix,
    no_inbox,
    within,
)
from holdfast.stores.inspection import Inspector, Observed, TableInspector, changed_meanwhile, plain_json
from holdfast.stores.postgres.background import Announcer, LeaseKeeper, Watch, topic_of
from holdfast.stores.postgres.connection import Connection, Connections, Server, explain
from holdfast.stores.postgres.schema import opening_timeout, prepare, server_at
from holdfast.stores.postgres.writing import (
    LOCK,
    REPLACE_FACTS,
    WriteConnection,
    facts_of,
    from_column,
    read_facts,
    to_column,
)
from holdfast.values import RunStatus

Row = tuple[Any, ...]
_LATEST = "ORDER BY updated_at DESC, run LIMIT %(limit)s"
_NUMBER = "(SELECT no FROM run WHERE namespace = %(namespace)s AND run = %(run)s)"

# The sizes of bodies are known without reading them. A run without such entries gives one row, with its head.
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


_FILTERS = {
    "run": "run =",
    "key": "key =",
    "workflow": "workflow =",
    "prefix": "run >=",
    "end": "run <",
    "before": "updated_at <",
    "parent": "parent =",
    "since": "updated_at >=",
}
_SUM = "coalesce(sum(octet_length(body)), 0)::bigint AS size"
_SIZES = (
    "WITH own AS (SELECT no, run FROM run WHERE namespace = %(namespace)s), "
    f"e AS (SELECT run_no, count(*) AS n, count(mark) AS marks, {_SUM} "
    "FROM entry JOIN own ON no = run_no GROUP BY run_no), "
    f"s AS (SELECT run_no, count(*) AS n, {_SUM} FROM snapshot JOIN own ON no = run_no GROUP BY run_no), "
    f"i AS (SELECT run_no, count(*) AS n, {_SUM} FROM inbox JOIN own ON no = run_no GROUP BY run_no) "
    "SELECT run, coalesce(e.n, 0), coalesce(e.marks, 0), coalesce(e.size, 0), coalesce(s.n, 0), "
    "coalesce(s.size, 0), coalesce(i.n, 0), coalesce(i.size, 0) FROM own "
    "LEFT JOIN e ON e.run_no = no LEFT JOIN s ON s.run_no = no LEFT JOIN i ON i.run_no = no"
)
_DISK = (
    "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class AS c "
    "JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'm', 'p')"
)


class PostgresStore(BaseStore):
    """A store in a schema of a PostgreSQL database, of which it sees one namespace.

    `url` is `postgresql://…` with, beside what libpq knows, `schema` (default `holdfast`), `namespace`,
    `lease` (the lease timeout in seconds before another worker takes over, 15) and `timeout` (the
    seconds to wait for a server that went away, 60); or `pg-embedded:PATH`. Every method waits for a server that
    restarts meanwhile. `store.url` never has a password: it opens the same store again
    in this process, and elsewhere with `PGPASSWORD` or a password file.

    An append that is not `durable` survives the death of this process. If the server dies, the last half
    second of such appends may be gone, whole ones and the newest only; an owner that continues from one of them
    is refused. Connect to the server itself, or through a pooler that keeps a session for each connection.
    """

    def __init__(self, url: str, *, namespace: str | None = None) -> None:
        self._server = server_at(url, namespace)
        address = self._server.address
        super().__init__(address.url, address.namespace)
        self.schema, self.lease_seconds = address.schema, address.lease
        self._parts = _Parts(self._server)
        self._connections, self._writing = self._parts.connections, self._parts.writing
        self._watch, self._announcer = self._parts.watch, self._parts.announcer
        self._close = weakref.finalize(self, self._parts.close)
        try:
            key = self._connections.run(
                lambda connection: prepare(connection, address), opening_timeout(self._server)
            )
        except BaseException:
            self._close()
            raise
        self._topic = self._watch.topic = partial(topic_of, self.namespace, key)
        _stores.add(self)

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        for append in appends:
            check(append)
        if not appends:
            return []
        answers = self._writing.write(lambda writer: writer.commit(appends))
        written = [append for append, answer in zip(appends, answers, strict=True) if answer is None]
        topics = [self._topic(append.run) for append in written]
        infos = [append.info for append in written if append.info is not None]
        is_queued = any(
            info.queue and (info.status == RunStatus.QUEUED or info.due_at is not None) for info in infos
        )
        self._watch.heard(topics)
        self._announcer.tell(topics, [self._topic()] if is_queued else [], urgent=bool(infos))
        return answers

    def _page(self, run: str, after: int, last: int) -> tuple[list[Entry], bool]:
        entries, more, head = self.page(run, after, last)
        missing = (entries[-1].seq if entries else after) + 1
        # Up to a `last` before the head there may be nothing: the run was pruned.
        if not more and missing <= head <= last:
            raise CorruptJournal(f"run {run!r}: entry {missing} is missing", run=run, seq=missing)
        return entries, more

    def page(self, run: str, after: int, last: int) -> tuple[list[Entry], bool, int]:
        """Return a page of entries, whether there may be more, and the last entry that there should be at least."""
        rows = self._rows(_PAGE, run=to_column(run), after=Int8(after), last=Int8(last))
        entries = [Entry(*row[1:]) for row in rows if row[1] is not None]
        is_full = len(entries) == PAGE_ENTRIES or sum(len(entry.body) for entry in entries) >= PAGE_BYTES
        return entries, is_full, rows[0][0] if rows else 0

    def checkpoints(
        self, run: str, before: int | None = None, limit: int | None = None
    ) -> list[StoredCheckpoint]:
        most = None if limit is None else Int8(limit)
        rows = self._rows(_MARKS, run=to_column(run), before=Int8(within(before)), limit=most)
        return [StoredCheckpoint(*row) for row in rows]

    def newest_checkpoints(self, runs: Sequence[str]) -> dict[str, StoredCheckpoint]:
        """Return the newest checkpoint of each of these runs that has one, in one round trip."""
        rows = self._rows(_NEWEST, runs=[to_column(run) for run in runs]) if runs else []
        return {from_column(row[0]): StoredCheckpoint(*row[1:]) for row in rows}

    def count_runs(self) -> dict[str, StatusCount]:
        """Return how many runs there are of each status, in one round trip."""
        rows = self._rows(
            "SELECT status, count(*), min(updated_at) FROM run WHERE namespace = %(namespace)s GROUP BY status"
        )
        return {from_column(status): StatusCount(runs, oldest) for status, runs, oldest in rows}

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        rows = self._rows(_SNAPSHOT, run=to_column(run), upto=Int8(within(upto)))
        return Snapshot(*rows[0]) if rows else None

    def runs(self, **wanted: Unpack[RunFilter]) -> list[RunInfo]:
        limit, status, past = (
            wanted.pop("limit", None),
            wanted.pop("status", None),
            wanted.pop("past", None),
        )
        values: dict[str, Any] = {
            name: to_column(value) if isinstance(value, str) else value
            for name, value in wanted.items()
            if value is not None
        }
        if "prefix" in values and (end := end_of_prefix(values["prefix"])):
            values["end"] = end
        where = ["namespace = %(namespace)s", *(f"{_FILTERS[name]} %({name})s" for name in values)]
        if past is not None:
            values["latest"], values["last"] = past[0], to_column(past[1])
            where.append("updated_at <= %(latest)s AND (updated_at < %(latest)s OR run.run > %(last)s)")
        if status is not None:
            values["statuses"] = sorted({to_column(each) for each in status})
            where.append("status = wanted")
        query = f"SELECT {', '.join(FACTS)} FROM run WHERE {' AND '.join(where)} {_LATEST}"
        if status is not None:
            # The latest of each status first: an index has those in order.
            query = f"SELECT run.* FROM unnest(%(statuses)s::text[]) AS wanted, LATERAL ({query}) AS run {_LATEST}"
        rows = self._rows(query, limit=None if limit is None else Int8(limit), **values)
        return [read_facts(row) for row in rows]

    def _rows(self, query: str, **values: Any) -> list[Row]:
        def ask(connection: Connection) -> list[Row]:
            cursor = connection.cursor(binary=True)
            return cursor.execute(
                query.encode(), {"namespace": self.namespace, **values}, prepare=True
            ).fetchall()

        return self._connections.run(ask)

    def prune(self, run: str, horizon: Snapshot, *, forks: Collection[bytes] | None = None) -> int:
        return self._writing.write(lambda writer: writer.prune(run, horizon, forks))

    def delete(self, run: str, *, forks: Collection[bytes] | None = None) -> bool:
        is_gone = self._writing.write(lambda writer: writer.delete(run, forks))
        topic = self._topic(run)
        self._watch.heard([topic])
        self._announcer.tell([topic], urgent=True)
        return is_gone

    def post(self, run: str, body: bytes, number: int | None = None) -> int:
        token, topic = uuid.uuid4(), self._topic(run)
        notice = (self._watch.run_channel, topic)
        posted = self._writing.write(lambda writer: writer.post(run, body, number, token, notice))
        if posted is None:
            raise no_inbox(run)
        if isinstance(posted, Conflict):
            raise posted
        self._watch.heard([topic])
        return posted

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        return self.inboxes({run: after}).get(run, [])

    def inboxes(self, after: Mapping[str, int]) -> dict[str, list[Message]]:
        """Return `inbox` for each of these runs, in one round trip."""
        self._server.check_open()
        return self._watch.look(after, self._read_inboxes)

    def _read_inboxes(self, after: Mapping[str, int]) -> dict[str, list[Message]]:
        runs, seen = [to_column(run) for run in after], [*map(Int8, after.values())]
        found: dict[str, list[Message]] = {}
        for run, *message in self._rows(_INBOXES, runs=runs, after=seen):
            found.setdefault(from_column(run), []).append(Message(*message))
        return found

    def lease(self) -> str:
        """Return the name of this process's lease, which is renewed from now until the store is closed."""
        return self._parts.leases.name()

    def is_live(self, lease: str) -> bool:
        """Return whether a lease was renewed in time, by the server's clock."""
        return self._parts.leases.is_live(lease, self._connections)

    def lapses(self) -> int:
        """Return a number that changes while this process cannot renew its lease in time, and once more when it can."""
        return self._parts.leases.lapses()

    def changed(self, run: str, timeout: float) -> bool:
        """Wait until a run may have changed since this thread last waited; return `False` after `timeout`.

        The first call returns at once: read first, then wait.
        """
        self._server.check_open()
        return self._watch.wait(run, timeout)

    def listen_queue(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback`, in a thread of the store, whenever a run may have been queued; return how to stop."""
        self._server.check_open()
        return self._watch.on_queue(callback)

    def footprint(self) -> Footprint:
        """Return the size of the schema, with all its namespaces."""
        ((disk,),) = self._rows(_DISK, schema=self.schema)
        return Footprint("postgresql", self.url, SCHEMA_VERSION, disk)

    def sizes(self) -> list[RunSize]:
        """Return how much each run of the namespace holds; the server reads no body for it."""
        return [RunSize(from_column(run), *numbers) for run, *numbers in self._rows(_SIZES)]

    def inspector(self) -> Inspector:
        """Return an inspector, which reads the tables whatever is wrong with what they hold."""
        return PostgresInspector(self)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction, with the store's schema as its search path; for SQL of one's own."""
        try:
            with ExitStack() as stack:
                yield self._server.retry(lambda: self._begun(stack))
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


class _Parts:
    """The parts of a store that are closed when the store is collected."""

    def __init__(self, server: Server) -> None:
        channels = (f"{server.address.schema}:run", f"{server.address.schema}:queue")
        self.server = server
        self.connections = Connections(server)
        self.writing = WriteConnection(server)
        self.leases = LeaseKeeper(server)
        self.watch = Watch(server, *channels)
        self.announcer = Announcer(self.connections, *channels)

    def close(self) -> None:
        """Send the last notifications, then end every thread and close every connection."""
        parts = (self.announcer, self.server, self.leases, self.watch, self.writing, self.connections)
        for part in parts:
            part.close()
        self.server.leave()

    def reset(self) -> None:
        """Reset in a forked child, and leave alone what belongs to the parent."""
        parts = (self.server, self.connections, self.writing, self.leases, self.watch, self.announcer)
        for part in parts:
            part.reset()


_INVALID = (
    "SELECT c.relname FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid "
    "JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s AND NOT (i.indisvalid AND i.indisready)"
)
_FAILURES = "SELECT checksum_failures FROM pg_stat_database WHERE datname = current_database()"
_OTHER_NAMESPACES = (
    "SELECT namespace FROM topic_key WHERE namespace <> %s "
    "AND EXISTS (SELECT FROM run WHERE run.namespace = topic_key.namespace) ORDER BY namespace"
)
_THE_RUN = "FROM run WHERE namespace = %s AND run = %s"
_OBSERVE = (
    "SELECT no, head, (SELECT min(seq) FROM entry WHERE run_no = no), (SELECT max(seq) FROM entry WHERE run_no = no), "
    f"{', '.join(FACTS)} {_THE_RUN}"
)


class PostgresInspector(TableInspector):
    """The inspector of the tables.

    Only a role that can see all rows can tell orphaned rows from those of other namespaces.
    """

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

    def beside_runs(self) -> list[str]:
        found = super().beside_runs()
        for table, noun in (("queue", "queues with their limits"), ("schedule", "schedules")):
            query = f"SELECT count(*) FROM {table} WHERE namespace = %s"
            ((count,),) = self.rows(query, self.store.namespace)
            found += [f"{noun}: {count}"] if count else []
        others = self.rows(_OTHER_NAMESPACES, self.store.namespace)
        return found + [f"another namespace, {name}" for (name,) in others]

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
        info, raw = read_facts(row[4:]), plain_json(dict(zip(FACTS, row[4:], strict=True)))
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


_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store._parts.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
