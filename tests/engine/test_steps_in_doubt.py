"""A step that was interrupted and may not be repeated stays in doubt until somebody decides."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import END, START, App, Context, ExecutionError, StateGraph

PAY = """
import os, signal, sys
from tests.engine.test_steps_in_doubt import build

def pay(state, ctx):
    with open("paid", "a") as file:
        file.write("paid\\n")
    os.kill(os.getpid(), signal.SIGKILL)

build("runs.db", pay, "fail").invoke(run_id="r1")
"""


def build(path: str | Path, pay: Any, if_interrupted: Any) -> App:
    graph = StateGraph(dict, name="payment")
    graph.add_node("pay", pay, if_interrupted=if_interrupted, version="1")
    graph.add_edge(START, "pay")
    graph.add_edge("pay", END)
    return graph.compile(f"sqlite:///{path}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a run was killed in the middle of its only step, after the step took effect."""
    path = os.pathsep.join(str(Path(__file__).parents[2] / part) for part in ("", "src"))
    done = subprocess.run([sys.executable, "-c", PAY], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == -9 and (tmp_path / "paid").read_text() == "paid\n"
    return tmp_path


def never(state: Any) -> None:
    raise AssertionError("the step ran again")


def refused(folder: Path) -> None:
    with pytest.raises(ExecutionError, match="may or may not have taken effect"):
        build(folder / "runs.db", never, "fail").resume("r1")


def test_a_refused_step_is_refused_again_and_again(folder: Path) -> None:
    """S1.4"""
    for _ in range(3):
        refused(folder)


def test_a_refused_step_can_be_skipped_as_its_error_says(folder: Path) -> None:
    """S1.4"""
    refused(folder)

    out = build(folder / "runs.db", never, "fail").resume("r1", if_interrupted="skip")

    assert out.status == "completed"


def test_a_refused_step_can_be_run_again_as_its_error_says(folder: Path) -> None:
    """S1.4"""
    refused(folder)

    out = build(folder / "runs.db", lambda state: {"paid": 2}, "fail").resume("r1", if_interrupted="rerun")

    assert out.state["paid"] == 2


def test_after_a_refusal_the_world_can_still_be_looked_at(folder: Path) -> None:
    refused(folder)

    out = build(folder / "runs.db", never, lambda ctx: {"paid": True}).resume("r1")

    assert out.state["paid"] is True


def test_looking_that_failed_is_looked_at_again_and_not_taken_for_a_failed_step(folder: Path) -> None:
    def broken(ctx: Context) -> None:
        raise OSError("the bank is closed")

    with pytest.raises(ExecutionError, match="the bank is closed"):
        build(folder / "runs.db", never, broken).resume("r1")

    assert build(folder / "runs.db", never, lambda ctx: True).resume("r1").status == "completed"


def test_a_step_that_was_answered_to_fail_can_be_decided_on_again(folder: Path) -> None:
    ask = build(folder / "runs.db", never, "ask")
    assert ask.resume("r1").pauses[0].kind == "in_doubt"
    with pytest.raises(ExecutionError, match="may or may not have taken effect"):
        ask.resume("r1", answer="fail")

    assert ask.resume("r1").pauses[0].kind == "in_doubt"
    assert ask.resume("r1", answer="skip").status == "completed"


def test_a_step_that_ran_again_and_failed_is_no_longer_in_doubt(folder: Path) -> None:
    refused(folder)

    def fails(state: Any) -> None:
        raise ValueError("no money")

    with pytest.raises(ExecutionError, match="no money"):
        build(folder / "runs.db", fails, "fail").resume("r1", if_interrupted="rerun")

    assert build(folder / "runs.db", lambda state: {"paid": 2}, "fail").resume("r1").state["paid"] == 2
