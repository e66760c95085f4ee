"""The landmarks of a file store: opening a long journal again need not read all of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from holdfast import CorruptJournal, open_store
from holdfast.stores.base import Append, Snapshot, Store
from holdfast.stores.files import frames
from holdfast.stores.files.run_folder import INDEX
from tests.stores.journals import create, entry, info, seqs

LENGTH = 600


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that was appended to often."""
    store = open_store(f"file://{tmp_path / 'runs'}")
    create(store, "r")
    go_on(store, 1, LENGTH)
    store.close()
    return tmp_path / "runs" / "r"


def go_on(store: Store, head: int, upto: int) -> None:
    for seq in range(head + 1, upto + 1):
        facts = info("r", status=f"at {seq}") if seq % 50 == 0 else None
        assert store.commit([Append("r", seq - 1, [entry(seq)], facts, durable=False)]) == [None]


def scanned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[int], str]:
    """Return how many frames a reopened store reads to list the run, and what it then reads."""
    looked, scan = 0, frames.scan

    def counting(*args: object) -> object:
        nonlocal looked
        for frame in scan(*args):  # type: ignore[arg-type]
            looked += 1
            yield frame

    with monkeypatch.context() as patch:
        patch.setattr(frames, "scan", counting)
        store = open_store(f"file://{folder.parent}")
        (listed,) = store.runs()
        seen = looked
    found = seqs(store, "r")
    store.close()
    return seen, found, listed.status


def test_a_long_journal_is_not_read_whole_when_it_is_opened_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, found, status = scanned(folder, monkeypatch)

    assert looked < LENGTH / 4 and found == list(range(1, LENGTH + 1)) and status == f"at {LENGTH}"


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(b"\0" * 300),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"first":1', b'"first":2')),
    ],
    ids=["gone", "empty", "cut", "zeros", "changed"],
)
def test_without_whole_index_the_journal_is_read(
    folder: Path, harm: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    harm(folder / INDEX)  # type: ignore[operator]

    looked, found, status = scanned(folder, monkeypatch)

    assert looked >= LENGTH and found == list(range(1, LENGTH + 1)) and status == f"at {LENGTH}"


def test_index_of_another_time_are_not_believed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal was restored to an earlier time, and went another way."""
    journal = folder / "journal"
    os.truncate(journal, journal.stat().st_size * 2 // 5)
    store = open_store(f"file://{folder.parent}")
    head = seqs(store, "r")[-1]
    go_on(store, head, head + 3)
    store.close()

    _, found, status = scanned(folder, monkeypatch)

    assert found == list(range(1, head + 4)) and status == f"at {(head + 3) // 50 * 50}"


def test_a_pruned_journal_is_not_taken_for_the_old_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"file://{folder.parent}")
    horizon = next(iter(store.read("r", 299)))
    store.prune("r", Snapshot(horizon.seq, horizon.at, horizon.chain, b"state"))
    store.close()

    _, found, status = scanned(folder, monkeypatch)

    assert found == list(range(300, LENGTH + 1)) and status == f"at {LENGTH}"


def test_a_copied_store_keeps_its_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = folder.parent.parent / "copy"
    shutil.copytree(folder.parent, copy)

    looked, found, _ = scanned(copy / "r", monkeypatch)

    assert looked < LENGTH / 4 and found[-1] == LENGTH


def test_the_folder_of_another_run_is_not_taken_for_its_own(folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "other")
    store = open_store(f"file://{folder.parent}")

    with pytest.raises(CorruptJournal):
        list(store.read("other"))
    store.close()


def test_index_of_a_frame_that_never_came_whole_are_not_believed(tmp_path: Path) -> None:
    """The power failed after they were written, and before the frame's own sectors were."""
    store = open_store(f"file://{tmp_path / 'runs'}")
    create(store, "r")
    seq, index = 1, tmp_path / "runs" / "r" / INDEX
    while not index.exists():
        seq += 1
        store.commit([Append("r", seq - 1, [entry(seq, b"x" * 2000)], durable=False)])
    store.close()
    journal = index.parent / "journal"
    data = bytearray(journal.read_bytes())
    place = len(data) // 512 * 512 - 512
    data[place : place + 512] = bytes(512)
    journal.write_bytes(data)

    store = open_store(f"file://{tmp_path / 'runs'}")
    assert seqs(store, "r") == list(range(1, seq))
    store.close()
