"""Starting the harness in a process of its own, which forks and kills its children."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import holdfast
from tests.processes import unmeasured

ROOT = Path(__file__).parents[2]
SOURCE = Path(next(iter(holdfast.__path__))).parent


def harness(*arguments: str) -> dict[str, int]:
    """Return the counts of a process that forks and kills its children; fail if a child ended wrongly."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.harness", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=unmeasured(),
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    print(*arguments, counts)
    return counts


def python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, to its end or its death."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env=unmeasured(),
        timeout=60,
    )
