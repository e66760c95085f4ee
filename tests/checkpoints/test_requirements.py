"""Every numbered requirement is shown by a test that names it in its docstring."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

RANGES = (
    *("S0.1-S0.24", "S1.1-S1.17", "S2.1-S2.22", "S3.1-S3.23", "S4.1-S4.16"),
    *("R0.1-R0.11", "R1.1-R1.15", "R2.1-R2.8", "R3.1-R3.7", "R4.1-R4.8"),
)

_CITED = re.compile(r"\b([SR]\d)\.(\d+)(?:\s*(?:-|–|to)\s*(?:([SR]\d)\.)?(\d+)\b)?")


def numbers(text: str) -> Iterator[str]:
    """The requirement numbers that a text names: `S3.1`, or all of `S3.1-S3.4` and `S3.1-4`."""
    for seed, first, other_seed, last in _CITED.findall(text):
        if last and other_seed in ("", seed):
            yield from (f"{seed}.{number}" for number in range(int(first), int(last) + 1))
        else:
            yield f"{seed}.{first}"
            if last:
                yield f"{other_seed}.{last}"


def shown_by() -> dict[str, list[str]]:
    """The tests whose docstring names a requirement, by its number."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            if is_function and node.name.startswith("test_"):
                for number in numbers(ast.get_docstring(node) or ""):
                    found[number].append(f"{path.relative_to(TESTS)}::{node.name}")
    return found


@pytest.fixture(scope="module")
def shown() -> dict[str, list[str]]:
    return shown_by()


@pytest.mark.parametrize("number", [number for each in RANGES for number in numbers(each)])
def test_a_requirement_is_shown_by_a_test(number, shown):
    assert shown[number], f"no test names {number} in its docstring"


def test_numbers_are_read_one_by_one_and_as_ranges():
    assert list(numbers("S1.2: as S3.4-S3.6 and S0.9-11 say, not S2.")) == [
        "S1.2",
        "S3.4",
        "S3.5",
        "S3.6",
        "S0.9",
        "S0.10",
        "S0.11",
    ]
    assert "S4.16" in list(numbers("S4.1-S4.16")) and len(list(numbers("S4.1-S4.16"))) == 16
