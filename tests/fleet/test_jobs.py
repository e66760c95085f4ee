"""Runs as jobs: every status that a job has, and what bounds how many there are and how long they take."""

from __future__ import annotations

import asyncio
import datetime as dt
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import END, START, App, HoldfastError, StateGraph, load_workflow, open_store
from holdfast.engine.retention import trim_history
from holdfast.fleet import History, Worker
from holdfast.fleet.queues import Limits
from holdfast.stores.base import Store

DRIVER = """
import os, sys
from holdfast import END, START, StateGraph, open_store
from holdfast.fleet import Worker
graph = StateGraph(dict, name="w")
graph.add_node("a", lambda state: {"n": 1})
graph.add_node("b", lambda state: os._exit(0))
graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
store = open_store(sys.argv[1])
Worker(store, [graph.compile(store)]).run(until_idle=True)
"""


def job(store: Store, name: str, work: Any) -> App:
    graph = StateGraph(dict, name=name)
    graph.add_node("a", work).add_edge(START, "a").add_edge("a", END)
    return graph.compile(store)


def fail(state: Any) -> None:
    raise ValueError("broken")


def test_a_job_is_queued_running_paused_completed_failed_or_cancelled(store: Store) -> None:
    """R2.5: the statuses of the job model, of which `interrupted` is one more, for runs that were stopped by hand."""
    seen = []
    watching = job(
        store, "watched", lambda ctx: seen.extend(info.status for info in store.runs(run=ctx.run_id))
    )
    apps = [watching, job(store, "asks", lambda ctx: ctx.ask("Go on?")), job(store, "fails", fail)]
    runs = {app.name: app.submit({}) for app in apps}
    runs["dropped"] = watching.submit({})
    watching.cancel(runs["dropped"])
    before = {info.status for info in store.runs()}

    Worker(store, apps).run(until_idle=True)

    found = {info.run: info.status for info in store.runs()}
    assert before == {"queued", "cancelled"} and seen == ["running"]
    assert {name: found[run] for name, run in runs.items()} == {
        "watched": "completed",
        "asks": "paused",
        "fails": "failed",
        "dropped": "cancelled",
    }


def test_a_pool_of_three_drives_three_at_once(memory: Store) -> None:
    """R2.5: the size of the pool is the worker's concurrency."""
    at_once, most = 0, 0

    async def work(state: Any) -> None:
        nonlocal at_once, most
        at_once, most = at_once + 1, max(most, at_once + 1)
        await asyncio.sleep(0.05)
        at_once -= 1

    app = job(memory, "w", work)
    for _ in range(9):
        app.submit({})

    Worker(memory, [app], concurrency=3).run(until_idle=True)

    assert most == 3 and {info.status for info in memory.runs()} == {"completed"}


def test_the_number_of_active_jobs_is_limited(postgres_url: str) -> None:
    """R2.5: by a limit of their queue, whatever the workers' concurrency."""
    store = open_store(postgres_url)
    try:
        at_once: list[int] = []

        async def work(state: Any) -> None:
            at_once.append(sum(info.status == "running" for info in store.runs()))
            await asyncio.sleep(0.05)

        app = job(store, "w", work)
        Limits(store).set("default", max_running=2)
        for _ in range(5):
            app.submit({})

        Worker(store, [app], concurrency=5).run(until_idle=True)

        assert len(at_once) == 5 and max(at_once) <= 2
    finally:
        store.close()


def test_a_job_that_takes_too_long_fails(memory: Store, tmp_path: Path) -> None:
    """R2.5: the working time of a run is limited by its file."""
    file = tmp_path / "slow.yaml"
    file.write_text(
        "workflow: {name: slow, limits: {timeout: 0.2s}}\nsteps:\n  - {name: a, shell: sleep 60}\n"
    )
    flow = load_workflow(file)
    app = flow.open(memory)
    app.submit(flow.begin({}), config=flow.config())

    Worker(memory, [app]).run(until_idle=True)

    assert [info.status for info in memory.runs()] == ["failed"]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_stale_job_is_not_failed_but_taken_up_by_another_worker(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """R2.5: what finished is kept; here stale jobs go on where the design would have failed them."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    if kind == "postgres":
        url = f"{request.getfixturevalue('postgres_url')}&lease=1"
    store = open_store(url)
    try:
        graph = StateGraph(dict, name="w")
        graph.add_node("a", fail).add_node("b", lambda state: {"n": state["n"] + 1})
        graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
        app = graph.compile(store)
        run_id = app.submit({})
        subprocess.run([sys.executable, "-c", DRIVER, url], check=True)
        assert [info.status for info in store.runs()] == ["running"]

        deadline = time.monotonic() + 60
        while store.runs()[0].status == "running" and time.monotonic() < deadline:
            Worker(store, [app]).run(until_idle=True)

        assert store.runs()[0].status == "completed" and app.get_state(run_id)["n"] == 2
    finally:
        store.close()


def test_a_worker_keeps_the_newest_runs_that_have_ended(store: Store) -> None:
    """R2.5: the history of jobs is bounded by their number; what can be resumed stays."""
    fine, broken = job(store, "fine", lambda state: None), job(store, "broken", fail)
    names = [fine.submit({}, run_id=f"r{number}") for number in range(5)]
    failed, own = broken.submit({}), fine.invoke({}, run_id="own").run_id
    Worker(store, [fine, broken]).run(until_idle=True)
    ended = [info.run for info in store.runs(status=["completed"]) if info.queue]

    gone = trim_history(store, count=2)

    assert sorted(ended) == names and gone == 3
    assert {info.run for info in store.runs()} == {*ended[:2], failed, own}


def test_a_worker_deletes_runs_that_ended_long_ago(store: Store) -> None:
    """R2.5: the history of jobs is bounded by their age."""
    app = job(store, "w", lambda state: None)
    app.submit({}, run_id="old")
    Worker(store, [app]).run(until_idle=True)
    before = trim_history(store, max_age=dt.timedelta(days=1))

    assert before == 0 and trim_history(store, max_age=dt.timedelta(0)) == 1 and store.runs() == []


def test_a_worker_trims_the_history_while_it_works(store: Store) -> None:
    app = job(store, "w", lambda state: None)
    for number in range(3):
        app.submit({}, run_id=f"r{number}")
    Worker(store, [app]).run(until_idle=True)
    app.submit({}, run_id="last")

    Worker(store, [app], history=History(runs=0)).run(until_idle=True)

    assert not {"r0", "r1", "r2"} & {info.run for info in store.runs()}
    with pytest.raises(HoldfastError, match="at least 0 runs"):
        Worker(store, [app], history=History(runs=-1))
