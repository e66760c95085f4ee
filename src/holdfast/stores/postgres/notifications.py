"""Notifications of a PostgreSQL store: sending, receiving and waiting for them, in threads of their own."""

from __future__ import annotations

import hashlib
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import psycopg

from holdfast.errors import StoreError
from holdfast.stores.base import Message
from holdfast.stores.postgres.connection import Connection, Connections, Server, abandon, quoted
from holdfast.threads import locked, started

logger = logging.getLogger("holdfast")

_LONGEST_DELAY = 2.0


class Listener:
    """A thread that receives the notifications of some channels, from the first `start` on.

    `hear(channel, payload)` is called in the listener's thread, and `missed()` whenever it has just begun to
    listen: earlier notifications are lost. `epoch` counts these beginnings; it is 0 while nobody listens.
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
        """Reset in a forked child."""
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
                # Who waits polls meanwhile, and the next to wait tries this again.
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
                logger.info("not listening to %s for now: %s", self._server.address.url, error)
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
            while notice := connection.pgconn.notifies():
                self._hear(notice.relname.decode(), notice.extra.decode())
            ready = _ready(connection.fileno(), self._wake[0])
            if connection.fileno() in ready:
                connection.pgconn.consume_input()


def _ready(*files: int) -> list[int]:
    """Those of some files that can be read, once there are any. `select` knows no files beyond number 1023."""
    with selectors.DefaultSelector() as selector:
        for file in files:
            selector.register(file, selectors.EVENT_READ)
        return [key.fd for key, _ in selector.select()]


GAP = 0.05
"""Seconds between two announcements of mere progress; urgent ones wait a tenth of it."""

_AT_ONCE = 400
"""The topics of one notification, which has at most 8,000 bytes."""

_TELL = "SELECT pg_notify(channel, payload) FROM unnest(%s::text[], %s::text[]) AS notice (channel, payload)"


class Announcer:
    """A thread that collects changes and sends them in few notifications, off the path of commits.

    A NOTIFY in a commit would make all commits queue up. Announcements may get lost with the connection: listeners
    also poll now and then.
    """

    def __init__(self, connections: Connections, run_channel: str, queue_channel: str) -> None:
        self._connections = connections
        self._run_channel, self._queue_channel = run_channel, queue_channel
        self.reset()

    def reset(self) -> None:
        """Reset in a forked child."""
        self._lock = threading.Lock()
        self._something = threading.Condition(self._lock)
        self._topics: set[str] = set()
        self._queues: set[str] = set()
        self._is_urgent = self._ended = False
        self._thread: threading.Thread | None = None

    def tell(self, topics: Iterable[str], queues: Iterable[str] = (), *, urgent: bool = False) -> None:
        """Announce that something of these runs changed, and that something was put into these queues."""
        locked(self._lock, self._collect, topics, queues, urgent)

    def _collect(self, topics: Iterable[str], queues: Iterable[str], urgent: bool) -> None:
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
                # Others find out when they poll; with the next change this is tried again.
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
        sent_at = 0.0
        while notices := self._next(sent_at):
            sent_at = time.monotonic()
            try:
                self._connections.run(partial(_send, notices), timeout=1.0)
            except (StoreError, OSError) as error:
                logger.info("a change could not be announced: %s", error)

    def _next(self, sent_at: float) -> list[tuple[str, str]]:
        """Return the next notifications, once it is time; none at the end."""
        topics, queues = locked(self._lock, self._collected, sent_at)
        notices = [(self._queue_channel, each) for each in queues]
        parts = range(0, len(topics), _AT_ONCE)
        return notices + [(self._run_channel, "".join(topics[begin : begin + _AT_ONCE])) for begin in parts]

    def _collected(self, sent_at: float) -> tuple[list[str], list[str]]:
        while not self._topics and not self._ended:
            self._something.wait()
        while not self._ended:
            left = sent_at + (GAP / 10 if self._is_urgent else GAP) - time.monotonic()
            if left <= 0:
                break
            self._something.wait(left)
        topics, queues = list(self._topics), list(self._queues)
        self._topics, self._queues, self._is_urgent = set(), set(), False
        return topics, queues


def _send(notices: list[tuple[str, str]], connection: Connection) -> None:
    channels, payloads = [channel for channel, _ in notices], [payload for _, payload in notices]
    connection.execute(_TELL, (channels, payloads), prepare=True)


REMEMBERED = 10_000
"""The runs that are remembered; any other may have changed."""

TRUSTED = 2.0
"""The seconds for which an inbox counts as unchanged without a notification."""

POLLING = 1.0
"""The seconds between two polls while the server sends no notifications."""

_TOPIC = 16


class Topics:
    """The topics of runs, and of the queues of a namespace, in notifications, which every role can receive.

    Only roles that know the key of the namespace can tell which run a topic means.
    """

    def __init__(self, namespace: str, key: bytes) -> None:
        self._namespace, self._key = namespace, key

    def of(self, run: str = "") -> str:
        """Return the topic of a run; without one, of the queues."""
        text = f"{self._namespace}\0{run}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, key=self._key, digest_size=_TOPIC // 2).hexdigest()


class Look(NamedTuple):
    """A look into the inbox of a run, for the messages after a number."""

    run: str
    topic: str
    after: int


class _Seen(NamedTuple):
    """An inbox that was looked into: when, what had been heard by then, and the number up to which it is known."""

    at: float
    epoch: int
    tick: int
    upto: int


class Watch:
    """What was heard of the runs that threads of this process are interested in."""

    def __init__(self, server: Server, run_channel: str, queue_channel: str) -> None:
        self.run_channel, self.queue_channel = run_channel, queue_channel
        self._server = server
        self.queues = ""
        """The topic of the queues, once it is known."""
        self._callbacks: list[Callable[[], object]] = []
        self.listener = Listener(server, (run_channel, queue_channel), self._hear, self._missed)
        self._forget()

    def reset(self) -> None:
        """Reset in a forked child."""
        self._callbacks = []
        self._forget()
        self.listener.reset()

    def close(self) -> None:
        """Wake all waiting threads, and listen no more."""
        locked(self._lock, self._changed.notify_all)
        self.listener.close()

    def heard(self, topics: Iterable[str]) -> None:
        """Note that these runs changed."""
        locked(self._lock, self._heard, topics)

    def _heard(self, topics: Iterable[str]) -> None:
        wanted = [topic for topic in topics if topic in self._ticks]
        for topic in wanted:
            self._ticks[topic] += 1
        if wanted:
            self._changed.notify_all()

    def wait(self, topic: str, timeout: float) -> bool:
        """Wait until a run may have changed since this thread last waited; return `False` if not in time."""
        self.listener.start()
        return locked(self._lock, self._waited, topic, time.monotonic() + timeout)

    def _waited(self, topic: str, deadline: float) -> bool:
        who, tick = (threading.get_ident(), topic), self._interest(topic)
        if who not in self._waits:
            self._waits[who] = tick
            return True
        while self._ticks.get(topic) == self._waits.get(who):
            self._server.check_open()
            left = deadline - time.monotonic()
            if left <= 0:
                return not self.listener.epoch
            is_notified = self.listener.epoch != 0
            if not self._changed.wait(left if is_notified else min(left, POLLING)) and not is_notified:
                return True
        self._waits[who] = self._interest(topic)
        return True

    def look(
        self, looks: Sequence[Look], read: Callable[[dict[str, int]], dict[str, list[Message]]]
    ) -> dict[str, list[Message]]:
        """Read the inboxes that may have changed, and remember the result; the second look at a run listens."""
        looks = [look for look in looks if not self._is_unchanged(look)]
        if not looks:
            return {}
        if any(look.topic in self._seen for look in looks):
            self.listener.start()
        at, epoch = time.monotonic(), self.listener.epoch
        ticks = locked(self._lock, lambda: [self._interest(look.topic) for look in looks])
        found = read({look.run: look.after for look in looks})
        for look, tick in zip(looks, ticks, strict=True):
            messages = found.get(look.run)
            upto = messages[-1].number if messages else look.after
            self._seen[look.topic] = _Seen(at, epoch, tick, upto)
        return found

    def _is_unchanged(self, look: Look) -> bool:
        """Return whether nothing beyond message `after` can have come since the inbox was last read."""
        seen = self._seen.get(look.topic)
        return (
            seen is not None
            and look.after >= seen.upto
            and seen.epoch == self.listener.epoch != 0
            and seen.tick == self._ticks.get(look.topic)
            and time.monotonic() - seen.at <= TRUSTED
        )

    def on_queue(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` whenever something may have been queued, until the returned function is called."""
        self._callbacks.append(callback)
        self.listener.start()

        def stop() -> None:
            with suppress(ValueError):
                self._callbacks.remove(callback)

        return stop

    def _forget(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._ticks: dict[str, int] = {}
        self._waits: dict[tuple[int, str], int] = {}
        self._seen: dict[str, _Seen] = {}

    def _interest(self, topic: str) -> int:
        """Return how often something of a run was heard, counted from the first call."""
        if len(self._ticks) + len(self._waits) > REMEMBERED:
            self._ticks.clear()
            self._waits.clear()
            self._seen.clear()
        return self._ticks.setdefault(topic, 0)

    def _hear(self, channel: str, payload: str) -> None:
        if channel == self.run_channel:
            self.heard(payload[place : place + _TOPIC] for place in range(0, len(payload), _TOPIC))
        elif payload == self.queues:
            self._call_back()

    def _missed(self) -> None:
        locked(self._lock, self._forget_seen)
        self._call_back()

    def _forget_seen(self) -> None:
        self._seen.clear()
        for topic in self._ticks:
            self._ticks[topic] += 1
        self._changed.notify_all()

    def _call_back(self) -> None:
        for callback in tuple(self._callbacks):
            try:
                callback()
            except Exception:
                logger.exception("a callback for queued runs failed")
