"""Benchmarks of workers: the throughput of several against one, and the time until one takes over another's runs."""

from __future__ import annotations

import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from figures import Row
from on_postgres import opened, url_of
from worker_process import sleepy_chain

STEPS, SECONDS = 20, 0.005
"""The runs that the workers execute: the number of steps, and how long each of them sleeps."""

CONCURRENCY = 1
"""How many runs a worker executes at once: few, so that the workers are the limit and not the machine."""

RUNS_PER_WORKER = 15

LEASE = 2.0
LEFT_BEHIND = 4
"""How many runs the worker that is killed executes."""

ENDLESS = (1000, 0.1)
"""The runs that the killed worker abandons: the number of steps, and how long each of them sleeps."""

DEADLINE = 120.0


class Said(NamedTuple):
    """An event of a worker, and its time."""

    kind: str
    run: str
    at: float


class WorkerProcess:
    """A worker in its own process, which starts on request."""

    def __init__(self, url: str, steps: int, seconds: float, concurrency: int) -> None:
        program = [sys.executable, str(Path(__file__).with_name("worker_process.py"))]
        self._process = subprocess.Popen(
            [*program, url, str(steps), str(seconds), str(concurrency)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._said: queue.Queue[Said | None] = queue.Queue()
        self._ready = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == "ready\n":
                self._ready.set()
            else:
                kind, run, at = line.split()
                self._said.put(Said(kind, run, float(at)))
        self._ready.set()
        self._said.put(None)

    def wait(self) -> None:
        """Wait until it is ready."""
        if not self._ready.wait(DEADLINE) or self._process.poll() is not None:
            raise RuntimeError("a worker did not start")

    def begin(self) -> None:
        """Start it."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def next(self, kind: str) -> Said:
        """Return its next event of this kind."""
        while True:
            said = self._said.get(timeout=DEADLINE)
            if said is None:
                raise RuntimeError("a worker ended")
            if said.kind == kind:
                return said

    def heard(self) -> Iterator[Said]:
        """Return its events so far."""
        while not self._said.empty():
            said = self._said.get()
            if said is not None:
                yield said

    def kill(self) -> float:
        """Kill it with SIGKILL; return the time."""
        self._process.kill()
        at = time.monotonic()
        self._process.wait()
        return at

    def close(self) -> None:
        """Stop it, and wait for its end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE)
        self._listener.join()
        self._process.stdout.close()


def bench_workers(folder: Path, tiny: bool) -> Iterator[Row]:
    """Measure four workers against one, in runs per second."""
    runs, rounds = (1, 1) if tiny else (RUNS_PER_WORKER, 3)
    several = 2 if tiny else 4
    alone, together = [], []
    for turn in range(rounds):
        alone.append(_runs_per_second(folder / f"one_{turn}", 1, runs))
        together.append(_runs_per_second(folder / f"several_{turn}", several, runs))
    yield Row(
        f"{several} workers v one, {STEPS} steps of {SECONDS * 1e3:g} ms, {CONCURRENCY} at once",
        f"{statistics.median(together):.1f} runs/s",
        f"{statistics.median(alone):.1f} runs/s",
        statistics.median(a / b for a, b in zip(together, alone, strict=True)),
        2.5,
        better=">=",
    )


def _runs_per_second(place: Path, workers: int, runs_per_worker: int) -> float:
    runs = workers * runs_per_worker
    with opened(url_of(place)) as store, ExitStack() as stack:
        app = sleepy_chain(store, STEPS, SECONDS)
        for _ in range(runs):
            app.submit({"n": 0})
        fleet = [WorkerProcess(store.url, STEPS, SECONDS, CONCURRENCY) for _ in range(workers)]
        for worker in fleet:
            stack.callback(worker.close)
        for worker in fleet:
            worker.wait()
        begun = time.monotonic()
        for worker in fleet:
            worker.begin()
        ended = _all_completed(fleet, runs)
    return runs / (ended - begun)


def _all_completed(fleet: list[WorkerProcess], runs: int) -> float:
    """Return the time when the last of this many runs was completed."""
    done: dict[str, float] = {}
    deadline = time.monotonic() + DEADLINE
    while len(done) < runs:
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {len(done)} of {runs} runs were completed")
        for worker in fleet:
            for said in worker.heard():
                if said.kind in ("failed", "refused"):
                    raise RuntimeError(f"run {said.run} was {said.kind}")
                if said.kind == "completed":
                    done[said.run] = said.at
        time.sleep(0.01)
    return max(done.values())


def bench_failover(folder: Path, tiny: bool) -> Iterator[Row]:
    """Measure how long after the lease of a dead worker another has taken over all its runs."""
    trials, lease, prelude = (1, 0.5, 0.2) if tiny else (10, LEASE, 1.0)
    late: list[float] = []
    with opened(url_of(folder / "failover", lease=lease)) as store:
        app = sleepy_chain(store, *ENDLESS)
        for _ in range(LEFT_BEHIND):
            app.submit({"n": 0})
        victim = _begun(store.url)
        claimed = {victim.next("taken").run for _ in range(LEFT_BEHIND)}
        for _ in range(trials):
            heir = _begun(store.url)
            time.sleep(prelude)
            died = victim.kill()
            taken = [heir.next("taken") for _ in range(LEFT_BEHIND)]
            assert {said.run for said in taken} == claimed
            late.append(max(said.at for said in taken) - died - lease)
            victim = heir
        victim.close()
    yield Row(
        f"failover of {LEFT_BEHIND} runs, the worst of {trials}, lease {lease:g} s",
        f"lease + {max(late):.2f} s",
        f"median {statistics.median(late):+.2f} s",
        max(late),
        2.0,
        " s",
    )


def _begun(url: str) -> WorkerProcess:
    worker = WorkerProcess(url, *ENDLESS, 2 * LEFT_BEHIND)
    worker.wait()
    worker.begin()
    return worker
