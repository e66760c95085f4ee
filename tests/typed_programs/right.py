"""A program that type checkers accept: the state has the types of the TypedDict that the graph was made with."""

from __future__ import annotations

import dataclasses
from typing import Any, TypedDict, assert_type

from holdfast import END, START, App, Context, Outcome, State, StateGraph, step, workflow


class Shop(TypedDict):
    n: int
    names: list[str]


def grow(state: Shop, ctx: Context) -> dict[str, Any]:
    return {"n": state["n"] + 1}


def built() -> App[Shop]:
    graph = StateGraph(Shop, name="shop")
    graph.add_node("grow", grow).add_edge(START, "grow").add_edge("grow", END)
    assert_type(graph, StateGraph[Shop])
    assert_type(graph.compile(), App[Shop])
    return graph.compile("memory://")


def chained() -> App[Shop]:
    return StateGraph(Shop).add_node("grow", grow).set_entry_point("grow").compile("memory://")


def use(app: App[Shop]) -> None:
    out = app.invoke({"n": 0, "names": []}, run_id="r")
    assert_type(out, Outcome[Shop])
    assert_type(out.state["n"], int)
    assert_type(out.state["names"], list[str])
    assert_type(app.get_state("r")["n"], int)
    assert_type(app.state_at("r", "@1")["n"], int)
    assert_type(app.invoke(run_id="r", if_exists="return").state, Shop)
    anything(app)
    number = out.state["n"] + 1
    assert number == 2


async def use_async(app: App[Shop]) -> None:
    assert_type((await app.ainvoke({"n": 0, "names": []}, run_id="a")).state["n"], int)


def anything(app: App) -> str:
    """Take any app."""
    return app.name


@step(timeout=30)
def size(text: str) -> int:
    return len(text)


@step
async def shout(text: str) -> str:
    return text.upper()


@workflow
async def report(topic: str) -> list[str]:
    sizes = await size.map([topic, topic], max_parallel=2)
    assert_type(sizes, list[int])
    assert_type(await shout(topic), str)
    shouts = await shout.map([topic])
    assert_type(shouts, list[str])
    return [*shouts, str(sizes)]


@workflow(store="memory://")
def measured(topic: str) -> int:
    lengths: list[int] = size.map([topic])
    assert_type(size(topic), int)
    return sum(lengths)


def use_functions() -> None:
    assert_type(measured.run("a", run_id="r"), int)
    assert_type(measured.resume("r"), int)
    assert_type(report.run("a", run_id="r"), list[str])
    assert_type(report.resume("r"), list[str])
    assert_type(report.submit("b"), str)
    assert measured.run("tides", run_id="r2") + 1 == 6


async def use_functions_async() -> None:
    assert_type(await report.arun("a", run_id="r"), list[str])
    assert_type(await report.aresume("r"), list[str])
    assert_type(await measured.arun("a", answers={"ok?": "yes"}), int)


@dataclasses.dataclass
class Data:
    n: int = 0


def untyped() -> None:
    """What has no TypedDict has a `State`, whose values may be anything."""
    for graph in (StateGraph(dict), StateGraph(), StateGraph({"n": int}), StateGraph(Data)):
        graph.add_node("grow", lambda state: {"n": 1})
        graph.set_entry_point("grow")
        out = graph.compile("memory://").invoke({"n": 0})
        assert_type(out.state, State)
        assert out.state["n"] == out.state.n == out.state.to_dict()["n"] == 1


if __name__ == "__main__":
    use(built())
    chained()
    use_functions()
    untyped()
