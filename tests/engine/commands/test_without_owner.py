"""Commands to a run without an owner: applied at once, journalled with sender and reason, or refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from holdfast import (
    END,
    START,
    App,
    CommandRefused,
    ExecutionError,
    RunFinished,
    RunNotFound,
    Send,
    StateGraph,
    append,
)
from holdfast.engine.commands import control
from holdfast.engine.commands.inbox import RunCommand, write_message
from holdfast.journal.journal import Journal
from holdfast.state.codec import Codec
from holdfast.stores.base import Store
from holdfast.views.runs import run_view
from tests.engine.commands.steered import (
    asks,
    commands,
    failed,
    gated,
    in_doubt,
    refused_to_rerun,
    sees,
    told,
    waiting,
)
from tests.graphs import Log, chain, fan, says


def test_a_command_to_a_run_that_nobody_drives_is_done_at_once_and_journalled(store: Store) -> None:
    """R0.6: who asked and why is in the journal."""
    app, _ = failed(store, "a", "b", "c")

    assert app.skip("r", "b", by="ann", reason="not needed") == "failed"

    assert told(app)[-2:] == [
        "b#1 skipped: asked for by ann: not needed",
        "skip was asked for by ann: not needed",
    ]
    assert app.resume("r").state["log"] == ["a1", "c1"]


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

    view = run_view(app._settings.journal, "r")
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
    with pytest.raises(CommandRefused, match="step 'a' cannot be passed over: ValueError"):
        app.skip("r", "a")
    app.edit("r", {"n": 0})

    assert control.send(Journal(memory), "r", control.skip("a")) == "asked", (
        "only the graph knows what to leave behind"
    )

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

    assert control.send(journal, "r", control.edit({"log": ["edited"]})) == "asked"
    assert control.send(journal, "r", control.skip("b")) == "asked"
    assert control.send(journal, "r", control.edit({"lgo": 1})) == "asked"
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
        (waiting, "b", {"n": 1}, "step 'b' has begun"),
        (in_doubt, "b", {"n": 1}, "step 'b' has begun"),
        (refused_to_rerun, "b", {"n": 1}, "step 'b' has begun"),
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
    loaded = app._settings.journal.load(app._settings.journal.info("r"), Codec())
    memory.prune("r", app._settings.journal.make_snapshot(loaded, Codec()))

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
    with pytest.raises(CommandRefused, match="step 'sub' is a graph that is under way"):
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


def test_what_only_routing_can_tell_waits_for_the_next_drive(memory: Store) -> None:
    app, _ = failed(memory, "a", "b", "c", "d")

    assert app.skip("r", "b") == "failed"
    assert app.skip("r", "c") == "asked", "what follows b is not known yet"
    assert app.modify("r", "d", {"n": 4}) == "asked"

    assert app.resume("r").state["log"] == ["a1", "d4"]


def test_a_run_whose_routing_fails_goes_on_with_another_plan(memory: Store) -> None:
    def lost(state: Any) -> bool:
        raise ValueError("which way?")

    def joined(old: list[str] | None, new: list[str]) -> list[str]:
        return [*(old or ()), *new]

    graph = StateGraph({"log": Annotated[list, joined]}, name="g")
    graph.add_node("a", says("a")).add_node("b", lambda state: {"log": [f"b after {state['log']}"]})
    graph.add_edge(START, "a").add_edge("a", "b", when=lost).add_edge("a", END)
    app = graph.compile(memory)
    with pytest.raises(ExecutionError, match="which way"):
        app.invoke(run_id="r")

    app.replan("r", ["b"])

    assert app.resume("r").state["log"] == ["a", "b after ['a']"]


def test_an_edit_wins_over_what_finished_steps_of_the_wave_have_set(memory: Store) -> None:
    graph = fan("a", "b", nodes={"a": lambda state: {"n": 1, "log": ["a"]}, "b": asks})
    app = graph.compile(memory)
    app.invoke({"n": 0}, run_id="r")

    app.edit("r", {"n": 0, "log": ["edited"]})

    assert app.resume("r", "b").state == {"n": 0, "log": ["edited", "a", "b"]}


@pytest.mark.parametrize(("wish", "status"), [("cancel", "cancelled"), ("pause", "paused")])
def test_a_wish_to_stop_that_its_driver_did_not_see_is_heeded_if_there_is_something_to_stop(
    memory: Store, wish: str, status: str
) -> None:
    app = waiting(memory)
    memory.post("r", write_message(RunCommand(wish, by="bob")))

    assert app.skip("r", "b") == status

    assert [(command.command, bool(command.refused)) for command in commands(app)] == [
        (wish, wish == "pause"),
        ("skip", False),
    ]
    assert app.resume("r").status == "completed"


@pytest.mark.parametrize("command", ["inject", "replan"])
def test_the_last_node_runs_after_all_that_was_added(memory: Store, command: str) -> None:
    graph = chain("a", "b", nodes={"b": asks}).add_node("last", says("last"))
    app = graph.set_last_node("last").compile(memory, interrupt_before=["last"])
    app.invoke(run_id="r")
    app.resume("r", "b")

    if command == "inject":
        app.inject("r", "a")
    else:
        app.replan("r", [])
    app.resume("r")

    assert app.resume("r").state["log"] == ["a", "b", *(["a"] if command == "inject" else []), "last"]


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
    asyncio.run(app.aexecute(run))
    assert app.runs()[0].status == "paused"

    with pytest.raises(CommandRefused):
        app.skip("r", "x")
    assert app.runs()[0].status == "paused", "what is refused wakes no worker"
    assert app.skip("r", "b") == "queued" and app.runs()[0].status == "queued"

    assert asyncio.run(app.aexecute(run)).state["log"] == ["a", "c"]
