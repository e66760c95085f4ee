"""Node functions that other processes can import."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from holdfast import Command, append


@dataclasses.dataclass
class Point:
    x: int


class Away(TypedDict, total=False):
    """What the functions read and write."""

    n: int
    item: str
    items: list[str]
    folder: str
    point: Point
    log: Annotated[list[str], append]
    extra: Any


class Odd(Exception):
    """Its constructor does not take what `args` holds."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__("odd")
        self.sum = first + second


class Keeps(Exception):
    """It holds something that no other process can be given."""

    def __init__(self) -> None:
        super().__init__("held")
        self.lock = threading.Lock()


def process(state: Any) -> dict[str, Any]:
    return {"n": os.getpid()}


async def process_later(state: Any) -> dict[str, Any]:
    await asyncio.sleep(0.01)
    return {"n": os.getpid()}


def double(state: Any) -> dict[str, Any]:
    return {"n": 2 * state["n"]}


def facts(state: Any, ctx: Any, *, config: Any) -> dict[str, Any]:
    ctx.log.info("at work on %s", ctx.step)
    ctx.log.debug("and in detail")
    known = [ctx.run_id, ctx.step, ctx.node, str(ctx.visit), str(ctx.item_key), str(ctx.attempt)]
    return {"log": [*known, ctx.idempotency_key, ctx.config["who"], config["who"]]}


def chatty(state: Any, ctx: Any) -> None:
    for number in range(1100):
        ctx.log.warning("line %d", number)


def asks_for(name: str, ctx: Any) -> Any:
    found = getattr(ctx, name)
    return found("x")


def asks(state: Any, ctx: Any) -> Any:
    return asks_for(state["item"], ctx)


def grows(state: Any) -> None:
    state["log"].append("x")


def moves(state: Any) -> None:
    state["point"].x += 1


def moved(state: Any) -> dict[str, Any]:
    return {"point": Point(state["point"].x + 1)}


def as_state(state: Any) -> Any:
    return state.set("n", 7)


def as_less(state: Any) -> Any:
    return type(state)({"n": state["n"]})


def as_command(state: Any) -> Command:
    return Command(update=state.set("n", 8), goto="last")


def fails(state: Any) -> None:
    raise KeyError("gone")


def stops_iterating(state: Any) -> None:
    next(iter([]))


def is_odd(state: Any) -> None:
    raise Odd(1, 2)


def keeps(state: Any) -> None:
    raise Keeps


def interrupts(state: Any) -> None:
    raise KeyboardInterrupt


def unstorable(state: Any) -> dict[str, Any]:
    return {"extra": threading.Lock()}


def dies(state: Any) -> None:
    os._exit(3)


def told(state: Any, word: str) -> int:
    """Write a word down, in one go; how often anything was."""
    path = Path(state["folder"]) / "told"
    with path.open("a") as file:
        file.write(f"{word}\n")
    return len(path.read_text().splitlines())


def dies_at_first(state: Any) -> dict[str, Any]:
    if told(state, str(os.getpid())) == 1:
        os._exit(3)
    return {"n": os.getpid()}


def hangs(state: Any) -> None:
    told(state, str(os.getpid()))
    time.sleep(600)


def takes_a_moment(state: Any) -> dict[str, Any]:
    time.sleep(1.8)
    return {"log": [state["item"]]}


def works_on(state: Any) -> dict[str, Any]:
    told(state, state["item"])
    if state["item"] == "b" and not (Path(state["folder"]) / "fixed").exists():
        raise ValueError("b is broken")
    return {"log": [state["item"]]}


def hangs_once(state: Any) -> dict[str, Any]:
    """Item `b` hangs when it is worked on for the first time, so that somebody can end its process."""
    folder, item = Path(state["folder"]), state["item"]
    told(state, f"{item} {os.getpid()}")
    if item == "b" and not (folder / "hung").exists():
        (folder / "hung").touch()
        time.sleep(600)
    return {"log": [item]}
