"""An owner whose lease expired, which checks the journal before its next step: another may have run it meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from holdfast import END, START, App, Context, Event, RunConflict, StateGraph
from holdfast.engine.saving import OLD_NEWS
from holdfast.journal.journal import Journal
from holdfast.journal.records import Resumed
from holdfast.journal.writer import Writer
from holdfast.stores.base import Append, Conflict, Entry
from holdfast.stores.memory import MemoryStore
from holdfast.testing import WrappedStore


class Leased(MemoryStore):
    """A store that several machines share; `lapsed` counts how often this process was late."""

    lapsed = 0

    def lease(self) -> str:
        return "mine"

    def is_live(self, lease: str) -> bool:
        return True

    def lapses(self) -> int:
        return self.lapsed


def overtake(app: App) -> None:
    """Take run `r` over from its owner."""
    # As another process does it: not through this one's queue of commits.
    journal, codec = Journal(WrappedStore(app.store)), app._settings.codec
    writer = Writer(journal, journal.load(journal.info("r"), codec), codec, durable=True)
    writer.record(Resumed("another"))
    writer.flush()


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "siblings"])
@pytest.mark.parametrize(("lapses", "overtakes"), [(True, True), (True, False), (False, True)])
def test_no_step_begins_when_another_has_taken_the_run_over(way: str, lapses: bool, overtakes: bool) -> None:
    store, ran = Leased(), list[str]()
    graph = StateGraph(dict, name="w")
    names = ["a", "b", *("c" for _ in range(way == "siblings"))]
    for name in names:
        graph.add_node(name, lambda state, name=name: ran.append(name))
    graph.add_edge(START, "a")
    for name in names[1:]:
        graph.add_edge("a", name).add_edge(name, END)
    app = graph.compile(store)

    class Meanwhile:
        """Stops this process for a while just before `b`, whose start is saved by then."""

        def on_event(self, event: Event) -> None:
            if event.type == "node.start" and event.node == "b":
                store.lapsed += lapses
                if overtakes:
                    overtake(app)

    def drive() -> Any:
        if way == "invoke":
            return app.invoke({}, run_id="r", observer=Meanwhile())
        return asyncio.run(app.ainvoke({}, run_id="r", observer=Meanwhile()))

    if not overtakes:
        assert drive().status == "completed" and sorted(ran) == sorted(names)
        return
    with pytest.raises(RunConflict, match="was advanced by another owner"):
        drive()
    assert ran == ["a"] if lapses else "b" in ran


def test_an_answer_that_was_long_on_its_way_is_asked_for_again() -> None:
    """The look says that nobody has taken the run over, but when it is heard somebody has."""

    class Held(Leased):
        looks = 0

        def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
            found = list(super().read(run, after, upto))
            if self.lapsed and after:
                self.looks += 1
                if self.looks == 1:
                    overtake(app)
                    time.sleep(2 * OLD_NEWS)
            return iter(found)

    store, ran = Held(), list[str]()

    def first(state: Any) -> None:
        ran.append("a")
        store.lapsed += 1

    graph = StateGraph(dict, name="w").add_node("a", first).add_node("b", lambda state: ran.append("b"))
    app = graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END).compile(store)

    with pytest.raises(RunConflict, match="was advanced by another owner"):
        app.invoke({}, run_id="r")

    assert ran == ["a"] and store.looks == 2


@pytest.mark.parametrize("is_async", [False, True])
def test_a_step_that_is_overtaken_begins_no_further_effect(is_async: bool) -> None:
    """The note of one effect is stored, but this process hears of it after another has taken the run over."""

    class Late(Leased):
        def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
            answers = super().commit(appends)
            if ran == ["charge"] and not self.lapsed:
                self.lapsed += 1
                overtake(app)
            return answers

    store, ran = Late(), list[str]()

    def careful(state: Any, ctx: Context) -> None:
        for effect in ("charge", "mail"):
            ctx.once(effect, ran.append, effect)

    async def careful_async(state: Any, ctx: Context) -> None:
        async def do(effect: str) -> None:
            ran.append(effect)

        for effect in ("charge", "mail"):
            await ctx.once(effect, do, effect)

    graph = StateGraph(dict, name="w").add_node("a", careful_async if is_async else careful)
    app = graph.add_edge(START, "a").add_edge("a", END).compile(store)

    with pytest.raises(RunConflict, match="was advanced by another owner"):
        asyncio.run(app.ainvoke({}, run_id="r"))

    assert ran == ["charge"]
