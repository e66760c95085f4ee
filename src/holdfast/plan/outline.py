"""The shape of an outline: the description of a graph in its runs, which a stranger may have written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
