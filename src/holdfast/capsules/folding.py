"""Reading the journal of a capsule as a stranger's: every record folded, nothing trusted, memory bounded."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from holdfast.capsules.bounds import unpacked_bytes
from holdfast.capsules.capsule import Capsule
from holdfast.capsules.claims import check_claims
from holdfast.capsules.shapes import check_record, check_run
from holdfast.capsules.summary import CarefulCodec
from holdfast.data.ops import Op
from holdfast.data.seal import Seal
from holdfast.errors import CapsuleInvalid, CodecError
from holdfast.journal.bodies import CHAIN_BYTES, is_sealed
from holdfast.journal.journal import Journal
from holdfast.journal.records import Forked, MovedOn, Record
from holdfast.journal.run_state import RunState, Step
from holdfast.journal.wire import HEAD, Track
from holdfast.journal.wire_runs import decode_run
from holdfast.stores.base import Entry
from holdfast.views.plain import size_text
from holdfast.views.tally import Tallies, Tally

LIMIT = 256_000_000
"""How many bytes the state of a run may have while it is read, unless more is allowed."""


_EFFORT, _RATIO = 4, 100
"""All values together may unpack to so many times what one state may have, and as what the journal itself has."""

_SMALL = 64 * 1024


class TooLarge(CapsuleInvalid):
    """A run would need more memory than is allowed."""


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Say of whatever goes wrong while a stranger's journal is read that it cannot be."""
    try:
        yield
    except CapsuleInvalid:
        raise
    except CodecError as error:
        raise CapsuleInvalid(f"its journal cannot be read: {error}") from None
    except Exception as error:
        raise CapsuleInvalid(f"its journal cannot be read: {type(error).__name__}: {error}") from None


def fold_capsule(capsule: Capsule, seal: Seal | None = None, limit: int = LIMIT) -> Tallies | None:
    """The run as its journal tells it, with what happened to each step; `None` if the key that sealed it is missing.

    Whatever in it does not follow, `CapsuleInvalid` says so; a run that needs more than `limit` bytes is `TooLarge`.
    Where the key is missing, all that is not sealed is read and checked nevertheless.
    """
    with reading():
        return _Fold(capsule, seal, limit).tallies()


class _Frugal(Tallies):
    """Tallies that keep no large value which the run itself no longer has."""

    def _count(self, tally: Tally, step: Step, record: Any, at: float) -> None:
        super()._count(tally, step, record, at)
        if sum(len(op.raw) for op in tally.ops) > _SMALL:
            tally.ops = ()


class _Fold:
    """Reads one capsule from its first entry to its last."""

    def __init__(self, capsule: Capsule, seal: Seal | None, limit: int) -> None:
        self._capsule, self._limit = capsule, limit
        self._journal, self._track = Journal(capsule, seal), Track()
        self._bodies = self._journal.bodies(capsule.info)
        self._name, self._unpacked = capsule.facts.run, 0
        self._most_work = _EFFORT * limit + _RATIO * capsule.body_bytes
        self._is_closed, self._codec = False, CarefulCodec()

    def tallies(self) -> Tallies | None:
        """What the journal tells; `None` if a part of it is sealed with a key that is not here."""
        run, seq = self._begun()
        tallies = _Frugal(run)
        for entry in self._capsule.read(self._name, seq):
            body = self._opened_entry(entry)
            if body is not None:
                self._take(tallies, entry, body)
        if self._is_closed:
            return None
        check_run(run)
        check_claims(self._capsule.facts, run, self._fork())
        return tallies

    def _begun(self) -> tuple[RunState, int]:
        """The run that the journal begins with, and the entry that it has it from."""
        beginning = self._capsule.beginning
        if beginning is None:
            return RunState(), 0
        stored = beginning.body[CHAIN_BYTES:]
        body = self._bodies.open_snapshot(beginning) if self._can_open(stored, of_entry=False) else None
        run = RunState()
        if body is not None:
            self._weigh(body)
            run = decode_run(body, self._track, self._codec)
            check_run(run)
        self._check_first()
        return run, beginning.seq

    def _check_first(self) -> None:
        """Check the entry that a snapshot stands for: readers may look at that, too."""
        first = next(iter(self._capsule.read(self._name)))
        body = self._opened_entry(first)
        if body is None:
            return
        self._weigh(body)
        for record in self._journal.skimmed(self._capsule.info, first, self._codec):
            check_record(_eased(record))
        if first.seq == 1 and self._fork() is None:
            raise CapsuleInvalid("it has a snapshot of its first entry, which only forks have")

    def _take(self, tallies: Tallies, entry: Entry, body: bytes) -> None:
        self._weigh(body)
        for record in self._journal.records(self._capsule.info, entry, self._track, self._codec):
            check_record(record)
            for part in _parts(record):
                tallies.take(part, entry.at)
        self._check_size(self._track.live)
        if entry.mark is not None:
            tallies.run.saved_seq = entry.seq

    def _fork(self) -> Forked | None:
        """How the run refers, in its first entry, to the one that it was forked from."""
        first = next(iter(self._capsule.read(self._name)))
        any_parent = dataclasses.replace(self._capsule.info, parent=self._capsule.facts.key)
        return self._journal.fork_of(any_parent, first, self._codec)

    def _opened_entry(self, entry: Entry) -> bytes | None:
        """The body of an entry, if it can be read; `None` if the key to it is missing."""
        return self._bodies.open_entry(entry) if self._can_open(entry.body, of_entry=True) else None

    def _can_open(self, body: bytes, *, of_entry: bool) -> bool:
        """Whether a body, of an entry or a snapshot, can be read: no key to it is missing."""
        if not is_sealed(body):
            if self._is_closed:
                raise CapsuleInvalid(
                    "what follows an encrypted part of its journal is not encrypted, and cannot be checked without "
                    "the key; set HOLDFAST_KEY to the key of the store that it is from"
                )
            return True
        if self._bodies.lacks_key(body, of_entry=of_entry):
            self._is_closed = True
            return False
        return True

    def _weigh(self, body: bytes) -> None:
        """Refuse a body before it is read, if it asks for too much memory, or all of them for too much work."""
        asked = _asked_for(body)
        self._check_size(self._track.live + asked)
        self._unpacked += asked
        if self._unpacked > self._most_work:
            raise TooLarge(
                f"the values in it unpack to more than {size_text(self._most_work)} in all; if you trust its sender, "
                "allow more with --max-state (max_state=…)"
            )

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            raise TooLarge(
                f"the run in it has a state of more than {size_text(self._limit)}; if you trust its sender, allow more "
                "with --max-state (max_state=…)"
            )


def _eased(part: Any) -> Any:
    """A record that was skimmed, with changes that need not be of several parts: large ones are still packed."""
    if isinstance(part, Op):
        return Op("set", part.key, part.raw, limit=part.limit)
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return type(part)(*map(_eased, part))
    return type(part)(map(_eased, part)) if isinstance(part, (list, tuple)) else part


def _asked_for(body: bytes) -> int:
    return unpacked_bytes(body) if body.startswith(HEAD) else 0  # Another version is refused by who reads it.


def _parts(record: Record) -> tuple[Record, ...]:
    return record.parts() if isinstance(record, MovedOn) else (record,)
