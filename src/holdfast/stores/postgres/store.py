"""The store on PostgreSQL: journals that any number of machines share."""

from __future__ import annotations

import os
import uuid
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import psycopg

from holdfast.errors import StoreError
from holdfast.stores.base import Append, Conflict, Entry, Mark, Message, RunInfo, Snapshot, check, paged
from holdfast.stores.mending import Mender
from holdfast.stores.postgres.announcing import Announcer
from holdfast.stores.postgres.connecting import Connection, Connections, Server
from holdfast.stores.postgres.leases import LeaseKeeper
from holdfast.stores.postgres.opening import opening_patience, prepare, server_at
from holdfast.stores.postgres.reading import LAST, Reader
from holdfast.stores.postgres.trouble import explain
from holdfast.stores.postgres.watching import Look, Topics, Watch
from holdfast.stores.postgres.writing import Desk

if TYPE_CHECKING:  # Few ask how much a store holds.
    from holdfast.stores.usage import Footprint, RunSize

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
        from holdfast.stores.postgres.measuring import footprint

        return self._connections.run(lambda connection: footprint(connection, self.url, self.schema))

    def sizes(self) -> list[RunSize]:
        """How much each run of the namespace holds."""
        from holdfast.stores.postgres.measuring import sizes

        return self._connections.run(lambda connection: sizes(connection, self.namespace))

    def mender(self) -> Mender:
        """What looks at the tables, whatever is wrong with what they hold."""
        from holdfast.stores.postgres.mending import PostgresMender

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
