"""Real processes that handle SIGTERM as containers do, with `sys.exit(0)`, and get it at any time."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from holdfast import HoldfastError
from tests.invariants import RECOVERY, SAME_RESULT, FileLedger, Violation
from tests.proof.interrupting.injecting import exit_on_signal
from tests.proof.interrupting.trials import Run, looked_at

NAME = "r"
PATIENCE = 90.0


class Struck:
    """One run in a process that gets a signal to end, and another process that resumes it."""

    def __init__(self, root: Path, shape: str, scheme: str) -> None:
        root.mkdir()
        self.shape, self.url = (
            shape,
            f"sqlite:///{root}/runs.db" if scheme == "sqlite" else f"file://{root}/runs",
        )
        self.ledger, self.report = FileLedger(root / "ledger", sync=False), root / "report.json"

    def begin(self, moment: float | None) -> float:
        """Begin the run, and end its process after so many seconds; how long it took."""
        ready, begun = os.pipe()
        pid = _forked(lambda: self._doomed(begun))
        os.close(begun)
        os.read(ready, 1)
        os.close(ready)
        since = time.monotonic()
        if moment is not None:
            time.sleep(moment)
            os.kill(pid, signal.SIGTERM)
        _ended(pid)
        return time.monotonic() - since

    def _doomed(self, begun: int) -> None:
        signal.signal(signal.SIGTERM, exit_on_signal)
        try:
            run = Run(self.shape, self.url, NAME, self.ledger)
            os.write(begun, b"!")
            run.begin()
            self.report.write_text(json.dumps([run.go_on(), []]))
        except (SystemExit, HoldfastError):
            pass  # A step that the signal came in has failed with it.

    def resume(self) -> tuple[str, list[str]]:
        """Resume it in a process of its own; the result, and what is broken."""
        self.report.unlink(missing_ok=True)
        code = _ended(_forked(self._survive))
        if code or not self.report.exists():
            return "", [str(Violation(RECOVERY, f"the resume ended with {code}"))]
        result, found = json.loads(self.report.read_text())
        return result, found

    def _survive(self) -> None:
        run = Run(self.shape, self.url, NAME, self.ledger)
        result = run.go_on()
        self.report.write_text(json.dumps([result, [str(one) for one in looked_at(run)]]))


def strike_often(root: Path, shape: str, scheme: str, times: int, seed: int) -> list[str]:
    """Send the signal at this many random times of a run; return what was broken."""
    calm = Struck(root / "calm", shape, scheme)
    seconds = calm.begin(None)
    wanted, _ = calm.resume()
    moments, found = random.Random(f"{seed} {shape} {scheme}"), list[str]()
    for number in range(times):
        struck = Struck(root / str(number), shape, scheme)
        moment = moments.uniform(0.0, seconds)
        struck.begin(moment)
        result, broken = struck.resume()
        if result != wanted and not broken:
            broken = [str(Violation(SAME_RESULT, f"the result is {result}, uninterrupted it is {wanted}"))]
        found += [f"--signals {shape} {scheme} at {moment * 1000:.2f} ms: {one}" for one in broken]
    return found


def _forked(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return pid


def _ended(pid: int) -> int:
    """How a process ended; one that hangs is killed."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
