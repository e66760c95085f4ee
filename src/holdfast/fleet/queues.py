"""The queues of a store: what waits in them, what is executed, what is held, and their limits."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from holdfast import clock
from holdfast.engine.submission import Place
from holdfast.errors import INVALID, HoldfastError, StoreError
from holdfast.stores import open_store
from holdfast.stores.base import RunInfo, Store, is_server, shown_url
from holdfast.values import RunStatus
from holdfast.views.plain import View

if TYPE_CHECKING:
    from holdfast.stores.postgres.connection import Connection
    from holdfast.stores.postgres.store import PostgresStore


def is_postgres(store: Store) -> TypeGuard[PostgresStore]:
    """Return whether a store is on PostgreSQL, without importing what that needs."""
    return is_server(store.url)


def on_postgres(store: Store, what: str) -> PostgresStore:
    """Return the store; raise `StoreError` if it is not on PostgreSQL, which `what` needs."""
    if not is_postgres(store):
        raise _elsewhere(store.url, what)
    return store


def open_postgres(url: str, what: str) -> Store:
    """Open a store on PostgreSQL, which `what` needs; refuse another without creating it."""
    if not is_server(url):
        raise _elsewhere(url, what)
    return open_store(url)


def _elsewhere(url: str, what: str) -> StoreError:
    return StoreError(
        f"{what} are kept by PostgreSQL alone, and the store is {shown_url(url)}; use postgresql://USER@HOST/DATABASE, "
        "or pg-embedded:PATH to try it"
    )


MOST = 2**31 - 1

_PASSED = "greatest(0, extract(epoch FROM clock_timestamp() - refilled_at))"
_TOKENS = f"least(starts, tokens + {_PASSED} * starts / per_seconds)"
"""The runs that may begin now; null for a queue without a rate."""

_COUNT_ACTIVE = (
    "(SELECT count(*) FROM run WHERE run.namespace = queue.namespace AND run.queue = queue.name AND run.queue <> '' "
    "AND run.held IS NULL AND {})"
)
_CLAIMED = (
    "run.claim_until > clock_timestamp() "
    "AND EXISTS (SELECT FROM lease WHERE lease.id = run.claim AND lease.until > clock_timestamp())"
)
_TAKEN = " + ".join(
    _COUNT_ACTIVE.format(condition)
    for condition in (
        "run.status = 'running'",
        f"run.status = 'queued' AND {_CLAIMED}",
        f"run.status = 'paused' AND run.due_at IS NOT NULL AND {_CLAIMED}",
    )
)
"""The runs of a queue that are executed, or are about to be, without those that are held."""

_THIS = "namespace = %(namespace)s AND name = %(queue)s"

_GIVE_UP = "SELECT set_config('idle_in_transaction_session_timeout', '10s', true)"
"""The timeout after which a worker that hangs loses the queues that it has locked."""


class LimitInvalid(HoldfastError):
    """A limit is invalid."""

    exit_code = INVALID


class Rate(NamedTuple):
    """A token bucket: `starts` runs may begin in `seconds`, that many at once, and more one by one as time passes."""

    starts: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits of one queue."""

    queue: str
    max_running: int | None = None
    rate: Rate | None = None
    paused: bool = False

    @property
    def rate_json(self) -> dict[str, float] | None:
        """Return the rate as JSON has it."""
        return None if self.rate is None else self.rate._asdict()


class Room(NamedTuple):
    """The runs of a limited queue that may be claimed now, beside those that count as running already."""

    runs: int
    paused: bool = False


class Limits:
    """The limits of a store's queues. Workers respect them from their next claim on."""

    def __init__(self, store: Store) -> None:
        self._store = on_postgres(store, "limits of queues")

    def lines(self) -> list[Limit]:
        """Return the queues that are limited or paused, by name."""
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
        """Limit a queue; limits that are not given stay as they are."""
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
        """Remove a queue's limits; return `False` if it had none. A paused queue stays paused."""
        with self._store.transaction() as connection:
            found = connection.execute(
                "UPDATE queue SET max_running = NULL, starts = NULL, per_seconds = NULL "
                f"WHERE {_THIS} AND (max_running IS NOT NULL OR starts IS NOT NULL)",
                self._names(queue),
            )
            self._tidy(connection)
            return found.rowcount > 0

    def pause(self, queue: str, *, paused: bool = True) -> None:
        """Keep workers from claiming runs of a queue; runs that are being executed continue."""
        _check(queue, None, None)
        with self._store.transaction() as connection:
            self._lock(connection, queue)
            connection.execute(
                f"UPDATE queue SET paused = %(paused)s WHERE {_THIS}",
                {**self._names(queue), "paused": paused},
            )
            self._tidy(connection)

    def resume(self, queue: str) -> None:
        """Let workers claim runs of a queue again."""
        self.pause(queue, paused=False)

    def _lock(self, connection: Connection, queue: str) -> None:
        connection.execute(
            "INSERT INTO queue (namespace, name) VALUES (%(namespace)s, %(queue)s) "
            "ON CONFLICT (namespace, name) DO UPDATE SET paused = queue.paused",
            self._names(queue),
        )

    def _tidy(self, connection: Connection) -> None:
        """Delete the rows of queues that are neither limited nor paused."""
        connection.execute(
            "DELETE FROM queue WHERE namespace = %s AND max_running IS NULL AND starts IS NULL AND NOT paused",
            (self._store.namespace,),
        )

    def _names(self, queue: str) -> dict[str, object]:
        return {"namespace": self._store.namespace, "queue": queue}


def allowances(connection: Connection, namespace: str, queues: Sequence[str] | None) -> dict[str, Room]:
    """Return how many runs of each limited queue may be claimed in this transaction; other queues have no limits.

    The limited queues are locked until the transaction ends. One that another transaction has locked has no room.
    """
    limited = "namespace = %(namespace)s AND (%(queues)s::text[] IS NULL OR name = ANY (%(queues)s::text[]))"
    names = {"namespace": namespace, "queues": None if queues is None else list(queues)}
    none = {
        name: Room(0, paused)
        for name, paused in connection.execute(f"SELECT name, paused FROM queue WHERE {limited}", names)
    }
    if not none:
        return {}
    connection.execute(_GIVE_UP)
    locked = connection.execute(
        f"SELECT name FROM queue WHERE {limited} ORDER BY name FOR NO KEY UPDATE SKIP LOCKED", names
    ).fetchall()
    # Only a statement that begins once the queues are locked sees all that others have claimed.
    rows = connection.execute(
        f"SELECT name, paused, floor({_TOKENS}), CASE WHEN max_running IS NOT NULL THEN max_running - ({_TAKEN}) END "
        "FROM queue WHERE namespace = %(namespace)s AND name = ANY (%(locked)s::text[])",
        {"namespace": namespace, "locked": [name for (name,) in locked]},
    ).fetchall()
    for name, paused, *limits in rows:
        free = 0 if paused else min(number for number in (*limits, MOST) if number is not None)
        none[name] = Room(int(max(0, free)), paused)
    return none


def spend(connection: Connection, namespace: str, queue: str, runs: int) -> None:
    """Count runs that are claimed against the rate of a queue that this transaction has locked."""
    if runs:
        connection.execute(
            f"UPDATE queue SET tokens = {_TOKENS} - %(runs)s, refilled_at = clock_timestamp() "
            f"WHERE {_THIS} AND starts IS NOT NULL",
            {"namespace": namespace, "queue": queue, "runs": runs},
        )


def _check(queue: str, max_running: int | None, rate: Rate | None) -> None:
    Place.of(queue, 0, None)
    for number in (max_running, None if rate is None else rate.starts):
        if number is not None and (type(number) is not int or not 1 <= number <= MOST):
            raise LimitInvalid(f"a queue's limit is a whole number, 1 or more, not {number!r}")
    if rate is not None and not (math.isfinite(rate.seconds) and rate.seconds > 0):
        raise LimitInvalid(f"a rate is so many runs in so many seconds, more than 0, not {rate.seconds!r}")


_OPEN = (RunStatus.QUEUED.value, RunStatus.RUNNING.value, RunStatus.PAUSED.value)

_NOW = "extract(epoch FROM statement_timestamp())"
_DUE = (
    f"held IS NULL AND ((status = 'queued' AND coalesce(due_at, 0) <= {_NOW}) "
    f"OR (status = 'paused' AND due_at <= {_NOW}))"
)
_COUNT = f"""
SELECT queue, count(*) FILTER (WHERE status = 'queued'), count(*) FILTER (WHERE {_DUE}),
    count(*) FILTER (WHERE status = 'running'), count(*) FILTER (WHERE status = 'paused'),
    count(*) FILTER (WHERE held IS NOT NULL),
    {_NOW} - min(coalesce(due_at, updated_at)) FILTER (WHERE {_DUE})
FROM run WHERE namespace = %s AND queue <> '' AND status IN ('queued', 'running', 'paused') GROUP BY queue
"""


@dataclass(frozen=True, slots=True)
class QueueLine(View):
    """One queue. `due` runs can be claimed now; `oldest` is for how many seconds the first of them could."""

    JSON = (
        "queue queued due running paused held oldest_seconds max_running=limit.max_running rate=limit.rate_json "
        "is_paused=limit.paused"
    )

    queue: str
    queued: int = 0
    due: int = 0
    running: int = 0
    paused: int = 0
    held: int = 0
    oldest: float | None = None
    limit: Limit = Limit("")

    @property
    def oldest_seconds(self) -> float | None:
        """Return `oldest`, rounded to milliseconds."""
        return None if self.oldest is None else round(self.oldest, 3)


def queue_lines(store: Store) -> list[QueueLine]:
    """Return every queue that has runs which are not over, or limits, by name."""
    if not is_postgres(store):
        return sorted(_counted(store), key=lambda line: line.queue)
    with store.transaction() as connection:
        rows = connection.execute(_COUNT.encode(), (store.namespace,)).fetchall()
    found = {}
    for queue, queued, due, running, paused, held, oldest in rows:
        age = None if oldest is None else max(0.0, float(oldest))
        found[queue] = QueueLine(queue, queued, due, running, paused, held, age)
    for limit in Limits(store).lines():
        found[limit.queue] = replace(found.get(limit.queue, QueueLine(limit.queue)), limit=limit)
    return [found[name] for name in sorted(found)]


def held_back(store: Store, run: str) -> str | None:
    """Return why a run is held, if it is: several attempts made no progress."""
    if not is_postgres(store):
        return None
    with store.transaction() as connection:
        row = connection.execute(
            "SELECT held FROM run WHERE namespace = %s AND run = %s", (store.namespace, run)
        ).fetchone()
    return None if row is None else row[0]


def _counted(store: Store) -> Iterator[QueueLine]:
    now, found = clock.time(), defaultdict[str, list[RunInfo]](list)
    for info in store.runs(status=_OPEN):
        if info.queue:
            found[info.queue].append(info)
    for queue, infos in found.items():
        statuses = [info.status for info in infos]
        due = [info for info in infos if _is_due(info, now)]
        yield QueueLine(
            queue,
            statuses.count(RunStatus.QUEUED),
            len(due),
            statuses.count(RunStatus.RUNNING),
            statuses.count(RunStatus.PAUSED),
            oldest=max((now - (info.due_at or info.updated_at) for info in due), default=None),
        )


def _is_due(info: RunInfo, now: float) -> bool:
    if info.status == RunStatus.QUEUED:
        return info.due_at is None or info.due_at <= now
    return info.status == RunStatus.PAUSED and info.due_at is not None and info.due_at <= now
