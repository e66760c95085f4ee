"""What one damaged run means for others, and for whoever looks at all: costs, retention."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from holdfast import CorruptJournal, Retention, open_store
from holdfast.engine.retention import expire_runs, prune_workflow
from holdfast.integrity import repair_run
from holdfast.journal.journal import Journal
from holdfast.stores.base import Store
from holdfast.views.usage import charges_of
from tests.cli.in_process import caller
from tests.graphs import chain
from tests.integrity.damage import damage_entry


def spending(store: Store) -> Any:
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        ctx.spend("model", cost=1.0)
        return {"log": ["paid"]}

    app = chain("a", "b", "c", nodes=dict.fromkeys("abc", pay)).compile(store)
    for run in ("r", "s"):
        app.invoke({"n": 1}, run_id=run)
    return app


def test_the_costs_of_others_are_told_and_what_cannot_be_read_is_named(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store(sqlite_url)
    spending(store)
    damage_entry(store, "r", 3)
    journal = Journal(store)
    with pytest.raises(CorruptJournal):
        list(charges_of(journal, ["r", "s"]))
    call = caller(capsys)

    told = call("runs", "cost", "--json", "--store", sqlite_url)
    assert told.code == 0 and told.json["total"]["cost"] == 3.0
    assert [left["run_id"] for left in told.json["unreadable"]] == ["r"]
    told = call("runs", "cost", "--store", sqlite_url)
    assert told.code == 0 and "left out, since it cannot be read: run 'r': entry 3 is damaged" in told.err

    new = repair_run(store, "r").new_run
    charges = list(charges_of(journal, [info.run for info in store.runs()]))
    assert {charge.run for charge in charges} == {"s", new}
    assert call("runs", "cost", "--json", "--store", sqlite_url).json["unreadable"] == []
    store.close()


def test_a_run_that_cannot_be_read_may_have_a_kept_checkpoint_and_does_not_expire(memory: Store) -> None:
    app = spending(memory)
    app.keep("r", 2)
    damage_entry(memory, "r", 4)

    assert expire_runs(memory, dt.timedelta(0), keep_successful=False) == 1
    assert [info.run for info in memory.runs()] == ["r"]


def test_pruning_by_count_leaves_what_cannot_be_read_and_goes_on(memory: Store) -> None:
    app = spending(memory)
    app.keep("r", 2)
    damage_entry(memory, "r", 4)
    app.invoke({"n": 1}, run_id="t")

    assert prune_workflow(Journal(memory), "graph", Retention(max_checkpoints=1)) > 0
    assert "r" in {info.run for info in memory.runs()} and len(memory.checkpoints("r")) > 1
