"""A worker in its own process: `worker_process.py URL STEPS SECONDS CONCURRENCY`.

It prints `ready` and waits for a line on stdin; from then on it prints when it claims and completes each run, by
the clock that all processes of a machine share. At the end of stdin it stops.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

from figures import Counting, chain

from holdfast import App, open_store
from holdfast.fleet.catalog import Catalog
from holdfast.fleet.worker import Worker, WorkerEvent
from holdfast.stores.base import Store


def sleepy_chain(store: Store, steps: int, seconds: float) -> App:
    """Return a chain of steps that only wait."""

    async def work(state: Any) -> dict[str, Any]:
        await asyncio.sleep(seconds)
        return {"n": state["n"] + 1}

    return chain(steps, work, Counting).compile(store)


def _say(event: WorkerEvent) -> None:
    print(event.kind, event.run, time.monotonic(), flush=True)


def _stop_at_end_of_input(worker: Worker) -> None:
    sys.stdin.read()
    worker.stop()


def main(url: str, steps: str, seconds: str, concurrency: str) -> None:
    """Execute runs until stdin ends."""
    store = open_store(url)
    app = sleepy_chain(store, int(steps), float(seconds))
    worker = Worker(store, Catalog([app]), concurrency=int(concurrency), tell=_say, grace=0.1)
    print("ready", flush=True)
    sys.stdin.readline()
    threading.Thread(target=_stop_at_end_of_input, args=(worker,), daemon=True).start()
    worker.run()
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
