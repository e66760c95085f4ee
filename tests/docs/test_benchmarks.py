"""The benchmarks run: their figures are for people to look at, so only that they come out is checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.postgres import open_folder
from tests.processes import unmeasured

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "run.py"


def bench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=unmeasured())


def test_a_benchmark_prints_a_table(tmp_path: Path) -> None:
    done = bench("wave", "untouched", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "wave of 200 sync steps" in done.stdout and "10 MB untouched" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_those_on_postgres_work_in_their_tiny_form() -> None:
    with open_folder() as folder:
        done = bench("--tiny", cwd=folder)

        assert done.returncode == 0, done.stderr
        for row in ("chain of 10 on", "5 runs at once", "2 workers v one", "failover of", "prune in 2,000"):
            assert row in done.stdout
        assert "diff of 0.1 MB" in done.stdout and "diff of checkpoints" in done.stdout
        assert "right guesses, faster" in done.stdout and "wrong guesses, slower" in done.stdout
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("figure", "code"), [(2.0, 0), (2.1, 1)])
def test_a_missed_target_is_an_error_only_if_that_is_asked_for(
    figure: float, code: int, tmp_path: Path
) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import run; from figures import Row; "
        f"run.BENCHMARKS['wave'] = lambda folder: iter([Row('x', '', '', {figure}, 2.0)]); "
        "print(run.main(['wave'])); sys.exit(run.main(['wave', '--check']))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == code, done.stderr
    assert ("MISSED" in done.stdout) is bool(code) and "\n0\n" in done.stdout


def test_a_benchmark_without_a_tiny_form_says_so(tmp_path: Path) -> None:
    done = bench("--tiny", "wave", cwd=tmp_path)

    assert done.returncode == 2 and "no tiny benchmark wave; there are pg-chain" in done.stdout


def test_an_unknown_benchmark_is_named(tmp_path: Path) -> None:
    done = bench("wvae", cwd=tmp_path)

    assert done.returncode == 2 and "no benchmark wvae; there are chain" in done.stdout
