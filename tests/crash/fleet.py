"""Chaos: workers are killed and stopped, and the server crashes, while runs execute.

    python -m tests.crash.fleet --runs 300 --steps 20 --workers 4

Every second one worker is killed with SIGKILL, or stopped past its lease and continued, or the PostgreSQL server is
stopped with `-m immediate` and started again. At the end every run must be completed, no step may have been saved
as finished twice, none may have been started after it was, none may be stranded, and what the stopped workers tried to
save after others had taken their runs over must have been refused.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.journal.journal import Journal
from holdfast.journal.records import StepFinished
from holdfast.state.codec import Codec
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.postgres.embedded import Programs
from tests.crash.fleet_worker import chain
from tests.postgres import PostgresServer, running
from tests.processes import unmeasured

ROOT = Path(__file__).parents[2]


@dataclass
class Report:
    """What was done to the fleet, and what came of it."""

    runs: int
    completed: int = 0
    seconds: float = 0.0
    done: collections.Counter[str] = field(default_factory=collections.Counter)
    refused: int = 0
    """Late saves of drivers whose runs others had taken over."""
    unaware: int = 0
    """Steps that such a driver was just beginning when it was stopped: its save was refused, but the step ran."""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        acts = ", ".join(f"{count} {act}" for act, count in sorted(self.done.items()))
        lines = [
            f"{self.completed} of {self.runs} runs completed in {self.seconds:.0f} s",
            f"done to them: {acts}",
            f"late saves refused: {self.refused}; of steps that were begun unawares: {self.unaware}",
            f"problems: {len(self.problems)}",
        ]
        return "\n".join([*lines, *(f"  {problem}" for problem in self.problems[:20])])


class Fleet:
    """Some worker processes, any of which may die at any time; another one then replaces it."""

    def __init__(self, url: str, ledger: Path, steps: int, size: int, seconds: float = 0.005) -> None:
        self._command = [
            *(sys.executable, "-m", "tests.crash.fleet_worker", url, str(ledger)),
            *("--steps", str(steps), "--seconds", str(seconds)),
        ]
        self._environment = unmeasured()
        self.workers: list[subprocess.Popen[bytes]] = []
        self.asleep: set[int] = set()
        for _ in range(size):
            self.start()

    def start(self) -> None:
        """One more worker."""
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=subprocess.DEVNULL, stderr=errors
            )
        self.workers.append(process)

    def kill(self, chance: random.Random) -> None:
        """SIGKILL one worker that is awake, and start another."""
        victim = chance.choice([worker for worker in self.workers if worker.pid not in self.asleep])
        victim.kill()
        victim.wait()
        self.workers.remove(victim)
        self.start()

    def freeze(self, chance: random.Random, seconds: float) -> None:
        """SIGSTOP one worker for so long; it wakes up as a zombie."""
        awake = [worker for worker in self.workers if worker.pid not in self.asleep]
        if len(awake) < 2:
            return
        victim = chance.choice(awake)
        self.asleep.add(victim.pid)
        victim.send_signal(signal.SIGSTOP)

        def wake() -> None:
            victim.send_signal(signal.SIGCONT)
            self.asleep.discard(victim.pid)

        timer = threading.Timer(seconds, wake)
        timer.daemon = True
        timer.start()

    def sleep(self) -> None:
        """SIGSTOP the only worker."""
        (worker,) = self.workers
        worker.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """SIGCONT the only worker."""
        (worker,) = self.workers
        worker.send_signal(signal.SIGCONT)

    def revive(self) -> None:
        """Start another worker for each that ended by itself."""
        for worker in [worker for worker in self.workers if worker.poll() is not None]:
            self.workers.remove(worker)
            self.start()

    def stop(self) -> None:
        """Let all go home."""
        for worker in self.workers:
            worker.send_signal(signal.SIGCONT)
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(20)
            if worker.poll() is None:
                worker.kill()
                worker.wait()


def chaos(
    server: PostgresServer,
    folder: Path,
    *,
    runs: int,
    steps: int,
    workers: int,
    seed: int,
    lease: float = 2.0,
    every: float = 1.0,
    timeout: float = 600.0,
    acts: tuple[str, ...] = ("kill", "freeze", "crash"),
) -> Report:
    """Submit runs, disturb the workers and the server until all are completed, and check what happened."""
    url = server.url(f"chaos_{secrets.token_hex(4)}", lease=lease)
    ledger, chance, report = folder / "ledger", random.Random(seed), Report(runs)
    ledger.touch()
    store = open_store(url)
    app = chain(store, steps, 0.005, is_async=True)
    for number in range(runs):
        app.submit({}, run_id=f"run-{number}")
    fleet = Fleet(url, ledger, steps, workers)
    began = time.monotonic()
    try:
        while time.monotonic() - began < timeout and not _all_completed(store, runs):
            time.sleep(every)
            fleet.revive()
            act = chance.choice(acts)
            report.done[{"kill": "kills", "freeze": "freezes", "crash": "server crashes"}[act]] += 1
            if act == "kill":
                fleet.kill(chance)
            elif act == "freeze":
                fleet.freeze(chance, lease + 1.0)
            else:
                server.restart("immediate")
    finally:
        _let_zombies_wake(fleet, lease)
        fleet.stop()
    report.seconds = time.monotonic() - began
    _check(report, store, ledger, steps)
    store.close()
    return report


def _all_completed(store: Store, runs: int) -> bool:
    return len(store.runs(status=["completed"])) == runs


def _let_zombies_wake(fleet: Fleet, lease: float) -> None:
    deadline = time.monotonic() + lease + 5.0
    while fleet.asleep and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)


def _check(report: Report, store: Store, ledger: Path, steps: int) -> None:
    journal, wanted = Journal(store), [f"step{number}#1" for number in range(1, steps + 1)]
    for info in store.runs():
        if info.status != "completed":
            report.problems.append(f"{info.run} is {info.status}: stranded")
            continue
        report.completed += 1
        _, entries = journal.history(info, Codec())
        records = [record for _, found in entries for record in found]
        finished = [record.step for record in records if isinstance(record, StepFinished)]
        if finished != wanted:
            report.problems.append(f"{info.run}: its journal has finished {finished}")
    lines = [line.split() for line in ledger.read_text().splitlines()]
    refused = {(run, pid) for what, kind, run, pid in lines if (what, kind) == ("worker", "conflict")}
    finished: set[tuple[str, str]] = set()
    for what, run, step, pid in lines:
        if what == "finished" and (run, step) in finished:
            report.problems.append(f"{run}: {step} was finished twice")
        elif what == "started" and (run, step) in finished and (run, pid) in refused:
            report.unaware += 1
        elif what == "started" and (run, step) in finished:
            report.problems.append(f"{run}: {step} was started after it was finished")
        if what == "finished":
            finished.add((run, step))
    report.refused = len(refused)


def main() -> int:
    """Disturb the fleet, and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--lease", type=float, default=2.0)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two acts")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, running(Programs.find()) as server:
        report = chaos(
            server,
            Path(folder),
            runs=given.runs,
            steps=given.steps,
            workers=given.workers,
            seed=given.seed,
            lease=given.lease,
            every=given.every,
        )
    print(report)
    return 1 if report.problems or report.completed < report.runs else 0


if __name__ == "__main__":
    sys.exit(main())
