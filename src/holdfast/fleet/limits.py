"""What limits a queue: how many of its runs are driven at once, how many begin in a time, whether it is paused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from holdfast.engine.queueing import Place
from holdfast.errors import HoldfastError
from holdfast.fleet.on_postgres import on_postgres
from holdfast.stores.base import Store

if TYPE_CHECKING:
    from holdfast.stores.postgres.connecting import Connection

MOST = 2**31 - 1

_PASSED = "greatest(0, extract(epoch FROM clock_timestamp() - refilled_at))"
_TOKENS = f"least(starts, tokens + {_PASSED} * starts / per_seconds)"
"""How many runs may begin now; null for a queue without a rate."""

_COUNT = (
    "(SELECT count(*) FROM run WHERE run.namespace = queue.namespace AND run.queue = queue.name AND run.queue <> '' "
    "AND run.held IS NULL AND {})"
)
_CLAIMED = (
    "run.claim_until > clock_timestamp() "
    "AND EXISTS (SELECT FROM lease WHERE lease.id = run.claim AND lease.until > clock_timestamp())"
)
_TAKEN = " + ".join(
    _COUNT.format(condition)
    for condition in (
        "run.status = 'running'",
        f"run.status = 'queued' AND {_CLAIMED}",
        f"run.status = 'paused' AND run.due_at IS NOT NULL AND {_CLAIMED}",
    )
)
"""How many runs of a queue are driven, or are about to be. Those that are held back take no place."""

_THIS = "namespace = %(namespace)s AND name = %(queue)s"

_PATIENCE = "SELECT set_config('idle_in_transaction_session_timeout', '10s', true)"
"""A worker that hangs while it holds on to a queue is made to let go of it."""


class LimitInvalid(HoldfastError):
    """A limit makes no sense."""


class Rate(NamedTuple):
    """So many runs may begin in so many seconds: that many at once, and more one by one as time goes by."""

    starts: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Limit:
    """What limits one queue."""

    queue: str
    max_running: int | None = None
    rate: Rate | None = None
    paused: bool = False


class Room(NamedTuple):
    """How many more runs of a limited queue may be taken up now, those aside that count as running already."""

    runs: int
    paused: bool = False


class Limits:
    """The limits of a store's queues. Workers keep to them from their next look on."""

    def __init__(self, store: Store) -> None:
        self._store = on_postgres(store, "limits of queues")

    def lines(self) -> list[Limit]:
        """The queues that are limited or paused, by name."""
        with self._store.transaction() as connection:
            rows = connection.execute(
                "SELECT name, max_running, starts, per_seconds, paused FROM queue WHERE namespace = %s ORDER BY name",
                (self._store.namespace,),
            ).fetchall()
        return [
            Limit(name, running, None if starts is None else Rate(starts, seconds), paused)
            for name, running, starts, seconds, paused in rows
        ]

    def set(self, queue: str, *, max_running: int | None = None, rate: Rate | None = None) -> None:
        """Limit a queue. What is not given stays as it was."""
        _check(queue, max_running, rate)
        with self._store.transaction() as connection:
            self._lock(connection, queue)
            if max_running is not None:
                connection.execute(
                    f"UPDATE queue SET max_running = %(running)s WHERE {_THIS}",
                    {**self._names(queue), "running": max_running},
                )
            if rate is not None:
                connection.execute(
                    f"UPDATE queue SET tokens = least(%(starts)s, coalesce({_TOKENS}, %(starts)s)), "
                    "refilled_at = clock_timestamp(), starts = %(starts)s, per_seconds = %(seconds)s "
                    f"WHERE {_THIS}",
                    {**self._names(queue), "starts": rate.starts, "seconds": rate.seconds},
                )

    def unset(self, queue: str) -> bool:
        """Take a queue's limits away; `False` if it had none. A paused queue stays paused."""
        with self._store.transaction() as connection:
            found = connection.execute(
                "UPDATE queue SET max_running = NULL, starts = NULL, per_seconds = NULL "
                f"WHERE {_THIS} AND (max_running IS NOT NULL OR starts IS NOT NULL)",
                self._names(queue),
            )
            self._tidy(connection)
            return found.rowcount > 0

    def pause(self, queue: str, *, paused: bool = True) -> None:
        """Let workers take nothing up from a queue; what they are driving goes on."""
        _check(queue, None, None)
        with self._store.transaction() as connection:
            self._lock(connection, queue)
            connection.execute(
                f"UPDATE queue SET paused = %(paused)s WHERE {_THIS}",
                {**self._names(queue), "paused": paused},
            )
            self._tidy(connection)

    def resume(self, queue: str) -> None:
        """Let workers take up again what waits in a queue."""
        self.pause(queue, paused=False)

    def _lock(self, connection: Connection, queue: str) -> None:
        connection.execute(
            "INSERT INTO queue (namespace, name) VALUES (%(namespace)s, %(queue)s) "
            "ON CONFLICT (namespace, name) DO UPDATE SET paused = queue.paused",
            self._names(queue),
        )

    def _tidy(self, connection: Connection) -> None:
        """Forget queues of which nothing is left to say."""
        connection.execute(
            "DELETE FROM queue WHERE namespace = %s AND max_running IS NULL AND starts IS NULL AND NOT paused",
            (self._store.namespace,),
        )

    def _names(self, queue: str) -> dict[str, object]:
        return {"namespace": self._store.namespace, "queue": queue}


def allowances(connection: Connection, namespace: str, queues: Sequence[str] | None) -> dict[str, Room]:
    """How many runs of each limited queue may be taken up in this transaction; other queues have no limits.

    The limited queues are this transaction's alone until it ends. One that another has at this moment has no room.
    """
    limited = "namespace = %(namespace)s AND (%(queues)s::text[] IS NULL OR name = ANY (%(queues)s::text[]))"
    names = {"namespace": namespace, "queues": None if queues is None else list(queues)}
    none = {
        name: Room(0, paused)
        for name, paused in connection.execute(f"SELECT name, paused FROM queue WHERE {limited}", names)
    }
    if not none:
        return {}
    connection.execute(_PATIENCE)
    locked = connection.execute(
        f"SELECT name FROM queue WHERE {limited} ORDER BY name FOR NO KEY UPDATE SKIP LOCKED", names
    ).fetchall()
    # Only a statement that begins once the queues are locked sees all that others have claimed.
    rows = connection.execute(
        f"SELECT name, paused, floor({_TOKENS}), CASE WHEN max_running IS NOT NULL THEN max_running - ({_TAKEN}) END "
        "FROM queue WHERE namespace = %(namespace)s AND name = ANY (%(locked)s::text[])",
        {"namespace": namespace, "locked": [name for (name,) in locked]},
    ).fetchall()
    return none | {name: _room(paused, tokens, places) for name, paused, tokens, places in rows}


def spend(connection: Connection, namespace: str, queue: str, runs: int) -> None:
    """Count runs that are taken up against the rate of a queue that this transaction has locked."""
    if runs:
        connection.execute(
            f"UPDATE queue SET tokens = {_TOKENS} - %(runs)s, refilled_at = clock_timestamp() "
            f"WHERE {_THIS} AND starts IS NOT NULL",
            {"namespace": namespace, "queue": queue, "runs": runs},
        )


def _room(paused: bool, tokens: float | None, places: int | None) -> Room:
    if paused:
        return Room(0, paused=True)
    return Room(int(max(0, min(number for number in (tokens, places, MOST) if number is not None))))


def _check(queue: str, max_running: int | None, rate: Rate | None) -> None:
    Place.of(queue, 0, None)
    for number in (max_running, None if rate is None else rate.starts):
        if number is not None and (type(number) is not int or not 1 <= number <= MOST):
            raise LimitInvalid(f"a queue's limit is a whole number, 1 or more, not {number!r}")
    if rate is not None and not (math.isfinite(rate.seconds) and rate.seconds > 0):
        raise LimitInvalid(f"a rate is so many runs in so many seconds, more than 0, not {rate.seconds!r}")
