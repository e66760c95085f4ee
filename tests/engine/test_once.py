"""`ctx.once`: one run of its function however many call it, and what becomes of one that was interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, ExecutionError, Retry
from holdfast.engine.once import StepInterrupted, StopSignal
from holdfast.errors import StateInvalid
from holdfast.journal.records import OnceFailed, OnceStarted
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.views.timeline import timeline
from tests.graphs import Heard, one
from tests.invariants import read_journal


class Crash(BaseException):
    """As if the process had died here: nothing after it is recorded."""


def in_tasks(state: Any, ctx: Context, effect: Callable[[], int]) -> Any:
    async def slow() -> int:
        await asyncio.sleep(0.01)
        return effect()

    async def both() -> list[int]:
        return list(await asyncio.gather(*(ctx.once("x", slow) for _ in range(5))))

    return both()


def in_tasks_by_lambdas(state: Any, ctx: Context, effect: Callable[[], int]) -> Any:
    async def slow() -> int:
        await asyncio.sleep(0.01)
        return effect()

    async def both() -> list[int]:
        return list(await asyncio.gather(*(ctx.once("x", lambda: slow()) for _ in range(5))))

    return both()


def in_threads(state: Any, ctx: Context, effect: Callable[[], int]) -> list[int]:
    together = threading.Barrier(5)
    found: list[int] = []

    def call() -> None:
        together.wait(30)
        found.append(ctx.once("x", effect))

    threads = [threading.Thread(target=call) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


@pytest.mark.parametrize("calls", [in_tasks, in_tasks_by_lambdas, in_threads])
@pytest.mark.parametrize("is_async", [False, True])
def test_calls_at_the_same_time_run_the_function_once_and_all_get_its_value(
    store: Store, calls: Any, is_async: bool
) -> None:
    ran: list[int] = []

    def effect() -> int:
        ran.append(1)
        return len(ran)

    def work(state: Any, ctx: Context) -> Any:
        found = calls(state, ctx, effect)
        found = asyncio.run(found) if asyncio.iscoroutine(found) else found
        return {"log": list(map(str, found))}

    async def work_async(state: Any, ctx: Context) -> Any:
        found = calls(state, ctx, effect)
        found = await found if asyncio.iscoroutine(found) else found
        return {"log": list(map(str, found))}

    app = one(work_async if is_async else work).compile(store)

    assert app.invoke(run_id="r").state["log"] == ["1"] * 5
    assert asyncio.run(app.ainvoke(run_id="again")).state["log"] == ["2"] * 5
    assert len(ran) == 2


@pytest.mark.parametrize("threads", [False, True])
def test_whoever_waits_gets_what_the_function_raised_and_a_later_call_tries_again(
    memory: Store, threads: bool
) -> None:
    ran: list[int] = []
    meanwhile = threading.Event()

    def fail() -> str:
        ran.append(1)
        meanwhile.wait(30)
        if len(ran) == 1:
            raise OSError("not yet")
        return "done"

    async def fail_async() -> str:
        await asyncio.sleep(0.01)
        meanwhile.set()
        return fail()

    def call(ctx: Context, raised: list[BaseException]) -> None:
        try:
            ctx.once("x", fail)
        except OSError as error:
            raised.append(error)

    async def work(state: Any, ctx: Context) -> dict[str, Any]:
        raised: list[BaseException] = []
        if threads:
            pool = [threading.Thread(target=call, args=(ctx, raised)) for _ in range(3)]
            for thread in pool:
                thread.start()
            while len(ctx._onces._running) < 1:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)  # So that all wait, most likely; those that come later try again.
            meanwhile.set()
            for thread in pool:
                await asyncio.to_thread(thread.join, 30)
        else:
            found = await asyncio.gather(
                *(ctx.once("x", fail_async) for _ in range(3)), return_exceptions=True
            )
            raised = [error for error in found if isinstance(error, BaseException)]
            assert len(raised) == 3
        assert raised and all(error is raised[0] for error in raised)
        return {"log": [await ctx.once("x", fail_async)]}

    out = one(work).compile(memory).invoke(run_id="r")

    assert out.state["log"] == ["done"] and len(ran) == 2


def test_a_function_that_calls_itself_through_once_is_told_so(memory: Store) -> None:
    def work(state: Any, ctx: Context) -> Any:
        return ctx.once("x", lambda: ctx.once("x", lambda: 1))

    async def work_async(state: Any, ctx: Context) -> Any:
        async def inner() -> int:
            return 1

        async def outer() -> Any:
            return await asyncio.create_task(ctx.once("x", inner))

        return await ctx.once("x", outer)

    for body in (work, work_async):
        with pytest.raises(ExecutionError, match="would wait for itself for ever") as failed:
            one(body).compile(memory).invoke()
        assert isinstance(failed.value.cause, StateInvalid)


def test_two_functions_that_wait_for_each_other_are_told_so(memory: Store) -> None:
    async def work(state: Any, ctx: Context) -> None:
        both = asyncio.Barrier(2)

        async def via(other: str) -> Any:
            await both.wait()
            return await ctx.once(other, nothing)

        async def nothing() -> None:
            return None

        await asyncio.gather(ctx.once("a", via, "b"), ctx.once("b", via, "a"))

    with pytest.raises(ExecutionError, match="would wait for itself for ever"):
        one(work).compile(memory).invoke()


def test_a_plain_function_does_not_wait_for_a_coroutine_of_its_own_event_loop(memory: Store) -> None:
    async def work(state: Any, ctx: Context) -> None:
        begun = asyncio.Event()

        async def slow() -> None:
            begun.set()
            await asyncio.sleep(60)

        task = asyncio.create_task(ctx.once("x", slow))
        await begun.wait()
        try:
            ctx.once("x", lambda: 1)
        finally:
            task.cancel()

    with pytest.raises(ExecutionError, match="which a plain function cannot wait for"):
        one(work).compile(memory).invoke()


@pytest.mark.parametrize("by_lambda", [False, True])
def test_if_the_first_caller_is_cancelled_one_of_the_others_takes_over(
    memory: Store, by_lambda: bool
) -> None:
    ran: list[int] = []

    async def slow() -> str:
        ran.append(1)
        await asyncio.sleep(60 if len(ran) == 1 else 0)
        return f"run {len(ran)}"

    async def work(state: Any, ctx: Context) -> dict[str, Any]:
        def call() -> Any:
            return ctx.once("x", (lambda: slow()) if by_lambda else slow)

        first = asyncio.create_task(call())
        await asyncio.sleep(0)
        others = [asyncio.create_task(call()) for _ in range(3)]
        while not ran:
            await asyncio.sleep(0.001)
        first.cancel()
        return {"log": list(await asyncio.gather(*others))}

    heard = Heard()
    out = one(work).compile(memory).invoke(observer=heard)

    assert out.state["log"] == ["run 2"] * 3 and len(ran) == 2
    assert [event.data["decision"] for event in heard.events if event.type == "once.in_doubt"] == ["rerun"]


def test_one_who_stops_waiting_does_not_disturb_the_others(memory: Store) -> None:
    async def work(state: Any, ctx: Context) -> dict[str, Any]:
        go = asyncio.Event()

        async def slow() -> str:
            await go.wait()
            return "done"

        first, second, third = (asyncio.create_task(ctx.once("x", slow)) for _ in range(3))
        await asyncio.sleep(0.01)
        second.cancel()
        await asyncio.sleep(0.01)
        go.set()
        return {"log": list(await asyncio.gather(first, third))}

    assert one(work).compile(memory).invoke().state["log"] == ["done", "done"]


def test_an_awaitable_that_nobody_awaits_holds_nobody_up(memory: Store) -> None:
    async def work(state: Any, ctx: Context) -> dict[str, Any]:
        async def slow() -> str:
            return "done"

        made = [slow(), slow()]
        dropped = ctx.once("x", lambda: made[0])
        dropped.close()
        del dropped
        made[0].close()
        return {"log": [await ctx.once("x", lambda: made[1])]}

    assert one(work).compile(memory).invoke().state["log"] == ["done"]


# Being interrupted.

CRASHING = """
import os, signal, sys
from holdfast import END, START, StateGraph

def effect(path):
    with open(path, "a") as file:
        file.write("effect\\n")
    with open(path) as file:
        is_first = file.read().count("effect") == 1
    if is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"

async def effect_async(path):
    return effect(path)

def look(ctx):
    return "found" if sys.argv[3] == "found" else None

POLICIES = {"default": {}, "look": {"if_interrupted": look}, "found": {"if_interrupted": look}}

def work(state, ctx):
    policy = POLICIES.get(sys.argv[3], {"if_interrupted": sys.argv[3]})
    return {"got": ctx.once("charge", effect, sys.argv[2], **policy)}

async def work_async(state, ctx):
    policy = POLICIES.get(sys.argv[3], {"if_interrupted": sys.argv[3]})
    return {"got": await ctx.once("charge", effect_async, sys.argv[2], **policy)}

def build(store):
    graph = StateGraph(dict, name="w")
    graph.add_node("work", work_async if sys.argv[4] == "async" else work)
    graph.add_edge(START, "work").add_edge("work", END)
    return graph.compile(store)

if __name__ == "__main__":
    build(sys.argv[1]).invoke(run_id="r")
"""


def crashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, kind: str) -> tuple[Any, Path]:
    """An app whose run `r` died inside `once`, and the file that its effect writes to."""
    (tmp_path / "crashing.py").write_text(CRASHING)
    effects = tmp_path / "effects"
    args = [f"sqlite:///{tmp_path}/runs.db", str(effects), policy, kind]
    done = subprocess.run([sys.executable, str(tmp_path / "crashing.py"), *args], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["crashing.py", *args])
    sys.modules.pop("crashing", None)
    import crashing  # type: ignore[import-not-found]

    return crashing.build(args[0]), effects


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("policy", "got", "effects"),
    [
        ("default", "done", 2),
        ("rerun", "done", 2),
        ("skip", None, 1),
        ("look", "done", 2),
        ("found", "found", 1),
    ],
)
def test_a_crash_inside_once_leaves_it_in_doubt_and_its_policy_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, policy: str, got: Any, effects: int
) -> None:
    app, file = crashed(tmp_path, monkeypatch, policy, kind)
    assert "in doubt inside it: once 'charge'" in app.plan_resume("r").steps[0].reason
    heard = Heard()

    out = app.resume("r", observer=heard)

    assert out.state["got"] == got and file.read_text().count("effect") == effects
    assert any(event.type == "once.in_doubt" and event.data["key"] == "charge" for event in heard.events)


def test_a_repeated_once_is_told_by_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = crashed(tmp_path, monkeypatch, "default", "sync")
    app.resume("r")

    journal = read_journal(app._settings.journal.store, "r")
    begun = [record for _, record in journal.records if isinstance(record, OnceStarted)]
    assert [(each.key, each.attempt, each.repeated) for each in begun] == [
        ("charge", 1, False),
        ("charge", 2, True),
    ]
    told = [moment.text for moment in timeline(app._settings.journal, "r") if moment.type == "once.in_doubt"]
    assert told == ["once 'charge' of work#1 was in doubt, and runs again"]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("answer", "effects"), [("rerun", 2), ("skip", 1), ("fail", 1)])
def test_somebody_is_asked_what_to_do_with_a_once_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, answer: str, effects: int
) -> None:
    app, file = crashed(tmp_path, monkeypatch, "ask", kind)

    [pause] = app.resume("r").pauses
    assert pause.name == "if_interrupted:charge" and "may or may not have taken effect" in pause.prompt
    if answer == "fail":
        with pytest.raises(ExecutionError) as failed:
            app.resume("r", answer)
        assert isinstance(failed.value.cause, StepInterrupted)
        assert app.resume("r", if_interrupted="skip").status == "completed"
    else:
        assert app.resume("r", answer).status == "completed"
    assert file.read_text().count("effect") == effects


def test_a_once_that_must_not_be_repeated_fails_the_step_until_somebody_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, file = crashed(tmp_path, monkeypatch, "fail", "sync")

    for _ in range(2):
        with pytest.raises(ExecutionError, match="once 'charge' of step 'work' was interrupted"):
            app.resume("r")
    assert file.read_text().count("effect") == 1
    assert app.resume("r", if_interrupted="rerun").state["got"] == "done"


def test_without_a_policy_of_its_own_once_follows_its_node(memory: Store) -> None:
    """The node was left by a timeout inside of it: its step failed, and is tried again."""
    ran: list[int] = []
    never = threading.Event()

    def effect() -> None:
        ran.append(1)
        never.wait(60)

    def work(state: Any, ctx: Context) -> None:
        ctx.once("x", effect)

    retry = Retry(500, delay=0)  # On a busy machine the time may be over before the function runs.
    app = one(work, timeout=0.05, retry=retry, if_interrupted="fail").compile(memory)
    with pytest.raises(ExecutionError, match="once 'x' of step 'work' was interrupted"):
        app.invoke(run_id="r")
    never.set()
    assert ran == [1]


def test_a_step_that_somebody_lets_run_again_runs_its_functions_again_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, file = crashed(tmp_path, monkeypatch, "default", "sync")
    graph = app._settings.graph
    import dataclasses

    asking = dataclasses.replace(graph.nodes["work"], if_interrupted="ask")
    graph.nodes["work"] = asking

    [pause] = app.resume("r").pauses
    assert pause.kind == "in_doubt"
    assert app.resume("r", "rerun").state["got"] == "done"
    assert file.read_text().count("effect") == 2


def test_a_function_that_raised_is_not_in_doubt(memory: Store) -> None:
    ran: list[int] = []

    def effect() -> str:
        ran.append(1)
        if len(ran) == 1:
            raise OSError("no")
        return "done"

    heard = Heard()
    app = one(lambda s, ctx: {"log": [ctx.once("x", effect, if_interrupted="fail")]}, retry=Retry(2, delay=0))
    out = app.compile(memory).invoke(run_id="r", observer=heard)

    assert out.state["log"] == ["done"]
    assert not any(event.type == "once.in_doubt" for event in heard.events)
    assert sum(isinstance(record, OnceFailed) for _, record in read_journal(memory, "r").records) == 1


def test_a_question_inside_once_is_no_interruption(memory: Store) -> None:
    app = one(lambda s, ctx: {"log": [ctx.once("x", ctx.ask, "well?", if_interrupted="fail")]}).compile(
        memory
    )
    app.invoke(run_id="r")

    assert app.resume("r", "fine").state["log"] == ["fine"]


@pytest.mark.parametrize("policy", ["again", 5, None])
def test_a_policy_that_means_nothing_is_refused(memory: Store, policy: Any) -> None:
    app = one(lambda s, ctx: {"n": ctx.once("x", lambda: 1, if_interrupted=policy)}).compile(memory)

    if policy is None:
        assert app.invoke().state["n"] == 1
    else:
        with pytest.raises(ExecutionError, match="if_interrupted of once is one of rerun, skip, ask, fail"):
            app.invoke()


def test_the_intent_is_stored_before_the_function_runs(store: Store) -> None:
    def work(state: Any, ctx: Context) -> None:
        ctx.once("x", lambda: seen.extend(record for _, record in read_journal(store, "r").records))

    seen: list[Any] = []
    one(work).compile(store).invoke(run_id="r")

    assert seen[-1] == OnceStarted("work#1", "x", 1)


# Attempts that were left.


class Left:
    """A node that goes on after it was left, and what it then got from one call of its context."""

    def __init__(self, call: Callable[[Context, Left], Any]) -> None:
        self.call, self.effects = call, list[str]()
        self.begun, self.go_on, self.is_over = threading.Event(), threading.Event(), threading.Event()
        self.got: list[BaseException | None] = []

    def effect(self) -> str:
        self.effects.append("effect")
        return "done"

    def __call__(self, state: Any, ctx: Context) -> None:
        if self.begun.is_set():
            return
        self.begun.set()
        self.go_on.wait(60)
        try:
            self.call(ctx, self)
            self.got.append(None)
        except BaseException as error:
            self.got.append(error)
        finally:
            self.is_over.set()

    def signal(self) -> BaseException | None:
        """Let it go on, and see what it got."""
        self.go_on.set()
        assert self.is_over.wait(60)
        return self.got[0]


CALLS: dict[str, Callable[[Context, Left], Any]] = {
    "once": lambda ctx, left: ctx.once("x", left.effect),
    "sleep": lambda ctx, left: ctx.sleep(0.001),
    "ask": lambda ctx, left: ctx.ask("well?"),
    "ask_all": lambda ctx, left: ctx.ask_all({"a": {"prompt": "well?"}}),
    "emit": lambda ctx, left: ctx.emit("hello"),
    "heartbeat": lambda ctx, left: ctx.heartbeat(),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("retry", [None, Retry(2, delay=0)])
def test_a_step_that_timed_out_gets_the_stop_signal_before_any_effect(
    store: Store, name: str, retry: Retry | None
) -> None:
    left, heard = Left(CALLS[name]), Heard()

    def body(state: Any, ctx: Context) -> None:
        left(state, ctx)

    app = one(body, timeout=0.05, retry=retry).compile(store)
    while not left.begun.is_set():  # On a busy machine the time may be over before the step begins.
        with contextlib.suppress(ExecutionError):
            app.invoke(observer=heard)

    assert isinstance(left.signal(), StopSignal)
    assert not left.effects and not any(event.type == "node.message" for event in heard.events)


@pytest.mark.parametrize("name", CALLS)
def test_an_attempt_that_timed_out_gets_the_stop_signal_while_the_next_attempt_runs(
    memory: Store, name: str
) -> None:
    left = Left(CALLS[name])

    def body(state: Any, ctx: Context) -> None:
        if left.begun.is_set():
            left.go_on.set()
            while not left.is_over.wait(0.01):
                ctx.heartbeat()
        left(state, ctx)

    app = one(body, timeout=0.1, retry=Retry(500, delay=0)).compile(memory)

    assert app.invoke(run_id="r").status == "completed"
    assert isinstance(left.signal(), StopSignal) and not left.effects


@pytest.mark.parametrize("name", CALLS)
def test_a_step_that_was_left_by_a_cancel_gets_the_stop_signal_before_any_effect(
    store: Store, name: str
) -> None:
    left = Left(CALLS[name])
    begun = threading.Event()

    def body(state: Any, ctx: Context) -> None:
        begun.set()
        left(state, ctx)

    app = one(body).compile(store)

    async def cancelled() -> Any:
        running = asyncio.create_task(app.ainvoke(run_id="r"))
        await asyncio.to_thread(begun.wait, 60)
        await asyncio.to_thread(app.cancel, "r")
        return await running

    assert asyncio.run(cancelled()).status == "cancelled"
    assert isinstance(left.signal(), StopSignal) and not left.effects


def test_a_step_that_is_left_while_its_function_runs_gets_the_stop_signal_and_nothing_is_recorded(
    store: Store,
) -> None:
    inside = threading.Event()

    def effect(left: Left) -> str:
        left.effects.append("began before it was left")
        inside.set()
        go_on.wait(60)
        return "done"

    go_on = threading.Event()
    left = Left(lambda ctx, left: ctx.once("x", effect, left))
    left.go_on.set()

    def body(state: Any, ctx: Context) -> None:
        left(state, ctx)

    app = one(body, timeout=0.2, retry=Retry(2, delay=0)).compile(store)
    while not inside.is_set():
        with contextlib.suppress(ExecutionError):
            app.invoke()
    go_on.set()

    assert isinstance(left.signal(), StopSignal)
    runs = [info.run for info in store.runs()]
    records = [record for run in runs for _, record in read_journal(store, run).records]
    assert sum(isinstance(record, OnceStarted) for record in records) == 1
    assert not any(getattr(record, "key", "") == "once:x" for record in records)


class SlowDisk(MemoryStore):
    """One commit of it, of the attempt in `saving`, takes until that attempt is over."""

    saving: Context | None = None

    def commit(self, appends: Any) -> Any:
        context, self.saving = self.saving, None
        for _ in range(6000):
            if context is None or context._is_over:
                break
            threading.Event().wait(0.01)
        return super().commit(appends)


def by_coroutine(ctx: Context, function: Callable[[], Any]) -> Any:
    async def work() -> Any:
        return function()

    async def main() -> Any:
        return await ctx.once("x", work)

    return asyncio.run(main())


ONCES: dict[str, Callable[[Context, Callable[[], Any]], Any]] = {
    "plain": lambda ctx, function: ctx.once("x", function),
    "coroutine": by_coroutine,
}


@pytest.mark.parametrize("once", ONCES.values(), ids=ONCES)
def test_an_attempt_that_is_left_while_its_intent_is_stored_never_starts_its_function(
    once: Callable[[Context, Callable[[], Any]], Any],
) -> None:
    store, began = SlowDisk(), list[Context]()

    def act(ctx: Context, left: Left) -> Any:
        began.append(ctx)
        store.saving = ctx
        return once(ctx, lambda: left.effects.append("ran"))

    left = Left(act)
    left.go_on.set()

    def body(state: Any, ctx: Context) -> None:
        if began:
            while not left.is_over.wait(0.01):
                ctx.heartbeat()
            return
        left(state, ctx)

    app = one(body, timeout=0.1, retry=Retry(500, delay=0)).compile(store)

    assert app.invoke(run_id="r").status == "completed"
    assert began[0]._is_over
    assert isinstance(left.signal(), StopSignal) and not left.effects


@pytest.mark.parametrize("once", ONCES.values(), ids=ONCES)
def test_an_attempt_that_is_left_while_its_result_is_stored_does_not_go_on_with_it(
    once: Callable[[Context, Callable[[], Any]], Any],
) -> None:
    store, began = SlowDisk(), list[Context]()

    def act(ctx: Context, left: Left) -> Any:
        def effect() -> str:
            began.append(ctx)
            store.saving = ctx
            return "done"

        once(ctx, effect)
        left.effects.append("went on")

    left = Left(act)
    left.go_on.set()

    def body(state: Any, ctx: Context) -> None:
        if began:
            while not left.is_over.wait(0.01):
                ctx.heartbeat()
            return
        left(state, ctx)

    app = one(body, timeout=0.1, retry=Retry(500, delay=0)).compile(store)

    assert app.invoke(run_id="r").status == "completed"
    assert isinstance(left.signal(), StopSignal) and not left.effects


def test_whoever_waits_in_a_step_that_was_left_gets_the_stop_signal_too(memory: Store) -> None:
    go_on, got = threading.Event(), list[BaseException]()

    def body(state: Any, ctx: Context) -> None:
        def wait() -> None:
            try:
                ctx.once("x", go_on.wait, 60)
            except BaseException as error:
                got.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        threads.append(thread)
        try:
            ctx.once("x", go_on.wait, 60)
        except BaseException as error:
            got.append(error)
            raise

    threads: list[threading.Thread] = []
    while not threads:  # On a busy machine the time may be over before the step begins.
        with pytest.raises(ExecutionError):
            one(body, timeout=0.3).compile(memory).invoke()
    deadline = 600
    while len(got) < 1 and deadline:
        deadline -= 1
        threading.Event().wait(0.05)
    assert got and isinstance(got[0], StopSignal), "the one that waits does not wait for the one that runs"
    go_on.set()
    threads[0].join(60)
    while len(got) < 2 and deadline:
        deadline -= 1
        threading.Event().wait(0.05)
    assert isinstance(got[1], StopSignal)


def test_what_goes_on_after_its_node_has_returned_gets_the_stop_signal(memory: Store) -> None:
    later, got = threading.Event(), list[BaseException]()

    def body(state: Any, ctx: Context) -> None:
        def stay() -> None:
            later.wait(60)
            try:
                ctx.once("x", lambda: os.getpid())
            except BaseException as error:
                got.append(error)

        threads.append(threading.Thread(target=stay))
        threads[0].start()

    threads: list[threading.Thread] = []
    assert one(body).compile(memory).invoke().status == "completed"
    later.set()
    threads[0].join(60)
    assert isinstance(got[0], StopSignal)
