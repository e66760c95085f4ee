"""What a command is decided on: the run as it stands, its graph if that is at hand, and values on their way in."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast import clock
from holdfast.data.codec import Codec
from holdfast.data.frozen import thaw
from holdfast.data.ops import advance
from holdfast.data.schema import Schema
from holdfast.data.state import State
from holdfast.engine.commands.inbox import Change
from holdfast.engine.commands.meant import Refused
from holdfast.errors import HoldfastError
from holdfast.journal.run_state import DONE, Frame, RunState, Step
from holdfast.plan.graph import Graph
from holdfast.plan.naming import base_name, has_parts, outline_at, whole_of
from holdfast.suggestions import suggestion
from holdfast.values import START

logger = logging.getLogger("holdfast")


class NeedsGraph(Exception):
    """Only whoever has the run's graph can do this."""


@dataclass(frozen=True, slots=True)
class Ground:
    """A run that is asked for something. `driven` says that its running steps are really running."""

    run_id: str
    run: RunState
    codec: Codec
    graph: Graph | None
    driven: bool

    def graph_at(self, path: str) -> Graph:
        """The (sub-)graph of a frame."""
        if self.graph is None:
            raise NeedsGraph
        try:
            return self.graph.at(path)
        except KeyError:
            raise NeedsGraph from None

    def outline_at(self, path: str) -> Mapping[str, Any]:
        """The outline of the (sub-)graph of a frame."""
        whole = self.run.outline
        if not whole and self.graph is not None:
            whole = self.graph.outline()
        return outline_at(whole, path)

    def state(self, frame: Frame) -> State:
        """The state of a frame."""
        return State.view(frame.cells, self.codec, self.run_id, "", frame.last_node, clock.time())

    def state_for(self, step: Step) -> State:
        """The state as a step sees it."""
        state = self.state(self.run.frames[step.frame])
        return state.overlaid(advance({}, step.item)) if step.item else state

    def decoded(self, change: Change) -> Any:
        """The value of a change."""
        try:
            return self.codec.decode(change.value)
        except HoldfastError as error:
            raise Refused(f"{'.'.join(change.path)}: {error}") from None

    def settled(self, state: Mapping[str, Any], changes: Iterable[Change]) -> dict[str, Any]:
        """The whole new values of the keys that changes are made to or inside of."""
        result: dict[str, Any] = {}
        for change in changes:
            key, *inside = change.path
            if not inside:
                result[key] = self.decoded(change)
                continue
            if key not in result:
                if key not in state:
                    raise Refused(f"the state has no {key!r}{suggestion(key, state)}")
                result[key] = thaw(state[key])
            _put(result[key], inside, self.decoded(change), key)
        return result


def _put(whole: Any, path: list[str], value: Any, place: str) -> None:
    for part in path[:-1]:
        if isinstance(whole, dict) and part not in whole:
            raise Refused(f"{place!r} has no {part!r}{suggestion(part, map(str, whole))}")
        whole, place = (whole[part] if isinstance(whole, dict) else None), f"{place}.{part}"
    if not isinstance(whole, dict):
        raise Refused(f"{place!r} has no parts; change it as a whole")
    whole[path[-1]] = value


def checked(schema: Schema, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as a schema takes them; undeclared keys and wrong types are refused."""
    try:
        found = {}
        for key, value in values.items():
            validate = schema.channel(key).validate
            found[key] = value if validate is None else validate(value)
        return found
    except HoldfastError as error:
        raise Refused(str(error)) from None


def warn_of_decided_route(ground: Ground) -> None:
    """Warn after an edit that the way on was chosen before it, and say how to have it chosen again."""
    if ground.graph is not None and (note := _decided_route(ground.graph, ground.run)):
        logger.warning("run %s: %s", ground.run_id, note)


def _decided_route(graph: Graph, run: RunState) -> str:
    node = run.root.last_node or START
    chosen = [step.node for step in run.root.active.values() if step.status != DONE]
    edges = graph.edges_from.get(node, ())
    if not chosen or (node not in graph.route_from and all(edge.when is None for edge in edges)):
        return ""
    if node == START:
        return (
            f"the first nodes were chosen before this edit and are not chosen again: next is {_names(chosen)}; "
            "a new run with the edited values as its input has them chosen"
        )
    if node not in graph.nodes or whole_of(node, graph.nodes) or has_parts(node, graph.nodes):
        return ""
    return (
        f"the way on from {node!r} was chosen before this edit and is not chosen again: next is "
        f"{_names(chosen)}; a fork with as_node={node!r} has it chosen by the edited state"
    )


def _names(nodes: Iterable[str]) -> str:
    return ", ".join(repr(base_name(name)) for name in dict.fromkeys(nodes))
