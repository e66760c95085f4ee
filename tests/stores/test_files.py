"""What is the file store's own: frames, torn tails, damage, the order of writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import CorruptJournal, StoreError
from holdfast.stores.base import Append, Conflict
from holdfast.stores.files import disk, run_folder
from holdfast.stores.files.store import FileStore
from tests.stores.journals import (
    add,
    create,
    entry,
    finish,
    hammered,
    info,
    killed_while_appending,
    seqs,
    snapshot,
    start,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def store(folder: Path) -> Iterator[FileStore]:
    store = FileStore(folder)
    yield store
    store.close()


def crash(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_everything_is_private_to_its_owner(folder: Path, store: FileStore) -> None:
    create(store, upto=2)
    store.commit([Append("r", 2, [], snapshots=[snapshot(2)])])
    store.post("r", b"hello")

    for path in [folder, *folder.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert {path.name for path in (folder / "r").iterdir()} == {
        *("journal", "run.json", "lock", "snapshots", "inbox")
    }


def test_the_facts_can_be_read_without_holdfast(folder: Path, store: FileStore) -> None:
    create(store, status="paused")

    facts = json.loads((folder / "r" / "run.json").read_text("utf-8"))

    assert facts["run"] == "r" and facts["status"] == "paused"
    assert bytes.fromhex(facts["key"]) == info("r").key


def test_an_append_torn_at_any_byte_is_as_if_it_never_was(folder: Path, store: FileStore) -> None:
    create(store, upto=2)
    journal = folder / "r" / "journal"
    kept = journal.stat().st_size
    store.commit([Append("r", 2, [entry(3), entry(4)], info("r", status="failed"))])
    whole = journal.read_bytes()

    for size in range(kept, len(whole)):
        journal.write_bytes(whole[:size])
        for each in (store, FileStore(folder)):
            assert seqs(each) == [1, 2]
            assert each.runs()[0].status == "running"
            assert each.checkpoints("r")[0].seq == 2
        assert store.commit([Append("r", 2, [entry(3, b"again")], durable=False)]) == [None]
        assert [each.body for each in FileStore(folder).read("r", 2)] == [b"again"]


def test_zeros_left_by_a_power_loss_are_a_torn_tail(folder: Path, store: FileStore) -> None:
    create(store, upto=2)
    with (folder / "r" / "journal").open("ab") as journal:
        journal.write(bytes(5000))

    assert seqs(FileStore(folder)) == [1, 2]
    assert add(store, "r", 2) is None
    assert seqs(FileStore(folder)) == [1, 2, 3]


def test_a_run_torn_in_its_first_append_does_not_exist_and_can_be_created(
    folder: Path, store: FileStore
) -> None:
    create(store)
    journal = folder / "r" / "journal"
    journal.write_bytes(journal.read_bytes()[:-1])

    fresh = FileStore(folder)
    assert fresh.runs() == [] and seqs(fresh) == [] and not fresh.delete("r")
    assert isinstance(add(fresh, "r", 1), Conflict)
    create(fresh, upto=2)
    assert seqs(fresh) == [1, 2]


def test_damage_at_any_byte_before_the_last_append_is_reported(folder: Path, store: FileStore) -> None:
    create(store)
    journal = folder / "r" / "journal"
    begin = journal.stat().st_size
    add(store, "r", 1)
    end = journal.stat().st_size
    add(store, "r", 2)
    whole = journal.read_bytes()

    for position in [*range(0, begin, 7), *range(begin, end)]:
        damaged = bytearray(whole)
        damaged[position] ^= 0x41
        journal.write_bytes(damaged)
        with pytest.raises(CorruptJournal, match=r"run 'r' is damaged at byte \d+") as caught:
            list(FileStore(folder).read("r"))
        assert caught.value.run == "r"

    journal.write_bytes(whole)
    assert seqs(FileStore(folder)) == [1, 2, 3]


def test_damage_inside_the_last_append_is_not_taken_for_a_torn_tail(folder: Path, store: FileStore) -> None:
    create(store, upto=3)
    journal = folder / "r" / "journal"
    whole = bytearray(journal.read_bytes())
    whole[-1] ^= 1
    journal.write_bytes(whole)

    with pytest.raises(CorruptJournal) as caught:
        list(FileStore(folder).read("r"))

    assert caught.value.seq == 3


def test_frames_that_are_missing_or_doubled_are_reported(folder: Path, store: FileStore) -> None:
    journal = folder / "r" / "journal"
    sizes = []
    create(store)
    for after in (1, 2, 3):
        sizes.append(journal.stat().st_size)
        add(store, "r", after)
    whole = journal.read_bytes()

    for damaged in (whole[: sizes[0]] + whole[sizes[1] :], whole[: sizes[1]] + whole[sizes[0] :]):
        journal.write_bytes(damaged)
        with pytest.raises(CorruptJournal):
            list(FileStore(folder).read("r"))


def test_nothing_is_appended_after_damage(folder: Path, store: FileStore) -> None:
    create(store, upto=3)
    journal = folder / "r" / "journal"
    damaged = b"\xff" + journal.read_bytes()[1:]
    journal.write_bytes(damaged)

    with pytest.raises(CorruptJournal):
        add(FileStore(folder), "r", 3)

    assert journal.read_bytes() == damaged


def test_one_damaged_run_does_not_hide_the_others(
    folder: Path, store: FileStore, caplog: pytest.LogCaptureFixture
) -> None:
    create(store, "bad")
    create(store, "good")
    (folder / "bad" / "journal").write_bytes(b"?" * 100)

    assert [each.run for each in FileStore(folder).runs()] == ["bad", "good"]
    (folder / "bad" / "run.json").write_text("?")
    assert [each.run for each in FileStore(folder).runs()] == ["good"]
    assert "'bad'" in caplog.text and "holdfast store fsck" in caplog.text
    with pytest.raises(CorruptJournal, match="'bad'"):
        FileStore(folder).runs(run="bad")


def test_a_run_without_readable_facts_is_listed_by_what_is_intact_of_its_journal(
    folder: Path, store: FileStore
) -> None:
    create(store, upto=3)
    intact = (folder / "r" / "journal").stat().st_size
    store.commit([Append("r", 3, [entry(4)], replace(info("r"), status="paused"))])
    add(store, "r", 4, 2)
    journal = bytearray((folder / "r" / "journal").read_bytes())
    journal[intact + 40] ^= 1
    (folder / "r" / "journal").write_bytes(journal)
    (folder / "r" / "run.json").write_bytes(b"")

    again = FileStore(folder)

    assert again.runs() == again.runs(run="r") == [info("r")]
    with pytest.raises(CorruptJournal, match="run 'r' is damaged"):
        list(again.read("r"))


def test_a_damaged_snapshot_or_message_is_reported(folder: Path, store: FileStore) -> None:
    create(store)
    store.commit([Append("r", 1, [], snapshots=[snapshot(1)])])
    store.post("r", b"hello")
    for path in ((folder / "r" / "snapshots" / "0000000001"), (folder / "r" / "inbox" / "0000000001")):
        whole = path.read_bytes()
        for damaged in (b"", whole[:-1], whole[:-1] + b"?"):
            path.write_bytes(damaged)
            with pytest.raises(CorruptJournal, match=path.parent.name):
                store.snapshot("r") if path.parent.name == "snapshots" else store.inbox("r")


def test_a_journal_of_another_format_is_refused(
    folder: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stores.files.frames.VERSION", 2)
    with pytest.raises(StoreError):
        monkeypatch.setattr(run_folder, "write_at", write_then_go_back(monkeypatch))
        create(store)
    with pytest.raises(StoreError, match="another version of Holdfast"):
        list(FileStore(folder).read("r"))


def write_then_go_back(monkeypatch: pytest.MonkeyPatch) -> object:
    def write(fd: int, data: bytes, position: int) -> None:
        disk.write_at(fd, data, position)
        monkeypatch.setattr("holdfast.stores.files.frames.VERSION", 1)

    return write


def test_a_crash_between_the_journal_and_the_facts_loses_neither(
    folder: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store)
    monkeypatch.setattr(run_folder, "write_whole", crash)
    monkeypatch.setattr(run_folder.RunFolder, "undo", lambda self: None)
    with pytest.raises(KeyboardInterrupt):
        store.commit([Append("r", 1, [entry(2)], info("r", status="failed"))])
    monkeypatch.undo()

    later = FileStore(folder)
    assert seqs(later) == [1, 2]
    assert later.runs()[0].status == "failed"
    assert json.loads((folder / "r" / "run.json").read_text())["status"] == "running"
    assert later.commit([Append("r", 2, [], info("r", status="paused"))]) == [None]
    assert json.loads((folder / "r" / "run.json").read_text())["status"] == "paused"


@pytest.mark.parametrize("crashes", ["write_at", "write_whole", "sync"])
def test_a_crash_while_a_pruned_run_is_copied_in_leaves_no_run_or_all_of_it(
    folder: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch, crashes: str
) -> None:
    """Its journal begins with a snapshot, which is there before it."""
    pruned = Append("r", 0, [entry(3), entry(4)], info("r"), snapshots=[snapshot(3)])
    monkeypatch.setattr(run_folder, crashes, crash)
    monkeypatch.setattr(run_folder.RunFolder, "undo", lambda self: None)
    with pytest.raises(KeyboardInterrupt):
        store.commit([pruned])
    monkeypatch.undo()

    later = FileStore(folder)
    assert (seqs(later), later.snapshot("r")) in [([], None), ([3, 4], snapshot(3))]
    if not later.runs():
        assert create(later, upto=4) is None
        assert later.snapshot("r") is None, "what another creation left is of no run"


def test_a_failing_disk_leaves_nothing_of_a_pruned_run_that_was_copied_in(
    folder: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_folder, "write_at", full)
    with pytest.raises(StoreError, match="No space left on device"):
        store.commit([Append("r", 0, [entry(3)], info("r"), snapshots=[snapshot(3)])])

    assert not store.runs() and not (folder / "r").exists()


def test_a_crash_while_pruning_leaves_the_run_as_it_was(
    folder: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store, upto=5)
    monkeypatch.setattr(run_folder, "replacing", crash)
    with pytest.raises(KeyboardInterrupt):
        store.prune("r", snapshot(3))
    monkeypatch.undo()

    later = FileStore(folder)
    assert seqs(later) == [1, 2, 3, 4, 5]
    assert later.snapshot("r") == snapshot(3)
    assert later.prune("r", snapshot(3)) == 2


def test_a_crash_before_old_snapshots_are_removed_does_not_bring_them_back(
    folder: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store, upto=5)
    store.commit([Append("r", 5, [], snapshots=[snapshot(2)])])
    unlink = Path.unlink
    monkeypatch.setattr(
        Path,
        "unlink",
        lambda path, **how: crash() if path.parent.name == "snapshots" else unlink(path, **how),
    )
    with pytest.raises(KeyboardInterrupt):
        store.prune("r", snapshot(4))
    monkeypatch.undo()

    later = FileStore(folder)
    assert seqs(later) == [4, 5]
    assert later.snapshot("r", 3) is None and later.snapshot("r") == snapshot(4)


def test_a_failing_disk_leaves_nothing_of_the_whole_batch(
    folder: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store, "a")
    create(store, "b")
    synced = []

    def fail_second(fd: int) -> None:
        synced.append(fd)
        if len(synced) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_folder, "sync", fail_second)
    with pytest.raises(StoreError, match=r"No space left on device; free some space"):
        store.commit(
            [
                Append("a", 1, [entry(2)], info("a", status="failed"), [snapshot(2)]),
                Append("b", 1, [entry(2)]),
                Append("c", 0, [entry(1)], info("c")),
            ]
        )
    monkeypatch.undo()

    for each in (store, FileStore(folder)):
        assert [each.run for each in each.runs()] == ["a", "b"]
        assert seqs(each, "a") == seqs(each, "b") == [1]
        assert each.snapshot("a") is None
        assert {each.status for each in each.runs()} == {"running"}
    assert json.loads((folder / "a" / "run.json").read_text())["status"] == "running"
    assert add(store, "a", 1) is add(store, "b", 1) is None
    create(store, "c")


def test_a_full_disk_is_reported_and_the_store_stays_usable(folder: Path, store: FileStore) -> None:
    program = """
import resource, signal
from holdfast.errors import StoreError
create(store, "r")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    store.commit([Append("r", 1, [entry(2, b"x" * 100_000)])])
except StoreError as error:
    print("free some space" in str(error))
assert add(store, "r", 1) is None
"""
    assert finish(start(program, store.url)) == "True\n"
    assert [each.body for each in store.read("r")] == [b"body 1", b"body 2"]


def test_durable_appends_are_synced_and_others_are_not(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store)
    synced: list[int] = []
    monkeypatch.setattr(run_folder, "sync", synced.append)

    store.commit([Append("r", 1, [entry(2)], durable=False)])
    assert len(synced) == 0
    store.commit([Append("r", 2, [entry(3)], durable=True)])
    assert len(synced) == 1


def test_two_processes_lose_and_double_nothing(store: FileStore) -> None:
    hammered(store)


def test_every_acknowledged_entry_survives_kill_9(folder: Path) -> None:
    acknowledged = killed_while_appending(f"file://{folder}")

    store = FileStore(folder)
    assert acknowledged >= 60
    assert len(seqs(store)) >= acknowledged
    assert seqs(store) == list(range(1, len(seqs(store)) + 1))
    assert add(store, "r", len(seqs(store))) is None


def test_a_run_deleted_and_created_by_others_is_never_mixed_with_the_old(folder: Path) -> None:
    program = """
for round in range(40):
    [conflict] = store.commit([Append("r", 0, [entry(1)], info("r"), durable=False)])
    for after in range(1, 5):
        add(store, "r", after)
    read = seqs(store)
    assert read == list(range(1, len(read) + 1)), read
    store.delete("r")
"""
    for process in [start(program, f"file://{folder}") for _ in range(3)]:
        finish(process)

    assert [path.name for path in folder.iterdir() if path.name.startswith(".trash")] == []


def test_a_folder_under_another_name_is_not_taken_for_that_run(folder: Path, store: FileStore) -> None:
    create(store, "a")
    (folder / "a").rename(folder / "b")

    with pytest.raises(CorruptJournal):
        list(FileStore(folder).read("b"))


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match="choose a folder"):
            FileStore(path)


def test_a_run_is_found_by_its_key_even_where_the_index_is_missing(folder: Path, store: FileStore) -> None:
    create(store, "a")
    create(store, "b")
    for index in (folder / ".keys").iterdir():
        index.unlink()

    assert [each.run for each in store.runs(key=info("b").key)] == ["b"]
    assert store.delete("b") and store.runs(key=info("b").key) == []


def test_what_a_killed_delete_left_is_swept_away(folder: Path, store: FileStore) -> None:
    create(store)
    (folder / "r").rename(folder / ".trash-1")

    assert FileStore(folder).runs() == []
    assert not (folder / ".trash-1").exists()


def test_facts_of_a_pruned_run_stay_the_newest(folder: Path, store: FileStore) -> None:
    create(store, upto=2)
    store.commit([Append("r", 2, [entry(3)], info("r", status="paused"))])
    add(store, "r", 3)
    store.commit([Append("r", 4, [entry(5)], info("r", status="failed"))])

    store.prune("r", replace(snapshot(4)))

    assert FileStore(folder).runs()[0].status == "failed"
    store.prune("r", snapshot(5))
    assert FileStore(folder).runs()[0].status == "failed"
