"""Claiming runs of a PostgreSQL store: the table of runs is the queue."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.fleet.claims import MAX_STRIKES, Claim, Wanted
from holdfast.fleet.limits import allowances, spend

if TYPE_CHECKING:
    from holdfast.stores.postgres.connecting import Connection
    from holdfast.stores.postgres.store import PostgresStore

_NOW = "extract(epoch FROM clock_timestamp())"
_LEASE = 'substring(run.driver FROM \'"lease": "([0-9a-f-]{36})"\')::uuid'
_FREE = "run.held IS NULL AND (run.claim_until IS NULL OR run.claim_until <= clock_timestamp())"
_WANTED = (
    "run.namespace = %(namespace)s AND run.queue <> '' "
    "AND (%(queues)s::text[] IS NULL OR run.queue = ANY (%(queues)s::text[])) "
    "AND (%(workflows)s::text[] IS NULL OR run.workflow = ANY (%(workflows)s::text[])) "
    "AND run.workflow <> ALL (%(avoided)s::text[]) AND run.run <> ALL (%(active)s::text[])"
)

_CLAIM = f"""
WITH found AS (
    SELECT run.no FROM run WHERE {_WANTED} AND {_FREE} AND {{condition}}
    ORDER BY run.priority DESC, coalesce(run.due_at, run.created_at), run.no
    LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE run SET
    strikes = struck.times,
    held = CASE WHEN struck.times >= {MAX_STRIKES} THEN
        'workers died {MAX_STRIKES} times while they took this run up' END,
    claim = CASE WHEN struck.times < {MAX_STRIKES} THEN %(lease)s::uuid END,
    claim_until = CASE WHEN struck.times < {MAX_STRIKES} THEN
        clock_timestamp() + make_interval(secs => %(seconds)s) END
FROM found JOIN LATERAL (
    SELECT run.strikes + (run.claim IS NOT NULL AND run.claim IS DISTINCT FROM {_LEASE})::int AS times
    FROM run WHERE run.no = found.no
) AS struck ON true
WHERE run.no = found.no
RETURNING run.run, run.workflow, run.queue, run.held
"""

_CONDITIONS = {
    "queued": f"run.status = 'queued' AND (run.due_at IS NULL OR run.due_at <= {_NOW})",
    "due": f"run.status = 'paused' AND run.due_at <= {_NOW}",
    "orphaned": "run.status = 'running' AND NOT EXISTS (SELECT FROM lease "
    f"WHERE lease.id = {_LEASE} AND lease.until > clock_timestamp() AND lease.id <> %(lease)s)",
}
"""Why a run can be claimed. A run that names this worker's own lease, and that it does not drive, was dropped."""

_CLAIMS = {
    why: _CLAIM.replace("{condition}", f"{condition} AND run.queue <> ALL (%(skipped)s::text[])")
    for why, condition in _CONDITIONS.items()
}


class _Wish(NamedTuple):
    """How many runs are wanted for which reason, of which queues and not of which."""

    why: str
    limit: int
    queues: list[str] | None
    skipped: list[str]


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

_COUNT = f"""
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
        self._avoided: set[str] = set()
        self._workflows = None if wanted.workflows is None else list(wanted.workflows)

    def claim(self, limit: int, active: Collection[str]) -> list[Claim]:
        """Claim the most urgent runs; those of limited queues as far as their limits allow."""
        found: list[Claim] = []
        lease = self._store.lease()
        with self._store.transaction() as connection:
            rooms = allowances(connection, self._store.namespace, self._queues)
            for why in _CONDITIONS:
                # A run that lost its driver counts as running already: it has its place.
                limited = [] if why == "orphaned" else list(rooms)
                for queue in limited:
                    wish = _Wish(why, min(limit - len(found), rooms[queue].runs), [queue], [])
                    claimed = self._claimed(connection, wish, active, lease)
                    spend(connection, self._store.namespace, queue, len(claimed))
                    rooms[queue] = rooms[queue]._replace(runs=rooms[queue].runs - len(claimed))
                    found += claimed
                skipped = limited or [queue for queue, room in rooms.items() if room.paused]
                wish = _Wish(why, limit - len(found), self._queues, skipped)
                found += self._claimed(connection, wish, active, lease)
        return found

    def _claimed(
        self, connection: Connection, wish: _Wish, active: Collection[str], lease: str
    ) -> list[Claim]:
        if wish.limit <= 0:
            return []
        given = {"queues": wish.queues, "skipped": wish.skipped, "limit": wish.limit}
        mine = {"lease": lease, "seconds": self._store.lease_seconds}
        rows = connection.execute(_CLAIMS[wish.why], {**self._values(active), **given, **mine}).fetchall()
        return [Claim(run, workflow, queue, wish.why) for run, workflow, queue, held in rows if held is None]

    def _values(self, active: Collection[str] = ()) -> dict[str, Any]:
        return {
            "namespace": self._store.namespace,
            "queues": self._queues,
            "workflows": self._workflows,
            "avoided": list(self._avoided),
            "active": list(active),
        }

    def release(self, run: str, *, seconds: float = 0.0) -> None:
        """Give the claim back; the run rests for `seconds`."""
        self._change(_RELEASE, run=run, rest=seconds)

    def strike(self, run: str, reason: str) -> None:
        """Let the run rest, longer each time; after the last strike it is held back until somebody requeues it."""
        self._change(_STRIKE, run=run, reason=reason[:1000])

    def avoid(self, workflow: str) -> None:
        """Leave the runs of a workflow to others."""
        self._avoided.add(workflow)

    def _change(self, sql: str, **values: Any) -> None:
        lease, namespace = self._store.lease(), self._store.namespace
        with self._store.transaction() as connection:
            connection.execute(sql, {**values, "lease": lease, "namespace": namespace})

    def count_waiting(self, within: float) -> int:
        """How many wanted runs are running, queued, or due soon."""
        with self._store.transaction() as connection:
            rows = connection.execute(_COUNT, {**self._values(), "within": within}).fetchall()
        return int(rows[0][0])

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the server tells that something was queued."""
        return self._store.listen_queue(callback)
