"""The gate that fails a suite which covers too little."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.coverage_gate import shortfalls

ROOT = Path(__file__).parents[1]


def measured(lines: int, of: int, branches: int = 0, of_branches: int = 0) -> dict[str, Any]:
    return {
        "summary": {
            "covered_lines": lines,
            "num_statements": of,
            "covered_branches": branches,
            "num_branches": of_branches,
        }
    }


def test_a_suite_at_its_marks_passes() -> None:
    core = measured(95, 100, 95, 100)

    assert shortfalls({"src/holdfast/engine/app.py": core, "src/holdfast/demo.py": measured(89, 100)}) == []


def test_lines_are_judged_over_the_whole_package() -> None:
    files = {"src/holdfast/engine/app.py": measured(100, 100), "src/holdfast/demo.py": measured(83, 100)}

    assert shortfalls(files) == ["line coverage of the package is 91.50 %, below 92 %"]


def test_branches_are_judged_in_the_core_only() -> None:
    files = {"src/holdfast/journal/fold.py": measured(100, 100, 80, 100)}
    assert shortfalls(files) == ["line and branch coverage of engine and journal is 90.00 %, below 95 %"]

    files = {
        "src/holdfast/state/codec.py": measured(100, 100, 0, 100),
        "src/holdfast/engine/app.py": measured(1, 1),
    }
    assert shortfalls(files) == []


def test_nothing_measured_is_too_little() -> None:
    assert len(shortfalls({})) == 2


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project that has this one's gate: a package of one module, and a test of half of it."""
    package = tmp_path / "src/holdfast/engine"
    package.mkdir(parents=True)
    (tmp_path / "src/holdfast/__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "halves.py").write_text("def one():\n    return 1\n\ndef two():\n    return 2\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/__init__.py").write_text("")
    shutil.copy(ROOT / "conftest.py", tmp_path / "conftest.py")
    shutil.copy(ROOT / "tests/coverage_gate.py", tmp_path / "tests/coverage_gate.py")
    (tmp_path / "tests/test_halves.py").write_text(
        "import subprocess, sys\n"
        "from holdfast.engine import halves\n"
        "def test_one():\n    assert halves.one() == 1\n"
        "def test_two():\n"
        "    subprocess.run([sys.executable, '-c', 'from holdfast.engine import halves; halves.two()'], check=True)\n"
    )
    settings = (ROOT / "pyproject.toml").read_text("utf-8")
    (tmp_path / "pyproject.toml").write_text(settings, "utf-8")
    return tmp_path


def run(project: Path, *arguments: str, workers: int = 2) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(project / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:holdfast", "-n", str(workers), *arguments]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=100)


def test_a_covered_suite_passes_with_workers_and_with_lines_that_only_another_process_runs(
    project: Path,
) -> None:
    done = run(project, "--cov=holdfast")

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_suite_below_its_marks_fails_and_says_so(project: Path) -> None:
    with (project / "src/holdfast/engine/halves.py").open("a") as file:
        file.write("\ndef three():\n    return 3\n")

    done = run(project, "--cov=holdfast")

    assert done.returncode == 1
    assert "FAILED coverage: line coverage of the package is" in done.stdout


def test_a_part_of_the_suite_is_not_judged(project: Path) -> None:
    for part in (
        ["-k", "one"],
        ["tests/test_halves.py::test_one"],
        ["--deselect", "tests/test_halves.py::test_two"],
    ):
        assert run(project, "--cov=holdfast", *part, workers=0).returncode == 0

    assert run(project, workers=0).returncode == 0
