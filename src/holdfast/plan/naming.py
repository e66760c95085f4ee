"""How the names of nodes belong together: `fetch:item` is a part of `fetch`, `outer/inner` is inside `outer`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any


def base_name(name: str) -> str:
    """The step that a node belongs to: `outer/publish` for its helper `outer:flow/publish:item`."""
    if ":" not in name:
        return name
    return "/".join(part.partition(":")[0] or part for part in name.split("/"))


def whole_of(node: str, nodes: Collection[str]) -> str:
    """The node that a node is only a part of: `fetch` for `fetch:item`; empty if it stands for itself."""
    base = node.partition(":")[0]
    return base if base != node and base in nodes else ""


def has_parts(node: str, nodes: Iterable[str]) -> bool:
    """Whether other nodes are parts of this one, so that it is not over when its own step is."""
    return any(name.startswith(f"{node}:") for name in nodes)


def renamed(names: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """The new names, by the old ones, of what is called as something that was renamed, or is a part of it."""
    return {
        name: f"{new}{name.removeprefix(old)}"
        for name in known
        for old, new in names.items()
        if name == old or name.startswith((f"{old}:", f"{old}/"))
    }


def renamed_nodes(names: Mapping[str, str], outline: Mapping[str, Any]) -> dict[str, str]:
    """The new names of all nodes of steps that were renamed, those in sub-graphs included; steps are `outer/inner`."""
    found: dict[str, str] = {}
    for node in outline_names(outline):
        home, _, own = node.rpartition("/")
        step, new_home = base_name(node), found.get(home, home)
        if step in names:
            part = own.removeprefix(step.rpartition("/")[2])
            own = names[step].rpartition("/")[2] + part
        new = f"{new_home}/{own}" if new_home else own
        if new != node:
            found[node] = new
    return found


def outline_names(outline: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The names of all nodes of an outline, those of sub-graphs after their own."""
    for name, node in outline.get("nodes", {}).items():
        yield prefix + name
        if "graph" in node:
            yield from outline_names(node["graph"], f"{prefix}{name}/")


def outline_at(outline: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The outline of the (sub-)graph that the frame of a path runs; empty if there is none."""
    for part in path.split("/") if path else ():
        node = outline.get("nodes", {}).get(part.rpartition("#")[0], {})
        outline = node.get("graph", {})
    return outline
