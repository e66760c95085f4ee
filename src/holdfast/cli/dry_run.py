"""`holdfast run --dry-run`: what a run would do, without doing any of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.display.text import as_json, count, one_line
from holdfast.cli.display.wording import all_steps, members_of
from holdfast.cli.store_option import exists

if TYPE_CHECKING:
    from holdfast.flows.flow import Flow
    from holdfast.flows.model import Definition, Step


def show_plan(flow: Flow, inputs: Mapping[str, Any], url: str, skip_gates: bool, json: bool) -> None:
    """Print what a run with these inputs would do."""
    plan = plan_of(flow, inputs, url, skip_gates)
    click.echo(as_json(plan) if json else "\n".join(_lines(plan)))


def plan_of(flow: Flow, inputs: Mapping[str, Any], url: str, skip_gates: bool) -> dict[str, Any]:
    """What a run would do, as plain data."""
    definition = flow.definition
    steps = list(all_steps(definition.steps))
    return {
        "workflow": flow.name,
        "file": str(flow.path),
        "inputs": dict(inputs),
        "store": url,
        "store_exists": exists(url),
        "waves": [[_described(step) for step in wave] for wave in waves(definition)],
        "asks": [] if skip_gates else [ask for step in steps for ask in _asks(step)],
        "gates": _gates(definition, steps),
        "agents": [{"step": s.name, "model": s.agent.model} for s in steps if s.agent is not None],
    }


def waves(definition: Definition) -> list[list[Step]]:
    """The steps in the order they come in: one after the other, or with `after` as soon as they can.

    Routes may lead elsewhere; they are told with their steps.
    """
    steps = definition.steps
    if not any(step.after for step in steps):
        return [[step] for step in steps]
    levels: dict[str, int] = {}
    waited = {step.name: waits_for(step) for step in steps}
    for _ in steps:
        for name, before in waited.items():
            levels[name] = max((levels.get(other, 0) + 1 for other in before), default=0)
    return [[step for step in steps if levels[step.name] == level] for level in sorted(set(levels.values()))]


def waits_for(step: Step) -> list[str]:
    """The names of the steps that a step waits for."""
    after = step.after if isinstance(step.after, list) else [step.after] if step.after else []
    return [entry if isinstance(entry, str) else entry.step for entry in after]


def _described(step: Step) -> dict[str, Any]:
    found: dict[str, Any] = {"step": step.name, "kind": step.kind, "notes": list(_notes(step))}
    if inner := members_of(step):
        found["steps"] = [_described(member) for member in inner]
    return found


def _notes(step: Step) -> Iterable[str]:
    if before := waits_for(step):
        yield f"after {', '.join(before)}"
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
    ask = step.ask
    if isinstance(ask, str):
        yield {"step": step.name, "prompt": ask, "choices": None}
    elif ask is not None:
        for prompt, choices in [(q.prompt, q.choices) for q in ask.questions] or [(ask.prompt, ask.choices)]:
            values = [c["value"] if isinstance(c, Mapping) and "value" in c else c for c in choices or ()]
            yield {"step": step.name, "prompt": prompt, "choices": values or None}


def _gates(definition: Definition, steps: Iterable[Step]) -> list[str]:
    workflow = definition.workflow
    own = [f"{step.interrupt} {step.name}" for step in steps if step.interrupt]
    before = [f"before {name}" for name in workflow.interrupt_before]
    return list(dict.fromkeys([*before, *(f"after {name}" for name in workflow.interrupt_after), *own]))


def _lines(plan: dict[str, Any]) -> Iterable[str]:
    number = sum(len(wave) for wave in plan["waves"])
    yield f"workflow {plan['workflow']!r} ({plan['file']}) is valid; {count(number, 'step')}:"
    for place, wave in enumerate(plan["waves"], 1):
        for index, step in enumerate(wave):
            yield from _step_lines(step, f"{place:>3}" if index == 0 else "   ")
    yield f"inputs: {as_json(plan['inputs'], None)}"
    for ask in plan["asks"]:
        choices = f" ({', '.join(map(str, ask['choices']))})" if ask["choices"] else ""
        yield f"asks: {ask['step']}: {one_line(ask['prompt'])}{choices}"
    yield from (f"pauses: {gate}" for gate in plan["gates"])
    yield from (f"agent: {agent['step']} calls {agent['model']}" for agent in plan["agents"])
    yield f"store: {plan['store']}" + ("" if plan["store_exists"] else " (would be created)")
    yield "nothing was run or written"


def _step_lines(step: dict[str, Any], mark: str, indent: str = "  ") -> Iterable[str]:
    notes = f"  {'; '.join(step['notes'])}" if step["notes"] else ""
    yield f"{mark}{indent}{step['step']:<16} {step['kind']:<10}{notes}".rstrip()
    for member in step.get("steps", ()):
        yield from _step_lines(member, "   ", f"{indent}  ")
