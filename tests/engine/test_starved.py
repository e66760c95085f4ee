"""Processes that have no more threads, descriptors or memory: an error that says so, and a run that can be resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT, unmeasured

WHOLE = ["first", "left", "right", "last"]


def starved(url: str, what: str, how: str, spare: int = 0) -> dict[str, Any]:
    """What a process tells of a run under a limit, and of its resume without one."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.starved", url, what, how, str(spare)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=unmeasured(),
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["state"] == WHOLE and told["broken"] == []
    return {**told, "log": done.stderr}


@pytest.fixture(params=["sqlite", "file"])
def disk_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db" if request.param == "sqlite" else f"file://{tmp_path}/runs"


@pytest.mark.parametrize("how", ["invoke", "ainvoke", "notebook", "stream", "astream"])
def test_where_no_thread_can_be_started_a_call_that_needs_one_says_so_and_can_be_resumed(
    sqlite_url: str, how: str
) -> None:
    told = starved(sqlite_url, "threads", how)

    assert told["error"] == "ResourceExhausted"
    assert "needs a thread, and no more can be started (can't start new thread)" in told["message"]


def test_where_no_thread_can_be_started_async_steps_run_all_the_same(disk_url: str) -> None:
    told = starved(disk_url, "threads", "async-nodes")

    assert told["status"] == "completed"
    assert "no thread can be started (can't start new thread): the event loop waits" in told["log"]


def test_a_worker_without_threads_leaves_runs_that_need_one_to_others(sqlite_url: str) -> None:
    told = starved(sqlite_url, "threads", "worker")

    assert (told["error"], told["status"]) == ("", "queued")


def test_a_lease_that_cannot_be_kept_is_not_taken(postgres_url: str) -> None:
    told = starved(postgres_url, "threads", "ainvoke")

    assert told["error"] == "ResourceExhausted"


@pytest.mark.parametrize("spare", [0, 3])
def test_where_no_file_can_be_opened_a_call_says_so_and_can_be_resumed(disk_url: str, spare: int) -> None:
    told = starved(disk_url, "descriptors", "invoke", spare)

    assert (spare and told["status"] == "completed") or "Too many open files" in told["message"]
    assert told["status"] or told["clear"]
