"""Stopping runs: cancelling from here and from elsewhere, Ctrl+C and SIGTERM."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    Context,
    ExecutionError,
    RunFinished,
    RunInterrupted,
    RunNotFound,
    RunStatus,
    RunTerminated,
    StoreError,
    open_store,
)
from holdfast.journal.records import RunEnded
from holdfast.journal.writer import Writer
from holdfast.stores.base import Append, Conflict, Message, Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.wrapped_store import WrappedStore
from tests.graphs import Heard, chain, fan, one, says, split

SOURCE = Path(next(iter(holdfast.__path__))).parent
TESTS = Path(__file__).parents[2]


def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


class Looper:
    """A sync node that works until it is cancelled, unless the state says not to."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.calls = 0

    def __call__(self, state: Any, ctx: Context) -> dict[str, Any]:
        self.calls += 1
        self.started.set()
        while not ctx.cancelled and not state.get("n"):
            time.sleep(0.005)
        return {"log": ["worked"]}


def test_a_run_is_cancelled_from_another_thread_and_can_be_resumed(store: Store, heard: Heard) -> None:
    node = Looper()
    app = chain("a", "b", "c", nodes={"b": node}).compile(store)
    thread, result = in_thread(lambda: app.invoke(run_id="r", observer=heard))
    assert node.started.wait(30)

    assert app.cancel("r", "enough") == RunStatus.RUNNING
    thread.join(30)

    [out] = result
    assert out.status == RunStatus.CANCELLED and app.runs()[0].status == "cancelled"
    assert heard.of("workflow_abort")[0].data == {"status": "cancelled", "reason": "enough"}
    out = app.resume("r", update={"n": 1})
    assert out.status == RunStatus.COMPLETED and out.state["log"] == ["a", "worked", "c"]


def test_siblings_and_async_nodes_are_cancelled_where_they_wait() -> None:
    started = threading.Event()
    unwound: list[str] = []

    async def waits(state: Any, ctx: Context) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            unwound.append(ctx.node)

    app = fan("a", "b", "quick", nodes={"a": waits, "b": waits}).compile("memory://")
    thread, result = in_thread(lambda: app.invoke(run_id="r"))
    assert started.wait(30)
    app.cancel("r")
    thread.join(30)

    assert result[0].status == RunStatus.CANCELLED and sorted(unwound) == ["a", "b"]


def test_a_lone_async_node_is_cancelled_where_it_waits() -> None:
    started = threading.Event()

    async def waits(state: Any) -> None:
        started.set()
        await asyncio.sleep(60)

    app = one(waits).compile("memory://")
    thread, result = in_thread(lambda: app.invoke(run_id="r"))
    assert started.wait(30)
    app.cancel("r")
    thread.join(30)

    assert result[0].status == RunStatus.CANCELLED


def test_a_sleeping_sync_node_is_cancelled() -> None:
    started = threading.Event()

    def sleeps(state: Any, ctx: Context) -> None:
        started.set()
        ctx.sleep(60)

    app = one(sleeps).compile("memory://")
    thread, result = in_thread(lambda: app.invoke(run_id="r"))
    assert started.wait(30)
    app.cancel("r")
    thread.join(30)

    assert result[0].status == RunStatus.CANCELLED


def test_a_node_cancels_its_own_run() -> None:
    app: Any = None
    app = chain("a", "b", nodes={"a": lambda s, ctx: app.cancel(ctx.run_id) and {"log": ["a"]}}).compile(
        "memory://"
    )
    out = app.invoke(run_id="r")

    assert out.status == RunStatus.CANCELLED
    assert app.get_state("r") == out.state


def test_a_paused_run_is_cancelled_at_once_and_keeps_its_question(store: Store) -> None:
    app = one(lambda s, ctx: {"log": [ctx.ask("well?", name="q")]}).compile(store)
    app.invoke(run_id="r")

    assert app.cancel("r") == RunStatus.CANCELLED == app.cancel("r")
    assert app.runs()[0].status == "cancelled" and [pause.name for pause in app.pauses("r")] == ["q"]
    assert app.resume("r", answers={"q": "after all"}).state["log"] == ["after all"]


def test_a_failed_run_is_cancelled(store: Store) -> None:
    app = one(lambda s: 1 / 0).compile(store)
    with pytest.raises(ExecutionError):
        app.invoke(run_id="r")

    assert app.cancel("r") == RunStatus.CANCELLED and app.runs(status="cancelled")[0].run == "r"


def test_a_completed_or_unknown_run_cannot_be_cancelled(store: Store) -> None:
    app = chain("a").compile(store)
    app.invoke(run_id="r")

    with pytest.raises(RunFinished):
        app.cancel("r")
    with pytest.raises(RunNotFound):
        app.cancel("nobody")


async def test_cancelling_the_task_of_a_run_saves_it(store: Store) -> None:
    """S3.19"""
    started = asyncio.Event()

    async def waits(state: Any) -> dict[str, Any]:
        started.set()
        await asyncio.sleep(0 if state.get("n") else 60)
        return {"log": ["b"]}

    app = chain("a", "b", nodes={"b": waits}).compile(store)
    task = asyncio.ensure_future(app.ainvoke(run_id="r"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert app.runs()[0].status == "interrupted"
    assert (await app.aresume("r", update={"n": 1})).state["log"] == ["a", "b"]


async def test_a_timeout_around_a_run_saves_it(memory: Store) -> None:
    async def waits(state: Any) -> None:
        limit.reschedule(asyncio.get_running_loop().time())
        await asyncio.sleep(60)

    app = chain("a", "b", nodes={"b": waits}).compile(memory)
    limit = asyncio.timeout(None)  # It is over as soon as there is something to be saved.
    with pytest.raises(TimeoutError):
        async with limit:
            await app.ainvoke(run_id="r")

    assert app.runs()[0].status == "interrupted"
    assert chain("a", "b").compile(memory).resume("r").state["log"] == ["a", "b"]


def test_a_message_that_nobody_understands_is_refused_on_record_and_stops_nothing(store: Store) -> None:
    def chatty(state: Any, ctx: Context) -> dict[str, Any]:
        store.post(ctx.run_id, b"\xc1 garbage")
        time.sleep(0.3)
        return {"log": ["a"]}

    app = chain("a", "b", nodes={"a": chatty}).compile(store)
    out = app.invoke(run_id="r")
    loaded = app._settings.journal.load(store.runs(run="r")[0], app._settings.codec)

    assert out.status == RunStatus.COMPLETED and loaded.run.inbox_seen == 1


def test_an_inbox_that_cannot_be_read_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Deaf(MemoryStore):
        def inbox(self, run: str, after: int = 0) -> list[Message]:
            raise StoreError("no post today")

    nodes = {"a": lambda s: time.sleep(0.3)}
    out = chain("a", "b", nodes=nodes).compile(Deaf()).invoke()

    assert out.state["log"] == ["b"] and "the inbox cannot be read: no post today" in caplog.text


def test_a_cancel_posted_while_a_step_runs_is_heeded_between_steps(memory: Store) -> None:
    from holdfast.engine.commands.inbox import CANCEL, RunCommand, write_message

    def posts(state: Any, ctx: Context) -> dict[str, Any]:
        memory.post(ctx.run_id, write_message(RunCommand(CANCEL, "by post")))
        time.sleep(0.3)
        return {"log": ["a"]}

    app = chain("a", "b", nodes={"a": posts}).compile(memory)
    out = app.invoke(run_id="r")
    assert out.status == RunStatus.CANCELLED and out.state["log"] in (["a"], [])

    assert app.resume("r").state["log"] == ["a", "b"], "a cancel must count once"


# Saves that are under way when a call is cancelled.


class Gated(WrappedStore):
    """A store that holds the commits that a test wants held, until they are let through."""

    def __init__(self, inner: Store, holds: Callable[[Append], bool]) -> None:
        super().__init__(inner)
        self.holds, self.held, self.let_through = holds, threading.Event(), threading.Event()

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        if any(map(self.holds, appends)) and not self.let_through.is_set():
            self.held.set()
            assert self.let_through.wait(60)
        return super().commit(appends)


def ends_as(status: str) -> Callable[[Append], bool]:
    return lambda append: append.info is not None and append.info.status == status


async def cancelled_while_held(gate: Gated, call: Coroutine[Any, Any, Any], times: int = 1) -> None:
    """Cancel a call while the gate holds one of its commits: it ends once that is let through, and not before."""
    task = asyncio.ensure_future(call)
    await asyncio.to_thread(gate.held.wait, 60)
    for _ in range(times):
        task.cancel()
        await asyncio.wait({task}, timeout=0.05)
    assert not task.done(), "a save was still under way"
    gate.let_through.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def asks(state: Any, ctx: Context) -> dict[str, Any]:
    return {"log": [ctx.ask("well?", name="q")]}


@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancelled_call_has_settled_its_last_save_before_it_returns(
    sqlite_url: str, times: int
) -> None:
    gate = Gated(open_store(sqlite_url), ends_as("paused"))
    app = chain("a", "b", nodes={"b": asks}).compile(gate)

    await cancelled_while_held(gate, app.ainvoke(run_id="r"), times)

    assert app.runs()[0].status == "paused"
    assert (await app.aresume("r", answers={"q": "yes"})).state["log"] == ["a", "yes"]
    gate.close()


async def test_a_stream_that_is_left_has_settled_its_last_save(sqlite_url: str) -> None:
    gate = Gated(open_store(sqlite_url), ends_as("paused"))
    app = chain("a", "b", nodes={"b": asks}).compile(gate)

    async def stream() -> None:
        async for _ in app.astream(run_id="r"):
            pass

    await cancelled_while_held(gate, stream(), 2)

    assert (await app.aresume("r", answers={"q": "yes"})).state["log"] == ["a", "yes"]
    gate.close()


async def test_a_resume_that_is_cancelled_while_it_saves_is_stored_as_interrupted(sqlite_url: str) -> None:
    gate = Gated(open_store(sqlite_url), lambda append: append.after > 0)
    app = chain("a", "b", nodes={"b": asks}).compile(gate.inner)
    await app.ainvoke(run_id="r")

    await cancelled_while_held(
        gate, chain("a", "b", nodes={"b": asks}).compile(gate).aresume("r", answers={"q": "yes"}), 2
    )

    assert app.runs()[0].status == "interrupted"
    assert (await app.aresume("r")).state["log"] == ["a", "yes"]
    gate.close()


async def test_a_cancelled_rerun_has_settled_its_saves(sqlite_url: str) -> None:
    gate = Gated(open_store(sqlite_url), ends_as("running"))
    app, behind = chain("a", "b").compile(gate.inner), chain("a", "b").compile(gate)
    await app.ainvoke(run_id="r")

    await cancelled_while_held(gate, behind.arerun("r", "b#1", run_id="again"), 2)

    assert (await app.aresume("again")).state["log"] == ["a", "b"]
    gate.close()


async def test_a_step_that_was_left_behind_stores_nothing_more(sqlite_url: str) -> None:
    """A sync node cannot be stopped: what it notes after its call was cancelled is not for the journal."""
    noting, may_note = threading.Event(), threading.Event()
    refused: list[BaseException] = []

    def effect() -> str:
        noting.set()
        assert may_note.wait(60)
        return "late"

    def notes(state: Any, ctx: Context) -> dict[str, Any]:
        try:
            return {"log": [ctx.once("effect", effect)]}
        except BaseException as error:
            refused.append(error)
            raise

    store = open_store(sqlite_url)
    app = chain("a", "b", nodes={"b": notes}).compile(store)
    task = asyncio.ensure_future(app.ainvoke(run_id="r"))
    await asyncio.to_thread(noting.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    head = store.checkpoints("r", limit=1)[0].seq
    may_note.set()
    await asyncio.to_thread(until, lambda: refused)

    assert [entry.seq for entry in store.read("r", head)] == []
    assert app.resume("r").state["log"] == ["a", "late"]
    store.close()


# Other processes.

PROGRAM = """
import asyncio, sys, time
from tests.graphs import chain, split
from holdfast import RunInterrupted, RunTerminated

url, kind = sys.argv[1:]

def ledger(word):
    print(word, flush=True)

def first(state):
    ledger("first")
    return {"log": ["first"]}

def busy(state, ctx):
    ledger("ready")
    while not ctx.cancelled:
        time.sleep(0.01)
    return {"log": ["noticed"]}

def deaf(state):
    ledger("ready")
    time.sleep(60)

async def waits(state):
    ledger("ready")
    await asyncio.sleep(60)

nodes = {"busy": busy, "deaf": deaf, "waits": waits, "siblings": waits}
if kind == "siblings":
    graph = split("a", "b", "c", nodes={"a": first, "b": waits, "c": deaf})
else:
    graph = chain("a", "b", nodes={"a": first, "b": nodes[kind]})
app = graph.compile(url)
try:
    print(app.invoke(run_id="r").status, flush=True)
except RunInterrupted as error:
    print("interrupted", error.run_id, isinstance(error, KeyboardInterrupt), str(error), flush=True)
    sys.exit(130)
except RunTerminated as error:
    print("terminated", error.run_id, error.code, flush=True)
    raise
"""


def started(url: str, kind: str) -> subprocess.Popen[str]:
    """A process that executes run `r` and is in the middle of its second wave."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url, kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(TESTS)])},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "ready":
            return process
    raise AssertionError(process.communicate()[1])


@pytest.fixture(params=["sqlite", "file"])
def disk_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"sqlite": f"sqlite:///{tmp_path / 'runs.db'}", "file": f"file://{tmp_path / 'runs'}"}[
        request.param
    ]


def resumed(url: str, kind: str) -> list[str]:
    """Return the log of the run after a resume here, with nodes that just work."""
    store = open_store(url)
    graph = split("a", "b", "c") if kind == "siblings" else chain("a", "b")
    app = graph.compile(store)
    assert app.runs()[0].status in ("interrupted", "cancelled")
    out = app.resume("r")
    store.close()
    assert out.status == RunStatus.COMPLETED
    return list(out.state["log"])


@pytest.mark.parametrize("kind", ["busy", "deaf", "waits", "siblings"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_stops_the_run(
    sqlite_url: str, kind: str, number: signal.Signals, code: int
) -> None:
    """S1.15"""
    process = started(sqlite_url, kind)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)

    assert process.returncode == code, errors
    output = " ".join(output.split())  # Several threads print, line ends apart.
    if number == signal.SIGINT:
        assert "interrupted r True run 'r' was interrupted and saved; resume with app.resume('r')" in output
    else:
        assert "terminated r 143" in output
    log = resumed(sqlite_url, kind)
    assert log[0] == "first" and log[1:] in (["b"], ["noticed"], ["b", "c"])


@pytest.mark.parametrize("kind", ["busy", "waits", "siblings"])
def test_a_run_is_cancelled_from_another_process(disk_url: str, kind: str) -> None:
    process = started(disk_url, kind)
    store = open_store(disk_url)
    app = chain("a", "b").compile(store)

    assert app.cancel("r", "from afar") == RunStatus.RUNNING
    output, errors = process.communicate(timeout=60)

    assert process.returncode == 0, errors
    assert output.split()[-1] == "cancelled" and app.runs()[0].status == "cancelled"
    store.close()
    log = resumed(disk_url, kind)
    assert log[0] == "first" and log[1:] in (["b"], ["noticed"], ["b", "c"])


def test_signals_are_handled_as_before_once_the_run_is_over() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    seen: list[Any] = []
    one(lambda s: seen.append(signal.getsignal(signal.SIGTERM))).compile("memory://").invoke()

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert seen != [before[1]]


def test_somebody_elses_handler_is_left_alone() -> None:
    def mine(number: int, frame: Any) -> None:
        return None

    before = signal.signal(signal.SIGTERM, mine)
    seen: list[Any] = []
    try:
        one(lambda s: seen.append(signal.getsignal(signal.SIGTERM))).compile("memory://").invoke()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [mine]


def test_stops_are_told_apart_from_errors() -> None:
    assert issubclass(RunInterrupted, KeyboardInterrupt) and issubclass(RunTerminated, SystemExit)
    assert RunTerminated("r").code == 143 and RunInterrupted("r").run_id == "r"


def test_a_keyboard_interrupt_raised_by_a_node_saves_the_run(store: Store) -> None:
    def stops(state: Any) -> None:
        raise KeyboardInterrupt

    app = chain("a", "b", nodes={"b": stops}).compile(store)
    with pytest.raises(RunInterrupted):
        app.invoke(run_id="r")

    assert app.runs()[0].status == "interrupted"
    assert chain("a", "b").compile(store).resume("r").state["log"] == ["a", "b"]


def test_a_cancelled_run_that_is_resumed_is_not_cancelled_again(memory: Store) -> None:
    from holdfast.engine.commands.inbox import CANCEL, RunCommand, write_message

    steps: list[str] = []

    async def slow(state: Any, ctx: Context) -> dict[str, Any]:
        steps.append(ctx.node)
        if len(steps) == 1:
            memory.post("r", write_message(RunCommand(CANCEL, "enough")))
        await asyncio.sleep(0.6)
        return {"log": [ctx.node]}

    app = chain("a", "b", nodes={"a": slow, "b": slow}).compile(memory)

    assert app.invoke(run_id="r").status == RunStatus.CANCELLED
    assert app.resume("r").status == RunStatus.COMPLETED and steps == ["a", "a", "b"]


@pytest.mark.parametrize("kinds", [("pause", "cancel"), ("cancel", "pause")])
@pytest.mark.parametrize("status", ["interrupted", "running"])
def test_a_cancel_counts_whether_a_pause_was_posted_before_or_after_it(
    memory: Store, status: str, kinds: tuple[str, str]
) -> None:
    """A pause that finds nothing to pause is refused as stale, and never hides or undoes a cancel."""
    from holdfast.engine.commands.control import process_inbox
    from holdfast.engine.commands.inbox import STALE, RunCommand, write_message

    app = chain("a", "b").compile(memory, interrupt_before=["b"])
    app.invoke(run_id="r")
    journal, codec = app._settings.journal, app._settings.codec
    writer = Writer(journal, journal.load(journal.info("r"), codec), codec, durable=True)
    writer.record(RunEnded(RunStatus(status)))
    writer.set_info(dataclasses.replace(writer.info, status=status))
    writer.flush()
    for kind in kinds:
        memory.post("r", write_message(RunCommand(kind)))

    process_inbox(journal, "r", codec)

    run = journal.load(journal.info("r"), codec).run
    stale = [STALE] if status == "interrupted" or kinds[0] == "cancel" else []
    assert run.status == app.runs()[0].status == RunStatus.CANCELLED and run.inbox_seen == 2
    assert [refusal.reason for refusal in run.refusals if refusal.command == "pause"] == stale


def test_a_run_that_is_not_stored_yet_can_be_cancelled(memory: Store) -> None:
    from holdfast import CheckpointPolicy

    running = threading.Event()

    def busy(state: Any, ctx: Context) -> None:
        running.set()
        until(lambda: ctx.cancelled)

    app = one(busy).compile(memory, policy=CheckpointPolicy(durability="exit"))
    thread, result = in_thread(lambda: app.invoke(run_id="r"))
    assert running.wait(30)

    assert app.cancel("r") == RunStatus.RUNNING
    thread.join()
    assert result[0].status == RunStatus.CANCELLED


def test_a_cancel_is_heeded_while_a_retry_is_awaited(memory: Store) -> None:
    from holdfast import Retry
    from holdfast.engine.commands.inbox import CANCEL, RunCommand, write_message

    def fails(state: Any) -> None:
        memory.post("r", write_message(RunCommand(CANCEL, "enough")))
        raise ValueError("again")

    app = one(fails, retry=Retry(attempts=3, delay=600, max_delay=600)).compile(memory)

    assert app.invoke(run_id="r").status == RunStatus.CANCELLED


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_during_the_last_save_still_stops_the_process(
    number: signal.Signals, expected: type[BaseException]
) -> None:
    class Signalling(MemoryStore):
        commits = 0

        def commit(self, appends: Any) -> Any:
            self.commits += 1
            if self.commits == 2:
                os.kill(os.getpid(), number)
                time.sleep(0.05)
            return super().commit(appends)

    app = one(says("done")).compile(Signalling())

    with pytest.raises(expected):
        app.invoke(run_id="r")
    assert app.get_state("r")["log"] == ["done"]


def test_sigterm_saves_a_run_that_is_streamed(tmp_path: Path) -> None:
    script = f"""
import os, signal, sys
from holdfast import START, StateGraph
graph = StateGraph(dict).add_node("a", lambda s: {{"a": 1}}).add_node("b", lambda s, ctx: ctx.sleep(60))
app = graph.add_edge(START, "a").add_edge("a", "b").compile("sqlite:///{tmp_path}/r.db", durability="exit")
for event in app.stream({{}}, run_id="r"):
    if event.type == "node.start" and event.node == "b":
        os.kill(os.getpid(), signal.SIGTERM)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(SOURCE)}, timeout=60
    )

    assert done.returncode == 143
    store = open_store(f"sqlite:///{tmp_path}/r.db")
    assert [info.status for info in store.runs()] == [RunStatus.INTERRUPTED]
    store.close()


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, RunInterrupted), (signal.SIGTERM, RunTerminated)]
)
def test_a_signal_while_a_node_remembers_something_saves_the_run(
    number: signal.Signals, expected: type[BaseException]
) -> None:
    class Signalling(MemoryStore):
        commits = 0

        def commit(self, appends: Any) -> Any:
            self.commits += 1
            answers = super().commit(appends)
            if self.commits == 3:
                os.kill(os.getpid(), number)
                time.sleep(0.05)
            return answers

    done: list[int] = []

    def work(state: Any, ctx: Context) -> dict[str, Any]:
        for index in range(5):
            ctx.once(f"k{index}", done.append, index)
        return {"log": ["done"]}

    app = one(work).compile(Signalling())

    with pytest.raises(expected):
        app.invoke(run_id="r")
    assert [info.status for info in app.runs()] == [RunStatus.INTERRUPTED] and done == [0]
    assert app.resume("r").state["log"] == ["done"] and done == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_that_exits_ends_the_process_and_not_the_step(is_async: bool) -> None:
    """As containers have it; a node that exits by itself has failed."""
    times = []

    def signalled(state: Any) -> dict[str, Any]:
        times.append(len(times))
        if len(times) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
        return {"log": ["done"]}

    async def signalled_async(state: Any) -> dict[str, Any]:
        return signalled(state)

    app = one(signalled_async if is_async else signalled).compile(MemoryStore())
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    try:
        with pytest.raises(SystemExit) as exited:
            app.invoke(run_id="r")
    finally:
        signal.signal(signal.SIGTERM, before)

    assert exited.value.code == 7 and app.store.runs(run="r")[0].status == RunStatus.INTERRUPTED
    assert app.resume("r").state["log"] == ["done"]
