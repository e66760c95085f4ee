"""The journal over real stores: checksums, snapshots, group commit, and the fence."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import (
    END,
    START,
    CheckpointNotFound,
    CheckpointPolicy,
    CorruptJournal,
    RunConflict,
    RunExists,
    RunNotFound,
    StateGraph,
    StoreError,
    append,
    keep_last,
    merge,
    open_store,
    union,
)
from holdfast.journal import writer as writer_module
from holdfast.journal.checkpoint_ids import (
    checkpoint_id,
    decode_checkpoint,
    is_checkpoint_id,
    locate_checkpoint,
    new_run_key,
)
from holdfast.journal.journal import Journal
from holdfast.journal.records import GraphChanged, RunStarted, StateEdited, Target
from holdfast.journal.writer import Writer
from holdfast.state.codec import Codec
from holdfast.state.ops import make_op
from holdfast.stores.base import Append, Conflict, Entry, RunInfo, Snapshot, Store, StoredCheckpoint
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from tests.graphs import chain, one

CODEC = Codec()


def made(store: Store, run: str = "r") -> None:
    chain("a", "b", "c").compile(store).invoke({"n": 1}, run_id=run)


def with_entries(source: Store, change: Callable[[list[Entry]], list[Entry]], run: str = "r") -> Journal:
    """A journal whose store holds a run as `change` left it."""
    store = MemoryStore()
    store.commit([Append(run, 0, list(source.read(run, 0, 1)), source.runs(run=run)[0])])
    stored = store._runs[run]
    stored.entries = change(list(source.read(run)))
    return Journal(store)


def load(journal: Journal, run: str = "r", upto: int | None = None) -> Any:
    return journal.load(journal.info(run), CODEC, upto)


def changed(entry: Entry, **parts: Any) -> Entry:
    """An entry that differs in some parts."""
    return Entry(**{name: getattr(entry, name) for name in ("seq", "at", "chain", "body", "mark")} | parts)


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


def test_an_untouched_journal_loads(store: Store) -> None:
    made(store)

    assert load(Journal(store)).run.status == "completed"


@pytest.mark.parametrize("part", ["body", "mark", "chain"])
def test_a_single_changed_byte_anywhere_is_found_and_located(memory: Store, part: str) -> None:
    made(memory)
    checked = 0
    for entry in memory.read("r"):
        data: bytes | None = getattr(entry, part)
        for place in range(len(data or b"")):
            assert data is not None
            broken = changed(entry, **{part: flipped(data, place)})
            journal = with_entries(
                memory, lambda entries, e=broken: [e if x.seq == e.seq else x for x in entries]
            )
            with pytest.raises(CorruptJournal, match=f"run 'r': entry {entry.seq} is damaged") as caught:
                load(journal)
            assert (caught.value.run, caught.value.seq) == ("r", entry.seq)
            checked += 1
    assert checked >= 20


@pytest.mark.parametrize(
    "change",
    [
        lambda e: changed(e, at=e.at + 1),
        lambda e: changed(e, mark=None),
        lambda e: changed(e, body=e.body[:-1]),
        lambda e: changed(e, body=e.body + b"\x00"),
        lambda e: changed(e, body=b""),
    ],
)
def test_a_changed_time_mark_or_length_is_found(memory: Store, change: Any) -> None:
    made(memory)
    journal = with_entries(memory, lambda entries: [entries[0], change(entries[1]), *entries[2:]])

    with pytest.raises(CorruptJournal) as caught:
        load(journal)
    assert caught.value.seq == 2


def test_a_missing_entry_is_found(memory: Store) -> None:
    made(memory)

    with pytest.raises(CorruptJournal, match="run 'r': entry 2 is missing") as caught:
        load(with_entries(memory, lambda entries: [entries[0], *entries[2:]]))
    assert (caught.value.run, caught.value.seq) == ("r", 2)


def test_entries_in_another_order_or_of_another_run_are_found(memory: Store) -> None:
    made(memory)
    made(memory, "other")
    foreign = list(memory.read("other"))

    with pytest.raises(CorruptJournal):
        load(with_entries(memory, lambda entries: foreign))
    with pytest.raises(CorruptJournal):
        load(with_entries(memory, lambda entries: [*entries[:2], foreign[2], *entries[3:]]))


def test_a_run_without_entries_is_corrupt(memory: Store) -> None:
    made(memory)

    with pytest.raises(CorruptJournal, match="run 'r' has no entries"):
        load(with_entries(memory, lambda entries: []))


def test_what_lies_before_the_damage_can_still_be_read(memory: Store) -> None:
    made(memory)
    app = chain("a", "b", "c").compile(memory)
    second = app.checkpoints("r")[1]
    memory._runs["r"].entries[-1] = changed(memory._runs["r"].entries[-1], body=b"junk")  # type: ignore[attr-defined]

    assert app.get_state("r", checkpoint_id=second.id)["log"] == ["a", "b"]
    with pytest.raises(CorruptJournal):
        app.get_state("r")


@pytest.mark.parametrize("part", ["body", "chain"])
def test_damage_in_a_sqlite_file_is_found(sqlite_url: str, tmp_path: Path, part: str) -> None:
    """S0.14"""
    store = open_store(sqlite_url)
    app = one(lambda s, ctx: {"log": [ctx.ask("well?")]}).compile(store)
    app.invoke(run_id="r")
    store.close()
    with sqlite3.connect(tmp_path / "runs.db") as database:
        ident, data = database.execute(f"SELECT id, {part} FROM entries ORDER BY id LIMIT 1").fetchone()
        database.execute(
            f"UPDATE entries SET {part} = ? WHERE id = ?", (flipped(data, len(data) // 2), ident)
        )
    database.close()

    store = open_store(sqlite_url)
    for act in ("resume", "get_state", "pauses", "cancel"):
        with pytest.raises(CorruptJournal, match="run 'r': entry 1 is damaged"):
            getattr(one(lambda s: None).compile(store), act)("r")
    store.close()


def test_damage_in_a_run_folder_is_found(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path / 'runs'}")
    made(store)
    store.close()
    paths = [
        path for path in (tmp_path / "runs").rglob("*") if path.is_file() and b"graph" in path.read_bytes()
    ]
    found = 0
    for path in paths:
        content = path.read_bytes()
        for place in range(0, len(content), max(1, len(content) // 40)):
            path.write_bytes(flipped(content, place))
            store = open_store(f"file://{tmp_path / 'runs'}")
            try:
                assert load(Journal(store)).run.root.cells["log"].get() == ["a", "b", "c"]
            except (StoreError, RunNotFound):
                found += 1
            finally:
                store.close()
        path.write_bytes(content)
    assert found > 20


# Snapshots.


class Messages(TypedDict, total=False):
    n: int
    messages: Annotated[list[str], append]
    page: str


def noise(seed: int, size: int) -> str:
    """Text that hardly compresses."""
    return random.Random(seed).randbytes(size // 2).hex()


def loop(steps: int, step: Callable[[int], dict[str, Any]]) -> StateGraph:
    """A node that is visited `steps` times and each time makes the update of its number."""

    def work(state: Any) -> dict[str, Any]:
        return {"n": state["n"] + 1, **step(state["n"])}

    graph = StateGraph(Messages, name="loop", max_iterations=steps + 1).add_node("work", work)
    graph.add_edge(START, "work").add_edge("work", "work", when=lambda s: s["n"] < steps).add_edge(
        "work", END
    )
    return graph


def talker(steps: int) -> StateGraph:
    """A loop that appends a message a step."""
    return loop(steps, lambda n: {"messages": [noise(n, 512)]})


def painter(steps: int) -> StateGraph:
    """A loop that rewrites a page at every step."""
    return loop(steps, lambda n: {"page": noise(n, 512)})


class CountingStore(MemoryStore):
    """A memory store that counts its transactions and what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.commits = self.appends = self.entry_bytes = self.snapshot_bytes = self.snapshots = 0

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        self.commits += 1
        self.appends += len(appends)
        self.entry_bytes += sum(len(entry.body) for append in appends for entry in append.entries)
        taken = [snapshot for append in appends for snapshot in append.snapshots]
        self.snapshots += len(taken)
        self.snapshot_bytes += sum(len(snapshot.body) for snapshot in taken)
        return super().commit(appends)


def test_a_growing_list_costs_linear_bytes_snapshots_included(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "SNAPSHOT_FLOOR", 4096)
    written = {}
    for steps in (200, 800):
        store = CountingStore()
        talker(steps).compile(store).invoke({"n": 0}, run_id="r")
        written[steps] = store.entry_bytes + store.snapshot_bytes

    assert written[800] < 4.4 * written[200]
    assert written[800] < 1.4 * 800 * 512


def test_snapshots_cost_no_more_than_the_journal_and_bound_what_a_load_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_module, "SNAPSHOT_FLOOR", 4096)
    store = CountingStore()
    painter(400).compile(store).invoke({"n": 0}, run_id="r")

    assert store.snapshots > 5 and store.snapshot_bytes < store.entry_bytes
    newest = store.snapshot("r")
    assert newest is not None
    assert sum(len(entry.body) for entry in store.read("r", newest.seq)) < store.entry_bytes / 8


def test_a_large_input_is_packed_once_and_not_again_to_see_whether_a_snapshot_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    make = Journal.make_snapshot
    monkeypatch.setattr(
        Journal,
        "make_snapshot",
        lambda self, loaded, codec: (taken.append(loaded.seq), make(self, loaded, codec))[1],
    )
    graph = StateGraph({"n": int, "blob": bytes}, name="large")
    for number in range(20):
        graph.add_node(
            f"s{number}", lambda state: {"n": state["n"] + 1}, after=[f"s{number - 1}"] if number else []
        )
    app = graph.compile("memory://")

    assert app.invoke({"n": 0, "blob": random.Random(1).randbytes(1_000_000)}, run_id="r").state["n"] == 20
    assert taken == []


def test_snapshots_are_only_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "SNAPSHOT_FLOOR", 2048)
    store = CountingStore()
    app = painter(60).compile(store)
    app.invoke({"n": 0}, run_id="r")
    with_them, marks = app.get_state("r"), app.checkpoints("r")
    middle = app.get_state("r", checkpoint_id=marks[30].id)
    assert store.snapshots > 2

    store._runs["r"].snapshots.clear()

    assert app.get_state("r") == with_them and with_them["n"] == 60
    assert app.get_state("r", checkpoint_id=marks[30].id) == middle and middle["page"] == noise(30, 512)


def test_a_damaged_snapshot_is_passed_over_while_the_journal_reaches_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer_module, "SNAPSHOT_FLOOR", 1024)
    store = MemoryStore()
    app = painter(20).compile(store)
    whole = app.invoke({"n": 0}, run_id="r").state
    held = store._runs["r"].snapshots
    newest = max(held)
    for place in range(0, len(held[newest].body), 97):
        good = held[newest]
        held[newest] = Snapshot(good.seq, good.at, good.chain, flipped(good.body, place))
        assert app.get_state("r") == whole
        held[newest] = good
    assert f"run 'r': the snapshot at {newest} is damaged; the run is read from its journal" in caplog.text


def test_a_damaged_snapshot_of_a_pruned_run_is_an_error_that_says_where() -> None:
    store = MemoryStore()
    made(store)
    journal = Journal(store)
    store.prune("r", journal.make_snapshot(load(journal, upto=3), CODEC))
    assert load(journal).run.status == "completed"
    held = store._runs["r"].snapshots
    held[3] = Snapshot(3, 0.0, held[3].chain, flipped(held[3].body, 40))

    with pytest.raises(CorruptJournal, match="the snapshot at 3 is damaged") as caught:
        load(journal)
    assert (caught.value.run, caught.value.seq) == ("r", 3)


def test_an_entry_that_does_not_follow_is_corrupt_even_with_a_good_checksum(memory: Store) -> None:
    journal = Journal(memory)
    info = RunInfo("r", new_run_key(), "w", "running", 0.0, 0.0)
    writer = Writer.create(journal, info, CODEC, durable=False)
    writer.record(RunStarted("w", (), (), b"", {}, ""))
    writer.flush()
    writer._pending.append(StateEdited("nowhere#1", ()))
    writer.flush()

    with pytest.raises(CorruptJournal, match="entry 2 does not follow from what came before"):
        load(journal)


# Group commit.


class CountingSqlite(SqliteStore):
    """A SQLite store that counts its transactions."""

    commits = appends = 0

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        self.commits += 1
        self.appends += len(appends)
        return super().commit(appends)


async def test_many_runs_in_one_process_share_commits(tmp_path: Path) -> None:
    store = CountingSqlite(tmp_path / "runs.db")
    app = chain(*(f"s{n}" for n in range(10)), nodes={f"s{n}": _async_step for n in range(10)}).compile(store)

    outcomes = await asyncio.gather(*(app.ainvoke(run_id=f"r{n}") for n in range(40)))

    assert all(outcome.state["log"] == ["x"] * 10 for outcome in outcomes)
    assert store.appends >= 400 and store.commits < store.appends / 5
    store.close()


async def _async_step(state: Any) -> dict[str, Any]:
    return {"log": ["x"]}


def test_runs_in_many_threads_share_commits(tmp_path: Path) -> None:
    store = CountingSqlite(tmp_path / "runs.db")
    app = chain("a", "b", "c").compile(store)
    begin = threading.Barrier(8)
    done: list[Any] = []

    def work(number: int) -> None:
        begin.wait()
        for turn in range(5):
            done.append(app.invoke(run_id=f"{number}-{turn}").state["log"])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert done == [["a", "b", "c"]] * 40
    assert store.commits < store.appends
    assert {info.status for info in store.runs()} == {"completed"}
    store.close()


async def test_a_conflict_of_one_run_does_not_touch_the_others_in_its_commit(memory: Store) -> None:
    journal = Journal(memory)
    writers = []
    for number in range(3):
        info = RunInfo(f"r{number}", new_run_key(), "w", "running", 0.0, 0.0)
        writer = Writer.create(journal, info, CODEC, durable=False)
        writer.record(RunStarted("w", (), (Target("a"),), b"", {}, ""))
        writers.append(writer)
    made(memory, "r1")

    results = await asyncio.gather(*(writer.flush_async() for writer in writers), return_exceptions=True)

    assert [type(result) for result in results] == [type(None), RunExists, type(None)]
    assert load(journal, "r1").run.status == "completed"


@pytest.mark.parametrize("error", [StoreError("the disk is full"), ZeroDivisionError("a bug in a store")])
async def test_whatever_a_store_raises_reaches_everybody_who_waits_as_a_store_error(error: Exception) -> None:
    class Broken(MemoryStore):
        def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
            raise error

    journal = Journal(Broken())
    writers = []
    for number in range(3):
        info = RunInfo(f"r{number}", new_run_key(), "w", "running", 0.0, 0.0)
        writers.append(Writer.create(journal, info, CODEC, durable=False))
        writers[-1].record(RunStarted("w", (), (Target("a"),), b"", {}, ""))

    results = await asyncio.gather(*(writer.flush_async() for writer in writers), return_exceptions=True)

    assert {type(result) for result in results} == {StoreError}
    assert all(error in (result, result.__cause__) for result in results)  # type: ignore[union-attr]
    assert all(writer.has_unsaved for writer in writers)
    with pytest.raises(StoreError, match=str(error)) as raised:
        writers[0].flush()
    assert error in (raised.value, raised.value.__cause__)


# Any run at all.

UPDATES = st.fixed_dictionaries(
    {},
    optional={
        "text": st.text(max_size=5) | st.integers(0, 9).map(lambda n: noise(7, 3000) + str(n)),
        "log": st.lists(st.integers(), max_size=3),
        "facts": st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=2),
        "tags": st.sets(st.integers(0, 5), max_size=3),
        "recent": st.lists(st.integers(), max_size=3),
        "top": st.integers(),
    },
)


def highest(old: int | None, new: int) -> int:
    return new if old is None else max(old, new)


SCHEMA = {
    "text": str,
    "log": Annotated[list[int], append],
    "facts": Annotated[dict[str, int], merge],
    "tags": Annotated[set[int], union],
    "recent": Annotated[list[int], keep_last(2)],
    "top": Annotated[int, highest],
}


def expected(states: list[dict[str, Any]], update: dict[str, Any]) -> dict[str, Any]:
    """What the state must be after one more update, in plain Python."""
    old = states[-1] if states else {"log": [], "facts": {}, "tags": set(), "recent": []}
    new = {**old, **update}
    new["log"] = [*old["log"], *update.get("log", [])]
    new["facts"] = {**old["facts"], **update.get("facts", {})}
    new["tags"] = {*old["tags"], *update.get("tags", ())}
    new["recent"] = [*old["recent"], *update.get("recent", [])][-2:]
    if "top" in update:
        new["top"] = max(old.get("top", 0), update["top"])
    return new


@given(st.lists(UPDATES, min_size=1, max_size=12), st.integers(-20_000, 3000), st.booleans(), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_checkpoint_of_any_run_reads_as_it_was_also_across_snapshots_and_pruning(
    monkeypatch: pytest.MonkeyPatch,
    updates: list[dict[str, Any]],
    floor: int,
    nested: bool,
    data: st.DataObject,
) -> None:
    monkeypatch.setattr(writer_module, "SNAPSHOT_FLOOR", floor)
    todo = iter(updates)
    graph = StateGraph(SCHEMA, name="any")
    for number in range(len(updates)):
        graph.add_node(f"n{number}", lambda state: next(todo), after=[f"n{number - 1}"] if number else [])
    if nested:
        graph = StateGraph(SCHEMA, name="outer").add_node("sub", graph).add_edge(START, "sub")
    store = MemoryStore()
    app = graph.compile(store)
    out = app.invoke(run_id="r")

    states: list[dict[str, Any]] = []
    for update in updates:
        states.append(expected(states, update))
    assert out.state == states[-1] == app.get_state("r")
    if nested:
        return
    found = app.checkpoints("r")
    assert [app.get_state("r", checkpoint_id=mark.id) for mark in found] == states
    horizon = data.draw(st.integers(0, len(found) - 1))
    journal = app._settings.journal
    store.prune("r", journal.make_snapshot(load(journal, upto=found[horizon].seq), CODEC))
    assert [app.get_state("r", checkpoint_id=mark.id) for mark in app.checkpoints("r")] == states[horizon:]


# The fence.


def test_a_stale_writer_is_refused_and_changes_nothing(store: Store) -> None:
    app = one(lambda s, ctx: {"log": [ctx.ask("well?")]}).compile(store)
    app.invoke(run_id="r")
    journal = Journal(store)
    writers = [Writer(journal, load(journal), CODEC, durable=False) for _ in range(2)]
    for writer in writers:
        writer.record(StateEdited("", ()))

    writers[0].flush()
    before = list(store.read("r"))
    with pytest.raises(RunConflict, match="'r' was advanced by another owner"):
        writers[1].flush()

    assert list(store.read("r")) == before


def test_a_run_id_is_given_only_once(store: Store) -> None:
    app = chain("a").compile(store)
    app.invoke(run_id="r")

    with pytest.raises(
        RunExists, match=r"run 'r' exists and is completed .in .*; .* give the new run another"
    ):
        app.invoke(run_id="r")


def test_a_failed_append_is_sent_with_the_next_one(memory: Store) -> None:
    class Flaky(MemoryStore):
        broken = False

        def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
            if self.broken:
                raise StoreError("the disk is full")
            return super().commit(appends)

    flaky = Flaky()
    journal = Journal(flaky)
    info = RunInfo("r", new_run_key(), "w", "running", 0.0, 0.0)
    writer = Writer.create(journal, info, CODEC, durable=False)
    writer.record(RunStarted("w", (), (Target("a"),), b"", {}, ""))
    writer.flush()
    flaky.broken = True
    for _ in range(2):
        writer.record(StateEdited("", ()))
        with pytest.raises(StoreError, match="disk is full"):
            writer.flush()
    assert writer.has_unsaved and writer.stored == 1
    flaky.broken = False
    writer.flush()

    assert not writer.has_unsaved and load(journal).seq == writer.stored == 3


# Checkpoint ids.


def test_checkpoint_ids_are_uuids_that_lead_back() -> None:
    """S0.5"""
    key = new_run_key()
    idents = {checkpoint_id(key, seq) for seq in range(1, 500)}

    assert len(idents) == 499 and all(uuid.UUID(ident).version == 4 for ident in idents)
    assert all(is_checkpoint_id(ident) for ident in idents)
    assert [locate_checkpoint(checkpoint_id(key, seq)) for seq in (1, 77, 2**40)] == [
        (key, 1),
        (key, 77),
        (key, 2**40),
    ]


def test_what_is_no_checkpoint_id_is_refused(memory: Store) -> None:
    """S0.14"""
    app = chain("a").compile(memory)
    app.invoke(run_id="r")

    assert not is_checkpoint_id("r") and not is_checkpoint_id(str(uuid.uuid1()))
    with pytest.raises(CheckpointNotFound, match="checkpoint not found: nonsense"):
        app.get_state("r", checkpoint_id="nonsense")
    with pytest.raises(CheckpointNotFound, match="checkpoint not found"):
        app.get_state("r", checkpoint_id=str(uuid.uuid4()))
    with pytest.raises(CheckpointNotFound, match="checkpoint not found"):
        app.resume(str(uuid.uuid4()))


def test_a_checkpoint_of_another_run_is_not_this_ones(memory: Store) -> None:
    app = chain("a").compile(memory)
    app.invoke(run_id="r")
    other = app.invoke(run_id="s").checkpoint_id

    with pytest.raises(CheckpointNotFound, match="it is one of run 's'"):
        app.get_state("r", checkpoint_id=other)


def test_a_damaged_mark_is_located() -> None:
    for bad in (b"", b"\xc1", b"\x93\x01\x02\x03", b"\x01"):
        with pytest.raises(
            CorruptJournal, match="the checkpoint at 3 of run 'r' has damaged facts"
        ) as caught:
            decode_checkpoint(b"12345678", StoredCheckpoint(3, 1.0, bad, 9), "r")
        assert (caught.value.run, caught.value.seq) == ("r", 3)


@pytest.mark.parametrize("kind", ["keep", "merge", "set"])
def test_what_a_load_reads_does_not_grow_with_the_length_of_a_run(
    kind: str, memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "SNAPSHOT_FLOOR", 4096)
    schema = {
        "n": int,
        "keep": Annotated[list[str], keep_last(3)],
        "merge": Annotated[dict[str, str], merge],
        "set": str,
    }

    def work(state: Any) -> dict[str, Any]:
        text = f"{state['n']:04d}" * 200
        values: dict[str, Any] = {"keep": [text], "merge": {"k": text}, "set": text}
        return {"n": state["n"] + 1, kind: values[kind]}

    graph = StateGraph(schema, max_iterations=500).add_node("work", work).add_edge(START, "work")
    graph.add_edge("work", "work", when=lambda s: s["n"] < 400).add_edge("work", END)
    app = graph.compile(memory)
    app.invoke({"n": 0}, run_id="r")

    snapshot = memory.snapshot("r")
    assert snapshot is not None
    behind = sum(len(entry.body) for entry in memory.read("r", snapshot.seq))
    assert behind < 4 * (4096 + len(snapshot.body)) + 2048
    assert app.get_state("r")["n"] == 400


def test_undoing_many_differences_of_a_large_value_is_bounded(
    memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "WORK_FLOOR", 4_000_000)
    large = "".join(f"{number:08d}" for number in range(40_000))

    def work(state: Any) -> dict[str, Any]:
        n = state["n"]
        return {"n": n + 1, "text": f"{large[: n * 16]}edit{large[n * 16 + 4 :]}"}

    graph = StateGraph({"n": int, "text": str}, max_iterations=500).add_node("work", work)
    graph.add_edge(START, "work").add_edge("work", "work", when=lambda s: s["n"] < 120).add_edge("work", END)
    app = graph.compile(memory)
    app.invoke({"n": 0, "text": large}, run_id="r")

    snapshot = memory.snapshot("r")
    assert snapshot is not None and snapshot.seq > 30
    assert app.get_state("r")["text"] == f"{large[: 119 * 16]}edit{large[119 * 16 + 4 :]}"


def test_a_commit_whose_acknowledgement_was_lost_is_no_conflict() -> None:
    class Lossy(MemoryStore):
        commits = 0

        def commit(self, appends: Any) -> Any:
            self.commits += 1
            answers = super().commit(appends)
            if self.commits in (1, 3):
                raise StoreError("the line is dead")
            return answers

    policy = CheckpointPolicy(on_save_error="continue")
    app = chain("a", "b", "c").compile(Lossy(), policy=policy)

    assert app.invoke(run_id="r").status == "completed"
    assert app.get_state("r")["log"] == ["a", "b", "c"] and [info.status for info in app.runs()] == [
        "completed"
    ]


def test_records_that_could_not_be_encoded_leave_the_versions_as_they_were(memory: Store) -> None:
    codec = Codec()
    info = RunInfo("r", b"k" * 8, "w", "running", 1.0, 1.0)
    writer = Writer.create(Journal(memory), info, codec, durable=True)
    large = [make_op(codec, "set", "x", "long " * 1000)]
    writer.record(RunStarted("w", tuple(large), (Target("a"),), b"", {}, ""))
    writer.record(GraphChanged({"nodes": "\ud800"}))
    with pytest.raises(TypeError):
        writer.flush()
    writer._pending.pop()
    writer.flush()

    assert Journal(memory).load(info, codec).run.root.cells["x"].get() == "long " * 1000
