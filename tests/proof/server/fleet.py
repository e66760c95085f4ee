"""Workers in processes of their own, on a way to the server where it rains faults; servers and workers die."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tests.crash.fleet import chaos
from tests.invariants import NOT_STRANDED, Violation
from tests.postgres import PostgresServer
from tests.proof.server.scene import Scene

WORDS = {
    "kills": "a worker killed with SIGKILL",
    "freezes": "a worker stopped past its lease",
    "server crashes": "immediate shutdown under workers",
}


class _Through(PostgresServer):
    """The server as the fleet sees it: through the proxy."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene.server.programs, scene.server.folder)
        self._scene = scene

    def url(self, schema: str = "holdfast", *, user: str = "postgres", **parameters: object) -> str:
        given = "".join(f"&{name}={value}" for name, value in parameters.items())
        return f"{self._scene.way}&schema={schema}{given}"


def fleet(scene: Scene, runs: int, workers: int, rain: float, timeout: float = 300.0, **given: Any) -> None:
    """Submit runs and let workers execute them while statements are disturbed with the probability `rain`."""
    tally = scene.tally
    scene.proxy.arm(rain=rain)
    with tempfile.TemporaryDirectory() as folder:
        report = chaos(
            _Through(scene),
            Path(folder),
            runs=runs,
            steps=10,
            workers=workers,
            seed=tally.seed,
            lease=1.0,
            timeout=timeout,
            **given,
        )
    tally.struck("fleet", scene.proxy.struck)
    scene.proxy.arm()
    for act, count in report.done.items():
        tally.hit("fleet", WORDS[act], count)
    tally.runs += runs
    tally.conflicts += report.refused
    problems = [Violation(NOT_STRANDED, problem) for problem in report.problems]
    if report.completed < runs and not problems:
        problems.append(Violation(NOT_STRANDED, f"only {report.completed} of {runs} runs were completed"))
    tally.judge("fleet", "chain", f"{workers} workers, rain {rain}", problems)
