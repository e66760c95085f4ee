"""Copying and moving runs between two stores, those under way included."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

from holdfast import clock
from holdfast.engine.commands import control
from holdfast.engine.owner import describe, has_owner
from holdfast.errors import (
    CodecError,
    CorruptJournal,
    HoldfastError,
    Remedy,
    RunNotFound,
    StoreError,
    problem_of,
)
from holdfast.journal.copying import (
    COPIED,
    MOVED,
    Brought,
    Relation,
    Resealed,
    bodies_in,
    bring,
    bring_messages,
    change_facts,
    check_copy,
    check_whole,
    close_run,
    compare,
    delete_run,
    free_forks,
    last_entry,
    own_messages,
    seen_from,
)
from holdfast.journal.journal import Journal
from holdfast.journal.provenance import Provenance
from holdfast.journal.sealing import Seal
from holdfast.state.codec import TolerantCodec
from holdfast.stores.base import Conflict, Entry, Message, RunInfo, Store, wait_for_change
from holdfast.stores.inspection import Inspector, inspecting
from holdfast.values import RunStatus

# What became of the runs that were copied from one store to another.


class CopyOutcome(StrEnum):
    """What became of one run. The last four are problems, and then the run stays as it was."""

    COPIED = "copied"
    UPDATED = "updated"
    MOVED = "moved"
    UNCHANGED = "unchanged"
    DIFFERENT = "different"
    DAMAGED = "damaged"
    BUSY = "busy"
    REFUSED = "refused"


_PROBLEMS = frozenset((CopyOutcome.DIFFERENT, CopyOutcome.DAMAGED, CopyOutcome.BUSY, CopyOutcome.REFUSED))


@dataclass(frozen=True, slots=True)
class CopiedRun:
    """What became of one run: so many entries and bytes were added. `note` says what people should know."""

    run: str
    workflow: str
    outcome: CopyOutcome
    entries: int = 0
    size: int = 0
    note: str = ""

    @property
    def is_problem(self) -> bool:
        """Whether the run was left out."""
        return self.outcome in _PROBLEMS


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What became of every run. `stopped` says that not all were looked at.

    `left_out` names what else the source holds, if all of it was to be copied: queues, schedules, other namespaces.
    """

    runs: tuple[CopiedRun, ...]
    stopped: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[CopiedRun, ...]:
        """The runs that were left out, each with the reason as its `note`."""
        return tuple(run for run in self.runs if run.is_problem)

    def count(self, outcome: CopyOutcome) -> int:
        """How many runs this became of."""
        return sum(run.outcome == outcome for run in self.runs)


Progress = Callable[[CopiedRun, int, int], object]
"""Is called with every run, how many are done, and how many there are."""


_TRIES = 3
_LOOK_AGAIN = 0.1
"""How many seconds pass at most before a run that was asked to pause is looked at again."""


def copy_runs(
    source: Store,
    target: Store,
    *,
    runs: Sequence[str] | None = None,
    workflow: str | None = None,
    status: Sequence[str] | None = None,
    move: bool = False,
    wait: float = 30.0,
    foreign: bool = False,
    progress: Progress | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> CopyReport:
    """Copy runs to another store: all of them, or those that match every filter given.

    Done again, it brings what is new. A run that is damaged, or that the target has with another history, is left
    out and reported. A run under way is copied as far as it is, and interrupted in the copy. With `move`, a run
    under way is asked to pause, at most `wait` seconds are waited for it, and each run is deleted from the source
    once its copy was read back. `stopped` is asked before every run.

    A copy keeps what is known of where its run came from. `foreign` says that the source is a stranger's: every copy
    is then a run from outside, which has to be confirmed before it is resumed, without the commands in its inbox.
    """
    if foreign and move:
        raise StoreError("runs of a stranger's store are copied, not moved; leave foreign or move away")
    if source is target or (source.url == target.url and not source.url.startswith("memory:")):
        raise StoreError(f"{source.url} cannot be copied to itself; give another store to copy to")
    wanted, seal = _wanted(source, runs, workflow, status), Seal.from_environment(os.environ)
    origin = Provenance(f"store {source.url}", clock.time()).text() if foreign else ""
    own = _Stranger(source, seal) if foreign else source
    transfer, done = _Transfer(cast(Store, own), target, move, wait, stopped, seal, origin), list[CopiedRun]()
    for info in wanted:
        if stopped():
            return CopyReport(tuple(done), stopped=True)
        copied = transfer.carry(info)
        if copied is not None:
            if isinstance(own, _Stranger) and not copied.is_problem and not copied.note:
                copied = dataclasses.replace(copied, note=own.withheld(info.run))
            done.append(copied)
            if progress is not None:
                progress(copied, len(done), len(wanted))
    if runs is not None or workflow is not None or status is not None:
        return CopyReport(tuple(done))
    with inspecting(source) as inspector:
        lost = _lost(inspector, {info.run for info in wanted})
        return CopyReport((*done, *lost), left_out=tuple(inspector.beside_runs()))


def _lost(inspector: Inspector, known: Set[str]) -> Iterator[CopiedRun]:
    """Yield the runs whose facts are there and which the store neither lists nor finds."""
    for info in inspector.runs().infos:
        if info.run not in known and not inspector.store.runs(run=info.run) and inspector.observe(info.run):
            yield _copied(info, CopyOutcome.DAMAGED, note="its journal cannot be found")


def _wanted(
    source: Store, runs: Sequence[str] | None, workflow: str | None, status: Sequence[str] | None
) -> list[RunInfo]:
    """The runs that match, those that were touched last at the end."""
    if runs is None:
        try:
            return source.runs(workflow=workflow, status=status)[::-1]
        except CorruptJournal:  # The facts of one are damaged: it is found when it is copied.
            with inspecting(source) as inspector:
                infos = sorted(inspector.runs().infos, key=lambda info: info.updated_at)
            return [
                info
                for info in infos
                if workflow in (None, info.workflow) and (status is None or info.status in status)
            ]
    wanted: list[RunInfo] = []
    for run in dict.fromkeys(runs):
        if not source.runs(run=run):
            raise RunNotFound(
                f"no run {run!r} in {source.url}", remedies=Remedy("list_runs", options={"store": source.url})
            )
        wanted += source.runs(run=run, workflow=workflow, status=status)
    return wanted


class _Stranger:
    """A store of somebody else, without the commands that wait in the inboxes of its runs."""

    def __init__(self, store: Store, seal: Seal | None) -> None:
        self._store, self._journal = store, Journal(store, seal)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        """The messages that the run has seen."""
        try:
            seen = self._journal.load(self._journal.info(run), TolerantCodec()).run.inbox_seen
        except CodecError as error:
            raise StoreError(
                f"run {run!r} cannot be read, and so not be taken from a stranger: {error}"
            ) from None
        return [message for message in self._store.inbox(run, after) if message.number <= seen]

    def withheld(self, run: str) -> str:
        """Return how many commands wait in the inbox of a run, as a note; empty if none do."""
        number = len(self._store.inbox(run)) - len(self.inbox(run))
        return f"commands that wait in its inbox were left out: {number}" if number > 0 else ""


class _Changed(Exception):
    """Somebody changed the run, here or there, while it was copied."""


@dataclass(frozen=True, slots=True)
class _Transfer:
    """Carries runs, one after the other, from one store to another."""

    source: Store
    target: Store
    move: bool
    wait: float
    stopped: Callable[[], bool]
    seal: Seal | None
    origin: str = ""
    """Where the runs of a stranger's store come from, as their facts hold it."""
    asked: set[str] = field(default_factory=set)
    """The runs that were under way and were asked to pause."""

    @property
    def journal(self) -> Journal:
        return Journal(self.source, self.seal)

    def view(self, info: RunInfo) -> Store | Resealed:
        """Return the source as the target would store this run: re-encrypted if their namespaces differ."""
        return seen_from(self.source, self.target, info, self.seal)

    def carry(self, info: RunInfo) -> CopiedRun | None:
        """Copy or move a run; `None` if it is gone."""
        for tries_left in reversed(range(_TRIES)):
            try:
                found = self.source.runs(run=info.run)
                return self._carry(found[0], tries_left == 0) if found else None
            except CorruptJournal as error:
                return _copied(info, CopyOutcome.DAMAGED, note=problem_of(error))
            except (_Changed, Conflict):
                continue
            except CodecError as error:
                return _copied(info, CopyOutcome.REFUSED, note=problem_of(error))
            except StoreError as error:
                self.source.runs(limit=1)  # If both stores answer, only the one run is to blame.
                self.target.runs(limit=1)
                return _copied(info, CopyOutcome.REFUSED, note=problem_of(error))
        return _copied(info, CopyOutcome.BUSY, note="it, or its copy, is being changed; copy it again")

    def _carry(self, info: RunInfo, last_try: bool) -> CopiedRun | None:
        if self.move and has_owner(self.source, info):
            calm = self._paused(info)
            if calm is None:
                note = f"{describe(info.owner)} executes it and did not pause within {self.wait:g} s; it was asked to"
                return _copied(info, CopyOutcome.BUSY, note=f"{note}: move it when it has paused")
            info = calm
        view = self.view(info)
        last = last_entry(view, info.run)
        if last is None:
            raise CorruptJournal(f"run {info.run!r} has no entries", run=info.run, seq=1)
        is_closed = bodies_in(view, info, self.seal).says(last, MOVED)
        if is_closed and (finished := self._finish(info, last)) is not None:
            return finished
        relation, theirs = self._compare(info, last)
        if relation is Relation.OTHER:
            return _copied(info, CopyOutcome.DIFFERENT, note=self._difference(info, theirs))
        if relation is Relation.AHEAD:
            if self.move:
                self._remove(self.source, info, self._own_entry(info, last))
            outcome = CopyOutcome.MOVED if self.move else CopyOutcome.UNCHANGED
            return _copied(info, outcome, note="the copy has gone on")
        own, in_the_way = ([], False) if theirs is None else own_messages(view, self.target, info.run)
        if theirs is not None and (relation is Relation.MARKED or in_the_way):
            if not self.move and last.seq == theirs.seq - 1 and not in_the_way:
                return self._unchanged(info)
            check_whole(self.source, info)
            self._remove(self.target, self.target.runs(run=info.run)[0], theirs)
            relation, theirs = Relation.ABSENT, None
        else:
            own = []
        if relation is Relation.SAME and not self.move and info.status != RunStatus.RUNNING:
            return self._unchanged(info)
        return self._bring(info, relation, theirs, last_try, own)

    def _compare(self, info: RunInfo, last: Entry) -> tuple[Relation, Entry | None]:
        try:
            return compare(self.view(info), self.target, info, last, self.seal)
        except CorruptJournal as error:
            raise StoreError(f"its copy in {self.target.url} is damaged: {problem_of(error)}") from error

    def _unchanged(self, info: RunInfo) -> CopiedRun:
        self._bring_messages(info)
        return _copied(info, CopyOutcome.UNCHANGED)

    def _bring_messages(self, info: RunInfo, own: Sequence[Message] = ()) -> None:
        bring_messages(self.view(info), self.target, info, own, self.seal)

    def _bring(
        self, info: RunInfo, relation: Relation, theirs: Entry | None, last_try: bool, own: Sequence[Message]
    ) -> CopiedRun:
        facts, under_way = self._facts(info), info.status == RunStatus.RUNNING
        end = COPIED if under_way else None
        try:
            view = self.view(info)
            beginning = None if theirs is not None else self.journal.materialised(info, TolerantCodec())
            if beginning is not None and isinstance(view, Resealed):
                beginning = view.moved_snapshot(beginning)
            brought = bring(view, self.target, info, theirs, facts, end, beginning, self.seal)
        except CorruptJournal:
            if relation is Relation.ABSENT:
                self.target.delete(info.run)
            raise
        self._bring_messages(info, own)
        if self.source.runs(run=info.run) != [info] and not (under_way and last_try and not self.move):
            raise _Changed
        if self.move:
            self._give_up(info, facts, brought)
            return _copied(info, CopyOutcome.MOVED, brought)
        outcome = CopyOutcome.COPIED if relation is Relation.ABSENT else CopyOutcome.UPDATED
        note = ""
        if has_owner(self.source, info):
            note = f"{describe(info.owner)} goes on with it; if the copy is resumed too, steps run twice"
        return _copied(info, outcome, brought, note)

    def _facts(self, info: RunInfo) -> RunInfo:
        """The facts of the copy while the original is there: workers of the target leave it alone."""
        info = dataclasses.replace(info, origin=self.origin or info.origin)
        if info.status == RunStatus.COMPLETED:
            return dataclasses.replace(info, owner="")
        status, at = RunStatus(info.status), info.updated_at
        under_way = status == RunStatus.RUNNING
        if under_way:
            status, at = RunStatus.INTERRUPTED, time.time()
        if not self.move and status == RunStatus.QUEUED:
            status = RunStatus.INTERRUPTED
        left = under_way or info.run in self.asked
        if self.move and info.queue and status == RunStatus.INTERRUPTED and left:
            status = RunStatus.QUEUED
        return dataclasses.replace(info, status=status.value, updated_at=at, owner="", queue="", due_at=None)

    def _give_up(self, info: RunInfo, facts: RunInfo, brought: Brought) -> None:
        """Leave a run to its copy, once that was read back."""
        check_copy(self.target, info, brought.last)
        if info.status != RunStatus.COMPLETED:
            close_run(self.source, info, self._own_entry(info, brought.shared), self.seal)
        self._bring_messages(info)
        self._hand_over(info, facts, brought.last)
        delete_run(self.journal, info.run, going=None)

    def _hand_over(self, info: RunInfo, facts: RunInfo, last: Entry) -> None:
        """Give a copy to the workers of the target, if workers drove the original."""
        own = dataclasses.replace(facts, queue=info.queue, due_at=info.due_at)
        if own != facts:
            change_facts(self.target, own, last)

    def _finish(self, info: RunInfo, last: Entry) -> CopiedRun | None:
        """End a move that was interrupted after the run was closed here; `None` if its copy is elsewhere."""
        before = next(iter(self.view(info).read(info.run, last.seq - 2, last.seq - 1)), None)
        if before is None:
            return None
        relation, theirs = self._compare(info, before)
        if theirs is None or relation not in (Relation.SAME, Relation.MARKED, Relation.AHEAD):
            return None
        if not self.move:
            return _copied(info, CopyOutcome.UNCHANGED, note="its move is not finished; copy it with --move")
        self._bring_messages(info)
        if relation is not Relation.AHEAD:
            self._hand_over(info, self.target.runs(run=info.run)[0], theirs)
        delete_run(self.journal, info.run, going=None)
        return _copied(info, CopyOutcome.MOVED)

    def _own_entry(self, info: RunInfo, seen: Entry) -> Entry:
        """The entry of the source that the target has, or would have, as `seen`."""
        found = next(iter(self.source.read(info.run, seen.seq - 1, seen.seq)), None)
        if found is None:
            raise _Changed
        return found

    def _remove(self, store: Store, info: RunInfo, last: Entry) -> None:
        """Delete a run, unless somebody advanced it beyond `last`."""
        journal = Journal(store, self.seal)
        free_forks(journal, info)  # Before it is closed: that can be refused.
        close_run(store, info, last, self.seal)
        delete_run(journal, info.run, going=None)

    def _paused(self, info: RunInfo) -> RunInfo | None:
        """A run that was under way, once it has stopped; `None` if it does not in time."""
        deadline = time.monotonic() + self.wait
        self.asked.add(info.run)
        with contextlib.suppress(HoldfastError):  # It may just have ended.
            control.stop(self.journal, info.run, "pause", "it is moved to another store")
        while True:
            found = self.source.runs(run=info.run)
            if not found:
                raise _Changed
            if not has_owner(self.source, found[0]):
                return found[0]
            if time.monotonic() >= deadline or self.stopped():
                return None
            wait_for_change(self.source, info.run, _LOOK_AGAIN)

    def _difference(self, info: RunInfo, theirs: Entry | None) -> str:
        first = next(iter(self.source.read(info.run)), None)
        way_out = f"delete it in {self.target.url} to copy it again"
        if first is not None and theirs is not None and first.seq > theirs.seq + 1:
            return f"it was pruned beyond entry {theirs.seq}, where the copy ends; {way_out}"
        return f"the target has a run of this id with another history; {way_out}"


def _copied(info: RunInfo, outcome: CopyOutcome, brought: Brought | None = None, note: str = "") -> CopiedRun:
    entries, size = (brought.entries, brought.size) if brought is not None else (0, 0)
    return CopiedRun(info.run, info.workflow, outcome, entries, size, note)
