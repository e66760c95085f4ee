"""Runs to be copied from store to store, and processes that execute them meanwhile."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast import END, START, App, StateGraph
from holdfast.engine.commands.inbox import POLL
from holdfast.stores.base import Append, Conflict, Entry, Message, RunInfo, Snapshot, Store, StoredCheckpoint
from holdfast.testing import Crash
from tests.graphs import chain
from tests.processes import unmeasured

DRIVER = """
import asyncio, sys
from holdfast import open_store
from tests.stores.copied_runs import blocking
url, folder, run, queue = sys.argv[1:]
app = blocking(folder).compile(open_store(url))
if queue:
    app.submit({"n": 1}, run_id=run, queue=queue)
    outcome = asyncio.run(app.aexecute(run))
else:
    outcome = app.invoke({"n": 1}, run_id=run)
print(outcome.status)
"""


def blocking(folder: str) -> Any:
    """first -> slow, which waits until the file `open` is there -> last; each notes that it ran.

    They are async, so that the process hears of messages while it waits.
    """

    def work(name: str) -> Any:
        async def run(state: Any) -> dict[str, Any]:
            with (Path(folder) / "ran").open("a") as file:
                file.write(f"{name}\n")
            end = time.monotonic() + 60
            while name == "slow" and not (Path(folder) / "open").exists() and time.monotonic() < end:
                await asyncio.sleep(0.01)
            return {"log": [name]}

        return run

    names = ("first", "slow", "last")
    return chain(*names, nodes={name: work(name) for name in names}, name="blocking")


def ran(folder: Path) -> list[str]:
    notes = folder / "ran"
    return notes.read_text().split() if notes.exists() else []


def drive(url: str, folder: Path, run: str = "live", queue: str = "") -> subprocess.Popen[str]:
    """A process that executes a run, perhaps of a queue; it is in the middle of `slow` on return."""
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, url, str(folder), run, queue],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=unmeasured(),
    )
    while "slow" not in ran(folder):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    return process


def let_go_once_asked(store: Store, folder: Path, run: str = "live") -> threading.Thread:
    """A thread that lets `slow` end once the run has been asked for something and its process has heard of it."""

    def look() -> None:
        while not store.inbox(run):
            time.sleep(0.01)
        time.sleep(3 * POLL)
        (folder / "open").touch()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    return thread


def asking(store: Store | str, **options: Any) -> App:
    """a -> b, which asks -> c."""

    def ask(state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": [ctx.ask("What now?", name="q")]}

    return chain("a", "b", "c", nodes={"b": ask}, name="asking").compile(store, **options)


def growing(store: Store | str, steps: int, **options: Any) -> App:
    """Many steps that each replace something incompressible, so that snapshots become due."""
    graph = StateGraph(dict, name="growing")
    names = [f"s{number}" for number in range(steps)]
    for name in names:
        graph.add_node(name, lambda state: {"noise": os.urandom(3000)})
    for before, after in zip((START, *names), (*names, END), strict=True):
        graph.add_edge(before, after)
    return graph.compile(store, **options)


def contents(
    store: Store, run: str
) -> tuple[list[Entry], list[Snapshot], list[StoredCheckpoint], list[bytes]]:
    """All of a run but its facts."""
    snapshots: list[Snapshot] = []
    upto: int | None = None
    while (found := store.snapshot(run, upto)) is not None:
        snapshots.append(found)
        upto = found.seq - 1
    messages = store.inbox(run)
    assert [message.number for message in messages] == list(range(1, len(messages) + 1))
    return list(store.read(run)), snapshots, store.checkpoints(run), [message.body for message in messages]


def claimable(store: Store, run: str) -> bool:
    """Whether a worker of the store's fleet may take a run up."""
    return any(
        info.queue and (info.status == "queued" or (info.status == "paused" and info.due_at is not None))
        for info in store.runs(run=run)
    )


class Lives:
    """How many writes are left before the process dies; all stores of one process share it."""

    def __init__(self, writes: int) -> None:
        self.left = writes

    def spend(self) -> None:
        if self.left == 0:
            raise Crash("the process died here")
        self.left -= 1


class Mortal:
    """A store whose process dies before the write that is one too many."""

    def __init__(self, inner: Store, lives: Lives) -> None:
        self.inner, self.lives, self.url = inner, lives, inner.url

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        self.lives.spend()
        return self.inner.commit(appends)

    def delete(self, run: str, **known: Any) -> bool:
        self.lives.spend()
        return self.inner.delete(run, **known)

    def post(self, run: str, body: bytes, number: int | None = None) -> int:
        self.lives.spend()
        return self.inner.post(run, body, number)

    def prune(self, run: str, horizon: Snapshot, **known: Any) -> int:
        self.lives.spend()
        return self.inner.prune(run, horizon, **known)

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        return self.inner.read(run, after, upto)

    def checkpoints(
        self, run: str, before: int | None = None, limit: int | None = None
    ) -> list[StoredCheckpoint]:
        return self.inner.checkpoints(run, before, limit)

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        return self.inner.snapshot(run, upto)

    def runs(self, **filters: Any) -> list[RunInfo]:
        return self.inner.runs(**filters)

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        return self.inner.inbox(run, after)

    def close(self) -> None:
        self.inner.close()
