"""What somebody says that a step of a workflow file came to, as what its node would have returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import CannotRerun
from holdfast.flows.work import Work
from holdfast.journal.run_state import frame_of, node_of
from holdfast.plan.graph import Graph


def returned(graph: Graph, step: str, output: Any) -> Callable[[Any], Mapping[str, Any]]:
    """What the node of a step, which is named by its id, returns for a state if this is the step's output."""
    node = graph.at(frame_of(step)).nodes[node_of(step).rpartition("/")[2]]
    work = getattr(node.function, "__self__", node.function)
    if not isinstance(work, Work):
        raise CannotRerun(f"step {step!r} is made of others; give the output of one of those")
    return lambda state: work.update(state, {"status": "completed", "output": output})
