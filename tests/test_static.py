"""Lint, format and types, so that the test command checks them too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
    ],
    ids=" ".join,
)
def test_the_code_passes(command: list[str]) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE_")}

    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout + done.stderr
