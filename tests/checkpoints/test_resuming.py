"""Resuming by checkpoint id alone, and what a resume promises."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import (
    END,
    START,
    CheckpointNotFound,
    CheckpointPolicy,
    CorruptJournal,
    ExecutionError,
    Retention,
    RunFinished,
    RunNotFound,
    RunStatus,
    Send,
    StateGraph,
    open_store,
)
from holdfast.checkpoints import JournalCheckpointStore, periodic_cleanup
from holdfast.engine.retention import janitor
from holdfast.state import WorkflowState
from holdfast.stores.base import Entry, Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing import Crash, CrashingStore, raise_crash
from tests.checkpoints.samples import Calls, Flaky, FullDisk, age
from tests.graphs import Heard, Log, chain, fan


def failing_chain(names: str, at: str, calls: Calls, flaky: Flaky, **options: Any) -> StateGraph:
    nodes = {name: calls.node(name, fails=flaky if name == at else None) for name in names}
    return chain(*names, nodes=nodes, **options)


# Layers and positions.


def test_each_layer_gives_one_checkpoint_whatever_the_number_of_its_tasks(store):
    """S0.7, S1.1: after every node, after every parallel group; not one per member."""
    graph = StateGraph(Log, name="layers")
    for name in ("first", "left", "middle", "right", "last"):
        graph.add_node(name, lambda state, name=name: {"log": [name]})
    graph.add_edge(START, "first")
    for name in ("left", "middle", "right"):
        graph.add_edge("first", name)
    graph.add_edge(["left", "middle", "right"], "last")
    app = graph.compile(store)
    app.invoke({}, run_id="r")

    assert [set(checkpoint.nodes) for checkpoint in app.checkpoints("r")] == [
        {"first"},
        {"left", "middle", "right"},
        {"last"},
    ]


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_a_checkpoint_after_a_layer_continues_with_the_next(store, layer):
    """S0.10, S0.11, S0.23: the id alone is enough; finished layers do not run again."""
    calls = Calls()
    app = chain(*"abcd", nodes={name: calls.node(name) for name in "abcd"}).compile(store)
    whole = app.invoke({"n": 1}, run_id="r")
    ident = app.checkpoints("r")[layer - 1].id
    calls.clear()

    out = app.resume(ident)

    assert calls == list("abcd"[layer:])
    assert out.state == whole.state
    assert out.run_id != "r" and app.get_state("r") == whole.state, "the old run is left as it was"


def test_resume_from_checkpoint_takes_an_id_and_returns_the_outcome(store):
    """S0.10: `resume_from_checkpoint(checkpoint_id)` runs at once."""
    calls = Calls()
    flaky = Flaky(RuntimeError("down"))
    app = failing_chain("abc", "b", calls, flaky).compile(store)
    with pytest.raises(ExecutionError):
        app.invoke({}, run_id="r")
    flaky.mend()

    out = app.resume_from_checkpoint(app.get_state("r").checkpoint_id)

    assert out.status == "completed" and out.run_id == "r"
    assert calls == ["a", "b", "b", "c"]


def test_the_restored_state_is_the_saved_one_with_its_reducers(store):
    """S0.9: tasks, decisions, context and messages are restored, and grow on as before."""
    flaky = Flaky(RuntimeError("down"))

    def first(state: Any) -> dict[str, Any]:
        return {"messages": ["m1"], "tasks": [{"task_id": "t1"}], "decisions": ["d1"], "context": {"a": 1}}

    def second(state: Any) -> dict[str, Any]:
        if flaky.error:
            raise flaky.error
        return {"messages": ["m2"], "tasks": [{"task_id": "t2"}], "decisions": ["d2"], "context": {"b": 2}}

    graph = StateGraph(WorkflowState, name="w")
    graph.add_node("first", first).add_node("second", second)
    graph.add_edge(START, "first").add_edge("first", "second")
    app = graph.compile(store)
    with pytest.raises(ExecutionError):
        app.invoke({}, run_id="r")
    saved = JournalCheckpointStore(store).load("r").state.to_dict()
    assert saved == {
        "messages": ["m1"],
        "tasks": [{"task_id": "t1"}],
        "decisions": ["d1"],
        "context": {"a": 1},
    }
    flaky.mend()

    assert app.resume("r").state.to_dict() == {
        "messages": ["m1", "m2"],
        "tasks": [{"task_id": "t1"}, {"task_id": "t2"}],
        "decisions": ["d1", "d2"],
        "context": {"a": 1, "b": 2},
    }


def test_the_config_comes_from_the_checkpoint(store):
    """S0.22: stored with the run and restored; what the caller gives wins."""
    seen: list[dict[str, Any]] = []
    flaky = Flaky(RuntimeError("down"))

    def node(state: Any, config: Any) -> None:
        seen.append(dict(config))
        if flaky.error:
            raise flaky.error

    app = chain("a", nodes={"a": node}).compile(store)
    with pytest.raises(ExecutionError):
        app.invoke({}, run_id="r", config={"timeout": 5, "speculation": True})
    assert JournalCheckpointStore(store).load("r").config == {"timeout": 5, "speculation": True}
    flaky.mend()

    app.resume("r", config={"timeout": 9})

    assert seen[-1] == {"timeout": 9, "speculation": True}


# Events and failed saves.


def test_a_saved_checkpoint_is_reported_with_its_id_and_time(store, heard):
    """S0.12: `checkpoint_saved`, with the id and the timestamp."""
    app = chain("a", "b").compile(store)
    out = app.invoke({}, run_id="r", observer=heard)

    saved = heard.of("checkpoint_saved")
    assert [event.data["checkpoint_id"] for event in saved] == [c.id for c in app.checkpoints("r")]
    assert saved[-1].data["checkpoint_id"] == out.checkpoint_id
    assert all(isinstance(event.data["timestamp"], float) for event in saved)


def test_a_failed_save_does_not_crash_the_run(heard, caplog):
    """S0.13, S0.23: it is logged and reported as `checkpoint_failed`, and the run continues without it."""
    store = FullDisk()

    def fill(state: Any) -> dict[str, Any]:
        store.full = True
        return {"log": ["b"]}

    def free(state: Any) -> dict[str, Any]:
        store.full = False
        return {"log": ["c"]}

    graph = chain("a", "b", "c", nodes={"b": fill, "c": free})
    app = graph.compile(store, policy=CheckpointPolicy(on_save_error="continue"))

    out = app.invoke({}, run_id="r", observer=heard)

    assert out.status == RunStatus.COMPLETED and out.state["log"] == ["a", "b", "c"]
    (failed,) = heard.of("checkpoint_failed")
    assert "no space left" in failed.data["error"]
    assert "no space left" in caplog.text
    assert out.warnings
    assert JournalCheckpointStore(store).load_state("r")["log"] == ["a", "b", "c"], "the next save catches up"


# What cannot be resumed.


def test_an_invalid_checkpoint_id_is_refused(store):
    """S0.14."""
    app = chain("a").compile(store)
    app.invoke({}, run_id="r")
    with pytest.raises(CheckpointNotFound, match="checkpoint not found"):
        app.resume("3f2b8c1e-0000-4000-8000-000000000000")
    with pytest.raises(RunNotFound):
        app.resume("never")
    with pytest.raises(RunFinished, match="already complete"):
        app.resume("r")


def test_a_corrupted_checkpoint_is_refused():
    """S0.14: it cannot be recovered, and is not guessed at."""

    class Damaged(MemoryStore):
        def read(self, run: str, after: int = 0, upto: int | None = None) -> Any:
            for entry in super().read(run, after, upto):
                yield _flipped(entry) if entry.seq == 2 else entry

    store = Damaged()
    app = chain("a", "b", "c").compile(store, interrupt_before=["c"])
    app.invoke({}, run_id="r")

    with pytest.raises(CorruptJournal, match="entry 2 is damaged"):
        app.resume("r")
    with pytest.raises(CorruptJournal, match="entry 2 is damaged"):
        JournalCheckpointStore(store).load("r")


def _flipped(entry: Entry) -> Entry:
    body = bytes([*entry.body[:-1], entry.body[-1] ^ 1])
    return Entry(entry.seq, entry.at, entry.chain, body, entry.mark)


def test_a_changed_graph_is_warned_about_and_resumed_as_well_as_can_be(store, caplog, heard):
    """S0.14, S0.15, S0.23: finished nodes stay finished, new ones run, changed ones run as they are now."""
    flaky = Flaky(RuntimeError("down"))
    calls = Calls()
    with pytest.raises(ExecutionError):
        failing_chain("abc", "b", calls, flaky, name="w").compile(store).invoke({}, run_id="r")
    calls.clear()
    changed = chain(*"abxc", nodes={name: calls.node(name) for name in "abxc"}, name="w").compile(store)

    with caplog.at_level(logging.WARNING, "holdfast"):
        out = changed.resume("r", observer=heard)

    assert calls == ["b", "x", "c"]
    assert out.state["log"] == ["a", "b", "x", "c"]
    assert "changed graph" in caplog.text and "'x' was added" in caplog.text
    assert heard.of("graph.changed")


def test_a_finished_member_whose_node_is_gone_stops_the_resume_instead_of_losing_its_edges(store):
    """S0.15: what follows a finished node that the graph no longer has cannot be known."""
    flaky = Flaky(RuntimeError("down"))

    def wave(names: str) -> StateGraph:
        graph = fan(*names, nodes={"b": Calls().node("b", fails=flaky)}, name="w")
        graph.add_node("after", lambda state: {"log": ["after"]})
        graph.add_edge(list(names), "after") if len(names) > 1 else graph.add_edge(names, "after")
        return graph

    with pytest.raises(ExecutionError):
        wave("ab").compile(store).invoke({}, run_id="r")
    flaky.mend()

    with pytest.raises(Exception, match="'a', which the workflow no longer has"):
        wave("b").compile(store).resume("r")
    assert "after" in wave("ab").compile(store).resume("r").state["log"]


# Interrupted steps.


def interrupted_in_b(store: Store, calls: Calls) -> Any:
    """An app on `store` with a run "r" whose process died while b was running."""
    nodes = {name: calls.node(name) for name in "abc"}
    crashing = CrashingStore(store, at=2, point="acknowledged", how=raise_crash)
    with pytest.raises(Crash):
        chain(*"abc", nodes=nodes).compile(crashing).invoke({}, run_id="r")
    return chain(*"abc", nodes=nodes).compile(store)


def test_a_step_in_progress_is_skipped_on_resume_if_wanted():
    """S1.4: intent without completion: go to the next one, and never run it twice."""
    calls = Calls()
    app = interrupted_in_b(open_store("memory://"), calls)
    calls.clear()

    out = app.resume("r", if_interrupted="skip")

    assert calls == ["c"] and out.state["log"] == ["a", "c"]


@pytest.mark.parametrize(("answer", "then"), [("rerun", ["b", "c"]), ("skip", ["c"])])
def test_a_step_in_progress_is_asked_about_on_resume_if_wanted(answer, then):
    """S1.4: or somebody is asked whether to run it again."""
    calls = Calls()
    app = interrupted_in_b(open_store("memory://"), calls)
    calls.clear()

    waiting = app.resume("r", if_interrupted="ask")
    assert waiting.status == RunStatus.PAUSED and calls == []
    assert "may or may not have taken effect" in waiting.pauses[0].prompt

    app.resume("r", answer=answer)
    assert calls == then


# The uses it is for.


def test_a_rate_limit_at_step_nine_costs_only_step_nine(store):
    """S1.15, S1.14: finished agents are not run again after a 429."""
    names = [f"agent{number}" for number in range(1, 11)]
    calls, flaky = Calls(), Flaky(RuntimeError("429 Too Many Requests"))
    nodes = {name: calls.node(name, fails=flaky if name == "agent9" else None) for name in names}
    app = chain(*names, nodes=nodes).compile(store)
    with pytest.raises(ExecutionError, match=r"429.*resume with app\.resume\('r'\)"):
        app.invoke({}, run_id="r")
    flaky.mend()

    out = app.resume("r")

    assert calls == [*names[:9], *names[8:]]
    assert out.state["log"] == names
    assert (out.stats.steps_kept, out.stats.steps_run) == (8, 2)


def test_one_failed_member_of_a_group_is_the_only_one_to_run_again(store):
    """S1.15, S1.16: (a) members are tracked one by one."""
    calls, flaky = Calls(), Flaky(ConnectionError("network"))
    nodes = {name: calls.node(name, fails=flaky if name == "b" else None) for name in "abc"}
    app = fan(*"abc", nodes=nodes).compile(store)
    with pytest.raises(ExecutionError):
        app.invoke({}, run_id="r")
    calls.clear()
    flaky.mend()

    assert app.resume("r").state["log"] == ["a", "b", "c"]
    assert calls == ["b"]


def test_items_that_are_done_are_kept_and_the_others_run(store):
    """S1.16: (b) the results of a for-each are stored as they come, not when the group is whole."""
    ran: list[int] = []
    flaky = Flaky(RuntimeError("no"))

    def each(state: Any) -> dict[str, Any]:
        ran.append(state["n"])
        if state["n"] == 3 and flaky.error:
            raise flaky.error
        return {"log": [str(state["n"])]}

    graph = StateGraph(Log, name="items")
    graph.add_node("each", each)
    graph.add_conditional_edges(START, lambda s: [Send("each", {"n": n}) for n in range(5)], ["each"])
    graph.add_edge("each", END)
    app = graph.compile(store)
    with pytest.raises(ExecutionError):
        app.invoke({}, run_id="r")
    ran.clear()
    flaky.mend()

    assert app.resume("r").state["log"] == ["0", "1", "2", "3", "4"]
    assert ran == [3]


def test_an_answered_gate_is_not_asked_again(store):
    """S1.16, S0.18: (c) the selection is kept over a later failure."""
    asked: list[Any] = []
    flaky = Flaky(RuntimeError("down"))

    def gate(state: Any, ctx: Any) -> dict[str, Any]:
        asked.append(ctx.ask("Which?", name="which"))
        return {"log": [asked[-1]]}

    calls = Calls()
    app = chain("gate", "b", nodes={"gate": gate, "b": calls.node("b", fails=flaky)}).compile(store)
    app.invoke({}, run_id="r")
    with pytest.raises(ExecutionError):
        app.resume("r", answer="left")
    flaky.mend()

    assert app.resume("r").state["log"] == ["left", "b"]
    assert asked == ["left"]


def test_a_large_context_is_compressed_and_never_cut(tmp_path):
    """S1.16, S0.19, S2.21: (d) compressed; every byte comes back."""
    text = "the same words again and again. " * 20_000
    app = chain("a", nodes={"a": lambda state: {"log": [text]}}).compile(tmp_path / "runs.db")

    out = app.invoke({}, run_id="r")

    assert out.stats.bytes_written < len(text) // 20
    assert JournalCheckpointStore(app.store).load_state("r")["log"] == [text]
    app.store.close()


def test_a_checkpoint_costs_what_changed(store):
    """S2.21, S0.21, S0.20: with 1,000 tasks in the state, a later checkpoint is small all the same."""
    tasks = [{"task_id": f"t{number}", "result": "x" * 50, "duration": 0.1} for number in range(1000)]
    graph = StateGraph(WorkflowState, name="w")
    graph.add_node("many", lambda state: {"tasks": tasks})
    graph.add_node("one", lambda state: {"tasks": [{"task_id": "last"}]})
    graph.add_edge(START, "many").add_edge("many", "one").add_edge("one", END)
    app = graph.compile(store)
    app.invoke({}, run_id="r")

    many, one = app.checkpoints("r")
    assert one.size < 500
    assert many.size < 100_000
    assert len(app.get_state("r")["tasks"]) == 1001


def test_a_large_checkpoint_is_warned_about(store, caplog):
    """S0.20: above 500 KB."""
    import os

    app = chain("a", "b", nodes={"a": lambda state: {"log": [os.urandom(600_000).hex()]}}).compile(store)
    with caplog.at_level(logging.WARNING, "holdfast"):
        app.invoke({}, run_id="big")
    assert "checkpoint of" in caplog.text and "KB" in caplog.text

    caplog.clear()
    with caplog.at_level(logging.WARNING, "holdfast"):
        chain("a", "b").compile(store).invoke({}, run_id="small")
    assert caplog.text == ""


def test_any_checkpoint_can_be_looked_at_and_replayed_from(store):
    """S1.15: time travel."""
    app = chain(*"abc").compile(store)
    app.invoke({"n": 1}, run_id="r")

    seen = [app.get_state("r", checkpoint_id=c.id)["log"] for c in app.checkpoints("r")]
    assert seen == [["a"], ["a", "b"], ["a", "b", "c"]]

    replayed = app.resume(app.checkpoints("r")[0].id, update={"n": 2})
    assert replayed.state == {"n": 2, "log": ["a", "b", "c"]}


def test_a_run_survives_the_death_of_its_process():
    """S2.2: crash recovery, by run id, by workflow name, and by the id of its newest checkpoint."""
    for how in ("r", "graph", "checkpoint"):
        store, calls = open_store("memory://"), Calls()
        app = interrupted_in_b(store, calls)
        target = JournalCheckpointStore(store).load("r").checkpoint_id if how == "checkpoint" else how
        out = app.resume(target)
        assert (out.run_id, out.state["log"]) == ("r", ["a", "b", "c"])


def test_many_workflows_run_and_are_saved_at_once(store):
    """S2.4: concurrently and independently."""
    app = chain(*"abc").compile(store)

    with ThreadPoolExecutor(6) as pool:
        outs = list(pool.map(lambda number: app.invoke({"n": number}, run_id=f"r{number}"), range(12)))

    assert [out.state["n"] for out in outs] == list(range(12))
    checkpoints = JournalCheckpointStore(store)
    assert [checkpoints.load_state(f"r{number}")["n"] for number in range(12)] == list(range(12))
    assert all(len(app.checkpoints(f"r{number}")) == 3 for number in range(12))


def test_what_is_stored_is_typed_data_with_a_version_and_no_pickle(tmp_path):
    """S2.15: values keep their types; nothing in the store names code to run when it is read."""
    import datetime as dt
    import pickle
    from decimal import Decimal

    moment = {"at": dt.datetime(2024, 5, 6, tzinfo=dt.UTC), "cost": Decimal("0.10"), "ids": {1, 2}}
    graph = StateGraph(dict, name="w")
    graph.add_node("a", lambda state: moment)
    graph.add_edge(START, "a")
    app = graph.compile(tmp_path / "runs.db")
    app.invoke({}, run_id="r")

    assert JournalCheckpointStore(app.store).load_state("r").to_dict() == moment
    for entry in app.store.read("r"):
        with pytest.raises(Exception):  # noqa: B017
            pickle.loads(entry.body)
    app.store.close()


def test_a_run_is_deleted_when_it_completes_if_wanted(store):
    """S2.16: made at a pause, kept until the resume, deleted on completion."""

    def gate(state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": [ctx.ask("?", name="q")]}

    app = chain("gate", nodes={"gate": gate}).compile(store, policy=CheckpointPolicy(preserve="none"))
    app.invoke({}, run_id="r")
    assert JournalCheckpointStore(store).list() == ["r"]

    app.resume("r", answer="yes")
    assert JournalCheckpointStore(store).list() == []


# Housekeeping.


def test_pruning_follows_each_save_and_never_holds_up_the_run(store):
    """S0.16, S1.5: the preset of five per workflow; done by a background thread."""
    app = chain(*"abcdefgh", name="w").compile(store, retention=Retention.recent(5))
    app.invoke({}, run_id="r")
    assert janitor.wait()

    assert len(JournalCheckpointStore(store).list_checkpoints("w")) == 5
    assert app.get_state("r")["log"] == list("abcdefgh")


def test_a_failing_pruning_is_only_logged(caplog):
    """S0.16."""

    class Unprunable(MemoryStore):
        def prune(self, run: str, horizon: Any, **known: Any) -> int:
            raise OSError("read-only file system")

    app = chain(*"abcdefgh").compile(Unprunable(), retention=Retention.recent(2))
    assert app.invoke({}).status == RunStatus.COMPLETED
    assert janitor.wait()
    assert "pruning" in caplog.text and "read-only file system" in caplog.text


def test_the_newest_only_can_be_kept(store):
    """S3.5: the preset of one checkpoint a run."""
    app = chain(*"abc", name="w").compile(store, retention=Retention.latest_only())
    for run in ("r1", "r2"):
        app.invoke({}, run_id=run)
    assert janitor.wait()

    assert [len(app.checkpoints(run)) for run in ("r1", "r2")] == [1, 1]


class _Watched(MemoryStore):
    """Counts cleanings, and fails the first."""

    cleanings = 0

    def runs(self, **filters: Any) -> Sequence[Any]:
        if not filters.get("run"):
            self.cleanings += 1
            if self.cleanings == 1:
                raise OSError("busy")
        return super().runs(**filters)


def test_the_periodic_cleaner_deletes_counts_and_survives_errors(caplog):
    """S2.17: hourly by default; a failure is logged and the next cleaning comes all the same."""
    store = _Watched()
    chain("a").compile(store).invoke({}, run_id="stale")
    age(store, "stale", days=2)
    with caplog.at_level(logging.INFO, "holdfast"):
        cleaner = periodic_cleanup(store, interval_minutes=0.0001)
        deadline = time.monotonic() + 30
        while store.cleanings < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        cleaner.stop()

    assert JournalCheckpointStore(store).list() == []
    assert "checkpoint cleanup failed: busy" in caplog.text
    assert caplog.text.count("cleaned up 1 expired") == 1, "nothing is logged when nothing was deleted"


def test_a_crashed_run_counts_from_its_last_checkpoint_not_from_its_start():
    """S2.5, S1.5: a long run whose process just died is not stale."""
    store, calls = open_store("memory://"), Calls()
    app = interrupted_in_b(store, calls)
    age(store, "r", days=30)

    assert JournalCheckpointStore(store).cleanup_expired() == 0
    assert app.resume("r").status == RunStatus.COMPLETED


def test_heard_names_of_other_systems_are_aliases(heard: Heard):
    """S0.12, S0.13: one canonical set of names, with aliases."""
    chain("a").compile().invoke({}, observer=heard)
    assert heard.of("checkpoint_saved") == heard.of("checkpoint.save") != []
