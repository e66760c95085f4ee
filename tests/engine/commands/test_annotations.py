"""Tags, notes and kept checkpoints: added to runs and checkpoints at any time, journalled, and applied."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    App,
    CheckpointNotFound,
    CheckpointPolicy,
    CommandRefused,
    Retention,
    RunStatus,
    StateGraph,
    open_store,
)
from holdfast.checkpoints import JournalCheckpointStore
from holdfast.cli.commands.checkpoints import carry_out, planned
from holdfast.engine.commands import control
from holdfast.engine.commands.handlers import tags_after
from holdfast.engine.retention import apply_retention, expire_runs, janitor
from holdfast.engine.submission import requeue
from holdfast.journal.journal import Journal
from holdfast.journal.records import RunAnnotated
from holdfast.journal.writer import Writer
from holdfast.state.codec import Codec
from holdfast.stores.base import Append, Snapshot, Store
from holdfast.stores.memory import MemoryStore
from holdfast.views.runs import run_view
from holdfast.views.timeline import timeline
from tests.cli.processes import CHAIN, call, write
from tests.graphs import chain


def finished(store: Store | str, **options: Any) -> App:
    app = chain("a", "b", "c").compile(store, **options)
    app.invoke({"n": 1}, run_id="r")
    return app


def test_a_completed_run_is_tagged_and_found_by_its_tags(store: Store) -> None:
    """S3.23: metadata can be added to a run at any time, on every store."""
    app = chain("a", "b", "c").compile(store)
    app.invoke({"n": 1}, run_id="r", config={"tags": ["nightly"]})
    app.invoke({"n": 1}, run_id="s")
    touched = app._settings.journal.info("r").updated_at

    assert app.tag("r", "good", "reviewed", by="ann") == RunStatus.COMPLETED
    assert app.tag("r", "best", remove=["good"]) == RunStatus.COMPLETED

    assert app._settings.journal.info("r").tags == ("nightly", "reviewed", "best")
    assert [info.run for info in app.runs(tag="best")] == ["r"] and not app.runs(tag="good")
    assert app._settings.journal.info("r").updated_at == touched  # To speak of a run is not to touch it.
    assert app.get_state("r")["n"] == app.get_state("s")["n"]


def test_notes_are_kept_with_who_wrote_them(store: Store) -> None:
    """R0.11: the journal is the audit of who said what, and when."""
    app = finished(store)
    app.note("r", "well done", by="ann")
    app.note("r@1", "here it\nbegan", by="bob")
    app.tag("r@1", "start")

    whole, first = run_view(app._settings.journal, "r").annotations
    assert [(note.by, note.text) for note in whole.notes] == [("ann", "well done")]
    assert first.checkpoint_id == app.checkpoints("r")[0].id and first.tags == ("start",)
    assert [(note.by, note.text) for note in first.notes] == [("bob", "here it\nbegan")]
    told = [moment.text for moment in timeline(app._settings.journal, "r") if moment.type == "run.annotate"]
    assert told[0] == "run by ann: note: well done" and len(told) == 3


def test_a_checkpoint_is_meant_by_its_id_too(store: Store) -> None:
    app = finished(store)
    point = app.checkpoints("r")[1]
    app.tag("r", "mid", checkpoint=point.id)
    app.tag(point.id, "again")

    (said,) = run_view(app._settings.journal, "r").annotations
    assert (said.seq, said.tags) == (point.seq, ("mid", "again"))


def test_what_cannot_be_meant_is_refused() -> None:
    app = finished("memory://")
    other = chain("a", "b", "c").compile(app.store)
    other.invoke({"n": 1}, run_id="s")
    with pytest.raises(CheckpointNotFound, match="of run 's'"):
        app.tag("r", "x", checkpoint=app.checkpoints("s")[0].id)
    with pytest.raises(CommandRefused, match="names a checkpoint already"):
        app.note("r@1", "x", checkpoint=app.checkpoints("r")[0].id)
    with pytest.raises(CommandRefused, match="nothing to say"):
        app.note("r", "  ")
    with pytest.raises(CommandRefused, match="without commas"):
        app.tag("r", "a,b")
    with pytest.raises(CommandRefused, match="either added or removed"):
        app.tag("r", "a", remove=["a"])
    with pytest.raises(CommandRefused, match="several words"):
        app.tag("r", remove="good")
    with pytest.raises(CommandRefused, match="a tag is printable text"):
        app.tag("r", ["good"])  # type: ignore[arg-type]
    with pytest.raises(CheckpointNotFound):
        app.keep("r@9")
    assert not run_view(app._settings.journal, "r").annotations


def test_bytes_that_are_no_text_are_taken_as_what_they_are() -> None:
    app = (
        StateGraph(dict)
        .add_node("ask", lambda state, ctx: {"a": ctx.ask("?")})
        .set_entry_point("ask")
        .compile()
    )
    app.invoke({}, run_id="r")
    app.note("r", "caf\udce9", by="b\udcff")
    with pytest.raises(CommandRefused, match="no step"):
        control.send(app._settings.journal, "r", control.skip("\udcff"))

    (said,) = run_view(app._settings.journal, "r").annotations
    assert [(note.by, note.text) for note in said.notes] == [("b\\udcff", "caf\\udce9")]


class Meanwhile(MemoryStore):
    """A store in which something happens between two reads of the same reader."""

    def __init__(self) -> None:
        super().__init__()
        self.happens: list[Callable[[], object]] = []

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        if self.happens:
            self.happens.pop()()
        return super().snapshot(run, upto)


@pytest.mark.parametrize("change", ["tag", "answer", "requeue", "resume"])
def test_tags_that_two_add_at_the_same_moment_are_both_kept(change: str) -> None:
    """S3.23: the other one comes after the facts were read, and before the journal is."""
    store = Meanwhile()
    graph = StateGraph(dict).add_node("ask", lambda state, ctx: {"a": ctx.ask("?")}).set_entry_point("ask")
    first = graph.compile(store)
    first.invoke({}, run_id="r")

    def theirs() -> None:
        journal, said = Journal(store), RunAnnotated(0, "", ("theirs",))
        writer = Writer(journal, journal.load(journal.info("r"), Codec()), Codec(), durable=True)
        writer.record(said)
        writer.set_info(tags_after(writer.info, said))
        writer.flush()

    doings: dict[str, Callable[[], object]] = {
        "tag": lambda: first.tag("r", "mine"),
        "answer": lambda: first.answer("r", "yes"),
        "requeue": lambda: requeue(Journal(store), "r"),
        "resume": lambda: first.resume("r", "yes"),
    }
    store.happens.append(theirs)

    doings[change]()

    assert not store.happens and "theirs" in first._settings.journal.info("r").tags


def test_whoever_drives_a_run_writes_it_down(store: Store) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def waits(state: Any) -> dict[str, Any]:
        begun.set()
        go_on.wait(60)
        return {}

    graph = StateGraph(dict)
    graph.add_node("a", waits)
    graph.add_node("b", lambda state: {})
    graph.set_entry_point("a")
    graph.add_edge("a", "b")
    app = graph.compile(store)
    driving = threading.Thread(target=app.invoke, args=({},), kwargs={"run_id": "r"})
    driving.start()
    assert begun.wait(60)
    assert app.tag("r", "live") == "asked"
    go_on.set()
    driving.join(60)

    info = app._settings.journal.info("r")
    assert (info.status, info.tags) == ("completed", ("live",))


def test_an_annotation_of_a_paused_run_of_the_fleet_leaves_it_paused(store: Store) -> None:
    graph = StateGraph(dict)
    graph.add_node("ask", lambda state, ctx: {"a": ctx.ask("well?")})
    graph.set_entry_point("ask")
    app = graph.compile(store)
    app.submit({}, run_id="r")
    import asyncio

    asyncio.run(app.aexecute("r"))
    assert app.note("r", "nobody knows") == RunStatus.PAUSED
    assert app._settings.journal.info("r").status == RunStatus.PAUSED


def test_what_came_too_late_for_a_completed_run_is_refused_with_the_next_annotation() -> None:
    app = finished("memory://")
    from holdfast.engine.commands.control import post
    from holdfast.engine.commands.inbox import EDIT, RunCommand

    post(app._settings.journal, "r", RunCommand(EDIT))
    app.tag("r", "done")
    view = run_view(app._settings.journal, "r")
    assert view.tags == ("done",) and view.refusals[0].reason == "the run is completed"
    with pytest.raises(Exception, match="completed"):
        control.send(app._settings.journal, "r", control.edit({"n": 2}))


def test_tags_of_runs_that_are_sealed_are_sealed_in_the_journal(tmp_path: Path) -> None:
    key = bytes(range(32)).hex()
    url = f"sqlite:///{tmp_path}/runs.db"
    app = chain("a", "b").compile(url, encryption_key=key)
    app.invoke({"n": 1}, run_id="r")
    app.note("r", "do-not-look")
    app.store.close()

    raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"do-not-look" not in raw


# Keeping.


def aged(store: Store, run: str, seconds: float) -> None:
    """Make a run's facts old."""
    import dataclasses

    info = store.runs(run=run)[0]
    head = list(store.read(run))[-1].seq
    old = dataclasses.replace(info, updated_at=time.time() - seconds)
    assert store.commit([Append(run, head, (), old)]) == [None]


def test_retention_by_count_never_drops_a_kept_checkpoint(store: Store) -> None:
    """Prune never removes what a kept checkpoint needs."""
    app = finished(store)
    points = app.checkpoints("r")
    state = app.get_state("r", checkpoint_id=points[1].id).to_dict()
    app.keep("r", points[1].id)
    for run in ("s", "t"):
        app.invoke({"n": 1}, run_id=run)
    journal = app._settings.journal

    apply_retention(journal, app.name, Retention(max_checkpoints=1, max_age=None, keep_successful=False))

    assert points[1].id in [point.id for point in app.checkpoints("r")]
    assert app.get_state("r", checkpoint_id=points[1].id).to_dict() == state
    assert points[0].id not in [point.id for point in app.checkpoints("r")]
    assert not store.runs(run="s")
    app.keep("r", points[1].id, keep=False)
    apply_retention(journal, app.name, Retention(max_checkpoints=1, max_age=None, keep_successful=False))
    assert not store.runs(run="r")


def test_a_run_with_a_kept_checkpoint_does_not_expire(store: Store) -> None:
    app = finished(store)
    app.invoke({"n": 1}, run_id="s")
    app.keep("r")
    aged(store, "r", 1000)
    aged(store, "s", 1000)

    assert expire_runs(store, dt.timedelta(seconds=10), keep_successful=False) == 1
    assert [info.run for info in store.runs()] == ["r"]


def test_pruning_by_hand_leaves_kept_checkpoints_alone(store: Store) -> None:
    app = finished(store)
    app.invoke({"n": 1}, run_id="s")
    kept = app.checkpoints("r")[1]
    app.keep(kept.id)
    journal = app._settings.journal

    carry_out(journal, planned(journal, keep=1))
    carry_out(journal, planned(journal, before=time.time() + 10))
    assert app.checkpoints("r")[0].id == kept.id

    JournalCheckpointStore(store).delete(kept.id)  # That is what was asked for.
    assert kept.id not in [point.id for point in app.checkpoints("r")]


def test_a_run_that_would_be_deleted_when_it_completes_stays_if_it_is_kept(tmp_path: Path) -> None:
    graph = StateGraph(dict)
    graph.add_node("a", lambda state: {"n": 1})
    graph.add_node("ask", lambda state, ctx: {"a": ctx.ask("well?")})
    graph.set_entry_point("a")
    graph.add_edge("a", "ask")
    app = graph.compile(f"sqlite:///{tmp_path}/runs.db", policy=CheckpointPolicy(preserve="none"))
    app.invoke({}, run_id="r")
    app.keep("r@1")
    app.resume("r", "yes")
    app.invoke({}, run_id="s")
    app.resume("s", "yes")

    assert janitor.wait() and [info.run for info in app.runs()] == ["r"]


# The command line.


def test_the_commands_tag_note_and_keep(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    (tmp_path / "open").touch()
    assert call(tmp_path, "run", "chain.yaml", "--quiet").returncode == 0

    done = call(tmp_path, "runs", "tag", "chain", "good", "odd", "--by", "ann")
    assert done.returncode == 0 and "tagged good, odd" in done.stdout, done.stderr
    answer = json.loads(call(tmp_path, "runs", "tag", "chain", "--remove", "odd", "--json").stdout)
    assert answer["applied"] and answer["tags"] == ["good"]
    assert call(tmp_path, "runs", "tag", "chain").stdout.strip() == "good"
    assert call(tmp_path, "runs", "note", "chain@second", "from here", "--by", "ann").returncode == 0
    assert call(tmp_path, "runs", "note", "chain", "-", given="two\nlines\n").returncode == 0
    told = call(tmp_path, "runs", "note", "chain").stdout
    assert "by ann\n  from here" in told and "  two\n  lines" in told
    assert call(tmp_path, "checkpoints", "keep", "chain@second").stdout.endswith("the checkpoint is kept\n")

    listed = json.loads(call(tmp_path, "runs", "--tag", "good", "--json").stdout)["runs"]
    assert len(listed) == 1 and listed[0]["tags"] == ["good"]
    shown = call(tmp_path, "show", "chain").stdout
    assert "tags" in shown and "good" in shown and "from here" in shown and "kept" in shown
    annotations = json.loads(call(tmp_path, "show", "chain", "--json").stdout)["annotations"]
    assert [said["keep"] for said in annotations] == [False, True]

    for words in (
        ("checkpoints", "keep", "chain@77"),
        ("runs", "note", "chain", ""),
        ("runs", "tag", "nobody-here", "x"),
    ):
        wrong = call(tmp_path, *words)
        assert wrong.returncode in (1, 2) and wrong.stderr and "Traceback" not in wrong.stderr


def test_a_store_that_was_opened_by_another_process_sees_the_tags(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    finished(url).tag("r", "seen")
    store = open_store(url)
    try:
        assert Journal(store).info("r").tags == ("seen",)
    finally:
        store.close()
