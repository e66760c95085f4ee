"""Plans as people see them: of a resume and a rerun a row per step, of a new run what it would do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.errors import explain
from holdfast.cli.questions import all_steps
from holdfast.cli.render import json_text
from holdfast.graph.graph import base_name
from holdfast.stores.inspection import exists
from holdfast.views.plans import PlanView
from holdfast.views.progress import HELPERS, place_of
from holdfast.views.terminal import count, money, one_line

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.engine.resume_plan import ResumePlan
    from holdfast.engine.time_travel.rerun import Rerun, RerunStep
    from holdfast.workflows.model import Ask, Definition, Question, Step
    from holdfast.workflows.workflow import Workflow

_WORDS = {
    "kept": "kept",
    "rerun": "runs again",
    "in_doubt": "in doubt",
    "asked": "waits",
    "next": "runs next",
    "orphaned": "ORPHANED",
    "new": "new",
    "undone": "undone",
}


class ResumePlanText(PlanView):
    """The plan of a resume as people read it, with remedies as commands."""

    __slots__ = ()

    @property
    def refused(self) -> str:
        """Why the resume would be refused, and what can be done about it; empty if it would not."""
        return explain(self.plan.refused, self.plan.remedies)

    def lines(self) -> list[str]:
        """Return the plan for people: a line per step, with the reason."""
        plan = self.plan
        return [
            f"run {plan.run_id} of {plan.workflow!r} is {plan.status}; a resume would do this:",
            *_aligned([(row.step, row.what, row.reason) for row in self.rows]),
            *(f"changed: {change}" for change in self.changes),
            *(f"migrated: {migration}" for migration in plan.migrations),
            *([f"the run goes back to its entry {plan.back_to}"] if plan.back_to is not None else []),
            f"{self._kept()} kept, {_amount(plan.seconds_saved, plan.cost_saved)} saved; to come: {self._to_come()}",
            *([f"REFUSED: {one_line(self.refused, 300)}"] if plan.refused else []),
            f"plan {plan.id}; nothing was touched",
        ]

    def _kept(self) -> str:
        if self.plan.back_to is None:
            return str(self.finished)
        kept = {place_of(step.step, step.node).path for step in self.plan.of("kept")}
        return count(len(kept), "step")

    def _to_come(self) -> str:
        """Return an estimate for the steps that are about to run; what comes after them is not known."""
        if self.plan.seconds_to_come is None:
            return "unknown"
        return f"about {_amount(self.plan.seconds_to_come, self.plan.cost_to_come)}"


def _amount(seconds: float, cost: float | None) -> str:
    return f"{seconds:.1f} s" + (f" and ${cost:.4f}" if cost else "")


def _aligned(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    shown = [(name, _WORDS.get(what, what), reason) for name, what, reason in rows]
    widths = [max((len(row[column]) for row in shown), default=0) for column in (0, 1)]
    return [f"  {name:<{widths[0]}}  {what:<{widths[1]}}  {reason}" for name, what, reason in shown]


def resume_plan(app: App, run_id: str, plan: ResumePlan, if_interrupted: str | None) -> ResumePlanText:
    """Return the plan of a resume of a run, with what `--if-interrupted` decides."""
    settings = app._settings
    run = settings.journal.load(settings.journal.info(run_id), settings.codec).run
    return ResumePlanText.of(plan, run, settings.graph.nodes, if_interrupted)


# The plan of a rerun.


def rerun_lines(back: Rerun) -> list[str]:
    """Return the plan of a rerun for people."""
    where = (
        f"entry {back.seq} of run {back.base.run}" if back.seq else f"the beginning of run {back.base.run}"
    )
    cost = f", {money(back.cost_saved)}" if back.cost_saved else ""
    return [
        f"from {where}, this would be done:",
        *_aligned(list(_rerun_rows(back))),
        f"{back.seconds_saved:.1f} s{cost} saved after that entry, and all before it; nothing was touched",
    ]


def _rerun_rows(back: Rerun) -> Iterator[tuple[str, str, str]]:
    """Yield each step once; a step of several nodes runs again if any of them does."""
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
    """Return a reason with the name of a step instead of its node's."""
    head, quote, rest = reason.partition("'")
    name, end, tail = rest.partition("'")
    return f"{head}{quote}{base_name(name)}{end}{tail}" if quote else reason


# `holdfast run --dry-run`: what a run would do, without doing any of it.


def print_dry_run(
    workflow: Workflow, inputs: Mapping[str, Any], url: str, skip_gates: bool, json: bool
) -> None:
    """Print what a run with these inputs would do."""
    definition = workflow.definition
    steps = list(all_steps(definition.steps))
    plan: dict[str, Any] = {
        "workflow": workflow.name,
        "file": str(workflow.path),
        "inputs": dict(inputs),
        "store": url,
        "store_exists": exists(url),
        "waves": [[_described(step) for step in wave] for wave in waves(definition)],
        "asks": [] if skip_gates else [ask for step in steps for ask in _asks(step)],
        "gates": _gates(definition, steps),
        "agents": [{"step": s.name, "model": s.agent.model} for s in steps if s.agent is not None],
    }
    click.echo(json_text(plan) if json else "\n".join(_dry_lines(plan)))


def waves(definition: Definition) -> list[list[Step]]:
    """Return the steps in the order they run: one after the other, or with `after` as soon as they can.

    Routes may lead elsewhere; they are notes of their steps.
    """
    steps = definition.steps
    if not any(step.after for step in steps):
        return [[step] for step in steps]
    levels: dict[str, int] = {}
    waited = {step.name: [after.step for after in step.after] for step in steps}
    for _ in steps:
        for name, before in waited.items():
            levels[name] = max((levels.get(other, 0) + 1 for other in before), default=0)
    return [[step for step in steps if levels[step.name] == level] for level in sorted(set(levels.values()))]


def _described(step: Step) -> dict[str, Any]:
    found: dict[str, Any] = {"step": step.name, "kind": step.kind, "notes": list(_notes(step))}
    if inner := step.members:
        found["steps"] = [_described(member) for member in inner]
    return found


def _notes(step: Step) -> Iterable[str]:
    if step.after:
        yield f"after {', '.join(after.step for after in step.after)}"
    if step.when is not None:
        yield f"only if {step.when}"
    if step.for_each is not None:
        how = "one by one" if step.for_each.mode == "sequential" else f"{step.for_each.max_parallel} at once"
        yield f"for each of {one_line(str(step.for_each.in_), 60)}, {how}"
    if step.agent is not None:
        yield f"model {step.agent.model}"
    if step.retry is not None and step.retry.attempts > 1:
        yield f"up to {step.retry.attempts} attempts"
    for route in step.routes or ():
        yield f"then {route.to}" + (f" if {route.when}" if route.when else "")


def _asks(step: Step) -> Iterable[dict[str, Any]]:
    asked: Sequence[Ask | Question] = () if step.ask is None else step.ask.questions or (step.ask,)
    for question in asked:
        values = [choice.value for choice in question.choices or ()]
        yield {"step": step.name, "prompt": question.prompt, "choices": values or None}


def _gates(definition: Definition, steps: Iterable[Step]) -> list[str]:
    workflow = definition.workflow
    own = [f"{step.interrupt} {step.name}" for step in steps if step.interrupt]
    before = [f"before {name}" for name in workflow.interrupt_before]
    return list(dict.fromkeys([*before, *(f"after {name}" for name in workflow.interrupt_after), *own]))


def _dry_lines(plan: dict[str, Any]) -> Iterable[str]:
    number = sum(len(wave) for wave in plan["waves"])
    yield f"workflow {plan['workflow']!r} ({plan['file']}) is valid; {count(number, 'step')}:"
    for place, wave in enumerate(plan["waves"], 1):
        for index, step in enumerate(wave):
            yield from _step_lines(step, f"{place:>3}" if index == 0 else "   ")
    yield f"inputs: {json_text(plan['inputs'], None)}"
    for question in plan["asks"]:
        choices = f" ({', '.join(map(str, question['choices']))})" if question["choices"] else ""
        yield f"asks: {question['step']}: {one_line(question['prompt'])}{choices}"
    yield from (f"pauses: {gate}" for gate in plan["gates"])
    yield from (f"agent: {agent['step']} calls {agent['model']}" for agent in plan["agents"])
    yield f"store: {plan['store']}" + ("" if plan["store_exists"] else " (would be created)")
    yield "nothing was run or written"


def _step_lines(step: dict[str, Any], mark: str, indent: str = "  ") -> Iterable[str]:
    notes = f"  {'; '.join(step['notes'])}" if step["notes"] else ""
    yield f"{mark}{indent}{step['step']:<16} {step['kind']:<10}{notes}".rstrip()
    for member in step.get("steps", ()):
        yield from _step_lines(member, "   ", f"{indent}  ")
