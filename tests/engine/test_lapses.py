"""A driver whose lease lapsed looks at the journal before its next step, for another may have run it meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import END, START, Event, RunConflict, StateGraph
from holdfast.journal.records import Resumed
from holdfast.journal.writer import Writer
from holdfast.stores.memory import MemoryStore


class Leased(MemoryStore):
    """A store that several machines share; `lapsed` counts how often this process was late."""

    lapsed = 0

    def lease(self) -> str:
        return "mine"

    def is_live(self, lease: str) -> bool:
        return True

    def lapses(self) -> int:
        return self.lapsed


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
                    journal, codec = app.settings.journal, app.settings.codec
                    writer = Writer(journal, journal.load(journal.info("r"), codec), codec, durable=True)
                    writer.record(Resumed("another"))
                    writer.flush()

    def drive() -> Any:
        if way == "invoke":
            return app.invoke({}, run_id="r", observer=Meanwhile())
        return asyncio.run(app.ainvoke({}, run_id="r", observer=Meanwhile()))

    if not overtakes:
        assert drive().status == "completed" and sorted(ran) == sorted(names)
        return
    with pytest.raises(RunConflict, match="was advanced by another driver"):
        drive()
    assert ran == ["a"] if lapses else "b" in ran
