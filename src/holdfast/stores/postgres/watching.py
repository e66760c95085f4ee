"""Who waits for changes of runs, and what is known to be unchanged."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from holdfast.locks import locked
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


class Topics:
    """What stands for runs, and for the queues of a namespace, in notifications, which every role can hear.

    Only those who know the key of the namespace can tell which run is meant.
    """

    def __init__(self, namespace: str, key: bytes) -> None:
        self._namespace, self._key = namespace, key

    def of(self, run: str = "") -> str:
        """The topic of a run; without one, of the queues."""
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
    """What was heard of the runs that somebody here is interested in."""

    def __init__(self, server: Server, run_channel: str, queue_channel: str) -> None:
        self.run_channel, self.queue_channel = run_channel, queue_channel
        self._server = server
        self.queues = ""
        """The topic of the queues, once it is known."""
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
        locked(self._lock, self._changed.notify_all)
        self.listener.close()

    def heard(self, topics: Iterable[str]) -> None:
        """Something of these runs changed."""
        locked(self._lock, self._heard, topics)

    def _heard(self, topics: Iterable[str]) -> None:
        wanted = [topic for topic in topics if topic in self._ticks]
        for topic in wanted:
            self._ticks[topic] += 1
        if wanted:
            self._changed.notify_all()

    def wait(self, topic: str, timeout: float) -> bool:
        """Wait until something of a run may have changed since this thread was last told; `False` if not in time."""
        self.listener.start()
        return locked(self._lock, self._waited, topic, time.monotonic() + timeout)

    def _waited(self, topic: str, deadline: float) -> bool:
        who, tick = (threading.get_ident(), topic), self._interest(topic)
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

    def look(
        self, looks: Sequence[Look], read: Callable[[dict[str, int]], dict[str, list[Message]]]
    ) -> dict[str, list[Message]]:
        """Look into the inboxes that may have changed, and remember what came of it.

        Who looks twice will look again: then listen.
        """
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
        """Whether nothing beyond message `after` can have come in since the inbox was last looked into."""
        seen = self._seen.get(look.topic)
        return (
            seen is not None
            and look.after >= seen.upto
            and seen.epoch == self.listener.epoch != 0
            and seen.tick == self._ticks.get(look.topic)
            and time.monotonic() - seen.at <= TRUSTED
        )

    def on_queue(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` whenever something may have been queued, until what is answered is called."""
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
        self._told: dict[tuple[int, str], int] = {}
        self._seen: dict[str, _Seen] = {}

    def _interest(self, topic: str) -> int:
        """How often something of a run was heard, which is counted from the first time that somebody asks."""
        if len(self._ticks) + len(self._told) > REMEMBERED:
            self._ticks.clear()
            self._told.clear()
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
                logger.exception("what was to be told of queued runs failed")
