"""Keeping the books of one run while its records are read: what each step used up, and what of it was in vain."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from holdfast.journal.records import (
    Forked,
    Noted,
    Record,
    Reset,
    Resumed,
    RunEnded,
    RunStarted,
    Spent,
    StepFailed,
    StepFinished,
    StepStarted,
)
from holdfast.journal.run_state import RunState, Spending, node_of
from holdfast.plan.naming import base_name
from holdfast.values import START
from holdfast.views.amounts import Charge, Portion, total

REMEMBERED = ("once:", "awaited:")
"""How the names of results begin that a step does not compute again."""


class Books:
    """What a run used up by its own journal, and how much of it still counts for where the run stands."""

    def __init__(self, run: str, workflow: str, parting: Callable[[str], int | None]) -> None:
        """`parting` finds the entry of this run at which another, or one that it goes back to, was forked from it."""
        self._run, self._workflow, self._parting = run, workflow, parting
        self._charges: list[Charge] = []
        self._open: dict[str, list[int]] = {}
        """By step, the charges of an attempt of which nothing has come yet."""
        self._settled: dict[str, list[int]] = {}
        """By step, the charges that something came of."""
        self._finished: dict[str, int] = {}
        """By step, the entry at which it was finished last."""
        self._rewound: dict[str, list[int]] = {}
        """The same of steps that the run was set to before."""
        self._base = Portion()
        """What was finished before this journal begins."""
        self.adopted: dict[str, str] = {}
        """By step, the run that it was given the result of."""
        self.inherited = Spending()
        self.resumes = 0
        self.saved = Portion()
        self.driving = 0.0
        self._began: float | None = None
        self._last = 0.0

    def begin_with(self, run: RunState, at: float) -> None:
        """Take in what is known from before the first record, where a journal was pruned."""
        before = {node: _less(spent, run.inherited.get(node)) for node, spent in run.spending.items()}
        self.inherited = total(*run.inherited.values())
        for node, spent in before.items():
            if any(spent):
                self._add(node, at, model="", spent=spent)
        if (seconds := run.seconds - run.inherited_seconds) > 0:
            self._charges.append(Charge(self._run, self._workflow, at, EARLIER, EARLIER, seconds=seconds))
        self._base = Portion(run.steps_done, run.seconds, total(*run.spending.values()).cost)
        self._began = at if run.driver else None
        self._last = at

    def take(self, record: Record, seq: int, at: float) -> None:
        """Enter one record."""
        match record:
            case Spent(step=step):
                spent = Spending(
                    record.calls,
                    record.input_tokens,
                    record.output_tokens,
                    record.cost or 0.0,
                    record.calls * (record.cost is None),
                )
                self._open.setdefault(step, []).append(self._add(step, at, model=record.model, spent=spent))
            case StepStarted(step=step):
                self._waste(self._open.pop(step, ()))
            case Noted(step=step, key=key) if key.startswith(REMEMBERED):
                self._settle(step)
            case StepFailed(step=step):
                self._waste(self._open.pop(step, ()))
                self._waste([self._add(step, at, seconds=record.seconds)])
            case StepFinished():
                self._finish(record, seq, at)
            case Reset():
                self._rewind(self._point(record))
            case Forked():
                self.inherited = total(*record.run.spending.values())
                self._base = Portion(record.run.steps_done, record.run.seconds, self.inherited.cost)
                self._began = at
            case RunStarted():
                self._began = at
            case Resumed():
                self._resume(at)
            case RunEnded() if self._began is not None:
                self.driving += at - self._began
                self._began = None
        self._last = at

    def close(self, is_driven: bool) -> None:
        """Take the time of a drive into account that has not ended, or died."""
        if self._began is not None and is_driven:
            self.driving += max(0.0, self._last - self._began)
        self._began = None

    def add_line(self, step: str, model: str, spent: Spending, at: float, ident: str) -> None:
        """Enter a line that no record tells of, of a step that finished."""
        self._charges.append(Charge(self._run, self._workflow, at, step, ident, model, spent))
        self._base = self._base._replace(cost=self._base.cost + spent.cost)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All that was used up."""
        return tuple(self._charges)

    def kept(self) -> Portion:
        """The finished steps that the run stands on, those of the runs that it was forked from included."""
        found = [charge for step in self._finished for charge in self._of(step)]
        steps = sum(charge.finished for charge in found)
        seconds, cost = sum(charge.seconds for charge in found), sum(charge.spent.cost for charge in found)
        return Portion(self._base.steps + steps, self._base.seconds + seconds, self._base.cost + cost)

    def portion_of(self, steps: Iterable[str]) -> Portion:
        """What some finished steps took."""
        found = [charge for step in steps for charge in self._of(step)]
        counted = sum(charge.finished for charge in found)
        return Portion(
            counted, sum(charge.seconds for charge in found), sum(charge.spent.cost for charge in found)
        )

    def _of(self, step: str) -> Iterator[Charge]:
        return (self._charges[place] for place in self._settled.get(step, ()))

    def _add(self, step: str, at: float, **amounts: Any) -> int:
        name = base_name(node_of(step) if "#" in step else step)
        charge = Charge(self._run, self._workflow, at, name, step, **amounts)
        self._charges.append(charge)
        return len(self._charges) - 1

    def _settle(self, step: str) -> None:
        self._settled.setdefault(step, []).extend(self._open.pop(step, ()))

    def _finish(self, record: StepFinished, seq: int, at: float) -> None:
        step = record.step
        if record.origin == self._run and step in self._rewound:
            self._settled[step] = self._rewound.pop(step)
            self._waste(self._settled[step], False)
        elif record.origin:
            self.adopted[step] = record.origin
        else:
            self._settle(step)
            counts = int(not record.skipped and _is_step(step))
            seconds = 0.0 if record.promoted else record.seconds
            self._settled[step].append(self._add(step, at, seconds=seconds, finished=counts))
        self._finished[step] = seq

    def _point(self, record: Reset) -> int:
        """The entry of this run after which all is undone by setting it to another place."""
        if record.is_of(self._run):
            return record.seq
        parting = self._parting(record.source)
        return parting if parting is not None else sys.maxsize

    def _rewind(self, point: int) -> None:
        for step in [step for step, seq in self._finished.items() if seq > point]:
            del self._finished[step]
            self.adopted.pop(step, None)
            self._rewound[step] = self._settled.pop(step, [])
            self._waste(self._rewound[step])
        for step in list(self._open):
            self._waste(self._open.pop(step))

    def _waste(self, places: Iterable[int], wasted: bool = True) -> None:
        for place in places:
            self._charges[place] = dataclasses.replace(self._charges[place], wasted=wasted)

    def _resume(self, at: float) -> None:
        if self._began is not None:
            self.driving += max(0.0, self._last - self._began)
        self._began = at
        kept = self.kept()
        if kept.steps:
            self.resumes, self.saved = self.resumes + 1, kept


EARLIER = "(pruned)"
"""The step that all time is put down to of which the journal no longer tells more."""


def _is_step(step: str) -> bool:
    """Whether a step is one that people count: no helper of another."""
    own = step.rpartition("/")[2]
    return ":" not in own.rpartition("#")[0] and not own.startswith(START)


def _less(whole: Spending, part: Spending | None) -> Spending:
    part = part or Spending()
    return Spending(
        whole.calls - part.calls,
        whole.input_tokens - part.input_tokens,
        whole.output_tokens - part.output_tokens,
        max(0.0, whole.cost - part.cost),
        whole.unpriced - part.unpriced,
    )
