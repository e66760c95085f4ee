"""Speculation: steps on guessed inputs run ahead, count only if the guess was right, and leave no other trace."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from holdfast import (
    END,
    START,
    App,
    Command,
    Context,
    GraphInvalid,
    HoldfastError,
    Outcome,
    Retry,
    RunStatus,
    Send,
    StateGraph,
    add,
    append,
)
from holdfast.journal.journal import Journal
from holdfast.journal.records import Described, Record, RunStarted, StepFailed, StepFinished, WaveFinished
from holdfast.state.codec import Codec
from holdfast.workflows import WorkflowInvalid, load_workflow
from tests.graphs import Heard, highest

LONG = 60.0
"""Seconds that nobody waits for unless something is broken."""


class Work(TypedDict, total=False):
    n: int
    other: int
    log: Annotated[list[str], append]
    items: list[int]
    total: Annotated[int, add]
    top: Annotated[int, highest]


class Pace:
    """A first step that goes on only when steps ahead of it have run, and the names of all that ran, in order."""

    def __init__(self, wait_for: int = 1) -> None:
        self.ran: list[str] = []
        self._enough, self._wait_for, self._lock = threading.Event(), wait_for, threading.Lock()

    def note(self, name: str) -> None:
        with self._lock:
            self.ran.append(name)
            if len(self.ran) >= self._wait_for:
                self._enough.set()

    def first(self, state: Any) -> dict[str, Any]:
        assert self._enough.wait(LONG), "nothing ran ahead"
        return {"n": state["n"] + 1}

    def second(self, state: Any) -> dict[str, Any]:
        self.note(f"second of {state['n']}")
        return {"n": state["n"] * 10}

    async def third(self, state: Any) -> dict[str, Any]:
        self.note(f"third of {state['n']}")
        return {"n": state["n"] + 5}


def chain(*nodes: tuple[str, Any, dict[str, Any]], **options: Any) -> StateGraph:
    graph = StateGraph(Work, name="chain", **options)
    before = START
    for name, function, more in nodes:
        graph.add_node(name, function, **more).add_edge(before, name)
        before = name
    return graph.add_edge(before, END)


def three(pace: Pace, **more: Any) -> StateGraph:
    pure = {"pure": True, **more}
    return chain(("first", pace.first, {}), ("second", pace.second, pure), ("third", pace.third, pure))


def history(app: App, run: str) -> list[list[Record]]:
    """The records of a run by waves, without times; those of parallel steps are put into one order."""
    journal = Journal(app.store)
    _, entries = journal.history(journal.info(run), Codec())
    waves: list[list[Record]] = [[]]
    for record in (record for _, found in entries for record in found):
        if not isinstance(record, Described):
            waves[-1].append(_timeless(record))
        if isinstance(record, WaveFinished):
            waves.append([])
    return [sorted(wave, key=lambda record: (type(record).__name__, repr(record[0]))) for wave in waves]


def _timeless(record: Record) -> Record:
    if isinstance(record, StepFinished):
        return record._replace(seconds=0.0)
    if isinstance(record, StepFailed):
        later = None if record.retry_at is None else 0.0
        return record._replace(seconds=0.0, retry_at=later, fault=record.fault._replace(trace=""))
    return record._replace(owner="") if isinstance(record, RunStarted) else record


def test_a_right_guess_is_taken_and_its_step_runs_once() -> None:
    """S0.17: what ran ahead counts once it is confirmed, and the gain is shown."""
    pace, heard = Pace(wait_for=2), Heard()
    guesses = {"first": lambda state: {"n": state["n"] + 1}, "second": {"n": 20}}

    outcome = three(pace).compile("memory://", speculate=guesses).invoke({"n": 1}, observer=heard)

    assert outcome.state["n"] == 25
    assert sorted(pace.ran) == ["second of 2", "third of 20"]
    assert (outcome.stats.steps_speculated, outcome.stats.guesses_dropped) == (2, 0)
    assert outcome.stats.steps_run == 3 and outcome.stats.seconds_gained >= 0
    assert [event.node for event in heard.of("node.speculate")] == ["second", "third"]
    assert heard.types.count("node.complete") == 3


def test_what_ran_ahead_is_a_better_guess_than_any() -> None:
    """A step ahead whose own result is there leads on without a guess."""
    pace = Pace(wait_for=2)

    outcome = three(pace).compile("memory://", speculate={"first": {"n": 2}}).invoke({"n": 1})

    assert outcome.state["n"] == 25 and outcome.stats.steps_speculated == 2
    assert pace.ran == ["second of 2", "third of 20"]


def test_a_wrong_guess_is_dropped_and_the_step_runs_as_ever() -> None:
    pace = Pace(wait_for=2)

    outcome = three(pace).compile("memory://", speculate={"first": {"n": 7}}).invoke({"n": 1})

    assert outcome.state["n"] == 25
    assert sorted(pace.ran) == ["second of 2", "second of 7", "third of 20", "third of 70"]
    assert (outcome.stats.steps_speculated, outcome.stats.guesses_dropped) == (0, 2)
    assert outcome.stats.seconds_gained == 0.0


@pytest.mark.parametrize("guess", [{"n": 2}, {"n": 7}])
def test_the_journal_is_that_of_a_run_without_speculation(guess: Any, sqlite_url: str) -> None:
    """S0.17: a step that ran ahead is recorded as any other, one that was dropped not at all."""
    pace = Pace(wait_for=2)
    plain = three(pace).compile(sqlite_url)
    guessing = three(pace).compile(plain.store, speculate={"first": guess})

    guessing.invoke({"n": 1}, run_id="ahead")
    plain.invoke({"n": 1}, run_id="plain")

    assert history(plain, "ahead") == history(plain, "plain")
    assert [c.next for c in plain.checkpoints("ahead")] == [c.next for c in plain.checkpoints("plain")]


def test_a_step_with_effects_never_runs_ahead() -> None:
    pace = Pace(wait_for=1)
    effects: list[int] = []

    def effect(state: Any) -> dict[str, Any]:
        effects.append(state["n"])
        return {"n": state["n"] * 10}

    graph = chain(("first", pace.first, {}), ("effect", effect, {}), ("third", pace.third, {"pure": True}))
    guesses: dict[str, Any] = {"first": {"n": 7}, "effect": {"n": 70}}

    outcome = graph.compile("memory://", speculate=guesses).invoke({"n": 1})

    assert effects == [2] and outcome.state["n"] == 25
    assert pace.ran == ["third of 70", "third of 20"], "a guess may lead past a step that does not run ahead"


ASKS: dict[str, Callable[[Any, Context], object]] = {
    "once": lambda state, ctx: ctx.once("key", lambda: 1),
    "ask": lambda state, ctx: ctx.ask("Go on?", default=1, timeout=0.0),
    "ask_all": lambda state, ctx: ctx.ask_all({"go": {"prompt": "Go on?"}}),
    "sleep": lambda state, ctx: ctx.sleep(0),
    "emit": lambda state, ctx: ctx.emit("hello"),
    "stream": lambda state, ctx: ctx.stream("hello"),
    "spend": lambda state, ctx: ctx.spend("model", cost=1.0),
    "spent": lambda state, ctx: ctx.spent,
    "granted": lambda state, ctx: ctx.granted,
    "idempotency_key": lambda state, ctx: ctx.idempotency_key,
    "checkpoint_id": lambda state, ctx: state.checkpoint_id,
}


@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize("name", [name for name in ASKS if not name.startswith("ask")])
def test_asking_for_an_effect_ends_the_speculation(name: str, swallowed: bool) -> None:
    pace, heard = Pace(wait_for=1), Heard()

    def second(state: Any, ctx: Context) -> dict[str, Any]:
        pace.note("begun")
        try:
            ASKS[name](state, ctx)
        except BaseException:
            if not swallowed:
                raise
        pace.note("ended")
        return {"n": state["n"] * 10}

    graph = chain(("first", pace.first, {}), ("second", second, {"pure": True}))

    outcome = graph.compile("memory://", speculate={"first": {"n": 2}}).invoke({"n": 1}, observer=heard)

    assert outcome.state["n"] == 20
    assert pace.ran == ["begun", *(["ended"] if swallowed else []), "begun", "ended"]
    assert (outcome.stats.steps_speculated, outcome.stats.guesses_dropped) == (0, 1)
    assert len(heard.of("node.message")) == (name == "emit") and outcome.stats.cost == (name == "spend")


def test_every_method_of_the_context_is_a_fact_or_ends_the_speculation() -> None:
    """A new method of `Context` is to be sorted: does it have an effect?"""
    facts = {"run_id", "step", "node", "visit", "item_key", "attempt", "config", "log", "recall"}
    of_the_attempt = {"cancelled", "heartbeat"}
    ending = {*ASKS} - {"checkpoint_id"}

    assert {name for name in dir(Context) if not name.startswith("_")} == facts | of_the_attempt | ending


def test_a_node_that_is_given_the_graph_does_not_run_ahead() -> None:
    pace, seen = Pace(wait_for=0), list[int]()
    pace._enough.set()

    def second(state: Any, graph: App) -> None:
        seen.append(state["n"])

    app = chain(("first", pace.first, {}), ("second", second, {"pure": True})).compile(
        "memory://", speculate={"first": {"n": 7}}
    )

    assert app.invoke({"n": 1}).stats.guesses_dropped == 1 and seen == [2]


def test_a_question_is_asked_when_its_step_has_begun() -> None:
    pace = Pace(wait_for=1)

    def second(state: Any, ctx: Context) -> dict[str, Any]:
        pace.note("second")
        return {"n": ctx.ask("How many?")}

    app = chain(("first", pace.first, {}), ("second", second, {"pure": True})).compile(
        "memory://", speculate={"first": {"n": 2}}
    )

    paused = app.invoke({"n": 1})

    assert paused.status == RunStatus.PAUSED and paused.stats.guesses_dropped == 1
    assert app.resume(paused.run_id, 9).state["n"] == 9


def test_facts_of_a_step_are_known_ahead() -> None:
    pace, seen = Pace(wait_for=1), list[Any]()

    def second(state: Any, ctx: Context, config: Any) -> dict[str, Any]:
        seen.append(
            (
                ctx.run_id,
                ctx.step,
                ctx.visit,
                ctx.attempt,
                ctx.recall("x"),
                state.checkpoint_node,
                config["a"],
            )
        )
        ctx.heartbeat()
        pace.note("second")
        return {"n": 3}

    app = chain(("first", pace.first, {}), ("second", second, {"pure": True, "timeout": LONG})).compile(
        "memory://", speculate={"first": {"n": 2}}
    )

    outcome = app.invoke({"n": 1}, run_id="r", config={"a": 1})

    assert outcome.stats.steps_speculated == 1
    assert seen == [("r", "second#1", 1, 1, None, "first", 1)]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, StopIteration])
def test_what_a_step_raises_ahead_is_not_taken(error: type[BaseException]) -> None:
    """A failure ahead, right guess or wrong, is no attempt: the step is tried as often as its policy says."""
    pace, attempts = Pace(wait_for=1), list[int]()

    def second(state: Any, ctx: Context) -> dict[str, Any]:
        attempts.append(ctx.attempt)
        pace.note("second")
        if len(attempts) < 3:
            raise error("no") if len(attempts) == 1 else ValueError("no")
        return {"n": 3}

    retry = Retry(attempts=2, delay=0)
    app = chain(("first", pace.first, {}), ("second", second, {"pure": True, "retry": retry})).compile(
        "memory://", speculate={"first": {"n": 2}}
    )

    outcome = app.invoke({"n": 1})

    assert outcome.state["n"] == 3 and attempts == [1, 1, 2]
    assert (outcome.stats.retries, outcome.stats.guesses_dropped) == (1, 1)


def test_a_guess_that_fails_is_reported_once_and_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    def broken(state: Any) -> Any:
        raise ValueError("cannot guess")

    graph = StateGraph(Work, name="loop")
    graph.add_node("work", lambda state: {"n": state["n"] + 1}, pure=True)
    graph.add_edge(START, "work").add_edge("work", "work", when=lambda state: state["n"] < 5).add_edge(
        "work", END
    )

    with caplog.at_level(logging.WARNING, "holdfast"):
        outcome = graph.compile("memory://", speculate={"work": broken}).invoke({"n": 0})

    assert outcome.state["n"] == 5 and outcome.stats.steps_speculated == 0
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "the guess for node 'work' failed, and nothing runs ahead of it: ValueError: cannot guess"
    ]


def test_a_guess_of_none_is_no_guess() -> None:
    graph = chain(("a", lambda state: {"n": 1}, {}), ("b", lambda state: {"n": 2}, {"pure": True}))

    outcome = graph.compile("memory://", speculate={"a": lambda state: None}).invoke({"n": 0})

    assert (outcome.stats.steps_speculated, outcome.stats.guesses_dropped) == (0, 0)


@pytest.mark.parametrize("guess", ["yes", {"other": 1}, Command({"other": 1}, goto="yes"), "no"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_branch_is_guessed(guess: Any, is_async: bool) -> None:
    pace = Pace(wait_for=0 if is_async and guess == {"other": 1} else 1)

    def judge(state: Any) -> dict[str, Any] | None:
        pace.first(state) if pace._wait_for else None
        return {"other": 1} if not isinstance(guess, str) else None

    def route(state: Any) -> str:
        return "yes"

    async def route_async(state: Any) -> str:
        await asyncio.sleep(0)
        return "yes"

    graph = StateGraph(Work, name="branch")
    graph.add_node("judge", judge).add_edge(START, "judge")
    for name in ("yes", "no"):
        graph.add_node(name, lambda state, ctx: pace.note(ctx.node) or {"log": [ctx.node]}, pure=True)
        graph.add_edge(name, END)
    graph.add_conditional_edges("judge", route_async if is_async else route, ["yes", "no"])

    outcome = graph.compile("memory://", speculate={"judge": guess}).invoke({"n": 1})

    unknown = is_async and guess == {"other": 1}
    assert outcome.state["log"] == ["yes"]
    assert outcome.stats.steps_speculated == (guess != "no" and not unknown)
    assert pace.ran == (["no", "yes"] if guess == "no" else ["yes"])


def test_a_node_that_reads_little_is_guessed_by_that_alone() -> None:
    pace = Pace(wait_for=1)

    def first(state: Any) -> dict[str, Any]:
        return {**pace.first(state), "other": 5}

    for reads, taken in ((["n"], 1), (["n", "other"], 0)):
        graph = chain(("first", first, {}), ("second", pace.second, {"pure": True, "reads": reads}))
        outcome = graph.compile("memory://", speculate={"first": {"n": 2, "other": 6}}).invoke({"n": 1})
        assert outcome.state["n"] == 20 and outcome.stats.steps_speculated == taken


def test_a_list_that_grew_is_recorded_as_growth() -> None:
    """What a step returns is compared with what it was given, not with values that are only equal to those."""
    pace = Pace(wait_for=1)

    def first(state: Any) -> dict[str, Any]:
        return {**pace.first(state), "items": [*state["items"], 1000]}

    def second(state: Any) -> dict[str, Any]:
        pace.note("second")
        return {"items": [*state["items"], 2000]}

    graph = chain(("first", first, {}), ("second", second, {"pure": True}))
    plain = graph.compile("memory://")
    guessing = graph.compile(plain.store, speculate={"first": {"n": 2, "items": [999, 1000]}})

    outcome = guessing.invoke({"n": 1, "items": [999]}, run_id="ahead")
    plain.invoke({"n": 1, "items": [999]}, run_id="plain")

    assert outcome.stats.steps_speculated == 1
    assert history(plain, "ahead") == history(plain, "plain")
    ops = [
        op.kind
        for record in history(plain, "ahead")[1]
        if isinstance(record, StepFinished)
        for op in record.ops
    ]
    assert ops == ["append"]


def test_items_and_steps_of_sub_graphs_run_ahead() -> None:
    pace = Pace(wait_for=4)

    def item(state: Any, ctx: Context) -> dict[str, Any]:
        pace.note(f"item {ctx.item_key}")
        return {"total": state["other"]}

    inner = StateGraph(Work, name="inner")
    inner.add_node("first", pace.first).add_edge(START, "first")
    inner.add_node("item", item, pure=True).add_edge("item", END)
    inner.add_conditional_edges(
        "first", lambda state: [Send("item", {"other": k}, key=str(k)) for k in range(4)], ["item"]
    )
    graph = (
        StateGraph(Work, name="outer")
        .add_node("outer", inner)
        .add_edge(START, "outer")
        .add_edge("outer", END)
    )

    outcome = graph.compile("memory://", speculate={"outer/first": {"n": 2}}).invoke({"n": 1})

    assert outcome.state["total"] == 6 and outcome.stats.steps_speculated == 4
    assert sorted(pace.ran) == [f"item {k}" for k in range(4)]


@pytest.mark.parametrize(
    ("options", "node", "most"),
    [({"max_ahead": 2}, {}, 2), ({"max_parallel": 3}, {}, 2), ({}, {"max_parallel": 1}, 1), ({}, {}, 8)],
)
def test_no_more_steps_run_ahead_than_are_allowed(options: Any, node: Any, most: int) -> None:
    """Threads whose guess was wrong count until they end: however many guesses fail, no more run at once."""
    lock, begun, release = threading.Lock(), threading.Event(), threading.Event()
    running, highest_seen, waves = 0, 0, 0

    def slow(state: Any) -> None:
        nonlocal running, highest_seen
        with lock:
            running, highest_seen = running + 1, max(highest_seen, running + 1)
        begun.set()
        assert release.wait(LONG)
        with lock:
            running -= 1

    def count(state: Any) -> dict[str, Any]:
        nonlocal waves
        waves += 1
        if waves == 30:
            assert begun.wait(LONG)
            release.set()
        return {"n": state["n"] + 1}

    graph = StateGraph(Work, name="many")
    graph.add_node("count", count).add_edge(START, "count")
    graph.add_node("slow", slow, pure=True, **node).add_edge("slow", END)
    graph.add_conditional_edges(
        "count",
        lambda state: "count" if state["n"] < 30 else END,
        ["count", "slow", END],
    )
    guess = Command(goto=[Send("slow", {"other": k}, key=str(k)) for k in range(9)])

    outcome = graph.compile("memory://", speculate={"count": guess}, **options).invoke({"n": 0})

    assert outcome.state["n"] == 30 and outcome.stats.steps_speculated == 0
    assert 1 <= highest_seen <= most


@pytest.mark.parametrize("gate", [{"interrupt_before": ["second"]}, {"interrupt_after": ["first"]}])
def test_nothing_runs_ahead_of_a_gate(gate: dict[str, Any]) -> None:
    pace = Pace(wait_for=0)
    pace._enough.set()
    app = three(pace).compile("memory://", speculate={"first": {"n": 2}}, **gate)

    paused = app.invoke({"n": 1})

    assert paused.status == RunStatus.PAUSED and pace.ran == []
    assert app.resume(paused.run_id).state["n"] == 25


@pytest.mark.parametrize("how", ["cancel", "pause", "fail"])
def test_a_run_that_stops_leaves_what_ran_ahead(how: str) -> None:
    cancelled, begun = threading.Event(), threading.Event()
    stopped = threading.Event()

    def first(state: Any, ctx: Context) -> dict[str, Any]:
        assert begun.wait(LONG)
        if stopped.is_set():
            return {"n": 2}
        stopped.set()
        if how == "fail":
            raise ValueError("no")
        getattr(app, how)(ctx.run_id)
        return {"n": 2}

    async def second(state: Any) -> dict[str, Any]:
        if stopped.is_set():
            return {"n": 20}
        begun.set()
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return {"n": 0}

    app = chain(("first", first, {}), ("second", second, {"pure": True})).compile(
        "memory://", speculate={"first": {"n": 2}}
    )
    try:
        status = app.invoke({"n": 1}, run_id="r").status
    except HoldfastError:
        status = RunStatus.FAILED

    assert status == {"cancel": "cancelled", "pause": "interrupted", "fail": "failed"}[how]
    assert cancelled.is_set()
    assert app.resume("r").state["n"] == 20


def test_an_interrupted_run_leaves_what_ran_ahead(sqlite_url: str) -> None:
    """Ctrl+C saves and stops the run; threads that ran ahead keep nobody waiting."""
    program = """
import os, signal, sys, threading, time
from holdfast import END, START, RunInterrupted, StateGraph
begun = threading.Event()
def first(state):
    begun.wait(60); os.kill(os.getpid(), signal.SIGINT); time.sleep(600)
def second(state):
    begun.set(); time.sleep(600)
graph = StateGraph(dict, name="w")
graph.add_node("first", first).add_node("second", second, pure=True)
graph.add_edge(START, "first").add_edge("first", "second").add_edge("second", END)
try:
    graph.compile(sys.argv[1], speculate={"first": {"n": 1}}).invoke({}, run_id="r")
except RunInterrupted as error:
    print(error.run_id)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, sqlite_url], capture_output=True, text=True, timeout=300, check=False
    )

    assert (done.stdout, done.returncode) == ("r\n", 0), done.stderr


def test_a_run_that_reuses_results_does_not_guess() -> None:
    pace = Pace(wait_for=2)
    app = three(pace).compile("memory://", speculate={"first": {"n": 2}})
    app.invoke({"n": 1}, run_id="r")

    again = app.invoke(reuse="r")

    assert again.stats.steps_reused == 3 and again.stats.guesses_dropped == 0


def test_ainvoke_speculates_too() -> None:
    pace = Pace(wait_for=2)

    outcome = asyncio.run(three(pace).compile("memory://", speculate={"first": {"n": 2}}).ainvoke({"n": 1}))

    assert outcome.state["n"] == 25 and outcome.stats.steps_speculated == 2


# What is refused.


def pure_chain() -> StateGraph:
    return chain(("first", lambda state: None, {}), ("second", lambda state: None, {"pure": True}))


async def guess_async(state: Any) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("guesses", "problem"),
    [
        ({"frist": {}}, "speculate: there is no node 'frist'; did you mean 'first'?"),
        ({"first": 5}, "the name of the next node, not 5"),
        ({"first": guess_async}, "the guess for node 'first' is async"),
        ({"first": {"m": 1}}, "the guess for node 'first' sets 'm', which is no key of the state"),
        ({"first": "secnod"}, "node not found: secnod"),
    ],
)
def test_a_guess_that_cannot_be_is_refused(guesses: Any, problem: str) -> None:
    with pytest.raises(GraphInvalid) as caught:
        pure_chain().compile("memory://", speculate=guesses)

    assert problem in str(caught.value)


def test_graphs_that_cannot_speculate_are_refused() -> None:
    plain = chain(("first", lambda state: None, {}))
    with pytest.raises(GraphInvalid, match="no node may run ahead"):
        plain.compile("memory://", speculate={"first": {}})
    elsewhere = chain(("first", lambda state: None, {"pure": True, "executor": "threads"}))
    with pytest.raises(GraphInvalid, match="is pure and has an executor"):
        elsewhere.compile("memory://", speculate={"first": {}})
    outer = StateGraph(Work, name="outer").add_node("inner", pure_chain()).add_edge(START, "inner")
    with pytest.raises(GraphInvalid, match="give guesses for its nodes, such as 'inner/first'"):
        outer.compile("memory://", speculate={"inner": {}})
    odd = chain(("first", lambda state: None, {"pure": "yes"}))
    with pytest.raises(GraphInvalid, match="pure='yes'; it must be True or False"):
        odd.compile("memory://")
    whole = StateGraph(Work, name="outer").add_node("inner", pure_chain(), pure=True).add_edge(START, "inner")
    with pytest.raises(GraphInvalid, match="is a sub-graph and takes no pure"):
        whole.compile("memory://")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_ahead": 2}, "give speculate= too"),
        ({"speculate": {}, "max_ahead": 0}, "max_ahead must be a whole number of at least 1, not 0"),
        ({"speculate": ["first"]}, "speculate must be a mapping"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Any, problem: str) -> None:
    with pytest.raises(HoldfastError, match=problem):
        pure_chain().compile("memory://", **options)


def test_workflow_files_refuse_speculation(tmp_path: Any) -> None:
    """S0.17: guesses are functions and belong to graphs in Python; a file that names them is refused."""
    file = tmp_path / "w.yaml"
    file.write_text("workflow: {name: w}\nsteps:\n  - name: a\n    set: {n: 1}\n    speculate: {n: 1}\n")

    with pytest.raises(WorkflowInvalid, match="unknown field 'speculate'"):
        load_workflow(file)


def test_a_graph_without_guesses_loads_nothing_of_speculation() -> None:
    program = (
        "import sys; from holdfast import START, StateGraph\n"
        "g = StateGraph(dict, name='w').add_node('a', lambda state: None, pure=True).add_edge(START, 'a')\n"
        "g.compile('memory://').invoke({}); print('holdfast.engine.speculation' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


# Whatever is guessed, a run is the same.


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    """A graph of layers, what its nodes do, and what is guessed of them."""
    layers = draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    names = [f"n{index}" for index in range(sum(layers))]
    each = st.fixed_dictionaries(
        {
            "pure": st.sampled_from([True, True, True, False]),
            "is_async": st.booleans(),
            "fails": st.sampled_from([0, 0, 0, 0, 0, 1, 2]),
            "asks": st.sampled_from(["", "", "", "", "", "", "once", "emit", "checkpoint_id"]),
            "whole": st.booleans(),
            "reads": st.booleans(),
            "guess": st.sampled_from([*["right"] * 6, "wrong", "wrong", "raises", "odd", "none", "absent"]),
            "odd": st.sampled_from(
                [{"items": 5}, {"n": "text"}, {"log": ["a"]}, Command(goto=END), {"zzz": 1}]
            ),
        }
    )
    nodes = {name: draw(each) for name in names}
    nodes[names[-1]]["pure"] = True
    return {
        "layers": layers,
        "nodes": nodes,
        "loops": draw(st.integers(0, 2)),
        "barrier": draw(st.booleans()),
    }


def compute(name: str, alone: bool, state: Any) -> dict[str, Any]:
    numbers = (state.get("n"), state.get("total"), len(state.get("log", ())))
    seen = sum(number for number in numbers if isinstance(number, int)) % 1000
    update: dict[str, Any] = {"log": [f"{name} saw {seen}"], "total": seen, "top": seen}
    if alone:
        update |= {"n": seen * 7 + 1, "items": [*state.get("items", ()), seen + 300]}
    return update


def node_of(name: str, alone: bool, how: dict[str, Any]) -> Any:
    def work(state: Any, ctx: Context) -> Any:
        if how["asks"]:
            ASKS[how["asks"]](state, ctx)
        if ctx.attempt <= how["fails"]:
            raise ValueError(f"{name} fails")
        update = compute(name, alone, state)
        whole = alone and how["whole"] and not how["reads"]
        return state.merge({"n": update["n"], "items": update["items"]}) if whole else update

    async def work_async(state: Any, ctx: Context) -> Any:
        await asyncio.sleep(0)
        return work(state, ctx)

    return work_async if how["is_async"] else work


def guess_of(name: str, alone: bool, how: dict[str, Any]) -> Any:
    def guess(state: Any) -> Any:
        if how["guess"] == "raises":
            raise ValueError("cannot guess")
        if how["guess"] in ("odd", "none"):
            return how["odd"] if how["guess"] == "odd" else None
        update = compute(name, alone, state)
        if alone and how["whole"] and not how["reads"]:
            update = {"n": update["n"], "items": update["items"]}
        return update if how["guess"] == "right" else {**update, "log": ["wrong"], "total": -1}

    return guess


def layered(plan: dict[str, Any]) -> tuple[StateGraph, dict[str, Any]]:
    graph, guesses = StateGraph(Work, name="layers"), dict[str, Any]()
    names = iter(plan["nodes"])
    before: list[str] = [START]
    for size in plan["layers"]:
        layer = [next(names) for _ in range(size)]
        for name in layer:
            how, alone = plan["nodes"][name], size == 1
            reads = ["n", "total", "items", "log"] if how["reads"] else None
            retry = Retry(attempts=3, delay=0)
            graph.add_node(name, node_of(name, alone, how), pure=how["pure"], retry=retry, reads=reads)
            graph.add_edge(before if len(before) > 1 else before[0], name)
            if how["guess"] != "absent":
                guesses[name] = guess_of(name, alone, how)
        before = layer
    if len(before) == 1:
        limit = plan["loops"] + plan["layers"].count(1)
        graph.add_conditional_edges(
            before[0], lambda state: before[0] if len(state["items"]) < limit else END, [before[0], END]
        )
    return graph, guesses


def shown(outcome: Outcome) -> tuple[Any, ...]:
    stats = outcome.stats
    return (
        outcome.status,
        outcome.state.to_dict(),
        stats.steps_run,
        stats.waves,
        stats.retries,
        outcome.warnings,
    )


@given(plan=plans())
@hypothesis_settings(max_examples=40)
def test_whatever_is_guessed_the_outcome_and_the_journal_are_the_same(plan: dict[str, Any]) -> None:
    """S0.17: outcome and journal are those of a run without speculation, apart from times."""
    graph, guesses = layered(plan)
    # Without a barrier, what parallel steps see of each other is a matter of time in any run.
    barrier = plan["barrier"] or max(plan["layers"]) > 1
    plain = graph.compile("memory://", barrier=barrier, facts=False)
    guessing = graph.compile(plain.store, barrier=barrier, facts=False, speculate=guesses, max_ahead=3)

    expected = plain.invoke({"n": 1, "items": []}, run_id="plain")
    found = guessing.invoke({"n": 1, "items": []}, run_id="guessed")

    assert shown(found) == shown(expected)
    assert history(plain, "guessed") == history(plain, "plain")
