"""The YAML keys and command lines of the design of the YAML agent runner, as its author would type them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import environment

WORKFLOW = """
workflow:
  name: long-analysis
  inputs: {question: {type: string, required: true}}
  checkpoint:
    enabled: true
    storage: sqlite
    path: .conductor/checkpoints/${workflow.name}/
    on_failure: ON_FAILURE
    retention:
      max_checkpoints: 10
      max_age_days: 7
      keep_successful: true
steps:
  - {name: agent-1, shell: "echo agent-1 >> ran.txt; echo 1"}
  - name: both
    parallel:
      - {name: agent-2, shell: "echo agent-2 >> ran.txt"}
      - {name: agent-3, shell: "echo agent-3 >> ran.txt"}
  - {name: agent-9, shell: "echo agent-9 >> ran.txt; test -e quota || { echo '429: rate limit' >&2; exit 1; }"}
  - {name: agent-10, set: {answer: "{{ inputs.question }}"}}
"""


class Terminal:
    """A folder in which commands are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, on_failure: str = "pause") -> None:
        (self.folder / "workflow.yaml").write_text(WORKFLOW.replace("ON_FAILURE", on_failure))

    def type(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", "-m", "holdfast", *words]
        return subprocess.run(
            command, cwd=self.folder, env=environment(), capture_output=True, text=True, timeout=100
        )

    def ran(self) -> list[str]:
        return (self.folder / "ran.txt").read_text().split()


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    found = Terminal(tmp_path)
    found.write()
    return found


def test_a_rate_limit_is_resumed_by_the_name_of_the_workflow(terminal: Terminal) -> None:
    """S1.6, S1.7, S1.8, S1.15: agents 1 to 3 do not run again, and the printed command is the way on."""
    failed = terminal.type("run", "workflow.yaml", "--input", "question=why?")
    assert failed.returncode == 1 and "429: rate limit" in failed.stderr and "resume with: " in failed.stderr
    assert (terminal.folder / ".conductor/checkpoints/long-analysis/runs.db").exists()
    (terminal.folder / "quota").touch()

    resumed = terminal.type("resume", "long-analysis", "--json")

    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["output"] == {"answer": "why?"}
    ran = terminal.ran()
    assert sorted(ran) == ["agent-1", "agent-2", "agent-3", "agent-9", "agent-9"] and ran[0] == "agent-1"


def test_checkpoints_are_listed_shown_resumed_pruned_and_cleared(terminal: Terminal) -> None:
    """S1.1, S1.8: a checkpoint after every agent and every group; each of them can be shown and resumed from."""
    terminal.type("run", "workflow.yaml", "--input", "question=why?")
    (terminal.folder / "quota").touch()

    listed = json.loads(terminal.type("checkpoints", "list", "--workflow", "long-analysis", "--json").stdout)
    after = {row["nodes"][0]: row["checkpoint_id"] for row in listed["checkpoints"] if row["nodes"]}
    assert {"agent-1", "both:done"} <= after.keys()
    shown = terminal.type("checkpoints", "show", after["agent-1"])
    assert shown.returncode == 0 and "agent-1" in shown.stdout, shown.stderr
    again = terminal.type("resume", "--checkpoint-id", after["agent-1"])
    assert again.returncode == 0, again.stderr
    assert terminal.ran().count("agent-1") == 1 and terminal.ran().count("agent-2") == 2
    assert terminal.type("checkpoints", "list").returncode == 0
    assert terminal.type("checkpoints", "prune", "--older-than", "7d").returncode == 0
    cleared = terminal.type("checkpoints", "clear", "long-analysis", "--yes")
    assert cleared.returncode == 0, cleared.stderr
    assert terminal.type("resume", "long-analysis").returncode != 0


@pytest.mark.parametrize(("on_failure", "code"), [("continue", 0), ("rollback", 1)])
def test_the_other_ways_of_on_failure(terminal: Terminal, on_failure: str, code: int) -> None:
    """S1.7: continue goes on to the next agent, rollback leaves nothing of the run's work behind."""
    terminal.write(on_failure)

    done = terminal.type("run", "workflow.yaml", "--input", "question=why?", "--json")

    assert done.returncode == code, done.stderr
    if on_failure == "continue":
        assert json.loads(done.stdout)["output"] == {"answer": "why?"}
