"""Judges the suite's coverage when it ends."""

from __future__ import annotations

import signal

import pytest
from tests import coverage_gate

# A background job of a shell ignores Ctrl+C, and so would every process that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    coverage_gate.judge(session)
