"""The graphs whose runs are kept as golden files."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from holdfast import END, START, Send, StateGraph, append


class Log(TypedDict, total=False):
    """What all of the graphs work on."""

    n: int
    log: Annotated[list[str], append]
    page: str
    odd: Any


def _say(word: str) -> Any:
    def say(state: Any) -> dict[str, Any]:
        return {"log": [word]}

    return say


def _chain(name: str, nodes: Mapping[str, Any]) -> StateGraph:
    graph = StateGraph(Log, name=name)
    for node, function in nodes.items():
        graph.add_node(node, function)
    for source, target in zip((START, *nodes), (*nodes, END), strict=True):
        graph.add_edge(source, target)
    return graph


def done() -> StateGraph:
    """Three steps, with values that need types of their own."""

    def odd(state: Any) -> dict[str, Any]:
        return {"log": ["b"], "odd": {"set": {1, 2}, "tuple": (1, "x"), "bytes": b"\x00\xff", "big": 2**80}}

    return _chain("done", {"a": _say("a"), "b": odd, "c": _say("c")})


def asked() -> StateGraph:
    """Asks in the middle."""

    def ask(state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": [ctx.ask("Well?", name="well")]}

    return _chain("asked", {"a": _say("a"), "b": ask, "c": _say("c")})


def crashed() -> StateGraph:
    """Its second step ends the process, unless the environment says that it may go on."""

    def crash(state: Any) -> dict[str, Any]:
        if os.environ.get("GOLDEN_MAKING"):
            os._exit(9)
        return {"log": ["b"]}

    return _chain("crashed", {"a": _say("a"), "b": crash, "c": _say("c")})


def nested() -> StateGraph:
    """A sub-graph, then a step for each of four items, one of which fails while the file is made."""

    def items(state: Any) -> list[Send]:
        return [Send("item", {"n": number}) for number in range(4)]

    def item(state: Any) -> dict[str, Any]:
        if state["n"] == 2 and os.environ.get("GOLDEN_MAKING"):
            raise RuntimeError("not yet")
        return {"log": [f"item {state['n']}"]}

    graph = StateGraph(Log, name="nested")
    graph.add_node("sub", _chain("inner", {"x": _say("x"), "y": _say("y")}))
    graph.add_node("split", _say("split"))
    graph.add_node("item", item)
    graph.add_node("last", _say("last"))
    graph.add_edge(START, "sub").add_edge("sub", "split")
    graph.add_conditional_edges("split", items)
    graph.add_edge("item", "last").add_edge("last", END)
    return graph


def pages(name: str = "pages") -> StateGraph:
    """Rewrites a page of text with a small change, six times, so that it is stored as differences."""

    def write(state: Any) -> dict[str, Any]:
        n = state["n"]
        page = state.get("page") or random.Random(5).randbytes(600).hex()
        return {"n": n + 1, "page": f"{page[: 100 * n]}[{n}]{page[100 * n + 3 :]}", "log": [f"page {n}"]}

    graph = StateGraph(Log, name=name).add_node("write", write)
    graph.add_edge(START, "write").add_edge("write", "write", when=lambda state: state["n"] < 6)
    graph.add_edge("write", END)
    return graph


def plain(value: Any) -> Any:
    """Return a value as JSON holds it."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in sorted(value.items())}
    if isinstance(value, (set, frozenset)):
        return ["set", *sorted(map(plain, value))]
    if isinstance(value, tuple):
        return ["tuple", *map(plain, value)]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, str) and len(value) > 200:
        return ["long text", hashlib.sha256(value.encode()).hexdigest()]
    if isinstance(value, list) or (hasattr(value, "__iter__") and not isinstance(value, str)):
        return list(map(plain, value))
    return str(value) if isinstance(value, int) and abs(value) > 2**53 else value


GRAPHS = {"done": done, "asked": asked, "crashed": crashed, "nested": nested, "pages": pages}
"""By the name of the workflow."""

UNFINISHED = ("asked", "crashed", "nested")
"""The runs that can be resumed, by their ids."""


def resumed(store: Any, run: str) -> Any:
    """The state at the end of a run that was not finished."""
    options: dict[str, Any] = {"answer": "well enough"} if run == "asked" else {}
    if run == "crashed":
        options["takeover"] = True
    return plain(GRAPHS[run]().compile(store).resume(run, **options).state)
