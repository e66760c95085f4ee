"""Benchmarks of speculation: a chain whose steps take their time, with right, wrong and no guesses, in one run.

Commits are not synced: how long a disk takes for that is the same with and without guesses.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from figures import Row, chain

from holdfast import StateGraph

STEPS, SECONDS, TURNS = 10, 0.05, 5


def bench_speculation(folder: Path, tiny: bool) -> Iterator[Row]:
    """Measure a chain of ten steps of 50 ms: guesses that are all right, and all wrong, against none."""
    seconds, turns = (0.002, 1) if tiny else (SECONDS, TURNS)

    def wait(state: Any) -> dict[str, Any]:
        time.sleep(seconds)
        return {"n": state["n"] + 1}

    async def wait_async(state: Any) -> dict[str, Any]:
        await asyncio.sleep(seconds)
        return {"n": state["n"] + 1}

    guesses: dict[str, Callable[[Any], dict[str, int]]] = {
        "right": lambda state: {"n": state["n"] + 1},
        "wrong": lambda state: {"n": state["n"] - 1},
    }
    for kind, node in (("sync", wait), ("async", wait_async)):
        graph = chain(STEPS, node, pure=True)
        times: dict[str, list[float]] = {"no": [], **{name: [] for name in guesses}}
        for turn in range(turns):
            for name, found in times.items():
                found.append(timed(graph, f"sqlite:///{folder}/{kind}-{name}-{turn}.db", guesses.get(name)))
        middle = {name: statistics.median(found) for name, found in times.items()}
        plain = f"{middle['no'] * 1e3:.0f} ms without"
        for name, figure, target, better in (
            ("right", middle["no"] / middle["right"], 3.0, ">="),
            ("wrong", middle["wrong"] / middle["no"], 1.1, "<="),
        ):
            what = "faster" if name == "right" else "slower"
            title = f"{STEPS} {kind} steps of {seconds * 1e3:.0f} ms, {name} guesses, {what}"
            yield Row(
                title, f"{middle[name] * 1e3:.0f} ms", plain, figure, None if tiny else target, better=better
            )


def timed(graph: StateGraph, url: str, guess: Callable[[Any], dict[str, int]] | None) -> float:
    """Return the seconds of a run, with this guess for every step, or without any."""
    guesses = None if guess is None else dict.fromkeys((f"step{number}" for number in range(STEPS)), guess)
    app = graph.compile(url, speculate=guesses, durability="process")
    begun = time.perf_counter()
    outcome = app.invoke({"n": 0})
    seconds = time.perf_counter() - begun
    assert outcome.state["n"] == STEPS
    app.store.close()
    return seconds
