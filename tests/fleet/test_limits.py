"""Limits of queues: how many runs at once, how many in a time, and queues that are paused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from holdfast import START, App, StateGraph, open_store
from holdfast.errors import HoldfastError, StoreError
from holdfast.fleet.claims import PostgresClaims, Wanted
from holdfast.fleet.queues import Limit, LimitInvalid, Limits, Rate, Room, allowances
from holdfast.stores.base import Store
from holdfast.stores.postgres.store import PostgresStore


def graph(store: Store) -> App:
    return StateGraph(dict, name="w").add_node("a", lambda state: None).add_edge(START, "a").compile(store)


def submitted(store: Store, count: int, queue: str = "default", **place: Any) -> list[str]:
    app = graph(store)
    return [app.submit({}, queue=queue, **place) for _ in range(count)]


def sql(store: PostgresStore, statement: str, *values: object) -> None:
    with store.transaction() as connection:
        connection.execute(statement.encode(), values)


def claim(store: PostgresStore, limit: int = 100, *queues: str) -> list[str]:
    return [found.run for found in PostgresClaims(store, Wanted(queues)).claim(limit, ())]


def race(url: str, tries: int, most: int) -> list[str]:
    """What two processes claimed, each trying so many times at once with the other."""
    command = [sys.executable, "-m", "tests.fleet.claim_race", url, str(tries), str(most)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in "ab"
    ]
    found: list[str] = []
    for process in processes:
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
        found += out.split()
    return found


def test_no_more_runs_are_claimed_at_once_than_a_queue_allows(pg: PostgresStore, postgres_url: str) -> None:
    Limits(pg).set("default", max_running=2)
    runs = submitted(pg, 40)

    found = race(postgres_url, 60, 2)

    assert len(found) == len(set(found)) > 20 and set(found) <= set(runs)


def test_no_more_runs_are_claimed_in_a_time_than_a_queue_allows(pg: PostgresStore, postgres_url: str) -> None:
    Limits(pg).set("default", rate=Rate(5, 3600))
    submitted(pg, 30)
    submitted(pg, 1, "free")

    found = race(postgres_url, 20, 100)

    assert len(found) == len(set(found)) == 6
    sql(pg, "UPDATE queue SET refilled_at = refilled_at - interval '24 minutes'")
    assert len(claim(pg)) == 2 and claim(pg) == []


def test_time_that_passes_unused_is_not_saved_up_beyond_the_rate(pg: PostgresStore) -> None:
    Limits(pg).set("default", rate=Rate(3, 60))
    submitted(pg, 10)
    sql(pg, "UPDATE queue SET refilled_at = refilled_at - interval '1 day'")

    assert len(claim(pg)) == 3
    sql(pg, "UPDATE queue SET refilled_at = refilled_at + interval '1 day'")
    assert claim(pg) == [], "a clock that was put back takes nothing away and gives nothing"


def test_what_is_driven_or_claimed_counts_and_what_lost_its_driver_has_its_place(pg: PostgresStore) -> None:
    Limits(pg).set("default", max_running=2)
    first, second, third = submitted(pg, 3)
    sql(pg, "UPDATE run SET status = 'running', owner = '{\"lease\": \"none\"}' WHERE run = %s", first)

    assert set(claim(pg)) == {first, second}, "the first is an orphan"
    assert claim(pg) == []
    sql(pg, "UPDATE run SET status = 'completed', claim = NULL, claim_until = NULL WHERE run = %s", second)
    assert claim(pg) == [third]


def test_what_is_held_back_takes_no_place(pg: PostgresStore) -> None:
    Limits(pg).set("default", max_running=1)
    first, second = submitted(pg, 2)
    sql(pg, "UPDATE run SET status = 'running', held = 'it kills workers' WHERE run = %s", first)

    assert claim(pg) == [second]


def test_what_a_dead_worker_claimed_takes_no_place(pg: PostgresStore, postgres_url: str) -> None:
    Limits(pg).set("default", max_running=1)
    [run] = submitted(pg, 1)
    dying = open_store(postgres_url)
    assert isinstance(dying, PostgresStore)
    assert claim(dying) == [run] and claim(pg) == []
    dying.close()

    assert claim(pg) == [run]


def test_limited_queues_come_before_no_more_urgent_runs_of_others(pg: PostgresStore) -> None:
    limits = Limits(pg)
    for queue in ("one", "two"):
        limits.set(queue, max_running=1, rate=Rate(2, 3600))
    order = [
        *submitted(pg, 1, "free", priority=9),
        *submitted(pg, 1, "two", priority=7),
        *submitted(pg, 1, "free", priority=5),
        *submitted(pg, 1, "one", priority=3),
    ]
    submitted(pg, 3, "one")
    submitted(pg, 3, "two", priority=2)

    assert [run for _ in range(4) for run in claim(pg, 1)] == order
    last = submitted(pg, 1, "free", priority=-1)
    assert claim(pg) == last, "both limited queues are full"
    sql(pg, "UPDATE run SET status = 'completed', claim = NULL, claim_until = NULL WHERE claim IS NOT NULL")
    assert len(claim(pg)) == 2, "each has spent what it claimed, and no more"


def test_a_paused_queue_stays_paused_while_another_worker_looks_at_it(
    pg: PostgresStore, postgres_url: str
) -> None:
    other = open_store(postgres_url)
    assert isinstance(other, PostgresStore)
    Limits(pg).pause("default")
    [orphan] = submitted(pg, 1)
    sql(pg, "UPDATE run SET status = 'running' WHERE run = %s", orphan)

    with other.transaction() as connection:
        allowances(connection, "default", None)
        assert claim(pg) == []
    other.close()


def test_runs_whose_time_has_come_wait_for_a_place_too(pg: PostgresStore) -> None:
    Limits(pg).set("default", max_running=1)
    asleep, _ = submitted(pg, 2)
    sql(pg, "UPDATE run SET status = 'paused', due_at = 1 WHERE run = %s", asleep)

    taken = claim(pg)

    assert len(taken) == 1 and claim(pg) == []
    sql(pg, "DELETE FROM run WHERE run = %s", taken[0])
    assert len(claim(pg)) == 1


def test_nothing_is_taken_up_from_a_paused_queue_until_it_is_resumed(pg: PostgresStore) -> None:
    limits = Limits(pg)
    limits.pause("default")
    queued, asleep, orphan = submitted(pg, 3)
    other = submitted(pg, 1, "other")
    sql(pg, "UPDATE run SET status = 'paused', due_at = 1 WHERE run = %s", asleep)
    sql(pg, "UPDATE run SET status = 'running' WHERE run = %s", orphan)

    assert claim(pg) == other
    assert limits.lines() == [Limit("default", paused=True)]
    limits.resume("default")
    assert set(claim(pg)) == {queued, asleep, orphan}
    assert limits.lines() == []


def test_a_limit_holds_for_its_queue_and_its_namespace_alone(pg: PostgresStore, postgres_url: str) -> None:
    other = open_store(postgres_url, namespace="other")
    assert isinstance(other, PostgresStore)
    Limits(pg).set("default", max_running=1)
    submitted(pg, 3)
    submitted(pg, 3, "free")
    submitted(other, 3)

    assert len(claim(pg)) == 4 and len(claim(other)) == 3
    assert Limits(other).lines() == []
    other.close()


def test_urgent_runs_of_a_limited_queue_come_first_and_a_worker_of_other_queues_does_not_mind(
    pg: PostgresStore,
) -> None:
    Limits(pg).set("default", max_running=1)
    submitted(pg, 1)
    urgent = submitted(pg, 1, priority=5)
    elsewhere = submitted(pg, 1, "elsewhere")

    assert claim(pg, 100, "elsewhere") == elsewhere
    assert claim(pg, 100, "default") == urgent


def test_a_worker_that_hangs_while_it_claims_holds_nobody_up(pg: PostgresStore, postgres_url: str) -> None:
    other = open_store(postgres_url)
    assert isinstance(other, PostgresStore)
    Limits(pg).set("default", max_running=5)
    submitted(pg, 2)
    free = submitted(pg, 1, "free")

    with other.transaction() as connection:
        assert allowances(connection, "default", None) == {"default": Room(5)}
        row = connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()
        assert row == ("10s",), "the server ends its session if it hangs for longer"
        assert claim(pg) == free
    assert len(claim(pg)) == 2
    other.close()


def test_limits_are_set_one_by_one_changed_and_taken_away(pg: PostgresStore) -> None:
    limits = Limits(pg)

    limits.set("a", max_running=3)
    limits.set("a", rate=Rate(10, 60.0))
    assert limits.lines() == [Limit("a", 3, Rate(10, 60.0))]
    limits.set("a", max_running=1)
    limits.pause("a")
    limits.set("b", rate=Rate(1, 0.5))
    assert limits.lines() == [Limit("a", 1, Rate(10, 60.0), True), Limit("b", None, Rate(1, 0.5))]
    assert limits.unset("a") and limits.unset("b") and not limits.unset("b")
    assert limits.lines() == [Limit("a", paused=True)]


def test_a_changed_rate_gives_nobody_a_second_helping(pg: PostgresStore) -> None:
    limits = Limits(pg)
    limits.set("default", rate=Rate(3, 3600))
    submitted(pg, 9)
    assert len(claim(pg)) == 3

    limits.set("default", rate=Rate(5, 3600))

    assert claim(pg) == []


@pytest.mark.parametrize(
    ("queue", "limit"),
    [
        ("", {"max_running": 1}),
        ("a,b", {"max_running": 1}),
        ("a", {"max_running": 0}),
        ("a", {"max_running": 2**31}),
        ("a", {"max_running": True}),
        ("a", {"rate": Rate(0, 1.0)}),
        ("a", {"rate": Rate(1, 0.0)}),
        ("a", {"rate": Rate(1, float("inf"))}),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(pg: PostgresStore, queue: str, limit: Any) -> None:
    with pytest.raises(HoldfastError) as refused:
        Limits(pg).set(queue, **limit)

    assert isinstance(refused.value, LimitInvalid) or "a queue is named by" in str(refused.value)
    assert Limits(pg).lines() == []


def test_other_stores_say_that_they_keep_no_limits(memory: Store) -> None:
    with pytest.raises(StoreError, match="limits of queues are kept by PostgreSQL alone"):
        Limits(memory)
