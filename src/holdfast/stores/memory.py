"""A store in this process's memory: no set-up, nothing survives the process."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Unpack

from holdfast import clock
from holdfast.errors import StoreError
from holdfast.stores.base import (
    DEFAULT_NAMESPACE,
    Append,
    BaseStore,
    Conflict,
    Entry,
    Footprint,
    Message,
    RunFilter,
    RunInfo,
    RunSize,
    Snapshot,
    StoredCheckpoint,
    check,
    check_namespace,
    check_number,
    has_other_forks,
    no_inbox,
    own_url,
    pruned_before,
    select,
)
from holdfast.threads import synchronized


@dataclass(slots=True)
class JournalInMemory:
    """One run: its facts, its entries from `first` on, its snapshots by seq, and its inbox."""

    info: RunInfo
    first: int = 1
    entries: list[Entry] = field(default_factory=list)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    inbox: list[Message] = field(default_factory=list)

    @property
    def head(self) -> int:
        return self.first + len(self.entries) - 1

    @property
    def size(self) -> RunSize:
        sizes = [
            sum(len(each.body) for each in part)
            for part in (self.entries, self.snapshots.values(), self.inbox)
        ]
        marks = sum(entry.mark is not None for entry in self.entries)
        counts = (
            len(self.entries),
            marks,
            sizes[0],
            len(self.snapshots),
            sizes[1],
            len(self.inbox),
            sizes[2],
        )
        return RunSize(self.info.run, *counts)

    def between(self, after: int, upto: int | None) -> list[Entry]:
        """Return the entries with `after < seq <= upto`."""
        stop = None if upto is None else max(0, upto - self.first + 1)
        return self.entries[max(0, after - self.first + 1) : stop]


class MemoryStore(BaseStore):
    """A store for tests, trials and runs that need not outlive the process."""

    def __init__(self, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        super().__init__(own_url("memory://", namespace), check_namespace(namespace))
        self._lock = threading.Lock()
        self._runs: dict[str, JournalInMemory] = {}
        self._keys: dict[bytes, str] = {}

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        for append in appends:
            check(append)
        with self._lock: return self._commit(appends)  # fmt: skip  # noqa: E701

    def _commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        self._check_open()
        return [self._apply(append) for append in appends]

    def _page(self, run: str, after: int, last: int) -> tuple[list[Entry], bool]:
        found = self._find(run)
        return (found.between(after, last) if found else []), False

    def checkpoints(
        self, run: str, before: int | None = None, limit: int | None = None
    ) -> list[StoredCheckpoint]:
        found = self._find(run)
        entries = found.between(0, None if before is None else before - 1) if found else []
        marked = (StoredCheckpoint.of(entry) for entry in reversed(entries) if entry.mark is not None)
        return list(islice(marked, limit))

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        found = self._find(run)
        if found is None:
            return None
        seqs = sorted(found.snapshots)
        index = len(seqs) if upto is None else bisect_right(seqs, upto)
        return found.snapshots[seqs[index - 1]] if index else None

    def runs(self, **wanted: Unpack[RunFilter]) -> list[RunInfo]:
        self._check_open()
        return select([stored.info for stored in self._all()], **wanted)

    @synchronized
    def prune(self, run: str, horizon: Snapshot, *, forks: Collection[bytes] | None = None) -> int:
        found = self._find(run)
        if found is None or not found.first <= horizon.seq <= found.head or self._is_parent(found, forks):
            return 0
        later = {seq: kept for seq, kept in found.snapshots.items() if seq > horizon.seq}
        self._runs[run] = replace(
            found,
            first=horizon.seq,
            entries=found.between(horizon.seq - 1, None),
            snapshots={horizon.seq: horizon, **later},
        )
        return horizon.seq - found.first

    @synchronized
    def delete(self, run: str, *, forks: Collection[bytes] | None = None) -> bool:
        found = self._find(run)
        if found is None or self._is_parent(found, forks):
            return False
        del self._runs[run]
        self._keys.pop(found.info.key, None)
        return True

    @synchronized
    def post(self, run: str, body: bytes, number: int | None = None) -> int:
        found = self._find(run)
        if found is None:
            raise no_inbox(run)
        last = len(found.inbox)
        check_number(run, number, last)
        found.inbox.append(Message(last + 1, clock.time(), body))
        return last + 1

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        found = self._find(run)
        return found.inbox[max(0, after) :] if found else []

    def footprint(self) -> Footprint:
        """Return what kind of store this is."""
        return Footprint("memory", "this process")

    def sizes(self) -> list[RunSize]:
        """Return how much each run holds."""
        self._check_open()
        return [run.size for run in self._all()]

    def close(self) -> None:
        self._closed, self._runs = True, {}

    def _all(self) -> list[JournalInMemory]:
        """Return the runs as they are now, whatever is added or removed meanwhile."""
        return list(self._runs.copy().values())

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("this memory store is closed; open a new one", is_closed=True)

    def _is_parent(self, found: JournalInMemory, forks: Collection[bytes] | None) -> bool:
        return has_other_forks((run.info for run in self._all()), found.info.key, forks)

    def _find(self, run: str) -> JournalInMemory | None:
        self._check_open()
        return self._runs.get(run)

    def _apply(self, append: Append) -> Conflict | None:
        found = self._runs.get(append.run)
        if append.after == 0:
            assert append.info is not None
            if found is not None or self._has_key(append.info.key):
                return Conflict(append.run, 0, found.head if found else None)
            self._keys[append.info.key] = append.run
            found = JournalInMemory(append.info, pruned_before(append) + 1)
        elif found is None or found.head != append.after:
            return Conflict(append.run, append.after, found.head if found else None)
        elif append.info is None and not append.snapshots:
            found.entries.extend(append.entries)
            return None
        # All of it in one assignment: an exception in between leaves nothing half written.
        self._runs[append.run] = replace(
            found,
            info=found.info if append.info is None else replace(append.info, key=found.info.key),
            entries=[*found.entries, *append.entries],
            snapshots={**found.snapshots, **{each.seq: each for each in append.snapshots}},
        )
        return None

    def _has_key(self, key: bytes) -> bool:
        """Return whether a run has a key. `_keys` may name runs that are gone, or were never stored."""
        owner = self._runs.get(self._keys.get(key, ""))
        return owner is not None and owner.info.key == key


class SharedMemoryStore(MemoryStore):
    """The store named `memory`: shared by the whole process, so nobody may close it for the others."""

    def close(self) -> None:
        pass
