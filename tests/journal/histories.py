"""Histories of real runs of many kinds, for the tests of folding and of the wire format."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from holdfast import (
    END,
    START,
    CheckpointPolicy,
    Command,
    CommandRefused,
    ExecutionError,
    Retry,
    RunPaused,
    Send,
    StateGraph,
    append,
    ask,
    keep_last,
    merge,
    open_store,
    step,
    union,
    workflow,
)
from holdfast.engine.transfer import copy_runs
from holdfast.journal.encoding import Track
from holdfast.journal.journal import Journal
from holdfast.journal.records import Record
from holdfast.state.codec import Codec
from holdfast.stores.base import Append, RunInfo, Store
from tests.graphs import Log, chain, fan, one, says


def joined(old: list[int] | None, new: list[int]) -> list[int]:
    return [*(old or []), *new]


class Rich(TypedDict, total=False):
    n: int
    log: Annotated[list[str], append]
    facts: Annotated[dict[str, Any], merge]
    tags: Annotated[set[str], union]
    recent: Annotated[list[int], keep_last(2)]
    custom: Annotated[list[int], joined]
    big: str


def simple(store: Store) -> None:
    chain("a", "b", "c").compile(store).invoke({"n": 1}, run_id="r", config={"k": [1]})


def siblings(store: Store) -> None:
    fan(*"abcdef").compile(store).invoke(run_id="r")


def loop(store: Store) -> None:
    def step(state: Any) -> dict[str, Any]:
        n = state["n"] + 1
        big = "".join(f"line {index} {'x' if index == n else ''}\n" for index in range(400))
        return {"n": n, "recent": [n], "custom": [n], "facts": {str(n): n}, "tags": {str(n % 3)}, "big": big}

    graph = StateGraph(Rich).add_node("step", step).add_edge(START, "step")
    graph.add_edge("step", "step", when=lambda s: s["n"] < 8).add_edge("step", END)
    graph.compile(store).invoke({"n": 0}, run_id="r")


def for_each(store: Store) -> None:
    graph = StateGraph(Rich).add_node("item", lambda s: {"log": [f"{s['n']}"]}).add_node("end", says("end"))
    graph.add_conditional_edges(
        START, lambda s: [Send("item", {"n": i, "big": "y" * 600}, key=f"k/{i}") for i in range(5)]
    )
    graph.add_edge("item", "end")
    graph.compile(store).invoke(run_id="r")


def nested(store: Store) -> None:
    inner = StateGraph(Rich, name="inner").add_node("x", lambda s: {"log": ["x"], "custom": [1], "n": 5})
    inner.add_node("y", says("y")).add_edge(START, "x").add_edge("x", "y")
    middle = StateGraph(dict, name="middle").add_node("in", inner).add_edge(START, "in")
    outer = (
        StateGraph(Rich)
        .add_node("mid", middle)
        .add_node("z", says("z"))
        .add_edge(START, "mid")
        .add_edge("mid", "z")
    )
    outer.compile(store).invoke({"n": 0}, run_id="r")


def pausing(store: Store) -> None:
    def ask(state: Any, ctx: Any) -> dict[str, Any]:
        note = ctx.once("note", lambda: 41)
        with contextlib.suppress(ZeroDivisionError):
            ctx.once("fails", lambda: 1 // 0)
        ctx.sleep(0)
        return {"log": [f"{ctx.ask('ready?', name='ready', choices=[True, False])} {note}"]}

    app = fan("a", "b", "c", nodes={"a": ask, "b": ask}).compile(store, interrupt_after=["c"])
    out = app.invoke(run_id="r")
    first, second = [pause.id for pause in out.pauses if pause.kind == "ask"]
    app.resume("r", answers={first: True}, update={"n": 4})
    app.resume("r", answers={second: False})


def failing(store: Store) -> None:
    state = {"broken": True}

    def fails(_: Any) -> dict[str, Any]:
        if state["broken"]:
            raise ValueError("a lone surrogate \ud800 and more")
        return {"log": ["mended"]}

    graph = StateGraph(Log).add_node("a", says("a")).add_node("b", fails, retry=Retry(2, delay=0))
    graph.add_edge(START, "a").add_edge("a", "b")
    app = graph.compile(store, interrupt_before=["a"])
    app.invoke(run_id="r")
    for _ in range(2):
        try:
            app.resume("r", config={"more": 1})
        except ExecutionError:
            continue
    state["broken"] = False
    changed = graph.add_node("c", says("c")).add_edge("b", "c")
    changed.compile(store, interrupt_before=["a"]).resume("r")


def passing_over(store: Store) -> None:
    def fails(_: Any) -> None:
        raise KeyError("gone")

    policy = CheckpointPolicy(on_failure="continue", interval=2)
    chain("a", "b", "c", nodes={"b": fails}).compile(store, policy=policy).invoke(run_id="r")


def commanding(store: Store) -> None:
    graph = StateGraph(Log).add_node(
        "a", lambda s: Command({"log": ["a"]}, ["b", Send("c", {"n": 1})]), goto="bc"
    )
    graph.add_node("b", says("b")).add_node("c", says("c")).add_node("d", says("d")).add_edge(START, "a")
    graph.add_edge(["b", "c"], "d")
    graph.compile(store, barrier=False).invoke(run_id="r")


def cancelled(store: Store) -> None:
    app = one(lambda s, ctx: {"log": [ctx.ask("well?")]}).compile(store)
    app.invoke(run_id="r")
    app.cancel("r")
    app.resume("r", "fine")


def forked(store: Store) -> None:
    app = chain("a", "b", "c").compile(store)
    app.invoke(run_id="old")
    app.resume(app.checkpoints("old")[0].id)


def steered(store: Store) -> None:
    def ask(state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": [ctx.ask("ready?")]}

    app = fan("a", "b", "c", "d", nodes={"a": ask, "b": ask}).compile(store, interrupt_before=["c"])
    app.invoke({"n": 0}, run_id="r")
    app.edit("r", {"n": 2, "log": ["edited"]}, by="ann", reason="half \ud800 a pair")
    app.skip("r", "a", by="ann")
    app.modify("r", "c", {"n": 9})
    app.inject("r", ["d", Send("d", {"n": 5}, key="k"), Send("d", {"n": 6}, key="l")])
    with contextlib.suppress(CommandRefused):
        app.skip("r", "e", by="bob")
    app.resume("r")
    app.replan("r", ["d"])
    app.resume("r")


def spending(store: Store) -> None:
    def asks(state: Any, ctx: Any) -> dict[str, Any]:
        ctx.spend("model-a", input_tokens=10, output_tokens=2, cost=0.5)
        ctx.once("reply", lambda: ctx.spend("model-b", input_tokens=3))
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return {"n": 1}

    graph = StateGraph(dict)
    graph.add_node("ask", asks, retry=Retry(attempts=2, delay=0))
    graph.add_node("then", lambda state: {"n": 2})
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "then")
    graph.compile(store, facts={"team": "blue"}).invoke({}, run_id="r")


def annotated(store: Store) -> None:
    app = chain("a", "b", "c").compile(store)
    app.invoke({"n": 1}, run_id="r")
    app.tag("r", "good", "odd", by="ann")
    app.tag("r", remove=["odd"])
    app.note("r@1", "here it was fine", by="bob")
    app.keep("r@1")


def migrated(store: Store) -> None:
    def graph(last: Callable[..., Any], version: str, inner: str) -> StateGraph:
        within = StateGraph(dict, name="within", version=inner).add_node("x", lambda s: {"old": [1], "n": 1})
        within.add_node("last", last).add_edge(START, "x").add_edge("x", "last")
        made = StateGraph(dict, name="w", version=version)
        if version:
            within.migrate("1", "2")(lambda state: state.update(new=state.pop("old")))
            made.migrate("", "1")(lambda state: state.update(papers=state.pop("docs")))
            made.migrate("1", "2")(lambda state: state.update(n=7))
        made.add_node("a", lambda s: {"big": "b" * 900, "docs": [1]}).add_node("in", within)
        return made.add_edge(START, "a").add_edge("a", "in")

    with contextlib.suppress(ExecutionError):
        graph(lambda s: s["gone"], "", "1").compile(store).invoke({"n": 0}, run_id="r")
    graph(lambda s: {"n": 2}, "2", "2").compile(store).resume("r")


def reusing(store: Store) -> None:
    chain("a", "b", "c").compile(store).invoke({"n": 1}, run_id="old")
    chain("a", "b", "c", nodes={"b": says("B")}).compile(store).invoke(run_id="r", reuse="old")
    chain("a", "b", "c", nodes={"b": says("C")}).compile(store).resume("r", rerun_changed=True)


def rolled_back(store: Store) -> None:
    app = chain("a", "b", "c").compile(store)
    app.invoke({"n": 1}, run_id="r")
    app.rollback("r", 1, by="ada", reason="once more")
    app.update_state("r", {"n": 2}, as_node="b")
    app.resume("r")


def confirmed(store: Store) -> None:
    theirs = open_store("memory://")
    chain("a", "b").compile(theirs, interrupt_after=["a"]).invoke({"n": 1}, run_id="r")
    copy_runs(theirs, store, foreign=True)
    chain("a", "b").compile(store).resume("r", trust=True)


def called(store: Store) -> None:
    """A function that calls steps: one fails and is caught, one asks, another workflow is called."""

    @step
    def double(n: int) -> int:
        return 2 * n

    @step
    def refuse() -> None:
        raise ValueError("no")

    @workflow
    def inner(n: int) -> int:
        return double(n) + 1

    @workflow(store=store)
    def outer(n: int) -> int:
        with contextlib.suppress(ValueError):
            refuse()
        total = double(n) + inner(n)
        return total if ask("Go on?") else 0

    with contextlib.suppress(RunPaused):
        outer.run(3, run_id="r")
    outer.resume("r", True)


KINDS: dict[str, Callable[[Store], None]] = {
    function.__name__: function
    for function in (
        simple,
        siblings,
        loop,
        for_each,
        nested,
        pausing,
        failing,
        passing_over,
        commanding,
        cancelled,
        forked,
        steered,
        rolled_back,
        reusing,
        spending,
        migrated,
        annotated,
        confirmed,
        called,
    )
}


@dataclass(frozen=True)
class History:
    """One run as its journal has it."""

    store: Store
    info: RunInfo
    records: list[tuple[Record, float]]
    ends: list[int]
    """How many records there are up to and with each entry."""

    @property
    def journal(self) -> Journal:
        return Journal(self.store)


@functools.cache
def history(kind: str) -> History:
    """The history of a run of that kind, recorded once."""
    store = open_store("memory://")
    KINDS[kind](store)
    info = next(info for info in store.runs() if info.run != "old")
    track, codec = Track(), Codec()
    records: list[tuple[Record, float]] = []
    ends = []
    for entry in store.read(info.run):
        records += [(record, entry.at) for record in Journal(store).records(info, entry, track, codec)]
        ends.append(len(records))
    return History(store, info, records, ends)


def cut(told: History, upto: int) -> Store:
    """A new store that holds only the first entries of a run, as after a crash."""
    store = open_store("memory://")
    store.commit([Append(told.info.run, 0, list(told.store.read(told.info.run, 0, upto)), told.info)])
    return store
