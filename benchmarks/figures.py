"""Shared parts of the benchmarks: a row of the table, and the graphs that are measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from holdfast import END, START, App, StateGraph, append

ROUNDS = 7

SESSION = ".bench-"
"""The prefix of a session's folder; each benchmark has a folder in it, and those on PostgreSQL share a server."""


@dataclass
class Row:
    """One row of the table. `better` is the direction of the target; a row without a target is for comparison."""

    name: str
    measured: str
    floor: str
    figure: float
    target: float | None
    unit: str = "x"
    better: str = "<="

    @property
    def good(self) -> bool:
        if self.target is None:
            return True
        return self.figure <= self.target if self.better == "<=" else self.figure >= self.target


class Counting(TypedDict, total=False):
    n: int


class Growing(TypedDict, total=False):
    n: int
    messages: Annotated[list[Any], append]


class Holding(TypedDict, total=False):
    n: int
    blob: bytes


def one_more(state: Any) -> dict[str, Any]:
    return {"n": state["n"] + 1}


async def one_more_async(state: Any) -> dict[str, Any]:
    return {"n": state["n"] + 1}


def chain(
    length: int, node: Callable[..., Any] = one_more, schema: Any = Counting, **options: Any
) -> StateGraph:
    graph = StateGraph(schema, name="chain")
    before = START
    for index in range(length):
        graph.add_node(f"step{index}", node, **options)
        graph.add_edge(before, f"step{index}")
        before = f"step{index}"
    return graph.add_edge(before, END)


def loop(node: Callable[..., Any], times: int, schema: Any = Growing) -> StateGraph:
    graph = StateGraph(schema, name="loop", max_iterations=times + 1)
    graph.add_node("work", node)
    graph.add_edge(START, "work")
    graph.add_edge("work", "work", when=lambda state: state["n"] < times)
    return graph.add_edge("work", END)


def rows_of(app: App, run: str) -> list[tuple[bytes, bytes, bytes]]:
    """Return what the steps of a run stored: chain, mark and body of each entry but the first."""
    return [(entry.chain, entry.mark or b"", entry.body) for entry in app.store.read(run)][1:]
