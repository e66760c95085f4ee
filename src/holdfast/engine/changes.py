"""How the graph at hand differs from the one that a run was saved with: node by node, and in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.plan.fingerprint import digest_of, same_code
from holdfast.values import START

Outline = Mapping[str, Any]
NEW_NODE = "new"
OTHER_WAY = "what leads to it chooses otherwise"


def changed_nodes(
    saved: Outline, now: Outline, remap: Mapping[str, str] | None = None, prefix: str = ""
) -> dict[str, str]:
    """The nodes of a graph that are not as they were saved, with the reason in words; `outer/inner` in a sub-graph.

    `remap` says what was renamed since. A node that is gone is none of them; those that it led to are.
    """
    renamed = own_names(remap or {}, prefix)
    old = {renamed.get(name, name): node for name, node in saved.get("nodes", {}).items()}
    before, after = _predecessors(saved, renamed), _predecessors(now, {})
    turned = _turned(saved, now, renamed)
    found: dict[str, str] = {}
    for name, node in now.get("nodes", {}).items():
        if name not in old:
            found[prefix + name] = NEW_NODE
            continue
        inner = "graph" in old[name] and "graph" in node
        reason = "" if inner else why_changed(old[name], node)
        if not reason and before.get(name, set()) != after.get(name, set()):
            reason = f"its predecessors changed ({_place(after.get(name, set()))})"
        if name in turned:
            reason = f"{reason}, and {OTHER_WAY}" if reason else OTHER_WAY
        if reason:
            found[prefix + name] = reason
        if inner:
            found |= changed_nodes(old[name]["graph"], node["graph"], remap, f"{prefix}{name}/")
    return found


def changes_between(
    saved: Outline, now: Outline, remap: Mapping[str, str] | None = None, prefix: str = ""
) -> list[str]:
    """What differs between two outlines, in words."""
    renamed = own_names(remap or {}, prefix)
    old, new = {renamed.get(name, name): node for name, node in saved.get("nodes", {}).items()}, now["nodes"]
    changes = [
        f"node {prefix + name!r} was renamed to {prefix + to!r}"
        for name, to in renamed.items()
        if to in new and name != to
    ]
    changes += [f"node {prefix + name!r} was removed" for name in old if name not in new]
    changes += [f"node {prefix + name!r} was added" for name in new if name not in old]
    for name in old:
        if name not in new:
            continue
        if "graph" in old[name] and "graph" in new[name]:
            changes += changes_between(old[name]["graph"], new[name]["graph"], remap, f"{prefix}{name}/")
        elif why_changed(old[name], new[name]):
            changes.append(f"the code of node {prefix + name!r} changed")
    where = f"of {prefix.rstrip('/')} " if prefix else ""
    changes += [
        f"the {part} {where}changed"
        for part in ("edges", "routes", "joins", "exits", "last")
        if _wired(part, saved.get(part), renamed) != now.get(part)
    ]
    changes += [
        f"the way on from {'the beginning' if source == START else repr(prefix + source)} is chosen otherwise"
        for source in sources_turned(saved, now, renamed)
    ]
    if (one := saved.get("version", "")) != (other := now.get("version", "")):
        changes.append(f"the version {where}changed from {one!r} to {other!r}")
    return changes


def _wired(part: str, saved: Any, renamed: Mapping[str, str]) -> Any:
    """A part of an outline in which nodes are called as they are now."""
    if not renamed or saved is None:
        return saved

    def name(node: str) -> str:
        return renamed.get(node, node)

    match part:
        case "edges":
            return [[name(source), name(target), *rest] for source, target, *rest in saved]
        case "routes":
            return [[name(source), sorted(map(name, targets))] for source, targets in saved]
        case "joins":
            return [[list(map(name, sources)), name(target)] for sources, target in saved]
        case "exits":
            return sorted(map(name, saved))
    return name(saved)


def _turned(saved: Outline, now: Outline, renamed: Mapping[str, str]) -> set[str]:
    """The nodes that may follow where the way on is chosen otherwise now; where that is not told, the node itself."""
    found: set[str] = set()
    for source in sources_turned(saved, now, renamed):
        routes = [targets for start, targets in now.get("routes", ()) if start == source]
        targets = {target for start, target, *_ in now.get("edges", ()) if start == source}
        targets.update(target for each in routes for target in each)
        is_open = source != START and not all(routes)
        found |= {source} if is_open else targets if all(routes) else set(now.get("nodes", ()))
    return found


def sources_turned(saved: Outline, now: Outline, renamed: Mapping[str, str]) -> list[str]:
    """The nodes after which the way is chosen otherwise now; of older outlines that is not known."""
    before = {renamed.get(source, source): told for source, told in saved.get("choices", {}).items()}
    found = []
    for source, told in now.get("choices", {}).items():
        known = [[renamed.get(target, target), code] for target, code in before.get(source, told)]
        if len(known) != len(told) or not all(
            one == other and same_code(code, present)
            for (one, code), (other, present) in zip(known, told, strict=True)
        ):
            found.append(source)
    return found


def look_alike(saved: Outline, now: Outline, node: str) -> str:
    """The only new node that does what a node which is gone did, if there is one; of two outlines' nodes."""
    if node not in saved:
        return ""
    found = [name for name in now if name not in saved and not why_changed(saved[node], now[name])]
    return found[0] if len(found) == 1 and "graph" not in now[found[0]] else ""


def why_changed(saved: Outline, now: Outline) -> str:
    """What changed of one node's own work, in words; empty if nothing did, as far as can be told."""
    if ("graph" in saved) != ("graph" in now):
        return "it is a sub-graph now" if "graph" in now else "it is no longer a sub-graph"
    one, other = saved.get("version"), now.get("version")
    if one is not None and other is not None:
        return "" if one == other else f"version changed from {one!r} to {other!r}"
    if "graph" in now or same_code(saved["fingerprint"], now["fingerprint"]):
        return ""
    return "code changed from {} to {}".format(*digest_of(saved["fingerprint"], now["fingerprint"]))


def own_names(remap: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Of renamed nodes such as `outer/old` those of the (sub-)graph that has this prefix now, without it."""
    found = {}
    for old, new in remap.items():
        place, _, name = old.rpartition("/")
        if _moved(place, remap) == prefix:
            found[name] = new.rpartition("/")[2]
    return found


def name_now(node: str, remap: Mapping[str, str]) -> str:
    """What a node is called now that it, or a sub-graph that it is in, may have been renamed."""
    return _moved(node, remap).rstrip("/") if remap else node


def _moved(place: str, remap: Mapping[str, str]) -> str:
    """The prefix that a sub-graph has now if its own node, or one around it, was renamed."""
    parts = place.split("/") if place else []
    moved: list[str] = []
    for index, part in enumerate(parts):
        new = remap.get("/".join(parts[: index + 1]))
        moved.append(new.rpartition("/")[2] if new is not None else part)
    return "".join(f"{part}/" for part in moved)


def _predecessors(outline: Outline, renamed: Mapping[str, str]) -> dict[str, set[str]]:
    """What may lead to each node."""
    found: dict[str, set[str]] = {}

    def note(sources: Iterable[str], target: str) -> None:
        known = found.setdefault(renamed.get(target, target), set())
        known.update(renamed.get(source, source) for source in sources)

    for source, target, *_ in outline.get("edges", ()):
        note([source], target)
    for source, targets in outline.get("routes", ()):
        for target in targets:
            note([source], target)
    for sources, target in outline.get("joins", ()):
        note(sources, target)
    return found


def _place(sources: set[str]) -> str:
    names = [repr(name) for name in sorted(sources - {START})]
    if START in sources:
        names.insert(0, "the beginning")
    return f"now after {', '.join(names)}" if names else "now nothing leads to it"
