"""The plan of a resume for all readers: a row for each step, and for the items of a for-each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from holdfast.journal.run_state import RunState
from holdfast.views.plain import View
from holdfast.views.progress import HELPERS, ITEM, Place, place_of
from holdfast.views.run_view import Counts, finished_in
from holdfast.views.terminal import count, one_line

_DOUBT = "it was interrupted and may or may not have taken effect"
_DECIDED = {
    "rerun": ("rerun", f"{_DOUBT}; it runs again"),
    "skip": ("in_doubt", f"{_DOUBT}; it is skipped"),
    "ask": ("asked", f"{_DOUBT}; somebody is asked what to do with it"),
}
_UNDECIDED = ("in_doubt", f"{_DOUBT}; say whether it is rerun or skipped, or the run fails again")


class PlannedStep(Protocol):
    """What a resume would do with a step."""

    @property
    def step(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def cost(self) -> float: ...


ResumePlan = Any
"""A `ResumePlan` of the engine, whose layer is above this one."""

Found = tuple[Place, PlannedStep]


class Row(NamedTuple):
    """One step, or some items of it, and what becomes of it."""

    step: str
    what: str
    reason: str
    items: int = 0
    """How many items of the step are meant; 0 for the step itself."""
    seconds: float = 0.0
    """How long the finished ones took."""
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class PlanView(View):
    """The plan of a resume."""

    JSON: ClassVar[str] = (
        "id=plan.id run_id=plan.run_id workflow=plan.workflow status=plan.status refused steps changes "
        "migrations=plan.migrations back_to=plan.back_to steps_kept=finished.steps items_kept=finished.items "
        "seconds_saved=plan.seconds_saved cost_saved=plan.cost_saved seconds_to_come=plan.seconds_to_come "
        "cost_to_come=plan.cost_to_come"
    )

    plan: ResumePlan
    finished: Counts
    rows: tuple[Row, ...]

    @property
    def steps(self) -> list[dict[str, object]]:
        """The rows as plain data."""
        return [row._asdict() for row in self.rows]

    @property
    def refused(self) -> str:
        """Why the resume would be refused; empty if it would not."""
        return str(self.plan.refused)

    @property
    def changes(self) -> list[str]:
        """The changes of the workflow since the run was saved."""
        return list(dict.fromkeys(one_line(change) for change in self.plan.changes))

    @classmethod
    def of(
        cls, plan: ResumePlan, run: RunState, nodes: Collection[str], if_interrupted: str | None = None
    ) -> Self:
        """Return the plan of a resume of a run; `nodes` are those of its graph."""
        return cls(plan, finished_in(run), tuple(plan_rows(plan, nodes, if_interrupted)))


def plan_rows(
    plan: ResumePlan, nodes: Collection[str] = (), if_interrupted: str | None = None
) -> Iterator[Row]:
    """Yield what becomes of every step. `nodes` are the nodes of the graph."""
    groups: dict[tuple[str, ...], list[Found]] = {}
    for step in plan.steps:
        place = place_of(step.step, step.node)
        if place.role not in HELPERS.values():
            groups.setdefault(place.path, []).append((place, step))
    for path, found in groups.items():
        yield from _rows("/".join(path), found, nodes, if_interrupted)


def _rows(
    name: str, found: Sequence[Found], nodes: Collection[str], if_interrupted: str | None
) -> Iterator[Row]:
    items = {place.key: step for place, step in found if place.key is not None}
    done = [step for place, step in found if place.role == "done"]
    if items:
        yield from _item_rows(name, items, done, if_interrupted)
        return
    unfinished = f"{name}:done" in nodes and not any(step.what == "kept" for step in done)
    for place, step in found:
        whole = place.role in ("", ITEM)
        if (whole and not (unfinished and step.what == "kept")) or (
            not whole and step.what not in ("kept", "new")
        ):
            what, reason = _decision(step, if_interrupted)
            yield Row(place.label, what, reason, 0, step.seconds, step.cost)


def _item_rows(
    name: str, items: dict[str, PlannedStep], done: Sequence[PlannedStep], if_interrupted: str | None
) -> Iterator[Row]:
    """Yield items by what becomes of them; of a step that takes all or nothing, failed ones are tried again."""
    again = any(step.what == "rerun" for step in done)
    kinds: dict[tuple[str, str], int] = {}
    for step in items.values():
        what, reason = _decision(step, if_interrupted)
        if again and reason.startswith("passed over"):
            what, reason = "rerun", reason.removeprefix("passed over: ")
        key = (what, "" if what == "kept" else reason)
        kinds[key] = kinds.get(key, 0) + 1
    for (what, reason), number in kinds.items():
        of_all = f"{number} of {count(len(items), 'item')}"
        text = {"kept": f"{of_all}: finished", "rerun": f"{of_all} tried again: {reason}"}
        yield Row(name, what, one_line(text.get(what, f"{of_all}: {reason}"), 120), number)


def _decision(step: PlannedStep, if_interrupted: str | None) -> tuple[str, str]:
    if step.what == "rerun" and "repeated unasked" in step.reason:
        return _DECIDED.get(if_interrupted or "", _UNDECIDED)
    return step.what, one_line(step.reason, 120)
