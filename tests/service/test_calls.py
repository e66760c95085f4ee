"""The journal of calls: every call in order, on every store; it is bounded, and begins anew if it was deleted."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import StoreError, workflow
from holdfast.journal.copying import delete_run
from holdfast.journal.journal import Journal
from holdfast.service import Service, calls
from holdfast.service.reading import beside, kept_beside
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


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_call_that_could_not_be_stored_is_not_stored_with_a_later_one(kind: str, tmp_path: Path) -> None:
    """It was refused, so that the journal would tell of something that never happened."""
    store = open_store(f"sqlite:///{tmp_path}/runs.db" if kind == "sqlite" else f"file://{tmp_path}/runs")
    journal = calls.CallJournal(store)
    journal.note("ada", "first")
    with full_disk():
        for number in range(3):
            with pytest.raises(StoreError):
                journal.note("ada", f"refused{number}")
    journal.note("ada", "second")
    journal.close()
    assert sorted(call for each in journals(store) for _, call, *_ in each) == ["first", "second"]


def test_a_service_closes_its_store_though_the_journal_of_calls_cannot_be_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said in a warning; after that no call is journalled any more."""
    service = Service(f"sqlite:///{tmp_path}/runs.db", read_only=True)
    service.calls.note("ada", "first")
    with full_disk():
        service.close()
    assert "could not be ended" in caplog.text
    with pytest.raises(StoreError, match="closed"):
        service.store.runs()
    with pytest.raises(StoreError, match="ending"):
        service.calls.note("ada", "late")


def test_only_journals_that_nobody_writes_are_forgotten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the one of another server in this process, nor runs of a user's workflow of the same name."""
    monkeypatch.setattr(calls, "MOST_CALLS", 1)
    monkeypatch.setattr(calls, "MOST_JOURNALS", 2)
    kept = open_store(beside(store, "default.calls"))
    own = workflow(name="calls", store=kept)(lambda: 1)
    for number in range(4):
        own.run(run_id=f"own{number}")
    quiet, busy = calls.CallJournal(store), calls.CallJournal(store)
    quiet.note("ada", "quiet")
    for number in range(6):
        busy.note("bob", f"call{number}")
    names = [info.run for info in kept.runs()]
    assert [name for name in names if name.startswith("own")] and len(names) == 4 + 3
    kept.close()
    assert ["quiet"] in [[call for _, call, *_ in each] for each in journals(store)]
    quiet.close()
    busy.close()


def test_namespaces_of_long_names_have_journals_of_their_own(tmp_path: Path) -> None:
    """What a server keeps beside one is not mixed with what it keeps beside another."""
    names = [f"t{number}-" + "x" * 60 for number in range(2)]
    stores = [open_store(f"sqlite:///{tmp_path}/runs.db?namespace={name}") for name in names]
    first, second = (kept_beside(store, "calls") for store in stores)
    assert first != second
    for store in stores:
        journal = calls.CallJournal(store)
        journal.note("ada", "first")
        journal.close()
        store.close()


def test_values_that_look_like_other_arguments_are_quoted() -> None:
    """Nothing that a client says can be taken for another argument or another line."""
    said = calls.about({"run_id": "x, step=forged\n", "step": "publish#1", "path": ""})
    assert said == r"run_id='x, step=forged\n', step=publish#1, path="


def test_values_that_may_be_secret_or_large_are_not_kept() -> None:
    """Of these, only the names of the arguments are."""
    given = {"workflow": "w" * 300, "inputs": {"password": "hunter2"}, "run_id": None, "value": "hunter2"}
    assert calls.about(given) == f"workflow={'w' * 200}, inputs, value"
