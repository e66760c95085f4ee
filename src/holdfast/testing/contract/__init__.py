"""What every store promises, as tests that the author of a store runs against it.

from holdfast.testing.contract import StoreContract


class TestMyStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        store = MyStore(tmp_path / "runs")
        yield store
        store.close()

    @pytest.fixture
    def reopen(self, store, tmp_path):
        return lambda: MyStore(tmp_path / "runs")
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import clock
from holdfast.errors import StoreError
from holdfast.stores import base
from holdfast.stores.base import (
    Append,
    Conflict,
    Leases,
    Store,
    StoredCheckpoint,
    Watched,
    namespace_of,
    newest_checkpoints,
)
from holdfast.testing.contract.writing import (
    Appending,
    Keeping,
    Opening,
    Reopen,
    add,
    create,
    entry,
    info,
    seqs,
    snapshot,
)

__all__ = ["LeasesContract", "NamespacesContract", "StoreContract", "WatchedContract"]


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

        assert store.checkpoints("r") == [
            StoredCheckpoint(3, 3.0, b"mark", 5),
            StoredCheckpoint(1, 1.0, b"mark", 6),
        ]
        assert [mark.seq for mark in store.checkpoints("s", limit=2)] == [4, 3]
        assert [mark.seq for mark in store.checkpoints("s", before=3)] == [2, 1]
        assert [mark.seq for mark in store.checkpoints("s", before=4, limit=1)] == [3]
        assert (
            store.checkpoints("s", limit=0)
            == store.checkpoints("s", before=1)
            == store.checkpoints("unknown")
            == []
        )

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
        """`runs` applies every filter it is given, all at once, and lists the latest `updated_at` first, then by
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

    def test_runs_are_listed_page_by_page_and_counted(self, store: Store) -> None:
        """`past` is where a page ends: the next one has each of the other runs once, whatever else is filtered."""
        for place, run in enumerate("abcdef"):
            status = "failed" if run in "bcf" else "paused"
            create(
                store, run, updated_at=float(place // 2), workflow="x" if run < "e" else "y", status=status
            )

        def pages(size: int, **filters: object) -> list[str]:
            found: list[str] = []
            past: tuple[float, str] | None = None
            while page := store.runs(past=past, limit=size, **filters):  # type: ignore[arg-type]
                found.append("".join(each.run for each in page))
                past = page[-1].updated_at, page[-1].run
            return found

        assert pages(1) == list("efcdab") and pages(4) == ["efcd", "ab"] and pages(5) == ["efcda", "b"]
        assert pages(2, status=["failed"]) == ["fc", "b"] and pages(1, workflow="x") == list("cdab")
        assert pages(2, status=["failed", "paused"], since=1.0) == ["ef", "cd"]
        assert base.count_runs(store) == {"failed": (3, 0.0), "paused": (3, 0.0)}

    def test_the_newest_checkpoint_of_each_of_many_runs(self, store: Store) -> None:
        """The newest mark of each of many runs, for those that have one."""
        create(store, "a", upto=3)
        store.commit([Append("a", 3, [entry(4, mark=b"newest"), entry(5, mark=None)])])
        create(store, "b")
        store.commit([Append("unmarked", 0, [entry(1, mark=None)], info("unmarked"))])

        assert newest_checkpoints(store, []) == {} == newest_checkpoints(store, ["unmarked", "nobody"])
        found = newest_checkpoints(store, ["a", "unmarked", "b", "nobody"])
        assert found == {
            "a": StoredCheckpoint(4, 4.0, b"newest", len(b"body 4")),
            "b": store.checkpoints("b")[0],
        }

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
        """Any text but the empty one is a run id; none of them reaches another run or a path outside the store."""
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


# Several at once: processes and threads on one store.


class Sharing(Opening):
    """Several at once: processes and threads on one store."""

    def test_a_run_id_can_be_used_again_after_delete_even_by_a_writer_that_did_not_notice(
        self, store: Store, reopen: Reopen
    ) -> None:
        """A store that remembers heads must not trust its memory: another process may have deleted the run and
        made it again.
        """
        create(store, upto=3)
        other = reopen()
        assert add(other, "r", 3) is None
        store.delete("r")
        create(store, upto=2)

        conflict = add(other, "r", 4)
        assert conflict is not None and conflict.head == 2
        assert add(other, "r", 2) is None
        assert seqs(store) == [1, 2, 3] and store.inbox("r") == []
        assert store.snapshot("r") is None

    def test_another_process_s_appends_are_seen_at_once(self, store: Store, reopen: Reopen) -> None:
        """What one process has appended, every other sees at once, and is refused if it did not know."""
        other = reopen()
        create(store)
        assert add(other, "r", 1) is None
        assert add(store, "r", 2) is None
        assert isinstance(add(other, "r", 2), Conflict)
        assert seqs(other) == seqs(store) == [1, 2, 3]
        store.prune("r", snapshot(2))
        assert add(other, "r", 3) is None
        assert seqs(store) == seqs(other) == [2, 3, 4]

    def test_of_many_threads_appending_to_one_run_exactly_one_wins_each_seq(self, store: Store) -> None:
        """Of threads that append after the same seq exactly one learns that it was written, and that one's
        entry is there.
        """
        create(store)
        wins: list[tuple[int, bytes]] = []

        def race(name: bytes) -> None:
            for after in range(1, 41):
                body = b"%s %d" % (name, after)
                [conflict] = store.commit([Append("r", after, [entry(after + 1, body)], durable=False)])
                if conflict is None:
                    wins.append((after + 1, body))

        threads = [threading.Thread(target=race, args=(b"t%d" % number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(wins) == [(each.seq, each.body) for each in store.read("r", 1)]
        assert len(wins) == 40

    def test_messages_of_many_threads_are_all_kept_and_each_has_its_own_number(
        self, store: Store, reopen: Reopen
    ) -> None:
        """Of messages that are posted at once none is lost, and each is there at the number that its sender was
        returned, without gaps.
        """
        create(store)
        ready = threading.Barrier(6)
        doors = [store, reopen()]

        def send(thread: int) -> list[tuple[int, bytes]]:
            bodies = [b"%d of %d" % (number, thread) for number in range(10)]
            ready.wait()
            return [(doors[thread % 2].post("r", body), body) for body in bodies]

        with ThreadPoolExecutor(6) as pool:
            heard = list(pool.map(send, range(6)))

        assert all(mine == sorted(mine) for mine in heard), (
            "a later message of one sender has an earlier number"
        )
        kept = [(each.number, each.body) for each in store.inbox("r")]
        assert kept == sorted(message for mine in heard for message in mine)
        assert [number for number, _ in kept] == list(range(1, 61))

    @pytest.mark.parametrize("verb", ["prune", "delete"])
    def test_a_fork_is_seen_by_who_drops_its_parent_or_sees_what_is_gone(
        self, store: Store, reopen: Reopen, verb: str
    ) -> None:
        """A run that is created with a parent comes before a `prune` or `delete` with `forks`, which then refuses, or
        after it, and then finds what is gone; never in between.
        """
        other = reopen()
        ready = threading.Barrier(2)

        def drop(run: str) -> int:
            ready.wait()
            if verb == "prune":
                return store.prune(run, snapshot(3), forks=())
            return store.delete(run, forks=())

        def begin(run: str) -> list[int]:
            ready.wait()
            create(other, f"fork of {run}", parent=info(run).key)
            return seqs(other, run)

        refused_or_gone = [(0, [1, 2, 3]), (2, [3]) if verb == "prune" else (True, [])]
        with ThreadPoolExecutor(2) as pool:
            for turn in range(16):
                create(store, f"run {turn}", upto=3)
                both = (
                    (drop, begin) if turn % 2 else (begin, drop)
                )  # The one that comes last mostly goes first.
                done = {each: pool.submit(each, f"run {turn}") for each in both}
                assert (done[drop].result(), done[begin].result()) in refused_or_gone

    def test_threads_may_read_while_others_write(self, store: Store) -> None:
        """Reading goes on while others write, and sees whole appends."""
        create(store)
        done = threading.Event()
        problems: list[object] = []

        def watch() -> None:
            while not done.is_set():
                try:
                    read = seqs(store)
                    if read != list(range(1, len(read) + 1)) or len(store.runs()) != 1:
                        problems.append(read)
                except Exception as error:
                    problems.append(error)

        watchers = [threading.Thread(target=watch) for _ in range(3)]
        for thread in watchers:
            thread.start()
        for after in range(1, 150):
            assert add(store, "r", after) is None
        done.set()
        for thread in watchers:
            thread.join()

        assert problems == []


class StoreContract(Appending, Reading, Keeping, Sharing):
    """Every promise of `holdfast.stores.base.Store`. Override the fixtures `store` and `reopen` in a class
    `Test…`.
    """


# What some stores add: leases by their own clock, telling of changes, namespaces.


_TIMEOUT = 30.0


class LeasesContract(Opening):
    """For a store that tells by its own clock whether an owner is alive; mix it in beside `StoreContract`."""

    def test_a_lease_is_one_name_that_is_valid_while_its_store_is_open(
        self, store: Store, reopen: Reopen
    ) -> None:
        """`lease` answers the same name every time; other processes see it live, and gone when its store is
        closed.
        """
        assert isinstance(store, Leases)
        other = reopen()
        assert isinstance(other, Leases)
        mine = other.lease()
        assert other.lease() == mine and mine != store.lease()
        assert store.is_live(mine) and other.is_live(mine)
        other.close()
        assert not store.is_live(mine)

    def test_a_lease_that_nobody_has_is_not_live(self, store: Store) -> None:
        """Any text may be asked about: what is no lease, or no longer one, is not live."""
        assert isinstance(store, Leases)
        assert not store.is_live("nonsense")
        assert not store.is_live("0b7e9a40-7b0a-4d3c-9a35-6a9d8a1f2d11")

    def test_lapses_stay_the_same_while_a_lease_is_renewed_in_time(self, store: Store) -> None:
        """`lapses` changes only when this process may have been thought dead; executions ask before every step."""
        assert isinstance(store, Leases)
        store.lease()
        assert store.lapses() == store.lapses()


class WatchedContract(Opening):
    """For a store that is notified of changes; mix it in beside `StoreContract`."""

    def test_a_change_of_another_process_wakes(self, store: Store, reopen: Reopen) -> None:
        """A caller that waits in `changed` is woken by an append and by a message of another process."""
        assert isinstance(store, Watched)
        create(store)
        other = reopen()
        changes: list[Callable[[], object]] = [lambda: add(other, "r", 1), lambda: other.post("r", b"hello")]
        for change in changes:
            while store.changed("r", 0.05):
                continue  # What came before is heard out.
            heard: list[bool] = []
            waiting = threading.Thread(target=_hear, args=(store, heard))
            waiting.start()
            change()
            waiting.join()
            assert heard == [True], "nobody was notified of the change"

    def test_waiting_for_a_change_ends_with_its_time(self, store: Store) -> None:
        """`changed` answers `False` when nothing has changed for as long as it was to wait."""
        assert isinstance(store, Watched)
        create(store)
        deadline = clock.monotonic() + _TIMEOUT
        while store.changed("r", 0.05):
            assert clock.monotonic() < deadline, "it tells of changes for ever"

    def test_a_closed_store_watches_nothing(self, store: Store) -> None:
        """After `close`, waiting for a change is a `StoreError`."""
        assert isinstance(store, Watched)
        create(store)
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.changed("r", 0.0)


class NamespacesContract(Opening):
    """For a store that is bound to one namespace of its place; mix it in beside `StoreContract`."""

    @pytest.fixture
    def beside(self, store: Store) -> Store:
        """A store at the same place as `store`, in another namespace; override this."""
        raise NotImplementedError("override the fixture `beside`: `store`'s place, in another namespace")

    def test_a_store_says_which_namespace_it_is_bound_to(self, store: Store, beside: Store) -> None:
        """The attribute `namespace` names it; without one it is "default"."""
        assert namespace_of(store) != namespace_of(beside)

    def test_the_runs_of_another_namespace_are_neither_listed_nor_read_nor_touched(
        self, store: Store, beside: Store
    ) -> None:
        """No verb reaches a run of another namespace."""
        create(store, "theirs", upto=2)
        assert beside.runs() == [] and seqs(beside, "theirs") == []
        assert beside.checkpoints("theirs") == [] and beside.snapshot("theirs") is None
        conflict = add(beside, "theirs", 2)
        assert conflict is not None and conflict.head is None
        assert not beside.delete("theirs") and beside.prune("theirs", snapshot(2)) == 0
        with pytest.raises(StoreError):
            beside.post("theirs", b"hello")
        assert seqs(store, "theirs") == [1, 2] and store.inbox("theirs") == []

    def test_the_same_run_id_is_free_in_every_namespace(self, store: Store, beside: Store) -> None:
        """Run ids are unique within a namespace only."""
        create(store, "same")
        create(beside, "same", upto=3)
        assert seqs(store, "same") == [1] and seqs(beside, "same") == [1, 2, 3]


def _hear(store: Watched, heard: list[bool]) -> None:
    deadline = clock.monotonic() + _TIMEOUT
    while not heard and clock.monotonic() < deadline:
        if store.changed("r", 1.0):
            heard.append(True)
