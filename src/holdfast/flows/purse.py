"""The money that a run's agents may spend, over all its resumes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.data.codec import Codec
from holdfast.flows.errors import BudgetExceeded
from holdfast.flows.model import Limits
from holdfast.journal.run_state import RunState

logger = logging.getLogger("holdfast")

Entry = Mapping[str, Any]
"""A line of the ledger: `id` (of one attempt), `step`, `model`, `input_tokens`, `output_tokens`, `cost`."""


def _nothing(run_id: str) -> Iterable[Entry]:
    return ()


@dataclass
class Purse:
    """What was spent, by run and by the attempt that spent it, and how much may be."""

    budget: float | None = None
    enforced: bool = True
    look: Callable[[str], Iterable[Entry]] = _nothing
    """Finds what a run has spent before this process took it up."""
    _spent: dict[str, dict[str, float]] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def of(cls, limits: Limits) -> Purse:
        return cls(limits.budget, limits.budget_mode == "enforce")

    def note(self, run_id: str, entries: Iterable[Entry]) -> None:
        """Take note of what was spent; what is known already counts once."""
        if self.budget is None:
            return
        with self._lock:
            if run_id not in self._spent:
                self._spent[run_id] = {}
                self.note(run_id, self.look(run_id))
            for entry in entries:
                self._spent[run_id][str(entry.get("id"))] = entry.get("cost") or 0.0

    def spent(self, run_id: str) -> float:
        """US dollars that are known to be spent."""
        with self._lock:
            return sum(self._spent.get(run_id, {}).values())

    def refuse_if_empty(self, run_id: str) -> None:
        """Raise `BudgetExceeded` if no more may be spent, or tell, once, that it would be too much."""
        spent = self.spent(run_id)
        if self.budget is None or spent < self.budget:
            return
        told = f"the agents of this run have spent ${spent:.4f} of a budget of ${self.budget:.4f}"
        if self.enforced:
            raise BudgetExceeded(f"{told}; raise limits.budget in the workflow file, then resume")
        if run_id not in self._told:
            self._told.add(run_id)
            logger.warning("run %s: %s; going on, as limits.budget_mode is audit", run_id, told)


def entries_of(run: RunState, codec: Codec) -> Iterable[Entry]:
    """Everything that a run has spent by its journal: also in steps, and waves of steps, that are not over."""
    for frame in run.frames.values():
        if "ledger" in frame.cells:
            yield from frame.cells["ledger"].get() or ()
    for step in run.active():
        for op in step.ops:
            if op.key == "ledger":
                yield from op.value
        for key, raw in step.notes.items():
            if key == "once:reply":
                yield codec.decode(raw)["entry"]
            elif key.startswith("once:spent:"):
                yield codec.decode(raw)
