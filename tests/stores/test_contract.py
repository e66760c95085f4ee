"""What every store promises, whatever it is made of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import StoreError
from holdfast.stores import base, open_store
from holdfast.stores.base import Append, Conflict, Entry, Mark, Store, newest_marks
from holdfast.stores.memory import MemoryStore
from tests.postgres import DEBIAN, PostgresServer, debian_programs, running
from tests.stores.making import add, create, entry, info, seqs, snapshot


@pytest.fixture(scope="session")
def debian_server() -> Iterator[PostgresServer]:
    with running(debian_programs()) as server:
        yield server


@pytest.fixture
def emptied_debian_url(debian_server: PostgresServer) -> Iterator[str]:
    with debian_server.emptied_schema() as name:
        yield debian_server.url(name)


KINDS = ["memory", "sqlite", "file", "postgres", *(["debian"] if DEBIAN.exists() else [])]


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param in ("postgres", "debian"):
        return str(request.getfixturevalue(f"emptied_{request.param}_url"))
    places = {
        "memory": "memory://",
        "sqlite": f"sqlite:///{tmp_path}/runs.db",
        "file": f"file:///{tmp_path}/runs",
    }
    return places[request.param]


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = open_store(url)
    yield store
    store.close()


@pytest.fixture
def reopen(url: str, store: Store) -> Iterator[Callable[[], Store]]:
    """What a later process would see; the same store where nothing outlives the process."""
    opened: list[Store] = []

    def again() -> Store:
        if url == "memory://":
            return store
        opened.append(open_store(url))
        return opened[-1]

    yield again
    for each in opened:
        each.close()


Reopen = Callable[[], Store]


def test_what_was_written_is_read_back_whole(store: Store, reopen: Reopen) -> None:
    first, second = entry(1, b"\0binary\xff", None), Entry(2, 2.5, b"", b"", b"")
    facts = info("r", driver="host/1", created_at=1.25)

    assert store.commit([Append("r", 0, [first, second], facts, [snapshot(2)])]) == [None]

    for each in (store, reopen()):
        assert list(each.read("r")) == [first, second]
        assert each.runs() == [facts]
        assert each.snapshot("r") == snapshot(2)


def test_a_store_fits_the_protocol_and_its_url_opens_it_again(store: Store, reopen: Reopen) -> None:
    assert isinstance(store, Store)
    create(store)
    if not isinstance(store, MemoryStore):
        again = open_store(store.url)
        assert seqs(again) == [1]
        again.close()


def test_a_stale_append_is_refused_and_told_the_head(store: Store) -> None:
    create(store, upto=3)

    conflict = add(store, "r", 2)

    assert isinstance(conflict, Conflict)
    assert (conflict.run, conflict.after, conflict.head) == ("r", 2, 3)
    assert seqs(store) == [1, 2, 3]


def test_an_append_beyond_the_head_is_refused(store: Store) -> None:
    create(store, upto=2)

    conflict = add(store, "r", 3)

    assert conflict is not None and conflict.head == 2
    assert seqs(store) == [1, 2]


def test_an_append_to_a_run_that_does_not_exist_is_refused(store: Store) -> None:
    conflict = add(store, "nobody", 1)

    assert conflict is not None and conflict.head is None
    assert store.runs() == [] and seqs(store, "nobody") == []


def test_creating_a_run_that_exists_is_refused_and_changes_nothing(store: Store, reopen: Reopen) -> None:
    create(store, upto=2)

    [conflict] = store.commit([Append("r", 0, [entry(1, b"other")], info("r", status="failed"))])

    assert conflict is not None and conflict.head == 2
    assert [each.body for each in reopen().read("r")] == [b"body 1", b"body 2"]
    assert store.runs()[0].status == "running"


def test_a_key_belongs_to_one_run(store: Store) -> None:
    create(store, "a", key=b"samesame")

    [conflict] = store.commit([Append("b", 0, [entry(1)], info("b", key=b"samesame"))])

    assert conflict is not None and conflict.head is None
    assert [each.run for each in store.runs()] == ["a"]
    store.delete("a")
    create(store, "b", key=b"samesame")
    assert [each.run for each in store.runs(key=b"samesame")] == ["b"]


def test_in_a_batch_a_conflict_leaves_the_other_appends_standing(store: Store, reopen: Reopen) -> None:
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
    store: Store, reopen: Reopen
) -> None:
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


def test_appends_of_one_batch_may_follow_each_other_on_one_run(store: Store) -> None:
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


def test_an_empty_batch_is_no_trouble(store: Store) -> None:
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
def test_a_malformed_append_is_refused_with_all_its_batch(store: Store, malformed: Append) -> None:
    create(store, "good")

    with pytest.raises(StoreError):
        store.commit([Append("good", 1, [entry(2)]), malformed])

    assert seqs(store, "good") == [1]


def test_facts_are_replaced_with_or_without_entries_but_the_key_stays(store: Store, reopen: Reopen) -> None:
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


def test_a_range_excludes_its_beginning_and_includes_its_end(store: Store) -> None:
    create(store, upto=5)

    assert seqs(store, after=2) == [3, 4, 5]
    assert seqs(store, upto=2) == [1, 2]
    assert seqs(store, after=1, upto=4) == [2, 3, 4]
    assert seqs(store, after=5) == seqs(store, after=3, upto=3) == seqs(store, upto=0) == []
    assert seqs(store, after=4, upto=99) == [5]
    assert seqs(store, "unknown") == []


def test_a_range_may_begin_and_end_inside_an_append(store: Store) -> None:
    create(store)
    add(store, "r", 1, count=5)

    assert seqs(store, after=2, upto=4) == [3, 4]


def test_a_journal_longer_than_a_page_is_read_to_its_end(store: Store) -> None:
    create(store)
    for after in range(1, 3 * base.PAGE_ENTRIES, 500):
        add(store, "r", after, count=500)

    everything = seqs(store)

    assert everything == list(range(1, len(everything) + 1)) and len(everything) > 3 * base.PAGE_ENTRIES
    assert seqs(store, after=1, upto=2 * base.PAGE_ENTRIES + 1)[-1] == 2 * base.PAGE_ENTRIES + 1


def test_a_journal_pruned_while_it_is_read_is_not_read_with_a_hole(store: Store) -> None:
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


def test_marks_are_listed_newest_first(store: Store) -> None:
    store.commit([Append("r", 0, [entry(1), entry(2, mark=None), entry(3, b"12345")], info("r"))])
    create(store, "s", upto=4)

    assert store.marks("r") == [Mark(3, 3.0, b"mark", 5), Mark(1, 1.0, b"mark", 6)]
    assert [mark.seq for mark in store.marks("s", limit=2)] == [4, 3]
    assert [mark.seq for mark in store.marks("s", before=3)] == [2, 1]
    assert [mark.seq for mark in store.marks("s", before=4, limit=1)] == [3]
    assert store.marks("s", limit=0) == store.marks("s", before=1) == store.marks("unknown") == []


def test_the_nearest_snapshot_is_found(store: Store) -> None:
    create(store, upto=10)
    store.commit([Append("r", 10, [], snapshots=[snapshot(3), snapshot(7)])])
    create(store, "s", upto=5)

    assert store.snapshot("r") == store.snapshot("r", 7) == store.snapshot("r", 99) == snapshot(7)
    assert store.snapshot("r", 6) == store.snapshot("r", 3) == snapshot(3)
    assert store.snapshot("r", 2) is store.snapshot("s") is store.snapshot("unknown") is None


def test_a_snapshot_of_the_same_seq_takes_the_place_of_the_old(store: Store) -> None:
    create(store)
    for body in (b"old", b"new"):
        store.commit([Append("r", 1, [], snapshots=[replace(snapshot(1), body=body)])])

    newest = store.snapshot("r")
    assert newest is not None and newest.body == b"new"


def test_runs_are_filtered_and_listed_latest_first(store: Store) -> None:
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


def test_the_newest_checkpoint_of_each_of_many_runs(store: Store) -> None:
    create(store, "a", upto=3)
    store.commit([Append("a", 3, [entry(4, mark=b"newest"), entry(5, mark=None)])])
    create(store, "b")
    store.commit([Append("unmarked", 0, [entry(1, mark=None)], info("unmarked"))])

    assert newest_marks(store, []) == {} == newest_marks(store, ["unmarked", "nobody"])
    found = newest_marks(store, ["a", "unmarked", "b", "nobody"])
    assert found == {"a": Mark(4, 4.0, b"newest", len(b"body 4")), "b": store.marks("b")[0]}


def test_runs_are_found_by_how_their_ids_begin(store: Store) -> None:
    last = "\U0010ffff"
    for number, run in enumerate(("ab", "abc", "ab\0", f"ab{last}x", "ac", "b", "%", last, "\ud7ff", "Ab")):
        create(store, run, updated_at=float(number))

    def found(prefix: str) -> list[str]:
        return [each.run for each in store.runs(prefix=prefix)]

    assert found("ab") == [f"ab{last}x", "ab\0", "abc", "ab"] and found("abcd") == [] and found("%") == ["%"]
    assert found("ab\0") == ["ab\0"] and found(f"ab{last}") == [f"ab{last}x"] and found(last) == [last]
    assert found("\ud7ff") == ["\ud7ff"] and len(found("")) == 10
    assert [each.run for each in store.runs(prefix="a", limit=1, before=2.0)] == ["abc"]


def test_runs_are_found_by_the_run_they_were_forked_from(store: Store, reopen: Reopen) -> None:
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


def test_pruning_keeps_the_horizon_and_what_follows(store: Store, reopen: Reopen) -> None:
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


def test_pruning_inside_an_append_and_down_to_the_head_keeps_the_run_alive(
    store: Store, reopen: Reopen
) -> None:
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


def test_pruning_where_there_is_no_entry_changes_nothing(store: Store) -> None:
    create(store, upto=5)
    store.prune("r", snapshot(3))

    assert store.prune("r", snapshot(2)) == store.prune("r", snapshot(9)) == 0
    assert store.prune("unknown", snapshot(1)) == 0
    assert seqs(store) == [3, 4, 5] and store.snapshot("r") == snapshot(3)


def test_a_deleted_run_is_gone_and_cannot_be_continued(store: Store, reopen: Reopen) -> None:
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


def test_a_run_id_can_be_used_again_after_delete_even_by_a_writer_that_did_not_notice(
    store: Store, reopen: Reopen
) -> None:
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


def test_another_process_s_appends_are_seen_at_once(store: Store, reopen: Reopen) -> None:
    other = reopen()
    create(store)
    assert add(other, "r", 1) is None
    assert add(store, "r", 2) is None
    assert isinstance(add(other, "r", 2), Conflict)
    assert seqs(other) == seqs(store) == [1, 2, 3]
    store.prune("r", snapshot(2))
    assert add(other, "r", 3) is None
    assert seqs(store) == seqs(other) == [2, 3, 4]


def test_messages_are_numbered_and_kept_in_order(store: Store, reopen: Reopen) -> None:
    create(store)
    create(store, "s")

    assert [store.post("r", body) for body in (b"one", b"", b"three")] == [1, 2, 3]
    assert store.post("s", b"mine") == 1

    messages = reopen().inbox("r")
    assert [(each.number, each.body) for each in messages] == [(1, b"one"), (2, b""), (3, b"three")]
    assert all(each.at > 1e9 for each in messages)
    assert [each.number for each in store.inbox("r", after=1)] == [2, 3]
    assert store.inbox("r", after=3) == store.inbox("unknown") == []


def test_a_message_to_an_unknown_run_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="'nobody'"):
        store.post("nobody", b"hello")
    assert store.runs() == []


@pytest.mark.parametrize(
    "run",
    ["a/b", "..", ".", "é", "x" * 300, "ü" * 300, "A", "a\0b", "%2e%2e", ".keys", "lock", "~", "C:\\x", " "],
)
def test_any_text_can_be_a_run_id(store: Store, reopen: Reopen, tmp_path: Path, run: str) -> None:
    create(store, "a")
    create(store, run, upto=2)
    store.post(run, b"hello")

    later = reopen()
    assert seqs(later, run) == [1, 2] and seqs(later, "a") == [1]
    assert later.runs(run=run) == [info(run)]
    assert {each.run for each in later.runs()} == {"a", run}
    assert store.delete(run) and seqs(later, "a") == [1]
    assert {path.name for path in tmp_path.iterdir()} <= {"runs", "runs.db", "runs.db-wal", "runs.db-shm"}


def test_long_run_ids_that_begin_alike_are_different_runs(store: Store) -> None:
    create(store, "x" * 300 + "1", upto=2)
    create(store, "x" * 300 + "2", upto=3)

    assert seqs(store, "x" * 300 + "1") == [1, 2]


def test_a_big_body_is_kept_whole(store: Store, reopen: Reopen) -> None:
    big = bytes(range(256)) * (5 << 12)
    store.commit(
        [Append("r", 0, [entry(1, big), entry(2, big)], info("r"), [replace(snapshot(1), body=big)])]
    )

    later = reopen()
    assert [each.body == big for each in later.read("r")] == [True, True]
    kept = later.snapshot("r")
    assert kept is not None and kept.body == big
    assert later.marks("r", limit=1)[0].size == len(big)


def test_of_many_threads_appending_to_one_run_exactly_one_wins_each_seq(store: Store) -> None:
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


def test_threads_may_read_while_others_write(store: Store) -> None:
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


def test_a_closed_store_says_so(url: str) -> None:
    store = open_store(url)
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
