"""What a capsule says of its run to those who cannot read journals: definition, ledger, environment."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.capsules.capsule import Capsule, FileOrigin, canonical, check_claims
from holdfast.capsules.format import ENCRYPTED, HEAD, check_record, check_run, read_head, unpacked_bytes
from holdfast.capsules.signing import Trust, demand, demanded, fingerprint
from holdfast.engine.checkpoint_files import AGAIN
from holdfast.engine.commands.inbox import open_message
from holdfast.engine.confirmation import config_shown, message_shown
from holdfast.errors import CapsuleInvalid, CapsuleLocked, CodecError, problem_of
from holdfast.journal.encoding import HEAD as WIRE_HEAD
from holdfast.journal.encoding import Track, decode_run
from holdfast.journal.journal import Journal
from holdfast.journal.records import Forked, Record, StepAdvanced
from holdfast.journal.run_state import RunState, Step
from holdfast.journal.sealing import CHAIN_BYTES, Seal, is_sealed
from holdfast.stores.base import Entry
from holdfast.views.charges import total
from holdfast.views.plain import View, ViewCodec, plain, size_text, when
from holdfast.views.run_view import StepView
from holdfast.views.tally import Tallies, Tally, step_views

MOST_PARTS = 1_000_000
"""A value with more parts is not read."""


class CarefulCodec(ViewCodec):
    """Reads no value that has so many parts that a stranger may have meant harm, and no more than a view may."""

    def decode(self, raw: bytes, *, lenient: bool = True) -> Any:
        try:
            unpacked_bytes(raw, MOST_PARTS)
        except CapsuleInvalid as error:
            raise CodecError(f"cannot read the stored value: {error}") from None
        return super().decode(raw, lenient=True)


def summary_of(run: RunState) -> dict[str, Any]:
    """The summary of a run, from its journal alone: the same wherever it is made."""
    saved, codec = workflow_file_of(run), CarefulCodec()
    return {
        "workflow": plain(run.workflow),
        "definition": plain(run.outline),
        "workflow_file": None
        if saved is None
        else {key: plain(saved.get(key)) for key in ("path", "digest")},
        "ledger": ledger_of(run),
        "environment": plain(decoded(run.facts, codec)),
        "steps_done": run.steps_done,
        "seconds": round(float(run.seconds), 6),
    }


def ledger_of(run: RunState) -> dict[str, Any]:
    """Return what the run used up: in all, and by node."""
    return {
        **total(*run.spending.values())._asdict(),
        "nodes": {plain(node): spent._asdict() for node, spent in run.spending.items()},
    }


def workflow_file_of(run: RunState) -> Mapping[str, Any] | None:
    """The workflow file that the run was started with, its source included; `None` for a Python graph."""
    config = decoded(run.config)
    found = config.get("workflow_file") if isinstance(config, Mapping) else None
    return found if isinstance(found, Mapping) else None


def decoded(raw: bytes, codec: CarefulCodec | None = None) -> Any:
    """A stored value; nothing if it is none, or not to be read."""
    try:
        return (codec or CarefulCodec()).decode(raw) if raw else None
    except CodecError:
        return None


# Opening the capsule of a sender one may not know: which file, under which passphrase, signed by whom.


LINES = b'{"holdfast":'
"""How a run that was exported as lines of JSON begins."""


def open_capsule(path: str | Path, passphrase: str | None, trust: Trust) -> Capsule:
    """A capsule, verified, and signed as is demanded."""
    is_locked(path)
    capsule = Capsule(path, passphrase)
    try:
        demand(capsule.signed_by, trust)
    except BaseException:
        capsule.close()
        raise
    return capsule


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Name the capsule in what is raised about it."""
    try:
        yield
    except CapsuleInvalid as error:
        raise type(error)(f"{path}: {error.problem}", remedies=error.remedies) from None


def is_locked(path: str | Path) -> bool:
    """Whether a capsule is encrypted; what is none is refused."""
    with contextlib.closing(FileOrigin(Path(path))) as origin:
        start = origin.read_at(0, max(len(LINES), HEAD.size))
    if start.startswith(LINES):
        raise CapsuleInvalid(
            "it holds lines of JSON, which are for reading; export the run again without --format jsonl to carry it"
        )
    return read_head(start[: HEAD.size]) == ENCRYPTED


# Reading the journal of a capsule as a stranger's: every record folded, nothing trusted, memory bounded.


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
        raise CapsuleInvalid(
            f"its journal cannot be read: {error.problem}", remedies=error.remedies
        ) from None
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
        self._journal, self._track = Journal(capsule, seal), Track(strict=True)
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
            check_record(record)
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


def _asked_for(body: bytes) -> int:
    return (
        unpacked_bytes(body) if body.startswith(WIRE_HEAD) else 0
    )  # Another version is refused by who reads it.


def _parts(record: Record) -> tuple[Record, ...]:
    return record.parts() if isinstance(record, StepAdvanced) else (record,)


# Looking into a capsule without importing it: no code runs, and what a stranger wrote is bounded.


@dataclass(frozen=True, slots=True)
class CapsuleStep(View):
    """A step of the run in a capsule: how it stands, how often it was visited and tried, how long it took."""

    name: str
    status: str
    visits: int
    attempts: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CapsuleInfo(View):
    """What is in a capsule. Of one that is encrypted, and not opened, nothing is known but its size.

    All of it is verified to be what was written; that is no reason to believe it. `signed_by` is the fingerprint of
    the key that it is signed with. What comes from the journal is missing where `is_read` is false: it is sealed with
    the key of a store, or too large.
    """

    size: int
    encrypted: bool = False
    is_open: bool = True
    digest: str = ""
    signed_by: str = ""
    run_id: str = ""
    workflow: str = ""
    status: str = ""
    under_way: bool = False
    created_at: dt.datetime | None = None
    updated_at: dt.datetime | None = None
    tags: tuple[str, ...] = ()
    parent: str = ""
    """The run it was forked from."""
    entries: int = 0
    pruned: int = 0
    """How many entries its journal lacks at its beginning."""
    checkpoints: int = 0
    messages: int = 0
    journal_size: int = 0
    sealed: bool = False
    is_read: bool = False
    steps: tuple[CapsuleStep, ...] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Its definition, ledger and environment, from its journal."""
    workflow_file: Mapping[str, Any] | None = None
    """The workflow file in it: path, source, included files, sub-workflows; `None` for a Python graph."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """All that the run was started with: `workflow_file`, its options, and anything else."""
    inbox: tuple[Mapping[str, Any], ...] = ()
    """The commands that wait in its inbox."""
    notes: tuple[str, ...] = ()

    JSON = (
        "bytes=size encrypted open=is_open digest~ signed_by~ run_id~ workflow~ status~ under_way created_at "
        "updated_at tags parent~ entries pruned checkpoints messages journal_bytes=journal_size sealed read=is_read "
        "steps workflow_file=_file ledger=_ledger environment=_environment config inbox notes"
    )

    @property
    def _file(self) -> Any:
        return self.summary.get("workflow_file")

    @property
    def _ledger(self) -> Any:
        return self.summary.get("ledger")

    @property
    def _environment(self) -> Any:
        return self.summary.get("environment")


def inspect_capsule(
    path: str | Path,
    *,
    passphrase: str | None = None,
    trust: Trust = False,
    max_state: int = LIMIT,
    seal: Seal | None = None,
) -> CapsuleInfo:
    """What is in a capsule, verified. Nothing of it is run, imported, or used as a path.

    An encrypted capsule tells its size unless `passphrase` opens it. With `trust`, files or folders of public keys, by
    default those of HOLDFAST_TRUSTED, one of them has to have signed it. Reading the run takes at most about
    `max_state` bytes; a larger one tells only its facts. `seal` is the key that the journal is encrypted with, if it
    is, by default that of HOLDFAST_KEY.
    """
    with naming(path):
        if passphrase is None and is_locked(Path(path)):
            if demanded(trust):
                raise CapsuleLocked("it is encrypted; give its passphrase, for its signature is demanded")
            return CapsuleInfo(_size(Path(path)), encrypted=True, is_open=False)
        own = seal if seal is not None else Seal.from_environment(os.environ)
        with open_capsule(path, passphrase, trust) as capsule:
            try:
                tallies = fold_capsule(capsule, own, max_state)
                notes = () if tallies is not None else (_SEALED,)
            except TooLarge as error:
                tallies, notes = None, (problem_of(error),)
            return _info(capsule, tallies, notes, own)


_SEALED = "its journal is encrypted with the key of the store that it is from; set HOLDFAST_KEY to that key to read it"
_ANOTHER = (
    "the summary in it is not the one of its journal: another version wrote it, or its sender is not honest"
)


def _size(path: Path) -> int:
    return path.stat().st_size


def _info(
    capsule: Capsule, tallies: Tallies | None, notes: tuple[str, ...], seal: Seal | None
) -> CapsuleInfo:
    facts, run = capsule.facts, None if tallies is None else tallies.run
    with reading():
        saved = None if run is None else workflow_file_of(run)
        summary = {} if run is None else summary_of(run)
        config = {} if run is None else config_shown(run.config, CarefulCodec(), AGAIN)
        inbox = () if run is None else _inbox(capsule, run, seal)
        steps = () if tallies is None else _steps(tallies, saved is not None)
    if run is not None and capsule.summary is not None and capsule.summary != canonical(summary):
        notes = (*notes, _ANOTHER)
    return CapsuleInfo(
        size=capsule.size,
        encrypted=capsule.is_encrypted,
        digest=capsule.digest.hex(),
        signed_by="" if capsule.signed_by is None else fingerprint(capsule.signed_by),
        run_id=facts.run,
        workflow=facts.workflow,
        status=facts.status,
        under_way=facts.under_way,
        created_at=when(facts.created_at),
        updated_at=when(facts.updated_at),
        tags=facts.tags,
        parent=str(run.parent[0]) if run is not None and run.parent else "",
        entries=capsule.entry_count,
        pruned=facts.first - 1,
        checkpoints=capsule.checkpoint_count,
        messages=capsule.message_count,
        journal_size=capsule.body_bytes,
        sealed=bool(capsule.sealed),
        is_read=run is not None,
        steps=tuple(map(_step, steps)),
        summary=summary,
        workflow_file=saved,
        config=config,
        inbox=inbox,
        notes=notes,
    )


def _inbox(capsule: Capsule, run: RunState, seal: Seal | None) -> tuple[Mapping[str, Any], ...]:
    name, journal, codec = capsule.facts.run, Journal(capsule, seal), CarefulCodec()
    waiting = (message for message in capsule.inbox(name) if message.number > run.inbox_seen)
    return tuple(
        message_shown(open_message(journal, capsule.info, message, sealed=False), codec)
        for message in waiting
    )


def _steps(tallies: Tallies, is_of_file: bool) -> tuple[StepView, ...]:
    return step_views(tallies, tallies.run.outline, executed=False, is_file=is_of_file)


def _step(view: StepView) -> CapsuleStep:
    return CapsuleStep(view.name, view.status, view.visits, view.attempts, float(view.seconds))
