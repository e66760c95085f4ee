"""Export of runs: as a capsule, verified on the way and whole or not at all, and as lines of JSON."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.capsules.format import LONGEST_SUMMARY, VERSION, Facts, Kind, Sink, Writer, canonical
from holdfast.capsules.signing import FileTaken, LockedSink, Signer
from holdfast.capsules.summary import summary_of
from holdfast.engine.owner import describe, has_owner
from holdfast.errors import CodecError, CorruptJournal, HoldfastError, Remedy, RunNotFound, StoreError
from holdfast.journal.checkpoint_ids import decode_checkpoint
from holdfast.journal.copying import COPIED, last_entry
from holdfast.journal.journal import Journal, genesis, verified
from holdfast.journal.sealing import CHAIN_BYTES, Seal, is_sealed
from holdfast.state.codec import Codec
from holdfast.state.ops import Op
from holdfast.state.standard_types import MOST_MEMORY
from holdfast.stores.base import Entry, RunInfo, Snapshot, Store, StoredCheckpoint, sync_folder
from holdfast.stores.files.disk import sync
from holdfast.values import RunStatus
from holdfast.views.plain import CODEC, View, ViewCodec, iso, plain, read_or_unread, when

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
    """Write a capsule as `export_run` does, to anything that takes bytes."""
    journal = Journal(store, seal if seal is not None else Seal.from_environment(os.environ))
    signer = None if sign is None else Signer(sign)
    if encrypt is not None and not encrypt:
        raise HoldfastError("the passphrase of a capsule may not be empty")
    info, facts, beginning, sealed = _settled(journal, run)
    locked = None if encrypt is None else LockedSink(sink, encrypt)
    writer = Writer(sink if locked is None else locked)
    writer.add_part(facts)
    if not sealed:
        summary = canonical(summary_of(journal.load(info, CODEC, facts.last).run))
        if len(summary) <= LONGEST_SUMMARY:
            writer.add(Kind.SUMMARY, summary)
    if beginning is not None:
        writer.add_part(beginning)
    seq = facts.first
    for entry in _entries(store, info, facts.last):
        if entry.seq != seq:
            break
        writer.add_part(entry)
        seq += 1
    if seq != facts.last + 1:
        raise StoreError(f"run {run!r} was pruned while it was exported; export it again")
    for message in store.inbox(run):
        writer.add_part(message)
    digest = writer.close()
    if signer is not None:
        writer.add(Kind.SIGNATURE, signer.sign(digest))
    if locked is not None:
        locked.close()
    return ExportedRun(
        run=facts.run,
        workflow=facts.workflow,
        status=facts.status,
        entries=facts.last - facts.first + 1,
        size=writer.size if locked is None else locked.size,
        digest=digest.hex(),
        signed_by="" if signer is None else signer.fingerprint,
        encrypted=locked is not None,
        notes=tuple(_notes(store, info, facts, sealed)),
    )


def _notes(store: Store, info: RunInfo, facts: Facts, sealed: bool) -> Iterator[str]:
    """Yield what the sender of a capsule should know."""
    if has_owner(store, info):
        yield (
            f"{describe(info.owner)} goes on with it; the capsule ends at entry {facts.last}, and if that is resumed "
            "too, steps run twice"
        )
    if sealed:
        yield "its journal stays encrypted with the store's key; an import needs that HOLDFAST_KEY"


def _settled(journal: Journal, run: str) -> tuple[RunInfo, Facts, Snapshot | None, bool]:
    """Return a run whose facts and journal fit each other, what it begins with, and whether any of it is encrypted."""
    store, trouble = journal.store, None
    for _ in range(_TRIES):
        found = store.runs(run=run)
        if not found:
            raise RunNotFound(f"no run {run!r}", remedies=Remedy("list_runs"), store=store.url)
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
        beginning = _beginning(journal, info, first)
        is_closed = beginning is not None and is_sealed(beginning.body[CHAIN_BYTES:])
        return info, facts, beginning, sealed or is_closed
    raise trouble or StoreError(f"run {run!r} is being changed; export it again")


def _last(journal: Journal, info: RunInfo) -> tuple[Entry, bool]:
    """Return the last entry of a run's history, and whether one follows that only says: a copy of a run under way."""
    store = journal.store
    last = last_entry(store, info.run)
    if last is None:
        raise CorruptJournal(f"run {info.run!r} has no entries", run=info.run, seq=1)
    before = None
    if journal.bodies(info).says(last, COPIED):
        before = next(iter(store.read(info.run, last.seq - 2, last.seq - 1)), None)
    return before or last, before is not None


def _entries(store: Store, info: RunInfo, upto: int) -> Iterator[Entry]:
    first = next(iter(store.read(info.run)), None)
    if first is None or first.seq == 1:
        yield from verified(store, info.run, 0, genesis(info.run, info.key), False, upto)
    else:
        yield first
        yield from verified(store, info.run, first.seq, first.chain, is_sealed(first.body), upto)


def _beginning(journal: Journal, info: RunInfo, first: Entry) -> Snapshot | None:
    """Return the snapshot without which the journal cannot be read."""
    try:
        return journal.materialised(info, CODEC)
    except CodecError:
        if first.seq == 1 and info.parent:
            raise  # A fork is read through its parent, and that takes the key.
    if first.seq == 1:
        return None
    snapshot = journal.store.snapshot(info.run, first.seq)
    if snapshot is None or snapshot.seq != first.seq:
        text = f"run {info.run!r}: the snapshot at {first.seq}, before which it was pruned, is missing"
        raise CorruptJournal(text, run=info.run, seq=first.seq)
    return snapshot


@contextlib.contextmanager
def fresh_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of `path`, on the disk, when the block ends well.

    Where `path` is a link, of what it leads to; a pipe or a device is no file to be replaced, and is written into.
    """
    path = Path(os.path.realpath(path))
    is_file = path.is_file() or not path.exists()
    beside = path.parent / f".{path.name[:100]}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        if not is_file:
            with path.open("wb") as file:
                yield file
            return
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


# A run as lines of JSON, one record each: for reading and searching, not for carrying. Each line reads its own values,
# which may need together what one value may need, so that each alone is always read.


def lines_of(journal: Journal, run: str) -> Iterator[str]:
    """Yield the facts of a run, and then every record of its journal, each as one line of JSON."""
    info = journal.info(run)
    begun, history = journal.history(info, ViewCodec(MOST_MEMORY))
    facts = {
        "holdfast": VERSION,
        "run_id": plain(info.run),
        "workflow": plain(info.workflow),
        "status": info.status,
        "created_at": iso(when(info.created_at)),
        "updated_at": iso(when(info.updated_at)),
        "tags": plain(info.tags),
    }
    yield _line(facts)
    for number, (entry, found) in enumerate(history):
        at = {"seq": entry.seq, "at": iso(when(entry.at))}
        if number == 0 and not found:  # The journal begins in the middle: the state of every frame.
            state = {
                path: {key: plain(read_or_unread(slot.get)) for key, slot in frame.cells.items()}
                for path, frame in begun.frames.items()
            }
            yield _line({**at, "type": "Beginning", "state": state})
        for record in found:
            codec = ViewCodec(MOST_MEMORY)
            # What a record was begun as follows from what it was begun from.
            fields = {
                name: _plain(value, codec)
                for name, value in record._asdict().items()
                if name not in ("run", "body", "chain")
            }
            yield _line({**at, "type": type(record).__name__, **fields})
        if entry.mark is not None:
            saved = decode_checkpoint(info.key, StoredCheckpoint.of(entry), info.run)
            what = {name: plain(getattr(saved, name)) for name in ("wave", "nodes", "next", "frame")}
            yield _line({**at, "type": "Checkpoint", "checkpoint_id": saved.id, **what, "bytes": saved.size})


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any, codec: Codec) -> Any:
    if isinstance(value, Op):
        change = {"op": value.kind, "key": plain(value.key), "bytes": len(value.raw)}
        return change if value.kind == "drop" else {**change, "value": _decoded(value.raw, codec)}
    if isinstance(value, bytes):
        return _decoded(value, codec) if value else None
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(item, codec) for name, item in value._asdict().items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, codec) for item in value]
    return plain(value)


def _decoded(raw: bytes, codec: Codec) -> Any:
    """Return a stored value as JSON has it; bytes that are none as they are."""
    try:
        return plain(codec.decode(raw))
    except CodecError as error:
        if is_sealed(raw):
            raise
        if raw.isascii():
            return raw.decode("ascii")
        return {"$type": "bytes", "base64": base64.b64encode(raw).decode(), "text": f"not read: {error}"}
