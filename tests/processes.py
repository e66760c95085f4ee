"""Processes that tests start."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def unmeasured(**more: str) -> dict[str, str]:
    """The environment for processes whose coverage nobody needs: measuring makes them several times slower."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**plain, "PYTHONPATH": path, **more}


def in_child(work: Callable[[], None], kill_after: float | None = None) -> int:
    """Do it in a forked process, killed after so many seconds; its exit code, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
