"""Checkpoints as plain values."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from holdfast import END, START, HoldfastError, RunStatus, Send, StateGraph, open_store
from holdfast.checkpoints import JournalCheckpointStore, PauseMetadata
from holdfast.state import WorkflowState
from holdfast.testing import Crash, CrashingStore, raise_crash
from tests.graphs import Log, chain, fan


def crashed(app: Any, *args: Any, **options: Any) -> None:
    with pytest.raises(Crash):
        app.invoke(*args, **options)


def test_a_checkpoint_has_all_that_a_resume_or_a_reader_needs(store):
    """S1.10, S2.7, S0.1: ids, inputs, place, results, state, graph, config, counts and times."""
    app = chain("a", "b", "c", name="workflow_file").compile(store, interrupt_before=["c"])
    before = dt.datetime.now(dt.UTC)
    out = app.invoke({"n": 5}, run_id="r", config={"timeout": 30})

    data = JournalCheckpointStore(store).load(out.checkpoint_id)

    assert (data.checkpoint_id, data.run_id, data.workflow_name) == (out.checkpoint_id, "r", "workflow_file")
    assert data.workflow_inputs == {"n": 5, "log": []}
    assert data.status == RunStatus.PAUSED
    assert data.completed == ("a", "b")
    assert dict(data.outputs) == {"a#1": {"log": ["a"]}, "b#1": {"log": ["b"]}}
    assert len(data.outputs) == 2 and "a#1" in repr(data.outputs)
    assert (data.current, data.started, data.in_progress) == (("c",), (), None)
    assert data.state == {"n": 5, "log": ["a", "b"]}
    assert (data.state.checkpoint_node, data.state.checkpoint_id) == ("b", out.checkpoint_id)
    assert data.outline == app.outline()
    assert data.config == {"timeout": 30}
    assert (data.iteration, data.completed_waves) == (2, 2)
    assert before <= data.created_at <= data.updated_at <= dt.datetime.now(dt.UTC)


def test_completed_waves_is_a_count(store):
    """S0.11: after the second wave it is 2, and the run goes on with the third."""
    app = chain("a", "b", "c").compile(store)
    app.invoke({}, run_id="r")

    told = {data.completed_waves: data for data in JournalCheckpointStore(store).list_checkpoints()}

    assert sorted(told) == [1, 2, 3]
    assert [told[count].completed for count in (1, 2, 3)] == [("a",), ("a", "b"), ("a", "b", "c")]
    assert [told[count].current for count in (1, 2, 3)] == [("b",), ("c",), ()]


def test_the_intent_is_stored_before_a_node_runs_and_its_completion_after():
    """S1.3: a crash in node b leaves: a completed with its output, b in progress and not completed."""
    store = open_store("memory://")
    app = chain("a", "b", "c").compile(CrashingStore(store, at=2, point="acknowledged", how=raise_crash))
    crashed(app, {}, run_id="r")

    data = JournalCheckpointStore(store).load("r")

    assert data.started == data.current == ("b",) and data.in_progress == data.current_agent == "b"
    assert data.completed == ("a",)
    assert dict(data.outputs) == {"a#1": {"log": ["a"]}}
    assert data.status == RunStatus.RUNNING


def test_only_finished_members_of_a_group_are_in_a_checkpoint(store):
    """S0.17: failed and unfinished steps are not reported as completed, nor are their outputs."""

    def fail(state: Any) -> None:
        raise RuntimeError("no")

    app = fan("a", "b", "c", nodes={"b": fail}).compile(store)
    with pytest.raises(HoldfastError):
        app.invoke({}, run_id="r")

    data = JournalCheckpointStore(store).load("r")

    assert sorted(data.completed) == ["a", "c"]
    assert set(data.outputs) == {"a#1", "c#1"}
    assert data.current == ("b",)
    assert data.state == {"log": []}, "the group's changes are applied when all of it is done"


def test_a_step_that_was_passed_over_is_not_completed(store):
    """S0.17: neither is one whose failure the run went on without."""
    from holdfast import CheckpointPolicy

    def fail(state: Any) -> None:
        raise RuntimeError("no")

    app = chain("a", "b", nodes={"a": fail}).compile(store, policy=CheckpointPolicy(on_failure="continue"))
    app.invoke({}, run_id="r")

    assert JournalCheckpointStore(store).load("r").completed == ("b",)


def test_questions_and_decisions_are_in_the_checkpoints(store):
    """S0.18, S2.8: an open question has its block, its prompt and no response; an answered one has it."""

    def decide(state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": [ctx.ask("Ship it?", name="ship")]}

    app = chain("a", "gate", "b", nodes={"gate": decide}).compile(store)
    waiting = app.invoke({}, run_id="r")
    checkpoints = JournalCheckpointStore(store)

    data = checkpoints.load(waiting.checkpoint_id)
    assert data.pause_metadata == PauseMetadata("ship", "Ship it?", None)
    assert data.pauses == (data.pause_metadata,) and data.decisions == ()

    done = app.resume("r", answer="yes")
    data = checkpoints.load(done.checkpoint_id)
    assert data.pause_metadata is None
    assert data.decisions == (PauseMetadata("ship", "Ship it?", "yes"),)
    assert checkpoints.load(waiting.checkpoint_id).decisions == (), "old checkpoints do not change"


def test_what_was_decided_about_an_interrupted_step_is_a_decision_too():
    """S0.18, S1.4."""
    store = open_store("memory://")
    crashing = CrashingStore(store, at=2, point="acknowledged", how=raise_crash)
    crashed(chain("a", "b").compile(crashing), {}, run_id="r")
    app = chain("a", "b").compile(store)
    assert app.resume("r", if_interrupted="ask").status == RunStatus.PAUSED

    app.resume("r", answer="skip")

    (decision,) = JournalCheckpointStore(store).load("r").decisions
    assert (decision.block_id, decision.response) == ("if_interrupted", "skip")


def test_items_and_sub_graphs_have_their_full_names(store):
    """S1.16: (b) each item of a for-each is recorded by itself, under its own key."""
    inner = StateGraph(Log, name="inner")
    inner.add_node("leaf", lambda state: {"log": [f"leaf {state.get('n')}"]})
    inner.add_edge(START, "leaf")
    graph = StateGraph(Log, name="outer")
    graph.add_node("each", lambda state: {"log": [str(state["n"])]})
    graph.add_node("sub", inner)
    graph.add_conditional_edges(
        START, lambda s: [Send("each", {"n": i}, key=f"k{i}") for i in (1, 2)], ["each"]
    )
    graph.add_edge("each", "sub")
    graph.add_edge("sub", END)
    graph.compile(store).invoke({}, run_id="r")

    data = JournalCheckpointStore(store).load("r")

    assert data.completed == ("each", "each", "sub/leaf", "sub")
    assert set(data.outputs) == {"each#1[k1]", "each#1[k2]", "sub#1/leaf#1", "sub#1"}
    assert data.outputs["each#1[k2]"] == {"log": ["2"]}
    assert data.outputs["sub#1"] == {"log": ["leaf None"]}


def test_the_ready_made_state_is_saved_whole(store):
    """S0.8: messages, tasks with result, time and duration, decisions, context, and the checkpoint's id."""
    task = {"task_id": "t1", "result": {"ok": True}, "timestamp": 1.5, "duration": 0.25}

    def work(state: Any) -> dict[str, Any]:
        return {
            "messages": [{"role": "user", "content": "hi"}],
            "tasks": [task],
            "decisions": ["go"],
            "context": {"k": [1]},
        }

    graph = StateGraph(WorkflowState, name="w")
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    out = graph.compile(store).invoke({"context": {"old": 1}})

    state = JournalCheckpointStore(store).load(out.checkpoint_id).state

    assert state.to_dict() == {
        "messages": [{"role": "user", "content": "hi"}],
        "tasks": [task],
        "decisions": ["go"],
        "context": {"old": 1, "k": [1]},
    }
    assert state.checkpoint_id == out.checkpoint_id


def test_types_that_the_reader_does_not_know_do_not_stop_it(store):
    """S2.3, S2.15: a checkpoint can be looked at where the workflow's types are not installed."""
    import dataclasses

    from holdfast.state import Unknown

    @dataclasses.dataclass
    class Point:
        x: int

    graph = StateGraph({"at": Point}, name="w")
    graph.add_node("move", lambda state: {"at": Point(2)})
    graph.add_edge(START, "move")
    app = graph.compile(store)
    app.invoke({"at": Point(1)}, run_id="r")

    assert JournalCheckpointStore(app).load_state("r")["at"] == Point(2)
    assert isinstance(JournalCheckpointStore(store).load_state("r")["at"], Unknown)
