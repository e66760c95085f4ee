"""Which runs a worker may take up now, and telling others what became of them."""

from __future__ import annotations

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
"""How often a run may be claimed without anything coming of it before it is held back."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a worker looks for: runs of these queues (none: of every queue) and workflows (none: of every one)."""

    queues: tuple[str, ...] = ()
    workflows: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that nobody else will take up for a while. `why` is queued, due or orphaned."""

    run: str
    workflow: str
    queue: str
    why: str


class Claims(Protocol):
    """How workers share the runs of a store. Every method may be called from any thread.

    A claim only keeps the workers out of each other's way; that no two drive a run is the journal's business.
    """

    def claim(self, limit: int, active: Collection[str]) -> list[Claim]:
        """Claim up to `limit` runs that are queued, whose time has come, or whose driver died.

        `active` are the runs that this worker drives: one of its own that is not among them was dropped.
        """
        ...

    def release(self, run: str, *, seconds: float = 0.0) -> None:
        """Let others claim a run, after `seconds`. Called for every claim once its drive is over."""
        ...

    def strike(self, run: str, reason: str) -> None:
        """Say that a run could not be taken up. After some strikes it is held back until somebody requeues it."""
        ...

    def avoid(self, workflow: str) -> None:
        """Leave the runs of a workflow to others from now on."""
        ...

    def leave(self, run: str) -> None:
        """Leave a run that this worker cannot drive to others for a while, longer each time."""
        ...

    def count_waiting(self, within: float) -> int:
        """How many runs are running, queued, or due within so many seconds."""
        ...

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, from any thread, when something may be claimable; answers what ends that."""
        ...


# What a worker leaves to others because it cannot drive it: workflows for good, single runs for a while.


FIRST = 60.0
"""For how many seconds a run is left to others at first; each further time for twice as long."""

LONGEST = 3600.0

_KEPT = 10_000


class Avoiding:
    """Remembers, in this process alone, what to leave to others. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workflows: set[str] = set()
        self._until: dict[str, float] = {}
        self._length: dict[str, float] = {}

    @property
    def workflows(self) -> list[str]:
        """The workflows whose runs are left to others."""
        with self._lock:
            return list(self._workflows)

    def runs(self, within: float = 0.0) -> list[str]:
        """The runs that are left to others now, and still will be in so many seconds."""
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


# Claiming runs of a store that knows no claims: whoever takes a run up first has it.


_CLAIMABLE = (RunStatus.QUEUED.value, RunStatus.PAUSED.value, RunStatus.RUNNING.value)


class LocalClaims:
    """For a few workers on one machine. Two that go for the same run find out when they take it up."""

    def __init__(self, store: Store, wanted: Wanted) -> None:
        self._store, self._wanted = store, wanted
        self._lock = threading.Lock()
        self._not_before: dict[str, float] = {}
        """Until when, by the monotonic clock, this worker leaves runs alone."""
        self._deadlines = deadlines_of(store)
        self._strikes: dict[str, int] = {}
        self._avoiding = Avoiding()

    def claim(self, limit: int, active: Collection[str]) -> list[Claim]:
        """The most urgent runs that this worker may take up."""
        passed = {*active, *self._avoiding.runs()}
        found = [
            (info, why)
            for info in self._store.runs(status=_CLAIMABLE)
            if info.run not in passed and self._is_wanted(info) and (why := self._why(info))
        ]
        found.sort(key=lambda item: (-item[0].priority, item[0].due_at or item[0].created_at))
        return [Claim(info.run, info.workflow, info.queue, why) for info, why in found[:limit]]

    def release(self, run: str, *, seconds: float = 0.0) -> None:
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
            self._not_before[run] = clock.monotonic() + (
                5.0**strikes if strikes < MAX_STRIKES else float("inf")
            )

    def avoid(self, workflow: str) -> None:
        """Leave the runs of a workflow alone."""
        self._avoiding.avoid(workflow)

    def leave(self, run: str) -> None:
        """Leave a run alone for a while."""
        self._avoiding.leave(run)

    def count_waiting(self, within: float) -> int:
        """How many wanted runs are running, queued, or due soon."""
        left = set(self._avoiding.runs(within))
        return sum(
            info.run not in left
            and self._is_wanted(info, within)
            and (info.status == RunStatus.RUNNING or self._is_due(info, within))
            for info in self._store.runs(status=_CLAIMABLE)
        )

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Nothing tells of changes here: the worker looks again and again."""
        return lambda: None

    def _is_wanted(self, info: RunInfo, within: float = 0.0) -> bool:
        queues, workflows = self._wanted.queues, self._wanted.workflows
        if not info.queue or (queues and info.queue not in queues):
            return False
        if info.workflow in self._avoiding.workflows or (
            workflows is not None and info.workflow not in workflows
        ):
            return False
        with self._lock:
            not_before = self._not_before.get(info.run)
            return not_before is None or not_before <= clock.monotonic() + within

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
