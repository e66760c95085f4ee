"""Schedules: what is submitted at which times, by however many workers, and what becomes of missed times."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import START, App, StateGraph, open_store
from holdfast.errors import HoldfastError, StoreError
from holdfast.fleet.catalog import Catalog
from holdfast.fleet.cron import Cron
from holdfast.fleet.queues import Limits, Rate
from holdfast.fleet.schedules import MOST_MISSED, Schedule, ScheduleRefused, Schedules, submitting
from holdfast.stores.base import Store
from holdfast.stores.postgres.store import PostgresStore
from tests.postgres import PostgresServer

HOURLY = Cron("@hourly")


def graph(store: Store) -> App:
    return StateGraph(dict, name="w").add_node("a", lambda state: None).add_edge(START, "a").compile(store)


def make_due(store: PostgresStore, name: str = "s", ago: str = "0 s") -> dt.datetime:
    """Let a schedule's next time lie in the past; answers that time."""
    with store.transaction() as connection:
        row = connection.execute(
            "UPDATE schedule SET next_at = clock_timestamp() - %s::interval, retry_at = NULL WHERE name = %s "
            "RETURNING next_at",
            (ago, name),
        ).fetchone()
    assert row is not None and isinstance(row[0], dt.datetime)
    return row[0]


def noting(times: list[dt.datetime]) -> Callable[[Schedule, dt.datetime], str]:
    def submit(schedule: Schedule, when: dt.datetime) -> str:
        times.append(when)
        return f"{schedule.name} {len(times)}"

    return submit


def test_a_due_schedule_submits_its_run_once_and_waits_for_its_next_time(pg: PostgresStore) -> None:
    app, schedules = graph(pg), Schedules(pg)
    plan = Schedule("s", HOURLY, "w", {"n": 3}, {"tags": ["nightly"]}, "later", 4)
    added = schedules.add(plan, by="ada")
    submit = submitting(pg, Catalog([app]))

    assert schedules.tick(submit) == [], "its time has not come"
    make_due(pg, ago="1 h")
    [run] = schedules.tick(submit)

    [info] = pg.runs()
    assert (info.run, info.status, info.queue, info.priority) == (run, "queued", "later", 4)
    assert info.tags == ("nightly",) and app.get_state(run)["n"] == 3
    [line] = schedules.lines()
    assert line.last_run == run and line.last_at is not None and line.last_at <= line.next_at
    assert line.next_at > dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1) and line.trouble is None
    assert added.created_by == "ada" and added.last_run is None
    assert schedules.tick(submit) == []


def test_a_worker_that_dies_between_submitting_and_noting_it_doubles_nothing(pg: PostgresStore) -> None:
    schedules = Schedules(pg)
    schedules.add(Schedule("s", HOURLY, "w"))
    make_due(pg, ago="1 h")
    submit = submitting(pg, Catalog([graph(pg)]))

    def die(schedule: Schedule, when: dt.datetime) -> str:
        submit(schedule, when)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        schedules.tick(die)
    [run] = schedules.tick(submit)

    assert [info.run for info in pg.runs()] == [run]


def test_two_workers_share_the_schedules_and_no_time_has_two_runs(
    pg: PostgresStore, postgres_url: str
) -> None:
    other = open_store(postgres_url)
    names = [f"s{number}" for number in range(10)]
    for name in names:
        Schedules(pg).add(Schedule(name, HOURLY, "w"))
        make_due(pg, name, "1 h")
    both, submitted = threading.Barrier(2), list[list[str]]()

    def work(store: Store) -> None:
        both.wait()
        submitted.append(Schedules(store).tick(submitting(store, Catalog([graph(store)]))))

    threads = [threading.Thread(target=work, args=(store,)) for store in (pg, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(pg.runs()) == len(names) == sum(map(len, submitted))
    other.close()


@pytest.mark.parametrize(
    ("missed", "late", "count"),
    [
        ("one", "5 h", 1),
        ("all", "5 h", 5),
        ("all", "1000 h", MOST_MISSED),
        ("skip", "1000 h", 0),
        ("one", "40 years", 1),
    ],
)
def test_what_becomes_of_times_that_nobody_saw(pg: PostgresStore, missed: str, late: str, count: int) -> None:
    schedules, times = Schedules(pg), list[dt.datetime]()
    # Every hour, at a minute that is never close to now.
    minute = (dt.datetime.now(dt.UTC).minute + 30) % 60
    schedules.add(Schedule("s", Cron(f"{minute} * * * *"), "w", missed=missed))
    make_due(pg, ago=late)

    schedules.tick(noting(times))

    assert len(times) == count and times == sorted(set(times))
    assert all(time.minute == minute for time in times)
    now = dt.datetime.now(dt.UTC)
    assert all(now - time < dt.timedelta(hours=count) for time in times), "they are the latest"
    [line] = schedules.lines()
    assert now < line.next_at < now + dt.timedelta(hours=1) and (line.last_run is None) == (not times)
    assert schedules.tick(noting(times)) == []


def test_a_time_that_is_noticed_a_little_late_is_not_missed(pg: PostgresStore) -> None:
    schedules, times = Schedules(pg), list[dt.datetime]()
    schedules.add(Schedule("s", Cron("* * * * *"), "w", missed="skip"))
    make_due(pg, ago="50 min")

    schedules.tick(noting(times))

    assert len(times) == 1


def test_trouble_with_one_schedule_is_kept_and_does_not_stop_the_others(
    pg: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    # What is logged here holds half a character, which the processes that share the tests cannot hand on.
    caplog.set_level(logging.CRITICAL, "holdfast.fleet")
    schedules = Schedules(pg)
    for name, workflow in [("a", "gone"), ("b", "w"), ("c", "odd")]:
        schedules.add(Schedule(name, HOURLY, workflow))
        make_due(pg, name, "1 h")
    submit, tried = submitting(pg, Catalog([graph(pg)])), list[str]()

    def picky(schedule: Schedule, when: dt.datetime) -> str:
        tried.append(schedule.name)
        if schedule.workflow == "odd":
            raise ValueError("\0 and \udc80")
        return submit(schedule, when)

    assert len(schedules.tick(picky)) == 1
    assert schedules.tick(picky) == [] and sorted(tried) == ["a", "a", "b", "c"], (
        "trouble is not tried again at once"
    )

    lines = {line.name: line for line in schedules.lines()}
    assert lines["b"].trouble is None and lines["b"].last_run
    assert lines["c"].trouble == "ValueError:  and \\udc80"
    assert lines["a"].trouble is None and lines["a"].last_run is None, "others may know its workflow"
    assert schedules.tick(lambda schedule, when: "r1") == ["r1"]
    make_due(pg, "c", "1 h")
    with pg.transaction() as connection:
        connection.execute("UPDATE schedule SET retry_at = now()")
    schedules.tick(lambda schedule, when: "r1")
    assert {line.name: line.trouble for line in schedules.lines()}["c"] is None


def test_a_worker_leaves_the_schedules_of_other_workflows_alone(pg: PostgresStore) -> None:
    schedules = Schedules(pg)
    schedules.add(Schedule("a", HOURLY, "other"))
    schedules.add(Schedule("b", HOURLY, "w"))
    make_due(pg, "a", "1 h")
    make_due(pg, "b", "1 h")

    assert len(schedules.tick(noting([]), ("w",))) == 1
    assert [line.last_run is None for line in schedules.lines()] == [True, False]


def test_a_paused_schedule_submits_nothing_and_makes_up_for_nothing(pg: PostgresStore) -> None:
    schedules, times = Schedules(pg), list[dt.datetime]()
    schedules.add(Schedule("s", HOURLY, "w", missed="all"))
    make_due(pg, ago="5 h")

    assert schedules.pause("s").paused
    assert schedules.tick(noting(times)) == []
    resumed = schedules.resume("s")

    assert not resumed.paused and resumed.next_at > dt.datetime.now(dt.UTC)
    assert schedules.tick(noting(times)) == [] == times


def test_resuming_what_is_not_paused_skips_nothing(pg: PostgresStore) -> None:
    schedules = Schedules(pg)
    schedules.add(Schedule("s", HOURLY, "w"))
    due = make_due(pg, ago="1 h")

    assert schedules.resume("s").next_at == due


def test_schedules_are_replaced_and_removed(pg: PostgresStore) -> None:
    schedules = Schedules(pg)
    schedules.add(Schedule("s", HOURLY, "w", {"n": 1}))
    with pytest.raises(ScheduleRefused, match="already"):
        schedules.add(Schedule("s", HOURLY, "w", {"n": 2}))

    line = schedules.add(
        Schedule("s", Cron("0 9 * * MON", "Europe/Berlin"), "v", {"n": 3}, missed="all"), replace=True
    )

    assert (line.cron, line.zone, line.workflow, line.missed) == ("0 9 * * MON", "Europe/Berlin", "v", "all")
    seen: list[Any] = []
    make_due(pg, ago="30 days")
    schedules.tick(lambda schedule, when: str(seen.append(schedule.input)))
    assert seen == [{"n": 3}] * len(seen) and seen
    schedules.remove("s")
    assert schedules.lines() == []
    for unknown in (schedules.remove, schedules.pause, schedules.resume):
        with pytest.raises(ScheduleRefused, match="there is no schedule 's'"):
            unknown("s")


def test_schedules_of_another_namespace_are_out_of_reach(pg: PostgresStore, postgres_url: str) -> None:
    other = open_store(postgres_url, namespace="other")
    Schedules(pg).add(Schedule("s", HOURLY, "w"))
    make_due(pg, ago="1 h")

    assert Schedules(other).lines() == [] and Schedules(other).tick(noting([])) == []
    Schedules(other).add(Schedule("s", HOURLY, "w"))
    other.close()


def test_a_role_of_one_namespace_reaches_neither_schedules_nor_limits_of_another(
    pg: PostgresStore, postgres_url: str, postgres_server: PostgresServer
) -> None:
    clerk = f"clerk_{pg.schema}"
    postgres_server.sql(f"CREATE ROLE {clerk} LOGIN")
    Schedules(pg).add(Schedule("theirs", HOURLY, "w"))
    Limits(pg).set("theirs", max_running=1)
    with pg.transaction() as connection:
        connection.execute("SELECT admit(%s, 'mine')", (clerk,))
    own = open_store(postgres_server.url(pg.schema, user=clerk, namespace="mine"))
    assert isinstance(own, PostgresStore)

    Schedules(own).add(Schedule("own", HOURLY, "w"))
    Limits(own).set("own", rate=Rate(2, 1.0))
    make_due(own, "own", "1 h")
    assert len(Schedules(own).tick(submitting(own, Catalog([graph(own)])))) == 1

    with own.transaction() as connection:
        for table in ("schedule", "queue"):
            rows = connection.execute(f"SELECT name FROM {table}".encode()).fetchall()
            assert rows == [("own",)], "not even by plain SQL"
    own.close()
    postgres_server.sql(f"DROP OWNED BY {clerk}; DROP ROLE {clerk}")


def test_what_a_run_is_given_is_sealed_like_its_state(
    pg: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", "ab" * 32)
    sealed = Schedules(pg)
    sealed.add(Schedule("s", HOURLY, "w", {"word": "open sesame"}, {"word": "open sesame"}))
    make_due(pg, ago="1 h")
    monkeypatch.delenv("HOLDFAST_KEY")

    with pg.transaction() as connection:
        rows = connection.execute("SELECT config || input FROM schedule").fetchall()
    assert b"sesame" not in bytes(rows[0][0])
    blind = Schedules(pg)
    assert blind.tick(noting([])) == [] and "HOLDFAST_KEY" in str(blind.lines()[0].trouble)
    make_due(pg, ago="1 h")
    seen: list[Any] = []
    sealed.tick(lambda schedule, when: str(seen.append((schedule.input, schedule.config))))
    assert seen == [({"word": "open sesame"}, {"word": "open sesame"})]


@pytest.mark.parametrize(
    "wrong",
    [{"name": " "}, {"name": "a\n"}, {"missed": "some"}, {"queue": "a,b"}, {"priority": 2**31}],
)
def test_a_schedule_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(HoldfastError):
        Schedule(**{"name": "s", "cron": HOURLY, "workflow": "w", **wrong})


def test_other_stores_say_that_they_keep_no_schedules(memory: Store) -> None:
    with pytest.raises(StoreError, match="schedules are kept by PostgreSQL alone"):
        Schedules(memory)
