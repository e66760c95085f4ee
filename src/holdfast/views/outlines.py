"""A graph's outline for people: helper nodes folded into their steps, steps in layers, as text and as DOT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.graph.graph import base_name
from holdfast.values import END, START
from holdfast.views.plain import escaped
from holdfast.views.run_view import groups_of


@dataclass(frozen=True, slots=True)
class Route:
    """A route from a step to the next. `when` is its condition; a `choice` is one of several routes."""

    to: str
    when: str = ""
    choice: bool = False

    def as_json(self) -> dict[str, Any]:
        """Keys: to, when, choice; the end is `$end`."""
        return {"to": "$end" if self.to == END else self.to, "when": self.when, "choice": self.choice}


@dataclass(slots=True)
class OutlineStep:
    """A step in an outline: its layer and its routes."""

    name: str
    routes: list[Route] = field(default_factory=list)
    waits_for: list[str] = field(default_factory=list)
    """The steps that all have to finish before it starts."""
    inner: Mapping[str, Any] | None = None
    layer: int = 0
    """The length of the longest path to it. A run's waves are counted otherwise: a loop takes several."""


def folded(outline: Mapping[str, Any], *, of_file: bool) -> dict[str, Any]:
    """Return an outline of steps only: helpers become the step they belong to.

    Of a workflow file the members of a group become a graph inside it, and the last node, which only makes the
    output, is left out.
    """
    groups = groups_of(outline) if of_file else {}
    step = _Steps(groups, outline.get("last") if of_file else None)
    nodes: dict[str, Any] = {step(name): {} for name in outline["nodes"] if step(name) != END}
    for name, node in outline["nodes"].items():
        if "graph" in node and step(name) == base_name(name):
            nodes[step(name)] = {"graph": folded(node["graph"], of_file=of_file)}
    for name, members in groups.items():
        if members and name in nodes:
            nodes[name] = {"graph": _group(outline, name, members)}
    joins = {(tuple(dict.fromkeys(map(step, sources))), step(target)) for sources, target in outline["joins"]}
    return {
        "name": outline["name"],
        "nodes": nodes,
        "edges": [list(edge) for edge in _folded_edges(outline, step)],
        "routes": [[source, list(targets)] for source, targets in _folded_routes(outline, step).items()],
        "joins": [[list(sources), target] for sources, target in sorted(joins) if sources != (target,)],
        "exits": sorted({step(name) for name in outline["exits"]} - {END}),
    }


class _Steps:
    """The step that each node belongs to, as seen from outside of groups."""

    def __init__(self, groups: Mapping[str, tuple[str, ...]], final: str | None) -> None:
        self._group_of = {member: name for name, members in groups.items() for member in members}
        self._final = final

    def __call__(self, node: str) -> str:
        name = base_name(node)
        return END if node == self._final else self._group_of.get(name, name)


def _group(outline: Mapping[str, Any], name: str, members: tuple[str, ...]) -> dict[str, Any]:
    """Return the members of a group as a graph of its own: all side by side."""
    nodes: dict[str, Any] = {}
    for member in members:
        inner = [outline["nodes"].get(node, {}) for node in (f"{member}:workflow", f"{member}:item", member)]
        graphs = [node["graph"] for node in inner if "graph" in node]
        nodes[member] = {"graph": folded(graphs[0], of_file=True)} if graphs else {}
    edges = [[START, member, "", False] for member in members]
    edges += [[member, END, "", False] for member in members]
    return {"name": name, "nodes": nodes, "edges": edges, "routes": [], "joins": [], "exits": []}


def _folded_edges(outline: Mapping[str, Any], step: _Steps) -> dict[tuple[str, str, str, bool], None]:
    """Return the edges between steps, in order; those inside one step are left out."""
    found: dict[tuple[str, str, str, bool], None] = {}
    for source, target, label, conditional in outline["edges"]:
        inside = step(source) == step(target) and source != target
        if not inside and step(source) != END:
            found[(step(source), step(target), label, conditional)] = None
    return found


def _folded_routes(outline: Mapping[str, Any], step: _Steps) -> dict[str, list[str]]:
    found: dict[str, dict[str, None]] = {}
    for source, targets in outline["routes"]:
        named = [step(target) for target in targets if step(target) != step(source) or target == source]
        if named or not targets:
            found.setdefault(step(source), {}).update(dict.fromkeys(named))
    return {source: list(targets) for source, targets in found.items()}


def with_conditions(outline: dict[str, Any], routes: Mapping[str, list[tuple[str, str]]]) -> dict[str, Any]:
    """Return a folded outline with the conditions of the steps' routes, in their order."""
    chosen = [
        [source, END if to == "$end" else to, when, bool(when)]
        for source, chosen in routes.items()
        for to, when in chosen
    ]
    known = {source: {END if to == "$end" else to for to, _ in chosen} for source, chosen in routes.items()}
    rest = [
        [source, [target for target in targets if target not in known.get(source, ())]]
        for source, targets in outline["routes"]
    ]
    left = [route for route in rest if route[1] or route[0] not in known]
    return {**outline, "edges": [*outline["edges"], *chosen], "routes": left}


def steps_of(outline: Mapping[str, Any]) -> list[OutlineStep]:
    """Return the steps of a folded outline, by layers and then in the order they were written."""
    found = {name: OutlineStep(name, inner=node.get("graph")) for name, node in outline["nodes"].items()}
    first: list[str] = []
    for source, target, label, conditional in outline["edges"]:
        if source == START:
            first.append(target)
        elif source in found:
            found[source].routes.append(Route(target, label, conditional))
    for source, targets in outline["routes"]:
        if source == START:
            first += targets
        elif source in found:
            found[source].routes += [Route(target, choice=True) for target in targets]
    for sources, target in outline["joins"]:
        if target in found:
            found[target].waits_for += sources
        for source in sources:
            if source in found:
                found[source].routes.append(Route(target))
    for name in dict.fromkeys(outline["exits"]):
        if name in found and not any(route.to == END for route in found[name].routes):
            found[name].routes.append(Route(END))
    _put_into_layers(found, first)
    return sorted(found.values(), key=lambda step: step.layer or len(found) + 1)


def _put_into_layers(found: dict[str, OutlineStep], first: list[str]) -> None:
    """Set each step's layer to the length of the longest path to it without loops; unreachable steps keep 0."""
    left: list[str] = []
    loops: set[tuple[str, str]] = set()
    seen: set[str] = set()
    for name in first:
        for done, loop in _walk(found, name, seen):
            left += [done] if done is not None else []
            loops |= {loop} if loop is not None else set()
    for name in reversed(left):
        step = found[name]
        step.layer = step.layer or 1
        for route in step.routes:
            target = found.get(route.to)
            if target is not None and (name, route.to) not in loops:
                target.layer = max(target.layer, step.layer + 1)


def _walk(
    found: dict[str, OutlineStep], start: str, seen: set[str]
) -> Iterator[tuple[str | None, tuple[str, str] | None]]:
    """Walk every route once: yield each step when it is left for good, and each route that leads back."""
    if start not in found or start in seen:
        return
    seen.add(start)
    stack = [(start, iter(found[start].routes))]
    open_now = {start}
    while stack:
        name, routes = stack[-1]
        route = next(routes, None)
        if route is None:
            stack.pop()
            open_now.discard(name)
            yield name, None
        elif route.to in open_now:
            yield None, (name, route.to)
        elif route.to in found and route.to not in seen:
            seen.add(route.to)
            open_now.add(route.to)
            stack.append((route.to, iter(found[route.to].routes)))


# Outlines as text and as DOT.


def outline_text(outline: Mapping[str, Any], kinds: Mapping[str, str]) -> str:
    """Return a folded outline by layers: what runs together, what follows what, and on which condition."""
    return "\n".join(_lines(outline, kinds, ""))


def _lines(outline: Mapping[str, Any], kinds: Mapping[str, str], indent: str) -> Iterator[str]:
    layer = -1
    width = max((len(name) for name in outline["nodes"]), default=0) + 2
    kind_width = max((len(kind) for kind in kinds.values()), default=0) + 2 if kinds else 0
    for step in steps_of(outline):
        if step.layer != layer:
            layer = step.layer
            yield f"{indent}layer {layer}" if layer else f"{indent}not reached by any known route"
        kind = kinds.get(step.name, "").ljust(kind_width)
        yield f"{indent}  {_cut(step.name, 300).ljust(width)}{kind}{_cut(_routes(step), 2_000)}".rstrip()
        if step.inner is not None:
            yield from _lines(step.inner, kinds, indent + "      ")


def _cut(text: str, limit: int) -> str:
    line = " ".join(escaped(text).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _routes(step: OutlineStep) -> str:
    routes = "; ".join(_route(route) for route in step.routes) or "-> end"
    waits = f"after all of {', '.join(step.waits_for)}; " if step.waits_for else ""
    return waits + routes


def _route(route: Route) -> str:
    target = "end" if route.to == END else route.to
    if route.when == "otherwise":
        return f"-> {target} otherwise"
    if route.when:
        return f"-> {target} if {' '.join(route.when.split())}"
    return f"-> {target} (one of)" if route.choice else f"-> {target}"


def dot(outline: Mapping[str, Any]) -> str:
    """Return a folded outline in the DOT language; every name is quoted."""
    lines = [f"digraph {_quoted(str(outline['name']))} {{", "  node [shape=box];"]
    lines += _graph(outline, "", "  ")
    return "\n".join([*lines, "}"]) + "\n"


def _graph(outline: Mapping[str, Any], prefix: str, indent: str) -> Iterator[str]:
    entry = {START: f"{prefix}start", END: f"{prefix}end"}
    leaving = dict(entry)
    yield f'{indent}"{entry[START]}" [label="start", shape=circle];'
    for number, (name, node) in enumerate(outline["nodes"].items()):
        ident = f"{prefix}n{number}"
        if "graph" in node:
            entry[name], leaving[name] = f"{ident}_start", f"{ident}_end"
            yield f'{indent}subgraph "cluster_{ident}" {{'
            yield f"{indent}  label={_quoted(name)};"
            yield from _graph(node["graph"], f"{ident}_", indent + "  ")
            yield f"{indent}}}"
        else:
            entry[name] = leaving[name] = ident
            yield f'{indent}"{ident}" [label={_quoted(name)}];'
    yield f'{indent}"{entry[END]}" [label="end", shape=doublecircle];'
    yield from (f"{indent}{line}" for line in _edges(outline, entry, leaving))


def _edges(outline: Mapping[str, Any], entry: dict[str, str], leaving: dict[str, str]) -> Iterator[str]:
    for source, target, _, _ in outline["edges"]:
        if source == START:
            yield f'"{leaving[START]}" -> "{entry[target]}";'
    for source, targets in outline["routes"]:
        for target in targets if source == START else ():
            yield f'"{leaving[START]}" -> "{entry[target]}" [style=dashed];'
    for step in steps_of(outline):
        for route in step.routes or [Route(END)]:
            yield f'"{leaving[step.name]}" -> "{entry[route.to]}"{_attributes(route)};'


def _attributes(route: Route) -> str:
    parts = ["style=dashed"] if route.choice else []
    if route.when:
        parts.append(f"label={_quoted(route.when)}")
    return f" [{', '.join(parts)}]" if parts else ""


def _quoted(text: str) -> str:
    """Return text as a DOT string."""
    clean = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", " ").replace("\n", "\\n")
    return f'"{"".join(sign for sign in clean if sign.isprintable())}"'
