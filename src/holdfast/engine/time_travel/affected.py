"""The nodes that have to run again when others do."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from holdfast.graph.graph import Graph
from holdfast.values import END, START

Successors = dict[str, set[str]]
"""The nodes that each node leads to, `START` included; in a sub-graph both are `outer/inner`."""


def affected_nodes(
    graph: Graph,
    seeds: Mapping[str, str],
    followed: Mapping[str, Collection[str]] | None = None,
    written: Mapping[str, Collection[str]] | None = None,
) -> dict[str, str]:
    """Return the nodes that are affected if those of `seeds` are, each with the reason.

    These are the seeds and all that comes after them in the graph; a sub-graph is affected as a whole by what comes
    before it, but a change inside of it affects only what follows there, and what follows the sub-graph. `followed`
    is what has followed what, for routing functions that do not say where they lead. `written` are the keys that
    the nodes have written: a node that declares to read one of an affected node is affected, too.
    """
    leads = all_successors(graph, followed or {})
    found = {name: reason for name, reason in seeds.items() if _exists(graph, name)}
    root, todo = {name: name for name in found}, list(found)
    while todo:
        while todo:
            name = todo.pop(0)
            if root[name] == name:
                found |= {inner: f"inside of {name!r}" for inner in inside(graph, name) if inner not in found}
            for other in _following(graph, leads, name):
                if other not in found:
                    found[other], root[other] = f"downstream of {root[name]!r}", root[name]
                    todo.append(other)
        todo = list(_readers(graph, found, written or {}))
        root |= {name: name for name in todo}
    order = {name: place for place, name in enumerate(all_nodes(graph))}
    return dict(sorted(found.items(), key=lambda pair: order[pair[0]]))


def all_successors(graph: Graph, followed: Mapping[str, Collection[str]], prefix: str = "") -> Successors:
    """What may follow each node of a graph and of its sub-graphs."""
    found: Successors = {prefix + name: set() for name in (START, *graph.nodes)}

    def note(source: str, *targets: str) -> None:
        found[prefix + source].update(prefix + target for target in targets if target != END)

    for edge in graph.edges:
        note(edge.source, edge.target)
    for join in graph.joins:
        for source in join.sources:
            note(source, join.target)
    for node in graph.nodes.values():
        note(node.name, *node.goto)
    for route in graph.routes:
        if route.mapping is not None:
            note(route.source, *route.mapping.values())
        else:
            found[prefix + route.source].update(followed.get(prefix + route.source, ()))
    for route in graph.routes:
        if route.mapping is None:
            found[prefix + route.source] |= _unreached(graph, found, prefix)
    for name in graph.nodes:
        if graph.last is not None and name != graph.last:
            note(name, graph.last)
        if (inner := graph.nodes[name].graph) is not None:
            found |= all_successors(inner, followed, f"{prefix}{name}/")
    return found


def all_nodes(graph: Graph, prefix: str = "") -> Iterator[str]:
    """The names of all nodes, those of sub-graphs after their own."""
    for name, node in graph.nodes.items():
        yield prefix + name
        if node.graph is not None:
            yield from all_nodes(node.graph, f"{prefix}{name}/")


def _unreached(graph: Graph, found: Successors, prefix: str) -> set[str]:
    """The nodes to which only a routing function that does not say so can lead."""
    reached = {target for targets in found.values() for target in targets}
    return {prefix + name for name in graph.nodes if prefix + name not in reached and name != graph.last}


def _exists(graph: Graph, name: str) -> bool:
    *outer, own = name.split("/")
    for part in outer:
        node = graph.nodes.get(part)
        if node is None or node.graph is None:
            return False
        graph = node.graph
    return own in graph.nodes


def _following(graph: Graph, leads: Successors, name: str) -> Iterator[str]:
    """What comes directly after a node, or after a sub-graph that it is in, with all that is inside of that."""
    place = name
    while place:
        for other in sorted(leads[place]):
            yield other
            yield from inside(graph, other)
        place = place.rpartition("/")[0]


def inside(graph: Graph, name: str) -> Iterator[str]:
    """The nodes of the sub-graph that a node is; none if it is a function."""
    node = None
    for part in name.split("/"):
        node = graph.nodes[part]
        graph = node.graph if node.graph is not None else graph
    if node is not None and node.graph is not None:
        yield from all_nodes(node.graph, f"{name}/")


def _readers(
    graph: Graph, found: dict[str, str], written: Mapping[str, Collection[str]], prefix: str = ""
) -> Iterator[str]:
    """The nodes that are affected only because of what they declare to read; `found` learns of them."""
    for name, node in graph.nodes.items():
        if node.graph is not None:
            yield from _readers(node.graph, found, written, f"{prefix}{name}/")
        reads = getattr(node, "reads", None)
        if reads is None or prefix + name in found:
            continue
        for writer in found:
            if shared := sorted({*reads} & {*written.get(writer, ())}):
                found[prefix + name] = f"it reads {shared[0]!r}, which {writer!r} writes"
                yield prefix + name
                break


def successors(graph: Graph, node: str) -> list[str]:
    """Return the nodes that may follow a node, as far as the graph tells without asking its functions."""
    chosen = [
        target for route in graph.routes if route.source == node for target in (route.mapping or {}).values()
    ]
    joined = [join.target for join in graph.joins if node in join.sources]
    found = [*(edge.target for edge in graph.edges if edge.source == node), *chosen, *joined]
    return [name for name in dict.fromkeys(found) if name != END]
