"""`check`: the only validator. It reports every problem of a graph at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from holdfast.plan.executor_choice import executor_problems, missing_package
from holdfast.plan.graph import IF_INTERRUPTED, Graph
from holdfast.plan.retry import Retry
from holdfast.suggestions import suggestion
from holdfast.values import END, START

_FORBIDDEN = set("/#[]")
_ANYWHERE = "\0anywhere"
"""Stands for all nodes and the end, so that a thousand routes to anywhere are a thousand edges, not a million."""


def check(graph: Graph) -> list[str]:
    """Every problem of the graph, in the order of its nodes; empty if it can run."""
    problems = [*_names(graph), *_options(graph), *graph.schema.problems()]
    problems += _missing(graph)
    if not isinstance(graph.max_iterations, int) or graph.max_iterations < 1:
        problems.append(f"max_iterations must be a whole number of at least 1, not {graph.max_iterations!r}")
    if not graph.nodes:
        problems.append("there is no node; add one with add_node(name, function)")
    else:
        problems += _reachability(graph)
    for node in graph.nodes.values():
        if node.graph is not None:
            problems += [f"in sub-graph {node.name!r}: {problem}" for problem in check(node.graph)]
    return problems


def _names(graph: Graph) -> Iterator[str]:
    for name in graph.nodes:
        if not name or name in (START, END):
            yield f"{name!r} cannot be a node's name"
        elif _FORBIDDEN & set(name) or not name.isprintable():
            yield f"node name {name!r} may not contain / # [ ] or control characters"


def _options(graph: Graph) -> Iterator[str]:
    for node in graph.nodes.values():
        timeout = node.timeout
        if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
            yield f"node {node.name!r} has a timeout of {timeout!r}; it must be a number of seconds above 0"
        if node.retry is not None and not isinstance(node.retry, Retry):
            yield f"node {node.name!r} has retry={node.retry!r}; it must be a Retry(attempts=…)"
        limit = node.max_parallel
        if limit is not None and not (isinstance(limit, int) and limit >= 1):
            yield f"node {node.name!r} has max_parallel={limit!r}; it must be a whole number of at least 1"
        if isinstance(node.if_interrupted, str) and node.if_interrupted not in IF_INTERRUPTED:
            values = ", ".join(IF_INTERRUPTED)
            yield (
                f"node {node.name!r} has if_interrupted={node.if_interrupted!r}; "
                f"it must be one of {values}, or a function"
            )
        if node.executor is not None:
            repeats = node.if_interrupted == "rerun"
            found = list(executor_problems(node.executor, repeats, node.function))
            found += missing_package(node.executor) if not found else ()
            yield from (f"node {node.name!r} has {problem}" for problem in found)
    for route in graph.routes:
        if route.source in graph.edges_from:
            yield f"node {route.source!r} has both edges and a routing function; use one of them"


def _missing(graph: Graph) -> Iterator[str]:
    starts, ends = {*graph.nodes, START}, {*graph.nodes, END}
    for edge in graph.edges:
        yield from _known(edge.source, starts, f"edge {edge.source!r} -> {edge.target!r}", graph)
        yield from _known(edge.target, ends, f"edge {edge.source!r} -> {edge.target!r}", graph)
    for route in graph.routes:
        yield from _known(route.source, starts, f"the routes of {route.source!r}", graph)
        for target in (route.mapping or {}).values():
            yield from _known(target, ends, f"the routes of {route.source!r}", graph)
    for join in graph.joins:
        for source in join.sources:
            yield from _known(source, graph.nodes, f"the join before {join.target!r}", graph)
        yield from _known(join.target, ends, f"the join of {', '.join(map(repr, join.sources))}", graph)
    for name in sorted(graph.exits):
        yield from _known(name, graph.nodes, "the exit points", graph)
    if graph.last is not None:
        yield from _known(graph.last, graph.nodes, "the last node", graph)
    for node in graph.nodes.values():
        for target in node.goto:
            yield from _known(target, ends, f"goto of node {node.name!r}", graph)


def _known(name: str, known: Collection[str], where: str, graph: Graph) -> Iterator[str]:
    if name not in known:
        if name in (START, END):
            yield f"{where}: {name!r} cannot be used there"
        else:
            yield f"{where}: there is no node {name!r}{suggestion(name, graph.nodes)}"


def _successors(graph: Graph) -> dict[str, set[str]]:
    """Every node that may follow each node; a routing function without a mapping may go anywhere."""
    anywhere = {*graph.nodes, END}
    result: dict[str, set[str]] = {name: set() for name in (START, *graph.nodes)}
    result[_ANYWHERE] = anywhere
    for edge in graph.edges:
        result.setdefault(edge.source, set()).add(edge.target)
    for route in graph.routes:
        targets = [_ANYWHERE] if route.mapping is None else route.mapping.values()
        result.setdefault(route.source, set()).update(targets)
    for join in graph.joins:
        for source in join.sources:
            result.setdefault(source, set()).add(join.target)
    for found in result.values():
        if any(name not in anywhere and name != _ANYWHERE for name in found):
            found.add(END)  # A name that is wrong is reported as such; where it would lead is not known.
    for node in graph.nodes.values():
        result[node.name] |= set(node.goto)
        if node.name in graph.exits:
            result[node.name] = {END}
        elif graph.is_sink(node.name) and not graph.exits:
            result[node.name].add(END)
    return result


def _reachability(graph: Graph) -> Iterator[str]:
    after = _successors(graph)
    if not after[START]:
        yield "there is no way in; add_edge(START, first_node)"
        return
    reached = _walk(START, after)
    if graph.last is not None:
        reached |= {graph.last, *_walk(graph.last, after)}
    for name in graph.nodes:
        if name not in reached:
            yield (
                f"node {name!r} cannot be reached from START; add an edge to it, remove it, or, if only a "
                f"Command leads there, name it in add_node(…, goto=[{name!r}]) of the node that sends it"
            )
    if graph.exits:
        for name in graph.nodes:
            if name not in graph.exits and graph.is_sink(name) and not graph.nodes[name].goto:
                yield f"no outgoing edges from node: {name}; add one, or make it an exit point"
    ending = _walk(END, _reversed(after))
    stuck = [name for name in graph.nodes if name in reached and name not in ending]
    if stuck and not all(graph.is_sink(name) for name in stuck):
        listed = ", ".join(map(repr, stuck))
        yield f"cycle without exit: no path leads from {listed} to END; add an edge out of the cycle"


def _reversed(after: dict[str, set[str]]) -> dict[str, set[str]]:
    before: dict[str, set[str]] = {}
    for name, targets in after.items():
        for target in targets:
            before.setdefault(target, set()).add(name)
    return before


def _walk(start: str, after: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        for name in after.get(todo.pop(), ()):
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return seen
