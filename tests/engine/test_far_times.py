"""Times that no calendar reaches: they are refused where they are made, and break nothing that shows them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from holdfast import START, ExecutionError, StateGraph
from holdfast.errors import StateInvalid
from holdfast.fleet import Worker
from holdfast.stores.base import Store
from holdfast.stores.postgres.store import PostgresStore
from holdfast.values import utc_time


@pytest.mark.parametrize("length", [1e12, float("inf"), float("nan"), dt.timedelta.max])
def test_nobody_sleeps_for_more_than_a_hundred_years(memory: Store, length: Any) -> None:
    def nap(ctx: Any) -> None:
        ctx.sleep(length)

    app = StateGraph(dict, name="w").add_node("nap", nap).add_edge(START, "nap").compile(memory)

    with pytest.raises(ExecutionError, match="a hundred years of them at most") as failed:
        app.invoke({})
    assert isinstance(failed.value.cause, StateInvalid)


@pytest.mark.parametrize("at", [1e12, 1e300, float("inf")])
def test_times_beyond_the_calendar_are_shown_as_its_end(at: float) -> None:
    assert utc_time(at).year == 9999 and utc_time(at).astimezone(dt.timezone(dt.timedelta(hours=14)))
    assert utc_time(0.5) == dt.datetime(1970, 1, 1, 0, 0, 0, 500_000, dt.UTC)


@pytest.mark.parametrize("store_url", ["memory", "postgres"], indirect=True)
def test_a_question_that_is_open_for_ages_breaks_nothing_that_shows_its_run(store: Store) -> None:
    def ask(ctx: Any) -> None:
        ctx.ask("well?", timeout=1e12)

    app = StateGraph(dict, name="w").add_node("a", ask).add_edge(START, "a").compile(store)
    run_id = app.submit({})
    Worker(store, [app]).run(until_idle=True)

    due_at = store.runs(run=run_id)[0].due_at
    assert due_at is not None and due_at > 1e12
    [line] = app.runs()
    assert line.status == "paused"
    [pause] = app.invoke({}).pauses
    assert pause.expires_at is not None and pause.expires_at.year == 9999
    if isinstance(store, PostgresStore):
        with store.transaction() as connection:
            rows = connection.execute("SELECT due_at FROM runs WHERE run = %s", (run_id,)).fetchall()
        assert rows[0][0].year == 9999
