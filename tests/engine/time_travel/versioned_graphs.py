"""Graphs whose nodes write down that they ran, in as many versions as a test needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from holdfast import END, START, StateGraph, append, merge
from holdfast.engine.app import App
from holdfast.stores.base import Store


class Facts(TypedDict, total=False):
    """What the nodes of these graphs leave behind."""

    topic: str
    items: list[int]
    item: int
    log: Annotated[list[str], append]
    found: Annotated[dict[str, Any], merge]


class Bench:
    """Makes graphs on one store. A node adds its name, with its version, to the log and to `found`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ran: list[str] = []
        self.broken: set[str] = set()

    def node(self, name: str, version: str = "1") -> Callable[[Any], dict[str, Any]]:
        def work(state: Any) -> dict[str, Any]:
            own = f"{name}{state['item']}" if "item" in state else name
            self.ran.append(own)
            if name in self.broken:
                raise ValueError(f"{name} is broken")
            return {"log": [f"{own}.{version}"], "found": {own: f"{version} of {state.get('topic')}"}}

        return work

    def graph(
        self,
        edges: Sequence[tuple[Any, Any]],
        versions: Mapping[str, str] | None = None,
        nodes: Mapping[str, Any] | None = None,
        name: str = "facts",
    ) -> StateGraph:
        """A graph with these edges; a node without a function in `nodes` is a `node`, of version 1 by default."""
        graph, versions = StateGraph(Facts, name=name), versions or {}
        names = dict.fromkeys(
            each
            for source, target in edges
            for each in (*(source if isinstance(source, list) else [source]), target)
            if each not in (START, END)
        )
        for each in names:
            version = versions.get(each, "1")
            given = (nodes or {}).get(each)
            if isinstance(given, StateGraph):
                graph.add_node(each, given)
            else:
                graph.add_node(each, given or self.node(each, version), version=version)
        for source, target in edges:
            graph.add_edge(source, target)
        return graph

    def app(self, *args: Any, options: Mapping[str, Any] | None = None, **more: Any) -> App:
        """A graph on the store."""
        return self.graph(*args, **more).compile(self.store, **(options or {}))

    def taken(self) -> list[str]:
        """What has run since this was last asked."""
        ran, self.ran = self.ran, []
        return ran


DIAMOND = ((START, "a"), ("a", "b"), ("a", "c"), (["b", "c"], "d"), ("d", END))
