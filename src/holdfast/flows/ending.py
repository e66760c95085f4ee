"""The end of a workflow: its output, what is still due, and how a sub-workflow hands over what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.data.frozen import thaw
from holdfast.data.state import State, origin_of
from holdfast.errors import HoldfastError
from holdfast.flows.errors import StepFailed
from holdfast.flows.kinds.kind import Texts
from holdfast.flows.model import After, Step
from holdfast.flows.scope import Layout, Scope
from holdfast.flows.work import Work, told, waited_for
from holdfast.flows.world import World
from holdfast.plan.graph import Command

OUTPUT = "output"
"""The last node, and the state key of what it makes."""


class Ending:
    """The last node of a workflow."""

    def __init__(self, layout: Layout, world: World, by_order: bool) -> None:
        self._layout, self._world = layout, world
        self._output = Texts().tree("output", layout.definition.output)
        self.paths = self._output.paths()
        """The places of the scope that the output reads."""
        self.expected = [] if by_order else _expected(layout.definition.steps)

    def finish(self, state: State) -> Any:
        """The workflow's output, unless steps that were added while the run was under way are still to be done."""
        if self._layout.has_failed(state):
            return None
        due = [step.name for step in self.expected if self._is_due(state, step)]
        if due:
            return Command(goto=tuple(due))
        return handed_over(self._layout, state, {"status": "completed", "output": self._result(state)})

    def _result(self, state: State) -> Any:
        if self._layout.definition.output is None:
            return last_output(self._layout, state)
        try:
            return self._world.hide(self._output.look(Scope(self._layout, state)))
        except StepFailed as error:
            raise HoldfastError(f"the workflow's {error}") from None

    def _is_due(self, state: State, step: Step) -> bool:
        if self._layout.record(state, step.name):
            return False
        return all(self._layout.record(state, name) for name in names_waited_for(step))


def _expected(steps: list[Step]) -> list[Step]:
    """The steps that are to be done in every run: those that no route leads to or past."""
    routed = {route.to for step in steps for route in step.routes or ()}
    choosing = {step.name for step in steps if step.routes}
    return [step for step in steps if step.name not in routed and not choosing & set(names_waited_for(step))]


def names_waited_for(step: Step) -> list[str]:
    """The names of the steps that a step waits for."""
    names = (entry.step if isinstance(entry, After) else entry for entry in waited_for(step))
    return list(dict.fromkeys(names))


def last_output(layout: Layout, state: State) -> Any:
    """The output of the step that ran last."""
    name = origin_of(state).checkpoint_node.partition(":")[0]
    return layout.view(state, name).get("output") if name in layout.steps else None


def ended_early(work: Work, state: State, error: BaseException) -> Command:
    """What stands in for a failed step whose workflow is to fail as a step of another, and not fail the run."""
    layout = work.layout
    if layout.has_failed(state):
        return Command(work.failed(state, error), goto=[])
    reason = work.world.hide(f"step {work.step.name!r}: {told(error)}")
    over = handed_over(layout, state, {"status": "failed", "error": reason})
    return Command({**work.failed(state, error), **over, layout.failure_key: {"error": reason}}, goto=[])


def handed_over(layout: Layout, state: State, result: Mapping[str, Any]) -> dict[str, Any]:
    """What a workflow results in: the run's output, or the record of the step that it is of another workflow."""
    if not layout.shared:
        return {OUTPUT: result["output"]}
    if not layout.is_item:
        record = thaw(state[layout.shared])
        kept = {name: record[name] for name in ("visits", "round") if name in record}
        return {layout.shared: {**kept, **result}}
    each = thaw(state[f"{layout.shared}:each"])
    kept = {name: each[name] for name in ("index", "visit")}
    if result["status"] == "failed":
        kept |= {name: each[name] for name in ("item", "inputs")}
    return {f"{layout.shared}:items": {each["key"]: {**kept, **result}}}
