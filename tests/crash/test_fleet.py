"""Workers that die, that sleep past their lease, and a server that crashes: nothing is lost, nothing is done twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.stores import open_store
from tests.crash.fleet import Fleet, chaos
from tests.crash.fleet_worker import chain
from tests.crash.races import race
from tests.postgres import PostgresServer


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger"
    path.touch()
    return path


def wait_for(what: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


class Crew:
    """Single workers with names."""

    def __init__(self, url: str, ledger: Path, seconds: float) -> None:
        self._url, self._ledger, self._seconds = url, ledger, seconds
        self._fleets: list[Fleet] = []

    def add(self) -> Fleet:
        self._fleets.append(Fleet(self._url, self._ledger, 3, 1, self._seconds))
        return self._fleets[-1]

    def lines(self, *beginning: str, by: Fleet | None = None) -> list[str]:
        found = [
            line for line in self._ledger.read_text().splitlines() if line.startswith(" ".join(beginning))
        ]
        return [line for line in found if by is None or line.endswith(f" {by.workers[0].pid}")]

    def stop(self) -> None:
        for fleet in self._fleets:
            fleet.stop()


@pytest.fixture
def crew(postgres_url: str, ledger: Path) -> Iterator[Crew]:
    made = Crew(f"{postgres_url}&lease=1", ledger, 1.0)
    yield made
    made.stop()


def test_what_a_killed_worker_was_doing_is_taken_over_by_another(postgres_url: str, crew: Crew) -> None:
    store = open_store(postgres_url)
    app = chain(store, 3, 1.0, is_async=True)
    runs = [app.submit({}) for _ in range(3)]
    first = crew.add()
    wait_for(lambda: len(crew.lines("started", by=first)) >= 3)

    second = crew.add()
    first.workers[0].kill()
    first.workers[0].wait()

    wait_for(lambda: all(crew.lines("worker taken", run, by=second) for run in runs))
    wait_for(lambda: len(store.runs(status=["completed"])) == 3)
    assert all(app.get_state(run)["n"] == 3 for run in runs)
    store.close()


def test_what_a_worker_saves_after_it_was_thought_dead_is_refused(postgres_url: str, crew: Crew) -> None:
    store = open_store(postgres_url)
    app = chain(store, 3, 1.0, is_async=True)
    run = app.submit({})
    zombie = crew.add()
    wait_for(lambda: crew.lines("started", run, by=zombie))

    zombie.sleep()
    heir = crew.add()
    wait_for(lambda: crew.lines("finished", run, by=heir))
    zombie.wake()

    wait_for(lambda: crew.lines("worker conflict", run, by=zombie))
    wait_for(lambda: len(crew.lines("finished", run)) == 3)
    assert [line.split()[2] for line in crew.lines("finished", run)] == ["step1#1", "step2#1", "step3#1"]
    assert not crew.lines("finished", run, by=zombie) or crew.lines("finished", run)[0].endswith(
        f" {zombie.workers[0].pid}"
    )
    store.close()


def test_chaos_strands_no_run_and_finishes_no_step_twice(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    report = chaos(
        postgres_server, tmp_path, runs=80, steps=20, workers=3, seed=7, lease=1.0, every=0.7, timeout=200
    )

    assert not report.problems and report.completed == 80, str(report)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_of_two_who_drive_one_run_one_wins(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The loser gets a conflict; no record is lost or doubled."""
    url = f"sqlite:///{tmp_path}/runs.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")

    ended = race(url, 40)

    assert sum(ended.values()) == 40 and ended["completed", "conflict"] > 0
