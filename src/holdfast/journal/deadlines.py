"""Durable deadlines as a process that lives on waits for them: by wall time, bounded by the monotonic clock."""

from __future__ import annotations

import weakref
from typing import Any

from holdfast import clock
from holdfast.stores.base import Store

_RUNS_KEPT, _DEADLINES_KEPT = 10_000, 1000
"""Of how many runs deadlines are remembered, and how many of each."""


class Deadlines:
    """The deadlines of runs that this process has looked at. May be used from any thread.

    A deadline is wall time, for any process to read. A wait for one ends when the wall clock has come to it, or when
    as much time has passed by the monotonic clock as was left when this process first looked at it, whichever is
    first: a wall clock that is set back does not prolong a wait.
    """

    def __init__(self) -> None:
        self._ends: dict[str, dict[float, float]] = {}

    def after(self, run: str, seconds: float) -> float:
        """Return the deadline that is so many seconds away, which this process waits for from now on."""
        deadline = clock.time() + seconds
        self.left(run, deadline)
        return deadline

    def left(self, run: str, deadline: float) -> float:
        """Return how many seconds a deadline of a run is away; 0 or less if it has passed."""
        by_wall, ticks = deadline - clock.time(), clock.monotonic()
        ends = self._ends.setdefault(run, {})
        end = ends.setdefault(deadline, ticks + by_wall)
        _drop_oldest(ends, _DEADLINES_KEPT)
        _drop_oldest(self._ends, _RUNS_KEPT)
        return min(by_wall, end - ticks)

    def has_passed(self, run: str, deadline: float) -> bool:
        """Return True if a wait for a deadline of a run is over."""
        return self.left(run, deadline) <= 0

    def forget(self, run: str) -> None:
        """Forget the deadlines of a run that waits for none of them any more."""
        self._ends.pop(run, None)


def _drop_oldest(remembered: dict[Any, Any], most: int) -> None:
    if len(remembered) > most:
        for oldest in list(remembered)[: -most * 9 // 10]:
            remembered.pop(oldest, None)


_of_stores: weakref.WeakKeyDictionary[Store, Deadlines] = weakref.WeakKeyDictionary()


def deadlines_of(store: Store) -> Deadlines:
    """Return the deadlines of a store's runs, shared by all in this process that wait for them."""
    return _of_stores.setdefault(store, Deadlines())
