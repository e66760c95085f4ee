"""SIGKILL at every commit while a run is taken back, reused, or begun again from a step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.docs.test_docs import ROOT, environment

NEEDED = {"take_back": ["b", "d", "f"], "reuse": ["b", "e", "d", "f"], "rerun": ["d", "f"]}


def test_whatever_is_killed_ends_as_if_it_had_not_been_and_repeats_nothing_that_is_kept(
    tmp_path: Path,
) -> None:
    """S0.9, S2.18: only what was under way when the process died runs twice."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.time_travel.kills", str(tmp_path)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]

    assert {way for way, died, *_ in told if not died} == set(NEEDED)
    assert all(sum(died for name, died, *_ in told if name == way) >= 3 for way in NEEDED)
    for way, died, ran, log in told:
        assert log == ["a.1", "b.2", "c.1", "e.1", "d.1", "f.1"], (way, ran)
        assert list(dict.fromkeys(ran)) == NEEDED[way], way
        assert len(ran) <= len(NEEDED[way]) + died
