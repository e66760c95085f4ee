"""Runs of the fleet: submitted, executed without waiting, left until they are due, handed back."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import END, START, App, Retry, RunStatus, StateGraph
from holdfast.engine.loop import Execution
from holdfast.engine.submission import open_questions
from holdfast.errors import AnswerTimeout, HoldfastError, RunConflict, RunExists, StateInvalid
from holdfast.journal.journal import Journal
from holdfast.state.codec import Codec
from holdfast.stores.base import Store

Node = Callable[..., Any]


def chain(*nodes: Node, **options: Any) -> StateGraph:
    graph = StateGraph(dict, name="w")
    for node in nodes:
        graph.add_node(node.__name__, node, **options)
    for one, other in zip([START, *nodes], [*nodes, END], strict=True):
        graph.add_edge(*(each if isinstance(each, str) else each.__name__ for each in (one, other)))
    return graph


def take_up(app: App, run_id: str, **options: Any) -> Any:
    return asyncio.run(app.aexecute(run_id, **options))


def first(state: Any) -> dict[str, int]:
    return {"n": state.get("n", 0) + 1}


def test_a_submitted_run_is_stored_and_waits_for_a_worker(store: Store) -> None:
    """R2.5: queued is a status of its own."""
    app = chain(first).compile(store)
    tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)

    run_id = app.submit({"n": 1}, queue="night", priority=3, when=tomorrow, config={"tags": ["a", "b"]})

    [info] = app.runs()
    assert (info.run, info.status, info.queue, info.priority) == (run_id, "queued", "night", 3)
    assert info.due_at == tomorrow.timestamp() and info.tags == ("a", "b") and info.owner == ""
    assert app.get_state(run_id) == {"n": 1}
    outcome = take_up(app, run_id)
    assert outcome.status == RunStatus.COMPLETED and outcome.state["n"] == 2


def test_a_question_is_in_the_way_until_its_time_is_over(memory: Store) -> None:
    def asks(state: Any, ctx: Any) -> dict[str, int]:
        return {"n": ctx.ask("How many?", timeout=3600)}

    app = chain(asks).compile(memory)
    app.invoke({}, run_id="r")
    run = Journal(memory).load(Journal(memory).info("r"), Codec()).run

    [question] = open_questions(run, time.time())
    assert question.prompt == "How many?" and open_questions(run, time.time() + 7200) == ()
    run.pauses["gate"] = dataclasses.replace(question, id="gate", kind="after")
    assert open_questions(run, time.time()) == (), "there is a gate to pass"
    app.answer("r", 3)
    answered = Journal(memory).load(Journal(memory).info("r"), Codec()).run
    assert open_questions(answered, time.time()) == ()


def test_a_submit_key_is_one_run_however_often_it_is_submitted(memory: Store) -> None:
    app = chain(first).compile(memory)

    ids = {app.submit({"n": n}, key="order 7") for n in range(3)}

    assert len(ids) == len(app.runs()) == 1 and app.get_state(ids.pop())["n"] == 0
    with pytest.raises(StateInvalid, match="not both"):
        app.submit({}, key="k", run_id="r")
    with pytest.raises(RunExists):
        app.submit({}, run_id=app.runs()[0].run)


@pytest.mark.parametrize(
    "wrong",
    [{"queue": ""}, {"queue": "a,b"}, {"priority": "high"}, {"when": -1}, {"when": dt.datetime(2030, 1, 1)}],
)
def test_a_place_that_makes_no_sense_is_refused_and_nothing_is_stored(memory: Store, wrong: Any) -> None:
    app = chain(first).compile(memory)

    with pytest.raises(HoldfastError):
        app.submit({}, **wrong)

    assert app.runs() == []


@pytest.mark.parametrize("is_async", [False, True])
def test_a_long_sleep_frees_the_worker_and_the_rest_of_the_node_runs_when_its_time_has_come(
    store: Store, is_async: bool
) -> None:
    seen: list[str] = []

    def nap(ctx: Any) -> None:
        seen.append("begun")
        ctx.sleep(0.3)
        seen.append("rested")

    async def doze(ctx: Any) -> None:
        seen.append("begun")
        await ctx.sleep(0.3)
        seen.append("rested")

    app = chain(doze if is_async else nap, first).compile(store)
    run_id = app.submit({})

    outcome = take_up(app, run_id, idle_timeout=0.0)

    assert outcome.status == RunStatus.PAUSED and seen == ["begun"]
    [pause] = outcome.pauses
    [info] = app.runs()
    assert pause.kind == "sleep" and info.status == "paused"
    assert info.due_at is not None and pause.expires_at is not None
    assert info.due_at == pytest.approx(pause.expires_at.timestamp())
    time.sleep(max(0.0, info.due_at - time.time()))
    outcome = take_up(app, run_id, idle_timeout=0.0)
    assert outcome.status == RunStatus.COMPLETED
    assert seen == ["begun", "begun", "rested"] and outcome.state["n"] == 1


def test_a_run_that_is_taken_up_too_early_stands_as_it_stood(memory: Store) -> None:
    def ask(ctx: Any) -> dict[str, Any]:
        return {"answer": ctx.ask("well?", timeout=3600, default="never")}

    def nap(ctx: Any) -> None:
        ctx.sleep(3600)

    graph = StateGraph(dict, name="w").add_node("ask", ask).add_node("nap", nap)
    app = graph.add_edge(START, "nap").add_edge(START, "ask").compile(memory)
    run_id = app.submit({})
    before = take_up(app, run_id)

    again = take_up(app, run_id)

    assert before.status == again.status == RunStatus.PAUSED
    assert [pause.id for pause in before.pauses] == [pause.id for pause in again.pauses]
    assert app.answer(run_id, answers={"well?": "now"}).names == ("well?",)
    take_up(app, run_id)
    assert [pause.kind for pause in app.pauses(run_id)] == ["sleep"]


def test_who_resumes_a_sleeping_run_by_hand_waits_for_the_rest(memory: Store) -> None:
    rested: list[float] = []

    def nap(ctx: Any) -> None:
        ctx.sleep(0.2)
        rested.append(time.time())

    app = chain(nap).compile(memory)
    run_id = app.submit({})
    take_up(app, run_id, idle_timeout=0.0)
    due_at = app.runs()[0].due_at

    outcome = app.resume(run_id)

    assert outcome.status == RunStatus.COMPLETED and due_at is not None and rested[0] >= due_at


def test_siblings_go_on_while_one_sleeps_and_it_wakes_up_among_them(memory: Store) -> None:
    def nap(ctx: Any) -> dict[str, int]:
        ctx.sleep(0.1)
        return {"nap": 1}

    def work(state: Any) -> dict[str, int]:
        time.sleep(0.4)
        return {"work": 1}

    graph = StateGraph(dict, name="w").add_node("nap", nap).add_node("work", work)
    app = graph.add_edge(START, "nap").add_edge(START, "work").compile(memory)
    run_id = app.submit({})

    outcome = take_up(app, run_id, idle_timeout=0.0)

    assert outcome.status == RunStatus.COMPLETED
    assert outcome.state["nap"] == outcome.state["work"] == 1


def test_a_retry_that_is_far_off_frees_the_worker_and_keeps_its_count(store: Store) -> None:
    tries: list[int] = []

    def flaky(ctx: Any) -> dict[str, int]:
        tries.append(ctx.attempt)
        if len(tries) < 3:
            raise ConnectionError("down")
        return {"done": len(tries)}

    app = chain(flaky, retry=Retry(attempts=3, delay=0.05, backoff="fixed")).compile(store)
    run_id = app.submit({})

    for _ in range(2):
        assert take_up(app, run_id, idle_timeout=0.0).status == RunStatus.QUEUED
        due_at = app.runs()[0].due_at
        assert due_at is not None
        time.sleep(max(0.0, due_at - time.time()))
    outcome = take_up(app, run_id, idle_timeout=0.0)

    assert outcome.status == RunStatus.COMPLETED and tries == [1, 2, 3]


def test_a_short_wait_is_waited_for(memory: Store) -> None:
    def nap(ctx: Any) -> None:
        ctx.sleep(0.05)

    app = chain(nap).compile(memory)

    assert take_up(app, app.submit({}), idle_timeout=5.0).status == RunStatus.COMPLETED


def test_a_question_that_nobody_answers_in_time_gets_its_default(store: Store) -> None:
    def ask(ctx: Any) -> dict[str, Any]:
        return {"answer": ctx.ask("well?", timeout=0.05, default="never mind")}

    app = chain(ask).compile(store)
    run_id = app.submit({})
    outcome = take_up(app, run_id)
    while outcome.status == RunStatus.PAUSED:  # On a slow machine the time is over before the run pauses.
        due_at = app.runs()[0].due_at
        assert due_at is not None
        time.sleep(max(0.0, due_at - time.time()))
        outcome = take_up(app, run_id)

    assert outcome.state["answer"] == "never mind"


def test_without_a_default_the_node_hears_of_it_and_a_resume_asks_anew(memory: Store) -> None:
    def ask(ctx: Any) -> dict[str, Any]:
        return {"answer": ctx.ask("well?", timeout=0.05)}

    app = chain(ask).compile(memory)
    run_id = app.submit({})
    take_up(app, run_id)
    time.sleep(0.06)

    with pytest.raises(HoldfastError, match="nobody answered 'well\\?' in time") as failure:
        take_up(app, run_id)

    assert isinstance(failure.value.__cause__, AnswerTimeout)
    assert app.runs()[0].status == "failed"
    assert app.resume(run_id).status == RunStatus.PAUSED
    assert app.resume(run_id, "yes").state["answer"] == "yes"


def test_a_worker_does_not_pass_gates_but_a_requeued_run_has_passed_them(store: Store) -> None:
    """A gate is opened by somebody, never by a worker that takes the run up."""

    def second(state: Any) -> dict[str, bool]:
        return {"second": True}

    app = chain(first, second).compile(store, interrupt_before=["second"])
    run_id = app.submit({})

    assert take_up(app, run_id).status == take_up(app, run_id).status == RunStatus.PAUSED
    assert app.requeue(run_id, queue="later", priority=2).status == "queued"
    assert (app.runs()[0].queue, app.runs()[0].priority) == ("later", 2)
    outcome = take_up(app, run_id)

    assert outcome.status == RunStatus.COMPLETED and outcome.state["n"] == 1 and outcome.state["second"]


def test_an_answer_hands_a_run_of_the_fleet_back_to_the_workers(store: Store) -> None:
    def ask(ctx: Any) -> dict[str, Any]:
        return {"answer": ctx.ask("well?")}

    app = chain(ask).compile(store)
    run_id = app.submit({})
    assert take_up(app, run_id).status == RunStatus.PAUSED and app.runs()[0].due_at is None

    app.answer(run_id, 7)

    assert app.runs()[0].status == "queued"
    assert take_up(app, run_id).state["answer"] == 7


def test_a_failed_run_is_requeued_and_its_finished_steps_are_kept(memory: Store) -> None:
    broken = [True]

    def second(state: Any) -> dict[str, bool]:
        if broken:
            raise ValueError("broken")
        return {"second": True}

    app = chain(first, second).compile(memory)
    run_id = app.submit({})
    with pytest.raises(HoldfastError, match="broken"):
        take_up(app, run_id)
    broken.clear()

    app.requeue(run_id)
    outcome = take_up(app, run_id)

    assert outcome.state["n"] == 1 and outcome.state["second"] and app.runs()[0].queue == "default"


def test_a_queued_run_can_be_paused_and_cancelled_before_anybody_takes_it_up(memory: Store) -> None:
    app = chain(first).compile(memory)
    paused, cancelled = app.submit({}), app.submit({})

    assert app.pause(paused) == RunStatus.INTERRUPTED and app.cancel(cancelled) == RunStatus.CANCELLED
    for run in (paused, cancelled):
        with pytest.raises(RunConflict, match="workers leave it alone"):
            take_up(app, run)
    assert app.requeue(paused).status == "queued"
    assert take_up(app, paused).status == RunStatus.COMPLETED


@pytest.mark.parametrize("gently", [True, False])
def test_a_drive_that_is_asked_to_hand_over_leaves_the_run_to_the_next_worker(
    store: Store, gently: bool
) -> None:
    ran: list[str] = []
    drives: list[Execution] = []

    async def slow(state: Any) -> dict[str, int]:
        ran.append("slow")
        if len(ran) == 1:
            if gently:
                drives[0].request_pause("draining", RunStatus.QUEUED)
            else:
                drives[0].request_stop(RunStatus.QUEUED, "draining")
                await asyncio.sleep(60)
        return {"slow": len(ran)}

    app = chain(slow, first).compile(store)
    run_id = app.submit({})

    assert take_up(app, run_id, hold=drives.append).status == RunStatus.QUEUED
    assert app.runs()[0].status == "queued" and app.runs()[0].owner == ""
    outcome = take_up(app, run_id)

    assert outcome.status == RunStatus.COMPLETED and outcome.state["n"] == 1
    assert ran == (["slow"] if gently else ["slow", "slow"])
