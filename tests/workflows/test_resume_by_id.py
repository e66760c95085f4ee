"""`holdfast.resume`: a run is continued by an id alone, whatever its workflow is written in."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ExecutionError, StateGraph, UnknownWorkflow, open_store
from holdfast.capsules import import_run
from holdfast.dags import ControlledExecutor, Tools
from holdfast.engine.runner import known_apps
from holdfast.errors import CheckpointNotFound, ForeignRun, HoldfastError, RunNotFound
from holdfast.stores.base import Store
from holdfast.workflows import app_of_run
from tests.capsules.samples import exported
from tests.checkpoints.samples import Calls, Flaky
from tests.graphs import chain
from tests.workflows.workshop import Workshop

FAILING = """
steps:
  - {name: one, python: "steps:say", with: {word: one}}
  - {name: two, python: "steps:fail_until", with: {word: two, fixed: fixed}}
  - {name: three, python: "steps:say", with: {word: three}}
"""
ASKING = """
steps:
  - {name: ask, ask: "Go on?"}
  - {name: act, shell: "touch sprung"}
"""
IN_ANOTHER_PROCESS = """
import sys, holdfast
out = holdfast.resume(sys.argv[1], store=sys.argv[2])
print(out.status, out.run_id, out.stats.steps_run)
"""


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(known_apps, "_registered", {})
    yield
    gc.collect()


class Failed:
    """A chain a, b, c whose b failed in run `r` of a store, and can be repaired."""

    def __init__(self, name: str = "by id") -> None:
        self.calls, self.flaky = Calls(), Flaky(RuntimeError("429"))
        nodes = {each: self.calls.node(each, fails=self.flaky if each == "b" else None) for each in "abc"}
        self.graph: StateGraph = chain(*"abc", nodes=nodes, name=name)

    def run(self, store: Store, run_id: str = "r") -> Any:
        app = self.graph.compile(store)
        with pytest.raises(ExecutionError):
            app.invoke({}, run_id=run_id)
        self.flaky.mend()
        self.calls.clear()
        return app


def called(shop: Workshop) -> list[str]:
    return (shop.folder / "calls").read_text().split()


def test_a_run_of_a_workflow_file_is_resumed_by_its_id_alone(shop):
    """S0.10: the definition and the options come from the checkpoint."""
    shop.error(FAILING)
    (shop.folder / "fixed").touch()
    (shop.folder / "flow.yaml").unlink()

    out = holdfast.resume("r", store=shop.url)

    assert out.status == "completed" and out.run_id == "r"
    assert called(shop) == ["one", "two", "two", "three"]


def test_another_process_needs_the_checkpoint_id_and_the_store(shop):
    """S0.10: nothing of the process that started the run is needed."""
    shop.error(FAILING)
    (shop.folder / "fixed").touch()
    store = open_store(shop.url)
    ident = shop.open().checkpoints("r")[-1].id
    store.close()

    done = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, ident, shop.url],
        capture_output=True,
        text=True,
        check=True,
        cwd=shop.folder,
        env=shop.env,
    )

    assert done.stdout.split() == ["completed", "r", "2"]
    assert called(shop) == ["one", "two", "two", "three"]


def test_the_options_of_a_run_hold_when_it_is_resumed_by_its_id(shop):
    """S0.22: interrupts and skipped gates that a run was started with are stored with it."""
    workflow = shop.load(FAILING)
    app = workflow.open(shop.url, interrupt_after=["two"])
    with pytest.raises(ExecutionError):
        app.invoke(workflow.begin({}), run_id="r", config=workflow.config({"interrupt_after": ["two"]}))
    (shop.folder / "fixed").touch()

    assert holdfast.resume("r", store=shop.url).status == "paused"
    assert holdfast.resume("r", store=shop.url).status == "completed"


def test_an_answer_is_given_with_the_id(shop):
    """S0.10, S2.12: an answered question, by the run's id and the store."""
    paused = shop.run(ASKING)

    out = holdfast.resume(paused.checkpoint_id, "yes", store=shop.url)

    assert out.status == "completed" and (shop.folder / "sprung").exists()


def test_an_app_in_use_is_found_by_the_name_of_its_workflow(store):
    """S0.10: a Python graph that was compiled in this process, wherever its run is stored."""
    failed = Failed()
    app = failed.run(store)

    out = holdfast.resume(app.get_state("r").checkpoint_id)

    assert out.status == "completed" and failed.calls == ["b", "c"]


def test_a_registered_app_is_found_when_nobody_uses_it(store):
    """S0.10: `holdfast.register(app)`; the app may be compiled on another store."""
    failed = Failed()
    failed.run(store)
    gc.collect()
    assert holdfast.register(failed.graph.compile("memory://")).name == "by id"
    gc.collect()

    out = holdfast.resume("r", store=store)

    assert out.status == "completed" and failed.calls == ["b", "c"]
    assert store.runs(run="r")[0].status == "completed", "on the store that was named"


def test_a_dag_is_carried_by_its_run_and_resumed_at_a_layer(store):
    """S0.10, S0.11: a graph as data; only the tools have to be known."""
    tools, calls = Tools(), Calls()

    @tools.tool
    def one() -> None:
        calls.append("one")

    @tools.tool
    def two() -> None:
        calls.append("two")

    executor = ControlledExecutor(tools, store=store)
    tasks = [{"id": "a", "tool": "one"}, {"id": "b", "tool": "two", "depends_on": ["a"]}]
    executor.execute({"tasks": tasks}, run_id="r")
    first = next(each for each in executor.app.checkpoints("r") if each.nodes == ("one",))
    calls.clear()

    out = holdfast.resume(first.id, store=store)

    assert out.status == "completed" and calls == ["two"]


def test_a_workflow_that_the_process_does_not_know_is_refused_with_the_way_out(store):
    Failed().run(store)
    gc.collect()

    with pytest.raises(UnknownWorkflow, match=r"'by id'.*no graph of that name.*holdfast\.register\(app\)"):
        holdfast.resume("r", store=store)

    assert store.runs(run="r")[0].status == "failed"


def test_of_two_different_graphs_of_one_name_none_is_guessed(store):
    Failed().run(store)
    gc.collect()
    apps = [chain(*names, name="by id").compile("memory://") for names in ("abc", "xyz")]

    with pytest.raises(UnknownWorkflow, match="several different graphs of that name"):
        holdfast.resume("r", store=store)
    holdfast.register(apps[0])

    assert holdfast.resume("r", store=store).status == "completed"


def test_a_store_that_was_closed_is_left_out_of_the_search(store, tmp_path):
    graph = (
        holdfast.StateGraph(dict, name="elsewhere")
        .add_node("a", lambda state: None)
        .add_edge(holdfast.START, "a")
    )
    gone = holdfast.open_store(f"sqlite:///{tmp_path / 'gone.db'}")
    app = graph.compile(gone)
    app.invoke({})
    gone.close()

    with pytest.raises(RunNotFound):
        holdfast.resume("nobody")
    assert app is not None


@pytest.mark.parametrize(
    ("ident", "error"),
    [("nobody", RunNotFound), ("00000000-0000-4000-8000-000000000000", CheckpointNotFound)],
)
def test_an_unknown_id_is_refused(store, ident, error):
    """S0.14: an invalid checkpoint id is an error, which names the store that was searched."""
    with pytest.raises(error, match=r"memory:.*store="):
        holdfast.resume(ident)
    with pytest.raises(error):
        holdfast.resume(ident, store=store)


@pytest.mark.parametrize(
    "url", ["sqlite:///{}/none.db", "file://{}/none", "{}/none.db", "pg-embedded:{}/none"]
)
def test_a_store_that_is_not_there_is_not_made_by_looking_for_a_run(tmp_path, monkeypatch, url):
    """S0.14: the error says that there is no such store, and nothing is created."""
    named = url.format(tmp_path)
    with pytest.raises(RunNotFound, match=r"no store at .*none.*nothing was created"):
        holdfast.resume("somebody", store=named)
    with pytest.raises(CheckpointNotFound, match="no store at"):
        holdfast.resume(
            "00000000-0000-4000-8000-000000000000", store=Path(named) if ":" not in named else named
        )
    monkeypatch.setenv("HOLDFAST_STORE", named)
    with pytest.raises(RunNotFound, match=r"no store at .*store="):
        holdfast.resume("somebody")

    assert list(tmp_path.iterdir()) == []


def test_a_run_from_outside_is_not_even_read_in_before_it_is_confirmed(shop, tmp_path):
    shop.run(ASKING)
    there = open_store(shop.url)
    path = exported(there, "r", tmp_path)
    there.close()
    store = open_store("memory://")
    import_run(store, path)

    with pytest.raises(ForeignRun) as refused:
        app_of_run("r", store=store)
    assert holdfast.resume("r", store=store, trust=refused.value.digest).status == "paused"
    assert holdfast.resume("r", "yes", store=store).status == "completed"


def test_only_compiled_graphs_can_be_registered():
    with pytest.raises(HoldfastError, match="compiled graph"):
        holdfast.register(chain(*"ab"))  # type: ignore[type-var]


# Checkpoint files.


def test_a_checkpoint_file_with_a_workflow_in_it_is_resumed_once_it_is_confirmed(shop):
    shop.run(
        """
        steps:
          - {name: one, python: "steps:say", with: {word: one}}
          - {name: saved, checkpoint: {save: here.pkl}}
          - {name: two, python: "steps:say", with: {word: two}}
        """
    )
    path = shop.folder / "here.pkl"

    with pytest.raises(ForeignRun):
        holdfast.resume(path, store=shop.url)
    out = holdfast.resume(path, store=shop.url, trust=True)

    assert out.status == "completed" and called(shop) == ["one", "two", "two"]


def test_a_checkpoint_file_without_a_workflow_needs_its_app(tmp_path: Path):
    app = chain(*"ab").compile("memory://")
    path = app.save_checkpoint(tmp_path / "mine.pkl", {"log": ["a"]}, "b")

    with pytest.raises(UnknownWorkflow, match=r"app\.resume_from_checkpoint"):
        holdfast.resume(path)


def test_a_file_of_any_name_is_streamed(tmp_path: Path):
    """S4.3: `resume_from_checkpoint(file_path)` yields the events of a new run."""
    app = chain(*"ab").compile("memory://")
    path = str(app.save_checkpoint(tmp_path / "mine.checkpoint", {"log": ["a"]}, "b"))

    events = list(app.resume_from_checkpoint(path))

    assert events[-1].type == "graph.complete"


def test_a_stream_that_nobody_iterates_over_warns_that_nothing_ran(tmp_path: Path):
    """S4.3: like a coroutine that is never awaited."""
    app = chain(*"ab").compile("memory://")
    path = app.save_checkpoint(tmp_path / "mine.pkl", {"log": ["a"]}, "b")

    with pytest.warns(RuntimeWarning, match="nothing was run"):
        app.resume_from_checkpoint(path)
        gc.collect()
    assert not app.runs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app.stream({}).close()
        next(app.stream({}))
        gc.collect()
