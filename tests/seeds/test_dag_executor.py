"""The layered DAG executor of the first design document: its flow, its acceptance criteria, its failures."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sqlite3
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    CheckpointNotFound,
    CheckpointPolicy,
    CorruptJournal,
    ExecutionError,
    HoldfastError,
    Retention,
    StoreError,
    open_store,
)
from holdfast.checkpoints import CheckpointManager, SQLiteCheckpointStore, write_tables
from holdfast.dags import ControlledExecutor, DAGInvalid, Tools
from holdfast.stores.base import Append, Conflict
from holdfast.testing import CrashingStore, WrappedStore
from tests.processes import in_child

DAG = {
    "tasks": [
        {"id": "fetch_users", "tool": "db:query", "arguments": {"table": "users"}},
        {"id": "fetch_orders", "tool": "db:query", "arguments": {"table": "orders"}},
        {
            "id": "join",
            "tool": "join",
            "arguments": {
                "left": {"$ref": "tasks.fetch_users.result"},
                "right": {"$ref": "tasks.fetch_orders.result"},
            },
            "depends_on": ["fetch_users", "fetch_orders"],
        },
        {
            "id": "report",
            "tool": "report",
            "arguments": {"rows": {"$ref": "tasks.join.result"}, "title": {"$ref": "context.title"}},
            "depends_on": ["join"],
        },
    ]
}
CONTEXT = {"title": "Orders of users"}
MESSAGES = [{"role": "user", "content": "report the orders"}]


def make(store: Any, calls: Path | None = None, **options: Any) -> ControlledExecutor:
    tools = Tools()

    def note(text: str) -> None:
        if calls is not None:
            with calls.open("a") as file:
                file.write(f"{text}\n")

    @tools.tool(name="db:query")
    async def query(table: str) -> list[str]:
        note(table)
        return [f"{table} {number}" for number in range(3)]

    @tools.tool
    def join(left: list[str], right: list[str]) -> list[str]:
        note("join")
        return [f"{one}: {other}" for one, other in zip(left, right, strict=True)]

    @tools.tool
    def report(rows: list[str], title: str) -> str:
        note("report")
        return f"{title}: {len(rows)}"

    return ControlledExecutor(tools, store, name="orders", **options)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


def run(executor: ControlledExecutor, run_id: str = "wf-1") -> Any:
    return executor.execute(DAG, context=CONTEXT, messages=MESSAGES, run_id=run_id)


def after_layer(executor: ControlledExecutor, layer: int, run_id: str = "wf-1") -> str:
    """The id of the checkpoint after a layer: the wave of its tools."""
    layers = [point for point in executor.app.checkpoints(run_id) if set(point.nodes).isdisjoint({"decide"})]
    return layers[layer - 1].id


def test_a_run_is_a_workflow_state_with_a_checkpoint_after_every_layer(url: str) -> None:
    """S0.1, S0.5, S0.7, S0.8: messages, tasks, decisions, context and the checkpoint's id, in an embedded database."""
    executor = make(url)
    result = run(executor)

    state = result.state
    assert state["messages"] == MESSAGES and state["context"] == CONTEXT and list(state["decisions"]) == []
    assert [(each["task_id"], each["result"]) for each in state["tasks"]][-1] == (
        "report",
        "Orders of users: 3",
    )
    for each in state["tasks"]:
        assert each["timestamp"] > 0 and each["duration"] >= 0
    assert uuid.UUID(state.checkpoint_id).version == 4 and state.checkpoint_id == result.checkpoint_id
    finished = [
        len(executor.app.state_at("wf-1", after_layer(executor, layer))["tasks"]) for layer in (1, 2, 3)
    ]
    assert finished == [2, 3, 4]


def test_the_state_after_a_layer_is_resumed_exactly_and_continues_with_the_next(
    url: str, tmp_path: Path
) -> None:
    """S0.9-S0.11, S0.22: `resume_from_checkpoint(checkpoint_id)` alone; after layer 2 comes layer 3."""
    calls = tmp_path / "calls"
    executor = make(url, calls)
    first = run(executor)
    checkpoint = after_layer(executor, 2)
    saved = executor.app.state_at("wf-1", checkpoint)
    calls.write_text("")

    other = make(url, calls, approval="always", decisions="per_layer")
    result = other.resume_from_checkpoint(checkpoint)

    assert calls.read_text().split() == ["report"], "no layer that was completed runs again"
    assert list(result.state["tasks"])[:3] == list(saved["tasks"]) and result.state["messages"] == MESSAGES
    assert result.results["report"]["result"] == first.results["report"]["result"]
    assert result.run_id != "wf-1" and (result.layers, result.total_tasks) == (3, 4)


@pytest.mark.parametrize("at", [2, 3, 4, 5, 6])
def test_a_killed_run_is_resumed_by_its_id(url: str, tmp_path: Path, at: int) -> None:
    """S0.9-S0.11, S0.18: kill -9, then the id alone; the DAG and the options come from the run."""
    calls = tmp_path / "calls"
    code = in_child(lambda: run(make(CrashingStore(open_store(url), at=at), calls)))
    assert code == -signal.SIGKILL

    executor = make(url, calls)
    kept = [record["task_id"] for record in executor.app.get_state("wf-1")["tasks"]]
    before = calls.read_text().split() if calls.exists() else []
    result = executor.resume("wf-1", takeover=True)

    assert result.status == "completed" and result.successful_tasks == 4
    again = calls.read_text().split()[len(before) :]
    tables = {"fetch_users": "users", "fetch_orders": "orders"}
    assert not {tables.get(name, name) for name in kept} & set(again), "what was finished does not run again"


def test_a_run_is_resumed_by_its_id_alone_where_its_tools_are(url: str) -> None:
    """S0.10: `holdfast.resume(id, store=…)`, with the executor that is in use in this process or registered."""
    executor = make(url, decisions="per_layer")
    run(executor)

    outcome = holdfast.resume("wf-1", "continue", store=url)

    assert outcome.status == "paused" and outcome.state["layer"] == 2
    executor.abort("wf-1", "enough")
    with pytest.raises(ExecutionError, match="the DAG was aborted: enough"):
        holdfast.resume(outcome.checkpoint_id, store=url)


def test_events_report_every_saved_checkpoint(url: str) -> None:
    """S0.12, S0.24: an event stream, with `{type: "checkpoint_saved", checkpoint_id, timestamp}`."""
    executor = make(url)
    events = list(executor.execute_stream(DAG, context=CONTEXT, run_id="wf-1"))

    saved = [event for event in events if event["type"] == "checkpoint_saved"]
    known = {point.id for point in executor.app.checkpoints("wf-1")}
    assert len(saved) >= 3 and {event["checkpoint_id"] for event in saved} <= known
    assert all(event["timestamp"] > 0 for event in saved)


class FullDisk(WrappedStore):
    """A store that refuses a commit."""

    def __init__(self, url: str, at: int) -> None:
        super().__init__(open_store(url))
        self.left = at

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        self.left -= 1
        if self.left == 0:
            raise StoreError("no space left on device")
        return self.inner.commit(appends)


def test_a_failed_save_does_not_stop_the_run_if_the_policy_says_so(url: str) -> None:
    """S0.13: the run goes on, with the event `checkpoint_failed`; without the policy it stops."""
    policy = CheckpointPolicy(on_save_error="continue")
    executor = make(FullDisk(url, 3), policy=policy)
    events = list(executor.execute_stream(DAG, context=CONTEXT, run_id="wf-1"))

    (failed,) = [event for event in events if event["type"] == "checkpoint_failed"]
    assert "no space left" in failed["error"] and events[-1]["type"] == "workflow_complete"
    assert executor.app.get_state("wf-1")["statuses"]["report"] == "success"
    with pytest.raises(ExecutionError, match="checkpoint save failed: no space left"):
        run(make(FullDisk(url, 3)), "wf-2")


def test_what_cannot_be_resumed_is_refused(url: str, tmp_path: Path) -> None:
    """S0.14: an unknown checkpoint, and damaged bytes."""
    executor = make(url)
    run(executor)
    with pytest.raises(HoldfastError) as unknown:
        executor.resume_from_checkpoint(str(uuid.uuid4()))
    assert isinstance(unknown.value, CheckpointNotFound) or "not found" in str(unknown.value)
    checkpoint = after_layer(executor, 2)
    executor.app.store.close()
    path = tmp_path / "runs.db"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"users 1", b"users 9"))

    with pytest.raises(CorruptJournal):
        make(url).resume_from_checkpoint(checkpoint)


def test_a_modified_dag_is_resumed_gracefully(url: str) -> None:
    """S0.15, S0.24: replanned with new tasks after layer 1; what does not fit is refused with its names."""
    executor = make(url, decisions="per_layer")
    assert run(executor).status == "paused"
    new = [
        {"id": "more", "tool": "db:query", "arguments": {"table": "refunds"}, "depends_on": ["fetch_users"]},
        {
            "id": "sum",
            "tool": "report",
            "arguments": {"rows": {"$ref": "tasks.more.result"}, "title": "Refunds"},
        },
    ]
    with pytest.raises(DAGInvalid, match="does not depend on 'more'; add it to 'depends_on'"):
        executor.replan("wf-1", new)
    new[1]["depends_on"] = ["more"]
    executor.replan("wf-1", new, by="ana", reason="refunds were meant")

    result = make(url).resume("wf-1")
    while result.status == "paused":
        result = make(url).resume("wf-1", "continue")

    assert result.results["sum"]["result"] == "Refunds: 3" and "join" not in result.results
    assert result.decisions[0] | {"timestamp": 0, "dag_hash": ""} == {
        "kind": "human",
        "layer": 1,
        "action": "replan",
        "by": "ana",
        "reason": "refunds were meant",
        "tasks": ["more", "sum"],
        "timestamp": 0,
        "dag_hash": "",
    }


def test_old_checkpoints_are_pruned_to_the_newest_five(url: str) -> None:
    """S0.16: the newest five of the workflow are kept, and the newest one can be resumed."""
    executor = make(url, retention=Retention.recent(5))
    for number in range(4):
        run(executor, f"wf-{number}")

    def kept() -> int:
        return sum(len(executor.app.checkpoints(info.run)) for info in executor.app.runs())

    while kept() > 5:  # It happens in the background.
        threading.Event().wait(0.01)
    assert executor.app.get_state("wf-3")["statuses"]["report"] == "success"


def test_checkpoints_of_a_thousand_tasks_stay_small(tmp_path: Path) -> None:
    """S0.17, S0.20, S0.21: finished tasks only, each checkpoint only what changed."""
    executor = make(f"sqlite:///{tmp_path}/many.db", durability="process")
    tasks = [{"id": f"t{n}", "tool": "report", "arguments": {"rows": [], "title": "x"}} for n in range(1000)]
    last = {**DAG["tasks"][0], "id": "last", "depends_on": ["t0", "t999"]}

    result = executor.execute({"tasks": [*tasks, last]}, run_id="many")

    assert result.successful_tasks == 1001 and result.layers == 2
    sizes = [point.size for point in executor.app.checkpoints("many")]
    assert max(sizes) < 500_000 and sizes[-1] < 100_000


def test_the_table_of_the_document_answers_its_queries(tmp_path: Path) -> None:
    """S0.1, S0.2, S0.11, S0.24: `workflow_checkpoints` with layers, state, DAG and config, newest first."""
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    executor = make(store, approval="never", max_replans=7)
    run(executor)
    write_tables(store)

    with contextlib.closing(sqlite3.connect(tmp_path / "runs.tables.db")) as tables:
        query = (
            "SELECT id, layer_index, state, dag_structure, execution_config FROM workflow_checkpoints "
            "WHERE workflow_id = ? ORDER BY timestamp DESC"
        )
        rows = tables.execute(query, ("orders",)).fetchall()
        plan = str(tables.execute(f"EXPLAIN QUERY PLAN {query}", ("orders",)).fetchall())

    ident, layer_index, state, dag, config = rows[0]
    saved = json.loads(state)
    assert {"messages", "tasks", "decisions", "context"} <= saved.keys() and saved["checkpoint_id"] == ident
    assert saved["tasks"][-1]["task_id"] == "report" and layer_index == 3
    assert [row[1] for row in rows] == [3, 3, 2, 2, 1, 1, 0]
    assert [task["id"] for task in json.loads(dag)["tasks"]] == [task["id"] for task in DAG["tasks"]]
    assert json.loads(config)["approval"] == "never" and json.loads(config)["max_replans"] == 7
    assert "idx_checkpoints_workflow" in plan
    done = executor.resume_from_checkpoint(next(row[0] for row in rows if row[1] == 2))
    assert done.results["report"]["result"] == "Orders of users: 3"


def test_the_manager_saves_loads_and_prunes_the_state_of_the_document(url: str) -> None:
    """S0.4, S0.5, S0.8, S0.11, S0.16: `save_checkpoint(state, dag, layer_index)`, `load`, `prune_old_checkpoints`."""
    manager = CheckpointManager(SQLiteCheckpointStore(url.removeprefix("sqlite:///")))
    dag = {"workflow_id": "orders", **DAG}
    state: dict[str, Any] = {"messages": MESSAGES, "tasks": [], "decisions": [], "context": CONTEXT}
    layers = [["fetch_users", "fetch_orders"], ["join"], ["report"]]
    idents = [manager.save_checkpoint(state, dag, layer_index=0)]
    for index, layer in enumerate(layers, 1):
        done = [{"task_id": name, "result": [name], "timestamp": 1.5, "duration": 0.5} for name in layer]
        state["tasks"] = [*state["tasks"], *done]
        idents.append(manager.save_checkpoint(state, dag, layer_index=index))
        assert state["checkpoint_id"] == idents[-1] and uuid.UUID(idents[-1]).version == 4

    checkpoint = manager.load(idents[2])
    assert checkpoint.workflow_id == "orders" and checkpoint.dag_structure == dag
    assert checkpoint.state["tasks"] == state["tasks"][:3] and checkpoint.state["messages"] == MESSAGES
    assert layers[checkpoint.layer_index :] == [["report"]], "what is left"
    with pytest.raises(HoldfastError, match="the graph has 3 layers"):
        manager.save_checkpoint(state, dag, layer_index=4)

    for _ in range(3):
        manager.save_checkpoint(state, dag, layer_index=3)
    assert manager.prune_old_checkpoints("orders", keep_count=5) == 2
    with pytest.raises(CheckpointNotFound, match=f"checkpoint not found: {idents[0]}"):
        manager.load(idents[0])
    assert manager.load(idents[2]).layer_index == 2 and manager.prune_old_checkpoints("orders") == 0


def test_the_names_of_the_document_are_answered_with_ours(url: str) -> None:
    """S0.24: a DAG as the document writes it is refused with the names to write instead."""
    seed = {"tasks": [{"id": "a", "tool": "report", "arguments": {}, "dependsOn": []}]}
    with pytest.raises(DAGInvalid, match=re.escape("unknown field 'dependsOn'; did you mean 'depends_on'?")):
        make(url).execute(seed)
