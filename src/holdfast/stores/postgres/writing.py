"""The one writing connection of a PostgreSQL store: every change to the tables."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.types.numeric import Int8

from holdfast.locks import locked
from holdfast.stores.base import Append, Conflict, Snapshot
from holdfast.stores.postgres.appending import LOCK, Steps, Values
from holdfast.stores.postgres.batches import Batch, Rows
from holdfast.stores.postgres.connecting import Connection, Server, abandon
from holdfast.stores.postgres.text import from_column, to_column

Cursor = psycopg.Cursor[tuple[Any, ...]]

_THE_RUN = "namespace = %(namespace)s AND run = %(run)s"

_NO_OTHER_FORKS = (
    "(%(any_fork)s OR NOT EXISTS (SELECT FROM run AS fork WHERE fork.namespace = run.namespace "
    "AND fork.parent = run.key AND fork.parent <> '' AND fork.key <> ALL(%(forks)b::bytea[])))"
)

_HEADS = (
    "SELECT run, (SELECT max(seq) FROM entry WHERE run_no = no) FROM run "
    "WHERE namespace = %s AND run = ANY(%s::text[])"
)
_PRUNE = (
    f"WITH horizon AS (SELECT run_no FROM run JOIN entry ON run_no = no WHERE {_THE_RUN} AND seq = %(seq)s "
    f"AND {_NO_OTHER_FORKS}), "
    "dropped AS (DELETE FROM entry USING horizon WHERE entry.run_no = horizon.run_no AND seq < %(seq)s RETURNING 1), "
    "older AS (DELETE FROM snapshot USING horizon WHERE snapshot.run_no = horizon.run_no AND seq < %(seq)s), "
    "kept AS (INSERT INTO snapshot (run_no, seq, at, chain, body) "
    "SELECT run_no, %(seq)s, %(at)s, %(chain)b, %(body)b FROM horizon ON CONFLICT (run_no, seq) "
    "DO UPDATE SET at = excluded.at, chain = excluded.chain, body = excluded.body) SELECT count(*) FROM dropped"
)
_DELETE = (
    f"WITH gone AS (DELETE FROM run WHERE {_THE_RUN} AND {_NO_OTHER_FORKS} RETURNING no), "
    "entries AS (DELETE FROM entry USING gone WHERE run_no = no), "
    "snapshots AS (DELETE FROM snapshot USING gone WHERE run_no = no), "
    "messages AS (DELETE FROM inbox USING gone WHERE run_no = no) SELECT count(*) FROM gone"
)
_POST = (
    "INSERT INTO inbox (run_no, number, at, body, token) "
    "SELECT no, (SELECT coalesce(max(number), 0) + 1 FROM inbox WHERE run_no = no), "
    f"extract(epoch FROM clock_timestamp()), %(body)b, %(token)s FROM run WHERE {_THE_RUN} "
    "AND NOT EXISTS (SELECT FROM inbox WHERE run_no = no AND token = %(token)s) "
    "AND %(after)s IN (-1, (SELECT coalesce(max(number), 0) FROM inbox WHERE run_no = no))"
)
_POSTED = (
    "SELECT (SELECT number FROM inbox WHERE run_no = no AND token = %(token)s), "
    f"(SELECT coalesce(max(number), 0) FROM inbox WHERE run_no = no) FROM run WHERE {_THE_RUN}"
)


Result = TypeVar("Result")


def _known(forks: Collection[bytes] | None) -> Values:
    return {"any_fork": forks is None, "forks": list(forks or ())}


class Desk:
    """Where the writing connection is: one thread after the other uses it; if it is lost, it is replaced."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._writer: Writer | None = None
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Begin anew in a forked child."""
        if self._writer is not None:
            abandon(self._writer.connection)
        self._writer = None
        self._lock = threading.Lock()

    def write(self, action: Callable[[Writer], Result]) -> Result:
        """What `action` makes of the writer; done again, with another, if the server goes away meanwhile."""
        return locked(self._lock, self._server.insist, lambda: self._attempt(action))

    def close(self) -> None:
        """Close the connection, once whoever uses it is done."""
        locked(self._lock, self._drop)

    def _attempt(self, action: Callable[[Writer], Result]) -> Result:
        try:
            if self._writer is None:
                self._writer = Writer(self._server.connect(), self._server.address.namespace)
            return action(self._writer)
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.connection.close()
            self._writer = None


class Writer:
    """Changes one namespace through one connection. Not thread-safe: its owner holds a lock.

    Whoever gets an error from it must not use it again.
    """

    def __init__(self, connection: Connection, namespace: str) -> None:
        self.connection, self.namespace = connection, namespace
        # Plans are made once, and must be good for tables that grow a thousandfold.
        connection.execute("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off")
        row = connection.execute("SELECT current_setting('synchronous_commit')").fetchone()
        assert row is not None
        self._full = str(row[0])
        self._durable = True

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        """Write the appends in one transaction; answer for each as `Store.commit` promises."""
        self._sync(any(append.durable for append in appends))
        batch = Batch(appends, self.namespace)
        refused = batch.refused(self._written(batch.steps))
        if not refused:
            return [None] * len(appends)
        heads = self._heads({appends[place].run for place in refused})
        return [
            Conflict(append.run, append.after, heads.get(append.run)) if place in refused else None
            for place, append in enumerate(appends)
        ]

    def prune(self, run: str, horizon: Snapshot, forks: Collection[bytes] | None) -> int:
        """Drop what lies before the horizon; answer how many entries went."""
        values = {"seq": Int8(horizon.seq), "at": horizon.at, "chain": horizon.chain, "body": horizon.body}
        row = self._changed(run, (_PRUNE,), {**values, **_known(forks)})
        return int(row[0] or 0) if row else 0

    def delete(self, run: str, forks: Collection[bytes] | None) -> bool:
        """Remove a run and all that belongs to it."""
        row = self._changed(run, (_DELETE,), _known(forks))
        return bool(row and row[0])

    def post(
        self, run: str, body: bytes, number: int | None, token: uuid.UUID, notice: tuple[str, str]
    ) -> int | Conflict | None:
        """The number of the message with this token, which is new, or was posted before its receipt got lost.

        A `Conflict` if it would not be the `number` that is wanted; `None` if there is no such run.
        """
        channel, payload = notice
        after = Int8(-1 if number is None else number - 1)
        values = {"body": body, "token": token, "after": after, "channel": channel, "payload": payload}
        notify = "SELECT pg_notify(%(channel)s, %(payload)s)"
        row = self._changed(run, (_POST, notify, _POSTED), values)
        if row is None:
            return None
        posted, last = row
        return Conflict(run, (number or 1) - 1, int(last)) if posted is None else int(posted)

    def _written(self, batch: Sequence[Steps]) -> list[Rows]:
        if len(batch) == 1 and batch[0].is_single:
            return [self._send(*batch[0].first[0]).fetchall()]
        if any(steps.then for steps in batch):
            with self.connection.transaction():
                return [self._follow(steps) for steps in batch]
        with self._at_once():
            cursors = [[self._send(*each) for each in steps.first][-1] for steps in batch]
        return [cursor.fetchall() for cursor in cursors]

    def _follow(self, steps: Steps) -> Rows:
        *before, last = steps.first
        for each in before:
            self._send(*each)
        answer = self._send(*last).fetchall()
        for each in steps.then if answer else ():
            self._send(*each)
        return answer

    def _changed(self, run: str, statements: Sequence[str], values: Values) -> tuple[Any, ...] | None:
        """Lock a run, then change it; the row that the last statement answers, if any."""
        self._sync(True)
        all_values = {"namespace": self.namespace, "run": to_column(run), **values}
        with self._at_once():
            cursor = [self._send(statement, all_values) for statement in (LOCK, *statements)][-1]
        return cursor.fetchone()

    def _heads(self, runs: set[str]) -> dict[str, int]:
        names = [to_column(run) for run in runs]
        rows = self.connection.execute(_HEADS, (self.namespace, names), prepare=True)
        return {from_column(run): head for run, head in rows}

    def _send(self, text: str, values: Values) -> Cursor:
        return self.connection.execute(text.encode(), values, prepare=True)

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        """A transaction that costs one round trip: no statement of the block waits for the one before.

        If one of them fails, the connection is left in the middle of it.
        """
        with self.connection.pipeline():
            self.connection.execute("BEGIN")
            yield
            self.connection.execute("COMMIT")

    def _sync(self, durable: bool) -> None:
        """Choose what the next commit survives: power loss of the server, or only the death of this process."""
        if durable is not self._durable:
            level = self._full if durable else "off"
            self.connection.execute(
                "SELECT set_config('synchronous_commit', %s, false)", (level,), prepare=True
            )
            self._durable = durable
