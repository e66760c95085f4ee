"""Appending: the fence, batches, what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import StoreError
from holdfast.stores.base import Append, Conflict, Entry, RunInfo, Snapshot, Store, inboxes

# Small journals for the checks of a store.


def entry(seq: int, body: bytes = b"", mark: bytes | None = b"mark") -> Entry:
    """An entry of that seq, with a body, a chain and a time that tell it from others."""
    return Entry(seq, float(seq), b"chain%d" % seq, body or b"body %d" % seq, mark)


def snapshot(seq: int) -> Snapshot:
    """A snapshot of that seq."""
    return Snapshot(seq, float(seq), b"chain%d" % seq, b"state at %d" % seq)


def info(run: str, **facts: object) -> RunInfo:
    """The facts of a run; its key is made of its id."""
    key = hashlib.sha256(run.encode()).digest()[:8]
    plain = {"key": key, "workflow": "w", "status": "running", "created_at": 1.0, "updated_at": 1.0}
    return RunInfo(run, **(plain | facts))  # type: ignore[arg-type]


def create(store: Store, run: str = "r", upto: int = 1, **facts: object) -> None:
    """Store a run with the entries 1 … `upto`, one append each."""
    assert store.commit([Append(run, 0, [entry(1)], info(run, **facts))]) == [None]
    for seq in range(2, upto + 1):
        assert store.commit([Append(run, seq - 1, [entry(seq)], durable=False)]) == [None]


def add(store: Store, run: str, after: int, count: int = 1) -> Conflict | None:
    """Append so many entries after a seq; the store's answer."""
    entries = [entry(after + 1 + index) for index in range(count)]
    return store.commit([Append(run, after, entries, durable=False)])[0]


def seqs(store: Store, run: str = "r", after: int = 0, upto: int | None = None) -> list[int]:
    """The seqs that a store has of a run."""
    return [entry.seq for entry in store.read(run, after, upto)]


# What the author of a store tells the contract: how the store is opened.


Reopen = Callable[[], Store]


class Opening:
    """The fixtures that the author of a store overrides."""

    is_store_contract = True

    @pytest.fixture
    def store(self) -> Store:
        """A new, empty store; override this, and close the store after its `yield`."""
        raise NotImplementedError("override the fixture `store`: it yields a new, empty store")

    @pytest.fixture
    def reopen(self, store: Store) -> Reopen:
        """A function that opens what `store` holds as another process would; override it if something outlives yours.

        By default it is the same store, which shows less.
        """
        return lambda: store

    def look_for_strays(self, tmp_path: Path) -> None:
        """Called after odd run ids were used: override it to see that nothing was written outside the store's
        place.
        """


class Appending(Opening):
    """Appending: the fence, batches, what is refused."""

    def test_what_was_written_is_read_back_whole(self, store: Store, reopen: Reopen) -> None:
        """Entries, facts and snapshots come back byte for byte, also empty and binary ones, here and after a
        restart.
        """
        first, second = entry(1, b"\0binary\xff", None), Entry(2, 2.5, b"", b"", b"")
        facts = info("r", owner="host/1", created_at=1.25)

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

    def test_a_stale_append_is_refused_with_the_head(self, store: Store) -> None:
        """The append is the fence: one whose `after` is not the last seq is refused with a `Conflict` that
        tells the head; else two owners both advance a run.
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

    def test_in_a_batch_a_conflict_keeps_the_other_appends(self, store: Store, reopen: Reopen) -> None:
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
        changed = info("r", key=b"otherkey", workflow="w2", status="failed", updated_at=9.0, owner="d")

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
        assert later.checkpoints("r", limit=1)[0].size == len(big)


# What goes and what stays: pruning, deleting, messages, closing.


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
            assert [mark.seq for mark in each.checkpoints("r")] == [6, 5, 4]
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
        created again.
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
            assert not (seqs(each) or each.checkpoints("r") or each.inbox("r"))
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
        """A caller that gives the number of a message gets that one: else nothing is posted, and a `Conflict` names
        the last number there is. Sealed messages are sealed for their number.
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
            lambda: store.checkpoints("r"),
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
