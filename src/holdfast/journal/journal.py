"""The only road to a store: loading runs, appending to them, group commit, snapshots."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import itertools
import logging
import struct
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.data.codec import Codec
from holdfast.data.seal import Seal
from holdfast.errors import CodecError, CorruptJournal, RunConflict, RunExists, RunNotFound, StoreError
from holdfast.journal.fold import RunState, apply
from holdfast.journal.records import Record
from holdfast.journal.wire import Track, decode_records, decode_run, encode_records, encode_run
from holdfast.stores.base import Append, Conflict, Entry, RunInfo, Snapshot, Store

logger = logging.getLogger("holdfast")

SNAPSHOT_FLOOR = 64 * 1024
"""A snapshot is not worth its bytes before the journal since the last one has grown to this size."""

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
        self.committer = _committer_of(store)

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
        for entry in self._verified(name, seq, chain, upto):
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
        for entry in self._verified(name, seq, chain, upto):
            yield entry, decode_records(self._open(name, entry.seq, entry.body), track, codec)

    def _verified(self, name: str, seq: int, chain: bytes, upto: int | None) -> Iterator[Entry]:
        """The entries after `seq`, each checked against its predecessor."""
        for entry in self.store.read(name, seq, upto):
            seq += 1
            if entry.seq != seq:
                raise CorruptJournal(f"run {name!r}: entry {seq} is missing", run=name, seq=seq)
            chain = link(chain, entry.seq, entry.at, entry.mark, entry.body)
            if chain != entry.chain:
                raise CorruptJournal(
                    f"run {name!r}: entry {entry.seq} is damaged (its checksum does not match)",
                    run=name,
                    seq=entry.seq,
                )
            yield entry

    def _take(self, run: RunState, entry: Entry, name: str, track: Track, codec: Codec) -> None:
        try:
            for record in decode_records(self._open(name, entry.seq, entry.body), track, codec):
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
        digest, body = snapshot.body[:16], snapshot.body[16:]
        if hashlib.blake2b(snapshot.chain + body, digest_size=16).digest() != digest:
            raise CorruptJournal(
                f"run {name!r}: the snapshot at {snapshot.seq} is damaged", run=name, seq=snapshot.seq
            )
        return decode_run(self._open(name, -snapshot.seq, body), track, codec)

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

    def _open(self, run: str, seq: int, body: bytes) -> bytes:
        if body[:1] != bytes([_SEALED]):
            return body
        if self.seal is None:
            raise CodecError(f"run {run!r} is encrypted; set HOLDFAST_KEY to its key")
        return self.seal.open(body[1:], _aad(run, seq))


def _aad(run: str, seq: int) -> bytes:
    return f"{run}\n{seq}".encode("utf-8", "surrogatepass")


class Writer:
    """Appends to one run. Records are folded at once and stored at the next `flush`.

    Every method may be called from any thread. A refused append raises `RunConflict`; after a failed
    one nothing is lost: what is unsent goes out with the next flush.
    """

    def __init__(self, journal: Journal, loaded: Loaded, codec: Codec, *, durable: bool) -> None:
        self.journal, self.codec, self.durable = journal, codec, durable
        self.info, self.run, self.track = loaded.info, loaded.run, loaded.track
        self.seq, self.chain, self.stored = loaded.seq, loaded.chain, loaded.seq
        self.weight, self.snapshot_size = loaded.weight, loaded.snapshot_size
        self.commits = self.bytes_written = self.last_size = 0
        self.lock = threading.RLock()
        self._pending: list[Record] = []
        self._unsent: list[Entry] = []
        self._mark: bytes | None = None
        self._new_info: RunInfo | None = None

    @classmethod
    def create(cls, journal: Journal, info: RunInfo, codec: Codec, *, durable: bool) -> Writer:
        """A writer for a run that is not stored yet."""
        loaded = Loaded(info, RunState(), Track(), 0, genesis(info.run, info.key), 0)
        writer = cls(journal, loaded, codec, durable=durable)
        writer._new_info = info
        return writer

    @property
    def has_unsaved(self) -> bool:
        """Whether something was recorded that is not stored."""
        return bool(self._pending or self._unsent)

    def record(self, record: Record, at: float) -> None:
        """Fold a record in and keep it for the next flush."""
        with self.lock:
            apply(self.run, record, at)
            self._pending.append(record)

    def mark(self, mark: bytes) -> None:
        """Make the next entry a checkpoint with these plain facts."""
        self._mark = mark

    def set_info(self, info: RunInfo) -> None:
        """Store these facts of the run with the next flush."""
        self.info = self._new_info = info

    def flush(self) -> None:
        """Store what was recorded. On return it is as durable as this writer promises."""
        if self._pending or self._unsent:
            self.journal.committer.commit(self)

    async def flush_async(self) -> None:
        """As `flush`, in a worker thread, together with the flushes of other runs."""
        if self.has_unsaved:
            await self.journal.committer.commit_async(self)

    def build(self) -> Append:
        """What has to be stored, as one append; called with the lock held."""
        snapshots: tuple[Snapshot, ...] = ()
        if self._pending:
            self._seal_entry(time.time())
            if self.weight > SNAPSHOT_FLOOR and self.weight > SNAPSHOT_FLOOR + 2 * self._live_size():
                snapshots = (self._snapshot(),)
        return Append(self.info.run, self.stored, self._unsent, self._new_info, snapshots, self.durable)

    def _live_size(self) -> int:
        return max(self.track.live, self.snapshot_size)

    def _seal_entry(self, at: float) -> None:
        seq = self.seq + 1
        encoded = encode_records(self._pending, self.track)
        body = self.journal.seal_body(self.info.run, seq, encoded)
        self.chain = link(self.chain, seq, at, self._mark, body)
        self._unsent.append(Entry(seq, at, self.chain, body, self._mark))
        if self._mark is not None:
            self.run.saved_seq = seq
        self.seq, self._mark = seq, None
        self.weight += len(body)
        self._pending = []

    def _snapshot(self) -> Snapshot:
        loaded = Loaded(self.info, self.run, self.track, self.seq, self.chain, self.weight)
        snapshot = self.journal.make_snapshot(loaded, self.codec)
        self.weight, self.snapshot_size = 0, len(snapshot.body)
        self.bytes_written += len(snapshot.body)
        return snapshot

    def settle(self, conflict: Conflict | None) -> None:
        """Take the store's answer; called with the lock held."""
        if conflict is not None:
            self._unsent = []
            if self.stored == 0:
                raise RunExists(
                    f"run {self.info.run!r} exists in {self.journal.store.url}; "
                    "resume it, or give the new run another run_id"
                )
            raise RunConflict(
                f"run {self.info.run!r} was advanced by another driver (it is at {conflict.head}, this one "
                f"was at {self.stored}); this driver stopped before its next step and changed nothing"
            )
        self.commits += 1
        self.last_size = sum([len(entry.body) for entry in self._unsent])
        self.bytes_written += self.last_size
        self.stored = self.seq
        self._unsent = []
        self._new_info = None


@dataclass(slots=True)
class _Job:
    writer: Writer
    done: bool = False
    error: BaseException | None = None
    future: Any = None


class Committer:
    """Group commit: while one transaction syncs, the appends of other runs gather for the next."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store) if hasattr(store, "__weakref__") else lambda: store
        self._queue: list[_Job] = []
        self._mutex = threading.Lock()
        self._leader = threading.Lock()
        self._scheduled: set[Any] = set()
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def commit(self, writer: Writer) -> None:
        """Store a writer's records from this thread, with whatever else is waiting."""
        if self._leader.acquire(blocking=False):
            try:
                if not self._queue:
                    self._store_one(writer)
                    return
            finally:
                self._leader.release()
        job = _Job(writer)
        with self._mutex:
            self._queue.append(job)
        self._lead(job)
        if job.error is not None:
            raise job.error

    def _store_one(self, writer: Writer) -> None:
        with writer.lock:
            append = writer.build()
            if append.entries:
                writer.settle(self._open_store().commit((append,))[0])

    def _open_store(self) -> Store:
        store = self._store()
        if store is None:
            raise StoreError("the store is gone")
        return store

    async def commit_async(self, writer: Writer) -> None:
        """Store a writer's records without blocking the event loop."""
        loop = asyncio.get_running_loop()
        job = _Job(writer, future=loop.create_future())
        with self._mutex:
            self._queue.append(job)
        if loop not in self._scheduled:
            self._scheduled.add(loop)
            # After the callbacks that are ready now: their runs' appends join this commit.
            loop.call_soon(self._send, loop)
        await job.future

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled.discard(loop)
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="holdfast-commit")
        self._pool.submit(self._lead, None)

    def _lead(self, own: _Job | None) -> None:
        with self._leader:
            if own is not None and own.done:
                return
            with self._mutex:
                batch, self._queue = self._queue, []
            if batch:
                self._run(batch)

    def _run(self, batch: Sequence[_Job]) -> None:
        jobs = _first_per_writer(batch)
        for job in jobs:
            job.writer.lock.acquire()
        try:
            self._store_all(jobs)
        except BaseException as error:  # Whatever a store raises: those who wait for it must hear of it.
            for job in jobs:
                job.error = job.error or error
        finally:
            for job in jobs:
                job.writer.lock.release()
        errors = {id(job.writer): job.error for job in jobs}
        loops: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
        for job in batch:
            job.error = errors[id(job.writer)]
            job.done = True
            if job.future is not None:
                loops.setdefault(job.future.get_loop(), []).append(job)
        for loop, waiting in loops.items():
            _call(loop, waiting)

    def _store_all(self, jobs: Sequence[_Job]) -> None:
        ready: list[tuple[_Job, Append]] = []
        for job in jobs:
            try:
                append = job.writer.build()
            except Exception as error:
                job.error = error
                continue
            if append.entries:
                ready.append((job, append))
        if not ready:
            return
        try:
            answers = self._open_store().commit([append for _, append in ready])
        except StoreError as error:
            for job, _ in ready:
                job.error = error
            return
        for (job, _), conflict in zip(ready, answers, strict=True):
            try:
                job.writer.settle(conflict)
            except (RunConflict, RunExists) as error:
                job.error = error


def _first_per_writer(batch: Sequence[_Job]) -> list[_Job]:
    if len(batch) == 1:
        return list(batch)
    return list({id(job.writer): job for job in batch}.values())


def _call(loop: asyncio.AbstractEventLoop, jobs: list[_Job]) -> None:
    try:
        loop.call_soon_threadsafe(_answer, jobs)
    except RuntimeError:
        logger.warning("an event loop was closed while %d appends were stored", len(jobs))


def _answer(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(None)


_committers: weakref.WeakKeyDictionary[Any, Committer] = weakref.WeakKeyDictionary()
_committers_lock = threading.Lock()


def _committer_of(store: Store) -> Committer:
    """The one committer of a store, shared by every journal on it."""
    with _committers_lock:
        committer = _committers.get(store)
        if committer is None:
            committer = _committers[store] = Committer(store)
        return committer
