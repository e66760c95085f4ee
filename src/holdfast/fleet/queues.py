"""How the queues of a store stand: what waits in them, what is driven, what is held back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast import clock
from holdfast.fleet.postgres_claims import Limit, Limits, is_postgres
from holdfast.stores.base import RunInfo, Store
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PostgresStore

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
class QueueLine:
    """One queue. `due` runs could be taken up now; `oldest` is for how many seconds the first of them could."""

    queue: str
    queued: int = 0
    due: int = 0
    running: int = 0
    paused: int = 0
    held: int = 0
    oldest: float | None = None
    limit: Limit | None = None

    def as_json(self) -> dict[str, Any]:
        """Keys: queue, queued, due, running, paused, held, oldest_seconds, max_running, rate, is_paused."""
        limit = self.limit or Limit(self.queue)
        names = ("queue", "queued", "due", "running", "paused", "held")
        return {
            **{name: getattr(self, name) for name in names},
            "oldest_seconds": None if self.oldest is None else round(self.oldest, 3),
            "max_running": limit.max_running,
            "rate": None if limit.rate is None else limit.rate._asdict(),
            "is_paused": limit.paused,
        }


def queue_lines(store: Store) -> list[QueueLine]:
    """Every queue that has runs which are not over, or limits, by name."""
    if not is_postgres(store):
        return sorted(_counted(store), key=lambda line: line.queue)
    found = {line.queue: line for line in _counted_by_server(store)}
    for limit in Limits(store).lines():
        found[limit.queue] = replace(found.get(limit.queue, QueueLine(limit.queue)), limit=limit)
    return [found[name] for name in sorted(found)]


def held_back(store: Store, run: str) -> str | None:
    """Why workers leave a run alone, if they do: it was taken up several times and nothing came of it."""
    if not is_postgres(store):
        return None
    with store.transaction() as connection:
        row = connection.execute(
            "SELECT held FROM run WHERE namespace = %s AND run = %s", (store.namespace, run)
        ).fetchone()
    return None if row is None else row[0]


def _counted_by_server(store: PostgresStore) -> Iterator[QueueLine]:
    with store.transaction() as connection:
        rows = connection.execute(_COUNT.encode(), (store.namespace,)).fetchall()
    for queue, queued, due, running, paused, held, oldest in rows:
        yield QueueLine(
            queue, queued, due, running, paused, held, None if oldest is None else max(0.0, float(oldest))
        )


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
