"""A store that is restored while its runs execute: no owner continues from lost entries."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import RunConflict, open_store
from holdfast.fleet import Worker, WorkerEvent
from holdfast.stores.base import Store
from tests.fleet.restored_chain import STEPS, build, last_of
from tests.postgres import PostgresServer

ROOT = Path(__file__).parents[2]


class Backup:
    """A dump of a schema, as the page on production makes and restores it."""

    def __init__(self, server: PostgresServer, schema: str) -> None:
        self._server, self._schema = server, schema
        self._file = server.folder / f"{schema}.dump"

    def dump(self) -> None:
        self._run("pg_dump", "-Fc", "-n", self._schema, "-f", str(self._file), "postgres")

    def restore(self) -> None:
        options = ("--clean", "--if-exists", "--single-transaction")
        self._run("pg_restore", *options, "-d", "postgres", str(self._file))

    def _run(self, program: str, *arguments: str) -> None:
        place = ("-h", str(self._server.folder), "-U", "postgres")
        self._server.programs.run(program, *place, *arguments)


@pytest.fixture
def backup(store: Store, postgres_server: PostgresServer) -> Backup:
    return Backup(postgres_server, store.schema)


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    opened = open_store(postgres_url)
    yield opened
    opened.close()


class Steps:
    """Notes every step that begins; does something during some of them, the first time."""

    def __init__(self, **during: Callable[[], object]) -> None:
        self.begun: list[str] = []
        self.keys: dict[str, set[str]] = {}
        self._during = during

    def __call__(self, node: str, key: str) -> None:
        self.begun.append(node)
        self.keys.setdefault(node, set()).add(key)
        self._during.pop(node, lambda: None)()


def test_workers_go_on_from_what_was_restored(store: Store, backup: Backup) -> None:
    """S2.20: what a shared server has is what counts, also when it was restored from a backup under its workers."""
    steps = Steps(s2=backup.dump, s4=backup.restore)
    app, said = build(store, steps), list[WorkerEvent]()
    run = app.submit({})

    Worker(store, [app], tell=said.append).run(until_idle=True)

    assert [event.kind for event in said] == ["taken", "conflict", "taken", "completed"]
    assert steps.begun == ["s1", "s2", "s3", "s4", "s2", "s3", "s4", "s5"]
    assert all(len(keys) == 1 for keys in steps.keys.values()), (
        "a repeated step has the key of the first time"
    )
    assert app.get_state(run)["log"] == list(STEPS)


def test_a_run_that_was_submitted_after_the_backup_is_submitted_again_by_its_key(
    store: Store, backup: Backup
) -> None:
    app = build(store)
    backup.dump()
    first = app.submit({}, key="order-7")
    backup.restore()
    assert app.runs() == []

    assert app.submit({}, key="order-7") == first
    Worker(store, [app]).run(until_idle=True)

    assert [info.status for info in app.runs()] == ["completed"]


def test_a_driver_of_before_cannot_write_onto_what_others_wrote_since(store: Store, backup: Backup) -> None:
    """The number of its next entry would fit; the checksum of the entry before does not."""

    def lose_and_take_over() -> None:
        before = last_of(store, "r1")
        backup.restore()
        taker = [sys.executable, "-m", "tests.fleet.restored_chain", store.url, "r1", str(before)]
        subprocess.run(taker, cwd=ROOT, check=True)
        assert last_of(store, "r1") == before

    app = build(store, Steps(s2=backup.dump, s4=lose_and_take_over))

    with pytest.raises(RunConflict):
        app.invoke({}, run_id="r1")

    assert app.resume("r1", takeover=True).status == "completed"
    assert app.get_state("r1")["log"] == list(STEPS)
