"""Claims: which runs a worker may execute now, and releasing them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from holdfast import clock
from holdfast.engine.owner import has_owner
from holdfast.journal.journal import deadlines_of
from holdfast.stores.base import RunInfo, Store
from holdfast.values import RunStatus

MAX_STRIKES = 3
"""The claims without progress after which a run is held."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The runs that a worker claims: of these queues (empty: of all) and workflows (`None`: of all)."""

    queues: tuple[str, ...] = ()
    workflows: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Claim:
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

        `active` are the runs that this worker executes: one of its own that is not among them was dropped.
        """
        ...

    def release(self, run: str, seconds: float = 0.0) -> None:
        """Let others claim a run, after `seconds`. Called for every claim once its execution is over."""
        ...

    def strike(self, run: str, reason: str) -> None:
        """Count a run that could not be executed. After some strikes it is held until somebody requeues it."""
        ...

    def avoid(self, workflow: str) -> None:
        """Leave the runs of a workflow to others from now on."""
        ...

    def leave(self, run: str) -> None:
        """Leave a run that this worker cannot execute to others for a while, longer each time."""
        ...

    def count_waiting(self, within: float) -> int:
        """Return how many runs are running, queued, or due within so many seconds."""
        ...

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, from any thread, when something may be claimable; return what ends that."""
        ...


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
        self._workflows: set[str] = set()
        self._until: dict[str, float] = {}
        self._length: dict[str, float] = {}

    @property
    def workflows(self) -> list[str]:
        """Return the workflows whose runs are skipped."""
        with self._lock:
            return list(self._workflows)

    def runs(self, within: float = 0.0) -> list[str]:
        """Return the runs that are skipped now, and still will be in so many seconds."""
        soon = clock.monotonic() + within
        with self._lock:
            return [run for run, until in self._until.items() if until > soon]

    def avoid(self, workflow: str) -> None:
        """Leave the runs of a workflow to others."""
        with self._lock:
            self._workflows.add(workflow)

    def leave(self, run: str) -> None:
        """Leave a run to others, longer each time."""
        with self._lock:
            if len(self._length) >= _KEPT and run not in self._length:
                self._until.clear()
                self._length.clear()
            length = self._length[run] = min(LONGEST, 2 * self._length.get(run, FIRST / 2))
            self._until[run] = clock.monotonic() + length


_CLAIMABLE = (RunStatus.QUEUED.value, RunStatus.PAUSED.value, RunStatus.RUNNING.value)


class LocalClaims:
    """Claims of a few workers on one machine, in a store without claims: the first to execute a run has it."""

    def __init__(self, store: Store, wanted: Wanted) -> None:
        self._store, self._wanted = store, wanted
        self._lock = threading.Lock()
        self._not_before: dict[str, float] = {}
        """The monotonic times until which this worker leaves runs alone."""
        self._deadlines = deadlines_of(store)
        self._strikes: dict[str, int] = {}
        self._skipped = SkipList()

    def claim(self, limit: int, active: Collection[str]) -> list[Claim]:
        """Return the most urgent runs that this worker may execute."""
        with self._lock:
            now = clock.monotonic()
            resting = [run for run, until in self._not_before.items() if until > now]
        passed = {*active, *self._skipped.runs(), *resting}
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

    def avoid(self, workflow: str) -> None:
        """Leave the runs of a workflow alone."""
        self._skipped.avoid(workflow)

    def leave(self, run: str) -> None:
        """Leave a run alone for a while."""
        self._skipped.leave(run)

    def count_waiting(self, within: float) -> int:
        """Return how many wanted runs are running, queued, or due soon."""
        with self._lock:
            held = {run for run, until in self._not_before.items() if until == math.inf}
        left = {*self._skipped.runs(within), *held}
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
        return info.workflow not in self._skipped.workflows and (
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
