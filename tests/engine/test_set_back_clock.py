"""A wall clock that is set back while a process waits does not prolong what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import END, START, Context, Retry, StateGraph
from holdfast.fleet import Worker
from holdfast.journal.journal import Deadlines
from holdfast.stores.base import Store
from holdfast.testing import skipping_time
from tests.graphs import Log, says

DAY = 86400.0


def beside(waiting: Callable[..., Any], set_clock: Callable[[], None], **options: Any) -> StateGraph:
    """A graph that waits in one node while, a hundred seconds later, another sets the clock."""

    async def jump(state: Any) -> None:
        await asyncio.sleep(100)
        set_clock()

    graph = StateGraph(Log, name="beside").add_node("wait", waiting, **options).add_node("jump", jump)
    for node in ("wait", "jump"):
        graph.add_edge(START, node).add_edge(node, END)
    return graph


def nap(seconds: float) -> Callable[..., Any]:
    def node(state: Any, ctx: Context) -> dict[str, Any]:
        ctx.sleep(seconds)
        return {"log": ["awake"]}

    return node


def nap_async(seconds: float) -> Callable[..., Any]:
    async def node(state: Any, ctx: Context) -> dict[str, Any]:
        await ctx.sleep(seconds)  # type: ignore[misc]
        return {"log": ["awake"]}

    return node


def fails_at_first(state: Any, ctx: Context) -> dict[str, Any]:
    if ctx.attempt == 1:
        raise OSError("not yet")
    return {"log": ["awake"]}


def ask(seconds: float) -> Callable[..., Any]:
    def node(state: Any, ctx: Context) -> dict[str, Any]:
        return {"log": [ctx.ask("well?", timeout=seconds, default="awake")]}

    return node


@pytest.mark.parametrize("waiting", [nap, nap_async])
def test_a_sleep_is_not_prolonged(memory: Store, waiting: Any) -> None:
    with skipping_time() as time:
        app = beside(waiting(5_000), lambda: time.set_wall_clock(-DAY)).compile(memory)
        assert app.invoke().state["log"] == ["awake"]
        assert 4_900 < time.skipped() < 20_000


def test_the_delay_before_a_retry_is_not_prolonged(memory: Store) -> None:
    with skipping_time() as time:
        rule = Retry(2, delay=5_000, max_delay=5_000)
        app = beside(fails_at_first, lambda: time.set_wall_clock(-DAY), retry=rule).compile(memory)
        assert app.invoke().state["log"] == ["awake"]
        assert 4_900 < time.skipped() < 20_000


def test_the_timeout_of_a_question_is_not_prolonged_while_the_run_executes(memory: Store) -> None:
    """Beside a step that outlasts the question."""

    async def outlast(state: Any) -> None:
        await asyncio.sleep(100)
        time.set_wall_clock(-DAY)
        await asyncio.sleep(20_000)
        order.append("outlasted")

    def asking(state: Any, ctx: Context) -> None:
        ctx.ask("well?", timeout=5_000, default="no answer")
        order.append("timed out")

    order: list[str] = []
    graph = StateGraph(Log, name="w").add_node("ask", asking).add_node("outlast", outlast)
    for node in ("ask", "outlast"):
        graph.add_edge(START, node).add_edge(node, END)
    with skipping_time() as time:
        assert graph.compile(memory).invoke().status == "completed"
    assert order == ["timed out", "outlasted"]


@pytest.mark.parametrize("waiting", [nap, nap_async, ask])
def test_a_worker_takes_up_a_run_that_waits_for_a_time_when_that_much_time_has_passed(
    memory: Store, waiting: Any
) -> None:
    with skipping_time() as time:
        app = beside(waiting(500), lambda: time.set_wall_clock(-DAY)).compile(memory)
        later = StateGraph(Log, name="later").add_node("a", says("a")).add_edge(START, "a").compile(memory)
        run_id = app.submit({})
        later.submit({}, when=800.0)

        async def until_done() -> None:
            worker = Worker(memory, [app, later], idle_timeout=1.0)
            running = asyncio.create_task(worker.arun())
            while any(info.status != "completed" for info in memory.runs()):
                await asyncio.sleep(10)
            worker.stop()
            await running

        time.run(until_done())
        assert app.get_state(run_id)["log"] == ["awake"]
        assert 790 < time.skipped() < 2_000


def test_a_clock_that_is_set_forward_ends_a_wait_when_its_time_has_come_by_that_clock(memory: Store) -> None:
    with skipping_time() as time:
        app = beside(nap_async(5_000), lambda: time.set_wall_clock(DAY)).compile(memory)
        assert app.invoke().state["log"] == ["awake"]
        assert time.skipped() < 4_900


def test_deadlines_that_were_passed_long_ago_are_not_remembered_for_ever() -> None:
    deadlines = Deadlines()
    for number in range(3000):
        assert deadlines.has_passed("r", float(number))
    for number in range(11_000):
        assert deadlines.left(f"run {number}", 1e12) > 0
    assert len(deadlines._ends) <= 10_000 and "run 10999" in deadlines._ends
    deadlines.forget("run 10999")
    assert "run 10999" not in deadlines._ends
