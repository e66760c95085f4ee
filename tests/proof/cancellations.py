"""Cancels async calls at random times, and resumes in the same process: `python -m tests.proof.cancellations`.

Each run is started with `ainvoke`, `astream` or `aexecute`, cancelled at a random time (once, or again
while the first cancel is being handled), and resumed at once with `aresume`, which may be cancelled, too. A cancelled
call must have settled its saves: no resume may meet a save that is still on its way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

from holdfast import HoldfastError, RunNotFound
from tests.proof.stopping import MAKERS, STORES, Subject, moment, opened, undisturbed, unsound

LONGEST = 0.03
CANCELS = 3
NAMES = ("async_chain", "mixed", "pausing", "once", "for_each")
CALLS = ("ainvoke", "astream", "aexecute")


async def _call(subject: Subject, how: str) -> None:
    """Begin the run, or go on with it, by one of the async calls."""
    app, run = subject.app, subject.run
    if how == "aresume":
        await app.aresume(run, answers=subject.answers(), observer=subject.observer)
    elif how == "aexecute":
        await app.aexecute(run, observer=subject.observer)
    elif how == "astream":
        async with aclosing(app.astream(subject.workflow.input, run_id=run)) as events:  # type: ignore[type-var]
            async for event in events:
                subject.ledger.observe(event)
    else:
        await app.ainvoke(subject.workflow.input, run_id=run, observer=subject.observer)


async def _cancelled(subject: Subject, work: Coroutine[Any, Any, None], chance: random.Random) -> bool:
    """Cancel a call at some time, maybe twice; return whether it was still running."""
    task = asyncio.ensure_future(work)
    if chance.random() < 0.3:
        for _ in range(chance.randrange(12)):
            await asyncio.sleep(0)
    else:
        await asyncio.wait({task}, timeout=moment(chance, LONGEST))
    if not task.done():
        task.cancel()
        if chance.random() < 0.5:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


async def one_run(subject: Subject, chance: random.Random) -> None:
    """Begin a run and cancel it, resume and cancel it again, and let it end."""
    how = chance.choice(CALLS)
    if how == "aexecute":
        await asyncio.to_thread(subject.app.submit, subject.workflow.input, run_id=subject.run)
    subject.stops += await _cancelled(subject, _call(subject, how), chance)
    for _ in range(chance.randrange(CANCELS)):
        if subject.is_over or not subject.is_stored:
            break
        subject.stops += await _cancelled(subject, _call(subject, "aresume"), chance)
    while not subject.is_over:
        try:
            await _call(subject, "aresume")
        except RunNotFound:
            await _call(subject, "ainvoke")


def cancel_often(
    kind: str, times: int, seed: int, names: tuple[str, ...] = NAMES
) -> tuple[Counter[str], list[str]]:
    """Runs on one store until so many calls were cancelled: how many, and what was broken."""
    chance, counts, found = random.Random(f"{seed} {kind}"), Counter[str](), list[str]()
    wanted = {name: undisturbed(name) for name in names}

    async def work() -> None:
        while counts["cancels"] < times:
            name = chance.choice(names)
            counts["runs"] += 1
            subject = Subject.make(store, name, f"r{counts['runs']}", 0.001, wanted[name])
            try:
                await one_run(subject, chance)
            except (HoldfastError, AssertionError) as error:
                subject.found.append(f"{type(error).__name__}: {error}")
            counts["cancels"] += max(subject.stops, int(bool(subject.found)))
            found.extend(
                f"{kind} {name} run {counts['runs']} of seed {seed}: {one}" for one in subject.look()
            )

    with opened(kind) as store:
        asyncio.run(work())
        found += unsound(store)
    return counts, found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--times", type=int, default=4000, help="how many calls to cancel, on all stores together"
    )
    parser.add_argument("--store", action="append", choices=STORES)
    parser.add_argument("--workflow", action="append", choices=tuple(MAKERS))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    stores, total, violations, begun = given.store or STORES, Counter[str](), list[str](), time.monotonic()
    for kind in stores:
        names = tuple(given.workflow or NAMES)
        counts, found = cancel_often(kind, given.times // len(stores), given.seed, names)
        total.update(counts)
        violations += found
        print(f"{kind}: {dict(counts)}, {len(found)} violations", file=sys.stderr, flush=True)
    for violation in violations:
        print(f"VIOLATION {violation}")
    print(json.dumps({**total, "violations": len(violations), "seconds": round(time.monotonic() - begun)}))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
