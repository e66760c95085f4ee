"""The journal of calls: every call in order, on every store; it is bounded, and begins anew if it was deleted."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast.journal.copying import delete_run
from holdfast.journal.journal import Journal
from holdfast.service import Service, calls
from holdfast.service.reading import beside
from holdfast.stores import open_store
from holdfast.stores.base import Store


@pytest.fixture(params=["sqlite", "file", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new store of each kind that another process can read."""
    if request.param == "postgres":
        return str(request.getfixturevalue("emptied_postgres_url"))
    return {"sqlite": f"sqlite:///{tmp_path / 'runs.db'}", "file": f"file://{tmp_path / 'runs'}"}[
        request.param
    ]


def journals(store: Store) -> list[list[tuple[str, str, str, str]]]:
    """What each journal of calls says, the oldest first."""
    with Service(beside(store, "default.calls"), read_only=True) as service:
        found = sorted(service.runs(limit=500)["runs"], key=lambda run: run["run_id"])
        return [
            [
                (each["data"]["by"], each["data"]["command"], each["data"]["why"], each["data"]["refused"])
                for each in service.events(run["run_id"])
                if each["type"] == "command"
            ]
            for run in found
        ]


def test_calls_are_kept_in_order_with_who_asked_on_every_store(store: Store) -> None:
    """Also those that a process made at the same time, and those of the process after it."""
    for turn in range(2):
        journal = calls.CallJournal(store)
        journal.note("ada", "get_run", "run_id=r1")
        threads = [threading.Thread(target=journal.note, args=(f"t{n}", "diff")) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        journal.note("ada", "cancel", "run_id=r1", "forbidden")
        if turn:
            journal.close()
    first, second = journals(store)
    assert first[0] == ("ada", "get_run", "run_id=r1", "") and len(first) == 6
    assert sorted(who for who, *_ in first[1:5]) == ["t0", "t1", "t2", "t3"]
    assert first[-1] == ("ada", "cancel", "run_id=r1", "forbidden")
    assert sorted(first) == sorted(second)


def test_a_journal_of_calls_is_bounded_and_so_is_how_many_are_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ended journal can be forgotten, one that is written cannot."""
    monkeypatch.setattr(calls, "MOST_CALLS", 3)
    monkeypatch.setattr(calls, "MOST_JOURNALS", 2)
    journal = calls.CallJournal(store)
    for number in range(10):
        journal.note("ada", f"call{number}")
    kept = [[call for _, call, *_ in each] for each in journals(store)]
    journal.close()
    assert sorted(kept) == [["call6", "call7", "call8"], ["call9"]]


def test_a_journal_of_calls_that_was_deleted_is_begun_anew(store: Store) -> None:
    """Nothing is refused because of that."""
    journal = calls.CallJournal(store)
    journal.note("ada", "first")
    other = open_store(beside(store, "default.calls"))
    for info in other.runs():
        delete_run(Journal(other), info.run)
    journal.note("ada", "second")
    other.close()
    assert [[call for _, call, *_ in each] for each in journals(store)] == [["second"]]
    journal.close()


def test_values_that_may_be_secret_or_large_are_not_kept() -> None:
    """Of these, only the names of the arguments are."""
    given = {"workflow": "w" * 300, "inputs": {"password": "hunter2"}, "run_id": None, "value": "hunter2"}
    assert calls.about(given) == f"workflow={'w' * 200}, inputs, value"
