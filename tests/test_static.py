"""Lint, format and types, so that the test command checks them too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


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


PROGRAMS = Path(__file__).parent / "typed_programs"


def found_by(*command: str) -> list[tuple[str, int]]:
    """The file and the line of each error that a type checker finds in the programs."""
    files = [str(PROGRAMS / name) for name in ("right.py", "wrong.py")]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE_")}
    done = subprocess.run([*command, *files], cwd=ROOT, env=environment, capture_output=True, text=True)
    errors = re.findall(r"(\w+\.py):(\d+)[:\d]* (?:- )?error:", done.stdout)
    assert errors, done.stdout + done.stderr
    return [(name, int(line)) for name, line in errors]


def mistakes() -> list[tuple[str, int]]:
    lines = (PROGRAMS / "wrong.py").read_text().splitlines()
    return [("wrong.py", number) for number, line in enumerate(lines, 1) if line.endswith("# WRONG")]


def test_states_have_the_types_of_their_schemas_in_mypy() -> None:
    assert len(mistakes()) == 7
    assert found_by(sys.executable, "-m", "mypy") == mistakes()


def test_states_have_the_types_of_their_schemas_in_pyright() -> None:
    """basedpyright is pyright, in packages that have all it needs; pyright itself loads its program when first run."""
    checker = [sys.executable, "-m", "basedpyright", "--level", "error", "--pythonpath", sys.executable]
    assert found_by(*checker) == mistakes()


def test_what_type_checkers_accept_runs() -> None:
    done = subprocess.run([sys.executable, str(PROGRAMS / "right.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
