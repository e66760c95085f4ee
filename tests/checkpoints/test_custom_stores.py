"""Stores of checkpoints that users write: kept by the engine, resumed from by a new process, refused with reasons."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import pickle
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    END,
    START,
    CheckpointPolicy,
    CorruptJournal,
    ExecutionError,
    HoldfastError,
    RunExists,
    RunStatus,
    State,
    StateGraph,
    StoreError,
    open_store,
)
from holdfast.checkpoints import (
    CheckpointConfig,
    CheckpointData,
    CheckpointStore,
    ConfiguredGraph,
    GraphConfig,
    InMemoryCheckpointStore,
    JournalCheckpointStore,
    SQLiteCheckpointStore,
    get_checkpoint_store,
    periodic_cleanup,
    register_checkpoint_store,
)
from holdfast.integrity import check_store
from holdfast.stores import get_store, register_store
from holdfast.stores.base import Store
from holdfast.testing import crash_everywhere
from holdfast.testing.contract import StoreContract
from tests.checkpoints.samples import Calls, Flaky
from tests.graphs import Heard, chain
from tests.processes import unmeasured


class Async(CheckpointStore):
    """The interface of the YAML agent runner: async, keyed by checkpoint id, pickles."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def save(self, data: CheckpointData) -> None:
        await asyncio.sleep(0)
        self.kept[data.checkpoint_id] = pickle.dumps(data)

    async def load(self, checkpoint_id: str) -> CheckpointData | None:
        found = self.kept.get(checkpoint_id)
        return None if found is None else pickle.loads(found)

    async def list_checkpoints(self, workflow_name: str | None = None) -> list[CheckpointData]:
        found = [pickle.loads(each) for each in self.kept.values()]
        return [data for data in found if workflow_name in (None, data.workflow_name)]

    async def delete(self, checkpoint_id: str) -> None:
        self.kept.pop(checkpoint_id, None)

    async def prune(self, max_age_days: int, max_count: int) -> int:
        return 0


class Duck:
    """The interface of the interactive server, in a class of its own."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.expired: list[float] = []

    def save(self, state: Any) -> None:
        self.kept[state.checkpoint_id] = state

    def load(self, checkpoint_id: str) -> Any:
        return self.kept.get(checkpoint_id)

    def delete(self, checkpoint_id: str) -> None:
        self.kept.pop(checkpoint_id, None)

    def list(self, workflow_name: str | None = None) -> Any:
        return [
            kept for kept in self.kept.values() if not workflow_name or kept.workflow_name == workflow_name
        ]

    def cleanup_expired(self, max_age_hours: float = 24) -> int:
        self.expired.append(max_age_hours)
        return 0


class ByRun(CheckpointStore):
    """The interface of the Go state graph: one state per run id, overwritten by every save."""

    def __init__(self) -> None:
        self.states: dict[str, Any] = {}

    def save(self, state: Any) -> None:
        self.states[state.run_id] = state

    def load(self, run_id: str) -> Any:
        if run_id not in self.states:
            raise KeyError(f"checkpoint not found: {run_id}")
        return self.states[run_id]

    def delete(self, run_id: str) -> None:
        self.states.pop(run_id, None)

    def list(self) -> Any:  # type: ignore[override]
        return list(self.states)


JSON_STORE = """
import json, os
from pathlib import Path
from holdfast.checkpoints import CheckpointData, CheckpointStore


class JsonStore(CheckpointStore):
    def __init__(self, folder):
        self.folder = Path(folder)

    def save(self, data):
        new = self.folder / f"{data.checkpoint_id}.new"
        new.write_text(json.dumps(data.to_dict()))
        os.replace(new, self.folder / f"{data.checkpoint_id}.json")

    def load(self, checkpoint_id):
        path = self.folder / f"{checkpoint_id}.json"
        return CheckpointData.from_dict(json.loads(path.read_text())) if path.exists() else None

    def list(self, workflow_name=None):
        found = [self.load(path.stem) for path in self.folder.glob("*.json")]
        return [data for data in found if workflow_name in (None, data.workflow_name)]

    def delete(self, checkpoint_id):
        (self.folder / f"{checkpoint_id}.json").unlink(missing_ok=True)
"""
_module: dict[str, Any] = {}
exec(JSON_STORE, _module)
JsonStore = _module["JsonStore"]


@pytest.fixture(params=["async", "duck", "by run", "json"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """What a later process would see of a user's store."""
    kept = {"async": Async, "duck": Duck, "by run": ByRun}.get(request.param)
    if kept is None:
        return lambda: JsonStore(tmp_path)
    first = kept()

    def again() -> Any:
        later: Any = kept()
        later.__dict__.update(first.__dict__)
        return later

    return again


# Runs.


def test_a_run_is_resumed_from_a_store_of_checkpoints_by_another_object_over_the_same_data(reopen, caplog):
    """S1.11, S2.9, S3.5, S1.14: sync or async, by checkpoint id or by run id; finished steps do not run again."""
    calls, flaky = Calls(), Flaky(RuntimeError("429"))
    graph = chain(
        *"abc", nodes={name: calls.node(name, fails=flaky if name == "c" else None) for name in "abc"}
    )
    with pytest.raises(ExecutionError):
        graph.compile(store=reopen()).invoke({"n": (1, 2)}, run_id="r")
    assert "nothing keeps two processes on different machines from executing one run" in caplog.text

    flaky.mend()
    app = graph.compile(store=reopen())
    assert (app.get_state("r")["n"], app.get_state("r")["log"]) == ((1, 2), ["a", "b"])
    out = app.resume("r")

    assert calls == ["a", "b", "c", "c"] and out.state["log"] == ["a", "b", "c"]
    later = graph.compile(reopen())
    assert [info.status for info in later.runs()] == [RunStatus.COMPLETED]
    assert [found.nodes for found in later.checkpoints("r")] == [("a",), ("b",), (), ("c",)]
    assert check_store(later.store).is_fine


def test_a_later_process_sees_all_checkpoints_that_the_store_kept(tmp_path):
    """S0.10, S1.15: each can be looked at and resumed from, by its id alone."""
    app = chain(*"abc", name="w").compile(JsonStore(tmp_path))
    app.invoke({}, run_id="r")
    second = app.checkpoints("r")[1]

    later = chain(*"abc", name="w").compile(JsonStore(tmp_path))
    forked = later.resume(second.id)

    assert later.state_at("r", second.id)["log"] == ["a", "b"]
    assert forked.run_id != "r" and forked.state["log"] == ["a", "b", "c"]
    assert [
        data.completed_agents for data in sorted(JsonStore(tmp_path).list("w"), key=lambda d: d.created_at)
    ][:3] == [["a"], ["a", "b"], ["a", "b", "c"]]
    later.delete("r")
    assert [info.run for info in chain("a", name="w").compile(JsonStore(tmp_path)).runs()] == [forked.run_id]
    assert JsonStore(tmp_path).load(forked.checkpoint_id)["log"] == ["a", "b", "c"]


def test_a_killed_process_is_resumed_from_a_twenty_line_json_store(tmp_path):
    """S1.3, S1.4, S1.11, S2.2: kill -9 in the third step; a new process runs that one again, and no other."""
    program = JSON_STORE + textwrap.dedent(
        """
        import signal, sys
        from holdfast import END, START, StateGraph

        folder, calls = Path(sys.argv[1]), Path(sys.argv[2])


        def step(name):
            def run(state):
                with calls.open("a") as file:
                    file.write(name + "\\n")
                if name == "c" and sys.argv[3] == "run":
                    os.kill(os.getpid(), signal.SIGKILL)
                return {name: True}

            return run


        graph = StateGraph(dict, name="killed")
        for name in "abcd":
            graph.add_node(name, step(name), version="1")
        graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c").add_edge("c", "d").add_edge("d", END)
        app = graph.compile(store=JsonStore(folder))
        out = app.invoke({"n": 1}, run_id="r") if sys.argv[3] == "run" else app.resume("r")
        print(json.dumps(out.state.to_dict()))
        """
    )
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "kept").mkdir()

    def process(how: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "program.py", "kept", "calls", how]
        return subprocess.run(command, cwd=tmp_path, env=unmeasured(), capture_output=True, text=True)

    assert process("run").returncode == -signal.SIGKILL
    (left,) = [data for data in JsonStore(tmp_path / "kept").list() if data.in_progress == "c"]
    assert left.completed_agents == ["a", "b"] and left.status == RunStatus.RUNNING
    resumed = process("resume")

    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout) == {"n": 1, "a": True, "b": True, "c": True, "d": True}
    assert (tmp_path / "calls").read_text().split() == ["a", "b", "c", "c", "d"]


def count(state: Any) -> dict[str, Any]:
    return {"n": state["n"] + 1}


def test_a_json_store_survives_kills_around_every_commit():
    """S1.3, S2.2: before, during and after a save; every resumed run comes to the same result."""
    graph = StateGraph({"n": int}, name="count")
    graph.add_node("a", count).add_node("b", count)
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)

    report = crash_everywhere(graph, {"n": 0}, store=lambda folder: JsonStore(folder), limit=8)

    assert report.passed, str(report)


def test_a_question_is_answered_in_another_process(tmp_path):
    """S2.1, S2.7: the pause is in the checkpoint, and the answer reaches the node."""

    def graph() -> StateGraph:
        ask = {"b": lambda state, ctx: {"log": [ctx.ask("Go on?", name="b")]}}
        return chain("a", "b", nodes=ask)

    waiting = graph().compile(JsonStore(tmp_path)).invoke({}, run_id="r")

    data = JsonStore(tmp_path).load(waiting.checkpoint_id)
    assert data.pause_metadata.prompt == "Go on?" and data.completed_blocks == ["a"]
    assert graph().compile(JsonStore(tmp_path)).resume("r", answer="yes").state["log"] == ["a", "yes"]


def test_nothing_of_an_encrypted_run_is_readable_in_the_store(tmp_path):
    """S2.4: such a checkpoint has ids, names and times; the run is resumed with its key."""
    key = "00" * 32
    ask = {"b": lambda state, ctx: {"log": [ctx.ask("Really?", name="b")]}}
    graph = chain("a", "b", nodes=ask)
    graph.compile(JsonStore(tmp_path), encryption_key=key).invoke({"log": ["geheim"]}, run_id="r")

    for data in JsonStore(tmp_path).list():
        assert (data.run_id, data.context, data.pause_metadata) == ("r", {}, None)
    assert not any("geheim" in path.read_text() for path in tmp_path.iterdir())
    out = graph.compile(JsonStore(tmp_path), encryption_key=key).resume("r", answer="yes")
    assert out.state["log"] == ["geheim", "a", "yes"]


def test_a_run_that_another_process_has_is_neither_made_again_nor_sent_commands(tmp_path):
    """S2.20: as far as one machine can tell; what another process saved meanwhile is seen."""
    one = chain("a", "b").compile(JsonStore(tmp_path), interrupt_before=["b"])
    other = chain("a", "b").compile(JsonStore(tmp_path))
    one.invoke({}, run_id="r")

    with pytest.raises(RunExists):
        other.invoke({}, run_id="r")
    assert other.resume("r").status == RunStatus.COMPLETED
    assert one.get_state("r")["log"] == ["a", "b"]
    other.delete("r")
    assert one.runs() == []


def test_a_damaged_checkpoint_is_refused_and_leaves_the_others_alone(tmp_path, caplog):
    """S0.14: a journal that is not what was saved cannot be resumed from."""
    app = chain("a").compile(JsonStore(tmp_path))
    app.invoke({}, run_id="good")
    bad = app.invoke({}, run_id="bad").checkpoint_id
    path = tmp_path / f"{bad}.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "journal": facts["journal"][:-8] + "AAAAAAAA"}))

    later = chain("a").compile(JsonStore(tmp_path))
    assert [info.run for info in later.runs()] == ["good"] and "is left out" in caplog.text
    body = base64.b64decode(facts["journal"][32:]).replace(b"completed", b"cancelled", 1)
    forged = facts["journal"][:32] + base64.b64encode(body).decode()
    for journal in ("é", "x", "0" * 40, facts["journal"][:32] + "!!", forged):
        path.write_text(json.dumps({**facts, "journal": journal}))
        with pytest.raises(CorruptJournal, match="is not what was saved"):
            later.get_state("bad")
    with pytest.raises(CorruptJournal, match="run 'bad': the journal in checkpoint"):
        later.get_state("bad")
    with pytest.raises(CorruptJournal):
        later.invoke({}, run_id="bad")


def test_a_checkpoint_without_its_journal_is_resumed_by_its_state_and_position():
    """S3.18: a store that kept only some fields still says what the state was and which node was last."""
    store, calls = Duck(), Calls()
    made = CheckpointData(
        checkpoint_id="c1", workflow_name="w", completed_agents=["a"], context_snapshot={"log": ["kept"]}
    )
    store.save(made)

    out = chain("a", "b", nodes={"b": calls.node("b")}).compile(store).resume("c1")

    assert calls == ["b"] and out.state["log"] == ["kept", "b"]


@pytest.mark.parametrize(("interval", "kept"), [(0, []), (1, [1, 2, 3, 4]), (2, [2, 4]), (3, [4])])
def test_the_interval_says_which_waves_the_store_keeps(interval, kept):
    """S3.12: every n-th wave; an end that is no checkpoint is saved under the id of the last one."""
    store = Duck()
    chain(*"abcd").compile(store, policy=CheckpointPolicy(interval=interval)).invoke({})

    assert [data.completed_waves for data in store.list()] == kept


@pytest.mark.parametrize("limit", [1, 3])
def test_retention_prunes_what_the_store_keeps(tmp_path, limit):
    """S0.16: older checkpoints leave the user's store, and do not come back."""
    app = chain(*"abcd", name="w").compile(JsonStore(tmp_path))
    app.invoke({}, run_id="r")

    assert JournalCheckpointStore(app).prune_old_checkpoints("w", keep_count=limit) == 4 - limit

    assert len(list(tmp_path.iterdir())) == limit
    later = chain(*"abcd", name="w").compile(JsonStore(tmp_path))
    assert len(later.checkpoints("r")) == limit and later.get_state("r")["log"] == list("abcd")


def test_a_long_run_is_saved_from_its_newest_snapshot_on_and_read_as_far_back_as_the_store_goes(tmp_path):
    """S0.20, S2.21: what one save holds does not grow with the history; old checkpoints fill in what it lacks."""
    text = random.Random(5)

    def rewrite(state: Any) -> dict[str, Any]:
        return {"n": text.randbytes(6000).hex(), "log": [len(state["log"])]}

    names = [f"n{number}" for number in range(40)]
    graph = chain(*names, name="w", nodes=dict.fromkeys(names, rewrite))
    graph.compile(JsonStore(tmp_path)).invoke({}, run_id="r")

    files = sorted(tmp_path.iterdir(), key=lambda path: len(JsonStore(tmp_path).load(path.stem).completed))
    journals = [len(JsonStore(tmp_path).load(path.stem).journal) for path in files]
    assert max(journals) < sum(journals) / 4 and journals[-1] < max(journals)
    app = graph.compile(JsonStore(tmp_path))
    assert len(app.checkpoints("r")) == 40 and app.get_state("r")["log"] == list(range(40))
    assert app.state_at("r", app.checkpoints("r")[4].id)["log"] == list(range(5))

    for path in files[:-1]:
        path.unlink()
    later = graph.compile(JsonStore(tmp_path))
    assert 0 < len(later.checkpoints("r")) < 40 and later.get_state("r")["log"] == list(range(40))


# Failures.


class Failing(Duck):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def save(self, state: Any) -> None:
        raise self.error


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyError("x"), StoreError("away")])
def test_whatever_a_users_store_raises_is_a_failed_save(error, caplog):
    """S0.13, S3.13: `on_save_error` decides; event and error name what was raised, and `err` is that."""
    heard = Heard()
    policy = CheckpointPolicy(on_save_error="continue")
    out = chain("a", "b").compile(Failing(error), policy=policy).invoke({}, observer=heard)
    assert out.state["log"] == ["a", "b"] and out.stats.save_errors > 0
    assert str(error) in heard.of("checkpoint_failed")[0].data["error"]

    with pytest.raises(ExecutionError, match="checkpoint save failed: ") as caught:
        chain("a", "b").compile(Failing(error)).invoke({}, observer=heard)
    assert str(error) in str(caught.value) and caught.value.err is error


def test_a_save_that_failed_is_not_taken_for_stored():
    """S1.3: nothing that the user's store does not have is acknowledged; the next save has it."""
    store = Duck()
    app = chain(*"abc").compile(store, policy=CheckpointPolicy(on_save_error="continue"))
    good, broken = store.save, [False]

    def save(data: Any) -> None:
        if broken[0]:
            raise OSError("away")
        good(data)

    store.save = save  # type: ignore[method-assign]

    def watch(event: Any) -> None:
        broken[0] = event.type == "node.start" and event.node == "b"

    app.invoke({}, run_id="r", observer=watch)

    (newest,) = [data for data in store.list() if data.status == RunStatus.COMPLETED]
    assert newest.completed_agents == ["a", "b", "c"]


@pytest.mark.parametrize("given", [5, object(), Duck, CheckpointStore, [], {}])
def test_what_is_no_store_is_refused_with_what_would_be(given):
    """S3.7, S1.11: never an AttributeError."""
    with pytest.raises(StoreError, match="save, load, list and delete"):
        chain("a").compile(given)
    if not callable(given):
        with pytest.raises(StoreError, match="save, load, list and delete"):
            register_store("none", given)


def test_a_subclass_without_the_methods_cannot_be_made():
    """S1.11, S2.9."""

    class Half(CheckpointStore):
        def save(self, data: Any) -> None: ...

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]


# By name, from a config, and by hand.


def test_a_users_store_has_a_name_and_serves_graphs_from_a_config():
    """S3.7, S3.9, S3.11, S3.15: registered, resolved by name, saved to, and emptied at the end."""
    mine = ByRun()
    register_checkpoint_store("by-run", mine)
    assert get_checkpoint_store("by-run") is mine
    assert get_store("by-run") is open_store("by-run") is open_store(mine)
    with pytest.raises(StoreError, match="unknown checkpoint store: by-rum; did you mean by-run"):
        get_checkpoint_store("by-rum")

    def config(preserve: bool) -> GraphConfig:
        return GraphConfig("w", "noop", checkpoint=CheckpointConfig("by-run", 1, preserve))

    for preserve in (True, False):
        graph = ConfiguredGraph(config(preserve))
        graph.add_node("a", lambda state: state.set("n", state["n"] + 1))
        graph.set_entry_point("a").set_exit_point("a")
        assert graph.execute(State({"n": 1}))["n"] == 2
        assert [mine.load(run).completed for run in mine.list()] == [("a",)]
        assert get_checkpoint_store("memory").store is get_store("memory")  # type: ignore[attr-defined]


@pytest.mark.parametrize("store", [ByRun(), Async(), Duck()])
def test_a_state_saves_itself_into_a_users_store(store):
    """S3.1, S3.8: the checkpoint is the state; the graph goes on after its node."""
    calls = Calls()
    state = State({"log": ["by hand"]}).set_checkpoint_node("a").checkpoint(store)

    assert state.checkpoint_id
    if isinstance(store, ByRun):
        saved = store.load(state.run_id)
        assert (saved["log"], saved.checkpoint_node) == (["by hand"], "a") and store.list() == [state.run_id]
    out = chain("a", "b", nodes={"b": calls.node("b")}).compile(store).resume(state.run_id)
    assert calls == ["b"] and out.state["log"] == ["by hand", "b"]
    for other in (5, open_store("memory://")):
        with pytest.raises(StoreError, match="cannot save a state"):
            State({}).checkpoint(other)  # type: ignore[arg-type]


def test_a_subclass_inherits_what_it_does_not_define(tmp_path):
    """S1.11, S2.9: listing, existence, pruning by age and count, and expiry, by the four methods alone."""
    store = JsonStore(tmp_path)
    for number, day in enumerate((1, 2, 3)):
        at = f"2020-01-0{day}T00:00:00+00:00"
        store.save(CheckpointData(f"c{number}", "w", created_at=at))
    store.save(CheckpointData("new", "w"))
    store.save(CheckpointData("other", "v"))

    assert store.exists("c1") and not store.exists("c9")
    assert [data.checkpoint_id for data in store.list_checkpoints(workflow_name="w")] == [
        "new",
        "c2",
        "c1",
        "c0",
    ]
    assert store.prune(max_age_days=100_000, max_count=3) == 1 and not store.exists("c0")
    assert store.cleanup_expired(max_age_hours=24) == 2
    assert {data.checkpoint_id for data in store.list()} == {"new", "other"}


def test_the_periodic_cleanup_calls_a_users_store(caplog):
    """S2.17: now and then every interval; a store without the method is cleaned by its runs."""
    duck = Duck()
    periodic_cleanup(duck, interval_minutes=60).stop()
    assert duck.expired == [24.0]
    with caplog.at_level(logging.ERROR):
        periodic_cleanup(ByRun()).stop()
    assert "cleanup failed" not in caplog.text
    with pytest.raises(StoreError):
        periodic_cleanup(5)  # type: ignore[arg-type]


def test_our_own_stores_of_checkpoints_are_used_as_the_full_stores_that_they_are(tmp_path, caplog):
    """S1.12, S1.14: `compile(store=SQLiteCheckpointStore(path))` loses nothing."""
    store = SQLiteCheckpointStore(tmp_path / "runs.db")
    app = chain("a").compile(store=store)
    out = app.invoke({}, run_id="r")

    assert app.store is store.store and caplog.text == ""
    assert [data.checkpoint_id for data in store.list()] == [out.checkpoint_id]
    store.store.close()


class TestAnAdaptedStore(StoreContract):
    """What every store promises holds for a user's store within one process."""

    @pytest.fixture
    def store(self) -> Store:
        self.custom = Duck()
        return open_store(self.custom)


@pytest.mark.parametrize("kind", ["own", "memory"])
def test_limits_that_make_no_sense_delete_nothing(kind: str, tmp_path: Path) -> None:
    """S1.11, S2.9: what is older than a negative age would be everything; other types get an error of ours."""
    store: Any = JsonStore(tmp_path) if kind == "own" else InMemoryCheckpointStore()
    store.save(CheckpointData("c", "w", context={"n": 1}))

    for limit in (-1, "24", None, True, float("nan")):
        with pytest.raises(HoldfastError, match="max_age_hours must be a number of at least 0"):
            store.cleanup_expired(limit)
    for limits in ({"max_age_days": -0.5}, {"max_age_days": "7"}, {"max_count": 0}, {"max_count": 2.5}):
        with pytest.raises(
            HoldfastError, match=r"max_(age_days|count) must be a (whole )?number of at least [01]"
        ):
            store.prune(**limits)
    assert store.exists("c") and store.cleanup_expired(24) == 0
    assert store.cleanup_expired(0) == 1 and not store.exists("c")
