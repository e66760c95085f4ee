"""What a node's return value means: changes of the state, and the nodes it chose to run next."""

from __future__ import annotations

from typing import Any

from holdfast.data.codec import Codec
from holdfast.data.ops import Cells, Op
from holdfast.data.schema import as_mapping
from holdfast.data.state import State
from holdfast.engine.route import merge_targets, to_targets
from holdfast.journal.records import Target
from holdfast.journal.run_state import Step
from holdfast.plan.graph import Command, Graph

Meaning = tuple[tuple[Op, ...], tuple[Target, ...] | None]


def meaning(graph: Graph, codec: Codec, cells: Cells, step: Step, value: Any) -> Meaning:
    """The changes and the next nodes that `value`, returned for `step`, asks for; nonsense is refused."""
    if type(value) is dict:
        return tuple(graph.schema.resolve(codec, cells, value)), None
    goto: tuple[Target, ...] | None = None
    if isinstance(value, Command):
        if value.goto is not None:
            chosen = value.goto if isinstance(value.goto, (list, tuple)) else (value.goto,)
            goto = merge_targets(graph, [(step.node, to_targets(graph, step.node, chosen, codec))])
        value = value.update
    if value is None:
        return (), goto
    if isinstance(value, State):
        return tuple(_between(graph, codec, cells, step, value)), goto
    update = as_mapping(value, f"what node {step.node!r} returns")
    return tuple(graph.schema.resolve(codec, cells, update)), goto


def _between(graph: Graph, codec: Codec, cells: Cells, step: Step, state: State) -> list[Op]:
    """The changes between two whole states, leaving out what the step's item merely overlaid."""
    overlay = {op.key: op.value for op in step.item}
    values = {key: state[key] for key in state if key not in overlay or state[key] is not overlay[key]}
    ops = graph.schema.replace(codec, cells, values)
    ops += [Op("drop", key, b"") for key in cells if key not in state]
    return ops
