"""Who waits for changes of runs, and what is known to be unchanged."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from holdfast.stores.base import Message
from holdfast.stores.postgres.connecting import Server
from holdfast.stores.postgres.listening import Listener

logger = logging.getLogger("holdfast")

REMEMBERED = 10_000
"""How many runs are remembered; of those that are forgotten, anything may have changed."""

TRUSTED = 2.0
"""How many seconds an inbox that was read is believed to be unchanged while nobody tells otherwise."""

POLLING = 1.0
"""How many seconds to wait between looks while the server cannot tell of changes."""

_TOPIC = 16


def topic_of(namespace: str, run: str = "") -> str:
    """What stands for a run, or for the queues of a namespace, in notifications: it tells nobody what it is."""
    text = f"{namespace}\0{run}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=_TOPIC // 2).hexdigest()


class _Look(NamedTuple):
    """A look into an inbox: when, what had been heard by then, and the number up to which it is known."""

    at: float
    epoch: int
    tick: int
    upto: int


class Watch:
    """What was heard of the runs that somebody here is interested in."""

    def __init__(self, server: Server, run_channel: str, queue_channel: str) -> None:
        self.run_channel, self.queue_channel = run_channel, queue_channel
        self._server = server
        self._queues = topic_of(server.address.namespace)
        self._callbacks: list[Callable[[], object]] = []
        self.listener = Listener(server, (run_channel, queue_channel), self._hear, self._missed)
        self._forget()

    def reset(self) -> None:
        """Begin anew in a forked child."""
        self._callbacks = []
        self._forget()
        self.listener.reset()

    def close(self) -> None:
        """Wake everybody who waits, and listen no more."""
        with self._changed:
            self._changed.notify_all()
        self.listener.close()

    def heard(self, topics: Iterable[str]) -> None:
        """Something of these runs changed."""
        with self._changed:
            wanted = [topic for topic in topics if topic in self._ticks]
            for topic in wanted:
                self._ticks[topic] += 1
            if wanted:
                self._changed.notify_all()

    def wait(self, topic: str, timeout: float) -> bool:
        """Wait until something of a run may have changed since this thread was last told; `False` if not in time."""
        self.listener.start()
        deadline = time.monotonic() + timeout
        who = (threading.get_ident(), topic)
        with self._changed:
            tick = self._interest(topic)
            if who not in self._told:
                self._told[who] = tick
                return True
            while self._ticks.get(topic) == self._told.get(who):
                self._server.check_open()
                left = deadline - time.monotonic()
                if left <= 0:
                    return not self.listener.epoch
                is_told = self.listener.epoch != 0
                if not self._changed.wait(left if is_told else min(left, POLLING)) and not is_told:
                    return True
            self._told[who] = self._interest(topic)
            return True

    def inbox_is_unchanged(self, topic: str, after: int) -> bool:
        """Whether nothing beyond message `after` can have come in since the inbox was last looked into."""
        look = self._looks.get(topic)
        return (
            look is not None
            and after >= look.upto
            and look.epoch == self.listener.epoch != 0
            and look.tick == self._ticks.get(topic)
            and time.monotonic() - look.at <= TRUSTED
        )

    def look(self, topic: str, after: int, read: Callable[[], list[Message]]) -> list[Message]:
        """Look into an inbox, and remember what came of it. Who looks twice will look again: then listen."""
        if topic in self._looks:
            self.listener.start()
        with self._changed:
            at, epoch, tick = time.monotonic(), self.listener.epoch, self._interest(topic)
        messages = read()
        with self._changed:
            self._looks[topic] = _Look(at, epoch, tick, messages[-1].number if messages else after)
        return messages

    def on_queue(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` whenever something may have been queued, until what is answered is called."""
        with self._changed:
            self._callbacks.append(callback)
        self.listener.start()

        def stop() -> None:
            with self._changed:
                if callback in self._callbacks:
                    self._callbacks.remove(callback)

        return stop

    def _forget(self) -> None:
        self._changed = threading.Condition()
        self._ticks: dict[str, int] = {}
        self._told: dict[tuple[int, str], int] = {}
        self._looks: dict[str, _Look] = {}

    def _interest(self, topic: str) -> int:
        """How often something of a run was heard, which is counted from the first time that somebody asks."""
        if len(self._ticks) + len(self._told) > REMEMBERED:
            self._ticks.clear()
            self._told.clear()
            self._looks.clear()
        return self._ticks.setdefault(topic, 0)

    def _hear(self, channel: str, payload: str) -> None:
        if channel == self.run_channel:
            self.heard(payload[place : place + _TOPIC] for place in range(0, len(payload), _TOPIC))
        elif payload == self._queues:
            self._call_back()

    def _missed(self) -> None:
        with self._changed:
            self._looks.clear()
            for topic in self._ticks:
                self._ticks[topic] += 1
            self._changed.notify_all()
        self._call_back()

    def _call_back(self) -> None:
        for callback in tuple(self._callbacks):
            try:
                callback()
            except Exception:
                logger.exception("what was to be told of queued runs failed")
