"""The runs that a run is related to: which was forked from which, where, its status and its cost."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from holdfast.errors import HoldfastError, problem_of
from holdfast.journal.checkpoint_ids import checkpoint_id, decode_checkpoint
from holdfast.journal.journal import Journal
from holdfast.journal.run_state import Spending
from holdfast.stores.base import RunInfo, Store
from holdfast.views.charges import less, total
from holdfast.views.plain import CODEC, View, when

MOST_MEMBERS = 1000
"""How many relatives are listed."""


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

    @classmethod
    def at(cls, journal: Journal, info: RunInfo, seq: int) -> Branch:
        """Return the branch at an entry of a run, with its newest checkpoint, if the run is still stored."""
        if not journal.store.runs(key=info.key):
            return cls(info.run, seq, is_there=False)
        stored = journal.store.checkpoints(info.run, seq + 1, 1)
        if not stored:
            return cls(info.run, seq)
        point = decode_checkpoint(info.key, stored[0], info.run)
        return cls(info.run, seq, checkpoint_id(info.key, point.seq), point.run_wave, point.nodes)


@dataclass(frozen=True, slots=True)
class Member(View):
    """A run of a family. `depth` is 0 for the eldest, 1 for its forks, and so on."""

    JSON: ClassVar[str] = (
        "run_id workflow=info.workflow status depth parent=branch started_at seconds *spending tags=info.tags "
        "problem"
    )

    info: RunInfo
    depth: int
    branch: Branch | None
    spending: Spending
    """What it used up itself, after it was forked."""
    seconds: float
    problem: str = ""
    """Why nothing more is known of it."""

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
        """Its status."""
        return self.info.status


@dataclass(frozen=True, slots=True)
class Family(View):
    """A run with all that it comes from and all that comes from those: parents before their forks."""

    run_id: str
    members: tuple[Member, ...]
    more: bool = False
    """Whether there are relatives that are not listed."""

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
        """Return the runs that were forked from a run, oldest first."""
        return [
            each.run_id for each in self.members if each.branch is not None and each.branch.run_id == run_id
        ]


def family(journal: Journal, info: RunInfo) -> Family:
    """Return all stored relatives of a run; for a parent that is not stored, what its forks recorded of it."""
    found = relatives(journal.store, info)
    members = tuple(_member(journal, each, depth) for each, depth in islice(found, MOST_MEMBERS))
    return Family(info.run, members, next(found, None) is not None)


def relatives(store: Store, info: RunInfo) -> Iterator[tuple[RunInfo, int]]:
    """Yield a run, those that it goes back to, and all that were forked from any of these, with their depths."""
    eldest = [info, *ancestors(store, info)][-1]
    gone = eldest.parent and not store.runs(key=eldest.parent)
    # A stack instead of recursion: forks of forks may be nested without end.
    left = [(each, 0) for each in (_forks(store, eldest.parent) if gone else [eldest])]
    seen: set[bytes] = set()
    while left:
        each, depth = left.pop()
        if each.key not in seen:
            seen.add(each.key)
            yield each, depth
            left += [(child, depth + 1) for child in _forks(store, each.key)]


def _forks(store: Store, key: bytes) -> list[RunInfo]:
    """Return the forks of a run, the newest first."""
    return sorted(store.runs(parent=key), key=lambda child: child.created_at, reverse=True)


def ancestors(store: Store, info: RunInfo) -> Iterator[RunInfo]:
    """Yield the parent of a run, that one's parent, and so on, as far as they are stored."""
    seen = {info.key}
    while info.parent and info.parent not in seen and (found := store.runs(key=info.parent)):
        info = found[0]
        seen.add(info.key)
        yield info


def _member(journal: Journal, info: RunInfo, depth: int) -> Member:
    try:
        run = journal.load(info, CODEC).run
    except HoldfastError as error:
        return Member(info, depth, None, Spending(), 0.0, problem_of(error))
    own, branch = less(total(*run.spending.values()), total(*run.inherited.values())), None
    if run.parent is not None:
        name, seq = run.parent
        found = journal.store.runs(key=info.parent) if info.parent else journal.store.runs(run=name)
        branch = Branch.at(journal, found[0], seq) if found else Branch(name, seq, is_there=False)
    return Member(info, depth, branch, own, run.seconds)
