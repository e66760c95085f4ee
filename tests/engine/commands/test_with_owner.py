"""Commands to an executing run: applied between two of its steps, in order, by its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import (
    END,
    START,
    App,
    CommandRefused,
    Retry,
    Send,
    StateGraph,
    open_store,
)
from holdfast.engine.commands.control import changes_of
from holdfast.engine.commands.inbox import POLL, RunCommand, write_message
from holdfast.journal.records import Commanded, StateEdited
from holdfast.state.codec import Codec
from holdfast.stores.base import Store
from tests.crash.programs import ROOT, SOURCE
from tests.engine.commands.steered import (
    Driven,
    Held,
    asks,
    commands,
    journalled,
    sees,
    told,
    under_way,
    until,
)
from tests.graphs import Heard, Log, chain, fan, says


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


def test_a_running_step_is_neither_skipped_nor_modified_nor_replaced(memory: Store) -> None:
    held = Held()
    app = fan("a", "b", nodes={"a": held, "b": asks}).compile(memory)
    driven = Driven(app, held)
    until(lambda: bool(app.pauses("r")))

    with pytest.raises(CommandRefused, match="step 'a' is running; wait for it, or cancel the run"):
        app.skip("r", "a", timeout=30)
    with pytest.raises(CommandRefused, match="step 'a' is running"):
        app.modify("r", "a", {"n": 1}, timeout=30)
    assert app.replan("r", [], timeout=30) == "running"
    outcome = driven.end()

    assert outcome.status == "completed" and outcome.state["log"] == ["held"]


def test_further_steps_join_the_wave_that_is_running(memory: Store) -> None:
    held = Held()
    graph = fan("a", "b", nodes={"a": held, "b": sees("b")}).add_node("c", says("c"), after=["a", "b"])
    app = graph.compile(memory)
    driven = Driven(app, held)

    assert app.inject("r", Send("b", {"n": 7}), timeout=30) == "running"
    outcome = driven.end()

    assert outcome.state["log"] == ["held", "b1", "b7", "c"] and outcome.stats.waves == 2


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
    until(lambda: any("tried again" in text for text in told(app)))

    app.skip("r", "a", timeout=30)

    assert driven.end().state["log"] == ["b"]


def test_a_command_that_comes_with_the_last_step_is_obeyed_before_the_run_is_completed(memory: Store) -> None:
    held = Held("b")
    app = chain("a", "b", nodes={"b": held}).compile(memory)
    driven = Driven(app, held)

    assert app.inject("r", "a") == "asked"

    assert driven.end().state["log"] == ["a", "b", "a"]


def test_an_edit_is_seen_by_the_routes_after_the_step_that_was_running(memory: Store) -> None:
    held = Held("a")
    graph = StateGraph(Log, name="g").add_node("a", held).add_node("b", says("b")).add_node("c", says("c"))
    graph.add_edge(START, "a").add_edge("a", "b", when=lambda state: state["n"] == 5).add_edge("a", "c")
    app = graph.add_edge("b", END).add_edge("c", END).compile(memory)
    driven = Driven(app, held)

    app.edit("r", {"n": 5})

    assert driven.end().state["log"] == ["a", "b"]


def test_a_route_that_fails_while_a_command_waits_fails_the_run_once(memory: Store) -> None:
    def lost(state: Any) -> bool:
        raise ValueError("which way?")

    held = Held("a")
    graph = StateGraph(Log, name="g").add_node("a", held).add_node("b", says("b"))
    graph.add_edge(START, "a").add_edge("a", "b", when=lost).add_edge("a", END)
    app = graph.compile(memory)
    driven = Driven(app, held)

    app.edit("r", {"n": 5})
    app.skip("r", "b")
    app.pause("r")
    driven.end()

    assert app.runs()[0].status == "failed" and app.get_state("r")["n"] == 5
    assert sum("run failed" in text for text in told(app)) == 1


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
        write_message(RunCommand("fly")),
        write_message(RunCommand("replan", definition=definition)),
        write_message(RunCommand("answer", pause="p")),
    ):
        memory.post("r", body)

    assert driven.end().status == "completed"
    assert [command.refused for command in commands(app)][:2] == [
        "unknown command 'unreadable'",
        "unknown command 'fly'",
    ]
    assert all(command.refused for command in commands(app)) and len(commands(app)) == 4


def test_a_run_that_glides_obeys_between_two_steps_and_never_inside_one(sqlite_url: str) -> None:
    """A message of another process, which only the inbox has."""
    other = open_store(sqlite_url)
    seen: list[int] = []

    def step(state: Any) -> dict[str, Any]:
        n = len(seen)
        if n == 1:
            wish = RunCommand("edit", changes=changes_of("edit", {"n": 100}, Codec()))
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
    """An owner in its own process, controlled through its pipes."""

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
    assert process.go_on() == "cancelled"

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
    app.store.post("r", write_message(RunCommand("cancel", "too late")))
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
