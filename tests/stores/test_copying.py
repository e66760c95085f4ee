"""Copying and moving runs between stores: nothing is lost, nothing doubled, damage is found."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import ExecutionError, Retention, RunNotFound, StoreError, open_store
from holdfast.engine.commands.control import answer
from holdfast.engine.retention import janitor
from holdfast.engine.transfer import CopiedRun, CopyOutcome, copy_runs
from holdfast.fleet.queues import Limits
from holdfast.journal import copying
from holdfast.journal.journal import Journal
from holdfast.journal.sealing import Seal
from holdfast.stores.base import Append, Conflict, Entry, Message, RunInfo, Store
from holdfast.stores.files.store import FileStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import Crash
from tests.graphs import chain
from tests.integrity.damage import sql
from tests.stores.copied_runs import (
    Lives,
    Mortal,
    asking,
    blocking,
    claimable,
    contents,
    drive,
    growing,
    let_go_once_asked,
    ran,
)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Store]:
    store = open_store(f"sqlite:///{tmp_path / 'source.db'}")
    yield store
    store.close()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Store]:
    store = open_store(f"file:{tmp_path / 'target'}")
    yield store
    store.close()


def facts(store: Store, run: str) -> RunInfo:
    (info,) = store.runs(run=run)
    return info


def outcomes(source: Store, target: Store, **options: Any) -> dict[str, str]:
    return {copied.run: str(copied.outcome) for copied in copy_runs(source, target, **options).runs}


def failing(state: Any) -> None:
    raise ValueError("no luck")


def four_runs(store: Store) -> None:
    """`good`, `bad`, `asked` with an answer that nobody has taken in, and `long` with snapshots."""
    chain("a", "b", name="short").compile(store).invoke({"n": 1}, run_id="good")
    with pytest.raises(ExecutionError):
        chain("a", "b", nodes={"b": failing}, name="short").compile(store).invoke({}, run_id="bad")
    asking(store).invoke({"n": 1}, run_id="asked")
    store.post("asked", b"taken in long ago")
    store.post("asked", b"a message of any kind")
    growing(store, 60).invoke({}, run_id="long")


KINDS = {"memory": "memory://", "sqlite": "sqlite:///{}/runs.db", "file": "file:{}/runs"}


@pytest.mark.parametrize("pair", ["sqlite-file", "file-memory", "memory-sqlite"])
def test_a_copy_is_the_same_byte_for_byte(pair: str, tmp_path: Path) -> None:
    """S1.17: export and import across machines."""
    places = [KINDS[kind].format(tmp_path / str(index)) for index, kind in enumerate(pair.split("-"))]
    check_copies(*places)


@pytest.mark.parametrize("back", [False, True])
def test_a_copy_to_and_from_postgresql_is_the_same_byte_for_byte(
    back: bool, postgres_url: str, tmp_path: Path
) -> None:
    """S1.17: a store that one began with grows onto PostgreSQL, and back."""
    places = [f"sqlite:///{tmp_path}/runs.db", postgres_url]
    check_copies(*(places[::-1] if back else places))


def check_copies(source_url: str, target_url: str) -> None:
    source, target = open_store(source_url), open_store(target_url)
    four_runs(source)
    told: list[tuple[str, int, int]] = []

    def tell(copied: CopiedRun, done: int, total: int) -> None:
        told.append((copied.run, done, total))

    report = copy_runs(source, target, progress=tell)

    assert not report.problems and not report.stopped and report.count(CopyOutcome.COPIED) == 4
    assert told == [("good", 1, 4), ("bad", 2, 4), ("asked", 3, 4), ("long", 4, 4)]
    for run in ("good", "bad", "asked", "long"):
        assert contents(target, run) == contents(source, run)
        assert facts(target, run) == dataclasses.replace(facts(source, run), owner="")
    entries, snapshots, marks, _ = contents(target, "long")
    copied = {run.run: run for run in report.runs}["long"]
    assert copied.entries == len(entries) > 60 and copied.size == sum(len(each.body) for each in entries)
    assert len(snapshots) >= 1 and len(marks) == 60
    assert outcomes(source, target) == dict.fromkeys(("good", "bad", "asked", "long"), "unchanged")
    assert asking(target).resume("asked", answer="go").state["log"] == ["a", "go", "c"]
    source.close()
    target.close()


def test_a_copy_says_which_runs_it_left_out_and_what_else(tmp_path: Path, target: Store) -> None:
    """S1.17: runs whose facts or journals are damaged, rows of no run, and other namespaces are named."""
    source, files = open_store(f"sqlite:///{tmp_path}/source.db"), open_store(f"file:{tmp_path}/files")
    assert isinstance(source, SqliteStore) and isinstance(files, FileStore)
    for store in (source, files, *(open_store(f"{url.url}?namespace=team") for url in (source, files))):
        for run in ("good", "lost", "wrong"):
            chain("a").compile(store).invoke({}, run_id=run)
    sql(source, "DELETE FROM runs WHERE run = 'lost'")
    sql(source, "UPDATE runs SET status = 'paused' WHERE run = 'wrong'")
    (files.directory / "lost" / "journal").unlink()

    report = copy_runs(source, target)
    assert {run.run: str(run.outcome) for run in report.runs} == {"good": "copied", "wrong": "damaged"}
    assert report.left_out == ("2 rows of table entries are of no run", "another namespace, source@team.db")
    assert copy_runs(source, target, runs=["good"]).left_out == ()

    report = copy_runs(files, open_store("memory://"))
    assert {run.run: str(run.outcome) for run in report.runs} == {
        "good": "copied",
        "wrong": "copied",
        "lost": "damaged",
    }
    assert report.left_out == ("another namespace, @team",)


def test_a_copy_of_a_server_names_queues_schedules_and_namespaces(postgres_url: str, target: Store) -> None:
    """S1.17: what belongs to no run is left out, and named."""
    server = open_store(postgres_url)
    chain("a").compile(server).invoke({}, run_id="r")
    chain("a").compile(open_store(f"{postgres_url}&namespace=team")).invoke({}, run_id="r")
    Limits(server).set("slow", max_running=1)

    report = copy_runs(server, target)

    assert report.left_out == ("queues with their limits: 1", "another namespace, team")
    assert [str(run.outcome) for run in report.runs] == ["copied"]


def test_a_pruned_journal_is_copied_from_its_horizon_on(
    source: Store, target: Store, postgres_url: str
) -> None:
    growing(source, 20, retention=Retention(max_checkpoints=5, per="run")).invoke({}, run_id="pruned")
    assert janitor.wait()
    first = next(iter(source.read("pruned"))).seq
    assert first > 5

    server, memory = open_store(postgres_url), open_store("memory://")
    for store, there in ((source, target), (target, server), (server, memory)):
        assert outcomes(store, there) == {"pruned": "copied"}
        assert contents(there, "pruned") == contents(source, "pruned")
        assert len(growing(there, 20).checkpoints("pruned")) == 5
        assert outcomes(store, there) == {"pruned": "unchanged"}
    server.close()
    with pytest.raises(StoreError, match="entry 3 given where 1 is next"):
        create = Append("x", 0, [next(iter(source.read("pruned")))._replace(seq=3)], facts(source, "pruned"))
        target.commit([create._replace(info=dataclasses.replace(facts(source, "pruned"), run="x"))])


def test_without_its_horizon_s_snapshot_a_pruned_journal_is_damaged(source: Store, target: Store) -> None:
    growing(source, 20, retention=Retention(max_checkpoints=5, per="run")).invoke({}, run_id="pruned")
    assert janitor.wait()
    connection = apsw.Connection(str(source.path))  # type: ignore[attr-defined]
    connection.execute("DELETE FROM snapshots")
    connection.close()

    (damaged,) = copy_runs(source, target).problems

    assert damaged.outcome == "damaged" and "the snapshot at" in damaged.note
    assert target.runs() == []


def test_copied_again_only_what_is_new_is_brought(source: Store, target: Store) -> None:
    app = asking(source)
    app.invoke({"n": 1}, run_id="r")
    copy_runs(source, target)
    before = len(list(target.read("r")))
    app.resume("r", answer="go")

    (again,) = copy_runs(source, target).runs

    assert again.outcome == "updated" and again.entries == len(list(source.read("r"))) - before > 0
    assert contents(target, "r") == contents(source, "r") and facts(target, "r").status == "completed"
    lives = Lives(0)
    assert outcomes(source, Mortal(target, lives)) == {"r": "unchanged"}, "nothing is written"


def test_only_the_runs_that_are_wanted_are_copied(source: Store, target: Store) -> None:
    four_runs(source)

    assert outcomes(source, target, workflow="short", status=["failed"]) == {"bad": "copied"}
    assert outcomes(source, target, runs=["asked", "good", "asked"]) == {"asked": "copied", "good": "copied"}
    assert outcomes(source, target, runs=["long"], status=["failed"]) == {}
    with pytest.raises(RunNotFound, match="no run 'none' in sqlite"):
        copy_runs(source, target, runs=["bad", "none"])
    with pytest.raises(StoreError, match="cannot be copied to itself"):
        copy_runs(source, source)
    assert sorted(info.run for info in target.runs()) == ["asked", "bad", "good"]


def test_it_stops_between_runs_when_it_is_told_to(source: Store, target: Store) -> None:
    four_runs(source)
    asked = iter((False, False, True))

    report = copy_runs(source, target, stopped=lambda: next(asked))

    assert report.stopped and len(report.runs) == len(target.runs()) == 2
    assert sorted(outcomes(source, target).values()) == ["copied", "copied", "unchanged", "unchanged"]


def test_a_run_of_the_same_id_is_never_overwritten(source: Store, target: Store) -> None:
    for store, word in ((source, "here"), (target, "there")):
        asking(store).invoke({"log": [word]}, run_id="same")
    asking(source).invoke({}, run_id="other")
    before = contents(target, "same")

    report = copy_runs(source, target)
    moved = copy_runs(source, target, move=True)

    assert {run.run: run.outcome for run in report.runs} == {"same": "different", "other": "copied"}
    assert "another history" in report.problems[0].note and target.url in report.problems[0].note
    assert {run.run: run.outcome for run in moved.runs} == {"same": "different", "other": "moved"}
    assert contents(target, "same") == before and [info.run for info in source.runs()] == ["same"]


def test_two_copies_that_both_went_on_stay_as_they_are(source: Store, target: Store) -> None:
    asking(source).invoke({}, run_id="r")
    copy_runs(source, target)
    asking(target).resume("r", answer="there")

    assert outcomes(source, target) == {"r": "unchanged"}, "the copy has all that the original has"
    asking(source).resume("r", answer="here")
    assert outcomes(source, target) == {"r": "different"}
    assert asking(target).get_state("r")["log"] == ["a", "there", "c"]


def test_a_copy_that_ends_before_the_horizon_says_so(source: Store, target: Store) -> None:
    asking(source).invoke({}, run_id="r")
    copy_runs(source, target)
    app = asking(source)
    app.resume("r", answer="go")
    journal, info = Journal(source), facts(source, "r")
    loaded = journal.load(info, app._settings.codec)
    source.prune("r", journal.make_snapshot(loaded, app._settings.codec))

    (left_out,) = copy_runs(source, target).problems

    assert left_out.outcome == "different" and "was pruned beyond entry" in left_out.note


def test_damaged_runs_are_left_out_and_the_others_go_on(
    source: Store, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    four_runs(source)
    connection = apsw.Connection(str(source.path))  # type: ignore[attr-defined]
    last = connection.execute("SELECT max(id) - 2 FROM entries").fetchall()[0][0]
    connection.execute("UPDATE entries SET body = x'00' WHERE id = ?", (last,))
    connection.execute("DELETE FROM entries WHERE id & 4294967295 = 2 AND id >> 32 = 2")
    connection.execute("DELETE FROM entries WHERE id >> 32 = 1")
    connection.close()
    monkeypatch.setattr(copying, "PAGE_ENTRIES", 7)

    report = copy_runs(source, target, move=True)

    assert {run.run: str(run.outcome) for run in report.runs} == {
        "good": "damaged",
        "bad": "damaged",
        "asked": "moved",
        "long": "damaged",
    }
    notes = {run.run: run.note for run in report.problems}
    assert "entry 2 is missing" in notes["bad"] and "is damaged" in notes["long"]
    assert notes["good"] == "run 'good': entry 1 is missing"
    assert [info.run for info in target.runs()] == ["asked"]
    assert sorted(info.run for info in source.runs()) == ["bad", "good", "long"]


def test_a_damaged_copy_is_told_from_a_damaged_original(source: Store, target: Store) -> None:
    asking(source).invoke({}, run_id="r")
    copy_runs(source, target)
    journal = Path(target.directory) / "r" / "journal"  # type: ignore[attr-defined]
    journal.write_bytes(journal.read_bytes()[:-3] + b"???")
    again = open_store(target.url)

    (left_out,) = copy_runs(source, again).problems

    assert left_out.outcome == "refused" and f"its copy in {target.url} is damaged" in left_out.note


def test_a_long_journal_is_copied_page_by_page_and_goes_on_where_it_was_cut(
    source: Store, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "PAGE_ENTRIES", 10)
    growing(source, 60).invoke({}, run_id="long")

    with pytest.raises(Crash):
        copy_runs(source, Mortal(target, Lives(3)))

    assert len(list(target.read("long"))) == 30
    assert facts(target, "long").status == "interrupted", "a part of a run is not a completed one"
    (rest,) = copy_runs(source, target).runs
    assert rest.outcome == "updated" and rest.entries == len(list(source.read("long"))) - 30
    assert (
        contents(target, "long") == contents(source, "long") and facts(target, "long").status == "completed"
    )


def test_an_encrypted_journal_is_copied_without_the_key(
    source: Store, target: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = secrets.token_hex(32)
    monkeypatch.setenv("HOLDFAST_KEY", key)
    asking(source).invoke({}, run_id="r")
    answer(Journal(source, Seal.from_environment(os.environ)), "r", "go", by="ada")
    driver = drive(source.url, tmp_path)
    monkeypatch.delenv("HOLDFAST_KEY")

    assert outcomes(source, target) == {"r": "copied", "live": "refused"}  # It would have to be ended there.

    with pytest.raises(Exception, match="is encrypted; set HOLDFAST_KEY"):
        asking(target).resume("r")
    monkeypatch.setenv("HOLDFAST_KEY", key)
    assert outcomes(source, target) == {"r": "unchanged", "live": "copied"}
    let_go_once_asked(source, tmp_path)
    assert outcomes(source, target, runs=["live"], move=True) == {"live": "moved"}
    assert ended(driver) == "interrupted"
    assert asking(target).resume("r").state["log"] == ["a", "go", "c"]
    assert blocking(str(tmp_path)).compile(target).resume("live").state["log"] == ["first", "slow", "last"]


# Runs that somebody drives.


def ended(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.strip()


def test_a_run_under_way_is_copied_as_far_as_it_is_and_the_copy_can_be_resumed(
    source: Store, target: Store, tmp_path: Path
) -> None:
    driver = drive(source.url, tmp_path)

    (copied,) = copy_runs(source, target).runs

    assert copied.outcome == "copied" and f"process {driver.pid}" in copied.note
    assert "steps run twice" in copied.note
    assert list(target.read("live"))[:-1] == list(source.read("live"))
    assert facts(target, "live").status == "interrupted" and facts(target, "live").owner == ""
    assert outcomes(source, target) == {"live": "unchanged"}

    (tmp_path / "open").touch()
    assert ended(driver) == "completed"
    (again,) = copy_runs(source, target).runs
    assert again.outcome == "copied" and contents(target, "live") == contents(source, "live")
    assert facts(target, "live").status == "completed"


def test_the_copy_of_a_run_under_way_is_taken_up_from_there(
    source: Store, target: Store, tmp_path: Path
) -> None:
    driver = drive(source.url, tmp_path)
    copy_runs(source, target)
    (tmp_path / "open").touch()
    assert ended(driver) == "completed"

    outcome = blocking(str(tmp_path)).compile(target).resume("live")

    assert outcome.status == "completed" and outcome.state["log"] == ["first", "slow", "last"]
    assert ran(tmp_path) == ["first", "slow", "last", "slow", "last"], "what was finished is not repeated"
    assert outcomes(source, target) == {"live": "different"}, "both went on"


def test_a_run_whose_process_died_is_interrupted_in_the_copy(
    source: Store, target: Store, tmp_path: Path
) -> None:
    driver = drive(source.url, tmp_path)
    driver.send_signal(signal.SIGKILL)
    driver.communicate(timeout=60)
    (tmp_path / "open").touch()

    (copied,) = copy_runs(source, target).runs

    assert copied.outcome == "copied" and copied.note == ""
    assert facts(target, "live").status == "interrupted" and facts(source, "live").status == "running"
    assert blocking(str(tmp_path)).compile(target).resume("live").status == "completed"


def test_a_move_lets_a_run_pause_and_leaves_it_to_the_target(
    source: Store, target: Store, tmp_path: Path
) -> None:
    driver = drive(source.url, tmp_path)
    let_go_once_asked(source, tmp_path)

    (moved,) = copy_runs(source, target, move=True, wait=60).runs

    assert moved.outcome == "moved" and ended(driver) == "interrupted"
    assert source.runs() == [] and facts(target, "live").status == "interrupted"
    outcome = blocking(str(tmp_path)).compile(target).resume("live")
    assert outcome.status == "completed" and ran(tmp_path) == ["first", "slow", "last"]


def test_a_run_that_does_not_pause_in_time_stays_where_it_is(
    source: Store, target: Store, tmp_path: Path
) -> None:
    asking(source).invoke({}, run_id="r")
    driver = drive(source.url, tmp_path)

    report = copy_runs(source, target, move=True, wait=0.0)

    assert {run.run: str(run.outcome) for run in report.runs} == {"r": "moved", "live": "busy"}
    assert "did not pause within 0 s" in report.problems[0].note
    assert [info.run for info in source.runs()] == ["live"] and [info.run for info in target.runs()] == ["r"]
    let_go_once_asked(source, tmp_path)
    assert ended(driver) == "interrupted", "it was asked to pause"
    assert outcomes(source, target, move=True) == {"live": "moved"}


# Moves that are cut short, and runs of the fleet.


def queued(store: Store, run: str) -> None:
    """A run that waits for a worker, as it was submitted."""
    asking(store).submit({}, run_id=run, queue="mail", priority=7, when=dt.datetime.fromtimestamp(5, dt.UTC))


def dead(store: Store, run: str) -> None:
    """A run of a queue whose worker died."""
    asking(store).invoke({}, run_id=run)
    last = list(store.read(run))[-1]
    gone = dataclasses.replace(facts(store, run), status="running", queue="mail", owner="")
    assert store.commit([Append(run, last.seq, [], gone)]) == [None]


def paused(store: Store, run: str) -> None:
    """A run that waits for an answer, which is there."""
    asking(store).invoke({}, run_id=run)
    store.post(run, b"first")
    store.post(run, b"second")


def completed(store: Store, run: str) -> None:
    chain("a").compile(store).invoke({}, run_id=run)


def test_a_plain_copy_of_a_queued_run_is_not_run_twice(source: Store, target: Store) -> None:
    queued(source, "r")

    copy_runs(source, target)

    assert claimable(source, "r") and not claimable(target, "r")
    assert facts(target, "r") == dataclasses.replace(
        facts(source, "r"), status="interrupted", queue="", due_at=None, owner=""
    )
    assert outcomes(source, target, move=True) == {"r": "moved"}
    now = facts(target, "r")
    assert (now.status, now.queue, now.priority, now.due_at) == ("queued", "mail", 7, 5.0)
    assert asyncio.run(asking(target).aexecute("r")).status == "paused", "as a worker does it"


def test_a_run_whose_worker_died_is_queued_again_where_it_is_moved_to(source: Store, target: Store) -> None:
    dead(source, "r")

    assert outcomes(source, target, move=True) == {"r": "moved"}

    now = facts(target, "r")
    assert (now.status, now.queue, now.owner) == ("queued", "mail", "")
    assert asyncio.run(asking(target).aexecute("r")).status == "paused"
    assert asking(target).resume("r", answer="go").state["log"] == ["a", "go", "c"]


def test_a_run_that_its_worker_left_for_the_move_is_queued_again(
    source: Store, target: Store, tmp_path: Path
) -> None:
    worker = drive(source.url, tmp_path, queue="mail")
    assert facts(source, "live").queue == "mail"
    let_go_once_asked(source, tmp_path)

    assert outcomes(source, target, move=True, wait=60) == {"live": "moved"}

    now = facts(target, "live")
    assert ended(worker) == "interrupted" and (now.status, now.queue) == ("queued", "mail")
    assert asyncio.run(blocking(str(tmp_path)).compile(target).aexecute("live")).status == "completed"
    assert ran(tmp_path) == ["first", "slow", "last"]


@pytest.mark.parametrize("make", [queued, dead, paused, completed], ids=lambda make: str(make.__name__))
def test_a_move_that_is_cut_short_anywhere_is_finished_by_the_next(make: Any, tmp_path: Path) -> None:
    def stores(name: str) -> tuple[Store, Store]:
        return (
            open_store(f"sqlite:///{tmp_path / name}.db"),
            open_store(f"sqlite:///{tmp_path / name}-target.db"),
        )

    source, target = stores("whole")
    make(source, "r")
    wanted = contents(source, "r")
    copy_runs(source, target, move=True)
    end = dataclasses.replace(facts(target, "r"), key=b"", created_at=0, updated_at=0)

    for writes in range(20):
        source, target = stores(str(writes))
        make(source, "r")
        lives = Lives(writes)
        try:
            copy_runs(Mortal(source, lives), Mortal(target, lives), move=True)
        except Crash:
            here, there = list(source.read("r")), list(target.read("r"))
            assert len(here) >= len(wanted[0]) or len(there) >= len(wanted[0])
            assert not (claimable(source, "r") and claimable(target, "r"))
            copy_runs(source, target, move=True)
        assert source.runs() == []
        assert dataclasses.replace(facts(target, "r"), key=b"", created_at=0, updated_at=0) == end
        assert len(contents(target, "r")[0]) == len(wanted[0]) + (make is dead)
        assert contents(target, "r")[3] == wanted[3]
        if lives.left:
            assert writes > 2
            return
    raise AssertionError("a move never came to its end")


def test_what_a_copy_has_all_of_may_go_from_the_source(source: Store, target: Store) -> None:
    asking(source).invoke({}, run_id="r")
    copy_runs(source, target)
    asking(target).resume("r", answer="there")

    (moved,) = copy_runs(source, target, move=True).runs

    assert moved.outcome == "moved" and moved.note == "the copy has gone on" and source.runs() == []
    assert asking(target).get_state("r")["log"] == ["a", "there", "c"]


class Forgetful(Mortal):
    """A store that loses the last entry of what it was given."""

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        entries = list(self.inner.read(run, after, upto))
        return iter(entries[: len(entries) - (after == 0)])


def test_a_copy_that_cannot_be_read_back_is_not_trusted(source: Store, target: Store) -> None:
    asking(source).invoke({}, run_id="r")
    before = contents(source, "r")

    (left_out,) = copy_runs(source, Forgetful(target, Lives(99)), move=True).problems

    assert left_out.outcome == "refused" and "is not in file:" in left_out.note
    assert contents(source, "r") == before


class Restless(Mortal):
    """A store in which somebody answers, and the run asks again, each time that a run is read completely."""

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        if self.lives.left:
            self.lives.spend()
            app = asking(self.inner)
            app.cancel(run) if app.store.runs(run=run)[0].status == "paused" else app.resume(run)
        return self.inner.inbox(run, after)


def test_a_run_that_changes_while_it_is_copied_is_copied_as_it_is_then(source: Store, target: Store) -> None:
    asking(source).invoke({}, run_id="r")

    assert outcomes(Restless(source, Lives(2)), target) == {"r": "updated"}
    assert contents(target, "r") == contents(source, "r") and facts(target, "r") == facts(source, "r")

    (left_out,) = copy_runs(Restless(source, Lives(99)), open_store("memory://")).problems
    assert left_out.outcome == "busy" and "is being changed; copy it again" in left_out.note


def test_a_store_that_fails_ends_the_copying(source: Store, target: Store) -> None:
    asking(source).invoke({}, run_id="r")
    target.close()

    with pytest.raises(StoreError, match="is closed"):
        copy_runs(source, target)


def test_a_damaged_snapshot_is_only_a_cache(source: Store, target: Store) -> None:
    growing(target, 60).invoke({}, run_id="long")
    for kept in (Path(target.directory) / "long" / "snapshots").iterdir():  # type: ignore[attr-defined]
        kept.write_bytes(kept.read_bytes()[:-1] + b"?")

    assert outcomes(target, source) == {"long": "copied"}

    assert list(source.read("long")) == list(target.read("long")) and source.snapshot("long") is None


def test_a_closed_run_that_goes_elsewhere_is_copied_as_what_it_is(source: Store, target: Store) -> None:
    paused(source, "r")
    with pytest.raises(Crash):
        copy_runs(Mortal(source, Lives(1)), target, move=True)
    elsewhere = open_store("memory://")

    assert outcomes(source, elsewhere) == {"r": "copied"}

    assert facts(elsewhere, "r").status == "cancelled" and contents(elsewhere, "r") == contents(source, "r")


class Contested(Mortal):
    """A store in which a worker claims a run at the worst time: right before it is closed for good."""

    def commit(self, appends: Any) -> list[Conflict | None]:
        if self.lives.left == 9:
            self.lives.left -= 1
            asking(self.inner).resume("r", answer="a worker was faster")
        return self.inner.commit(appends)


def test_a_run_that_is_taken_up_while_it_is_moved_is_not_torn_in_two(source: Store, target: Store) -> None:
    asking(source).invoke({}, run_id="r")

    assert outcomes(Contested(source, Lives(9)), target, move=True) == {"r": "moved"}

    assert source.runs() == [] and facts(target, "r").status == "completed"
    assert asking(target).get_state("r")["log"] == ["a", "a worker was faster", "c"]


def test_a_move_that_is_not_finished_is_told_by_a_plain_copy(source: Store, target: Store) -> None:
    queued(source, "r")
    with pytest.raises(Crash):
        copy_runs(Mortal(source, Lives(1)), target, move=True)
    assert facts(source, "r").status == "cancelled"

    (told,) = copy_runs(source, target).runs

    assert told.outcome == "unchanged" and "copy it with --move" in told.note
    assert outcomes(source, target, move=True) == {"r": "moved"} and source.runs() == []
    assert facts(target, "r").status == "queued"


def test_runs_move_between_the_namespaces_of_one_place(postgres_url: str, tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/runs.db", f"file:{tmp_path}/runs", postgres_url):
        here, there = (open_store(url, namespace=name) for name in ("a", "b"))
        asking(here).invoke({}, run_id="r")

        assert outcomes(here, there) == {"r": "copied"}, url
        assert contents(here, "r") == contents(there, "r")
        assert outcomes(here, there, move=True) == {"r": "moved"}
        assert here.runs() == [] and asking(there).resume("r", answer="go").status == "completed"
        here.close()
        there.close()
