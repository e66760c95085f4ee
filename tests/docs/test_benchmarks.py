"""The benchmarks run: their figures are for people to look at, so only that they come out is checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "run.py"


def bench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def test_a_benchmark_prints_a_table(tmp_path: Path) -> None:
    done = bench("wave", "untouched", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "wave of 200 sync steps" in done.stdout and "10 MB untouched" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_benchmark_is_named(tmp_path: Path) -> None:
    done = bench("wvae", cwd=tmp_path)

    assert done.returncode == 2 and "no benchmark wvae; there are chain" in done.stdout
