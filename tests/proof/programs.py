"""Starting a proof in a process of its own, which forks and traces its children."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.processes import ROOT, unmeasured


def proof(name: str, *arguments: str, timeout: int = 110) -> dict[str, Any]:
    """What a proof counted; fails with what it found broken."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.proof.{name}", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=unmeasured(),
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(name, *arguments, counts)
    return counts
