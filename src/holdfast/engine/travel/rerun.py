"""What becomes of the steps of a run of which a part runs again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.journal.run_state import (
    DONE,
    RunState,
    node_of,
    renamed_path,
)
from holdfast.stores.base import RunInfo

KEPT, RERUN, UNDONE = "kept", "rerun", "undone"


@dataclass(frozen=True, slots=True)
class RerunStep:
    """A finished step, and what becomes of it: it is kept, or runs again; or it is undone, for the run only came to it
    because somebody had it do so later. `seconds` and `cost` are what it took."""

    step: str
    node: str
    what: str
    reason: str
    seconds: float = 0.0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Rerun:
    """A part of a run that is to run again, from where run `base` stood at its entry `seq`.

    Without a `seq` the run need not be taken back; but if it was before, and has not come to all that was to be kept
    then, some of that may have to run again now. 0 is how the run began, before its first entry was whole.
    """

    run_id: str
    seq: int | None
    base: RunInfo
    nodes: dict[str, str]
    """Every affected node, with the reason."""
    steps: tuple[RerunStep, ...] = ()
    """The steps that were finished after that entry."""
    again: tuple[str, ...] = ()
    """The nodes, and the single steps, that are not kept if the run comes to them again."""
    step: str = ""
    """The step to begin with, if it is a single one."""
    source: RunInfo | None = None
    upto: int = 0
    remap: tuple[tuple[str, str], ...] = ()
    needs: tuple[tuple[bytes, int], ...] = ()
    """By run, the entry after which its journal holds what is kept."""

    def of(self, what: str) -> tuple[RerunStep, ...]:
        """The steps that are kept, or that run again."""
        return tuple(step for step in self.steps if step.what == what)

    @property
    def seconds_saved(self) -> float:
        """The time that the kept steps took."""
        return sum(step.seconds for step in self.of(KEPT))

    @property
    def cost_saved(self) -> float:
        """US dollars that the kept steps cost."""
        return sum(step.cost for step in self.of(KEPT))

    def forgotten(self, run: RunState) -> tuple[str, ...]:
        """Of the steps of a run that are under way those that are to run as if for the first time."""
        remap = dict(self.remap)
        noted = [step.id for step in run.active() if step.notes and step.status != DONE]
        return tuple(name for name in noted if self._begins_anew(renamed_path(name, remap)))

    def _begins_anew(self, step: str) -> bool:
        node = node_of(self.step) if self.step else ""
        path = ""
        for part in step.split("/"):
            path = f"{path}/{part}" if path else part
            if node_of(path) == node:
                return path == self.step
        return step in self.again or node_of(step) in self.nodes

    def as_json(self) -> dict[str, Any]:
        """Keys: run_id, base, seq, nodes, steps, seconds_saved, cost_saved."""
        names = RerunStep.__slots__
        return {
            "run_id": self.run_id,
            "base": self.base.run,
            "seq": self.seq,
            "nodes": dict(self.nodes),
            "steps": [{name: getattr(step, name) for name in names} for step in self.steps],
            "seconds_saved": self.seconds_saved,
            "cost_saved": self.cost_saved,
        }
