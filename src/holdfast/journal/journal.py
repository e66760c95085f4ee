"""The only road to a store: loading runs, appending to them, group commit, snapshots."""

from __future__ import annotations

import hashlib
import itertools
import logging
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.data.codec import Codec
from holdfast.data.seal import Seal
from holdfast.errors import CodecError, CorruptJournal, RunNotFound
from holdfast.journal.commit import Committer, committer_of
from holdfast.journal.fold import apply
from holdfast.journal.records import MovedOn, Record
from holdfast.journal.run_state import RunState
from holdfast.journal.wire import Track
from holdfast.journal.wire_records import decode_records
from holdfast.journal.wire_runs import decode_run, encode_run
from holdfast.stores.base import Entry, RunInfo, Snapshot, Store

logger = logging.getLogger("holdfast")

_SEALED = 0xFF
_PLACE = struct.Struct(">Qdi")


def genesis(run: str, key: bytes) -> bytes:
    """What the first entry's checksum is chained to."""
    return hashlib.blake2b(run.encode("utf-8", "surrogatepass") + key, digest_size=16).digest()


def link(previous: bytes, seq: int, at: float, mark: bytes | None, body: bytes) -> bytes:
    """The checksum of an entry, chained to its predecessor's."""
    return hashlib.blake2b(
        b"".join((previous, _PLACE.pack(seq, at, -1 if mark is None else len(mark)), mark or b"", body)),
        digest_size=16,
    ).digest()


def verified(store: Store, run: str, seq: int, chain: bytes, upto: int | None = None) -> Iterator[Entry]:
    """The entries of a run after `seq`, whose chain is given, each checked against its predecessor."""
    for entry in store.read(run, seq, upto):
        seq += 1
        if entry.seq != seq:
            raise CorruptJournal(f"run {run!r}: entry {seq} is missing", run=run, seq=seq)
        chain = link(chain, entry.seq, entry.at, entry.mark, entry.body)
        if chain != entry.chain:
            raise CorruptJournal(
                f"run {run!r}: entry {entry.seq} is damaged (its checksum does not match)",
                run=run,
                seq=entry.seq,
            )
        yield entry


def is_whole(snapshot: Snapshot) -> bool:
    """Whether a snapshot is what was written, by its own checksum."""
    digest, body = snapshot.body[:16], snapshot.body[16:]
    return hashlib.blake2b(snapshot.chain + body, digest_size=16).digest() == digest


@dataclass(slots=True)
class Loaded:
    """A run as read from a store, with what is needed to write on."""

    info: RunInfo
    run: RunState
    track: Track
    seq: int
    chain: bytes
    weight: int
    """Bytes of journal since the last snapshot."""
    snapshot_size: int = 0


class Journal:
    """The journals of one store."""

    def __init__(self, store: Store, seal: Seal | None = None) -> None:
        self.store, self.seal = store, seal
        self.committer: Committer = committer_of(store)

    def info(self, run: str) -> RunInfo:
        """The plain facts of a run; an unknown run is refused."""
        found = self.store.runs(run=run)
        if not found:
            raise RunNotFound(f"no run {run!r} in {self.store.url}; `runs` lists those that are there")
        return found[0]

    def load(self, info: RunInfo, codec: Codec, upto: int | None = None) -> Loaded:
        """Fold a run from its nearest snapshot on, up to and with entry `upto`; every checksum is verified."""
        snapshot = self.store.snapshot(info.run, upto)
        try:
            return self._load(info, codec, upto, snapshot)
        except CorruptJournal as error:
            if snapshot is None or error.seq != snapshot.seq or not self._reaches_back(info.run):
                raise
            logger.error("%s; the run is read from its journal instead", error)
            return self._load(info, codec, upto, None)

    def _reaches_back(self, run: str) -> bool:
        first = next(iter(self.store.read(run, 0, 1)), None)
        return first is not None and first.seq == 1

    def _load(self, info: RunInfo, codec: Codec, upto: int | None, snapshot: Snapshot | None) -> Loaded:
        name, track = info.run, Track()
        if snapshot is None:
            run, seq, chain = RunState(), 0, genesis(name, info.key)
        else:
            run = self._read_snapshot(name, snapshot, track, codec)
            seq, chain = snapshot.seq, snapshot.chain
        weight = 0
        for entry in verified(self.store, name, seq, chain, upto):
            self._take(run, entry, name, track, codec)
            seq, chain = entry.seq, entry.chain
            weight += len(entry.body)
        if seq == 0:
            raise CorruptJournal(f"run {name!r} has no entries", run=name, seq=1)
        return Loaded(info, run, track, seq, chain, weight, len(snapshot.body) if snapshot else 0)

    def history(
        self, info: RunInfo, codec: Codec, upto: int | None = None
    ) -> tuple[RunState, Iterator[tuple[Entry, list[Record]]]]:
        """A run as its stored journal begins, and every entry with its records, for whoever folds them.

        Where the journal was pruned, the run already has its first entry's records, so these are left out.
        """
        name = info.run
        first = next(iter(self.store.read(name)), None)
        if first is None or first.seq == 1:
            return RunState(), self._read_history(name, 0, genesis(name, info.key), upto, Track(), codec)
        snapshot, track = self.store.snapshot(name, first.seq), Track()
        if snapshot is None or snapshot.seq != first.seq:
            raise CorruptJournal(f"run {name!r}: entry 1 is missing", run=name, seq=1)
        run = self._read_snapshot(name, snapshot, track, codec)
        later = self._read_history(name, first.seq, snapshot.chain, upto, track, codec)
        return run, itertools.chain([(first, list[Record]())], later)

    def _read_history(
        self, name: str, seq: int, chain: bytes, upto: int | None, track: Track, codec: Codec
    ) -> Iterator[tuple[Entry, list[Record]]]:
        for entry in verified(self.store, name, seq, chain, upto):
            records = decode_records(self.open_body(name, entry.seq, entry.body), track, codec)
            yield entry, [part for record in records for part in _parts(record)]

    def _take(self, run: RunState, entry: Entry, name: str, track: Track, codec: Codec) -> None:
        try:
            for record in decode_records(self.open_body(name, entry.seq, entry.body), track, codec):
                apply(run, record, entry.at)
        except (KeyError, AttributeError) as error:
            raise CorruptJournal(
                f"run {name!r}: entry {entry.seq} does not follow from what came before ({error!r})",
                run=name,
                seq=entry.seq,
            ) from None
        if entry.mark is not None:
            run.saved_seq = entry.seq

    def _read_snapshot(self, name: str, snapshot: Snapshot, track: Track, codec: Codec) -> RunState:
        if not is_whole(snapshot):
            raise CorruptJournal(
                f"run {name!r}: the snapshot at {snapshot.seq} is damaged", run=name, seq=snapshot.seq
            )
        return decode_run(self.open_body(name, -snapshot.seq, snapshot.body[16:]), track, codec)

    def make_snapshot(self, loaded: Loaded, codec: Codec) -> Snapshot:
        """A snapshot of a run as loaded."""
        body = self.seal_body(loaded.info.run, -loaded.seq, encode_run(loaded.run, loaded.track, codec))
        digest = hashlib.blake2b(loaded.chain + body, digest_size=16).digest()
        return Snapshot(loaded.seq, loaded.run.updated_at, loaded.chain, digest + body)

    def seal_body(self, run: str, seq: int, body: bytes) -> bytes:
        """The body as it is stored: encrypted, if there is a key."""
        if self.seal is None:
            return body
        return bytes([_SEALED]) + self.seal.seal(body, _aad(run, seq))

    def open_body(self, run: str, seq: int, body: bytes) -> bytes:
        """A body as it was before `seal_body`."""
        if body[:1] != bytes([_SEALED]):
            return body
        if self.seal is None:
            raise CodecError(f"run {run!r} is encrypted; set HOLDFAST_KEY to its key")
        return self.seal.open(body[1:], _aad(run, seq))


def _parts(record: Record) -> tuple[Record, ...]:
    return record.parts() if isinstance(record, MovedOn) else (record,)


def _aad(run: str, seq: int) -> bytes:
    return f"{run}\n{seq}".encode("utf-8", "surrogatepass")
