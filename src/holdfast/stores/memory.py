"""A store in this process's memory: no set-up, nothing survives the process."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from holdfast import clock
from holdfast.errors import StoreError
from holdfast.stores.base import (
    DEFAULT_NAMESPACE,
    Append,
    Conflict,
    Entry,
    Mark,
    Message,
    RunInfo,
    Snapshot,
    check,
    pruned_before,
)
from holdfast.stores.mending import Mender
from holdfast.stores.namespaces import check_namespace, own_url

if TYPE_CHECKING:  # Few ask how much a store holds.
    from holdfast.stores.usage import Footprint, RunSize


@dataclass(slots=True)
class _Run:
    info: RunInfo
    first: int = 1
    entries: list[Entry] = field(default_factory=list)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    inbox: list[Message] = field(default_factory=list)

    @property
    def head(self) -> int:
        return self.first + len(self.entries) - 1

    def size(self) -> RunSize:
        """How much it holds."""
        from holdfast.stores.usage import RunSize

        kept = self.snapshots.values()
        return RunSize(
            self.info.run,
            len(self.entries),
            sum(entry.mark is not None for entry in self.entries),
            sum(len(entry.body) for entry in self.entries),
            len(kept),
            sum(len(snapshot.body) for snapshot in kept),
            len(self.inbox),
            sum(len(message.body) for message in self.inbox),
        )

    def between(self, after: int, upto: int | None) -> list[Entry]:
        """The entries with `after < seq <= upto`."""
        stop = None if upto is None else max(0, upto - self.first + 1)
        return self.entries[max(0, after - self.first + 1) : stop]


class MemoryStore:
    """Keeps journals in memory, for tests, trials and runs that need not outlive the process."""

    def __init__(self, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        self.namespace = check_namespace(namespace)
        self.url = own_url("memory://", namespace)
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._keys: dict[bytes, str] = {}
        self._closed = False

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        for append in appends:
            check(append)
        with self._lock:
            self._check_open()
            return [self._apply(append) for append in appends]

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        with self._lock:
            found = self._find(run)
            return iter(found.between(after, upto) if found else ())

    def marks(self, run: str, before: int | None = None, limit: int | None = None) -> list[Mark]:
        with self._lock:
            found = self._find(run)
            entries = found.between(0, None if before is None else before - 1) if found else []
            marked = (
                Mark(entry.seq, entry.at, entry.mark, len(entry.body))
                for entry in reversed(entries)
                if entry.mark is not None
            )
            return list(islice(marked, limit))

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        with self._lock:
            found = self._find(run)
            if found is None:
                return None
            seqs = sorted(found.snapshots)
            index = len(seqs) if upto is None else bisect_right(seqs, upto)
            return found.snapshots[seqs[index - 1]] if index else None

    def runs(
        self,
        *,
        run: str | None = None,
        key: bytes | None = None,
        workflow: str | None = None,
        status: Sequence[str] | None = None,
        limit: int | None = None,
        prefix: str | None = None,
        before: float | None = None,
        parent: bytes | None = None,
    ) -> list[RunInfo]:
        with self._lock:
            self._check_open()
            infos = [stored.info for stored in self._runs.values()]
        return select(
            infos,
            run=run,
            key=key,
            workflow=workflow,
            status=status,
            limit=limit,
            prefix=prefix,
            before=before,
            parent=parent,
        )

    def prune(self, run: str, horizon: Snapshot, *, forks: Collection[bytes] | None = None) -> int:
        with self._lock:
            found = self._find(run)
            if found is None or not found.first <= horizon.seq <= found.head:
                return 0
            if self._has_other_forks(found, forks):
                return 0
            dropped = horizon.seq - found.first
            del found.entries[:dropped]
            found.first = horizon.seq
            kept = {seq: kept for seq, kept in found.snapshots.items() if seq > horizon.seq}
            found.snapshots = {horizon.seq: horizon, **kept}
            return dropped

    def delete(self, run: str, *, forks: Collection[bytes] | None = None) -> bool:
        with self._lock:
            found = self._find(run)
            if found is None or self._has_other_forks(found, forks):
                return False
            del self._runs[run], self._keys[found.info.key]
            return True

    def post(self, run: str, body: bytes) -> int:
        with self._lock:
            found = self._find(run)
            if found is None:
                raise StoreError(f"no run {run!r} is stored, so it has no inbox")
            number = len(found.inbox) + 1
            found.inbox.append(Message(number, clock.time(), body))
            return number

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        with self._lock:
            found = self._find(run)
            return found.inbox[max(0, after) :] if found else []

    def footprint(self) -> Footprint:
        """The store as a whole."""
        from holdfast.stores.usage import Footprint

        return Footprint("memory", "this process")

    def sizes(self) -> list[RunSize]:
        """How much each run holds."""
        with self._lock:
            self._check_open()
            return [run.size() for run in self._runs.values()]

    def mender(self) -> Mender:
        """What looks at the runs, whatever is wrong with them."""
        return _MemoryMender(self)

    def drop_snapshot(self, run: str, seq: int) -> None:
        """Remove a snapshot."""
        with self._lock:
            if (found := self._find(run)) is not None:
                found.snapshots.pop(seq, None)

    def void_message(self, run: str, number: int) -> None:
        """Put a message that says nothing at this number."""
        with self._lock:
            if (found := self._find(run)) is not None:
                others = [message for message in found.inbox if message.number != number]
                void = Message(number, 0.0, b"")
                found.inbox = sorted([*others, void], key=lambda message: message.number)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._runs.clear()
            self._keys.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("this memory store is closed; open a new one")

    def _has_other_forks(self, found: _Run, forks: Collection[bytes] | None) -> bool:
        infos = () if forks is None else (run.info for run in self._runs.values())
        return any(info.parent == found.info.key and info.key not in (forks or ()) for info in infos)

    def _find(self, run: str) -> _Run | None:
        self._check_open()
        return self._runs.get(run)

    def _apply(self, append: Append) -> Conflict | None:
        found = self._runs.get(append.run)
        if append.after == 0:
            assert append.info is not None
            if found is not None or append.info.key in self._keys:
                return Conflict(append.run, 0, found.head if found else None)
            found = self._runs[append.run] = _Run(append.info, pruned_before(append) + 1)
            self._keys[append.info.key] = append.run
        elif found is None or found.head != append.after:
            return Conflict(append.run, append.after, found.head if found else None)
        elif append.info is not None:
            found.info = replace(append.info, key=found.info.key)
        found.entries.extend(append.entries)
        found.snapshots.update((snapshot.seq, snapshot) for snapshot in append.snapshots)
        return None


class _MemoryMender(Mender):
    """Memory has no medium that could be damaged."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._memory = store

    def drop_snapshot(self, run: str, number: int, raw: bytes) -> None:
        found = self._memory.snapshot(run, number)
        if found is not None and (found.seq, found.body) == (number, raw):
            self._memory.drop_snapshot(run, number)

    def void_message(self, run: str, number: int) -> None:
        self._memory.void_message(run, number)


def select(
    infos: Iterable[RunInfo],
    *,
    run: str | None = None,
    key: bytes | None = None,
    workflow: str | None = None,
    status: Sequence[str] | None = None,
    limit: int | None = None,
    prefix: str | None = None,
    before: float | None = None,
    parent: bytes | None = None,
) -> list[RunInfo]:
    """Filter and order facts the way `Store.runs` promises."""
    matching = [
        info
        for info in infos
        if (run is None or info.run == run)
        and (key is None or info.key == key)
        and (workflow is None or info.workflow == workflow)
        and (status is None or info.status in status)
        and (prefix is None or info.run.startswith(prefix))
        and (before is None or info.updated_at < before)
        and (parent is None or info.parent == parent)
    ]
    return sorted(matching, key=lambda info: (-info.updated_at, info.run))[:limit]
