"""A workflow of functions in a process of its own: `python -m tests.functions.program STORE FOLDER WORKFLOW`.

The process kills itself where a file in the folder says so: once for each file.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from holdfast import Retry, RunPaused, ask, now, random, sleep, step, uuid, workflow

URL, FOLDER = sys.argv[1], Path(sys.argv[2])


def note(*words: object) -> None:
    with (FOLDER / "log").open("a") as log:
        log.write(" ".join(map(str, words)) + "\n")


def crash_at(name: str) -> None:
    """Kill this process, if a file in the folder says so."""
    if (FOLDER / name).exists():
        (FOLDER / name).unlink()
        note("killed at", name)
        os.kill(os.getpid(), signal.SIGKILL)


@step(retry=Retry(attempts=3, delay=0.001))
def fetch(page: str) -> str:
    note("fetch", page)
    crash_at(f"fetch-{page}")
    if page == "b" and not (FOLDER / "flaky").exists():
        (FOLDER / "flaky").touch()
        raise OSError("flaky")
    return page.upper()


@step
async def count(text: str) -> int:
    note("count", text)
    await asyncio.sleep(0)
    crash_at(f"count-{text}")
    return len(text)


@step
def refuse(text: str) -> None:
    note("refuse", text)
    raise LookupError(text, 7)


@step(if_interrupted="fail")
def charge(amount: int) -> str:
    note("charge", amount)
    crash_at("charge")
    return f"charged {amount}"


@workflow
async def counted(pages: list[str]) -> int:
    counts = [await count(page) for page in pages]
    crash_at("counted")
    return sum(counts)


@workflow(store=URL)
async def report(pages: list[str]) -> list[object]:
    begun, number, unique = now(), random(), uuid()
    found = await fetch.map(pages, max_parallel=2)
    total = await counted(found)
    lengths = await asyncio.gather(*(count(f"{page}{page}") for page in found))
    try:
        refuse("x")
    except LookupError as error:
        note("caught", type(error).__name__, error.args)
    crash_at("body")
    await sleep(0.001)
    paid = charge(total)
    answer = ask("Publish?", choices=["yes", "no"])
    note("seen", begun.isoformat(), number, unique)
    return [found, total, lengths, paid, answer]


@workflow(store=URL)
def plain(pages: list[str]) -> list[object]:
    found = [fetch(page) for page in pages]
    lengths = [count(page) for page in found]
    crash_at("body")
    return [found, lengths, ask("Publish?")]


WORKFLOWS = {"report": report, "plain": plain}

if __name__ == "__main__":
    chosen = WORKFLOWS[sys.argv[3]]
    given = {"answers": {"Publish?": sys.argv[4]}} if len(sys.argv) > 4 else {}
    try:
        note("result", chosen.run(["a", "b", "c"], run_id="r", **given))
    except RunPaused as pause:
        note("paused", pause.pauses[0].name)
