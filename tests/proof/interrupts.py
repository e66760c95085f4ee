"""Presses Ctrl+C at random times, and resumes in the same process: `python -m tests.proof.interrupts --times 4000`.

As in a REPL or a notebook: a run is begun with `invoke`, with `invoke` inside a running event loop, or with `stream`; a
real SIGINT comes at a random time, `KeyboardInterrupt` is caught, and the same process continues with
`resume`, which may be interrupted, too. Each batch of runs is a process of its own, which must end within a given time.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import json
import logging
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from holdfast import HoldfastError, RunNotFound
from tests.processes import ROOT, unmeasured
from tests.proof.stopping import MAKERS, STORES, Subject, left_threads, moment, opened, undisturbed, unsound

LONGEST = 0.04
BATCH = 250
NAMES = ("chain", "loop", "nested", "once", "pausing", "async_chain", "mixed", "for_each")
WAYS = ("repl", "notebook", "stream")


class _Press:
    """One Ctrl+C, after so many seconds unless it is called off. Plain locks and fields: they bear any exception."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._off, self._is_over = seconds, threading.Lock(), False
        self._off.acquire()

    def press(self) -> None:
        """Wait until the time has come, and press."""
        if not self._off.acquire(timeout=self._seconds):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        self._is_over = True

    def settle(self) -> None:
        """From here on nothing is pressed any more; what was pressed late is not for what follows."""
        while True:
            try:
                with suppress(RuntimeError):  # It was called off before an interrupt came to this.
                    self._off.release()
                while not self._is_over:
                    time.sleep(0.0005)
                time.sleep(0.0005)
                return
            except KeyboardInterrupt:
                continue


class CtrlC:
    """Presses Ctrl+C once, at a time that it is given, while somebody waits for it."""

    def __init__(self) -> None:
        self._presses = queue.SimpleQueue[_Press]()
        threading.Thread(target=self._work, name="ctrl-c", daemon=True).start()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Press after so many seconds, unless what is done meanwhile is over by then."""
        press = _Press(seconds)
        try:
            self._presses.put(press)
            yield
        finally:
            press.settle()

    def _work(self) -> None:
        while True:
            self._presses.get().press()


def _call(subject: Subject, way: str, *, resumed: bool) -> None:
    """Begin the run, or go on with it, as people do."""
    app, run = subject.app, subject.run
    if way == "stream":
        given = {"checkpoint": run, "answers": subject.answers()} if resumed else {"run_id": run}
        for event in app.stream(None if resumed else subject.workflow.input, **given):  # type: ignore[arg-type]
            subject.ledger.observe(event)
    elif resumed:
        app.resume(run, answers=subject.answers(), observer=subject.observer)
    else:
        app.invoke(subject.workflow.input, run_id=run, observer=subject.observer)


def _interrupted(ctrl_c: CtrlC, subject: Subject, way: str, seconds: float, *, resumed: bool) -> bool:
    """Whether Ctrl+C came while the call was under way."""
    try:
        with ctrl_c.within(seconds):
            _call(subject, way, resumed=resumed)
    except KeyboardInterrupt:
        return True
    return False


def one_run(ctrl_c: CtrlC, subject: Subject, way: str, chance: random.Random) -> None:
    """Begin a run and interrupt it, resume and interrupt it again, and let it end."""
    subject.stops += _interrupted(ctrl_c, subject, way, moment(chance, LONGEST), resumed=False)
    for _ in range(chance.randrange(3)):
        if subject.is_over or not subject.is_stored:
            break
        subject.stops += _interrupted(ctrl_c, subject, way, moment(chance, LONGEST), resumed=True)
    while not subject.is_over:
        try:
            _call(subject, way, resumed=True)
        except RunNotFound:
            _call(subject, way, resumed=False)


async def _in_a_notebook(ctrl_c: CtrlC, subject: Subject, chance: random.Random) -> None:
    one_run(ctrl_c, subject, "notebook", chance)


def batch(kind: str, times: int, seed: int, names: tuple[str, ...]) -> tuple[Counter[str], list[str]]:
    """Runs on one store, in this process, until so many calls were interrupted: how many, and what was broken."""
    chance, counts, found = random.Random(f"{seed} {kind}"), Counter[str](), list[str]()
    wanted = {name: undisturbed(name) for name in names}
    ctrl_c, notebook = CtrlC(), asyncio.new_event_loop()
    with opened(kind) as store:
        before = set(threading.enumerate())
        while counts["interrupts"] < times:
            name, way = chance.choice(names), chance.choice(WAYS)
            counts["runs"] += 1
            subject = Subject.make(store, name, f"r{counts['runs']}", 0.001, wanted[name])
            try:
                if way == "notebook":
                    # As a notebook does, and other than `asyncio.run`, it leaves SIGINT alone.
                    notebook.run_until_complete(_in_a_notebook(ctrl_c, subject, chance))
                else:
                    one_run(ctrl_c, subject, way, chance)
            except (HoldfastError, AssertionError) as error:
                subject.found.append(f"{type(error).__name__}: {error}")
            counts["interrupts"] += max(subject.stops, int(bool(subject.found)))
            counts[way] += subject.stops
            what = f"--store {kind} --seed {seed}, run {counts['runs']}: {name}, {way}"
            found.extend(f"{what}: {one}" for one in subject.look())
        found += unsound(store)
        found += [f"--store {kind} --seed {seed}: thread {name!r} is left" for name in left_threads(before)]
    notebook.close()
    return counts, found


def _in_a_process(
    kind: str, times: int, seed: int, names: tuple[str, ...], limit: int
) -> tuple[Counter[str], list[str]]:
    given = ["--store", kind, "--times", str(times), "--seed", str(seed), "--here", "--limit", str(limit)]
    given += [word for name in names for word in ("--workflow", name)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof.interrupts", *given],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=unmeasured(),
    )
    if done.returncode:
        return Counter(), [
            f"{' '.join(given)} ended with {done.returncode}: {done.stdout}{done.stderr[-4000:]}"
        ]
    told = json.loads(done.stdout.splitlines()[-1])
    return Counter(told["counts"]), told["found"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--times", type=int, default=4000, help="how many calls to interrupt, on all stores together"
    )
    parser.add_argument("--store", action="append", choices=STORES)
    parser.add_argument("--workflow", action="append", choices=tuple(MAKERS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=600, help="seconds after which a batch is taken to hang")
    parser.add_argument("--here", action="store_true", help="one batch, in this process")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    stores, names = given.store or STORES, tuple(given.workflow or NAMES)
    if given.here:
        faulthandler.dump_traceback_later(given.limit, exit=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Shells let background jobs ignore it.
        counts, found = batch(stores[0], given.times, given.seed, names)
        print(json.dumps({"counts": counts, "found": found}))
        return 0
    total, violations, begun = Counter[str](), list[str](), time.monotonic()
    for kind in stores:
        left, seed = given.times // len(stores), given.seed
        while left > 0:
            counts, found = _in_a_process(kind, min(BATCH, left), seed, names, given.limit)
            total.update(counts)
            violations += found
            left, seed = left - BATCH, seed + 1
            print(f"{kind}: {dict(counts)}, {len(found)} violations", file=sys.stderr, flush=True)
    for violation in violations:
        print(f"VIOLATION {violation}")
    print(json.dumps({**total, "violations": len(violations), "seconds": round(time.monotonic() - begun)}))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
