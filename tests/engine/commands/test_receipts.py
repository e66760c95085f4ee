"""What an answer call says became of the answer: applied, refused, or waiting, with a handle to ask later."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import START, App, Receipt, StateGraph, open_store
from holdfast.engine.commands import control
from holdfast.engine.commands.control import post
from holdfast.engine.commands.inbox import ANSWER, RunCommand
from holdfast.errors import CommandRefused, NotPaused, RunNotFound
from holdfast.journal.journal import Journal
from holdfast.journal.records import Answered, Commanded
from holdfast.stores.base import Store
from tests.graphs import one
from tests.invariants import read_journal


class Executed:
    """A run that executes a long step beside two questions."""

    def __init__(self, store: Store, *, private: bool = True) -> None:
        self.release = threading.Event()
        graph = StateGraph(dict, name="w").add_node("work", self.work, after=[])
        for name in ("go", "title"):
            graph.add_node(name, lambda ctx, name=name: {name: ctx.ask(f"{name}?", name=name)}, after=[])
        self.app: App = graph.compile(store)
        self.thread = threading.Thread(target=lambda: self.app.invoke({}, run_id="r"))
        self.thread.start()
        while not (store.runs(run="r") and len(self.app.pauses("r")) == 2):
            threading.Event().wait(0.01)

    def work(self, state: Any, ctx: Any) -> None:
        self.release.wait(60)

    def end(self) -> None:
        self.release.set()
        self.thread.join(60)


@pytest.fixture
def executed(store: Store) -> Iterator[Executed]:
    made = Executed(store)
    yield made
    made.end()


def both(executed: Executed, first: dict[str, Any], second: dict[str, Any]) -> list[Receipt]:
    """Two people who see the same open questions answer at the same time."""
    found: list[Receipt] = []
    journal, codec = executed.app._settings.journal, executed.app._settings.codec
    loaded = journal.load(journal.info("r"), codec)
    numbers = []
    for answers, by in ((first, "ann"), (second, "bob")):
        (pause, value, _), *more = control.take_answers(loaded.info, loaded.run, None, answers, codec, None)
        others = tuple(control.Change((each.pause,), each.value) for each in more)
        numbers.append(
            (post(journal, "r", RunCommand(ANSWER, pause=pause, value=value, by=by, changes=others)), by)
        )
    for number, by in numbers:
        found.append(control._settled(journal, Receipt("r", "waiting", by=by, number=number), codec, 60.0))
    return found


def test_of_two_who_answer_one_question_one_is_applied_and_the_other_is_told_why_not(
    executed: Executed,
) -> None:
    first, second = both(executed, {"go": "yes"}, {"go": "no"})

    assert first.status == "applied"
    assert (second.status, second.by) == ("refused", "bob")
    assert "nothing waits for 'go#1:go' any more: it was answered before" in second.reason
    records = [record for _, record in read_journal(executed.app._settings.journal.store, "r").records]
    assert [record.by for record in records if isinstance(record, Answered)] == ["ann"]
    assert [record.by for record in records if isinstance(record, Commanded) and record.refused] == ["bob"]


def test_several_answers_of_one_call_are_applied_together_or_not_at_all(executed: Executed) -> None:
    first, second = both(executed, {"go": "yes"}, {"title": "Tides", "go": "no"})

    assert (first.status, second.status) == ("applied", "refused")
    assert [pause.name for pause in executed.app.pauses("r")] == ["title"]
    last = executed.app.answer("r", answers={"title": "Tides"}, by="ann", timeout=60.0)
    assert (last.status, last.names, last.reason) == ("applied", ("title",), "")


def test_an_answer_that_is_not_taken_in_time_is_asked_for_later_by_its_handle(store: Store) -> None:
    """While the process that executes the run does not look."""
    executed = Executed(store)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("holdfast.engine.commands.inbox.Inbox.look", lambda self: None)
            patch.setattr("holdfast.engine.loop.Execution.request_look", lambda self: None)
            receipt = executed.app.answer("r", answers={"go": "yes"}, by="ann", timeout=0.05)
            assert receipt.status == "waiting" and receipt.handle == "r#1"
            assert executed.app.answer_status("r#1") == Receipt("r", "waiting", by="ann", number=1)
    finally:
        executed.end()

    later = executed.app.answer_status(receipt.handle)
    assert later.status == "applied"
    assert "title" in [pause.name for pause in executed.app.pauses("r")]


def test_a_refusal_is_known_in_every_process_and_after_the_run_has_ended(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    executed = Executed(store)
    both(executed, {"go": "yes", "title": "x"}, {"go": "no"})
    executed.end()
    assert executed.app.runs()[0].status == "completed"
    store.close()

    code = (
        "import sys, json; from holdfast import open_store; from holdfast.journal.journal import Journal;"
        "from holdfast.engine.commands import control; from holdfast.state.codec import Codec;"
        "print(json.dumps(control.find_receipt(Journal(open_store(sys.argv[1])), 'r#2', Codec()).as_json()))"
    )
    args = [sys.executable, "-c", code, f"sqlite:///{tmp_path}/runs.db"]
    told = json.loads(subprocess.run(args, check=True, capture_output=True, text=True).stdout)
    assert told["status"] == "refused" and told["by"] == "bob" and told["handle"] == "r#2"


def test_a_refusal_is_found_in_the_journal_when_many_have_followed_it(executed: Executed) -> None:
    both(executed, {"go": "yes"}, {"go": "no"})
    journal = executed.app._settings.journal
    for _ in range(25):
        number = post(journal, "r", RunCommand(ANSWER, pause="gone", value=b"\x01\x05"))
    control._settled(journal, Receipt("r", "waiting", number=number), executed.app._settings.codec, 60.0)

    assert executed.app.answer_status("r#2").by == "bob"
    assert executed.app.answer_status("r#1").status == "applied"


def test_an_answer_to_a_run_that_completes_meanwhile_is_refused_in_its_journal(memory: Store) -> None:
    graph = StateGraph(dict, name="w").add_node("a", lambda state: {"n": 1}).add_edge(START, "a")
    app = graph.compile(memory)
    app.invoke({}, run_id="r")
    number = post(Journal(memory), "r", RunCommand(ANSWER, pause="a#1:q", value=b"\x01\x05", by="ann"))

    receipt = app.answer_status(f"r#{number}")

    assert (receipt.status, receipt.reason) == ("refused", "the run is completed")
    last = read_journal(memory, "r").records[-1][1]
    assert isinstance(last, Commanded) and last.by == "ann"


def test_without_anybody_who_executes_the_run_an_answer_is_applied_at_once(memory: Store) -> None:
    graph = StateGraph(dict, name="w").add_node("a", lambda ctx: {"n": ctx.ask("n?")}).add_edge(START, "a")
    app = graph.compile(memory)
    app.invoke({}, run_id="r")

    receipt = app.answer("r", 5, by="ann")

    assert receipt == Receipt("r", "applied", ("n?",), by="ann") and receipt.handle == ""


def test_whoever_answers_last_while_nobody_executes_the_run_is_told_that_no_question_is_open(
    memory: Store,
) -> None:
    app = one(lambda state, ctx: ctx.ask("well?", name="go") and None).compile(memory)
    assert app.invoke(run_id="r").status == "paused"
    assert app.answer("r", "yes", by="ann").status == "applied"

    with pytest.raises(NotPaused, match="its questions were answered already") as caught:
        app.answer("r", "no", by="bob")

    assert "it is paused" not in str(caught.value)
    assert app.resume("r").status == "completed"


def test_whoever_answers_in_the_event_loop_that_executes_the_run_does_not_hold_it_up(memory: Store) -> None:
    go_on = asyncio.Event()

    async def work(state: Any) -> None:
        await go_on.wait()

    graph = StateGraph(dict, name="w").add_node("work", work, after=[])
    graph.add_node("ask", lambda ctx: {"n": ctx.ask("n?")}, after=[])
    app = graph.compile(memory)

    async def answered() -> Receipt:
        running = asyncio.create_task(app.ainvoke({}, run_id="r"))
        while not (memory.runs(run="r") and app.pauses("r")):
            await asyncio.sleep(0.01)
        receipt = app.answer("r", 5, timeout=3600.0)
        while app.answer_status(receipt.handle).status == "waiting":
            await asyncio.sleep(0.01)
        go_on.set()
        assert (await running).state["n"] == 5
        return receipt

    assert asyncio.run(answered()).status == "waiting"


@pytest.mark.parametrize("handle", ["r", "r#", "r#x", "r#0", "r#7"])
def test_a_handle_of_nothing_is_refused(memory: Store, handle: str) -> None:
    app = (
        StateGraph(dict, name="w")
        .add_node("a", lambda ctx: ctx.ask("n?"))
        .add_edge(START, "a")
        .compile(memory)
    )
    app.invoke({}, run_id="r")

    with pytest.raises(CommandRefused, match=r"no handle|no message"):
        app.answer_status(handle)
    applied = app.answer("r", 1)
    with pytest.raises(CommandRefused, match="applied at once has no handle: its receipt says"):
        app.answer_status(applied.handle)
    with pytest.raises(RunNotFound):
        app.answer_status("gone#1")
