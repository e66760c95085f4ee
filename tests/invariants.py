"""What always holds, whatever dies: named promises, and how a ledger and a journal are held against them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from holdfast.errors import HoldfastError
from holdfast.events import Event
from holdfast.journal.records import Reset, StepFinished, StepStarted
from holdfast.state.codec import Codec
from holdfast.stores.base import Append, Conflict, Store
from holdfast.testing import ledger
from holdfast.testing.ledger import (
    EFFECT,
    FINISHED,
    START,
    STORED,
    Journalled,
    Line,
    plain_records,
    read_journal,
)
from holdfast.testing.wrapped_store import WrappedStore

# A ledger outside the store: what really happened, whatever becomes of the process and of its journal.


DUE = "due"
"""Something waits; the key is what, the detail until when."""
FIRED = "fired"
"""It goes on after waiting; the key is what, the detail when."""
CONSUMED = "consumed"
"""A signal was taken in; the key is the signal."""


class Ledger:
    """Lines in the order in which they were written. This one lives and dies with its process."""

    def __init__(self) -> None:
        self._lines: list[Line] = []

    def write(self, what: str, key: str, detail: str = "") -> None:
        """Add a line. On return it outlives whatever the ledger is to outlive."""
        self._lines.append(Line(what, key, detail))

    def lines(self) -> Sequence[Line]:
        """All lines, from the first."""
        return self._lines

    def observe(self, event: Event) -> None:
        """Note the steps that are told to be finished; an observer's callback."""
        if event.type == "node.complete" and not event.data["error"]:
            self.write(FINISHED, event.data["step"])

    def repeated(self) -> list[str]:
        """The steps that began although they had finished. There must be none."""
        return list(self._repeated())

    def _repeated(self) -> Iterator[str]:
        finished: set[str] = set()
        for what, key, _ in self.lines():
            if what == FINISHED:
                finished.add(key)
            elif what == START and key in finished:
                yield key


class FileLedger(ledger.FileLedger, Ledger):
    """Lines in a file that outlive any process and any power cut: each is on the disk before `write` returns."""


class WitnessedStore(WrappedStore):
    """A store whose acknowledgements a ledger hears of, before the engine does."""

    def __init__(self, inner: Store, ledger: Ledger) -> None:
        super().__init__(inner)
        self._ledger = ledger

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        answers = self.inner.commit(appends)
        for append, conflict in zip(appends, answers, strict=True):
            if conflict is None:
                for entry in append.entries:
                    self._ledger.write(STORED, f"{append.run}:{entry.seq}", entry.chain.hex())
        return answers


class Invariant(NamedTuple):
    """A promise, and the name by which reports call it."""

    name: str
    promise: str


ACKNOWLEDGED = Invariant("acknowledged", "What a store acknowledged is never lost.")
INTENT = Invariant("intent", "No step runs, and none completes, before its intent is stored.")
FINISHED_ONCE = Invariant("finished", "A finished step never runs again.")
EFFECTS = Invariant("effects", "An effect with an idempotency key happens once at most.")
FENCE = Invariant("fence", "Only the current driver of a run commits to it.")
SAME_RESULT = Invariant("same-result", "A resumed run ends as an uninterrupted one does.")
EACH_ITEM = Invariant("each-item", "Each item of a for-each counts once.")
NOT_STRANDED = Invariant("not-stranded", "A run that can go on is taken up; none is forgotten.")
TIMERS = Invariant("timers", "Nothing that waits for a time goes on before it.")
SIGNALS = Invariant("signals", "A signal or an answer is taken in once.")
PRUNING = Invariant("pruning", "Pruning never removes what a resume needs.")
CORRUPTION = Invariant("corruption", "Damage is reported, never guessed around.")
RECOVERY = Invariant("recovery", "Recovery can itself be interrupted, and comes to an end.")

INVARIANTS = (
    ACKNOWLEDGED,
    INTENT,
    FINISHED_ONCE,
    EFFECTS,
    FENCE,
    SAME_RESULT,
    EACH_ITEM,
    NOT_STRANDED,
    TIMERS,
    SIGNALS,
    PRUNING,
    CORRUPTION,
    RECOVERY,
)


class Violation(NamedTuple):
    """A promise that was broken, and how."""

    invariant: Invariant
    what: str

    def __str__(self) -> str:
        return f"{self.invariant.name}: {self.what}"


def check_run(lines: Sequence[Line], store: Store, run: str, codec: Codec | None = None) -> list[Violation]:
    """Hold a ledger against the journal of a run; what was broken, if anything."""
    try:
        journal = read_journal(store, run, codec)
    except HoldfastError as error:
        return [Violation(CORRUPTION, f"the journal of {run!r} cannot be read: {error}")]
    return [*check_ledger(lines), *check_journal(journal), *_check_both(lines, run, journal)]


def check_ledger(lines: Iterable[Line]) -> list[Violation]:
    """What a ledger shows by itself: repeated steps and effects, two drivers, early timers, signals taken twice."""
    return list(_of_ledger(lines))


def _of_ledger(lines: Iterable[Line]) -> Iterator[Violation]:
    finished: set[str] = set()
    effects: Counter[str] = Counter()
    signals: Counter[str] = Counter()
    chains: dict[str, str] = {}
    due: dict[str, float] = {}
    for what, key, detail in lines:
        if what == FINISHED:
            finished.add(key)
        elif what == START and key in finished:
            yield Violation(FINISHED_ONCE, f"step {key!r} ran again after it had finished")
        elif what == EFFECT:
            effects[key] += 1
            if effects[key] == 2:
                yield Violation(EFFECTS, f"the effect with the key {key!r} happened more than once")
        elif what == CONSUMED:
            signals[key] += 1
            if signals[key] == 2:
                yield Violation(SIGNALS, f"signal {key!r} was taken in more than once")
        elif what == STORED and chains.setdefault(key, detail) != detail:
            yield Violation(FENCE, f"two different entries were acknowledged as {key!r}")
        elif what == DUE:
            due.setdefault(key, float(detail))
        elif what == FIRED and float(detail) < due.get(key, 0.0):
            yield Violation(TIMERS, f"{key!r} went on at {detail}, before {due[key]!r}")


def check_journal(journal: Journalled) -> list[Violation]:
    """What a journal shows by itself: completions without an intent, steps that completed twice."""
    return list(_of_journal(journal))


def _of_journal(journal: Journalled) -> Iterator[Violation]:
    intended: set[str] = set()
    done: set[str] = set()
    for seq, record in plain_records(journal):
        if isinstance(record, Reset):
            intended.clear()
            done.clear()
        elif isinstance(record, StepStarted):
            intended.add(record.step)
        elif isinstance(record, StepFinished):
            if record.step not in intended and not (record.skipped or record.origin or record.promoted):
                yield Violation(INTENT, f"entry {seq} completes step {record.step!r}, which was never begun")
            if record.step in done:
                yield Violation(EACH_ITEM, f"entry {seq} completes step {record.step!r} once more")
            done.add(record.step)


def _check_both(lines: Sequence[Line], run: str, journal: Journalled) -> Iterator[Violation]:
    intended = {record.step for _, record in plain_records(journal) if isinstance(record, StepStarted)}
    for what, key, detail in lines:
        if what == STORED and key.rpartition(":")[0] == run:
            stored = journal.entries.get(int(key.rpartition(":")[2]))
            if stored != detail:
                yield Violation(
                    ACKNOWLEDGED, f"{key!r} was acknowledged and is {'another' if stored else 'gone'}"
                )
        elif what == START and key.partition(":once:")[0] not in intended:
            yield Violation(INTENT, f"step {key!r} ran, and the journal does not know that it began")
