"""Reports of integrity checks and repairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from holdfast.errors import HoldfastError, problem_of
from holdfast.journal.checkpoint_ids import Checkpoint
from holdfast.views.plain import View, iso


class Part(StrEnum):
    """The parts of a run that can be damaged."""

    JOURNAL = "journal"
    SNAPSHOT = "snapshot"
    CHECKPOINT = "checkpoint"
    FACTS = "facts"
    INBOX = "inbox"
    STORE = "store"


UNREADABLE = "nothing of it can be read; restore it from a backup, or delete it"

Progress = Callable[[int, int, str], None]
"""Is called with how many runs were checked, of how many, and which is next."""


@dataclass(frozen=True, slots=True)
class Damage(View):
    """One thing that is not as it was written. `seq` is the entry, or the number of the message."""

    part: str
    text: str
    seq: int | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Stretch(View):
    """Entries that follow from each other: those after `start`, which a snapshot replaces if it is above 0."""

    JSON = "after=start to=end"

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RunReport(View):
    """One run: what is damaged, what is intact, and the remedy.

    `intact` is the stretch of its journal that reaches furthest, `None` if nothing can be read. `last_good` is the
    newest checkpoint in it. A run that is `sealed` was checked without its key: its chain, not its content.
    """

    JSON = (
        "run_id=run workflow status fine=is_fine damages entries checkpoints snapshots messages sealed intact "
        "last_good_checkpoint repaired_as remedy"
    )

    run: str
    workflow: str
    status: str
    damages: tuple[Damage, ...] = ()
    entries: int = 0
    head: int = 0
    checkpoints: int = 0
    snapshots: int = 0
    messages: int = 0
    intact: Stretch | None = None
    last_good: Checkpoint | None = None
    sealed: bool = False
    repaired_as: str | None = None

    @property
    def is_fine(self) -> bool:
        return not self.damages

    @property
    def is_unreadable(self) -> bool:
        """Return whether nothing of the journal can be read."""
        return self.needs_new_run and self.intact is None

    @property
    def needs_new_run(self) -> bool:
        """Return whether only a new run can have what is intact: a part of the journal is lost, or out of reach."""
        return any(damage.part in (Part.JOURNAL, Part.STORE) for damage in self.damages)

    @property
    def is_repairable(self) -> bool:
        """Return whether a repair would do something about the damage."""
        return not (self.is_fine or self.repaired_as) and not self.is_unreadable

    @property
    def remedy(self) -> str | None:
        """Return what can be done about the damage."""
        if self.is_fine:
            return None
        if self.repaired_as:
            return f"run {self.repaired_as!r} has what could be read of it; delete this one when you miss nothing"
        if not self.needs_new_run:
            return "nothing of the run is lost: a repair restores it"
        if self.intact is None:
            return UNREADABLE
        kept = "all of it" if self.intact.end >= self.head else f"what it had up to entry {self.intact.end}"
        return f"a repair writes a new run with {kept}"

    @property
    def last_good_checkpoint(self) -> dict[str, Any] | None:
        """Return the newest intact checkpoint as JSON has it."""
        good = self.last_good
        if good is None:
            return None
        found = {"checkpoint_id": good.id, "seq": good.seq, "wave": good.wave, "nodes": list(good.nodes)}
        return {**found, "at": iso(good.created_at)}


@dataclass(frozen=True, slots=True)
class StoreReport(View):
    """A whole store: its medium, and every run that was checked. `leftovers` are no damage."""

    JSON = "store fine=is_fine medium leftovers runs"

    store: str
    runs: tuple[RunReport, ...] = ()
    medium: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()

    @property
    def damaged(self) -> tuple[RunReport, ...]:
        """Return the runs that need a repair."""
        return tuple(run for run in self.runs if not run.is_fine and not run.repaired_as)

    @property
    def repaired(self) -> tuple[RunReport, ...]:
        """Return the runs that stay damaged and whose intact part is in another run."""
        return tuple(run for run in self.runs if not run.is_fine and run.repaired_as)

    @property
    def problems(self) -> tuple[str, ...]:
        """Return all damage that is not repaired yet."""
        of_runs = (f"run {run.run!r}: {damage}" for run in self.damaged for damage in run.damages)
        return (*self.medium, *of_runs)

    @property
    def is_fine(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class Repair(View):
    """What was done about one run, in sentences. `new_run` has what was intact, if its journal was damaged.

    `error` is why it is not repaired, and `refused` its text.
    """

    JSON = "run_id=run new_run_id=new_run done refused"

    run: str
    done: tuple[str, ...] = ()
    new_run: str | None = None
    error: HoldfastError | None = None

    @property
    def refused(self) -> str | None:
        return None if self.error is None else problem_of(self.error)


@dataclass(frozen=True, slots=True)
class StoreRepair(View):
    """What was done about a store: about its medium, and about each damaged run."""

    medium: tuple[str, ...] = ()
    runs: tuple[Repair, ...] = ()
    aside: tuple[str, ...] = ()
    """The files that hold what was replaced."""

    @property
    def did_nothing(self) -> bool:
        return not self.medium and not any(run.done for run in self.runs)
