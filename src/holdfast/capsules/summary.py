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

from holdfast.capsules.capsule import Capsule, FileOrigin
from holdfast.capsules.format import ENCRYPTED, HEAD, Facts, canonical, read_head, stopped, unpacked_bytes
from holdfast.capsules.signing import Trust, demand, demanded, fingerprint
from holdfast.engine.checkpoint_files import AGAIN
from holdfast.engine.commands.inbox import open_message
from holdfast.engine.confirmation import config_shown, message_shown
from holdfast.errors import CapsuleInvalid, CapsuleLocked, CodecError, problem_of
from holdfast.graph.graph import is_outline
from holdfast.journal.encoding import HEAD as WIRE_HEAD
from holdfast.journal.encoding import Track, decode_run
from holdfast.journal.fold import parts_of
from holdfast.journal.journal import Journal
from holdfast.journal.records import Forked, Record, RunEnded
from holdfast.journal.run_state import RunState, Step
from holdfast.journal.sealing import CHAIN_BYTES, Seal, is_sealed
from holdfast.stores.base import Entry, Snapshot
from holdfast.values import RunStatus
from holdfast.views.charges import total
from holdfast.views.plain import View, ViewCodec, plain, size_text, when
from holdfast.views.runs import Tallies, Tally, step_views

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
    """Return the summary of a run, from its journal alone: the same wherever it is made."""
    saved, codec, spending = workflow_file_of(run), CarefulCodec(), run.spending
    nodes = {plain(node): spent._asdict() for node, spent in spending.items()}
    file = None if saved is None else {key: plain(saved.get(key)) for key in ("path", "digest")}
    return {
        "workflow": plain(run.workflow),
        "definition": plain(run.outline),
        "workflow_file": file,
        "ledger": {**total(*spending.values())._asdict(), "nodes": nodes},
        "environment": plain(decoded(run.facts, codec)),
        "steps_done": run.steps_done,
        "seconds": round(float(run.seconds), 6),
    }


def workflow_file_of(run: RunState) -> Mapping[str, Any] | None:
    """Return the workflow file that the run was started with, its source included; `None` for a Python graph."""
    config = decoded(run.config)
    found = config.get("workflow_file") if isinstance(config, Mapping) else None
    return found if isinstance(found, Mapping) else None


def decoded(raw: bytes, codec: CarefulCodec | None = None) -> Any:
    """Return the decoded value; `None` if it is empty or cannot be decoded."""
    try:
        return (codec or CarefulCodec()).decode(raw) if raw else None
    except CodecError:
        return None


# Opening the capsule of a sender one may not know: which file, under which passphrase, signed by whom.


LINES = b'{"holdfast":'
"""How a run that was exported as lines of JSON begins."""


def open_capsule(path: str | Path, passphrase: str | None, trust: Trust) -> Capsule:
    """Return a capsule, verified, and signed as is demanded."""
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
    """Return whether a capsule is encrypted; refuse what is none."""
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
        text = f"its journal cannot be read: {error.problem}"
        raise CapsuleInvalid(text, remedies=error.remedies) from None
    except Exception as error:
        raise CapsuleInvalid(f"its journal cannot be read: {type(error).__name__}: {error}") from None


def fold_capsule(capsule: Capsule, seal: Seal | None = None, limit: int = LIMIT) -> Tallies | None:
    """Return the run as its journal tells it, with what happened to each step; `None` if the key to it is missing.

    Whatever in it does not follow, `CapsuleInvalid` says so; a run that needs more than `limit` bytes is `TooLarge`.
    Where the key is missing, all that is not sealed is read and checked nevertheless.
    """
    with reading():
        return _Fold(capsule, seal, limit).tallies()


class _Frugal(Tallies):
    """Tallies that drop the changes of a finished step if they are large."""

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
        """Return what the journal tells; `None` if a part of it is sealed with a key that is not here."""
        run, seq = self._begin()
        tallies = _Frugal(run)
        for entry in self._capsule.read(self._name, seq):
            if not self._weigh(entry):
                continue
            for record in self._journal.records(self._capsule.info, entry, self._track, self._codec):
                check_record(record)
                for part in parts_of(record):
                    tallies.take(part, entry.at)
            self._check_size(self._track.live)
            if entry.mark is not None:
                run.saved_seq = entry.seq
        if self._is_closed:
            return None
        check_run(run)
        check_claims(self._capsule.facts, run, self._fork())
        return tallies

    def _begin(self) -> tuple[RunState, int]:
        """Return the run state of the capsule's first snapshot and the number of its entry; check both.

        Without one: empty, 0.
        """
        beginning, run = self._capsule.beginning, RunState()
        if beginning is None:
            return run, 0
        if self._weigh(beginning):
            run = decode_run(self._bodies.open_snapshot(beginning), self._track, self._codec)
            check_run(run)
        first = next(iter(self._capsule.read(self._name)))
        if self._weigh(first):
            for record in self._journal.skimmed(self._capsule.info, first, self._codec):
                check_record(record)
            if first.seq == 1 and self._fork() is None:
                raise CapsuleInvalid("it has a snapshot of its first entry, which only forks have")
        return run, beginning.seq

    def _fork(self) -> Forked | None:
        """Return how the run refers, in its first entry, to the one that it was forked from."""
        first = next(iter(self._capsule.read(self._name)))
        any_parent = dataclasses.replace(self._capsule.info, parent=self._capsule.facts.key)
        return self._journal.fork_of(any_parent, first, self._codec)

    def _weigh(self, stored: Entry | Snapshot) -> bool:
        """Return whether the key for this entry or snapshot is available.

        Raise before it is decoded if its values would need too much memory, or those of the whole journal too much
        work.
        """
        is_entry = isinstance(stored, Entry)
        body = stored.body if is_entry else stored.body[CHAIN_BYTES:]
        if not is_sealed(body) and self._is_closed:
            raise CapsuleInvalid(
                "what follows an encrypted part of its journal is not encrypted, and cannot be checked without "
                "the key; set HOLDFAST_KEY to the key of the store that it is from"
            )
        if is_sealed(body) and self._bodies.lacks_key(body, of_entry=is_entry):
            self._is_closed = True
            return False
        bodies = self._bodies
        opened = bodies.open_entry(stored) if isinstance(stored, Entry) else bodies.open_snapshot(stored)
        # Another version is refused by who reads it.
        asked = unpacked_bytes(opened) if opened.startswith(WIRE_HEAD) else 0
        self._check_size(self._track.live + asked)
        self._unpacked += asked
        if self._unpacked > self._most_work:
            raise TooLarge(
                f"the values in it unpack to more than {size_text(self._most_work)} in all; {_ALLOW_MORE}"
            )
        return True

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            raise TooLarge(f"the run in it has a state of more than {size_text(self._limit)}; {_ALLOW_MORE}")


_ALLOW_MORE = "if you trust its sender, allow more with --max-state (max_state=…)"


def check_record(record: Record) -> None:
    """Refuse a record whose fields cannot be what they say."""
    outline = getattr(record, "outline", None)
    if outline and not is_outline(outline):
        raise CapsuleInvalid("the definition in it is not the outline of a graph")
    if isinstance(record, RunEnded) and record.status not in set(RunStatus):
        raise CapsuleInvalid("a run in it ended in no known way")


def check_run(run: RunState) -> None:
    """Refuse a run whose parts are not what they should be."""
    if run.status not in set(RunStatus) or "" not in run.frames:
        raise CapsuleInvalid("the run in it is not of the shape of one")
    if run.outline and not is_outline(run.outline):
        raise CapsuleInvalid("the definition in it is not the outline of a graph")


def check_claims(facts: Facts, run: RunState, fork: Forked | None) -> None:
    """Refuse facts that are not those of the run; `fork` is how its first entry refers to another, if it does."""
    said: list[tuple[str, object, object]] = [("workflow", facts.workflow, run.workflow)]
    if facts.status != RunStatus.DAMAGED:  # A repair says so, and leaves the journal alone.
        said.append(("status", facts.status, stopped(run.status)))
        said.append(("being under way", facts.under_way, run.status == RunStatus.RUNNING))
    if facts.first == 1:
        said.append(("parent", facts.parent.hex(), "" if fork is None else fork.key.hex()))
    elif run.parent is None:
        said.append(("parent", facts.parent.hex(), ""))
    for what, claimed, found in said:
        if claimed != found:
            raise CapsuleInvalid(
                f"what it says of its run is not what its journal tells: {what} {claimed!r:.80}, not {found!r:.80}"
            )


# Looking into a capsule without importing it: no code runs, and what a stranger wrote is bounded.


@dataclass(frozen=True, slots=True)
class CapsuleStep(View):
    """A step of the run in a capsule: its status, visits, attempts and duration."""

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
        "steps workflow_file=summary.workflow_file ledger=summary.ledger environment=summary.environment config inbox "
        "notes"
    )


def inspect_capsule(
    path: str | Path,
    *,
    passphrase: str | None = None,
    trust: Trust = False,
    max_state: int = LIMIT,
    seal: Seal | None = None,
) -> CapsuleInfo:
    """Return what is in a capsule, verified. Nothing of it is run, imported, or used as a path.

    An encrypted capsule tells its size unless `passphrase` opens it. With `trust`, files or folders of public keys, by
    default those of HOLDFAST_TRUSTED, one of them has to have signed it. Reading the run takes at most about
    `max_state` bytes; a larger one tells only its facts. `seal` is the key that the journal is encrypted with, if it
    is, by default that of HOLDFAST_KEY.
    """
    with naming(path):
        if passphrase is None and is_locked(path):
            if demanded(trust):
                raise CapsuleLocked("it is encrypted; give its passphrase, for its signature is demanded")
            return CapsuleInfo(Path(path).stat().st_size, encrypted=True, is_open=False)
        own = seal if seal is not None else Seal.from_environment(os.environ)
        with open_capsule(path, passphrase, trust) as capsule:
            try:
                tallies = fold_capsule(capsule, own, max_state)
                notes = () if tallies is not None else (SEALED,)
            except TooLarge as error:
                tallies, notes = None, (problem_of(error),)
            info = _facts_of(capsule)
            if tallies is None:
                return dataclasses.replace(info, notes=notes)
            with reading():
                return _with_run(info, capsule, tallies, own)


SEALED = "its journal is encrypted with the key of the store that it is from; set HOLDFAST_KEY to that key to read it"
_ANOTHER = (
    "the summary in it is not the one of its journal: another version wrote it, or its sender is not honest"
)


def _facts_of(capsule: Capsule) -> CapsuleInfo:
    """Return what is known of a capsule without its journal."""
    facts = capsule.facts
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
        entries=facts.last - facts.first + 1,
        pruned=facts.first - 1,
        checkpoints=capsule.checkpoint_count,
        messages=capsule.message_count,
        journal_size=capsule.body_bytes,
        sealed=bool(capsule.sealed),
    )


def _with_run(info: CapsuleInfo, capsule: Capsule, tallies: Tallies, seal: Seal | None) -> CapsuleInfo:
    """Return what is known of a capsule whose journal was read."""
    run, journal, codec = tallies.run, Journal(capsule, seal), CarefulCodec()
    saved, summary = workflow_file_of(run), summary_of(run)
    steps = step_views(tallies, run.outline, executed=False, is_file=saved is not None)
    waiting = [message for message in capsule.inbox(info.run_id) if message.number > run.inbox_seen]
    is_other = capsule.summary is not None and capsule.summary != canonical(summary)
    return dataclasses.replace(
        info,
        parent=str(run.parent[0]) if run.parent else "",
        is_read=True,
        steps=tuple(
            CapsuleStep(each.name, each.status, each.visits, each.attempts, float(each.seconds))
            for each in steps
        ),
        summary=summary,
        workflow_file=saved,
        config=config_shown(run.config, CarefulCodec(), AGAIN),
        inbox=tuple(
            message_shown(open_message(journal, capsule.info, each, sealed=False), codec) for each in waiting
        ),
        notes=(_ANOTHER,) if is_other else (),
    )
