"""Reading the journal of a capsule as a stranger's: every record folded, nothing trusted, memory bounded."""

from __future__ import annotations

from typing import Any

from holdfast.capsules.bounds import unpacked_bytes
from holdfast.capsules.capsule import Capsule
from holdfast.capsules.shapes import check_record, check_run
from holdfast.capsules.summary import CAREFUL
from holdfast.data.seal import Seal
from holdfast.errors import CapsuleInvalid, CodecError
from holdfast.journal.journal import Journal
from holdfast.journal.records import MovedOn, Record
from holdfast.journal.run_state import RunState, Step
from holdfast.journal.wire import HEAD, Track
from holdfast.journal.wire_runs import decode_run
from holdfast.views.plain import size_text
from holdfast.views.tally import Tallies, Tally

LIMIT = 256_000_000
"""How many bytes the state of a run may have while it is read, unless more is allowed."""


_SMALL = 64 * 1024


class TooLarge(CapsuleInvalid):
    """A run would need more memory than is allowed."""


def fold_capsule(capsule: Capsule, seal: Seal | None = None, limit: int = LIMIT) -> Tallies | None:
    """The run as its journal tells it, with what happened to each step; `None` if the key that sealed it is missing.

    Whatever in it does not follow, `CapsuleInvalid` says so; a run that needs more than `limit` bytes is `TooLarge`.
    """
    if capsule.sealed and seal is None:
        return None
    try:
        return _folded(capsule, Journal(capsule, seal), limit)
    except _Sealed:
        return None
    except CapsuleInvalid:
        raise
    except CodecError as error:
        raise CapsuleInvalid(f"its journal cannot be read: {error}") from None
    except Exception as error:
        raise CapsuleInvalid(f"its journal cannot be read: {type(error).__name__}: {error}") from None


class _Sealed(Exception):
    """The key that opens a body is not here."""


class _Frugal(Tallies):
    """Tallies that keep no large value which the run itself no longer has."""

    def _count(self, tally: Tally, step: Step, record: Any, at: float) -> None:
        super()._count(tally, step, record, at)
        if sum(len(op.raw) for op in tally.ops) > _SMALL:
            tally.ops = ()


def _folded(capsule: Capsule, journal: Journal, limit: int) -> Tallies:
    name, track, beginning = capsule.facts.run, Track(), capsule.beginning
    run, seq = RunState(), 0
    if beginning is not None:
        body = _opened(journal, name, -beginning.seq, beginning.body[16:])
        _check(_asked_for(body), limit)
        run, seq = decode_run(body, track, CAREFUL), beginning.seq
        check_run(run)
    tallies = _Frugal(run)
    for entry in capsule.read(name, seq):
        body = _opened(journal, name, entry.seq, entry.body)
        _check(track.live + _asked_for(body), limit)
        for record in journal.records(capsule.info, entry, track, CAREFUL):
            check_record(record)
            for part in _parts(record):
                tallies.take(part, entry.at)
        _check(track.live, limit)
        if entry.mark is not None:
            run.saved_seq = entry.seq
    check_run(run)
    return tallies


def _opened(journal: Journal, run: str, seq: int, body: bytes) -> bytes:
    try:
        return journal.open_body(run, seq, body)
    except CodecError:
        raise _Sealed from None


def _asked_for(body: bytes) -> int:
    return unpacked_bytes(body) if body.startswith(HEAD) else 0  # Another version is refused by who reads it.


def _parts(record: Record) -> tuple[Record, ...]:
    return record.parts() if isinstance(record, MovedOn) else (record,)


def _check(size: int, limit: int) -> None:
    if size > limit:
        raise TooLarge(
            f"the run in it has a state of more than {size_text(limit)}; if you trust its sender, allow more "
            "with --max-state (max_state=…)"
        )
