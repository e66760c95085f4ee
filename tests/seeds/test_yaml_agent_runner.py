"""The YAML keys, command lines, classes and tables of the YAML agent runner's design, as its author would type them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import END, START, ExecutionError, StateGraph
from holdfast.checkpoints import CheckpointData, CheckpointStore, SQLiteCheckpointStore
from tests.docs.test_docs import environment

WORKFLOW = """
workflow:
  name: long-analysis
  inputs: {question: {type: string, required: true}}
  checkpoint:
    enabled: true
    storage: sqlite
    path: .conductor/checkpoints/${workflow.name}/
    on_failure: ON_FAILURE
    retention:
      max_checkpoints: 10
      max_age_days: 7
      keep_successful: true
steps:
  - {name: agent-1, shell: "echo agent-1 >> ran.txt; echo 1"}
  - name: both
    parallel:
      - {name: agent-2, shell: "echo agent-2 >> ran.txt"}
      - {name: agent-3, shell: "echo agent-3 >> ran.txt"}
  - {name: agent-9, shell: "echo agent-9 >> ran.txt; test -e quota || { echo '429: rate limit' >&2; exit 1; }"}
  - {name: agent-10, set: {answer: "{{ inputs.question }}"}}
"""


class Terminal:
    """A folder in which commands are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, on_failure: str = "pause") -> None:
        (self.folder / "workflow.yaml").write_text(WORKFLOW.replace("ON_FAILURE", on_failure))

    def type(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", "-m", "holdfast", *words]
        return subprocess.run(
            command, cwd=self.folder, env=environment(), capture_output=True, text=True, timeout=100
        )

    def ran(self) -> list[str]:
        return (self.folder / "ran.txt").read_text().split()


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    found = Terminal(tmp_path)
    found.write()
    return found


def test_a_rate_limit_is_resumed_by_the_name_of_the_workflow(terminal: Terminal) -> None:
    """S1.6, S1.7, S1.8, S1.15: agents 1 to 3 do not run again, and the printed command is the way on."""
    failed = terminal.type("run", "workflow.yaml", "--input", "question=why?")
    assert failed.returncode == 1 and "429: rate limit" in failed.stderr and "resume with: " in failed.stderr
    assert (terminal.folder / ".conductor/checkpoints/long-analysis/runs.db").exists()
    (terminal.folder / "quota").touch()

    resumed = terminal.type("resume", "long-analysis", "--json")

    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["output"] == {"answer": "why?"}
    ran = terminal.ran()
    assert sorted(ran) == ["agent-1", "agent-2", "agent-3", "agent-9", "agent-9"] and ran[0] == "agent-1"


def test_checkpoints_are_listed_shown_resumed_pruned_and_cleared(terminal: Terminal) -> None:
    """S1.1, S1.8: a checkpoint after every agent and every group; each of them can be shown and resumed from."""
    terminal.type("run", "workflow.yaml", "--input", "question=why?")
    (terminal.folder / "quota").touch()

    listed = json.loads(terminal.type("checkpoints", "list", "--workflow", "long-analysis", "--json").stdout)
    after = {row["nodes"][0]: row["checkpoint_id"] for row in listed["checkpoints"] if row["nodes"]}
    assert {"agent-1", "both:done"} <= after.keys()
    shown = terminal.type("checkpoints", "show", after["agent-1"])
    assert shown.returncode == 0 and "agent-1" in shown.stdout, shown.stderr
    again = terminal.type("resume", "--checkpoint-id", after["agent-1"])
    assert again.returncode == 0, again.stderr
    assert terminal.ran().count("agent-1") == 1 and terminal.ran().count("agent-2") == 2
    assert terminal.type("checkpoints", "list").returncode == 0
    assert terminal.type("checkpoints", "prune", "--older-than", "7d").returncode == 0
    cleared = terminal.type("checkpoints", "clear", "long-analysis", "--yes")
    assert cleared.returncode == 0, cleared.stderr
    assert terminal.type("resume", "long-analysis").returncode != 0


def test_the_tables_of_the_design_answer_its_queries(terminal: Terminal) -> None:
    """S1.13: `checkpoints` with the columns of the design, of a run that waits for its quota."""
    terminal.type("run", "workflow.yaml", "--input", "question=why?", "--run-id", "w1")
    written = terminal.type("store", "tables", "--file", "workflow.yaml", "--into", "sqlite:///tables.db")
    assert written.returncode == 0, written.stderr

    with contextlib.closing(sqlite3.connect(terminal.folder / "tables.db")) as tables:
        row = tables.execute(
            "SELECT workflow_inputs, current_agent, in_progress, completed_agents, agent_outputs, iteration, "
            "created_at <= updated_at FROM checkpoints WHERE workflow_name = ? ORDER BY created_at DESC",
            ("long-analysis",),
        ).fetchone()
        indexes = {name for (name,) in tables.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}

    inputs, current, in_progress, completed, outputs, iteration, in_order = row
    assert json.loads(inputs)["inputs"] == {"question": "why?"} and current == "agent-9"
    assert in_progress in (None, "agent-9") and in_order
    assert {"agent-1", "agent-2", "agent-3"} <= set(json.loads(completed)) and iteration >= 3
    assert json.loads(outputs)["agent-1"] == 1
    assert {"idx_workflow_name", "idx_updated_at"} <= indexes


# The store of the design: async, with these methods and no others.


class AgentStore(CheckpointStore):
    """As the design writes the store: async, `list_checkpoints`, and `prune` by age and number."""

    def __init__(self) -> None:
        self.kept: dict[str, CheckpointData] = {}
        self.saved: list[tuple[str | None, list[str]]] = []

    async def save(self, data: CheckpointData) -> None:
        await asyncio.sleep(0)
        self.kept[data.checkpoint_id] = data
        self.saved.append((data.in_progress, data.completed_agents))

    async def load(self, checkpoint_id: str) -> CheckpointData | None:
        return self.kept.get(checkpoint_id)

    async def list_checkpoints(self, workflow_name: str | None = None) -> list[CheckpointData]:
        return [data for data in self.kept.values() if workflow_name in (None, data.workflow_name)]

    async def delete(self, checkpoint_id: str) -> None:
        self.kept.pop(checkpoint_id, None)

    async def prune(self, max_age_days: int, max_count: int) -> int:
        oldest = datetime.now(UTC) - timedelta(days=max_age_days)
        newest_first = sorted(self.kept.values(), key=lambda data: data.created_at, reverse=True)
        gone = [
            data
            for number, data in enumerate(newest_first)
            if number >= max_count or data.created_at < oldest
        ]
        for data in gone:
            del self.kept[data.checkpoint_id]
        return len(gone)


def test_an_async_store_typed_from_the_design_keeps_intents_and_completions() -> None:
    """S1.3, S1.10, S1.11, S1.14: agent 2 hits a rate limit; a resume runs it and agent 3, and not agent 1."""
    ran: list[str] = []
    quota: list[bool] = []

    def agent(name: str) -> Any:
        def run(state: Any) -> dict[str, Any]:
            ran.append(name)
            if name == "agent2" and not quota:
                raise ConnectionError("429: rate limit")
            return {name: "output"}

        return run

    graph = StateGraph(dict, name="long-analysis")
    for before, name in ((START, "agent1"), ("agent1", "agent2"), ("agent2", "agent3")):
        graph.add_node(name, agent(name)).add_edge(before, name)
    graph.add_edge("agent3", END)
    store = AgentStore()
    with pytest.raises(ExecutionError, match="429: rate limit"):
        graph.compile(store).invoke({"question": "why?"}, run_id="a1")

    assert ("agent1", []) in store.saved, "the intent is saved before the agent runs"
    assert ("agent2", ["agent1"]) in store.saved
    data = max(asyncio.run(store.list_checkpoints("long-analysis")), key=lambda each: each.updated_at)
    assert (data.workflow_name, data.workflow_inputs) == ("long-analysis", {"question": "why?"})
    assert (data.current_agent, data.completed_agents, data.iteration) == ("agent2", ["agent1"], 1)
    assert data.agent_outputs == {"agent1": {"agent1": "output"}}
    assert data.context_snapshot == {"question": "why?", "agent1": "output"}
    assert data.created_at <= data.updated_at

    quota.append(True)
    graph.compile(store).resume(data.checkpoint_id)
    assert ran == ["agent1", "agent2", "agent2", "agent3"]
    assert asyncio.run(store.prune(max_age_days=7, max_count=1)) >= 2 and len(store.kept) == 1


def test_the_sqlite_store_keeps_a_checkpoint_of_the_design(tmp_path: Path) -> None:
    """S1.10, S1.11, S1.12: `SQLiteCheckpointStore(db_path: Path)`, with every field of `CheckpointData`."""
    now = datetime.now(UTC)
    facts: dict[str, Any] = {
        "checkpoint_id": str(uuid.uuid4()),
        "workflow_name": "my-analysis",
        "workflow_inputs": {"question": "why?"},
        "current_agent": "agent9",
        "in_progress": "agent9",
        "completed_agents": ["agent1", "agent2"],
        "agent_outputs": {"agent1": {"text": "a"}, "agent2": {"text": "b"}},
        "context_snapshot": {"text": "b"},
        "iteration": 2,
        "created_at": now,
        "updated_at": now,
    }

    async def keep() -> CheckpointData | None:
        store = SQLiteCheckpointStore(tmp_path / "checkpoints.db")
        await store.asave(CheckpointData(**facts))
        assert await store.aload("missing") is None
        assert len(await store.alist_checkpoints("my-analysis")) == 1
        assert await store.alist_checkpoints("other") == []
        loaded = await store.aload(facts["checkpoint_id"])
        await store.adelete(facts["checkpoint_id"])
        assert await store.alist_checkpoints(None) == []
        assert await store.aprune(max_age_days=7, max_count=10) == 0
        return loaded

    loaded = asyncio.run(keep())
    assert {name: getattr(loaded, name) for name in facts} == facts


@pytest.mark.parametrize(("on_failure", "code"), [("continue", 0), ("rollback", 1)])
def test_the_other_ways_of_on_failure(terminal: Terminal, on_failure: str, code: int) -> None:
    """S1.7: continue goes on to the next agent, rollback leaves nothing of the run's work behind."""
    terminal.write(on_failure)

    done = terminal.type("run", "workflow.yaml", "--input", "question=why?", "--json")

    assert done.returncode == code, done.stderr
    runs = json.loads(terminal.type("runs", "--file", "workflow.yaml", "--json").stdout)["runs"]
    assert len(runs) == (1 if on_failure == "continue" else 0)
    if on_failure == "continue":
        assert json.loads(done.stdout)["output"] == {"answer": "why?"}
