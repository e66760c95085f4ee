"""Dropping the past of a journal, or all of it, so that the forks that are read through it stay whole."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from holdfast.data.codec import TolerantCodec
from holdfast.errors import CodecError, CommandRefused, CorruptJournal, HoldfastError
from holdfast.journal.bodies import is_sealed
from holdfast.journal.journal import Journal
from holdfast.stores.base import Append, RunInfo, Snapshot, Store
from holdfast.values import RunStatus


def prune_run(journal: Journal, info: RunInfo, horizon: int) -> int:
    """Keep a run's journal from the checkpoint at `horizon` on; answer how many entries went.

    It is kept from an earlier one on if there is a run that is to be given, instead of running them, steps that were
    finished before.
    """
    codec, store = TolerantCodec(), journal.store
    horizon = held_back(journal, info, horizon)
    if not horizon:
        return 0
    snapshot = journal.make_snapshot(journal.load(info, codec, horizon), codec)
    while True:
        forks = free_forks(journal, info, horizon)
        dropped = store.prune(info.run, snapshot, forks=forks)
        if dropped or all(fork.key in forks for fork in store.runs(parent=info.key)):
            return dropped


def held_back(journal: Journal, info: RunInfo, horizon: int) -> int:
    """The checkpoint, `horizon` or an earlier one, up to which nothing of a run is needed; 0 if there is none."""
    needed = min(_needs(journal, info).values(), default=horizon)
    if needed >= horizon:
        return horizon
    marks = journal.store.marks(info.run, needed + 1, 1)
    return marks[0].seq if marks else 0


def needed_by(journal: Journal, info: RunInfo) -> list[str]:
    """The other runs, not finished, that are to be given steps that this one has finished."""
    return [run for run in _needs(journal, info) if run != info.run]


def _needs(journal: Journal, info: RunInfo) -> dict[str, int]:
    """By unfinished run that goes on with what this one, or it itself, has finished: the entry after which that is."""
    found, codec = dict[str, int](), TolerantCodec()
    for other in _family(journal.store, info):
        if other.status == RunStatus.COMPLETED:
            continue
        try:
            reuse = journal.load(other, codec).run.reuse
        except (CodecError, CorruptJournal):
            continue
        seqs = [seq for key, seq in reuse.needs if (key or other.key) == info.key] if reuse else []
        if seqs:
            found[other.run] = min(seqs)
    return found


def _family(store: Store, info: RunInfo) -> Iterator[RunInfo]:
    """A run, those that it was forked from, directly or not, and all that were forked from these."""
    first, climbed = info.key, {info.key}
    above = info
    while above.parent and above.parent not in climbed:
        first = above.parent
        climbed.add(first)
        parents = store.runs(key=first)
        if not parents:
            break
        above = parents[0]
    else:
        yield above
    todo, seen = [first], {first}
    while todo:
        for other in store.runs(parent=todo.pop()):
            if other.key not in seen:
                seen.add(other.key)
                todo.append(other.key)
                yield other


def delete_run(journal: Journal, run: str, *, going: Collection[str] | None = ()) -> bool:
    """Remove a run and all that belongs to it; `False` if there was none.

    It is refused as long as there is a run that is to be given steps that this one has finished, unless that is one of
    those that are `going`, too. Without these it goes whatever needs it.
    """
    store = journal.store
    for _ in range(_PATIENCE):
        found = store.runs(run=run)
        if not found:
            return False
        needing = (
            [] if going is None else [name for name in needed_by(journal, found[0]) if name not in going]
        )
        if needing:
            raise CommandRefused(
                f"run {run!r} is still needed: run {needing[0]!r}, which is not finished, is to be given steps that "
                "this one has finished; resume that one, or delete it first"
            )
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
        try:
            if not _is_bound(journal, info, parent, below):
                continue
            snapshot = journal.materialised(info, codec)
        except CorruptJournal:
            continue  # It could not be read before, either; there is nothing left to save.
        if snapshot is not None:
            add_snapshot(journal, info.run, snapshot)
    return keys


def _is_bound(journal: Journal, info: RunInfo, parent: RunInfo, below: int | None) -> bool:
    """Whether a run is read through what goes of its parent: it has no snapshot, and refers to an entry below."""
    first = next(iter(journal.store.read(info.run, 0, 1)), None)
    if first is None or journal.store.snapshot(info.run, 1) is not None:
        return False
    try:
        fork = journal.fork_of(info, first, TolerantCodec())
    except CodecError as error:
        raise CodecError(
            f"run {parent.run!r} may be what its fork {info.run!r} is read through, and that one is encrypted: "
            f"{error}; or delete the fork first"
        ) from None
    # What is kept of the parent may begin with a snapshot in the clear, through which a sealed fork is not read.
    return fork is not None and (below is None or fork.seq < below or is_sealed(first.body))


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
