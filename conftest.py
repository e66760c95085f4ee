"""What is done once for the whole suite: compiling, and judging its coverage when it ends."""

from __future__ import annotations

import compileall
import signal
import sys

import pytest
from tests import coverage_gate

# A background job of a shell ignores Ctrl+C, and so would every process that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# While tests are found, what pytest makes of their asserts is kept, also where byte code is not to be written: to make
# it anew each time would be most of what a worker does until it has found them.
_writes_no_byte_code, sys.dont_write_bytecode = sys.dont_write_bytecode, False


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = _writes_no_byte_code


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile once what many processes are about to import, also where they are told to write no byte code."""
    if not hasattr(session.config, "workerinput"):
        for folder in ("src", "tests"):
            compileall.compile_dir(session.config.rootpath / folder, quiet=2)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    coverage_gate.judge(session)
