"""Commands that change how a run goes on: from any thread or process, between steps, journalled, or refused."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from holdfast import (
    END,
    START,
    App,
    CommandRefused,
    ExecutionError,
    Retry,
    RunFinished,
    RunNotFound,
    Send,
    StateGraph,
    append,
    open_store,
)
from holdfast.data.codec import Codec
from holdfast.engine import control
from holdfast.engine.inbox import Wish, write_message
from holdfast.engine.mailbox import POLL
from holdfast.engine.phrasing import changes_of
from holdfast.journal.journal import Journal
from holdfast.journal.records import Commanded, Record, StateEdited, StepFinished, StepStarted
from holdfast.stores.base import Store
from holdfast.views import run_view, timeline
from tests.crash.running import ROOT, SOURCE
from tests.graphs import Heard, Log, chain, fan, says


def told(app: App, run: str = "r") -> list[str]:
    return [moment.text for moment in timeline(app.settings.journal, run)]


def commands(app: App, run: str = "r") -> list[Commanded]:
    _, history = app.settings.journal.history(app.settings.journal.info(run), Codec())
    return [record for _, found in history for record in found if isinstance(record, Commanded)]


def asks(state: Any, ctx: Any) -> dict[str, Any]:
    return {"log": [str(ctx.ask("well?"))]}


def sees(word: str) -> Callable[[Any], dict[str, Any]]:
    """A node that notes its name and the number it sees."""
    return lambda state: {"log": [f"{word}{state.get('n', '')}"]}


class Flaky:
    """A node that fails until it is mended."""

    def __init__(self) -> None:
        self.broken = True

    def __call__(self, state: Any) -> dict[str, Any]:
        if self.broken:
            raise ValueError("broken")
        return {"log": [f"mended{state.get('n', '')}"]}


def failed(store: Any, *names: str, **options: Any) -> tuple[App, Flaky]:
    """A chain that failed at its node `b`."""
    flaky = Flaky()
    app = chain(*names, nodes={"b": flaky, **{name: sees(name) for name in names if name != "b"}}).compile(
        store, **options
    )
    with pytest.raises(ExecutionError):
        app.invoke({"n": 1}, run_id="r")
    return app, flaky


# A run that nobody drives.


def test_a_command_to_a_run_that_nobody_drives_is_done_at_once_and_journalled(store: Store) -> None:
    """R0.6: who asked and why is in the journal."""
    app, _ = failed(store, "a", "b", "c")

    assert app.skip("r", "b", by="ann", reason="not needed") == "failed"

    assert told(app)[-2:] == [
        "b#1 skipped: asked for by ann: not needed",
        "skip was asked for by ann: not needed",
    ]
    assert app.resume("r").state["log"] == ["a1", "c1"]


def waiting(store: Any) -> App:
    app = chain("a", "b", "c", nodes={"b": asks}).compile(store)
    app.invoke(run_id="r")
    return app


def gated(store: Any) -> App:
    app = chain("a", "b", "c").compile(store, interrupt_before=["b"])
    app.invoke(run_id="r")
    return app


def in_doubt(store: Any) -> App:
    def stopped(state: Any) -> Any:
        raise KeyboardInterrupt

    app = chain("a", "b", "c", nodes={"b": stopped}).compile(store)
    with pytest.raises(KeyboardInterrupt):
        app.invoke(run_id="r")
    return app


def refused_to_rerun(store: Any) -> App:
    def stopped(state: Any) -> Any:
        raise KeyboardInterrupt

    graph = StateGraph(Log, name="graph").add_node("a", says("a")).add_node("b", stopped, idempotent=False)
    graph.add_node("c", says("c")).add_edge(START, "a").add_edge("a", "b").add_edge("b", "c")
    app = graph.add_edge("c", END).compile(store)
    with pytest.raises(KeyboardInterrupt):
        app.invoke(run_id="r")
    with pytest.raises(ExecutionError):
        app.resume("r")
    return app


@pytest.mark.parametrize("make", [waiting, gated, in_doubt, refused_to_rerun])
def test_what_is_not_running_can_be_skipped(make: Callable[[Any], App], memory: Store) -> None:
    app = make(memory)

    app.skip("r", "b")

    assert app.pauses("r") == ()
    outcome = app.resume("r")
    assert outcome.status == "completed" and outcome.state["log"] == ["a", "c"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a", "step 'a' is finished"),
        ("a#1", "step 'a#1' is finished"),
        ("c", r"it is not the turn of 'c' yet \(now: 'b'\)"),
        ("bb", "there is no step or node 'bb'; did you mean 'b'"),
        ("b#2", "step 'b#2' is finished"),
    ],
)
def test_what_cannot_be_skipped_is_refused_with_the_reason(memory: Store, name: str, reason: str) -> None:
    """R0.6: rejected commands are counted."""
    app = waiting(memory)

    with pytest.raises(CommandRefused, match=f"run 'r': skip is refused: {reason}"):
        app.skip("r", name, by="ann")

    view = run_view(app.settings.journal, "r")
    assert view.commands_refused == view.as_json()["commands_refused"] == 1
    assert [refusal.by for refusal in view.refusals] == ["ann"] and "refused: " in told(app)[-1]
    assert [pause.name for pause in app.pauses("r")] == ["well?"]


def test_all_steps_of_a_node_are_skipped_or_one_item(memory: Store) -> None:
    graph = StateGraph(Log, name="g").add_node("item", asks).add_node("end", says("end"))
    graph.add_conditional_edges(START, lambda s: [Send("item", {"n": n}, key=f"k{n}") for n in range(4)])
    app = graph.add_edge("item", "end").compile(memory)
    app.invoke(run_id="r")

    app.skip("r", "item#1[k0]")
    app.skip("r", "item[k1]")
    assert len(app.pauses("r")) == 2
    app.skip("r", "item")
    outcome = app.resume("r")

    assert outcome.status == "completed" and outcome.state["log"] == ["end"]


def test_a_node_may_say_what_skipping_it_leaves_behind_or_refuse(memory: Store) -> None:
    def stand_in(state: Any, reason: str) -> dict[str, Any]:
        if state.get("n"):
            raise ValueError("not with a number")
        return {"log": [reason]}

    graph = StateGraph(Log, name="g").add_node("a", asks, on_skip=stand_in).add_node("b", says("b"))
    app = graph.add_edge(START, "a").add_edge("a", "b").compile(memory)
    app.invoke({"n": 1}, run_id="r")
    with pytest.raises(CommandRefused, match="step 'a#1' cannot be passed over: ValueError"):
        app.skip("r", "a")
    app.edit("r", {"n": 0})

    assert control.skip(Journal(memory), "r", "a") == "asked", "only the graph knows what to leave behind"

    assert app.resume("r").state["log"] == ["asked for", "b"]


def test_without_a_barrier_what_follows_a_skipped_step_goes_on(memory: Store) -> None:
    graph = StateGraph(Log, name="g").add_node("a", asks, after=[]).add_node("b", asks, after=[])
    app = graph.add_node("c", says("c"), after=["a"]).compile(memory, barrier=False)
    app.invoke(run_id="r")

    app.skip("r", "a")
    outcome = app.resume("r")

    assert outcome.status == "paused" and outcome.state["log"] == ["c"]


def test_the_state_is_edited_as_its_reducers_take_it(memory: Store) -> None:
    app = waiting(memory)

    app.edit("r", {"n": 5, "log": ["edited"]}, by="ann", reason="because")

    assert app.get_state("r") == {"log": ["a", "edited"], "n": 5}
    assert told(app)[-2:] == [
        "state changed from outside by ann: n, log",
        "edit was asked for by ann: because",
    ]


class Strict(BaseModel):
    count: int = 0
    facts: dict[str, Any] = {}
    words: Annotated[list[str], append] = []


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        ({"cuont": 1}, "unknown state key 'cuont'.*did you mean 'count'"),
        ({"count": "many"}, "state key 'count'.*integer"),
        ({("facts", "a", "b"): 1}, "'facts' has no 'a'"),
        ({("count", "a"): 1}, "'count' has no parts"),
        ({("nothing", "a"): 1}, "the state has no 'nothing'"),
        ({("words", "a"): 1}, "'words' has a reducer"),
        ({"words": 5}, "words"),
        ({"facts": object()}, "state key 'facts'"),
        ({}, "edit takes a mapping"),
        ([1], "edit takes a mapping"),
        ({5: 1}, "names what it changes by text"),
    ],
)
def test_an_edit_that_does_not_fit_is_refused_and_changes_nothing(
    memory: Store, update: Any, reason: str
) -> None:
    graph = StateGraph(Strict, name="g").add_node("a", lambda state, ctx: ctx.ask("well?"))
    app = graph.add_edge(START, "a").compile(memory)
    app.invoke(run_id="r")
    before = app.get_state("r")

    with pytest.raises(CommandRefused, match=reason):
        app.edit("r", update)

    assert app.get_state("r") == before


def test_a_place_inside_a_value_is_edited(memory: Store) -> None:
    graph = StateGraph(dict, name="g").add_node("a", lambda state, ctx: ctx.ask("well?"))
    app = graph.add_edge(START, "a").compile(memory)
    app.invoke({"facts": {"deep": {"x": 1}, "y": [2]}}, run_id="r")

    app.edit("r", {("facts", "deep", "x"): 9, ("facts", "z"): 3, "new": True})

    assert app.get_state("r") == {"facts": {"deep": {"x": 9}, "y": [2], "z": 3}, "new": True}


def test_without_the_graph_an_edit_waits_for_whoever_has_it_and_all_after_it_in_order(memory: Store) -> None:
    app = waiting(memory)
    journal = Journal(memory)

    assert control.edit(journal, "r", {"log": ["edited"]}) == "asked"
    assert control.skip(journal, "r", "b") == "asked"
    assert control.edit(journal, "r", {"lgo": 1}) == "asked"
    assert app.get_state("r") == {"log": ["a"]}
    outcome = app.resume("r")

    assert outcome.state["log"] == ["a", "edited", "c"]
    assert [bool(command.refused) for command in commands(app)] == [False, False, True]


def test_an_edit_reaches_what_open_sub_graphs_share(memory: Store) -> None:
    inner = StateGraph(Log, name="inner").add_node("x", asks).add_node("y", sees("y"))
    inner.add_edge(START, "x").add_edge("x", "y")
    app = StateGraph(Log, name="g").add_node("sub", inner).add_edge(START, "sub").compile(memory)
    app.invoke({"n": 1}, run_id="r")

    app.edit("r", {"n": 7})
    app.skip("r", "sub/x")

    assert app.resume("r").state == {"n": 7, "log": ["y7"]}


def test_a_failed_step_sees_other_values_and_nobody_else_does(memory: Store) -> None:
    app, flaky = failed(memory, "a", "b", "c")
    flaky.broken = False

    app.modify("r", "b", {"n": 9})

    assert app.resume("r").state == {"n": 1, "log": ["a1", "mended9", "c1"]}


def test_other_arguments_of_an_item_are_laid_over_its_own(memory: Store) -> None:
    graph = StateGraph(Log, name="g").add_node(
        "item", lambda state: {"log": [f"{state['n']} {state['extra']}"]}
    )
    graph.add_conditional_edges(
        START, lambda s: [Send("item", {"n": n, "extra": "x"}, key=f"{n}") for n in (1, 2)]
    )
    app = graph.compile(memory, interrupt_before=["item"])
    app.invoke(run_id="r")

    app.modify("r", "item[2]", {"extra": "y"})

    assert app.resume("r").state["log"] == ["1 x", "2 y"]


@pytest.mark.parametrize(
    ("make", "step", "update", "reason"),
    [
        (waiting, "a", {"n": 1}, "step 'a' is finished"),
        (waiting, "b", {"n": 1}, "step 'b#1' has begun"),
        (in_doubt, "b", {"n": 1}, "step 'b#1' has begun"),
        (refused_to_rerun, "b", {"n": 1}, "step 'b#1' has begun"),
        (gated, "b", {"m": 1}, "unknown state key 'm'"),
        (gated, "x", {"n": 1}, "there is no step or node 'x'"),
        (gated, "", {"n": 1}, "names a step by its id"),
        (gated, "b", {("n", "x"): 1}, "the state has no 'n'"),
    ],
)
def test_what_cannot_be_modified_is_refused(
    make: Callable[[Any], App], step: str, update: Any, reason: str, memory: Store
) -> None:
    app = make(memory)

    with pytest.raises(CommandRefused, match=reason):
        app.modify("r", step, update)


def test_a_further_step_runs_beside_the_next_ones_and_nothing_follows_it(memory: Store) -> None:
    app = chain("a", "b", "c", nodes={name: sees(name) for name in "abc"}).compile(
        memory, interrupt_before=["b"]
    )
    app.invoke({"n": 1}, run_id="r")

    app.inject("r", ["a", Send("a", {"n": 5}), Send("c", {"n": 6}, key="k")])
    outcome = app.resume("r")

    assert outcome.state["log"] == ["a1", "b1", "a1", "a5", "c6", "c1"]
    assert [step for step in told(app) if "started" in step] == [
        "run of graph started", "a#1 started", "b#1 started", "a#2 started", "a#3 started", "c#1[k] started",
        "c#2 started",
    ]  # fmt: skip


def test_what_follows_a_further_step_follows_if_wished(memory: Store) -> None:
    app, flaky = failed(memory, "a", "b", "c")
    flaky.broken = False

    app.inject("r", {"node": "a", "item": {"n": 3}}, follow=True)
    app.skip("r", "b")
    outcome = app.resume("r")

    assert outcome.state["log"] == ["a1", "a3", "mended1", "c1", "c1"]


def test_a_one_off_step_stays_one_after_a_crash_and_in_a_fork(memory: Store) -> None:
    app, _ = failed(memory, "a", "b", "c")
    app.replan("r", "a", follow=False)
    loaded = app.settings.journal.load(app.settings.journal.info("r"), Codec())
    memory.prune("r", app.settings.journal.make_snapshot(loaded, Codec()))

    assert app.resume("r").state["log"] == ["a1", "a1"]


@pytest.mark.parametrize(
    ("steps", "options", "reason"),
    [
        ("d", {}, "there is no node 'd'"),
        ("aa", {}, "there is no node 'aa'; did you mean 'a'"),
        ([Send("a", {"n": 1}, key="k"), Send("a", {"n": 2}, key="k")], {}, "item with the key 'k' already"),
        ("sub/x", {}, "no sub-graph 'sub' is under way"),
        ("a", {"frame": "sub#1"}, "no sub-graph 'sub#1' is under way"),
        ("sub/x", {"frame": "s"}, "names its graph itself"),
        ([], {}, "at least one step"),
        ([5], {}, "takes nodes' names, Sends"),
        ({"node": "a", "itme": {}}, {}, "takes nodes' names, Sends"),
        ({"node": ""}, {}, "names nodes by text"),
        ({"node": "a", "key": ""}, {}, "text that is not empty"),
        ({"node": "a", "item": 5}, {}, "takes a mapping"),
        ({"node": "a", "item": {("n", "m"): 5}}, {}, "whole values only"),
    ],
)
def test_a_further_step_that_makes_no_sense_is_refused(
    memory: Store, steps: Any, options: Any, reason: str
) -> None:
    app = waiting(memory)

    with pytest.raises(CommandRefused, match=reason):
        app.inject("r", steps, **options)


def test_further_items_join_a_for_each_and_a_taken_key_is_refused(memory: Store) -> None:
    graph = StateGraph(Log, name="g").add_node("item", sees("i")).add_node("end", says("end"))
    graph.add_conditional_edges(START, lambda s: [Send("item", {"n": n}, key=f"{n}") for n in (1, 2)])
    app = graph.add_edge("item", "end").compile(memory, interrupt_before=["item"])
    app.invoke(run_id="r")

    with pytest.raises(CommandRefused, match="key '2' already"):
        app.inject("r", Send("item", {"n": 9}, key="2"))
    app.inject("r", Send("item", {"n": 3}, key="3"))
    app.resume("r")

    assert app.resume("r").state["log"] == ["i1", "i2", "i3", "end"]


def test_steps_of_a_sub_graph_are_injected_into_its_frame(memory: Store) -> None:
    inner = StateGraph(Log, name="inner").add_node("x", asks).add_node("y", says("y"))
    inner.add_edge(START, "x").add_edge("x", "y")
    app = StateGraph(Log, name="g").add_node("sub", inner).add_edge(START, "sub").compile(memory)
    app.invoke(run_id="r")

    app.inject("r", "sub/y")
    app.inject("r", "y", frame="sub#1")
    with pytest.raises(CommandRefused, match="step 'sub#1' is a graph that is under way"):
        app.skip("r", "sub")
    outcome = app.resume("r", "go")

    assert outcome.state["log"] == ["go", "y", "y", "y"]


def test_another_plan_replaces_what_is_not_running(memory: Store) -> None:
    app, _ = failed(memory, "a", "b", "c", "d")

    app.replan("r", ["d", Send("a", {"n": 8})], follow=False, by="ann", reason="b is hopeless")
    outcome = app.resume("r")

    assert outcome.state["log"] == ["a1", "d1", "a8"]
    assert "plan changed by ann: dropped b#1; added d, a" in told(app)


def test_another_plan_is_followed_along_the_graph(memory: Store) -> None:
    app, _ = failed(memory, "a", "b", "c", "d")

    app.replan("r", ["c"])

    assert app.resume("r").state["log"] == ["a1", "c1", "d1"]


def test_an_empty_plan_ends_the_run(memory: Store) -> None:
    app = waiting(memory)

    app.replan("r", [], by="ann")
    outcome = app.resume("r")

    assert outcome.status == "completed" and outcome.state["log"] == ["a"] and outcome.pauses == ()


def test_joins_that_were_waited_for_are_forgotten_with_the_plan(memory: Store) -> None:
    graph = StateGraph(Log, name="g").add_node("a", says("a"), after=[]).add_node("b", asks, after=[])
    app = graph.add_node("c", says("c"), after=["a", "b"]).compile(memory, barrier=False)
    app.invoke(run_id="r")

    app.replan("r", ["a"])
    outcome = app.resume("r")

    assert outcome.status == "completed" and outcome.state["log"] == ["a", "a"]


def test_a_run_that_is_over_or_was_never_there_takes_no_command(memory: Store) -> None:
    app = chain("a", "b").compile(memory)
    app.invoke(run_id="r")

    for ask in (
        lambda: app.edit("r", {"n": 1}),
        lambda: app.skip("r", "a"),
        lambda: app.inject("r", "a"),
        lambda: app.replan("r", []),
    ):
        with pytest.raises(RunFinished):
            ask()
    with pytest.raises(RunNotFound):
        app.skip("never", "a")
    assert memory.inbox("r") == []


def test_many_callers_at_once_are_all_heard(sqlite_url: str) -> None:
    app = waiting(sqlite_url)
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(app.edit("r", {"log": [str(n)]})))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(app.get_state("r")["log"]) == sorted(["a", *map(str, range(8))])
    assert set(answers) == {"paused"} and [command.number for command in commands(app)] == list(range(1, 9))


def test_a_paused_run_of_the_fleet_is_queued_again_when_it_was_steered(memory: Store) -> None:
    app = chain("a", "b", "c", nodes={"b": asks}).compile(memory)
    run = app.submit({}, run_id="r")
    asyncio.run(app.atake_up(run))
    assert app.runs()[0].status == "paused"

    with pytest.raises(CommandRefused):
        app.skip("r", "x")
    assert app.runs()[0].status == "paused", "what is refused wakes no worker"
    assert app.skip("r", "b") == "queued" and app.runs()[0].status == "queued"

    assert asyncio.run(app.atake_up(run)).state["log"] == ["a", "c"]


# A run that is driven.


class Held:
    """A node that says when it has begun and waits to be let go."""

    def __init__(self, word: str = "held") -> None:
        self.word, self.begun, self.free = word, threading.Event(), threading.Event()

    def __call__(self, state: Any) -> dict[str, Any]:
        self.begun.set()
        assert self.free.wait(30)
        return {"log": [self.word]}


class Driven:
    """A run in a thread of its own, and what became of it."""

    def __init__(self, app: App, held: Held, **options: Any) -> None:
        self._held, self.outcome = held, None
        self._thread = threading.Thread(target=self._drive, args=(app, options))
        self._thread.start()
        assert held.begun.wait(30)

    def _drive(self, app: App, options: Any) -> None:
        try:
            self.outcome = app.invoke({"n": 1}, run_id="r", **options)
        except ExecutionError:
            self.outcome = None

    def end(self) -> Any:
        self._held.free.set()
        self._thread.join()
        return self.outcome


def test_commands_to_a_driven_run_are_obeyed_in_order_between_two_steps(store: Store, heard: Heard) -> None:
    """R0.6: a queue, first in, first out."""
    held = Held("a")
    app = chain(*"abcd", nodes={"a": held, **{name: sees(name) for name in "bcd"}}).compile(store)
    driven = Driven(app, held, observer=heard)

    assert app.edit("r", {"n": 2}, by="ann", reason="more") == "asked"
    assert app.skip("r", "b") == "asked"
    assert app.modify("r", "c", {"n": 3}) == "asked"
    assert app.skip("r", "a") == "asked"
    outcome = driven.end()

    assert outcome.state == {"n": 2, "log": ["a", "c3", "d2"]}
    events = [event.data for event in heard.of("command")]
    assert [(data["command"], data["by"]) for data in events] == [
        ("edit", "ann"), ("skip", ""), ("modify", ""), ("skip", ""),
    ]  # fmt: skip
    assert [bool(data["refused"]) for data in events] == [False, False, False, True]
    records = list(journalled(app))
    edited = next(place for place, record in enumerate(records) if isinstance(record, StateEdited))
    assert isinstance(records[edited + 1], Commanded) and under_way(records[:edited]) == set()


def journalled(app: App) -> Iterator[Record]:
    _, history = app.settings.journal.history(app.settings.journal.info("r"), Codec())
    for _, records in history:
        yield from records


def under_way(records: list[Record]) -> set[str]:
    """The steps that were running at the end of some records."""
    running: set[str] = set()
    for record in records:
        if isinstance(record, StepStarted):
            running.add(record.step)
        elif isinstance(record, StepFinished):
            running.discard(record.step)
    return running


def test_a_running_step_is_neither_skipped_nor_modified_nor_replaced(memory: Store) -> None:
    held = Held()
    app = fan("a", "b", nodes={"a": held, "b": asks}).compile(memory)
    driven = Driven(app, held)

    with pytest.raises(CommandRefused, match="step 'a#1' is running; wait for it, or cancel the run"):
        app.skip("r", "a", patience=30)
    with pytest.raises(CommandRefused, match="step 'a#1' is running"):
        app.modify("r", "a", {"n": 1}, patience=30)
    assert app.replan("r", [], patience=30) == "running"
    outcome = driven.end()

    assert outcome.status == "completed" and outcome.state["log"] == ["held"]


def test_further_steps_join_the_wave_that_is_running(memory: Store) -> None:
    held = Held()
    graph = fan("a", "b", nodes={"a": held, "b": sees("b")}).add_node("c", says("c"), after=["a", "b"])
    app = graph.compile(memory)
    driven = Driven(app, held)

    assert app.inject("r", Send("b", {"n": 7}), patience=30) == "running"
    outcome = driven.end()

    assert outcome.state["log"] == ["held", "b1", "b7", "c"] and outcome.figures.waves == 2


def test_a_plan_is_changed_while_a_step_runs_and_nothing_else_follows_it(memory: Store) -> None:
    held = Held("a")
    app = chain(*"abcd", nodes={"a": held}).compile(memory)
    driven = Driven(app, held)

    app.replan("r", ["d"])
    outcome = driven.end()

    assert outcome.state["log"] == ["a", "d"]


def test_what_was_asked_for_before_a_pause_is_done_before_it(memory: Store) -> None:
    held = Held("a")
    app = chain(*"abc", nodes={"a": held}).compile(memory)
    driven = Driven(app, held)

    app.skip("r", "b")
    app.pause("r", "lunch", by="ann")
    outcome = driven.end()

    assert outcome.status == "interrupted" and app.resume("r").state["log"] == ["a", "c"]
    assert [(command.command, command.by, command.why) for command in commands(app)] == [
        ("skip", "", ""),
        ("pause", "ann", "lunch"),
    ]


@pytest.mark.parametrize("driven", [True, False])
def test_who_cancelled_a_run_and_why_is_in_its_journal(memory: Store, driven: bool) -> None:
    held = Held("a")
    app = chain("a", "b", nodes={"a": held}).compile(memory, interrupt_before=["b"])
    drive = Driven(app, held)
    if not driven:
        drive.end()

    app.cancel("r", "wrong inputs", by="ann")
    drive.end()

    assert app.runs()[0].status == "cancelled"
    assert "cancel was asked for by ann: wrong inputs" in told(app)


def test_a_retry_that_is_waited_for_can_be_skipped(memory: Store, heard: Heard) -> None:
    begun = threading.Event()

    def fails(state: Any) -> None:
        begun.set()
        raise ValueError("again")

    graph = StateGraph(Log, name="g").add_node("a", fails, retry=Retry(9, delay=600)).add_node("b", says("b"))
    app = graph.add_edge(START, "a").add_edge("a", "b").compile(memory)
    held = Held()
    held.begun = begun
    driven = Driven(app, held)

    app.skip("r", "a", patience=30)

    assert driven.end().state["log"] == ["b"]


def test_a_command_that_comes_with_the_last_step_is_obeyed_before_the_run_is_completed(memory: Store) -> None:
    held = Held("b")
    app = chain("a", "b", nodes={"b": held}).compile(memory)
    driven = Driven(app, held)

    assert app.inject("r", "a") == "asked"

    assert driven.end().state["log"] == ["a", "b", "a"]


def test_a_run_that_is_stored_only_at_its_end_takes_no_other_command_than_to_stop(memory: Store) -> None:
    held = Held("a")
    app = chain("a", "b", nodes={"a": held}).compile(memory, durability="exit")
    driven = Driven(app, held)

    with pytest.raises(CommandRefused, match="is stored only when it stops"):
        app.skip("r", "b")
    app.cancel("r")

    assert driven.end().status == "cancelled"


def test_nonsense_in_the_inbox_is_refused_and_the_run_goes_on(memory: Store) -> None:
    held = Held("a")
    app = chain("a", "b", nodes={"a": held}).compile(memory)
    driven = Driven(app, held)
    definition = {"workflow": "graph", "outline": 5}
    for body in (
        b"garbage",
        write_message(Wish("fly")),
        write_message(Wish("replan", definition=definition)),
        write_message(Wish("answer", pause="p")),
    ):
        memory.post("r", body)

    assert driven.end().status == "completed"
    assert [command.refused for command in commands(app)][:2] == [
        "unknown command 'unreadable'",
        "unknown command 'fly'",
    ]
    assert all(command.refused for command in commands(app)) and len(commands(app)) == 4


def test_a_run_that_glides_obeys_between_two_steps_and_never_inside_one(sqlite_url: str) -> None:
    """A message of another process, which only the inbox tells of."""
    other = open_store(sqlite_url)
    seen: list[int] = []

    def step(state: Any) -> dict[str, Any]:
        n = len(seen)
        if n == 1:
            wish = Wish("edit", changes=changes_of("edit", {"n": 100}, Codec()))
            other.post("r", write_message(wish))
        before = state["n"]
        time.sleep(0.01)
        assert state["n"] == before
        seen.append(before)
        return {"log": [str(before)]}

    names = [f"s{number}" for number in range(80)]
    app = chain(*names, nodes=dict.fromkeys(names, step)).compile(sqlite_url)
    outcome = app.invoke({"n": 1}, run_id="r")
    other.close()

    changed = seen.index(100)
    assert 2 <= changed < 79 and seen == [1] * changed + [100] * (80 - changed)
    assert outcome.state["n"] == 100
    records = list(journalled(app))
    edited = next(place for place, record in enumerate(records) if isinstance(record, StateEdited))
    assert under_way(records[:edited]) == set()


# Another definition.


def test_a_run_goes_on_with_another_definition(memory: Store) -> None:
    app, flaky = failed(memory, "a", "b", "c")
    flaky.broken = False
    changed = chain("a", "b", "z", nodes={"b": flaky, "z": says("z")}).compile(memory)

    answer = control.redefine(
        app.settings.journal, "r", "graph", changed.outline(), {"flow": "v2"}, by="ann", reason="better"
    )

    assert answer == "failed" and told(app)[-2:] == [
        "the workflow changed by ann",
        "replan was asked for by ann: better",
    ]
    assert run_view(app.settings.journal, "r").config == {"flow": "v2"}
    assert changed.resume("r", on_change="fail").state["log"] == ["a1", "mended1", "z"]


def test_renamed_steps_keep_their_place_and_what_they_left(memory: Store) -> None:
    graph = (
        StateGraph(dict, name="g")
        .add_node("a", lambda state: {"a": 1})
        .add_node("b", lambda s, ctx: ctx.ask("?"))
    )
    app = graph.add_edge(START, "a").add_edge("a", "b").compile(memory)
    app.invoke(run_id="r")
    new = StateGraph(dict, name="g").add_node("first", lambda state: None)
    new.add_node("second", lambda s, ctx: {"answer": ctx.ask("?")})
    changed = new.add_edge(START, "first").add_edge("first", "second").compile(memory)

    names = {"a": "first", "b": "second"}
    control.redefine(app.settings.journal, "r", "g", changed.outline(), {}, names=names)

    assert changed.resume("r", "yes").state == {"a": 1, "first": 1, "answer": "yes"}


@pytest.mark.parametrize(
    ("workflow", "nodes", "names", "reason"),
    [
        ("other", ("a", "b", "c"), {}, "of workflow 'graph', and the new definition of 'other'"),
        ("graph", ("a", "c"), {}, "to go on with 'b', which the new definition lacks"),
        ("graph", ("a", "b", "c"), {"x": "y"}, "'x' cannot be renamed"),
    ],
)
def test_a_definition_that_does_not_fit_is_refused(
    memory: Store, workflow: str, nodes: tuple[str, ...], names: dict[str, str], reason: str
) -> None:
    app = waiting(memory)

    with pytest.raises(CommandRefused, match=reason):
        control.redefine(
            app.settings.journal, "r", workflow, chain(*nodes).compile(memory).outline(), {}, names=names
        )


@pytest.mark.parametrize("queue", ["", "default"])
def test_a_driver_leaves_a_run_that_has_another_definition_between_two_waves(
    memory: Store, queue: str
) -> None:
    held = Held("a")
    graph = fan("a", "b", nodes={"a": held}).add_node("c", says("c"), after=["a", "b"])
    app = graph.compile(memory)
    changed = fan("a", "b").add_node("c", says("new"), after=["a", "b"]).compile(memory)
    if queue:
        app.submit({"n": 1}, run_id="r")
        thread = threading.Thread(target=lambda: asyncio.run(app.atake_up("r")))
        thread.start()
        assert held.begun.wait(30)
    else:
        driven = Driven(app, held)

    answer = control.redefine(app.settings.journal, "r", "graph", changed.outline(), {"v": 2})
    assert answer == "asked" and control.skip(app.settings.journal, "r", "c") == "asked"
    held.free.set()
    if queue:
        thread.join()
    else:
        driven.end()

    assert app.runs()[0].status == ("queued" if queue else "interrupted")
    assert [command.refused.partition(";")[0] for command in commands(app)] == [
        "",
        "the run is about to go on with another definition",
    ]
    assert changed.resume("r").state["log"] == ["a", "b", "new"]


# Other processes.

DRIVER = """
import sys
from typing import Annotated, TypedDict
from holdfast import *

class Log(TypedDict, total=False):
    n: int
    log: Annotated[list[str], append]

def hold(word):
    def node(state):
        print(word, flush=True)
        sys.stdin.readline()
        return {"log": [f"{word}{state.get('n', '')}"]}
    return node

graph = StateGraph(Log, name="graph")
for name in "abcdef":
    graph.add_node(name, hold(name))
for source, target in zip([START, *"abcdef"], [*"abcdef", END]):
    graph.add_edge(source, target)
app = graph.compile(sys.argv[1], durability="process")
"""
BEGIN = 'print(app.invoke({"n": 0}, run_id="r").status, flush=True)'


class Process:
    """A driver in a process of its own, spoken to through its pipes."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", DRIVER + BEGIN, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(ROOT)])},
        )
        self.pid = self._process.pid

    def hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def go_on(self) -> str:
        """Let its node end, once it is time for it to look into its inbox."""
        time.sleep(POLL)
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.hear()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def process(sqlite_url: str) -> Iterator[Process]:
    started = Process(sqlite_url)
    yield started
    started.end()


def elsewhere(url: str) -> App:
    """The graph of the other process, as this one has it."""
    return chain(*"abcdef", nodes={name: sees(name) for name in "abcdef"}).compile(url)


def test_a_driver_in_another_process_obeys_every_command(process: Process, sqlite_url: str) -> None:
    """R0.6: from any process, between steps, refused ones say why."""
    assert process.hear() == "a"
    app = elsewhere(sqlite_url)
    who: Any = {"by": "ann", "reason": "why not"}

    assert app.edit("r", {"n": 5}, **who) == "asked"
    assert app.skip("r", "b", **who) == "asked"
    assert process.go_on() == "c"
    assert app.modify("r", "d", {"n": 7}, **who) == "asked"
    assert app.edit("r", {"m": 1}, **who) == "asked"
    assert process.go_on() == "d"
    assert app.replan("r", ["f"], **who) == "asked"
    assert process.go_on() == "f"
    assert app.inject("r", Send("b", {"n": 9}), **who) == "asked"
    assert process.go_on() == "b"
    assert app.cancel("r", "enough", by="ann") == "running"
    assert process.hear() == "cancelled"

    assert app.get_state("r")["log"] == ["a0", "c5", "d7", "f5"]
    assert [(command.command, bool(command.refused)) for command in commands(app)] == [
        ("edit", False), ("skip", False), ("modify", False), ("edit", True), ("replan", False), ("inject", False),
        ("cancel", False),
    ]  # fmt: skip
    assert {command.by for command in commands(app)} == {"ann"}
    assert "unknown state key 'm'" in commands(app)[3].refused
    assert app.resume("r").state["log"] == ["a0", "c5", "d7", "f5", "b9"]


def test_a_command_whose_driver_was_killed_is_obeyed_once_by_the_next(
    process: Process, sqlite_url: str
) -> None:
    assert process.hear() == "a"
    app = elsewhere(sqlite_url)
    assert app.edit("r", {"log": ["edited"]}) == "asked" and app.skip("r", "b") == "asked"

    os.kill(process.pid, signal.SIGKILL)
    process.end()
    app.store.post("r", write_message(Wish("cancel", "too late")))
    outcome = app.resume("r")

    assert outcome.state["log"] == ["edited", *(f"{name}0" for name in "abcdef")]
    assert [(command.command, command.refused.partition(" ")[0]) for command in commands(app)] == [
        ("edit", ""),
        ("skip", "it"),
        ("cancel", "it"),
    ]
    assert "not the turn" in commands(app)[1].refused, "a runs again before b is due"


def test_a_run_whose_driver_is_dead_is_steered_as_one_that_nobody_drives(
    process: Process, sqlite_url: str
) -> None:
    assert process.hear() == "a"
    os.kill(process.pid, signal.SIGKILL)
    process.end()
    app = elsewhere(sqlite_url)

    assert app.skip("r", "a") == "running", "nobody knows what became of it"

    assert app.resume("r").state["log"] == ["b0", "c0", "d0", "e0", "f0"]
