"""`holdfast answer`, `pause` and `cancel`: what another terminal asks of a run."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from holdfast import StateGraph, open_store
from holdfast.engine.commands.control import post
from holdfast.engine.commands.inbox import ANSWER, RunCommand
from holdfast.journal.provenance import me
from tests.cli.processes import ASKING, call, start, wait_for, write

RESTING = """
workflow: {name: resting}
steps:
  - {name: first, python: "acts.py:first"}
  - {name: rest, wait: 4s}
"""


def test_an_answer_waits_for_the_next_resume(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)
    call(tmp_path, "run", "asking.yaml", "--run-id", "r1")

    wrong = call(tmp_path, "answer", "r1", "maybe")
    done = call(tmp_path, "answer", "r1", "yes", "--by", "Ada")
    twice = call(tmp_path, "answer", "r1", "yes")
    resumed = call(tmp_path, "resume", "r1", "-q")

    assert wrong.returncode == 2 and "must be one of" in wrong.stderr
    told, how = done.stdout.splitlines()
    assert done.returncode == 0 and told == "answered approve of run r1"
    assert how.startswith("resume with: ") and how.endswith("resume r1")
    assert twice.returncode == 2
    assert resumed.returncode == 0 and json.loads(resumed.stdout) == {"approved": "yes"}


def test_an_answer_can_go_on_at_once(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)
    call(tmp_path, "run", "asking.yaml", "--run-id", "r1")

    done = call(tmp_path, "answer", "asking", "approve=no", "--resume")

    assert done.returncode == 0 and '"approved": "no"' in done.stdout and "kept 1 step" in done.stdout


def test_an_answer_is_told_as_json(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)
    call(tmp_path, "run", "asking.yaml", "--run-id", "r1")

    assert json.loads(call(tmp_path, "answer", "r1", "yes", "--json").stdout) == {
        "run_id": "r1",
        "status": "applied",
        "answered": ["approve"],
        "reason": "",
        "by": me(),
        "handle": None,
        "open": [],
    }


def test_an_answer_to_a_run_that_another_process_executes_says_what_became_of_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    store = open_store(url)
    release = threading.Event()
    graph = StateGraph(dict, name="w").add_node("work", lambda state: release.wait(120) and None, after=[])
    app = graph.add_node("ask", lambda ctx: {"go": ctx.ask("Go?", name="go")}, after=[]).compile(store)
    thread = threading.Thread(target=lambda: app.invoke({}, run_id="r1"))
    thread.start()
    try:
        while not (store.runs(run="r1") and app.pauses("r1")):
            threading.Event().wait(0.01)
        done = call(tmp_path, "answer", "r1", "yes", "--by", "ann", "--store", url, "--json")
        told = json.loads(done.stdout)
        while told["status"] == "waiting":
            told = json.loads(call(tmp_path, "answer", "r1#1", "--status", "--store", url, "--json").stdout)
        late = post(
            app._settings.journal, "r1", RunCommand(ANSWER, pause="ask#1:go", value=b"\x01\x05", by="bob")
        )
    finally:
        release.set()
        thread.join(60)
    refused = call(tmp_path, "answer", f"r1#{late}", "--status", "--store", url)
    applied = call(tmp_path, "answer", "r1#1", "--status", "--store", url)
    store.close()

    assert done.returncode == 0 and (told["status"], told["handle"]) == ("applied", "r1#1")
    assert applied.returncode == 0 and applied.stdout == "the answer of run r1 is applied\n"
    assert refused.returncode == 1 and "the answer of run r1 is refused: nothing waits for" in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("r1",), "Missing argument"),
        (("r1", "--status"), "such as RUN#1"),
        (("r1#1", "yes", "--status"), "and no values"),
    ],
)
def test_an_answer_needs_a_value_and_a_status_a_handle(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    wrong = call(tmp_path, "answer", *words)

    assert wrong.returncode == 2 and said in wrong.stderr


def test_a_running_run_is_paused_from_elsewhere_and_goes_on_later(tmp_path: Path) -> None:
    write(tmp_path, "resting.yaml", RESTING)
    process = start(tmp_path, "run", "resting.yaml", "--run-id", "r1")
    wait_for(process, "rest started")

    asked = call(tmp_path, "pause", "r1", "--reason", "lunch")
    _, err = process.communicate(timeout=60)

    assert asked.returncode == 0 and "is asked to pause" in asked.stdout
    assert process.returncode == 130 and "resume with: " in err, err
    assert call(tmp_path, "resume", "r1").returncode == 0


def test_a_running_run_is_cancelled_from_elsewhere(tmp_path: Path) -> None:
    write(tmp_path, "resting.yaml", RESTING)
    process = start(tmp_path, "run", "resting.yaml", "--run-id", "r1")
    wait_for(process, "rest started")

    asked = json.loads(call(tmp_path, "cancel", "resting", "--json").stdout)
    _, err = process.communicate(timeout=60)

    assert asked == {"run_id": "r1", "status": "running", "asked": "cancel"}
    assert process.returncode == 1 and "cancelled" in err, err


def test_a_run_that_nobody_drives_is_cancelled_at_once(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)
    call(tmp_path, "run", "asking.yaml", "--run-id", "r1")

    paused = call(tmp_path, "pause", "r1")
    done = call(tmp_path, "cancel", "r1")
    unknown = call(tmp_path, "cancel", "r9")

    assert paused.stdout == "run r1 is paused\n" and done.stdout == "run r1 is cancelled\n"
    assert unknown.returncode == 1 and "'r9'" in unknown.stderr
