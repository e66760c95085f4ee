"""Metrics in the text format of Prometheus: runs, steps, queues, costs, and how long commits take."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast import clock
from holdfast.engine.owner import is_alive
from holdfast.errors import HoldfastError
from holdfast.events import Event
from holdfast.fleet.queues import queue_lines
from holdfast.journal.journal import Journal
from holdfast.stores.base import Append, Conflict, RunInfo, Store, count_runs
from holdfast.values import RunStatus
from holdfast.views.runs import run_pauses

if TYPE_CHECKING:
    from holdfast.service.reading import Reader

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""The upper bounds, in seconds, of the histogram of commits."""

MOST_RUNNING = 1_000
"""How many runs that count as running are looked at for dead owners."""


MOST_PAUSED = 1_000
"""How many paused runs are read for their oldest pause; of more, that of the oldest update stands in."""


class OldestPause:
    """Since when the oldest open pause of a store waits; only runs that have changed are read again."""

    def __init__(self, journal: Journal) -> None:
        self._journal, self._lock = journal, threading.Lock()
        self._known: dict[bytes, tuple[float, float]] = {}

    def since(self) -> float | None:
        """Return the time from which on it waits, or `None` if no run is paused."""
        infos = self._journal.store.runs(status=[RunStatus.PAUSED], limit=MOST_PAUSED + 1)
        if len(infos) > MOST_PAUSED:
            return count_runs(self._journal.store)[RunStatus.PAUSED].oldest
        with self._lock:
            known, self._known = self._known, {}
            for info in infos:
                at = known.get(info.key)
                is_same = at is not None and at[0] == info.updated_at
                self._known[info.key] = at if at and is_same else (info.updated_at, self._read(info))
            return min((since for _, since in self._known.values()), default=None)

    def _read(self, info: RunInfo) -> float:
        """Return since when a run waits: for its oldest pause, or for what nothing is known of."""
        try:
            pauses = run_pauses(self._journal, info)
        except HoldfastError:
            return info.updated_at
        return min((pause.since.timestamp() for pause in pauses), default=info.updated_at)


class Meter:
    """Counters of what this process executed; an observer of its worker. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._cost = 0.0
        self._commits = [0] * (len(BUCKETS) + 1)
        self._commit_seconds = 0.0

    def __call__(self, event: Event) -> None:
        """Count an event."""
        with self._lock:
            self._counts[event.type] += 1
            if event.type == "node.spend":
                cost = event.data.get("cost")
                self._cost += cost if isinstance(cost, (int, float)) else 0.0

    def time_commits(self, store: Store) -> None:
        """Measure how long the commits of this store take from now on."""
        commit = store.commit

        def timed(appends: Sequence[Append]) -> list[Conflict | None]:
            begun = clock.perf_counter()
            try:
                return commit(appends)
            finally:
                self._committed(clock.perf_counter() - begun)

        store.commit = timed  # type: ignore[method-assign]

    def _committed(self, seconds: float) -> None:
        place = next((place for place, bound in enumerate(BUCKETS) if seconds <= bound), len(BUCKETS))
        with self._lock:
            self._commits[place] += 1
            self._commit_seconds += seconds

    def lines(self) -> Iterator[str]:
        """Yield the counters as lines."""
        with self._lock:
            counts, cost = Counter(self._counts), self._cost
            commits, seconds = list(self._commits), self._commit_seconds
        yield from _counter("holdfast_steps_total", "Steps that ended here.", counts["node.complete"])
        yield from _counter("holdfast_step_retries_total", "Attempts repeated here.", counts["node.retry"])
        yield from _counter(
            "holdfast_step_failures_total", "Attempts that failed here.", counts["node.error"]
        )
        yield from _counter("holdfast_run_failures_total", "Runs that failed here.", counts["graph.fail"])
        yield from _counter("holdfast_save_failures_total", "Saves that failed.", counts["checkpoint.fail"])
        yield from _counter("holdfast_cost_dollars_total", "US dollars spent here.", cost)
        name = "holdfast_commit_seconds"
        yield from _head(name, "How long commits to the store took.", "histogram")
        total = 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), commits, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {seconds:.6f}"
        yield f"{name}_count {total}"


def metrics(reader: Reader, meter: Meter) -> str:
    """Return the metrics of a store and of this process."""
    return "\n".join([*_of_store(reader), *meter.lines()]) + "\n"


def _of_store(reader: Reader) -> Iterator[str]:
    counts, store = reader.status_counts(), reader.store
    runs = {str(status): counts[status].runs if status in counts else 0 for status in RunStatus}
    yield from _gauges("holdfast_runs", "Runs of the store by status.", "status", runs)
    since = reader.oldest_pause.since()
    age = 0.0 if since is None else max(0.0, clock.time() - since)
    yield from _gauge("holdfast_oldest_pause_seconds", "For how long the oldest open pause has waited.", age)
    lines = queue_lines(store)
    depth, due, held = (
        {line.queue: getattr(line, name) for line in lines} for name in ("queued", "due", "held")
    )
    yield from _gauges("holdfast_queue_depth", "Runs that wait in a queue.", "queue", depth)
    yield from _gauges("holdfast_queue_due", "Runs of a queue that could be executed now.", "queue", due)
    yield from _gauges("holdfast_queue_held", "Runs of a queue that made no progress.", "queue", held)
    running = store.runs(status=[RunStatus.RUNNING], limit=MOST_RUNNING)
    dead = sum(not is_alive(info.owner, store) for info in running)
    yield from _gauge("holdfast_lapsed_leases", "Runs that count as running and whose process is gone.", dead)


def _head(name: str, about: str, kind: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _counter(name: str, about: str, value: float) -> list[str]:
    return [*_head(name, about, "counter"), f"{name} {_number(value)}"]


def _gauge(name: str, about: str, value: float) -> list[str]:
    return [*_head(name, about, "gauge"), f"{name} {_number(value)}"]


def _gauges(name: str, about: str, label: str, values: Mapping[str, float]) -> list[str]:
    each = [f'{name}{{{label}="{_escaped(key)}"}} {_number(value)}' for key, value in values.items()]
    return [*_head(name, about, "gauge"), *each]


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
