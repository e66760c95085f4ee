"""The short path of lone steps: it records what the long one records, and gives way wherever it must."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, TypedDict

import pytest

from holdfast import END, START, App, ExecutionError, StateGraph, append
from holdfast.events import CallbackObserver
from holdfast.journal.journal import Journal
from holdfast.journal.records import Record, RunStarted, StepFinished
from holdfast.state.codec import Codec


class Log(TypedDict, total=False):
    n: int
    log: Annotated[list[str], append]


def step(state: Any) -> dict[str, Any]:
    return {"n": state["n"] + 1, "log": [f"at {state['n']}"]}


async def async_step(state: Any) -> dict[str, Any]:
    return step(state)


def later(state: Any) -> Any:
    return async_step(state)


def quiet(state: Any) -> None:
    return None


def history(app: App, run: str) -> list[Record]:
    journal = Journal(app.store)
    _, entries = journal.history(journal.info(run), Codec())
    records = [record for _, found in entries for record in found]
    return [_timeless(record) for record in records]


def _timeless(record: Record) -> Record:
    if isinstance(record, StepFinished):
        return record._replace(seconds=0.0)
    return record._replace(owner="") if isinstance(record, RunStarted) else record


def chain(*nodes: Any) -> StateGraph:
    graph = StateGraph(Log, name="chain", max_iterations=20)
    before = START
    for index, node in enumerate(nodes):
        graph.add_node(f"s{index}", node, timeout=60 if node is quiet else None)
        graph.add_edge(before, f"s{index}")
        before = f"s{index}"
    return graph.add_edge(before, END)


@pytest.mark.parametrize(
    "nodes",
    [
        (step, step, step),
        (step, async_step, step, step),
        (step, later, step),
        (step, quiet, step, step),
        (async_step, step, step),
    ],
)
def test_the_short_path_records_what_the_long_one_does(nodes: tuple[Any, ...]) -> None:
    app = chain(*nodes).compile("memory://", facts=False)

    short = app.invoke({"n": 0}, run_id="short")
    for _ in app.stream({"n": 0}, run_id="long"):
        pass

    assert short.state == app.get_state("long")
    assert history(app, "short") == history(app, "long")
    assert [c.next for c in app.checkpoints("short")] == [c.next for c in app.checkpoints("long")]


def test_a_bad_update_on_the_short_path_is_told_as_ever() -> None:
    app = chain(step, lambda state: {"wrong": 1}, step).compile("memory://")

    with pytest.raises(ExecutionError, match="unknown state key 'wrong'"):
        app.invoke({"n": 0}, run_id="r")

    assert app.get_state("r") == {"n": 1, "log": ["at 0"]}


def test_the_short_path_keeps_to_the_limit_of_iterations() -> None:
    graph = StateGraph(Log, name="round", max_iterations=5)
    graph.add_node("a", step)
    graph.add_node("b", step)
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "a")
    app = graph.add_edge("b", END, when=lambda state: False).compile("memory://")

    with pytest.raises(ExecutionError, match=r"max iterations \(5\)"):
        app.invoke({"n": 0}, run_id="r")

    assert app.get_state("r")["n"] == 5


def test_an_observer_that_wants_little_is_told_the_same_on_the_short_path() -> None:
    app = chain(step, step, async_step, step).compile("memory://")
    varying = ("seconds", "timestamp", "run_id", "checkpoint_id", "size")
    wants = ("node.start", "node.complete", "edge.transition", "checkpoint.save", "graph.complete")
    told: dict[str, list[Any]] = {"short": [], "long": []}

    def listen(name: str, event: Any) -> None:
        if event.type in wants:
            facts = {k: v for k, v in event.data.items() if k not in varying}
            told[name].append((event.type, event.node, facts))

    app.invoke({"n": 0}, observer=CallbackObserver(partial(listen, "short"), *wants))
    app.invoke({"n": 0}, observer=CallbackObserver(partial(listen, "long")))

    assert told["short"] == told["long"] and len(told["short"]) > 10


def test_a_command_that_a_step_saw_is_applied_before_the_next_step() -> None:
    def first(state: Any, ctx: Any) -> dict[str, Any]:
        app.edit("r", {"n": 40})
        assert not ctx.cancelled  # That looks into the inbox.
        return {"log": ["first"]}

    app = chain(first, step, step).compile(store="memory://")

    assert app.invoke({"n": 0}, run_id="r").state["log"] == ["first", "at 40", "at 41"]
