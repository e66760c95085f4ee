"""Import of capsules into a store: nothing is written until the whole capsule is verified."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import clock
from holdfast.capsules.capsule import Capsule
from holdfast.capsules.format import LONGEST_NAME, Sink, Writer
from holdfast.capsules.signing import Trust, demanded, fingerprint
from holdfast.capsules.summary import (
    LIMIT,
    SEALED,
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
from holdfast.errors import CapsuleInvalid, CodecError, HoldfastError, RunConflict, RunExists
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
from holdfast.stores.base import Conflict, Entry, Message, Store, namespace_of
from holdfast.views.plain import View

# A capsule's run under another id, or in another namespace: the same history, chained again.


@contextlib.contextmanager
def _renamed(capsule: Capsule, run: str | None, namespace: str, seal: Seal | None) -> Iterator[Capsule]:
    """Open the capsule as it is for a store of that namespace; without `run` its run keeps its id."""
    is_elsewhere = capsule.namespace != namespace and bool(capsule.sealed or capsule.sealed_messages)
    run = run or capsule.facts.run
    if run == capsule.facts.run and not is_elsewhere:
        yield capsule
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        path = Path(folder) / "renamed"
        with path.open("wb") as file:
            _write_renamed(capsule, run, namespace, file, seal)
        with Capsule(path) as renamed:
            yield renamed


def _write_renamed(capsule: Capsule, run: str, namespace: str, sink: Sink, seal: Seal | None) -> None:
    """Write a capsule of the same run under another id, or for another namespace.

    The key of a run with another id is made of the old key and the new id, so that importing a capsule twice under one
    id finds its run. Bodies that are sealed are sealed again for their new place, which takes the key.
    """
    if (capsule.sealed or capsule.sealed_messages) and seal is None:
        raise CodecError(
            "its journal is encrypted with the key of a store, for its own run id and namespace; set HOLDFAST_KEY "
            "to that key to import it elsewhere"
        )
    name, key = capsule.facts.run, capsule.facts.key
    if run != name:  # Eight bytes, the first of them below 128, that only this run under this id has.
        made = hashlib.blake2b(key + run.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        key = bytes([made[0] & 0x7F]) + made[1:]
    old, new = Bodies(seal, capsule.namespace, name, capsule.facts.key), Bodies(seal, namespace, run, key)
    chain, writer, beginning = genesis(run, key), Writer(sink), capsule.beginning
    writer.add_part(dataclasses.replace(capsule.facts, run=run, key=key, namespace=namespace))
    for entry in capsule.read(name):
        mark = None if entry.mark is None else moved_mark(entry.mark, key, entry.seq, entry.at)
        body = old.reseal_entry(entry, new, chain, mark)
        chain = link(chain, entry.seq, entry.at, mark, body)
        if beginning is not None and entry.seq == capsule.facts.first:
            own = old.reseal_snapshot(beginning, new, chain)
            writer.add_part(dataclasses.replace(beginning, chain=chain, body=own))
        writer.add_part(Entry(entry.seq, entry.at, chain, body, mark))
    for message in capsule.inbox(name):
        body = old.reseal_message(message, new, message.number)
        writer.add_part(dataclasses.replace(message, body=body))
    writer.close()


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


def import_data(store: Store, data: bytes, who: str, *, run_id: str | None, seal: Seal | None) -> ImportedRun:
    """Read a capsule that somebody sent into a store; the provenance of the run names them."""
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        path = Path(folder) / f"of {re.sub(r'[^A-Za-z0-9._-]', '_', who or 'a client')[:60]}"
        path.write_bytes(data)
        try:
            return import_run(store, path, run_id=run_id, seal=seal)
        except HoldfastError as error:  # The sender knows nothing of the file.
            error.args = (error.problem.replace(f"{path}: ", "").replace(str(path), "the capsule"),)
            raise


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
            unread, saved = ((SEALED,), None) if run is None else ((), workflow_file_of(run))
            check_config(None if run is None else decoded(run.config), AGAIN)
        is_trusted = trust is True or bool(demanded(trust))
        notes = unread if is_trusted else (*unread, *_left_out(capsule, run, path))
        signed = "" if capsule.signed_by is None else fingerprint(capsule.signed_by)
        with _renamed(capsule, run_id, namespace_of(store), own) as source:
            messages = source.inbox(source.facts.run)
            provenance = Provenance(f"capsule {Path(path).name}", clock.time(), signed, len(messages))
            if is_trusted:
                # Of a journal that cannot be read here, its signature stands for all of it.
                digest = "" if run is None else digest_of(Journal(source, own), source.info, run, messages)
                provenance = provenance.confirmed(me() if trust is True else f"signature {signed}", digest)
            outcome, brought = _Import(source, store, own, provenance).bring()
    (info,) = store.runs(run=source.facts.run)
    entries, size = (0, 0) if brought is None else (brought.entries, brought.size)
    origin = Provenance.of(info)
    is_confirmed = origin is None or origin.confirmation is not None
    name, workflow, status = info.run, info.workflow, info.status
    return ImportedRun(name, workflow, status, outcome, entries, size, signed, notes, saved, is_confirmed)


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


def _check_name(run: str) -> None:
    """Refuse an id that no run here could be started with."""
    if not run.isprintable() or not run.strip() or len(run) > LONGEST_NAME:
        raise CapsuleInvalid(
            f"{run[:100]!a} is not taken as a run id (control characters, or too long); choose another with --as ID "
            "(run_id=…)"
        )


class _Import:
    """Brings the run of one capsule into one store."""

    def __init__(self, source: Capsule, target: Store, seal: Seal | None, provenance: Provenance) -> None:
        self._source, self._target, self._seal = source, target, seal
        self._provenance, self._info = provenance, source.info

    def bring(self) -> tuple[CopyOutcome, Brought | None]:
        """Bring what the store lacks; return what became of it."""
        source, target, info, seal = self._source, self._target, self._info, self._seal
        relation, theirs = compare(source, target, info, source.last, seal)
        if relation is Relation.OTHER:
            raise self._other()
        if theirs is not None and relation is not Relation.AHEAD:
            # The copy that is there has to go if it ends in the middle, or has messages where others belong.
            has_less = relation is Relation.MARKED and theirs.seq - 1 != source.last.seq
            if has_less or own_messages(source, target, info.run)[1]:
                brought = self._bring(None, self._make_room(theirs))
                return CopyOutcome.COPIED if relation is Relation.MARKED else CopyOutcome.UPDATED, brought
        if relation not in (Relation.SAME, Relation.MARKED, Relation.AHEAD):
            self._refuse_owned()
            outcome = CopyOutcome.COPIED if relation is Relation.ABSENT else CopyOutcome.UPDATED
            return outcome, self._bring(theirs, [])
        if relation is not Relation.AHEAD:
            bring_messages(source, target, info, seal=seal)
            (known,) = target.runs(run=info.run)
            # A capsule that is trusted confirms a run from outside that is here already.
            if theirs is not None and known.origin and self._provenance.confirmation is not None:
                change_facts(target, dataclasses.replace(known, origin=self._provenance.text()), theirs)
        return CopyOutcome.UNCHANGED, None

    def _bring(self, theirs: Entry | None, own: list[Message]) -> Brought:
        # Tags that the target gave it are in its journal, which would have another history then.
        end = COPIED if self._source.facts.under_way else None
        facts = dataclasses.replace(self._info, origin=self._provenance.text())
        try:
            brought = bring(self._source, self._target, self._info, theirs, facts, end, seal=self._seal)
        except Conflict:
            raise RunConflict(
                f"run {facts.run!r} was changed while it was imported; import it again",
                store=self._target.url,
            ) from None
        bring_messages(self._source, self._target, facts, own, self._seal)
        return brought

    def _make_room(self, theirs: Entry) -> list[Message]:
        """Delete a copy that holds less and that nobody has resumed; return the messages that only it had."""
        self._refuse_owned()
        (known,), journal = self._target.runs(run=self._info.run), Journal(self._target, self._seal)
        own, _ = own_messages(self._source, self._target, known.run)
        free_forks(journal, known)  # Before it is closed: that can be refused.
        close_run(self._target, known, theirs, self._seal)
        delete_run(journal, known.run, going=None)
        return own

    def _refuse_owned(self) -> None:
        for known in self._target.runs(run=self._info.run):
            if has_owner(self._target, known):
                raise RunConflict(
                    f"run {known.run!r} is being executed by {describe(known.owner)}; import it when that has stopped",
                    store=self._target.url,
                )

    def _other(self) -> RunExists:
        url, run = self._target.url, self._info.run
        if self._target.runs(run=run):
            return RunExists(
                f"there is a run {run!r} with another history; import this one under another id with --as ID "
                "(run_id=…)",
                store=url,
            )
        (other,) = self._target.runs(key=self._info.key)
        return RunExists(
            f"this run is there under the id {other.run!r}; import it under an id of its own with --as ID (run_id=…)",
            store=url,
        )
