"""The use cases of document 004 (checkpoint files of a state graph), with the names that its author would type."""

from __future__ import annotations

import logging
import pickle
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from holdfast import (
    CheckpointNotFound,
    CodecError,
    CorruptJournal,
    ExecutionError,
    GraphInvalid,
    RunStatus,
    StateGraph,
    StateInvalid,
)
from tests.graphs import Heard


def build(**options: Any) -> StateGraph:
    """Three nodes: fetch, review, publish; each appends its name to `path`."""
    graph = StateGraph({"value": int, "path": list, "model": str}, name="review", **options)

    def node(name: str) -> Any:
        def run(state: Any, config: Any) -> dict[str, Any]:
            path = [*state.get("path", []), name]
            return {"value": state["value"] + 1, "path": path, "model": config.get("model", "none")}

        return run

    for name in ("fetch", "review", "publish"):
        graph.add_node(name, node(name))
    graph.set_entry_point("fetch")
    graph.add_edge("fetch", "review")
    graph.add_edge("review", "publish")
    graph.set_finish_point("publish")
    return graph


@pytest.fixture
def graph() -> StateGraph:
    graph = build()
    graph.compile()
    return graph


# The methods.


def test_save_checkpoint_writes_a_pickle_and_load_checkpoint_reads_it(graph, tmp_path):
    """S4.1, S4.2, S4.6, S4.14: state, node, config, the time as a float, and version 1.0."""
    file_path = str(tmp_path / "review.pkl")

    with patch("time.time", return_value=1733443200.5):
        graph.save_checkpoint(file_path, {"value": 2, "path": ["fetch"]}, "review", {"model": "small"})

    checkpoint = StateGraph.load_checkpoint(file_path)
    assert checkpoint == {
        "state": {"value": 2, "path": ["fetch"]},
        "node": "review",
        "config": {"model": "small"},
        "timestamp": 1733443200.5,
        "version": "1.0",
    }
    with Path(file_path).open("rb") as file:
        assert pickle.load(file) == checkpoint


def test_the_three_ways_to_resume_run_the_saved_node_again(graph, tmp_path):
    """S4.3-S4.5, S4.11: resume_from_checkpoint, invoke and stream begin with the saved node."""
    file_path = tmp_path / "review.pkl"
    graph.save_checkpoint(file_path, {"value": 2, "path": ["fetch"]}, "review", {})

    events = list(graph.resume_from_checkpoint(file_path))
    streamed = list(graph.stream(checkpoint=file_path))
    outcome = graph.invoke(checkpoint=file_path)

    for each in (events, streamed):
        assert [event.node for event in each if event.type == "node.complete"] == ["review", "publish"]
        assert each[-1].type == "graph.complete"
    assert outcome.state == {"value": 4, "path": ["fetch", "review", "publish"], "model": "none"}


def test_a_file_may_have_any_name(graph, tmp_path, monkeypatch):
    """S4.1, S4.3-S4.5: also one without `.pkl`, given as text, in the current folder too."""
    monkeypatch.chdir(tmp_path)
    graph.save_checkpoint("review", {"value": 2, "path": []}, "review", {})

    for file_path in ("review", str(tmp_path / "review")):
        assert graph.invoke(checkpoint=file_path).state["path"] == ["review", "publish"]
        assert list(graph.stream(checkpoint=file_path))[-1].type == "graph.complete"
        assert list(graph.resume_from_checkpoint(file_path))[-1].type == "graph.complete"


@pytest.mark.parametrize(("state", "config"), [(3, {}), (None, {}), ({"value": 1}, 3), ({"value": 1}, ["a"])])
def test_a_state_and_a_config_are_mappings(graph, tmp_path, state, config):
    """S4.15: what else is given is named, and nothing is written."""
    with pytest.raises(StateInvalid, match=r"checkpoint .*x.pkl: (state|config) is a mapping, not"):
        graph.save_checkpoint(tmp_path / "x.pkl", state, "review", config)
    assert list(tmp_path.iterdir()) == []


def test_a_config_overrides_the_saved_one_and_an_update_the_saved_state(graph, tmp_path):
    """S4.12, R4.3: what is given wins, and the rest is as it was saved."""
    file_path = tmp_path / "publish.pkl"
    graph.save_checkpoint(file_path, {"value": 2, "path": []}, "publish", {"model": "small"})

    as_saved = graph.invoke(checkpoint=file_path)
    changed = graph.invoke({"value": 10}, checkpoint=file_path, config={"model": "large"})
    list(graph.resume_from_checkpoint(file_path, config={"model": "large"}, update={"value": 20}))
    app = graph.compile()
    resumed = app.resume(file_path, update={"value": 30}, config={"model": "large"})

    assert (as_saved.state["value"], as_saved.state["model"]) == (3, "small")
    assert (changed.state["value"], changed.state["model"]) == (11, "large")
    assert (resumed.state["value"], resumed.state["path"]) == (31, ["publish"])
    with pytest.raises(StateInvalid, match="unknown state key 'valeu'"):
        graph.invoke({"valeu": 1}, checkpoint=file_path)


def test_a_node_that_the_graph_does_not_have_is_refused_when_it_is_saved(graph, tmp_path):
    """S4.15: not only when somebody resumes."""
    with pytest.raises(StateInvalid, match="node not found: reviev; did you mean 'review'"):
        graph.save_checkpoint(tmp_path / "x.pkl", {"value": 1}, "reviev", {})
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_is_not_compiled_says_so(tmp_path):
    """S4.15: a clear error."""
    for use in (
        lambda g: g.invoke({}),
        lambda g: list(g.stream({})),
        lambda g: g.save_checkpoint("x", {}, "fetch"),
    ):
        with pytest.raises(GraphInvalid, match="not compiled yet"):
            use(build())


# Files at interrupts.


@pytest.mark.parametrize("how", ["invoke", "stream"])
@pytest.mark.parametrize("where", ["constructor", "compile"])
def test_an_interrupt_before_a_node_leaves_a_file_named_after_node_and_time(tmp_path, how, where):
    """S4.7-S4.9: `{node}_{int(time.time()*1000)}.pkl`, there before the event is yielded."""
    folder = str(tmp_path / "checkpoints")
    graph = build(checkpoint_dir=folder if where == "constructor" else None)
    graph.compile(interrupt_before=["review"], **({"checkpoint_dir": folder} if where == "compile" else {}))

    with patch("time.time", return_value=1733443200.5):
        if how == "invoke":
            assert graph.invoke({"value": 1}).status == RunStatus.PAUSED
        else:
            (event,) = [event for event in graph.stream({"value": 1}) if event.matches("interrupt")]
            assert (event.node, event.data["state"]["value"]) == ("review", 2)
            assert event.data["checkpoint_path"] == f"{folder}/review_1733443200500.pkl"

    checkpoint = StateGraph.load_checkpoint(f"{folder}/review_1733443200500.pkl")
    assert (checkpoint["node"], checkpoint["state"]["path"]) == ("review", ["fetch"])


def test_an_interrupt_after_a_node_leaves_a_file_that_goes_on_with_the_next(tmp_path):
    """S4.8, S4.10: the finished node does not run twice."""
    graph = build()
    graph.compile(interrupt_after=["review"], checkpoint_dir=tmp_path)
    paused = graph.invoke({"value": 1})
    (path,) = tmp_path.glob("review_*.pkl")

    assert paused.state["path"] == ["fetch", "review"]
    assert graph.invoke(checkpoint=path).state["path"] == ["fetch", "review", "publish"]


def test_without_a_folder_an_interrupt_writes_nothing(tmp_path, monkeypatch):
    """S4.10: as if there were no checkpoint files."""
    monkeypatch.chdir(tmp_path)
    graph = build()
    graph.compile(interrupt_before=["review"])

    assert graph.invoke({"value": 1}).status == RunStatus.PAUSED
    assert list(tmp_path.iterdir()) == []


def test_interrupts_of_one_millisecond_never_overwrite_each_other(tmp_path):
    """S4.9: sixteen runs at the same time, in several threads, leave sixteen files."""
    graph = build()
    app = graph.compile(interrupt_before=["review"], checkpoint_dir=tmp_path)
    ready = threading.Barrier(4)

    def work(first: int) -> None:
        ready.wait()
        for number in range(first, first + 4):
            app.invoke({"value": number})

    with patch("time.time", return_value=1733443200.5):
        threads = [threading.Thread(target=work, args=(first,)) for first in (0, 4, 8, 12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    saved = [StateGraph.load_checkpoint(path)["state"]["value"] for path in tmp_path.iterdir()]
    assert sorted(saved) == list(range(1, 17))
    assert (tmp_path / "review_1733443200500.pkl").exists()


def test_a_crash_after_an_interrupt_is_recovered_from_its_file_by_another_process(tmp_path):
    """S4.3, S4.11: the file is all that is needed: a recovery from a failure."""
    first = build()
    first.compile(interrupt_before=["review"], checkpoint_dir=tmp_path)
    first.invoke({"value": 1}, config={"model": "small"})
    del first
    (path,) = tmp_path.iterdir()

    second = build()
    second.compile()

    assert second.invoke(checkpoint=path).state == {
        "value": 4,
        "path": ["fetch", "review", "publish"],
        "model": "small",
    }


# Errors.


def _damage(folder: Path) -> dict[str, tuple[Path, type[Exception], str]]:
    corrupt, other, newer = folder / "corrupt.pkl", folder / "other.pkl", folder / "newer.pkl"
    corrupt.write_bytes(b"not a pickle")
    other.write_bytes(pickle.dumps({"node": "review"}))
    newer.write_bytes(pickle.dumps({"state": {}, "node": "review", "config": {}, "version": "2.0"}))
    return {
        "missing": (folder / "gone.pkl", CheckpointNotFound, "checkpoint file not found: .*gone.pkl"),
        "corrupt": (corrupt, CorruptJournal, "corrupt checkpoint file .*corrupt.pkl"),
        "incomplete": (other, CodecError, "incompatible checkpoint file .*other.pkl.*'state'"),
        "newer": (newer, CodecError, "incompatible checkpoint file .*newer.pkl.*version '2.0'"),
    }


@pytest.mark.parametrize("kind", ["missing", "corrupt", "incomplete", "newer"])
def test_a_bad_file_is_a_clear_error_or_with_raise_exceptions_off_an_event_and_a_result(tmp_path, kind):
    """S4.15: file not found, corrupt checkpoint, incompatible checkpoint; the flag is honoured."""
    path, expected, message = _damage(tmp_path)[kind]
    strict, lenient = build(), build(raise_exceptions=False)
    strict.compile()
    lenient.compile()

    for read in (StateGraph.load_checkpoint, lambda path: strict.invoke(checkpoint=path)):
        with pytest.raises(expected, match=message):
            read(path)
    with pytest.raises(expected, match=message):
        list(strict.resume_from_checkpoint(path))

    (event,) = lenient.resume_from_checkpoint(path)
    outcome = lenient.invoke(checkpoint=path)
    assert event.type == "graph.fail" and str(path) in event.data["error"]
    assert outcome.status == RunStatus.FAILED and isinstance(outcome.error, expected)


def _broken(**options: Any) -> StateGraph:
    graph = StateGraph({"value": int}, name="broken", **options)
    graph.add_node("ok", lambda state: {"value": state["value"] + 1})
    graph.add_node("bad", lambda state: 1 // 0)
    graph.set_entry_point("ok")
    graph.add_edge("ok", "bad")
    graph.set_finish_point("bad")
    return graph


def test_a_failing_node_is_raised_or_with_raise_exceptions_off_an_event_and_a_result():
    """S4.15: the run is stored and can be resumed either way."""
    with pytest.raises(ExecutionError, match="ZeroDivisionError"):
        _broken().compile().invoke({"value": 1})

    app = _broken(raise_exceptions=False).compile()
    events = list(app.stream({"value": 1}, run_id="broken-1"))
    outcome = app.resume("broken-1")

    assert [event.type for event in events if "fail" in event.type] == ["graph.fail"]
    assert outcome.status == RunStatus.FAILED and outcome.state == {"value": 2}
    assert isinstance(outcome.error, ExecutionError) and outcome.error.node == "bad"
    assert outcome.stats.steps_kept == 1 and app.get_state("broken-1") == {"value": 2}


def test_the_flag_of_compile_wins_over_that_of_the_graph():
    """S4.15: both places take it."""
    assert _broken().compile(raise_exceptions=False).invoke({"value": 1}).error is not None
    with pytest.raises(ExecutionError):
        _broken(raise_exceptions=False).compile(raise_exceptions=True).invoke({"value": 1})


async def test_an_awaited_failure_is_a_result_too():
    """S4.15: in an event loop as well."""
    app = _broken(raise_exceptions=False).compile()
    outcome = await app.ainvoke({"value": 1})
    assert outcome.status == RunStatus.FAILED and outcome.error is not None
    assert [event.type async for event in app.astream({"value": 1})][-1] == "graph.fail"


def test_a_file_that_cannot_be_saved_is_raised_or_logged_and_reported(tmp_path, caplog):
    """S4.15: and what was not written is not named as if it were there."""
    (tmp_path / "file").write_text("")
    heard, inside = Heard(), tmp_path / "file" / "x.pkl"
    graph = build(raise_exceptions=False)
    graph.compile(observer=heard)

    with caplog.at_level(logging.ERROR, "holdfast"):
        assert graph.save_checkpoint(inside, {"value": 1}, "review", {}) is None
    assert "cannot be saved" in caplog.text and heard.types == ["checkpoint.fail"]

    graph.compile(interrupt_before=["review"], checkpoint_dir=tmp_path / "file", observer=heard)
    outcome = graph.invoke({"value": 1})
    assert outcome.status == RunStatus.FAILED and "checkpoint save failed" in str(outcome.error)
    assert not heard.of("interrupt")


def test_loading_and_saving_are_logged(graph, tmp_path, caplog):
    """S4.15: at the level of debugging."""
    with caplog.at_level(logging.DEBUG, "holdfast"):
        graph.save_checkpoint(tmp_path / "x.pkl", {"value": 1}, "review", {})
        StateGraph.load_checkpoint(tmp_path / "x.pkl")
    assert "saved checkpoint" in caplog.text and "loaded checkpoint" in caplog.text


# What nodes are given.


def test_a_node_is_given_what_its_parameters_name(tmp_path):
    """R4.1, R4.5: state, config, node and graph; with them a node saves a checkpoint itself, and reads one."""
    graph = StateGraph({"value": int, "seen": list}, name="review")
    path = tmp_path / "mine.pkl"

    def save(state: Any, config: Any, node: str, graph: Any) -> dict[str, Any]:
        graph.save_checkpoint(path, state, node, config)
        return {"seen": [node, graph.name, dict(config)]}

    def load(graph: Any, *, node: str) -> dict[str, Any]:
        checkpoint = graph.load_checkpoint(path)
        return {"value": checkpoint["state"]["value"] + 1}

    graph.add_node("save", save)
    graph.add_node("load", load)
    graph.set_entry_point("save")
    graph.add_edge("save", "load")
    graph.set_finish_point("load")
    graph.compile()

    assert graph.invoke({"value": 1}, config={"model": "small"}).state == {
        "value": 2,
        "seen": ["save", "review", {"model": "small"}],
    }
    assert graph.load_checkpoint(path)["node"] == "save"


def test_a_default_of_node_or_graph_stays_as_it_is():
    """R4.1: a loop that adds nodes may bind its own variables."""
    graph = StateGraph({"seen": list}, name="review")
    graph.add_node("only", lambda state, node="mine", graph="own": {"seen": [node, graph]})
    graph.set_entry_point("only")
    assert graph.compile().invoke({}).state == {"seen": ["mine", "own"]}


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_the_graph_goes_to_threads_and_not_to_other_processes(executor):
    """R4.1: what cannot be given is refused when the graph is compiled."""
    graph = StateGraph({"seen": str}, name="review")
    graph.add_node("only", _names, executor=executor)
    graph.set_entry_point("only")
    if executor == "threads":
        assert graph.compile().invoke({}).state == {"seen": "only of review"}
    else:
        with pytest.raises(GraphInvalid, match="'graph' cannot be sent to executor='processes'"):
            graph.compile()


def _names(state: Any, node: str, graph: Any) -> dict[str, Any]:
    return {"seen": f"{node} of {graph.name}"}
