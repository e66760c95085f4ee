"""Amounts of what runs use up, and how they are added: calls, tokens, money, time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.journal.run_state import Spending
from holdfast.views.plain import when

BY = ("step", "model", "run", "workflow", "day")
"""What costs can be told apart by."""


NOTHING = Spending()


def as_json(spending: Spending) -> dict[str, Any]:
    """Keys: calls, input_tokens, output_tokens, cost, unpriced."""
    return {**spending._asdict(), "cost": rounded(spending.cost)}


def rounded(dollars: float) -> float:
    """Dollars without what adding them up left in the last digits."""
    return round(dollars, 12)


def total(*parts: Spending) -> Spending:
    """What several amounts add up to."""
    return Spending(*map(sum, zip(*parts, strict=True))) if parts else Spending()


class Portion(NamedTuple):
    """Finished steps with the time and the money that went into them."""

    steps: int = 0
    seconds: float = 0.0
    cost: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Keys: steps, seconds, cost."""
        return {"steps": self.steps, "seconds": round(self.seconds, 6), "cost": rounded(self.cost)}


@dataclass(frozen=True, slots=True)
class Charge:
    """Something that was used up: by which step of which run, when, and whether it was in vain.

    It is a call of a model, or the time of an attempt; then it has no model.
    """

    run: str
    workflow: str
    at: float
    """When it was recorded."""
    step: str
    """The step as people name it."""
    id: str
    """The step's id in its run."""
    model: str | None = None
    spent: Spending = NOTHING
    seconds: float = 0.0
    finished: int = 0
    """1 if this is the attempt that finished a step."""
    wasted: bool = False

    @property
    def day(self) -> str:
        """The day, in UTC, as `2026-01-31`."""
        return when(self.at).date().isoformat()


@dataclass(frozen=True, slots=True)
class Row:
    """What was used up by all that have a name in common; `wasted` is how much of it was in vain."""

    name: str
    steps: int
    seconds: float
    spent: Spending
    wasted: Spending
    wasted_seconds: float

    def as_json(self) -> dict[str, Any]:
        """Keys: name, steps, seconds, calls, input_tokens, output_tokens, cost, unpriced, wasted_cost,
        wasted_seconds."""
        return {
            "name": self.name,
            "steps": self.steps,
            "seconds": round(self.seconds, 6),
            **as_json(self.spent),
            "wasted_cost": rounded(self.wasted.cost),
            "wasted_seconds": round(self.wasted_seconds, 6),
        }


def rows(charges: Iterable[Charge], by: str, *, ids: bool = False) -> list[Row]:
    """Charges added up by one of `BY`, the dearest first; `ids` tells the steps of each run apart.

    By day they are in order. The time of steps belongs to no model, so it is left out there.
    """
    groups: dict[str, list[Charge]] = {}
    for charge in charges:
        if by != "model" or charge.model is not None:
            groups.setdefault(_name(charge, by, ids), []).append(charge)
    found = [row_of(name, group) for name, group in groups.items()]
    if by == "day":
        return sorted(found, key=lambda row: row.name)
    return sorted(found, key=lambda row: (-row.spent.cost, -row.seconds, row.name))


def _name(charge: Charge, by: str, ids: bool) -> str:
    if by == "model":
        return charge.model or ""
    return charge.id if ids and by == "step" else str(getattr(charge, by))


def row_of(name: str, charges: Iterable[Charge]) -> Row:
    """What charges add up to."""
    every = list(charges)
    in_vain = [charge for charge in every if charge.wasted]
    return Row(
        name,
        sum(charge.finished for charge in every if not charge.wasted),
        sum(charge.seconds for charge in every),
        total(*(charge.spent for charge in every if charge.model is not None)),
        total(*(charge.spent for charge in in_vain if charge.model is not None)),
        sum(charge.seconds for charge in in_vain),
    )
