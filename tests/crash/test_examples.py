"""Example workflows, killed at random times and resumed from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.examples import NAMES, trial


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_workflow_ends_as_if_nothing_had_happened(name: str, tmp_path: Path) -> None:
    trial(name, 2, 1, tmp_path)
