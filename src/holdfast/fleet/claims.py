"""Which runs a worker may take up now, and telling others what became of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

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
