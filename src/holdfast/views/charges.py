"""Charges: what runs use up, one by one and added up by step, model, run, workflow or day."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from holdfast.graph.graph import base_name
from holdfast.journal.records import Noted, Record, Reset, Spent, StepFailed, StepFinished, StepStarted
from holdfast.journal.run_state import RunState, Spending, node_of
from holdfast.stores.base import RunInfo
from holdfast.values import START
from holdfast.views.plain import View, when

NOTHING = Spending()

BY = ("step", "model", "run", "workflow", "day")
"""What charges can be grouped by."""

EARLIER = "(pruned)"
"""The step of all time of which the journal no longer tells more."""

REMEMBERED = ("once:", "awaited:")
"""The beginnings of the names of results that a step does not compute again."""


def total(*parts: Spending) -> Spending:
    """Return the sum of several amounts."""
    return Spending(*map(sum, zip(*parts, strict=True))) if parts else Spending()


def less(whole: Spending, part: Spending) -> Spending:
    """Return an amount without a part of it."""
    left = Spending(*map(operator.sub, whole, part))
    return left._replace(cost=max(0.0, left.cost))


def spending_of(record: Spent) -> Spending:
    """Return the amount that a record tells of."""
    unpriced = record.calls * (record.cost is None)
    return Spending(record.calls, record.input_tokens, record.output_tokens, record.cost or 0.0, unpriced)


@dataclass(frozen=True, slots=True)
class Charge:
    """Something that was used up: by which step of which run, when, and whether it was wasted.

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
class Portion(View):
    """Finished steps with the time and the money that went into them."""

    steps: int = 0
    seconds: float = 0.0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Row(View):
    """What was used up by all that have a name in common; `wasted` is the part of which nothing came."""

    JSON: ClassVar[str] = "name steps seconds *spent wasted_cost=wasted.cost wasted_seconds"

    name: str
    steps: int
    seconds: float
    spent: Spending
    wasted: Spending
    wasted_seconds: float


def rows(charges: Iterable[Charge], by: str, *, ids: bool = False) -> list[Row]:
    """Charges added up by one of `BY`, the dearest first; `ids` tells the steps of each run apart.

    By day they are in order. The time of steps belongs to no model, so it is left out there.
    """
    name = "id" if ids and by == "step" else by
    groups: dict[str, list[Charge]] = {}
    for charge in charges:
        if by != "model" or charge.model is not None:
            groups.setdefault(str(getattr(charge, name)), []).append(charge)
    found = [row_of(name, group) for name, group in groups.items()]
    if by == "day":
        return sorted(found, key=lambda row: row.name)
    return sorted(found, key=lambda row: (-row.spent.cost, -row.seconds, row.name))


def row_of(name: str, charges: Iterable[Charge]) -> Row:
    """What charges add up to."""
    every = list(charges)
    wasted_ones = [charge for charge in every if charge.wasted]
    return Row(
        name,
        sum(charge.finished for charge in every if not charge.wasted),
        sum(charge.seconds for charge in every),
        total(*(charge.spent for charge in every if charge.model is not None)),
        total(*(charge.spent for charge in wasted_ones if charge.model is not None)),
        sum(charge.seconds for charge in wasted_ones),
    )


class Accounts:
    """What a run used up by its own journal, charge by charge."""

    def __init__(self, info: RunInfo) -> None:
        self._info = info
        self._charges: list[Charge] = []
        self._settled: list[tuple[int, tuple[int, ...]]] = []
        """The entries at which steps finished, with their charges."""
        self._open: dict[str, list[int]] = {}
        """By step, the charges of an attempt without an outcome."""
        self._remembered: dict[str, list[int]] = {}
        """By unfinished step, the charges whose results it remembers."""

    def begin_with(self, run: RunState, at: float) -> None:
        """Take in what is known from before the first record, where a journal was pruned."""
        for node, spent in run.spending.items():
            own = less(spent, run.inherited.get(node) or Spending())
            if any(own):
                self._add(node, at, model="", spent=own)
        if (seconds := run.seconds - run.inherited_seconds) > 0:
            self._add(EARLIER, at, seconds=seconds)
        self._remembered[EARLIER] = list(range(len(self._charges)))

    def take(self, record: Record, at: float) -> None:
        """Enter one record that is not the end of a step."""
        match record:
            case Spent(step=step):
                place = self._add(step, at, model=record.model, spent=spending_of(record))
                self._open.setdefault(step, []).append(place)
            case StepStarted(step=step):
                self._open.pop(step, None)
            case Noted(step=step, key=key) if key.startswith(REMEMBERED):
                self._remembered.setdefault(step, []).extend(self._open.pop(step, ()))
            case StepFailed(step=step):
                self._open.pop(step, None)
                self._add(step, at, seconds=record.seconds)
            case Reset():
                self._open.clear()

    def finish(self, record: StepFinished, seq: int, at: float, before: tuple[int, ...]) -> tuple[int, ...]:
        """Enter the end of a step and return its charges; `before` are those of the result that it reuses."""
        step, places = record.step, before
        if not record.origin:
            places = (*self._remembered.pop(step, ()), *self._open.pop(step, ()))
            seconds = 0.0 if record.promoted else record.seconds
            own = step.rpartition("/")[2]
            is_helper = ":" in own.rpartition("#")[0] or own.startswith(START)
            finished = int(not record.skipped and not is_helper)
            places = (*places, self._add(step, at, seconds=seconds, finished=finished))
        self._settled.append((seq, places))
        return places

    def counting(self, counts: Callable[[int], bool]) -> list[int]:
        """Return the charges of the steps whose finish counts, by its entry."""
        return [place for seq, places in self._settled if counts(seq) for place in places]

    def portion(self, base: Portion, counts: Callable[[int], bool]) -> Portion:
        """Return `base` plus the steps, seconds and cost of the steps that `counts` selects."""
        every = [self._charges[place] for place in self.counting(counts)]
        return Portion(
            base.steps + sum(charge.finished for charge in every),
            base.seconds + sum(charge.seconds for charge in every),
            base.cost + sum(charge.spent.cost for charge in every),
        )

    def closed(self, counts: Callable[[int], bool]) -> tuple[Charge, ...]:
        """Return all charges; wasted are those of which nothing counts, and nothing can come any more."""
        useful = set(self.counting(counts))
        useful.update(*self._open.values(), *self._remembered.values())
        return tuple(
            replace(charge, wasted=place not in useful) for place, charge in enumerate(self._charges)
        )

    def _add(self, step: str, at: float, **amounts: Any) -> int:
        name = base_name(node_of(step) if "#" in step else step)
        self._charges.append(Charge(self._info.run, self._info.workflow, at, name, step, **amounts))
        return len(self._charges) - 1
