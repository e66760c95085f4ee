"""The page on requirements says what the numbers mean that tests cite."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import pytest

from tests.checkpoints.test_requirements import RANGES, TESTS, numbers, shown_by
from tests.docs.test_docs import ROOT

PAGE = (ROOT / "docs/requirements.md").read_text("utf-8")
ROW = re.compile(r"^\| ([SR]\d\.\d+|\d+) \|(.*)\|$", re.MULTILINE)
TRAP = re.compile(r"\btraps? (\d+(?:(?:, | and |, and |-)\d+)*)", re.IGNORECASE)


@functools.cache
def docstrings() -> list[str]:
    """What the tests say of themselves, modules and classes included."""
    told = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        ast.get_docstring(node) or ""
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, told)
    ]


def traps(text: str) -> Iterator[str]:
    """The numbers of the traps that a text names, one by one, listed or as a range."""
    for listed in TRAP.findall(text):
        for part in re.split(r", and |, | and ", listed):
            first, _, last = part.partition("-")
            yield from map(str, range(int(first), int(last or first) + 1))


def explained() -> list[str]:
    return [number for number, _ in ROW.findall(PAGE)]


def test_every_requirement_that_a_test_cites_is_on_the_page() -> None:
    cited = {number for text in docstrings() for number in numbers(text)}

    assert len(cited) > 90
    assert sorted(cited - set(explained())) == []


def test_every_trap_that_a_test_cites_is_on_the_page_and_no_other() -> None:
    cited = {number for text in docstrings() for number in traps(text)}

    assert len(cited) > 20
    assert {number for number in explained() if number.isdigit()} == cited


def test_the_page_explains_each_number_once_and_in_full() -> None:
    assert len(explained()) == len(set(explained()))
    for number, cells in ROW.findall(PAGE):
        columns = [cell.strip() for cell in cells.split(" | ")]
        assert len(columns) == (1 if number.isdigit() else 3) and all(columns), number


def test_the_page_has_every_requirement_in_order_with_a_test_that_shows_it() -> None:
    """A test that was renamed: `python docs/make_requirements.py` names another."""
    rows = [(number, cells.split(" | ")) for number, cells in ROW.findall(PAGE) if not number.isdigit()]
    shown = shown_by()

    assert [number for number, _ in rows] == [number for each in RANGES for number in numbers(each)]
    assert [number for number, _ in rows].count("S4.16") == 1 and len(rows) == 102 + 49
    for number, cells in rows:
        assert cells[2].strip(" `") in shown[number], f"{number}: {cells[2]} is no test, or does not say so"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Trap 7: tuples", ["7"]),
        ("traps 3, 5 and 12", ["3", "5", "12"]),
        ("Traps 3-5", ["3", "4", "5"]),
        ("a trap", []),
    ],
)
def test_traps_are_read_one_by_one_and_as_ranges(text: str, found: list[str]) -> None:
    assert list(traps(text)) == found
