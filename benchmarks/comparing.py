"""Benchmarks of diffs of two states of 10 MB: nested documents, a long list of messages and a text of 5 MB."""

from __future__ import annotations

import copy
import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figures import Row

from holdfast import StateGraph
from holdfast.values import END, START
from holdfast.views import apply_difference, difference, json_patch

WORDS = [f"word{number}" for number in range(2000)]
MEGABYTES = 10


def state(size: float, seed: int = 1) -> dict[str, Any]:
    """Return a state of about `size` megabytes: half a text, the rest messages and documents."""
    chance = random.Random(seed)

    def sentence(words: int) -> str:
        return " ".join(chance.choices(WORDS, k=words))

    return {
        "text": "\n".join(sentence(10) for _ in range(int(size * 6500))),
        "messages": [
            {"id": number, "role": "user", "content": sentence(25), "usage": {"in": number, "out": 7}}
            for number in range(int(size * 1100))
        ],
        "documents": {
            f"doc{number}": {
                "title": sentence(4),
                "parts": [{"n": part, "body": sentence(6)} for part in range(8)],
            }
            for number in range(int(size * 350))
        },
        "n": 1,
    }


def edited(before: dict[str, Any], every: int) -> dict[str, Any]:
    """Return the state with one in `every` lines, messages and documents changed, and as many removed and added."""
    after = copy.deepcopy(before)
    lines = after["text"].split("\n")
    after["text"] = "\n".join(
        line + "!" if place % every == 3 else line for place, line in enumerate(lines) if place % every
    )
    for message in after["messages"][::every]:
        message["content"] += " indeed"
    after["messages"] = [item for place, item in enumerate(after["messages"]) if place % every != 5]
    after["messages"].append({"id": -1, "role": "ai", "content": "done", "usage": {}})
    for document in list(after["documents"].values())[::every]:
        document["parts"].insert(2, {"n": -1, "body": "new"})
    after["n"] = 2
    return after


def bench_diff(folder: Path, tiny: bool) -> Iterator[Row]:
    """Compare 10 MB with few and with many changes, against writing both as JSON; and one key of two such runs."""
    size = MEGABYTES / 100 if tiny else MEGABYTES
    before = state(size)
    for name, every in (("few", 997), ("many", 7)):
        after = edited(before, every)
        floor = _timed(lambda after=after: (json.dumps(before), json.dumps(after)))  # type: ignore[misc]
        took = _timed(lambda after=after: difference(before, after))  # type: ignore[misc]
        found = difference(before, after)
        assert apply_difference(found, before) == after
        yield _row(f"diff of {size:g} MB, {found.count} changes", took, floor, 5.0)
        patch = json_patch(before, after)
        took = _timed(lambda after=after: json_patch(before, after), 1)  # type: ignore[misc]
        yield _row(f"JSON Patch of it, {len(patch)} operations, {name}", took, floor, 10.0)
    yield from _stored(folder, before)


def _stored(folder: Path, before: dict[str, Any]) -> Iterator[Row]:
    """Compare two checkpoints that differ in one small key of a large state."""
    graph = StateGraph(dict, name="large")
    graph.add_node("load", lambda state: before).add_node("count", lambda state: {"n": 2})
    graph.add_edge(START, "load").add_edge("load", "count").add_edge("count", END)
    app = graph.compile(f"sqlite:///{folder / 'runs.db'}")
    app.invoke(run_id="r")
    assert app.diff("r").state.count == 1
    took = _timed(lambda: app.diff("r"))
    points = app.checkpoints("r")
    floor = _timed(lambda: [app.get_state("r", checkpoint_id=point.id) for point in points])
    app.store.close()
    yield Row(
        "diff of checkpoints, one small key",
        f"{took * 1e3:.1f} ms",
        f"{floor * 1e3:.1f} ms loads",
        took / floor,
        3.0,
    )


def _row(name: str, took: float, floor: float, most: float) -> Row:
    measured, against = f"{took:.2f} s", f"{floor:.2f} s ({took / floor:.0f}x)"
    return Row(name, measured, against, took, most, " s")


def _timed(work: Any, rounds: int = 3) -> float:
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)
