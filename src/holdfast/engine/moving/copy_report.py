"""What became of the runs that were copied from one store to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class CopyOutcome(StrEnum):
    """What became of one run. The last four are problems, and then the run stays as it was."""

    COPIED = "copied"
    UPDATED = "updated"
    MOVED = "moved"
    UNCHANGED = "unchanged"
    DIFFERENT = "different"
    DAMAGED = "damaged"
    DRIVEN = "driven"
    REFUSED = "refused"


_PROBLEMS = frozenset((CopyOutcome.DIFFERENT, CopyOutcome.DAMAGED, CopyOutcome.DRIVEN, CopyOutcome.REFUSED))


@dataclass(frozen=True, slots=True)
class CopiedRun:
    """What became of one run: so many entries and bytes were added. `note` says what people should know."""

    run: str
    workflow: str
    outcome: CopyOutcome
    entries: int = 0
    size: int = 0
    note: str = ""

    @property
    def is_problem(self) -> bool:
        """Whether the run was left out."""
        return self.outcome in _PROBLEMS


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What became of every run. `stopped` says that not all were looked at."""

    runs: tuple[CopiedRun, ...]
    stopped: bool = False

    @property
    def problems(self) -> tuple[CopiedRun, ...]:
        """The runs that were left out, each with the reason as its `note`."""
        return tuple(run for run in self.runs if run.is_problem)

    def count(self, outcome: CopyOutcome) -> int:
        """How many runs this became of."""
        return sum(run.outcome == outcome for run in self.runs)


Progress = Callable[[CopiedRun, int, int], object]
"""Is told of every run, how many are done, and how many there are."""
