"""What a node's return value means: changes of the state, and the nodes it chose to run next."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from holdfast.data.codec import Codec
from holdfast.data.ops import Cells, Op
from holdfast.data.schema import EVERYWHERE, Certain, as_mapping
from holdfast.data.state import State
from holdfast.engine.driving.route import to_targets
from holdfast.errors import StateInvalid
from holdfast.journal.records import Target
from holdfast.journal.run_state import Frame, Step
from holdfast.plan.graph import Command, Graph, Send

Meaning = tuple[tuple[Op, ...], tuple[Target, ...] | None]


def meaning(graph: Graph, codec: Codec, frame: Frame, step: Step, value: Any, given: State | None) -> Meaning:
    """The changes and the next nodes that `value`, returned for `step`, asks for; nonsense is refused.

    `given` is the state that the step received.
    """
    cells, certain = frame.cells, _certain(frame)
    reads = graph.nodes[step.node].reads
    if reads is not None:
        certain = certain_of(reads, certain)
    if type(value) is dict:
        return tuple(graph.schema.resolve(codec, cells, value, certain)), None
    if isinstance(value, Send):
        raise StateInvalid(f"node {step.node!r} returned a Send; return Command(goto=Send(…)) instead")
    goto: tuple[Target, ...] | None = None
    if isinstance(value, Command):
        if value.goto is not None:
            chosen = value.goto if isinstance(value.goto, (list, tuple)) else (value.goto,)
            goto = tuple(to_targets(graph, step.node, chosen, codec))
        value = value.update
    if value is None:
        return (), goto
    if isinstance(value, State):
        known = cells if certain is EVERYWHERE and not step.item else {}
        return tuple(_between(graph, codec, known, given or State(), value)), goto
    update = as_mapping(value, f"what node {step.node!r} returns")
    return tuple(graph.schema.resolve(codec, cells, update, certain)), goto


def _certain(frame: Frame) -> Certain:
    """For which keys it is certain what a step of this frame will change when its wave ends.

    A sub-graph's changes end up in its parent, which may hold something else by then; what the sub-graph
    itself has set before is certain.
    """
    if len(frame.active) > 1:
        return _SIBLINGS if frame.log is None else _NOWHERE
    if frame.log is None:
        return EVERYWHERE
    return Certain({key for key, ops in frame.log.items() if ops[0].kind == "set"})


def certain_of(reads: Collection[str], certain: Certain = EVERYWHERE) -> Certain:
    """Of what is certain only that which a node declares to read.

    Whatever else it sets is recorded as it is, even if the state held just that: where the node's result is taken over
    in a run that differs only in what the node does not read, it comes to the same.
    """
    return Certain(reads if certain.keys is None else {key for key in certain.keys if key in reads})


_SIBLINGS, _NOWHERE = Certain((), passed_on=True), Certain(())


def _between(graph: Graph, codec: Codec, cells: Cells, given: State, state: State) -> list[Op]:
    """The changes from the state that a step was given to the one it returned."""
    ops = graph.schema.replace(codec, cells, state.changed_since(given))
    ops += [Op("drop", key, b"") for key in given if key not in state]
    return ops
