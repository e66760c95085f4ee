"""Appending: the fence, batches, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.errors import StoreError
from holdfast.stores.base import Append, Conflict, Entry, Store
from holdfast.testing.contract.making import add, create, entry, info, seqs, snapshot
from holdfast.testing.contract.opening import Opening, Reopen


class Appending(Opening):
    """Appending: the fence, batches, what is refused."""

    def test_what_was_written_is_read_back_whole(self, store: Store, reopen: Reopen) -> None:
        """Entries, facts and snapshots come back byte for byte, also empty and binary ones, here and after a
        restart.
        """
        first, second = entry(1, b"\0binary\xff", None), Entry(2, 2.5, b"", b"", b"")
        facts = info("r", driver="host/1", created_at=1.25)

        assert store.commit([Append("r", 0, [first, second], facts, [snapshot(2)])]) == [None]

        for each in (store, reopen()):
            assert list(each.read("r")) == [first, second]
            assert each.runs() == [facts]
            assert each.snapshot("r") == snapshot(2)

    def test_a_store_fits_the_protocol_and_its_url_opens_it_again(self, store: Store, reopen: Reopen) -> None:
        """A store has every verb of `holdfast.stores.base.Store`, and what it holds is there when it is opened
        again.
        """
        assert isinstance(store, Store)
        assert isinstance(store.url, str) and store.url, "a store says by its `url` where it is"
        create(store)
        assert seqs(reopen()) == [1]

    def test_a_stale_append_is_refused_and_told_the_head(self, store: Store) -> None:
        """The append is the fence: one whose `after` is not the last seq is refused with a `Conflict` that
        tells the head; else two drivers both advance a run.
        """
        create(store, upto=3)

        conflict = add(store, "r", 2)

        assert isinstance(conflict, Conflict)
        assert (conflict.run, conflict.after, conflict.head) == ("r", 2, 3)
        assert seqs(store) == [1, 2, 3]

    def test_an_append_beyond_the_head_is_refused(self, store: Store) -> None:
        """An append after a seq that the run does not have yet is refused with a `Conflict`: journals have no
        gaps.
        """
        create(store, upto=2)

        conflict = add(store, "r", 3)

        assert conflict is not None and conflict.head == 2
        assert seqs(store) == [1, 2]

    def test_an_append_to_a_run_that_does_not_exist_is_refused(self, store: Store) -> None:
        """An append to a run that the store does not have is refused with a `Conflict` whose head is `None`,
        and creates nothing.
        """
        conflict = add(store, "nobody", 1)

        assert conflict is not None and conflict.head is None
        assert store.runs() == [] and seqs(store, "nobody") == []

    def test_creating_a_run_that_exists_is_refused_and_changes_nothing(
        self, store: Store, reopen: Reopen
    ) -> None:
        """Creating a run whose id is taken is a `Conflict`, and neither entries nor facts of the run that is
        there change.
        """
        create(store, upto=2)

        [conflict] = store.commit([Append("r", 0, [entry(1, b"other")], info("r", status="failed"))])

        assert conflict is not None and conflict.head == 2
        assert [each.body for each in reopen().read("r")] == [b"body 1", b"body 2"]
        assert store.runs()[0].status == "running"

    def test_a_key_belongs_to_one_run(self, store: Store) -> None:
        """Keys are unique in the store: creating a second run with the same key is a `Conflict`, until the
        first is deleted.
        """
        create(store, "a", key=b"samesame")

        [conflict] = store.commit([Append("b", 0, [entry(1)], info("b", key=b"samesame"))])

        assert conflict is not None and conflict.head is None
        assert [each.run for each in store.runs()] == ["a"]
        store.delete("a")
        create(store, "b", key=b"samesame")
        assert [each.run for each in store.runs(key=b"samesame")] == ["b"]

    def test_in_a_batch_a_conflict_leaves_the_other_appends_standing(
        self, store: Store, reopen: Reopen
    ) -> None:
        """Each append of a batch stands or falls alone: a `Conflict` of one takes back nothing of the others,
        and nothing of it is kept.
        """
        for run in "abc":
            create(store, run)

        answers = store.commit(
            [
                Append("a", 1, [entry(2)], replace(info("a"), status="paused")),
                Append("b", 5, [entry(6)], replace(info("b"), status="paused"), [snapshot(6)]),
                Append("c", 1, [entry(2), entry(3)], snapshots=[snapshot(2)]),
                Append("d", 0, [entry(1)], info("d")),
            ]
        )

        assert [answer and answer.head for answer in answers] == [None, 1, None, None]
        later = reopen()
        assert [seqs(later, run) for run in "abcd"] == [[1, 2], [1], [1, 2, 3], [1]]
        assert {each.run: each.status for each in later.runs()}["b"] == "running"
        assert later.snapshot("b") is None and later.snapshot("c") == snapshot(2)

    def test_one_step_of_many_runs_is_written_where_each_run_is_at_its_place(
        self, store: Store, reopen: Reopen
    ) -> None:
        """A batch of one-entry appends, the commonest thing there is, is answered append by append, in its
        order.
        """
        odd = "ab\0\1%"
        for run in ("z", "y", odd, "late", "early"):
            create(store, run, upto=2)

        answers = store.commit(
            [
                Append("z", 2, [entry(3, b"third", mark=None)]),
                Append("late", 1, [entry(2, b"too late")]),
                Append("nobody", 2, [entry(3)]),
                Append(odd, 2, [entry(3)]),
                Append("early", 4, [entry(5)]),
                Append("y", 2, [entry(3)]),
                Append("y", 3, [entry(4)]),
                Append("new", 0, [entry(1)], info("new")),
            ]
        )

        assert [answer and (answer.run, answer.after, answer.head) for answer in answers] == [
            *(None, ("late", 1, 2), ("nobody", 2, None), None, ("early", 4, 2), None, None, None)
        ]
        later = reopen()
        assert [seqs(later, run) for run in ("z", "y", odd, "late", "early", "new")] == [
            *([1, 2, 3], [1, 2, 3, 4], [1, 2, 3], [1, 2], [1, 2], [1])
        ]
        assert list(later.read("z", 2)) == [entry(3, b"third", mark=None)]
        assert [each.body for each in later.read("late")] == [b"body 1", b"body 2"]

    def test_appends_of_one_batch_may_follow_each_other_on_one_run(self, store: Store) -> None:
        """Within a batch, an append sees what those before it have written."""
        answers = store.commit(
            [
                Append("r", 0, [entry(1)], info("r")),
                Append("r", 1, [entry(2)]),
                Append("r", 1, [entry(2, b"too late")]),
                Append("r", 2, [entry(3)]),
            ]
        )

        assert [answer is None for answer in answers] == [True, True, False, True]
        assert [each.body for each in store.read("r")] == [b"body 1", b"body 2", b"body 3"]

    def test_an_empty_batch_is_no_trouble(self, store: Store) -> None:
        """An empty batch is answered with an empty list."""
        assert store.commit([]) == []

    @pytest.mark.parametrize(
        "malformed",
        [
            Append("r", 1, [entry(3)]),
            Append("r", 1, [entry(2), entry(4)]),
            Append("r", 0, [entry(1)]),
            Append("r", 0, [], info("r")),
            Append("r", 1, [entry(2)], info("other")),
            Append("r", 1, [entry(2)], snapshots=[snapshot(3)]),
            Append("", 0, [entry(1)], info("")),
            Append("\ud800", 0, [entry(1)], replace(info("x"), run="\ud800")),
        ],
        ids=["gap", "hole", "no facts", "no entry", "other's facts", "snapshot above", "no id", "no text"],
    )
    def test_a_malformed_append_is_refused_with_all_its_batch(self, store: Store, malformed: Append) -> None:
        """A malformed append is a mistake of the caller: `StoreError`, and nothing of its batch is written.
        `holdfast.stores.base.check` finds all of them.
        """
        create(store, "good")

        with pytest.raises(StoreError):
            store.commit([Append("good", 1, [entry(2)]), malformed])

        assert seqs(store, "good") == [1]

    def test_facts_are_replaced_with_or_without_entries_but_the_key_stays(
        self, store: Store, reopen: Reopen
    ) -> None:
        """`info` replaces the facts of a run, but for its key, with or without entries, and only if `after` is
        the last seq.
        """
        create(store)
        key = info("r").key
        changed = info("r", key=b"otherkey", workflow="w2", status="failed", updated_at=9.0, driver="d")

        assert store.commit([Append("r", 1, [], changed)]) == [None]
        assert reopen().runs() == [replace(changed, key=key)]
        assert store.commit([Append("r", 1, [entry(2)], replace(changed, status="done"))]) == [None]
        assert reopen().runs(key=key)[0].status == "done"
        [conflict] = store.commit([Append("r", 1, [], info("r"))])
        assert conflict is not None and reopen().runs()[0].status == "done"
        assert add(store, "r", 2) is None

    def test_a_big_body_is_kept_whole(self, store: Store, reopen: Reopen) -> None:
        """Bodies of some megabytes are kept whole."""
        big = bytes(range(256)) * (5 << 12)
        store.commit(
            [Append("r", 0, [entry(1, big), entry(2, big)], info("r"), [replace(snapshot(1), body=big)])]
        )

        later = reopen()
        assert [each.body == big for each in later.read("r")] == [True, True]
        kept = later.snapshot("r")
        assert kept is not None and kept.body == big
        assert later.marks("r", limit=1)[0].size == len(big)
