"""Reading a capsule into a store: nothing is written before all of it is known to be right."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import clock
from holdfast.capsules.capsule import (
    LONGEST_NAME,
    Capsule,
    Facts,
    write_entry,
    write_facts,
    write_message,
    write_snapshot,
)
from holdfast.capsules.format import Kind, Sink, Writer
from holdfast.capsules.signing import Trust, demanded, fingerprint
from holdfast.capsules.summary import (
    LIMIT,
    decoded,
    fold_capsule,
    naming,
    open_capsule,
    reading,
    workflow_file_of,
)
from holdfast.engine.checkpoint_files import AGAIN, check_config
from holdfast.engine.confirmation import digest_of
from holdfast.engine.owner import describe, has_owner
from holdfast.engine.transfer import CopyOutcome
from holdfast.errors import CapsuleInvalid, CodecError, RunConflict, RunExists, StoreError
from holdfast.journal.checkpoint_ids import moved_mark
from holdfast.journal.copying import (
    COPIED,
    Brought,
    Relation,
    bring,
    bring_messages,
    change_facts,
    close_run,
    compare,
    delete_run,
    free_forks,
    own_messages,
)
from holdfast.journal.journal import Journal, genesis, link
from holdfast.journal.provenance import Provenance, me
from holdfast.journal.run_state import RunState
from holdfast.journal.sealing import Bodies, Seal
from holdfast.stores.base import Conflict, Entry, Message, Snapshot, Store, namespace_of
from holdfast.views.plain import View

# A capsule's run under another id, or in another namespace: the same history, chained again.


def write_renamed(capsule: Capsule, run: str, namespace: str, sink: Sink, seal: Seal | None) -> None:
    """Write a capsule of the same run under another id, or for another namespace.

    The key of a run with another id is made of the old key and the new id, so that importing a capsule twice under one
    id finds its run. Bodies that are sealed are sealed again for their new place, which takes the key.
    """
    key = capsule.facts.key if run == capsule.facts.run else _key(capsule.facts.key, run)
    facts = dataclasses.replace(capsule.facts, run=run, key=key, namespace=namespace)
    move = _Move(capsule, facts, seal)
    chain, writer = genesis(run, facts.key), Writer(sink)
    writer.add(Kind.FACTS, write_facts(facts))
    first = next(iter(capsule.read(capsule.facts.run)))
    if capsule.beginning is not None:
        begun = move.entry(first, chain)
        writer.add(Kind.SNAPSHOT, write_snapshot(move.snapshot(capsule.beginning, begun.chain)))
        writer.add(Kind.ENTRY, write_entry(begun))
        chain = begun.chain
    for entry in capsule.read(capsule.facts.run, 0 if capsule.beginning is None else first.seq):
        own = move.entry(entry, chain)
        writer.add(Kind.ENTRY, write_entry(own))
        chain = own.chain
    for message in capsule.inbox(capsule.facts.run):
        writer.add(Kind.MESSAGE, write_message(move.message(message)))
    writer.close()


class _Move:
    """What is stored of one run, as it is for another."""

    def __init__(self, capsule: Capsule, facts: Facts, seal: Seal | None) -> None:
        if (capsule.sealed or capsule.sealed_messages) and seal is None:
            raise CodecError(
                "its journal is encrypted with the key of a store, for its own run id and namespace; set HOLDFAST_KEY "
                "to that key to import it elsewhere"
            )
        self._old = Bodies(seal, capsule.namespace, capsule.facts.run, capsule.facts.key)
        self._new = Bodies(seal, facts.namespace, facts.run, facts.key)
        self._key = facts.key

    def entry(self, entry: Entry, chain: bytes) -> Entry:
        """An entry, after one whose chain is given."""
        mark = None if entry.mark is None else moved_mark(entry.mark, self._key, entry.seq, entry.at)
        body = self._old.reseal_entry(entry, self._new, chain, mark)
        return Entry(entry.seq, entry.at, link(chain, entry.seq, entry.at, mark, body), body, mark)

    def snapshot(self, snapshot: Snapshot, chain: bytes) -> Snapshot:
        """A snapshot of the entry whose chain is given."""
        body = self._old.reseal_snapshot(snapshot, self._new, chain)
        return dataclasses.replace(snapshot, chain=chain, body=body)

    def message(self, message: Message) -> Message:
        """A message, which keeps its number."""
        body = self._old.reseal_message(message, self._new, message.number)
        return dataclasses.replace(message, body=body)


def _key(key: bytes, run: str) -> bytes:
    """Eight bytes, the first of them below 128, that only this run under this id has."""
    made = hashlib.blake2b(key + run.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return bytes([made[0] & 0x7F]) + made[1:]


@dataclass(frozen=True, slots=True)
class ImportedRun(View):
    """A run that came out of a capsule. `outcome` is copied, updated (the store had its beginning) or unchanged."""

    run: str
    workflow: str
    status: str
    outcome: CopyOutcome
    entries: int
    size: int
    signed_by: str = ""
    notes: tuple[str, ...] = ()
    workflow_file: Mapping[str, Any] | None = field(default=None, repr=False)
    """The workflow file that came with it: path, source, included files; what resuming the run would run."""
    is_confirmed: bool = False
    """Whether it may be resumed as it is; if not, somebody has to confirm it."""

    JSON = "run_id=run workflow status outcome entries bytes=size signed_by~ confirmed=is_confirmed notes"


def import_run(
    store: Store,
    path: str | Path,
    *,
    run_id: str | None = None,
    passphrase: str | None = None,
    trust: Trust = False,
    max_state: int = LIMIT,
    seal: Seal | None = None,
) -> ImportedRun:
    """Read a capsule into a store; the run can then be looked at, and resumed, as any other.

    All of the capsule is verified first: checksums, chain, signature, and that its journal can be read. With `trust`,
    files or folders of public keys, by default those of HOLDFAST_TRUSTED, one of them has to have signed it. `True`
    confirms this very capsule. One that is not trusted in either way is a run from outside: commands that wait in its
    inbox are left out, and it is resumed once somebody confirmed it (`App.resume`, `trust`). A run that the store has
    is brought up to date; one of the same id with another history is refused, unless `run_id` gives it another id.
    `max_state` bounds the memory that reading it may take, in bytes. `seal` is the key that the journal is
    encrypted with, if it is, by default that of HOLDFAST_KEY.
    """
    own = seal if seal is not None else Seal.from_environment(os.environ)
    with naming(path), open_capsule(path, passphrase, trust) as capsule:
        _check_name(capsule.facts.run if run_id is None else run_id)
        tallies = fold_capsule(capsule, own, max_state)
        run = None if tallies is None else tallies.run
        with reading():
            unread, saved = ((_UNREAD,), None) if run is None else ((), workflow_file_of(run))
            check_config(None if run is None else decoded(run.config), AGAIN)
        is_trusted = trust is True or bool(demanded(trust))
        notes = unread if is_trusted else (*unread, *_left_out(capsule, run, path))
        signed = "" if capsule.signed_by is None else fingerprint(capsule.signed_by)
        with _renamed(capsule, run_id, namespace_of(store), own) as source:
            provenance = _provenance(source, path, signed)
            if is_trusted:
                by = me() if trust is True else f"signature {signed}"
                provenance = provenance.confirmed(by, _digest(source, run, own))
            outcome, brought = _Import(source, store, own, provenance).bring()
    (info,) = store.runs(run=source.facts.run)
    entries, size = (0, 0) if brought is None else (brought.entries, brought.size)
    origin = Provenance.of(info)
    is_confirmed = origin is None or origin.confirmation is not None
    return ImportedRun(
        info.run,
        info.workflow,
        info.status,
        outcome,
        entries,
        size,
        signed,
        notes,
        saved,
        is_confirmed,
    )


def _left_out(capsule: Capsule, run: RunState | None, path: str | Path) -> tuple[str, ...]:
    """Leave the commands out that wait in the inbox of a stranger's run; say so."""
    if run is None and capsule.message_count:
        raise CapsuleInvalid(
            "its journal is encrypted, so that the commands which wait in its inbox cannot be distinguished from those "
            "that it has seen; set HOLDFAST_KEY to the key of the store that it is from, or trust it"
        )
    left = capsule.admit(0 if run is None else run.inbox_seen)
    if not left:
        return ()
    what = "a command that waits" if left == 1 else f"{left} commands that wait"
    return (
        f"{what} in its inbox left out; an inspection of {str(path)!r} shows them, and an import with trust takes them",
    )


def _provenance(source: Capsule, path: str | Path, signed: str) -> Provenance:
    return Provenance(f"capsule {Path(path).name}", clock.time(), signed, len(source.inbox(source.facts.run)))


def _digest(source: Capsule, run: RunState | None, seal: Seal | None) -> str:
    """The digest of what is confirmed; of a journal that cannot be read here, its signature stands for all of it."""
    if run is None:
        return ""
    return digest_of(Journal(source, seal), source.info, run, source.inbox(source.facts.run))


_UNREAD = "its journal is encrypted with the key of the store that it is from; set HOLDFAST_KEY to that key to read it"


def _check_name(run: str) -> None:
    """Refuse an id that no run here could be started with."""
    if not run.isprintable() or not run.strip() or len(run) > LONGEST_NAME:
        raise CapsuleInvalid(
            f"{run[:100]!a} is not taken as a run id (control characters, or too long); choose another with --as ID "
            "(run_id=…)"
        )


@contextlib.contextmanager
def _renamed(capsule: Capsule, run: str | None, namespace: str, seal: Seal | None) -> Iterator[Capsule]:
    """The capsule as it is for a store of that namespace; without `run` its run keeps its id."""
    is_elsewhere = capsule.namespace != namespace and bool(capsule.sealed or capsule.sealed_messages)
    run = run or capsule.facts.run
    if run == capsule.facts.run and not is_elsewhere:
        yield capsule
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        path = Path(folder) / "renamed"
        with path.open("wb") as file:
            write_renamed(capsule, run, namespace, file, seal)
        with Capsule(path) as renamed:
            yield renamed


class _Import:
    """Brings the run of one capsule into one store."""

    def __init__(self, source: Capsule, target: Store, seal: Seal | None, provenance: Provenance) -> None:
        self._source, self._target, self._seal = source, target, seal
        self._provenance = provenance
        self._info = source.info
        self._own: list[Message] = []
        """Messages of a copy that had to make room."""

    def bring(self) -> tuple[CopyOutcome, Brought | None]:
        """Bring what the store lacks; what became of it."""
        last = self._source.last
        relation, theirs = self._compare(last)
        if relation is Relation.OTHER:
            raise self._other()
        if theirs is not None and relation is not Relation.AHEAD and self._is_in_the_way(relation, theirs):
            self._refuse_owned()
            self._remove(theirs)
            brought = self._bring(None)
            return CopyOutcome.COPIED if relation is Relation.MARKED else CopyOutcome.UPDATED, brought
        if relation in (Relation.SAME, Relation.MARKED, Relation.AHEAD):
            self._bring_messages(relation)
            if theirs is not None and relation is not Relation.AHEAD:
                self._confirm(theirs)
            return CopyOutcome.UNCHANGED, None
        self._refuse_owned()
        brought = self._bring(theirs)
        outcome = CopyOutcome.COPIED if relation is Relation.ABSENT else CopyOutcome.UPDATED
        return outcome, brought

    def _is_in_the_way(self, relation: Relation, theirs: Entry) -> bool:
        """Whether the copy that is there has to go: it ends in the middle, or has messages where others belong."""
        has_less = relation is Relation.MARKED and theirs.seq - 1 != self._source.last.seq
        return has_less or own_messages(self._source, self._target, self._info.run)[1]

    def _bring(self, theirs: Entry | None) -> Brought:
        # Tags that the target gave it are in its journal, which would have another history then.
        end = COPIED if self._source.facts.under_way else None
        facts = dataclasses.replace(self._info, origin=self._provenance.text())
        try:
            brought = bring(self._source, self._target, self._info, theirs, facts, end, seal=self._seal)
        except Conflict:
            raise RunConflict(
                f"run {facts.run!r} was changed in {self._target.url} while it was imported; import it again"
            ) from None
        bring_messages(self._source, self._target, facts, self._own, self._seal)
        return brought

    def _confirm(self, theirs: Entry) -> None:
        """Let a run from outside that is here already be confirmed by a capsule that is trusted."""
        (known,) = self._target.runs(run=self._info.run)
        if known.origin and self._provenance.confirmation is not None:
            change_facts(self._target, dataclasses.replace(known, origin=self._provenance.text()), theirs)

    def _bring_messages(self, relation: Relation) -> None:
        if relation is not Relation.AHEAD:
            bring_messages(self._source, self._target, self._info, seal=self._seal)

    def _compare(self, last: Entry) -> tuple[Relation, Entry | None]:
        return compare(self._source, self._target, self._info, last, self._seal)

    def _remove(self, theirs: Entry) -> None:
        """Make room where only a copy is that holds less and that nobody has resumed."""
        (known,), journal = self._target.runs(run=self._info.run), Journal(self._target, self._seal)
        self._own, _ = own_messages(self._source, self._target, known.run)
        free_forks(journal, known)  # Before it is closed: that can be refused.
        close_run(self._target, known, theirs, self._seal)
        delete_run(journal, known.run, going=None)

    def _refuse_owned(self) -> None:
        for known in self._target.runs(run=self._info.run):
            if has_owner(self._target, known):
                raise RunConflict(
                    f"run {known.run!r} in {self._target.url} is being executed by {describe(known.owner)}; import it "
                    "when that has stopped"
                )

    def _other(self) -> RunExists | StoreError:
        url, run = self._target.url, self._info.run
        if self._target.runs(run=run):
            return RunExists(
                f"{url} has a run {run!r} with another history; import this one under another id with --as ID "
                "(run_id=…)"
            )
        (other,) = self._target.runs(key=self._info.key)
        return RunExists(
            f"{url} has this run under the id {other.run!r}; import it under an id of its own with --as ID (run_id=…)"
        )
