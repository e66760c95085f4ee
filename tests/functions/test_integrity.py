"""What functions leave in the store is intact, however many of their steps run at the same time."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import Retry, step, workflow
from holdfast.fleet import Worker
from holdfast.functions import carried, context
from holdfast.integrity import check_store
from holdfast.stores.base import Store


@step(retry=Retry(attempts=2, delay=0.001))
def flaky(n: int) -> int:
    time.sleep(0.001 * (n % 3))
    if context().attempt == 1 and n % 4 == 1:
        raise OSError("flaky")
    return n


@step
async def later(n: int) -> int:
    await asyncio.sleep(0.001 * (n % 3))
    return n


@workflow
async def child(n: int) -> int:
    return sum(await asyncio.gather(*(later(each) for each in range(n))))


@workflow
async def at_once(n: int) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(child(3)), group.create_task(child(4))]
        found = await flaky.map(range(n), max_parallel=5)
    threads = await asyncio.gather(*(asyncio.to_thread(flaky, each) for each in range(n)))
    return [found, threads, [task.result() for task in tasks]]


@workflow
def in_threads(n: int) -> list[Any]:
    with ThreadPoolExecutor(4) as pool:
        return [list(pool.map(carried(flaky), range(n))), flaky.map(range(n), max_parallel=3)]


@pytest.mark.parametrize("by_worker", [False, True], ids=["run", "worker"])
def test_steps_that_end_at_the_same_time_leave_checkpoints_that_are_right(
    store: Store, by_worker: bool
) -> None:
    """Functions: fsck finds nothing, and a history can be read."""
    expected: dict[str, list[Any]] = {
        "at_once": [[*range(12)], [*range(12)], [3, 6]],
        "in_threads": [[*range(12)], [*range(12)]],
    }
    for function in (at_once, in_threads):
        job = workflow(store=store, name=function.name)(function.function)
        if by_worker:
            job.submit(12, run_id=job.name)
            Worker(store, [job]).run(until_idle=True)
        assert job.run(12, run_id=job.name) == expected[job.name]
        assert job.app.checkpoints(job.name)
    report = check_store(store)
    assert [damage for run in report.runs for damage in run.damages] == [] and len(report.runs) == 2
