"""`JournalCheckpointStore` over every kind of store."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast import CheckpointNotFound, HoldfastError, RunExists, State, StoreError, open_store
from holdfast.checkpoints import JournalCheckpointStore
from holdfast.stores import get_store, register_store
from holdfast.stores.base import Store
from tests.checkpoints.samples import Calls, Flaky, age
from tests.graphs import chain


@pytest.fixture
def checkpoints(store: Store) -> JournalCheckpointStore:
    return JournalCheckpointStore(store)


# Saving and loading states.


def test_a_saved_state_is_loaded_as_it_was(checkpoints):
    """S0.23, S2.3, S3.5: save, then load: the state matches exactly, in keys, values, node and time."""
    state = State({"n": 1, "tags": {"x"}, "pair": (1, 2), "raw": b"\0"}).set_checkpoint_node("fetch")

    checkpoints.save(state)

    loaded = checkpoints.load_state(state.run_id)
    assert loaded == state
    assert type(loaded["pair"]) is tuple
    assert (loaded.run_id, loaded.checkpoint_node, loaded.timestamp) == (
        state.run_id,
        "fetch",
        state.timestamp,
    )


def test_saving_gives_the_state_a_checkpoint_id_that_is_a_random_uuid(checkpoints):
    """S0.5, S3.8: the id is a version 4 UUID, the saved state knows it, and so does the stored one."""
    fresh = State({"n": 1})

    saved = fresh.checkpoint(checkpoints)

    assert fresh.checkpoint_id == ""
    assert uuid.UUID(saved.checkpoint_id).version == 4
    assert checkpoints.load_state(saved.checkpoint_id).checkpoint_id == saved.checkpoint_id
    assert checkpoints.load(saved.run_id).checkpoint_id == saved.checkpoint_id


def test_later_saves_of_a_run_replace_its_state_and_keep_the_earlier_checkpoints(checkpoints):
    """S3.5: one current state per run, keyed by run id; and none of the older ones changes with it."""
    first = State({"n": 1, "gone": True}).set_checkpoint_node("a").checkpoint(checkpoints)
    second = State({"n": 2}, run_id=first.run_id).set_checkpoint_node("b").checkpoint(checkpoints)

    assert checkpoints.load_state(first.run_id) == {"n": 2}
    assert checkpoints.load_state(first.checkpoint_id) == {"n": 1, "gone": True}
    assert checkpoints.list() == [first.run_id]
    assert [data.checkpoint_id for data in checkpoints.list_checkpoints()] == [
        second.checkpoint_id,
        first.checkpoint_id,
    ]
    assert checkpoints.load(first.run_id).completed == ("a", "b")


def test_a_missing_checkpoint_is_none_or_an_error_that_names_it(checkpoints):
    """S1.11, S2.9, S3.6: `load` answers None, `load_state` raises "checkpoint not found: <id>"."""
    for ident in ("nobody", str(uuid.uuid4())):
        assert checkpoints.load(ident) is None
        with pytest.raises(CheckpointNotFound, match=f"checkpoint not found: {ident}"):
            checkpoints.load_state(ident)


def test_deleting_is_idempotent_and_by_run_or_by_checkpoint(checkpoints):
    """S1.11, S2.9, S3.6: deleting what is not there is no error."""
    old = State({"n": 1}).checkpoint(checkpoints)
    middle = State({"n": 1.5}, run_id=old.run_id).checkpoint(checkpoints)
    new = State({"n": 2}, run_id=old.run_id).checkpoint(checkpoints)
    other = State({"n": 3}).checkpoint(checkpoints)

    checkpoints.delete(old.checkpoint_id)
    assert checkpoints.load(old.checkpoint_id) is None
    assert checkpoints.load_state(middle.checkpoint_id) == {"n": 1.5}
    assert checkpoints.load_state(new.checkpoint_id) == {"n": 2}

    checkpoints.delete(new.checkpoint_id)
    checkpoints.delete(other.run_id)
    checkpoints.delete(other.run_id)
    checkpoints.delete(str(uuid.uuid4()))
    assert checkpoints.list() == []


def test_the_run_of_a_graph_is_saved_by_that_graph_only(store):
    app = chain("a", name="workflow_file").compile(store)
    out = app.invoke({}, run_id="r")

    with pytest.raises(RunExists, match="'r' is one of workflow 'workflow_file'"):
        out.state.checkpoint(JournalCheckpointStore(store))

    assert app.get_state("r") == out.state


def test_a_state_saved_by_hand_is_resumed_after_its_node(store, caplog):
    """S3.18, S0.4: a checkpoint is a state and a position; a graph goes on with the next node."""
    calls = Calls()
    graph = chain("a", "b", "c", nodes={name: calls.node(name) for name in "abc"})
    saved = (
        State({"n": 7, "log": ["by hand"]}).set_checkpoint_node("a").checkpoint(JournalCheckpointStore(store))
    )

    out = graph.compile(store).resume(saved.run_id)

    assert calls == ["b", "c"]
    assert out.state == {"n": 7, "log": ["by hand", "b", "c"]}
    assert caplog.text == "", "there is no earlier graph that this one could differ from"


def test_a_state_that_no_node_made_is_resumed_at_the_entry(store):
    calls = Calls()
    graph = chain("a", "b", nodes={name: calls.node(name) for name in "ab"})
    saved = State({"log": []}).checkpoint(JournalCheckpointStore(store))
    data = JournalCheckpointStore(store).load(saved.run_id)
    assert (data.completed, data.completed_waves, data.iteration, data.state.checkpoint_node) == (
        (),
        0,
        0,
        "",
    )

    assert graph.compile(store).resume(saved.run_id).state == {"log": ["a", "b"]}


def test_a_state_whose_node_the_graph_lacks_is_refused_not_finished(store):
    saved = State({"log": []}).set_checkpoint_node("elsewhere").checkpoint(JournalCheckpointStore(store))

    with pytest.raises(HoldfastError, match="elsewhere"):
        chain("a").compile(store).resume(saved.run_id)


# Backends.


def test_the_default_is_in_memory_and_needs_nothing(monkeypatch):
    """S2.6, S2.10, S1.2: without a store everything works, in memory."""
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    checkpoints = JournalCheckpointStore()
    state = State({"n": 1}).checkpoint(checkpoints)

    assert checkpoints.store is get_store("memory")
    assert JournalCheckpointStore("memory").load_state(state.run_id) == {"n": 1}
    checkpoints.delete(state.run_id)


def test_a_path_gives_a_database_that_outlives_the_process_that_made_it(tmp_path):
    """S0.1, S1.2, S1.12: checkpoints in an embedded database; no server, no set-up."""
    path = tmp_path / "checkpoints.db"
    checkpoints = JournalCheckpointStore(path)
    state = State({"n": 1}).set_checkpoint_node("a").checkpoint(checkpoints)
    checkpoints.store.close()

    again = JournalCheckpointStore(path)

    assert again.load_state(state.run_id) == {"n": 1}
    again.store.close()


def test_the_database_finds_a_workflows_latest_by_an_index(tmp_path):
    """S0.2, S1.13: runs by workflow and last change, and entries by run and position, are indexed."""
    store = open_store(tmp_path / "runs.db")
    import apsw

    database = apsw.Connection(str(tmp_path / "runs.db"))

    def plan(query: str) -> str:
        return " ".join(str(row[3]) for row in database.execute(f"EXPLAIN QUERY PLAN {query}"))

    by_workflow = plan("SELECT run FROM runs WHERE workflow = 'w' ORDER BY updated_at DESC")
    assert "INDEX" in by_workflow and "TEMP B-TREE" not in by_workflow
    assert "INDEX" in plan("SELECT run FROM runs ORDER BY updated_at DESC")
    database.close()
    store.close()


def test_named_stores_are_resolved_through_the_registry():
    """S3.7: "memory" is there, others are registered, an unknown name is an error that says so."""
    mine = open_store("memory://")
    register_store("mine", mine)

    assert JournalCheckpointStore("mine").store is mine
    assert JournalCheckpointStore("memory").store is get_store("memory")
    with pytest.raises(StoreError, match="unknown checkpoint store: nowhere"):
        JournalCheckpointStore("nowhere")


def test_an_encrypted_store_is_read_with_its_key(tmp_path):
    key = "00" * 32
    app = chain("a").compile(tmp_path / "runs.db", encryption_key=key)
    app.invoke({"n": 1}, run_id="r")

    assert JournalCheckpointStore(app.store, encryption_key=key).load_state("r")["n"] == 1
    assert JournalCheckpointStore(app).load_state("r")["n"] == 1
    with pytest.raises(HoldfastError, match="encrypted"):
        JournalCheckpointStore(app.store).load("r")
    app.store.close()


def test_a_save_is_one_transaction(tmp_path):
    """S0.6: all of a save is there, or nothing."""
    store = open_store(tmp_path / "runs.db")
    checkpoints = JournalCheckpointStore(store)
    state = State({"n": 1}).checkpoint(checkpoints)
    before = list(store.read(state.run_id))

    State({"n": 2}, run_id=state.run_id).set_checkpoint_node("a").checkpoint(checkpoints)

    assert len(list(store.read(state.run_id))) == len(before) + 1
    store.close()


# Listing and pruning.


def test_checkpoints_are_listed_newest_first_and_by_workflow(store, checkpoints):
    """S1.11, S2.9: all, those of one workflow, and its latest."""
    for name in ("one", "two", "one"):
        chain("a", "b", name=name).compile(store).invoke({})

    listed = checkpoints.list_checkpoints()
    assert [data.created_at for data in listed] == sorted((d.created_at for d in listed), reverse=True)
    assert {data.workflow_name for data in listed} == {"one", "two"}
    ones = checkpoints.list_checkpoints("one")
    assert len({data.run_id for data in ones}) == 2
    assert {data.workflow_name for data in ones} == {"one"}
    assert checkpoints.latest("one").checkpoint_id == ones[0].checkpoint_id
    assert checkpoints.latest("three") is None
    assert len(checkpoints.list()) == 3


def test_pruning_keeps_the_newest_checkpoints_of_a_workflow(store, checkpoints):
    """S0.4, S0.16, S0.23: five by default, others by asking, of that workflow only."""
    app = chain(*"abcdefgh", name="long").compile(store)
    app.invoke({}, run_id="r")
    chain(*"abcdefgh", name="other").compile(store).invoke({})
    newest = [data.checkpoint_id for data in checkpoints.list_checkpoints("long")]

    assert checkpoints.prune_old_checkpoints("long") == len(newest) - 5
    assert [data.checkpoint_id for data in checkpoints.list_checkpoints("long")] == newest[:5]
    assert checkpoints.prune_old_checkpoints("long", keep_count=2) == 3
    assert [data.checkpoint_id for data in checkpoints.list_checkpoints("long")] == newest[:2]
    assert len(checkpoints.list_checkpoints("other")) == len(newest)
    assert checkpoints.load_state("r")["log"] == list("abcdefgh")
    with pytest.raises(HoldfastError, match="at least 1"):
        checkpoints.prune_old_checkpoints("long", keep_count=0)


def test_a_pruned_checkpoint_tells_what_the_journal_still_knows(store, checkpoints):
    chain(*"abcd", name="w").compile(store).invoke({"n": 1}, run_id="r")
    checkpoints.prune_old_checkpoints("w", keep_count=2)

    oldest = checkpoints.list_checkpoints()[-1]

    assert oldest.completed == ("a", "b", "c")
    assert oldest.completed_waves == 3
    assert oldest.state == {"n": 1, "log": ["a", "b", "c"]}
    assert set(checkpoints.load("r").outputs) == {"d#1"}


def test_pruning_by_count_and_age_spares_the_last_success_and_what_can_be_resumed(store, checkpoints):
    """S1.5, S1.11: oldest first, per workflow; the last successful run and a resumable run's newest stay."""
    flaky = Flaky(RuntimeError("429"))
    good = chain("a", "b", "c", name="w").compile(store)
    bad = chain("a", "b", nodes={"b": Calls().node("b", fails=flaky)}, name="w").compile(store)
    for run in ("first", "second"):
        good.invoke({}, run_id=run)
    with pytest.raises(HoldfastError):
        bad.invoke({}, run_id="failed")
    good.invoke({}, run_id="third")
    before = len(checkpoints.list_checkpoints())

    gone = checkpoints.prune(max_count=1)

    assert gone == before - len(checkpoints.list_checkpoints()) > 0
    assert set(checkpoints.list()) == {"failed", "third"}
    assert len(checkpoints.list_checkpoints()) == 2
    flaky.mend()
    assert bad.resume("failed").state["log"] == ["a", "b"]

    age(store, "failed", days=8)
    age(store, "third", days=9)
    assert checkpoints.prune(max_age_days=7) == 1
    assert checkpoints.list() == ["failed"], "the workflow's last successful run"
    assert checkpoints.prune() == 0


def test_stale_runs_expire_after_a_day_unless_told_otherwise(store, checkpoints):
    """S2.5, S2.9, S2.16: 24 hours by default, configurable; the count says how many checkpoints went."""
    chain("a", "b", name="w").compile(store).invoke({}, run_id="stale")
    fresh = State({"n": 1}).checkpoint(checkpoints)
    count = len(checkpoints.list_checkpoints("w"))
    age(store, "stale", days=1.5)

    assert checkpoints.cleanup_expired(max_age_hours=48) == 0
    assert checkpoints.cleanup_expired() == count
    assert checkpoints.list() == [fresh.run_id]


# Threads and event loops.


def test_many_threads_save_and_load_at_once(store, checkpoints):
    """S3.6, S3.22: no save is lost, whether of one run or of many."""
    shared = State({"n": 0}).checkpoint(checkpoints)
    views = [checkpoints, JournalCheckpointStore(store)]

    def work(number: int) -> str:
        view = views[number % 2]
        State({"n": number}, run_id=shared.run_id).checkpoint(view)
        own = State({"own": number}).checkpoint(view)
        assert view.load(shared.run_id) is not None
        assert view.load_state(own.run_id) == {"own": number}
        view.delete(own.run_id)
        return own.run_id

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(1, 25)))

    saved = [data.state["n"] for data in checkpoints.list_checkpoints()]
    assert sorted(saved) == list(range(25))
    assert checkpoints.list() == [shared.run_id]


async def test_every_method_has_an_async_twin_that_does_not_block_the_loop(tmp_path, monkeypatch):
    """S1.11: the interface of checkpoints for async code; the work is done in another thread."""
    checkpoints = JournalCheckpointStore(tmp_path / "runs.db")
    names = [name for name in dir(JournalCheckpointStore) if not name.startswith("_") and name != "store"]
    assert {name for name in names if f"a{name}" not in names} == {f"a{n}" for n in names if f"a{n}" in names}

    state = State({"n": 1})
    ident = await checkpoints.asave(state, workflow="w")
    assert (await checkpoints.aload(ident)).state == {"n": 1}
    assert await checkpoints.aload_state(state.run_id) == {"n": 1}
    assert await checkpoints.alist() == [state.run_id]
    assert [data.checkpoint_id for data in await checkpoints.alist_checkpoints("w")] == [ident]
    assert (await checkpoints.alatest("w")).checkpoint_id == ident
    assert await checkpoints.aprune(max_age_days=7, max_count=10) == 0
    assert await checkpoints.aprune_old_checkpoints("w") == 0
    assert await checkpoints.acleanup_expired() == 0

    threads: list[int] = []
    delete = checkpoints.store.delete

    def noted(run: str, **known: Any) -> bool:
        threads.append(threading.get_ident())
        return delete(run, **known)

    monkeypatch.setattr(checkpoints.store, "delete", noted)
    await checkpoints.adelete(ident)
    assert len(threads) == 1 and threads[0] != threading.get_ident()
    assert await checkpoints.aload(ident) is None
    checkpoints.store.close()


def test_the_checkpoints_of_two_workflows_in_one_store_do_not_mix(store, checkpoints):
    """S2.4: isolated per run: what one saves, prunes or deletes leaves the other alone."""
    one = State({"secret": 1}).checkpoint(checkpoints)
    two = State({"secret": 2}).checkpoint(checkpoints)

    checkpoints.delete(one.run_id)

    assert checkpoints.load_state(two.run_id) == {"secret": 2}
    assert checkpoints.load(one.checkpoint_id) is None


def test_a_path_object_and_a_url_mean_the_same_store(tmp_path):
    saved = State({"n": 1}).checkpoint(JournalCheckpointStore(Path(tmp_path / "x.db")))
    assert JournalCheckpointStore(f"sqlite:///{tmp_path / 'x.db'}").load_state(saved.run_id) == {"n": 1}
