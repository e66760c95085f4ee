"""Processes killed at other times: while they emit events, repeatedly, at random, and with less durability."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from holdfast import END, START, Context, RunNotFound, RunStatus, StateGraph, open_store
from holdfast.errors import HoldfastError
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing import Crash, CrashingStore, raise_crash
from holdfast.testing.wrapped_store import POINTS, Point
from tests.crash.programs import harness, python


@pytest.mark.parametrize("workflow", ["wave", "pausing", "nested"])
def test_a_run_killed_while_any_event_is_told_is_resumed_to_the_same_result(workflow: str) -> None:
    counts = harness("boundaries", workflow, "sqlite", "process", "--points", "told")

    assert counts["told"] >= 10


@pytest.mark.parametrize("workflow", ["chain", "loop", "nested"])
def test_a_run_whose_every_process_dies_after_one_append_still_comes_to_its_end(workflow: str) -> None:
    counts = harness("lives", workflow, "sqlite", "process")

    assert counts["lives"] >= 4


@pytest.mark.parametrize(("scheme", "durability"), [("sqlite", "full"), ("file", "process")])
def test_runs_killed_at_random_moments_lose_nothing_that_was_finished(scheme: str, durability: str) -> None:
    counts = harness("random", "everything", scheme, durability, "--kills", "30", "--seed", "7")

    assert counts["kills"] >= 30


EXIT_ONLY = """
import os, signal, sys
from holdfast import END, START, StateGraph

def first(state, ctx):
    return {"first": ctx.ask("Go on?", name="go")}

def last(state):
    if not os.path.exists(sys.argv[2]):
        open(sys.argv[2], "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"last": True}

graph = StateGraph(dict, name="w")
graph.add_node("zero", lambda state: {"zero": True})
graph.add_node("first", first)
graph.add_node("last", last)
graph.add_edge(START, "zero"); graph.add_edge("zero", "first")
graph.add_edge("first", "last"); graph.add_edge("last", END)
app = graph.compile(sys.argv[1], durability="exit")
"""


def test_durability_exit_loses_what_was_not_saved_at_an_exit_and_says_so(tmp_path: Path) -> None:
    """A run that never paused is not found; nothing half-written is left behind."""
    url, flag = f"sqlite:///{tmp_path}/runs.db", str(tmp_path / "flag")
    program = EXIT_ONLY.replace("ctx.ask", "(lambda *_, **__: True)") + 'app.invoke({}, run_id="r")'

    assert python(program, url, flag).returncode == -signal.SIGKILL

    store = open_store(url)
    assert store.runs() == []
    again = python(program.replace("app.invoke({}", "app.resume(").replace("(, run_id=", "("), url, flag)
    assert "RunNotFound" in again.stderr and "no run, checkpoint or workflow 'r'" in again.stderr
    assert python(program, url, flag).returncode == 0
    assert store.runs()[0].status == RunStatus.COMPLETED
    store.close()


def test_durability_exit_goes_back_to_the_last_pause(tmp_path: Path) -> None:
    url, flag = f"sqlite:///{tmp_path}/runs.db", str(tmp_path / "flag")
    assert python(EXIT_ONLY + 'app.invoke({}, run_id="r")', url, flag).returncode == 0
    store = open_store(url)
    assert store.runs()[0].status == RunStatus.PAUSED

    assert python(EXIT_ONLY + 'app.resume("r", answer=1)', url, flag).returncode == -signal.SIGKILL

    assert store.runs()[0].status == RunStatus.PAUSED
    done = python(EXIT_ONLY + 'print(app.resume("r", answer=2).state.to_dict())', url, flag)
    assert done.stdout.strip() == "{'zero': True, 'first': 2, 'last': True}"
    store.close()


def two_steps(ran: list[str]) -> StateGraph:
    def step(state: object, ctx: Context) -> None:
        ran.append(ctx.node)

    graph = StateGraph(dict, name="w")
    graph.add_node("a", step)
    graph.add_node("b", step)
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    graph.add_edge("b", END)
    return graph


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_crashing_store_crashes_within_one_process_too(at: int, point: Point) -> None:
    inner, ran = MemoryStore(), list[str]()
    store = CrashingStore(inner, at, point, how=raise_crash)
    assert isinstance(store, Store)

    with pytest.raises(Crash):
        two_steps(ran).compile(store).invoke({}, run_id="r")

    stored = at - (point == "before")
    assert len(list(inner.read("r"))) == stored
    assert store.commits == at and store.crashed
    assert ran == ["a", "b"][: at - 1]
    app = two_steps(ran).compile(inner)
    if stored == 3:
        assert app.runs()[0].status == RunStatus.COMPLETED
    elif stored:
        assert app.resume("r").status == RunStatus.COMPLETED
        assert ran == (["a", "b"] if point != "before" else ["a", "b"][: at - 1] + ["a", "b"][at - 2 :])
    else:
        with pytest.raises(RunNotFound):
            app.resume("r")


@pytest.mark.parametrize("point", POINTS)
async def test_a_crash_in_a_shared_commit_reaches_the_run_that_waits_for_it(point: Point) -> None:
    inner, ran = MemoryStore(), list[str]()
    store = CrashingStore(inner, 2, point, how=raise_crash)

    with pytest.raises(Crash):
        await two_steps(ran).compile(store).ainvoke({}, run_id="r")

    assert (await two_steps(ran).compile(inner).aresume("r")).status == RunStatus.COMPLETED


def test_a_crashed_store_commits_nothing_more_but_can_be_read() -> None:
    store = CrashingStore(MemoryStore(), 2, "committed", how=raise_crash)
    app = two_steps([]).compile(store)
    with pytest.raises(Crash):
        app.invoke({}, run_id="r")

    with pytest.raises(Crash):
        app.resume("r")
    assert [entry.seq for entry in store.read("r")] == [1, 2]
    assert len(store.checkpoints("r")) == 1
    assert store.snapshot("r") is None
    assert store.inbox("r") == [] and store.post("r", b"x") == 1
    assert store.delete("r") and store.runs() == []
    store.close()


def test_a_crashing_store_that_never_crashes_counts_the_boundaries() -> None:
    store = CrashingStore(MemoryStore(), at=0)

    two_steps([]).compile(store).invoke({})

    assert store.commits == 3 and not store.crashed


def test_a_crash_at_an_unknown_point_is_refused() -> None:
    with pytest.raises(HoldfastError, match="point must be one of 'before', 'committed', 'acknowledged'"):
        CrashingStore(MemoryStore(), 1, "later")  # type: ignore[arg-type]
