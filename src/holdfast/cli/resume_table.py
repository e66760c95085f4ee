"""The plan of a resume, as a table and as plain data."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from holdfast.cli.progress import place_of
from holdfast.cli.text import count, one_line

if TYPE_CHECKING:
    from holdfast.engine.resume_plan import PlannedStep, ResumePlan

_WORDS = {
    "kept": "kept",
    "rerun": "runs again",
    "in_doubt": "in doubt",
    "asked": "waits",
    "next": "runs next",
    "orphaned": "ORPHANED",
    "new": "new",
}


def plan_lines(plan: ResumePlan) -> list[str]:
    """The plan for people: a line per step, with the reason."""
    rows = [
        (_label(step), _WORDS.get(step.what, step.what), one_line(step.reason, 120)) for step in plan.steps
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    kept = plan.of("kept")
    return [
        f"run {plan.run_id} of {plan.workflow!r} is {plan.status}; a resume would do this:",
        *(f"  {name:<{widths[0]}}  {what:<{widths[1]}}  {reason}" for name, what, reason in rows),
        *(f"changed: {one_line(change)}" for change in plan.changes),
        f"{count(len(kept), 'step')} kept, {plan.seconds_saved:.1f} s saved; nothing was touched",
    ]


def _label(step: PlannedStep) -> str:
    place = place_of(step.step, step.node)
    return place.label + (f":{place.role}" if place.role not in ("", "item") else "")


def plan_as_json(plan: ResumePlan) -> dict[str, Any]:
    """The plan as plain data."""
    return dataclasses.asdict(plan)
