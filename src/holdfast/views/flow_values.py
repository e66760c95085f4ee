"""What the steps of a workflow file resulted in, as its state keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def step_output(state: Mapping[str, Any], name: str, members: tuple[str, ...] = ()) -> Any:
    """The output of a step: its own, the list of its items', or those of its `members` by name; else `None`."""
    record = state.get(name)
    if not isinstance(record, Mapping):
        return None
    if "output" in record:
        return record["output"]
    items = state.get(f"{name}:items")
    if isinstance(items, Mapping):
        return _item_outputs(items, record.get("visits"))
    found = {member: state.get(member) for member in members}
    outputs = {
        key: one["output"] for key, one in found.items() if isinstance(one, Mapping) and "output" in one
    }
    return outputs or None


def _item_outputs(items: Mapping[str, Any], visit: Any) -> list[Any]:
    current = [item for item in items.values() if isinstance(item, Mapping) and item.get("visit") == visit]
    current.sort(key=lambda item: item.get("index") or 0)
    return [item.get("output") for item in current if "error" not in item]


def members_of(outline: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The steps of a group; none if the step is no group."""
    return groups_of(outline).get(name, ())


def groups_of(outline: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The steps of every group, by its name."""
    nodes = outline.get("nodes", {})
    groups = {name for name in nodes if f"{name}:done" in nodes}
    groups -= {name for name in groups if f"{name}:item" in nodes or f"{name}:flow" in nodes}
    found: dict[str, list[str]] = {}
    for name, targets in outline.get("routes", ()) if groups else ():
        if name in groups:
            found.setdefault(name, []).extend(target for target in targets if ":" not in target)
    return {name: tuple(members) for name, members in found.items()}
