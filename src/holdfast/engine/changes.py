"""What a node's return value means: changes of the state, and the nodes it chose to run next."""

from __future__ import annotations

from typing import Any

from holdfast.data.codec import Codec
from holdfast.data.ops import Cells, Op
from holdfast.data.schema import as_mapping
from holdfast.data.state import State
from holdfast.engine.route import to_targets
from holdfast.journal.records import Target
from holdfast.journal.run_state import Step
from holdfast.plan.graph import Command, Graph

Meaning = tuple[tuple[Op, ...], tuple[Target, ...] | None]


def meaning(
    graph: Graph, codec: Codec, cells: Cells, step: Step, value: Any, given: State | None, alone: bool
) -> Meaning:
    """The changes and the next nodes that `value`, returned for `step`, asks for; nonsense is refused.

    `given` is the state that the step received; `alone` says that nothing else changes the state meanwhile.
    """
    if type(value) is dict:
        return tuple(graph.schema.resolve(codec, cells, value, alone=alone)), None
    goto: tuple[Target, ...] | None = None
    if isinstance(value, Command):
        if value.goto is not None:
            chosen = value.goto if isinstance(value.goto, (list, tuple)) else (value.goto,)
            goto = tuple(to_targets(graph, step.node, chosen, codec))
        value = value.update
    if value is None:
        return (), goto
    if isinstance(value, State):
        return tuple(_between(graph, codec, given or State(), value)), goto
    update = as_mapping(value, f"what node {step.node!r} returns")
    return tuple(graph.schema.resolve(codec, cells, update, alone=alone)), goto


def _between(graph: Graph, codec: Codec, given: State, state: State) -> list[Op]:
    """The changes from the state that a step was given to the one it returned."""
    ops = graph.schema.replace(codec, {}, state.changed_since(given))
    ops += [Op("drop", key, b"") for key in given if key not in state]
    return ops
