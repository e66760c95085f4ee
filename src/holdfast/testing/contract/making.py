"""Small journals for the checks of a store."""

from __future__ import annotations

import hashlib

from holdfast.stores.base import Append, Conflict, Entry, RunInfo, Snapshot, Store


def entry(seq: int, body: bytes = b"", mark: bytes | None = b"mark") -> Entry:
    """An entry of that seq, with a body, a chain and a time that tell it from others."""
    return Entry(seq, float(seq), b"chain%d" % seq, body or b"body %d" % seq, mark)


def snapshot(seq: int) -> Snapshot:
    """A snapshot of that seq."""
    return Snapshot(seq, float(seq), b"chain%d" % seq, b"state at %d" % seq)


def info(run: str, **facts: object) -> RunInfo:
    """The facts of a run; its key is made of its id."""
    key = hashlib.sha256(run.encode()).digest()[:8]
    plain = {"key": key, "workflow": "w", "status": "running", "created_at": 1.0, "updated_at": 1.0}
    return RunInfo(run, **(plain | facts))  # type: ignore[arg-type]


def create(store: Store, run: str = "r", upto: int = 1, **facts: object) -> None:
    """Store a run with the entries 1 … `upto`, one append each."""
    assert store.commit([Append(run, 0, [entry(1)], info(run, **facts))]) == [None]
    for seq in range(2, upto + 1):
        assert store.commit([Append(run, seq - 1, [entry(seq)], durable=False)]) == [None]


def add(store: Store, run: str, after: int, count: int = 1) -> Conflict | None:
    """Append so many entries after a seq; the store's answer."""
    entries = [entry(after + 1 + index) for index in range(count)]
    return store.commit([Append(run, after, entries, durable=False)])[0]


def seqs(store: Store, run: str = "r", after: int = 0, upto: int | None = None) -> list[int]:
    """The seqs that a store has of a run."""
    return [entry.seq for entry in store.read(run, after, upto)]
