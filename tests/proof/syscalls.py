"""Kills, and fails, a run at each system call that changes its store: `python -m tests.proof.syscalls --every`.

For each workflow, store and durability a run is begun again and again, each time with a fault at the next of
the calls that write, sync, create, rename, truncate or remove something in its store; housekeeping and repairs are
treated the same way:

- `kill`, `kill-after`: SIGKILL right before the call, right after it;
- `enospc`, `eio`: the call fails once, the process ends, another one resumes;
- `enospc-stay`, `eio-stay`: the call fails, and the same process resumes with the store that it has open;
- `full`, `broken`: this call and all later ones fail, until a fresh process resumes;
- `continue`: the call fails once for want of room, and the policy is to go on;
- `short`: a write writes half of what it is given;
- `recovery`: killed, and killed again at a call of the resume.

Then a fresh process resumes, and everything that must hold is held against the ledger and the journal.
"""

from __future__ import annotations

import argparse
import errno
import json
import logging
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from holdfast import CheckpointPolicy, HoldfastError
from tests.crash.harness import Case, Driver, in_child
from tests.invariants import STORED
from tests.proof.places import DURABILITIES, STORES, WORKFLOWS, Site, recover, scratch, stops_clearly, told
from tests.proof.ptrace import WRITES, Call, Fail, Verdict, trace
from tests.proof.upkeep import UPKEEP

MOST_CALLS = 1000
RECOVERY_KILLS = 2
"""At how many calls of each resume it is killed again."""

Decide = Callable[[Call], Verdict | Fail]
_ONCE: dict[str, Verdict | Fail] = {
    "kill": Verdict.KILL_BEFORE,
    "kill-after": Verdict.KILL_AFTER,
    "enospc": Fail(errno.ENOSPC),
    "eio": Fail(errno.EIO),
    "enospc-stay": Fail(errno.ENOSPC),
    "eio-stay": Fail(errno.EIO),
    "full": Fail(errno.ENOSPC),
    "broken": Fail(errno.EIO),
    "continue": Fail(errno.ENOSPC),
    "short": Verdict.SHORT,
    "recovery": Verdict.KILL_BEFORE,
}
FAULTS = tuple(_ONCE)
_KEEPS_FAILING = ("full", "broken")
_JOURNALS = ("-wal", "/journal")
"""Without a sync of these nothing is on the disk."""
_NEEDS_NO_ROOM = ("fsync", "fdatasync", "unlink", "unlinkat", "rmdir")


@dataclass
class Fault:
    """What happens at the n-th call that changes the store."""

    site: Site
    kind: str
    at: int
    """Below zero it never happens."""
    seen: int = 0
    call: str = ""
    """What it hit."""
    lied: bool = False
    """Whether something was acknowledged after its sync had failed, and before one that did not."""
    _unsynced: str = ""

    def decide(self, call: Call) -> Verdict | Fail:
        verdict = self._verdict(call)
        if call.name in ("fsync", "fdatasync") and call.paths()[0].endswith(_JOURNALS):
            self._unsynced = call.paths()[0] if isinstance(verdict, Fail) else ""
        elif self._unsynced and call.name in WRITES and call.paths() == (str(self.site.ledger.path),):
            self.lied |= call.data().startswith(STORED.encode())
        return verdict

    def _verdict(self, call: Call) -> Verdict | Fail:
        paths = [path for path in call.paths() if path.startswith(str(self.site.home))]
        if not paths or paths[0].endswith("-shm") or (_is_open(call) and Path(paths[0]).exists()):
            return Verdict.PASS
        if self.kind == "short" and call.name not in WRITES:
            return Verdict.PASS
        self.seen += 1
        if self.at < 0 or self.seen < self.at or (self.seen > self.at and self.kind not in _KEEPS_FAILING):
            return Verdict.PASS
        if self.seen > self.at and self.kind == "full" and call.name in _NEEDS_NO_ROOM:
            return Verdict.PASS
        self.call = self.call or f"{call.name} {os.path.relpath(paths[0], self.site.home)}"
        return _ONCE[self.kind]


def _is_open(call: Call) -> bool:
    """An open that changes nothing if the file is there."""
    return call.name in ("open", "openat") and not call.flags() & os.O_TRUNC


@dataclass
class Tally:
    """What was done, and what was found broken, with all that it takes to see it again."""

    faults: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.faults.update(other.faults)
        self.calls.update(other.calls)
        self.violations += other.violations


def doomed(site: Site, kind: str) -> None:
    """The process that the fault hits: it finishes, dies, or ends with an error of ours."""
    if site.case.workflow in UPKEEP:
        UPKEEP[site.case.workflow].work(site)
        return
    driver = Driver(site)
    if kind == "continue":
        options: Any = driver.workflow.options
        policy = CheckpointPolicy(durability=site.case.durability, on_save_error="continue")
        driver.app = driver.workflow.graph.compile(driver.store, policy=policy, **options)
        driver.witness = _Deaf()
        logging.disable()  # It warns of what is done to it.
    if stops_clearly(driver, site) and kind.endswith("-stay"):
        driver.go_on()


class _Deaf:
    """An observer that ignores everything: a run that continues without saving emits events of unstored steps."""

    def on_event(self, event: object) -> None: ...


def began(site: Site, kind: str) -> None:
    """As `doomed`, where the store itself cannot be opened because of the fault."""
    try:
        doomed(site, kind)
    except HoldfastError as error:
        site.ledger.write("error", type(error).__name__, " ".join(str(error).split()))
    except Exception as error:
        site.ledger.write("unclear", type(error).__name__, told(error))


def strike(root: Path, case: Case, kind: str, at: int, wanted: str, tally: Tally) -> bool:
    """One run with one fault, and what comes after; `False` if the run ended before the fault."""
    site = Site(root / f"{kind}-{at}", case)
    _prepare(site)
    fault = Fault(site, kind, at)
    code = trace(lambda: began(site, kind), fault.decide)
    if not fault.call:
        shutil.rmtree(site.root)
        return False
    what = f"{case.workflow} {case.scheme} {case.durability} --fault {kind} --at {at} ({fault.call})"
    tally.faults[kind] += 1
    tally.calls[fault.call.partition(" ")[0]] += 1
    allowed = {-signal.SIGKILL} if isinstance(_ONCE[kind], Verdict) and kind != "short" else {0}
    if code not in allowed:
        tally.violations.append(f"{what}: the process ended with {code}")
    unclear = [line.detail for line in site.ledger.lines() if line.what == "unclear"]
    tally.violations += [f"{what}: no clear error, but {error}" for error in unclear]
    if fault.lied:
        tally.violations.append(f"{what}: an entry was acknowledged although its sync had failed")
    if kind == "short" and any(line.what == "error" for line in site.ledger.lines()):
        tally.violations.append(f"{what}: a short write stopped the run")
    if kind == "recovery":
        _kill_recovery(site, at, wanted, tally)
    _take_up(site, wanted, what, tally)
    shutil.rmtree(site.root)
    return True


def _kill_recovery(site: Site, at: int, wanted: str, tally: Tally) -> None:
    """Kill the resume, too, at calls that are another choice for each place."""
    for place in random.Random(at).sample(range(1, 25), RECOVERY_KILLS):
        fault = Fault(site, "kill", place)
        trace(lambda: _look(site, wanted), fault.decide)
        tally.faults["recovery"] += bool(fault.call)


def _take_up(site: Site, wanted: str, what: str, tally: Tally) -> None:
    site.found.unlink(missing_ok=True)
    code = in_child(lambda: _look(site, wanted))
    if code or not site.found.exists():
        tally.violations.append(f"{what}: the resume ended with {code}")
    else:
        tally.violations += [f"{what}: {one}" for one in site.violations()]


def uninterrupted(root: Path, case: Case, kind: str) -> tuple[str, int]:
    """The result without any fault, and how many calls changed the store where one can strike."""
    site = Site(root / "uninterrupted", case)
    _prepare(site)
    count = Fault(site, kind, -1)
    code = trace(lambda: doomed(site, kind), count.decide)
    if code:
        raise SystemExit(f"{case}: without a fault the process ended with {code}")
    return site.result.read_text() if site.result.exists() else "", count.seen


def _prepare(site: Site) -> None:
    if site.case.workflow in UPKEEP and (code := in_child(lambda: UPKEEP[site.case.workflow].prepare(site))):
        raise SystemExit(f"{site.case}: what is to be there before could not be made: {code}")


def _look(site: Site, wanted: str) -> None:
    """What comes after the fault, in a process of its own, which leaves what it found broken."""
    if site.case.workflow not in UPKEEP:
        recover(site, wanted)
        return
    try:
        found = UPKEEP[site.case.workflow].look(site)
    except Exception as error:  # Whatever it is, it is what is looked for.
        found = [f"what follows failed with {told(error)}"]
    site.found.write_text(json.dumps(found))


def every_call(case: Case, kind: str, at: int | None = None, some: int | None = None, seed: int = 0) -> Tally:
    """Strike at each call, at one, or at some that the seed chooses."""
    tally = Tally()
    with scratch() as root:
        wanted, count = uninterrupted(root, case, kind)
        places: Iterable[int] = range(1, MOST_CALLS)
        if some is not None:
            chosen = random.Random(f"{seed} {case} {kind}").sample(range(1, count + 1), min(some, count))
            places = sorted(chosen)
        for place in places if at is None else [at]:
            if not strike(root, case, kind, place, wanted, tally):
                break
    tally.calls["in an uninterrupted run"] = count
    return tally


def main() -> int:
    given = _given()
    cases = [
        (Case(workflow, scheme, durability), fault)
        for workflow in given.workflow or (*WORKFLOWS, *UPKEEP)
        for scheme in given.store or STORES
        for durability in given.durability or DURABILITIES
        for fault in given.fault or FAULTS
        if _fits(workflow, scheme, durability, fault)
    ]
    total, begun = Tally(), time.monotonic()
    counts: dict[str, int] = {}
    with ProcessPoolExecutor(given.jobs, get_context("fork")) as pool:
        pending = {
            pool.submit(every_call, case, fault, given.at, given.some, given.seed): (case, fault)
            for case, fault in cases
        }
        for number, done in enumerate(as_completed(pending), 1):
            (case, fault), tally = pending[done], done.result()
            name = f"{case.workflow} {case.scheme} {case.durability}"
            counts[name] = max(tally.calls.pop("in an uninterrupted run"), counts.get(name, 0))
            total.add(tally)
            line = f"{number}/{len(cases)} {name} {fault}: {sum(tally.faults.values())} faults"
            print(f"{line}, {len(tally.violations)} violations", file=sys.stderr, flush=True)
            for violation in tally.violations:
                print(f"  {violation}", file=sys.stderr, flush=True)
    _report(total, counts, time.monotonic() - begun)
    return 1 if total.violations else 0


def _fits(workflow: str, scheme: str, durability: str, fault: str) -> bool:
    """Upkeep is always durable, and knows neither policies nor going on in the same process."""
    if workflow not in UPKEEP:
        return True
    is_known = fault != "continue" and not fault.endswith("-stay")
    return scheme in UPKEEP[workflow].stores and durability == "full" and is_known


def _report(total: Tally, counts: dict[str, int], seconds: float) -> None:
    print("calls that change the store, in an uninterrupted run")
    for name, count in sorted(counts.items()):
        print(f"  {name:28} {count:6}")
    print("faults injected")
    for fault, count in total.faults.items():
        print(f"  {fault:28} {count:6}")
    print("at calls")
    for call, count in total.calls.most_common():
        print(f"  {call:28} {count:6}")
    for violation in total.violations:
        print(f"VIOLATION {violation}")
    figures = {
        "faults": sum(total.faults.values()),
        "kinds": dict(total.faults),
        "violations": len(total.violations),
        "seconds": round(seconds),
    }
    print(json.dumps(figures))


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workflow", action="append", choices=(*WORKFLOWS, *UPKEEP))
    parser.add_argument("--store", action="append", choices=STORES)
    parser.add_argument("--durability", action="append", choices=DURABILITIES)
    parser.add_argument("--fault", action="append", choices=FAULTS)
    parser.add_argument("--at", type=int, help="only at this call")
    parser.add_argument("--some", type=int, help="only at so many calls of each run")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--every", "--full", action="store_true", help="all of them: the default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many processes at a time")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
