"""`CheckpointManager`, and `CheckpointData` and the stores of checkpoints by the names of their designs."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import inspect
import json
import pickle
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import (
    END,
    START,
    CheckpointNotFound,
    CodecError,
    HoldfastError,
    RunExists,
    State,
    StateGraph,
    StateInvalid,
    StoreError,
    open_store,
)
from holdfast.checkpoints import (
    CheckpointData,
    CheckpointManager,
    CheckpointState,
    CheckpointStore,
    InMemoryCheckpointStore,
    JournalCheckpointStore,
    PauseMetadata,
    PostgresCheckpointStore,
    SQLiteCheckpointStore,
)
from holdfast.state import WorkflowState
from holdfast.threads import resolved
from tests.checkpoints.samples import Calls
from tests.checkpoints.test_custom_stores import Async, Duck
from tests.graphs import chain

NOW = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


@pytest.fixture(params=["memory", "sqlite", "duck", "async"])
def kept(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Any]:
    """Stores of checkpoints: Holdfast's own, and users'."""
    makers: dict[str, Any] = {"memory": InMemoryCheckpointStore, "duck": Duck, "async": Async}
    if request.param in makers:
        yield makers[request.param]()
    else:
        store = SQLiteCheckpointStore(tmp_path / "checkpoints.db")
        yield store
        store.store.close()


def agent_checkpoint(**other: Any) -> CheckpointData:
    """As the YAML agent runner makes one."""
    facts: dict[str, Any] = {
        "checkpoint_id": str(uuid.uuid4()),
        "workflow_name": "long-analysis",
        "workflow_inputs": {"question": "why"},
        "current_agent": "second",
        "in_progress": "second",
        "completed_agents": ["first"],
        "agent_outputs": {"first": {"text": "tides"}},
        "context_snapshot": {"text": "tides", "pair": (1, 2)},
        "iteration": 1,
        "created_at": NOW,
        "updated_at": NOW,
    }
    return CheckpointData(**{**facts, **other})


# The manager.


def test_a_manager_saves_loads_and_prunes(kept):
    """S0.4, S0.5, S0.8, S0.16, S0.22: ids are version 4 UUIDs, written back; the newest of a workflow are kept."""
    manager = CheckpointManager(kept)
    graph = chain(*"abcdefg", name="layers")
    state: WorkflowState = {"messages": ["hi"], "tasks": [], "decisions": ["go"], "context": {"k": 1}}

    idents = []
    for layer in range(1, 8):
        idents.append(manager.save_checkpoint(state, graph, layer))
        assert dict(state)["checkpoint_id"] == idents[-1] and uuid.UUID(idents[-1]).version == 4
        state["messages"] = [*state["messages"], str(layer)]

    data = manager.load(idents[1])
    assert (data.id, data.layer_index, data.workflow_id) == (idents[1], 2, "layers")
    assert data.state == {"messages": ["hi", "1"], "tasks": [], "decisions": ["go"], "context": {"k": 1}}
    assert data.dag_structure == graph.build().outline() and data.execution_config == {}
    assert manager.prune_old_checkpoints("layers") == 2
    for gone in idents[:2]:
        with pytest.raises(CheckpointNotFound, match=f"checkpoint not found: {gone}"):
            manager.load(gone)
    assert [manager.load(ident).layer_index for ident in idents[2:]] == [3, 4, 5, 6, 7]
    assert manager.prune_old_checkpoints("layers", keep_count=1) == 4
    assert manager.prune_old_checkpoints("others") == 0


def test_a_graph_goes_on_with_the_layer_after_a_manager_s_checkpoint(kept):
    """S0.10, S0.11: after layer 2 of a graph, whose second layer has two tasks, the third runs, and nothing else."""
    calls = Calls()
    graph = StateGraph(dict, name="layers")
    for name in ("first", "left", "right", "last"):
        graph.add_node(name, calls.node(name, update={name: True}))
    graph.add_edge(START, "first").add_edge("first", "left").add_edge("first", "right")
    graph.add_edge(["left", "right"], "last").add_edge("last", END)

    ident = CheckpointManager(kept).save_checkpoint({"n": 1}, graph, layer_index=2)
    out = graph.compile(store=kept).resume(ident)

    assert calls == ["last"] and out.state == {"n": 1, "last": True}


@dataclasses.dataclass
class AgentState:
    """A state with attributes, as executors of layers have it."""

    messages: list[str]
    context: dict[str, Any]
    checkpoint_id: str | None = None


def test_a_state_with_attributes_is_saved_and_gets_the_id_of_its_checkpoint(kept):
    """S0.4, S0.5: `state.checkpoint_id` after the save; the next save is of the same run. A frozen one is saved too."""
    manager = CheckpointManager(kept)
    state = AgentState(["hi"], {"k": 1})

    first = manager.save_checkpoint(state, {"name": "w"}, 1)
    assert state.checkpoint_id == first
    second = manager.save_checkpoint(state, {"name": "w"}, 2)

    assert state.checkpoint_id == second != first
    data = manager.load(second)
    assert data.state == {"messages": ["hi"], "context": {"k": 1}}
    assert data.run_id == manager.load(first).run_id
    frozen = dataclasses.make_dataclass("Frozen", [("checkpoint_id", str)], frozen=True)("")
    assert manager.load(manager.save_checkpoint(frozen, {"name": "w"}, 1)).state == {}


def test_a_manager_takes_states_apps_and_plain_data(kept):
    """S0.4: a `State` keeps its run; a graph may be an app or data such as a list of tasks."""
    manager = CheckpointManager(kept)
    state = State({"n": 1}, run_id="mine")
    app = chain("a", name="w").compile("memory://")
    tasks = {"name": "tasks", "tasks": [{"id": "t1", "tool": "fetch", "depends_on": []}]}

    for dag in (app, app.graph, tasks):
        data = manager.load(manager.save_checkpoint(state, dag, 0))
        assert (data.run_id, data.state) == ("mine", {"n": 1})
    assert data.dag_structure == tasks and data.execution_waves == []


def _loop() -> StateGraph:
    return chain("a", "b").add_edge("b", "a", when=lambda state: False)


@pytest.mark.parametrize(
    ("dag", "layers"),
    [
        (chain("a"), 1),
        (chain("a", "b").compile("memory://"), 2),
        (chain("a", "b").build().outline(), 2),
        ({"tasks": [{"id": "a", "tool": "t"}, {"id": "b", "tool": "t", "depends_on": ["a"]}]}, 2),
        ({"tasks": [{"id": "a"}, {"id": "b", "dependsOn": ["a"]}, {"id": "c", "dependsOn": ["a", "b"]}]}, 3),
    ],
)
def test_a_manager_refuses_more_layers_than_a_graph_has(kept, dag, layers):
    """S0.4, S0.11: `layer_index` is a count; behind the last layer there is nothing to go on with."""
    manager = CheckpointManager(kept)
    with pytest.raises(HoldfastError, match=f"not {layers + 1}: the graph has {layers} layer"):
        manager.save_checkpoint({"n": 1}, dag, layers + 1)
    assert manager.load(manager.save_checkpoint({"n": 1}, dag, layers)).layer_index == layers


@pytest.mark.parametrize(
    "dag",
    [
        _loop(),
        StateGraph(dict).add_node("a", print, goto=("a", END)).add_edge(START, "a"),
        {"name": "w"},
        {"nodes": {"a": {}}},
        {"nodes": 5, "edges": 7},
        *({"tasks": tasks} for tasks in ([], [5], [{}], [{"id": []}], [{"id": "a", "depends_on": 5}])),
        {"tasks": [{"id": "a", "depends_on": ["b"]}, {"id": "b", "depends_on": ["a"]}]},
    ],
)
def test_a_manager_takes_any_layer_where_it_cannot_count_them(kept, dag):
    """S0.4: a graph that loops completes any number of layers; data of another kind has none to count."""
    manager = CheckpointManager(kept)
    assert manager.load(manager.save_checkpoint({"n": 1}, dag, 9)).layer_index == 9


@pytest.mark.parametrize(
    ("state", "dag", "layer"),
    [
        (5, {}, 1),
        (None, {}, 1),
        ({1: 2}, {}, 1),
        ({}, None, 1),
        ({}, "dag", 1),
        ({}, {1: 2}, 1),
        ({}, {}, -1),
        ({}, {}, "1"),
        ({}, {}, True),
        ({}, {}, None),
    ],
)
def test_a_manager_refuses_other_types_with_an_error_that_names_them(kept, state, dag, layer):
    """S0.4: never an AttributeError."""
    with pytest.raises(HoldfastError, match=r"must be|what is saved|dag is|layer_index is"):
        CheckpointManager(kept).save_checkpoint(state, dag, layer)


def test_a_value_that_cannot_be_saved_is_named_by_its_key(kept):
    """S0.4: where it is in the state, and not only its type."""
    with pytest.raises(CodecError, match=r"state key 'opened': cannot store value\['by'\]\[0\]"):
        CheckpointManager(kept).save_checkpoint({"n": 1, "opened": {"by": [open]}}, {"name": "w"}, 1)


def test_a_manager_refuses_other_ids_counts_and_stores(kept):
    """S0.4, S0.14."""
    manager = CheckpointManager(kept)
    for ident in (None, 5):
        with pytest.raises(HoldfastError, match="found by its id"):
            manager.load(ident)  # type: ignore[arg-type]
    for count in (0, -1, "5", True):
        with pytest.raises(HoldfastError, match="keep_count must be at least 1"):
            manager.prune_old_checkpoints("w", count)  # type: ignore[arg-type]
    for workflow in (None, 5):
        with pytest.raises(HoldfastError, match="workflow_id is the name of a workflow"):
            manager.prune_old_checkpoints(workflow)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="names no store"):
        CheckpointManager(object())  # type: ignore[arg-type]


def test_a_manager_of_a_url_a_store_or_an_app(tmp_path):
    """S0.1, S0.4: whatever names a store."""
    url = f"sqlite:///{tmp_path}/runs.db"
    first = CheckpointManager(url)
    ident = first.save_checkpoint({"n": 1}, {"name": "w"}, 1)
    first.checkpoints.store.close()

    store = open_store(url)
    assert CheckpointManager(store).load(ident).context == {"n": 1}
    assert CheckpointManager(chain("a").compile(store)).load(ident).layer_index == 1
    store.close()


# Data made by hand.


def test_a_checkpoint_has_the_names_of_the_agent_runner(kept):
    """S1.10, S1.11: made, saved, loaded, listed and deleted as that design says, sync or async."""
    data = agent_checkpoint()
    manager = CheckpointManager(kept)

    def called(method: str, *args: Any, **named: Any) -> Any:
        return resolved(getattr(kept, method)(*args, **named))

    called("save", data)
    loaded = manager.load(data.checkpoint_id)

    assert loaded == data
    assert (loaded.current_agent, loaded.in_progress, loaded.completed_agents) == (
        "second",
        "second",
        ["first"],
    )
    assert loaded.agent_outputs == {"first": {"text": "tides"}}
    assert loaded.context_snapshot == {"text": "tides", "pair": (1, 2)} and loaded.iteration == 1
    done = agent_checkpoint(
        checkpoint_id=data.checkpoint_id, in_progress=None, completed_agents=["first", "second"]
    )
    called("save", done)
    assert manager.load(data.checkpoint_id) == done
    listing = "list" if isinstance(kept, Duck) else "list_checkpoints"
    assert (
        called(listing, workflow_name="long-analysis") == [done] and called(listing, workflow_name="x") == []
    )
    called("delete", data.checkpoint_id)
    called("delete", data.checkpoint_id)
    assert called("load", data.checkpoint_id) is None


def test_a_checkpoint_has_the_names_of_the_interactive_server():
    """S2.7, S2.8, S2.9, S2.10: `InMemoryCheckpointStore` keeps, filters and expires them."""
    store = InMemoryCheckpointStore()
    pause = PauseMetadata(block_id="confirm", prompt="Really?", response=None)
    data = CheckpointData(
        checkpoint_id=str(uuid.uuid4()),
        workflow_name="w",
        workflow_inputs={},
        execution_waves=[[{"id": "fetch"}], [{"id": "confirm"}]],
        completed_waves=1,
        context={"blocks": {}},
        created_at=NOW,
        pause_metadata=pause,
    )

    store.save(data)
    loaded = store.load(data.checkpoint_id)

    assert loaded == data and loaded is not None
    assert (loaded.pause_metadata, loaded.context, loaded.completed_waves) == (pause, {"blocks": {}}, 1)
    assert loaded.execution_waves == [[{"id": "fetch"}], [{"id": "confirm"}]]
    assert (
        store.list() == store.list("w") == store.list(workflow_name="w") == [data] and store.list("v") == []
    )
    assert store.load("missing") is None and CheckpointState is CheckpointData


def test_checkpoints_expire_by_the_time_that_they_were_made_at():
    """S2.5, S2.9: one of 25 hours ago goes, however recently it was saved here, and one of 23 hours ago stays."""
    store, now = InMemoryCheckpointStore(), dt.datetime.now(dt.UTC)
    for hours in (23, 25):
        made = now - dt.timedelta(hours=hours)
        store.save(CheckpointData(f"{hours} h", "w", created_at=made.replace(tzinfo=None), context={"n": 1}))

    assert store.cleanup_expired(max_age_hours=24) == 1
    assert [data.checkpoint_id for data in store.list("w")] == ["23 h"]
    assert store.cleanup_expired(max_age_hours=22) == 1 and store.list() == []


def test_the_waves_of_a_run_s_graph_are_in_its_checkpoint():
    """S2.7: nodes by wave, each with its definition; loops lead back and change nothing."""
    graph = StateGraph(dict, name="w")
    for name in ("a", "b", "c", "join", "again"):
        graph.add_node(name, lambda state: {})
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c").add_edge(["a", "c"], "join")
    graph.add_conditional_edges("join", lambda state: END, {"back": "a", "on": "again", END: END})
    app = graph.compile(store := InMemoryCheckpointStore())
    out = app.invoke({}, run_id="r")

    data = store.load(out.checkpoint_id)

    assert data is not None
    assert [[block["id"] for block in wave] for wave in data.execution_waves] == [
        ["a"],
        ["b"],
        ["c"],
        ["join"],
        ["again"],
    ]
    assert "fingerprint" in data.execution_waves[0][0]
    assert data.completed_blocks == data.completed_agents == list(data.completed)
    assert data.dag_structure == data.outline and data.timestamp == data.created_at


def test_waves_that_are_no_lists_are_refused():
    """S2.7."""
    for waves in (3, [3], "build"):
        with pytest.raises(HoldfastError, match="execution_waves of a checkpoint must be a list"):
            CheckpointData("c", "w", execution_waves=waves)  # type: ignore[arg-type]


def test_a_checkpoint_goes_through_json_and_pickle():
    """S2.15: JSON shows what it lacks as lists and text; a pickle keeps all types."""
    data = agent_checkpoint()

    again = CheckpointData.from_dict(json.loads(json.dumps(data.to_dict())))

    assert again.context == {"text": "tides", "pair": [1, 2]} and again.created_at == NOW
    assert again.state.checkpoint_node == "first" and again.state.run_id == data.run_id
    assert pickle.loads(pickle.dumps(data)) == data == copy.deepcopy(data)


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"current_agnt": "a"}, "no field 'current_agnt'; did you mean 'current_agent'"),
        ({"completed_agents": "abc"}, "completed of a checkpoint must be a list"),
        ({"completed_agents": [1]}, "must be names of nodes"),
        ({"context": 5}, "state of a checkpoint must be a mapping"),
        ({"checkpoint_id": 5}, "checkpoint_id of a checkpoint must be text"),
        ({"iteration": -1}, "iteration of a checkpoint must be a count"),
        ({"created_at": "yesterday"}, "created_at of a checkpoint must be a time"),
        ({"created_at": 5}, "created_at of a checkpoint must be a datetime"),
        ({"pause_metadata": "?"}, "pauses of a checkpoint must be a PauseMetadata"),
        ({"status": "odd"}, "status of a checkpoint must be one of"),
        ({"workflow_inputs": [1]}, "workflow_inputs of a checkpoint must be a mapping"),
    ],
)
def test_a_checkpoint_of_other_types_is_refused_by_name(facts, problem):
    """S1.10, S2.7."""
    with pytest.raises(HoldfastError, match=problem):
        CheckpointData.from_dict(facts)


@pytest.mark.parametrize("given", [5, None, "text", {1: 2}])
def test_only_states_and_checkpoints_are_saved(given):
    """S2.9, S3.5: never an AttributeError."""
    with pytest.raises(
        StateInvalid,
        match="what is saved is a State, a CheckpointData, a dataclass, a pydantic model or a mapping",
    ):
        InMemoryCheckpointStore().save(given)


def test_the_checkpoint_of_a_graph_s_run_is_not_saved_over():
    """S3.5: a run of a graph is saved by that graph only."""
    store = InMemoryCheckpointStore()
    out = chain("a").compile(store).invoke({}, run_id="r")
    data = store.load(out.checkpoint_id)

    with pytest.raises(RunExists, match="is one of run 'r', which this store has already"):
        store.save(data)  # type: ignore[arg-type]
    other = InMemoryCheckpointStore()
    other.save(data)  # type: ignore[arg-type]
    assert other.load(out.checkpoint_id) == data


def test_the_stores_of_the_designs_have_their_constructors(tmp_path):
    """S1.12, S2.10, S2.18: a path, nothing, a connection string; all are `CheckpointStore`s."""
    for kind, names in (
        (SQLiteCheckpointStore, ["db_path"]),
        (InMemoryCheckpointStore, []),
        (PostgresCheckpointStore, ["connection_string"]),
    ):
        given = [p for p in inspect.signature(kind).parameters.values() if p.kind != p.KEYWORD_ONLY]
        assert [each.name for each in given] == names and issubclass(kind, CheckpointStore)
    store = SQLiteCheckpointStore(db_path=tmp_path / "x.db")
    ident = store.save(agent_checkpoint())
    store.store.close()
    again = SQLiteCheckpointStore(str(tmp_path / "x.db"))
    assert again.exists(ident) and isinstance(again, JournalCheckpointStore)
    again.store.close()
    for bad in (5, "", None):
        with pytest.raises(StoreError, match="needs the path of a file"):
            SQLiteCheckpointStore(bad)  # type: ignore[arg-type]
    for bad in ("sqlite:///x.db", 5):
        with pytest.raises(StoreError, match="postgresql://USER@HOST/DATABASE"):
            PostgresCheckpointStore(bad)  # type: ignore[arg-type]


async def test_the_async_forms_of_the_sqlite_store(tmp_path):
    """S1.11, S1.12."""
    store, data = SQLiteCheckpointStore(tmp_path / "x.db"), agent_checkpoint()
    await store.asave(data)

    assert await store.aload(data.checkpoint_id) == data and await store.aexists(data.checkpoint_id)
    assert await store.alist_checkpoints("long-analysis") == await store.alist() == [data]
    await store.adelete(data.checkpoint_id)
    assert await store.aprune(7, 10) == 0 and await store.alist() == []
    store.store.close()
