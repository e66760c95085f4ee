"""Small graphs and states that many tests are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from holdfast import END, START, Event, StateGraph, add, append, keep_last, merge, union


class Log(TypedDict, total=False):
    """A number and a list that grows."""

    n: int
    log: Annotated[list[str], append]


def says(word: str) -> Callable[[Any], dict[str, Any]]:
    """A node that appends one word to the log."""

    def say(state: Any) -> dict[str, Any]:
        return {"log": [word]}

    return say


def chain(*names: str, nodes: dict[str, Any] | None = None, **options: Any) -> StateGraph:
    """START -> each of the names -> END; a node says its name unless `nodes` has a function for it."""
    graph = StateGraph(Log, **options)
    for name in names:
        graph.add_node(name, (nodes or {}).get(name) or says(name))
    for source, target in zip((START, *names), (*names, END), strict=True):
        graph.add_edge(source, target)
    return graph


def fan(*names: str, nodes: dict[str, Any] | None = None, **options: Any) -> StateGraph:
    """START -> all of the names at once -> END."""
    graph = StateGraph(Log, **options)
    for name in names:
        graph.add_node(name, (nodes or {}).get(name) or says(name))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph


def split(first: str, *names: str, nodes: dict[str, Any] | None = None, **options: Any) -> StateGraph:
    """START -> the first -> all of the names at once -> END."""
    graph = StateGraph(Log, **options)
    for name in (first, *names):
        graph.add_node(name, (nodes or {}).get(name) or says(name))
    graph.add_edge(START, first)
    for name in names:
        graph.add_edge(first, name).add_edge(name, END)
    return graph


def one(function: Callable[..., Any], schema: Any = Log, **options: Any) -> StateGraph:
    """A graph of one node, `work`."""
    graph = StateGraph(schema, name="one")
    graph.add_node("work", function, **options)
    graph.add_edge(START, "work")
    graph.add_edge("work", END)
    return graph


class Heard:
    """An observer that remembers every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    def of(self, name: str) -> list[Event]:
        return [event for event in self.events if event.matches(name)]


def counter(limit: int, max_iterations: int = 1000, node: Any = None) -> StateGraph:
    """A loop that counts up to a limit."""
    graph = StateGraph(Log, max_iterations=max_iterations)
    graph.add_node("work", node or (lambda s: {"n": s["n"] + 1}))
    graph.add_edge(START, "work").add_edge("work", "work", when=lambda s: s["n"] < limit).add_edge(
        "work", END
    )
    return graph


def highest(old: int | None, new: int) -> int:
    """A reducer: the larger of two numbers."""
    return new if old is None else max(old, new)


def joined(old: list[int] | None, new: list[int]) -> list[int]:
    """A reducer: one list after the other."""
    return [*(old or []), *new]


class Reduced(TypedDict, total=False):
    """A state with a reducer of every kind."""

    log: Annotated[list[str], append]
    facts: Annotated[dict[str, int], merge]
    total: Annotated[int, add]
    tags: Annotated[set[str], union]
    recent: Annotated[list[int], keep_last(2)]
    top: Annotated[int, highest]
    joined: Annotated[list[int], joined]


def reduces(n: int) -> Callable[[Any], dict[str, Any]]:
    """A node that gives a number to every reducer of `Reduced`."""
    return lambda state: {
        "total": n,
        "facts": {str(n): n},
        "tags": {str(n)},
        "recent": [n],
        "top": n,
        "joined": [n],
        "log": [f"{n}"],
    }
