"""Taking a run up again: finding it, interrupted steps, half-finished work, config, updates and gates."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from holdfast import (
    END,
    START,
    AnswerRejected,
    App,
    CheckpointNotFound,
    Context,
    Event,
    ExecutionError,
    GraphChanged,
    HoldfastError,
    MaxIterationsExceeded,
    NotPaused,
    Retry,
    RunExists,
    RunFinished,
    RunNotFound,
    RunStatus,
    Send,
    StateGraph,
    StateInvalid,
    add,
    append,
)
from holdfast.journal.encoding import Track, decode_records
from holdfast.journal.records import StepAdvanced, StepFinished
from holdfast.state.codec import Codec
from holdfast.stores.memory import MemoryStore
from holdfast.testing import Crash, CrashingStore, raise_crash
from holdfast.testing.wrapped_store import Point
from tests.crash.programs import python


class Work(TypedDict, total=False):
    n: int
    total: Annotated[int, add]
    log: Annotated[list[str], append]


Node = Callable[..., Any]


def line(*nodes: tuple[str, Node], name: str = "w", **options: Mapping[str, Any]) -> StateGraph:
    """A chain of nodes; `options` are those of single nodes, by name."""
    graph = StateGraph(Work, name=name)
    previous = START
    for each, function in nodes:
        graph.add_node(each, function, **options.get(each, {}))
        graph.add_edge(previous, each)
        previous = each
    graph.add_edge(previous, END)
    return graph


def abc(ran: list[str], **options: Mapping[str, Any]) -> StateGraph:
    """Three steps that say when they run."""

    def step(state: Any, ctx: Context) -> dict[str, Any]:
        ran.append(ctx.node)
        return {"log": [ctx.node]}

    return line(("a", step), ("b", step), ("c", step), **options)


def crashed(
    graph: StateGraph, at: int, point: Point = "acknowledged", values: Any = None, **options: Any
) -> MemoryStore:
    """A store with run `r`, whose process died at its `at`-th append: the `at`-th step was about to run."""
    store = MemoryStore()
    app = graph.compile(CrashingStore(store, at, point, raise_crash), **options)
    with pytest.raises(Crash):
        app.invoke(values or {}, run_id="r")
    return store


class Flaky:
    """A node that fails until it is repaired."""

    def __init__(self) -> None:
        self.works = False
        self.calls = 0

    def __call__(self, state: Any) -> dict[str, Any]:
        self.calls += 1
        if not self.works:
            raise RuntimeError("429 Too Many Requests")
        return {"log": ["flaky"]}


@pytest.fixture
def ran() -> list[str]:
    return []


# Which run is meant.


def test_a_run_is_resumed_by_its_id_and_repeats_no_finished_step(ran: list[str]) -> None:
    """S0.10, S0.11, S3.16, S3.18: only the id is needed; the next node runs."""
    store = crashed(abc(ran), at=3)
    assert ran == ["a", "b"]

    outcome = abc(ran).compile(store).resume("r")

    assert outcome.status == RunStatus.COMPLETED and outcome.run_id == "r"
    assert outcome.state["log"] == ["a", "b", "c"] and ran == ["a", "b", "c"]
    assert (outcome.stats.steps_kept, outcome.stats.steps_run) == (2, 1)


def test_the_newest_checkpoint_id_resumes_the_run_itself(ran: list[str]) -> None:
    store = crashed(abc(ran), at=3)
    app = abc(ran).compile(store)
    newest = app.checkpoints("r")[-1]

    outcome = app.resume(newest.id)

    assert outcome.run_id == "r" and ran == ["a", "b", "c"]
    assert len(app.runs()) == 1


def test_an_older_checkpoint_id_starts_a_new_run_and_leaves_the_old_one_alone(ran: list[str]) -> None:
    """S1.15: replay from any checkpoint."""
    app = abc(ran).compile(MemoryStore())
    app.invoke({}, run_id="r")
    before = list(app.store.read("r"))
    first = app.checkpoints("r")[0]

    outcome = app.resume(first.id, update={"n": 7})

    assert outcome.run_id != "r" and outcome.status == RunStatus.COMPLETED
    assert ran == ["a", "b", "c", "b", "c"]
    assert outcome.state["log"] == ["a", "b", "c"] and outcome.state["n"] == 7
    assert list(app.store.read("r")) == before
    assert "n" not in app.get_state("r")


def test_a_workflow_name_means_its_latest_unfinished_run(ran: list[str]) -> None:
    """S1.8: `resume <workflow-name>`."""
    flaky = Flaky()
    app = line(("a", flaky), name="nightly").compile(MemoryStore())
    for run in ("old", "new"):
        with pytest.raises(ExecutionError):
            app.invoke({}, run_id=run)
    flaky.works = True
    app.invoke({}, run_id="done")

    assert app.resume("nightly").run_id == "new"
    assert app.resume("nightly").run_id == "old"
    with pytest.raises(
        RunFinished, match=r"every run of workflow 'nightly' is completed .*nothing to resume"
    ):
        app.resume("nightly")


def test_a_path_means_a_checkpoint_file(ran: list[str], tmp_path: Path) -> None:
    app = abc(ran).compile(MemoryStore())
    path = app.save_checkpoint(tmp_path / "b.pkl", {"log": ["from a file"]}, "b")

    for target in (path, str(path)):
        ran.clear()
        assert app.resume(target).state["log"] == ["from a file", "b", "c"]
        assert ran == ["b", "c"]


def test_a_run_that_is_not_stored_is_not_found_and_a_close_name_is_suggested(ran: list[str]) -> None:
    """S0.14, S3.16."""
    app = abc(ran).compile(MemoryStore())
    with pytest.raises(RunNotFound, match=r"no run, checkpoint or workflow 'r1' .in memory://"):
        app.resume("r1")
    app.invoke({}, run_id="monthly-report")

    with pytest.raises(RunNotFound, match="did you mean 'monthly-report'"):
        app.resume("montly-report")
    with pytest.raises(RunNotFound, match="no run 'r1'"):
        app.get_state("r1")


def test_a_checkpoint_that_is_not_stored_is_not_found(ran: list[str], tmp_path: Path) -> None:
    """S0.14: an invalid checkpoint id is an error."""
    app = abc(ran).compile(MemoryStore())
    unknown = "6f9619ff-8b86-4d01-b42d-00c04fc964ff"
    with pytest.raises(CheckpointNotFound, match=f"checkpoint not found: {unknown}"):
        app.resume(unknown)
    with pytest.raises(CheckpointNotFound, match=r"checkpoint file not found: .*gone\.pkl"):
        app.resume(tmp_path / "gone.pkl")
    app.invoke({}, run_id="one")
    app.invoke({}, run_id="two")
    with pytest.raises(CheckpointNotFound, match="it is one of run 'two'"):
        app.get_state("one", checkpoint_id=app.checkpoints("two")[0].id)


def test_a_finished_run_takes_no_resume_and_no_answer(ran: list[str]) -> None:
    """S3.18: "execution already complete"."""
    app = abc(ran).compile(MemoryStore())
    outcome = app.invoke({}, run_id="r")

    for target in ("r", outcome.checkpoint_id):
        with pytest.raises(RunFinished, match="'r' is completed: execution already complete"):
            app.resume(target)
    with pytest.raises(RunFinished, match="nothing to resume or answer"):
        app.resume("r", answer=True)
    with pytest.raises(RunFinished):
        app.cancel("r")
    assert ran == ["a", "b", "c"]


def test_an_answer_to_a_run_that_asks_nothing_is_refused() -> None:
    flaky = Flaky()
    app = line(("a", flaky)).compile(MemoryStore())
    with pytest.raises(ExecutionError):
        app.invoke({}, run_id="r")

    for given in ({"answer": 1}, {"answers": {"x": 1}}):
        with pytest.raises(NotPaused, match=r"run 'r' is not waiting for an answer \(it is failed\)"):
            app.resume("r", **given)
    assert flaky.calls == 1


def test_a_new_run_cannot_take_a_stored_id(ran: list[str]) -> None:
    store = crashed(abc(ran), at=2)
    app = abc(ran).compile(store)

    with pytest.raises(RunExists, match=r"run 'r' exists and is running .in memory://.; resume with"):
        app.invoke({}, run_id="r")
    assert ran == ["a"]
    app.resume("r")
    with pytest.raises(
        RunExists, match=r"is completed .in memory://.; read it with app.get_state\('r'\), or remove it with"
    ):
        app.invoke({}, run_id="r")


def test_a_run_of_another_workflow_is_left_alone(ran: list[str]) -> None:
    graph = abc(ran)
    graph.name = "billing"
    billing = graph.compile("memory://", interrupt_before=["b"])
    billing.invoke({}, run_id="r")
    graph.name = "mail"
    mail = graph.compile(billing.store)

    for touch in (mail.resume, mail.cancel, mail.delete):
        with pytest.raises(GraphChanged, match="run 'r' is of workflow 'billing', and this one is 'mail'"):
            touch("r")
    with pytest.raises(GraphChanged, match="is of workflow 'billing'"):
        mail.resume("billing")
    assert ran == ["a"] and billing.resume("r").status == RunStatus.COMPLETED


def test_an_input_beside_a_checkpoint_is_an_update_of_its_state(ran: list[str]) -> None:
    """R4.3: a resume with a state update."""
    store = crashed(abc(ran), at=2)
    app = abc(ran).compile(store)

    with pytest.raises(StateInvalid, match="either run_id= or checkpoint="):
        app.invoke(run_id="other", checkpoint="r")
    outcome = app.invoke({"n": 7}, checkpoint="r")
    assert outcome.status == RunStatus.COMPLETED and outcome.state["n"] == 7


def test_a_failed_run_runs_its_failed_step_again_and_the_error_says_how() -> None:
    """S1.15: recovery from a rate limit without repeating what is finished."""
    flaky = Flaky()
    calls: list[str] = []
    app = line(("first", lambda s: calls.append("first")), ("call", flaky)).compile(MemoryStore())
    with pytest.raises(
        ExecutionError, match=r"429 Too Many Requests; .*resume with app.resume\('r'\)"
    ) as caught:
        app.invoke({}, run_id="r")
    assert (caught.value.node, caught.value.run_id, caught.value.path) == ("call", "r", ("first", "call"))
    assert isinstance(caught.value.cause, RuntimeError)
    flaky.works = True

    assert app.resume("r").state["log"] == ["flaky"]
    assert calls == ["first"] and flaky.calls == 2


def test_a_resume_tells_which_checkpoint_it_loads_and_where_it_goes_on(ran: list[str]) -> None:
    """S3.17."""
    store = crashed(abc(ran), at=3)
    events: list[Event] = []

    abc(ran).compile(store).resume("r", observer=events.append)

    loaded, resumed = (
        event for event in events if event.type.startswith("checkpoint.") and event.node == "b"
    )
    assert (loaded.type, dict(loaded.data)) == ("checkpoint.load", {"node": "b", "run_id": "r"})
    assert (resumed.type, dict(resumed.data)) == (
        "checkpoint.resume",
        {"checkpoint_node": "b", "resume_node": "c", "run_id": "r"},
    )


# Steps that were running when the process died.


def in_doubt(ran: list[str], wish: Any, **more: Any) -> tuple[App, MemoryStore]:
    """An app and a store in which step `b` has an intent and no outcome."""
    graph = abc(ran, b={"if_interrupted": wish, **more})
    store = crashed(graph, at=2)
    assert ran == ["a"]
    return graph.compile(store), store


def test_an_interrupted_step_runs_again_unless_told_otherwise(ran: list[str]) -> None:
    """S1.4."""
    app, _ = in_doubt(ran, None)

    assert app.resume("r").state["log"] == ["a", "b", "c"]


def test_an_interrupted_step_can_be_passed_over(ran: list[str]) -> None:
    """S1.4: skip to the next."""
    app, _ = in_doubt(ran, "skip")

    assert app.resume("r").state["log"] == ["a", "c"]
    assert ran == ["a", "c"]


@pytest.mark.parametrize(("answer", "log"), [("rerun", ["a", "b", "c"]), ("skip", ["a", "c"])])
def test_somebody_can_be_asked_about_an_interrupted_step(ran: list[str], answer: str, log: list[str]) -> None:
    """S1.4: prompt the user for a re-run."""
    app, _ = in_doubt(ran, "ask")

    paused = app.resume("r")

    assert paused.status == RunStatus.PAUSED and ran == ["a"]
    (pause,) = paused.pauses
    assert (pause.kind, pause.node, pause.schema) == ("in_doubt", "b", {"enum": ["rerun", "skip", "fail"]})
    assert "may or may not have taken effect" in pause.prompt
    with pytest.raises(AnswerRejected):
        app.resume("r", answer="perhaps")
    assert app.resume("r", answer=answer).state["log"] == log


def test_an_interrupted_step_that_may_not_be_repeated_fails_until_somebody_decides(ran: list[str]) -> None:
    app, _ = in_doubt(ran, "fail")

    for _ in range(2):
        with pytest.raises(ExecutionError, match=r"may or may not have taken effect.*if_interrupted='rerun'"):
            app.resume("r")
    assert ran == ["a"]
    assert app.resume("r", if_interrupted="rerun").state["log"] == ["a", "b", "c"]


def test_the_answer_fail_stops_the_run_and_the_question_can_be_answered_otherwise_later(
    ran: list[str],
) -> None:
    app, _ = in_doubt(ran, "ask")
    app.resume("r")
    with pytest.raises(ExecutionError, match="may or may not have taken effect"):
        app.resume("r", answer="fail")

    paused = app.resume("r")

    assert paused.status == RunStatus.PAUSED and ran == ["a"]
    assert app.resume("r", answer="skip").state["log"] == ["a", "c"]


def test_a_node_declared_not_idempotent_is_never_repeated_unasked(ran: list[str]) -> None:
    app, _ = in_doubt(ran, None, idempotent=False)

    with pytest.raises(ExecutionError, match="is not repeated unasked"):
        app.resume("r")
    assert ran == ["a"]
    assert app.resume("r", if_interrupted="skip").state["log"] == ["a", "c"]


def test_a_node_declared_not_idempotent_runs_when_it_was_not_interrupted(ran: list[str]) -> None:
    graph = abc(ran, b={"idempotent": False})
    store = crashed(graph, at=1)

    assert graph.compile(store).resume("r").state["log"] == ["a", "b", "c"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("found", "log"),
    [
        (None, ["a", "b", "c"]),
        (False, ["a", "b", "c"]),
        (True, ["a", "c"]),
        ({"log": ["b was done"]}, ["a", "b was done", "c"]),
    ],
)
def test_a_node_can_look_at_the_world_to_tell_whether_it_was_done(
    ran: list[str], found: Any, log: list[str], is_async: bool
) -> None:
    looked: list[str] = []

    def look(ctx: Context) -> Any:
        looked.append(ctx.idempotency_key)
        return found

    async def look_async(ctx: Context) -> Any:
        return look(ctx)

    app, _ = in_doubt(ran, look_async if is_async else look)

    assert app.resume("r").state["log"] == log
    assert looked == ["r:b#1"]


def test_a_look_at_the_world_that_fails_leaves_the_step_in_doubt(ran: list[str]) -> None:
    answers: list[Any] = [ConnectionError("no route to host"), True]

    def look(ctx: Context) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    app, _ = in_doubt(ran, look)
    with pytest.raises(ExecutionError, match="no route to host"):
        app.resume("r")

    assert app.resume("r").state["log"] == ["a", "c"]
    assert ran == ["a", "c"]


@pytest.mark.parametrize(("override", "log"), [("skip", ["a", "c"]), ("rerun", ["a", "b", "c"])])
def test_a_resume_can_override_what_the_nodes_say(ran: list[str], override: str, log: list[str]) -> None:
    app, _ = in_doubt(ran, "ask")

    assert app.resume("r", if_interrupted=override).state["log"] == log


def test_a_resume_can_ask_about_nodes_that_would_rerun(ran: list[str]) -> None:
    app, _ = in_doubt(ran, "rerun")

    assert app.resume("r", if_interrupted="ask").pauses[0].kind == "in_doubt"
    with pytest.raises(HoldfastError, match="if_interrupted must be one of 'rerun', 'skip', 'ask', 'fail'"):
        app.resume("r", if_interrupted="retry")


DEADLY = """
import os, signal, sys
from holdfast import END, START, StateGraph

def deadly(state):
    open(sys.argv[2], "a").write("x")
    if os.path.getsize(sys.argv[2]) <= 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"survived": True}

graph = StateGraph(dict, name="w")
graph.add_node("deadly", deadly)
graph.add_edge(START, "deadly"); graph.add_edge("deadly", END)
app = graph.compile(sys.argv[1], durability="process")
"""


@pytest.mark.parametrize(("answer", "state"), [("rerun", "{'survived': True}"), ("skip", "{}")])
def test_a_step_that_keeps_killing_its_process_pauses_the_run(
    tmp_path: Path, answer: str, state: str
) -> None:
    """Three real deaths by SIGKILL, then a question instead of a fourth."""
    url, ledger = f"sqlite:///{tmp_path}/runs.db", tmp_path / "ledger"
    assert python(DEADLY + 'app.invoke({}, run_id="r")', url, str(ledger)).returncode == -signal.SIGKILL
    for _ in range(2):
        assert python(DEADLY + 'app.resume("r")', url, str(ledger)).returncode == -signal.SIGKILL

    asked = python(
        DEADLY + 'print(app.resume("r").pauses[0].kind, app.pauses("r")[0].prompt)', url, str(ledger)
    )

    assert asked.stdout.startswith("poison step 'deadly' was started 3 times without a stored outcome")
    assert ledger.read_text() == "xxx"
    done = python(DEADLY + f'print(app.resume("r", answer="{answer}").state.to_dict())', url, str(ledger))
    assert done.stdout.strip() == state, done.stderr


def test_a_poison_step_that_is_told_to_rerun_gets_three_more_lives(ran: list[str]) -> None:
    store = crashed(abc(ran), at=1)

    def die(**given: Any) -> None:
        with pytest.raises(Crash):
            abc(ran).compile(CrashingStore(store, 1, "acknowledged", raise_crash)).resume("r", **given)

    die()
    die()
    app = abc(ran).compile(store)
    assert app.resume("r").pauses[0].kind == "poison"
    die(answer="rerun")
    die()
    die()
    assert app.resume("r").pauses[0].kind == "poison"
    assert ran == []
    assert app.resume("r", answer="rerun").state["log"] == ["a", "b", "c"]


def test_a_poison_step_can_be_overridden_at_the_resume(ran: list[str]) -> None:
    store = crashed(abc(ran), at=1)
    for _ in range(2):
        with pytest.raises(Crash):
            abc(ran).compile(CrashingStore(store, 1, "acknowledged", raise_crash)).resume("r")

    assert abc(ran).compile(store).resume("r", if_interrupted="rerun").state["log"] == ["a", "b", "c"]


# Half-finished work.


class Straggler:
    """The work of several siblings, of which one is still running when the others have been saved."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.ran: list[str] = []

    def step(self, state: Any, ctx: Context) -> dict[str, Any]:
        self.ran.append(ctx.step)
        if state["n"] == 2:
            assert self.release.wait(60)
        return {"total": state["n"], "log": [f"did {state['n']}"]}


def finished(store: MemoryStore) -> set[str]:
    """The steps that the journal holds as finished."""
    codec, track = Codec(), Track()
    records = [record for entry in store.read("r") for record in decode_records(entry.body, track, codec)]
    return {record.step for record in records if isinstance(record, (StepFinished, StepAdvanced))}


def fan_out(straggler: Straggler) -> StateGraph:
    graph = StateGraph(Work, name="w")
    graph.add_node("split", lambda s: {"log": ["split"]})
    graph.add_node("item", straggler.step)
    graph.add_node("end", lambda s: {"log": ["end"]})
    graph.add_edge(START, "split")
    graph.add_conditional_edges(
        "split", lambda s: [Send("item", {"n": n}, key=f"k{n}") for n in range(1, 6)], ["item"]
    )
    graph.add_edge("item", "end")
    graph.add_edge("end", END)
    return graph


def test_only_the_unfinished_items_of_a_for_each_run_again() -> None:
    """S1.16 (b): results are kept item by item."""
    straggler = Straggler()
    store = crashed(fan_out(straggler), at=3, values={"n": 0})
    straggler.release.set()
    kept = finished(store)
    assert "split#1" in kept and len(kept) > 1 and "item#1[k2]" not in kept
    straggler.ran.clear()

    outcome = fan_out(straggler).compile(store).resume("r")

    assert set(straggler.ran) == {f"item#1[k{n}]" for n in range(1, 6)} - kept
    assert outcome.state["total"] == 15
    assert outcome.state["log"] == ["split", *(f"did {n}" for n in range(1, 6)), "end"]


@pytest.mark.parametrize("max_parallel", [1, 2])
def test_a_for_each_with_little_room_goes_on_where_it_was(max_parallel: int) -> None:
    straggler = Straggler()
    straggler.release.set()
    store = crashed(fan_out(straggler), at=4, values={"n": 0}, max_parallel=max_parallel)
    kept = finished(store)
    assert len(kept) > 1
    straggler.ran.clear()

    outcome = fan_out(straggler).compile(store, max_parallel=max_parallel).resume("r")

    assert set(straggler.ran) == {f"item#1[k{n}]" for n in range(1, 6)} - kept
    assert outcome.state["log"] == ["split", *(f"did {n}" for n in range(1, 6)), "end"]


def test_a_sibling_that_finishes_after_the_others_were_saved_is_taken_in() -> None:
    straggler = Straggler()

    def observe(event: Event) -> None:
        if event.type == "node.complete" and event.node == "item":
            straggler.release.set()

    outcome = fan_out(straggler).compile(MemoryStore()).invoke({"n": 0}, observer=observe)

    assert outcome.state["log"] == ["split", *(f"did {n}" for n in range(1, 6)), "end"]


def test_only_the_failed_member_of_a_wave_runs_again() -> None:
    """S1.15, S1.16 (a): members of a parallel group are kept one by one."""
    calls: dict[str, int] = {"left": 0, "right": 0}
    flaky = Flaky()

    def side(state: Any, ctx: Context) -> dict[str, Any]:
        calls[ctx.node] += 1
        return {"log": [ctx.node]}

    graph = StateGraph(Work, name="w")
    for name, function in (("left", side), ("bad", flaky), ("right", side)):
        graph.add_node(name, function)
        graph.add_edge(START, name)
    app = graph.compile(MemoryStore())
    with pytest.raises(ExecutionError, match="step 'bad' failed"):
        app.invoke({}, run_id="r")
    flaky.works = True

    outcome = app.resume("r")

    assert calls == {"left": 1, "right": 1}
    assert outcome.state["log"] == ["left", "flaky", "right"]


def test_a_half_arrived_join_waits_for_the_rest_after_a_resume(ran: list[str]) -> None:
    def step(state: Any, ctx: Context) -> dict[str, Any]:
        ran.append(ctx.node)
        return {"log": [ctx.node]}

    def graph() -> StateGraph:
        graph = StateGraph(Work, name="w")
        for name in ("short", "long", "longer", "join"):
            graph.add_node(name, step)
        graph.add_edge(START, "short")
        graph.add_edge(START, "long")
        graph.add_edge("long", "longer")
        graph.add_edge(["short", "longer"], "join")
        graph.add_edge("join", END)
        return graph

    store = crashed(graph(), at=2)
    assert sorted(ran) == ["long", "short"]
    ran.clear()

    assert graph().compile(store).resume("r").state["log"] == ["short", "long", "longer", "join"]
    assert ran == ["longer", "join"]


def test_attempts_are_counted_across_a_crash() -> None:
    seen: list[int] = []

    def failing(state: Any, ctx: Context) -> None:
        seen.append(ctx.attempt)
        raise RuntimeError("down")

    graph = line(("call", failing), call={"retry": Retry(attempts=3, delay=0)})
    store = crashed(graph, at=2)
    assert seen == [1]

    with pytest.raises(ExecutionError, match="down"):
        graph.compile(store).resume("r")

    assert seen[0] == 1 and seen[-1] == 3 and len(seen) <= 3


def test_a_resume_after_the_last_attempt_failed_starts_counting_anew() -> None:
    seen: list[int] = []

    def failing(state: Any, ctx: Context) -> None:
        seen.append(ctx.attempt)
        raise RuntimeError("down")

    app = line(("call", failing), call={"retry": Retry(attempts=2, delay=0)}).compile(MemoryStore())
    for _ in range(2):
        with pytest.raises(ExecutionError):
            app.invoke({}, run_id="r") if not seen else app.resume("r")

    assert seen == [1, 2, 3, 4]


def test_the_iteration_budget_survives_a_crash(ran: list[str]) -> None:
    """S3.19, and no resume resets the count."""

    def graph() -> StateGraph:
        graph = StateGraph(Work, name="w", max_iterations=5)
        graph.add_node("turn", lambda s: ran.append("turn"))
        graph.add_edge(START, "turn")
        graph.add_edge("turn", "turn", when=lambda s: True)
        graph.add_edge("turn", END)
        return graph

    store = crashed(graph(), at=4)
    assert len(ran) == 3

    for _ in range(2):
        with pytest.raises(MaxIterationsExceeded, match=r"max iterations \(5\) exceeded"):
            graph().compile(store).resume("r")
        assert len(ran) == 5


def test_visits_are_counted_across_a_crash() -> None:
    steps: list[str] = []

    def turn(state: Any, ctx: Context) -> dict[str, Any]:
        steps.append(ctx.step)
        return {"n": state["n"] + 1}

    graph = StateGraph(Work, name="w")
    graph.add_node("turn", turn)
    graph.add_edge(START, "turn")
    graph.add_edge("turn", "turn", when=lambda s: s["n"] < 4)
    graph.add_edge("turn", END)
    store = crashed(graph, at=3, values={"n": 0})

    graph.compile(store).resume("r")

    assert steps == ["turn#1", "turn#2", "turn#3", "turn#4"]


# Config, updates and gates.


def test_the_saved_config_is_restored_and_the_callers_wins() -> None:
    """S0.22, S4.12."""
    flaky = Flaky()
    seen: list[dict[str, Any]] = []

    def look(state: Any, config: Mapping[str, Any]) -> None:
        seen.append(dict(config))

    app = line(("flaky", flaky), ("look", look)).compile(MemoryStore())
    with pytest.raises(ExecutionError):
        app.invoke({}, run_id="r", config={"model": "small", "timeout": 5})
    with pytest.raises(ExecutionError):
        app.resume("r", config={"model": "large"})
    flaky.works = True

    app.resume("r", config={"extra": True})

    assert seen == [{"model": "large", "timeout": 5, "extra": True}]


def test_an_update_changes_the_state_before_the_run_goes_on_through_the_reducers() -> None:
    flaky = Flaky()
    app = line(("flaky", flaky), ("end", lambda s: {"n": s["n"] * 2})).compile(MemoryStore())
    with pytest.raises(ExecutionError):
        app.invoke({"n": 1, "log": ["in"]}, run_id="r")
    with pytest.raises(StateInvalid, match="unknown state key 'm'"):
        app.resume("r", update={"m": 1})
    flaky.works = True

    outcome = app.resume("r", update={"n": 21, "log": ["edited"], "total": 3})

    assert outcome.state.to_dict() == {"n": 42, "total": 3, "log": ["in", "edited", "flaky"]}


def test_a_crash_before_a_gate_does_not_open_it(ran: list[str]) -> None:
    """A resume of a crashed run is no approval."""
    store = crashed(abc(ran), at=1, interrupt_before=["b"])
    app = abc(ran).compile(store, interrupt_before=["b"])

    gated = app.resume("r")

    assert gated.status == RunStatus.PAUSED and gated.pauses[0].kind == "before" and ran == ["a"]
    assert app.resume("r").status == RunStatus.COMPLETED and ran == ["a", "b", "c"]


def test_a_crash_while_pausing_does_not_open_the_gate(ran: list[str]) -> None:
    for point in ("before", "committed"):
        ran.clear()
        store = crashed(abc(ran), at=2, point=point, interrupt_before=["b"])  # type: ignore[arg-type]
        app = abc(ran).compile(store, interrupt_before=["b"])
        outcome = app.resume("r")
        while "b" not in ran and outcome.status == RunStatus.PAUSED:
            assert outcome.pauses[0].kind == "before"
            outcome = app.resume("r")
        assert outcome.status == RunStatus.COMPLETED
        assert ran == (["a", "a", "b", "c"] if point == "before" else ["a", "b", "c"])


def test_an_approval_is_for_one_visit_only() -> None:
    graph = StateGraph(Work, name="w")
    graph.add_node("pay", lambda s: {"n": s["n"] + 1})
    graph.add_edge(START, "pay")
    graph.add_edge("pay", "pay", when=lambda s: s["n"] < 3)
    graph.add_edge("pay", END)
    app = graph.compile(MemoryStore(), interrupt_before=["pay"])

    states = [app.invoke({"n": 0}, run_id="r")]
    while states[-1].status == RunStatus.PAUSED:
        states.append(app.resume("r"))

    assert [outcome.state["n"] for outcome in states] == [0, 1, 2, 3]


def test_an_older_checkpoint_closes_the_gates_behind_it_again(ran: list[str]) -> None:
    app = abc(ran).compile(MemoryStore(), interrupt_before=["b"])
    app.invoke({}, run_id="r")
    app.resume("r")
    first = app.checkpoints("r")[0]

    forked = app.resume(first.id)

    assert forked.status == RunStatus.PAUSED and ran == ["a", "b", "c"]
    assert app.resume(forked.run_id).status == RunStatus.COMPLETED


def test_a_gate_survives_a_cancellation(ran: list[str]) -> None:
    app = abc(ran).compile(MemoryStore(), interrupt_before=["b"])
    app.invoke({}, run_id="r")
    app.cancel("r")

    again = app.resume("r")

    assert again.status == RunStatus.PAUSED and ran == ["a"]
    assert app.resume("r").status == RunStatus.COMPLETED


def test_resuming_a_run_that_waits_for_an_answer_without_one_changes_nothing() -> None:
    calls: list[int] = []

    def ask(state: Any, ctx: Context) -> dict[str, Any]:
        calls.append(1)
        return {"log": [ctx.ask("Publish?", name="publish")]}

    app = line(("ask", ask)).compile(MemoryStore())
    app.invoke({}, run_id="r")
    before = list(app.store.read("r"))

    outcome = app.resume("r")

    assert outcome.status == RunStatus.PAUSED and outcome.pauses[0].name == "publish"
    assert list(app.store.read("r")) == before and calls == [1]
    assert app.resume("r", answers={"publish": "yes"}).state["log"] == ["yes"]


def test_an_answer_is_not_lost_when_the_process_dies_right_after_it_was_given() -> None:
    def graph() -> StateGraph:
        return line(("ask", lambda state, ctx: {"log": [ctx.ask("Publish?", name="publish")]}))

    store = MemoryStore()
    graph().compile(store).invoke({}, run_id="r")
    with pytest.raises(Crash):
        graph().compile(CrashingStore(store, 1, "acknowledged", raise_crash)).resume("r", answer="yes")

    assert graph().compile(store).resume("r").state["log"] == ["yes"]


async def test_a_run_can_be_resumed_from_async_code(ran: list[str]) -> None:
    store = crashed(abc(ran), at=2)
    app = abc(ran).compile(store)

    assert (await app.aresume("r")).state["log"] == ["a", "b", "c"]


def test_a_stream_of_a_resumed_run_tells_only_what_happens_now(ran: list[str]) -> None:
    store = crashed(abc(ran), at=3)
    app = abc(ran).compile(store)

    events = list(app.stream(checkpoint="r"))

    assert [event.node for event in events if event.type == "node.complete"] == ["c"]
