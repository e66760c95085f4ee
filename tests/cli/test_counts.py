"""Finished steps and items are counted alike at the end of a run, in its plan, in `show` and in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.processes import call, write

ITEMS = """
workflow: {name: items}
steps:
  - {name: first, python: "acts.py:first"}
  - name: work
    for_each: {in: [0, 1, 2, 3], on_error: all_or_nothing}
    shell: {run: "test -e open || test $I -lt 3", env: {I: "{{ item }}"}}
output: "{{ steps.first.output }}"
"""

GROUP = """
workflow: {name: group}
steps:
  - name: both
    parallel:
      - {name: a, python: "acts.py:first"}
      - {name: b, shell: "sleep 0.3; test -e open"}
"""


@pytest.mark.parametrize(
    ("text", "steps", "items", "told"),
    [
        (ITEMS, 1, 3, "1 finished step and 3 items kept"),
        (
            ITEMS.replace(", on_error: all_or_nothing", ", max_parallel: 1"),
            1,
            3,
            "1 finished step and 3 items kept",
        ),
        (GROUP, 1, 0, "1 finished step kept"),
    ],
)
def test_the_counts_agree(tmp_path: Path, text: str, steps: int, items: int, told: str) -> None:
    write(tmp_path, "flow.yaml", text)

    failed = call(tmp_path, "run", "flow.yaml", "--run-id", "r1")
    plan = call(tmp_path, "resume", "r1", "--plan")
    planned = json.loads(call(tmp_path, "resume", "r1", "--plan", "--json").stdout)
    shown = json.loads(call(tmp_path, "show", "r1", "--json").stdout)

    assert failed.returncode == 1 and told in failed.stderr
    assert told.replace("finished ", "") in plan.stdout
    assert (planned["steps_kept"], planned["items_kept"]) == (steps, items)
    assert (shown["steps_done"], shown["items_done"]) == (steps, items)
    for text in (failed.stdout, failed.stderr, plan.stdout):
        assert "work:" not in text.replace("work: 1 of", "") and "both:" not in text


def test_a_plan_counts_items_and_a_completed_run_does_not_count_its_output(tmp_path: Path) -> None:
    write(tmp_path, "flow.yaml", ITEMS)
    call(tmp_path, "run", "flow.yaml", "--run-id", "r1")
    plan = call(tmp_path, "resume", "r1", "--plan")
    (tmp_path / "open").touch()

    done = call(tmp_path, "resume", "r1")
    shown = call(tmp_path, "show", "r1")

    assert "3 of 4 items: finished" in plan.stdout and "1 of 4 items tried again" in plan.stdout
    assert done.returncode == 0 and "kept 1 step and 3 items" in done.stdout
    assert "1 step and 4 items done" in shown.stdout
    assert "work:" not in call(tmp_path, "show", "r1", "--state").stdout


def test_one_item_and_the_errors_of_all_are_shown(tmp_path: Path) -> None:
    write(tmp_path, "flow.yaml", ITEMS)
    call(tmp_path, "run", "flow.yaml", "--run-id", "r1")

    whole = call(tmp_path, "show", "flow.yaml", "--step", "work")
    one = json.loads(call(tmp_path, "show", "r1", "--step", "work[3]", "--json").stdout)
    none = call(tmp_path, "show", "r1", "--step", "work[9]")

    assert "Traceback" not in whole.stdout and "outputs" in whole.stdout and "errors" in whole.stdout
    assert one["name"] == "work[3]" and "ended with code 1" in one["error"]
    assert none.returncode == 2 and "no finished item '9'" in none.stderr


def test_an_interrupted_step_that_may_not_be_repeated_says_what_can_be_done(tmp_path: Path) -> None:
    write(tmp_path, "once.yaml", """
workflow: {name: once}
steps:
  - {name: pay, shell: "test -e open || kill -9 $PPID", idempotent: false}
""")  # fmt: skip
    assert call(tmp_path, "run", "once.yaml", "--run-id", "r1").returncode == -9

    refused = call(tmp_path, "resume", "r1")
    plan = call(tmp_path, "resume", "r1", "--plan")
    shown = call(tmp_path, "show", "r1")
    skipped = call(tmp_path, "resume", "r1", "--if-interrupted", "skip")

    assert refused.returncode == 1 and "its node may" not in refused.stdout + refused.stderr
    for text in (refused.stderr, shown.stdout):
        assert "resume r1 --if-interrupted rerun" in text and "resume r1 --if-interrupted skip" in text
    assert "in doubt" in plan.stdout and "runs again" not in plan.stdout
    assert skipped.returncode == 0
