"""The plan of a resume as people see it: a row per step, the items of a for-each counted, no helper nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.cli.display.progress import HELPERS, ITEM, Place, place_of
from holdfast.cli.display.text import count, money, one_line
from holdfast.cli.errors import told as explained
from holdfast.graph.graph import base_name
from holdfast.views.run_view import Counts

if TYPE_CHECKING:
    from holdfast.engine.resume_plan import PlannedStep, ResumePlan
    from holdfast.engine.time_travel.rerun import Rerun, RerunStep


_WORDS = {
    "kept": "kept",
    "rerun": "runs again",
    "in_doubt": "in doubt",
    "asked": "waits",
    "next": "runs next",
    "orphaned": "ORPHANED",
    "new": "new",
}
_DOUBT = "it was interrupted and may or may not have taken effect"
_FATES = {
    "rerun": ("rerun", f"{_DOUBT}; it runs again"),
    "skip": ("in_doubt", f"{_DOUBT}; it is skipped"),
    "ask": ("asked", f"{_DOUBT}; somebody is asked what to do with it"),
}
_UNSETTLED = ("in_doubt", f"{_DOUBT}; say --if-interrupted rerun or skip, or the run fails again")

Found = tuple[Place, "PlannedStep"]


class Row(NamedTuple):
    """One step, or some items of it, and what becomes of it."""

    step: str
    what: str
    reason: str
    items: int = 0
    """How many items of the step are meant; 0 for the step itself."""
    seconds: float = 0.0
    """How long what is finished took."""
    cost: float = 0.0


def plan_lines(
    plan: ResumePlan, finished: Counts, nodes: Collection[str] = (), wish: str | None = None
) -> list[str]:
    """The plan for people: a line per step, with the reason."""
    rows = [(row.step, _WORDS.get(row.what, row.what), row.reason) for row in plan_rows(plan, nodes, wish)]
    kept = finished if plan.back_to is None else _kept_steps(plan)
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [
        f"run {plan.run_id} of {plan.workflow!r} is {plan.status}; a resume would do this:",
        *(f"  {name:<{widths[0]}}  {what:<{widths[1]}}  {reason}" for name, what, reason in rows),
        *(f"changed: {change}" for change in _changes(plan)),
        *(f"migrated: {migration}" for migration in plan.migrations),
        *([f"the run goes back to its entry {plan.back_to}"] if plan.back_to is not None else []),
        f"{kept} kept, {_saved(plan)} saved; to come: {_to_come(plan)}",
        *([f"REFUSED: {one_line(explained(plan.refused, plan.remedies), 300)}"] if plan.refused else []),
        f"plan {plan.id}; nothing was touched",
    ]


def _kept_steps(plan: ResumePlan) -> str:
    return count(len({place_of(step.step, step.node).path for step in plan.of("kept")}), "step")


def _saved(plan: ResumePlan) -> str:
    return f"{plan.seconds_saved:.1f} s" + (f" and ${plan.cost_saved:.4f}" if plan.cost_saved else "")


def _to_come(plan: ResumePlan) -> str:
    """What the steps that are about to run may take, by those before; what comes after them is not known."""
    if plan.seconds_to_come is None:
        return "unknown"
    cost = f" and ${plan.cost_to_come:.4f}" if plan.cost_to_come else ""
    return f"about {plan.seconds_to_come:.1f} s{cost}"


def plan_as_json(
    plan: ResumePlan, finished: Counts, nodes: Collection[str] = (), wish: str | None = None
) -> dict[str, Any]:
    """Keys: id, run_id, workflow, status, refused, steps, changes, migrations, back_to, steps_kept, items_kept,
    seconds_saved, cost_saved, seconds_to_come, cost_to_come.
    """
    return {
        "id": plan.id,
        "run_id": plan.run_id,
        "workflow": plan.workflow,
        "status": plan.status,
        "refused": explained(plan.refused, plan.remedies),
        "steps": [row._asdict() for row in plan_rows(plan, nodes, wish)],
        "changes": _changes(plan),
        "migrations": list(plan.migrations),
        "back_to": plan.back_to,
        "steps_kept": finished.steps,
        "items_kept": finished.items,
        "seconds_saved": plan.seconds_saved,
        "cost_saved": plan.cost_saved,
        "seconds_to_come": plan.seconds_to_come,
        "cost_to_come": plan.cost_to_come,
    }


def _changes(plan: ResumePlan) -> list[str]:
    return list(dict.fromkeys(one_line(change) for change in plan.changes))


def plan_rows(plan: ResumePlan, nodes: Collection[str] = (), wish: str | None = None) -> list[Row]:
    """What becomes of every step. `nodes` are the nodes of the graph, `wish` is what `--if-interrupted` says."""
    groups: dict[tuple[str, ...], list[Found]] = {}
    for step in plan.steps:
        place = place_of(step.step, step.node)
        if place.role not in HELPERS.values():
            groups.setdefault(place.path, []).append((place, step))
    return [row for path, found in groups.items() for row in _rows("/".join(path), found, nodes, wish)]


def _rows(name: str, found: Sequence[Found], nodes: Collection[str], wish: str | None) -> Iterator[Row]:
    items = {place.key: step for place, step in found if place.key is not None}
    done = [step for place, step in found if place.role == "done"]
    if items:
        yield from _item_rows(name, items, done, wish)
        return
    unfinished = f"{name}:done" in nodes and not any(step.what == "kept" for step in done)
    for place, step in found:
        whole = place.role in ("", ITEM)
        if (whole and not (unfinished and step.what == "kept")) or (
            not whole and step.what not in ("kept", "new")
        ):
            what, reason = _fate(step, wish)
            yield Row(place.label, what, reason, 0, step.seconds, step.cost)


def _item_rows(
    name: str, items: dict[str, PlannedStep], done: Sequence[PlannedStep], wish: str | None
) -> Iterator[Row]:
    """Items by what becomes of them. Of a step that takes all or nothing, those that failed are tried again."""
    again = any(step.what == "rerun" for step in done)
    kinds: dict[tuple[str, str], int] = {}
    for step in items.values():
        what, reason = _fate(step, wish)
        if again and reason.startswith("passed over"):
            what, reason = "rerun", reason.removeprefix("passed over: ")
        key = (what, "" if what == "kept" else reason)
        kinds[key] = kinds.get(key, 0) + 1
    for (what, reason), number in kinds.items():
        of_all = f"{number} of {count(len(items), 'item')}"
        text = {"kept": f"{of_all}: finished", "rerun": f"{of_all} tried again: {reason}"}
        yield Row(name, what, one_line(text.get(what, f"{of_all}: {reason}"), 120), number)


def _fate(step: PlannedStep, wish: str | None) -> tuple[str, str]:
    if step.what == "rerun" and "StepInterrupted" in step.reason:
        return _FATES.get(wish or "", _UNSETTLED)
    return step.what, one_line(step.reason, 120)


# What is kept and what runs again, as people see it: a row per step, the items of a for-each counted.


_RERUN_WORDS = {"kept": "kept", "rerun": "runs again", "undone": "undone"}


def rerun_lines(back: Rerun) -> list[str]:
    """The plan for people."""
    rows = list(_rerun_rows(back))
    width = max((len(name) for name, *_ in rows), default=0)
    where = (
        f"entry {back.seq} of run {back.base.run}" if back.seq else f"the beginning of run {back.base.run}"
    )
    cost = f", {money(back.cost_saved)}" if back.cost_saved else ""
    return [
        f"from {where}, this would be done:",
        *(f"  {name:<{width}}  {_RERUN_WORDS[what]:<10}  {reason}" for name, what, reason in rows),
        f"{back.seconds_saved:.1f} s{cost} saved after that entry, and all before it; nothing was touched",
    ]


def _rerun_rows(back: Rerun) -> Iterator[tuple[str, str, str]]:
    """Each step once; one of several nodes runs again if any of them does."""
    groups: dict[tuple[str, ...], list[RerunStep]] = {}
    for step in back.steps:
        place = place_of(step.step, step.node)
        if place.role not in HELPERS.values():
            groups.setdefault((*place.path, str(place.visit)), []).append(step)
    for (*path, visit), steps in groups.items():
        again = [step for step in steps if step.what == "rerun"]
        items = [step for step in steps if step.step.endswith("]")]
        name = "/".join(path) + (f" ({visit})" if visit != "1" else "")
        some = [step for step in again if step in items]
        if items and some and len(some) < len(items):
            name = f"{name}: {len(some)} of {count(len(items), 'item')}"
        chosen = (again or steps)[0]
        yield name, chosen.what, one_line(_by_step(chosen.reason), 120)


def _by_step(reason: str) -> str:
    """A reason that names a node with the step that this belongs to."""
    head, quote, rest = reason.partition("'")
    name, end, tail = rest.partition("'")
    return f"{head}{quote}{base_name(name)}{end}{tail}" if quote else reason
