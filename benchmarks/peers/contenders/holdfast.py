"""Holdfast: a `StateGraph` compiled to a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from workloads import Place, Work, digest, message

from contenders.nodes import one_more, one_more_async, square_of, watched
from holdfast import END, START, App, StateGraph, append, open_store


class Counting(TypedDict, total=False):
    n: int


class Talking(TypedDict, total=False):
    n: int
    messages: Annotated[list[Any], append]


class Fanning(TypedDict, total=False):
    squares: Annotated[list[int], append]
    total: int


class Holding(TypedDict, total=False):
    n: int
    value: list[str]


class Race:
    """Every step is one append, synced before the next step starts."""

    durability = "full"

    def __init__(self, place: Place) -> None:
        if place.kind == "postgres":
            url = f"postgresql://{place.user}@/{place.database}?host={place.host}"
        else:
            url = f"sqlite:///{place.path}"
        self._store = open_store(url)

    def chain(self, steps: int) -> Work:
        app = self._app(chain_graph(steps))
        return lambda: app.invoke({"n": 0}).state["n"]

    def messages(self, steps: int) -> Work:
        def talk(state: Any) -> dict[str, Any]:
            return {"n": state["n"] + 1, "messages": [message(len(state["messages"]))]}

        graph = StateGraph(Talking, name="messages", max_iterations=steps + 1)
        graph.add_node("talk", talk).add_edge(START, "talk")
        graph.add_edge("talk", "talk", when=lambda state: state["n"] < steps).add_edge("talk", END)
        app = self._app(graph)
        return lambda: digest(app.invoke({"n": 0, "messages": []}).state["messages"])

    def wave(self, width: int) -> Work:
        async def begin(state: Any) -> dict[str, Any]:
            return {}

        async def join(state: Any) -> dict[str, Any]:
            return {"total": sum(state["squares"])}

        graph = StateGraph(Fanning, name="wave")
        graph.add_node("begin", begin).add_edge(START, "begin")
        names = [f"branch{number}" for number in range(width)]
        for number, name in enumerate(names):
            graph.add_node(name, square_of(number)).add_edge("begin", name)
        graph.add_node("join", join).add_edge(names, "join").add_edge("join", END)
        app = self._app(graph)

        async def work() -> int:
            outcome = await app.ainvoke({"squares": []})
            total: int = outcome.state["total"]
            return total

        return lambda: asyncio.run(work())

    def concurrent(self, runs: int, steps: int) -> Work:
        app = self._app(chain_graph(steps, one_more_async))

        async def work() -> list[int]:
            outcomes = await asyncio.gather(*(app.ainvoke({"n": 0}) for _ in range(runs)))
            return [outcome.state["n"] for outcome in outcomes]

        return lambda: asyncio.run(work())

    def untouched(self, value: list[str], steps: int) -> Work:
        app = self._app(chain_graph(steps, schema=Holding))

        def work() -> list[Any]:
            state = app.invoke({"n": 0, "value": value}).state
            return [state["n"], digest(state["value"])]

        return work

    def starting(self, steps: int) -> Work:
        app = self._app(chain_graph(steps, watched))
        return lambda: app.invoke({"n": 0}, run_id="stopped")

    def resuming(self, steps: int) -> Work:
        app = self._app(chain_graph(steps, watched))
        return lambda: app.resume("stopped").state["n"]

    def close(self) -> None:
        self._store.close()

    def _app(self, graph: StateGraph) -> App:
        return graph.compile(self._store, durability=self.durability)


def chain_graph(steps: int, node: Callable[..., Any] | None = None, schema: Any = Counting) -> StateGraph:
    graph = StateGraph(schema, name="chain")
    before = START
    for number in range(steps):
        graph.add_node(f"step{number}", node or one_more).add_edge(before, f"step{number}")
        before = f"step{number}"
    return graph.add_edge(before, END)
