"""Events as mappings, their previews, the names that other systems have for them, and what a stream counts."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from holdfast import END, START, Context, Event, ExecutionError, HoldfastError, State, StateGraph
from holdfast.events import (
    DIALECTS,
    EVENT_TYPES,
    CallbackObserver,
    LoggingObserver,
    MultiObserver,
    canonical,
    register_observer,
)
from tests.graphs import Heard, Log, chain, fan, one


def test_an_event_is_a_mapping_of_its_facts_and_its_data() -> None:
    """S0.12, S3.14: `{type, checkpoint_id, timestamp}` are read as keys."""
    saved = [event for event in chain("a").compile("memory://").stream(run_id="r") if "size" in event][-1]

    assert (saved["type"], saved["run_id"], saved["node"]) == ("checkpoint.save", "r", "a")
    assert saved["checkpoint_id"] == saved.data["checkpoint_id"] and saved["timestamp"] == saved.timestamp
    assert "checkpoint_id" in saved and "other" not in saved and saved.get("other", 7) == 7
    assert dict(saved) == {
        "type": "checkpoint.save",
        "run_id": "r",
        "node": "a",
        "timestamp": saved.timestamp,
        "checkpoint_id": saved["checkpoint_id"],
        "size": saved["size"],
    }
    with pytest.raises(KeyError, match="has no 'checkpoint_di'; did you mean 'checkpoint_id'"):
        saved["checkpoint_di"]
    assert Event("node.message", "r", data={"type": "mine", "text": "x"})["type"] == "node.message"


def test_every_name_of_a_dialect_means_one_event() -> None:
    assert all(set(names) <= set(EVENT_TYPES) for names in DIALECTS.values())
    assert all(canonical(name) == type_ for names in DIALECTS.values() for type_, name in names.items())


def test_a_stream_speaks_the_dialect_that_it_is_asked_for() -> None:
    """S0.12, S0.13, R0.5: `event.type == "checkpoint_saved"`, `task_complete` with result, preview and size."""
    events = list(chain("a").compile("memory://").stream(dialect="task"))

    (saved,) = [event for event in events if event.type == "checkpoint_saved"]
    assert saved["checkpoint_id"] and saved["timestamp"] and saved.matches("checkpoint.save")
    types = [event.type for event in events]
    assert types[1:5] == ["workflow_start", "layer_start", "task_start", "task_complete"]
    assert types[-2:] == ["state_updated", "workflow_complete"]
    done = events[4]
    assert (done["result"], done["preview"], done["size"] > 0) == ({"log": ["a"]}, '{"log": ["a"]}', True)
    assert (events[2]["layer"], events[2]["tasks"]) == (1, ["a"])
    assert "edge.transition" not in DIALECTS["task"], "the rest keep their canonical names"


def test_an_async_stream_and_observers_speak_dialects_too() -> None:
    """R1.10, R3.3: an observer says its dialect itself; several observers may differ."""

    class Agents(Heard):
        dialect = "agent"

    agents, tasks, plain = Agents(), list[Event](), Heard()
    app = chain("a", "b").compile("memory://", observer=agents)

    async def types() -> list[str]:
        return [event.type async for event in app.astream(dialect="task", observer=plain)]

    assert "task_complete" in asyncio.run(types()) and "node.complete" in plain.types
    assert {"workflow_started", "agent_started", "agent_completed", "route_taken"} <= set(agents.types)
    assert agents.types[-1] == "workflow_completed" and agents.of("checkpoint.save")

    only = CallbackObserver(tasks.append, "checkpoint_saved", dialect="task")
    app.invoke(observer=MultiObserver(only, "noop"))
    assert [event.type for event in tasks] == ["checkpoint_saved"] * 2


def test_a_dialect_is_chosen_once_for_all_streams_of_an_app() -> None:
    """S0.12, S4.10: `compile(dialect=…)`; a stream may choose another one."""
    heard = Heard()

    class Agents(Heard):
        dialect = "agent"

    agents = Agents()
    app = chain("a").compile("memory://", observer=[heard, agents], dialect="task")

    assert "checkpoint_saved" in [event.type for event in app.stream()]
    assert "checkpoint.save" in [event.type for event in app.stream(dialect="node")]
    assert heard.types.count("task_complete") == agents.types.count("agent_completed") == 2
    plain = Heard()
    app.invoke(observer=plain)
    assert "node.complete" in plain.types, "an observer of one call says its dialect itself"


def test_an_unknown_dialect_is_refused_before_anything_runs() -> None:
    app = chain("a").compile("memory://")
    with pytest.raises(HoldfastError, match="unknown dialect of events: 'tasks'; known are: 'node', 'task'"):
        app.stream(dialect="tasks")
    assert app.runs() == []
    with pytest.raises(HoldfastError, match="unknown dialect of events: 'tasks'"):
        chain("a").compile("memory://", dialect="tasks")


def test_the_dialect_of_states_has_a_state_in_every_event() -> None:
    """R4.2, S4.10: state, interrupt, final; `{"type": "interrupt", "node": …, "state": dict}`."""
    app = chain("a", "b").compile("memory://", interrupt_before=["b"])

    first, stop = app.stream(run_id="r", dialect="state")
    assert (first["type"], first["node"], first["state"]) == ("state", "a", {"log": ["a"]})
    assert (stop["type"], stop["node"], stop["state"]) == ("interrupt", "b", {"log": ["a"]})
    assert type(stop["state"]) is dict
    assert stop.matches("interrupt_before") and not stop.matches("interrupt_after")

    state, final = app.stream(checkpoint="r", dialect="state")
    assert (state["type"], final["type"], final["state"]) == ("state", "final", {"log": ["a", "b"]})


def test_the_dialect_of_states_tells_branches_and_errors() -> None:
    """R4.2: parallel_state, branch_complete, parallel_error, error."""
    events = list(fan("a", "b").compile("memory://").stream(dialect="state"))
    assert sorted(event.type for event in events[:2]) == ["branch_complete"] * 2
    assert [event.type for event in events[2:]] == ["parallel_state", "final"]
    assert events[2]["nodes"] == ["a", "b"] and events[2]["state"] == {"log": ["a", "b"]}

    heard = Heard()
    app = fan("a", "b", nodes={"b": lambda s: 1 / 0}).compile("memory://")
    with pytest.raises(ExecutionError):
        app.invoke(observer=CallbackObserver(heard.on_event, dialect="state"))
    assert "parallel_error" in heard.types and heard.types[-1] == "error"
    assert heard.events[-1]["node"] == "b" and "division" in heard.events[-1]["error"]


def test_steps_are_told_with_previews_of_what_they_see_and_change() -> None:
    """S3.19, R3.3, R0.5: node, iteration, and previews with sizes; bounded, and without secrets."""
    heard = Heard()

    def work(state: State) -> dict[str, Any]:
        return {
            "api_key": "sk-12345",
            "pages": ["x" * 50] * 10_000,
            "user": {"password": "p4ss", "tokens": 3},
        }

    one(work, schema=dict).compile("memory://").invoke(
        {"text": "y" * 5000, "my_secret": "hush"}, observer=heard
    )

    (start,), (done,) = heard.of("node.start"), heard.of("node.complete")
    assert (start["node"], start["iteration"], start["attempt"]) == ("work", 1, 1)
    assert start["input"].startswith('{"text": "yyyy') and len(start["input"]) <= 240
    assert 5000 < start["input_size"] < 5100
    assert (done["node"], done["iteration"], done["error"]) == ("work", 1, False)
    assert '"api_key": "***"' in done["output"] and "sk-12345" not in done["output"]
    assert len(done["output"]) <= 240 and done["output_size"] > 500_000
    assert done["update"]["api_key"] == "sk-12345", "the update itself is what the node returned"

    heard.events.clear()
    one(lambda s: {"user": {"password": "p4ss", "tokens": 3}}, schema=dict).compile("memory://").invoke(
        {"my_secret": "hush"}, observer=heard
    )
    assert heard.of("node.start")[0]["input"] == '{"my_secret": "***"}'
    assert heard.of("node.complete")[0]["output"] == '{"user": {"password": "***", "tokens": 3}}'


def test_a_preview_is_computed_only_when_somebody_looks_at_it() -> None:
    heard = Heard()
    chain("a").compile("memory://").invoke(observer=heard)

    (done,) = heard.of("node.complete")
    assert "'output': Ellipsis" in repr(done)
    assert done["output"] == '{"log": ["a"]}' and "'output': Ellipsis" not in repr(done)


def test_a_failed_step_says_so_without_an_output() -> None:
    heard = Heard()
    with pytest.raises(ExecutionError):
        one(lambda s: 1 / 0).compile("memory://").invoke(observer=heard)

    (done,) = heard.of("node.complete")
    assert (done["node"], done["error"], "output" in done) == ("work", True, False)


def test_states_in_nodes_tell_the_observer_of_the_run() -> None:
    """S3.3, R3.3: state.clone, state.set and state.merge."""
    heard = Heard()
    one(lambda s: s.clone().set("n", 1).merge({"n": 2})).compile("memory://").invoke({"n": 0}, observer=heard)

    told = [(event.type, dict(event.data)) for event in heard.events if event.type.startswith("state.")][1:-1]
    assert told == [("state.clone", {"keys": 2}), ("state.set", {"key": "n"}), ("state.merge", {"keys": 1})]


def test_transitions_lead_from_each_node_to_what_follows_it() -> None:
    heard = Heard()
    graph = StateGraph(Log)
    for name in "abcd":
        graph.add_node(name, lambda s: None)
    graph.add_edge(START, "a").add_edge(START, "b").add_edge("a", "c").add_edge("b", "d")
    graph.add_edge("c", END).add_edge("d", END).compile("memory://").invoke(observer=heard)

    taken = [(event["from"], event["to"]) for event in heard.of("edge.transition")]
    assert taken == [("a", "c"), ("b", "d")]


def test_a_stream_counts_its_events() -> None:
    """R0.5: stream statistics."""
    events = chain("a", "b").compile("memory://").stream(dialect="task")
    assert (events.stats.emitted, events.stats.taken) == (0, 0)

    next(events)
    rest = list(events)
    stats = events.stats
    assert stats.taken == stats.emitted == 1 + len(rest) and stats.waiting == 0
    assert stats.by_type["task_complete"] == stats.by_type["checkpoint_saved"] == 2


def test_a_stream_that_is_closed_saves_and_stops_the_run() -> None:
    def work(state: Any, ctx: Context) -> None:
        while not ctx.cancelled:
            pass

    app = one(work).compile("memory://")
    events = app.stream(run_id="r")
    while next(events).type != "node.start":
        pass
    events.close()
    assert app.runs()[0].status == "interrupted" and list(events) == []


def test_several_observers_are_named_at_once() -> None:
    """R3.3: MultiObserver by the names of the registry."""
    first, second, third = Heard(), Heard(), Heard()
    register_observer("test-first", first)
    register_observer("test-second", second)
    chain("a").compile("memory://", observer=["test-first", "test-second", third.on_event]).invoke()

    assert first.types == second.types == third.types and len(first.types) > 5
    assert chain("a").compile("memory://", observer=["noop"])._settings.observer is None
    with pytest.raises(HoldfastError, match="unknown observer: nobody"):
        chain("a").compile("memory://", observer=["test-first", "nobody"])


def test_the_structured_log_has_the_facts_as_fields(caplog: pytest.LogCaptureFixture) -> None:
    """R3.3, S3.10: the observer `slog`; values of the state are not logged."""
    with caplog.at_level(logging.INFO, "holdfast.events"):
        chain("a").compile("memory://").invoke(run_id="r", observer=["slog", LoggingObserver(dialect="task")])

    records = {record.event: record for record in caplog.records}  # type: ignore[attr-defined]
    done = records["node.complete"]
    assert (done.run_id, done.node, done.data["output"]) == ("r", "a", '{"log": ["a"]}')  # type: ignore[attr-defined]
    assert "update" not in done.data and "state" not in records["graph.complete"].data  # type: ignore[attr-defined]
    assert "task_complete" in records
