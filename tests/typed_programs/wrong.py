"""A program with one mistake per line, which type checkers find."""

from __future__ import annotations

from typing import TypedDict

from holdfast import App, StateGraph, step, workflow


class Shop(TypedDict):
    n: int


class Other(TypedDict):
    text: str


@step
async def shout(text: str) -> str:
    return text.upper()


@workflow
async def report(topic: str) -> list[str]:
    names: list[int] = await shout.map([topic])  # WRONG
    return [*map(str, names), await shout(3)]  # WRONG


def use(app: App[Shop]) -> None:
    text: str = app.invoke({"n": 0}).state["n"]  # WRONG
    app.invoke({"n": 0}).state["m"]  # WRONG
    app.get_state("r")["n"].upper()  # WRONG
    other: App[Other] = StateGraph(Shop).compile()  # WRONG
    number: int = report.run("tides", run_id="r")  # WRONG
    print(text, other, number)
