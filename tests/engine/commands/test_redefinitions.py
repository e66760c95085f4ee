"""Going on with another definition of a workflow while a run is under way."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import (
    START,
    CommandRefused,
    StateGraph,
)
from holdfast.engine.commands import control
from holdfast.stores.base import Store
from holdfast.views.runs import run_view
from tests.engine.commands.steered import (
    Driven,
    Held,
    commands,
    failed,
    told,
    until,
    waiting,
)
from tests.graphs import chain, fan, says


def test_a_run_goes_on_with_another_definition(memory: Store) -> None:
    app, flaky = failed(memory, "a", "b", "c")
    flaky.broken = False
    changed = chain("a", "b", "z", nodes={"b": flaky, "z": says("z")}).compile(memory)

    answer = control.send(
        app._settings.journal,
        "r",
        control.redefine("graph", changed.outline(), {"workflow_file": "v2"}),
        by="ann",
        reason="better",
    )

    assert answer == "failed" and told(app)[-2:] == [
        "the workflow changed by ann",
        "replan was asked for by ann: better",
    ]
    assert run_view(app._settings.journal, "r").config == {"workflow_file": "v2"}
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
    control.send(app._settings.journal, "r", control.redefine("g", changed.outline(), {}, names))

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
        outline = chain(*nodes).compile(memory).outline()
        control.send(app._settings.journal, "r", control.redefine(workflow, outline, {}, names))


def test_a_run_is_cancelled_at_once_though_a_definition_waits_for_its_steps(memory: Store) -> None:
    held = Held("a")
    app = fan("a", "b", nodes={"a": held}).compile(memory)
    driven = Driven(app, held)

    outline = fan("a", "b").compile(memory).outline()
    control.send(app._settings.journal, "r", control.redefine("graph", outline, {"v": 2}))
    app.cancel("r")
    until(lambda: app.runs()[0].status == "cancelled")
    driven.end()

    assert {command.command: command.refused for command in commands(app)} == {"cancel": "", "replan": ""}


@pytest.mark.parametrize("queue", ["", "default"])
def test_a_driver_leaves_a_run_that_has_another_definition_between_two_waves(
    memory: Store, queue: str
) -> None:
    held = Held("a")
    graph = fan("a", "b", nodes={"a": held}).add_node("c", says("c"), after=["a", "b"])
    app = graph.compile(memory)
    changed = fan("z", "b").add_node("c", says("new"), after=["z", "b"]).compile(memory)
    if queue:
        app.submit({"n": 1}, run_id="r")
        thread = threading.Thread(target=lambda: asyncio.run(app.aexecute("r")))
        thread.start()
        assert held.begun.wait(30)
    else:
        driven = Driven(app, held)

    definition: Any = ("graph", changed.outline(), {"v": 2})
    answer = control.send(app._settings.journal, "r", control.redefine(*definition, {"a": "z"}))
    assert answer == "asked"
    assert control.send(app._settings.journal, "r", control.skip("c"), timeout=0.4) == "asked", (
        "what is under way comes first"
    )
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
