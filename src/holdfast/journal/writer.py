"""Appending to one run: records are folded at once, and stored as one entry at the next flush."""

from __future__ import annotations

import asyncio
import threading

from holdfast import clock
from holdfast.data.codec import Codec
from holdfast.errors import RunConflict, RunExists
from holdfast.journal.checkpoints import sealed_mark
from holdfast.journal.commit import settled
from holdfast.journal.fold import APPLY
from holdfast.journal.journal import Journal, Loaded, genesis, link
from holdfast.journal.records import Record
from holdfast.journal.run_state import RunState
from holdfast.journal.wire import Track
from holdfast.journal.wire_records import encode_records
from holdfast.stores.base import Append, Conflict, Entry, RunInfo, Snapshot

SNAPSHOT_FLOOR = 64 * 1024
"""A snapshot is not worth its bytes before the journal since the last one has grown to this size."""

WORK_FLOOR = 64 * 1024 * 1024
"""How many bytes a reader may have to rebuild from differences before a snapshot spares it the rest."""


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
        # Whoever wrote what was loaded has looked before: the first new step need not wait for that.
        self._looked_at = max(SNAPSHOT_FLOOR, self.weight * 9 // 8)
        """The weight below which another look whether a snapshot is worth it would be too early."""
        self._pending: list[Record] = []
        self._unsent: list[Entry] = []
        self._mark: bytes | None = None
        self._new_info: RunInfo | None = None
        self._link = self.chain if self.stored else b""
        """The chain of what is stored."""
        self._refusal: RunConflict | RunExists | None = None
        """Why nothing that follows can be stored either."""

    @classmethod
    def create(
        cls, journal: Journal, info: RunInfo, codec: Codec, *, durable: bool, base: Loaded | None = None
    ) -> Writer:
        """A writer for a run that is not stored yet; a fork goes on from where its `base` stands."""
        loaded = Loaded(info, RunState(), Track(), 0, genesis(info.run, info.key), 0)
        if base is not None:
            loaded.track.follow(base.track)
            loaded.weight, loaded.snapshot_size = base.weight, base.snapshot_size
        writer = cls(journal, loaded, codec, durable=durable)
        writer._new_info = info
        return writer

    @property
    def has_unsaved(self) -> bool:
        """Whether something was recorded that is not stored."""
        return bool(self._pending or self._unsent)

    def record(self, record: Record) -> None:
        """Fold a record in, as of now, and keep it for the next flush."""
        with self.lock:
            self.run.updated_at = at = clock.time()
            APPLY[type(record)](self.run, record, at)
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
        if self._refusal is not None:
            raise self._refusal
        snapshots: tuple[Snapshot, ...] = ()
        if self._pending:
            self._seal_entry(self.run.updated_at)
            laborious = self.track.work > WORK_FLOOR and self._is_laborious()
            if laborious or (self.weight > self._looked_at and self._is_heavy()):
                snapshots = self._snapshot(laborious)
        facts = self._new_info
        return Append(self.info.run, self.stored, self._unsent, facts, snapshots, self.durable, self._link)

    def seal_part(self) -> bool:
        """Make an entry of its own of what was recorded up to a checkpoint, or of how a new run began.

        It is stored, with what follows it, at the next flush. `False` if there is no checkpoint to make one of.
        """
        with self.lock:
            if not self._pending or (self._mark is None and self.seq > 0):
                return False
            self._seal_entry(self.run.updated_at)
            return True

    def _is_heavy(self) -> bool:
        """Whether the journal since the last snapshot seems, or may well be, to outweigh what the run holds."""
        seems = self.weight > SNAPSHOT_FLOOR + 2 * max(self.track.live, self.snapshot_size)
        # Merged and trimmed keys hold less than was written to them: look again every so often.
        return seems or self.weight > 4 * (SNAPSHOT_FLOOR + self.snapshot_size)

    def _is_laborious(self) -> bool:
        """Whether undoing the differences since the last snapshot has become more than a moment's work."""
        return self.track.work > WORK_FLOOR + 8 * self.snapshot_size

    def _seal_entry(self, at: float) -> None:
        seq, mark, track = self.seq + 1, self._mark, self.track
        bases = dict(track.bases) if track.bases else {}
        try:
            body = encode_records(self._pending, track)
        except BaseException:
            track.bases = bases
            raise
        if self.journal.seal is not None:
            body = self.journal.seal_body(self.info.run, seq, body)
        if mark is not None:
            mark = sealed_mark(mark, self.info.key, seq, at, self.run.resets)
        self.chain = chain = link(self.chain, seq, at, mark, body)
        self._unsent.append(Entry(seq, at, chain, body, mark))
        if mark is not None:
            self.run.saved_seq, self._mark = seq, None
        if seq == 1 and not self.snapshot_size and not self.run.steps_done:
            # A run that has only begun holds what its first entry has: a snapshot could not be smaller.
            self.snapshot_size = len(body)
        self.seq = seq
        self.weight += len(body)
        self._pending = []

    def _snapshot(self, wanted: bool) -> tuple[Snapshot, ...]:
        """A snapshot, unless the run turns out to hold too much for one to be worth its bytes yet."""
        loaded = Loaded(self.info, self.run, self.track, self.seq, self.chain, self.weight)
        snapshot = self.journal.make_snapshot(loaded, self.codec)
        self.snapshot_size = len(snapshot.body)
        if not wanted and self.weight <= SNAPSHOT_FLOOR + 2 * self.snapshot_size:
            self._looked_at = self.weight * 5 // 4
            return ()
        self.weight = self.track.work = 0
        self._looked_at = SNAPSHOT_FLOOR
        self.bytes_written += len(snapshot.body)
        return (snapshot,)

    def settle(self, conflict: Conflict | None) -> None:
        """Take the store's answer; called with the lock held."""
        if conflict is not None:
            self._unsent = []
            self._refusal = self._conflict(conflict.head)
            if self.stored == 0:
                self._refusal = RunExists(
                    f"run {self.info.run!r} exists in {self.journal.store.url}; "
                    "resume it, or give the new run another run_id"
                )
            raise self._refusal
        size = 0
        for entry in self._unsent:
            size += len(entry.body)
        if self._unsent:
            self._link = self._unsent[-1].chain
        self.commits += 1
        self.last_size = size
        self.bytes_written += size
        self.stored = self.seq
        self._unsent = []
        self._new_info = None

    def close(self) -> None:
        """Refuse whatever is yet to be stored, once what is under way is done: the run may be another owner's now."""
        with self.lock:
            if self._refusal is None:
                self._refusal = RunConflict(
                    f"this execution has left run {self.info.run!r}: nothing more is stored"
                )

    async def close_async(self) -> None:
        """As `close`, without blocking the event loop."""
        if self.lock.acquire(blocking=False):
            try:
                self.close()
            finally:
                self.lock.release()
        else:
            await settled(asyncio.get_running_loop().run_in_executor(None, self.close))

    def refuse_if_behind(self) -> None:
        """Raise `RunConflict` if somebody else has appended to the run since this writer last did."""
        with self.lock:
            newer = next(iter(self.journal.store.read(self.info.run, self.stored)), None)
            if newer is not None and self.stored:
                raise self._conflict(newer.seq)

    def _conflict(self, head: int | None) -> RunConflict:
        what = f"was advanced by another driver (it is at {head}, this one was at {self.stored})"
        if head is None:
            what = "was deleted, or its store was restored to a time before it began"
        elif head <= self.stored:
            what = (
                f"is not as this driver left it: its store was restored to an earlier time (it is at {head}, "
            )
            what += f"this driver was at {self.stored})"
        return RunConflict(
            f"run {self.info.run!r} {what}; this driver stopped before its next step and changed nothing"
        )

    def adopt(self, conflict: Conflict) -> bool:
        """Whether the store has the first of what is unsent: it was stored, but the acknowledgement got lost.

        Then only the rest is still to be sent.
        """
        ours = [entry for entry in self._unsent if entry.seq == conflict.head]
        if not ours:
            return False
        stored = list(self.journal.store.read(self.info.run, ours[0].seq - 1))
        if not stored or stored[0].chain != ours[0].chain:
            return False
        self._unsent = [entry for entry in self._unsent if entry.seq > ours[0].seq]
        self.stored, self._link = ours[0].seq, ours[0].chain
        return True
