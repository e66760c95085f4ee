"""What the tests of workflow files share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workflows.workshop import Workshop


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    """A folder of its own to write and run workflow files in."""
    return Workshop(tmp_path)
