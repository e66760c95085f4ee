"""The threads of a PostgreSQL store: the lease of this process, and notifications, sent and received."""

from __future__ import annotations

import hashlib
import logging
import os
import selectors
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import ClassVar, NamedTuple

import psycopg

from holdfast.errors import ResourceExhausted, StoreError
from holdfast.stores.base import Message
from holdfast.stores.postgres.connection import Connection, Connections, Server, abandon, quoted
from holdfast.threads import locked, started, synchronized

logger = logging.getLogger("holdfast")

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _now() -> float:
    """Return seconds that pass also while the machine is suspended."""
    return time.clock_gettime(_CLOCK)


class Background:
    """A thread of a store, which begins when it is first needed. It may have a connection of its own."""

    NAME: ClassVar[str]
    _connection: Connection | None = None

    def __init__(self, server: Server) -> None:
        self._server = server
        self.reset()

    def reset(self) -> None:
        """Reset in a forked child, which has no threads and must not use its parent's connections."""
        abandon(self._connection)
        self._connection = None
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def _start(self) -> None:
        """Start the thread unless it runs; raise `RuntimeError` or `MemoryError` if there can be no more of them."""
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, name=f"holdfast-{self.NAME}", daemon=True)
            started(thread)
            self._thread = thread

    def _run(self) -> None:
        raise NotImplementedError

    def _join(self, timeout: float) -> None:
        # A store that was forgotten may be found, and closed, by the collector in any thread.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


_RENEW = (
    "INSERT INTO lease (id, namespace, host, pid, until) "
    "VALUES (%s, %s, %s, %s, clock_timestamp() + %s * interval '1 second') "
    "ON CONFLICT (id) DO UPDATE SET until = excluded.until"
)
_FORGET = "DELETE FROM lease WHERE namespace = %s AND until < clock_timestamp() - interval '1 day'"
_IS_LIVE = "SELECT until > clock_timestamp() FROM lease WHERE namespace = %s AND id = %s"
_BETWEEN_CLEANINGS = 3600.0


class LeaseKeeper(Background):
    """The lease of this process: a row that a thread renews three times in its lifetime.

    While it is renewed, by the server's clock, others know that the process is alive.
    """

    NAME = "lease"

    def reset(self) -> None:
        """Reset in a forked child, which is another process and needs a lease of its own."""
        super().reset()
        self._name: uuid.UUID | None = None
        self._cleaned_at = self._renewed_at = 0.0
        self._lapses = 0

    @synchronized
    def name(self) -> str:
        """Return the name of this process's lease, which is renewed from now on."""
        self._server.check_open()
        if self._name is None:
            name = uuid.uuid4()
            self._server.retry(lambda: self._renew(name))
            self._name = name
        try:
            self._start()
        except (RuntimeError, MemoryError) as error:
            why = str(error) or "no memory is left"
            raise ResourceExhausted(
                f"a store on PostgreSQL needs a thread for its lease, and no more can be started ({why}); "
                "end other work of this process or raise its limits, then try again"
            ) from error
        return str(self._name)

    def is_live(self, lease: str, connections: Connections) -> bool:
        """Return whether a lease was renewed in time."""
        try:
            values = (self._server.address.namespace, uuid.UUID(lease))
        except ValueError:
            return False
        row = connections.run(
            lambda connection: connection.execute(_IS_LIVE, values, prepare=True).fetchone()
        )
        return row is not None and bool(row[0])

    def lapses(self) -> int:
        """Return a number that differs each time while the lease is not renewed in time, and changes once more after.

        By this machine's clock, which goes on while it sleeps.
        """
        if self._name is not None and self._is_late():
            self._lapses += 1
        return self._lapses

    def _is_late(self) -> bool:
        return _now() - self._renewed_at > self._server.address.lease

    @synchronized
    def close(self) -> None:
        """Give the lease up, once the thread has ended."""
        self._ended.set()
        self._join(5)
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.execute("DELETE FROM lease WHERE id = %s", (self._name,))
            self._disconnect()

    def _run(self) -> None:
        every = pause = self._server.address.lease / 3
        while not self._ended.wait(pause):
            pause = every
            try:
                if self._name is not None:
                    self._renew(self._name)
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
            if self._name is not None and self._is_late():
                self._lapses += 1
            self._renewed_at = began
            if time.monotonic() - self._cleaned_at > _BETWEEN_CLEANINGS or not self._cleaned_at:
                self._connection.execute(_FORGET, (address.namespace,))
                self._cleaned_at = time.monotonic()
        except BaseException:
            self._disconnect()
            raise


GAP = 0.05
"""Seconds between two announcements of mere progress; urgent ones wait a tenth of it."""

_AT_ONCE = 400
"""The topics of one notification, which has at most 8,000 bytes."""

_TELL = "SELECT pg_notify(channel, payload) FROM unnest(%s::text[], %s::text[]) AS notice (channel, payload)"


class Announcer(Background):
    """A thread that collects changes and sends them in few notifications, off the path of commits.

    A NOTIFY in a commit would make all commits queue up. Announcements may get lost with the connection: listeners
    also poll now and then.
    """

    NAME = "announce"

    def __init__(self, connections: Connections, run_channel: str, queue_channel: str) -> None:
        self._connections = connections
        self._run_channel, self._queue_channel = run_channel, queue_channel
        super().__init__(connections.server)

    def reset(self) -> None:
        """Reset in a forked child."""
        super().reset()
        self._something = threading.Condition(self._lock)
        self._topics: set[str] = set()
        self._queues: set[str] = set()
        self._is_urgent = False

    @synchronized
    def tell(self, topics: Iterable[str], queues: Iterable[str] = (), *, urgent: bool = False) -> None:
        """Announce that something of these runs changed, and that something was put into these queues."""
        if self._ended.is_set():
            return
        is_news = not self._topics or (urgent and not self._is_urgent)
        self._topics.update(topics)
        self._queues.update(queues)
        self._is_urgent = self._is_urgent or urgent
        try:
            self._start()
        except (RuntimeError, MemoryError) as error:
            # Others find out when they poll; with the next change this is tried again.
            logger.warning("changes are not announced for now: %s", error)
        if is_news:
            self._something.notify()

    def close(self) -> None:
        """Announce what is left, and end."""
        self._ended.set()
        locked(self._lock, self._something.notify)
        self._join(5)

    def _run(self) -> None:
        sent_at = 0.0
        while notices := self._next(sent_at):
            sent_at = time.monotonic()
            values = tuple(map(list, zip(*notices, strict=True)))
            try:
                self._connections.run(partial(_send, values), timeout=1.0)
            except (StoreError, OSError) as error:
                logger.info("a change could not be announced: %s", error)

    @synchronized
    def _next(self, sent_at: float) -> list[tuple[str, str]]:
        """Return the next notifications, once it is time; none at the end."""
        while not self._topics and not self._ended.is_set():
            self._something.wait()
        while not self._ended.is_set():
            left = sent_at + (GAP / 10 if self._is_urgent else GAP) - time.monotonic()
            if left <= 0:
                break
            self._something.wait(left)
        topics, queues = list(self._topics), list(self._queues)
        self._topics, self._queues, self._is_urgent = set(), set(), False
        notices = [(self._queue_channel, each) for each in queues]
        parts = range(0, len(topics), _AT_ONCE)
        return notices + [(self._run_channel, "".join(topics[begin : begin + _AT_ONCE])) for begin in parts]


def _send(values: tuple[list[str], ...], connection: Connection) -> None:
    connection.execute(_TELL, values, prepare=True)


REMEMBERED = 10_000
"""The runs that are remembered; any other may have changed."""

TRUSTED = 2.0
"""The seconds for which an inbox counts as unchanged without a notification."""

POLLING = 1.0
"""The seconds between two polls while the server sends no notifications."""

_TOPIC = 16
_LONGEST_DELAY = 2.0


def topic_of(namespace: str, key: bytes, run: str = "") -> str:
    """Return the topic of a run in notifications, which every role can receive; without a run, of the queues.

    Only roles that know the key of the namespace can tell which run a topic means.
    """
    text = f"{namespace}\0{run}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, key=key, digest_size=_TOPIC // 2).hexdigest()


class _Seen(NamedTuple):
    """An inbox that was looked into: when, what had been heard by then, and the number up to which it is known."""

    at: float
    epoch: int
    tick: int
    upto: int


class Watch(Background):
    """What was heard of the runs that threads of this process are interested in.

    A thread receives notifications, from the first `start` on. `epoch` counts how often it began to listen, before
    which notifications may be lost; it is 0 while nobody listens.
    """

    NAME = "listen"
    _wake: tuple[int, int] | None = None

    def __init__(self, server: Server, run_channel: str, queue_channel: str) -> None:
        self.run_channel, self.queue_channel = run_channel, queue_channel
        self.topic: Callable[..., str] = partial(topic_of, server.address.namespace, b"")
        """Returns the topic of a run; the store knows the key."""
        super().__init__(server)

    def reset(self) -> None:
        """Reset in a forked child."""
        super().reset()
        for end in self._wake or ():
            os.close(end)
        self._wake = None
        self._changed = threading.Condition(self._lock)
        self._epochs = self.epoch = 0
        self._callbacks: list[Callable[[], object]] = []
        self._ticks: dict[str, int] = {}
        self._waits: dict[tuple[int, str], int] = {}
        self._seen: dict[str, _Seen] = {}

    def start(self) -> None:
        """Listen from now on, as soon as there is a connection."""
        if self._thread is None:
            locked(self._lock, self._begin)

    def _begin(self) -> None:
        if self._ended.is_set():
            return
        try:
            self._wake = self._wake or os.pipe()
            self._start()
        except (OSError, RuntimeError, MemoryError) as error:
            # Who waits polls meanwhile, and the next to wait tries this again.
            logger.warning("not listening to %s for now: %s", self._server.address.url, error)

    def close(self) -> None:
        """Wake all waiting threads, and listen no more."""
        self._ended.set()
        locked(self._lock, self._changed.notify_all)  # A thread that is being started has started then.
        thread, wake = self._thread, self._wake
        if thread is not None and wake is not None:
            os.write(wake[1], b"!")
            self._join(15)
        if wake is not None and (thread is None or not thread.is_alive()):
            self._wake = None
            for end in wake:
                os.close(end)

    def _run(self) -> None:
        delay = 0.05
        while not self._ended.is_set():
            try:
                self._listen()
                delay = 0.05
            except (psycopg.Error, StoreError, OSError) as error:
                logger.info("not listening to %s for now: %s", self._server.address.url, error)
            self.epoch = 0
            self._disconnect()
            self._ended.wait(delay)
            delay = min(delay * 2, _LONGEST_DELAY)

    def _listen(self) -> None:
        self._connection = connection = self._server.connect()
        for channel in (self.run_channel, self.queue_channel):
            connection.execute(f"LISTEN {quoted(channel)}".encode())
        self._epochs += 1
        self.epoch = self._epochs
        self._miss()
        self._call_back()
        assert self._wake is not None
        # `select` knows no files beyond number 1023.
        with selectors.DefaultSelector() as selector:
            for file in (connection.fileno(), self._wake[0]):
                selector.register(file, selectors.EVENT_READ)
            while not self._ended.is_set():
                # Asked first: a notification may have come with the answer to LISTEN.
                while notice := connection.pgconn.notifies():
                    self._hear(notice.relname.decode(), notice.extra.decode())
                if connection.fileno() in [key.fd for key, _ in selector.select()]:
                    connection.pgconn.consume_input()

    def _hear(self, channel: str, payload: str) -> None:
        if channel == self.run_channel:
            self.heard(payload[place : place + _TOPIC] for place in range(0, len(payload), _TOPIC))
        elif payload == self.topic():
            self._call_back()

    @synchronized
    def _miss(self) -> None:
        """Note that any run may have changed."""
        self._seen.clear()
        for topic in self._ticks:
            self._ticks[topic] += 1
        self._changed.notify_all()

    @synchronized
    def heard(self, topics: Iterable[str]) -> None:
        """Note that these runs changed."""
        wanted = [topic for topic in topics if topic in self._ticks]
        for topic in wanted:
            self._ticks[topic] += 1
        if wanted:
            self._changed.notify_all()

    def wait(self, run: str, timeout: float) -> bool:
        """Wait until a run may have changed since this thread last waited; return `False` if not in time."""
        self.start()
        return locked(self._lock, self._waited, self.topic(run), time.monotonic() + timeout)

    def _waited(self, topic: str, deadline: float) -> bool:
        who, tick = (threading.get_ident(), topic), self._interest(topic)
        if who not in self._waits:
            self._waits[who] = tick
            return True
        while self._ticks.get(topic) == self._waits.get(who):
            self._server.check_open()
            left = deadline - time.monotonic()
            if left <= 0:
                return not self.epoch
            is_notified = self.epoch != 0
            if not self._changed.wait(left if is_notified else min(left, POLLING)) and not is_notified:
                return True
        self._waits[who] = self._interest(topic)
        return True

    def look(
        self, after: Mapping[str, int], read: Callable[[dict[str, int]], dict[str, list[Message]]]
    ) -> dict[str, list[Message]]:
        """Read the inboxes that may have changed, and remember the result; the second look at a run listens."""
        topics = {run: self.topic(run) for run in after}
        looks = {run: number for run, number in after.items() if not self._is_unchanged(topics[run], number)}
        if not looks:
            return {}
        if any(topics[run] in self._seen for run in looks):
            self.start()
        at, epoch = time.monotonic(), self.epoch
        ticks = locked(self._lock, lambda: {run: self._interest(topics[run]) for run in looks})
        found = read(looks)
        for run, number in looks.items():
            messages = found.get(run)
            upto = messages[-1].number if messages else number
            self._seen[topics[run]] = _Seen(at, epoch, ticks[run], upto)
        return found

    def _is_unchanged(self, topic: str, after: int) -> bool:
        """Return whether nothing beyond message `after` can have come since the inbox was last read."""
        seen = self._seen.get(topic)
        return (
            seen is not None
            and after >= seen.upto
            and seen.epoch == self.epoch != 0
            and seen.tick == self._ticks.get(topic)
            and time.monotonic() - seen.at <= TRUSTED
        )

    def _interest(self, topic: str) -> int:
        """Return how often something of a run was heard, counted from the first call."""
        if len(self._ticks) + len(self._waits) > REMEMBERED:
            self._ticks.clear()
            self._waits.clear()
            self._seen.clear()
        return self._ticks.setdefault(topic, 0)

    def on_queue(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` whenever something may have been queued, until the returned function is called."""
        self._callbacks.append(callback)
        self.start()

        def stop() -> None:
            with suppress(ValueError):
                self._callbacks.remove(callback)

        return stop

    def _call_back(self) -> None:
        for callback in tuple(self._callbacks):
            try:
                callback()
            except Exception:
                logger.exception("a callback for queued runs failed")
