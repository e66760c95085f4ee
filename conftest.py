"""Judges the suite's coverage when it ends."""

from __future__ import annotations

import pytest
from tests import coverage_gate


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    coverage_gate.judge(session)
