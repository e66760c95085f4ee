"""Pause and resume as the decision record of the interactive workflow server describes them, in Python and in files."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import END, START, CheckpointPolicy, StateGraph
from holdfast.checkpoints import (
    CheckpointState,
    CheckpointStore,
    InMemoryCheckpointStore,
    PauseMetadata,
    pause_workflow,
    periodic_cleanup,
    resume_workflow,
)
from holdfast.state import WorkflowState
from tests.docs.test_docs import environment


class AuthorsStore(CheckpointStore):
    """The store in memory, as the decision record writes it."""

    def __init__(self) -> None:
        self._checkpoints: dict[str, CheckpointState] = {}

    def save(self, state: Any) -> None:
        self._checkpoints[state.checkpoint_id] = state

    def load(self, checkpoint_id: str) -> CheckpointState | None:
        return self._checkpoints.get(checkpoint_id)

    def delete(self, checkpoint_id: str) -> None:
        self._checkpoints.pop(checkpoint_id, None)

    def list(self, workflow_name: str | None = None) -> list[CheckpointState]:
        checkpoints = list(self._checkpoints.values())
        if workflow_name:
            return [cp for cp in checkpoints if cp.workflow_name == workflow_name]
        return checkpoints

    def cleanup_expired(self, max_age_hours: float = 24) -> int:
        now = datetime.now(UTC)
        expired = [
            cp_id
            for cp_id, cp in self._checkpoints.items()
            if (now - cp.created_at).total_seconds() > max_age_hours * 3600
        ]
        for cp_id in expired:
            del self._checkpoints[cp_id]
        return len(expired)


def state_of(hours: float = 0, name: str = "deploy") -> CheckpointState:
    """The checkpoint of an interactive pause, with the fields of the record."""
    return CheckpointState(
        checkpoint_id=str(uuid.uuid4()),
        workflow_name=name,
        workflow_inputs={"env": "production"},
        execution_waves=[[{"id": "build"}], [{"id": "confirm"}], [{"id": "publish"}]],
        completed_waves=1,
        context={"blocks": {"build": {"outputs": {"image": "app:1"}}}},
        created_at=datetime.now(UTC) - timedelta(hours=hours),
        pause_metadata=PauseMetadata(block_id="confirm", prompt="Deploy to production?", response=None),
    )


@pytest.mark.parametrize("make", [InMemoryCheckpointStore, AuthorsStore])
def test_a_store_saves_loads_lists_deletes_and_expires_states(make: Any) -> None:
    """S2.5, S2.7, S2.8, S2.9, S2.10: the store of Holdfast's own, and one typed from the record, do the same."""
    store, state, other, old = make(), state_of(), state_of(name="report"), state_of(hours=25)
    for each in (state, other, old):
        store.save(each)

    loaded = store.load(state.checkpoint_id)
    assert (loaded.workflow_name, loaded.workflow_inputs) == ("deploy", {"env": "production"})
    assert [[block["id"] for block in wave] for wave in loaded.execution_waves] == [
        ["build"],
        ["confirm"],
        ["publish"],
    ]
    assert loaded.completed_waves == 1 and loaded.created_at == state.created_at
    assert loaded.context["blocks"]["build"]["outputs"] == {"image": "app:1"}
    assert loaded.pause_metadata == PauseMetadata("confirm", "Deploy to production?", None)
    assert store.load("missing") is None
    assert {each.checkpoint_id for each in store.list()} == {
        each.checkpoint_id for each in (state, other, old)
    }
    assert [each.checkpoint_id for each in store.list(workflow_name="report")] == [other.checkpoint_id]
    store.delete(other.checkpoint_id)
    store.delete(other.checkpoint_id)
    assert store.cleanup_expired(max_age_hours=24) == 1
    assert [each.checkpoint_id for each in store.list()] == [state.checkpoint_id]


def deployment(ran: list[str]) -> StateGraph:
    """build -> confirm (asks) -> publish, with a context."""

    def block(name: str) -> Any:
        def run(state: Any) -> dict[str, Any]:
            ran.append(name)
            return {"messages": [name]}

        return run

    def confirm(state: Any, ctx: Any) -> dict[str, Any]:
        return {"messages": [ctx.ask("Deploy to production?", name="confirm")]}

    graph = StateGraph(WorkflowState, name="deploy")
    graph.add_node("build", block("build")).add_node("confirm", confirm).add_node("publish", block("publish"))
    graph.add_edge(START, "build").add_edge("build", "confirm").add_edge("confirm", "publish")
    return graph.add_edge("publish", END)


@pytest.mark.parametrize("make", [InMemoryCheckpointStore, AuthorsStore])
def test_a_workflow_is_paused_and_resumed_by_its_checkpoint_and_gone_when_it_completes(make: Any) -> None:
    """S2.1, S2.11-S2.14, S2.16: `resume_workflow(checkpoint_id, response)`; completed waves are not run again."""
    ran: list[str] = []
    store = make()
    app = deployment(ran).compile(store, policy=CheckpointPolicy(preserve="none"))
    paused = app.invoke({"context": {"env": "production"}}, run_id="d1")

    checkpoint_id = pause_workflow(app, "d1", block_id="confirm", prompt="Deploy to production?")
    assert checkpoint_id == paused.checkpoint_id and uuid.UUID(checkpoint_id).version == 4
    state = store.load(checkpoint_id)
    assert state.pause_metadata == PauseMetadata("confirm", "Deploy to production?", None)
    assert state.completed_waves == 1 and state.context["context"] == {"env": "production"}
    assert resume_workflow("nowhere").error == "Checkpoint not found: nowhere"

    result = resume_workflow(checkpoint_id, response="yes")

    assert result.is_success and result.outcome is not None, result.error
    assert result.outcome.state["messages"] == ["build", "yes", "publish"] and ran == ["build", "publish"]
    outputs = result.outcome.state["context"]["blocks"]["confirm"]["outputs"]
    assert outputs == {"response": "yes"} and result.outcome.state["context"]["env"] == "production"
    assert store.list("deploy") == [], "a completed workflow leaves no checkpoint"


def test_the_cleanup_runs_in_the_background_tells_the_number_and_survives_errors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S2.17: `periodic_cleanup(store, interval_minutes=60)`."""
    store = AuthorsStore()
    store.save(state_of(hours=25))
    cleaned = threading.Event()

    class Broken(AuthorsStore):
        def cleanup_expired(self, max_age_hours: float = 24) -> int:
            cleaned.set()
            raise ConnectionError("the database is away")

    with caplog.at_level(logging.INFO, "holdfast"):
        working, broken = periodic_cleanup(store, interval_minutes=60), periodic_cleanup(Broken(), 60)
        while store.list() or not cleaned.is_set() or "cleanup failed" not in caplog.text:
            threading.Event().wait(0.01)
        working.stop()
        broken.stop()

    assert "cleaned up 1 expired" in caplog.text
    assert "checkpoint cleanup failed: " in caplog.text and "the database is away" in caplog.text


BLOCKS = """
workflow:
  name: NAME
  inputs: {topic: {type: string, default: tea}}
  checkpoint: {retention: {pause_ttl: 24h}}
steps:
  - {name: collect, shell: "echo collect >> ran.txt; echo facts"}
  - {name: confirm, after: collect, ask: {prompt: "Publish on {{ inputs.topic }}?", type: string}}
  - {name: also, after: collect, ask: "Who signs?"}
  - name: publish
    after: [confirm, also]
    when: steps.confirm.output == 'yes'
    shell: {run: 'printf "%s " publish "{{ steps.also.output }}" >> ran.txt'}
output: {response: "{{ steps.confirm.output }}", published: "{{ steps.publish.status }}"}
"""


class Server:
    """A folder with workflow files, and the commands of the people around it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("one", "two"):
            (folder / f"{name}.yaml").write_text(BLOCKS.replace("NAME", name))

    def call(self, *words: str, code: int = 0) -> Any:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "holdfast", *words, "--json"],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    def ran(self) -> list[str]:
        return (self.folder / "ran.txt").read_text().split()


PAUSED = 4


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_a_run_pauses_for_input_and_goes_on_with_the_responses(server: Server) -> None:
    """S2.1, S2.3, S2.13, S2.14: the responses are the outputs of their blocks, and finished blocks stay."""
    paused = server.call("run", "one.yaml", "--run-id", "r", "--no-interactive", code=PAUSED)
    assert {pause["prompt"] for pause in paused["pauses"]} == {"Publish on tea?", "Who signs?"}

    half = server.call("resume", "r", "--answer", "confirm=yes", "--no-interactive", code=PAUSED)
    assert [pause["prompt"] for pause in half["pauses"]] == ["Who signs?"]
    done = server.call("resume", "r", "--answer", "also=Ada", "--no-interactive")

    assert done["output"] == {"response": "yes", "published": "completed"}
    assert server.ran() == ["collect", "publish", "Ada"]


def test_several_workflows_pause_independently(server: Server) -> None:
    """S2.4: two runs wait at the same time, and an answer to one changes nothing in the other."""
    for name in ("one", "two"):
        server.call("run", f"{name}.yaml", "--run-id", name, "--no-interactive", code=PAUSED)

    server.call("resume", "one", "--answer", "confirm=no", "--answer", "also=Ada", "--no-interactive")

    assert server.call("show", "one")["status"] == "completed"
    assert server.call("show", "two")["status"] == "paused"
    assert server.ran() == ["collect", "collect"], "nothing was published"


def test_a_run_that_is_not_there_is_an_error_with_a_way_out(server: Server) -> None:
    """S2.12: the error names what was not found."""
    server.call("run", "one.yaml", "--run-id", "r", "--no-interactive", code=PAUSED)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "resume", "nowhere"],
        cwd=server.folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.returncode != 0 and "nowhere" in done.stderr and "Traceback" not in done.stderr
