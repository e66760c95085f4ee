"""Claiming runs of a PostgreSQL store: the table of runs is the queue."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from holdfast.engine.owner import active_runs
from holdfast.engine.submission import Place
from holdfast.errors import INVALID, HoldfastError, StoreError
from holdfast.fleet.claims import MAX_STRIKES, Avoiding, Claim, Wanted
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.namespaces import shown_url

if TYPE_CHECKING:
    from holdfast.stores.postgres.connection import Connection
    from holdfast.stores.postgres.store import PostgresStore


# What only a PostgreSQL store can keep, and saying so where the store is another.


def is_postgres(store: Store) -> TypeGuard[PostgresStore]:
    """Whether a store is one of PostgreSQL, without importing what that needs."""
    return store.url.startswith(("postgresql:", "pg-embedded:"))


def on_postgres(store: Store, what: str) -> PostgresStore:
    """The store, if it is one of PostgreSQL; `what` needs one."""
    if not is_postgres(store):
        raise _elsewhere(store.url, what)
    return store


def open_postgres(url: str, what: str) -> Store:
    """Open a store of PostgreSQL, for `what` needs one; another is refused and not created."""
    if not url.lower().startswith(("postgres:", "postgresql:", "pg-embedded:")):
        raise _elsewhere(url, what)
    return open_store(url)


def _elsewhere(url: str, what: str) -> StoreError:
    return StoreError(
        f"{what} are kept by PostgreSQL alone, and the store is {shown_url(url)}; use postgresql://USER@HOST/DATABASE, "
        "or pg-embedded:PATH to try it"
    )


# What limits a queue: how many of its runs are driven at once, how many begin in a time, whether it is pau.


MOST = 2**31 - 1

_PASSED = "greatest(0, extract(epoch FROM clock_timestamp() - refilled_at))"
_TOKENS = f"least(starts, tokens + {_PASSED} * starts / per_seconds)"
"""How many runs may begin now; null for a queue without a rate."""

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
"""How many runs of a queue are driven, or are about to be. Those that are held back take no place."""

_THIS = "namespace = %(namespace)s AND name = %(queue)s"

_PATIENCE = "SELECT set_config('idle_in_transaction_session_timeout', '10s', true)"
"""A worker that hangs while it holds on to a queue is made to let go of it."""


class LimitInvalid(HoldfastError):
    """A limit makes no sense."""

    exit_code = INVALID


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


LASTS = 60.0
"""For how many seconds, at least, a claim lasts while its worker lives: time enough to load a workflow."""

# Of the statement: only a time that stays the same within it can be looked up in an index.
_NOW = "extract(epoch FROM statement_timestamp())::double precision"
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_LEASE = f'substring(run.driver FROM \'"lease": "({_UUID})"\')::uuid'
_FREE = (
    "run.held IS NULL AND (run.claim_until IS NULL OR run.claim_until <= clock_timestamp() OR (run.claim IS NOT NULL "
    "AND NOT EXISTS (SELECT FROM lease WHERE lease.id = run.claim AND lease.until > clock_timestamp())))"
)
_WANTED = (
    "run.namespace = %(namespace)s AND run.queue <> '' "
    "AND (%(queues)s::text[] IS NULL OR run.queue = ANY (%(queues)s::text[])) "
    "AND (%(workflows)s::text[] IS NULL OR run.workflow = ANY (%(workflows)s::text[])) "
    "AND run.workflow <> ALL (%(avoided)s::text[]) AND run.run <> ALL (%(passed)s::text[])"
)

_FIND = f"""
SELECT run.no, run.run, run.workflow, run.queue, run.priority, coalesce(run.due_at, run.created_at) AS since,
    '{{why}}' AS why
FROM run WHERE {_WANTED} AND {_FREE} AND {{condition}}
ORDER BY run.priority DESC, coalesce(run.due_at, run.created_at), run.no
LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
"""

_ORPHANED = (
    "run.status = 'running' AND run.queue <> ALL (%(others)s::text[]) AND NOT EXISTS (SELECT FROM lease "
    f"WHERE lease.id = {_LEASE} AND lease.until > clock_timestamp() "
    "AND (lease.id <> %(lease)s OR run.run = ANY (%(driven)s::text[])))"
)
"""A run that names this process's own lease, and that nothing in this process drives, was dropped."""

_QUEUED = f"run.status = 'queued' AND (run.due_at IS NULL OR run.due_at <= {_NOW})"
_DUE = f"run.status = 'paused' AND run.due_at <= {_NOW}"


def _found(why: str, condition: str) -> str:
    return _FIND.replace("{why}", why).replace("{condition}", condition)


def _ready(place: str) -> str:
    """The most urgent runs of a place, those that are queued and those whose time has come together."""
    queued, due = _found("queued", f"{_QUEUED} AND {place}"), _found("due", f"{_DUE} AND {place}")
    return (
        f"WITH queued AS ({queued}), due AS ({due}) "
        "SELECT * FROM queued UNION ALL SELECT * FROM due ORDER BY priority DESC, since, no LIMIT %(limit)s"
    )


_FIND_ORPHANED = _found("orphaned", _ORPHANED)
_FIND_IN_QUEUE = _ready("run.queue = %(queue)s")
_FIND_ELSEWHERE = _ready("run.queue <> ALL (%(others)s::text[])")

_CLAIM = f"""
UPDATE run SET
    strikes = struck.times,
    held = CASE WHEN struck.times >= {MAX_STRIKES} THEN
        'workers died {MAX_STRIKES} times while they took this run up' END,
    claim = CASE WHEN struck.times < {MAX_STRIKES} THEN %(lease)s::uuid END,
    claim_until = CASE WHEN struck.times < {MAX_STRIKES} THEN
        clock_timestamp() + make_interval(secs => %(seconds)s) END
FROM (
    SELECT run.no,
        run.strikes + coalesce(run.claim <> %(lease)s AND run.claim IS DISTINCT FROM {_LEASE}, false)::int AS times
    FROM run WHERE run.no = ANY (%(nos)s::bigint[])
) AS struck
WHERE run.no = struck.no
RETURNING run.no, run.held
"""
"""Whoever claims again what it had claimed already did not die over it: the answer got lost."""


class _Found(NamedTuple):
    """A run that can be claimed; it is this transaction's alone."""

    no: int
    run: str
    workflow: str
    queue: str
    priority: int
    since: float
    why: str


_RELEASE = """
UPDATE run SET claim = NULL, strikes = CASE WHEN %(rest)s > 0 THEN strikes ELSE 0 END,
    claim_until = CASE WHEN %(rest)s > 0 THEN clock_timestamp() + make_interval(secs => %(rest)s) END
WHERE namespace = %(namespace)s AND run = %(run)s AND claim = %(lease)s
"""

_STRIKE = f"""
UPDATE run SET claim = NULL, strikes = strikes + 1,
    claim_until = CASE WHEN strikes + 1 < {MAX_STRIKES} THEN
        clock_timestamp() + make_interval(secs => power(5, strikes)) END,
    held = CASE WHEN strikes + 1 >= {MAX_STRIKES} THEN %(reason)s::text END
WHERE namespace = %(namespace)s AND run = %(run)s AND claim = %(lease)s
"""

_ANY = "*"

_FORGO = """
UPDATE run SET claim = NULL, claim_until = NULL
WHERE namespace = %(namespace)s AND claim = %(lease)s AND run <> ALL (%(active)s::text[])
"""

_COUNT_WAITING = f"""
SELECT count(*) FROM run WHERE {_WANTED} AND run.held IS NULL AND (
    run.status = 'running' OR (run.status = 'queued' AND coalesce(run.due_at, 0) <= {_NOW} + %(within)s)
    OR (run.status = 'paused' AND run.due_at <= {_NOW} + %(within)s)
) AND NOT EXISTS (
    SELECT FROM queue WHERE queue.namespace = run.namespace AND queue.name = run.queue AND queue.paused
)
"""


class PostgresClaims:
    """For any number of workers on any number of machines."""

    def __init__(self, store: PostgresStore, wanted: Wanted) -> None:
        self._store = store
        self._queues = list(wanted.queues) or None
        self._avoiding = Avoiding()
        self._workflows = None if wanted.workflows is None else list(wanted.workflows)
        self._in_doubt: set[str] = set()
        """The runs whose claims this worker may hold without knowing it, for an answer got lost; `*` stands for any."""

    def claim(self, limit: int, active: Collection[str]) -> list[Claim]:
        """Claim what lost its driver, then the most urgent; of limited queues as far as their limits allow."""
        lease = self._store.lease()
        values = {
            **self._values([*active, *self._avoiding.runs()]),
            "lease": lease,
            "driven": active_runs.of(self._store),
            "seconds": max(LASTS, self._store.lease_seconds),
        }
        settled = self._in_doubt.difference(active)
        with self._doubting(_ANY), self._store.transaction() as connection:
            if settled:
                connection.execute(_FORGO, {**values, "active": [*active, *values["driven"]]})
            rooms = allowances(connection, self._store.namespace, self._queues)
            # A run that lost its driver counts as running already: it has its place.
            paused = [queue for queue, room in rooms.items() if room.paused]
            chosen = _rows(connection, _FIND_ORPHANED, {**values, "others": paused, "limit": limit})
            if len(chosen) < limit:
                ready = self._ready(connection, rooms, {**values, "limit": limit - len(chosen)})
                began = _most_urgent(ready, limit - len(chosen), rooms)
                self._spend(connection, began, rooms)
                chosen += began
            if not chosen:
                self._in_doubt -= settled
                return []
            rows = connection.execute(_CLAIM.encode(), {**values, "nos": [found.no for found in chosen]})
            held = dict(rows.fetchall())
        self._in_doubt -= settled
        return [
            Claim(found.run, found.workflow, found.queue, found.why)
            for found in chosen
            if held[found.no] is None
        ]

    def _ready(self, connection: Connection, rooms: dict[str, Room], values: dict[str, Any]) -> list[_Found]:
        """The most urgent runs of each limited queue that has room, and of all queues without limits."""
        found = _rows(connection, _FIND_ELSEWHERE, {**values, "others": list(rooms)})
        for queue, room in rooms.items():
            if room.runs:
                most = min(room.runs, values["limit"])
                found += _rows(connection, _FIND_IN_QUEUE, {**values, "queue": queue, "limit": most})
        return found

    def _spend(self, connection: Connection, began: list[_Found], rooms: dict[str, Room]) -> None:
        for queue in rooms:
            runs = sum(found.queue == queue for found in began)
            spend(connection, self._store.namespace, queue, runs)

    def _values(self, passed: Collection[str]) -> dict[str, Any]:
        return {
            "namespace": self._store.namespace,
            "queues": self._queues,
            "workflows": self._workflows,
            "avoided": self._avoiding.workflows,
            "passed": list(passed),
        }

    def release(self, run: str, *, seconds: float = 0.0) -> None:
        """Give the claim back; the run rests for `seconds`."""
        self._change(_RELEASE, run=run, rest=seconds)

    def strike(self, run: str, reason: str) -> None:
        """Let the run rest, longer each time; after the last strike it is held back until somebody requeues it."""
        self._change(_STRIKE, run=run, reason=reason[:1000])

    def avoid(self, workflow: str) -> None:
        """Leave the runs of a workflow to others."""
        self._avoiding.avoid(workflow)

    def leave(self, run: str) -> None:
        """Leave a run to others for a while."""
        self._avoiding.leave(run)

    def _change(self, sql: str, run: str, **values: Any) -> None:
        lease, namespace = self._store.lease(), self._store.namespace
        with self._doubting(run), self._store.transaction() as connection:
            connection.execute(sql, {**values, "run": run, "lease": lease, "namespace": namespace})

    @contextmanager
    def _doubting(self, run: str) -> Iterator[None]:
        """While claims are changed: if that fails, it may have happened all the same."""
        try:
            yield
        except StoreError:
            self._in_doubt.add(run)
            raise

    def count_waiting(self, within: float) -> int:
        """How many wanted runs are running, queued, or due soon."""
        with self._store.transaction() as connection:
            rows = connection.execute(
                _COUNT_WAITING, {**self._values(self._avoiding.runs(within)), "within": within}
            ).fetchall()
        return int(rows[0][0])

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the server tells that something was queued."""
        return self._store.listen_queue(callback)


def _rows(connection: Connection, sql: str, values: dict[str, Any]) -> list[_Found]:
    return [_Found(*row) for row in connection.execute(sql.encode(), values).fetchall()]


def _most_urgent(found: Iterable[_Found], limit: int, rooms: dict[str, Room]) -> list[_Found]:
    """The most urgent of all, and of no limited queue more than it has room for."""
    left = {queue: room.runs for queue, room in rooms.items()}
    chosen: list[_Found] = []
    for each in sorted(found, key=lambda each: (-each.priority, each.since, each.no)):
        if len(chosen) < limit and left.get(each.queue, 1) > 0:
            chosen.append(each)
            if each.queue in left:
                left[each.queue] -= 1
    return chosen
