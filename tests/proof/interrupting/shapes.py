"""Small workflows of every shape, which write to a ledger what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from holdfast import END, START, Context, Retry, Send, StateGraph, add, append
from tests.invariants import Ledger


class Work(TypedDict, total=False):
    n: int
    total: Annotated[int, add]
    log: Annotated[list[str], append]


@dataclass
class Shape:
    """A graph, its input, how it is compiled, and the answers to its questions."""

    graph: StateGraph
    options: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    is_async: bool = False


def _step(ledger: Ledger, update: Callable[[Any], dict[str, Any]]) -> Callable[..., Any]:
    def node(state: Any, ctx: Context) -> dict[str, Any]:
        ledger.write("start", ctx.step)
        return update(state)

    return node


def _async_step(ledger: Ledger, update: Callable[[Any], dict[str, Any]]) -> Callable[..., Any]:
    async def node(state: Any, ctx: Context) -> dict[str, Any]:
        ledger.write("start", ctx.step)
        await asyncio.sleep(0)
        return update(state)

    return node


def _line(graph: StateGraph, *names: str) -> StateGraph:
    for before, after in zip((START, *names), (*names, END), strict=True):
        graph.add_edge(before, after)
    return graph


def _tripled(state: Any) -> dict[str, Any]:
    return {"n": state["n"] * 3 + 1, "log": [f"was {state['n']}"]}


def chain(ledger: Ledger) -> Shape:
    graph = StateGraph(Work, name="chain")
    for name in "abc":
        graph.add_node(name, _step(ledger, _tripled))
    return Shape(_line(graph, *"abc"))


def plain(ledger: Ledger) -> Shape:
    """A chain without reducers, on the short path from step to step."""
    graph = StateGraph({"n": int}, name="plain")
    for name in "abc":
        graph.add_node(name, _step(ledger, lambda state: {"n": state["n"] * 3 + 1}))
    return Shape(_line(graph, *"abc"))


def awaited(ledger: Ledger) -> Shape:
    graph = StateGraph(Work, name="awaited")
    for name in "abc":
        graph.add_node(name, _async_step(ledger, _tripled))
    return Shape(_line(graph, *"abc"), is_async=True)


def wave(ledger: Ledger, is_async: bool = False) -> Shape:
    graph = StateGraph(Work, name="wave")
    names = ["w1", "w2", "w3"]
    for index, name in enumerate(names):
        make = _async_step if is_async and index == 0 else _step
        graph.add_node(name, make(ledger, lambda state, index=index: {"total": index + 1}))
        graph.add_edge(START, name)
    graph.add_node("last", _step(ledger, lambda state: {"n": state["total"]}))
    graph.add_edge(names, "last")
    graph.add_edge("last", END)
    return Shape(graph, is_async=is_async)


def awaited_wave(ledger: Ledger) -> Shape:
    return wave(ledger, is_async=True)


def items(ledger: Ledger, is_async: bool = False) -> Shape:
    graph = StateGraph(Work, name="items")
    graph.add_node("split", _step(ledger, lambda state: {"log": ["split"]}))
    graph.add_node("item", _step(ledger, lambda state: {"total": state["n"]}))
    graph.add_node("sum", _step(ledger, lambda state: {"n": state["total"]}))
    graph.add_edge(START, "split")
    graph.add_conditional_edges("split", _four, ["item"])
    graph.add_edge("item", "sum")
    graph.add_edge("sum", END)
    return Shape(graph, {"max_parallel": 2}, is_async=is_async)


def _four(state: Any) -> list[Send]:
    return [Send("item", {"n": index}, key=f"k{index}") for index in range(4)]


def awaited_items(ledger: Ledger) -> Shape:
    return items(ledger, is_async=True)


def asking(ledger: Ledger) -> Shape:
    def ask(state: Any, ctx: Context) -> dict[str, Any]:
        ledger.write("start", ctx.step)
        return {"log": [f"publish: {ctx.ask('Publish?', name='publish')}"]}

    graph = StateGraph(Work, name="asking")
    graph.add_node("draft", _step(ledger, _tripled))
    graph.add_node("ask", ask)
    graph.add_node("send", _step(ledger, lambda state: {"log": ["sent"]}))
    return Shape(_line(graph, "draft", "ask", "send"), answers={"publish": "yes"})


def gated(ledger: Ledger) -> Shape:
    """Nothing may go past its gate before somebody let it."""

    def after(state: Any, ctx: Context) -> dict[str, Any]:
        ledger.write("start", ctx.step)
        ledger.write("passed", "gate")
        return {"log": ["after the gate"]}

    graph = StateGraph(Work, name="gated")
    graph.add_node("before", _step(ledger, _tripled))
    graph.add_node("after", after)
    return Shape(_line(graph, "before", "after"), {"interrupt_after": ["before"]})


def once(ledger: Ledger) -> Shape:
    def effect(ctx: Context, key: str) -> str:
        ledger.write("start", f"{ctx.step}:once:{key}")
        return f"done {key}"

    def careful(state: Any, ctx: Context) -> dict[str, Any]:
        ledger.write("start", ctx.step)
        said = []
        for key in ("charge", "mail"):
            said.append(ctx.once(key, effect, ctx, key))
            ledger.write("finished", f"{ctx.step}:once:{key}")
        return {"log": said}

    graph = StateGraph(Work, name="once")
    graph.add_node("first", _step(ledger, _tripled))
    graph.add_node("careful", careful)
    return Shape(_line(graph, "first", "careful"))


def retrying(ledger: Ledger) -> Shape:
    def shaky(state: Any, ctx: Context) -> dict[str, Any]:
        ledger.write("start", ctx.step)
        if ctx.attempt == 1:
            raise ConnectionError("try again")
        return {"n": state["n"] + 1}

    graph = StateGraph(Work, name="retrying")
    graph.add_node("shaky", shaky, retry=Retry(attempts=4, delay=0.0, backoff="fixed"))
    graph.add_node("last", _step(ledger, _tripled))
    return Shape(_line(graph, "shaky", "last"))


def nested(ledger: Ledger) -> Shape:
    inner = StateGraph(Work, name="inner")
    inner.add_node("one", _step(ledger, _tripled))
    _line(inner, "one")
    graph = StateGraph(Work, name="nested")
    graph.add_node("outer", inner)
    graph.add_node("after", _step(ledger, lambda state: {"log": [f"after {state['n']}"]}))
    return Shape(_line(graph, "outer", "after"))


SHAPES: dict[str, Callable[[Ledger], Shape]] = {
    make.__name__: make
    for make in (
        chain,
        plain,
        awaited,
        wave,
        awaited_wave,
        items,
        awaited_items,
        asking,
        gated,
        once,
        retrying,
        nested,
    )
}
