"""The metrics of a service: each is there, and says what happened."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast import END, START, Context, StateGraph
from holdfast.journal.journal import Journal
from holdfast.service import Service
from holdfast.stores.base import RunInfo
from holdfast.views.run_view import PauseView
from holdfast.views.runs import run_pauses
from tests.service.conftest import BROKEN, GREET, REVIEW

KILLED = """
import os, signal, sys
from holdfast import END, START, StateGraph
graph = StateGraph(dict, name="killed")
graph.add_node("die", lambda state: os.kill(os.getpid(), signal.SIGKILL))
graph.add_edge(START, "die").add_edge("die", END)
graph.compile(sys.argv[1]).invoke({}, run_id="dead")
"""


def spend(state: dict[str, object], ctx: Context) -> None:
    ctx.spend(model="m", input_tokens=10, output_tokens=1, cost=0.25)


def values(text: str) -> dict[str, float]:
    """The metrics by name and labels; every one has a line of help and of its type."""
    lines = text.splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    names = {line.split(" ")[2] for line in lines if line.startswith("# TYPE ")}
    assert names == {line.split(" ")[2] for line in lines if line.startswith("# HELP ")}
    assert all(
        name.partition("{")[0].removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") in names
        for name in found
    )
    return {name: float(value) for name, value in found.items()}


def test_metrics_say_what_the_store_holds_and_what_was_executed(tmp_path: Path) -> None:
    url, again = f"sqlite:///{tmp_path / 'runs.db'}", "timeout: 30\n    retry: {attempts: 2, delay: 0.01}\n"
    for name, text in (("g", GREET), ("r", REVIEW), ("b", BROKEN.replace("timeout: 30\n", again))):
        (tmp_path / f"{name}.yaml").write_text(text)
    costly = StateGraph(dict, name="costly")
    costly.add_node("spend", spend).add_edge(START, "spend").add_edge("spend", END)
    assert subprocess.run([sys.executable, "-c", KILLED, url], check=False, env=os.environ).returncode == -9
    with Service(url, [tmp_path, costly]) as service:
        for workflow, inputs in (("greet", {"name": "x"}), ("review", {}), ("broken", {}), ("costly", {})):
            service.execute(workflow, inputs, wait=60)
        service.execute("greet", {"name": "later"}, delay=10_000, queue="night")
        service._counted.forget()
        service._queued.forget()
        found = values(service.metrics())
    runs = {name: value for name, value in found.items() if name.startswith("holdfast_runs{") and value}
    statuses = {"completed": 2, "paused": 1, "failed": 1, "queued": 1, "running": 1}
    assert runs == {f'holdfast_runs{{status="{name}"}}': value for name, value in statuses.items()}
    assert found["holdfast_steps_total"] == 6  # greet has one for its output; failed ones have ended, too.
    assert (found["holdfast_step_retries_total"], found["holdfast_step_failures_total"]) == (1, 2)
    assert (found["holdfast_run_failures_total"], found["holdfast_save_failures_total"]) == (1, 0)
    assert found["holdfast_cost_dollars_total"] == 0.25
    assert (found['holdfast_queue_depth{queue="night"}'], found['holdfast_queue_due{queue="night"}']) == (
        1,
        0,
    )
    assert found["holdfast_lapsed_leases"] == 1 and found["holdfast_oldest_pause_seconds"] > 0
    assert found['holdfast_commit_seconds_bucket{le="+Inf"}'] == found["holdfast_commit_seconds_count"] > 10
    assert found["holdfast_commit_seconds_sum"] > 0


TWO = """\
workflow: {name: two, inputs: {topic: {type: string, default: tides}}}
steps:
  - name: both
    parallel:
      - {name: one, ask: {prompt: "One?"}}
      - {name: other, ask: {prompt: "Other?"}}
"""


def test_the_oldest_pause_is_that_of_a_question_whatever_is_done_to_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two.yaml").write_text(TWO)
    read: list[str] = []

    def reading(journal: Journal, info: RunInfo) -> tuple[PauseView, ...]:
        read.append(info.run)
        return run_pauses(journal, info)

    monkeypatch.setattr("holdfast.service.metrics.run_pauses", reading)
    with Service(f"sqlite:///{tmp_path / 'runs.db'}", [tmp_path]) as service:

        def age() -> float:
            return values(service.metrics())["holdfast_oldest_pause_seconds"]

        assert age() == 0
        run = service.execute("two", wait=60)["run_id"]
        since = dt.datetime.fromisoformat(service.status(run)["pauses"][0]["since"]).timestamp()
        while time.time() < since + 0.5:
            time.sleep(0.01)
        later = service.execute("two", wait=60)["run_id"]
        assert age() > 0.49 and age() > 0.49 and sorted(read) == sorted([run, later])
        service.edit(run, {"inputs.topic": "ebb"})
        service.answer(run, "yes", question="one")
        assert len(service.wait(run, 60)["pauses"]) == 1 and age() > 0.49 and len(read) == 3
        service.answer(run, "yes", question="other")
        assert service.wait(run, 60)["status"] == "completed"
        begun = dt.datetime.fromisoformat(service.status(later)["pauses"][0]["since"]).timestamp()
        assert age() <= time.time() - begun + 0.01
        monkeypatch.setattr("holdfast.service.metrics.MOST_PAUSED", 0)
        assert age() > 0
