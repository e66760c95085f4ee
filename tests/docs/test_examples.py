"""The examples: each is run as a user runs it, and checks itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import ROOT, environment

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "ten_steps_rate_limited": "completed: 8 chapters kept, 2 written now.",
    "map_killed_half_way": "Finished items that ran twice: 0.",
    "dag_replanned": "completed: paid 42; agent replan by agent, approval continue by ana.",
    "approval_loop": "completed: 'final 3' after 2 remarks.",
    "shop_killed_everywhere": "18 boundaries; 18 kills, 18 resumes",
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_without_arguments_and_tells_its_story(example: Path, tmp_path: Path) -> None:
    """S1.15: rate limits, killed processes and approvals end in a resume that repeats nothing finished."""
    done = subprocess.run(
        [sys.executable, "-W", "error", example],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert SAYS[example.stem] in done.stdout
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == [], "an example leaves nothing behind"


def test_the_example_of_files_state_sql_and_loops_counts_its_runs(tmp_path: Path) -> None:
    """R2.3, R4.4: files, JSON state, SQL and a loop in one file; a second run books nothing twice."""
    shutil.copy(ROOT / "examples/workflows/ledger.yaml", tmp_path)
    command = [sys.executable, "-m", "holdfast", "run", "ledger.yaml", "--json"]
    for number in (1, 2):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=100
        )

        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["output"] == {"runs": number, "total": {"bills": 2, "cents": 1550}}
    assert (tmp_path / "report.md").read_text() == "# 2 bills\n15.5 in all\n"
