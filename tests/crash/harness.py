"""Kills of real processes: forks an owner, kills it at a given point, and resumes in another process.

The process that forks never opens a store on disk nor starts a thread, so that each child begins clean.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import random
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import Event, Outcome, Pause, RunNotFound, State, open_store
from holdfast.events import CallbackObserver, Observer
from holdfast.journal.encoding import Track, decode_records
from holdfast.journal.records import Noted, StepAdvanced, StepFinished
from holdfast.state.codec import Codec
from holdfast.stores.base import Store
from holdfast.testing import CrashingStore, kill_process
from holdfast.testing.wrapped_store import POINTS, Point
from tests.crash.workflows import WORKFLOWS
from tests.invariants import FileLedger, Ledger
from tests.processes import in_child

MOST_BOUNDARIES = 200
RUN = "r"


@dataclass(frozen=True)
class Case:
    """What is run, where, and how durably; each step takes `pause` seconds."""

    workflow: str
    scheme: str
    durability: str
    pause: float = 0.0


class Place:
    """A folder of its own for one run: the store, the ledger and the result."""

    def __init__(self, root: Path, case: Case) -> None:
        root.mkdir(parents=True)
        self.case = case
        self.url = f"sqlite:///{root}/runs.db" if case.scheme == "sqlite" else f"file:///{root}/runs"
        self.ledger = FileLedger(root / "ledger", sync=False)  # A kill loses nothing that was written.
        self.result = root / "result.json"

    def store(self) -> Store:
        return open_store(self.url)

    def dying(self, at: int, point: Point) -> Store:
        return CrashingStore(self.store(), at, point)


class DyingWitness:
    """An observer that kills the process on its n-th event, after the ledger has heard of it."""

    def __init__(self, ledger: Ledger, at: int) -> None:
        self.ledger, self.at, self.seen = ledger, at, 0

    def on_event(self, event: Event) -> None:
        self.ledger.observe(event)
        self.seen += 1
        if self.seen == self.at:
            kill_process()


class Driver:
    """Executes the run of a place, in the process that will be killed or in a later one."""

    def __init__(self, place: Place, store: Store | None = None, witness: Observer | None = None) -> None:
        case = place.case
        self.place, self.workflow = place, WORKFLOWS[case.workflow](place.ledger, case.pause)
        self.store = store or place.store()
        self.app = self.workflow.graph.compile(
            self.store, durability=case.durability, **self.workflow.options
        )
        self.witness = witness or CallbackObserver(place.ledger.observe)

    def begin(self) -> None:
        """Start the run, answer its questions, and leave its result."""
        self._finish(self._start())

    def go_on(self) -> None:
        """Take the run up, or start it if nothing of it was stored, and leave its result."""
        if (known := self.store.runs(run=RUN)) and known[0].status == "completed":
            self._write(self.app.get_state(RUN))
            return
        try:
            outcome = self._resume()
        except RunNotFound:
            outcome = self._start()
        self._finish(outcome)

    def _start(self) -> Outcome:
        given: dict[str, Any] = {"run_id": RUN, "observer": self.witness}
        if self.workflow.is_async:
            return asyncio.run(self.app.ainvoke(self.workflow.input, **given))
        return self.app.invoke(self.workflow.input, **given)

    def _resume(self, answers: dict[str, Any] | None = None) -> Outcome:
        given: dict[str, Any] = {"answers": answers, "observer": self.witness}
        if self.workflow.is_async:
            return asyncio.run(self.app.aresume(RUN, **given))
        return self.app.resume(RUN, **given)

    def _finish(self, outcome: Outcome) -> None:
        while outcome.status == "paused":
            outcome = self._resume({pause.id: self._answer(pause) for pause in outcome.pauses})
        assert outcome.status == "completed", outcome
        self._write(outcome.state)

    def _answer(self, pause: Pause) -> Any:
        return "rerun" if pause.kind == "poison" else self.workflow.answers[pause.name]

    def _write(self, state: State) -> None:
        self.place.result.write_text(json.dumps(state.to_dict(), sort_keys=True))


def note_what_is_stored(place: Place) -> None:
    """Write into the ledger what the journal holds as finished: acknowledged or not, it may not run again."""
    store, codec, track = place.store(), Codec(), Track()
    for entry in store.read(RUN):
        for record in decode_records(entry.body, track, codec):
            if isinstance(record, (StepFinished, StepAdvanced)):
                place.ledger.write("finished", record.step)
            elif isinstance(record, Noted):
                place.ledger.write("finished", f"{record.step}:{record.key}")
    store.close()


def expect(code: int, wanted: int, what: str) -> None:
    if code != wanted:
        raise SystemExit(f"{what}: the process ended with {code}, not with {wanted}")


def take_up(place: Place, wanted: str, what: str) -> None:
    """Resume in a fresh process and compare with the run that was never interrupted."""
    place.result.unlink(missing_ok=True)

    def survivor() -> None:
        note_what_is_stored(place)
        Driver(place).go_on()

    expect(in_child(survivor), 0, what)
    check(place, wanted, what)


def check(place: Place, wanted: str, what: str) -> None:
    result = place.result.read_text()
    if result != wanted:
        raise SystemExit(f"{what}: the result is {result}, uninterrupted it is {wanted}")
    if repeated := place.ledger.repeated():
        raise SystemExit(f"{what}: finished steps ran again: {repeated}\n{place.ledger.path.read_text()}")


def uninterrupted(root: Path, case: Case) -> str:
    place = Place(root / "uninterrupted", case)
    expect(in_child(lambda: Driver(place).begin()), 0, "uninterrupted")
    check(place, place.result.read_text(), "uninterrupted")
    return place.result.read_text()


def crash_at(root: Path, case: Case, at: int, point: str, wanted: str) -> bool:
    """Kill the run at one boundary and resume it; `False` if the run ended before it came there."""
    what = f"{case} killed at {at} {point}"
    place = Place(root / f"{point}-{at}", case)

    def doomed() -> None:
        if point == "told":
            Driver(place, witness=DyingWitness(place.ledger, at)).begin()
        else:
            Driver(place, place.dying(at, point)).begin()  # type: ignore[arg-type]

    code = in_child(doomed)
    if code == 0:
        check(place, wanted, what)
        return False
    expect(code, -signal.SIGKILL, what)
    take_up(place, wanted, what)
    return True


def every_boundary(root: Path, case: Case, points: Sequence[str]) -> dict[str, int]:
    """Kill the run at each boundary, at each of the points; how many boundaries there were."""
    wanted = uninterrupted(root, case)
    counts: dict[str, int] = {}
    for point in points:
        at = 1
        while crash_at(root, case, at, point, wanted):
            at += 1
            if at > MOST_BOUNDARIES:
                raise SystemExit(f"{case}: still running after {at} boundaries")
        counts[point] = at - 1
    return counts


def one_step_a_life(root: Path, case: Case) -> dict[str, int]:
    """Every process dies as soon as it has stored one step; count the processes."""
    wanted = uninterrupted(root, case)
    place = Place(root / "lives", case)
    lives = 0

    def one_life() -> None:
        note_what_is_stored(place)
        Driver(place, place.dying(2, "acknowledged")).go_on()

    while not place.result.exists():
        lives += 1
        if lives > MOST_BOUNDARIES:
            raise SystemExit(f"{case}: no end after {lives} processes")
        code = in_child(one_life)
        if code != 0:
            expect(code, -signal.SIGKILL, f"{case}, life {lives}")
    check(place, wanted, f"{case}, one step a life")
    return {"lives": lives}


def random_moments(root: Path, case: Case, kills: int, seed: int) -> dict[str, int]:
    """Kill runs at random times, up to four times each, until enough kills have hit."""
    wanted = uninterrupted(root, case)
    moments = random.Random(seed)
    hits = number = 0
    while hits < kills:
        number += 1
        hits += _kill_often(
            Place(root / f"random-{number}", case), moments, wanted, f"seed {seed}, run {number}"
        )
    return {"kills": hits, "runs": number}


def _kill_often(place: Place, moments: random.Random, wanted: str, what: str) -> int:
    hits = 0
    while hits < 4:
        code = in_child(lambda: Driver(place).go_on(), kill_after=moments.uniform(0.01, 0.12))
        if code == 0:
            break
        expect(code, -signal.SIGKILL, what)
        hits += 1
    take_up(place, wanted, what)
    return hits


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("boundaries", "lives", "random"))
    parser.add_argument("workflow", choices=WORKFLOWS)
    parser.add_argument("scheme", choices=("sqlite", "file"))
    parser.add_argument("durability", choices=("full", "process"))
    parser.add_argument("--points", nargs="+", default=POINTS)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    case = Case(given.workflow, given.scheme, given.durability, 0.01 if given.mode == "random" else 0.0)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        # The children inherit the modules, and what fingerprints have read of the source.
        importlib.import_module(f"holdfast.stores.{'sqlite' if case.scheme == 'sqlite' else 'files'}.store")
        WORKFLOWS[case.workflow](FileLedger(root / "unused"), case.pause).graph.compile("memory://")
        if given.mode == "boundaries":
            counts = every_boundary(root, case, given.points)
        elif given.mode == "lives":
            counts = one_step_a_life(root, case)
        else:
            counts = random_moments(root, case, given.kills, given.seed)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
