"""Holding what a schedule did against what the server holds of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

from holdfast.engine.commands.control import APPLIED, REFUSED
from holdfast.journal.encoding import Track, decode_records
from holdfast.journal.fold import fold, parts_of
from holdfast.journal.records import (
    Answered,
    Commanded,
    Noted,
    OnceStarted,
    Paused,
    Record,
    Resumed,
    RunStarted,
    StepFailed,
    StepFinished,
    StepStarted,
)
from holdfast.journal.run_state import EXPIRED, SLEEP, RunState
from holdfast.state.codec import Codec
from holdfast.state.state import state_view
from holdfast.values import RunStatus
from tests.invariants import (
    ACKNOWLEDGED,
    CORRUPTION,
    EACH_ITEM,
    EFFECTS,
    FENCE,
    FINISHED_ONCE,
    INTENT,
    NOT_STRANDED,
    RECOVERY,
    SAME_RESULT,
    SIGNALS,
    TIMERS,
    Invariant,
    Violation,
)
from tests.simulator.faults import JUMP
from tests.simulator.server import Kept, Stored

from .operating import Operation
from .scenario import Scenario
from .shapes import Shape
from .stage import Begun, Fired, Stage

_MOST_TAKE_UPS = 12
"""How often a run may be taken up after the last of what went wrong."""
_GRAIN = 1e-6
_LATE = 2.0
"""By how many seconds a sleep may be prolonged where nothing goes wrong but clocks."""


class Reading:
    """One run's journal, record by record, and what is wrong with it."""

    def __init__(self, kept: Kept, codec: Codec, calm_at: float) -> None:
        self.kept, self.codec, self._calm_at = kept, codec, calm_at
        self.violations: list[Violation] = []
        self.begun: dict[str, dict[int, int]] = {}
        self.finished: dict[str, Stored] = {}
        self.noted: dict[tuple[str, str], Stored] = {}
        self.intended: dict[tuple[str, str, int], int] = {}
        """When the intent of each function given to `once` was first stored, by step, key and attempt."""
        self.sleeps: dict[str, tuple[float, Stored]] = {}
        self._driver: Any = None
        self._retry_at: dict[str, float] = {}
        self._open: dict[str, float | None] = {}
        self.answered: list[str] = []
        """Who answered, in order."""
        self._command = self._taken_up = 0
        self._chain = b""

    def read(self) -> None:
        """Read all of it."""
        for seq, stored in enumerate(self.kept.archive, 1):
            entry = stored.entry
            if entry.seq != seq:
                self.wrong(FENCE, f"entry {entry.seq} is stored where {seq} is next")
            for look, record in _looks(entry.body, self.codec):
                look(self, record, stored)
        kept = self.kept
        if kept.entries and kept.entries[-1].chain != kept.archive[-1].entry.chain:
            self.wrong(ACKNOWLEDGED, "the newest entry is gone")
        if self._taken_up > _MOST_TAKE_UPS:
            self.wrong(RECOVERY, f"it was taken up {self._taken_up} times after all was well")

    def wrong(self, invariant: Invariant, what: str) -> None:
        """Note a violation."""
        self.violations.append(Violation(invariant, f"{self.kept.info.run}: {what}"))

    @property
    def bodies(self) -> tuple[bytes, ...]:
        """All that was ever stored, but not when."""
        return tuple([stored.entry.body for stored in self.kept.archive])

    def folded(self) -> RunState:
        """The run that its records make."""
        return _fold(self.bodies, self.codec)

    def _see_driver(self, record: RunStarted | Resumed, stored: Stored) -> None:
        if stored.time > self._calm_at:
            self._taken_up += 1
        self._driver = stored.process if record.owner else None
        if record.owner and stored.process.lease not in record.owner:
            self.wrong(FENCE, f"{stored.process.name} took the run up for another")

    def _check_driver(self, what: str, stored: Stored) -> None:
        if stored.process is not self._driver:
            self.wrong(
                FENCE, f"{stored.process.name} stored {what} in entry {stored.entry.seq}, and did not drive"
            )

    def _see_start(self, record: StepStarted, stored: Stored) -> None:
        self._check_driver(f"the start of {record.step}", stored)
        if record.step in self.finished:
            self.wrong(FINISHED_ONCE, f"{record.step} is begun again in entry {stored.entry.seq}")
        if _is_early(stored, self._retry_at.pop(record.step, 0.0)):
            self.wrong(TIMERS, f"{record.step} was tried again too early, in entry {stored.entry.seq}")
        self.begun.setdefault(record.step, {}).setdefault(record.attempt, stored.moment)

    def _see_finish(self, record: StepFinished, stored: Stored) -> None:
        self._check_driver(f"the end of {record.step}", stored)
        if record.step in self.finished:
            self.wrong(EACH_ITEM, f"{record.step} is finished again in entry {stored.entry.seq}")
        if record.step not in self.begun and not (record.promoted or record.skipped):
            self.wrong(INTENT, f"{record.step} is finished in entry {stored.entry.seq}, and was never begun")
        self.finished[record.step] = stored

    def _see_failure(self, record: StepFailed, stored: Stored) -> None:
        if record.retry_at is not None:
            self._retry_at[record.step] = record.retry_at

    def _see_note(self, record: Noted, stored: Stored) -> None:
        place = (record.step, record.key)
        if place in self.noted:
            self.wrong(EFFECTS, f"{record.step} notes {record.key} again in entry {stored.entry.seq}")
        self.noted[place] = stored
        if record.key.startswith("sleep:"):
            self.sleeps[record.step] = float(self.codec.decode(record.value)), stored

    def _see_once(self, record: OnceStarted, stored: Stored) -> None:
        self.intended.setdefault((record.step, record.key, record.attempt), stored.moment)

    def _see_pause(self, record: Paused, stored: Stored) -> None:
        # Whoever drives a run without leaving it waits for the rest of a sleep in its node, which tells of that.
        self._open[record.pause] = None if record.kind == SLEEP else record.expires_at

    def _see_answer(self, record: Answered, stored: Stored) -> None:
        if record.pause not in self._open:
            self.wrong(SIGNALS, f"{record.pause} is answered in entry {stored.entry.seq}, and was not open")
            return
        self.answered.append(record.by)
        due = self._open.pop(record.pause)
        if record.value == EXPIRED and due is not None and _is_early(stored, due):
            self.wrong(TIMERS, f"{record.pause} ran out too early, in entry {stored.entry.seq}")

    def _see_command(self, record: Commanded, stored: Stored) -> None:
        if record.number < self._command:
            self.wrong(SIGNALS, f"message {record.number} is taken in again in entry {stored.entry.seq}")
        self._command = record.number


_LOOKS: dict[type, Any] = {
    RunStarted: Reading._see_driver,
    Resumed: Reading._see_driver,
    StepStarted: Reading._see_start,
    StepFinished: Reading._see_finish,
    StepFailed: Reading._see_failure,
    Noted: Reading._see_note,
    OnceStarted: Reading._see_once,
    Paused: Reading._see_pause,
    Answered: Reading._see_answer,
    Commanded: Reading._see_command,
}


@lru_cache(maxsize=4096)
def _records(body: bytes, codec: Codec) -> tuple[Record, ...]:
    """What is in an entry. Nothing in these workflows is so large that it needs the entries before."""
    return tuple(decode_records(body, Track(), codec))


@lru_cache(maxsize=4096)
def _looks(body: bytes, codec: Codec) -> tuple[tuple[Any, Any], ...]:
    """What is to be looked at in an entry, and how. Most entries of many schedules are the same."""
    found = list[Any]()
    for record in _records(body, codec):
        found += parts_of(record)
    return tuple((_LOOKS[type(record)], record) for record in found if type(record) in _LOOKS)


def _fold(bodies: tuple[bytes, ...], codec: Codec) -> RunState:
    return fold((record, 0.0) for body in bodies for record in _records(body, codec))


def check(operation: Operation, stage: Stage, came_to_its_end: bool) -> list[Violation]:
    """All that is wrong with a schedule that is over."""
    world, shape = operation.world, operation.scenario.shape
    violations = [Violation(CORRUPTION, text) for text in world.complaints]
    if not came_to_its_end:
        for run in sorted(operation.open):
            kept = world.server.kept.get(run)
            status = kept.info.status if kept else "not even stored"
            violations.append(Violation(NOT_STRANDED, f"{run} is {status}, long after all was well"))
    for run, status, known in operation.claimed:
        if not known and shape.is_strict:
            violations.append(Violation(ACKNOWLEDGED, f"{run} was said to be {status}, and is not"))
    readings: dict[str, Reading] = {}
    for run, kept in world.server.kept.items():
        reading = readings[run] = Reading(kept, shape.app._settings.codec, world.calm_at)
        try:
            reading.read()
            violations += _check_result(run, reading, shape)
        except Exception as error:
            reading.wrong(CORRUPTION, f"its journal cannot be read: {error!r}")
        violations += reading.violations
    for begun in stage.begun:
        violations += _check_begun(begun, readings.get(begun.run), shape.is_strict)
    violations += _check_once(stage.begun)
    for receipt in operation.receipts:
        times = readings[receipt.run_id].answered.count(receipt.by)
        if times != 1 if receipt.status == APPLIED else receipt.status == REFUSED and times:
            what = f"{receipt.run_id}: an answer of {receipt.by} is said to be {receipt.status}"
            violations.append(Violation(SIGNALS, f"{what}, and was applied {times} times"))
    for fired in stage.fired:
        violations += _check_fired(fired, readings[fired.run], operation.scenario)
    return violations


def _is_early(stored: Stored, due: float) -> bool:
    """Return whether the wall clock of the process that stored an entry had not reached a time by now."""
    return stored.time + stored.process.most_ahead < due - _GRAIN and stored.entry.at < due - _GRAIN


def _check_fired(fired: Fired, reading: Reading, scenario: Scenario) -> Iterator[Violation]:
    due, noted = reading.sleeps.get(fired.step, (None, None))
    what = f"{fired.run}: {fired.step} slept until {fired.time}"
    if due is None or noted is None or fired.time + fired.most_ahead < due - _GRAIN:
        yield Violation(TIMERS, f"{what}, not {due}")
        return
    only_jumps = not scenario.wish and all(fault.kind == JUMP for fault in scenario.faults)
    length = due - noted.entry.at
    if only_jumps and fired.process is noted.process and fired.time > noted.time + length + _LATE:
        yield Violation(TIMERS, f"{what}, {length} s after {noted.time}: a clock that jumped held it up")


def _check_once(begun: list[Begun]) -> Iterator[Violation]:
    """What an attempt does once, it does once, however many of its tasks ask for it."""
    seen: set[Any] = set()
    for each in begun:
        place = (each.run, each.step, each.key, each.attempt, each.process)
        if each.key and place in seen:
            yield Violation(EFFECTS, f"{each.run}: {each.step} ran {each.key} again in the same attempt")
        seen.add(place)


def _check_begun(begun: Begun, reading: Reading | None, is_strict: bool) -> Iterator[Violation]:
    what = f"{begun.run}: {begun.step} {begun.key}".rstrip()
    if reading is None and not is_strict:
        return
    if reading is None:
        yield Violation(INTENT, f"{what} ran on {begun.process.name}, and nothing of the run is stored")
        return
    stored_at = reading.begun.get(begun.step, {}).get(begun.attempt)
    if is_strict and (stored_at is None or stored_at > begun.moment):
        yield Violation(INTENT, f"{what} ran on {begun.process.name} before its intent was stored")
    intended = reading.intended.get((begun.step, begun.key, begun.attempt)) if begun.key else stored_at
    if is_strict and (intended is None or intended > begun.moment):
        yield Violation(INTENT, f"once {what} ran on {begun.process.name} before its intent was stored")
    place = (begun.step, f"once:{begun.key}")
    over = reading.noted.get(place) if begun.key else reading.finished.get(begun.step)
    # One that stood still, after it had looked, for so long that others took it for dead, is in flight.
    in_flight = begun.process.was_thought_dead(begun.looked_at, begun.time)
    if over is not None and over.moment < begun.moment and not in_flight:
        yield Violation(
            FINISHED_ONCE,
            f"{what} ran on {begun.process.name} after {over.process.name} had stored its end",
        )


def _check_result(run: str, reading: Reading, shape: Shape) -> Iterator[Violation]:
    status = reading.kept.info.status
    if status == RunStatus.COMPLETED:
        state = result_of(reading.bodies, reading.codec)
        if state != expected(shape.name):
            yield Violation(SAME_RESULT, f"{run} ended with {state}, not {expected(shape.name)}")
        return
    fault = reading.folded().fault
    if status == RunStatus.FAILED:
        yield Violation(SAME_RESULT, f"{run} failed: {fault}")


@lru_cache(maxsize=4096)
def result_of(bodies: tuple[bytes, ...], codec: Codec) -> dict[str, Any]:
    """The state that a run ended with; what came together in any order is sorted, and silence counts as an answer."""
    found = dict(state_view(_fold(bodies, codec).root.cells, codec, "", "", "", 0.0))
    said = ("said yes" if line == "said nobody" else line for line in found.get("log", ()))
    return {**found, "log": sorted(said)}


@cache
def expected(name: str) -> dict[str, Any]:
    """What an undisturbed run of a shape ends with."""
    from .schedule import undisturbed

    return undisturbed(name)
