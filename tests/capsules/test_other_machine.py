"""A run that is killed on one machine and goes on on another, in real processes: nothing finished runs again."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.cli.processes import call, environment, ran, start, until, write

LONG = """
workflow: {name: long}
steps:
  - {name: first, python: "acts.py:first"}
  - {name: second, python: "acts.py:second"}
  - {name: slow, python: "acts.py:slow"}
  - {name: last, shell: "echo {{ steps.second.output.count }} {{ steps.slow.output }} | tee -a shell.txt"}
output: {said: "{{ steps.last.output | trim }}", first: "{{ steps.first.output }}"}
"""


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_a_killed_run_is_carried_away_and_finished_elsewhere(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """S1.17, S0.14: run on SQLite, kill -9, export, import into another store, resume: the same result."""
    here, there, alone = (tmp_path / name for name in ("here", "there", "alone"))
    for folder in (here, there, alone):
        folder.mkdir()
        write(folder, "long.yaml", LONG)
    (alone / "open").touch()
    wanted = call(alone, "run", "long.yaml", "--json")
    assert wanted.returncode == 0, wanted.stderr
    process = start(here, "run", "long.yaml", "--run-id", "r")
    until(lambda: "slow" in ran(here))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    url = str(request.getfixturevalue("postgres_url")) if kind == "postgres" else "file:runs"
    target = environment(HOLDFAST_STORE=url)

    exported = call(here, "export", "r", "-o", "r.holdfast")
    shutil.copy(here / "r.holdfast", there)
    imported = call(there, "import", "r.holdfast", env=target)
    (there / "open").touch()
    resumed = call(there, "resume", "r", "--workflow", "long.yaml", "--json", "--trust", env=target)

    assert (exported.returncode, imported.returncode, resumed.returncode) == (0, 0, 0), resumed.stderr
    assert "(interrupted) copied" in imported.stdout
    assert ran(here) == ["first", "second", "slow"] and ran(there) == ["slow"]
    assert (there / "shell.txt").read_text() == "2 slept\n"
    assert json.loads(resumed.stdout)["output"] == json.loads(wanted.stdout)["output"]
    again = call(there, "export", "r", "-o", "-", "--format", "jsonl", env=target)
    assert again.returncode == 0 and again.stdout.count('"type":"Resumed"') == 1
