"""Simulated schedules by the million: `python -m tests.proof.schedules [--times N] [--jobs N] [--seed S]`.

Every schedule is made from its seed alone: a workflow, processes, what goes wrong and when, whose turn it is. Exit 0
says that no promise was broken, 1 that one was, with the seed, a smaller schedule that breaks it, and a test to paste.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from .simulated.checking import expected
from .simulated.schedule import Verdict, replay, run
from .simulated.shapes import shapes
from .simulated.shrinking import as_test, shrink

_BATCH = 500


class Tally:
    """The results of many schedules."""

    def __init__(self) -> None:
        self.schedules = self.moments = self.drives = 0
        self.seconds = 0.0
        self.faults: Counter[str] = Counter()
        self.workflows: Counter[str] = Counter()
        self.modes: Counter[str] = Counter()
        self.wishes: Counter[str] = Counter()
        self.failing: list[int] = []

    def count(self, seed: int, verdict: Verdict) -> None:
        """Take a schedule in."""
        scenario = verdict.scenario
        self.schedules += 1
        self.moments += verdict.moments
        self.faults.update(verdict.struck)
        self.workflows[scenario.shape.name.partition("_")[0]] += 1
        self.modes[scenario.mode] += 1
        if scenario.wish:
            self.wishes[scenario.wish] += 1
        if verdict.violations:
            self.failing.append(seed)

    def add(self, other: Tally) -> None:
        """Take in what another process counted."""
        self.schedules += other.schedules
        self.moments += other.moments
        self.seconds += other.seconds
        self.failing += other.failing
        for name in ("faults", "workflows", "modes", "wishes"):
            getattr(self, name).update(getattr(other, name))

    def table(self) -> str:
        """What was done, to be read."""
        lines = [f"{self.schedules} schedules, {self.moments} moments, {self.seconds:.1f} s of CPU"]
        for title in ("modes", "workflows", "wishes", "faults"):
            counts = getattr(self, title).most_common()
            lines.append(f"{title:10}" + ", ".join(f"{name} {count}" for name, count in counts))
        lines.append(f"violations {len(self.failing)}")
        return "\n".join(lines)

    def as_json(self) -> str:
        """The same for programs."""
        facts: dict[str, Any] = {
            **vars(self),
            "per_cpu_second": round(self.schedules / max(self.seconds, 1e-9)),
        }
        return json.dumps({"proof": "schedules", **facts, "seconds": round(self.seconds, 2)})


def warm_up() -> None:
    """Compile every workflow and compute its result, once."""
    for shape in shapes():
        expected(shape.name)
    gc.collect()
    gc.freeze()


def batch(bounds: tuple[int, int, bool]) -> Tally:
    """The schedules of some seeds."""
    first, last, patient = bounds
    warm_up_once()
    tally, began = Tally(), time.process_time()
    gc.disable()
    try:
        for seed in range(first, last):
            tally.count(seed, run(seed))
            # All that a schedule made is of no use any more, and is still at hand.
            gc.collect(0)
            if tally.failing and not patient:
                break
    finally:
        gc.enable()
    tally.seconds = time.process_time() - began
    return tally


_warm: list[bool] = []


def warm_up_once() -> None:
    """As `warm_up`, the first time."""
    if not _warm:
        warm_up()
        _warm.append(True)


def batches(first: int, times: int, patient: bool) -> Iterator[tuple[int, int, bool]]:
    """The seeds, in pieces."""
    for start in range(first, first + times, _BATCH):
        yield start, min(start + _BATCH, first + times), patient


def campaign(first: int, times: int, jobs: int, *, patient: bool = False) -> Tally:
    """Run schedules until one fails, or, with `patient`, all of them."""
    total = Tally()
    if jobs == 1:
        for bounds in batches(first, times, patient):
            if _is_enough(total, batch(bounds), times, patient):
                break
        return total
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for tally in pool.imap_unordered(batch, batches(first, times, patient)):
            if _is_enough(total, tally, times, patient):
                pool.terminate()
                break
    return total


def _is_enough(total: Tally, tally: Tally, times: int, patient: bool) -> bool:
    total.add(tally)
    print(
        f"\r{total.schedules} of {times}, {len(total.failing)} failed ", end="", file=sys.stderr, flush=True
    )
    return bool(total.failing) and not patient


def explain(verdict: Verdict) -> str:
    """A schedule to be read: what it is about, what happened, what was broken."""
    quiet = ("Task", "FutureIter", "_set_result", "Process._thread", "TaskStep", "TaskWakeup", "Timeout")
    lines = [line for line in verdict.trace if not any(word in line for word in quiet)]
    return "\n".join([str(verdict.scenario), *lines, *map(str, verdict.violations)])


def failure(seed: int) -> str:
    """All that is needed to see a failing schedule again."""
    verdict = run(seed)
    small = shrink(verdict)
    return "\n".join(
        [
            f"seed {seed}: {verdict.scenario}",
            *(f"  {violation}" for violation in verdict.violations),
            f"  again: python -m tests.proof.schedules --seed {seed}",
            f"smaller: {small.scenario}",
            *(f"  {violation}" for violation in small.violations),
            as_test(small),
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.schedules", description=__doc__)
    parser.add_argument("--times", type=int, default=20_000, help="how many schedules (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="in how many processes (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="show the schedule of this seed instead")
    parser.add_argument("--choices", help="show the schedule of these choices, as JSON, instead")
    parser.add_argument("--patient", action="store_true", help="go on after a failure")
    options = parser.parse_args(arguments)
    warm_up_once()
    if options.seed is not None or options.choices is not None:
        given = None if options.choices is None else json.loads(options.choices)
        verdict = run(options.seed, trace=True) if given is None else replay(given, trace=True)
        print(explain(verdict))
        print(
            json.dumps({"proof": "schedules", "digest": verdict.digest, "failed": bool(verdict.violations)})
        )
        return int(bool(verdict.violations))
    total = campaign(options.first, options.times, options.jobs, patient=options.patient)
    print(file=sys.stderr)
    if total.failing:
        print(failure(min(total.failing)))
    print(total.table())
    print(total.as_json())
    return int(bool(total.failing))


if __name__ == "__main__":
    sys.exit(main())
