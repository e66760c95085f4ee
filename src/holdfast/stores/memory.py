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
    check_number,
    pruned_before,
)
from holdfast.stores.integrity import Mender
from holdfast.stores.namespaces import check_namespace, own_url
from holdfast.threads import locked

if TYPE_CHECKING:  # Few ask how much a store holds.
    from holdfast.stores.maintenance import Footprint, RunSize


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
        from holdfast.stores.maintenance import RunSize

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
        with self._lock: return self._commit(appends)  # fmt: skip  # noqa: E701

    def _commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        self._check_open()
        return [self._apply(append) for append in appends]

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        found = self._find(run)
        return iter(found.between(after, upto) if found else ())

    def marks(self, run: str, before: int | None = None, limit: int | None = None) -> list[Mark]:
        found = self._find(run)
        entries = found.between(0, None if before is None else before - 1) if found else []
        marked = (
            Mark(entry.seq, entry.at, entry.mark, len(entry.body))
            for entry in reversed(entries)
            if entry.mark is not None
        )
        return list(islice(marked, limit))

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
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
        self._check_open()
        return select(
            [stored.info for stored in self._all()],
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
        return locked(self._lock, self._prune, run, horizon, forks)

    def _prune(self, run: str, horizon: Snapshot, forks: Collection[bytes] | None) -> int:
        found = self._find(run)
        if found is None or not found.first <= horizon.seq <= found.head:
            return 0
        if self._has_other_forks(found, forks):
            return 0
        later = {seq: kept for seq, kept in found.snapshots.items() if seq > horizon.seq}
        self._runs[run] = replace(
            found,
            first=horizon.seq,
            entries=found.between(horizon.seq - 1, None),
            snapshots={horizon.seq: horizon, **later},
        )
        return horizon.seq - found.first

    def delete(self, run: str, *, forks: Collection[bytes] | None = None) -> bool:
        return locked(self._lock, self._delete, run, forks)

    def _delete(self, run: str, forks: Collection[bytes] | None) -> bool:
        found = self._find(run)
        if found is None or self._has_other_forks(found, forks):
            return False
        del self._runs[run]
        self._keys.pop(found.info.key, None)
        return True

    def post(self, run: str, body: bytes, number: int | None = None) -> int:
        return locked(self._lock, self._post, run, body, number)

    def _post(self, run: str, body: bytes, number: int | None) -> int:
        found = self._find(run)
        if found is None:
            raise StoreError(f"no run {run!r} is stored, so it has no inbox")
        last = len(found.inbox)
        check_number(run, number, last)
        found.inbox.append(Message(last + 1, clock.time(), body))
        return last + 1

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        found = self._find(run)
        return found.inbox[max(0, after) :] if found else []

    def footprint(self) -> Footprint:
        """The store as a whole."""
        from holdfast.stores.maintenance import Footprint

        return Footprint("memory", "this process")

    def sizes(self) -> list[RunSize]:
        """How much each run holds."""
        self._check_open()
        return [run.size() for run in self._all()]

    def mender(self) -> Mender:
        """What looks at the runs, whatever is wrong with them."""
        return _MemoryMender(self)

    def drop_snapshot(self, run: str, seq: int) -> None:
        """Remove a snapshot."""
        locked(self._lock, self._drop_snapshot, run, seq)

    def _drop_snapshot(self, run: str, seq: int) -> None:
        if (found := self._find(run)) is not None:
            kept = {other: snapshot for other, snapshot in found.snapshots.items() if other != seq}
            self._runs[run] = replace(found, snapshots=kept)

    def void_message(self, run: str, number: int) -> None:
        """Put a message that says nothing at this number."""
        locked(self._lock, self._void_message, run, number)

    def _void_message(self, run: str, number: int) -> None:
        if (found := self._find(run)) is not None:
            others = [message for message in found.inbox if message.number != number]
            void = Message(number, 0.0, b"")
            inbox = sorted([*others, void], key=lambda message: message.number)
            self._runs[run] = replace(found, inbox=inbox)

    def close(self) -> None:
        self._closed, self._runs = True, {}

    def _all(self) -> list[_Run]:
        """The runs as they are now, whatever is added or removed meanwhile."""
        return list(self._runs.copy().values())

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("this memory store is closed; open a new one")

    def _has_other_forks(self, found: _Run, forks: Collection[bytes] | None) -> bool:
        infos = () if forks is None else (run.info for run in self._all())
        return any(info.parent == found.info.key and info.key not in (forks or ()) for info in infos)

    def _find(self, run: str) -> _Run | None:
        self._check_open()
        return self._runs.get(run)

    def _apply(self, append: Append) -> Conflict | None:
        found = self._runs.get(append.run)
        if append.after == 0:
            assert append.info is not None
            if found is not None or self._has_key(append.info.key):
                return Conflict(append.run, 0, found.head if found else None)
            self._keys[append.info.key] = append.run
            found = _Run(append.info, pruned_before(append) + 1)
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
        """Whether a run has a key. What is remembered of keys may be of runs that are gone, or were never stored."""
        owner = self._runs.get(self._keys.get(key, ""))
        return owner is not None and owner.info.key == key


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
