"""Outlines as text for people and as DOT for Graphviz."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.cli.display.outlines import Place, Way, places
from holdfast.cli.display.text import one_line
from holdfast.values import END, START


def outline_text(outline: Mapping[str, Any], kinds: Mapping[str, str]) -> str:
    """A folded outline by layers: what runs together, what follows what, and on which condition."""
    return "\n".join(_lines(outline, kinds, ""))


def _lines(outline: Mapping[str, Any], kinds: Mapping[str, str], indent: str) -> Iterator[str]:
    layer = -1
    width = max((len(name) for name in outline["nodes"]), default=0) + 2
    kind_width = max((len(kind) for kind in kinds.values()), default=0) + 2 if kinds else 0
    for place in places(outline):
        if place.layer != layer:
            layer = place.layer
            yield f"{indent}layer {layer}" if layer else f"{indent}reached by no way that is known"
        kind = kinds.get(place.name, "").ljust(kind_width)
        yield f"{indent}  {one_line(place.name, 300).ljust(width)}{kind}{one_line(_ways(place), 2_000)}".rstrip()
        if place.inner is not None:
            yield from _lines(place.inner, kinds, indent + "      ")


def _ways(place: Place) -> str:
    ways = "; ".join(_way(way) for way in place.ways) or "-> end"
    waits = f"after all of {', '.join(place.waits_for)}; " if place.waits_for else ""
    return waits + ways


def _way(way: Way) -> str:
    target = "end" if way.to == END else way.to
    if way.when == "otherwise":
        return f"-> {target} otherwise"
    if way.when:
        return f"-> {target} if {' '.join(way.when.split())}"
    return f"-> {target} (one of)" if way.choice else f"-> {target}"


def dot(outline: Mapping[str, Any]) -> str:
    """A folded outline in the DOT language; every name is quoted."""
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
    for place in places(outline):
        for way in place.ways or [Way(END)]:
            yield f'"{leaving[place.name]}" -> "{entry[way.to]}"{_attributes(way)};'


def _attributes(way: Way) -> str:
    parts = ["style=dashed"] if way.choice else []
    if way.when:
        parts.append(f"label={_quoted(way.when)}")
    return f" [{', '.join(parts)}]" if parts else ""


def _quoted(text: str) -> str:
    """Text as a DOT string."""
    clean = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", " ").replace("\n", "\\n")
    return f'"{"".join(letter for letter in clean if letter.isprintable())}"'
