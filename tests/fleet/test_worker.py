"""Workers: which runs they execute, how they share them, and how they stop."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import END, START, App, Retry, StateGraph
from holdfast.errors import UnknownWorkflow
from holdfast.fleet.catalog import Catalog
from holdfast.fleet.worker import Worker, WorkerEvent
from holdfast.stores.base import Store


def count(state: Any) -> dict[str, int]:
    return {"n": state.get("n", 0) + 1}


def graph(name: str = "w", **nodes: Any) -> StateGraph:
    made = StateGraph(dict, name=name)
    names = list(nodes)
    for node, function in nodes.items():
        made.add_node(node, function)
    for one, other in zip([START, *names], [*names, END], strict=True):
        made.add_edge(one, other)
    return made


def work(store: Store, *apps: App, **options: Any) -> list[WorkerEvent]:
    """Let one worker do all there is to do."""
    told: list[WorkerEvent] = []
    worker = Worker(store, Catalog(apps), tell=told.append, **options)
    asyncio.run(asyncio.wait_for(worker.arun(until_idle=True), 60))
    return told


def test_a_worker_drives_what_was_submitted_and_nothing_else(store: Store) -> None:
    app = graph(a=count, b=count).compile(store)
    submitted = [app.submit({}) for _ in range(5)]
    by_hand = app.invoke({}).run_id

    told = work(store, app, concurrency=3)

    assert {event.run for event in told} == set(submitted)
    assert [event.kind for event in told].count("completed") == 5
    assert all(app.get_state(run)["n"] == 2 for run in [*submitted, by_hand])
    assert {info.status for info in app.runs()} == {"completed"}


def test_urgent_runs_come_first_and_runs_of_other_queues_or_workflows_never(memory: Store) -> None:
    begun: list[str] = []
    app = graph(a=lambda state: begun.append(state["name"])).compile(memory)
    other = graph("other", a=count).compile(memory)
    for name, priority in [("last", -1), ("first", 5), ("middle", 0)]:
        app.submit({"name": name}, priority=priority, queue="mine")
    elsewhere = app.submit({"name": "elsewhere"}, queue="others")
    unknown = other.submit({}, queue="mine")

    work(memory, app, concurrency=1, queues=("mine",))

    assert begun == ["first", "middle", "last"]
    statuses = {info.run: info.status for info in memory.runs()}
    assert statuses[elsewhere] == statuses[unknown] == "queued"


def test_a_run_waits_for_its_time_and_the_worker_does_something_else_meanwhile(store: Store) -> None:
    order: list[str] = []

    def nap(ctx: Any) -> None:
        ctx.sleep(0.6)
        order.append("rested")

    def flaky(ctx: Any) -> None:
        if ctx.attempt < 3:
            raise ConnectionError("down")
        order.append("at last")

    sleepy = graph("sleepy", nap=nap).compile(store)
    brief = graph("brief", a=lambda state: order.append("brief")).compile(store)
    retrying = StateGraph(dict, name="retrying")
    retrying.add_node("a", flaky, retry=Retry(attempts=3, delay=0.2, backoff="fixed")).add_edge(START, "a")
    for app in (sleepy, retrying.compile(store), brief):
        app.submit({}, when=0.3 if app is brief else None)

    told = work(store, sleepy, retrying.compile(store), brief, concurrency=1, idle_timeout=0.05)

    assert sorted(order) == ["at last", "brief", "rested"]
    assert {"queued", "paused", "completed"} <= {event.kind for event in told}
    assert {info.status for info in store.runs()} == {"completed"}


def test_a_failing_run_fails_and_does_not_disturb_the_others(memory: Store) -> None:
    def fail(state: Any) -> None:
        raise ValueError("broken")

    good, bad = graph("good", a=count).compile(memory), graph("bad", a=fail).compile(memory)
    bad.submit({})
    good.submit({})

    told = work(memory, good, bad)

    assert {event.workflow: event.kind for event in told} == {"good": "completed", "bad": "failed"}
    assert bad.runs()[0].status == "failed"


def test_a_run_that_cannot_be_taken_up_is_left_alone(memory: Store) -> None:
    old = graph(a=count, b=count).compile(memory)
    new = graph(z=count).compile(memory)
    run_id = old.submit({})
    worker = Worker(memory, Catalog([new]), tell=(told := []).append)

    async def for_a_while() -> None:
        task = asyncio.create_task(worker.arun())
        while not told:
            await asyncio.sleep(0.01)
        worker.stop()
        await task

    asyncio.run(for_a_while())

    assert [event.kind for event in told] == ["taken", "refused"] and "no longer has" in told[1].text
    assert old.runs()[0].status == "queued" and old.runs()[0].run == run_id


@pytest.mark.parametrize("grace", [30.0, 0.0])
def test_a_stopping_worker_finishes_steps_within_its_grace_and_hands_the_rest_over(
    store: Store, grace: float
) -> None:
    begun, go_on, ran = threading.Event(), threading.Event(), []

    def slow(state: Any) -> dict[str, int]:
        ran.append("slow")
        begun.set()
        go_on.wait(30 if len(ran) == 1 else 0)
        return {"slow": len(ran)}

    app = graph(slow=slow, b=count).compile(store)
    run_id = app.submit({})
    worker = Worker(store, Catalog([app]), grace=grace)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert begun.wait(30)
    worker.stop()
    if grace:
        time.sleep(0.1)
        go_on.set()
    thread.join(30)

    assert not thread.is_alive() and app.runs()[0].status == "queued"
    go_on.set()
    work(store, app)
    assert app.get_state(run_id)["n"] == 1
    assert ran == (["slow"] if grace else ["slow", "slow"])


def test_several_workers_share_the_runs_and_none_runs_twice(tmp_path: Path) -> None:
    from holdfast import open_store

    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    ran: list[str] = []

    def note(ctx: Any) -> None:
        ran.append(ctx.idempotency_key)
        time.sleep(0.005)

    app = graph(a=note, b=note, c=note).compile(store)
    for _ in range(12):
        app.submit({})
    threads = [threading.Thread(target=work, args=(store, app), kwargs={"concurrency": 4}) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert {info.status for info in app.runs()} == {"completed"}
    assert len(ran) == len(set(ran)) == 36
    store.close()


def test_runs_that_a_worker_cannot_know_are_left_to_others_unharmed(store: Store) -> None:
    def nothing_carried(config: Any, store: Store) -> Any:
        raise UnknownWorkflow("it carries no workflow")

    app, other = graph(a=count).compile(store), graph("other", a=count).compile(store)
    run_id = app.submit({})
    for _ in range(3):
        other.submit({})
    told: list[WorkerEvent] = []
    worker = Worker(store, Catalog([other], carried=nothing_carried), tell=told.append)

    asyncio.run(asyncio.wait_for(worker.arun(until_idle=True), 60))

    assert [event.kind for event in told].count("completed") == 3
    assert store.runs(run=run_id)[0].status == "queued"
    assert any(event.kind == "completed" for event in work(store, app))
