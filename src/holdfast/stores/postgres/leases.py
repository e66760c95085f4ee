"""The lease of this process, by the server's clock: while it is renewed, others know that the process is alive."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from contextlib import suppress

import psycopg

from holdfast.errors import ResourceExhausted, StoreError
from holdfast.stores.postgres.connection import Connection, Connections, Server, abandon
from holdfast.threads import locked, started

logger = logging.getLogger("holdfast")

_RENEW = (
    "INSERT INTO lease (id, namespace, host, pid, until) "
    "VALUES (%s, %s, %s, %s, clock_timestamp() + %s * interval '1 second') "
    "ON CONFLICT (id) DO UPDATE SET until = excluded.until"
)
_FORGET = "DELETE FROM lease WHERE namespace = %s AND until < clock_timestamp() - interval '1 day'"
_IS_LIVE = "SELECT until > clock_timestamp() FROM lease WHERE namespace = %s AND id = %s"

_BETWEEN_CLEANINGS = 3600.0

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _now() -> float:
    """Return seconds that pass also while the machine is suspended."""
    return time.clock_gettime(_CLOCK)


class LeaseKeeper:
    """The lease of this process: a row that a thread renews three times in its lifetime."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection: Connection | None = None
        self.reset()

    def reset(self) -> None:
        """Reset in a forked child, which is another process and needs a lease of its own."""
        abandon(self._connection)
        self._connection = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._name: uuid.UUID | None = None
        self._thread: threading.Thread | None = None
        self._cleaned_at = 0.0
        self._renewed_at = 0.0
        self._lapses = 0

    def name(self) -> str:
        """Return the name of this process's lease, which is renewed from now on."""
        return locked(self._lock, self._named)

    def _named(self) -> str:
        self._server.check_open()
        if self._name is None:
            name = uuid.uuid4()
            self._server.retry(lambda: self._renew(name))
            self._name = name
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(
                target=self._keep, args=(self._name,), name="holdfast-lease", daemon=True
            )
            try:
                started(thread)
            except (RuntimeError, MemoryError) as error:
                why = str(error) or "no memory is left"
                raise ResourceExhausted(
                    f"a store on PostgreSQL needs a thread for its lease, and no more can be started ({why}); "
                    "end other work of this process or raise its limits, then try again"
                ) from error
            self._thread = thread
        return str(self._name)

    def is_live(self, lease: str, connections: Connections) -> bool:
        """Return whether a lease was renewed in time."""
        try:
            ident = uuid.UUID(lease)
        except ValueError:
            return False
        values = (self._server.address.namespace, ident)
        row = connections.run(
            lambda connection: connection.execute(_IS_LIVE, values, prepare=True).fetchone()
        )
        return row is not None and bool(row[0])

    def lapses(self) -> int:
        """Return a number that differs each time while the lease is not renewed in time, and changes once more after.

        By this machine's clock, which goes on while it sleeps.
        """
        if self._name is not None and self._is_late(_now()):
            self._lapses += 1
        return self._lapses

    def _is_late(self, now: float) -> bool:
        return now - self._renewed_at > self._server.address.lease

    def close(self) -> None:
        """Give the lease up."""
        self._ended.set()
        connection = locked(self._lock, self._left)
        if connection is not None:
            with suppress(psycopg.Error):
                connection.execute("DELETE FROM lease WHERE id = %s", (self._name,))
            connection.close()

    def _left(self) -> Connection | None:
        """Return the connection, once the thread has ended."""
        # A store that was forgotten may be found, and closed, by the collector in any thread.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        connection, self._connection = self._connection, None
        return connection

    def _keep(self, name: uuid.UUID) -> None:
        every = self._server.address.lease / 3
        pause = every
        while not self._ended.wait(pause):
            try:
                self._renew(name)
                pause = every
            except (psycopg.Error, StoreError, OSError) as error:
                pause = min(1.0, every / 2)
                logger.info("the lease of this process could not be renewed yet: %s", error)

    def _renew(self, name: uuid.UUID) -> None:
        address = self._server.address
        try:
            if self._connection is None:
                self._connection = self._server.connect()
            values = (name, address.namespace, socket.gethostname(), os.getpid(), address.lease)
            began = _now()
            self._connection.execute(_RENEW, values)
            if self._name is not None and self._is_late(_now()):
                self._lapses += 1
            self._renewed_at = began
            if time.monotonic() - self._cleaned_at > _BETWEEN_CLEANINGS or not self._cleaned_at:
                self._connection.execute(_FORGET, (address.namespace,))
                self._cleaned_at = time.monotonic()
        except BaseException:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
            raise
