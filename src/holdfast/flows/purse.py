"""The money that a run's agents may spend, over all its resumes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.engine.driving.context import Context
from holdfast.flows.errors import BudgetExceeded
from holdfast.flows.model import Limits
from holdfast.views.state_ledger import COUNTED

logger = logging.getLogger("holdfast")


def _nothing(run_id: str) -> float:
    return 0.0


@dataclass
class Purse:
    """How much the runs of a workflow may spend. What they have spent is in their journals."""

    budget: float | None = None
    enforced: bool = True
    look: Callable[[str], float] = _nothing
    """Finds what a run has spent by the lines that the first versions kept in its state."""
    _new: set[str] = field(default_factory=set)
    """Runs that have no such lines."""
    _told: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, limits: Limits) -> Purse:
        return cls(limits.budget, limits.budget_mode == "enforce")

    def spent(self, ctx: Context) -> float:
        """US dollars that are known to be spent."""
        with self._lock:
            if ctx.run_id in self._new:
                return ctx.spent
            earlier = self.look(ctx.run_id)
            if not earlier:
                self._new.add(ctx.run_id)
            return earlier + ctx.spent

    def refuse_if_empty(self, ctx: Context) -> None:
        """Raise `BudgetExceeded` if no more may be spent, or tell, once, that it would be too much."""
        if self.budget is None or (spent := self.spent(ctx)) < self.budget:
            return
        told = f"the agents of this run have spent ${spent:.4f} of a budget of ${self.budget:.4f}"
        if self.enforced:
            raise BudgetExceeded(f"{told}; raise limits.budget in the workflow file, then resume")
        if ctx.run_id not in self._told:
            self._told.add(ctx.run_id)
            logger.warning("run %s: %s; going on, as limits.budget_mode is audit", ctx.run_id, told)


def count_earlier_lines(ctx: Context) -> None:
    """Bring what the first versions let a step remember of its spending into the journal's ledger, once."""
    for name in ("reply", *(f"spent:{attempt}" for attempt in range(1, ctx.attempt + 1))):
        found = ctx.recall(name)
        line = found.get("entry", found if "id" in found else None) if isinstance(found, Mapping) else None
        if line is not None:
            ctx.once(f"{COUNTED}{name}", _count, ctx, line)


def _count(ctx: Context, line: Mapping[str, Any]) -> None:
    tokens = {name: int(line.get(name) or 0) for name in ("input_tokens", "output_tokens")}
    ctx.spend(str(line.get("model", "")), **tokens, cost=line.get("cost"))
