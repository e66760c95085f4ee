"""Raises an exception at each line of a run: `python -m tests.proof.async_exceptions --full`.

An exception may come between any two lines: the handler of a signal calls `sys.exit`, somebody presses Ctrl+C twice,
another thread raises one here. For each shape of a workflow and each store a run is begun again and again, each time
with an exception at another place of the engine, the journal or the store, and caught outside as a notebook does. Then
the run is resumed in the very same process. It has to end as if nothing had happened: same result, nothing finished
runs twice, `fsck` finds nothing, every lock is free.

- `interrupt`, `exit`: `KeyboardInterrupt`, `SystemExit` at a line, whatever thread comes there;
- `cancelled`: `CancelledError` at a line of a coroutine; `cancel`: the task is cancelled while such a line runs;
- `signal`: a real signal, whose handler calls `sys.exit`, at an instruction where CPython looks for signals.

`--signals N` does without such help: a process that handles SIGTERM with `sys.exit(0)` gets it at N random times of
each shape, and another process resumes its run.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from holdfast.stores.postgres.embedded import Programs
from tests.postgres import running
from tests.proof.interrupting.injecting import KINDS, SIGNAL, Place, exit_in_our_code, read_place
from tests.proof.interrupting.shapes import SHAPES
from tests.proof.interrupting.signalled import strike_often
from tests.proof.interrupting.trials import Case, Trial, uninterrupted
from tests.proof.places import scratch

STORES = ("sqlite", "file", "postgres", "memory")
PATIENCE = 60.0
"""Seconds that one trial may take before it is taken for one that hangs, unless others are given."""
TIMES = (1, 2)
"""How often a place is passed when it is struck, besides the last time."""
BATCH = 400
"""How many trials one process holds."""
BESIDE = 4
"""Each of so many trials resumes with a store that is opened beside the one that was interrupted."""


@dataclass
class Tally:
    """What was done, and what was found broken, with all that it takes to see it again."""

    struck: Counter[str] = field(default_factory=Counter)
    missed: int = 0
    violations: list[str] = field(default_factory=list)


class Urls:
    """Stores for trials: a folder for each, or a schema of a server for all."""

    def __init__(self, root: Path, server: str) -> None:
        self._root, self._server, self._next = root, server, 0

    def make(self, scheme: str) -> str:
        self._next += 1
        folder = self._root / f"{os.getpid()}-{self._next}"
        return {
            "sqlite": f"sqlite:///{folder}/runs.db",
            "file": f"file://{folder}",
            "postgres": self._server,
            "memory": "memory://",
        }[scheme]


def in_child(work: Callable[[], None], report: Path) -> int:
    """Run `work` in a forked process that ends with 3 if it hangs; its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            report.with_suffix(".error").write_text(traceback.format_exc())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def count_places(case: Case, urls: Urls, report: Path) -> tuple[str, list[Place]]:
    """The result without any exception, and the places that the run passes."""

    def work() -> None:
        _quieten()
        # Run it once uncounted: what is imported at first use is not counted.
        uninterrupted(case, urls.make(case.scheme), f"first-{os.getpid()}")
        wanted, passed = uninterrupted(case, urls.make(case.scheme), f"counted-{os.getpid()}")
        report.write_text(json.dumps([wanted, [[*place, times] for place, times in passed.items()]]))

    if code := in_child(work, report):
        raise SystemExit(f"{case}: without any exception the process ended with {code}: {_said(report)}")
    wanted, passed = json.loads(report.read_text())
    places = [
        Place(file, at, nth) for file, at, times in passed for nth in sorted({*TIMES, times}) if nth <= times
    ]
    return wanted, places


def hold_all(
    case: Case, places: Sequence[Place], wanted: str, urls: Urls, report: Path, timeout: float, first: bool
) -> Tally:
    """One trial for each place, many in one process; one that hangs or dies is found, and the rest goes on.

    With `first` it ends with the first violation.
    """
    tally, left = Tally(), list(places)
    while left and not (first and tally.violations):
        batch = left[:BATCH]
        report.write_text("")
        code = in_child(partial(_hold_batch, case, batch, wanted, urls, report, timeout, first), report)
        lines = [json.loads(line) for line in report.read_text().splitlines()]
        done = [line for line in lines if "struck" in line]
        for line in done:
            tally.struck[case.scheme] += bool(line["struck"])
            tally.missed += not line["struck"]
            tally.violations += line["found"]
        left = left[len(done) :] if not code else left[len(done) + 1 :]
        if code:
            what = "hangs" if code == 3 else f"ended with {code}"
            where = batch[len(done)] if len(done) < len(batch) else "the end"
            tally.violations.append(f"{case} --at {where}: recovery: the process {what}\n{_said(report)}")
    return tally


def _said(report: Path) -> str:
    file = report.with_suffix(".error")
    return file.read_text()[-4000:] if file.exists() else ""


def _hold_batch(
    case: Case,
    batch: Sequence[Place],
    wanted: str,
    urls: Urls,
    report: Path,
    timeout: float,
    first: bool,
) -> None:
    _quieten()
    signal.signal(SIGNAL, exit_in_our_code)
    uninterrupted(case, urls.make(case.scheme), f"first-{os.getpid()}")
    with report.open("a") as told, report.with_suffix(".error").open("w") as stacks:
        for number, place in enumerate(batch):
            faulthandler.dump_traceback_later(timeout, exit=False, file=stacks)
            watchdog = threading.Timer(timeout + 2, os._exit, (3,))
            watchdog.daemon = True
            watchdog.start()
            beside = number % BESIDE == 0 and case.scheme != "memory"
            trial = Trial(case, place, urls.make(case.scheme), f"r{os.getpid()}-{number}", wanted, beside)
            trial.hold()
            watchdog.cancel()
            told.write(json.dumps({"struck": trial.struck, "found": trial.found}) + "\n")
            told.flush()
            if trial.found and first:
                return
            del trial
            gc.collect(0)


def _quieten() -> None:
    """What dies because of an exception that was raised there is expected, and so are warnings of it."""
    logging.disable()
    threading.excepthook = lambda arguments: None
    sys.unraisablehook = lambda arguments: None


@contextmanager
def server_for(schemes: Sequence[str]) -> Iterator[str]:
    """The URL of a PostgreSQL store, if one is wanted."""
    if "postgres" not in schemes:
        yield ""
        return
    with running(Programs.find()) as server, server.schema() as name:
        yield server.url(name)


def main() -> int:
    given = _given()
    if given.signals:
        return _send_signals(given)
    schemes = given.store or STORES
    total, begun = Tally(), time.monotonic()
    points: Counter[str] = Counter()
    with scratch() as root, server_for(schemes) as server:
        urls = Urls(root, server)

        def one(case: Case) -> tuple[Case, int, Tally]:
            report = Path(tempfile.mkdtemp(dir=root)) / "report"
            wanted, places = count_places(case, urls, report)
            if given.at:
                places = [read_place(given.at)]
            elif given.within:
                places = [place for place in places if place.file.startswith(tuple(given.within))]
            elif given.some is not None:
                places = random.Random(f"{given.seed} {case}").sample(places, min(given.some, len(places)))
            return (
                case,
                len(places),
                hold_all(case, places, wanted, urls, report, given.timeout, given.first),
            )

        cases = [
            Case(shape, scheme, kind)
            for scheme in schemes
            for shape in given.shape or SHAPES
            for kind in given.kind or KINDS
        ]
        cases = [case for case in cases if _fits(case)]
        with ThreadPoolExecutor(given.jobs) as pool:
            for number, (case, count, tally) in enumerate(pool.map(one, cases), 1):
                points[case.scheme] += count
                total.struck.update(tally.struck)
                total.missed += tally.missed
                total.violations += tally.violations
                line = f"{number}/{len(cases)} {case}: {sum(tally.struck.values())} exceptions"
                print(f"{line}, {len(tally.violations)} violations", file=sys.stderr, flush=True)
                for violation in tally.violations:
                    print(f"  {violation}", file=sys.stderr, flush=True)
    for violation in total.violations:
        print(f"VIOLATION {violation}")
    figures = {
        "exceptions": sum(total.struck.values()),
        "places": dict(points),
        "not reached": total.missed,
        "violations": len(total.violations),
        "seconds": round(time.monotonic() - begun),
    }
    print(json.dumps(figures))
    return 1 if total.violations else 0


def _send_signals(given: argparse.Namespace) -> int:
    cases = [
        (shape, scheme) for scheme in given.store or ("sqlite", "file") for shape in given.shape or SHAPES
    ]
    found: list[str] = []
    with scratch() as root, ThreadPoolExecutor(given.jobs) as pool:

        def one(case: tuple[str, str]) -> list[str]:
            return strike_often(Path(tempfile.mkdtemp(dir=root)), *case, given.signals, given.seed)

        for violations in pool.map(one, cases):
            found += violations
    for violation in found:
        print(f"VIOLATION {violation}")
    print(json.dumps({"signals": given.signals * len(cases), "violations": len(found)}))
    return 1 if found else 0


def _fits(case: Case) -> bool:
    """Only what is awaited can be cancelled."""
    return case.kind != "cancel" or case.shape.startswith("awaited")


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", action="append", choices=tuple(SHAPES))
    parser.add_argument("--store", action="append", choices=STORES)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--at", help="only at this place, as FILE:LINE:TIMES")
    parser.add_argument("--within", action="append", help="only at places of files whose names begin so")
    parser.add_argument("--some", type=int, help="only at so many places of each case")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument(
        "--signals", type=int, default=0, help="send a real SIGTERM so often to each shape instead"
    )
    parser.add_argument("--first", action="store_true", help="end with the first violation of each case")
    parser.add_argument(
        "--timeout", type=float, default=PATIENCE, help="seconds before a trial counts as hung"
    )
    parser.add_argument("--full", action="store_true", help="all of them: the default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many processes at a time")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
