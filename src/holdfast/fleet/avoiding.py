"""What a worker leaves to others because it cannot drive it: workflows for good, single runs for a while."""

from __future__ import annotations

import threading

from holdfast import clock

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
