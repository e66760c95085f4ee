"""Functions that are interrupted, or do much at once: the run goes on in the same process, and `fsck` finds nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast import CheckpointPolicy, ExecutionError, open_store, step, workflow
from holdfast.functions import carried
from holdfast.integrity import check_store


@step
async def awaited(number: int) -> int:
    await asyncio.sleep(0)
    return number


@step
def here(number: int) -> int:
    return number


@step(timeout=60)
def watched(number: int) -> int:
    return number


@workflow
async def child(number: int) -> list[int]:
    return [here(number), *await asyncio.gather(*(awaited(number + each) for each in range(3)))]


async def gathering() -> list[Any]:
    """Steps of a second `gather` begin in the commit in which those of the first finish."""
    first = await asyncio.gather(*(awaited(number) for number in range(3)))
    second = await asyncio.gather(*(awaited(number) for number in range(3)), *(child(n) for n in range(3)))
    return [first, second, await here.map([1, 2, 3], max_parallel=2)]


async def failing() -> None:
    await gathering()
    raise ValueError("no")


def threaded() -> list[int]:
    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(carried(lambda number: here(number) + watched(number)), range(12)))


@step
async def slow(number: int) -> int:
    await asyncio.sleep(0.004 * (number % 7))
    return number


@workflow
async def slow_child(number: int) -> list[int]:
    return [await slow(number), await slow(number + 1)]


async def children() -> list[Any]:
    """What one function finished is stored with what another begins."""

    async def family(number: int) -> list[Any]:
        return [await slow(number), await slow_child(number), await slow(number + 2)]

    return await asyncio.gather(*(family(number) for number in range(24)))


@pytest.mark.parametrize("body", [gathering, failing, threaded, children])
@pytest.mark.parametrize(
    "policy",
    [CheckpointPolicy(), CheckpointPolicy(durability="exit"), CheckpointPolicy(interval=3)],
    ids=["every wave", "exit", "every third wave"],
)
def test_fsck_finds_nothing_in_what_steps_at_the_same_time_recorded(
    body: Callable[..., Any], policy: CheckpointPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store("memory://")
    for turn in range(3):
        try:
            workflow(name="w", store=store, policy=policy)(body).run(run_id=f"r{turn}")
        except ExecutionError:
            assert body is failing

    assert check_store(store).problems == ()
    assert not caplog.messages


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("way", ["awaited", "sync", "map", "awaited map"])
def test_an_interrupt_in_a_watched_step_stops_the_run_and_the_same_process_goes_on(
    way: str, error: type[BaseException]
) -> None:
    """A watched step runs in a thread, beside the event loop in which an async function calls it."""
    ran: list[int] = []

    @step(timeout=60)
    def breaks(number: int) -> int:
        ran.append(number)
        if ran == [0, 1]:
            raise error
        return number

    async def calls() -> list[int]:
        if way == "awaited map":
            found: list[int] = await breaks.map([0, 1, 2], max_parallel=1)
            return found
        return [breaks(number) for number in range(3)]

    def calls_here() -> list[int]:
        found: list[int] = breaks.map([0, 1, 2], max_parallel=1) if way == "map" else [*map(breaks, range(3))]
        return found

    flow: Any = workflow(name="w", store="memory://")(calls if way.startswith("awaited") else calls_here)
    with pytest.raises(BaseException) as caught:
        flow.run(run_id="r")
    assert not isinstance(caught.value, AssertionError)

    assert flow.run(run_id="r") == [0, 1, 2]
    assert ran == [0, 1, 1, 2]


def test_what_ctrl_c_interrupts_says_how_to_go_on_by_the_name_of_the_workflow(tmp_path: Path) -> None:
    is_broken = [True]

    @step
    def work() -> str:
        if is_broken[0]:
            raise KeyboardInterrupt
        return "done"

    @workflow(store=f"sqlite:///{tmp_path / 'runs.db'}")
    def long() -> str:
        return work()

    with pytest.raises(KeyboardInterrupt) as interrupted:
        long.run(run_id="r")
    is_broken[0] = False

    called = re.search(r"resume with (\S+)$", str(interrupted.value))
    assert called is not None and called[1] == "long.app.resume('r')"
    assert eval(called[1], {"long": long}).state["result"] == "done"
