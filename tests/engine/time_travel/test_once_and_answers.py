"""Records and answers of a step after a fork, a rerun or a rollback: kept, asked again, or done again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import pytest

from holdfast import START, App, Context, ExecutionError, Send, StateGraph
from holdfast.stores.base import Store


class Topic(TypedDict, total=False):
    topic: str
    out: str


class Desk:
    """A workflow whose last step remembers a reply, and fails after it the first time."""

    def __init__(self, store: Store) -> None:
        self.store, self.asked, self.fails = store, list[str](), True
        with pytest.raises(ExecutionError):
            self.app("short").invoke({"topic": "tides"}, run_id="r")
        self.fails = False

    def app(self, prompt: str) -> App:
        def reply(text: str) -> str:
            self.asked.append(text)
            return f"on {text}"

        def draft(state: Any, ctx: Context) -> dict[str, Any]:
            out = ctx.once("reply", reply, f"{prompt} {state['topic']}")
            if self.fails:
                raise ValueError("after the reply")
            return {"out": out}

        graph = StateGraph(Topic, name="w")
        graph.add_node("pre", lambda state: None)
        graph.add_node("draft", draft, version=prompt)
        graph.add_edge(START, "pre").add_edge("pre", "draft")
        return graph.compile(self.store)


NEW = {
    "rerun": ("short", lambda app: app.rerun("r", "draft"), "short tides"),
    "rerun with another input": (
        "short",
        lambda app: app.rerun("r", "draft", input={"topic": "storms"}),
        "short storms",
    ),
    "rerun with an update": (
        "short",
        lambda app: app.rerun("r", "draft", update={"topic": "storms"}),
        "short storms",
    ),
    "rerun in place": (
        "short",
        lambda app: app.rerun("r", "draft", update={"topic": "storms"}, in_place=True),
        "short storms",
    ),
    "rerun of other code": ("long", lambda app: app.rerun("r", "draft"), "long tides"),
    "changed code": ("long", lambda app: app.resume("r", rerun_changed=True), "long tides"),
    "fork with an update": (
        "short",
        lambda app: app.resume(app.fork("r", update={"topic": "storms"})),
        "short storms",
    ),
    "resume from a checkpoint with an update": (
        "short",
        lambda app: _begun_anew(app),
        "short storms",
    ),
}


def _begun_anew(app: App) -> Any:
    newest = app.checkpoints("r")[-1].id
    app.update_state("r", {"topic": "waves"})
    return app.resume(newest, update={"topic": "storms"})


@pytest.mark.parametrize(("prompt", "again", "text"), NEW.values(), ids=NEW.keys())
def test_what_is_done_anew_remembers_nothing(
    memory: Store, prompt: str, again: Callable[[App], Any], text: str
) -> None:
    desk = Desk(memory)
    assert again(desk.app(prompt)).state["out"] == f"on {text}" and desk.asked == ["short tides", text]


KEPT: dict[str, Callable[[App], Any]] = {
    "resume": lambda app: app.resume("r"),
    "fork": lambda app: app.resume(app.fork("r")),
    "rollback": lambda app: (app.rollback("r", app.checkpoints("r")[-1].id), app.resume("r"))[1],
    "nothing changed": lambda app: app.resume("r", rerun_changed=True),
}


@pytest.mark.parametrize("again", KEPT.values(), ids=KEPT.keys())
def test_what_just_goes_on_remembers(memory: Store, again: Callable[[App], Any]) -> None:
    desk = Desk(memory)
    assert again(desk.app("short")).state["out"] == "on short tides" and desk.asked == ["short tides"]


def test_a_step_that_failed_once_and_was_finished_is_done_anew(memory: Store) -> None:
    desk = Desk(memory)
    desk.app("short").resume("r")

    assert desk.app("short").rerun("r", "draft", input={"topic": "storms"}).state["out"] == "on short storms"


def test_what_is_forgotten_stays_so_after_a_crash(store: Store) -> None:
    desk = Desk(store)
    app = desk.app("short")
    app.fork("r", update={"topic": "storms"}, run_id="f")
    run = app._settings.journal.load(app._settings.journal.info("f"), app._settings.codec).run

    assert [step.notes for step in run.active()] == [{}]
    assert app.resume("f").state["out"] == "on short storms"


def test_only_the_item_that_is_named_is_done_anew(memory: Store) -> None:
    asked: list[str] = []
    fails = True

    def work(state: Any, ctx: Context) -> dict[str, Any]:
        ctx.once("reply", asked.append, state["topic"])
        if fails:
            raise ValueError("no")
        return {}

    graph = StateGraph(Topic, name="w")
    graph.add_node("work", work)
    graph.add_conditional_edges(
        START, lambda state: [Send("work", {"topic": topic}, topic) for topic in "ab"], ["work"]
    )
    app = graph.compile(memory, max_parallel=2)
    with pytest.raises(ExecutionError):
        app.invoke(run_id="r")
    assert sorted(asked) == ["a", "b"]
    fails = False
    asked.clear()
    app.rerun("r", "work#1[a]")

    assert asked == ["a"]


def test_all_questions_of_an_unfinished_step_are_asked_again(store: Store) -> None:
    def ask(state: Any, ctx: Context) -> dict[str, Any]:
        return {"out": ctx.ask("one?", name="one") + ctx.ask("two?", name="two")}

    graph = StateGraph(Topic, name="w")
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    app = graph.compile(store)
    app.invoke(run_id="r")
    app.resume("r", answers={"one": "1"})
    assert [pause.name for pause in app.pauses("r")] == ["two"]

    def asks(run: str) -> list[str]:
        return [pause.name for pause in app.resume(run).pauses]

    app.fork("r", run_id="f")
    assert asks("f") == ["one"]
    assert [pause.name for pause in app.rerun("r", "ask").pauses] == ["one"]
    app.rollback("r", app.checkpoints("r")[-1].id)
    assert asks("r") == ["one"]
    app.resume("r", answers={"one": "3"})
    assert app.resume("r", answers={"two": "4"}).state["out"] == "34"
