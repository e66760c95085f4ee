"""Claims: which runs a worker may execute now, and releasing them; of PostgreSQL, the table of runs is the queue."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdfast import clock
from holdfast.engine.owner import active_runs, has_owner
from holdfast.errors import StoreError
from holdfast.fleet.queues import Room, allowances, spend
from holdfast.journal.journal import deadlines_of
from holdfast.stores.base import RunInfo, Store
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.stores.postgres.connection import Connection
    from holdfast.stores.postgres.store import PostgresStore

MAX_STRIKES = 3
"""The claims without progress after which a run is held."""


class Wanted(NamedTuple):
    """The runs that a worker claims: of these queues (empty: of all) and workflows (`None`: of all)."""

    queues: tuple[str, ...] = ()
    workflows: tuple[str, ...] | None = None


class Claim(NamedTuple):
    """A run that no other worker claims for a while. `why` is queued, due or orphaned."""

    run: str
    workflow: str
    queue: str
    why: str


class Claims(Protocol):
    """The claims of one worker on the runs of a store. Every method may be called from any thread.

    A claim only keeps the workers out of each other's way; the journal ensures that no two execute a run.
    """

    def claim(self, limit: int, active: Collection[str]) -> list[Claim]:
        """Claim up to `limit` runs that are queued, that are due, or whose owner died.

        `active` are the runs that this worker executes; a run that it owns but does not execute can be claimed again.
        """

    def release(self, run: str, seconds: float = 0.0) -> None:
        """Let others claim a run, after `seconds`. Called for every claim once its execution is over."""

    def strike(self, run: str, reason: str) -> None:
        """Count a run that could not be executed. After some strikes it is held until somebody requeues it."""

    def avoid(self, workflow: str) -> None:
        """Leave the runs of a workflow to others from now on."""

    def leave(self, run: str) -> None:
        """Leave a run that this worker cannot execute to others for a while, longer each time."""

    def count_waiting(self, within: float) -> int:
        """Return how many runs are running, queued, or due within so many seconds."""

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, from any thread, when something may be claimable; return what ends that."""


FIRST = 60.0
"""The seconds for which a run is skipped at first; each further time twice as long."""

LONGEST = 3600.0

_KEPT = 10_000


class SkipList:
    """What this process leaves to others since it cannot execute it: workflows for good, single runs for a while.

    May be used from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._skipped: set[str] = set()
        self._until: dict[str, float] = {}
        self._length: dict[str, float] = {}

    @property
    def skipped_workflows(self) -> list[str]:
        """Return the workflows whose runs are skipped."""
        with self._lock:
            return list(self._skipped)

    def skipped_runs(self, within: float = 0.0) -> list[str]:
        """Return the runs that are skipped now, and still will be in so many seconds."""
        soon = clock.monotonic() + within
        with self._lock:
            return [run for run, until in self._until.items() if until > soon]

    def avoid(self, workflow: str) -> None:
        """Leave the runs of a workflow to others."""
        with self._lock:
            self._skipped.add(workflow)

    def leave(self, run: str) -> None:
        """Leave a run to other workers, for twice as long each time."""
        with self._lock:
            if len(self._length) >= _KEPT and run not in self._length:
                self._until.clear()
                self._length.clear()
            length = self._length[run] = min(LONGEST, 2 * self._length.get(run, FIRST / 2))
            self._until[run] = clock.monotonic() + length


_CLAIMABLE = (RunStatus.QUEUED.value, RunStatus.PAUSED.value, RunStatus.RUNNING.value)


class LocalClaims(SkipList):
    """Claims of a few workers on one machine, in a store without claims: the first to execute a run has it."""

    def __init__(self, store: Store, wanted: Wanted) -> None:
        super().__init__()
        self._store, self._wanted = store, wanted
        self._not_before: dict[str, float] = {}
        """The monotonic times until which this worker leaves runs alone."""
        self._deadlines = deadlines_of(store)
        self._strikes: dict[str, int] = {}

    def claim(self, limit: int, active: Collection[str]) -> list[Claim]:
        """Return the most urgent runs that this worker may execute."""
        with self._lock:
            now = clock.monotonic()
            resting = [run for run, until in self._not_before.items() if until > now]
        passed = {*active, *self.skipped_runs(), *resting}
        found = [
            (info, why)
            for info in self._store.runs(status=_CLAIMABLE)
            if info.run not in passed and self._is_wanted(info) and (why := self._why(info))
        ]
        found.sort(key=lambda item: (-item[0].priority, item[0].due_at or item[0].created_at))
        return [Claim(info.run, info.workflow, info.queue, why) for info, why in found[:limit]]

    def release(self, run: str, seconds: float = 0.0) -> None:
        """Leave the run alone for `seconds`."""
        with self._lock:
            self._not_before.pop(run, None)
            if seconds:
                self._not_before[run] = clock.monotonic() + seconds
            else:
                self._strikes.pop(run, None)

    def strike(self, run: str, reason: str) -> None:
        """Try again a little later, up to the last strike; then this worker leaves the run alone for good."""
        with self._lock:
            strikes = self._strikes[run] = self._strikes.get(run, 0) + 1
            rest = 5.0 ** (strikes - 1) if strikes < MAX_STRIKES else math.inf
            self._not_before[run] = clock.monotonic() + rest

    def count_waiting(self, within: float) -> int:
        """Return how many wanted runs are running, queued, or due soon."""
        with self._lock:
            held = {run for run, until in self._not_before.items() if until == math.inf}
        left = {*self.skipped_runs(within), *held}
        return sum(
            info.run not in left
            and self._is_wanted(info)
            and (info.status == RunStatus.RUNNING or self._is_due(info, within))
            for info in self._store.runs(status=_CLAIMABLE)
        )

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Do nothing: the worker polls."""
        return lambda: None

    def _is_wanted(self, info: RunInfo) -> bool:
        queues, workflows = self._wanted.queues, self._wanted.workflows
        if not info.queue or (queues and info.queue not in queues):
            return False
        return info.workflow not in self.skipped_workflows and (
            workflows is None or info.workflow in workflows
        )

    def _why(self, info: RunInfo) -> str:
        if info.status == RunStatus.RUNNING:
            return "" if has_owner(self._store, info) else "orphaned"
        if not self._is_due(info):
            return ""
        return "queued" if info.status == RunStatus.QUEUED else "due"

    def _is_due(self, info: RunInfo, within: float = 0.0) -> bool:
        if info.due_at is None:
            return info.status == RunStatus.QUEUED
        return self._deadlines.left(info.run, info.due_at) <= within


# Claims on PostgreSQL.


LASTS = 60.0
"""The seconds that a claim lasts at least while its worker is alive: time enough to load a workflow."""

# Of the statement: only a time that stays the same within it can be looked up in an index.
_NOW = "extract(epoch FROM statement_timestamp())::double precision"
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_LEASE = f'substring(run.owner FROM \'"lease": "({_UUID})"\')::uuid'
_FREE = (
    "run.held IS NULL AND (run.claim_until IS NULL OR run.claim_until <= clock_timestamp() OR (run.claim IS NOT NULL "
    "AND NOT EXISTS (SELECT FROM lease WHERE lease.id = run.claim AND lease.until > clock_timestamp())))"
)
_WANTED = (
    "run.namespace = %(namespace)s AND run.queue <> '' "
    "AND (%(queues)s::text[] IS NULL OR run.queue = ANY (%(queues)s::text[])) "
    "AND (%(workflows)s::text[] IS NULL OR run.workflow = ANY (%(workflows)s::text[])) "
    "AND run.workflow <> ALL (%(skipped)s::text[]) AND run.run <> ALL (%(passed)s::text[])"
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
    "AND (lease.id <> %(lease)s OR run.run = ANY (%(executed)s::text[])))"
)
"""A run that names this process's own lease, and that this process does not execute, was dropped."""

_QUEUED = f"run.status = 'queued' AND (run.due_at IS NULL OR run.due_at <= {_NOW})"
_DUE = f"run.status = 'paused' AND run.due_at <= {_NOW}"


def _found(why: str, condition: str) -> str:
    return _FIND.replace("{why}", why).replace("{condition}", condition)


def _ready(place: str) -> str:
    """Return a query for the most urgent runs, those that are queued and those that are due together."""
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
        'workers died {MAX_STRIKES} times while they began to execute this run' END,
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
"""A worker that claims again what it had claimed already did not die over it: the answer got lost."""


class _Found(NamedTuple):
    """A run that can be claimed; this transaction has locked it."""

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


class PostgresClaims(SkipList):
    """Claims of any number of workers on any number of machines."""

    def __init__(self, store: PostgresStore, wanted: Wanted) -> None:
        super().__init__()
        self._store = store
        self._queues = list(wanted.queues) or None
        self._workflows = None if wanted.workflows is None else list(wanted.workflows)
        self._in_doubt: set[str] = set()
        """The runs whose claims this worker may hold without knowing it, since an answer got lost; `*` means any."""

    def claim(self, limit: int, active: Collection[str]) -> list[Claim]:
        """Claim runs that lost their owner, then the most urgent; of limited queues as far as their limits allow."""
        lease = self._store.lease()
        values = {
            **self._values([*active, *self.skipped_runs()]),
            "lease": lease,
            "executed": active_runs.of(self._store),
            "seconds": max(LASTS, self._store.lease_seconds),
        }
        settled = self._in_doubt.difference(active)
        with self._in_doubt_on_error(_ANY), self._store.transaction() as connection:
            if settled:
                connection.execute(_FORGO, {**values, "active": [*active, *values["executed"]]})
            rooms = allowances(connection, self._store.namespace, self._queues)
            # A run that lost its owner counts as running already.
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
        """Return the most urgent runs of each limited queue that has room, and of all queues without limits."""
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
            "skipped": self.skipped_workflows,
            "passed": list(passed),
        }

    def release(self, run: str, seconds: float = 0.0) -> None:
        """Release the claim; the run rests for `seconds`."""
        self._change(_RELEASE, run=run, rest=seconds)

    def strike(self, run: str, reason: str) -> None:
        """Let the run rest, longer each time; after the last strike it is held until somebody requeues it."""
        self._change(_STRIKE, run=run, reason=reason[:1000])

    def _change(self, sql: str, run: str, **values: Any) -> None:
        lease, namespace = self._store.lease(), self._store.namespace
        with self._in_doubt_on_error(run), self._store.transaction() as connection:
            connection.execute(sql, {**values, "run": run, "lease": lease, "namespace": namespace})

    @contextmanager
    def _in_doubt_on_error(self, run: str) -> Iterator[None]:
        """Remember that a change of claims in the block may have happened although it failed."""
        try:
            yield
        except StoreError:
            self._in_doubt.add(run)
            raise

    def count_waiting(self, within: float) -> int:
        """Return how many wanted runs are running, queued, or due soon."""
        with self._store.transaction() as connection:
            rows = connection.execute(
                _COUNT_WAITING, {**self._values(self.skipped_runs(within)), "within": within}
            ).fetchall()
        return int(rows[0][0])

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the server notifies that something was queued."""
        return self._store.listen_queue(callback)


def _rows(connection: Connection, sql: str, values: dict[str, Any]) -> list[_Found]:
    return [_Found(*row) for row in connection.execute(sql.encode(), values).fetchall()]


def _most_urgent(found: Iterable[_Found], limit: int, rooms: dict[str, Room]) -> list[_Found]:
    """Return the most urgent runs, and from a limited queue no more than its limit allows."""
    left = {queue: room.runs for queue, room in rooms.items()}
    chosen: list[_Found] = []
    for each in sorted(found, key=lambda each: (-each.priority, each.since, each.no)):
        if len(chosen) < limit and left.get(each.queue, 1) > 0:
            chosen.append(each)
            if each.queue in left:
                left[each.queue] -= 1
    return chosen
