"""Policies: when a run is saved, what a failure means, and how long things are kept."""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    END,
    START,
    CheckpointNotFound,
    CheckpointPolicy,
    Context,
    Event,
    ExecutionError,
    HoldfastError,
    Retention,
    RunNotFound,
    RunStatus,
    StateGraph,
    StoreError,
    open_store,
)
from holdfast.checkpoints import periodic_cleanup
from holdfast.engine.retention import apply_retention, expire_runs, janitor
from holdfast.integrity.check import check_store
from holdfast.state import WorkflowState
from holdfast.stores.base import Append, Conflict, RunInfo, Snapshot, Store
from holdfast.stores.memory import MemoryStore
from holdfast.views.runs import run_view
from tests.graphs import Heard, chain, fan, one
from tests.invariants import check_journal, read_journal

SEVEN = "abcdefg"


def entries(store: Store, run: str = "r") -> int:
    return len(list(store.read(run)))


def watching(store: Store, names: str, **options: Any) -> tuple[StateGraph, list[int]]:
    """A chain whose nodes note how many entries are stored when they run."""
    seen: list[int] = []

    def look(state: Any, ctx: Context) -> dict[str, Any]:
        seen.append(entries(store))
        return {"log": [ctx.node]}

    return chain(*names, nodes=dict.fromkeys(names, look), **options), seen


class RecordingStore(MemoryStore):
    """A memory store that records every append, and fails while it is set to."""

    def __init__(self) -> None:
        super().__init__()
        self.appends: list[Append] = []
        self.broken = False
        self.error: Exception = StoreError("the disk is full")

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        if self.broken:
            raise self.error
        self.appends += appends
        return super().commit(appends)


# Values.


@pytest.mark.parametrize(
    "bad",
    [
        {"interval": -1},
        {"interval": 1.5},
        {"on_failure": "ignore"},
        {"on_save_error": "ignore"},
        {"preserve": "some"},
        {"durability": "best"},
    ],
)
def test_a_policy_that_means_nothing_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(HoldfastError, match=next(iter(bad))):
        CheckpointPolicy(**bad)


@pytest.mark.parametrize(
    "bad",
    [{"max_checkpoints": 0}, {"per": "day"}, {"max_age": dt.timedelta(0)}, {"pause_ttl": dt.timedelta(-1)}],
)
def test_a_retention_that_means_nothing_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(HoldfastError, match=next(iter(bad))):
        Retention(**bad)


def test_the_defaults_are_those_that_are_written_down() -> None:
    """S1.5, S2.5, S0.16, S3.5"""
    assert CheckpointPolicy() == CheckpointPolicy(1, "pause", "fail", "last", "full")
    assert Retention() == Retention(dt.timedelta(days=7), None, True, dt.timedelta(hours=24), "workflow")
    assert Retention.recent() == Retention(max_checkpoints=5)
    assert Retention.latest_only() == Retention(max_checkpoints=1, per="run")


def test_durability_may_not_be_given_twice_and_differently() -> None:
    policy = CheckpointPolicy(durability="exit")
    chain("a").compile("memory://", policy=policy, durability="exit")
    with pytest.raises(HoldfastError, match="durability is given twice"):
        chain("a").compile("memory://", policy=policy, durability="full")


# Interval.


def test_every_wave_is_saved_before_the_next_one_runs(store: Store) -> None:
    """S0.7, S1.1, S1.3: the completion of a step and the intent of the next are one append."""
    graph, seen = watching(store, SEVEN)
    out = graph.compile(store).invoke(run_id="r")

    assert seen == [1, 2, 3, 4, 5, 6, 7] and entries(store) == 8 and out.stats.commits == 8


def test_every_third_wave_is_saved(store: Store) -> None:
    """S3.12"""
    graph, seen = watching(store, SEVEN)
    app = graph.compile(store, policy=CheckpointPolicy(interval=3))
    out = app.invoke(run_id="r")

    found = app.checkpoints("r")
    assert [(checkpoint.wave, checkpoint.nodes) for checkpoint in found] == [(3, ("c",)), (6, ("f",))]
    assert seen == [0, 0, 0, 1, 1, 1, 2] and entries(store) == 3
    assert app.get_state("r", checkpoint_id=found[0].id).checkpoint_node == "c"
    assert app.get_state("r") == out.state


def test_a_pause_and_a_failure_are_saved_whatever_the_interval(store: Store) -> None:
    for interval in (0, 100):
        policy = CheckpointPolicy(interval=interval)
        asking = chain("a", "b", nodes={"b": lambda s, ctx: {"log": [ctx.ask("q")]}})
        app = asking.compile(store, policy=policy)
        run = f"asks {interval}"
        app.invoke(run_id=run)
        assert app.resume(run, "x").state["log"] == ["a", "x"]

        broken = [True]
        failing = chain("a", "b", nodes={"b": lambda s, broken=broken: 1 / 0 if broken[0] else None})
        app = failing.compile(store, policy=policy)
        with pytest.raises(ExecutionError):
            app.invoke(run_id=f"fails {interval}")
        broken[0] = False
        out = app.resume(f"fails {interval}")
        assert out.state["log"] == ["a"] and out.stats.steps_kept == 1


def test_interval_zero_saves_nothing_of_a_run_that_goes_well(store: Store) -> None:
    """S3.11"""
    graph, seen = watching(store, "abc")
    out = graph.compile(store, policy=CheckpointPolicy(interval=0)).invoke(run_id="r")

    assert out.status == RunStatus.COMPLETED and seen == [0, 0, 0]
    assert store.runs() == [] and out.stats.commits == 0


# Failures.


def fails_once() -> tuple[Any, list[str]]:
    calls: list[str] = []

    def fail(state: Any) -> dict[str, Any]:
        calls.append("b")
        if len(calls) == 1:
            raise ConnectionError("429 slow down")
        return {"log": ["b"]}

    return fail, calls


def test_on_failure_pause_keeps_finished_work_for_a_resume(store: Store) -> None:
    """S1.7, S1.15"""
    fail, calls = fails_once()
    graph, seen = watching(store, "abc")
    graph._nodes["b"] = dataclasses.replace(graph._nodes["b"], function=fail, wants=("state",))
    app = graph.compile(store)
    with pytest.raises(ExecutionError, match="429"):
        app.invoke(run_id="r")

    assert app.resume("r").state["log"] == ["a", "b", "c"] and calls == ["b", "b"] and len(seen) == 2


def test_on_failure_continue_goes_on_without_the_step(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    """S1.7"""
    fail, _ = fails_once()
    app = chain("a", "b", "c", nodes={"b": fail}).compile(
        "memory://", policy=CheckpointPolicy(on_failure="continue")
    )
    out = app.invoke(run_id="r", observer=heard)

    assert out.status == RunStatus.COMPLETED and out.state["log"] == ["a", "c"]
    assert out.warnings == ("step 'b' failed and was passed over: ConnectionError: 429 slow down",)
    assert heard.of("task_warning")[0].data == {"step": "b#1", "error": "ConnectionError: 429 slow down"}
    assert "node 'b' failed, going on without" in caplog.text


def test_on_failure_continue_also_among_siblings() -> None:
    fail, _ = fails_once()
    graph = fan("a", "b", "c", nodes={"b": fail})
    out = graph.compile("memory://", policy=CheckpointPolicy(on_failure="continue")).invoke()

    assert out.state["log"] == ["a", "c"] and len(out.warnings) == 1


def test_on_failure_rollback_leaves_nothing(store: Store) -> None:
    """S1.7"""
    fail, _ = fails_once()
    app = chain("a", "b", nodes={"b": fail}).compile(store, policy=CheckpointPolicy(on_failure="rollback"))

    with pytest.raises(ExecutionError, match="429"):
        app.invoke(run_id="r")
    assert store.runs() == []
    with pytest.raises(RunNotFound):
        app.resume("r")


# Saves that fail.


def test_a_save_that_fails_stops_the_run_before_the_next_step(heard: Heard) -> None:
    """S3.13"""
    store = RecordingStore()
    calls: list[str] = []

    def unplug(state: Any) -> dict[str, Any]:
        store.broken = True
        return {"log": ["b"]}

    graph = chain("a", "b", "c", nodes={"b": unplug, "c": lambda s: calls.append("c")})
    app = graph.compile(store)
    with pytest.raises(ExecutionError, match="checkpoint save failed: the disk is full") as caught:
        app.invoke(run_id="r", observer=heard)

    error = caught.value
    assert calls == [] and isinstance(error.cause, StoreError) and error.run_id == "r"
    assert error.err is error.cause
    assert error.node == "b" and error.state is not None and error.state["log"] == ["a", "b"]
    assert error.path == ("a", "b") and heard.of("checkpoint_failed")
    store.broken = False
    assert chain("a", "b", "c").compile(store).resume("r").state["log"] == ["a", "b", "c"]


def test_a_run_may_go_on_without_its_checkpoints_and_saves_what_it_owes(
    heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    """S0.13"""
    store = RecordingStore()

    def switch(state: Any, ctx: Context) -> dict[str, Any]:
        store.broken = ctx.node in "bc"
        return {"log": [ctx.node]}

    graph = chain(*"abcdef", nodes=dict.fromkeys("abcdef", switch))
    app = graph.compile(store, policy=CheckpointPolicy(on_save_error="continue"))
    out = app.invoke(run_id="r", observer=heard)

    assert out.status == RunStatus.COMPLETED and out.state["log"] == list("abcdef")
    assert out.stats.save_errors == 2 and out.warnings == (
        "2 checkpoint(s) could not be saved when they were due",
    )
    assert [event.data["consecutive"] for event in heard.of("checkpoint_failed")] == [1, 2]
    assert "checkpoint save failed, going on without" in caplog.text
    assert app.get_state("r") == out.state and [found.wave for found in app.checkpoints("r")] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]


def test_a_run_whose_store_never_works_still_completes() -> None:
    """S0.13, S0.23"""
    store = RecordingStore()
    store.broken = True
    out = chain("a", "b").compile(store, policy=CheckpointPolicy(on_save_error="continue")).invoke()

    assert out.state["log"] == ["a", "b"] and out.stats.save_errors > 0 and store.runs() == []


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyError("r"), ZeroDivisionError()])
@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_whatever_a_store_raises_is_a_failed_save(error: Exception, way: str, heard: Heard) -> None:
    """S0.13, S3.13: an error of any kind is treated as a `StoreError`; `err` is what the store itself raised."""
    store = RecordingStore()
    store.error, store.broken = error, True

    async def run(on_save_error: str) -> Any:
        app = chain("a", "b").compile(store, policy=CheckpointPolicy(on_save_error=on_save_error))
        return app.invoke(observer=heard) if way == "invoke" else await app.ainvoke(observer=heard)

    out = await run("continue")
    assert out.state["log"] == ["a", "b"] and out.stats.save_errors > 0
    assert {event.data["error"].partition(":")[0] for event in heard.of("checkpoint_failed")} == {
        type(error).__name__
    }
    named = f"checkpoint save failed: {type(error).__name__}"
    with pytest.raises(ExecutionError, match=named) as caught:
        await run("fail")
    assert isinstance(caught.value.cause, StoreError) and caught.value.cause.__cause__ is error
    assert caught.value.err is error


async def test_saves_that_fail_under_ainvoke_mean_the_same() -> None:
    store = RecordingStore()
    store.broken = True
    out = await chain("a", "b").compile(store, policy=CheckpointPolicy(on_save_error="continue")).ainvoke()
    assert out.state["log"] == ["a", "b"] and out.stats.save_errors == 3

    with pytest.raises(ExecutionError, match="checkpoint save failed: the disk is full"):
        await chain("a", "b").compile(store).ainvoke()


def test_a_failing_step_under_a_failing_store_tells_of_the_step() -> None:
    store = RecordingStore()
    store.broken = True
    app = one(lambda s: 1 / 0).compile(store, policy=CheckpointPolicy(on_save_error="continue"))

    with pytest.raises(ExecutionError, match="ZeroDivisionError"):
        app.invoke()


# Preserve.


def test_a_completed_run_is_kept_unless_none_is_wanted(store: Store) -> None:
    """S2.16, S3.15"""
    for preserve, kept in (("last", True), ("all", True), ("none", False)):
        app = chain("a", "b", name=preserve).compile(store, policy=CheckpointPolicy(preserve=preserve))
        out = app.invoke()
        assert (app.runs() != []) is kept, preserve
        if not kept:
            with pytest.raises(RunNotFound):
                app.get_state(out.run_id)


def test_a_run_that_did_not_complete_is_kept_even_if_none_is_wanted(store: Store) -> None:
    app = chain("a").compile(store, policy=CheckpointPolicy(preserve="none"), interrupt_before=["a"])
    app.invoke(run_id="r")

    assert app.runs()[0].status == "paused"
    app.resume("r")
    assert app.runs() == []


def test_all_means_that_nothing_is_ever_pruned(memory: Store) -> None:
    policy = CheckpointPolicy(preserve="all")
    app = chain(*SEVEN).compile(memory, policy=policy, retention=Retention.latest_only())
    app.invoke(run_id="r")

    assert janitor.wait() and len(app.checkpoints("r")) == 7


# Durability.


@pytest.mark.parametrize(("durability", "durable"), [("full", True), ("process", False)])
def test_full_asks_the_store_for_more_than_process_does(durability: str, durable: bool) -> None:
    store = RecordingStore()
    chain("a", "b").compile(store, durability=durability).invoke()

    assert len(store.appends) == 3 and {append.durable for append in store.appends} == {durable}


def test_exit_saves_once_at_the_end(store: Store) -> None:
    graph, seen = watching(store, SEVEN)
    app = graph.compile(store, durability="exit")
    out = app.invoke(run_id="r")

    assert seen == [0] * 7 and entries(store) == 1 and out.stats.commits == 1
    assert app.get_state("r") == out.state and len(app.checkpoints("r")) == 1


def test_exit_saves_at_a_pause_and_at_a_failure(store: Store) -> None:
    broken = [True]
    nodes = {"b": lambda s, ctx: {"log": [ctx.ask("q")]}, "c": lambda s: 1 / 0 if broken[0] else None}
    app = chain("a", "b", "c", nodes=nodes).compile(store, durability="exit")
    app.invoke(run_id="r")
    with pytest.raises(ExecutionError):
        app.resume("r", "x")
    broken[0] = False

    out = app.resume("r")
    assert out.state["log"] == ["a", "x"] and out.stats.steps_kept == 2


# Retention.


def wait_for_janitor() -> None:
    assert janitor.wait(30)


def counted(store: Store) -> dict[str, int]:
    return {info.run: len(store.checkpoints(info.run)) for info in store.runs()}


def test_without_a_retention_nothing_is_ever_deleted(memory: Store) -> None:
    app = chain(*SEVEN).compile(memory)
    for number in range(5):
        app.invoke(run_id=f"r{number}")
    wait_for_janitor()

    assert counted(memory) == {f"r{number}": 7 for number in range(5)}


def test_the_newest_checkpoints_of_a_workflow_are_kept(store: Store) -> None:
    """S0.16"""
    app = chain("a", "b", "c").compile(store, retention=Retention.recent())
    for number in range(4):
        app.invoke(run_id=f"r{number}")
        wait_for_janitor()

    assert counted(store) == {"r3": 3, "r2": 2}
    assert app.get_state("r2")["log"] == ["a", "b", "c"]


def test_a_pruned_checkpoint_is_gone_and_the_others_still_read_right(store: Store) -> None:
    app = chain(*SEVEN).compile(store)
    app.invoke(run_id="r")
    every = app.checkpoints("r")

    gone = apply_retention(app._settings.journal, app.name, Retention.recent(3))

    assert gone == 4 and [found.id for found in app.checkpoints("r")] == [found.id for found in every[4:]]
    assert [len(app.get_state("r", checkpoint_id=found.id)["log"]) for found in every[4:]] == [5, 6, 7]
    with pytest.raises(CheckpointNotFound, match=r"has pruned or never had it|checkpoint not found"):
        app.get_state("r", checkpoint_id=every[0].id)


def test_other_workflows_are_left_alone(store: Store) -> None:
    chain(*SEVEN, name="other").compile(store).invoke(run_id="other")
    app = chain(*SEVEN, name="mine").compile(store, retention=Retention.recent(2))
    app.invoke(run_id="mine")
    wait_for_janitor()

    assert counted(store) == {"other": 7, "mine": 2}


def test_one_checkpoint_a_run(store: Store) -> None:
    """S3.5"""
    app = chain(*SEVEN).compile(store, retention=Retention.latest_only())
    for number in range(3):
        app.invoke(run_id=f"r{number}")
        wait_for_janitor()

    assert counted(store) == {"r0": 1, "r1": 1, "r2": 1}
    assert [app.get_state(f"r{number}")["log"] for number in range(3)] == [list(SEVEN)] * 3


def test_the_newest_checkpoint_of_a_run_that_can_be_resumed_is_never_dropped_by_count(store: Store) -> None:
    broken = [True]
    nodes = {"b": lambda s: 1 / 0 if broken[0] else {"log": ["b"]}}
    failing = chain("a", "b", name="w", nodes=nodes).compile(store)
    with pytest.raises(ExecutionError):
        failing.invoke(run_id="failed")
    chain("a", "b", name="w").compile(store, interrupt_before=["b"]).invoke(run_id="paused")
    app = chain("a", "b", "c", name="w").compile(store, retention=Retention.recent(2))
    for number in range(3):
        app.invoke(run_id=f"r{number}")
        wait_for_janitor()

    assert counted(store) == {"failed": 1, "paused": 1, "r2": 2}
    broken[0] = False
    assert failing.resume("failed").state["log"] == ["a", "b"]


def test_the_last_successful_run_is_kept_if_it_is_wanted(store: Store) -> None:
    """S1.5"""
    chain("a", name="w").compile(store).invoke(run_id="good")
    time.sleep(0.002)
    paused = chain("a", "b", "c", name="w").compile(store, interrupt_before=["c"])
    paused.invoke(run_id="later")
    journal = paused._settings.journal

    apply_retention(journal, "w", Retention(max_checkpoints=1))
    assert set(counted(store)) == {"good", "later"}
    apply_retention(journal, "w", Retention(max_checkpoints=1, keep_successful=False))
    assert set(counted(store)) == {"later"}


def aged(store: Store, run: str, **age: float) -> None:
    """Make a run look untouched for a while."""
    known = store.runs(run=run)[0]
    old = time.time() - dt.timedelta(**age).total_seconds()
    info = RunInfo(known.run, known.key, known.workflow, known.status, old, old, known.owner)
    head = list(store.read(run))[-1].seq
    assert store.commit([Append(run, head, [], info)]) == [None]


def test_runs_untouched_for_too_long_are_deleted(store: Store) -> None:
    """S1.5, S2.5"""
    app = chain("a").compile(store)
    for run, days in (("old", 9), ("older", 10), ("new", 1)):
        app.invoke(run_id=run)
        aged(store, run, days=days)
    paused = chain("a").compile(store, interrupt_before=["a"])
    paused.invoke(run_id="waiting")
    aged(store, "waiting", days=8)

    assert apply_retention(app._settings.journal, app.name, Retention()) == 3
    assert [info.run for info in store.runs()] == ["new"]


def test_the_last_successful_run_outlives_its_age(store: Store) -> None:
    app = chain("a").compile(store)
    for run in ("first", "last"):
        app.invoke(run_id=run)
    aged(store, "first", days=30)
    aged(store, "last", days=20)

    assert expire_runs(store, dt.timedelta(days=7)) == 1
    assert [info.run for info in store.runs()] == ["last"]
    assert expire_runs(store, dt.timedelta(days=7), keep_successful=False) == 1


def test_a_run_that_is_being_driven_is_never_deleted(store: Store) -> None:
    deleted: list[int] = []

    def look(state: Any) -> None:
        deleted.append(expire_runs(store, dt.timedelta(microseconds=1), keep_successful=False))

    chain("a", "b", nodes={"b": look}).compile(store).invoke(run_id="r")

    assert deleted == [0] and [info.run for info in store.runs()] == ["r"]


def test_age_is_applied_without_being_asked(memory: Store) -> None:
    app = chain("a", name="aging").compile(memory)
    app.invoke(run_id="old")
    aged(memory, "old", days=8)
    chain("a", name="aging").compile(memory, retention=Retention(max_age=dt.timedelta(days=7))).invoke(
        run_id="new"
    )
    wait_for_janitor()

    assert [info.run for info in memory.runs()] == ["new"]


class SlowToPrune(MemoryStore):
    """A store whose pruning waits until it is allowed to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.allowed = threading.Event(), threading.Event()

    def prune(self, run: str, horizon: Snapshot, **known: Any) -> int:
        self.asked.set()
        assert self.allowed.wait(30)
        return super().prune(run, horizon, **known)


def test_pruning_never_holds_a_run_up() -> None:
    """S0.16"""
    store = SlowToPrune()
    app = chain(*SEVEN).compile(store, retention=Retention.recent(2))
    app.invoke(run_id="r0")
    assert store.asked.wait(30)
    app.invoke(run_id="r1")
    assert counted(store)["r1"] == 7, "pruned although pruning has not been allowed yet"

    store.allowed.set()
    wait_for_janitor()
    assert sum(counted(store).values()) <= 3


def counting(steps: int, **options: Any) -> StateGraph:
    """A loop of one node with so many steps."""
    graph = StateGraph(dict, name="counting", max_iterations=steps + 1, **options)
    graph.add_node("count", lambda state: {"n": state.get("n", 0) + 1}).add_edge(START, "count")
    return graph.add_conditional_edges("count", lambda state: "count" if state["n"] < steps else END)


@pytest.mark.no_cover
def test_a_long_run_is_pruned_while_it_is_executed(memory: Store) -> None:
    """S0.16: 3,000 steps under `Retention.recent(5)` never hold more than 50 checkpoints."""
    most = 0

    def look(event: Event) -> None:
        nonlocal most
        if event.type == "checkpoint.save":
            most = max(most, len(memory.checkpoints("r")))

    out = counting(3000).compile(memory, retention=Retention.recent(5)).invoke(run_id="r", observer=look)
    wait_for_janitor()

    assert out.state["n"] == 3000 and 5 < most <= 50
    assert counted(memory) == {"r": 5}
    assert not list(check_store(memory).damaged)


async def test_a_long_run_in_an_event_loop_is_pruned_while_it_is_executed(memory: Store) -> None:
    """S0.16"""
    most: list[int] = []
    app = counting(300).compile(memory, retention=Retention.recent(5))

    await app.ainvoke(run_id="r", observer=lambda event: most.append(len(memory.checkpoints("r"))))
    wait_for_janitor()

    assert 5 < max(most) <= 50 and counted(memory) == {"r": 5}


def test_a_run_that_failed_after_it_was_pruned_is_resumed(sqlite_url: str) -> None:
    """S0.16: pruning drops history, never the state; a kept checkpoint stays, and what comes after it."""
    broken = [True]

    def count(state: Any) -> dict[str, Any]:
        if broken and state["n"] == 150:
            raise ValueError("not now")
        return {"n": state["n"] + 1}

    graph = StateGraph(dict, name="counting").add_node("count", count).add_edge(START, "count")
    graph.add_conditional_edges("count", lambda state: "count" if state["n"] < 200 else END)
    app = graph.compile(sqlite_url, retention=Retention.recent(5), durability="process")
    with pytest.raises(ExecutionError):
        app.invoke({"n": 0}, run_id="r")
    wait_for_janitor()
    assert len(app.checkpoints("r")) == 5
    held = app.checkpoints("r")[0]
    app.keep("r", held.id)
    broken.clear()

    assert app.resume("r").state["n"] == 200
    wait_for_janitor()
    assert held.id in [each.id for each in app.checkpoints("r")] and app.get_state("r", checkpoint_id=held.id)
    assert not list(check_store(app.store).damaged)


def test_readers_are_not_disturbed_by_pruning(memory: Store) -> None:
    app, stop, errors = counting(400).compile(memory, retention=Retention.recent(5)), threading.Event(), []
    journal = app._settings.journal

    def read() -> None:
        while not stop.is_set():
            if memory.runs(run="r"):
                try:
                    app.cost("r")
                    run_view(journal, "r")
                    app.history("r", limit=2)
                except Exception as error:
                    errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        app.invoke(run_id="r")
    finally:
        stop.set()
        thread.join()

    assert not errors


def test_a_program_that_ends_has_pruned_its_runs(tmp_path: Path) -> None:
    """S0.16: a plain script waits for pruning before it exits."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from holdfast import Retention\n"
        "from tests.graphs import chain\n"
        "chain(*'abcdefgh').compile('sqlite:///runs.db', retention=Retention.recent(3)).invoke(run_id='r')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, program], cwd=tmp_path, env=environment, check=True)

    store = open_store(tmp_path / "runs.db")
    assert counted(store) == {"r": 3}
    store.close()


def test_pruning_that_fails_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Unprunable(MemoryStore):
        def prune(self, run: str, horizon: Snapshot, **known: Any) -> int:
            raise StoreError("not now")

    store = Unprunable()
    out = chain(*SEVEN).compile(store, retention=Retention.recent(2)).invoke(run_id="r")
    wait_for_janitor()

    assert out.status == RunStatus.COMPLETED and counted(store) == {"r": 7}
    assert "pruning 'graph' failed: not now" in caplog.text


def test_a_cleaner_deletes_now_and_again_and_survives_errors(caplog: pytest.LogCaptureFixture) -> None:
    """S2.17"""

    class Moody(MemoryStore):
        moods = 0

        def runs(self, **filters: Any) -> list[RunInfo]:
            if threading.current_thread().name == "holdfast-cleaner":
                self.moods += 1
                if self.moods == 1:
                    raise StoreError("in a mood")
                if self.moods == 2:
                    raise RuntimeError("in a worse mood")
            return super().runs(**filters)

    store = Moody()
    app = chain("a").compile(store)
    app.invoke(run_id="old")
    aged(store, "old", hours=25)
    app.invoke(run_id="new")
    with caplog.at_level(logging.INFO, "holdfast"):
        cleaner = periodic_cleanup(store, interval_minutes=0.0002)
        deadline = time.monotonic() + 60
        while len(store.runs()) > 1 and time.monotonic() < deadline:
            time.sleep(0.005)
        cleaner.stop()

    assert [info.run for info in store.runs()] == ["new"]
    assert "checkpoint cleanup failed: in a mood" in caplog.text and "in a worse mood" in caplog.text
    assert "cleaned up 1 expired runs" in caplog.text
    moods = store.moods
    time.sleep(0.05)
    assert store.moods == moods


# Size.


def test_a_checkpoint_above_500_kb_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """S0.20"""

    def big(size: int) -> Any:
        return lambda s: {"n": 1, "blob": random.Random(1).randbytes(size)}

    one(big(400 * 1024), dict).compile("memory://").invoke()
    assert "checkpoint of" not in caplog.text
    one(big(600 * 1024), dict).compile("memory://").invoke(run_id="r")
    assert "run r: a checkpoint of 600 KB was saved" in caplog.text


def test_a_compressible_value_is_small_on_disk(caplog: pytest.LogCaptureFixture) -> None:
    """S0.19"""
    app = one(lambda s: {"text": "the same words again and again " * 40_000}, dict).compile("memory://")
    app.invoke(run_id="r")

    assert app.checkpoints("r")[-1].size < 20_000 and "checkpoint of" not in caplog.text


def test_a_thousand_tasks_stay_small(store: Store) -> None:
    """S0.20"""
    tasks = [
        {"task_id": f"t{n}", "result": {"ok": True, "n": n}, "timestamp": 1.0, "duration": 0.1}
        for n in range(1000)
    ]
    graph = (
        StateGraph(WorkflowState)
        .add_node("a", lambda s: {"tasks": tasks})
        .add_node("b", lambda s: {"tasks": [tasks[0]]})
    )
    app = graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END).compile(store)
    app.invoke(run_id="r")

    first, second = app.checkpoints("r")
    assert first.size < 100_000 and second.size < 1_000
    assert len(app.get_state("r")["tasks"]) == 1001


class FillsUp(MemoryStore):
    """A store that has no room left while `is_full`."""

    is_full = False

    def commit(self, appends: Sequence[Append]) -> Any:
        if self.is_full:
            raise StoreError("no room left")
        return super().commit(appends)


def test_saves_that_failed_are_no_crashes_of_the_step_that_ran_meanwhile() -> None:
    store, has_room = FillsUp(), False

    def fill(state: Any) -> None:
        store.is_full = not has_room

    app = chain("a", "b", nodes={"b": fill}).compile(store)
    with pytest.raises(ExecutionError, match="no room left"):
        app.invoke(run_id="r")
    for _ in range(4):
        store.is_full = False
        with pytest.raises(ExecutionError, match="no room left"):
            app.resume("r")
    store.is_full, has_room = False, True

    out = app.resume("r")

    assert (out.status, out.pauses) == ("completed", ())
    assert check_store(store).is_fine and check_journal(read_journal(store, "r")) == []
