"""Benchmarks of the history of a long run: its first page and its first step, against those of a short run.

The quickest of many tries counts, because other processes disturb measurements of a millisecond.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from figures import ROUNDS, Holding, Row, loop
from on_postgres import opened, url_of

from holdfast import App, open_store
from holdfast.stores.base import Store

PAGE = 20
HELD = 100_000
"""Bytes that the state of either run holds."""


def bench_history(folder: Path, tiny: bool) -> Iterator[Row]:
    """Measure listing the newest checkpoints, and the state after the first step: of 10,000 steps against 100."""
    long, short = (300, 30) if tiny else (10_000, 100)
    places = {
        "memory": "memory://",
        "sqlite": f"sqlite:///{folder / 'runs.db'}",
        "file": f"file://{folder / 'runs'}",
    }
    for kind, url in places.items():
        store = open_store(url)
        yield from measured(kind, store, long, short)
        store.close()
    yield from measured("file, reopened", open_store(url), long, short, reopened=partial(open_store, url))
    with opened(url_of(folder)) as server:
        yield from measured("postgres", server, long, short)


def measured(
    kind: str, store: Store, long: int, short: int, reopened: Callable[[], Store] | None = None
) -> Iterator[Row]:
    """Return the two figures of one store; with `reopened` each time in a reopened store without caches."""
    blob = os.urandom(HELD)
    for steps in (long, short):
        if not store.runs(run=str(steps)):
            counting(steps).compile(store, durability="process").invoke(
                {"n": 0, "blob": blob}, run_id=str(steps)
            )
    asked: dict[str, Callable[[App, str], Any]] = {
        f"first page of history, {long:,} v {short} steps": lambda app, run: app.history(run, limit=PAGE),
        f"state after step 1, {long:,} v {short} steps": lambda app, run: dict(app.state_at(run, 1)),
    }
    for name, question in asked.items():
        times: dict[int, list[float]] = {long: [], short: []}
        for _ in range(3 * ROUNDS):
            for steps, found in times.items():
                app = counting(steps).compile(reopened() if reopened is not None else store)
                begun = time.perf_counter()
                question(app, str(steps))
                found.append(time.perf_counter() - begun)
        late, early = min(times[long]), min(times[short])
        label = f"{name.partition(',')[0]}, {kind}"
        yield Row(label, f"{late * 1e3:.2f} ms", f"{early * 1e3:.2f} ms", late / early, 2.0)


def counting(steps: int) -> Any:
    """Return a graph that counts to a number, with a value in its state that no step changes."""
    return loop(lambda state: {"n": state["n"] + 1}, steps, Holding)
