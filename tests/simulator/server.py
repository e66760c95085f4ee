"""The simulated server: journals in memory, who is alive by its clock, and an archive of all that ever was."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Unpack

from holdfast.errors import StoreError
from holdfast.stores.base import (
    Append,
    Conflict,
    Entry,
    Message,
    RunFilter,
    RunInfo,
    Snapshot,
    StoredCheckpoint,
    check_number,
    select,
)
from tests.simulator.process import Process


class Stored(NamedTuple):
    """An entry, the process that stored it, and when: the event of the simulation, and the simulated time."""

    entry: Entry
    process: Process
    moment: int
    time: float


class Kept:
    """What the server holds of a run, and, in `archive`, what it ever held."""

    __slots__ = ("archive", "entries", "first", "inbox", "info", "snapshots")

    def __init__(self, info: RunInfo, first: int) -> None:
        self.info, self.first = info, first
        self.entries: list[Entry] = []
        self.snapshots: dict[int, Snapshot] = {}
        self.inbox: list[Message] = []
        self.archive: list[Stored] = []

    @property
    def head(self) -> int:
        """The last seq."""
        return self.first + len(self.entries) - 1


def _ignore(info: RunInfo) -> None:
    return None


class Server:
    """Keeps journals as the contract of stores says. Its own code: what it answers is what the engine is held to."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.kept: dict[str, Kept] = {}
        self.processes: dict[str, Process] = {}
        """By lease."""
        self.now = now
        self.full_until = 0.0
        self.commits = 0
        self.told: Callable[[RunInfo], None] = _ignore
        """Called with the facts of a run when they change."""

    def commit(self, process: Process, moment: int, appends: Sequence[Append]) -> list[Conflict | None]:
        """As `Store.commit`."""
        self._check_room()
        self.commits += 1
        changed: list[RunInfo] = []
        answers = [self._apply(process, moment, append, changed) for append in appends]
        for info in changed:
            self.told(info)
        return answers

    def _apply(
        self, process: Process, moment: int, append: Append, changed: list[RunInfo]
    ) -> Conflict | None:
        run, after, entries, info, snapshots, _, link = append
        kept = self.kept.get(run)
        if after == 0:
            if info is None or not entries:
                raise StoreError(f"run {run!r}: creating it needs its facts and an entry")
            if kept is not None:
                return Conflict(run, 0, kept.head)
            kept = self.kept[run] = Kept(info, 1)
        elif kept is None or kept.head != after:
            return Conflict(run, after, kept.head if kept else None)
        elif link and kept.entries[-1].chain != link:
            return Conflict(run, after, kept.head)
        elif info is not None:
            kept.info = info if info.key == kept.info.key else replace(info, key=kept.info.key)
        now = self.now()
        for entry in entries:
            after += 1
            if entry.seq != after:
                raise StoreError(f"run {run!r}: entry {entry.seq} given where {after} is next")
            kept.entries.append(entry)
            kept.archive.append(Stored(entry, process, moment, now))
        for snapshot in snapshots:
            kept.snapshots[snapshot.seq] = snapshot
        if info is not None:
            changed.append(kept.info)
        return None

    def _check_room(self) -> None:
        if self.now() < self.full_until:
            raise StoreError("no space left on the simulated device")

    def read(self, run: str, after: int, upto: int | None) -> Iterator[Entry]:
        """As `Store.read`."""
        kept = self.kept.get(run)
        if kept is None:
            return iter(())
        found = kept.entries[max(0, after - kept.first + 1) :]
        return iter(found if upto is None else [entry for entry in found if entry.seq <= upto])

    def checkpoints(self, run: str, before: int | None, limit: int | None) -> list[StoredCheckpoint]:
        """As `Store.checkpoints`."""
        kept = self.kept.get(run)
        found = [
            StoredCheckpoint.of(entry)
            for entry in (reversed(kept.entries) if kept else ())
            if entry.mark is not None and (before is None or entry.seq < before)
        ]
        return found[:limit]

    def snapshot(self, run: str, upto: int | None) -> Snapshot | None:
        """As `Store.snapshot`."""
        kept = self.kept.get(run)
        if kept is None or not kept.snapshots:
            return None
        seqs = [seq for seq in kept.snapshots if upto is None or seq <= upto]
        return kept.snapshots[max(seqs)] if seqs else None

    def runs(self, **wanted: Unpack[RunFilter]) -> list[RunInfo]:
        """As `Store.runs`."""
        run = wanted.get("run")
        if run is None:
            return select([kept.info for kept in self.kept.values()], **wanted)
        kept = self.kept.get(run)
        return select([kept.info], **wanted) if kept is not None else []

    def prune(self, run: str, horizon: Snapshot, forks: Collection[bytes] | None) -> int:
        """As `Store.prune`."""
        kept = self.kept.get(run)
        if kept is None or not kept.first <= horizon.seq <= kept.head or self._has_others(kept, forks):
            return 0
        dropped = horizon.seq - kept.first
        kept.entries, kept.first = kept.entries[dropped:], horizon.seq
        kept.snapshots = {seq: one for seq, one in kept.snapshots.items() if seq > horizon.seq}
        kept.snapshots[horizon.seq] = horizon
        return dropped

    def delete(self, run: str, forks: Collection[bytes] | None) -> bool:
        """As `Store.delete`."""
        kept = self.kept.get(run)
        if kept is None or self._has_others(kept, forks):
            return False
        del self.kept[run]
        return True

    def _has_others(self, kept: Kept, forks: Collection[bytes] | None) -> bool:
        if forks is None:
            return False
        return any(
            one.info.parent == kept.info.key and one.info.key not in forks for one in self.kept.values()
        )

    def post(self, run: str, body: bytes, number: int | None = None) -> int:
        """As `Store.post`."""
        self._check_room()
        kept = self.kept.get(run)
        if kept is None:
            raise StoreError(f"no run {run!r} is stored, so it has no inbox")
        check_number(run, number, len(kept.inbox))
        kept.inbox.append(Message(len(kept.inbox) + 1, self.now(), body))
        return len(kept.inbox)

    def inbox(self, run: str, after: int) -> list[Message]:
        """As `Store.inbox`."""
        kept = self.kept.get(run)
        return kept.inbox[max(0, after) :] if kept is not None else []

    def is_live(self, lease: str) -> bool:
        """As `Leases.is_live`, by the server's own clock."""
        process = self.processes.get(lease)
        return process is not None and not process.is_late
