"""What the steps of a workflow are executed with, beside the state: files, secrets, money, manners."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.flows.errors import BudgetExceeded
from holdfast.flows.model import Limits
from holdfast.flows.secrets import Scrubber, Secrets


@dataclass
class Purse:
    """The money that a run's agents may spend, over all its resumes."""

    budget: float | None = None
    enforced: bool = True
    _spent_here: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, limits: Limits) -> Purse:
        return cls(limits.budget, limits.budget_mode == "enforce")

    def spent(self, ledger: Iterable[Mapping[str, Any]], step: str, own: float) -> float:
        """US dollars spent: what the ledger says, what steps still under way spent here, and `own`."""
        told = {str(entry.get("id")) for entry in ledger}
        with self._lock:
            under_way = sum(cost for key, cost in self._spent_here.items() if key not in told and key != step)
        return sum(entry.get("cost") or 0.0 for entry in ledger) + under_way + own

    def note(self, step: str, cost: float) -> None:
        """Remember what a step under way has spent so far."""
        with self._lock:
            self._spent_here[step] = cost

    def refuse_if_empty(self, spent: float) -> None:
        """Raise `BudgetExceeded` if no more may be spent."""
        if self.budget is not None and self.enforced and spent >= self.budget:
            raise BudgetExceeded(
                f"the agents of this run have spent ${spent:.4f} of a budget of ${self.budget:.4f}; "
                "raise limits.budget in the workflow file, then resume"
            )


@dataclass
class World:
    """One loaded workflow's surroundings, shared with its sub-workflows."""

    base: Path
    """The folder of the workflow file: relative paths and modules are looked for there."""
    env: Mapping[str, str]
    secrets: Secrets
    scrubber: Scrubber
    purse: Purse
    skip_gates: bool = False
    interactive: bool = False
    """Whether somebody can be asked what to do with an interrupted step that may not simply be repeated."""
