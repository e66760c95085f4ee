"""The events of a run: names, order, observers, and streams."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from holdfast import (
    END,
    START,
    CheckpointPolicy,
    Context,
    Event,
    ExecutionError,
    HoldfastError,
    Retry,
    RunStatus,
    StateGraph,
    StoreError,
    open_store,
)
from holdfast.events import (
    EVENT_ALIASES,
    EVENT_TYPES,
    CallbackObserver,
    LoggingObserver,
    MultiObserver,
    NoOpObserver,
    Observer,
    canonical,
    get_observer,
    register_observer,
)
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from tests.graphs import Heard, Log, chain, fan, one, says

# Names.


def test_every_alias_means_a_canonical_event() -> None:
    assert set(EVENT_ALIASES.values()) <= set(EVENT_TYPES)
    assert not set(EVENT_ALIASES) & set(EVENT_TYPES)
    assert canonical("checkpoint_saved") == canonical("checkpoint.save") == "checkpoint.save"


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("checkpoint_saved", "checkpoint.save"),
        ("checkpoint_failed", "checkpoint.fail"),
        ("workflow_start", "graph.start"),
        ("layer_start", "wave.start"),
        ("task_complete", "node.complete"),
        ("decision_required", "pause"),
        ("interrupt", "pause"),
    ],
)
def test_an_event_answers_to_its_aliases(alias: str, name: str) -> None:
    """S0.12, S0.13"""
    assert Event(name).matches(alias) and Event(name).matches(name)
    assert not Event("graph.changed").matches(alias)


def test_an_unknown_event_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        HoldfastError, match=r"unknown event type 'checkpoint\.saved'; known are: .*checkpoint\.save"
    ):
        Event("graph.start").matches("checkpoint.saved")


# Order.


def test_the_events_of_a_chain_in_order(heard: Heard, store: Store) -> None:
    chain("a", "b").compile(store).invoke({"n": 1}, run_id="r", observer=heard)

    told = [
        (event.type, event.node) for event in heard.events if event.type not in ("wave.start", "state.update")
    ]
    assert told == [
        ("state.create", ""),
        ("graph.start", ""),
        ("node.start", "a"),
        ("node.complete", "a"),
        ("checkpoint.save", "a"),
        ("edge.transition", "a"),
        ("node.start", "b"),
        ("node.complete", "b"),
        ("checkpoint.save", "b"),
        ("graph.complete", ""),
    ]
    assert {event.run_id for event in heard.events} == {"r"}
    times = [event.timestamp for event in heard.events]
    assert times == sorted(times)


def test_what_a_step_did_is_told_only_once_it_is_stored(memory: Store) -> None:
    stored: list[tuple[str, int]] = []
    chain("a", "b").compile(memory).invoke(
        run_id="r", observer=lambda event: stored.append((event.type, len(list(memory.read("r")))))
    )

    by_type = dict(reversed(stored))
    assert by_type["node.start"] == 1 and by_type["node.complete"] == 2 and by_type["checkpoint.save"] == 2
    assert stored[-1] == ("graph.complete", 3)


def test_a_saved_checkpoint_is_reported_with_its_id_and_time(heard: Heard) -> None:
    """S0.12, S3.14"""
    app = chain("a", "b").compile("memory://")
    app.invoke(run_id="r", observer=heard)

    saved = heard.of("checkpoint_saved")
    assert [event.data["checkpoint_id"] for event in saved] == [found.id for found in app.checkpoints("r")]
    assert [(event.data["node"], event.data["run_id"]) for event in saved] == [("a", "r"), ("b", "r")]
    assert all(isinstance(event.data["timestamp"], float) and event.data["size"] > 0 for event in saved)


def test_the_end_of_a_run_is_reported_with_its_exit_and_iterations(heard: Heard) -> None:
    """S3.15"""
    chain("a", "b", "c").compile("memory://").invoke(observer=heard)

    assert heard.events[-1].type == "graph.complete"
    state = {"log": ["a", "b", "c"]}
    assert heard.events[-1].data == {"exit_point": "c", "iterations": 3, "state": state}


def test_a_resume_is_told_before_anything_runs(heard: Heard) -> None:
    """S3.16, S3.17"""
    app = chain("a", "b", "c").compile("memory://", interrupt_before=["c"])
    app.invoke(run_id="r")
    app.resume("r", observer=heard)

    first, second = heard.events[:2]
    assert (first.type, first.data) == ("checkpoint.load", {"node": "b", "run_id": "r"})
    assert (second.type, second.data) == (
        "checkpoint.resume",
        {"checkpoint_node": "b", "resume_node": "c", "run_id": "r"},
    )
    assert heard.types[-1] == "graph.complete" and "graph.start" not in heard.types


def test_a_cycle_its_edges_and_conditions_are_told(heard: Heard) -> None:
    """S3.19"""
    graph = StateGraph(Log).add_node("work", lambda s: {"n": s["n"] + 1}).add_edge(START, "work")
    graph.add_edge("work", "work", when=lambda s: s["n"] < 3).add_edge("work", END)
    graph.compile("memory://").invoke({"n": 0}, observer=heard)

    assert [event.data for event in heard.of("cycle.detected")] == [
        {"node": "work", "visit_count": 2, "iteration": 2, "path_length": 2},
        {"node": "work", "visit_count": 3, "iteration": 3, "path_length": 3},
    ]
    assert [event.data["result"] for event in heard.of("edge.evaluate")] == [True, True, False]
    taken = {"from": "work", "to": "work", "name": ""}
    assert [event.data for event in heard.of("edge.transition")] == [taken] * 2
    assert [event.data["iteration"] for event in heard.of("node.start")] == [1, 2, 3]


def test_a_step_that_completed_says_what_it_changed(heard: Heard) -> None:
    one(lambda s: {"n": 1, "log": ["x"]}).compile("memory://").invoke(observer=heard)

    [event] = heard.of("task_complete")
    assert event.data["update"] == {"n": 1, "log": ["x"]} and event.data["error"] is False
    assert event.data["step"] == "work#1" and event.data["seconds"] >= 0
    changed = {"keys": ["log", "n"], "nodes": ["work"], "state": {"n": 1, "log": ["x"]}}
    assert heard.of("state_updated")[0].data == changed


def test_a_failure_is_told_step_by_step(heard: Heard) -> None:
    """S3.19"""
    graph = one(lambda s: 1 / 0, retry=Retry(attempts=2, delay=0))
    with pytest.raises(ExecutionError):
        graph.compile("memory://").invoke(observer=heard)

    told = [kind for kind in heard.types if kind.startswith(("node.", "graph."))]
    assert told == [
        "graph.start",
        "node.start",
        "node.error",
        "node.retry",
        "node.start",
        "node.error",
        "node.complete",
        "graph.fail",
    ]
    assert heard.of("node.complete")[0].data["error"] is True
    assert "ZeroDivisionError" in heard.of("graph.fail")[0].data["error"]


def test_a_wave_is_told_with_its_nodes(heard: Heard) -> None:
    fan("a", "b", "c").compile("memory://").invoke(observer=heard)

    assert [event.data for event in heard.of("layer_start")] == [{"wave": 1, "nodes": ["a", "b", "c"]}]


def test_a_node_tells_something_at_once(heard: Heard) -> None:
    def work(state: Any, ctx: Context) -> None:
        ctx.emit("half", percent=50)
        ctx.emit({"a": 1})
        assert [event.data for event in heard.of("node.message")] == [
            {"step": "work#1", "message": "half", "percent": 50},
            {"step": "work#1", "a": 1},
        ]

    one(work).compile("memory://").invoke(observer=heard)
    assert len(heard.of("node.message")) == 2


def test_a_save_that_fails_is_reported_with_the_error(heard: Heard) -> None:
    """S0.13"""

    class Broken(MemoryStore):
        def commit(self, appends: Any) -> Any:
            raise StoreError("the disk is full")

    policy = CheckpointPolicy(on_save_error="continue")
    out = chain("a", "b").compile(Broken(), policy=policy).invoke(observer=heard)

    failed = heard.of("checkpoint_failed")
    assert out.status == RunStatus.COMPLETED and [event.data["consecutive"] for event in failed] == [1, 2, 3]
    assert failed[0].data["error"] == "the disk is full" and not heard.of("checkpoint_saved")


def test_only_canonical_names_are_told(heard: Heard) -> None:
    graph = chain("a", "b", "c", nodes={"b": lambda s, ctx: {"log": [ctx.ask("well?")]}})
    app = graph.compile("memory://", interrupt_before=["c"], policy=CheckpointPolicy(on_failure="continue"))
    app.invoke(run_id="r", observer=heard)
    app.resume("r", "fine", observer=heard)
    app.resume("r", observer=heard)

    assert set(heard.types) <= set(EVENT_TYPES) and heard.types[-1] == "graph.complete"


# Observers.


def test_observers_have_names() -> None:
    """S3.11, S3.21"""
    heard = Heard()
    register_observer("test-heard", heard)
    chain("a").compile("memory://", observer="test-heard").invoke()

    assert get_observer("test-heard") is heard and heard.types[-1] == "graph.complete"
    assert isinstance(get_observer("slog"), LoggingObserver) and isinstance(
        get_observer("noop"), NoOpObserver
    )
    with pytest.raises(HoldfastError, match="unknown observer: nobody"):
        get_observer("nobody")
    with pytest.raises(HoldfastError, match="unknown observer: nobody"):
        chain("a").compile("memory://").invoke(observer="nobody")


def test_the_graphs_observer_and_the_calls_observer_both_hear() -> None:
    always, once = Heard(), Heard()
    app = chain("a").compile("memory://", observer=always)
    app.invoke(observer=once)
    app.invoke(observer="noop")

    assert always.types == once.types * 2


def test_a_plain_function_is_an_observer() -> None:
    types: list[str] = []
    chain("a").compile("memory://").invoke(observer=lambda event: types.append(event.type))

    assert types[-1] == "graph.complete"


def test_several_observers_hear_and_one_that_fails_silences_nobody(caplog: pytest.LogCaptureFixture) -> None:
    first, last = Heard(), Heard()

    class Failing:
        def on_event(self, event: Event) -> None:
            raise RuntimeError("deaf")

    out = chain("a").compile("memory://").invoke(observer=MultiObserver(first, Failing(), last))

    assert out.status == RunStatus.COMPLETED and first.types == last.types and len(first.types) > 5
    assert "failed on graph.complete" in caplog.text and "deaf" in caplog.text


def test_an_observer_that_fails_does_not_fail_the_run(caplog: pytest.LogCaptureFixture) -> None:
    def failing(event: Event) -> None:
        raise RuntimeError("deaf")

    assert chain("a").compile("memory://", observer=failing).invoke().state["log"] == ["a"]
    assert "deaf" in caplog.text


def test_a_callback_may_choose_its_events() -> None:
    seen: list[str] = []
    observer = CallbackObserver(lambda event: seen.append(event.type), "checkpoint_saved", "graph.complete")
    chain("a", "b").compile("memory://").invoke(observer=observer)

    assert seen == ["checkpoint.save", "checkpoint.save", "graph.complete"] and isinstance(observer, Observer)


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit])
def test_an_observer_that_raises_what_ends_tasks_does_not_end_the_call(error: type[BaseException]) -> None:
    def fail(event: Event) -> None:
        raise error

    assert chain("a").compile("memory://", observer=fail).invoke().status == "completed"


def test_the_logging_observer_writes_failures_as_errors(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("test.events")
    with caplog.at_level(logging.INFO, "test.events"), pytest.raises(ExecutionError):
        one(lambda s: 1 / 0).compile("memory://").invoke(run_id="r", observer=LoggingObserver(log))

    levels = {
        record.getMessage().split()[0]: record.levelname
        for record in caplog.records
        if record.name == log.name
    }
    assert levels["node.error"] == levels["graph.fail"] == "ERROR" and levels["graph.start"] == "INFO"
    assert "graph.start run=r node=- workflow='one'" in caplog.text


def test_without_an_observer_nobody_is_told(memory: Store) -> None:
    assert chain("a").compile(memory, observer="noop")._settings.observer is None


# Streams.


def test_a_stream_yields_the_events_of_the_run(store: Store) -> None:
    heard = Heard()
    app = chain("a", "b").compile(store)
    app.invoke(observer=heard)
    events = list(app.stream(run_id="r"))

    assert [event.type for event in events] == heard.types
    assert app.get_state("r")["log"] == ["a", "b"]


async def test_an_async_stream_yields_the_same(store: Store) -> None:
    heard = Heard()
    app = chain("a", "b").compile(store)
    app.invoke(observer=heard)

    assert [event.type async for event in app.astream(run_id="r")] == heard.types


def test_a_failure_is_raised_after_its_event() -> None:
    app = one(lambda s: 1 / 0).compile("memory://")
    seen: list[str] = []
    with pytest.raises(ExecutionError, match="ZeroDivisionError"):
        for event in app.stream():
            seen.append(event.type)
    assert seen[-1] == "graph.fail"


async def test_a_failure_is_raised_after_its_event_also_async() -> None:
    app = one(lambda s: 1 / 0).compile("memory://")
    seen: list[str] = []
    with pytest.raises(ExecutionError, match="ZeroDivisionError"):
        async for event in app.astream():
            seen.append(event.type)
    assert seen[-1] == "graph.fail"


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def test_a_slow_consumer_does_not_hold_the_run_up() -> None:
    store = open_store("memory://")
    app = chain(*(f"n{i}" for i in range(20))).compile(store)
    events = app.stream(run_id="r")
    first = next(events)

    wait_for(lambda: any(info.status == "completed" for info in store.runs()))

    assert first.type == "state.create" and [event.type for event in events][-1] == "graph.complete"


async def test_a_slow_async_consumer_does_not_hold_the_run_up() -> None:
    store = open_store("memory://")
    app = chain(*(f"n{i}" for i in range(20))).compile(store)
    events = app.astream(run_id="r")
    await anext(events)
    for _ in range(4000):
        if any(info.status == "completed" for info in store.runs()):
            break
        await asyncio.sleep(0.005)

    assert [info.status for info in store.runs()] == ["completed"]
    assert [event.type async for event in events][-1] == "graph.complete"


def patient(state: Any, ctx: Context) -> dict[str, Any]:
    """Works until somebody wants the run to stop; then it is done at once."""
    for _ in range(2000):
        if state["n"] == 1 or ctx.cancelled:
            break
        time.sleep(0.01)
    return {"log": ["patient"]}


def test_leaving_a_stream_early_saves_and_stops_the_run(store: Store) -> None:
    calls: list[str] = []

    def first(state: Any) -> dict[str, Any]:
        calls.append("first")
        return {"log": ["first"]}

    app = chain("a", "b", "c", nodes={"a": first, "b": patient}).compile(store)
    for event in app.stream({"n": 0}, run_id="r"):
        if event.type == "node.complete":
            break
    del event

    wait_for(lambda: app.runs()[0].status == "interrupted")
    out = app.resume("r", update={"n": 1})
    assert out.status == RunStatus.COMPLETED and out.state["log"][0] == "first" and calls == ["first"]
    assert out.state["log"][-2:] == ["patient", "c"]


async def test_leaving_an_async_stream_early_saves_and_stops_the_run(store: Store) -> None:
    started = threading.Event()

    async def forever(state: Any) -> dict[str, Any]:
        started.set()
        if state["n"] == 0:
            await asyncio.sleep(60)
        return {"log": ["b"]}

    app = chain("a", "b", nodes={"b": forever}).compile(store)
    events = app.astream({"n": 0}, run_id="r")
    async for event in events:
        if event.type == "node.start" and event.node == "b":
            break
    await events.aclose()

    assert app.runs()[0].status == "interrupted"
    assert (await app.aresume("r", update={"n": 1})).state["log"] == ["a", "b"]


def test_a_stream_that_nobody_takes_from_starts_nothing(memory: Store) -> None:
    events = chain("a").compile(memory).stream(run_id="r")
    assert memory.runs() == []
    list(events)
    assert [info.run for info in memory.runs()] == ["r"]


def test_a_stream_resumes_a_run() -> None:
    app = chain("a", "b").compile("memory://", interrupt_before=["b"])
    app.invoke(run_id="r")
    types = [event.type for event in app.stream(checkpoint="r")]

    assert types[:2] == ["checkpoint.load", "checkpoint.resume"] and types[-1] == "graph.complete"


async def test_an_async_stream_resumes_a_run_with_answers() -> None:
    app = one(lambda s, ctx: {"log": [ctx.ask("q")]}).compile("memory://")
    await app.ainvoke(run_id="r")
    types = [event.type async for event in app.astream(checkpoint="r", answers={"q": "a"})]

    assert types[-1] == "graph.complete" and app.get_state("r")["log"] == ["a"]


def test_a_bad_input_is_raised_by_the_stream() -> None:
    with pytest.raises(HoldfastError, match="unknown state key"):
        list(chain("a").compile("memory://").stream({"x": 1}))


def test_streams_run_side_by_side() -> None:
    app = chain("a", "b", nodes={"a": says("x")}).compile("memory://")
    streams = [app.stream(run_id=f"r{n}") for n in range(4)]
    seen = [[next(stream).type for stream in streams] for _ in range(3)]
    rest = [list(stream) for stream in streams]

    assert seen[0] == ["state.create"] * 4 and all(events[-1].type == "graph.complete" for events in rest)
