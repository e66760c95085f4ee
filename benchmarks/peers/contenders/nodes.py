"""The steps of contenders in which a step is a function from a state to a dict of changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workloads import step_begins


def one_more(state: Any) -> dict[str, Any]:
    return {"n": state["n"] + 1}


async def one_more_async(state: Any) -> dict[str, Any]:
    return {"n": state["n"] + 1}


def watched(state: Any) -> dict[str, Any]:
    step_begins(state["n"])
    return {"n": state["n"] + 1}


def square_of(number: int) -> Callable[..., Any]:
    async def square(state: Any) -> dict[str, Any]:
        return {"squares": [number * number]}

    return square
