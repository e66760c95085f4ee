"""Starting a run or continuing the one that has its id: `if_exists`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from holdfast import (
    END,
    START,
    App,
    ExecutionError,
    HoldfastError,
    Retention,
    RunConflict,
    RunExists,
    RunStatus,
    StateGraph,
    append,
    open_store,
)
from holdfast.engine.retention import janitor
from holdfast.errors import AnswerRejected, GraphChanged, StateInvalid
from holdfast.stores.base import Store
from holdfast.workflows import load_workflow
from tests.engine.test_conflicts import RACE, RACES, Other, intact, ran_once
from tests.engine.test_conflicts import ledger as ledger
from tests.engine.test_conflicts import others as others
from tests.engine.test_conflicts import url as url


class Sum(TypedDict, total=False):
    n: int
    about: dict[str, Any]
    log: Annotated[list[str], append]


class Steps:
    """A chain a, b, c, whose b can fail, and what it ran."""

    def __init__(self, store: Store | str, name: str = "w", **options: Any) -> None:
        self.ran: list[str] = []
        self.fails = True
        graph = StateGraph(Sum, name=name)
        for node in ("a", "b", "c"):
            graph.add_node(node, self._step(node), version="1")
        for source, target in ((START, "a"), ("a", "b"), ("b", "c"), ("c", END)):
            graph.add_edge(source, target)
        self.app: App = graph.compile(store, **options)

    def _step(self, node: str) -> Any:
        def step(state: Any, config: Any) -> dict[str, Any]:
            self.ran.append(node)
            if node == "b" and self.fails:
                raise RuntimeError("down")
            return {"log": [f"{node}{config.get('mode', '')}"]}

        return step


@pytest.fixture
def stopped(store_url: str) -> Steps:
    """A run `r` of input 1 that failed at its second step."""
    steps = Steps(open_store(store_url))
    with pytest.raises(ExecutionError):
        steps.app.invoke({"n": 1}, run_id="r", if_exists="resume")
    assert steps.ran == ["a", "b"]
    return steps


def test_the_same_call_starts_continues_and_then_returns_the_run(stopped: Steps) -> None:
    stopped.fails = False

    continued = stopped.app.invoke({"n": 1}, run_id="r", if_exists="resume")
    again = stopped.app.invoke({"n": 1}, run_id="r", if_exists="resume")

    assert continued.status == again.status == RunStatus.COMPLETED
    assert stopped.ran == ["a", "b", "b", "c"]
    assert again.state == continued.state and again.state["log"] == ["a", "b", "c"]
    assert again.stats.steps_run == 0 and again.stats.steps_kept == 3
    assert again.checkpoint_id == continued.checkpoint_id


def test_return_runs_nothing_and_gives_the_failure(stopped: Steps) -> None:
    outcome = stopped.app.invoke({"n": 1}, run_id="r", if_exists="return")

    assert outcome.status == RunStatus.FAILED and outcome.state["log"] == ["a"]
    assert str(outcome.error).startswith("run 'r': step 'b' failed: RuntimeError: down")
    assert str(outcome.error).endswith("; resume with app.resume('r')")
    assert stopped.ran == ["a", "b"]


def test_return_starts_a_run_that_is_not_there() -> None:
    steps = Steps("memory://")
    steps.fails = False
    assert steps.app.invoke({}, run_id="new", if_exists="return").status == RunStatus.COMPLETED


def test_without_a_word_an_existing_run_is_refused(stopped: Steps) -> None:
    with pytest.raises(RunExists, match="resume with"):
        stopped.app.invoke({"n": 1}, run_id="r")


def test_the_async_call_and_streams_continue_too(stopped: Steps) -> None:
    stopped.fails = False
    events = [event.type for event in stopped.app.stream({"n": 1}, run_id="r", if_exists="resume")]
    assert "checkpoint.resume" in events and events.count("node.start") == 2
    assert list(stopped.app.stream({"n": 1}, run_id="r", if_exists="resume")) == []

    async def both() -> None:
        assert (await stopped.app.ainvoke(run_id="r", if_exists="return")).status == RunStatus.COMPLETED
        fresh = [event.type async for event in stopped.app.astream({}, run_id="s", if_exists="resume")]
        assert fresh.count("node.start") == 3
        assert [event async for event in stopped.app.astream({}, run_id="s", if_exists="resume")] == []

    asyncio.run(both())
    assert stopped.ran == ["a", "b", "b", "c", "a", "b", "c"]


@pytest.mark.parametrize("other", [{"n": 2}, {"n": 1, "about": {"x": 1}}, {}, {"about": {}}])
def test_another_input_is_refused_with_what_differs(stopped: Steps, other: dict[str, Any]) -> None:
    for way in ("resume", "return"):
        with pytest.raises(
            RunExists, match=r"'r' exists and began with another input: '(n|about)'"
        ) as caught:
            stopped.app.invoke(other, run_id="r", if_exists=way)
        assert "give the same input or none" in str(caught.value)
    assert stopped.ran == ["a", "b"]


def test_the_order_of_dicts_makes_no_other_input() -> None:
    steps = Steps("memory://")
    steps.fails = False
    steps.app.invoke({"n": 1, "about": {"x": 1, "y": {1, 2}}}, run_id="r")
    assert steps.app.invoke({"about": {"y": {2, 1}, "x": 1}, "n": 1}, run_id="r", if_exists="return")
    with pytest.raises(RunExists, match=r"another input: 'about\.x', 'about\.z' differ;"):
        steps.app.invoke({"about": {"y": {2, 1}, "z": 1}, "n": 1}, run_id="r", if_exists="return")


def test_without_an_input_the_run_continues_with_its_own(stopped: Steps) -> None:
    stopped.fails = False
    outcome = stopped.app.invoke(run_id="r", if_exists="resume", config={"mode": "!"})
    assert outcome.state["n"] == 1 and outcome.state["log"] == ["a", "b!", "c!"]


def test_defaults_that_differ_from_time_to_time_are_not_compared() -> None:
    import dataclasses

    @dataclasses.dataclass
    class Begun:
        n: int
        at: float = dataclasses.field(default_factory=time.perf_counter)

    graph = StateGraph(Begun, name="dated")
    graph.add_node("a", lambda state: None)
    graph.add_edge(START, "a")
    graph.add_edge("a", END)
    app = graph.compile("memory://")
    first = app.invoke({"n": 1}, run_id="r", if_exists="resume")
    assert app.invoke({"n": 1}, run_id="r", if_exists="resume").state == first.state


def test_a_run_whose_beginning_was_pruned_continues_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps = Steps(f"sqlite:///{tmp_path}/runs.db", retention=Retention.latest_only())
    with pytest.raises(ExecutionError):
        steps.app.invoke({"n": 1}, run_id="r")
    janitor.wait()
    steps.fails = False
    assert steps.app.invoke({"n": 2}, run_id="r", if_exists="resume").state["n"] == 1
    assert "run r: the input is not compared" in caplog.text


def test_a_question_is_returned_and_a_gate_stays_closed() -> None:
    def asks(state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": [ctx.ask("Which?", name="q")]}

    graph = StateGraph(Sum, name="asking")
    graph.add_node("asks", asks)
    graph.add_edge(START, "asks")
    graph.add_edge("asks", END)
    app = graph.compile("memory://", interrupt_after=["asks"])

    first = app.invoke({"n": 1}, run_id="r", if_exists="resume")
    again = app.invoke({"n": 1}, run_id="r", if_exists="resume")
    assert first.status == again.status == RunStatus.PAUSED
    assert again.pauses == first.pauses and again.pauses[0].prompt == "Which?"

    events = list(app.stream({"n": 1}, run_id="r", if_exists="resume", answers={"q": "this"}))
    assert any(event.type == "pause" and event.data["kind"] == "after" for event in events)
    gate = app.invoke({"n": 1}, run_id="r", if_exists="resume")
    assert [pause.kind for pause in gate.pauses] == ["after"]
    assert app.resume("r").status == RunStatus.COMPLETED
    with pytest.raises(AnswerRejected, match="is completed and not resumed"):
        list(app.stream(run_id="r", if_exists="resume", answers={"q": "this"}))


def test_a_cancelled_run_stays_cancelled(stopped: Steps) -> None:
    stopped.app.cancel("r", "enough")
    stopped.fails = False
    assert stopped.app.invoke({"n": 1}, run_id="r", if_exists="resume").status == RunStatus.CANCELLED
    assert stopped.ran == ["a", "b"]
    assert stopped.app.resume("r").status == RunStatus.COMPLETED


def test_what_cannot_be_meant_is_refused(stopped: Steps) -> None:
    app = stopped.app
    with pytest.raises(StateInvalid, match="name it with run_id="):
        app.invoke({}, if_exists="resume")
    with pytest.raises(
        HoldfastError, match="if_exists must be one of 'fail', 'resume', 'return', not 'go on'"
    ):
        app.invoke({}, run_id="r", if_exists="go on")
    with pytest.raises(StateInvalid, match="give either if_exists= or checkpoint="):
        app.invoke({}, checkpoint="r", if_exists="resume")
    with pytest.raises(StateInvalid, match="must be printable text"):
        app.invoke({}, run_id=" ", if_exists="resume")
    with pytest.raises(GraphChanged, match="is of workflow 'w'"):
        Steps(app.store, name="other").app.invoke({}, run_id="r", if_exists="resume")
    with pytest.raises(StateInvalid, match="give either key= or if_exists="):
        app.submit({}, key="k", if_exists="resume")


def test_a_failed_run_is_queued_again_and_others_are_left_alone(stopped: Steps) -> None:
    app = stopped.app
    assert app.submit({"n": 1}, run_id="r", if_exists="return") == "r"
    assert app.runs()[0].status == RunStatus.FAILED
    assert app.submit({"n": 1}, run_id="r", if_exists="resume", queue="night") == "r"
    assert app.runs()[0].status == RunStatus.QUEUED and app.runs()[0].queue == "night"
    assert app.submit({"n": 1}, run_id="r", if_exists="resume") == "r"
    assert app.runs()[0].queue == "night"
    with pytest.raises(RunExists, match="another input: 'n' differs"):
        app.submit({"n": 2}, run_id="r", if_exists="resume")
    assert app.submit({"n": 2}, run_id="new", if_exists="resume") == "new"
    assert [info.status for info in app.store.runs(run="new")] == ["queued"]


def test_a_run_that_saves_only_at_its_end_is_stored_before_it_runs(tmp_path: Path) -> None:
    """Else two processes could both run it."""
    found: list[int] = []
    graph = StateGraph(dict, name="late")
    graph.add_node("a", lambda state: found.append(len(app.store.runs(run="r"))))
    graph.add_edge(START, "a")
    graph.add_edge("a", END)
    app: App = graph.compile(f"sqlite:///{tmp_path}/runs.db", durability="exit")
    app.invoke({}, run_id="r", if_exists="resume")
    assert found == [1]


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_of_two_processes_one_creates_the_run_and_none_runs_a_step_twice(
    scheme: str, tmp_path: Path, ledger: Path, others: list[Other]
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db" if scheme == "sqlite" else f"file:///{tmp_path}/runs"
    program = RACE.replace(
        "app.resume(run.strip())", "app.invoke({}, run_id=run.strip(), if_exists='resume')"
    )
    others += [Other(program, url, ledger, "race") for _ in range(2)]
    assert [other.hear() for other in others] == ["ready", "ready"]
    runs = [f"r{index}" for index in range(RACES)]

    for run in runs:
        for other in others:
            other.say(run)
        ends = sorted(other.hear() for other in others)
        assert ends in ([RunConflict.__name__, "completed"], ["completed", "completed"]), (run, ends)

    store = open_store(url)
    for run in runs:
        intact(store, run)
    ran_once(ledger, runs)
    store.close()


FILE = """
workflow:
  name: greet
  inputs: {name: {type: string, required: true}, times: {type: integer, default: 1}}
  checkpoint: {path: %s}
steps:
  - name: greet
    shell: "test -e open && echo hello {{ inputs.name }}"
output: "{{ steps.greet.output }}"
"""


def test_a_workflow_file_runs_and_continues_from_python(tmp_path: Path) -> None:
    path = tmp_path / "greet.yaml"
    path.write_text(FILE % tmp_path)
    workflow = load_workflow(path)
    with pytest.raises(ExecutionError):
        workflow.run({"name": "Ada"}, run_id="r", if_exists="resume")
    (tmp_path / "open").touch()

    with pytest.raises(RunExists, match=r"another input: 'inputs\.name' differs"):
        workflow.run({"name": "Bob"}, run_id="r", if_exists="resume")
    outcome = workflow.run({"name": "Ada"}, run_id="r", if_exists="resume")
    assert workflow.output(outcome.state).strip() == "hello Ada"
    again = workflow.run(run_id="r", if_exists="resume")
    assert again.state == outcome.state and again.stats.steps_run == 0
    with pytest.raises(HoldfastError, match="name"):
        workflow.run(run_id="other", if_exists="resume")
    assert workflow.submit({"name": "Eve"}, run_id="q") == workflow.submit(run_id="q", if_exists="return")
