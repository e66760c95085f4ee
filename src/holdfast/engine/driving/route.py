"""What follows a finished node: asking the user's conditions and routing functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.data.codec import Codec
from holdfast.data.ops import make_op
from holdfast.data.state import State
from holdfast.errors import StateInvalid
from holdfast.journal.records import Target
from holdfast.plan.graph import Graph, Send
from holdfast.suggestions import suggestion
from holdfast.values import END, START

Emit = Callable[..., None]


class RouteFailed(Exception):
    """No next node could be found; `node` is the one whose routing failed."""

    def __init__(self, node: str, message: str) -> None:
        self.node = node
        super().__init__(message)


async def choose(graph: Graph, node: str, state: State, emit: Emit | None) -> list[str | Send]:
    """The nodes and items that follow `node`, by its routing function or its edges; joins excepted."""
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
    """Targets of what a node's routing chose. A bad name or item is refused here."""
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
    """One wave's targets: each plain node once, items keyed by their key or index, all in node order."""
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
    """The nodes a graph begins with."""
    chosen = await choose(graph, START, state, None)
    return merge_targets(graph, [(START, to_targets(graph, START, chosen, codec))])
