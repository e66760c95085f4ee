"""The runs that a run is related to: who was forked from whom, where, how each stands and what it cost."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from holdfast.errors import CorruptJournal, HoldfastError, problem_of
from holdfast.journal.checkpoint_ids import checkpoint_id, read_mark
from holdfast.journal.journal import Journal, verified
from holdfast.journal.records import MovedOn, Record
from holdfast.journal.run_state import RunState, Spending
from holdfast.stores.base import Entry, RunInfo
from holdfast.views.plain import CODEC, LenientCodec, View, when
from holdfast.views.usage import total

MOST_MEMBERS = 1000
"""How many relatives are told of."""


@dataclass(frozen=True, slots=True)
class Branch(View):
    """Where a run was forked from its parent."""

    run_id: str
    seq: int
    checkpoint_id: str = ""
    wave: int | None = None
    """After which wave of the parent; unknown if the parent is gone or pruned."""
    nodes: tuple[str, ...] = ()
    is_there: bool = True
    """Whether the parent is still stored."""


@dataclass(frozen=True, slots=True)
class Member(View):
    """A run of a family. `depth` is 0 for the eldest, 1 for its forks, and so on."""

    JSON: ClassVar[str] = (
        "run_id workflow=info.workflow status depth parent=branch started_at seconds *spending "
        "tags=info.tags problem"
    )
    info: RunInfo
    depth: int
    branch: Branch | None
    spending: Spending
    """What it used up itself, after it was forked."""
    seconds: float
    problem: str = ""
    """Why nothing more can be told of it."""

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.info.run

    @property
    def started_at(self) -> dt.datetime:
        """When it began."""
        return when(self.info.created_at)

    @property
    def status(self) -> str:
        """How it stands."""
        return self.info.status


@dataclass(frozen=True, slots=True)
class Family(View):
    """A run with all that it comes from and all that comes from those: parents before their forks."""

    run_id: str
    members: tuple[Member, ...]
    more: bool = False
    """Whether there are relatives that are not told of."""

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, run_id: str) -> Member:
        for member in self.members:
            if member.run_id == run_id:
                return member
        raise KeyError(run_id)

    def forks_of(self, run_id: str) -> list[str]:
        """The runs that were forked from a run, oldest first."""
        return [
            each.run_id for each in self.members if each.branch is not None and each.branch.run_id == run_id
        ]


def family(journal: Journal, info: RunInfo) -> Family:
    """All relatives of a run that are stored; of a parent that is not, what its forks know of it."""
    members: list[Member] = []
    # A stack instead of recursion: forks of forks may be nested without end.
    left = [(each, 0) for each in _eldest(journal, info)]
    seen: set[bytes] = set()
    while left and len(members) < MOST_MEMBERS:
        each, depth = left.pop()
        if each.key in seen:
            continue
        seen.add(each.key)
        members.append(_member(journal, each, depth))
        children = sorted(
            journal.store.runs(parent=each.key), key=lambda child: child.created_at, reverse=True
        )
        left += [(child, depth + 1) for child in children]
    return Family(info.run, tuple(members), bool(left))


def _eldest(journal: Journal, info: RunInfo) -> list[RunInfo]:
    """The run that all come from; if it is gone, those that were forked from it."""
    seen, store = {info.key}, journal.store
    while info.parent and info.parent not in seen:
        found = store.runs(key=info.parent)
        if not found:
            return sorted(store.runs(parent=info.parent), key=lambda each: each.created_at, reverse=True)
        info = found[0]
        seen.add(info.key)
    return [info]


def _member(journal: Journal, info: RunInfo, depth: int) -> Member:
    try:
        run = journal.load(info, CODEC).run
    except HoldfastError as error:
        return Member(info, depth, None, Spending(), 0.0, problem_of(error))
    before = total(*run.inherited.values())
    spent = total(*run.spending.values())
    own = Spending(
        spent.calls - before.calls,
        spent.input_tokens - before.input_tokens,
        spent.output_tokens - before.output_tokens,
        spent.cost - before.cost,
        spent.unpriced - before.unpriced,
    )
    return Member(info, depth, branch_of(journal, info, run), own, run.seconds)


def branch_of(journal: Journal, info: RunInfo, run: RunState) -> Branch | None:
    """Where a run was forked from another, as far as that is still known."""
    if run.parent is None:
        return None
    name, seq = run.parent
    found = journal.store.runs(key=info.parent) if info.parent else journal.store.runs(run=name)
    if not found:
        return Branch(name, seq, is_there=False)
    parent = found[0]
    marks = journal.store.marks(parent.run, seq + 1, 1)
    if not marks or marks[0].seq != seq:
        return Branch(parent.run, seq)
    point = read_mark(parent.key, marks[0], parent.run)
    return Branch(parent.run, seq, checkpoint_id(parent.key, seq), point.run_wave, point.nodes)


# Where a run comes from: the journals that its history leads through, and where two histories part.


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
