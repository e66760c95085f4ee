"""Skipped time: waits pass at once and in order, nothing is early, and what really runs takes its time."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import queue
import socket
import threading
import time
import weakref
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
    clock,
    load_workflow,
)
from holdfast.fleet import Worker
from holdfast.stores.base import Store
from holdfast.testing import skipping_time, time_skipping
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
    flow = load_workflow(
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


def test_beside_a_connection_that_is_open_time_is_real() -> None:
    """It cannot be detected whether it is awaited, or only kept."""

    async def keep() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            _, writer = await asyncio.open_connection(sock=ours)
            await asyncio.sleep(0.2)
            assert skipped.skipped() == 0
            writer.close()
            await writer.wait_closed()
        await asyncio.sleep(DAY)

    with skipping_time() as skipped:
        skipped.run(keep())
        assert skipped.skipped() > DAY - 60


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


async def silent_program() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "0.2")
    assert await process.wait() == 0


async def program_that_says_all_before_it_ends() -> None:
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", "echo hi; exec 1>&-; sleep 0.2", stdout=asyncio.subprocess.PIPE
    )
    assert (await process.communicate())[0] == b"hi\n"


def soon(settle: Any) -> threading.Thread:
    """A thread unknown to Holdfast, as database libraries have them."""
    loop = asyncio.get_running_loop()

    def work() -> None:
        time.sleep(0.2)
        loop.call_soon_threadsafe(settle)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


async def future_of_a_thread() -> None:
    future = asyncio.get_running_loop().create_future()
    soon(lambda: future.set_result(None))
    await future


async def future_made_by_hand() -> None:
    future: asyncio.Future[None] = asyncio.Future()
    soon(lambda: future.set_result(None))
    await future


async def event_of_a_thread() -> None:
    event = asyncio.Event()
    soon(event.set)
    await event.wait()


async def queue_of_a_thread() -> None:
    numbers: asyncio.Queue[int] = asyncio.Queue()
    soon(lambda: numbers.put_nowait(1))
    await numbers.get()


async def gathered_futures_of_threads() -> None:
    futures = [asyncio.get_running_loop().create_future() for _ in range(2)]
    for future in futures:
        soon(lambda future=future: future.set_result(None))
    await asyncio.gather(*futures)


async def thread_that_is_asked_again_and_again() -> None:
    thread = soon(lambda: None)
    while thread.is_alive():
        await asyncio.sleep(1)


REALLY_BUSY = [
    silent_program,
    program_that_says_all_before_it_ends,
    future_of_a_thread,
    future_made_by_hand,
    event_of_a_thread,
    queue_of_a_thread,
    gathered_futures_of_threads,
    thread_that_is_asked_again_and_again,
]


@pytest.mark.parametrize("busy", REALLY_BUSY)
@pytest.mark.parametrize("limit", ["of the node", "of asyncio", "none, but a sibling sleeps"])
def test_time_does_not_jump_over_what_a_body_does_by_programs_and_threads(busy: Any, limit: str) -> None:
    """The limit is one that real work keeps by far, and that a jump exceeds."""

    async def work(state: Any) -> dict[str, Any]:
        before = clock.monotonic()
        await asyncio.wait_for(busy(), 3000 if limit == "of asyncio" else None)
        return {"took": clock.monotonic() - before}

    async def sleep(state: Any) -> None:
        await asyncio.sleep(0.0 if limit != "none, but a sibling sleeps" else 3600.0)

    graph = StateGraph(dict, name="busy")
    graph.add_node("work", work, after=[], timeout=3000 if limit == "of the node" else None)
    graph.add_node("sleep", sleep, after=[])
    with skipping_time():
        assert graph.compile().invoke({}).state["took"] < 3000


def test_a_future_that_a_thread_settles_is_waited_for_also_by_itself() -> None:
    async def work(state: Any) -> dict[str, Any]:
        future = asyncio.get_running_loop().create_future()
        soon(lambda: future.set_result(7))
        return {"got": await asyncio.wait_for(future, 30)}

    with skipping_time():
        assert lone(work).compile().invoke({}).state["got"] == 7


def test_a_thread_that_only_idles_does_not_hold_up_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is kept open has a thread; nothing that is awaited here is for such a thread to settle."""
    asked: list[float] = []
    patience = time_skipping._SkippingLoop.longest_hold

    def noted(loop: Any) -> float:
        asked.append(patience(loop))
        return asked[-1]

    monkeypatch.setattr(time_skipping._SkippingLoop, "longest_hold", noted)
    over = threading.Event()
    idle = threading.Thread(target=over.wait, daemon=True)
    lock = asyncio.Lock()

    async def sleep(state: Any, ctx: Context) -> None:
        if not idle.is_alive():
            idle.start()
        async with lock, asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(10 * DAY))
            await asyncio.wait([group.create_task(asyncio.sleep(10 * DAY))], timeout=9 * DAY)
        await ctx.sleep(10 * DAY)  # type: ignore[misc]

    graph = StateGraph(dict, name="idle")
    graph.add_node("one", sleep, after=[], timeout=300 * DAY).add_node("two", sleep, after=[])
    try:
        with skipping_time() as skipped:
            graph.compile().invoke({})
            assert skipped.skipped() > 29 * DAY
    finally:
        over.set()
    of_the_body = [each for each in asked if each]
    assert max(asked) == time_skipping._GRACE, "somebody waits for the thread"
    assert len(of_the_body) < 20 < len(asked), "the engine's own timers are put off too"


def test_patience_with_a_thread_that_settles_nothing_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sets an event, a thread or a task, nobody can know; if it was a task, time goes on after a while."""
    monkeypatch.setattr(time_skipping, "_LONGEST_HOLD", 0.1)
    over = threading.Event()
    idle = threading.Thread(target=over.wait, daemon=True)

    async def both() -> None:
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(DAY, event.set)
        await event.wait()

    try:
        with skipping_time() as skipped:
            idle.start()
            skipped.run(both())
            assert skipped.skipped() > DAY - 60
    finally:
        over.set()


def test_a_connection_that_is_kept_from_one_run_to_the_next_is_known_as_strange_there() -> None:
    """As in a crash test in fast mode, where each execution has its own time and the memory survives."""
    asked: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def serve() -> None:
        while (settle := asked.get()) is not None:
            time.sleep(0.2)
            settle()

    connection = threading.Thread(target=serve, daemon=True)

    async def ask(state: Any) -> dict[str, Any]:
        if not connection.is_alive():
            connection.start()
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        asked.put(lambda: loop.call_soon_threadsafe(future.set_result, 7))
        return {"got": await asyncio.wait_for(future, 3000)}

    for _ in range(3):
        with skipping_time():
            assert lone(ask).compile().invoke({}).state["got"] == 7
    asked.put(None)
    connection.join()


def test_threads_are_strange_while_nobody_counts_them_and_they_do_not_wait_by_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time_skipping, "_STRANGE", weakref.WeakSet())
    turns = [threading.Event() for _ in range(4)]

    def live() -> None:
        turns[0].wait()
        with skipped.at_work():
            turns[1].set()
            turns[2].wait()
        turns[3].wait()

    before = threading.Thread(target=turns[3].wait, daemon=True)
    before.start()
    with skipping_time() as skipped:
        assert not skipped.has_strangers()
        thread = threading.Thread(target=live, daemon=True)
        thread.start()
        assert skipped.has_strangers()
        turns[0].set()
        turns[1].wait()
        assert not skipped.has_strangers()
        with skipped.at_work():
            sleeping = threading.Thread(target=clock.sleep, args=(DAY,), daemon=True)
            sleeping.start()
            while skipped.has_strangers():
                time.sleep(0.001)  # Until it has begun to wait.
        turns[2].set()
        turns[3].set()
        sleeping.join()
        thread.join()
        assert not skipped.has_strangers()
    before.join()


def test_a_program_that_is_left_running_does_not_hold_up_time_for_ever() -> None:
    """It is counted by the loop that began it, and forgotten with that."""
    begun: list[Any] = []

    async def begin() -> None:
        begun.append(await asyncio.create_subprocess_exec("sleep", "60"))

    with skipping_time() as skipped:
        skipped.run(begin())
        skipped.run(asyncio.sleep(3))
        assert skipped.skipped() > 1
    transport = begun[0]._transport
    assert transport.get_returncode() is None
    transport._proc.kill()
    transport._proc.wait()
    transport.close()


def test_a_program_that_has_ended_before_it_is_known_does_not_hold_up_time() -> None:
    async def begin() -> None:
        asyncio.get_running_loop().call_soon(time.sleep, 0.3)  # The loop hears of the end first.
        process = await asyncio.create_subprocess_exec("true")
        assert await process.wait() == 0
        await asyncio.sleep(3)

    with skipping_time() as skipped:
        skipped.run(begin())
        assert skipped.skipped() > 1


def test_a_program_that_cannot_be_started_does_not_hold_up_time() -> None:
    async def begin() -> None:
        with pytest.raises(FileNotFoundError):
            await asyncio.create_subprocess_exec("/no/such/program")
        await asyncio.sleep(3)

    with skipping_time() as skipped:
        skipped.run(begin())
        assert skipped.skipped() > 1


def test_time_goes_forward_and_is_skipped_once() -> None:
    with skipping_time() as skipped:
        with pytest.raises(HoldfastError, match="time only goes forward"):
            skipped.advance(-1)
        with pytest.raises(HoldfastError, match="cannot be nested"), skipping_time():
            pass
        assert isinstance(skipped, SkippedTime)
