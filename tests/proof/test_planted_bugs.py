"""A proof that finds nothing has to show that it could: bugs are planted, and have to be found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.planted_bugs import BUGS, hunt, table
from tests.proof.planting import ROOT, Planted

QUICK = (
    "no sync of the journal",
    "a torn frame is accepted",
    "acknowledged before it is committed",
    "the chain advances before its entry is kept",
    "a writer ignores conflicts",
    "steps run before their intent is stored",
    "finished steps of an open wave run again after a crash",
)
"""Those that take a few seconds each; all of them are hunted by `python -m tests.proof.planted_bugs`."""


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught(name: str) -> None:
    (bug,) = (bug for bug in BUGS if bug.name == name)

    (seen,) = hunt([bug], 1).values()

    assert seen.is_caught, seen.said


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_bug_can_still_be_planted(bug: Planted) -> None:
    for file, old, new in bug.edits:
        assert (
            old != new
            and (ROOT / ("" if file.startswith("tests/") else "src/holdfast") / file).read_text().count(old)
            == 1
        ), file


def test_the_documentation_says_what_is_planted_and_what_catches_it() -> None:
    page = (Path(ROOT) / "docs/proof.md").read_text()

    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 12
    assert table(BUGS) in page
