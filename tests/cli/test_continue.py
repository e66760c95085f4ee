"""`holdfast run FILE --continue`: start a run, or continue the one that is there."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast import open_store
from tests.cli.processes import ASKING, CHAIN, call, ran, start, until, write

SLOW = """
workflow: {name: slow, hooks: {on_start: "echo started >> hooks.txt"}}
steps:
  - {name: first, python: "acts.py:first"}
  - {name: slow, python: "acts.py:slow"}
"""


def test_continue_starts_continues_and_prints_what_is_completed(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    words = ("run", "chain.yaml", "--continue", "--run-id", "r1")

    failed = call(tmp_path, *words)
    assert failed.returncode == 1 and ran(tmp_path) == ["first", "second", "gated"]
    (tmp_path / "open").touch()
    done = call(tmp_path, *words)
    assert done.returncode == 0 and ran(tmp_path)[3:] == ["gated"]
    assert "kept 2 steps" in done.stdout and "through" in done.stdout

    again = call(tmp_path, *words, "--json")
    assert again.returncode == 0 and len(ran(tmp_path)) == 4
    found = json.loads(again.stdout)
    assert found["status"] == "completed" and found["output"] == {"result": "through", "count": 2}
    assert found["stats"]["steps_run"] == 0
    # What was saved of the file at the start is not saved again by every resume.
    store = open_store(f"sqlite:///{tmp_path}/.holdfast/runs.db")
    assert [entry for entry in store.read("r1") if b"workflow_file" in entry.body][1:] == []
    store.close()


def test_without_an_id_the_unfinished_run_continues_and_after_a_completed_one_a_new_one_starts(
    tmp_path: Path,
) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    names = []
    for is_open in (False, True, True):
        if is_open:
            (tmp_path / "open").touch()
        done = call(tmp_path, "run", "chain.yaml", "--continue", "--json")
        names.append(json.loads(done.stdout)["run_id"])
    assert names[0] == names[1] != names[2]
    assert ran(tmp_path) == ["first", "second", "gated", "gated", "first", "second", "gated"]


def test_a_second_process_does_not_run_what_the_first_is_running(tmp_path: Path) -> None:
    write(tmp_path, "slow.yaml", SLOW)
    running = start(tmp_path, "run", "slow.yaml", "--continue")
    until(lambda: "slow" in ran(tmp_path))

    second = call(tmp_path, "run", "slow.yaml", "--continue", "--json")
    assert second.returncode == 1 and json.loads(second.stdout)["code"] == "run_conflict"
    assert f"is being executed by process {running.pid} " in second.stderr

    (tmp_path / "open").touch()
    running.communicate(timeout=60)
    assert running.returncode == 0
    assert ran(tmp_path) == ["first", "slow"]


def test_other_inputs_and_options_that_mean_a_new_run_are_refused(tmp_path: Path) -> None:
    inputs = "workflow: {name: w, inputs: {a: {type: string, required: true}}}\nsteps: [{name: s, shell: 'false'}]\n"
    write(tmp_path, "w.yaml", inputs)
    assert call(tmp_path, "run", "w.yaml", "--continue").returncode == 2
    assert call(tmp_path, "run", "w.yaml", "--continue", "-i", "a=1").returncode == 1

    refused = call(tmp_path, "run", "w.yaml", "--continue", "-i", "a=2")
    assert refused.returncode == 2 and "another input: 'inputs.a' differs" in refused.stderr
    assert call(tmp_path, "run", "w.yaml", "--continue").returncode == 1
    for option in ("--dry-run", "--reuse=w"):
        wrong = call(tmp_path, "run", "w.yaml", "--continue", option)
        assert wrong.returncode == 2 and "--continue takes neither" in wrong.stderr


def test_a_paused_run_tells_its_question_again(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)
    first = call(tmp_path, "run", "asking.yaml", "--continue", "--json")
    again = call(tmp_path, "run", "asking.yaml", "--continue", "--json")
    assert first.returncode == again.returncode == 4 and ran(tmp_path) == ["first"]
    assert json.loads(again.stdout)["pauses"][0]["prompt"] == "Publish it?"
