"""The use cases of document 003 (a state is its own checkpoint), with the names that its author would type."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast import (
    CheckpointNotFound,
    ExecutionError,
    HoldfastError,
    MaxIterationsExceeded,
    RunFinished,
    State,
    StoreError,
)
from holdfast.checkpoints import (
    CheckpointConfig,
    ConfiguredGraph,
    GraphConfig,
    InMemoryCheckpointStore,
    default_checkpoint_config,
    default_graph_config,
    get_checkpoint_store,
    register_checkpoint_store,
)
from holdfast.events import register_observer
from tests.graphs import Heard


class Pipeline:
    """extract, transform and load, of which transform fails while the service is down; it remembers what ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.is_up = False

    def graph(self, **checkpoint: Any) -> ConfiguredGraph:
        settings = CheckpointConfig(**{"store": "audit", "interval": 1, **checkpoint})
        graph = ConfiguredGraph(GraphConfig("pipeline", "heard", 100, settings))
        graph.add_node("extract", self.extract)
        graph.add_node("transform", self.transform)
        graph.add_node("load", self.load)
        graph.set_entry_point("extract")
        graph.add_edge("extract", "transform", None)
        graph.add_edge("transform", "transform", lambda state: state["pass"] < 2)
        graph.add_edge("transform", "load", lambda state: state["pass"] >= 2)
        graph.set_exit_point("load")
        return graph

    def extract(self, state: State) -> State:
        self.ran.append("extract")
        return state.merge({"rows": [1, 2, 3], "pass": 0})

    def transform(self, state: State) -> State:
        self.ran.append("transform")
        if state["pass"] == 1 and not self.is_up:
            raise ConnectionError("the model is overloaded")
        return state.set("pass", state["pass"] + 1)

    def load(self, state: State) -> State:
        self.ran.append("load")
        return state.set("loaded", True)


@pytest.fixture
def heard() -> Heard:
    observer = Heard()
    register_observer("heard", observer)
    return observer


@pytest.fixture
def store(heard: Heard) -> InMemoryCheckpointStore:
    found = InMemoryCheckpointStore()
    register_checkpoint_store("audit", found)
    return found


def failed(graph: ConfiguredGraph, state: State) -> ExecutionError:
    with pytest.raises(ExecutionError) as caught:
        graph.execute(state)
    return caught.value


# A state is its own checkpoint.


def test_a_state_knows_its_run_its_node_and_its_time_through_every_change(heard):
    """S3.1-S3.4: clone, set and merge keep them; a new checkpoint node has a new time."""
    state = State({"rows": 3}, observer=heard)
    saved = state.set_checkpoint_node("extract")
    changed = saved.clone().set("rows", 4).merge({"pass": 1})

    assert state.run_id and state.checkpoint_node == ""
    assert (changed.run_id, changed.checkpoint_node, changed.timestamp) == (
        state.run_id,
        "extract",
        saved.timestamp,
    )
    assert saved.timestamp > state.timestamp and state == {"rows": 3}
    assert heard.types[0] == "state.create" and "state.clone" in heard.types


def test_a_store_is_found_by_name_and_keeps_the_newest_state_of_each_run(store):
    """S3.5-S3.8: save, load, list and delete; "memory" is registered from the start."""
    state = State({"rows": 3}).set_checkpoint_node("extract")
    state.checkpoint(store)
    state.set("rows", 4).set_checkpoint_node("transform").checkpoint(store)

    found = get_checkpoint_store("audit")
    assert found.load(state.run_id).state == {"rows": 4}
    assert found.list() == [state.run_id]
    store.delete(state.run_id)
    store.delete(state.run_id)
    assert found.list() == []
    with pytest.raises(CheckpointNotFound, match=f"checkpoint not found: {state.run_id}"):
        store.load_state(state.run_id)
    assert get_checkpoint_store("memory") is not None
    with pytest.raises(StoreError, match="unknown checkpoint store: redis"):
        get_checkpoint_store("redis")


def test_a_store_is_used_from_many_threads(store):
    """S3.6, S3.22: nothing is lost or mixed up."""
    states = [State({"n": n}).set_checkpoint_node("extract") for n in range(40)]
    threads = [
        threading.Thread(
            target=lambda part: [state.checkpoint(store) for state in part], args=(states[n::4],)
        )
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {data.run_id for data in store.list()} == {state.run_id for state in states}
    assert all(store.load_state(state.run_id)["n"] == state["n"] for state in states)


# The config.


def test_the_defaults_are_those_of_the_document():
    """S3.9, S3.10: memory, off, not preserved; slog and a thousand iterations; the keys of the JSON."""
    assert default_checkpoint_config().to_dict() == {"store": "memory", "interval": 0, "preserve": False}
    assert default_graph_config("pipeline").to_dict() == {
        "name": "pipeline",
        "observer": "slog",
        "max_iterations": 1000,
        "checkpoint": {"store": "memory", "interval": 0, "preserve": False},
    }


def test_names_are_resolved_when_the_graph_is_made_and_a_store_only_if_it_is_used(heard):
    """S3.11, S3.21: with the messages of the document."""
    with pytest.raises(
        StoreError, match="failed to resolve checkpoint store: unknown checkpoint store: redis"
    ):
        ConfiguredGraph(GraphConfig("g", "heard", checkpoint=CheckpointConfig("redis", 1)))
    with pytest.raises(HoldfastError, match="failed to resolve observer: unknown observer: nobody"):
        ConfiguredGraph(GraphConfig("g", "nobody"))
    ConfiguredGraph(GraphConfig("g", "heard", checkpoint=CheckpointConfig("redis", 0)))


# Executing and resuming.


def test_a_failed_run_is_resumed_after_its_last_checkpoint_and_nothing_runs_twice(store, heard):
    """S3.12, S3.14, S3.16-S3.18, R3.4: the expensive work before the failure is kept."""
    pipeline, state = Pipeline(), State()
    graph = pipeline.graph()

    error = failed(graph, state)
    assert (error.node, error.path) == ("transform", ("extract", "transform", "transform"))
    assert isinstance(error.cause, ConnectionError) and error.state["pass"] == 1

    pipeline.is_up = True
    heard.events.clear()
    final = pipeline.graph().resume(state.run_id)

    assert final == {"rows": [1, 2, 3], "pass": 2, "loaded": True}
    assert (final.run_id, final.checkpoint_node) == (state.run_id, "load")
    assert pipeline.ran == ["extract", "transform", "transform", "transform", "load"]
    (loaded,), (resumed,) = heard.of("checkpoint.load"), heard.of("checkpoint.resume")
    assert dict(loaded.data) == {"node": "transform", "run_id": state.run_id}
    assert dict(resumed.data) == {
        "checkpoint_node": "transform",
        "resume_node": "transform",
        "run_id": state.run_id,
    }
    assert [event.data["node"] for event in heard.of("checkpoint.save")] == ["transform", "load"]


@pytest.mark.parametrize("preserve", [False, True])
def test_a_completed_run_is_deleted_unless_it_is_preserved(store, heard, preserve):
    """S3.15: after graph.complete, with the exit point and the number of iterations."""
    pipeline, state = Pipeline(), State()
    pipeline.is_up = True
    pipeline.graph(preserve=preserve).execute(state)

    (complete,) = heard.of("graph.complete")
    assert (complete.data["exit_point"], complete.data["iterations"]) == ("load", 4)
    assert get_checkpoint_store("audit").list() == ([state.run_id] if preserve else [])


def test_what_cannot_be_resumed_says_so(store):
    """S3.16, S3.18: with the messages of the document."""
    pipeline, state = Pipeline(), State()
    pipeline.is_up = True
    graph = pipeline.graph(preserve=True)
    graph.execute(state)

    with pytest.raises(RunFinished, match="checkpoint was at exit point, execution already complete"):
        graph.resume(state.run_id)
    with pytest.raises(CheckpointNotFound, match="failed to load checkpoint: checkpoint not found: gone"):
        graph.resume("gone")
    with pytest.raises(HoldfastError, match="checkpointing not enabled for this graph"):
        pipeline.graph(interval=0).resume(state.run_id)


def test_the_events_of_a_run_tell_every_node_edge_and_cycle(store, heard):
    """S3.19: with the data of the document."""
    pipeline = Pipeline()
    pipeline.is_up = True
    pipeline.graph().execute(State())

    assert [event.node for event in heard.of("node.start")] == ["extract", "transform", "transform", "load"]
    (cycle,) = heard.of("cycle.detected")
    assert (cycle.data["node"], cycle.data["visit_count"]) == ("transform", 2)
    taken = [(event.data["from"], event.data["to"]) for event in heard.of("edge.transition")]
    assert taken == [("extract", "transform"), ("transform", "transform"), ("transform", "load")]
    assert all(event.data["error"] is False for event in heard.of("node.complete"))


def test_a_loop_without_end_stops_at_the_limit_also_after_a_resume(store):
    """S3.19: "max iterations (N) exceeded"; the count goes on."""
    graph = ConfiguredGraph(GraphConfig("loop", "noop", 5, CheckpointConfig("audit", 1)))
    graph.add_node("turn", lambda state: state.set("n", state.get("n", 0) + 1))
    graph.add_node("end", lambda state: state)
    graph.set_entry_point("turn")
    graph.add_edge("turn", "end", lambda state: state["n"] < 0)
    graph.add_edge("turn", "turn", None)
    graph.set_exit_point("end")
    state = State()

    with pytest.raises(MaxIterationsExceeded, match=r"max iterations \(5\) exceeded") as caught:
        graph.execute(state)
    assert caught.value.state["n"] == 5 and isinstance(caught.value, ExecutionError)
    with pytest.raises(MaxIterationsExceeded):
        graph.resume(state.run_id)
