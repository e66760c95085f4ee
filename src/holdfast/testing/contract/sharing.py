"""Several at once: processes and threads on one store."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.stores.base import Append, Conflict, Store
from holdfast.testing.contract.making import add, create, entry, info, seqs, snapshot
from holdfast.testing.contract.opening import Opening, Reopen


class Sharing(Opening):
    """Several at once: processes and threads on one store."""

    def test_a_run_id_can_be_used_again_after_delete_even_by_a_writer_that_did_not_notice(
        self, store: Store, reopen: Reopen
    ) -> None:
        """A store that remembers heads must not trust its memory: another process may have deleted the run and
        made it anew.
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
        """Of threads that append after the same seq exactly one is told that it was written, and that one's
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
        told, without gaps.
        """
        create(store)
        ready = threading.Barrier(6)
        doors = [store, reopen()]

        def send(thread: int) -> list[tuple[int, bytes]]:
            bodies = [b"%d of %d" % (number, thread) for number in range(10)]
            ready.wait()
            return [(doors[thread % 2].post("r", body), body) for body in bodies]

        with ThreadPoolExecutor(6) as pool:
            told = list(pool.map(send, range(6)))

        assert all(mine == sorted(mine) for mine in told), (
            "a later message of one sender has an earlier number"
        )
        kept = [(each.number, each.body) for each in store.inbox("r")]
        assert kept == sorted(message for mine in told for message in mine)
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
                both = (drop, begin) if turn % 2 else (begin, drop)  # Whoever comes last mostly goes first.
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
