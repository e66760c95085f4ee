"""How steps follow each other: by order, by `after`, by routes, as edges of a graph."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.data.state import State
from holdfast.define.builder import StateGraph
from holdfast.flows.ending import names_waited_for
from holdfast.flows.model import Step
from holdfast.flows.routing import Router
from holdfast.flows.scope import Layout
from holdfast.flows.work import never_skipped
from holdfast.plan.graph import Route
from holdfast.values import END, START


class Ways:
    """The edges between the steps of a workflow. `last` names the node of each step that its ways leave from."""

    def __init__(self, graph: StateGraph, layout: Layout, last: Mapping[str, str]) -> None:
        self._graph, self._layout, self._last = graph, layout, last
        self._steps = layout.definition.steps
        self._waits = {step.name: names_waited_for(step) for step in self._steps}
        self.by_order = follow_by_order(self._steps)
        self._onward: dict[str, str] = {}
        """The nodes that steps lead to if none of their routes holds."""

    def add(self) -> None:
        """Add every edge to the graph."""
        joined = {name for waits in self._waits.values() if len(waits) > 1 for name in waits}
        for index, step in enumerate(self._steps):
            followers = self._followers(index, step)
            if step.routes:
                self._add_routes(step, followers)
            elif step.end is not None or not (followers or step.name in joined):
                self._graph.add_edge(self._last[step.name], END)
            else:
                for name in followers:
                    self._graph.add_edge(self._last[step.name], name)
        self._begin()

    def _followers(self, index: int, step: Step) -> list[str]:
        """The steps that follow if no route is taken, those that wait for several left out."""
        if self.by_order:
            return [following.name for following in self._steps[index + 1 : index + 2]]
        return [name for name, waits in self._waits.items() if waits == [step.name]]

    def _add_routes(self, step: Step, followers: list[str]) -> None:
        following = None
        if not self.by_order and any(step.name in waits for waits in self._waits.values()):
            following = self._onward[step.name] = f"{step.name}:on"
            self._graph.add_node(following, _nothing, version="nothing", on_skip=never_skipped)
            for name in followers:
                self._graph.add_edge(following, name)
        router = Router(step, self._layout, following)
        mapping = {name: name for name in router.targets()}
        self._graph.add_route(Route(self._last[step.name], router, mapping, router.choices()))

    def _begin(self) -> None:
        """The edges from the start, and those of steps that wait for several."""
        entry = self._layout.definition.workflow.entry
        if self.by_order:
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


def _nothing(state: State) -> None:
    """A node that only stands for a place."""
