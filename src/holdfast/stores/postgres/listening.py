"""Listening for notifications of the server, in a thread, on a connection of its own."""

from __future__ import annotations

import logging
import os
import selectors
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

import psycopg

from holdfast.errors import StoreError
from holdfast.locks import locked
from holdfast.starting import started
from holdfast.stores.postgres.connecting import Connection, Server, abandon, quoted

logger = logging.getLogger("holdfast")

_LONGEST_DELAY = 2.0


class Listener:
    """Hears what is told on some channels, from the first `start` on.

    `hear(channel, payload)` is called in the listener's thread, and `missed()` whenever it has just begun to
    listen: whatever was told before, nobody here heard it. `epoch` counts these beginnings; it is 0 while
    nobody listens.
    """

    def __init__(
        self,
        server: Server,
        channels: Iterable[str],
        hear: Callable[[str, str], None],
        missed: Callable[[], None],
    ) -> None:
        self._server, self._channels = server, tuple(channels)
        self._hear, self._missed = hear, missed
        self._connection: Connection | None = None
        self._wake: tuple[int, int] | None = None
        self.reset()

    def reset(self) -> None:
        """Begin anew in a forked child."""
        abandon(self._connection)
        for end in self._wake or ():
            os.close(end)
        self._connection, self._wake = None, None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._epochs = self.epoch = 0

    def start(self) -> None:
        """Listen from now on, as soon as there is a connection."""
        if self._thread is not None:
            return
        locked(self._lock, self._start)

    def _start(self) -> None:
        if self._thread is None and not self._ended.is_set():
            thread = threading.Thread(target=self._run, name="holdfast-listen", daemon=True)
            try:
                self._wake = self._wake or os.pipe()
                started(thread)
            except (OSError, RuntimeError, MemoryError) as error:
                # Who waits for news looks for it now and then; and whoever waits next tries this again.
                logger.warning("not listening to %s for now: %s", self._server.address.url, error)
            else:
                self._thread = thread

    def close(self) -> None:
        """Listen no more."""
        thread, wake = locked(self._lock, self._end)
        if thread is not None and wake is not None:
            os.write(wake[1], b"!")
            if thread is not threading.current_thread():
                thread.join(timeout=15)
        if self._wake is not None and (thread is None or not thread.is_alive()):
            for end in self._wake:
                os.close(end)
            self._wake = None

    def _end(self) -> tuple[threading.Thread | None, tuple[int, int] | None]:
        self._ended.set()
        return self._thread, self._wake

    def _run(self) -> None:
        delay = 0.05
        while not self._ended.is_set():
            try:
                self._listen()
                delay = 0.05
            except (psycopg.Error, StoreError, OSError) as error:
                logger.info("not listening to %s for the moment: %s", self._server.address.url, error)
            self.epoch = 0
            connection, self._connection = self._connection, None
            if connection is not None:
                with suppress(psycopg.Error):
                    connection.close()
            self._ended.wait(delay)
            delay = min(delay * 2, _LONGEST_DELAY)

    def _listen(self) -> None:
        self._connection = connection = self._server.connect()
        for channel in self._channels:
            connection.execute(f"LISTEN {quoted(channel)}".encode())
        self._epochs += 1
        self.epoch = self._epochs
        self._missed()
        assert self._wake is not None
        while not self._ended.is_set():
            # Asked first: a notification may have come with the answer to LISTEN.
            while told := connection.pgconn.notifies():
                self._hear(told.relname.decode(), told.extra.decode())
            ready = _ready(connection.fileno(), self._wake[0])
            if connection.fileno() in ready:
                connection.pgconn.consume_input()


def _ready(*files: int) -> list[int]:
    """Those of some files that can be read, once there are any. `select` knows no files beyond number 1023."""
    with selectors.DefaultSelector() as selector:
        for file in files:
            selector.register(file, selectors.EVENT_READ)
        return [key.fd for key, _ in selector.select()]
