"""Checkpoint files at gates and joins, and when they cannot be written."""

from __future__ import annotations

import inspect

import pytest

from holdfast import App, CheckpointPolicy, ExecutionError, RunStatus, StateGraph
from holdfast.engine.resume import ResumeKeywords
from tests.checkpoints.samples import Calls
from tests.graphs import chain, fan


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_a_file_at_a_join_has_what_its_branches_brought(tmp_path):
    """S4.13: at the fan-in the results of the parallel branches are included."""
    graph = fan("a", "b")
    graph.add_node("join", lambda state: {"log": ["join"]})
    graph.add_edge(["a", "b"], "join")
    app = graph.compile(interrupt_before=["join"], checkpoint_dir=tmp_path)
    app.invoke({})

    (path,) = tmp_path.iterdir()
    assert App.load_checkpoint(path)["state"]["log"] == ["a", "b"]
    assert app.resume(path).state["log"] == ["a", "b", "join"]


def test_resuming_from_the_file_of_a_gate_passes_that_gate_and_no_other(tmp_path, calls):
    """S4.11: the saved node is executed; a gate that was never shown is still closed."""
    graph = chain(*"abcd", nodes={name: calls.node(name) for name in "abcd"})
    app = graph.compile(interrupt_before=["b", "d"], interrupt_after=["c"], checkpoint_dir=tmp_path)
    app.invoke({})
    (before_b,) = tmp_path.glob("b_*.pkl")

    waiting = app.resume(before_b)
    assert calls == ["a", "b", "c"]
    assert [(pause.kind, pause.node) for pause in waiting.pauses] == [("after", "c")]

    (after_c,) = tmp_path.glob("c_*.pkl")
    waiting = app.resume(after_c)
    assert [(pause.kind, pause.node) for pause in waiting.pauses] == [("before", "d")]
    assert calls == ["a", "b", "c"]


@pytest.mark.parametrize("on_save_error", ["fail", "continue"])
def test_a_file_that_cannot_be_written_stops_the_run_or_does_not_as_the_policy_says(
    tmp_path, on_save_error, heard
):
    """S4.15: a flag decides whether errors are raised or only reported; no event names a missing file."""
    (tmp_path / "file").write_text("")
    app = chain("a", "b").compile(
        interrupt_before=["b"],
        checkpoint_dir=tmp_path / "file",
        policy=CheckpointPolicy(on_save_error=on_save_error),
        observer=heard,
    )

    if on_save_error == "fail":
        with pytest.raises(ExecutionError, match="checkpoint save failed"):
            app.invoke({})
        return
    assert app.invoke({}).status == RunStatus.PAUSED
    assert heard.of("checkpoint_failed")
    (pause,) = heard.of("interrupt")
    assert pause.data["checkpoint_path"] is None


def test_every_public_method_and_its_parameters_are_documented():
    """S4.16: each has a docstring, which describes all its options."""
    for kind in (App, StateGraph):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                assert method.__doc__, f"{kind.__name__}.{name} has no docstring"
    resume = [*inspect.signature(App.resume).parameters, *ResumeKeywords.__annotations__]
    add_node = list(inspect.signature(StateGraph.add_node).parameters)
    for method, parameters in ((StateGraph.add_node, add_node), (App.resume, resume)):
        text = method.__doc__ or ""
        for parameter in set(parameters[3:]) - {"idempotent", "observer", "options"}:
            assert f"`{parameter}`" in text, (method, parameter)
