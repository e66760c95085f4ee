"""Nodes: what they receive and return, commands, and the event loops around them."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import pytest

from holdfast import (
    END,
    START,
    Command,
    Context,
    ExecutionError,
    RunStatus,
    Send,
    State,
    StateGraph,
)
from holdfast.stores.base import Store
from tests.graphs import Log, chain, fan, one, says

# Nodes.


def test_a_chain_runs_in_order_and_its_outcome_says_so(store: Store) -> None:
    app = chain("a", "b", "c").compile(store)

    out = app.invoke({"n": 1}, run_id="r1")

    assert (
        out.status == RunStatus.COMPLETED and out.run_id == "r1" and out.pauses == () and out.warnings == ()
    )
    assert out.state == {"n": 1, "log": ["a", "b", "c"]}
    assert (out.stats.steps_run, out.stats.steps_kept, out.stats.waves, out.stats.retries) == (
        3,
        0,
        3,
        0,
    )
    assert out.checkpoint_id == app.checkpoints("r1")[-1].id == out.state.checkpoint_id
    assert out.state.checkpoint_node == "c" and out.state.run_id == "r1"
    assert app.get_state("r1") == out.state


def test_async_nodes_and_sync_nodes_mix(store: Store) -> None:
    async def later(state: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"log": [f"later {state['log']}"]}

    out = chain("a", "b", "c", nodes={"b": later}).compile(store).invoke()

    assert out.state["log"] == ["a", "later ['a']", "c"]


def test_nodes_receive_what_they_name() -> None:
    seen: dict[str, Any] = {}

    def everything(config: Any, ctx: Context, state: State) -> None:
        seen.update(config=dict(config), run=ctx.run_id, step=ctx.step, node=ctx.node, state=dict(state))
        seen.update(attempt=ctx.attempt, visit=ctx.visit, item=ctx.item_key, same=ctx.config == config)

    app = chain("a", nodes={"a": everything}).compile("memory://")
    app.invoke({"n": 1}, run_id="r1", config={"k": [1]})

    assert seen == {
        "config": {"k": [1]},
        "run": "r1",
        "step": "a#1",
        "node": "a",
        "state": {"n": 1, "log": []},
        "attempt": 1,
        "visit": 1,
        "item": None,
        "same": True,
    }


def test_any_callable_can_be_a_node() -> None:
    class Machine:
        async def __call__(self, state: Any) -> dict[str, Any]:
            return {"log": ["machine"]}

        def method(self, state: Any, ctx: Context) -> dict[str, Any]:
            return {"log": [ctx.node]}

    def greet(greeting: str, state: Any) -> dict[str, Any]:
        return {"log": [greeting]}

    nodes = {
        "a": Machine(),
        "b": Machine().method,
        "c": functools.partial(greet, "hello"),
        "d": lambda: {"log": ["nothing wanted"]},
        "e": lambda state: asyncio.sleep(0, {"log": ["awaitable"]}),
    }
    out = chain(*"abcde", nodes=nodes).compile("memory://").invoke()

    assert out.state["log"] == ["machine", "b", "hello", "nothing wanted", "awaitable"]


def test_siblings_may_be_functions_that_return_awaitables() -> None:
    nodes = {"a": lambda state: asyncio.sleep(0, {"log": ["awaited"]})}

    assert fan("a", "b", nodes=nodes).compile("memory://").invoke().state["log"] == ["awaited", "b"]


def test_a_nodes_log_knows_its_run_and_step(caplog: pytest.LogCaptureFixture) -> None:
    one(lambda s, ctx: ctx.log.warning("careful")).compile("memory://").invoke(run_id="r")

    [record] = [record for record in caplog.records if record.getMessage() == "careful"]
    assert (record.name, vars(record)["run_id"], vars(record)["step"]) == ("holdfast.nodes", "r", "work#1")


def test_the_config_is_read_only() -> None:
    def change(config: Any) -> None:
        config["k"].append(1)

    with pytest.raises(ExecutionError, match="read-only"):
        one(change).compile("memory://").invoke(config={"k": []})


@pytest.mark.parametrize("value", [None, {}])
def test_a_node_may_change_nothing(value: Any) -> None:
    assert one(lambda state: value).compile("memory://").invoke({"n": 1}).state == {"n": 1, "log": []}


def test_a_node_may_return_a_whole_state() -> None:
    """S3.3"""

    def replace(state: State) -> State:
        return state.merge({"n": 7, "log": ["only this"]})

    out = chain("a", "b", nodes={"b": replace}).compile("memory://").invoke({"n": 1})

    assert out.state == {"n": 7, "log": ["only this"]}


def test_a_whole_state_without_a_key_removes_it() -> None:
    graph = one(lambda state: State({"kept": 1}), dict)

    assert graph.compile("memory://").invoke({"kept": 0, "lost": 1}).state == {"kept": 1}


def test_a_lone_sync_node_runs_in_the_callers_thread_and_siblings_in_others() -> None:
    here = threading.get_ident()
    seen: dict[str, int] = {}

    def where(name: str) -> Any:
        return lambda state: seen.update({name: threading.get_ident()})

    graph = StateGraph(Log)
    for name in "abc":
        graph.add_node(name, where(name))
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("a", "c")
    graph.compile("memory://").invoke()

    assert seen["a"] == here and seen["b"] != here and seen["c"] != here


def test_context_variables_reach_nodes_in_worker_threads() -> None:
    import contextvars

    who: contextvars.ContextVar[str] = contextvars.ContextVar("who")
    who.set("ann")
    out = fan("a", "b", nodes={"a": lambda s: {"log": [who.get()]}}).compile("memory://").invoke()

    assert out.state["log"] == ["ann", "b"]


# Commands.


def test_a_command_updates_and_chooses() -> None:
    graph = StateGraph(Log).add_node("a", lambda s: Command({"log": ["a"]}, "c"), goto=["c"])
    graph.add_node("b", says("b")).add_node("c", says("c")).add_edge(START, "a").add_edge("a", "b")

    assert graph.compile("memory://").invoke().state["log"] == ["a", "c"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (Command({"log": ["only an update"]}), ["only an update", "b"]),
        (Command(goto=END), []),
        (Command(goto=["b", "c"]), ["b", "c"]),
        (Command(goto=Send("c", {"n": 1})), ["c"]),
        (Command(goto=(Send("c", {}, "x"), Send("c", {}, "y"), "b")), ["b", "c", "c"]),
        (Command(), ["b"]),
    ],
)
def test_commands_of_every_shape(command: Command, expected: list[str]) -> None:
    graph = StateGraph(Log).add_node("a", lambda s: command, goto="bc")
    graph.add_node("b", says("b")).add_node("c", says("c")).add_edge(START, "a").add_edge("a", "b")

    assert graph.compile("memory://").invoke().state["log"] == expected


def test_a_command_to_nowhere_fails_the_step() -> None:
    with pytest.raises(ExecutionError, match="node not found: nowhere"):
        one(lambda s: Command(goto="nowhere")).compile("memory://").invoke()


# Event loops.


async def test_invoke_works_inside_a_running_loop() -> None:
    async def later(state: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"log": ["later"]}

    app = chain("a", "b", nodes={"b": later}).compile("memory://")

    assert app.invoke(run_id="r").state["log"] == ["a", "later"]
    assert [event.type for event in app.stream()][-1] == "graph.complete"


async def _fetched() -> str:
    await asyncio.sleep(0)
    return "fetched"


@pytest.mark.parametrize("make", [one, lambda node: fan("a", "b", nodes={"b": node})])
def test_a_sync_node_may_run_an_event_loop_of_its_own(make: Any) -> None:
    async def after(state: Any) -> dict[str, Any]:
        return {"log": [await _fetched()]}

    graph = make(lambda state: {"log": [asyncio.run(_fetched())]})
    assert graph.compile("memory://").invoke().state["log"][-1] == "fetched"
    nodes = {"a": lambda state: asyncio.run(_fetched()) and None, "b": after}
    assert chain("a", "b", nodes=nodes).compile("memory://").invoke().state["log"] == ["fetched"]


def test_a_node_may_run_another_graph(store: Store) -> None:
    inner = chain("x", "y", nodes={"y": lambda s: asyncio.run(_fetched()) and {"log": ["y"]}}).compile(store)

    def work(state: Any, ctx: Context) -> dict[str, Any]:
        return {"log": list(inner.invoke(run_id=f"{ctx.run_id} inner").state["log"])}

    out = chain("a", "b", nodes={"b": work}).compile(store).invoke(run_id="r")

    assert out.state["log"] == ["a", "x", "y"]
    assert {info.run: info.status for info in store.runs()} == {"r": "completed", "r inner": "completed"}


async def test_ainvoke_does_not_block_the_loop() -> None:
    gate = threading.Event()

    def waits(state: Any) -> dict[str, Any]:
        return {"log": ["opened" if gate.wait(20) else "blocked"]}

    running = asyncio.ensure_future(chain("a", nodes={"a": waits}).compile("memory://").ainvoke())
    for _ in range(3):
        await asyncio.sleep(0.01)
    gate.set()

    assert (await running).state["log"] == ["opened"]


async def test_many_runs_share_one_loop(store: Store) -> None:
    async def work(state: Any) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        return {"log": [str(state["n"])]}

    app = chain("a", "b", nodes={"a": work, "b": work}).compile(store)
    outcomes = await asyncio.gather(*(app.ainvoke({"n": n}, run_id=f"r{n}") for n in range(20)))

    assert [outcome.state["log"] for outcome in outcomes] == [[str(n), str(n)] for n in range(20)]
