"""What users of other systems have run into, each shown not to happen here."""

from __future__ import annotations

import collections
import datetime as dt
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from holdfast import (
    END,
    START,
    CodecError,
    Command,
    Context,
    ExecutionError,
    GraphChanged,
    HoldfastError,
    MaxIterationsExceeded,
    NotPaused,
    RunConflict,
    RunExists,
    RunFinished,
    RunNotFound,
    RunStatus,
    Send,
    StateGraph,
    StateInvalid,
    StepTimeout,
    append,
    clock,
    open_store,
)
from holdfast.engine.retention import expire_runs
from holdfast.journal.journal import Journal
from holdfast.journal.records import StateEdited
from holdfast.journal.writer import Writer
from holdfast.state.codec import Codec
from holdfast.stores.memory import MemoryStore
from holdfast.testing import Crash, CrashingStore, raise_crash
from tests.crash.programs import ROOT, SOURCE, python


class Chat(TypedDict, total=False):
    n: int
    messages: Annotated[list[str], append]
    document: str
    answers: Annotated[list[str], append]


Node = Callable[..., Any]


def chain(*nodes: tuple[str, Node], schema: Any = Chat, name: str = "w") -> StateGraph:
    graph = StateGraph(schema, name=name)
    previous = START
    for each, function in nodes:
        graph.add_node(each, function)
        graph.add_edge(previous, each)
        previous = each
    graph.add_edge(previous, END)
    return graph


def side_by_side(*nodes: tuple[str, Node], schema: Any = Chat) -> StateGraph:
    graph = StateGraph(schema, name="w")
    for each, function in nodes:
        graph.add_node(each, function)
        graph.add_edge(START, each)
    return graph


def talking(turns: int, size: int) -> StateGraph:
    """A loop that adds one message of `size` random characters a turn."""
    graph = StateGraph(Chat, name="talk", max_iterations=turns + 1)
    graph.add_node("turn", lambda state: {"n": state["n"] + 1, "messages": [secrets.token_hex(size // 2)]})
    graph.add_edge(START, "turn")
    graph.add_edge("turn", "turn", when=lambda state: state["n"] < turns)
    graph.add_edge("turn", END)
    return graph


def asks(name: str) -> Node:
    def node(state: Any, ctx: Context) -> dict[str, Any]:
        return {"answers": [f"{name}: {ctx.ask(f'{name}?', name=name)}"]}

    return node


def test_a_list_growing_by_one_item_costs_the_item_and_not_the_list() -> None:
    """Trap 1: the whole state rewritten every step."""

    def written(turns: int) -> int:
        return talking(turns, 500).compile(MemoryStore()).invoke({"n": 0}).stats.bytes_written

    assert written(400) < 2.4 * written(200)
    assert written(400) < 1.6 * 400 * 500


def test_a_large_value_nobody_touches_is_written_once() -> None:
    """Trap 2: unchanged strings rewritten every step."""
    document = secrets.token_hex(200_000)
    app = talking(50, 20).compile(MemoryStore())

    app.invoke({"n": 0, "document": document}, run_id="r")

    sizes = [len(entry.body) for entry in app.store.read("r")]
    assert sizes[0] > 150_000 and sum(sizes[1:]) < 50_000
    assert app.get_state("r")["document"] == document


def test_a_wave_of_many_steps_takes_few_commits_and_ends_in_one_piece() -> None:
    """Trap 3: T tasks, T+1 commits, and writes torn from their checkpoint."""
    names = [f"n{index}" for index in range(100)]
    graph = side_by_side(*((name, lambda state: {"messages": ["x"]}) for name in names))

    outcome = graph.compile(MemoryStore()).invoke({})

    assert len(outcome.state["messages"]) == 100
    assert outcome.stats.commits <= 5


def test_the_mark_of_a_wave_is_in_the_same_append_as_its_last_step() -> None:
    """Trap 3: a crash cannot tear a checkpoint from the writes it stands for."""
    ran: list[str] = []
    graph = chain(("a", lambda state: ran.append("a")), ("b", lambda state: ran.append("b")))
    store = MemoryStore()
    with pytest.raises(Crash):
        graph.compile(CrashingStore(store, 2, "committed", raise_crash)).invoke({}, run_id="r")

    app = graph.compile(store)

    assert [checkpoint.next for checkpoint in app.checkpoints("r")] == [("b",)]
    app.resume("r")
    assert ran == ["a", "b"]


DIES_IN_THE_SECOND = """
import os, signal, sys
from holdfast import END, START, StateGraph

def step(state, ctx):
    with open(sys.argv[2], "a") as ledger:
        ledger.write(ctx.node + " ")
    if ctx.node == "two" and len(sys.argv) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

graph = StateGraph(dict, name="w")
for name in ("one", "two", "three"):
    graph.add_node(name, step)
graph.add_edge(START, "one"); graph.add_edge("one", "two"); graph.add_edge("two", "three")
graph.add_edge("three", END)
app = graph.compile(sys.argv[1])
app.resume("r") if len(sys.argv) == 4 else app.invoke({}, run_id="r")
"""


def test_kill_9_in_the_second_of_three_fast_nodes_always_leaves_the_first(tmp_path: Path) -> None:
    """Trap 4: an asynchronous default that left nothing to resume."""
    for trial in range(4):
        url, ledger = f"sqlite:///{tmp_path}/runs{trial}.db", tmp_path / f"ledger{trial}"
        assert python(DIES_IN_THE_SECOND, url, str(ledger)).returncode == -signal.SIGKILL

        done = python(DIES_IN_THE_SECOND, url, str(ledger), "resume")

        assert done.returncode == 0, done.stderr
        assert ledger.read_text() == "one two two three "


def test_of_two_writers_on_one_run_one_is_told_that_it_lost(tmp_path: Path) -> None:
    """Trap 5: both "succeed" and one is silently lost."""
    app = chain(("ask", asks("go"))).compile(f"sqlite:///{tmp_path}/runs.db")
    app.invoke({}, run_id="r")
    other = open_store(f"sqlite:///{tmp_path}/runs.db")
    writers = []
    for store in (app.store, other):
        journal = Journal(store)
        writers.append(Writer(journal, journal.load(journal.info("r"), Codec()), Codec(), durable=False))
    for writer in writers:
        writer.record(StateEdited("", ()))
    writers[0].flush()

    with pytest.raises(RunConflict, match="advanced by another owner"):
        writers[1].flush()

    assert len(list(other.read("r"))) == writers[0].seq
    other.close()
    app.store.close()


def test_renaming_a_paused_node_does_not_silently_finish_the_run() -> None:
    """Trap 6."""
    store = MemoryStore()
    chain(("ask", asks("go"))).compile(store).invoke({}, run_id="r")
    renamed = chain(("question", asks("go"))).compile(store)

    with pytest.raises(GraphChanged, match="'ask'"):
        renamed.resume("r", answer="yes")

    assert renamed.runs()[0].status == RunStatus.PAUSED


def test_an_undeclared_state_key_is_refused_and_not_dropped() -> None:
    """Trap 7."""
    app = chain(("a", lambda state: {"mesages": ["typo"]})).compile(MemoryStore())

    with pytest.raises(ExecutionError, match=r"unknown state key 'mesages'.*did you mean 'messages'"):
        app.invoke({})
    with pytest.raises(StateInvalid, match="unknown state key 'input'"):
        app.invoke({"input": 1})


def test_every_value_comes_back_as_what_it_was(tmp_path: Path) -> None:
    """Trap 7: tuples became lists, Counters dicts, surrogates "?", and large ints failed late."""
    values: dict[str, Any] = {
        "tuple": (1, (2, "x")),
        "default": collections.defaultdict(list, {"k": [1]}),
        "counter": collections.Counter("hello"),
        "surrogate": "lone \ud800 surrogate",
        "big": -(1 << 300),
        "set": {1, 2},
        "when": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        "nan_like": float("inf"),
    }
    graph = chain(("a", lambda state: values), schema=dict)
    app = graph.compile(f"sqlite:///{tmp_path}/runs.db")
    app.invoke({}, run_id="r")
    app.store.close()

    later = graph.compile(f"sqlite:///{tmp_path}/runs.db")
    state = later.get_state("r").to_dict()
    later.store.close()

    assert state == values
    for key, value in values.items():
        assert type(state[key]) is type(value), key
    assert state["default"]["new"] == []


def test_a_value_that_cannot_be_stored_fails_the_step_that_made_it_at_once() -> None:
    """Trap 8: found after the next node had already run."""
    ran: list[str] = []
    graph = chain(
        ("bad", lambda state: {"document": threading.Lock()}),
        ("next", lambda state: ran.append("next")),
    )

    with pytest.raises(ExecutionError, match="'document'") as caught:
        graph.compile(MemoryStore()).invoke({}, run_id="r")

    assert caught.value.node == "bad" and isinstance(caught.value.cause, CodecError) and ran == []


def test_answers_and_inputs_that_come_at_the_wrong_time_are_refused() -> None:
    """Trap 9: silent no-ops, accidental starts, and pauses discarded by new input."""
    app = chain(("ask", asks("go"))).compile(MemoryStore())

    with pytest.raises(RunNotFound):
        app.resume("r", answer="yes")
    assert app.runs() == []
    app.invoke({}, run_id="r")
    with pytest.raises(RunExists):
        app.invoke({"n": 1}, run_id="r")
    assert app.pauses("r")[0].name == "go"
    app.resume("r", answer="yes")
    with pytest.raises(RunFinished):
        app.resume("r", answer="again")


def test_an_answer_to_a_run_that_failed_is_refused() -> None:
    """Trap 9."""

    def broken(state: Any) -> None:
        raise RuntimeError("down")

    app = chain(("broken", broken)).compile(MemoryStore())
    with pytest.raises(ExecutionError):
        app.invoke({}, run_id="r")

    with pytest.raises(NotPaused):
        app.resume("r", answer="yes")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_pause_cannot_be_swallowed_by_except_exception(is_async: bool) -> None:
    """Trap 10."""

    def careless(state: Any, ctx: Context) -> dict[str, Any]:
        try:
            return {"answers": [ctx.ask("Go?", name="go")]}
        except Exception:
            return {"answers": ["swallowed"]}

    async def careless_async(state: Any, ctx: Context) -> dict[str, Any]:
        return careless(state, ctx)

    app = chain(("careless", careless_async if is_async else careless)).compile(MemoryStore())

    assert app.invoke({}, run_id="r").status == RunStatus.PAUSED
    assert app.resume("r", answer="yes").state["answers"] == ["yes"]


def test_an_effect_before_several_questions_happens_once() -> None:
    """Trap 11: repeated once per interrupt in the node."""
    charged: list[int] = []

    def node(state: Any, ctx: Context) -> dict[str, Any]:
        receipt = ctx.once("charge", lambda: charged.append(1) or "receipt")
        first, second = ctx.ask("A?", name="a"), ctx.ask("B?", name="b")
        return {"answers": [receipt, first, second]}

    app = chain(("node", node)).compile(MemoryStore())
    app.invoke({}, run_id="r")
    app.resume("r", answers={"a": "1"})

    assert app.resume("r", answers={"b": "2"}).state["answers"] == ["receipt", "1", "2"]
    assert charged == [1]


def test_going_back_into_a_sub_graph_runs_only_the_rest_of_it() -> None:
    """Trap 12: time travel reran all of the sub-graph."""
    ran: list[str] = []

    def step(state: Any, ctx: Context) -> dict[str, Any]:
        ran.append(ctx.node)
        return {"messages": [ctx.node]}

    inner = chain(("x", step), ("y", step), ("z", step), name="inner")
    app = chain(("before", step), ("outer", inner), ("after", step)).compile(MemoryStore())
    whole = app.invoke({}, run_id="r").state["messages"]
    inside = next(c for c in app.checkpoints("r") if c.frame and c.nodes == ("y",))
    ran.clear()

    forked = app.resume(inside.id)

    assert ran == ["z", "after"]
    assert forked.state["messages"] == whole == ["before", "x", "y", "z", "after"]


def test_parallel_questions_are_told_apart_by_name() -> None:
    """Trap 12: parallel interrupts got mixed up."""
    app = side_by_side(*((name, asks(name)) for name in ("a", "b", "c"))).compile(MemoryStore())
    paused = app.invoke({}, run_id="r")
    assert sorted(pause.name for pause in paused.pauses) == ["a", "b", "c"]

    outcome = app.resume("r", answers={"c": 3, "a": 1, "b": 2})

    assert outcome.state["answers"] == ["a: 1", "b: 2", "c: 3"]


def test_with_a_key_nothing_that_was_said_is_readable_on_disk(tmp_path: Path) -> None:
    """Trap 13: with encryption on, strings and numbers still sat in plain text."""
    pytest.importorskip("cryptography")
    said = [
        b"secret-value",
        b"secret-config",
        b"secret-answer",
        b"secret-prompt",
        b"secret-note",
        b"739182645",
    ]

    def node(state: Any, ctx: Context) -> dict[str, Any]:
        ctx.once("note", lambda: "secret-note")
        return {"answers": [ctx.ask("secret-prompt", name="q")], "n": 739182645}

    graph = chain(("node", node))

    def bytes_on_disk(folder: Path, key: bytes | None) -> bytes:
        app = graph.compile(f"sqlite:///{folder}/runs.db", encryption_key=key)
        app.invoke({"document": "secret-value"}, run_id="r", config={"token": "secret-config"})
        app.resume("r", answer="secret-answer")
        app.store.close()
        return b"".join(path.read_bytes() for path in folder.iterdir())

    plain = bytes_on_disk(tmp_path / "plain", None)
    sealed = bytes_on_disk(tmp_path / "sealed", b"k" * 32)

    assert [text for text in said[:-1] if text not in plain] == []
    assert [text for text in said if text in sealed] == []
    assert (739182645).to_bytes(4, "big") in plain and (739182645).to_bytes(4, "big") not in sealed


def test_runs_are_listed_by_status_expire_by_age_and_orphans_are_found() -> None:
    """Trap 14: no listing with status, no time to live, nobody restarts dead runs."""
    store = MemoryStore()
    graph = chain(("ask", asks("go")))
    app = graph.compile(store)
    app.invoke({}, run_id="paused")
    app.invoke({}, run_id="done")
    app.resume("done", answer="yes")
    with pytest.raises(Crash):
        graph.compile(CrashingStore(store, 1, "committed", raise_crash)).invoke({}, run_id="orphan")

    assert {info.run: info.status for info in app.runs()} == {
        "paused": "paused",
        "done": "completed",
        "orphan": "running",
    }
    assert [info.run for info in app.runs(status="paused")] == ["paused"]
    assert app.resume("w").run_id == "orphan"
    assert expire_runs(store, dt.timedelta(0), keep_successful=False) == 3 and app.runs() == []


def test_a_sync_node_can_time_out() -> None:
    """Trap 15: timeouts for async nodes only."""
    release = threading.Event()
    graph = StateGraph(Chat, name="w")
    graph.add_node("slow", lambda state: release.wait(60) and None, timeout=0.05)
    graph.add_edge(START, "slow")
    graph.add_edge("slow", END)

    with pytest.raises(ExecutionError, match=r"longer than its timeout of 0\.05 s") as caught:
        graph.compile(MemoryStore()).invoke({})

    assert isinstance(caught.value.cause, StepTimeout)
    release.set()


MANY_RUNS = """
import sys
from holdfast import END, START, StateGraph
graph = StateGraph(dict, name="w")
for name, after in (("a", START), ("b", "a"), ("c", "b")):
    graph.add_node(name, lambda state: {"n": state.get("n", 0) + 1})
    graph.add_edge(after, name)
graph.add_edge("c", END)
app = graph.compile(sys.argv[1], durability="process")
for index in range(40):
    assert app.invoke({}, run_id=f"{sys.argv[2]}-{index}").state["n"] == 3
"""


def test_two_processes_on_one_file_never_meet_a_locked_database(tmp_path: Path) -> None:
    """Trap 15: "database is locked"."""
    url = f"sqlite:///{tmp_path}/runs.db"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(ROOT)])}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MANY_RUNS, url, name], stderr=subprocess.PIPE, text=True, env=environment
        )
        for name in ("left", "right")
    ]

    errors = [process.communicate(timeout=60)[1] for process in processes]

    assert errors == ["", ""]
    store = open_store(url)
    assert len(store.runs(status=["completed"])) == 80
    store.close()


def test_items_of_a_later_turn_of_a_loop_are_steps_of_their_own() -> None:
    """Trap 16: ids of parallel children lacked the iteration, so a loop replayed stale results."""
    keys: list[str] = []

    def item(state: Any, ctx: Context) -> dict[str, Any]:
        keys.append(ctx.idempotency_key)
        return {"messages": [f"turn {state['n']}"]}

    graph = StateGraph(Chat, name="w")
    graph.add_node("turn", lambda state: {"n": state["n"] + 1})
    graph.add_node("item", item)
    graph.add_edge(START, "turn")
    graph.add_conditional_edges("turn", lambda s: [Send("item", {}, key=k) for k in "xy"], ["item"])
    graph.add_edge("item", "turn", when=lambda state: state["n"] < 2)
    graph.add_edge("item", END)
    store = MemoryStore()
    with pytest.raises(Crash):
        graph.compile(CrashingStore(store, 4, "acknowledged", raise_crash)).invoke({"n": 0}, run_id="r")

    outcome = graph.compile(store).resume("r")

    assert outcome.state["messages"] == ["turn 1", "turn 1", "turn 2", "turn 2"]
    assert sorted(keys) == ["r:item#1[x]", "r:item#1[y]", "r:item#2[x]", "r:item#2[y]"]


def test_a_join_keeps_what_has_arrived_and_the_first_node_is_not_run_again() -> None:
    """Trap 17: a fan-in barrier dropped its inputs on resume; the first node was re-run."""
    ran: list[str] = []

    def step(state: Any, ctx: Context) -> dict[str, Any]:
        ran.append(ctx.node)
        return {"messages": [ctx.node]}

    graph = StateGraph(Chat, name="w")
    for name in ("first", "quick", "slow", "slower", "join"):
        graph.add_node(name, step)
    graph.add_edge(START, "first")
    graph.add_edge("first", "quick")
    graph.add_edge("first", "slow")
    graph.add_edge("slow", "slower")
    graph.add_edge(["quick", "slower"], "join")
    store = MemoryStore()
    with pytest.raises(Crash):
        graph.compile(CrashingStore(store, 3, "acknowledged", raise_crash)).invoke({}, run_id="r")

    outcome = graph.compile(store).resume("r")

    assert ran.count("first") == 1 and outcome.state["messages"][0] == "first"
    assert outcome.state["messages"][-1] == "join" and sorted(ran) == sorted(set(ran))


def test_a_half_answered_group_goes_on_with_the_answered_and_keeps_asking_the_rest() -> None:
    """Trap 18: a half-answered parallel group never ran the rest."""
    app = side_by_side(*((name, asks(name)) for name in ("a", "b", "c"))).compile(MemoryStore())
    app.invoke({}, run_id="r")

    half = app.resume("r", answers={"b": 2})

    assert half.status == RunStatus.PAUSED
    assert sorted(pause.name for pause in half.pauses) == ["a", "c"]
    outcome = app.resume("r", answers={"a": 1, "c": 3})
    assert outcome.status == RunStatus.COMPLETED
    assert outcome.state["answers"] == ["a: 1", "b: 2", "c: 3"]


def test_every_checkpoint_of_a_parallel_run_is_a_consistent_state() -> None:
    """Trap 24: parallel snapshots were given up as too hard."""
    graph = StateGraph(Chat, name="w")
    for name in ("a", "b"):
        graph.add_node(name, lambda state, ctx: {"messages": [ctx.step]})
        graph.add_edge(START, name)
    graph.add_node("turn", lambda state: {"n": state["n"] + 1})
    graph.add_edge(["a", "b"], "turn")
    graph.add_conditional_edges("turn", lambda s: ["a", "b"] if s["n"] < 3 else END, ["a", "b", END])
    app = graph.compile(MemoryStore())
    app.invoke({"n": 0}, run_id="r")

    states = [app.get_state("r", checkpoint_id=c.id).to_dict() for c in app.checkpoints("r")]

    assert [(state["n"], len(state["messages"])) for state in states] == [
        (0, 2),
        (1, 2),
        (1, 4),
        (2, 4),
        (2, 6),
        (3, 6),
    ]
    assert states[-1]["messages"] == [f"{name}#{visit}" for visit in (1, 2, 3) for name in "ab"]


TERMINATED = """
import sys, time
from holdfast import END, START, StateGraph

def slow(state):
    print("slow", flush=True)
    time.sleep(60)

graph = StateGraph(dict, name="w")
graph.add_node("fast", lambda state: {"fast": True})
graph.add_node("slow", slow)
graph.add_edge(START, "fast"); graph.add_edge("fast", "slow"); graph.add_edge("slow", END)
graph.compile(sys.argv[1]).invoke({}, run_id="r")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_stalled_run_that_is_stopped_leaves_what_it_had_done(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Trap 25: a stalled run left nothing after 18 hours; Kill saved nothing."""
    url = f"sqlite:///{tmp_path}/runs.db"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    stalled = subprocess.Popen(
        [sys.executable, "-c", TERMINATED, url],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    assert stalled.stdout is not None and stalled.stdout.readline() == "slow\n"

    stalled.send_signal(number)
    stalled.communicate(timeout=30)

    app = chain(("fast", lambda s: None), ("slow", lambda s: None), schema=dict).compile(url)
    assert app.runs()[0].status == ("running" if number == signal.SIGKILL else "interrupted")
    assert app.get_state("r").to_dict() == {"fast": True}
    assert app.resume("r").status == RunStatus.COMPLETED
    app.store.close()


def test_checkpoints_made_in_the_same_instant_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 25: second-granular names picked a stale checkpoint."""
    monkeypatch.setattr(clock, "time", lambda: 1_800_000_000.0)
    app = talking(20, 10).compile(MemoryStore())
    outcome = app.invoke({"n": 0}, run_id="r")

    checkpoints = app.checkpoints("r")

    assert [app.get_state("r", checkpoint_id=c.id)["n"] for c in checkpoints] == list(range(1, 21))
    assert outcome.checkpoint_id == checkpoints[-1].id and len({c.id for c in checkpoints}) == 20


def test_the_budget_of_iterations_is_still_on_after_a_resume() -> None:
    """Trap 25: the budget was silently off after a resume."""
    ran: list[int] = []
    graph = StateGraph(Chat, name="w", max_iterations=4)
    graph.add_node("turn", lambda state: ran.append(1))
    graph.add_edge(START, "turn")
    graph.add_conditional_edges("turn", lambda state: "turn", ["turn", END])
    store = MemoryStore()
    with pytest.raises(Crash):
        graph.compile(CrashingStore(store, 3, "acknowledged", raise_crash)).invoke({}, run_id="r")

    with pytest.raises(MaxIterationsExceeded):
        graph.compile(store).resume("r")

    assert len(ran) == 4


def test_a_resume_does_not_skip_an_approval() -> None:
    """Trap 26."""
    paid: list[int] = []
    graph = chain(("prepare", lambda s: None), ("pay", lambda s: paid.append(1)))
    store = MemoryStore()
    with pytest.raises(Crash):
        graph.compile(CrashingStore(store, 1, "acknowledged", raise_crash), interrupt_before=["pay"]).invoke(
            {}, run_id="r"
        )
    app = graph.compile(store, interrupt_before=["pay"])

    assert app.resume("r").status == RunStatus.PAUSED and paid == []
    assert app.resume("r").status == RunStatus.COMPLETED and paid == [1]


def test_an_approval_beside_running_siblings_does_not_deadlock() -> None:
    """Trap 26: waiting for an approval inside the parallel gather deadlocked."""
    finished: list[str] = []

    def work(state: Any, ctx: Context) -> None:
        finished.append(ctx.node)

    app = side_by_side(("ask", asks("go")), ("one", work), ("two", work)).compile(MemoryStore())

    paused = app.invoke({}, run_id="r")

    assert paused.status == RunStatus.PAUSED and sorted(finished) == ["one", "two"]
    assert app.resume("r", answer="yes").status == RunStatus.COMPLETED
    assert sorted(finished) == ["one", "two"]


def test_an_approval_gate_beside_siblings_does_not_deadlock() -> None:
    """Trap 26, with a gate in place of a question."""
    finished: list[str] = []

    def work(state: Any, ctx: Context) -> None:
        finished.append(ctx.node)

    graph = side_by_side(("gated", work), ("free", work))
    app = graph.compile(MemoryStore(), interrupt_before=["gated"])

    assert app.invoke({}, run_id="r").status == RunStatus.PAUSED
    assert app.resume("r").status == RunStatus.COMPLETED
    assert sorted(finished) == ["free", "gated"]


def test_two_questions_in_one_wave_are_both_asked_and_none_is_lost_in_a_crash() -> None:
    """Trap 27: of two prompts in one wave the second was never asked."""
    store = MemoryStore()
    graph = side_by_side(("a", asks("a")), ("b", asks("b")))
    graph.compile(store).invoke({}, run_id="r")
    with pytest.raises(Crash):
        graph.compile(CrashingStore(store, 1, "acknowledged", raise_crash)).resume("r", answers={"a": 1})

    half = graph.compile(store).resume("r")

    assert [pause.name for pause in half.pauses] == ["b"]
    assert graph.compile(store).resume("r", answer=2).state["answers"] == ["a: 1", "b: 2"]


def test_an_old_checkpoint_does_not_change_with_new_state() -> None:
    """Trap 27: checkpoints held live objects."""
    shared = {"list": [1]}

    def second(state: Any) -> dict[str, Any]:
        shared["list"].append(2)
        return {"value": shared}

    app = chain(("one", lambda s: {"value": shared}), ("two", second), schema=dict).compile(MemoryStore())
    last = app.invoke({}, run_id="r").state
    shared["list"].append(3)
    first, final = app.checkpoints("r")[0], app.checkpoints("r")[-1]

    assert app.get_state("r", checkpoint_id=first.id)["value"] == {"list": [1]}
    assert app.get_state("r", checkpoint_id=final.id)["value"] == {"list": [1, 2]} == last["value"]


def test_a_change_made_in_place_is_refused_and_not_kept_in_memory_only() -> None:
    """Trap 27: a mutation that the journal never saw."""

    def mutates(state: Any) -> None:
        state["messages"].append("sneaky")

    with pytest.raises(ExecutionError, match="read-only"):
        chain(("mutates", mutates)).compile(MemoryStore()).invoke({"messages": ["in"]})


def test_a_nested_workflow_writes_into_the_root_run_only() -> None:
    """Trap 27: nested workflows wrote duplicates."""
    store = MemoryStore()
    inner = chain(("x", lambda s: {"n": 1}), ("y", lambda s: {"n": 2}), name="inner").compile(store)
    app = chain(("outer", inner), ("z", lambda s: None), name="root").compile(store)

    app.invoke({}, run_id="r")

    assert [(info.run, info.workflow) for info in store.runs()] == [("r", "root")]
    ids = [checkpoint.id for checkpoint in app.checkpoints("r")]
    assert len(ids) == len(set(ids))
    assert [checkpoint.nodes for checkpoint in app.checkpoints("r")] == [("x",), ("outer",), ("z",)]


def test_a_command_that_leads_nowhere_is_an_error_and_not_a_silent_end() -> None:
    """Trap 6, in a node's own words."""
    graph = chain(("a", lambda s: Command(goto="gone")))

    with pytest.raises(HoldfastError, match="node not found: gone"):
        graph.compile(MemoryStore()).invoke({})
