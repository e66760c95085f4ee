"""Writing a run into a capsule: verified on the way, in one form, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from holdfast.capsules.capsule import (
    LONGEST_SUMMARY,
    Facts,
    canonical,
    write_entry,
    write_facts,
    write_message,
    write_snapshot,
)
from holdfast.capsules.format import Kind, Sink, Writer
from holdfast.capsules.signing import FileTaken, LockedSink, Signer
from holdfast.capsules.summary import summary_of
from holdfast.engine.owner import describe, has_owner
from holdfast.errors import CodecError, CorruptJournal, HoldfastError, Remedy, RunNotFound, StoreError
from holdfast.journal.copying import COPIED, last_entry
from holdfast.journal.journal import Journal, genesis, verified
from holdfast.journal.sealing import CHAIN_BYTES, Seal, is_sealed
from holdfast.stores.base import Entry, RunInfo, Snapshot, Store
from holdfast.stores.files.disk import sync, sync_folder
from holdfast.values import RunStatus
from holdfast.views.plain import CODEC, View

_TRIES = 3


@dataclass(frozen=True, slots=True)
class ExportedRun(View):
    """A run that was written into a capsule. `notes` are what its sender should know."""

    run: str
    workflow: str
    status: str
    entries: int
    size: int
    digest: str
    signed_by: str = ""
    encrypted: bool = False
    notes: tuple[str, ...] = ()

    JSON = "run_id=run workflow status entries bytes=size digest signed_by~ encrypted notes"


def export_run(
    store: Store,
    run: str,
    path: str | Path,
    *,
    sign: str | Path | None = None,
    encrypt: str | None = None,
    overwrite: bool = False,
    seal: Seal | None = None,
) -> ExportedRun:
    """Write a run into a capsule, a file that `import_run` reads into any store.

    `sign` is the file of a private key (`make_key_pair`), `encrypt` a passphrase. A run that has an owner is
    written as far as it is stored now. `seal` is the store's key, if it has one, by default that of HOLDFAST_KEY; only
    forks need it, since bodies stay sealed.
    """
    target = Path(path)
    if target.exists() and not overwrite:
        raise FileTaken(f"{target} is there already; --force (overwrite=True) writes over it")
    with fresh_file(target) as file:
        return write_capsule(store, run, file, sign=sign, encrypt=encrypt, seal=seal)


def write_capsule(
    store: Store,
    run: str,
    sink: Sink,
    *,
    sign: str | Path | None = None,
    encrypt: str | None = None,
    seal: Seal | None = None,
) -> ExportedRun:
    """As `export_run`, to anything that takes bytes."""
    journal = Journal(store, seal if seal is not None else Seal.from_environment(os.environ))
    signer = None if sign is None else Signer(sign)
    if encrypt is not None and not encrypt:
        raise HoldfastError("the passphrase of a capsule may not be empty")
    view = _settled(journal, run)
    locked = None if encrypt is None else LockedSink(sink, encrypt)
    writer = Writer(sink if locked is None else locked)
    _write(view, writer)
    digest = writer.close()
    if signer is not None:
        writer.add(Kind.SIGNATURE, signer.sign(digest))
    if locked is not None:
        locked.close()
    return ExportedRun(
        run=view.facts.run,
        workflow=view.facts.workflow,
        status=view.facts.status,
        entries=view.facts.last - view.facts.first + 1,
        size=writer.size if locked is None else locked.size,
        digest=digest.hex(),
        signed_by="" if signer is None else signer.fingerprint,
        encrypted=locked is not None,
        notes=tuple(view.notes()),
    )


@dataclass(frozen=True, slots=True)
class Exportable:
    """A stored run up to one of its entries: what a capsule of it holds."""

    journal: Journal
    info: RunInfo
    facts: Facts
    beginning: Snapshot | None
    is_sealed: bool

    def entries(self) -> Iterator[Entry]:
        """Its entries, each verified."""
        seq = self.facts.first
        for entry in _entries(self.journal.store, self.info, self.facts.last):
            if entry.seq != seq:
                break
            yield entry
            seq += 1
        if seq != self.facts.last + 1:
            raise StoreError(f"run {self.info.run!r} was pruned while it was exported; export it again")

    def notes(self) -> Iterator[str]:
        """What its sender should know."""
        store = self.journal.store
        if has_owner(store, self.info):
            who = describe(self.info.owner)
            yield (
                f"{who} goes on with it; the capsule ends at entry {self.facts.last}, and if that is resumed too, "
                "steps run twice"
            )
        if self.is_sealed:
            yield "its journal stays encrypted with the store's key; an import needs that HOLDFAST_KEY"


def _settled(journal: Journal, run: str) -> Exportable:
    """Return a run whose facts and journal fit each other."""
    store, trouble = journal.store, None
    for _ in range(_TRIES):
        found = store.runs(run=run)
        if not found:
            raise RunNotFound(f"no run {run!r} in {store.url}", remedies=Remedy("list_runs"))
        info = found[0]
        try:
            last, is_copy = _last(journal, info)
            first = next(iter(store.read(run)), last)
            sealed = any(is_sealed(entry.body) for entry in _entries(store, info, last.seq))
        except StoreError as error:
            trouble = error  # It may only have been pruned, or deleted, meanwhile.
            continue
        if store.runs(run=run) != found:
            continue
        under_way = is_copy or info.status == RunStatus.RUNNING
        facts = Facts.of(info, first.seq, last.seq, under_way=under_way, namespace=journal.namespace)
        return Exportable(journal, info, facts, _beginning(journal, info, first), sealed)
    raise trouble or StoreError(f"run {run!r} is being changed; export it again")


def _last(journal: Journal, info: RunInfo) -> tuple[Entry, bool]:
    """The last entry of a run's history, and whether one follows that only says: a copy of a run under way."""
    store = journal.store
    last = last_entry(store, info.run)
    before = None
    if last is not None and journal.bodies(info).says(last, COPIED):
        before = next(iter(store.read(info.run, last.seq - 2, last.seq - 1)), None)
    if last is None:
        raise CorruptJournal(f"run {info.run!r} has no entries", run=info.run, seq=1)
    return before or last, before is not None


def _entries(store: Store, info: RunInfo, upto: int) -> Iterator[Entry]:
    first = next(iter(store.read(info.run)), None)
    if first is None or first.seq == 1:
        yield from verified(store, info.run, 0, genesis(info.run, info.key), False, upto)
    else:
        yield first
        yield from verified(store, info.run, first.seq, first.chain, is_sealed(first.body), upto)


def _beginning(journal: Journal, info: RunInfo, first: Entry) -> Snapshot | None:
    """The snapshot without which the journal cannot be read."""
    try:
        return journal.materialised(info, CODEC)
    except CodecError:
        if first.seq == 1 and info.parent:
            raise  # A fork is read through its parent, and that takes the key.
    if first.seq == 1:
        return None
    snapshot = journal.store.snapshot(info.run, first.seq)
    if snapshot is None or snapshot.seq != first.seq:
        raise CorruptJournal(
            f"run {info.run!r}: the snapshot at {first.seq}, before which it was pruned, is missing",
            run=info.run,
            seq=first.seq,
        )
    return snapshot


def _write(view: Exportable, writer: Writer) -> None:
    writer.add(Kind.FACTS, write_facts(view.facts))
    if not view.is_sealed and (view.beginning is None or not is_sealed(view.beginning.body[CHAIN_BYTES:])):
        run = view.journal.load(view.info, CODEC, view.facts.last).run
        summary = canonical(summary_of(run))
        if len(summary) <= LONGEST_SUMMARY:
            writer.add(Kind.SUMMARY, summary)
    if view.beginning is not None:
        writer.add(Kind.SNAPSHOT, write_snapshot(view.beginning))
    for entry in view.entries():
        writer.add(Kind.ENTRY, write_entry(entry))
    for message in view.journal.store.inbox(view.facts.run):
        writer.add(Kind.MESSAGE, write_message(message))


@contextlib.contextmanager
def _written_into(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("wb") as file:
            yield file
    except OSError as error:
        raise HoldfastError(f"{path} cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def fresh_file(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path`, on the disk, when the block ends well.

    Where `path` is a link, of what it leads to; a pipe or a device is no file to be replaced, and is written into.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        with _written_into(path) as file:
            yield file
        return
    beside = path.parent / f".{path.name[:100]}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        descriptor = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                sync(file.fileno())
            beside.replace(path)
            sync_folder(path.parent)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise HoldfastError(f"{path} cannot be written: {error.strerror or error}") from error
