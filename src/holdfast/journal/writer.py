"""Appending to one run: records are folded at once, and stored as one entry at the next flush."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from holdfast import clock
from holdfast.errors import Remedy, RunConflict, RunExists
from holdfast.journal.checkpoint_ids import sealed_mark
from holdfast.journal.encoding import Track, encode_records
from holdfast.journal.fold import APPLY
from holdfast.journal.journal import Journal, Loaded, genesis, link
from holdfast.journal.records import Noted, Record
from holdfast.journal.run_state import RunState
from holdfast.state.codec import Codec
from holdfast.stores.base import Append, Conflict, Entry, RunInfo, Snapshot
from holdfast.threads import in_background, locked

Result = TypeVar("Result")
Args = ParamSpec("Args")

SNAPSHOT_FLOOR = 64 * 1024
"""A snapshot is not worth its bytes before the journal since the last one has grown to this size."""

WORK_FLOOR = 64 * 1024 * 1024
"""How many bytes a reader may have to rebuild from differences before a snapshot spares it the rest."""


class Interrupted(RunConflict):
    """An exception came while a change of a run was under way in memory; the run has to be loaded again."""


def _locked(
    method: Callable[Concatenate[Writer, Args], Result],
) -> Callable[Concatenate[Writer, Args], Result]:
    """Let a method hold the writer's lock."""

    @functools.wraps(method)
    def call(writer: Writer, /, *args: Args.args, **kwargs: Args.kwargs) -> Result:
        return locked(writer.lock, method, writer, *args, **kwargs)

    return call


class Writer:
    """Appends to one run. Records are folded at once and stored at the next `flush`.

    Every method may be called from any thread. A refused append raises `RunConflict`; after a failed
    one nothing is lost: what is unsent goes out with the next flush. An exception that comes between two lines of
    a change, as those of signal handlers do, leaves the writer half changed: it then refuses all that follows
    with `Interrupted`, so that nothing of it is stored. One that comes while the store commits does not: whether the
    entries were stored is found out by the next commit.
    """

    def __init__(self, journal: Journal, loaded: Loaded, codec: Codec, *, durable: bool) -> None:
        self.journal, self.codec, self.durable = journal, codec, durable
        self.info, self.run, self.track = loaded.info, loaded.run, loaded.track
        self.seq, self.chain, self.stored = loaded.seq, loaded.chain, loaded.seq
        self.sealed = loaded.sealed
        """Whether the last entry is encrypted: then so is all that follows, messages included."""
        self.weight, self.snapshot_size = loaded.weight, loaded.snapshot_size
        self._bodies = None if journal.seal is None else journal.bodies(loaded.info)
        self._owes_snapshot = loaded.rests_on_clear and self._bodies is not None
        """Whether the first sealed entry needs a snapshot: once there is one, those in the clear are not used."""
        self._owed: tuple[Snapshot, ...] = ()
        """The snapshot that was owed, until it is stored."""
        self.commits = self.bytes_written = self.last_size = 0
        self.lock = threading.RLock()
        # The last writer has checked this before: the first new step need not wait for it.
        self._looked_at = max(SNAPSHOT_FLOOR, self.weight * 9 // 8)
        """The weight below which another look whether a snapshot is worth it would be too early."""
        self._process = _process
        self._pending: list[Record] = []
        self._unsent: tuple[Entry, ...] = ()
        self._mark: bytes | None = None
        self._new_info: RunInfo | None = None
        self._link = self.chain if self.stored else b""
        """The chain of what is stored."""
        self._refusal: RunConflict | RunExists | None = None
        """Why nothing that follows can be stored either."""
        self._is_changing = False
        """Whether a change is under way; if it is set while the lock is free, the change was interrupted."""
        self._is_together = False
        """Whether records that belong together are being folded; the same holds."""

    @classmethod
    def create(
        cls, journal: Journal, info: RunInfo, codec: Codec, *, durable: bool, base: Loaded | None = None
    ) -> Writer:
        """Return a writer for a run that is not stored yet; a fork goes on from where its `base` stands."""
        loaded = Loaded(info, RunState(), Track(), 0, genesis(info.run, info.key), 0)
        if base is not None:
            loaded.track.copy_from(base.track)
            loaded.weight, loaded.snapshot_size = base.weight, base.snapshot_size
            loaded.rests_on_clear = base.rests_on_clear
        writer = cls(journal, loaded, codec, durable=durable)
        writer._new_info = info
        return writer

    @property
    def has_unsaved(self) -> bool:
        """Whether something was recorded that is not stored."""
        return bool(self._pending or self._unsent)

    @property
    def has_pending(self) -> bool:
        """Whether something was recorded that is in no entry yet."""
        return bool(self._pending)

    @property
    def was_interrupted(self) -> bool:
        """Whether a change was interrupted: what is in memory of the run is not to be relied on."""
        return locked(self.lock, lambda: self._is_changing or self._is_together)

    def record(self, record: Record) -> None:
        """Fold a record in, as of now, and keep it for the next flush."""
        with self.lock: self._record(record)  # fmt: skip  # noqa: E701

    def _record(self, record: Record) -> None:
        if self._is_changing:
            raise self._interrupted()
        if type(record) is Noted:
            self.run.step(record.step)  # A step that was left behind may be gone: that breaks nothing.
        self._is_changing = True
        self.run.updated_at = at = clock.time()
        APPLY[type(record)](self.run, record, at)
        self._pending.append(record)
        self._is_changing = False

    @_locked
    def together(self, action: Callable[[], Result]) -> Result:
        """Return what `action` returns; what it records is stored all in one entry, or not at all."""
        before, self._is_together = self._is_together, True
        result = action()
        self._is_together = before
        return result

    def _interrupted(self) -> Interrupted:
        name = self.info.run
        return Interrupted(
            f"run {name!r} was interrupted while a change of it was being recorded, so this execution of it cannot "
            "go on; what was stored is intact",
            remedies=Remedy("resume", name),
        )

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
        """Do as `flush`, in a worker thread, together with the flushes of other runs."""
        if self.has_unsaved:
            await self.journal.committer.commit_async(self)

    def build(self) -> Append:
        """Return what has to be stored, as one append."""
        if self._process is not _process:  # Before the lock, which a thread that the child has not may hold.
            raise RunConflict(
                f"this process is a fork of the one that executes run {self.info.run!r}: it stores nothing of it, and "
                "the parent goes on; leave a forked child with os._exit, or use subprocess or multiprocessing"
            )
        with self.lock: return self._build()  # fmt: skip  # noqa: E701

    def _build(self) -> Append:
        if self._refusal is not None:
            raise self._refusal
        snapshots: tuple[Snapshot, ...] = ()
        if self._pending:
            self._seal_entry(self.run.updated_at)
            laborious = self.track.work > WORK_FLOOR + 8 * self.snapshot_size
            if laborious or (self.weight > self._looked_at and self._is_heavy()):
                snapshots = self._snapshot(laborious)
        elif self._is_changing or self._is_together:
            raise self._interrupted()
        if self._owed:
            snapshots = self._owed + tuple(each for each in snapshots if each.seq != self._owed[0].seq)
        facts = self._new_info
        return Append(self.info.run, self.stored, self._unsent, facts, snapshots, self.durable, self._link)

    def seal_part(self) -> bool:
        """Make an entry of its own of what was recorded up to a checkpoint, or of how a new run began.

        It is stored, with what follows it, at the next flush. `False` if there is no checkpoint to make one of.
        """
        with self.lock: return self._seal_part()  # fmt: skip  # noqa: E701

    def _seal_part(self) -> bool:
        if not self._pending or (self._mark is None and self.seq > 0):
            return False
        self._seal_entry(self.run.updated_at)
        return True

    def _is_heavy(self) -> bool:
        """Return whether the journal since the last snapshot seems, or may well be, to outweigh what the run holds."""
        seems = self.weight > SNAPSHOT_FLOOR + 2 * max(self.track.live, self.snapshot_size)
        # Merged and trimmed keys hold less than was written to them: look again every so often.
        return seems or self.weight > 4 * (SNAPSHOT_FLOOR + self.snapshot_size)

    def _seal_entry(self, at: float) -> None:
        if self._is_changing or self._is_together:
            raise self._interrupted()
        seq, mark, track = self.seq + 1, self._mark, self.track
        bases = dict(track.bases) if track.bases else {}
        try:
            body = encode_records(self._pending, track)
            if mark is not None:
                mark = sealed_mark(mark, self.info.key, seq, at, self.run.resets)
            if self._bodies is not None:
                body = self._bodies.seal_entry(self.chain, seq, at, mark, body)
            chain = link(self.chain, seq, at, mark, body)
            unsent = (*self._unsent, Entry(seq, at, chain, body, mark))
            self._is_changing = True
        except BaseException:
            track.bases = bases
            raise
        self.seq, self.chain, self._unsent, self._pending = seq, chain, unsent, []
        self.sealed = self._bodies is not None
        if mark is not None:
            self.run.saved_seq, self._mark = seq, None
        if seq == 1 and not self.snapshot_size and not self.run.steps_done:
            # A run that has only begun holds what its first entry has: a snapshot could not be smaller.
            self.snapshot_size = len(body)
        self.weight += len(body)
        self._is_changing = False
        if self._owes_snapshot:
            self._owed, self._owes_snapshot = self._snapshot(wanted=True), False

    def _snapshot(self, wanted: bool) -> tuple[Snapshot, ...]:
        """Return a snapshot, unless the run turns out to hold too much for one to be worth its bytes yet."""
        loaded = Loaded(
            self.info, self.run, self.track, self.seq, self.chain, self.weight, sealed=self.sealed
        )
        snapshot = self.journal.make_snapshot(loaded, self.codec)
        self.snapshot_size = len(snapshot.body)
        if not wanted and self.weight <= SNAPSHOT_FLOOR + 2 * self.snapshot_size:
            self._looked_at = self.weight * 5 // 4
            return ()
        self.weight = self.track.work = 0
        self._looked_at = SNAPSHOT_FLOOR
        self.bytes_written += len(snapshot.body)
        return (snapshot,)

    def settle(self, append: Append, conflict: Conflict | None) -> None:
        """Take the store's answer to an append."""
        with self.lock: self._settle(append.entries, append.info, conflict)  # fmt: skip  # noqa: E701

    def _settle(self, sent: Sequence[Entry], info: RunInfo | None, conflict: Conflict | None) -> None:
        if conflict is not None:
            self._refusal = self._conflict(conflict.head)
            if self.stored == 0:
                self._refusal = RunExists(
                    f"run {self.info.run!r} exists",
                    remedies=(Remedy("resume", self.info.run), Remedy("choose_run_id")),
                    run_id=self.info.run,
                    store=self.journal.store.url,
                )
            self._unsent = ()
            raise self._refusal
        if self._is_changing:
            raise self._interrupted()
        size = 0
        for entry in sent:
            size += len(entry.body)
        self._is_changing = True
        self.commits += 1
        self.last_size = size
        self.bytes_written += size
        if sent:
            self._owed = ()
            self._took(sent[-1])
        if self._new_info is info:
            self._new_info = None
        self._is_changing = False

    def _took(self, last: Entry) -> None:
        """Go on after the entry that the store has."""
        self.stored, self._link = last.seq, last.chain
        self._unsent = self._unsent[last.seq - self._unsent[0].seq + 1 :]

    def close(self) -> None:
        """Refuse whatever is yet to be stored, once what is under way is done: the run may be another owner's now."""
        if self._is_left():
            self.journal.committer.wait()

    async def close_async(self) -> None:
        """Do as `close`, without blocking the event loop."""
        if self._is_left():
            await in_background(self.journal.committer.wait)

    def _is_left(self) -> bool:
        """Refuse what follows; whether something is still on its way."""
        if self._refusal is None:
            self._refusal = RunConflict(
                f"this execution has left run {self.info.run!r}: nothing more is stored"
            )
        return self.journal.committer.is_storing(self)

    @_locked
    def refuse_if_behind(self) -> None:
        """Raise `RunConflict` if somebody else has appended to the run since this writer last did."""
        newer = next(iter(self.journal.store.read(self.info.run, self.stored)), None)
        own = {entry.seq: entry.chain for entry in self._unsent}
        if newer is not None and self.stored and own.get(newer.seq) != newer.chain:
            raise self._conflict(newer.seq)

    def _conflict(self, head: int | None) -> RunConflict:
        where = f"(it is at {head}, this owner was at {self.stored})"
        what = f"was advanced by another owner {where}"
        if head is None:
            what = "was deleted, or its store was restored to a time before it began"
        elif head <= self.stored:
            what = f"is not as this owner left it: its store was restored to an earlier time {where}"
        return RunConflict(
            f"run {self.info.run!r} {what}; this owner stopped before its next step and changed nothing"
        )

    @_locked
    def recognise(self, conflict: Conflict) -> bool:
        """Return whether the store has the first of what is unsent: it was stored, but the acknowledgement got lost.

        Then only the rest is still to be sent.
        """
        ours = [entry for entry in self._unsent if entry.seq == conflict.head]
        if not ours:
            return False
        stored = list(self.journal.store.read(self.info.run, ours[0].seq - 1))
        if not stored or stored[0].chain != ours[0].chain:
            return False
        if self._is_changing:
            raise self._interrupted()
        self._is_changing = True
        self._took(ours[0])
        self._is_changing = False
        return True


_process = object()
"""Stands for this process; a forked child has its own."""


def _begin_process() -> None:
    global _process
    _process = object()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_process)
