"""Processes killed while steps run ahead: nothing that was only guessed is ever in the bytes of the store."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from holdfast import RunStatus, StateGraph, open_store
from holdfast.journal.journal import Journal
from holdfast.journal.records import StepStarted
from holdfast.state.codec import Codec
from tests.crash.programs import python

PROGRAM = """
import json, os, signal, sys, threading, time
from holdfast import END, START, StateGraph
from holdfast.stores import open_store
from holdfast.testing import CrashingStore, kill_process

url, action, last, seconds, commit, point = sys.argv[1:7]
lock, calls = threading.Lock(), 0

def count():
    # The process is killed at the last of these calls.
    global calls
    with lock:
        calls += 1
        if calls == int(last):
            os.kill(os.getpid(), signal.SIGKILL)

def step(number):
    def work(state):
        count()
        time.sleep(float(seconds))
        made = f"RESULT-{number} of {state['text'][:20]}"
        count()
        return {"text": made}
    return work

def right(state, number):
    count()
    return {"text": f"RESULT-{number} of {state['text'][:20]}"}

graph, guesses, before = StateGraph({"text": str}, name="w"), {}, START
for number in range(6):
    name = f"s{number}"
    graph.add_node(name, step(number), pure=True).add_edge(before, name)
    guesses[name] = {"text": f"GUESS-{number}"} if number % 3 == 2 else lambda state, n=number: right(state, n)
    before = name
graph.add_edge(before, END)
store = open_store(url)
if int(commit):
    store = CrashingStore(store, int(commit), point, how=kill_process)
app = graph.compile(store, speculate=guesses, max_ahead=5)
outcome = app.invoke({"text": "begin"}, run_id="r") if action == "start" else app.resume("r")
print(json.dumps({"text": outcome.state["text"], "calls": calls, "taken": outcome.stats.steps_speculated}))
"""


def url_of(kind: str, folder: Path) -> str:
    return f"sqlite:///{folder / 'runs.db'}" if kind == "sqlite" else f"file://{folder / 'runs'}"


def check_bytes(url: str, folder: Path) -> None:
    """Look for results that no begun step has, and for guesses, in all that a killed process left on the disk."""
    left = b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
    store = open_store(url)
    started = set[str]()
    if store.runs(run="r"):
        journal = Journal(store)
        _, entries = journal.history(journal.info("r"), Codec())
        started = {each.step for _, found in entries for each in found if isinstance(each, StepStarted)}
    store.close()

    assert b"GUESS" not in left
    results = {f"s{number.decode()}#1" for number in re.findall(rb"RESULT-(\d)", left)}
    assert results <= started, "a result is stored before its step has begun"


def finish(url: str) -> None:
    """A killed run is resumed, or started again if nothing of it was stored, to the end it always has."""
    store = open_store(url)
    known = store.runs(run="r")
    store.close()
    if not known or known[0].status != RunStatus.COMPLETED:
        again = python(PROGRAM, url, "resume" if known else "start", "0", "0", "0", "before")
        assert json.loads(again.stdout)["text"].startswith("RESULT-5 of"), again.stderr


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_no_result_is_stored_before_its_step_has_begun_whenever_the_process_is_killed(
    kind: str, tmp_path: Path
) -> None:
    """S0.17: kill -9 at every call and return of a step or a guess leaves no speculative byte in the store."""
    (tmp_path / "whole").mkdir()
    whole = python(PROGRAM, url_of(kind, tmp_path / "whole"), "start", "0", "0.01", "0", "before")
    seen = json.loads(whole.stdout)
    assert seen["taken"] >= 1 and seen["calls"] >= 12

    for last in range(1, seen["calls"] + 1, 2):
        folder = tmp_path / str(last)
        folder.mkdir()
        url = url_of(kind, folder)
        done = python(PROGRAM, url, "start", str(last), "0.01", "0", "before")
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        check_bytes(url, folder)
        if last % 5 == 1:
            finish(url)


@pytest.mark.parametrize("point", ["before", "committed", "acknowledged"])
def test_no_speculative_byte_is_stored_by_a_process_killed_at_a_commit(point: str, tmp_path: Path) -> None:
    """S0.17: the same at every commit."""
    for commit in range(1, 8):
        folder = tmp_path / str(commit)
        folder.mkdir()
        url = url_of("sqlite", folder)
        done = python(PROGRAM, url, "start", "0", "0.01", str(commit), point)
        assert done.returncode == -signal.SIGKILL, done.stderr
        check_bytes(url, folder)
    finish(url)


def test_the_bytes_of_a_result_can_be_found(tmp_path: Path) -> None:
    """The search would find them: values this small are stored as they are."""
    graph = (
        StateGraph({"text": str}, name="w")
        .add_node("s", lambda state: {"text": "RESULT-9"})
        .set_entry_point("s")
    )
    graph.compile(url_of("sqlite", tmp_path)).invoke({"text": "GUESS"}, run_id="r")

    with pytest.raises(AssertionError):
        check_bytes(url_of("sqlite", tmp_path), tmp_path)
