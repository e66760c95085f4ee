"""Copying a run's journal to another store: byte for byte, every checksum verified, only what is missing.

Into another namespace, what is sealed is resealed: `seen_from` is the source that is then copied byte for byte.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from typing import NamedTuple, Unpack

from holdfast import clock
from holdfast.errors import CodecError, CommandRefused, CorruptJournal, HoldfastError, StoreError
from holdfast.journal.encoding import Track, encode_records
from holdfast.journal.journal import Journal, break_at, genesis, is_whole, link, misplaced, verified
from holdfast.journal.records import Fault, RunEnded
from holdfast.journal.sealing import CHAIN_BYTES, Bodies, Seal, is_sealed
from holdfast.state.codec import TolerantCodec
from holdfast.stores.base import (
    PAGE_BYTES,
    PAGE_ENTRIES,
    Append,
    Entry,
    Message,
    Readable,
    RunFilter,
    RunInfo,
    Snapshot,
    Store,
    StoredCheckpoint,
    namespace_of,
)
from holdfast.values import RunStatus

# A run as it is in another namespace: what is sealed is resealed for that one.


_REMEMBERED = 1000
"""After so many entries each the chains are remembered, so that reading on does not start at the beginning."""


class _Chains(NamedTuple):
    """The chain of an entry, here and there, and whether the entry is sealed."""

    here: bytes
    there: bytes
    sealed: bool


class Resealed:
    """Reads one run of a store as another namespace has it. Resealing gives the same bytes every time.

    That takes the key; a run that is not sealed is the same everywhere.
    """

    def __init__(self, inner: Readable, info: RunInfo, namespace: str, seal: Seal | None) -> None:
        self.url, self.namespace = inner.url, namespace
        self._inner, self._info = inner, info
        self._here = Bodies(seal, namespace_of(inner), info.run, info.key)
        self._there = Bodies(seal, namespace, info.run, info.key)
        self._known: dict[int, _Chains] = {}

    def runs(self, **wanted: Unpack[RunFilter]) -> list[RunInfo]:
        """Do as the store does."""
        return self._inner.runs(**wanted)

    def checkpoints(
        self, run: str, before: int | None = None, limit: int | None = None
    ) -> list[StoredCheckpoint]:
        """Do as the store does."""
        return self._inner.checkpoints(run, before, limit)

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        """Yield the entries of the run, each checked against its predecessor."""
        start = max(0, after) // _REMEMBERED * _REMEMBERED
        chains = self._known.get(start)
        for entry in self._inner.read(run, start if chains else 0, upto):
            own = self._moved(entry, chains)
            chains = _Chains(entry.chain, own.chain, is_sealed(entry.body))
            if entry.seq % _REMEMBERED == 0:
                self._known[entry.seq] = chains
            if entry.seq > after:
                yield own

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        """Return the newest snapshot with `seq <= upto`."""
        found = self._inner.snapshot(run, upto)
        return None if found is None else self.moved_snapshot(found)

    def moved_snapshot(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot of the run, as it is there."""
        run, seq = self._info.run, snapshot.seq
        own = next(iter(self.read(run, seq - 1, seq)), None)
        if own is None:
            raise CorruptJournal(f"run {run!r}: entry {seq} is missing", run=run, seq=seq)
        body = self._here.reseal_snapshot(snapshot, self._there, own.chain)
        return dataclasses.replace(snapshot, chain=own.chain, body=body)

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        """Return the messages with `number > after`, in order."""
        return [
            dataclasses.replace(each, body=self._here.reseal_message(each, self._there, each.number))
            for each in self._inner.inbox(run, after)
        ]

    def _moved(self, entry: Entry, before: _Chains | None) -> Entry:
        """Return an entry that follows one with these chains; the first of a pruned run follows none that is there."""
        seq, at, _, body, mark = entry
        if before is None:
            if seq > 1 and not is_sealed(body):
                return entry
            start = genesis(self._info.run, self._info.key) if seq == 1 else body[1 : 1 + CHAIN_BYTES]
            before = _Chains(start, start, sealed=False)
        if broken := break_at(before.here, before.sealed, entry):
            raise CorruptJournal(f"run {self._info.run!r}: {broken}", run=self._info.run, seq=seq)
        if not is_sealed(body):
            return entry
        body = self._here.reseal_entry(entry, self._there, before.there, mark)
        return Entry(seq, at, link(before.there, seq, at, mark, body), body, mark)


COPIED = encode_records(
    [RunEnded(RunStatus.INTERRUPTED, Fault("Copied", "this is a copy of a run that was under way"))], Track()
)
"""What a copy of a run that was under way ends in, so that it can be resumed."""

MOVED = encode_records([RunEnded(RunStatus.CANCELLED, Fault("Moved", "it is now in another store"))], Track())
"""What a run ends in that is complete in another store and about to be deleted here."""


class Relation(Enum):
    """How a run in another store compares with the same run here."""

    ABSENT = "there is no such run"
    BEHIND = "it has the beginning of the history here"
    SAME = "it has the same history"
    MARKED = "it has no more than a beginning of it, and the end of a copy"
    AHEAD = "it has the history here, and more"
    OTHER = "it has another history"


class Brought(NamedTuple):
    """What a copy added: so many entries and bytes.

    `last` is the copy's last entry, `shared` the last that both have.
    """

    last: Entry
    shared: Entry
    entries: int = 0
    size: int = 0


def bodies_in(store: Readable, info: RunInfo, seal: Seal | None) -> Bodies:
    """Return what seals and opens the bodies of a run in a store."""
    return Bodies(seal, namespace_of(store), info.run, info.key)


def seen_from(source: Store, target: Store, info: RunInfo, seal: Seal | None) -> Store | Resealed:
    """Return a run of the source as the target would have it."""
    there = namespace_of(target)
    return source if namespace_of(source) == there else Resealed(source, info, there, seal)


def last_entry(store: Readable, run: str) -> Entry | None:
    """Return the newest entry of a run."""
    newest = store.checkpoints(run, limit=1)
    last = None
    for entry in store.read(run, newest[0].seq - 1 if newest else 0):
        last = entry
    return last


def ending(before: Entry, body: bytes, bodies: Bodies) -> Entry:
    """Return an entry that follows another and ends a run; it is sealed if that is, which takes the key."""
    at, seq = clock.time(), before.seq + 1
    body = bodies.seal_like(before, at, body)
    return Entry(seq, at, link(before.chain, seq, at, None, body), body)


def compare(
    here: Readable, there: Store, info: RunInfo, last: Entry, seal: Seal | None
) -> tuple[Relation, Entry | None]:
    """Return how a run stands in another store, and its last entry there; `last` is the last one here.

    A chain is a checksum of all that came before, so one that both have is a history that both have.
    """
    run, found = info.run, there.runs(run=info.run)
    if not found:
        return (Relation.OTHER if there.runs(key=info.key) else Relation.ABSENT), None
    theirs = last_entry(there, run)
    if theirs is None or found[0].key != info.key:
        return Relation.OTHER, theirs
    if theirs.chain == last.chain:
        return Relation.SAME, theirs
    if _chain_at(here, run, theirs.seq) == theirs.chain:
        return Relation.BEHIND, theirs
    if bodies_in(there, info, seal).says(theirs, COPIED) and _agree(here, there, run, theirs.seq - 1):
        return Relation.MARKED, theirs
    if theirs.seq > last.seq and _chain_at(there, run, last.seq) == last.chain:
        return Relation.AHEAD, theirs
    return Relation.OTHER, theirs


def _agree(here: Readable, there: Readable, run: str, seq: int) -> bool:
    chain = _chain_at(there, run, seq)
    return chain is not None and chain == _chain_at(here, run, seq)


def _chain_at(store: Readable, run: str, seq: int) -> bytes | None:
    return next((entry.chain for entry in store.read(run, seq - 1, seq)), None)


def bring(
    source: Readable,
    target: Store,
    info: RunInfo,
    after: Entry | None,
    facts: RunInfo,
    end: bytes | None = None,
    beginning: Snapshot | None = None,
    seal: Seal | None = None,
) -> Brought:
    """Copy what follows `after`, the target's last entry, or the whole run, and then give it its `facts`.

    `beginning` is the snapshot that the run cannot be read without where its parent is not. `end` is the body of an
    entry to end the copy with. Until all is there, the copy is an interrupted run of no queue. A damaged journal raises
    `CorruptJournal`, a copy that somebody else changes a `Conflict`.
    """
    bodies = bodies_in(target, info, seal)
    parts = _whole(source, info) if after is None else _following(source, info.run, after)
    last, shared, entries, size = after, after, 0, 0
    unfinished = dataclasses.replace(
        facts, status=RunStatus.INTERRUPTED.value, queue="", due_at=None, owner=""
    )
    for page, is_last in pages(parts):
        snapshots = _snapshots(source, info.run, page)
        if beginning is not None and page and all(own.seq != page[0].seq for own in snapshots):
            snapshots, beginning = [beginning, *snapshots], None
        before, last = last, page[-1] if page else last
        if last is None:
            raise CorruptJournal(f"run {info.run!r} has no entries", run=info.run, seq=1)
        shared = last
        if seal is not None and seal.required:
            for entry in page:
                bodies.open_entry(entry)
        if is_last and end is not None:
            page = [*page, last := ending(last, end, bodies)]
        _check_beginning(info.run, before, page, snapshots)
        _commit(target, info.run, before, page, facts if is_last else unfinished, snapshots)
        entries, size = entries + len(page), size + sum(len(entry.body) for entry in page)
    assert last is not None and shared is not None
    return Brought(last, shared, entries, size)


def change_facts(store: Store, facts: RunInfo, last: Entry) -> None:
    """Replace the facts of a run that ends with `last`; one that ends otherwise raises `Conflict`."""
    _commit(store, facts.run, last, [], facts)


def close_run(store: Store, info: RunInfo, last: Entry, seal: Seal | None) -> None:
    """End a run that is complete elsewhere, so that nobody can advance it here; a `Conflict` if somebody did."""
    facts = dataclasses.replace(info, status=RunStatus.CANCELLED.value, owner="", updated_at=clock.time())
    _commit(store, info.run, last, [ending(last, MOVED, bodies_in(store, info, seal))], facts)


def check_copy(store: Store, info: RunInfo, last: Entry) -> None:
    """Read a copy back; raise `StoreError` unless it is whole up to `last`."""
    with contextlib.suppress(CorruptJournal):
        for entry in _whole(store, info):
            if entry.seq == last.seq and entry.chain == last.chain:
                return
    raise StoreError(f"run {info.run!r} is not in {store.url} as it was copied; it stays where it was")


def check_whole(store: Readable, info: RunInfo) -> None:
    """Raise `CorruptJournal` unless every entry of a run is as it was written."""
    for _ in _whole(store, info):
        pass


def bring_messages(
    source: Readable, target: Store, info: RunInfo, own: Iterable[Message] = (), seal: Seal | None = None
) -> int:
    """Copy the messages that the target's inbox lacks, and then its `own`; answer how many. They keep their numbers.

    Those of its own get new ones, for which they are resealed.
    """
    run, bodies = info.run, bodies_in(target, info, seal)
    there = target.inbox(run)
    lacking = source.inbox(run, there[-1].number if there else 0)
    for message in lacking:
        target.post(run, message.body)
    number = lacking[-1].number if lacking else there[-1].number if there else 0
    own = list(own)
    for place, message in enumerate(own, number + 1):
        target.post(run, bodies.reseal_message(message, bodies, place), place)
    return len(lacking) + len(own)


def own_messages(source: Readable, target: Store, run: str) -> tuple[list[Message], bool]:
    """Return the messages that only the target has, and whether they are where others of the source belong.

    Journals tell messages by their numbers, so that then the copy has to be made again, and its own messages come last.
    """
    theirs = target.inbox(run)
    numbered = {message.number: message.body for message in source.inbox(run)} if theirs else {}
    own = [message for message in theirs if numbered.get(message.number) != message.body]
    return own, any(message.number in numbered for message in own)


def _whole(store: Readable, info: RunInfo) -> Iterator[Entry]:
    """Yield all entries of a run, from its beginning or, if it was pruned, its horizon on."""
    first = next(iter(store.read(info.run, 0)), None)
    if first is None or first.seq == 1:
        yield from verified(store, info.run, 0, genesis(info.run, info.key), sealed=False)
    else:
        yield first
        yield from _following(store, info.run, first)


def _following(store: Readable, run: str, entry: Entry) -> Iterator[Entry]:
    return verified(store, run, entry.seq, entry.chain, is_sealed(entry.body))


def pages(entries: Iterable[Entry]) -> Iterator[tuple[list[Entry], bool]]:
    """Yield the entries page by page, each with whether it is the last; an empty page if there are none."""
    page: list[Entry] = []
    size = 0
    for entry in entries:
        if len(page) >= PAGE_ENTRIES or size >= PAGE_BYTES:
            yield page, False
            page, size = [], 0
        page.append(entry)
        size += len(entry.body)
    yield page, True


def _snapshots(source: Readable, run: str, page: list[Entry]) -> list[Snapshot]:
    """Return the snapshots that belong to a page. A damaged one is left out: it is only a cache."""
    entries = {entry.seq: entry for entry in page}
    found: list[Snapshot] = []
    upto = page[-1].seq if page else 0
    while upto:
        try:
            snapshot = source.snapshot(run, upto)
        except CorruptJournal:
            break
        if snapshot is None or snapshot.seq not in entries:
            break
        if not misplaced(snapshot, entries[snapshot.seq]) and is_whole(snapshot):
            found.append(snapshot)
        upto = snapshot.seq - 1
    return found[::-1]


def _check_beginning(run: str, before: Entry | None, page: list[Entry], snapshots: list[Snapshot]) -> None:
    """Below a pruned horizon its snapshot is no cache but the record."""
    first = page[0].seq if page else 1
    if before is None and first > 1 and all(snapshot.seq != first for snapshot in snapshots):
        raise CorruptJournal(
            f"run {run!r}: the snapshot at {first}, before which it was pruned, is missing or damaged",
            run=run,
            seq=first,
        )


def _commit(
    store: Store,
    run: str,
    before: Entry | None,
    page: list[Entry],
    facts: RunInfo,
    snapshots: Iterable[Snapshot] = (),
) -> None:
    after, chain = (before.seq, before.chain) if before is not None else (0, b"")
    (conflict,) = store.commit([Append(run, after, page, facts, tuple(snapshots), link=chain)])
    if conflict is not None:
        raise conflict


# Dropping the past of a journal, or all of it, so that the forks that are read through it stay whole.


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
    """Return the checkpoint, at most `horizon`, before which nothing of a run is needed; 0 if there is none."""
    needed = min(_needs(journal, info).values(), default=horizon)
    if needed >= horizon:
        return horizon
    checkpoints = journal.store.checkpoints(info.run, needed + 1, 1)
    return checkpoints[0].seq if checkpoints else 0


def needed_by(journal: Journal, info: RunInfo) -> list[str]:
    """Return the other runs, not finished, that are to be given steps that this one has finished."""
    return [run for run in _needs(journal, info) if run != info.run]


def _needs(journal: Journal, info: RunInfo) -> dict[str, int]:
    """Return, by unfinished run that reuses results of this one, the entry after which these are."""
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
    """Yield a run, those that it was forked from, directly or not, and all that were forked from these."""
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
    for _ in range(_TRIES):
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
    """Return whether a fork is read through entries of its parent that go: it has no snapshot of its own."""
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
    for _ in range(_TRIES):
        (conflict,) = journal.store.commit([Append(run, head, (), snapshots=(snapshot,))])
        if conflict is None or conflict.head is None:
            return
        head = conflict.head
    raise HoldfastError(f"run {run!r} is written to so fast that it cannot be made independent; try again")


_TRIES = 10_000
