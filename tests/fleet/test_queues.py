"""How queues stand: the same on every store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import open_store
from holdfast.fleet.queues import Limit, Limits, QueueLine, held_back, is_postgres, queue_lines
from holdfast.stores.base import Store
from tests.stores.journals import create


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    places = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'runs.db'}"}
    opened = open_store(places.get(request.param) or request.getfixturevalue("postgres_url"))
    yield opened
    opened.close()


def test_a_queue_is_counted_by_what_its_runs_wait_for(any_store: Store) -> None:
    now = time.time()
    for number, (status, due_at) in enumerate(
        [
            ("queued", None),
            ("queued", now - 50),
            ("queued", now + 1000),
            ("paused", now - 100),
            ("paused", now + 1000),
            ("paused", None),
            ("running", None),
            ("running", None),
            ("completed", None),
        ]
    ):
        create(any_store, f"r{number}", status=status, due_at=due_at, queue="a", updated_at=now - 10)
    create(any_store, "other", status="queued", queue="b", updated_at=now - 10)
    create(any_store, "by hand", status="paused", due_at=1.0)

    first, second = queue_lines(any_store)

    counts = (first.queue, first.queued, first.due, first.running, first.paused, first.held)
    assert counts == ("a", 3, 3, 2, 3, 0)
    assert first.oldest == pytest.approx(100, abs=60) and second.oldest == pytest.approx(10, abs=60)
    assert first.as_json()["oldest_seconds"] >= 100 and second.queued == second.due == 1
    assert held_back(any_store, "other") is None and held_back(any_store, "nobody") is None


def test_limits_are_told_even_of_a_queue_in_which_nothing_waits(postgres_url: str) -> None:
    store = open_store(postgres_url)
    Limits(store).set("empty", max_running=2)
    create(store, "r", status="queued", queue="full")
    assert is_postgres(store)
    with store.transaction() as connection:
        connection.execute("UPDATE run SET held = 'why not'")

    empty, full = queue_lines(store)

    assert empty == QueueLine("empty", limit=Limit("empty", 2))
    assert (full.queued, full.due, full.held, full.oldest) == (1, 0, 1, None)
    assert held_back(store, "r") == "why not"
    store.close()
