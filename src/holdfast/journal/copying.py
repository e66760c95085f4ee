"""Copying a run's journal to another store: byte for byte, every checksum verified, only what is missing.

Into another namespace, what is sealed is sealed anew: `seen_from` is the source that is then copied byte for byte.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from holdfast import clock
from holdfast.data.seal import Seal
from holdfast.errors import CorruptJournal, StoreError
from holdfast.journal.bodies import Bodies, is_sealed
from holdfast.journal.journal import genesis, is_whole, link, misplaced, verified
from holdfast.journal.records import Fault, RunEnded
from holdfast.journal.resealed import Resealed
from holdfast.journal.wire import Track
from holdfast.journal.wire_records import encode_records
from holdfast.stores.base import (
    PAGE_BYTES,
    PAGE_ENTRIES,
    Append,
    Entry,
    Message,
    Readable,
    RunInfo,
    Snapshot,
    Store,
    namespace_of,
)
from holdfast.values import RunStatus

COPIED = encode_records(
    [RunEnded(RunStatus.INTERRUPTED, Fault("Copied", "this is a copy of a run that was under way"))], Track()
)
"""What a copy of a run that was under way ends in, so that it can be taken up."""

MOVED = encode_records([RunEnded(RunStatus.CANCELLED, Fault("Moved", "it is now in another store"))], Track())
"""What a run ends in that is complete in another store and about to be deleted here."""


class Standing(Enum):
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
    """What seals and opens the bodies of a run in a store."""
    return Bodies(seal, namespace_of(store), info.run, info.key)


def seen_from(source: Store, target: Store, info: RunInfo, seal: Seal | None) -> Store | Resealed:
    """A run of the source as the target would have it."""
    there = namespace_of(target)
    return source if namespace_of(source) == there else Resealed(source, info, there, seal)


def last_entry(store: Readable, run: str) -> Entry | None:
    """The newest entry of a run."""
    newest = store.marks(run, limit=1)
    last = None
    for entry in store.read(run, newest[0].seq - 1 if newest else 0):
        last = entry
    return last


def ending(before: Entry, body: bytes, bodies: Bodies) -> Entry:
    """An entry that follows another and ends a run; it is sealed if that is, which takes the key."""
    at, seq = clock.time(), before.seq + 1
    body = bodies.seal_like(before, at, body)
    return Entry(seq, at, link(before.chain, seq, at, None, body), body)


def compare(
    here: Readable, there: Store, info: RunInfo, last: Entry, seal: Seal | None
) -> tuple[Standing, Entry | None]:
    """How a run stands in another store, and its last entry there; `last` is the last one here.

    A chain is a checksum of all that came before, so one that both have is a history that both have.
    """
    run, found = info.run, there.runs(run=info.run)
    if not found:
        return (Standing.OTHER if there.runs(key=info.key) else Standing.ABSENT), None
    theirs = last_entry(there, run)
    if theirs is None or found[0].key != info.key:
        return Standing.OTHER, theirs
    if theirs.chain == last.chain:
        return Standing.SAME, theirs
    if _chain_at(here, run, theirs.seq) == theirs.chain:
        return Standing.BEHIND, theirs
    if bodies_in(there, info, seal).says(theirs, COPIED) and _agree(here, there, run, theirs.seq - 1):
        return Standing.MARKED, theirs
    if theirs.seq > last.seq and _chain_at(there, run, last.seq) == last.chain:
        return Standing.AHEAD, theirs
    return Standing.OTHER, theirs


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
        facts, status=RunStatus.INTERRUPTED.value, queue="", due_at=None, driver=""
    )
    for page, is_last in _pages(parts):
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
    facts = dataclasses.replace(info, status=RunStatus.CANCELLED.value, driver="", updated_at=clock.time())
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

    Those of its own get new ones, for which they are sealed anew.
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
    """The messages that only the target has, and whether they are where others of the source belong.

    Journals tell messages by their numbers, so that then the copy has to be made anew, and its own messages come last.
    """
    theirs = target.inbox(run)
    numbered = {message.number: message.body for message in source.inbox(run)} if theirs else {}
    own = [message for message in theirs if numbered.get(message.number) != message.body]
    return own, any(message.number in numbered for message in own)


def _whole(store: Readable, info: RunInfo) -> Iterator[Entry]:
    """All entries of a run, from its beginning or, if it was pruned, its horizon on."""
    first = next(iter(store.read(info.run, 0)), None)
    if first is None or first.seq == 1:
        yield from verified(store, info.run, 0, genesis(info.run, info.key), sealed=False)
    else:
        yield first
        yield from _following(store, info.run, first)


def _following(store: Readable, run: str, entry: Entry) -> Iterator[Entry]:
    return verified(store, run, entry.seq, entry.chain, is_sealed(entry.body))


def _pages(entries: Iterable[Entry]) -> Iterator[tuple[list[Entry], bool]]:
    """The entries page by page, each with whether it is the last; an empty page if there are none."""
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
    """The snapshots that belong to a page. A damaged one is left out: it is only a cache."""
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
