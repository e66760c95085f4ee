"""One run, two owners: threads and real processes that want the same run."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    END,
    START,
    App,
    Context,
    ExecutionError,
    HoldfastError,
    RunConflict,
    RunExists,
    RunFinished,
    RunStatus,
    StateGraph,
    open_store,
)
from holdfast.engine.once import StopSignal
from holdfast.journal.journal import Journal
from holdfast.state.codec import Codec
from holdfast.stores.base import Store
from tests.crash.programs import ROOT, SOURCE
from tests.graphs import one

RACES = 50

DRIVER = """
import os, sys
from holdfast import END, START, StateGraph
url, ledger, command = sys.argv[1:4]

def line(text):
    handle = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, (text + "\\n").encode())
    os.close(handle)

def first(state, ctx):
    if command == "fail":
        raise RuntimeError("down")
    line(f"{ctx.run_id} first")
    if command == "hold":
        print("holding", flush=True)
        sys.stdin.readline()

def second(state, ctx):
    line(f"{ctx.run_id} second")
    return {"done": True}

graph = StateGraph(dict, name="w")
graph.add_node("first", first)
graph.add_node("second", second)
graph.add_edge(START, "first"); graph.add_edge("first", "second"); graph.add_edge("second", END)
app = graph.compile(url, durability="process")
"""

HOLD = """
try:
    print(app.invoke({}, run_id="r").status, flush=True)
except Exception as error:
    print(type(error).__name__, error, flush=True)
"""

RACE = """
print("ready", flush=True)
for run in sys.stdin:
    try:
        print(app.resume(run.strip()).status, flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""

START_RACE = RACE.replace("app.resume(run.strip())", "app.invoke({}, run_id=run.strip())")


class Other:
    """A process with the same workflow on the same store, spoken to through its pipes."""

    def __init__(self, program: str, url: str, ledger: Path, command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER + program, url, str(ledger), command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(ROOT)])},
        )

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def others() -> Iterator[list[Other]]:
    started: list[Other] = []
    yield started
    for other in started:
        other.end()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def same_workflow(store: Store | str, ledger: Path, *, fails: bool = False) -> App:
    """The workflow of the other processes, in this one."""
    lock = threading.Lock()

    def line(text: str) -> None:
        with lock, ledger.open("a") as file:
            file.write(text + "\n")

    def first(state: Any, ctx: Any) -> None:
        if fails:
            raise RuntimeError("down")
        line(f"{ctx.run_id} first")

    def second(state: Any, ctx: Any) -> dict[str, Any]:
        line(f"{ctx.run_id} second")
        return {"done": True}

    graph = StateGraph(dict, name="w")
    graph.add_node("first", first, version="1")
    graph.add_node("second", second, version="1")
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    graph.add_edge("second", END)
    return graph.compile(store, durability="process")


def ran_once(ledger: Path, runs: list[str]) -> None:
    lines = Counter(ledger.read_text().splitlines())
    assert lines == Counter({f"{run} {step}": 1 for run in runs for step in ("first", "second")})


def intact(store: Store, run: str) -> None:
    """The journal has no gap, no double, and every checksum fits."""
    entries = list(store.read(run))
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    loaded = Journal(store).load(store.runs(run=run)[0], Codec())
    assert loaded.run.status == RunStatus.COMPLETED and loaded.run.steps_done == 2


def test_a_run_cannot_be_driven_twice_by_one_process() -> None:
    seen: list[HoldfastError] = []
    apps: list[App] = []

    def greedy(state: Any, ctx: Any) -> None:
        with pytest.raises(RunConflict, match="'r' is being executed by this process already") as caught:
            apps[0].resume(ctx.run_id)
        seen.append(caught.value)

    graph = StateGraph(dict, name="w")
    graph.add_node("greedy", greedy)
    graph.add_edge(START, "greedy")
    graph.add_edge("greedy", END)
    apps.append(graph.compile("memory://"))

    assert apps[0].invoke({}, run_id="r").status == RunStatus.COMPLETED
    assert len(seen) == 1


def test_a_run_whose_event_loop_was_broken_off_by_two_signals_in_a_row_can_be_resumed(url: str) -> None:
    is_calm = False

    def exits(number: int, frame: Any) -> None:
        raise SystemExit(3)

    async def work(state: Any) -> None:
        loop = asyncio.get_running_loop()
        if is_calm:
            return
        try:
            loop.call_soon(signal.raise_signal, signal.SIGUSR1)
            await asyncio.Event().wait()
        finally:
            loop.call_soon(signal.raise_signal, signal.SIGUSR1)
            await asyncio.Event().wait()

    app = one(work).compile(url)
    before = signal.signal(signal.SIGUSR1, exits)
    try:
        with pytest.raises(SystemExit):
            app.invoke(run_id="r")
    finally:
        signal.signal(signal.SIGUSR1, before)
    is_calm = True

    assert app.runs()[0].status == RunStatus.INTERRUPTED
    assert app.resume("r").status == RunStatus.COMPLETED


def test_a_run_whose_event_loop_was_closed_can_be_resumed_and_what_is_left_of_it_stores_nothing(
    url: str,
) -> None:
    contexts: list[Context] = []
    begun = asyncio.Event()

    async def work(state: Any, ctx: Context) -> None:
        contexts.append(ctx)
        if len(contexts) == 1:
            begun.set()
            await asyncio.Event().wait()

    app = one(work).compile(url)
    loop = asyncio.new_event_loop()
    pending = loop.create_task(app.ainvoke(run_id="r"))
    loop.run_until_complete(begun.wait())
    with pytest.raises(RunConflict, match="is being executed by this process already"):
        app.resume("r")
    loop.close()

    assert app.resume("r").status == RunStatus.COMPLETED
    assert not pending.done()
    with pytest.raises(StopSignal):
        contexts[0].once("x", os.getpid)
    assert len(contexts) == 2
    left = weakref.ref(pending)
    contexts.clear()
    del pending
    gc.collect()  # What is left of the run is destroyed here, and not in the middle of another test.
    assert left() is None
    assert app.runs()[0].status == RunStatus.COMPLETED and not contexts


def test_a_run_held_by_a_living_process_is_refused_and_taken_over_at_once_when_that_dies(
    url: str, ledger: Path, others: list[Other]
) -> None:
    """No lease has to run out: a dead process on this machine is known to be dead."""
    holder = Other(HOLD, url, ledger, "hold")
    others.append(holder)
    assert holder.hear() == "holding"
    app = same_workflow(url, ledger)

    with pytest.raises(RunConflict, match=f"run 'r' is being executed by process {holder.process.pid} on"):
        app.resume("r")
    with pytest.raises(RunConflict):
        app.resume("w")
    holder.process.kill()
    holder.process.wait()

    assert app.resume("r").status == RunStatus.COMPLETED
    assert ledger.read_text().splitlines() == ["r first", "r first", "r second"]
    intact(app.store, "r")
    app.store.close()


def test_a_driver_that_was_taken_over_stops_before_its_next_step(
    url: str, ledger: Path, others: list[Other]
) -> None:
    holder = Other(HOLD, url, ledger, "hold")
    others.append(holder)
    assert holder.hear() == "holding"
    app = same_workflow(url, ledger)

    assert app.resume("r", takeover=True).status == RunStatus.COMPLETED
    holder.say("go on")

    assert holder.hear().startswith("RunConflict run 'r' was advanced by another owner")
    assert ledger.read_text().splitlines() == ["r first", "r first", "r second"]
    intact(app.store, "r")
    app.store.close()


def test_a_living_process_can_be_cancelled_from_another(url: str, ledger: Path, others: list[Other]) -> None:
    holder = Other(HOLD, url, ledger, "hold")
    others.append(holder)
    assert holder.hear() == "holding"
    app = same_workflow(url, ledger)

    assert app.cancel("r", "enough") == RunStatus.RUNNING
    holder.say("go on")

    assert holder.hear() in ("cancelled", "completed")
    app.store.close()


def test_of_two_threads_that_resume_one_run_one_wins(url: str, ledger: Path) -> None:
    store = open_store(url)
    runs = [f"r{index}" for index in range(RACES)]
    for run in runs:
        with pytest.raises(ExecutionError):
            same_workflow(store, ledger, fails=True).invoke({}, run_id=run)
    app = same_workflow(store, ledger)
    together = threading.Barrier(2)
    ends: dict[str, list[Any]] = {run: [] for run in runs}

    def compete() -> None:
        for run in runs:
            together.wait()
            try:
                ends[run].append(app.resume(run).status)
            except HoldfastError as error:
                ends[run].append(type(error))

    threads = [threading.Thread(target=compete) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for run in runs:
        assert ends[run].count(RunStatus.COMPLETED) == 1
        assert {RunConflict, RunFinished} & set(ends[run])
        intact(store, run)
    ran_once(ledger, runs)
    store.close()


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_of_two_processes_that_resume_one_run_one_wins(
    scheme: str, tmp_path: Path, ledger: Path, others: list[Other]
) -> None:
    """S2.4, and no lost update: the append is the fence."""
    url = f"sqlite:///{tmp_path}/runs.db" if scheme == "sqlite" else f"file:///{tmp_path}/runs"
    store = open_store(url)
    runs = [f"r{index}" for index in range(RACES)]
    for run in runs:
        with pytest.raises(ExecutionError):
            same_workflow(store, ledger, fails=True).invoke({}, run_id=run)
    others += [Other(RACE, url, ledger, "race") for _ in range(2)]
    assert [other.hear() for other in others] == ["ready", "ready"]

    for run in runs:
        for other in others:
            other.say(run)
        ends = sorted(other.hear() for other in others)
        assert ends[1] == "completed" and ends[0] in ("RunConflict", "RunFinished"), (run, ends)
        intact(store, run)

    ran_once(ledger, runs)
    store.close()


def test_of_two_processes_that_start_a_run_of_the_same_id_one_wins(
    url: str, ledger: Path, others: list[Other]
) -> None:
    store = open_store(url)
    others += [Other(START_RACE, url, ledger, "race") for _ in range(2)]
    assert [other.hear() for other in others] == ["ready", "ready"]
    runs = [f"r{index}" for index in range(RACES)]

    for run in runs:
        for other in others:
            other.say(run)
        assert sorted(other.hear() for other in others) == [RunExists.__name__, "completed"]
        intact(store, run)

    ran_once(ledger, runs)
    store.close()
