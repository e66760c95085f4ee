"""Runs carried in capsules from store to store: the same bytes everywhere, nothing lost, nothing overwritten."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import os
import secrets
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CapsuleInvalid,
    CodecError,
    CorruptJournal,
    HoldfastError,
    RunConflict,
    RunExists,
    RunNotFound,
    capsules,
    open_store,
)
from holdfast.capsules import export_run, inspect_capsule
from holdfast.engine import owner as driver
from holdfast.engine.commands.control import post
from holdfast.engine.commands.inbox import RunCommand, write_message
from holdfast.engine.owner import active_runs
from holdfast.engine.transfer import copy_runs
from holdfast.journal.copying import COPIED, prune_run
from holdfast.journal.journal import Journal
from holdfast.journal.sealing import Seal
from holdfast.state.codec import Codec
from holdfast.stores.base import Append, RunInfo, Store
from holdfast.views.runs import run_view
from tests.capsules.samples import exported, forged
from tests.stores.copied_runs import Lives, Mortal, asking, blocking, contents, drive, growing, ran
from tests.stores.test_copying import facts, four_runs

import_run = functools.partial(capsules.import_run, trust=True)
"""Imports one's own runs; those of strangers are in `test_strangers.py`."""


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path / 'source.db'}")
    yield opened
    opened.close()


def test_a_run_comes_out_as_it_went_in_whatever_the_store(
    source: Store, store: Store, tmp_path: Path
) -> None:
    """S1.17: export and import across machines; the export of the import is the same byte for byte."""
    four_runs(source)
    for run in ("good", "bad", "asked", "long"):
        path = exported(source, run, tmp_path)
        entries, _, marks, messages = contents(source, run)

        imported = import_run(store, path)

        assert (imported.run, imported.outcome, imported.entries) == (run, "copied", len(entries))
        assert contents(store, run) == (entries, [], marks, messages)
        origin = facts(store, run).origin
        assert facts(store, run) == dataclasses.replace(facts(source, run), owner="", origin=origin)
        assert exported(store, run, tmp_path, "again").read_bytes() == path.read_bytes()
        assert import_run(store, path).outcome == "unchanged"


def test_an_imported_run_is_answered_and_goes_on(source: Store, store: Store, tmp_path: Path) -> None:
    asking(source).invoke({"n": 1}, run_id="r")

    import_run(store, exported(source, "r", tmp_path))

    outcome = asking(store).resume("r", answer="go")
    assert outcome.status == "completed" and outcome.state["log"] == ["a", "go", "c"]


def test_a_message_that_nobody_took_in_travels(source: Store, store: Store, tmp_path: Path) -> None:
    asking(source).invoke({"n": 1}, run_id="r")
    post(Journal(source), "r", RunCommand("answer", pause="b#1:q", value=Codec().encode("go")))
    path = exported(source, "r", tmp_path)

    import_run(store, path)
    import_run(store, path, run_id="other")

    assert inspect_capsule(path).messages == 1
    for run in ("r", "other"):
        assert asking(store).resume(run).state["log"] == ["a", "go", "c"]


def test_a_later_capsule_brings_a_run_up_to_date(source: Store, store: Store, tmp_path: Path) -> None:
    asking(source).invoke({"n": 1}, run_id="r")
    early = exported(source, "r", tmp_path, "early")
    import_run(store, early)
    asking(source).resume("r", answer="go")
    late = exported(source, "r", tmp_path, "late")

    imported = import_run(store, late)

    assert imported.outcome == "updated" and 0 < imported.entries < len(list(source.read("r")))
    assert contents(store, "r")[0] == list(source.read("r"))
    assert import_run(store, early).outcome == "unchanged"
    assert facts(store, "r").status == "completed"


def test_another_history_is_never_written_over(source: Store, store: Store, tmp_path: Path) -> None:
    asking(source).invoke({"n": 1}, run_id="r")
    path = exported(source, "r", tmp_path)
    import_run(store, path)
    asking(source).resume("r", answer="here")
    asking(store).resume("r", answer="there")
    before = contents(store, "r")
    path = exported(source, "r", tmp_path)

    with pytest.raises(RunExists, match="another history; import this one under another id with --as"):
        import_run(store, path)

    assert contents(store, "r") == before
    assert import_run(store, path, run_id="r2").outcome == "copied"
    assert import_run(store, path, run_id="r2").outcome == "unchanged"
    assert asking(store).get_state("r2")["log"] == ["a", "here", "c"]
    assert asking(store).get_state("r")["log"] == ["a", "there", "c"]


def test_a_run_under_another_id_is_a_run_of_its_own(source: Store, store: Store, tmp_path: Path) -> None:
    asking(source).invoke({"n": 1}, run_id="r")
    path = exported(source, "r", tmp_path)
    import_run(store, path)

    import_run(store, path, run_id="other")

    assert facts(store, "other").key != facts(store, "r").key
    ids = {checkpoint.id for run in ("r", "other") for checkpoint in asking(store).checkpoints(run)}
    assert len(ids) == 2 * len(asking(store).checkpoints("r"))
    assert asking(store).resume("other", answer="go").status == "completed"
    assert facts(store, "r").status == "paused"
    again = exported(store, "other", tmp_path, "again")
    assert inspect_capsule(again).run_id == "other"


def test_a_run_that_the_store_has_under_another_id_is_told(source: Store, tmp_path: Path) -> None:
    asking(source).invoke({"n": 1}, run_id="r")
    path = exported(source, "r", tmp_path)
    target = open_store("memory://")
    info = facts(source, "r")
    (entry, *_) = source.read("r")
    target.commit([Append("x", 0, [entry], dataclasses.replace(info, run="x"))])

    with pytest.raises(RunExists, match="under the id 'x'"):
        import_run(target, path)


def test_a_pruned_run_travels_with_the_snapshot_at_its_horizon(
    source: Store, store: Store, tmp_path: Path
) -> None:
    growing(source, 60).invoke({}, run_id="r")
    horizon = source.checkpoints("r")[20].seq
    prune_run(Journal(source), facts(source, "r"), horizon)
    path = exported(source, "r", tmp_path)

    import_run(store, path)

    info = inspect_capsule(path)
    assert info.pruned == horizon - 1 and info.is_read and info.steps[-1].status == "completed"
    assert growing(store, 60).get_state("r") == growing(source, 60).get_state("r")
    assert exported(store, "r", tmp_path, "again").read_bytes() == path.read_bytes()
    import_run(store, path, run_id="other")
    assert growing(store, 60).get_state("other") == growing(source, 60).get_state("r")


def test_a_fork_travels_without_its_parent(source: Store, store: Store, tmp_path: Path) -> None:
    app = asking(source)
    app.invoke({"n": 1}, run_id="r")
    app.resume("r", answer="first")
    early = next(found for found in app.checkpoints("r") if found.next == ("b",))
    fork = app.resume(early.id)
    app.resume(fork.run_id, answer="second")
    path = exported(source, fork.run_id, tmp_path)

    import_run(store, path)

    assert not store.runs(run="r")
    assert asking(store).get_state(fork.run_id)["log"] == ["a", "second", "c"]
    assert inspect_capsule(path).parent == "r"
    assert exported(store, fork.run_id, tmp_path, "again").read_bytes() == path.read_bytes()
    import_run(store, path, run_id="other")
    assert asking(store).get_state("other")["log"] == ["a", "second", "c"]


def test_a_run_whose_process_was_killed_goes_on_from_a_capsule(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.17: what is finished is not run again, on whatever machine the run goes on."""
    url = f"sqlite:///{tmp_path / 'laptop.db'}"
    process = drive(url, tmp_path)
    process.kill()
    process.communicate()
    source = open_store(url)
    assert facts(source, "live").status == "running"
    path = exported(source, "live", tmp_path)

    import_run(store, path)

    assert facts(store, "live").status == "interrupted"
    assert exported(store, "live", tmp_path, "again").read_bytes() == path.read_bytes()
    assert import_run(store, path).outcome == "unchanged"
    (tmp_path / "open").touch()
    monkeypatch.setattr(driver, "_host", lambda: {"host": "elsewhere", "boot": "", "space": ""})
    outcome = blocking(str(tmp_path)).compile(store).resume("live")
    assert outcome.state["log"] == ["first", "slow", "last"]
    assert ran(tmp_path) == ["first", "slow", "slow", "last"]
    source.close()


def test_a_driven_run_is_exported_as_far_as_it_is_and_that_is_said(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'laptop.db'}"
    process = drive(url, tmp_path)
    try:
        source, target = open_store(url), open_store("memory://")
        path = tmp_path / "early"
        told = export_run(source, "live", path)
        import_run(target, path)
        assert len(told.notes) == 1 and f"process {process.pid}" in told.notes[0]
        assert inspect_capsule(path).under_way
    finally:
        (tmp_path / "open").touch()
        out, _ = process.communicate(timeout=60)
    assert out.strip() == "completed"
    late = exported(source, "live", tmp_path, "late")

    assert import_run(target, late).outcome == "copied", "the copy of a beginning gives way to the whole run"
    assert contents(target, "live")[0] == list(source.read("live"))
    assert exported(target, "live", tmp_path, "again").read_bytes() == late.read_bytes()
    source.close()


def test_a_run_that_is_driven_where_it_is_imported_is_left_alone(source: Store, tmp_path: Path) -> None:
    target = open_store("memory://")
    asking(source).invoke({"n": 1}, run_id="r")
    import_run(target, exported(source, "r", tmp_path))
    asking(source).resume("r", answer="go")
    late = exported(source, "r", tmp_path, "late")
    active_runs.enter(target, "r", object())
    try:
        with pytest.raises(RunConflict, match="is being executed"):
            import_run(target, late)
    finally:
        active_runs.leave(target, "r")
    assert import_run(target, late).outcome == "updated"


def test_a_copy_of_a_run_under_way_is_known_as_what_the_capsule_has(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'laptop.db'}"
    process = drive(url, tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    source, target = open_store(url), open_store("memory://")
    path = exported(source, "live", tmp_path)

    copy_runs(source, target)

    assert list(target.read("live"))[-1].body == COPIED
    assert import_run(target, path).outcome == "unchanged"
    assert import_run(source, exported(target, "live", tmp_path, "copied")).outcome == "unchanged"
    source.close()


def test_an_import_that_was_cut_off_is_finished_by_the_next(source: Store, tmp_path: Path) -> None:
    growing(source, 20).invoke({}, run_id="r")
    path, target = exported(source, "r", tmp_path), open_store("memory://")
    entries = list(source.read("r"))
    beginning = dataclasses.replace(facts(source, "r"), status="interrupted", owner="")
    target.commit([Append("r", 0, entries[:7], beginning)])

    assert import_run(target, path).outcome == "updated"

    assert list(target.read("r")) == entries and facts(target, "r").status == "completed"


@pytest.fixture
def key() -> str:
    return secrets.token_bytes(32).hex()


def test_what_a_store_s_key_sealed_stays_sealed(
    source: Store, store: Store, tmp_path: Path, key: str
) -> None:
    asking(source, encryption_key=key).invoke({"n": 1, "log": ["marmalade"]}, run_id="r")
    told = export_run(source, "r", path := tmp_path / "sealed")

    imported = import_run(store, path)

    assert "HOLDFAST_KEY" in told.notes[0] and "HOLDFAST_KEY" in imported.notes[0]
    assert b"marmalade" not in path.read_bytes() and b"fingerprint" not in path.read_bytes()
    info = inspect_capsule(path)
    assert info.sealed and not info.is_read and info.workflow == "asking" and info.checkpoints == 2
    assert inspect_capsule(path, seal=Seal.from_text(key)).steps[0].name == "a"
    assert not inspect_capsule(path, seal=Seal.from_text(secrets.token_hex(32))).is_read
    assert exported(store, "r", tmp_path, "again").read_bytes() == path.read_bytes()
    assert asking(store, encryption_key=key).resume("r", answer="go").status == "completed"


def test_a_sealed_run_gets_another_id_only_with_its_key(source: Store, tmp_path: Path, key: str) -> None:
    asking(source, encryption_key=key).invoke({"n": 1}, run_id="r")
    wish = RunCommand("answer", pause="b#1:q", value=Codec().encode("go"))
    post(Journal(source, Seal.from_text(key)), "r", wish)
    path, target = exported(source, "r", tmp_path), open_store("memory://")

    with pytest.raises(CodecError, match="set HOLDFAST_KEY"):
        import_run(target, path, run_id="other")
    assert not target.runs()

    import_run(target, path, run_id="other", seal=Seal.from_text(key))
    assert asking(target, encryption_key=key).resume("other").state["log"] == ["a", "go", "c"]


def test_a_sealed_fork_needs_the_key_to_leave_its_parent(source: Store, tmp_path: Path, key: str) -> None:
    app = asking(source, encryption_key=key)
    app.invoke({"n": 1}, run_id="r")
    app.resume("r", answer="first")
    fork = app.resume(next(found for found in app.checkpoints("r") if found.next == ("b",)).id).run_id

    with pytest.raises(CodecError, match="HOLDFAST_KEY"):
        export_run(source, fork, tmp_path / "fork")
    assert list(tmp_path.glob("*fork*")) == []

    target = open_store("memory://")
    import_run(target, exported(source, fork, tmp_path, "fork", seal=Seal.from_text(key)))
    assert asking(target, encryption_key=key).resume(fork, answer="x").state["log"] == ["a", "x", "c"]


def test_a_sealed_and_pruned_run_travels_without_the_key(source: Store, tmp_path: Path, key: str) -> None:
    asking(source, encryption_key=key).invoke({"n": 1}, run_id="r")
    prune_run(Journal(source, Seal.from_text(key)), facts(source, "r"), source.checkpoints("r")[0].seq)
    path, target = exported(source, "r", tmp_path), open_store("memory://")

    import_run(target, path)

    assert inspect_capsule(path).pruned == 2 and contents(target, "r") == contents(source, "r")
    assert asking(target, encryption_key=key).resume("r", answer="go").state["log"] == ["a", "go", "c"]


class Stirred(Mortal):
    """A store in which somebody does something to a run, once, right after its facts were read."""

    def __init__(self, inner: Store, deed: Callable[[], object]) -> None:
        super().__init__(inner, Lives(-1))
        self.deed: Callable[[], object] | None = deed

    def runs(self, **filters: Any) -> list[RunInfo]:
        found, deed, self.deed = self.inner.runs(**filters), self.deed, None
        if deed is not None:
            deed()
        return found


def test_a_run_that_changes_while_it_is_exported_is_read_again(source: Store, tmp_path: Path) -> None:
    asking(source).invoke({"n": 1}, run_id="r")

    told = export_run(Stirred(source, lambda: asking(source).resume("r", answer="go")), "r", tmp_path / "out")

    assert told.status == "completed" and told.entries == len(list(source.read("r")))
    assert exported(source, "r", tmp_path, "again").read_bytes() == (tmp_path / "out").read_bytes()
    with pytest.raises(RunNotFound):
        export_run(Stirred(source, lambda: asking(source).delete("r")), "r", tmp_path / "gone")


def test_a_damaged_run_is_not_exported(source: Store, tmp_path: Path) -> None:
    asking(source).invoke({"n": 1}, run_id="r")
    target = open_store("memory://")
    entries = list(source.read("r"))
    broken = [*entries[:1], entries[1]._replace(body=entries[1].body + b"x"), *entries[2:]]
    target.commit([Append("r", 0, broken, facts(source, "r"))])

    with pytest.raises(CorruptJournal, match="entry 2 is damaged"):
        export_run(target, "r", tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_an_unknown_run_and_a_file_that_is_there_are_refused(source: Store, tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="no run 'r'"):
        export_run(source, "r", tmp_path / "out")
    asking(source).invoke({"n": 1}, run_id="r")
    (tmp_path / "out").write_text("mine")

    with pytest.raises(HoldfastError, match="is there already"):
        export_run(source, "r", tmp_path / "out")
    with pytest.raises(HoldfastError, match="cannot be written"):
        export_run(source, "r", tmp_path / "nowhere" / "out")

    assert (tmp_path / "out").read_text() == "mine" and not list(tmp_path.glob("*.tmp"))


def test_a_capsule_is_read_as_a_store_and_never_written(source: Store, tmp_path: Path) -> None:
    from holdfast.capsules.capsule import Capsule
    from holdfast.errors import StoreError

    growing(source, 5).invoke({}, run_id="r")
    with Capsule(exported(source, "r", tmp_path)) as capsule:
        info = facts(capsule, "r")
        assert isinstance(capsule, Store) and capsule.runs(workflow="growing", status=["completed"]) == [info]
        for wrong in ({"run": "x"}, {"key": b"x"}, {"prefix": "x"}, {"before": 0.0}, {"parent": b"x"}):
            assert capsule.runs(**wrong) == []
        assert capsule.checkpoints("r", before=3, limit=1) == source.checkpoints("r", before=3, limit=1)
        assert [
            capsule.checkpoints("x"),
            list(capsule.read("x")),
            capsule.inbox("x"),
            capsule.snapshot("x"),
        ] == [
            [],
            [],
            [],
            None,
        ]
        assert list(capsule.read("r", 1, 3)) == list(source.read("r", 1, 3))
        refused = (
            lambda: capsule.commit([]),
            lambda: capsule.delete("r"),
            lambda: capsule.post("r", b""),
            lambda: capsule.prune("r", capsule.snapshot("r")),  # type: ignore[arg-type]
        )
        for call in refused:
            with pytest.raises(StoreError, match="can only be read"):
                call()


def test_a_capsule_tells_nothing_of_when_and_where_it_was_made(source: Store, tmp_path: Path) -> None:
    asking(source).invoke({"n": 1}, run_id="r")

    first = exported(source, "r", tmp_path, "first").read_bytes()

    assert exported(source, "r", tmp_path, "second").read_bytes() == first
    assert str(tmp_path).encode() not in first


def test_queue_and_driver_stay_behind(source: Store, tmp_path: Path) -> None:
    asking(source).submit({"n": 1}, run_id="r", queue="fast", when=dt.timedelta(hours=1))
    target = open_store("memory://")

    import_run(target, exported(source, "r", tmp_path))

    (info,) = target.runs(run="r")
    assert (info.status, info.queue, info.due_at, info.owner) == ("interrupted", "", None, "")
    assert asking(target).resume("r").status == "paused"


def test_ids_that_terminals_would_obey_are_not_taken(source: Store, tmp_path: Path) -> None:
    asking(source).invoke({"n": 1}, run_id="r")
    bodies = [entry.body for entry in source.read("r")]
    target = open_store("memory://")
    for number, odd in enumerate(("run\x1b[2J", " ", "a\u202eb")):
        path = forged(tmp_path / "odd", bodies, run=odd)
        with pytest.raises(CapsuleInvalid, match="choose another with --as"):
            import_run(target, path)
        assert import_run(target, path, run_id=f"calm{number}").run == f"calm{number}"
    with pytest.raises(CapsuleInvalid, match="not taken as a run id"):
        import_run(target, path, run_id="\x07")
    assert len(target.runs()) == 3


def test_tags_that_were_removed_do_not_come_back(source: Store, store: Store, tmp_path: Path) -> None:
    app = asking(source)
    app.invoke({"n": 1}, run_id="r", config={"tags": ["draft"]})
    import_run(store, exported(source, "r", tmp_path))
    app.tag("r", "final", remove=["draft"])
    path = exported(source, "r", tmp_path)

    assert import_run(store, path).outcome == "updated"

    assert facts(store, "r").tags == facts(source, "r").tags == ("final",)
    assert exported(store, "r", tmp_path, "again").read_bytes() == path.read_bytes()


def annotation(text: str) -> bytes:
    said = {"at": 0, "text": text, "add": [], "remove": [], "keep": None}
    return write_message(RunCommand("annotate", annotation=said))


def notes(store: Store) -> list[str]:
    return [note.text for said in run_view(Journal(store), "r").annotations for note in said.notes]


@pytest.mark.parametrize("way", ["capsule", "copy"])
def test_messages_that_wait_in_the_target_are_kept(
    source: Store, store: Store, tmp_path: Path, way: str
) -> None:
    """Both sides got a message after they diverged: journals name messages by number, and none may be confused."""

    def carry() -> None:
        if way == "capsule":
            import_run(store, exported(source, "r", tmp_path))
        else:
            assert not copy_runs(source, store).problems

    app = asking(source)
    app.invoke({"n": 1}, run_id="r")
    carry()
    store.post("r", annotation("of the target"))
    app.note("r", "of the source")
    source.post("r", annotation("waits in the source"))
    carry()
    carry()

    assert [message.body for message in store.inbox("r")][1:] == [
        annotation("waits in the source"),
        annotation("of the target"),
    ]
    app.note("r", "the last")
    carry()
    assert len(store.inbox("r")) == 4
    asking(store).note("r", "here")
    assert notes(store) == ["of the source", "waits in the source", "the last", "of the target", "here"]


def test_an_export_writes_into_a_pipe_and_through_a_link(source: Store, tmp_path: Path) -> None:
    """What is no file is not replaced by one."""
    asking(source).invoke({"n": 1}, run_id="r")
    whole = exported(source, "r", tmp_path).read_bytes()
    pipe, link, real = tmp_path / "pipe", tmp_path / "link", tmp_path / "inner" / "real"
    real.parent.mkdir()
    real.write_bytes(b"old")
    link.symlink_to(real)
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()

    export_run(source, "r", pipe, overwrite=True)
    export_run(source, "r", link, overwrite=True)

    reader.join(60)
    assert found == [whole] and stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink() and real.read_bytes() == whole
    with pytest.raises(HoldfastError, match="cannot be written"):
        export_run(source, "r", real.parent, overwrite=True)
    assert sorted(path.name for path in tmp_path.glob("**/*.tmp")) == []


def test_a_pipe_is_no_capsule(tmp_path: Path) -> None:
    """It is not opened: that would wait until somebody writes into it."""
    os.mkfifo(tmp_path / "pipe")
    for take in (inspect_capsule, lambda path: import_run(open_store("memory://"), path)):
        with pytest.raises(CapsuleInvalid, match="not a file"):
            take(tmp_path / "pipe")


def test_a_passphrase_is_not_given_in_vain(source: Store, tmp_path: Path) -> None:
    """Whoever gives one takes the capsule for encrypted; somebody may have put another in its place."""
    asking(source).invoke({"n": 1}, run_id="r")
    path = exported(source, "r", tmp_path)
    with pytest.raises(CapsuleInvalid, match="it is not encrypted"):
        inspect_capsule(path, passphrase="secret")
    with pytest.raises(CapsuleInvalid, match="it is not encrypted"):
        import_run(open_store("memory://"), path, passphrase="secret")
