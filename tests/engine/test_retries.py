"""Retries, whose attempts are journalled, and timeouts."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
import time
from typing import Any

import pytest

from holdfast import Context, ExecutionError, Retry, RunStatus, StateInvalid, StepTimeout, clock, open_store
from holdfast.engine.loop import GATHERING
from holdfast.stores.base import Append, RunInfo, Store
from holdfast.testing import skipping_time
from tests.graphs import Heard, fan, one


class Flaky:
    """A node that fails a few times before it works, and remembers its attempts."""

    def __init__(self, failures: int, error: type[Exception] = ConnectionError) -> None:
        self.failures, self.error = failures, error
        self.attempts: list[int] = []

    def __call__(self, state: Any, ctx: Context) -> dict[str, Any]:
        self.attempts.append(ctx.attempt)
        if len(self.attempts) <= self.failures:
            raise self.error(f"attempt {ctx.attempt}")
        return {"log": [f"worked at {ctx.attempt}"]}


def crashed_after(store: Store, count: int, run: str = "r") -> Store:
    """A copy of a store as it was when a process died after the run's first `count` entries."""
    copy = open_store("memory://")
    known = store.runs(run=run)[0]
    info = RunInfo(known.run, known.key, known.workflow, "running", known.created_at, known.updated_at)
    copy.commit([Append(run, 0, list(store.read(run, 0, count)), info)])
    return copy


def crash_points(store: Store, run: str = "r") -> int:
    return len(list(store.read(run)))


def test_a_flaky_step_is_tried_again(store: Store) -> None:
    node = Flaky(2)
    out = one(node, retry=Retry(attempts=3, delay=0)).compile(store).invoke()

    assert out.state["log"] == ["worked at 3"] and node.attempts == [1, 2, 3]
    assert out.stats.retries == 2 and out.stats.steps_run == 3


def test_when_the_attempts_are_used_up_the_run_fails_with_the_last_error() -> None:
    node = Flaky(9)
    app = one(node, retry=Retry(attempts=3, delay=0)).compile("memory://")

    with pytest.raises(ExecutionError, match="attempt 3") as caught:
        app.invoke(run_id="r")
    assert node.attempts == [1, 2, 3] and isinstance(caught.value.cause, ConnectionError)


def test_a_resume_after_a_final_failure_has_all_attempts_again() -> None:
    node = Flaky(4)
    app = one(node, retry=Retry(attempts=3, delay=0)).compile("memory://")
    with pytest.raises(ExecutionError):
        app.invoke(run_id="r")

    assert app.resume("r").state["log"] == ["worked at 5"] and node.attempts == [1, 2, 3, 4, 5]


def test_without_a_retry_there_is_one_attempt() -> None:
    node = Flaky(1)
    with pytest.raises(ExecutionError):
        one(node).compile("memory://").invoke()
    assert node.attempts == [1]


def test_only_the_errors_that_were_named_are_tried_again() -> None:
    """R1.7: which failures are retried."""
    node = Flaky(1, ValueError)
    with pytest.raises(ExecutionError, match="ValueError"):
        one(node, retry=Retry(delay=0, on=(ConnectionError, TimeoutError))).compile("memory://").invoke()
    assert node.attempts == [1]


def test_a_wrong_update_is_not_tried_again() -> None:
    calls: list[int] = []

    def wrong(state: Any) -> dict[str, Any]:
        calls.append(1)
        return {"nonsense": 1}

    with pytest.raises(ExecutionError) as caught:
        one(wrong, retry=Retry(attempts=5, delay=0)).compile("memory://").invoke()
    assert isinstance(caught.value.cause, StateInvalid) and calls == [1]


def test_each_sibling_is_tried_again_by_itself() -> None:
    good, bad = Flaky(0), Flaky(2)
    graph = fan()
    graph.add_node("good", good).add_node("bad", bad, retry=Retry(attempts=3, delay=0.001))
    graph.set_entry_point("good").set_entry_point("bad")
    out = graph.compile("memory://").invoke()

    assert good.attempts == [1] and bad.attempts == [1, 2, 3]
    assert out.state["log"] == ["worked at 1", "worked at 3"]


def test_async_steps_are_tried_again_too() -> None:
    attempts: list[int] = []

    async def work(state: Any, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise OSError

    one(work, retry=Retry(delay=0.001)).compile("memory://").invoke()
    assert attempts == [1, 2, 3]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("turns", range(6))
def test_an_attempt_that_ends_just_when_the_loop_goes_on_leaves_its_successor_alone(turns: int) -> None:
    """The next attempt may begin before the event loop has told that the task of the last one is done."""
    tries = 0

    async def flaky(state: Any) -> dict[str, Any]:
        nonlocal tries
        tries += 1
        if tries == 1:
            for _ in range(10):  # Until the execution has its sibling's result.
                await asyncio.sleep(0)
            time.sleep(2 * GATHERING)
            for _ in range(turns):
                await asyncio.sleep(0)
            raise ValueError("once")
        await asyncio.sleep(0.01)
        return {"log": ["flaky"]}

    async def quick(state: Any) -> dict[str, Any]:
        return {"log": ["quick"]}

    graph = fan()
    graph.add_node("flaky", flaky, retry=Retry(attempts=2, delay=0)).add_node("quick", quick)
    graph.set_entry_point("flaky").set_entry_point("quick")

    assert graph.compile("memory://").invoke({}).state["log"] == ["flaky", "quick"]


def test_the_wait_between_attempts_grows(heard: Heard) -> None:
    """R1.7: exponential backoff."""
    node = Flaky(3)
    one(node, retry=Retry(attempts=4, delay=0.001)).compile("memory://").invoke(observer=heard)

    assert [event.data["delay"] for event in heard.of("node.retry")] == [0.001, 0.002, 0.004]
    assert [event.data["attempt"] for event in heard.of("node.error")] == [1, 2, 3]


def test_an_attempt_does_not_begin_before_its_time() -> None:
    times: list[float] = []

    def work(state: Any) -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            raise OSError

    one(work, retry=Retry(delay=dt.timedelta(milliseconds=80))).compile("memory://").invoke()
    assert times[1] - times[0] >= 0.075


def test_attempts_survive_a_crash(store: Store) -> None:
    """An attempt that the process died in counts; only when it was the last one is there one more."""
    node = Flaky(9)
    graph = one(node, retry=Retry(attempts=4, delay=0))
    with pytest.raises(ExecutionError):
        graph.compile(store).invoke(run_id="r")
    assert node.attempts == [1, 2, 3, 4]

    for count in range(1, crash_points(store)):
        node.attempts.clear()
        with pytest.raises(ExecutionError):
            graph.compile(crashed_after(store, count)).resume("r")
        assert node.attempts == (list(range(count + 1, 5)) or [5])


def test_a_run_that_waits_for_a_retry_can_be_left_and_taken_up() -> None:
    """The time of the next attempt is journalled with the failure."""
    node = Flaky(1)
    store = open_store("memory://")
    graph = one(node, retry=Retry(delay=0.05))
    graph.compile(store).invoke(run_id="r")

    out = graph.compile(crashed_after(store, 2)).resume("r")

    assert out.state["log"] == ["worked at 2"]


# Timeouts.


def test_a_sync_node_that_takes_too_long_is_given_up() -> None:
    release = threading.Event()

    def hangs(state: Any) -> None:
        release.wait(30)

    app = one(hangs, timeout=0.05).compile("memory://")
    with pytest.raises(ExecutionError, match=r"step 'work' ran longer than its timeout of 0\.05 s") as caught:
        app.invoke(run_id="r")
    release.set()
    assert isinstance(caught.value.cause, StepTimeout)


def test_an_async_node_that_takes_too_long_is_cancelled() -> None:
    cancelled: list[bool] = []

    async def hangs(state: Any) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with pytest.raises(ExecutionError) as caught:
        one(hangs, timeout=dt.timedelta(milliseconds=50)).compile("memory://").invoke()
    assert isinstance(caught.value.cause, StepTimeout) and cancelled == [True]


def test_an_async_node_that_will_not_be_cancelled_is_given_up_all_the_same() -> None:
    async def stubborn(state: Any) -> None:
        while True:
            try:
                await asyncio.sleep(0.01)
                return
            except asyncio.CancelledError:
                raise ValueError("never") from None

    async def slow(state: Any) -> None:
        await asyncio.sleep(0.2)
        await stubborn(state)

    with pytest.raises(ExecutionError) as caught:
        one(slow, timeout=0.05).compile("memory://").invoke()
    assert isinstance(caught.value.cause, StepTimeout)


def test_a_node_in_time_is_left_alone() -> None:
    assert one(lambda s: {"log": ["in time"]}, timeout=30).compile("memory://").invoke().state["log"] == [
        "in time"
    ]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_heartbeat_starts_the_time_anew(is_async: bool) -> None:
    def beats(state: Any, ctx: Context) -> dict[str, Any]:
        for _ in range(4):
            clock.sleep(20)
            ctx.heartbeat()
        return {"log": ["alive"]}

    async def beats_later(state: Any, ctx: Context) -> dict[str, Any]:
        for _ in range(4):
            await asyncio.sleep(20)
            ctx.heartbeat()
        return {"log": ["alive"]}

    with skipping_time():
        out = one(beats_later if is_async else beats, timeout=30).compile("memory://").invoke()
    assert out.state["log"] == ["alive"]


def test_a_timeout_counts_as_a_failed_attempt() -> None:
    attempts: list[int] = []

    def slow_once(state: Any, ctx: Context) -> dict[str, Any]:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            clock.sleep(3600)
            return {"log": ["too late"]}
        return {"log": ["in time"]}

    retry = Retry(attempts=2, delay=0, on=StepTimeout)
    with skipping_time():
        out = one(slow_once, timeout=30, retry=retry).compile("memory://").invoke()

    assert out.state["log"] == ["in time"] and attempts == [1, 2]


def test_a_timeout_of_one_sibling_leaves_the_others_their_work() -> None:
    release = threading.Event()
    graph = (
        fan("good")
        .add_node("slow", lambda s: release.wait(30) and None, timeout=0.05)
        .set_entry_point("slow")
    )
    app = graph.compile("memory://")
    with pytest.raises(ExecutionError, match="timeout"):
        app.invoke(run_id="r")
    release.set()

    assert app.get_state("r")["log"] == []
    fixed = fan("good").add_node("slow", lambda s: {"log": ["slow"]}).set_entry_point("slow")
    out = fixed.compile(app.store).resume("r")
    assert (
        out.status == RunStatus.COMPLETED
        and out.state["log"] == ["good", "slow"]
        and out.stats.steps_run == 1
    )
