"""A worker process that is made to be killed: its steps and its saves leave lines in a ledger outside the store."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from holdfast import END, START, App, StateGraph, open_store
from holdfast.engine.settings import CheckpointPolicy
from holdfast.events import Event
from holdfast.fleet.catalog import Catalog
from holdfast.fleet.worker import Worker, WorkerEvent
from holdfast.stores.base import Store


class Ledger:
    """A file that many processes add lines to; the order of its lines is the order of what happened."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, *words: str) -> None:
        """Add one line, in one write."""
        os.write(self._file, f"{' '.join(words)} {os.getpid()}\n".encode())


class Finished:
    """Notes every step that was saved as finished."""

    wants = frozenset({"node.complete"})

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def on_event(self, event: Event) -> None:
        self._ledger.add("finished", event.run_id, str(event.data["step"]))


def chain(
    store: Store | str, steps: int, seconds: float, ledger: Ledger | None = None, is_async: bool = False
) -> App:
    """A chain of `steps` nodes, each of which takes `seconds`."""

    def work(state: Any, ctx: Any) -> dict[str, int]:
        if ledger is not None:
            ledger.add("started", ctx.run_id, ctx.step)
        time.sleep(seconds)
        return {"n": state.get("n", 0) + 1}

    async def work_async(state: Any, ctx: Any) -> dict[str, int]:
        if ledger is not None:
            ledger.add("started", ctx.run_id, ctx.step)
        await asyncio.sleep(seconds)
        return {"n": state.get("n", 0) + 1}

    graph = StateGraph(dict, name="chain")
    names = [f"step{number}" for number in range(1, steps + 1)]
    for name in names:
        graph.add_node(name, work_async if is_async else work, version="1")
    for one, other in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(one, other)
    return graph.compile(store, policy=CheckpointPolicy(on_save_error="fail"))


def main() -> None:
    """Work until stopped; every event of the worker is a line on stdout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.005)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--until-idle", action="store_true")
    given = parser.parse_args()
    ledger = Ledger(given.ledger)

    def tell(event: WorkerEvent) -> None:
        ledger.add("worker", event.kind, event.run)

    store = open_store(given.url)
    app = chain(store, given.steps, given.seconds, ledger, is_async=True)
    worker = Worker(
        store,
        Catalog([app]),
        concurrency=given.concurrency,
        observer=Finished(ledger),
        tell=tell,
        grace=5.0,
    )
    print("ready", flush=True)
    worker.run(until_idle=given.until_idle)
    store.close()
    sys.exit(0)


if __name__ == "__main__":
    main()
