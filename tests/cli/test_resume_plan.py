"""`holdfast resume --plan` and `--as-planned`: what would be done, and doing just that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.processes import call

INNER = """
workflow: {name: inner}
steps:
  - {name: look, shell: "echo look >> ran"}
  - {name: fetch, shell: "test -e open && echo fetch >> ran"}
"""
FLOW = """
workflow: {name: planned}
steps:
  - {name: first, shell: "echo first >> ran"}
  - {name: inner, workflow: inner.yaml}
  - {name: last, shell: "echo last >> ran"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run `r` whose sub-workflow failed, and whose gate is open now."""
    (tmp_path / "inner.yaml").write_text(INNER)
    (tmp_path / "planned.yaml").write_text(FLOW)
    assert call(tmp_path, "run", "planned.yaml", "--run-id", "r").returncode == 1
    (tmp_path / "open").touch()
    return tmp_path


def ran(folder: Path) -> list[str]:
    return (folder / "ran").read_text().split()


def test_a_plan_is_done_as_it_was_shown_or_not_at_all(folder: Path) -> None:
    """The resume does exactly the plan, or reports what changed."""
    plan = json.loads(call(folder, "resume", "r", "--plan", "--json").stdout)
    assert [(row["step"], row["what"]) for row in plan["steps"]] == [
        ("first", "kept"),
        ("inner/look", "kept"),
        ("inner/fetch", "rerun"),
    ]
    assert plan["refused"] == "" and plan["seconds_saved"] > 0 and plan["cost_to_come"] is None
    (folder / "planned.yaml").write_text(FLOW.replace("echo last", "echo the last"))

    outdated = call(folder, "resume", "r", "--as-planned", plan["id"])
    assert outdated.returncode == 2 and "no longer holds: the workflow changed again" in outdated.stderr
    nonsense = call(folder, "resume", "r", "--as-planned", "7")
    assert nonsense.returncode == 2 and "is not the id of a plan" in nonsense.stderr
    assert ran(folder) == ["first", "look"]

    (folder / "planned.yaml").write_text(FLOW)
    assert call(folder, "resume", "r", "--as-planned", plan["id"]).returncode == 0
    assert ran(folder) == ["first", "look", "fetch", "last"]


def test_a_renamed_step_of_a_sub_workflow_is_hinted_at_and_remapped(folder: Path) -> None:
    """S0.15: steps of sub-workflows are named `outer/inner`."""
    (folder / "inner.yaml").write_text(INNER.replace("name: fetch", "name: get"))

    shown = call(folder, "resume", "r", "--plan")
    assert shown.returncode == 1 and "inner/fetch  ORPHANED" in shown.stdout and "inner/get" in shown.stdout
    assert "REFUSED" in shown.stdout and "--remap inner/fetch=inner/get" in shown.stdout
    refused = call(folder, "resume", "r")
    assert (
        refused.returncode == 2 and "it looks like 'inner/fetch' was renamed to 'inner/get'" in refused.stderr
    )
    assert call(folder, "resume", "r", "--remap", "inner/fetch=inner/get").returncode == 0
    assert ran(folder) == ["first", "look", "fetch", "last"]


def test_what_changed_is_planned_to_run_again(folder: Path) -> None:
    (folder / "inner.yaml").write_text(INNER.replace("echo look", "echo another"))

    shown = call(folder, "resume", "r", "--rerun-changed", "--plan").stdout
    assert "first" in shown and "the run goes back to its entry" in shown
    assert "inner/look   runs again" in " ".join(shown.split("\n")) and "code changed from" in shown
    assert call(folder, "resume", "r", "--rerun-changed").returncode == 0
    assert ran(folder) == ["first", "look", "another", "fetch", "last"]
