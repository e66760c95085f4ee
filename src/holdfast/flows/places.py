"""Where in the state a workflow keeps what people speak of: inputs, the outputs of steps, items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import CommandRefused
from holdfast.suggestions import suggestion

Nodes = Mapping[str, Any]


def place_in_state(
    outline: Mapping[str, Any], words: Sequence[str], step: str = "", item: str = "item"
) -> tuple[str, ...]:
    """The place of `inputs.topic`, `steps.fetch.output` or `item` as a step sees it; without a step, the whole run.

    `item` is what the step calls its item. What is kept nowhere in the state is refused.
    """
    *around, own = step.partition("[")[0].split("/")
    nodes, shared, holder = _around(outline.get("nodes", {}), around)
    match tuple(words):
        case ("inputs", *inside):
            return (holder, "inputs", *inside) if holder else ("inputs", *inside)
        case ("steps", name, *inside) if inside:
            _check_output(nodes, name)
            return (f"{shared}/{name}" if shared else name, *inside)
        case (word, *inside) if word in ("item", item) and f"{own}:item" in nodes:
            return (f"{shared}/{own}:each" if shared else f"{own}:each", "item", *inside)
    known = "inputs.NAME and steps.NAME.output" + (f" and {item}" if f"{own}:item" in nodes else "")
    raise CommandRefused(f"{'.'.join(words)!r} cannot be changed; what can be is {known}")


def _around(nodes: Nodes, names: Sequence[str]) -> tuple[Nodes, str, str]:
    """The nodes of a sub-workflow, the key of the step that it is, and the key that holds its inputs."""
    shared = holder = ""
    for name in names:
        flow, each = nodes.get(f"{name}:flow"), nodes.get(f"{name}:item", {})
        inner = flow if flow is not None else each
        if "graph" not in inner:
            raise CommandRefused(f"there is no sub-workflow {name!r}{suggestion(name, nodes)}")
        shared = f"{shared}/{name}" if shared else name
        holder = shared if flow is not None else f"{shared}:each"
        nodes = inner["graph"]["nodes"]
    return nodes, shared, holder


def _check_output(nodes: Nodes, name: str) -> None:
    if name not in nodes or ":" in name:
        raise CommandRefused(f"there is no step {name!r}{suggestion(name, nodes)}")
    if f"{name}:done" in nodes and f"{name}:flow" not in nodes:
        raise CommandRefused(f"the output of {name!r} is put together from others; change those")
