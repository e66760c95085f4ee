"""A chain of steps that reports each of them, and a process that takes over a run of it and dies."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from holdfast import END, START, App, StateGraph, append
from holdfast.stores.base import Store

STEPS = ("s1", "s2", "s3", "s4", "s5")


class Log(TypedDict, total=False):
    log: Annotated[list[str], append]


def build(store: Store | str, told: Callable[[str, str], object] | None = None) -> App:
    """Return the chain; `told` is called in each step with its node and its idempotency key."""

    def step(state: Any, ctx: Any) -> dict[str, list[str]]:
        if told is not None:
            told(ctx.node, ctx.idempotency_key)
        return {"log": [ctx.node]}

    graph = StateGraph(Log, name="chain")
    for name in STEPS:
        graph.add_node(name, step, version="1")
    for one, other in zip([START, *STEPS], [*STEPS, END], strict=True):
        graph.add_edge(one, other)
    return graph.compile(store)


def last_of(store: Store, run: str) -> int:
    """The number of a run's last entry."""
    return max(entry.seq for entry in store.read(run))


def main() -> None:
    """Take a run over, and die in the step during which its last entry is that of the given number."""
    url, run, number = sys.argv[1:]
    taker = build(url, lambda *_: os._exit(0) if last_of(taker.store, run) == int(number) else None)
    taker.resume(run, takeover=True)


if __name__ == "__main__":
    main()
