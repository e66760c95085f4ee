"""The race against the peers runs with those who are always there: Holdfast and the raw loop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.processes import unmeasured

FOLDER = Path(__file__).parents[2] / "benchmarks" / "peers"
TWO = ("--contender", "holdfast", "--contender", "raw")


def race(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=unmeasured())


def python(program: str) -> subprocess.CompletedProcess[str]:
    """A program that can import the modules of the race."""
    there = f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n"
    command = [sys.executable, "-c", there + program]
    return subprocess.run(command, capture_output=True, text=True, env=unmeasured())


def test_a_tiny_race_is_audited_and_gives_a_table_a_chart_and_a_file(tmp_path: Path) -> None:
    """Holdfast syncs once a step, as the floor does; a wrong answer or a repeated step would end the race."""
    kept = tmp_path / "race.json"
    sizes = ("--tiny", "--rounds", "1", "--store", "sqlite", "--workload", "chain", "--workload", "cold")

    done = race(*TWO, *sizes, "--json", str(kept), "--page", str(tmp_path), "--folder", str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert "| chain of 8 trivial steps | SQLite |" in done.stdout
    assert "| resume at step 4 of 8 in a new process | SQLite |" in done.stdout
    assert "audit chain sqlite holdfast: 1.00 syncs a step" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"turns": 4, "behind": 0}
    chart = (tmp_path / "peers.svg").read_text()
    assert ElementTree.fromstring(chart).tag.endswith("svg") and len(chart) < 40_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["peers.md", "peers.svg", "race.json"]

    (tmp_path / "peers.md").write_text(
        "Above.\n<!-- the race begins -->yesterday<!-- the race ends -->\nBelow.\n"
    )
    again = race("--from", str(kept), "--page", str(tmp_path))

    assert again.returncode == 0 and again.stdout == done.stdout
    page = (tmp_path / "peers.md").read_text()
    assert page.startswith("Above.\n") and page.endswith("\nBelow.\n")
    assert "yesterday" not in page and "| chain of 8 trivial steps | SQLite |" in page


SAMPLES = """
from results import Results, Sample
from table import page
samples = [
    Sample("sqlite", "chain", name, turn, wall, 0.1, 10, 10)
    for turn, times in enumerate(((2.0, 1.0), (8.0, 5.0), (3.0, 9.0)))
    for name, wall in zip(("holdfast", "dbos"), times)
]
text = page(Results({}, {"chain": [100]}, {"chain": 100}, samples, {}))
"""


def test_a_row_in_which_a_peer_is_ahead_is_listed() -> None:
    """Ratios are taken within rounds, so that a slow round counts for both."""
    done = python(SAMPLES + "print(text)")

    assert done.returncode == 0, done.stderr
    assert "| 3.00 s ±100% | 5.00 s ±80%, **0.62×** |" in done.stdout
    assert "- chain of 100 trivial steps on SQLite, wall time: DBOS takes 0.62×" in done.stdout
    assert "CPU time: DBOS" not in done.stdout


CHECKS = """
from workloads import WORKLOADS
for name, sizes, right, wrong in (
    ("chain", (3,), 3, 2), ("wave", (3,), 5, 6), ("concurrent", (2, 2), [2, 2], [2]),
):
    WORKLOADS[name].check(right, sizes)
    try:
        WORKLOADS[name].check(wrong, sizes)
    except SystemExit as refused:
        print(refused)
"""


def test_a_wrong_answer_ends_the_race() -> None:
    done = python(CHECKS)

    assert done.returncode == 0 and done.stdout.count("the answer is ") == 3, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--install",), "--install needs --venv DIR"),
        (("--venv", "nowhere"), "is no environment; --install makes it one"),
        (("--rounds", "0"), "--rounds: 0 is no number of rounds"),
        (("--from", "nowhere.json"), "cannot read nowhere.json"),
    ],
)
def test_what_cannot_be_raced_is_refused_with_the_way_out(arguments: tuple[str, ...], message: str) -> None:
    done = race(*arguments)

    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
