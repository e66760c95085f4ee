"""Routing: what follows a finished node, what its result means, and conflicting parallel writes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from holdfast.errors import StateInvalid, suggestion
from holdfast.graph.graph import Command, Graph, Send
from holdfast.journal.records import Target
from holdfast.journal.run_state import DONE, WHOLE, Frame, Step, Write
from holdfast.state.codec import Codec
from holdfast.state.ops import Cells, Op, make_op
from holdfast.state.schema import EVERYWHERE, Certain, Schema, as_mapping
from holdfast.state.state import State, changed_since
from holdfast.values import END, START, step_label

Emit = Callable[..., None]


class RouteFailed(Exception):
    """No next node could be found; `node` is the one whose routing failed."""

    def __init__(self, node: str, message: str) -> None:
        self.node = node
        super().__init__(message)


def graph_of(graph: Graph, step: Step) -> Graph:
    """Return the (sub-)graph that a step belongs to."""
    return graph.at(step.frame) if step.frame else graph


async def choose(graph: Graph, node: str, state: State, emit: Emit | None) -> list[str | Send]:
    """Return the nodes and items that follow `node`, by its routing function or its edges; joins excepted."""
    if node in graph.exits:
        return []
    route = graph.route_from.get(node)
    if route is not None:
        chosen = route.choose(state)
        if inspect.isawaitable(chosen):
            chosen = await chosen
        return [_translate(node, item, route.mapping) for item in _listed(chosen)]
    edges = graph.edges_from.get(node, ())
    conditional = False
    for edge in edges:
        if edge.when is None:
            continue
        conditional = True
        result = edge.when(state)
        if inspect.isawaitable(result):
            result = await result
        if emit is not None:
            emit("edge.evaluate", node, **{"from": node, "to": edge.target, "result": bool(result)})
        if result:
            return [edge.target]
    plain: list[str | Send] = [edge.target for edge in edges if edge.when is None]
    if conditional and not plain:
        raise RouteFailed(
            node,
            f"no valid edge transition from node: {node} (no condition was true; "
            "add an edge without `when` as the fallback)",
        )
    return plain


def _listed(chosen: Any) -> Iterable[Any]:
    if isinstance(chosen, (str, Send)) or not isinstance(chosen, Iterable):
        return (chosen,)
    return chosen


def _translate(node: str, item: Any, mapping: Mapping[Any, str] | None) -> str | Send:
    if isinstance(item, Send):
        return item
    if mapping is not None:
        if item not in mapping:
            known = ", ".join(map(repr, mapping))
            raise RouteFailed(
                node, f"the route from {node!r} returned {item!r}, which is not in its mapping ({known})"
            )
        return mapping[item]
    if not isinstance(item, str):
        raise RouteFailed(node, f"the route from {node!r} returned {item!r}; return node names, Sends or END")
    return item


def to_targets(graph: Graph, node: str, chosen: Iterable[str | Send], codec: Codec) -> list[Target]:
    """Return targets of what a node's routing chose. A bad name or item is refused here."""
    targets = []
    for item in chosen:
        if isinstance(item, Send):
            targets.append(_item_target(graph, node, item, codec))
        elif not isinstance(item, str):
            raise RouteFailed(
                node, f"the route from {node!r} leads to {item!r}; give node names, Sends or END"
            )
        elif item in graph.nodes:
            targets.append(Target(item))
        elif item != END:
            raise RouteFailed(
                node,
                f"the route from {node!r} leads to {item!r}: node not found: {item}{suggestion(item, graph.nodes)}",
            )
    return targets


def _item_target(graph: Graph, node: str, send: Send, codec: Codec) -> Target:
    if send.node not in graph.nodes:
        raise RouteFailed(
            node, f"the route from {node!r} sends to {send.node!r}: node not found: {send.node}"
        )
    if not isinstance(send.item, Mapping):
        raise RouteFailed(
            node, f"Send({send.node!r}, …) needs a mapping to lay over the state, not {send.item!r:.80}"
        )
    ops = tuple(make_op(codec, "set", str(key), value) for key, value in send.item.items())
    return Target(send.node, "" if send.key is None else str(send.key), ops)


def merge_targets(graph: Graph, found: Iterable[tuple[str, list[Target]]]) -> tuple[Target, ...]:
    """Return one wave's targets: each plain node once, items keyed by their key or index, all in node order."""
    plain: dict[str, Target] = {}
    items: dict[str, dict[str, Target]] = {}
    for node, targets in found:
        for target in targets:
            if target.key is None:
                plain.setdefault(target.node, target)
                continue
            keyed = items.setdefault(target.node, {})
            key = target.key or str(len(keyed))
            if key in keyed:
                raise RouteFailed(
                    node, f"two items for node {target.node!r} have the key {key!r}; keys must differ"
                )
            try:
                key.encode()
            except UnicodeEncodeError:
                raise StateInvalid(f"item key {key!r} is not valid text") from None
            keyed[key] = Target(target.node, key, target.item)
    result = list(plain.values())
    for keyed in items.values():
        result += keyed.values()
    if len(result) > 1:
        result.sort(key=lambda target: graph.order[target.node])
    return tuple(result)


async def first_targets(graph: Graph, state: State, codec: Codec) -> tuple[Target, ...]:
    """Return the nodes a graph begins with."""
    chosen = await choose(graph, START, state, None)
    return merge_targets(graph, [(START, to_targets(graph, START, chosen, codec))])


Meaning = tuple[tuple[Op, ...], tuple[Target, ...] | None]


def meaning(graph: Graph, codec: Codec, frame: Frame, step: Step, value: Any, given: State | None) -> Meaning:
    """Return the changes and the next nodes that `value`, returned for `step`, asks for; nonsense is refused.

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
    """Return the keys of which it is certain what a step of this frame will change when its wave ends.

    A sub-graph's changes end up in its parent, which may hold something else by then; what the sub-graph
    itself has set before is certain.
    """
    if len(frame.active) > 1:
        return _SIBLINGS if frame.log is None else _NOWHERE
    if frame.log is None:
        return EVERYWHERE
    return Certain({key for key, ops in frame.log.items() if ops[0].kind == "set"})


def certain_of(reads: Collection[str], certain: Certain = EVERYWHERE) -> Certain:
    """Return the certain keys among those that a node declares to read.

    Whatever else it sets is recorded as it is, even if the state held just that: where the node's result is taken over
    in a run that differs only in what the node does not read, it comes to the same.
    """
    return Certain(reads if certain.keys is None else {key for key in certain.keys if key in reads})


_SIBLINGS, _NOWHERE = Certain((), passed_on=True), Certain(())


def _between(graph: Graph, codec: Codec, cells: Cells, given: State, state: State) -> list[Op]:
    """Return the changes from the state that a step was given to the one it returned."""
    ops = graph.schema.replace(codec, cells, changed_since(state, given))
    ops += [Op("drop", key, b"") for key in given if key not in state]
    return ops


class ParallelWrite(StateInvalid):
    """Two parallel steps set the same key, and nothing says how the two results become one."""


class ParallelWrites:
    """What parallel steps wrote: those of one wave and, without a barrier, those that do not follow each other.

    All that is decided by is a part of the run, so that a resumed run decides as one that was never interrupted.
    """

    def __init__(self, barrier: bool) -> None:
        self._barrier = barrier
        self._siblings: dict[str, tuple[int, dict[str, Write]]] = {}
        self._following: dict[tuple[str, str], frozenset[str]] = {}

    def check(self, graph: Graph, frame: Frame, step: Step, ops: Sequence[Op]) -> None:
        """Raise `ParallelWrite` if these changes of a step and those of a parallel step replace each other.

        They count as written from here on.
        """
        if not ops or (self._barrier and len(frame.active) == 1):
            return
        written = {op.key: op.kind in WHOLE for op in ops}
        siblings = self._written_in(frame)
        for key, whole in written.items():
            write = siblings.get(key)
            if write is not None and write.step != step.id and (whole or write.whole):
                raise ParallelWrite(_refusal(graph.schema, key, write.step, step.id))
        if not self._barrier:
            self._check_earlier(graph, frame, step, written)
        _note(siblings, frame, step, ops)

    def _written_in(self, frame: Frame) -> dict[str, Write]:
        """Return what the finished steps of a frame's wave have written, by key."""
        waves, siblings = self._siblings.get(frame.path, (-1, {}))
        if waves != frame.waves:
            siblings = {}
            for step in frame.active.values():
                if step.status == DONE:
                    _note(siblings, frame, step, step.ops)
            self._siblings[frame.path] = frame.waves, siblings
        return siblings

    def recount(self) -> None:
        """Forget what was counted of the waves that are under way: steps got their results from elsewhere."""
        self._siblings.clear()

    def _check_earlier(self, graph: Graph, frame: Frame, step: Step, written: dict[str, bool]) -> None:
        for key, whole in written.items():
            write = frame.writes.get(key)
            if write is None or not (whole or write.whole):
                continue
            if write.wave > step.begun or step.node not in self._after(graph, frame, write.node):
                raise ParallelWrite(_refusal(graph.schema, key, write.step, step.id))

    def _after(self, graph: Graph, frame: Frame, node: str) -> frozenset[str]:
        """Return every node that may come after a node, directly or not."""
        place = (frame.path, node)
        if place not in self._following:
            from holdfast.engine.time_travel.affected import all_successors

            leads, found, todo = all_successors(graph, {}), set[str](), [node]
            while todo:
                fresh = leads.get(todo.pop(), set()) - found
                found |= fresh
                todo += fresh
            self._following[place] = frozenset(found)
        return self._following[place]


def _note(siblings: dict[str, Write], frame: Frame, step: Step, ops: Iterable[Op]) -> None:
    for op in ops:
        if op.key not in siblings or op.kind in WHOLE:
            siblings[op.key] = Write(step.id, step.node, op.kind in WHOLE, frame.waves)


def _refusal(schema: Schema, key: str, one: str, other: str) -> str:
    channel = schema.channels.get(key)
    problem = f"the parallel steps {step_label(one)!r} and {step_label(other)!r} both set state key {key!r}"
    if channel is None or channel.reducer is None:
        return (
            f"{problem}, which has no reducer: one of the two results would be lost; declare how results are put "
            f"together, such as {key}: Annotated[list, append], or let each step set a key of its own"
        )
    return (
        f"{problem}, and one of the two replaces what the other adds with the reducer: it returned a whole State "
        f"(return {{{key!r}: …}} instead), or it finished before the key had its reducer"
    )
