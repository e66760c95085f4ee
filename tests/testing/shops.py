"""Small workflows that pay, careless and careful ones, for processes that are going to be killed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypedDict

from holdfast import END, START, Context, StateGraph
from holdfast.testing import record_effect


class Order(TypedDict, total=False):
    amount: int
    receipt: str
    verdict: str


def chain(
    name: str, *nodes: tuple[str, Callable[..., Any]], schema: Any = Order, **options: Any
) -> StateGraph:
    """A graph of nodes one after the other; the options are those of the first."""
    graph = StateGraph(schema, name=name)
    before = START
    for place, (node, function) in enumerate(nodes):
        graph.add_node(node, function, **(options if place == 0 else {}))
        graph.add_edge(before, node)
        before = node
    graph.add_edge(before, END)
    return graph


def charge(amount: int, idempotency_key: str | None = None) -> str:
    """A payment service, as a test fakes it."""
    record_effect("charge", idempotency_key, amount=amount)
    return f"paid {amount}"


def pay_carelessly(state: Any) -> dict[str, Any]:
    return {"receipt": charge(state["amount"])}


def pay_carefully(state: Any, ctx: Context) -> dict[str, Any]:
    return {"receipt": charge(state["amount"], ctx.idempotency_key)}


def pay_once(state: Any, ctx: Context) -> dict[str, Any]:
    return {"receipt": ctx.once("charge", charge, state["amount"])}


def pay_something(state: Any, ctx: Context) -> dict[str, Any]:
    charge(random.randrange(1_000_000), ctx.idempotency_key)
    return {"receipt": "paid"}


def pay_under_any_key(state: Any) -> dict[str, Any]:
    return {"receipt": charge(state["amount"], str(random.random()))}


def pay_then_ask(state: Any, ctx: Context) -> dict[str, Any]:
    charge(state["amount"])
    return {"verdict": ctx.ask("Ship it?", name="ship")}


def ask(state: Any, ctx: Context) -> dict[str, Any]:
    return {"verdict": ctx.ask("Ship it?", name="ship")}


def pack(state: Any) -> dict[str, Any]:
    return {"verdict": f"packed for {state['receipt']}"}


def careful_shop() -> StateGraph:
    """A workflow that a fresh interpreter can build."""
    return chain("careful", ("pay", pay_carefully), ("pack", pack))
