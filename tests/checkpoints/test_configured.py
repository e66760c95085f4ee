"""Graphs made from a config: their settings, their errors, their events."""

from __future__ import annotations

import itertools
import json
import threading
from typing import Any

import pytest

from holdfast import (
    CheckpointNotFound,
    CorruptJournal,
    ExecutionError,
    GraphInvalid,
    HoldfastError,
    MaxIterationsExceeded,
    RunFinished,
    State,
    StateInvalid,
    StoreError,
    open_store,
)
from holdfast.checkpoints import (
    CheckpointConfig,
    ConfiguredGraph,
    GraphConfig,
    JournalCheckpointStore,
    default_checkpoint_config,
    default_graph_config,
)
from holdfast.events import register_observer
from holdfast.stores import register_store
from tests.checkpoints.samples import Calls, Flaky, FullDisk
from tests.graphs import Heard


@pytest.fixture
def registered(heard: Heard) -> Heard:
    """An observer and a fresh store that configs can name."""
    register_observer("heard", heard)
    register_store("fresh", open_store("memory://"))
    return heard


def config(interval: int = 1, preserve: bool = True, **options: Any) -> GraphConfig:
    checkpoint = CheckpointConfig("fresh", interval, preserve)
    return GraphConfig("workflow_file", **{"observer": "heard", "checkpoint": checkpoint, **options})


def line(
    settings: GraphConfig, names: str, calls: Calls, nodes: dict[str, Any] | None = None
) -> ConfiguredGraph:
    """A graph that goes through `names`; nodes return whole states."""
    graph = ConfiguredGraph(settings)
    for name in names:
        own = (nodes or {}).get(name)
        graph.add_node(name, own if callable(own) and not isinstance(own, Flaky) else _node(name, calls, own))
    graph.set_entry_point(names[0])
    for source, target in itertools.pairwise(names):
        graph.add_edge(source, target, None)
    graph.set_exit_point(names[-1])
    return graph


def _node(name: str, calls: Calls, flaky: Flaky | None) -> Any:
    def node(state: State) -> State:
        calls.append(name)
        if flaky is not None and flaky.error:
            raise flaky.error
        return state.set("path", [*state.get("path", []), name])

    return node


# Settings.


def test_a_checkpoint_config_is_off_and_in_memory_by_default():
    """S3.9: with the keys store, interval and preserve, from and to JSON."""
    assert default_checkpoint_config() == CheckpointConfig("memory", 0, False)
    text = json.dumps(CheckpointConfig("mine", 5, True).to_dict())
    assert json.loads(text) == {"store": "mine", "interval": 5, "preserve": True}
    assert CheckpointConfig.from_dict(json.loads(text)) == CheckpointConfig("mine", 5, True)
    assert CheckpointConfig.from_dict({"interval": 2}) == CheckpointConfig(interval=2)
    with pytest.raises(HoldfastError, match="no setting 'intervall'; did you mean 'interval'"):
        CheckpointConfig.from_dict({"intervall": 2})
    with pytest.raises(HoldfastError, match="interval must be"):
        CheckpointConfig(interval=-1)


def test_a_graph_config_logs_and_allows_a_thousand_iterations_by_default():
    """S3.10: with the keys name, observer, max_iterations and checkpoint."""
    assert default_graph_config("workflow_file") == GraphConfig(
        "workflow_file", "slog", 1000, CheckpointConfig()
    )
    whole = GraphConfig("workflow_file", "noop", 7, CheckpointConfig(interval=3))
    assert GraphConfig.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole
    assert (
        GraphConfig.from_dict({"name": "workflow_file", "checkpoint": {"interval": 1}}).checkpoint.interval
        == 1
    )
    with pytest.raises(HoldfastError, match="needs a name"):
        GraphConfig.from_dict({})


def test_settings_are_put_over_a_config():
    """R3.6: config Merge: what a mapping names, or what is no default; the rest stays."""
    base = GraphConfig("base", "noop", 7, CheckpointConfig("mine", 2, True))

    assert base.merge({"max_iterations": 9}) == GraphConfig("base", "noop", 9, base.checkpoint)
    assert base.merge({"checkpoint": {"interval": 0}}).checkpoint == CheckpointConfig("mine", 0, True)
    other = GraphConfig("other", checkpoint=CheckpointConfig(interval=5))
    assert base.merge(other) == GraphConfig("other", "noop", 7, CheckpointConfig("mine", 5, True))
    with pytest.raises(HoldfastError, match="no setting 'intervall'"):
        base.merge({"checkpoint": {"intervall": 1}})
    with pytest.raises(HoldfastError, match="merge takes a GraphConfig or a mapping, not 3"):
        base.merge(3)


def test_dependencies_can_be_given_instead_of_their_names(heard):
    """R3.6, S3.2: NewGraphWithDeps; no registry is asked, and several observers may be named."""
    store = open_store("memory://")
    nowhere = GraphConfig("g", observer="nobody", checkpoint=CheckpointConfig("nowhere", 1, True))
    for given in (store, JournalCheckpointStore(store)):
        graph = ConfiguredGraph(nowhere, observer=heard, store=given)
        graph.add_node("a", lambda state: state).set_entry_point("a").set_exit_point("a")
        run = graph.execute(State()).run_id
        assert run in JournalCheckpointStore(store).list()
    assert heard.types[-1] == "graph.complete"

    register_observer("heard", heard)
    before = len(heard.of("graph.complete"))
    graph = ConfiguredGraph(GraphConfig.from_dict({"name": "g", "observer": ["heard", "noop"]}))
    graph.add_node("a", lambda state: state).set_entry_point("a").set_exit_point("a").execute(State())
    assert len(heard.of("graph.complete")) == before + 1


def test_a_graph_is_validated_without_being_run():
    """R3.1: Validate, with all problems at once."""
    graph = ConfiguredGraph(default_graph_config("g")).add_node("a", lambda state: state).add_edge("a", "b")
    with pytest.raises(GraphInvalid, match="'b'"):
        graph.validate()
    graph = ConfiguredGraph(default_graph_config("g")).add_node("a", lambda state: state)
    graph.set_entry_point("a").set_exit_point("a").validate()


def test_a_config_may_be_plain_data_and_nothing_else():
    """S3.10: what `to_dict` returns; other types, also of a state, get an error of ours."""
    plain = default_graph_config("g").to_dict()
    assert ConfiguredGraph(plain).config == default_graph_config("g")
    assert GraphConfig("g", checkpoint={"interval": 2}).checkpoint == CheckpointConfig(interval=2)
    with pytest.raises(HoldfastError, match="GraphConfig has no setting 'nmae'; did you mean 'name'"):
        ConfiguredGraph({"nmae": "g"})
    with pytest.raises(HoldfastError, match="a graph is made from a GraphConfig or its"):
        ConfiguredGraph("g")  # type: ignore[arg-type]
    with pytest.raises(
        StateInvalid, match=r"a state is made of a mapping, .* an observer is State\(observer=…\)"
    ):
        State(Heard())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plain", "problem"),
    [
        ({"name": 3}, "name of a GraphConfig is of type str, not 3"),
        ({"name": "g", "max_iterations": "5"}, "max_iterations of a GraphConfig is of type int, not '5'"),
        ({"name": "g", "max_iterations": 0}, "max_iterations of a GraphConfig is at least 1, not 0"),
        ({"name": "g", "checkpoint": 3}, "checkpoint of a GraphConfig is of type CheckpointConfig, not 3"),
        (
            {"name": "g", "checkpoint": {"preserve": "no"}},
            "preserve of a CheckpointConfig is true or false, not 'no'",
        ),
        ({"name": "g", "checkpoint": {"interval": "1"}}, "interval must be"),
        (["g"], "a GraphConfig is read from a mapping, not from"),
    ],
)
def test_a_setting_of_another_type_is_refused_by_name(plain, problem):
    """S3.9, S3.10: what a JSON file may hold by mistake, before anything runs."""
    with pytest.raises(HoldfastError, match=problem):
        GraphConfig.from_dict(plain)


def test_names_are_resolved_once_when_the_graph_is_made(registered):
    """S3.11, S3.21: the store only if it is used; a name that is not known says which."""
    with pytest.raises(
        StoreError, match="failed to resolve checkpoint store: unknown checkpoint store: nowhere"
    ):
        ConfiguredGraph(GraphConfig("g", checkpoint=CheckpointConfig("nowhere", interval=1)))
    with pytest.raises(HoldfastError, match="failed to resolve observer: unknown observer: nobody"):
        ConfiguredGraph(GraphConfig("g", observer="nobody"))
    ConfiguredGraph(GraphConfig("g", checkpoint=CheckpointConfig("nowhere", interval=0)))

    graph = line(config(), "ab", Calls())
    register_store("fresh", open_store("memory://"))
    final = graph.execute(State())
    assert JournalCheckpointStore("fresh").load(final.run_id) is None, (
        "the graph keeps the store it was made with"
    )


def test_a_configured_graph_has_the_surface_of_a_state_graph(registered):
    """S3.20: name, nodes, edges with predicates, entry, exits, execute and resume."""
    graph = ConfiguredGraph(config())
    assert graph.name == "workflow_file"
    graph.add_node("a", lambda state: state.set("n", 1))
    graph.add_node("low", lambda state: state.set("end", "low"))
    graph.add_node("high", lambda state: state.set("end", "high"))
    graph.add_edge("a", "high", lambda state: state["n"] > 5)
    graph.add_edge("a", "low", None)
    graph.add_edge("a", "high", None)
    graph.set_entry_point("a")
    graph.set_exit_point("low")
    graph.set_exit_point("high")

    final = graph.execute(State({"n": 0}))

    assert isinstance(final, State)
    assert final["end"] == "low", "the first edge that is true, in their order, alone"
    assert final.checkpoint_node == "low"


# Saving.


@pytest.mark.parametrize(("interval", "saved"), [(1, "abcde"), (2, "bd"), (3, "c")])
def test_a_save_follows_every_nth_node_that_succeeded(registered, interval, saved):
    """S3.12, S3.14, S3.22: iterations % interval == 0; the event names the node and the run."""
    state = State()
    line(config(interval), "abcde", Calls()).execute(state)

    told = [(event.data["node"], event.data["run_id"]) for event in registered.of("checkpoint.save")]
    assert told[: len(saved)] == [(node, state.run_id) for node in saved]
    checkpoints = [data.state for data in JournalCheckpointStore("fresh").list_checkpoints("workflow_file")]
    assert [found.checkpoint_node for found in reversed(checkpoints)][: len(saved)] == list(saved)


def test_nothing_is_saved_with_an_interval_of_zero(registered):
    """S3.11: neither on success nor on failure."""
    flaky = {"b": Flaky(RuntimeError("down"))}
    graph = line(config(0), "ab", Calls(), flaky)
    with pytest.raises(ExecutionError):
        graph.execute(State())
    assert JournalCheckpointStore(graph.app()).list() == []
    flaky["b"].mend()
    assert graph.execute(State())["path"] == ["a", "b"]
    assert registered.of("checkpoint.save") == []
    assert JournalCheckpointStore(graph.app()).list() == JournalCheckpointStore("fresh").list() == []


def test_a_save_that_fails_stops_the_run_at_once(registered):
    """S3.13, S3.22, R3.4: ExecutionError with the node, the state, the path and the reason."""
    disk = FullDisk()
    register_store("disk", disk)
    calls = Calls()
    plain = _node("b", calls, None)

    def filling(state: State) -> Any:
        disk.full = True
        return plain(state)

    graph = line(config(checkpoint=CheckpointConfig("disk", 1)), "abc", calls, {"b": filling})

    with pytest.raises(ExecutionError, match="checkpoint save failed: no space left") as caught:
        graph.execute(State())

    assert calls == ["a", "b"]
    error = caught.value
    assert error.node == error.node_name == "b"
    assert error.state["path"] == ["a", "b"]
    assert error.path == ("a", "b") and isinstance(error.err, StoreError)

    with pytest.raises(ExecutionError, match="checkpoint save failed: no space left") as first:
        line(config(checkpoint=CheckpointConfig("disk", 1)), "ab", calls).execute(State())
    assert (first.value.node, first.value.path, calls) == ("a", (), ["a", "b"]), "nothing runs unrecorded"


@pytest.mark.parametrize("preserve", [False, True])
def test_a_completed_run_is_deleted_unless_it_is_to_be_preserved(registered, preserve):
    """S3.15, S3.22: after `graph.complete` with the exit point and the iterations."""
    state = State()
    line(config(preserve=preserve), "abc", Calls()).execute(state)

    last = registered.events[-1]
    assert (last.type, last["exit_point"], last["iterations"]) == ("graph.complete", "c", 3)
    assert last["state"] == {"path": ["a", "b", "c"]}
    assert JournalCheckpointStore("fresh").list() == ([state.run_id] if preserve else [])


# Resuming.


def test_a_failed_run_is_resumed_at_the_node_after_its_checkpoint(registered):
    """S3.16, S3.17, S3.18, S3.22: with `checkpoint.load` and `checkpoint.resume`, and the same run id."""
    flaky, calls = {"c": Flaky(RuntimeError("down"))}, Calls()
    graph = line(config(), "abcd", calls, flaky)
    state = State({"n": 1})
    with pytest.raises(ExecutionError) as caught:
        graph.execute(state)
    assert (caught.value.node, caught.value.run_id) == ("c", state.run_id)
    calls.clear()
    flaky["c"].mend()

    final = graph.resume(state.run_id)

    assert calls == ["c", "d"]
    assert final == {"n": 1, "path": ["a", "b", "c", "d"]}
    assert final.run_id == state.run_id
    (loaded,), (resumed,) = registered.of("checkpoint.load"), registered.of("checkpoint.resume")
    assert loaded.data == {"node": "b", "run_id": state.run_id}
    assert resumed.data == {"checkpoint_node": "b", "resume_node": "c", "run_id": state.run_id}


def test_resuming_needs_checkpoints_and_a_stored_run(registered):
    """S3.16."""
    with pytest.raises(HoldfastError, match=r"^checkpointing not enabled for this graph$"):
        line(config(0), "ab", Calls()).resume("r")
    with pytest.raises(CheckpointNotFound, match=r"^failed to load checkpoint: checkpoint not found: r$"):
        line(config(), "ab", Calls()).resume("r")


def test_a_damaged_checkpoint_is_not_resumed(registered, tmp_path):
    """S3.16: "failed to load checkpoint: …"."""
    import apsw

    register_store("disk", open_store(tmp_path / "runs.db"))
    graph = line(config(checkpoint=CheckpointConfig("disk", 1, True)), "ab", Calls())
    state = State()
    graph.execute(state)
    database = apsw.Connection(str(tmp_path / "runs.db"))
    (table, column) = next(
        (table, row[1])
        for (table,) in list(database.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))
        for row in list(database.execute(f"PRAGMA table_info({table})"))
        if row[1] == "body" and table not in ("inbox", "snapshots")
    )
    database.execute(f"UPDATE {table} SET {column} = x'00'")
    database.close()

    with pytest.raises(CorruptJournal, match=r"failed to load checkpoint: .*damaged"):
        graph.resume(state.run_id)


def test_a_checkpoint_at_an_exit_point_is_complete(registered):
    """S3.17, S3.18: also where edges lead on from it; that it was loaded is reported."""
    graph = line(config(), "ab", Calls())
    done = graph.execute(State())
    text = (
        "failed to find next node after checkpoint: checkpoint was at exit point, execution already complete"
    )
    with pytest.raises(RunFinished, match=text):
        graph.resume(done.run_id)

    graph = line(config(), "abc", Calls()).set_exit_point("b").add_edge("a", "c", lambda state: False)
    saved = State().set_checkpoint_node("b").checkpoint(JournalCheckpointStore("fresh"))
    with pytest.raises(RunFinished, match=text):
        graph.resume(saved.run_id)
    assert [(event.run_id, event["node"]) for event in registered.of("checkpoint.load")] == [
        (done.run_id, "b"),
        (saved.run_id, "b"),
    ]


def test_a_checkpoint_that_nothing_leads_on_from_is_an_error(registered):
    """S3.17, S3.18: no outgoing edges, or none whose predicate is true; that it was loaded is reported."""
    calls = Calls()
    graph = line(config(), "ab", calls)
    lost = State().set_checkpoint_node("gone").checkpoint(JournalCheckpointStore("fresh"))
    found = "failed to find next node after checkpoint: "
    with pytest.raises(ExecutionError, match=f"^{found}no outgoing edges from checkpoint node: gone$"):
        graph.resume(lost.run_id)
    (loaded,) = registered.of("checkpoint.load")
    assert loaded.data == {"node": "gone", "run_id": lost.run_id}
    assert not registered.of("checkpoint.resume")

    opens = threading.Event()
    guarded = ConfiguredGraph(config())
    for name in "ab":
        guarded.add_node(name, _node(name, calls, None))
    guarded.set_entry_point("a").set_exit_point("b")
    guarded.add_edge("a", "b", lambda state: opens.is_set())
    state = State()
    with pytest.raises(ExecutionError, match="no valid edge transition from node: a"):
        guarded.execute(state)
    with pytest.raises(ExecutionError, match=f"^{found}no valid edge transition from checkpoint node: a "):
        guarded.resume(state.run_id)
    assert calls == ["a"]

    opens.set()
    assert guarded.resume(state.run_id)["path"] == ["a", "b"]


def test_a_state_saved_by_hand_is_resumed(registered):
    """S3.8, S3.18: the next node is the first whose edge is true for the saved state."""
    calls = Calls()
    graph = ConfiguredGraph(config())
    for name in "abc":
        graph.add_node(name, _node(name, calls, None))
    graph.set_entry_point("a").set_exit_point("c")
    graph.add_edge("a", "c", lambda state: state["short"])
    graph.add_edge("a", "b", None)
    graph.add_edge("b", "c", None)
    for short, then in ((True, ["c"]), (False, ["b", "c"])):
        saved = State({"short": short}).set_checkpoint_node("a").checkpoint(JournalCheckpointStore("fresh"))
        assert graph.resume(saved.run_id)["path"] == then


def test_the_iteration_limit_survives_a_resume(registered):
    """S3.19: "max iterations (N) exceeded", counted over all executions of the run."""
    calls, flaky = Calls(), Flaky(RuntimeError("down"))
    graph = ConfiguredGraph(config(max_iterations=5))
    graph.add_node("a", _node("a", calls, None))
    graph.add_node("b", calls.node("b", fails=lambda: flaky.error if len(calls) > 3 else None, update={}))
    graph.add_node("end", _node("end", calls, None))
    graph.set_entry_point("a").set_exit_point("end")
    graph.add_edge("a", "b", None)
    graph.add_edge("b", "end", lambda state: False)
    graph.add_edge("b", "a", None)
    state = State()
    with pytest.raises(ExecutionError, match="down"):
        graph.execute(state)
    flaky.mend()

    with pytest.raises(MaxIterationsExceeded, match=r"max iterations \(5\) exceeded"):
        graph.resume(state.run_id)
    assert calls == ["a", "b", "a", "b", "b", "a"]


def test_the_events_of_a_loop_tell_every_turn(registered):
    """S3.19: node.start, node.complete, cycle.detected, edge.evaluate, edge.transition."""
    calls = Calls()
    graph = ConfiguredGraph(config())
    graph.add_node("a", _node("a", calls, None))
    graph.add_node("b", _node("b", calls, None))
    graph.set_entry_point("a").set_exit_point("b")
    graph.add_edge("a", "a", lambda state: len(state["path"]) < 2)
    graph.add_edge("a", "b", None)
    graph.execute(State())

    assert [event.node for event in registered.of("node.start")] == ["a", "a", "b"]
    assert [event.data["error"] for event in registered.of("node.complete")] == [False] * 3
    (cycle,) = registered.of("cycle.detected")
    assert cycle.data == {"node": "a", "visit_count": 2, "iteration": 2, "path_length": 2}
    assert [dict(event.data) for event in registered.of("edge.evaluate")] == [
        {"from": "a", "to": "a", "name": "", "result": True},
        {"from": "a", "to": "a", "name": "", "result": False},
        {"from": "a", "to": "b", "name": "always", "result": True},
    ]
    transitions = [(event.data["from"], event.data["to"]) for event in registered.of("edge.transition")]
    assert transitions == [("a", "a"), ("a", "b")]


def test_a_broken_graph_is_refused_before_anything_runs(registered):
    """S3.19: no outgoing edges, nodes that are not there."""
    graph = line(config(), "ab", Calls())
    graph.add_node("stray", lambda state: state)
    graph.add_edge("a", "stray", lambda state: False)
    with pytest.raises(GraphInvalid, match="no outgoing edges from node: stray"):
        graph.execute(State())

    graph = line(config(), "ab", Calls())
    graph.add_edge("a", "nowhere", None)
    with pytest.raises(GraphInvalid, match="node not found: nowhere"):
        graph.resume("r")


def test_a_cancelled_run_is_an_error_that_can_be_resumed(registered):
    """S3.19: context cancellation."""
    calls = Calls()
    graph = ConfiguredGraph(config())
    state = State()

    def stops(found: State) -> State:
        calls.append("a")
        graph.app().cancel(state.run_id)
        return found

    graph.add_node("a", stops)
    graph.add_node("b", _node("b", calls, None))
    graph.set_entry_point("a").set_exit_point("b")
    graph.add_edge("a", "b", None)

    with pytest.raises(ExecutionError, match="context cancelled"):
        graph.execute(state)
    assert graph.resume(state.run_id).checkpoint_node == "b"
