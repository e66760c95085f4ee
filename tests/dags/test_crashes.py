"""A process that is killed at any boundary bypasses no approval and no decision, and repeats no finished task."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast import open_store
from holdfast.dags import ControlledExecutor, DecisionPoint, Tools
from holdfast.stores.base import Store
from holdfast.testing import CrashingStore, RunSeen, crash_everywhere, record_effect
from tests.processes import in_child

DAG = {
    "tasks": [
        {"id": "look", "tool": "look"},
        {"id": "pay", "tool": "pay", "arguments": {"amount": 5}, "depends_on": ["look"]},
        {"id": "tell", "tool": "look", "depends_on": ["pay"]},
    ]
}


def make(store: Store | str | None, effects: Path, **options: Any) -> ControlledExecutor:
    """An executor whose tools and agent write what they do to a file."""
    tools = Tools()

    def note(text: str) -> None:
        with effects.open("a") as file:
            file.write(f"{text}\n")

    @tools.tool
    def look() -> str:
        note("look")
        return "seen"

    @tools.tool(critical=True)
    def pay(amount: int) -> str:
        note("pay")
        return f"paid {amount}"

    def agent(point: DecisionPoint) -> str:
        note(f"decide {point.layer}")
        return "continue"

    return ControlledExecutor(tools, store, decide=agent, decisions="per_layer", **options)


def killed(url: str, effects: Path, at: int, point: Any, resume: bool) -> bool:
    """Execute or resume in a process that dies at a commit; return whether it died."""

    def work() -> None:
        executor = make(CrashingStore(open_store(url), at, point), effects)
        executor.resume("r", takeover=True) if resume else executor.execute(DAG, run_id="r")

    code = in_child(work)
    assert code in (0, -signal.SIGKILL), code
    return code != 0


@pytest.mark.no_cover
@pytest.mark.parametrize("point", ["before", "committed", "acknowledged"])
def test_no_kill_bypasses_an_approval(tmp_path: Path, point: str) -> None:
    """R0.7, S0.18: kill -9 at every commit before the approval, and at every commit after it."""
    boundaries = 0
    for resume in (False, True):
        for at in range(1, 40):
            folder = tmp_path / f"{resume}{at}"
            folder.mkdir()
            url, effects = f"sqlite:///{folder}/runs.db", folder / "effects"
            effects.touch()
            if resume:
                make(url, effects).execute(DAG, run_id="r")
                make(url, effects).approve("r", by="ana")
            died = killed(url, effects, at, point, resume)
            executor = make(url, effects)
            if not resume:
                stored = bool(executor.app.runs())
                result = executor.resume("r", takeover=True) if stored else executor.execute(DAG, run_id="r")
                assert result.status == "paused" and result.pauses[0].node == "approve"
                assert "pay" not in effects.read_text().split()
                executor.approve("r", by="ana")
                result = executor.resume("r")
            elif executor.app.runs()[0].status == "completed":
                break
            else:
                result = executor.resume("r", takeover=True)
            assert result.status == "completed" and result.successful_tasks == 3
            kinds = [each["kind"] for each in result.decisions]
            assert kinds == ["agent", "approval", "agent", "agent"]
            assert len(result.state["tasks"]) == 3, "no task is recorded twice"
            boundaries += died
            if not died:
                break
    assert boundaries >= 10


@pytest.mark.parametrize("approval", ["always", "critical_only"])
def test_wherever_it_dies_a_dag_comes_to_the_same_end(approval: str) -> None:
    """S0.9, S0.11, R0.2: killed at every boundary, a run repeats no finished task and no decision."""
    tools = Tools()

    @tools.tool
    def fetch(ctx: Any, n: int) -> int:
        record_effect("fetch", ctx.idempotency_key, n=n)
        return n

    @tools.tool(critical=True)
    def pay(ctx: Any, amount: int) -> str:
        record_effect("pay", ctx.idempotency_key, amount=amount)
        return f"paid {amount}"

    @tools.tool
    def fail() -> None:
        raise ValueError("no")

    def agent(point: DecisionPoint) -> Any:
        if point.errors:
            new = {"id": "instead", "tool": "fetch", "arguments": {"n": 9}}
            return {"action": "inject", "tasks": [new]}
        return "continue"

    dag = {
        "tasks": [
            {"id": "a", "tool": "fetch", "arguments": {"n": 1}},
            {"id": "b", "tool": "fail"},
            {
                "id": "p",
                "tool": "pay",
                "arguments": {"amount": {"$ref": "tasks.a.result"}},
                "depends_on": ["a"],
            },
        ]
    }
    executor = ControlledExecutor(tools, decide=agent, approval=approval)

    def right(run: RunSeen) -> bool:
        records = {record["task_id"]: record["status"] for record in run["tasks"]}
        kinds = [entry["kind"] for entry in run["decisions"]]
        asked = 2 if approval == "always" else 1
        expected = {"a": "success", "b": "error", "p": "success", "instead": "success"}
        return records == expected and kinds.count("agent") == 1 and kinds.count("approval") == asked

    report = crash_everywhere(
        executor.app,
        executor.initial_state(dag),
        config=executor.config,
        answers=lambda pause: "approve",
        invariant=right,
        mode="fast",
    )

    assert report.kills > 15
