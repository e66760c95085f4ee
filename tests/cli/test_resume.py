"""`holdfast resume`: what may be resumed, with what, and what is said of it before and after."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import END, START, StateGraph, open_store
from holdfast.cli.commands import run as resume_module
from holdfast.engine.settings import ON_CHANGE
from holdfast.graph.graph import IF_INTERRUPTED
from tests.cli.processes import ASKING, CHAIN, SLOW, call, ran, start, until, wait_for, write

TWO = """
workflow: {name: two}
steps:
  - name: both
    parallel:
      - {name: title, ask: {prompt: "Title?", type: string}}
      - {name: pages, ask: {prompt: "Pages?", type: integer}}
  - {name: echo, python: "acts.py:echo", with: {value: ["{{ steps.title.answer }}", "{{ steps.pages.answer }}"]}}
output: "{{ steps.echo.output }}"
"""

INPUT = """
workflow: {name: input, inputs: {name: {type: string, required: true}, n: {type: integer, default: 1}}}
steps:
  - {name: gated, python: "acts.py:gated"}
  - {name: echo, python: "acts.py:echo", with: {value: "{{ inputs }}"}}
output: "{{ steps.echo.output }}"
"""


@pytest.fixture
def failed(tmp_path: Path) -> Path:
    """A folder with a run `r1` of `chain` that failed at its third step, which would work now."""
    write(tmp_path, "chain.yaml", CHAIN)
    assert call(tmp_path, "run", "chain.yaml", "--run-id", "r1").returncode == 1
    (tmp_path / "open").touch()
    return tmp_path


@pytest.mark.parametrize("target", [[], ["r1"], ["chain"], ["chain.yaml"]])
def test_a_run_is_found_by_whatever_names_it(failed: Path, target: list[str]) -> None:
    done = call(failed, "resume", *target)

    assert done.returncode == 0, done.stderr
    assert "run r1 resumed with gated" in done.stdout and "kept 2 steps" in done.stdout
    assert ran(failed) == ["first", "second", "gated", "gated"]


def test_a_checkpoint_begins_a_run_of_its_own(failed: Path) -> None:
    store = open_store(f"sqlite:///{failed / '.holdfast' / 'runs.db'}")
    from holdfast.journal.checkpoint_ids import decode_checkpoint

    info = store.runs(run="r1")[0]
    oldest = decode_checkpoint(info.key, store.checkpoints("r1")[-1], "r1").id
    store.close()

    by_target = call(failed, "resume", oldest, "--json")
    by_option = call(failed, "resume", "chain", "--checkpoint-id", oldest, "--json")
    wrong = call(failed, "resume", "other", "--checkpoint-id", oldest)

    for done in (by_target, by_option):
        told = json.loads(done.stdout)
        assert done.returncode == 0 and told["run_id"] != "r1" and told["status"] == "completed"
    assert wrong.returncode == 2 and "is of run 'r1'" in wrong.stderr


def test_what_is_not_there_is_refused_and_nothing_is_made(tmp_path: Path, failed: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()

    nothing = call(empty, "resume")
    unknown = call(failed, "resume", "r2")

    assert nothing.returncode == 1 and "there are no runs at" in nothing.stderr
    assert list(empty.iterdir()) == []
    assert unknown.returncode == 1 and "'r2'" in unknown.stderr
    assert call(failed, "resume", "r1").returncode == 0
    over = call(failed, "resume", "r1")
    none_left = call(failed, "resume")
    assert over.returncode == 2 and "is completed" in over.stderr
    assert none_left.returncode == 1 and "is unfinished" in none_left.stderr


def test_the_plan_is_shown_and_nothing_is_touched(failed: Path) -> None:
    before = (failed / ".holdfast" / "runs.db").read_bytes()

    done = call(failed, "resume", "r1", "--plan")
    told = json.loads(call(failed, "resume", "--plan", "--json").stdout)

    assert done.returncode == 0 and "2 steps kept" in done.stdout and "nothing was touched" in done.stdout
    assert "first   kept        finished" in done.stdout
    assert "gated   runs again  it failed: RuntimeError: the gate is closed" in done.stdout
    assert [(step["step"], step["what"]) for step in told["steps"]] == [
        ("first", "kept"),
        ("second", "kept"),
        ("gated", "rerun"),
    ]
    assert (failed / ".holdfast" / "runs.db").read_bytes() == before and len(ran(failed)) == 3


def test_an_answer_is_checked_and_taken(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)
    call(tmp_path, "run", "asking.yaml", "--run-id", "r1")

    wrong = call(tmp_path, "resume", "r1", "--answer", "maybe")
    done = call(tmp_path, "resume", "r1", "--answer", "approve=NO", "-q")

    assert wrong.returncode == 2 and "must be one of 'yes', 'no'" in wrong.stderr
    assert done.returncode == 0 and json.loads(done.stdout) == {"approved": "no"}


def test_several_answers_are_told_apart_by_name(tmp_path: Path) -> None:
    write(tmp_path, "two.yaml", TWO)
    paused = call(tmp_path, "run", "two.yaml", "--run-id", "r1")

    bare = call(tmp_path, "resume", "r1", "--answer", "Tides")
    mistyped = call(tmp_path, "resume", "r1", "--answer", "pages=many", "--answer", "title=12")
    done = call(tmp_path, "resume", "r1", "--answer", "pages=3", "--answer", "title=12", "-q")

    assert "--answer 'title=<text>' --answer 'pages=<integer>'" in paused.stdout
    assert bare.returncode == 2 and "'title', 'pages'" in bare.stderr
    assert mistyped.returncode == 2 and "'pages': the answer must be of type integer" in mistyped.stderr
    assert done.returncode == 0 and json.loads(done.stdout) == ["12", 3]


def test_an_answer_that_nobody_asked_for_is_refused(failed: Path) -> None:
    done = call(failed, "resume", "r1", "--answer", "yes")

    assert done.returncode == 2 and "waits for no answer" in done.stderr


def test_inputs_can_be_changed_before_going_on(tmp_path: Path) -> None:
    write(tmp_path, "input.yaml", INPUT)
    call(tmp_path, "run", "input.yaml", "-i", "name=Ada", "--run-id", "r1")
    (tmp_path / "open").touch()

    wrong = call(tmp_path, "resume", "r1", "-i", "n=x")
    done = call(tmp_path, "resume", "r1", "-i", "n=5", "-q")

    assert wrong.returncode == 2
    assert json.loads(done.stdout) == {"name": "Ada", "n": 5}


def test_a_renamed_step_can_be_remapped_and_a_change_refused(failed: Path) -> None:
    changed = CHAIN.replace("name: gated", "name: through").replace("steps.gated", "steps.through")
    (failed / "chain.yaml").write_text(changed)

    refused = call(failed, "resume", "r1", "--on-change", "fail")
    lost = call(failed, "resume", "r1")
    bad = call(failed, "resume", "r1", "--remap", "gated")
    done = call(failed, "resume", "r1", "--remap", "gated=through")

    assert refused.returncode == 2 and "changed" in refused.stderr
    assert lost.returncode == 2 and "no longer has" in lost.stderr
    assert bad.returncode == 2 and "NAME=VALUE" in bad.stderr
    assert done.returncode == 0, done.stderr
    assert "the workflow changed since the run was saved" in done.stdout


def test_a_workflow_file_that_was_moved_or_lost_is_no_obstacle(failed: Path) -> None:
    (failed / "chain.yaml").rename(failed / "moved.yaml")

    moved = call(failed, "resume", "r1", "--workflow", "moved.yaml", "--plan")
    (failed / "moved.yaml").unlink()
    lost = call(failed, "resume", "r1")

    assert moved.returncode == 0 and lost.returncode == 0, lost.stderr


def test_a_run_that_is_driven_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, "slow.yaml", SLOW)
    process = start(tmp_path, "run", "slow.yaml", "--run-id", "r1")
    wait_for(process, "slow started")
    until(lambda: "slow" in ran(tmp_path))

    named = call(tmp_path, "resume", "r1")
    latest = call(tmp_path, "resume")
    (tmp_path / "open").touch()
    process.communicate(timeout=60)

    assert named.returncode == 1 and "is being executed" in named.stderr
    assert latest.returncode == 1 and "is unfinished" in latest.stderr
    assert process.returncode == 0


def test_a_run_whose_process_was_killed_goes_on(tmp_path: Path) -> None:
    write(tmp_path, "slow.yaml", SLOW)
    process = start(tmp_path, "run", "slow.yaml", "--run-id", "r1")
    wait_for(process, "slow started")
    until(lambda: "slow" in ran(tmp_path))
    process.kill()
    process.communicate(timeout=60)

    skipping = call(tmp_path, "resume", "r1", "--if-interrupted", "fail")
    (tmp_path / "open").touch()
    done = call(tmp_path, "resume", "r1", "--if-interrupted", "rerun", "-q")

    assert skipping.returncode == 1 and "interrupted" in skipping.stderr
    assert done.returncode == 0 and done.stdout == "slept\n"


def test_a_checkpoint_file_begins_a_run(tmp_path: Path) -> None:
    flow = """
workflow: {name: file}
steps:
  - {name: first, python: "acts.py:first"}
  - {name: keep, checkpoint: {save: kept.pkl}}
  - {name: second, python: "acts.py:second"}
output: "{{ steps.second.output }}"
"""
    write(tmp_path, "file.yaml", flow)
    assert call(tmp_path, "run", "file.yaml", "--run-id", "r1").returncode == 0

    done = call(tmp_path, "resume", "kept.pkl", "--workflow", "file.yaml", "-q")
    refused = call(tmp_path, "resume", "kept.pkl", "--workflow", "file.yaml", "--if-interrupted", "skip")
    planned = call(tmp_path, "resume", "kept.pkl", "--workflow", "file.yaml", "--plan")
    missing = call(tmp_path, "resume", "lost.pkl")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"count": 2} and ran(tmp_path).count("first") == 1
    assert refused.returncode == 2 and planned.returncode == 2 and missing.returncode == 1


def test_a_run_of_a_python_program_is_left_to_it(tmp_path: Path) -> None:
    def work(state: object) -> dict[str, int]:
        raise RuntimeError("no")

    graph = StateGraph(dict, name="python")
    graph.add_node("work", work)
    graph.add_edge(START, "work").add_edge("work", END)
    store = open_store(f"sqlite:///{tmp_path / 'runs.db'}")
    with pytest.raises(Exception, match="no"):
        graph.compile(store).invoke({}, run_id="r1")
    store.close()

    done = call(tmp_path, "resume", "r1", "--store", "sqlite:///runs.db")

    assert done.returncode == 2 and "was not started from a workflow file" in done.stderr


def test_the_choices_are_those_of_the_engine() -> None:
    assert set(IF_INTERRUPTED) >= set(resume_module.IF_INTERRUPTED)
    assert resume_module.ON_CHANGE == ON_CHANGE
