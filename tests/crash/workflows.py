"""Workflows that write to an outside ledger when each step starts, for processes that will be killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypedDict

from holdfast import END, START, Context, Send, StateGraph, add, append
from tests.invariants import Ledger


class Work(TypedDict, total=False):
    n: int
    total: Annotated[int, add]
    log: Annotated[list[str], append]


@dataclass
class Workflow:
    """A graph under test: its input, how it is compiled and executed, and the answers to its questions."""

    graph: StateGraph
    input: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    is_async: bool = False


Make = Callable[[Ledger, float], Workflow]


def _step(ledger: Ledger, pause: float, update: Callable[[Any], dict[str, Any]]) -> Callable[..., Any]:
    def node(state: Any, ctx: Context) -> dict[str, Any]:
        ledger.write("start", ctx.step)
        time.sleep(pause)
        return update(state)

    return node


def _triple(index: int, state: Any) -> dict[str, Any]:
    return {"n": state["n"] * 3 + index, "log": [f"s{index}"]}


def _count(index: int, state: Any) -> dict[str, Any]:
    return {"total": state["n"] + index, "log": [f"w{index}"]}


def _items(state: Any) -> list[Send]:
    return [Send("item", {"n": index}, key=f"k{index}") for index in range(12)]


def chain(ledger: Ledger, pause: float) -> Workflow:
    graph = StateGraph(Work, name="chain")
    for index in range(4):
        graph.add_node(f"s{index}", _step(ledger, pause, partial(_triple, index)))
        graph.add_edge(f"s{index - 1}" if index else START, f"s{index}")
    graph.add_edge("s3", END)
    return Workflow(graph, {"n": 1})


def async_chain(ledger: Ledger, pause: float) -> Workflow:
    async def node(state: Any, ctx: Context) -> dict[str, Any]:
        ledger.write("start", ctx.step)
        await asyncio.sleep(pause)
        return {"n": state["n"] + 1, "log": [ctx.node]}

    graph = StateGraph(Work, name="async_chain")
    for index in range(3):
        graph.add_node(f"s{index}", node)
        graph.add_edge(f"s{index - 1}" if index else START, f"s{index}")
    graph.add_edge("s2", END)
    return Workflow(graph, {"n": 1}, is_async=True)


def wave(ledger: Ledger, pause: float) -> Workflow:
    graph = StateGraph(Work, name="wave")
    names = [f"w{index}" for index in range(8)]
    for index, name in enumerate(names):
        late = 0.05 if index in (2, 5) else 0.0  # Late enough that the others are saved without it.
        graph.add_node(name, _step(ledger, pause + late, partial(_count, index)))
        graph.add_edge(START, name)
    graph.add_node("last", _step(ledger, pause, lambda s: {"n": s["total"], "log": ["last"]}))
    graph.add_edge(names, "last")
    graph.add_edge("last", END)
    return Workflow(graph, {"n": 2})


def loop(ledger: Ledger, pause: float) -> Workflow:
    graph = StateGraph(Work, name="loop")
    graph.add_node("count", _step(ledger, pause, lambda s: {"n": s["n"] + 1}))
    graph.add_node("check", _step(ledger, pause, lambda s: {"log": [f"seen {s['n']}"]}))
    graph.add_edge(START, "count")
    graph.add_edge("count", "check")
    graph.add_edge("check", "count", when=lambda s: s["n"] < 3)
    graph.add_edge("check", END)
    return Workflow(graph, {"n": 0})


def for_each(ledger: Ledger, pause: float) -> Workflow:
    graph = StateGraph(Work, name="for_each")
    graph.add_node("split", _step(ledger, pause, lambda s: {"log": ["split"]}))
    graph.add_node("item", _step(ledger, pause, lambda s: {"total": s["n"] ** 2, "log": [f"item {s['n']}"]}))
    graph.add_node("sum", _step(ledger, pause, lambda s: {"n": s["total"]}))
    graph.add_edge(START, "split")
    graph.add_conditional_edges("split", _items, ["item"])
    graph.add_edge("item", "sum")
    graph.add_edge("sum", END)
    return Workflow(graph, {"n": 0}, {"max_parallel": 3})


def pausing(ledger: Ledger, pause: float) -> Workflow:
    def ask(state: Any, ctx: Context) -> dict[str, Any]:
        ledger.write("start", ctx.step)
        time.sleep(pause)
        verdict = ctx.ask("Publish?", name="publish")
        return {"log": [f"publish: {verdict}"]}

    graph = StateGraph(Work, name="pausing")
    graph.add_node("draft", _step(ledger, pause, lambda s: {"n": s["n"] + 1}))
    graph.add_node("ask", ask)
    graph.add_node("send", _step(ledger, pause, lambda s: {"log": ["sent"]}))
    graph.add_edge(START, "draft")
    graph.add_edge("draft", "ask")
    graph.add_edge("ask", "send")
    graph.add_edge("send", END)
    return Workflow(graph, {"n": 0}, answers={"publish": "yes"})


def nested(ledger: Ledger, pause: float) -> Workflow:
    inner = StateGraph(Work, name="inner")
    inner.add_node("one", _step(ledger, pause, lambda s: {"n": s["n"] + 10, "log": ["one"]}))
    inner.add_node("two", _step(ledger, pause, lambda s: {"total": s["n"], "log": ["two"]}))
    inner.add_edge(START, "one")
    inner.add_edge("one", "two")
    inner.add_edge("two", END)
    graph = StateGraph(Work, name="nested")
    graph.add_node("before", _step(ledger, pause, lambda s: {"n": s["n"] + 1}))
    graph.add_node("outer", inner)
    graph.add_node("after", _step(ledger, pause, lambda s: {"log": [f"after {s['n']} {s['total']}"]}))
    graph.add_edge(START, "before")
    graph.add_edge("before", "outer")
    graph.add_edge("outer", "after")
    graph.add_edge("after", END)
    return Workflow(graph, {"n": 0})


def once(ledger: Ledger, pause: float) -> Workflow:
    def effect(ctx: Context, key: str) -> str:
        ledger.write("start", f"{ctx.step}:once:{key}")
        time.sleep(pause)
        return f"done {key}"

    def careful(state: Any, ctx: Context) -> dict[str, Any]:
        ledger.write("start", ctx.step)
        said = []
        for key in ("charge", "mail"):
            said.append(ctx.once(key, effect, ctx, key))
            ledger.write("finished", f"{ctx.step}:once:{key}")
        return {"log": said}

    graph = StateGraph(Work, name="once")
    graph.add_node("first", _step(ledger, pause, lambda s: {"n": s["n"] + 1}))
    graph.add_node("careful", careful)
    graph.add_edge(START, "first")
    graph.add_edge("first", "careful")
    graph.add_edge("careful", END)
    return Workflow(graph, {"n": 0})


def everything(ledger: Ledger, pause: float) -> Workflow:
    """Several kinds of work in one slower run, to be killed at any time."""
    inner = StateGraph(Work, name="inner")
    inner.add_node("turn", _step(ledger, pause, lambda s: {"n": s["n"] + 1, "log": [f"turn {s['n']}"]}))
    inner.add_edge(START, "turn")
    inner.add_edge("turn", "turn", when=lambda s: s["n"] < 3)
    inner.add_edge("turn", END)
    graph = StateGraph(Work, name="everything")
    graph.add_node("loop", inner)
    graph.add_node("item", _step(ledger, pause, lambda s: {"total": s["n"], "log": [f"item {s['n']}"]}))
    graph.add_node("left", _step(ledger, pause, lambda s: {"log": ["left"]}))
    graph.add_node("right", _step(ledger, pause, lambda s: {"log": ["right"]}))
    graph.add_node("last", _step(ledger, pause, lambda s: {"n": s["total"], "log": ["last"]}))
    graph.add_edge(START, "loop")
    graph.add_conditional_edges("loop", lambda s: [Send("item", {"n": i}) for i in range(10)], ["item"])
    graph.add_edge("item", "left")
    graph.add_edge("item", "right")
    graph.add_edge(["left", "right"], "last")
    graph.add_edge("last", END)
    return Workflow(graph, {"n": 0}, {"max_parallel": 4})


_MAKERS: tuple[Make, ...] = (
    chain,
    async_chain,
    wave,
    loop,
    for_each,
    pausing,
    nested,
    once,
    everything,
)
WORKFLOWS: dict[str, Make] = {make.__name__: make for make in _MAKERS}
