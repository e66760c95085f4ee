"""Benchmarks of plain functions: a chain of steps against a raw loop and DBOS in one run, and the replay of a long run.

DBOS is measured where it is installed, as in an environment of `benchmarks/peers`.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from figures import ROUNDS, Row, rows_of
from run import raw_loop

from holdfast import RunPaused, ask, step, workflow
from holdfast.functions import WorkflowFunction

STEPS, MANY = 200, 10_000


@step
def one_more(n: int) -> int:
    return n + 1


def bench_functions(folder: Path, tiny: bool) -> Iterator[Row]:
    """Measure a chain of 200 steps against a raw loop and DBOS, and 10,000 steps against 1,000 and their replay."""
    steps, many, rounds = (10, 100, 1) if tiny else (STEPS, MANY, 2 * ROUNDS)
    yield from _chains(folder, steps, rounds, tiny)
    yield from _long(folder, many, tiny)


def counting(path: Path) -> WorkflowFunction[[int, bool], int]:
    """Return a chain of steps on a store of its own; it asks at its end if that is wanted."""

    @workflow(store=f"sqlite:///{path}")
    def count(steps: int, asks: bool = False) -> int:
        n = 0
        for _ in range(steps):
            n = one_more(n)
        return ask("More?") if asks else n

    return count


def timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _chains(folder: Path, steps: int, rounds: int, tiny: bool) -> Iterator[Row]:
    ours, floor = list[float](), list[float]()
    counting(folder / "warm.db").run(3)
    for turn in range(rounds):
        count = counting(folder / f"chain{turn}.db")
        count.run(
            1, run_id="first"
        )  # The clock starts when the database is there, as that of the raw loop does.
        ours.append(timed(lambda count=count: count.run(steps, run_id="r")) / steps)  # type: ignore[misc]
        floor.append(raw_loop(folder / f"raw{turn}.db", "FULL", rows_of(count.app, "r")))
        count.app.store.close()
    mine, raw = statistics.median(ours), statistics.median(floor)
    ratio = statistics.median(a / b for a, b in zip(ours, floor, strict=True))
    shown = f"{mine * 1e6:.0f} µs/step"
    yield Row(f"{steps} function steps, full", shown, f"{raw * 1e6:.0f} µs raw", ratio, None if tiny else 1.5)
    if (dbos := _dbos(folder / "dbos.db", steps)) is not None:  # From here on its threads are at work, too.
        other = statistics.median(timed(dbos) / steps for _ in range(rounds))
        yield Row(f"{steps} steps of DBOS", f"{other * 1e6:.0f} µs/step", shown, other / mine, None)


def _dbos(path: Path, steps: int) -> Callable[[], Any] | None:
    """Return the same chain on DBOS, launched and warm; `None` if that is not installed."""
    if importlib.util.find_spec("dbos") is None:
        return None
    sys.path.insert(0, str(Path(__file__).parent / "peers"))
    place = importlib.import_module("workloads").Place("sqlite", str(path))
    work: Callable[[], Any] = importlib.import_module("contenders.dbos").Race(place).chain(steps)
    work()
    return work


def _long(folder: Path, many: int, tiny: bool) -> Iterator[Row]:
    count, seconds = counting(folder / "long.db"), dict[int, float]()
    for steps in (many // 10, many):
        begun = time.perf_counter()
        try:
            count.run(steps, True, run_id=f"r{steps}")
        except RunPaused:
            seconds[steps] = (time.perf_counter() - begun) / steps
    replay = timed(lambda: count.run(many, True, run_id=f"r{many}", answers={"More?": 1}))
    few, all_of_them = seconds[many // 10], seconds[many]
    yield Row(
        f"{many:,} function steps v {many // 10:,}",
        f"{all_of_them * 1e6:.0f} µs/step",
        f"{few * 1e6:.0f} µs/step",
        all_of_them / few,
        None if tiny else 1.3,
    )
    yield Row(
        f"replay of {many:,} finished steps",
        f"{replay * 1e3:.0f} ms",
        f"{replay / many * 1e6:.0f} µs/step",
        replay,
        None if tiny else 1.0,
        unit="s",
    )
    count.app.store.close()
