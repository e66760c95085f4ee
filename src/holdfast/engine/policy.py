"""Policies: what is saved when, what happens on failure, and how long things are kept."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from holdfast.errors import HoldfastError

DURABILITY = ("full", "process", "exit")
ON_FAILURE = ("pause", "continue", "rollback")
ON_SAVE_ERROR = ("fail", "continue")
PRESERVE = ("last", "all", "none")
ON_CHANGE = ("warn", "fail", "use_saved")


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is not among the allowed."""
    if value not in allowed:
        raise HoldfastError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When a run is saved, and what a failure means.

    - `interval`: 1 saves every wave, n every n-th, 0 none; pauses and failures are always saved.
    - `on_failure`: "pause" stops so that the run can be resumed; "continue" goes on without the failed
      step's update; "rollback" deletes the run.
    - `on_save_error`: "fail" stops the run; "continue" goes on, tells `checkpoint.fail`, and saves what
      it owes with the next checkpoint; only that a resume took the run up has to be saved either way.
    - `preserve`: what a completed run leaves. "last" leaves it to retention, which always keeps the last
      successful run; "all" is never pruned; "none" deletes the run when it completes.
    - `durability`: "full" survives a power loss, "process" survives kill -9, "exit" saves only at a pause,
      a failure or the end.
    """

    interval: int = 1
    on_failure: str = "pause"
    on_save_error: str = "fail"
    preserve: str = "last"
    durability: str = "full"

    def __post_init__(self) -> None:
        if not isinstance(self.interval, int) or self.interval < 0:
            raise HoldfastError(f"interval must be 0 (off), 1 (every wave) or more, not {self.interval!r}")
        one_of("on_failure", self.on_failure, ON_FAILURE)
        one_of("on_save_error", self.on_save_error, ON_SAVE_ERROR)
        one_of("preserve", self.preserve, PRESERVE)
        one_of("durability", self.durability, DURABILITY)

    def saves_wave(self, wave: int) -> bool:
        """Whether the run is saved after its `wave`-th wave."""
        return self.durability != "exit" and self.interval > 0 and wave % self.interval == 0


@dataclass(frozen=True, slots=True)
class Retention:
    """How long runs and their checkpoints are kept. `None` means without limit.

    - `max_age`: a run untouched for longer is deleted.
    - `max_checkpoints`: how many checkpoints are kept, oldest dropped first, `per` "workflow" or "run".
      The newest checkpoint of a run that can still be resumed is never dropped by count.
    - `keep_successful`: the last successful run of a workflow outlives both.
    - `pause_ttl`: a pause unanswered for longer takes no answer any more.
    """

    max_age: dt.timedelta | None = dt.timedelta(days=7)
    max_checkpoints: int | None = None
    keep_successful: bool = True
    pause_ttl: dt.timedelta | None = dt.timedelta(hours=24)
    per: str = "workflow"

    def __post_init__(self) -> None:
        if self.max_checkpoints is not None and self.max_checkpoints < 1:
            raise HoldfastError(f"max_checkpoints must be at least 1 or None, not {self.max_checkpoints!r}")
        one_of("per", self.per, ("workflow", "run"))
        for name in ("max_age", "pause_ttl"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, dt.timedelta) and value > dt.timedelta(0)):
                raise HoldfastError(f"{name} must be a timedelta of more than zero, or None, not {value!r}")

    @classmethod
    def recent(cls, count: int = 5) -> Retention:
        """Keep the `count` newest checkpoints of each workflow."""
        return cls(max_checkpoints=count)

    @classmethod
    def latest_only(cls) -> Retention:
        """Keep one checkpoint a run: each save replaces the one before."""
        return cls(max_checkpoints=1, per="run")
