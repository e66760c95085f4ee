"""What goes and what stays: pruning, deleting, messages, closing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.errors import StoreError
from holdfast.stores.base import Append, Conflict, Store, inboxes
from holdfast.testing.contract.making import add, create, entry, info, seqs, snapshot
from holdfast.testing.contract.opening import Opening, Reopen


class Keeping(Opening):
    """What goes and what stays: pruning, deleting, messages, closing."""

    def test_pruning_keeps_the_horizon_and_what_follows(self, store: Store, reopen: Reopen) -> None:
        """`prune` drops what is before the horizon, keeps the entry at it and the horizon's snapshot, and
        answers how many entries went.
        """
        create(store, upto=6, status="paused")
        store.commit([Append("r", 6, [], snapshots=[snapshot(2), snapshot(5)])])

        assert store.prune("r", snapshot(4)) == 3

        for each in (store, reopen()):
            assert seqs(each) == [4, 5, 6]
            assert each.snapshot("r", 3) is None
            assert each.snapshot("r", 4) == snapshot(4) and each.snapshot("r") == snapshot(5)
            assert [mark.seq for mark in each.marks("r")] == [6, 5, 4]
            assert each.runs()[0].status == "paused"
        assert add(store, "r", 6) is None
        assert isinstance(add(store, "r", 3), Conflict)

    def test_where_a_run_came_from_is_kept_with_its_facts(self, store: Store, reopen: Reopen) -> None:
        """`origin` comes back as it was written, and an append that gives facts replaces it."""
        create(store, origin='{"source": "capsule ü"}')
        assert store.runs(run="r")[0].origin == reopen().runs()[0].origin == '{"source": "capsule ü"}'

        store.commit([Append("r", 1, [], info("r", origin="?"))])

        assert store.runs(run="r")[0].origin == reopen().runs()[0].origin == "?"

    def test_pruning_inside_an_append_and_down_to_the_head_keeps_the_run_alive(
        self, store: Store, reopen: Reopen
    ) -> None:
        """Pruning may cut an append in two, and down to the head; the run can still be continued and not be
        created anew.
        """
        create(store)
        add(store, "r", 1, count=4)
        add(store, "r", 5)

        assert store.prune("r", snapshot(3)) == 2
        assert seqs(store) == [3, 4, 5, 6]
        assert store.prune("r", snapshot(6)) == 3
        assert add(store, "r", 6) is None
        assert seqs(reopen()) == [6, 7]
        conflict = store.commit([Append("r", 0, [entry(1)], info("r"))])[0]
        assert conflict is not None and conflict.head == 7

    def test_pruning_where_there_is_no_entry_changes_nothing(self, store: Store) -> None:
        """A horizon where the run has no entry changes nothing and answers 0."""
        create(store, upto=5)
        store.prune("r", snapshot(3))

        assert store.prune("r", snapshot(2)) == store.prune("r", snapshot(9)) == 0
        assert store.prune("unknown", snapshot(1)) == 0
        assert seqs(store) == [3, 4, 5] and store.snapshot("r") == snapshot(3)

    def test_a_deleted_run_is_gone_and_cannot_be_continued(self, store: Store, reopen: Reopen) -> None:
        """After `delete` nothing of a run is left: no entries, marks, snapshots or messages; an append finds
        no run.
        """
        create(store, upto=3)
        create(store, "s")
        store.commit([Append("r", 3, [], snapshots=[snapshot(2)])])
        store.post("r", b"hello")

        assert store.delete("r") is True
        assert store.delete("r") is False

        conflict = add(store, "r", 3)
        assert conflict is not None and conflict.head is None
        for each in (store, reopen()):
            assert [each.run for each in each.runs()] == ["s"]
            assert not (seqs(each) or each.marks("r") or each.inbox("r"))
            assert each.snapshot("r") is None

    def test_a_run_that_others_were_forked_from_goes_only_with_all_forks_known(
        self, store: Store, reopen: Reopen
    ) -> None:
        """`prune` and `delete` that are given `forks` change nothing, and answer 0 and `False`, while the run is the
        parent of a run with another key; `None` asks for nothing.
        """
        create(store, upto=5)
        store.commit([Append("r", 5, [], snapshots=[snapshot(2)])])
        store.post("r", b"hello")
        create(store, "one", parent=info("r").key)
        create(reopen(), "two", parent=info("r").key)
        create(store, "of one", parent=info("one").key)
        one, two = info("one").key, info("two").key

        for known in ((), {one}, [two], {info("r").key, info("of one").key}):
            assert store.prune("r", snapshot(4), forks=known) == 0
            assert store.delete("r", forks=known) is False
        for each in (store, reopen()):
            assert seqs(each) == [1, 2, 3, 4, 5] and each.snapshot("r") == snapshot(2)
            assert [message.body for message in each.inbox("r")] == [b"hello"]
            assert {found.run for found in each.runs()} == {"r", "one", "two", "of one"}

        assert store.prune("r", snapshot(3), forks={one, two, b"nobody's"}) == 2
        assert store.prune("r", snapshot(4)) == 1
        assert store.delete("two", forks=()) is True
        assert store.prune("r", snapshot(5), forks=[one]) == 1
        assert store.delete("r", forks=[one]) is True
        assert store.delete("r", forks=[one]) is False and store.delete("one") is True
        assert [found.run for found in reopen().runs()] == ["of one"]

    def test_messages_are_numbered_and_kept_in_order(self, store: Store, reopen: Reopen) -> None:
        """The inbox of a run numbers its messages 1, 2, 3 and keeps them in order, with their times."""
        create(store)
        create(store, "s")

        assert [store.post("r", body) for body in (b"one", b"", b"three")] == [1, 2, 3]
        assert store.post("s", b"mine") == 1

        messages = reopen().inbox("r")
        assert [(each.number, each.body) for each in messages] == [(1, b"one"), (2, b""), (3, b"three")]
        assert all(each.at > 1e9 for each in messages)
        assert [each.number for each in store.inbox("r", after=1)] == [2, 3]
        assert store.inbox("r", after=3) == store.inbox("unknown") == []

    def test_a_message_is_posted_under_the_number_it_was_made_for_or_not_at_all(
        self, store: Store, reopen: Reopen
    ) -> None:
        """Whoever gives the number of a message gets that one: else nothing is posted, and a `Conflict` names the last
        number there is. Sealed messages are sealed for their number.
        """
        create(store)
        assert store.post("r", b"one", 1) == 1
        for wrong in (1, 3):
            with pytest.raises(Conflict) as caught:
                store.post("r", b"wrong", wrong)
            assert caught.value.head == 1

        assert store.post("r", b"two", 2) == 2 and store.post("r", b"three") == 3
        assert [each.body for each in reopen().inbox("r")] == [b"one", b"two", b"three"]

    def test_a_long_inbox_is_kept_whole(self, store: Store, reopen: Reopen) -> None:
        """An inbox has no end: of many messages none is lost, and they are in the order of their numbers, not in
        that of the texts of these.
        """
        create(store)
        bodies = [b"%d " % number * number for number in range(1, 121)]

        assert [store.post("r", body) for body in bodies] == list(range(1, 121))

        for each in (store, reopen()):
            assert [(got.number, got.body) for got in each.inbox("r")] == list(enumerate(bodies, 1))
            for after in (3, 9, 10, 99, 119, 120):
                assert [got.body for got in each.inbox("r", after=after)] == bodies[after:]
        assert [got.body for got in inboxes(store, {"r": 9})["r"]] == bodies[9:]

    def test_the_inboxes_of_many_runs_are_read_together(self, store: Store) -> None:
        """The messages of each of many runs, those that came after the last look included."""
        for run in ("a", "b", "c"):
            create(store, run)
        for run, body in (("a", b"one"), ("b", b"mine"), ("a", b"two")):
            store.post(run, body)

        def found(**after: int) -> dict[str, list[bytes]]:
            return {run: [each.body for each in got] for run, got in inboxes(store, after).items() if got}

        assert found() == {} == found(c=0, nobody=0) == found(nobody=0)
        assert found(a=0, b=0, c=0, nobody=0) == {"a": [b"one", b"two"], "b": [b"mine"]}
        assert found(a=1, b=1, c=0) == {"a": [b"two"]}
        assert found(a=2, b=1, c=0) == {}
        store.post("c", b"late")
        assert found(a=2, b=1, c=0) == {"c": [b"late"]} == found(c=0)

    def test_a_message_to_an_unknown_run_is_refused(self, store: Store) -> None:
        """A message to a run that is not there is a `StoreError` that names it, not a message that nobody
        reads.
        """
        with pytest.raises(StoreError, match="'nobody'"):
            store.post("nobody", b"hello")
        assert store.runs() == []

    def test_a_closed_store_says_so(self, store: Store) -> None:
        """Closing twice is harmless; every other call on a closed store is a `StoreError` that says so."""
        create(store)
        store.close()
        store.close()

        calls: list[Callable[[], object]] = [
            lambda: add(store, "r", 1),
            lambda: store.read("r"),
            lambda: store.marks("r"),
            lambda: store.snapshot("r"),
            lambda: store.runs(),
            lambda: store.prune("r", snapshot(1)),
            lambda: store.delete("r"),
            lambda: store.post("r", b""),
            lambda: store.inbox("r"),
        ]
        for call in calls:
            with pytest.raises(StoreError, match="closed"):
                call()
