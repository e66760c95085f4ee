"""Processes that have no more threads, descriptors or memory: an error that says so, and a run that can be resumed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import ResourceExhausted
from holdfast.threads import start
from tests.processes import ROOT, unmeasured

WHOLE = ["first", "left", "right", "last"]


def starve(*words: str) -> subprocess.CompletedProcess[str]:
    """A process that executes a run under a limit, if it is not `nothing`, and resumes it without one."""
    return subprocess.run(
        [sys.executable, "-m", "tests.engine.exhaustion", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=unmeasured(),
        timeout=150,
    )


def starved(url: str, what: str, how: str, spare: int = 0, *ledger: str) -> dict[str, Any]:
    """Return what a process prints of a run under a limit, and of its resume without one."""
    done = starve(url, what, how, str(spare), *ledger)
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


def test_a_worker_without_threads_ends_after_a_few_tries_and_leaves_runs_that_need_one(
    sqlite_url: str,
) -> None:
    told = starved(sqlite_url, "threads", "worker")

    assert told["error"] == "ResourceExhausted" and "needs a thread" in told["message"]


def test_a_lease_that_cannot_be_kept_is_not_taken(postgres_url: str) -> None:
    told = starved(postgres_url, "threads", "ainvoke")

    assert told["error"] == "ResourceExhausted"


@pytest.mark.parametrize("spare", [0, 3])
def test_where_no_file_can_be_opened_a_call_says_so_and_can_be_resumed(disk_url: str, spare: int) -> None:
    told = starved(disk_url, "descriptors", "invoke", spare)

    assert (spare and told["status"] == "completed") or "Too many open files" in told["message"]
    assert told["status"] or told["clear"]


def test_where_no_connection_can_be_opened_a_call_says_so_and_can_be_resumed(postgres_url: str) -> None:
    told = starved(postgres_url, "descriptors", "invoke", 3)

    assert told["status"] == "completed" or (told["clear"] and "Too many open files" in told["message"])


@pytest.mark.parametrize("spare", [2, 3, 4])
def test_a_worker_without_descriptors_ends_after_a_few_tries_and_leaves_its_runs(
    tmp_path: Path, spare: int
) -> None:
    """With two it can claim no run, with three or four it can execute none that it claims."""
    told = starved(f"file://{tmp_path}/runs", "descriptors", "worker", spare)

    assert told["status"] == "completed" or told["error"] == "ResourceExhausted"
    assert told["status"] == "completed" or "Too many open files" in told["message"]


@pytest.mark.parametrize(
    ("how", "spare"), [("stream", 0), ("stream", 2000), ("notebook", 300), ("ainvoke", 0)]
)
def test_where_no_memory_is_left_a_process_fails_or_crashes_but_never_hangs_and_another_resumes(
    disk_url: str, tmp_path: Path, how: str, spare: int
) -> None:
    """Some extension modules abort the process if they get no memory; then it was a crash, and nothing worse."""
    ledger = str(tmp_path / "ledger")

    done = starve(disk_url, "memory", how, str(spare), ledger)

    assert "Timeout" not in done.stderr and done.returncode <= 0, done.stdout + done.stderr
    if done.returncode == 0:
        told = json.loads(done.stdout.splitlines()[-1])
        assert told["state"] == WHOLE and told["broken"] == []
        assert told["status"] or told["clear"]
    starved(disk_url, "nothing", how, 0, ledger)


def test_a_thread_that_is_lost_before_it_begins_is_an_error_at_once() -> None:
    """As without memory: CPython itself would wait for ever that such a thread says that it runs."""

    class Lost(threading.Thread):
        def _bootstrap_inner(self) -> None:
            raise SystemExit  # It ends a thread without a word.

    with pytest.raises(
        ResourceExhausted, match=r"a stream needs a thread, .* was lost before it could begin"
    ):
        start(Lost(daemon=True), "a stream")


def test_of_a_thread_that_was_started_is_known_whether_it_is_over() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait, daemon=True)

    is_over = start(thread, "a test")

    assert thread.is_alive() and not is_over()
    go.set()
    while not is_over():
        time.sleep(0.001)
    thread.join()
