"""Pausing for a response and resuming with it, by checkpoint id."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    START,
    ExecutionError,
    HoldfastError,
    RunConflict,
    RunFinished,
    RunStatus,
    StateGraph,
    load_workflow,
)
from holdfast.checkpoints import JournalCheckpointStore, PauseMetadata, pause_workflow, resume_workflow
from holdfast.state import WorkflowState
from tests.checkpoints.samples import Calls, Flaky
from tests.graphs import chain, fan


def asks(state: Any, ctx: Any) -> dict[str, Any]:
    """An interactive block."""
    return {"log": [ctx.ask("Confirm?", name="confirm")]}


@pytest.fixture
def interactive(store):
    """first -> confirm (asks) -> last, and the names of the plain nodes that ran."""
    calls = Calls()
    nodes = {"first": calls.node("first"), "confirm": asks, "last": calls.node("last")}
    return chain("first", "confirm", "last", nodes=nodes, name="chat").compile(store), calls


def test_an_interactive_block_pauses_and_goes_on_with_the_response(interactive):
    """S2.1, S2.14: the waves before are not run again, the block has its response, the next wave follows."""
    app, calls = interactive
    waiting = app.invoke({}, run_id="r")
    assert waiting.status == RunStatus.PAUSED
    assert JournalCheckpointStore(app).load(waiting.checkpoint_id).pause_metadata == PauseMetadata(
        "confirm", "Confirm?"
    )

    result = resume_workflow(waiting.checkpoint_id, "yes", app=app)

    assert result.is_success and result.error == ""
    assert result.outcome.status == RunStatus.COMPLETED
    assert result.outcome.state["log"] == ["first", "yes", "last"]
    assert calls == ["first", "last"]


def test_an_unknown_checkpoint_is_a_failure_and_no_exception(interactive):
    """S2.12."""
    app, _ = interactive
    ident = str(uuid.uuid4())

    for missing in (ident, "nonsense"):
        result = resume_workflow(missing, "yes", app=app)
        assert not result.is_success and result.outcome is None
        assert result.error == f"Checkpoint not found: {missing}"


def test_nothing_but_the_id_is_needed(tmp_path, monkeypatch):
    """S2.12, S0.10: `resume_workflow(checkpoint_id, response)`, with the app of this process, or a workflow file."""
    nodes = {"confirm": asks}
    app = chain("confirm", nodes=nodes, name="chat").compile(f"sqlite:///{tmp_path}/runs.db")
    waiting = app.invoke({}, run_id="r").checkpoint_id
    assert resume_workflow(waiting, response="yes").outcome.state["log"] == ["yes"]
    again = resume_workflow(checkpoint_id=waiting, response="no", store=f"sqlite:///{tmp_path}/runs.db")
    assert again.outcome.state["log"] == ["no"] and again.outcome.run_id != "r"

    monkeypatch.chdir(tmp_path)
    Path("ask.yaml").write_text(
        "workflow: {name: file}\nsteps: [{name: go, ask: Go?}]\noutput: '{{ steps.go.answer }}'\n"
    )
    paused = load_workflow("ask.yaml").run({}, store="sqlite:///files.db")
    done = resume_workflow(paused.checkpoint_id, "yes", store="sqlite:///files.db")
    assert done.is_success and done.outcome.state["go"]["answer"] == "yes", done.error

    for missing in (str(uuid.uuid4()), "nobody", "nowhere.pkl"):
        assert resume_workflow(missing, "yes").error == f"Checkpoint not found: {missing}"
    with pytest.raises(
        HoldfastError, match=r"found by its id, not by .*resume_workflow\(checkpoint_id, response"
    ):
        resume_workflow(app, waiting)
    with pytest.raises(HoldfastError, match="takes a compiled graph and the id of its run, not 'r'"):
        pause_workflow("r", "r", "confirm", "Confirm?")
    for how in (app.resume_from_checkpoint, lambda ident: app.invoke(checkpoint=ident)):
        with pytest.raises(HoldfastError, match=r"not (by )?5"):
            how(5)


def test_the_response_is_found_in_the_context(store):
    """S2.13: context.blocks[block].outputs.response, beside what is there already."""
    graph = StateGraph(WorkflowState, name="w")
    graph.add_node("prepare", lambda state: {"context": {"blocks": {"prepare": {"outputs": {"x": 1}}}}})
    graph.add_node("ask", lambda state, ctx: {"messages": [ctx.ask("Name?", name="ask")]})
    graph.add_edge(START, "prepare").add_edge("prepare", "ask")
    app = graph.compile(store)
    waiting = app.invoke({"context": {"other": True}}, run_id="r")

    state = resume_workflow(waiting.checkpoint_id, "Ada", app=app).outcome.state

    assert state["context"] == {
        "other": True,
        "blocks": {"prepare": {"outputs": {"x": 1}}, "ask": {"outputs": {"response": "Ada"}}},
    }
    assert state["messages"] == ["Ada"]


def test_without_a_response_the_run_still_waits(interactive):
    """S2.12, S2.13: a response is optional, and nothing is made up for a missing one."""
    app, calls = interactive
    waiting = app.invoke({}, run_id="r")

    result = resume_workflow(waiting.checkpoint_id, app=app)

    assert result.outcome.status == RunStatus.PAUSED
    assert calls == ["first"]


def test_a_gate_is_passed_without_a_response(store):
    app = chain("a", "b").compile(store, interrupt_before=["b"])
    waiting = app.invoke({})

    assert resume_workflow(waiting.checkpoint_id, app=app).outcome.state["log"] == ["a", "b"]


def test_an_answered_checkpoint_can_be_answered_otherwise_in_a_run_of_its_own(interactive):
    """S1.15: going back to a question."""
    app, _ = interactive
    waiting = app.invoke({}, run_id="r")
    resume_workflow(waiting.checkpoint_id, "yes", app=app)

    other = resume_workflow(waiting.checkpoint_id, "no", app=app).outcome

    assert other.state["log"] == ["first", "no", "last"] and other.run_id != "r"
    assert app.get_state("r")["log"] == ["first", "yes", "last"]


def test_a_run_that_fails_after_the_response_is_a_failure_that_says_why(store):
    flaky = Flaky(RuntimeError("down"))
    nodes = {"confirm": asks, "last": Calls().node("last", fails=flaky)}
    app = chain("confirm", "last", nodes=nodes).compile(store)
    waiting = app.invoke({}, run_id="r")

    result = resume_workflow(waiting.checkpoint_id, "yes", app=app)
    assert "down" in result.error and not result.is_success

    flaky.mend()
    assert resume_workflow("r", app=app).outcome.state["log"] == ["yes", "last"]


def failed_before(store: Any, name: str) -> Any:
    """An app with a run "r" that stopped at the node `name`, which is repaired by now."""
    flaky = Flaky(RuntimeError("down"))

    def block(state: Any, ctx: Any) -> dict[str, Any]:
        if flaky.error:
            raise flaky.error
        return {"log": [ctx.ask("never asked", name="confirm")]}

    app = chain("a", name, "z", nodes={name: block}, name="w").compile(store)
    with pytest.raises(ExecutionError):
        app.invoke({}, run_id="r")
    flaky.mend()
    return app


@pytest.mark.parametrize("node", ["confirm", "elsewhere"])
def test_a_run_that_nobody_executes_is_made_to_wait(store, node):
    """S2.11: a checkpoint with the block, the prompt and no response; its id is a version 4 UUID."""
    app = failed_before(store, node)

    ident = pause_workflow(app, "r", "confirm", "Really?")

    assert uuid.UUID(ident).version == 4
    data = JournalCheckpointStore(app).load(ident)
    assert data.pause_metadata == PauseMetadata("confirm", "Really?", None)
    assert (data.status, data.completed, data.current) == (RunStatus.PAUSED, ("a",), (node,))
    assert resume_workflow(ident, "sure", app=app).outcome.state["log"] == ["a", "sure", "z"]


def test_of_several_nodes_the_one_of_that_name_waits(store):
    """S2.11."""
    flaky = Flaky(RuntimeError("down"))
    nodes = {name: Calls().node(name, fails=flaky) for name in ("a", "confirm")}
    app = fan("a", "confirm", nodes=nodes).compile(store)
    with pytest.raises(ExecutionError):
        app.invoke({}, run_id="r")

    pause_workflow(app, "r", "confirm", "Really?")

    assert [pause.node for pause in app.pauses("r")] == ["confirm"]


def test_pausing_a_run_that_waits_already_gives_its_checkpoint(interactive):
    """S2.11."""
    app, _ = interactive
    waiting = app.invoke({}, run_id="r")

    assert pause_workflow(app, "r", "confirm", "Confirm?") == waiting.checkpoint_id
    assert len(app.pauses("r")) == 1


def test_what_cannot_wait_is_not_paused(store):
    app = chain("a", name="w").compile(store)
    app.invoke({}, run_id="done")
    with pytest.raises(RunFinished):
        pause_workflow(app, "done", "q", "?")

    gated = chain("a", name="w").compile(store, interrupt_before=["a"])
    gated.invoke({}, run_id="gated")
    with pytest.raises(HoldfastError, match="no step that could wait"):
        pause_workflow(gated, "gated", "q", "?")

    def meddles(state: Any, ctx: Any) -> None:
        with pytest.raises(RunConflict, match="being executed"):
            pause_workflow(busy, ctx.run_id, "q", "?")

    busy = chain("a", "b", nodes={"b": meddles}, name="w").compile(store)
    assert busy.invoke({}).status == RunStatus.COMPLETED
