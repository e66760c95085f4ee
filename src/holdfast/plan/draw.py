"""A graph as a Mermaid drawing."""

from __future__ import annotations

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
