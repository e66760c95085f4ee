"""Parallel branches: what follows a parallel edge is a sub-graph of its own, and its state a result for the fan-in.

A branch begins at the target of its edge and ends where its edges lead to the fan-in, or end. It works on a copy of the
state; what it changed is not merged, but handed to the fan-in as one item of `parallel_results`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.graph.graph import RESULTS, CircuitBreaker, Command, Edge, Graph, Join, Node, Retry, Route
from holdfast.state.schema import Channel, Schema, append
from holdfast.values import END, START

ERROR = "error"
"""The key of a result that says why its branch failed, if the others went on without it."""

_FAILED = "branch_error"


@dataclass(frozen=True, slots=True)
class Branch:
    """A parallel edge, and the options that hold for the nodes that follow it."""

    source: str
    target: str
    fan_in: str
    timeout: float | None = None
    """How many seconds the whole branch may take in one execution."""
    retry: Retry | None = None
    circuit_breaker: CircuitBreaker | None = None
    fail_fast: bool = True
    """Whether a failure stops the run; else the branch ends there, and its result has an `error`."""


def with_branches(graph: Graph, branches: Sequence[Branch]) -> Graph:
    """Return a graph in which each branch is a node, with the nodes that follow its edge inside."""
    outer = _walk(START, _outer_successors(graph, branches))
    own = [branch for branch in branches if branch.source in outer]
    targets, clears = {branch.target: branch for branch in own}, {branch.fan_in for branch in own}
    inside: set[str] = set().union(*(_region(graph, branch, branches) for branch in own)) - outer
    nodes = {}
    for name, node in graph.nodes.items():
        if name in targets:
            inner = _inner(graph, targets[name], branches)
            nodes[name] = Node(name, graph=inner, is_branch=True, on_skip=node.on_skip)
        elif name not in inside:
            nodes[name] = dataclasses.replace(node, clears=(RESULTS,)) if name in clears else node
    left = {*nodes, START} - targets.keys()
    edges = [edge for edge in graph.edges if edge.source in left and edge.target not in clears]
    edges += [Edge(branch.source, branch.target) for branch in own]
    joins = [join for join in graph.joins if left.issuperset(join.sources)]
    for fan_in in dict.fromkeys(branch.fan_in for branch in own):
        sources = [branch.target for branch in own if branch.fan_in == fan_in]
        sources += [edge.source for edge in graph.edges if edge.target == fan_in and edge.source in left]
        sources = list(dict.fromkeys(sources))
        if len(sources) == 1:
            edges.append(Edge(sources[0], fan_in))
        else:
            joins.append(Join(tuple(sources), fan_in))
    return dataclasses.replace(
        graph,
        schema=_with_channels(graph.schema, Channel(RESULTS, reducer=append)),
        nodes=nodes,
        edges=tuple(edges),
        routes=tuple(route for route in graph.routes if route.source in left),
        joins=tuple(joins),
        exits=graph.exits - inside,
    )


def problems_of(graph: Graph, branches: Sequence[Branch]) -> Iterator[str]:
    """Yield why parallel edges cannot be what they say."""
    follows = _outer_successors(graph, branches)
    outer = _walk(START, follows)
    for branch in branches:
        place = f"parallel edge {branch.source!r} -> {branch.target!r}"
        for name in (branch.source, branch.target, branch.fan_in):
            if name not in graph.nodes and not (name == START and name == branch.source):
                yield f"{place}, fan-in {branch.fan_in!r}: there is no node {name!r}"
        if branch.target in (branch.source, branch.fan_in):
            yield f"{place}: a branch has a node of its own, which is not its fan-in or its source"
        elif any(branch.target in targets for name, targets in follows.items() if name in outer):
            yield (
                f"{place}: {branch.target!r} also follows another node by a plain edge; "
                "begin the branch with a node of its own"
            )
        if any(edge.when is not None for edge in graph.edges_from.get(branch.source, ())):
            yield f"node {branch.source!r} has parallel edges and edges with conditions; put a node between them"
        for edge in graph.edges:
            if edge.target == branch.fan_in and edge.when is not None and edge.source in outer:
                yield (
                    f"edge {edge.source!r} -> {edge.target!r}: what leads to a fan-in cannot have a condition, "
                    "except in a branch"
                )


def qualified_places(graph: Graph, name: str) -> list[str]:
    """Return where a node of this name is: in the graph, and in its branches as `branch/name`."""
    found = []
    for node in graph.nodes.values():
        if node.is_branch and node.graph is not None:
            found += [f"{node.name}/{place}" for place in qualified_places(node.graph, name)]
        elif node.name == name:
            found.append(name)
    return found


def _successors(graph: Graph) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for edge in graph.edges:
        found.setdefault(edge.source, set()).add(edge.target)
    for route in graph.routes:
        found.setdefault(route.source, set()).update((route.mapping or {}).values())
    for join in graph.joins:
        for source in join.sources:
            found.setdefault(source, set()).add(join.target)
    for node in graph.nodes.values():
        found.setdefault(node.name, set()).update(node.goto)
    return found


def _outer_successors(graph: Graph, branches: Sequence[Branch]) -> dict[str, set[str]]:
    """Return what follows each node outside of branches: after a parallel edge that is the fan-in."""
    found = _successors(graph)
    for branch in branches:
        found.setdefault(branch.source, set()).add(branch.fan_in)
    return found


def _walk(start: str, after: Mapping[str, set[str]], stop: str = "") -> set[str]:
    seen, todo = {start}, [start]
    while todo:
        fresh = after.get(todo.pop(), set()) - seen - {stop, END}
        seen |= fresh
        todo += fresh
    return seen


def _region(graph: Graph, branch: Branch, branches: Sequence[Branch]) -> set[str]:
    """Return the nodes that a branch leads through, those of branches inside it included."""
    after = _outer_successors(graph, branches)
    for other in branches:
        after[other.source].add(other.target)
    return _walk(branch.target, after, branch.fan_in)


def _inner(graph: Graph, branch: Branch, branches: Sequence[Branch]) -> Graph:
    """Return the graph that a branch runs."""
    region, end = _region(graph, branch, branches), {branch.fan_in: END}
    nodes = {name: _within(node, branch) for name, node in graph.nodes.items() if name in region}
    edges = [
        dataclasses.replace(edge, target=end.get(edge.target, edge.target))
        for edge in graph.edges
        if edge.source in region
    ]
    routes = [_rerouted(route, end) for route in graph.routes if route.source in region]
    inner = dataclasses.replace(
        graph,
        name=branch.target,
        schema=_with_channels(graph.schema, Channel(_FAILED)),
        nodes=nodes,
        edges=(Edge(START, branch.target), *edges),
        routes=tuple(routes),
        joins=tuple(join for join in graph.joins if region.issuperset(join.sources)),
        exits=graph.exits & region,
        last=None,
        migrations={},
    )
    nested = [each for each in branches if each.source in region and each.target != branch.target]
    return with_branches(inner, nested) if nested else inner


def _rerouted(route: Route, end: Mapping[str, str]) -> Route:
    if route.mapping is None:
        return route
    return dataclasses.replace(
        route, mapping={key: end.get(name, name) for key, name in route.mapping.items()}
    )


def _within(node: Node, branch: Branch) -> Node:
    """Return a node with the options of its branch where it has none of its own."""
    if node.graph is not None:
        return node
    on_error = node.on_error if node.on_error is not None or branch.fail_fast else _ended
    return dataclasses.replace(
        node,
        retry=node.retry or branch.retry,
        circuit_breaker=node.circuit_breaker or branch.circuit_breaker,
        branch_timeout=node.branch_timeout or branch.timeout,
        on_error=on_error,
    )


def _ended(state: Any, error: BaseException) -> Command:
    """End a branch whose node failed, while the others go on."""
    return Command({_FAILED: f"{type(error).__name__}: {error}"}, goto=END)


def result_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a branch that ended with this state."""
    result = {key: state[key] for key in state if key not in (RESULTS, _FAILED)}
    if _FAILED in state:
        result[ERROR] = state[_FAILED]
    return result


def _with_channels(schema: Schema, *added: Channel) -> Schema:
    own = {channel.name: channel for channel in added}
    return Schema(schema.name, {**schema.channels, **own}, is_open=schema.is_open)
