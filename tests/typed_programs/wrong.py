"""A program with one mistake per line, which type checkers find."""

from __future__ import annotations

from typing import TypedDict

from holdfast import App, StateGraph


class Shop(TypedDict):
    n: int


class Other(TypedDict):
    text: str


def use(app: App[Shop]) -> None:
    text: str = app.invoke({"n": 0}).state["n"]  # WRONG
    app.invoke({"n": 0}).state["m"]  # WRONG
    app.get_state("r")["n"].upper()  # WRONG
    other: App[Other] = StateGraph(Shop).compile()  # WRONG
    print(text, other)
