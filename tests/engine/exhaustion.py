"""A process that runs out of threads, descriptors or memory while it executes a run, and resumes without the limit.

`python -m tests.engine.exhaustion URL WHAT HOW SPARE [LEDGER]`: the limits are real ones of the operating system. What
came of the call under the limit, and of the resume without it, is printed as JSON. With `nothing` for WHAT there is
only the resume, as by a fresh process after one that crashed.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import json
import logging
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast import END, START, App, HoldfastError, RunNotFound, StateGraph, open_store
from holdfast.fleet import Worker, worker
from holdfast.integrity import check_store
from tests.graphs import Log
from tests.invariants import FileLedger, Ledger, check_run

ENOUGH = 64
"""Mebibytes that are there beside what is kept from the process."""


def build(ledger: Ledger, url: str, *, is_async: bool) -> App:
    """A step, two siblings, and a step."""

    def say(ctx: Any) -> dict[str, Any]:
        ledger.write("start", ctx.step)
        return {"log": [ctx.node]}

    async def say_async(ctx: Any) -> dict[str, Any]:
        return say(ctx)

    graph = StateGraph(Log, name="starved")
    for name in ("first", "left", "right", "last"):
        graph.add_node(name, say_async if is_async else say)
    graph.add_edge(START, "first").add_edge("first", "left").add_edge("first", "right")
    graph.add_edge(["left", "right"], "last").add_edge("last", END)
    return graph.compile(open_store(url))


def call(app: App, how: str, loop: asyncio.Runner) -> str:
    """Start run `r` in one of several ways, the async ones in an existing loop; return its status."""
    if how in ("invoke", "inline"):
        return app.invoke(run_id="r").status
    if how in ("ainvoke", "async-nodes"):
        return loop.run(app.ainvoke(run_id="r")).status
    if how == "notebook":
        return loop.run(_in_a_notebook(app))
    if how == "stream":
        for _ in app.stream(run_id="r"):
            pass
    elif how == "astream":
        loop.run(_streamed(app))
    elif how == "worker":
        Worker(app.store, [app]).run(until_idle=True)
    return app.store.runs(run="r")[0].status


async def _in_a_notebook(app: App) -> str:
    return app.invoke(run_id="r").status


async def _streamed(app: App) -> None:
    async for _ in app.astream(run_id="r"):
        pass


@contextmanager
def no_threads(spare: int) -> Iterator[None]:
    """No thread can be started: there is no room for its stack."""
    threading.stack_size((ENOUGH * 4) << 20)
    with _room(ENOUGH + spare):
        yield
    threading.stack_size(0)


@contextmanager
def no_descriptors(spare: int) -> Iterator[None]:
    """Only so many more files, sockets and pipes can be opened."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    in_use = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(max(in_use) + 1 - len(in_use))]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(in_use) + 1 + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        for handle in held:
            os.close(handle)


@contextmanager
def no_memory(spare: int) -> Iterator[None]:
    """All but `spare` KiB of what may be had is taken."""
    with _room(ENOUGH):
        hog: list[Any] = []
        for size in (1 << 20, 1 << 16, 1 << 12, 1 << 9):
            try:
                while True:
                    hog.append(bytearray(size))
            except MemoryError:
                pass
        limit, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit + (spare << 10), hard))
        try:
            yield
        finally:
            hog.clear()
            gc.collect()


@contextmanager
def _room(mebibytes: int) -> Iterator[None]:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (mebibytes << 20), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


LIMITS: dict[str, Callable[[int], Any]] = {
    "threads": no_threads,
    "descriptors": no_descriptors,
    "memory": no_memory,
}


def main() -> None:
    url, what, how, spare, *path = sys.argv[1:]
    faulthandler.dump_traceback_later(100, exit=True)
    logging.basicConfig(level=logging.WARNING)
    ledger = FileLedger(path[0]) if path else Ledger()
    app = build(ledger, url, is_async=how in ("async-nodes", "inline"))
    told: dict[str, Any] = {"error": "", "message": "", "status": ""}
    if what != "nothing":
        told.update(_starved(app, url, what, how, int(spare)))
    if app.store.runs(run="r", status=["completed"]):
        told["state"] = app.get_state("r")["log"]
    else:
        try:
            told["state"] = app.resume("r").state["log"]
        except RunNotFound:
            told["state"] = app.invoke(run_id="r").state["log"]
    told["broken"] = [str(one) for one in check_run(ledger.lines(), app.store, "r")]
    told["broken"] += [str(one) for one in check_store(app.store).problems]
    app.store.close()
    print(json.dumps(told))


def _starved(app: App, url: str, what: str, how: str, spare: int) -> dict[str, Any]:
    """What comes of the call under the limit."""
    told: dict[str, Any] = {}
    # What is loaded when first used is there before there is no more room; and no thread is left over.
    build(Ledger(), url, is_async=True).invoke(run_id="warm")
    if how == "worker":
        app.submit(run_id="r")
        worker.AGAIN_AFTER, worker.SHORTAGES = 0.01, 3
    with asyncio.Runner() as loop, LIMITS[what](spare):
        loop.get_loop()
        try:
            told["status"] = call(app, how, loop)
        except Exception as error:
            told["error"], told["message"] = type(error).__name__, str(error)
            told["clear"] = isinstance(error, HoldfastError | MemoryError)
            del error
    return told


if __name__ == "__main__":
    main()
