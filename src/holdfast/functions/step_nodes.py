"""The steps that a workflow's function calls, as the nodes of a graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.graph.graph import Graph, Node
from holdfast.state.schema import Schema

EMPTY: Mapping[str, Node] = {}


class StepNodes(dict[str, Node]):
    """The steps that a workflow's function calls, as they become known: any name may be one, or another workflow.

    `wrap` is given each that becomes known later.
    """

    def __init__(self, nodes: Mapping[str, Node] = EMPTY, wrap: Callable[[Node], Node] | None = None) -> None:
        super().__init__(nodes)
        self._wrap = wrap

    def learn(self, node: Node) -> None:
        """Know a step from now on. A workflow has steps of its own wherever it is called: it may call itself."""
        if not super().__contains__(node.name):
            if node.graph is not None:
                inner = steps_graph(node.name, StepNodes(node.graph.nodes))
                node = dataclasses.replace(node, graph=inner)
            self[node.name] = node if self._wrap is None else self._wrap(node)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)

    def __missing__(self, name: str) -> Node:
        return Node(name, graph=steps_graph(name, StepNodes()), wants=())

    def get(self, name: str, default: Any = None) -> Any:
        """Return the step of that name."""
        return self[name]


def steps_graph(name: str, nodes: StepNodes) -> Graph:
    """Return the graph of the steps that a workflow's function calls: nothing is known of their order."""
    return Graph(name, Schema(name, {}), nodes)
