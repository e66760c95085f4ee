"""Reading: ranges, checkpoints, snapshots, the list of runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import StoreError
from holdfast.stores import base
from holdfast.stores.base import Append, Mark, Store, newest_marks
from holdfast.testing.contract.making import add, create, entry, info, seqs, snapshot
from holdfast.testing.contract.opening import Opening, Reopen


class Reading(Opening):
    """Reading: ranges, checkpoints, snapshots, the list of runs."""

    def test_a_range_excludes_its_beginning_and_includes_its_end(self, store: Store) -> None:
        """`read(run, after, upto)` answers with `after < seq <= upto`; an unknown run has no entries."""
        create(store, upto=5)

        assert seqs(store, after=2) == [3, 4, 5]
        assert seqs(store, upto=2) == [1, 2]
        assert seqs(store, after=1, upto=4) == [2, 3, 4]
        assert seqs(store, after=5) == seqs(store, after=3, upto=3) == seqs(store, upto=0) == []
        assert seqs(store, after=4, upto=99) == [5]
        assert seqs(store, "unknown") == []

    def test_a_range_may_begin_and_end_inside_an_append(self, store: Store) -> None:
        """A range goes by entries, not by the appends they came with."""
        create(store)
        add(store, "r", 1, count=5)

        assert seqs(store, after=2, upto=4) == [3, 4]

    def test_a_journal_longer_than_a_page_is_read_to_its_end(self, store: Store) -> None:
        """However a store pages, `read` goes to the end of the range."""
        create(store)
        for after in range(1, 3 * base.PAGE_ENTRIES, 500):
            add(store, "r", after, count=500)

        everything = seqs(store)

        assert everything == list(range(1, len(everything) + 1)) and len(everything) > 3 * base.PAGE_ENTRIES
        assert seqs(store, after=1, upto=2 * base.PAGE_ENTRIES + 1)[-1] == 2 * base.PAGE_ENTRIES + 1

    def test_a_journal_pruned_while_it_is_read_is_not_read_with_a_hole(self, store: Store) -> None:
        """A journal that is pruned while it is read ends, or raises a `StoreError` that says so; it never has
        a hole.
        """
        create(store)
        for after in range(1, 3 * base.PAGE_ENTRIES, 500):
            add(store, "r", after, count=500)
        reading = store.read("r")
        seen = [next(reading).seq]
        store.prune("r", snapshot(3 * base.PAGE_ENTRIES))

        try:
            seen += [each.seq for each in reading]
        except StoreError as error:
            assert "pruned" in str(error)

        assert seen == list(range(1, len(seen) + 1))

    def test_marks_are_listed_newest_first(self, store: Store) -> None:
        """`marks` lists the entries that have a mark, newest first, with the size of their bodies."""
        store.commit([Append("r", 0, [entry(1), entry(2, mark=None), entry(3, b"12345")], info("r"))])
        create(store, "s", upto=4)

        assert store.marks("r") == [Mark(3, 3.0, b"mark", 5), Mark(1, 1.0, b"mark", 6)]
        assert [mark.seq for mark in store.marks("s", limit=2)] == [4, 3]
        assert [mark.seq for mark in store.marks("s", before=3)] == [2, 1]
        assert [mark.seq for mark in store.marks("s", before=4, limit=1)] == [3]
        assert store.marks("s", limit=0) == store.marks("s", before=1) == store.marks("unknown") == []

    def test_the_nearest_snapshot_is_found(self, store: Store) -> None:
        """`snapshot(run, upto)` is the newest one at or before `upto`, or `None`."""
        create(store, upto=10)
        store.commit([Append("r", 10, [], snapshots=[snapshot(3), snapshot(7)])])
        create(store, "s", upto=5)

        assert store.snapshot("r") == store.snapshot("r", 7) == store.snapshot("r", 99) == snapshot(7)
        assert store.snapshot("r", 6) == store.snapshot("r", 3) == snapshot(3)
        assert store.snapshot("r", 2) is store.snapshot("s") is store.snapshot("unknown") is None

    def test_a_snapshot_of_the_same_seq_takes_the_place_of_the_old(self, store: Store) -> None:
        """A second snapshot of a seq replaces the first."""
        create(store)
        for body in (b"old", b"new"):
            store.commit([Append("r", 1, [], snapshots=[replace(snapshot(1), body=body)])])

        newest = store.snapshot("r")
        assert newest is not None and newest.body == b"new"

    def test_runs_are_filtered_and_listed_latest_first(self, store: Store) -> None:
        """`runs` obeys every filter it is given, all at once, and lists the latest `updated_at` first, then by
        run id.
        """
        create(store, "a", updated_at=1.0, workflow="x", status="running")
        create(store, "b", updated_at=3.0, workflow="x", status="failed")
        create(store, "d", updated_at=2.0, workflow="y", status="paused")
        create(store, "c", updated_at=2.0, workflow="y", status="failed")

        def listed(**filters: object) -> str:
            return "".join(each.run for each in store.runs(**filters))  # type: ignore[arg-type]

        assert listed() == "bcda"
        assert listed(limit=2) == "bc" and listed(limit=0) == ""
        assert listed(workflow="x") == "ba" and listed(workflow="z") == ""
        assert listed(status=["failed"]) == "bc" and listed(status=["failed", "paused"]) == "bcd"
        assert listed(status=[]) == ""
        assert listed(run="d") == "d" and listed(run="z") == ""
        assert listed(key=info("a").key) == "a" and listed(key=b"unknown!") == ""
        assert listed(workflow="y", status=["failed"], limit=1) == "c"
        assert listed(run="a", workflow="y") == ""
        assert listed(before=3.0) == "cda" and listed(before=1.0) == ""
        assert listed(before=2.0, workflow="x") == "a" and listed(before=3.0, status=["failed"]) == "c"

    def test_the_newest_checkpoint_of_each_of_many_runs(self, store: Store) -> None:
        """The newest mark of each of many runs, for those that have one."""
        create(store, "a", upto=3)
        store.commit([Append("a", 3, [entry(4, mark=b"newest"), entry(5, mark=None)])])
        create(store, "b")
        store.commit([Append("unmarked", 0, [entry(1, mark=None)], info("unmarked"))])

        assert newest_marks(store, []) == {} == newest_marks(store, ["unmarked", "nobody"])
        found = newest_marks(store, ["a", "unmarked", "b", "nobody"])
        assert found == {"a": Mark(4, 4.0, b"newest", len(b"body 4")), "b": store.marks("b")[0]}

    def test_runs_are_found_by_how_their_ids_begin(self, store: Store) -> None:
        """`prefix` compares code points: no wildcards, no folding of case, and the zero character and the last
        code point are characters.
        """
        last = "\U0010ffff"
        for number, run in enumerate(
            ("ab", "abc", "ab\0", f"ab{last}x", "ac", "b", "%", last, "\ud7ff", "Ab")
        ):
            create(store, run, updated_at=float(number))

        def found(prefix: str) -> list[str]:
            return [each.run for each in store.runs(prefix=prefix)]

        assert (
            found("ab") == [f"ab{last}x", "ab\0", "abc", "ab"] and found("abcd") == [] and found("%") == ["%"]
        )
        assert found("ab\0") == ["ab\0"] and found(f"ab{last}") == [f"ab{last}x"] and found(last) == [last]
        assert found("\ud7ff") == ["\ud7ff"] and len(found("")) == 10
        assert [each.run for each in store.runs(prefix="a", limit=1, before=2.0)] == ["abc"]

    def test_runs_are_found_by_the_run_they_were_forked_from(self, store: Store, reopen: Reopen) -> None:
        """`parent` finds the runs that were forked from a run, also when that is gone."""
        create(store, "old")
        key = store.runs(run="old")[0].key
        create(store, "one", parent=key, updated_at=1.0)
        create(store, "two", parent=key, updated_at=2.0)
        create(store, "other", parent=b"\0" * 8)

        store = reopen()
        assert [each.run for each in store.runs(parent=key)] == ["two", "one"]
        assert [each.run for each in store.runs(parent=key, limit=1, run="one")] == ["one"]
        assert {each.parent for each in store.runs(parent=key)} == {key} and store.runs(run="old")[
            0
        ].parent == b""
        assert store.runs(parent=b"nobody's") == []
        store.delete("old")
        assert [each.run for each in store.runs(parent=key)] == ["two", "one"]

    @pytest.mark.parametrize(
        "run",
        [
            "a/b",
            "..",
            ".",
            "é",
            "x" * 300,
            "ü" * 300,
            "A",
            "a\0b",
            "%2e%2e",
            ".keys",
            "lock",
            "~",
            "C:\\x",
            " ",
        ],
    )
    def test_any_text_can_be_a_run_id(self, store: Store, reopen: Reopen, tmp_path: Path, run: str) -> None:
        """Any text but the empty one is a run id, and none of them reaches another run or leaves the store's
        place.
        """
        create(store, "a")
        create(store, run, upto=2)
        store.post(run, b"hello")

        later = reopen()
        assert seqs(later, run) == [1, 2] and seqs(later, "a") == [1]
        assert later.runs(run=run) == [info(run)]
        assert {each.run for each in later.runs()} == {"a", run}
        assert store.delete(run) and seqs(later, "a") == [1]
        self.look_for_strays(tmp_path)

    def test_long_run_ids_that_begin_alike_are_different_runs(self, store: Store) -> None:
        """Long ids are not cut."""
        create(store, "x" * 300 + "1", upto=2)
        create(store, "x" * 300 + "2", upto=3)

        assert seqs(store, "x" * 300 + "1") == [1, 2]
