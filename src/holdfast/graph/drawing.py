"""A graph as a Mermaid drawing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.values import END, START

_MOST_ANYWHERE = 50
"""In a larger graph a route that may lead to any node is drawn as one arrow, not as one to each."""


def mermaid(outline: dict[str, Any]) -> str:
    """Mermaid text of a graph's outline; works where the graph's code is not installed."""
    lines = ["flowchart TD"]
    _graph(outline, "", lines, "    ")
    return "\n".join(lines) + "\n"


def _graph(outline: dict[str, Any], prefix: str, lines: list[str], indent: str) -> None:
    ids = {START: f"{prefix}start", END: f"{prefix}finish"}
    lines.append(f"{indent}{ids[START]}((start))")
    for number, (name, node) in enumerate(outline["nodes"].items()):
        ids[name] = f"{prefix}n{number}"
        if "graph" in node:
            lines.append(f'{indent}subgraph {ids[name]}["{_label(name)}"]')
            _graph(node["graph"], f"{ids[name]}_", lines, indent + "    ")
            lines.append(f"{indent}end")
        else:
            lines.append(f'{indent}{ids[name]}["{_label(name)}"]')
    lines.append(f"{indent}{ids[END]}((end))")
    leaving = set()
    for source, target, label, conditional in outline["edges"]:
        leaving.add(source)
        text = f'|"{_label(label)}"|' if label else ""
        lines.append(f"{indent}{ids[source]} {'-.->' if conditional else '-->'}{text} {ids[target]}")
    for source, targets in outline["routes"]:
        leaving.add(source)
        anywhere = [*outline["nodes"], END] if len(outline["nodes"]) <= _MOST_ANYWHERE else []
        for target in targets or anywhere:
            lines.append(f"{indent}{ids[source]} -.-> {ids[target]}")
        if not targets and not anywhere:
            lines.append(f"{indent}{ids[source]} -.-> {prefix}anywhere{{{{any node}}}}")
    for sources, target in outline["joins"]:
        for source in sources:
            leaving.add(source)
            lines.append(f"{indent}{ids[source]} --> {ids[target]}")
    exits = set(outline["exits"])
    for name in outline["nodes"]:
        if name in exits or name not in leaving:
            lines.append(f"{indent}{ids[name]} --> {ids[END]}")


def _label(text: str) -> str:
    text = " ".join(text.split())
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


# The shape of an outline: the description of a graph in its runs, which a stranger may have written.


_DEEPEST = 50


def is_outline(outline: Any, depth: int = 0) -> bool:
    """Return whether a graph can be drawn of an outline: named nodes, and lists of names between them."""
    if not isinstance(outline, Mapping) or depth > _DEEPEST:
        return False
    nodes = outline.get("nodes", {})
    return (
        isinstance(outline.get("name", ""), str)
        and isinstance(nodes, Mapping)
        and all(isinstance(name, str) and _is_node(node, depth) for name, node in nodes.items())
        and _are_rows(outline.get("edges", []), (str, str, str, bool))
        and _are_rows(outline.get("routes", []), (str, list))
        and _are_rows(outline.get("joins", []), (list, str))
        and _are_names(outline.get("exits", []))
        and isinstance(outline.get("last", ""), str)
    )


def _is_node(node: Any, depth: int) -> bool:
    if not isinstance(node, Mapping):
        return False
    inner = node.get("graph")
    return inner is None or is_outline(inner, depth + 1)


def _are_rows(rows: Any, kinds: tuple[type, ...]) -> bool:
    """Return whether rows are lists of cells of these kinds; a list among them is one of names."""
    return isinstance(rows, list) and all(
        isinstance(row, list) and len(row) == len(kinds) and all(map(_is_cell, row, kinds)) for row in rows
    )


def _is_cell(value: Any, kind: type) -> bool:
    return _are_names(value) if kind is list else isinstance(value, kind)


def _are_names(names: Any) -> bool:
    return isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
