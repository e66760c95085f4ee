"""What another process may ask of a run: pause, cancel, answer; and the plan of a resume."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from holdfast import (
    END,
    START,
    AnswerRejected,
    App,
    ExecutionError,
    NotPaused,
    RunFinished,
    StateGraph,
    append,
    open_store,
)
from holdfast.engine.commands import control
from holdfast.journal.journal import Journal


class Work(TypedDict, total=False):
    n: int
    log: Annotated[list[str], append]


def ask(state: Any, ctx: Any) -> Any:
    return {"log": [ctx.ask("Go on?", name="go", choices=["yes", "no"])]}


def asking(store: Any) -> App:
    graph = StateGraph(Work, name="w")
    graph.add_node("ask", ask).add_node("done", lambda state: {"log": ["done"]})
    return graph.add_edge(START, "ask").add_edge("ask", "done").add_edge("done", END).compile(store)


def test_an_answer_is_kept_until_the_run_is_resumed() -> None:
    app = asking("memory://")
    app.invoke({"n": 0}, run_id="r")

    assert app.answer("r", "yes", by="ann").names == ("go",)
    assert app.pauses("r") == () and app.runs()[0].status == "paused"
    assert app.resume("r").state["log"] == ["yes", "done"]


def test_without_an_answer_a_resume_leaves_the_run_waiting() -> None:
    app = asking("memory://")
    app.invoke({"n": 0}, run_id="r")

    assert app.resume("r").status == "paused"


def test_wrong_answers_are_refused_and_nothing_is_kept() -> None:
    app = asking("memory://")
    app.invoke({"n": 0}, run_id="r")
    journal = Journal(app.store)

    with pytest.raises(AnswerRejected, match="must be one of 'yes', 'no'"):
        control.answer(journal, "r", "perhaps")
    with pytest.raises(AnswerRejected, match=r"no pause 'goo'.*did you mean 'go'"):
        control.answer(journal, "r", answers={"goo": "yes"})
    assert [pause.name for pause in control.waiting(journal, "r")] == ["go"]
    control.answer(journal, "r", answers={"go": "no"})
    with pytest.raises(NotPaused):
        control.answer(journal, "r", "yes")
    app.resume("r")
    with pytest.raises(RunFinished):
        control.answer(journal, "r", "yes")


class Busy:
    """A wave of a step that asks and a step that works until it is released."""

    def __init__(self, store: Any) -> None:
        self.working, self.release = threading.Event(), threading.Event()
        graph = StateGraph(Work, name="w")
        graph.add_node("ask", ask, after=[])
        graph.add_node("work", self.work, after=[])
        self.app = graph.compile(store, barrier=False)

    def work(self, state: Any, ctx: Any) -> Any:
        self.working.set()
        while not self.release.wait(0.02):
            if ctx.cancelled:
                return {"log": ["left"]}
        return {"log": ["worked"]}

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=lambda: self.app.invoke({"n": 0}, run_id="r"))
        thread.start()
        assert self.working.wait(30)
        return thread


def test_a_run_that_is_driven_takes_an_answer_in(tmp_path: Path) -> None:
    busy = Busy(f"sqlite:///{tmp_path / 'runs.db'}")
    thread = busy.start()
    store = open_store(f"sqlite:///{tmp_path / 'runs.db'}")
    try:
        journal = Journal(store)
        while not control.waiting(journal, "r"):
            threading.Event().wait(0.02)
        assert control.answer(journal, "r", "yes").names == ("go",)
        while "yes" not in (busy.app.get_state("r").get("log") or ()):
            threading.Event().wait(0.02)
    finally:
        busy.release.set()
        thread.join()
        store.close()
    assert busy.app.runs()[0].status == "completed"


def test_a_run_that_is_driven_can_be_paused_and_goes_on_later() -> None:
    busy = Busy("memory://")
    thread = busy.start()

    assert busy.app.pause("r", "lunch") == "running"
    busy.release.set()
    thread.join()

    assert busy.app.runs()[0].status == "interrupted"
    outcome = busy.app.resume("r", answers={"go": "yes"})
    assert outcome.status == "completed" and outcome.stats.steps_run == 1
    assert sorted(outcome.state["log"]) == ["worked", "yes"]


def test_a_pause_lets_a_lone_step_finish_and_starts_no_other(tmp_path: Path) -> None:
    graph = StateGraph(Work, name="w")

    def first(state: Any, ctx: Any) -> Any:
        control.stop(Journal(app.store), "r", "pause")
        assert not ctx.cancelled
        return {"log": ["first"]}

    graph.add_node("first", first).add_node("second", lambda state: {"log": ["second"]})
    app = (
        graph.add_edge(START, "first")
        .add_edge("first", "second")
        .add_edge("second", END)
        .compile("memory://")
    )

    outcome = app.invoke({"n": 0}, run_id="r")

    assert outcome.status == "interrupted" and app.plan_resume("r").steps[0].what == "kept"
    outcome = app.resume("r")
    assert outcome.state["log"] == ["first", "second"] and outcome.stats.steps_run == 1


def test_if_interrupted_answers_what_is_asked_about_interrupted_steps() -> None:
    ran: list[int] = []

    def shaky(state: Any) -> Any:
        ran.append(1)
        if len(ran) == 1:
            raise KeyboardInterrupt
        return {"log": ["done"]}

    graph = StateGraph(Work, name="w").add_node("a", shaky, if_interrupted="ask")
    app = graph.add_edge(START, "a").add_edge("a", END).compile("memory://")
    with pytest.raises(KeyboardInterrupt):
        app.invoke({"n": 0}, run_id="r")
    assert [pause.kind for pause in app.resume("r").pauses] == ["in_doubt"]

    outcome = app.resume("r", if_interrupted="rerun")

    assert outcome.status == "completed" and len(ran) == 2


def test_a_node_that_exits_has_failed() -> None:
    graph = StateGraph(Work, name="w").add_node("a", lambda state: sys.exit(0))
    app = graph.add_edge(START, "a").add_edge("a", END).compile("memory://")

    with pytest.raises(ExecutionError, match="SystemExit: 0"):
        app.invoke({"n": 0}, run_id="r")


def test_pausing_what_stands_still_changes_nothing() -> None:
    app = asking("memory://")
    app.invoke({"n": 0}, run_id="r")

    assert app.pause("r") == "paused" and app.runs()[0].status == "paused"


def failing(state: Any) -> Any:
    raise ValueError("not yet")


def test_a_plan_tells_what_a_resume_would_do_and_touches_nothing() -> None:
    store = open_store("memory://")

    def graph(second: Any) -> StateGraph:
        made = StateGraph(Work, name="w")
        made.add_node("first", lambda state: {"log": ["first"]}).add_node("second", second)
        return made.add_edge(START, "first").add_edge("first", "second")

    app = graph(failing).add_edge("second", END).compile(store)
    with pytest.raises(ExecutionError):
        app.invoke({"n": 0}, run_id="r")
    changed = graph(lambda state: {"log": ["second"]}).add_node("third", lambda state: None)
    changed.add_edge("second", "third").add_edge("third", END)
    before = list(store.read("r"))

    plan = changed.compile(store).plan_resume("w")

    assert [(step.step, step.what, step.reason) for step in plan.steps] == [
        ("first#1", "kept", "finished"),
        ("second#1", "rerun", plan.steps[1].reason),
        ("", "new", "the workflow has it now"),
    ]
    assert plan.steps[1].reason.startswith("it failed: ValueError: not yet; code changed from ")
    assert plan.changes == (
        "'third' was added",
        "the code of 'second' changed",
        "the edges changed",
    )
    assert [step.node for step in plan.of("kept")] == ["first"] and list(store.read("r")) == before


def test_a_plan_tells_what_is_asked() -> None:
    app = asking("memory://")
    app.invoke({"n": 0}, run_id="r")

    (step,) = app.plan_resume("r").steps

    assert (step.what, step.reason) == ("asked", "it waits for an answer: Go on?")


def test_what_once_remembered_can_be_recalled() -> None:
    seen: list[Any] = []

    def work(state: Any, ctx: Any) -> Any:
        seen.append(ctx.recall("paid", "nothing"))
        ctx.once("paid", lambda: ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("after paying")

    graph = StateGraph(Work, name="w").add_node("work", work).add_edge(START, "work").add_edge("work", END)
    app = graph.compile("memory://")
    with pytest.raises(ExecutionError):
        app.invoke({"n": 0}, run_id="r")
    app.resume("r")

    assert seen == ["nothing", 1]


def test_several_questions_of_a_node_are_open_at_once_and_each_answer_is_kept() -> None:
    runs: list[int] = []

    def form(state: Any, ctx: Any) -> Any:
        runs.append(1)
        answers = ctx.ask_all({"title": {"prompt": "Title?"}, "pages": {"prompt": "Pages?", "schema": int}})
        return {"log": [f"{answers['title']}, {answers['pages']}"]}

    graph = StateGraph(Work, name="w").add_node("form", form)
    app = graph.add_edge(START, "form").add_edge("form", END).compile("memory://")
    assert [pause.name for pause in app.invoke({"n": 0}, run_id="r").pauses] == ["title", "pages"]

    app.answer("r", answers={"pages": 3})
    assert [pause.name for pause in app.pauses("r")] == ["title"]
    with pytest.raises(AnswerRejected, match="pages"):
        app.answer("r", answers={"pages": 4})

    assert app.resume("r", "Tides").state["log"] == ["Tides, 3"] and len(runs) == 2


def test_a_plan_tells_that_a_refused_step_is_refused_again() -> None:
    def stopped(state: Any) -> Any:
        raise KeyboardInterrupt

    graph = StateGraph(Work, name="w").add_node("pay", stopped, idempotent=False)
    app = graph.add_edge(START, "pay").add_edge("pay", END).compile("memory://")
    with pytest.raises(KeyboardInterrupt):
        app.invoke({"n": 0}, run_id="r")
    with pytest.raises(ExecutionError, match="is not repeated unasked"):
        app.resume("r")

    (again,), (rerun,) = app.plan_resume("r").steps, app.plan_resume("r", if_interrupted="rerun").steps

    assert again.what == "in_doubt" and "the run fails" in again.reason
    assert rerun.what == "rerun"
