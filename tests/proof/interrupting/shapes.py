"""Small workflows of every shape, which write to a ledger what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from holdfast import END, START, App, Context, Retry, Send, StateGraph, add, append, ask, step, workflow
from holdfast.dags import ControlledExecutor, Tools
from holdfast.functions import context
from holdfast.stores.base import Store
from tests.invariants import Ledger


class Work(TypedDict, total=False):
    n: int
    total: Annotated[int, add]
    log: Annotated[list[str], append]


@dataclass
class Shape:
    """What is compiled, and how, and the answers to its questions."""

    graph: Any
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


@dataclass
class Compiled:
    """What makes an app of a store as `StateGraph.compile` does."""

    make: Callable[[Store], App]

    def compile(self, store: Store, durability: str, **options: Any) -> App:
        return self.make(store)


def function(ledger: Ledger) -> Shape:
    """A function whose steps run here, in threads of their own, and under another function."""

    @step
    def here(n: int) -> int:
        ledger.write("start", context().step)
        return n + 1

    @step(timeout=60)
    def watched(n: int) -> int:
        ledger.write("start", context().step)
        return n * 2

    @workflow
    def inner(n: int) -> list[int]:
        return watched.map([n, n + 1])

    def body(n: int) -> list[Any]:
        first = here(n)
        return [first, watched(first), inner(n), here(n), ask("Publish?", name="publish")]

    return Shape(
        Compiled(lambda store: workflow(name="function", store=store)(body).app), answers={"publish": "yes"}
    )


def awaited_function(ledger: Ledger) -> Shape:
    """An async function that gathers async steps, and calls sync ones here and watched."""

    async def effect(place: str, key: str) -> str:
        ledger.write("start", f"{place}:once:{key}")
        await asyncio.sleep(0)
        return key

    @step
    async def careful(n: int) -> list[str]:
        ctx = context()
        ledger.write("start", ctx.step)
        place = ctx.step
        done = await asyncio.gather(
            *(ctx.once(f"k{key % 2}", effect, place, f"k{key % 2}") for key in range(4))
        )
        for key in ("k0", "k1"):
            ledger.write("finished", f"{place}:once:{key}")
        return [str(each) for each in done]

    @step
    def here(n: int) -> int:
        ledger.write("start", context().step)
        return n + 1

    @step(timeout=60)
    def watched(n: int) -> int:
        ledger.write("start", context().step)
        return n * 2

    async def body(n: int) -> list[Any]:
        both = await asyncio.gather(careful(n), careful(n + 1))
        return [both, here(n), watched(n), await here.map([n, n + 1, n + 2], max_parallel=2)]

    return Shape(Compiled(lambda store: workflow(name="function", store=store)(body).app), is_async=True)


class _OfDag:
    """The app of an executor, which starts every run with the same DAG; times are no part of its result."""

    def __init__(self, executor: ControlledExecutor) -> None:
        self._executor, self._app = executor, executor.app

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)

    def invoke(self, given: Any, **options: Any) -> Any:
        tasks = [
            {"id": "a", "tool": "work"},
            *({"id": name, "tool": "work", "depends_on": ["a"]} for name in "bc"),
            {"id": "d", "tool": "charge", "depends_on": ["b", "c"]},
        ]
        dag = self._executor.initial_state({"tasks": tasks})
        return self._app.invoke(dag, config=self._executor.config, **options)

    def get_state(self, run: str) -> Any:
        state = self._app.get_state(run)
        tasks = sorted((each["task_id"], each["status"], each["result"]) for each in state["tasks"])
        return _Plain({"tasks": tasks, "approved": [each["action"] for each in state["decisions"]]})


class _Plain(dict[str, Any]):
    def to_dict(self) -> dict[str, Any]:
        return self


def dag(ledger: Ledger) -> Shape:
    """Three layers of tasks, the last of which needs an approval."""

    def make(store: Store) -> Any:
        tools = Tools()

        @tools.tool
        def work(ctx: Context) -> str:
            ledger.write("start", ctx.step)
            return "done"

        @tools.tool(critical=True)
        def charge(ctx: Context) -> str:
            ledger.write("start", ctx.step)
            return "charged"

        return _OfDag(ControlledExecutor(tools, store))

    return Shape(Compiled(make), answers={"approval": "approve"})


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
        function,
        awaited_function,
        dag,
    )
}
