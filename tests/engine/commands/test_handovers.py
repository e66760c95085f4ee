"""What is asked of a run of the fleet while it changes hands: nothing is lost, and people come before workers."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
import time
from typing import Any

import pytest

from holdfast import END, START, App, Retry, RunStatus, StateGraph
from holdfast.engine.commands.control import post
from holdfast.engine.commands.inbox import ANSWER, CANCEL, RunCommand
from holdfast.engine.loop import Execution
from holdfast.engine.retention import expire_runs
from holdfast.errors import ExecutionError, RunConflict
from holdfast.stores.base import Store


def graph(**nodes: Any) -> StateGraph:
    made = StateGraph(dict, name="w")
    names = list(nodes)
    for name, function in nodes.items():
        made.add_node(name, function)
    for one, other in zip([START, *names], [*names, END], strict=True):
        made.add_edge(one, other)
    return made


def take_up(app: App, run_id: str, **options: Any) -> Any:
    return asyncio.run(app.aexecute(run_id, **{"idle_timeout": 0.0, **options}))


def nap(ctx: Any) -> None:
    ctx.sleep(3600)


def two_questions(store: Store) -> App:
    made = StateGraph(dict, name="w")
    for name in ("one", "two"):
        made.add_node(name, lambda ctx, name=name: {name: ctx.ask(name)})
        made.add_edge(START, name)
    return made.compile(store)


def test_two_answers_at_the_same_moment_are_both_taken(store: Store) -> None:
    app = two_questions(store)
    for _ in range(5):
        run_id = app.submit({})
        take_up(app, run_id)
        threads = [
            threading.Thread(target=app.answer, args=(run_id,), kwargs={"answers": {n: n}})
            for n in ("one", "two")
        ]
        for thread in threads:
            thread.start()
        for _ in range(100):
            if app.runs()[0].status == "queued":
                try:
                    take_up(app, run_id)
                except RunConflict:
                    continue
            if store.runs(run=run_id)[0].status == "completed":
                break
            time.sleep(0.01)
        for thread in threads:
            thread.join(30)
        for _ in range(3):
            if store.runs(run=run_id)[0].status == "queued":
                take_up(app, run_id)
        assert store.runs(run=run_id)[0].status == "completed"
        assert app.get_state(run_id) == {"one": "one", "two": "two"}


def test_an_answer_that_comes_in_while_a_drive_ends_is_not_left_lying(memory: Store) -> None:
    app = two_questions(memory)
    run_id = app.submit({})
    journal, codec = app._settings.journal, app._settings.codec

    class Late:
        """Posts an answer after the execution has read its inbox for the last time."""

        def on_event(self, event: Any) -> None:
            if event.type == "pause" and event.data["name"] == "two":
                post(journal, run_id, RunCommand(ANSWER, pause="one#1:one", value=codec.encode(1)))

    take_up(app, run_id, observer=Late())

    assert app.runs()[0].status == "queued"
    take_up(app, run_id)
    assert [pause.name for pause in app.pauses(run_id)] == ["two"]


def test_a_cancel_that_a_dead_driver_did_not_see_is_heeded_by_the_next_worker_but_not_by_who_resumes(
    memory: Store,
) -> None:
    app = graph(a=lambda state: {"ran": True}).compile(memory)
    by_worker, by_hand = app.submit({}), app.submit({})
    for run in (by_worker, by_hand):
        post(app._settings.journal, run, RunCommand(CANCEL, "no more"))

    assert take_up(app, by_worker).status == RunStatus.CANCELLED
    assert app.resume(by_hand).status == RunStatus.COMPLETED


@pytest.mark.parametrize("person_first", [True, False])
def test_a_pause_of_a_person_comes_before_the_hand_over_of_a_worker(
    memory: Store, person_first: bool
) -> None:
    drives: list[Execution] = []

    async def slow(state: Any) -> None:
        wishes = [
            lambda: app.pause(run_id, "by a person"),
            lambda: drives[0].request_pause("the worker stops", RunStatus.QUEUED),
        ]
        for wish in wishes if person_first else reversed(wishes):
            wish()
        drives[0].request_stop(RunStatus.QUEUED, "at once")
        await asyncio.sleep(0)

    app = graph(slow=slow, after=lambda state: None).compile(memory)
    run_id = app.submit({})

    assert take_up(app, run_id, hold=drives.append).status == RunStatus.INTERRUPTED


def test_a_sleeping_run_can_be_paused_for_good(store: Store) -> None:
    app = graph(nap=nap).compile(store)
    run_id = app.submit({})
    take_up(app, run_id)

    assert app.pause(run_id) == RunStatus.INTERRUPTED
    with pytest.raises(RunConflict, match="workers leave it alone"):
        take_up(app, run_id)


def test_an_answer_does_not_wait_for_a_retry_that_is_far_off(memory: Store) -> None:
    def flaky(state: Any) -> None:
        raise ConnectionError("down")

    made = StateGraph(dict, name="w").add_node("ask", lambda ctx: {"answer": ctx.ask("q")})
    made.add_node("flaky", flaky, retry=Retry(attempts=3, delay=3600))
    app = made.add_edge(START, "ask").add_edge(START, "flaky").compile(memory)
    run_id = app.submit({})
    assert take_up(app, run_id).status == RunStatus.QUEUED and app.runs()[0].due_at is not None

    app.answer(run_id, "now")

    assert app.runs()[0].due_at is None
    take_up(app, run_id)
    assert app.pauses(run_id) == () and app.runs()[0].due_at is not None


def test_to_have_slept_uses_up_no_attempt(memory: Store) -> None:
    tried: list[int] = []

    def work(ctx: Any) -> None:
        ctx.sleep(0.01)
        tried.append(ctx.attempt)
        raise ConnectionError("down")

    made = StateGraph(dict, name="w").add_node(
        "work", work, retry=Retry(attempts=3, delay=0, backoff="fixed")
    )
    app = made.add_edge(START, "work").compile(memory)
    run_id = app.submit({})
    with pytest.raises(ExecutionError):
        for _ in range(20):
            take_up(app, run_id)
            time.sleep(0.02)

    assert len(tried) == 3


def test_a_driven_run_cannot_be_requeued_whatever_its_facts_said_a_moment_ago(memory: Store) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hang(state: Any) -> None:
        begun.set()
        go_on.wait(30)

    app = graph(hang=hang).compile(memory)
    run_id = app.submit({})
    thread = threading.Thread(target=take_up, args=(app, run_id))
    thread.start()
    assert begun.wait(30)

    with pytest.raises(RunConflict, match="is being executed"):
        app.requeue(run_id)

    go_on.set()
    thread.join(30)
    assert app.runs()[0].status == "completed"


def test_retention_leaves_runs_that_sleep_or_wait_for_a_worker_alone(store: Store) -> None:
    app = graph(nap=nap).compile(store)
    asleep, delayed, failed = app.submit({}), app.submit({}, when=dt.timedelta(days=30)), app.submit({})
    take_up(app, asleep)
    app.cancel(failed)
    time.sleep(0.02)

    assert expire_runs(store, dt.timedelta(seconds=0.01)) == 1

    assert {info.run for info in app.runs()} == {asleep, delayed}
