"""The run that a command is applied to: its steps and frames by name, its state, and its graph if known."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast import clock
from holdfast.engine.commands.inbox import Change
from holdfast.engine.decide import qualified
from holdfast.errors import HoldfastError, suggestion
from holdfast.graph.graph import Graph, base_name, has_parts, outline_at, outline_names, whole_of
from holdfast.journal.run_state import DONE, Frame, RunState, Step
from holdfast.state.codec import Codec
from holdfast.state.ops import advance, thaw
from holdfast.state.state import State, overlaid, state_view
from holdfast.values import START, readable_step

logger = logging.getLogger("holdfast")


class Refused(Exception):
    """A command cannot be applied; the text says why."""


class NeedsGraph(Exception):
    """A command can only be applied by a process that has the run's graph."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A run that a command is applied to. `executing` says that its running steps are really running."""

    run_id: str
    run: RunState
    codec: Codec
    graph: Graph | None
    executing: bool = False

    def graph_at(self, path: str) -> Graph:
        """Return the (sub-)graph of a frame; raise `NeedsGraph` if it is not known here."""
        if self.graph is None:
            raise NeedsGraph
        try:
            return self.graph.at(path)
        except KeyError:
            raise NeedsGraph from None

    def outline_at(self, path: str) -> Mapping[str, Any]:
        """Return the outline of the (sub-)graph of a frame."""
        whole = self.run.outline
        if not whole and self.graph is not None:
            whole = self.graph.outline()
        return outline_at(whole, path)

    def state(self, frame: Frame) -> State:
        """Return the state of a frame."""
        return state_view(frame.cells, self.codec, self.run_id, "", frame.last_node, clock.time())

    def state_for(self, step: Step) -> State:
        """Return the state as a step sees it."""
        state = self.state(self.run.frames[step.frame])
        return overlaid(state, advance({}, step.item)) if step.item else state

    def decoded(self, change: Change) -> Any:
        """Return the value of a change."""
        try:
            return self.codec.decode(change.value)
        except HoldfastError as error:
            raise Refused(f"{'.'.join(change.path)}: {error}") from None

    def new_values(self, state: Mapping[str, Any], changes: Iterable[Change]) -> dict[str, Any]:
        """Return the whole new value of each key that changes are made to or inside of."""
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

    def steps(self, name: str) -> list[Step]:
        """Return the running or coming steps that a step id or a node's name means; refuse if there are none.

        `outer/inner` is a node of a sub-graph, `node[key]` an item of a for-each; helper nodes go by the name of the
        step that they belong to.
        """
        active = [step for step in self.run.active() if step.node != START]
        found = [step for step in active if step.id == name]
        found = found or [step for step in active if name in _names_of_step(step)]
        if not found:
            raise Refused(_absent(self.run, active, name))
        return found

    def frame(self, name: str) -> Frame:
        """Return the open frame that a path, or the nodes that it is nested in, means; the run's own for ""."""
        frames = self.run.frames
        if name in frames:
            return frames[name]
        found = [frame for path, frame in frames.items() if path and name in _names_of_path(path)]
        if len(found) == 1:
            return found[0]
        if found:
            paths = ", ".join(repr(frame.path) for frame in found)
            raise Refused(f"{name!r} is under way several times; name one of {paths}")
        open_ = ", ".join(repr(path) for path in frames if path) or "none"
        raise Refused(f"no sub-graph {name!r} is under way (open: {open_})")

    def warn_of_chosen_route(self) -> None:
        """Warn after an edit that the next nodes were chosen before it, and how to have them chosen again."""
        if self.graph is not None and (note := _chosen_route(self.graph, self.run)):
            logger.warning("run %s: %s", self.run_id, note)


def _put(whole: Any, path: list[str], value: Any, place: str) -> None:
    for part in path[:-1]:
        if isinstance(whole, dict) and part not in whole:
            raise Refused(f"{place!r} has no {part!r}{suggestion(part, map(str, whole))}")
        whole, place = (whole[part] if isinstance(whole, dict) else None), f"{place}.{part}"
    if not isinstance(whole, dict):
        raise Refused(f"{place!r} has no parts; change it as a whole")
    whole[path[-1]] = value


def _names_of_step(step: Step) -> set[str]:
    own = qualified(step)
    names = {own, base_name(own)}
    if step.key is not None:
        names |= {readable_step(step.id), *(f"{each}[{step.key}]" for each in names)}
    return names


def _names_of_path(path: str) -> set[str]:
    name = nodes_of(path)
    return {name, base_name(name)}


def nodes_of(path: str) -> str:
    """Return the nodes of a step's id or a frame's path: `outer/inner` for `outer#1/inner#2[a]`."""
    return "/".join(part.partition("[")[0].partition("#")[0] for part in path.split("/"))


def _absent(run: RunState, active: Iterable[Step], name: str) -> str:
    """Return why a name means no step: it is finished, not yet due, or unknown."""
    plain, known = nodes_of(name), list(outline_names(run.outline))
    if plain not in known and plain not in map(base_name, known):
        near = suggestion(name, [*dict.fromkeys(map(base_name, known)), *(step.id for step in active)])
        return f"there is no step or node {name!r}{near}"
    if _was_visited(run, plain):
        return f"step {name!r} is finished"
    now = ", ".join(dict.fromkeys(repr(base_name(qualified(step))) for step in active)) or "nothing"
    return f"it is not the turn of {name!r} yet (now: {now}); ask again when it is"


def _was_visited(run: RunState, name: str) -> bool:
    outer, _, inner = name.rpartition("/")
    frames = [frame for path, frame in run.frames.items() if outer in _names_of_path(path)]
    if outer and not frames:
        return _was_visited(run, outer)
    return any(inner in (node, base_name(node)) for frame in frames for node in frame.visits)


def _chosen_route(graph: Graph, run: RunState) -> str:
    node = run.root.last_node or START
    chosen = [step.node for step in run.root.active.values() if step.status != DONE]
    edges = graph.edges_from.get(node, ())
    if not chosen or (node not in graph.route_from and all(edge.when is None for edge in edges)):
        return ""
    names = ", ".join(repr(base_name(name)) for name in dict.fromkeys(chosen))
    if node == START:
        return (
            f"the first nodes were chosen before this edit and are not chosen again: next is {names}; "
            "a new run with the edited values as its input has them chosen"
        )
    if node not in graph.nodes or whole_of(node, graph.nodes) or has_parts(node, graph.nodes):
        return ""
    return (
        f"the way on from {node!r} was chosen before this edit and is not chosen again: next is {names}; "
        f"a fork as node {node!r} has it chosen by the edited state"
    )
