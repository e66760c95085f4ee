"""Claiming runs of a PostgreSQL store: the table of runs is the queue."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeGuard

from holdfast.fleet.claims import MAX_STRIKES, Claim, Wanted
from holdfast.stores.base import Store

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PostgresStore

_NOW = "extract(epoch FROM clock_timestamp())"
_LEASE = 'substring(run.driver FROM \'"lease": "([0-9a-f-]{36})"\')::uuid'
_FREE = "run.held IS NULL AND (run.claim_until IS NULL OR run.claim_until <= clock_timestamp())"
_WANTED = (
    "run.namespace = %(namespace)s AND run.queue <> '' "
    "AND (%(queues)s::text[] IS NULL OR run.queue = ANY (%(queues)s::text[])) "
    "AND (%(workflows)s::text[] IS NULL OR run.workflow = ANY (%(workflows)s::text[])) "
    "AND run.run <> ALL (%(active)s::text[])"
)

_CLAIM = f"""
WITH found AS (
    SELECT run.no FROM run WHERE {_WANTED} AND {_FREE} AND {{condition}}
    ORDER BY run.priority DESC, coalesce(run.due_at, run.created_at), run.no
    LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE run SET
    strikes = run.strikes + struck.added,
    held = CASE WHEN run.strikes + struck.added >= {MAX_STRIKES} THEN
        'workers died {MAX_STRIKES} times while they took this run up' END,
    claim = %(lease)s,
    claim_until = clock_timestamp() + make_interval(secs => %(seconds)s)
FROM found JOIN LATERAL (
    SELECT (run.claim IS NOT NULL AND run.claim IS DISTINCT FROM {_LEASE})::int AS added
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

_RELEASE = """
UPDATE run SET claim = NULL, strikes = CASE WHEN %(rest)s > 0 THEN strikes ELSE 0 END,
    claim_until = CASE WHEN %(rest)s > 0 THEN clock_timestamp() + make_interval(secs => %(rest)s) END
WHERE namespace = %(namespace)s AND run = %(run)s AND claim = %(lease)s
"""

_STRIKE = f"""
UPDATE run SET claim = NULL, strikes = strikes + 1,
    claim_until = clock_timestamp() + make_interval(secs => power(5, strikes)),
    held = CASE WHEN strikes + 1 >= {MAX_STRIKES} THEN %(reason)s::text END
WHERE namespace = %(namespace)s AND run = %(run)s AND claim = %(lease)s
"""

_COUNT = f"""
SELECT count(*) FROM run WHERE {_WANTED} AND run.held IS NULL AND (
    run.status = 'running' OR (run.status = 'queued' AND coalesce(run.due_at, 0) <= {_NOW} + %(within)s)
    OR (run.status = 'paused' AND run.due_at <= {_NOW} + %(within)s)
)
"""


def is_postgres(store: Store) -> TypeGuard[PostgresStore]:
    """Whether a store is one of PostgreSQL, without importing what that needs."""
    return store.url.startswith(("postgresql:", "pg-embedded:"))


class PostgresClaims:
    """For any number of workers on any number of machines."""

    def __init__(self, store: PostgresStore, wanted: Wanted) -> None:
        from holdfast.fleet.limits import allowances, spend

        self._store, self._allowances, self._spend = store, allowances, spend
        self._queues = list(wanted.queues) or None
        self._workflows = None if wanted.workflows is None else list(wanted.workflows)

    def claim(self, limit: int, active: Collection[str]) -> list[Claim]:
        """Claim the most urgent runs; those of limited queues as far as their limits allow."""
        found: list[Claim] = []
        lease = self._store.lease()
        with self._store.transaction() as connection:
            allowed = self._allowances(connection, self._queues)
            limited = [queue for queue, room in allowed.items() if room is not None]
            for why, condition in _CONDITIONS.items():
                if why == "queued":
                    for queue in limited:
                        room = min(limit - len(found), allowed[queue] or 0)
                        claimed = self._claimed(connection, why, condition, room, active, lease, [queue], [])
                        self._spend(connection, queue, len(claimed))
                        found += claimed
                    skipped = limited
                else:
                    skipped = []
                room = limit - len(found)
                found += self._claimed(connection, why, condition, room, active, lease, self._queues, skipped)
        return found

    def _claimed(
        self,
        connection: Any,
        why: str,
        condition: str,
        limit: int,
        active: Collection[str],
        lease: str,
        queues: list[str] | None,
        skipped: list[str],
    ) -> list[Claim]:
        if limit <= 0:
            return []
        but = " AND run.queue <> ALL (%(skipped)s::text[])" if skipped else ""
        rows = connection.execute(
            _CLAIM.format(condition=condition + but),
            {
                **self._values(active),
                "queues": queues,
                "skipped": skipped,
                "limit": limit,
                "lease": lease,
                "seconds": self._store.lease_seconds,
            },
        ).fetchall()
        return [Claim(run, workflow, queue, why) for run, workflow, queue, held in rows if held is None]

    def _values(self, active: Collection[str] = ()) -> dict[str, Any]:
        return {
            "namespace": self._store.namespace,
            "queues": self._queues,
            "workflows": self._workflows,
            "active": list(active),
        }

    def release(self, run: str, *, seconds: float = 0.0) -> None:
        """Give the claim back; the run rests for `seconds`."""
        self._change(_RELEASE, run=run, rest=seconds)

    def strike(self, run: str, reason: str) -> None:
        """Let the run rest, longer each time; after the last strike it is held back until somebody requeues it."""
        self._change(_STRIKE, run=run, reason=reason[:1000])

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
