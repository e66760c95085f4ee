"""An app that a process had before `os.fork` works in the child."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.graphs import chain, fan


def in_child(work: Callable[[], object]) -> int:
    """How a forked child ends: 0 if `work` returned; 99 if it took longer than half a minute."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return 99


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_committers_thread_is_made_anew(tmp_path: Path) -> None:
    app = chain("a", "b").compile(f"sqlite:///{tmp_path}/r.db")
    asyncio.run(app.ainvoke())

    assert in_child(lambda: asyncio.run(app.ainvoke())) == 0
    assert app.invoke().status == "completed"
    app.store.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_worker_threads_are_made_anew(tmp_path: Path) -> None:
    graph = fan("a", "b", "c", nodes={name: lambda s: time.sleep(0.02) for name in "abc"})
    app = graph.compile(f"sqlite:///{tmp_path}/r.db")
    app.invoke()

    assert in_child(app.invoke) == 0
    app.store.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_other_threads_hold_does_not_matter(tmp_path: Path) -> None:
    app = chain(*"abcdef").compile(f"sqlite:///{tmp_path}/r.db")
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            app.invoke()

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert [in_child(app.invoke) for _ in range(4)] == [0, 0, 0, 0]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        app.store.close()


FORKING = """
import os, sys
from holdfast import END, START, RunConflict, StateGraph

url, how = sys.argv[1:3]

def fork(state):
    child = os.fork()
    if child == 0:
        if how == "exit":
            sys.exit(0)
        return {"by": "child"}
    os.waitpid(child, 0)
    return {"by": "parent"}

graph = StateGraph(dict, name="w")
graph.add_node("before", lambda state: None).add_node("fork", fork)
graph.add_node("after", lambda state: {"after": state["by"]})
names = ["before", "fork", "after"]
for source, target in zip([START, *names], [*names, END]):
    graph.add_edge(source, target)
app = graph.compile(url)
parent = os.getpid()
try:
    result = app.invoke({}, run_id="r")
except RunConflict as error:
    assert os.getpid() != parent, error
    print("child:", error, flush=True)
    os._exit(0)
print("parent:", os.getpid() == parent, result.status, dict(result.state), flush=True)
"""


@pytest.mark.parametrize("how", ["exit", "return"])
@pytest.mark.parametrize("place", ["sqlite:///r.db", "file:runs"])
def test_a_child_that_leaves_the_step_it_was_forked_in_stores_nothing(
    tmp_path: Path, how: str, place: str
) -> None:
    command = [sys.executable, "-c", FORKING, place, how]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stdout + done.stderr
    child, parent = done.stdout.splitlines()
    assert child.startswith(
        "child: this process is a fork of the one that executes run 'r': it stores nothing"
    )
    assert parent == "parent: True completed {'by': 'parent', 'after': 'parent'}"
