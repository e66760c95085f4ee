"""What a check of a store found: as data, and as JSON carries it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.journal.checkpoint_ids import Checkpoint

JOURNAL, SNAPSHOT, MARK, FACTS, INBOX, STORE = "journal", "snapshot", "mark", "facts", "inbox", "store"
"""What damage is of."""

NOTHING = "-"
"""What a damaged run was repaired as of which nothing can be read."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is not as it was written. `seq` is the entry, or the number of the message."""

    part: str
    text: str
    seq: int | None = None

    def __str__(self) -> str:
        return self.text

    def as_json(self) -> dict[str, Any]:
        """Keys: part, seq, text."""
        return {"part": self.part, "seq": self.seq, "text": self.text}


@dataclass(frozen=True, slots=True)
class Stretch:
    """Entries that follow from each other: those after `start`, which a snapshot stands for if it is above 0."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run: what is damaged, what is intact, and the way out.

    `intact` is the stretch of its journal that reaches furthest, `None` if nothing can be read. `last_good` is the
    newest checkpoint in it. A run that is `sealed` was checked without its key: its chain, not what it says.
    """

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
    repaired_as: str = ""

    @property
    def is_fine(self) -> bool:
        return not self.damages

    @property
    def needs_new_run(self) -> bool:
        """Whether only a new run can have what is intact: of its journal something is lost, or cannot be reached."""
        return any(damage.part in (JOURNAL, STORE) for damage in self.damages)

    @property
    def is_repairable(self) -> bool:
        """Whether a repair would do something about the damage."""
        return not (self.is_fine or self.repaired_as) and (not self.needs_new_run or self.intact is not None)

    @property
    def way_out(self) -> str:
        """What can be done about it."""
        if self.is_fine:
            return ""
        if self.repaired_as == NOTHING:
            return "nothing of it can be read; restore a backup, or delete it"
        if self.repaired_as:
            return f"run {self.repaired_as!r} has what could be read of it; delete this one when you miss nothing"
        if not self.needs_new_run:
            return "nothing of the run is lost: a repair rights it"
        if self.intact is None:
            return "nothing of it can be read; restore a backup"
        lost = "all of it" if self.intact.end >= self.head else f"what it had up to entry {self.intact.end}"
        return f"a repair writes a new run with {lost}"

    def as_json(self) -> dict[str, Any]:
        """Keys: run_id, workflow, status, fine, damages, entries, checkpoints, snapshots, messages, sealed, intact,
        last_good_checkpoint, repaired_as, way_out."""
        good, intact = self.last_good, self.intact
        return {
            "run_id": self.run,
            "workflow": self.workflow,
            "status": self.status,
            "fine": self.is_fine,
            "damages": [damage.as_json() for damage in self.damages],
            "entries": self.entries,
            "checkpoints": self.checkpoints,
            "snapshots": self.snapshots,
            "messages": self.messages,
            "sealed": self.sealed,
            "intact": None if intact is None else {"after": intact.start, "to": intact.end},
            "last_good_checkpoint": None if good is None else _checkpoint(good),
            "repaired_as": self.repaired_as or None,
            "way_out": self.way_out or None,
        }


def _checkpoint(found: Checkpoint) -> dict[str, Any]:
    at = found.created_at.isoformat(timespec="milliseconds")
    return {
        "checkpoint_id": found.id,
        "seq": found.seq,
        "wave": found.wave,
        "nodes": list(found.nodes),
        "at": at,
    }


@dataclass(frozen=True, slots=True)
class StoreReport:
    """A whole store: its medium, and every run that was looked at. `leftovers` are no damage."""

    store: str
    runs: tuple[RunReport, ...] = ()
    medium: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()

    @property
    def damaged(self) -> tuple[RunReport, ...]:
        """The runs that need something done."""
        return tuple(run for run in self.runs if not run.is_fine and not run.repaired_as)

    @property
    def problems(self) -> tuple[str, ...]:
        """Every damage that nothing was done about yet."""
        return (
            *self.medium,
            *(f"run {run.run!r}: {damage}" for run in self.damaged for damage in run.damages),
        )

    @property
    def is_fine(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """Keys: store, fine, medium, leftovers, runs."""
        runs = [run.as_json() for run in self.runs]
        medium = {"medium": list(self.medium), "leftovers": list(self.leftovers)}
        return {"store": self.store, "fine": self.is_fine, **medium, "runs": runs}


Progress = Callable[[int, int, str], None]
"""Is told how many runs were looked at, of how many, and which is next."""
