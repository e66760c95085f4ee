"""Stores of many runs: whoever wants one run, or a page of them, does not read them all."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast import ExecutionError
from holdfast.cli.commands.checkpoints import _found, planned
from holdfast.cli.commands.runs import view_of
from holdfast.cli.options import Options
from holdfast.cli.session import Session
from holdfast.cli.targets import latest_unfinished
from holdfast.engine.resume import find_run
from holdfast.engine.retention import expire_runs, janitor
from holdfast.journal.checkpoint_ids import encode_mark, sealed_mark
from holdfast.journal.journal import Journal
from holdfast.stores.base import Append, Entry, RunInfo
from holdfast.stores.memory import MemoryStore
from holdfast.views.runs import run_list
from tests.graphs import chain

NEWEST = Options(run=None, workflow=None, limit=2)


class Noting(MemoryStore):
    """Remembers which runs it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[dict[str, Any]] = []

    def runs(self, **filters: Any) -> list[RunInfo]:
        self.asked.append({name: value for name, value in filters.items() if value is not None})
        return super().runs(**filters)


def fails(state: Any) -> None:
    raise ValueError("no")


@pytest.fixture
def store() -> Noting:
    store = Noting()
    chain("a", name="w").compile(store).invoke({"n": 1}, run_id="good-1")
    with pytest.raises(ExecutionError):
        chain("a", name="w", nodes={"a": fails}).compile(store).invoke({"n": 1}, run_id="bad-2")
    assert janitor.wait()
    store.asked.clear()
    return store


WANTED: dict[str, Callable[[Journal], object]] = {
    "a page of runs": lambda journal: run_list(journal, limit=2),
    "a page of checkpoints": lambda journal: _found(Session(journal=journal), NEWEST),
    "a run by how its id begins": lambda journal: view_of(Session(journal=journal), "good"),
    "what to resume of a workflow": lambda journal: find_run(journal.store, "w"),
    "what to resume": lambda journal: latest_unfinished(journal.store),
    "what is too old": lambda journal: expire_runs(journal.store, dt.timedelta(days=7)),
    "what to prune by age": lambda journal: planned(journal, before=time.time() - 1000),
}


@pytest.mark.parametrize("wanted", WANTED)
def test_nobody_reads_all_runs_for(wanted: str, store: Noting) -> None:
    WANTED[wanted](Journal(store))

    narrow = {"run", "key", "limit", "prefix", "before"}
    assert store.asked
    assert [
        each for each in store.asked if not narrow & set(each) and each.get("status") != ["running"]
    ] == []


def test_the_checkpoints_of_a_run_that_goes_on_for_long_are_among_the_newest(store: Noting) -> None:
    for number in range(3):
        chain("a", name="w").compile(store).invoke({"n": 1}, run_id=f"later-{number}")
    info = replace(store.runs(run="good-1")[0], run="long", key=b"12345678", status="running", updated_at=1.0)
    at = time.time() + 9
    mark = sealed_mark(encode_mark(1, ["a"], ["b"], ""), info.key, 1, at, 0)
    store.commit([Append("long", 0, [Entry(1, at, b"", b"", mark)], info)])

    found = _found(Session(journal=Journal(store)), NEWEST)

    assert [point.run_id for point in found] == ["long", "later-2"]
