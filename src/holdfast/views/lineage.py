"""Where a run comes from: the journals that its history leads through, and where two histories part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.errors import CorruptJournal
from holdfast.journal.journal import Journal, verified
from holdfast.journal.records import MovedOn, Record
from holdfast.stores.base import Entry, RunInfo
from holdfast.views.plain import LenientCodec


class Stretch(NamedTuple):
    """The part of a run's journal that a history leads through: up to and with entry `upto`, or to its end.

    Without `info` the run is no longer stored.
    """

    name: str
    key: bytes
    info: RunInfo | None
    upto: int | None


class Parting(NamedTuple):
    """The last entry that two histories have in common, and the stretches of each from there on, oldest first."""

    name: str
    info: RunInfo | None
    seq: int
    ones: list[Stretch]
    others: list[Stretch]


def lineage(journal: Journal, info: RunInfo, upto: int | None, codec: LenientCodec) -> list[Stretch]:
    """The journals that a run's history leads through, its own first."""
    found = [Stretch(info.run, info.key, info, upto)]
    seen = {info.key}
    while (origin := _origin(journal, info, codec)) is not None:
        name, seq = origin
        parents = journal.store.runs(key=info.parent) if info.parent else journal.store.runs(run=name)
        parent = parents[0] if parents else None
        key = parent.key if parent is not None else info.parent
        found.append(Stretch(name if parent is None else parent.run, key, parent, seq))
        if parent is None or key in seen:
            break
        seen.add(key)
        info = parent
    return found


def _origin(journal: Journal, info: RunInfo, codec: LenientCodec) -> tuple[str, int] | None:
    first = next(iter(journal.store.read(info.run)), None)
    if first is None:
        return None
    fork = journal.fork_of(info, first, codec)
    if fork is not None:
        return fork.parent, fork.seq
    return journal.load(info, codec, first.seq).run.parent


def parting(journal: Journal, ones: list[Stretch], others: list[Stretch]) -> Parting | None:
    """Where two histories part; `None` if they have nothing in common."""
    for place, mine in enumerate(ones):
        for number, theirs in enumerate(others):
            if mine.key and mine.key == theirs.key:
                ends = [end for end in (mine.upto, theirs.upto) if end is not None]
                seq = min(ends) if ends else _head(journal, mine)
                return Parting(mine.name, mine.info, seq, ones[place::-1], others[number::-1])
    return None


def _head(journal: Journal, stretch: Stretch) -> int:
    last = 0
    newest = journal.store.marks(stretch.name, limit=1)
    for entry in journal.store.read(stretch.name, newest[0].seq - 1 if newest else 0):
        last = entry.seq
    return last


def entries_of(
    journal: Journal, stretch: Stretch, after: int, codec: LenientCodec
) -> Iterator[tuple[Entry, list[Record]]]:
    """The entries of a stretch after one that is given, with their records; `CorruptJournal` if they are gone."""
    info = stretch.info
    if info is None:
        raise CorruptJournal(f"run {stretch.name!r} is gone", run=stretch.name)
    if after == 0:
        _, found = journal.history(info, codec, stretch.upto)
        yield from found
        return
    loaded = journal.load(info, codec, after)
    for entry in verified(journal.store, info.run, loaded.seq, loaded.chain, loaded.sealed, stretch.upto):
        records = journal.records(info, entry, loaded.track, codec)
        yield entry, [part for record in records for part in _parts(record)]


def _parts(record: Record) -> tuple[Record, ...]:
    return record.parts() if isinstance(record, MovedOn) else (record,)
