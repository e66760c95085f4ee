"""Telling others of changes, off the path of commits: a NOTIFY in a commit would make all commits queue up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from functools import partial

from holdfast.errors import StoreError
from holdfast.locks import locked
from holdfast.starting import started
from holdfast.stores.postgres.connecting import Connection, Connections

logger = logging.getLogger("holdfast")

GAP = 0.05
"""Seconds between two announcements of mere progress; what is urgent waits a tenth of it."""

_AT_ONCE = 400
"""How many topics one notification carries; it has at most 8,000 bytes."""

_TELL = "SELECT pg_notify(channel, payload) FROM unnest(%s::text[], %s::text[]) AS told (channel, payload)"


class Announcer:
    """Collects what changed and tells it in few words, in a thread that is started when there is something.

    Announcements may get lost with the connection: whoever listens looks for itself now and then.
    """

    def __init__(self, connections: Connections, run_channel: str, queue_channel: str) -> None:
        self._connections = connections
        self._run_channel, self._queue_channel = run_channel, queue_channel
        self.reset()

    def reset(self) -> None:
        """Begin anew in a forked child."""
        self._lock = threading.Lock()
        self._something = threading.Condition(self._lock)
        self._topics: set[str] = set()
        self._queues: set[str] = set()
        self._is_urgent = self._ended = False
        self._thread: threading.Thread | None = None

    def tell(self, topics: Iterable[str], queues: Iterable[str] = (), *, urgent: bool = False) -> None:
        """Announce that something of these runs changed, and that something was put into these queues."""
        locked(self._lock, self._told, topics, queues, urgent)

    def _told(self, topics: Iterable[str], queues: Iterable[str], urgent: bool) -> None:
        if self._ended:
            return
        is_news = not self._topics or (urgent and not self._is_urgent)
        self._topics.update(topics)
        self._queues.update(queues)
        self._is_urgent = self._is_urgent or urgent
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, name="holdfast-announce", daemon=True)
            try:
                started(thread)
            except (RuntimeError, MemoryError) as error:
                # Who is not told finds out when it looks; with the next change this is tried again.
                logger.warning("changes are not announced for now: %s", error)
            else:
                self._thread = thread
        elif is_news:
            self._something.notify()

    def close(self) -> None:
        """Announce what is left, and end."""
        locked(self._lock, self._end)
        # A store that was forgotten may be found, and closed, by the collector in any thread.
        if self._thread not in (None, threading.current_thread()):
            self._thread.join(timeout=5)

    def _end(self) -> None:
        self._ended = True
        self._something.notify()

    def _run(self) -> None:
        told_at = 0.0
        while told := self._next(told_at):
            told_at = time.monotonic()
            try:
                self._connections.run(partial(_tell, told), patience=1.0)
            except (StoreError, OSError) as error:
                logger.info("a change could not be announced: %s", error)

    def _next(self, told_at: float) -> list[tuple[str, str]]:
        """What is to be told next, once it is time; nothing at the end."""
        topics, queues = locked(self._lock, self._collected, told_at)
        told = [(self._queue_channel, each) for each in queues]
        parts = range(0, len(topics), _AT_ONCE)
        return told + [(self._run_channel, "".join(topics[begin : begin + _AT_ONCE])) for begin in parts]

    def _collected(self, told_at: float) -> tuple[list[str], list[str]]:
        while not self._topics and not self._ended:
            self._something.wait()
        while not self._ended:
            left = told_at + (GAP / 10 if self._is_urgent else GAP) - time.monotonic()
            if left <= 0:
                break
            self._something.wait(left)
        topics, queues = list(self._topics), list(self._queues)
        self._topics, self._queues, self._is_urgent = set(), set(), False
        return topics, queues


def _tell(told: list[tuple[str, str]], connection: Connection) -> None:
    channels, payloads = [channel for channel, _ in told], [payload for _, payload in told]
    connection.execute(_TELL, (channels, payloads), prepare=True)
