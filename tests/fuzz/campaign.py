"""Many targets in several processes: each is watched from outside, so that not even a crash loses its input."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tests.fuzz.target import Target
from tests.fuzz.trying import SLOT, SLOT_BYTES, Finding, bound_memory, run_target

STALLED = 300.0
"""After so many seconds without another input a process is given up, and its input is a finding."""


@dataclass(frozen=True)
class Unit:
    """One process' work: a target, and for how many inputs or seconds."""

    target: Target
    seed: str
    count: int | None
    seconds: float | None


@dataclass
class Summary:
    """What came of one target in all processes."""

    target: str
    inputs: int = 0
    cpu: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Keys: target, inputs, cpu_seconds, outcomes, findings."""
        return {
            "target": self.target,
            "inputs": self.inputs,
            "cpu_seconds": round(self.cpu, 1),
            "outcomes": len(self.outcomes),
            "findings": len(self.findings),
        }


class Worker:
    """A process at work on a unit."""

    def __init__(self, unit: Unit, folder: Path) -> None:
        self.unit = unit
        self.slot = mmap.mmap(-1, SLOT_BYTES)
        self._number, self._since = -1, time.monotonic()
        self._timed, self._ticks = -1, 0
        self.reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.reader)
            tempfile.tempdir = str(folder)
            _work(unit, self.slot, writer)
        os.close(writer)
        self.told = b""

    @property
    def number(self) -> int:
        """How many inputs it has begun."""
        return int(SLOT.unpack_from(self.slot)[0])

    def input(self) -> bytes:
        """The input that it is at."""
        _, length = SLOT.unpack_from(self.slot)
        return bytes(self.slot[SLOT.size : SLOT.size + length])

    def is_stalled(self) -> bool:
        """Whether it has been at one input for too long."""
        now = time.monotonic()
        if self.number != self._number:
            self._number, self._since = self.number, now
        return now - self._since > STALLED and not self._is_starved()

    def _is_starved(self) -> bool:
        """Whether it would go on if the machine let it: it is not waiting for anything, and has had little time."""
        state, *fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[10]) + int(fields[11])
        if self.number != self._timed:
            self._timed, self._ticks = self.number, ticks
        return state == "R" and (ticks - self._ticks) / os.sysconf("SC_CLK_TCK") < STALLED

    def end(self) -> tuple[int, float]:
        """Wait for its end: how it ended, and the processor time it took."""
        _, status, usage = os.wait4(self.pid, 0)
        os.close(self.reader)
        return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


def _work(unit: Unit, slot: mmap.mmap, writer: int) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        began = time.monotonic()

        def go_on(number: int) -> bool:
            if unit.count is not None:
                return number < unit.count
            return time.monotonic() - began < (unit.seconds or 0.0)

        bound_memory(unit.target)
        tally = run_target(unit.target, unit.seed, go_on, memoryview(slot))
        findings = [(found.what, found.where, found.data.hex()) for found in tally.findings]
        told = json.dumps({"inputs": tally.inputs, "outcomes": tally.outcomes, "findings": findings})
        with os.fdopen(writer, "w") as pipe:
            pipe.write(told)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def run_campaign(units: Iterable[Unit], jobs: int, folder: Path) -> dict[str, Summary]:
    """Run all units, some at a time; findings are saved in the folder as they come."""
    waiting = list(units)
    summaries = {unit.target.name: Summary(unit.target.name) for unit in waiting}
    working: list[Worker] = []
    shown = time.monotonic()
    memory = Path("/dev/shm")
    scratch = tempfile.TemporaryDirectory(prefix="holdfast-fuzzing-", dir=memory if memory.is_dir() else None)
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                working.append(Worker(waiting.pop(0), Path(scratch.name)))
            for worker in list(working):
                if _is_done(worker):
                    working.remove(worker)
                    _take(worker, summaries[worker.unit.target.name], folder)
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                done = sum(summary.inputs for summary in summaries.values())
                at_work = ", ".join(f"{worker.unit.target.name} {worker.number:,}" for worker in working)
                found = sum(len(summary.findings) for summary in summaries.values())
                told = (
                    f"{done + sum(worker.number for worker in working):,} inputs, {found} findings; {at_work}"
                )
                print(told, file=sys.stderr, flush=True)
    finally:
        for worker in working:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
            worker.end()
        scratch.cleanup()
    return summaries


def _is_done(worker: Worker) -> bool:
    """Read the output of a worker; return whether that was all. End a worker that makes no progress."""
    if not select.select([worker.reader], [], [], 0.1)[0]:
        if worker.is_stalled():
            os.kill(worker.pid, signal.SIGKILL)
        return False
    data = os.read(worker.reader, 1 << 16)
    worker.told += data
    return not data


def _take(worker: Worker, summary: Summary, folder: Path) -> None:
    code, cpu = worker.end()
    summary.cpu += cpu
    name = worker.unit.target.name
    if code != 0 or not worker.told:
        summary.inputs += worker.number
        how = f"the process ended with {code} (a signal if negative), or stood still"
        found = [Finding(name, how, "crash", worker.input())]
    else:
        told = json.loads(worker.told)
        summary.inputs += told["inputs"]
        summary.outcomes.update(told["outcomes"])
        found = [Finding(name, what, where, bytes.fromhex(data)) for what, where, data in told["findings"]]
    for one in found:
        if one.where not in {known.where for known in summary.findings}:
            summary.findings.append(one)
            save(one, folder)


def save(found: Finding, folder: Path) -> Path:
    """Write a finding down, and say how to see it again."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{found.target}-{hashlib.sha256(found.data).hexdigest()[:12]}"
    path.write_bytes(found.data)
    lines = found.what.strip().splitlines()
    print(
        f"FOUND in {found.target}: {found.where}\n  {lines[-1][:300] if lines else ''}\n"
        f"  {len(found.data)} bytes: {found.data[:120]!r}\n"
        f"  replay: python -m tests.fuzz --target {found.target} --replay {path}",
        file=sys.stderr,
        flush=True,
    )
    return path
