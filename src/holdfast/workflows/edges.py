"""How steps follow each other: by order, by `after`, by routes, as edges of a graph; and the end of a workflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.graph.builder import StateGraph
from holdfast.graph.fingerprint import fingerprint
from holdfast.graph.graph import Command
from holdfast.graph.graph import Route as GraphRoute
from holdfast.state.ops import thaw
from holdfast.state.state import State, origin_of
from holdfast.values import END, START
from holdfast.workflows.errors import NoRoute, StepFailed
from holdfast.workflows.kinds.kind import Tree
from holdfast.workflows.language.templates import Expression, TemplateError, compile_expression
from holdfast.workflows.model import END_ROUTE, Route, Step
from holdfast.workflows.scope import Layout, Resources, Scope, steps_named, values_named
from holdfast.workflows.step import Work, error_text, never_skipped


class Router:
    """The routing function of one step. `following` is the node that follows if no route holds, if there is one."""

    def __init__(self, step: Step, layout: Layout, following: str | None) -> None:
        self._step, self._layout, self._following = step, layout, following
        self._routes: list[tuple[Route, str, Expression | None]] = [
            (
                route,
                END if route.to == END_ROUTE else route.to,
                None if route.when is None else compile_expression(route.when),
            )
            for route in step.routes or ()
        ]
        self._names = steps_named({path for *_, when in self._routes if when for path in when.paths})

    def edge(self, source: str) -> GraphRoute:
        """Return the route of a graph, each of its choices with the fingerprint of its condition."""
        workflow, choices = self._layout.definition.workflow, []
        for route, node, when in self._routes:
            values = [] if when is None else values_named(when.paths, workflow)
            choices.append((node, fingerprint(repr((route.when, values)))))
        if self._following is not None:
            choices.append((self._following, fingerprint("else")))
        return GraphRoute(source, self, {node: node for node, _ in choices}, tuple(choices))

    def __call__(self, state: State) -> str:
        """Return the node that follows."""
        record = self._layout.view(state, self._step.name)
        is_skipped = record["status"] == "skipped"
        facts = {name: record.get(name) for name in ("output", "answer", "status", "error")}
        scope = Scope(self._layout, state, self._names, **facts)
        for number, (route, node, when) in enumerate(self._routes, 1):
            try:
                if when is None or (not is_skipped and when.value(scope)):
                    return node
            except TemplateError as error:
                raise self._error(f"route {number} (to: {route.to}) cannot be evaluated: {error}") from None
        if self._following is not None:
            return self._following
        if is_skipped:
            raise self._error("it was skipped, and none of its routes is without a condition; add one")
        raise self._error("no route holds; add one without `when` (to: $end, perhaps)")

    def _error(self, reason: str) -> NoRoute:
        return NoRoute(self._step.name, f"step {self._step.name!r}: {reason}")


class Edges:
    """The edges between the steps of a workflow. `last` names the last node of each step."""

    def __init__(self, graph: StateGraph, layout: Layout, last: Mapping[str, str]) -> None:
        self._graph, self._layout, self._last = graph, layout, last
        self._steps = layout.definition.steps
        self._waits = {step.name: names_waited_for(step) for step in self._steps}
        self._by_order = follow_by_order(self._steps)
        self._onward: dict[str, str] = {}
        """The nodes that steps lead to if none of their routes holds."""

    def add(self) -> None:
        """Add every edge to the graph."""
        joined = {name for waits in self._waits.values() if len(waits) > 1 for name in waits}
        for index, step in enumerate(self._steps):
            if self._by_order:
                followers = [following.name for following in self._steps[index + 1 : index + 2]]
            else:
                followers = [name for name, waits in self._waits.items() if waits == [step.name]]
            if step.routes:
                self._add_routes(step, followers)
            elif step.end is not None or not (followers or step.name in joined):
                self._graph.add_edge(self._last[step.name], END)
            else:
                for name in followers:
                    self._graph.add_edge(self._last[step.name], name)
        self._begin()

    def _add_routes(self, step: Step, followers: list[str]) -> None:
        following = None
        if not self._by_order and any(step.name in waits for waits in self._waits.values()):
            following = self._onward[step.name] = f"{step.name}:on"
            self._graph.add_node(following, _nothing, version="nothing", on_skip=never_skipped)
            for name in followers:
                self._graph.add_edge(following, name)
        self._graph.add_route(Router(step, self._layout, following).edge(self._last[step.name]))

    def _begin(self) -> None:
        """The edges from the start, and those of steps that wait for several."""
        entry = self._layout.definition.workflow.entry
        if self._by_order:
            self._graph.add_edge(START, entry or self._steps[0].name)
            return
        routed = {route.to for step in self._steps for route in step.routes or ()}
        for step in self._steps:
            waits = self._waits[step.name]
            if not waits and (step.name not in routed or step.name == entry):
                self._graph.add_edge(START, step.name)
            if len(waits) > 1:
                self._graph.add_edge([self._onward.get(name, self._last[name]) for name in waits], step.name)


def follow_by_order(steps: list[Step]) -> bool:
    """Whether steps follow each other in the order of the file: so it is unless one of them waits for another."""
    return not any(step.after for step in steps)


def names_waited_for(step: Step) -> list[str]:
    """Return the names of the steps that a step waits for."""
    return list(dict.fromkeys(after.step for after in step.after))


def _nothing(state: State) -> None:
    """A node that only stands for a place."""


# The end of a workflow: its output, what is still due, and how a sub-workflow hands over what became of it.


OUTPUT = "output"
"""The last node, and the state key of what it makes."""


class Ending:
    """The last node of a workflow."""

    def __init__(self, layout: Layout, resources: Resources, by_order: bool) -> None:
        self._layout, self._resources = layout, resources
        self._output = Tree("output", layout.definition.output)
        self.paths = self._output.paths
        """The places of the scope that the output reads."""
        steps = [] if by_order else layout.definition.steps
        routed = {route.to for step in steps for route in step.routes or ()}
        choosing = {step.name for step in steps if step.routes}
        self.expected = [
            step for step in steps if step.name not in routed and not choosing & set(names_waited_for(step))
        ]
        """The steps that are to be done in every run: those that no route leads to or past."""

    def finish(self, state: State) -> Any:
        """The workflow's output, unless steps that were added while the run was under way are still to be done."""
        if self._layout.has_failed(state):
            return None
        done = {step.name for step in self._layout.definition.steps if self._layout.record(state, step.name)}
        due = [
            step.name
            for step in self.expected
            if step.name not in done and done.issuperset(names_waited_for(step))
        ]
        if due:
            return Command(goto=tuple(due))
        return handed_over(self._layout, state, {"status": "completed", "output": self._result(state)})

    def _result(self, state: State) -> Any:
        if self._layout.definition.output is None:
            return last_output(self._layout, state)
        try:
            return self._resources.hide(self._output.fill(Scope(self._layout, state)))
        except StepFailed as error:
            raise HoldfastError(f"the workflow's {error}") from None


def last_output(layout: Layout, state: State) -> Any:
    """Return the output of the step that ran last."""
    name = origin_of(state).checkpoint_node.partition(":")[0]
    return layout.view(state, name).get("output") if name in layout.steps else None


def ended_early(work: Work, state: State, error: BaseException) -> Command:
    """Return what stands in for a failed step whose workflow is to fail as a step of another, and not fail the run."""
    layout = work.layout
    if layout.has_failed(state):
        return Command(work.failed(state, error), goto=[])
    reason = work.resources.hide(f"step {work.step.name!r}: {error_text(error)}")
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
