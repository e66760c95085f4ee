"""Dropping the past of a journal, or all of it, so that the forks that are read through it stay whole."""

from __future__ import annotations

from holdfast.data.codec import TolerantCodec
from holdfast.errors import CorruptJournal, HoldfastError
from holdfast.journal.journal import Journal
from holdfast.stores.base import Append, RunInfo, Snapshot


def prune_run(journal: Journal, info: RunInfo, horizon: int) -> int:
    """Keep a run's journal from the checkpoint at `horizon` on; answer how many entries went."""
    codec, store = TolerantCodec(), journal.store
    snapshot = journal.make_snapshot(journal.load(info, codec, horizon), codec)
    while True:
        forks = free_forks(journal, info, horizon)
        dropped = store.prune(info.run, snapshot, forks=forks)
        if dropped or all(fork.key in forks for fork in store.runs(parent=info.key)):
            return dropped


def delete_run(journal: Journal, run: str) -> bool:
    """Remove a run and all that belongs to it; `False` if there was none."""
    store = journal.store
    for _ in range(_PATIENCE):
        found = store.runs(run=run)
        if not found:
            return False
        if store.delete(run, forks=free_forks(journal, found[0])):
            return True
    raise HoldfastError(f"run {run!r} is forked so fast that it cannot be deleted; try again")


def free_forks(journal: Journal, parent: RunInfo, below: int | None = None) -> set[bytes]:
    """Give every fork of a run, or those from before entry `below`, a snapshot of its own to begin with.

    Answers the keys of all forks there were.
    """
    store, codec, keys = journal.store, TolerantCodec(), set[bytes]()
    for info in store.runs(parent=parent.key):
        keys.add(info.key)
        first = next(iter(store.read(info.run, 0, 1)), None)
        fork = None if first is None else journal.fork_of(info, first, codec)
        if fork is None or (below is not None and fork.seq >= below):
            continue
        own = store.snapshot(info.run, 1)
        if own is not None:
            continue
        try:
            snapshot = journal.materialised(info, codec)
        except CorruptJournal:
            continue  # It could not be read before, either; there is nothing left to save.
        if snapshot is not None:
            add_snapshot(journal, info.run, snapshot)
    return keys


def add_snapshot(journal: Journal, run: str, snapshot: Snapshot) -> None:
    """Store a snapshot beside a journal that others may be appending to."""
    head = snapshot.seq
    for _ in range(_PATIENCE):
        (conflict,) = journal.store.commit([Append(run, head, (), snapshots=(snapshot,))])
        if conflict is None or conflict.head is None:
            return
        head = conflict.head
    raise HoldfastError(f"run {run!r} is written to so fast that it cannot be made independent; try again")


_PATIENCE = 10_000
