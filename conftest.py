"""What is done once for the whole suite: compiling, and judging its coverage when it ends."""

from __future__ import annotations

import compileall
import signal

import pytest
from tests import coverage_gate

# A background job of a shell ignores Ctrl+C, and so would every process that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile once what many processes are about to import, also where they are told to write no byte code."""
    if not hasattr(session.config, "workerinput"):
        for folder in ("src", "tests"):
            compileall.compile_dir(session.config.rootpath / folder, quiet=2)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    coverage_gate.judge(session)
