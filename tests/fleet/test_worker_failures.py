"""What workers do when something goes wrong around a run: nothing is stranded, nothing is tried in a hurry."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from holdfast import START, App, StateGraph
from holdfast.engine.owner import active_runs
from holdfast.fleet import worker as worker_module
from holdfast.fleet.catalog import Catalog, Known
from holdfast.fleet.claims import FIRST, LONGEST, SkipList
from holdfast.fleet.worker import Worker, WorkerEvent
from holdfast.stores.base import Store
from holdfast.stores.postgres.store import PostgresStore

both_kinds = pytest.mark.parametrize("store_url", ["memory", "postgres"], indirect=True)
on_postgres = pytest.mark.parametrize("store_url", ["postgres"], indirect=True)


def graph(store: Store, node: str = "a", name: str = "w") -> App:
    made = StateGraph(dict, name=name).add_node(node, lambda state: {"n": 1})
    return made.add_edge(START, node).compile(store)


def work(store: Store, catalog: Any, tell: Any = None, *, until_idle: bool = True) -> list[WorkerEvent]:
    told: list[WorkerEvent] = []
    worker = Worker(store, catalog, tell=tell or told.append)
    asyncio.run(asyncio.wait_for(worker.arun(until_idle=until_idle), 60))
    return told


def facts(store: Store) -> tuple[Any, ...]:
    """Claim, strikes and the reason why it is held back, of the only run."""
    assert isinstance(store, PostgresStore)
    with store.transaction() as connection:
        row = connection.execute("SELECT claim, strikes, held FROM run").fetchone()
    assert row is not None
    return tuple(row)


@both_kinds
def test_a_run_that_is_somebody_elses_rests_before_it_is_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "AGAIN_AFTER", 60.0)
    app = graph(store)
    run_id = app.submit({})
    told: list[WorkerEvent] = []

    def stop_then(event: WorkerEvent) -> None:
        told.append(event)
        if event.kind == "conflict":
            worker.stop()

    worker = Worker(store, [app], tell=stop_then)
    assert active_runs.enter(store, run_id, None)
    try:
        asyncio.run(asyncio.wait_for(worker.arun(), 60))
    finally:
        active_runs.leave(store, run_id)

    assert [event.kind for event in told] == ["taken", "conflict"]
    assert worker.claims.claim(9, ()) == []
    worker.claims.release(run_id)
    assert app.runs()[0].status == "queued"


@both_kinds
def test_runs_go_on_whatever_becomes_of_telling(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: WorkerEvent) -> None:
        raise ValueError("the teller is broken")

    app = graph(store)
    app.submit({})
    with caplog.at_level(logging.ERROR, "holdfast.fleet"):
        work(store, [app], fail)

    assert app.runs()[0].status == "completed" and "the teller is broken" in caplog.text


@on_postgres
def test_a_worker_whose_reader_is_gone_stops_and_strands_nothing(store: Store) -> None:
    def tell(event: WorkerEvent) -> None:
        raise BrokenPipeError

    app = graph(store)
    app.submit({})

    work(store, [app], tell, until_idle=False)

    assert app.runs()[0].status in ("queued", "completed") and facts(store) == (None, 0, None)


def test_hooks_that_fail_disturb_no_run(memory: Store, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def started(self, run_id: str) -> None:
            raise ValueError("broken start")

        def ended(self, run_id: str, status: str, error: str = "") -> None:
            raise ValueError("broken end")

    app = graph(memory)
    app.submit({})
    with caplog.at_level(logging.ERROR, "holdfast.fleet"):
        told = work(memory, Catalog([Known(app, Broken())]))

    assert [event.kind for event in told] == ["taken", "completed"]
    assert "broken start" in caplog.text and "broken end" in caplog.text


@both_kinds
def test_a_run_that_a_worker_cannot_drive_is_left_to_others_unharmed(store: Store) -> None:
    """While versions change, workers of the old one meet runs of the new one, and the other way round."""
    old, new = graph(store, "a"), graph(store, "z")
    old.submit({})

    told = work(store, [new])

    assert [event.kind for event in told] == ["taken", "refused"] and "no longer has" in told[1].text
    if isinstance(store, PostgresStore):
        assert facts(store) == (None, 0, None)
    assert [event.kind for event in work(store, [old])] == ["taken", "completed"]


@on_postgres
def test_a_run_whose_journal_is_damaged_ends_held_back(store: Store) -> None:
    app = graph(store)
    app.submit({})
    assert isinstance(store, PostgresStore)
    with store.transaction() as connection:
        connection.execute("UPDATE entry SET body = body || 'x'::bytea; UPDATE run SET strikes = 2")

    told = work(store, [app])

    assert [event.kind for event in told] == ["taken", "refused"]
    claim, strikes, held = facts(store)
    assert claim is None and strikes == 3 and held.startswith("CorruptJournal: ")


@both_kinds
def test_a_worker_until_idle_waits_for_a_run_that_was_put_aside(store: Store) -> None:
    app = graph(store)
    app.submit({})
    troubles = [ValueError("it breaks once")]

    def load(config: Any, store: Store) -> Known:
        if troubles:
            raise troubles.pop()
        return Known(app)

    told = work(store, Catalog(openers={"w": load}))

    assert [event.kind for event in told] == ["refused", "taken", "completed"]


@on_postgres
def test_a_worker_that_is_stopped_while_it_loads_a_workflow_gives_its_claim_back(store: Store) -> None:
    app = graph(store)
    app.submit({})

    def load(config: Any, store: Store) -> Known:
        worker.stop()
        return Known(app)

    worker = Worker(store, Catalog(openers={"w": load}))
    asyncio.run(asyncio.wait_for(worker.arun(), 60))

    assert app.runs()[0].status == "queued" and facts(store) == (None, 0, None)
    assert len(worker.claims.claim(1, ())) == 1


def test_a_run_is_left_to_others_longer_each_time_but_not_for_ever() -> None:
    avoiding = SkipList()
    avoiding.leave("r")
    assert avoiding.skipped_runs() == ["r"] and avoiding.skipped_runs(within=FIRST + 1) == []
    avoiding.leave("r")
    assert avoiding.skipped_runs(within=FIRST + 1) == ["r"]
    for _ in range(20):
        avoiding.leave("r")
    assert avoiding.skipped_runs(within=LONGEST + 1) == []
