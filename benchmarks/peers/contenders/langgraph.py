"""LangGraph: a compiled `StateGraph` with a checkpointer, durability="sync"."""

from __future__ import annotations

import asyncio
import operator
import sqlite3
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import aiosqlite
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from psycopg import Connection
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from workloads import Place, Work, digest, fresh, message

from contenders.nodes import one_more, one_more_async, square_of, watched


class Counting(TypedDict):
    n: int


class Talking(TypedDict):
    n: int
    messages: Annotated[list[Any], operator.add]


class Fanning(TypedDict):
    squares: Annotated[list[int], operator.add]
    total: int


class Holding(TypedDict):
    n: int
    value: list[str]


CONNECTION = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
"""As the savers themselves connect."""


class Race:
    """Synchronous graphs for a single run, asynchronous ones for parallel work, as its documentation says."""

    talking: type = Talking

    def __init__(self, place: Place) -> None:
        self._place = place
        self._closing: list[Callable[[], Any]] = []
        self._runner = asyncio.Runner()
        self._saver: Any = None

    def chain(self, steps: int) -> Work:
        return self._plain(_chain_graph(steps, one_more), {"n": 0}, steps, lambda state: state["n"])

    def messages(self, steps: int) -> Work:
        def talk(state: Any) -> dict[str, Any]:
            return {"n": state["n"] + 1, "messages": [message(len(state["messages"]))]}

        graph = StateGraph(self.talking)
        graph.add_node("talk", talk)
        graph.add_edge(START, "talk")
        graph.add_conditional_edges("talk", lambda state: "talk" if state["n"] < steps else END)
        state = {"n": 0, "messages": []}
        return self._plain(graph, state, steps, lambda state: digest(state["messages"]))

    def wave(self, width: int) -> Work:
        async def begin(state: Any) -> dict[str, Any]:
            return {"total": 0}

        async def join(state: Any) -> dict[str, Any]:
            return {"total": sum(state["squares"])}

        graph = StateGraph(Fanning)
        graph.add_node("begin", begin)
        graph.add_edge(START, "begin")
        names = [f"branch{number}" for number in range(width)]
        for number, name in enumerate(names):
            graph.add_node(name, square_of(number))
            graph.add_edge("begin", name)
        graph.add_node("join", join)
        graph.add_edge(names, "join")
        app = graph.compile(checkpointer=self._asynchronous())

        async def work() -> Any:
            state = await app.ainvoke({"squares": []}, _config(fresh("wave"), 9), durability="sync")
            return state["total"]

        return lambda: self._runner.run(work())

    def concurrent(self, runs: int, steps: int) -> Work:
        app = _chain_graph(steps, one_more_async).compile(checkpointer=self._asynchronous())

        async def work() -> list[Any]:
            states = await asyncio.gather(
                *(
                    app.ainvoke({"n": 0}, _config(fresh("run"), steps + 5), durability="sync")
                    for _ in range(runs)
                )
            )
            return [state["n"] for state in states]

        return lambda: self._runner.run(work())

    def untouched(self, value: list[str], steps: int) -> Work:
        graph = _chain_graph(steps, one_more, Holding)
        state = {"n": 0, "value": value}
        return self._plain(graph, state, steps, lambda state: [state["n"], digest(state["value"])])

    def starting(self, steps: int) -> Work:
        graph = _chain_graph(steps, watched)
        return self._plain(graph, {"n": 0}, steps, lambda state: state["n"], "stopped")

    def resuming(self, steps: int) -> Work:
        graph = _chain_graph(steps, watched)
        return self._plain(graph, None, steps, lambda state: state["n"], "stopped")

    def close(self) -> None:
        for close in reversed(self._closing):
            close()
        self._runner.close()

    def _plain(
        self, graph: Any, state: Any, steps: int, answer: Callable[[Any], Any], thread: str = ""
    ) -> Work:
        app = graph.compile(checkpointer=self._synchronous())
        config = _config(thread or fresh("run"), steps + 5)
        return lambda: answer(app.invoke(state, config, durability="sync"))

    def _synchronous(self) -> Any:
        if self._saver is None:
            if self._place.kind == "postgres":
                connection: Any = Connection.connect(self._place.conninfo, **CONNECTION)  # type: ignore[arg-type]
                self._saver = PostgresSaver(connection)
            else:
                connection = sqlite3.connect(self._place.path, check_same_thread=False)
                self._saver = SqliteSaver(connection)
            self._closing.append(connection.close)
            self._saver.setup()
        return self._saver

    def _asynchronous(self) -> Any:
        if self._saver is None:
            self._saver = self._runner.run(self._open())
        return self._saver

    async def _open(self) -> Any:
        if self._place.kind == "postgres":
            pool: Any = AsyncConnectionPool(
                self._place.conninfo, min_size=4, max_size=20, open=False, kwargs=CONNECTION
            )
            await pool.open(wait=True)
            self._closing.append(lambda: self._runner.run(pool.close()))
            saver: Any = AsyncPostgresSaver(pool)
        else:
            connection = await aiosqlite.connect(self._place.path)
            self._closing.append(lambda: self._runner.run(connection.close()))
            saver = AsyncSqliteSaver(connection)
        await saver.setup()
        return saver


def _config(thread: str, limit: int) -> Any:
    return {"configurable": {"thread_id": thread}, "recursion_limit": limit}


def _chain_graph(steps: int, node: Callable[..., Any], schema: Any = Counting) -> Any:
    graph = StateGraph(schema)
    before = START
    for number in range(steps):
        graph.add_node(f"step{number}", node)
        graph.add_edge(before, f"step{number}")
        before = f"step{number}"
    graph.add_edge(before, END)
    return graph
