"""What a power loss leaves of a file store: torn ends of journals, and names that were never synced."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import CorruptJournal, open_store
from holdfast.integrity import check_store
from holdfast.journal.copying import prune_run
from holdfast.journal.journal import Journal
from holdfast.stores.base import Append, Entry, RunInfo
from holdfast.stores.files.store import FileStore
from holdfast.stores.inspection import inspecting
from tests.graphs import chain

SECTOR = 512
INFO = RunInfo("r", b"12345678", "w", "running", 1.0, 1.0)


def entry(seq: int, size: int = 900) -> Entry:
    return Entry(seq, float(seq), b"chain", b"\x05" * size)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two entries, of which the second is larger than a sector."""
    store = FileStore(tmp_path / "runs")
    store.commit([Append("r", 0, [entry(1)], INFO)])
    store.commit([Append("r", 1, [entry(2)])])
    store.close()
    return tmp_path / "runs" / "r"


def zero(path: Path, start: int, end: int) -> None:
    data = bytearray(path.read_bytes())
    data[start:end] = bytes(end - start)
    path.write_bytes(data)


def sectors(path: Path, begin: int) -> list[tuple[int, int]]:
    """From where to where the sectors of a file lie after `begin`."""
    size = path.stat().st_size
    edges = [begin, *range(begin - begin % SECTOR + SECTOR, size, SECTOR), size]
    return list(itertools.pairwise(edges))


def seqs(folder: Path) -> list[int]:
    store = FileStore(folder.parent)
    try:
        return [entry.seq for entry in store.read("r")]
    finally:
        store.close()


@pytest.fixture
def second(tmp_path: Path) -> int:
    """Where the second entry of such a journal begins."""
    store = FileStore(tmp_path / "other")
    store.commit([Append("r", 0, [entry(1)], INFO)])
    store.close()
    return (tmp_path / "other" / "r" / "journal").stat().st_size


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_last_append_of_which_sectors_are_missing_was_never_acknowledged_and_is_not_there(
    folder: Path, second: int, which: int
) -> None:
    """S0.9: a file may have grown before its data got to the disk; the run goes on from what was synced."""
    journal = folder / "journal"
    zero(journal, *sectors(journal, second)[which])

    assert seqs(folder) == [1]
    store = FileStore(folder.parent)
    assert store.commit([Append("r", 1, [entry(2, 30)])]) == [None]
    assert [found.seq for found in store.read("r")] == [1, 2]
    store.close()


def test_a_header_that_is_torn_at_the_end_of_a_sector_was_never_acknowledged(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "runs")
    store.commit([Append("r", 0, [entry(1, 10)], INFO)])
    journal = tmp_path / "runs" / "r" / "journal"
    first = journal.stat().st_size
    room = -(first + 20) % SECTOR  # So that the second header lies across the end of a sector.
    store.delete("r")
    store.commit([Append("r", 0, [entry(1, 10 + room)], INFO)])
    begin = journal.stat().st_size
    store.commit([Append("r", 1, [entry(2, 30)])])
    store.close()
    whole = journal.read_bytes()
    assert begin % SECTOR == SECTOR - 20

    for start, end in sectors(journal, begin):
        journal.write_bytes(whole)
        zero(journal, start, end)
        assert seqs(journal.parent) == [1]


def test_sectors_that_are_missing_before_the_end_are_damage(folder: Path, second: int) -> None:
    """What follows was written later, so these were on the disk once."""
    journal = folder / "journal"
    for place in ((0, SECTOR), (SECTOR, 2 * SECTOR)):
        whole = journal.read_bytes()
        zero(journal, *place)
        with pytest.raises(CorruptJournal):
            seqs(folder)
        journal.write_bytes(whole)


def test_a_changed_byte_in_the_last_append_is_damage(folder: Path, second: int) -> None:
    journal = folder / "journal"
    for place in (second, second + 50, journal.stat().st_size - 1):
        whole = bytearray(journal.read_bytes())
        whole[place] ^= 1
        journal.write_bytes(whole)
        with pytest.raises(CorruptJournal):
            seqs(folder)
        whole[place] ^= 1
        journal.write_bytes(whole)


def test_what_precedes_a_damaged_end_can_be_saved(folder: Path, second: int) -> None:
    journal = folder / "journal"
    whole = bytearray(journal.read_bytes())
    whole[second] ^= 1
    journal.write_bytes(whole)
    store = FileStore(folder.parent)

    with inspecting(store) as inspector:
        found = inspector.entries("r")
        assert next(found).seq == 1
        with pytest.raises(CorruptJournal):
            next(found)
    store.close()


@pytest.mark.parametrize("left", [b"", b"HFJ\x01\x00", bytes(600)])
def test_a_run_whose_creation_was_cut_short_is_no_damage(tmp_path: Path, left: bytes) -> None:
    """Its key is claimed before its journal is written; what is left says so, and the run can be created."""
    store = FileStore(tmp_path / "runs")
    store.commit([Append("r", 0, [entry(1)], INFO)])
    (tmp_path / "runs" / "r" / "run.json").unlink()
    (tmp_path / "runs" / "r" / "journal").write_bytes(left)
    store.close()

    store = FileStore(tmp_path / "runs")
    report = check_store(store)
    assert report.is_fine and any("never begun" in leftover for leftover in report.leftovers)
    again = replace(INFO, key=b"another8")
    assert store.commit([Append("r", 0, [entry(1)], again)]) == [None]
    with inspecting(store) as inspector:
        assert inspector.problems() == []
        assert [leftover for leftover in inspector.leftovers() if INFO.key.hex() in leftover]
    store.close()


def test_snapshots_that_a_prune_did_not_come_to_remove_are_no_damage(tmp_path: Path) -> None:
    """The journal is made shorter first; a crash between leaves snapshots that nobody reads."""
    store = open_store(f"file://{tmp_path}/runs")
    app = chain("a", "b", "c").compile(store)
    app.invoke({"n": 1}, run_id="r")
    snapshots = tmp_path / "runs" / "r" / "snapshots"
    journal = Journal(store)
    for mark in reversed(store.checkpoints("r")):
        if snapshots.exists():
            kept = {path.name: path.read_bytes() for path in snapshots.iterdir()}
        prune_run(journal, journal.info("r"), mark.seq)
    assert kept and not kept.keys() & {path.name for path in snapshots.iterdir()}
    for name, data in kept.items():
        (snapshots / name).write_bytes(data)

    assert check_store(store).is_fine
    assert app.get_state("r")["n"] == app.invoke({"n": 1}).state["n"]
    store.close()


def test_a_run_whose_lock_is_gone_is_written_on(folder: Path) -> None:
    (folder / "lock").unlink()
    store = FileStore(folder.parent)

    assert store.commit([Append("r", 2, [entry(3)])]) == [None]
    assert [each.seq for each in store.read("r")] == [1, 2, 3]
    assert store.delete("r") and not folder.exists()
    store.close()
