"""Claims of runs in a PostgreSQL store: which worker gets which run, and runs that no worker can execute."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from holdfast import START, App, StateGraph, StoreError, open_store
from holdfast.engine.owner import active_runs
from holdfast.fleet.catalog import Catalog
from holdfast.fleet.claims import MAX_STRIKES, PostgresClaims, Wanted
from holdfast.fleet.worker import Worker, WorkerEvent
from holdfast.stores.postgres.store import PostgresStore
from tests.postgres import LossyWay, PostgresServer, open_folder


@pytest.fixture
def stores(postgres_url: str) -> Iterator[list[PostgresStore]]:
    """Two processes' views of one store, as far as leases go."""
    opened = [open_store(f"{postgres_url}&lease=30") for _ in range(2)]
    yield opened  # type: ignore[misc]
    for store in opened:
        store.close()


def graph(store: Any, node: Any = lambda state: {"n": state.get("n", 0) + 1}) -> App:
    return StateGraph(dict, name="w").add_node("a", node).add_edge(START, "a").compile(store)


def claims(store: PostgresStore, **wanted: Any) -> PostgresClaims:
    return PostgresClaims(store, Wanted(**wanted))


def column(store: PostgresStore, what: str) -> Any:
    with store.transaction() as connection:
        row = connection.execute(f"SELECT {what} FROM run".encode()).fetchone()
        assert row is not None
        return row[0]


def test_what_one_claims_no_other_gets_until_it_is_released(stores: list[PostgresStore]) -> None:
    one, other = (claims(store) for store in stores)
    app = graph(stores[0])
    runs = {app.submit({}) for _ in range(5)}

    mine = {claim.run for claim in one.claim(3, ())}
    theirs = {claim.run for claim in other.claim(9, ())}

    assert len(mine) == 3 and mine | theirs == runs and not mine & theirs
    assert one.claim(9, ()) == []
    other.release(next(iter(mine)))
    assert one.claim(9, ()) == [], "a claim is given back by who has it"
    one.release(next(iter(mine)))
    assert [claim.run for claim in other.claim(9, ())] == [next(iter(mine))]


@pytest.mark.parametrize("what", ["claim", "release"])
def test_a_claim_whose_answer_got_lost_holds_nothing_up(
    postgres_url: str, postgres_server: PostgresServer, what: str
) -> None:
    """The worker does not know that it holds the run: it may take it up at once, not when the claim has run out."""
    with open_folder() as folder, closing(LossyWay(postgres_server, folder)) as way:
        store = PostgresStore(postgres_url.replace(str(postgres_server.folder), str(folder)))
        mine = claims(store)
        run = graph(store).submit({})
        if what == "release":
            mine.claim(9, ())
        way.lose_answer_to(b"COMMIT" if what == "claim" else b"UPDATE run SET claim = NULL")

        with pytest.raises(StoreError, match="cannot reach"):
            mine.claim(9, ()) if what == "claim" else mine.release(run)

        if (
            what == "release"
        ):  # Whoever asks may still think that the run is driven here: that settles nothing.
            assert mine.claim(9, (run,)) == []
        assert [claim.run for claim in mine.claim(9, ())] == [run]
        assert mine.claim(9, ()) == [] and column(store, "strikes") == 0
        store.close()


def test_the_most_urgent_come_first_and_those_of_the_future_not_at_all(stores: list[PostgresStore]) -> None:
    app = graph(stores[0])
    for name, priority, when in [("a", 0, None), ("b", 2, None), ("c", 2, 0), ("d", 9, 3600)]:
        app.submit({}, run_id=name, priority=priority, when=when, queue="q" if name != "a" else "p")

    assert [claim.run for claim in claims(stores[0], queues=("q",)).claim(1, ())] == ["b"]
    assert [claim.run for claim in claims(stores[0], workflows=("x",)).claim(9, ())] == []
    assert [claim.run for claim in claims(stores[0]).claim(9, ())] == ["c", "a"]
    assert claims(stores[0]).count_waiting(1.0) == 3 and claims(stores[0]).count_waiting(4000) == 4


def test_a_run_is_orphaned_when_the_lease_of_its_driver_is_gone(stores: list[PostgresStore]) -> None:
    driving, looking = stores
    begun, go_on = threading.Event(), threading.Event()

    def hang(state: Any) -> None:
        begun.set()
        go_on.wait(60)

    app = graph(driving, hang)
    run = app.submit({})
    [claim] = claims(driving).claim(1, ())
    thread = threading.Thread(target=lambda: asyncio.run(app.aexecute(run)))
    thread.start()
    assert begun.wait(60) and claim.why == "queued"

    assert claims(looking).claim(9, ()) == []
    assert claims(driving).claim(9, (run,)) == []
    with looking.transaction() as connection:
        connection.execute(
            "UPDATE run SET claim_until = NULL; UPDATE lease SET until = clock_timestamp() - interval '1 hour'"
        )
    [claim] = claims(looking).claim(9, ())

    assert (claim.run, claim.why) == (run, "orphaned")
    go_on.set()
    thread.join(60)


def test_a_run_that_a_worker_dropped_is_taken_up_by_it_again(stores: list[PostgresStore]) -> None:
    """An execution that ended because the store was unreachable leaves its run with a live owner."""
    store = stores[0]
    app = graph(store)
    run = app.submit({})
    lease = store.lease()
    with store.transaction() as connection:
        connection.execute(
            "UPDATE run SET status = 'running', owner = %s", (f'{{"pid": 1, "lease": "{lease}"}}',)
        )

    assert claims(stores[1]).claim(9, ()) == [] and claims(store).claim(9, (run,)) == []
    assert active_runs.enter(store, run, None)
    assert claims(store).claim(9, ()) == [], "this process drives it, though not this worker"
    active_runs.leave(store, run)
    assert [claim.why for claim in claims(store).claim(9, ())] == ["orphaned"]


def test_orphans_come_first_and_what_is_queued_or_due_by_its_urgency(stores: list[PostgresStore]) -> None:
    """However much is queued, nothing that waits longer or is more urgent is passed over."""
    store = stores[0]
    app = graph(store)
    for name, priority in [("late", 0), ("orphan", -9), ("soon", 5), ("asleep", 5), ("urgent", 7)]:
        app.submit({}, run_id=name, priority=priority)
    with store.transaction() as connection:
        connection.execute("UPDATE run SET status = 'running' WHERE run = 'orphan'")
        connection.execute("UPDATE run SET status = 'paused', due_at = 1 WHERE run = 'asleep'")

    taken = [claims(store).claim(1, ()) for _ in range(6)]

    assert [claim.run for found in taken for claim in found] == [
        "orphan",
        "urgent",
        "asleep",
        "soon",
        "late",
    ]


def test_what_a_worker_claimed_that_is_gone_others_claim_at_once(
    stores: list[PostgresStore], postgres_url: str
) -> None:
    dying = open_store(postgres_url)
    assert isinstance(dying, PostgresStore)
    graph(dying).submit({})
    assert len(claims(dying).claim(1, ())) == 1
    assert claims(stores[0]).claim(1, ()) == [] and column(dying, "claim_until > now() + interval '50 s'")
    dying.close()

    assert len(claims(stores[0]).claim(1, ())) == 1 and column(stores[0], "strikes") == 1


def test_a_claim_of_which_nobody_heard_is_made_again_and_is_no_strike(stores: list[PostgresStore]) -> None:
    """The server may commit a claim and go away before it says so."""
    store = stores[0]
    graph(store).submit({})
    for _ in range(MAX_STRIKES + 1):
        assert len(claims(store).claim(1, ())) == 1
        with store.transaction() as connection:
            connection.execute("UPDATE run SET claim_until = clock_timestamp() - interval '1 second'")

    assert column(store, "strikes") == 0


@pytest.mark.parametrize("lease", ["-" * 36, "0" * 36, "", "x"])
def test_a_driver_that_makes_no_sense_keeps_nobody_from_claiming(
    stores: list[PostgresStore], lease: str
) -> None:
    app = graph(stores[0])
    app.submit({}, run_id="odd")
    with stores[0].transaction() as connection:
        connection.execute(
            "UPDATE run SET status = 'running', owner = %s", (f'{{"pid": 1, "lease": "{lease}"}}',)
        )
    app.submit({}, run_id="good")

    assert [claim.run for claim in claims(stores[0]).claim(9, ())] == ["odd", "good"]


def test_a_run_that_kills_whoever_claims_it_is_held_back_and_requeueing_frees_it(
    stores: list[PostgresStore],
) -> None:
    """Poison runs stop after three crashes, also where no step is to blame."""
    store = stores[0]
    app = graph(store)
    run = app.submit({})
    for number in range(MAX_STRIKES):
        assert len(claims(stores[number % 2]).claim(1, ())) == 1
        with store.transaction() as connection:
            connection.execute("UPDATE run SET claim_until = clock_timestamp() - interval '1 second'")

    assert claims(stores[1]).claim(1, ()) == [] and "died" in column(store, "held")
    assert claims(store).count_waiting(9) == 0
    app.requeue(run)

    assert column(store, "held") is None and len(claims(store).claim(1, ())) == 1


def test_a_run_that_cannot_be_taken_up_rests_longer_each_time_and_is_then_held_back(
    stores: list[PostgresStore],
) -> None:
    store = stores[0]
    graph(store).submit({})
    rests = []
    for _ in range(MAX_STRIKES):
        with store.transaction() as connection:
            connection.execute("UPDATE run SET claim_until = NULL")
        [claim] = claims(store).claim(1, ())
        claims(store).strike(claim.run, "it is broken")
        rests.append(column(store, "claim_until - clock_timestamp()"))

    assert rests[0] < rests[1] and rests[2] is None and column(store, "held") == "it is broken"
    assert claims(store).claim(1, ()) == []


def test_workers_drive_each_run_once_and_hear_at_once_of_new_ones(stores: list[PostgresStore]) -> None:
    ran: list[str] = []
    told: list[WorkerEvent] = []

    def note(ctx: Any) -> None:
        ran.append(ctx.idempotency_key)

    apps = [graph(store, note) for store in stores]
    workers = [
        Worker(store, Catalog([app]), tell=told.append) for store, app in zip(stores, apps, strict=True)
    ]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    runs = [apps[0].submit({}) for _ in range(20)]
    while len(apps[0].runs(status="completed")) < 20:
        assert all(thread.is_alive() for thread in threads)
    for worker in workers:
        worker.stop()
    for thread in threads:
        thread.join(60)

    assert sorted(ran) == sorted(f"{run}:a#1" for run in runs)
    assert [event.kind for event in told].count("completed") == 20
