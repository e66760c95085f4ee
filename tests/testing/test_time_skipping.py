"""Skipped time: waits pass at once and in order, nothing is early, and what really runs takes its time."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    END,
    START,
    AnswerTimeout,
    Context,
    ExecutionError,
    HoldfastError,
    Retry,
    StateGraph,
    StepTimeout,
    Worker,
    clock,
    load_flow,
)
from holdfast.stores.base import Store
from holdfast.testing import skipping_time
from holdfast.testing.time_skipping import SkippedTime

DAY = 86400.0


def lone(function: Any, **options: Any) -> Any:
    graph = StateGraph(dict, name="lone")
    graph.add_node("node", function, **options)
    graph.add_edge(START, "node").add_edge("node", END)
    return graph


def test_a_day_of_sleep_passes_at_once_and_not_early() -> None:
    begun = clock.time()

    def sleep(state: Any, ctx: Context) -> dict[str, Any]:
        ctx.sleep(DAY)
        return {"at": clock.time()}

    with skipping_time() as skipped:
        at = lone(sleep).compile().invoke({}).state["at"]
        assert DAY <= at - begun <= skipped.now() - begun
        assert DAY - 60 < skipped.skipped() <= DAY + 1

    assert clock.time is time.time and clock.loop_factory is None
    assert clock.time() - begun < DAY / 2


@pytest.mark.parametrize("is_async", [False, True])
def test_siblings_wake_in_the_order_of_their_times(is_async: bool) -> None:
    woken: list[tuple[str, float]] = []
    begun: list[float] = []

    def make(name: str, hours: float) -> Any:
        def wait(state: Any, ctx: Context) -> None:
            ctx.sleep(hours * 3600)
            woken.append((name, clock.time() - begun[0]))

        async def wait_async(state: Any, ctx: Context) -> None:
            if name == "two":
                await asyncio.sleep(hours * 3600)
            else:
                await ctx.sleep(hours * 3600)  # type: ignore[misc]
            woken.append((name, clock.time() - begun[0]))

        return wait_async if is_async else wait

    graph = StateGraph(dict, name="siblings")
    for name, hours in (("three", 0.9), ("one", 0.3), ("two", 0.6)):
        graph.add_node(name, make(name, hours), after=[])

    with skipping_time() as skipped:
        begun.append(clock.time())
        if is_async:
            skipped.run(graph.compile().ainvoke({}))
        else:
            graph.compile().invoke({})

    assert [name for name, _ in woken] == ["one", "two", "three"]
    for (_, after), hours in zip(woken, (0.3, 0.6, 0.9), strict=True):
        assert hours * 3600 <= after < hours * 3600 + 600


def test_time_does_not_jump_while_a_body_really_runs() -> None:
    """A sibling sleeps for an hour: that must not make the hour pass for the one that computes."""
    seen: list[float] = []
    release = threading.Event()

    def compute(state: Any) -> None:
        before = clock.monotonic()
        release.wait(0.3)
        seen.append(clock.monotonic() - before)

    def sleep(state: Any, ctx: Context) -> None:
        ctx.sleep(3600)

    graph = StateGraph(dict, name="siblings")
    graph.add_node("compute", compute, after=[]).add_node("sleep", sleep, after=[])
    with skipping_time() as skipped:
        graph.compile().invoke({})
        assert skipped.skipped() > 3000

    assert len(seen) == 1 and seen[0] < 1800


def test_a_timeout_of_a_node_that_waits_comes_at_once() -> None:
    async def hang(state: Any) -> None:
        await asyncio.sleep(DAY)

    with skipping_time() as skipped, pytest.raises(ExecutionError) as caught:
        lone(hang, timeout=3600).compile().invoke({})

    assert isinstance(caught.value.cause, StepTimeout) and 3000 < skipped.skipped() < 7200


def test_a_timeout_does_not_come_early_for_a_node_that_works() -> None:
    def work(state: Any) -> dict[str, Any]:
        time.sleep(0.2)
        return {"done": True}

    with skipping_time():
        assert lone(work, timeout=3600).compile().invoke({}).state["done"] is True


def test_retries_wait_in_skipped_time() -> None:
    at: list[float] = []

    def fail(state: Any) -> None:
        at.append(clock.time())
        raise ConnectionError("lost")

    rule = Retry(attempts=3, delay=1000, max_delay=10_000)
    with skipping_time(), pytest.raises(ExecutionError):
        lone(fail, retry=rule).compile().invoke({})

    assert [round(later - earlier, -2) for earlier, later in itertools.pairwise(at)] == [1000, 2000]


def test_a_question_times_out_when_its_time_has_passed(memory: Store) -> None:
    def ask(state: Any, ctx: Context) -> dict[str, Any]:
        return {"said": ctx.ask("Well?", name="well", timeout=dt.timedelta(days=2))}

    with skipping_time() as skipped:
        app = lone(ask).compile(memory)
        app.invoke({}, run_id="r")
        skipped.advance(DAY)
        assert app.resume("r").status == "paused"
        skipped.advance(DAY)
        with pytest.raises(ExecutionError) as caught:
            app.resume("r")
    assert isinstance(caught.value.cause, AnswerTimeout)


def test_a_queued_run_is_taken_up_when_it_is_due(tmp_path: Path) -> None:
    ran: list[float] = []
    app = lone(lambda state: ran.append(clock.time())).compile(f"sqlite:///{tmp_path}/runs.db")
    with skipping_time() as skipped:
        due = clock.time() + 3 * DAY
        app.submit({}, when=3 * DAY)
        Worker(app.store, [app]).run(until_idle=True)
        assert ran == []
        skipped.advance(3 * DAY)
        Worker(app.store, [app]).run(until_idle=True)
    assert len(ran) == 1 and ran[0] >= due
    app.store.close()


def test_a_wait_of_a_workflow_file_passes_at_once() -> None:
    flow = load_flow(
        "flow.yaml",
        text="workflow: {name: w}\nsteps: [{name: rest, wait: 12h}, {name: x, set: {done: true}}]",
    )
    with skipping_time() as skipped:
        assert flow.open("memory://").invoke(flow.begin({})).status == "completed"
        assert skipped.skipped() > 11 * 3600


def test_real_io_is_waited_for_in_real_time() -> None:
    """A loop that waits for a socket must not have its timeouts pass meanwhile."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            time.sleep(0.2)
            connection.sendall(b"pong\n")

    async def listen() -> bytes:
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        async with asyncio.timeout(3600):
            said = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return said

    serving = threading.Thread(target=serve)
    with listening, skipping_time() as skipped:
        serving.start()
        assert skipped.run(listen()) == b"pong\n"
        assert skipped.skipped() < 3600
    serving.join()


def test_work_that_a_loop_hands_to_threads_is_waited_for() -> None:
    async def both() -> list[float]:
        async def really() -> float:
            before = clock.monotonic()
            await asyncio.to_thread(time.sleep, 0.2)
            return clock.monotonic() - before

        async def waiting() -> float:
            await asyncio.sleep(3600)
            return clock.monotonic()

        return list(await asyncio.gather(really(), waiting()))

    with skipping_time() as skipped:
        assert skipped.run(both())[0] < 1800
        sleeping = asyncio.to_thread
        begun = clock.monotonic()
        skipped.run(sleeping(lambda: clock.sleep(7200)))
        assert 7200 <= clock.monotonic() - begun < 7800


def test_time_goes_forward_and_is_skipped_once() -> None:
    with skipping_time() as skipped:
        with pytest.raises(HoldfastError, match="time only goes forward"):
            skipped.advance(-1)
        with pytest.raises(HoldfastError, match="cannot be nested"), skipping_time():
            pass
        assert isinstance(skipped, SkippedTime)
