"""What runs have used up, from their journals: by step, model, run, workflow or day, each amount counted once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import CodecError, CorruptJournal, HoldfastError
from holdfast.journal.fold import apply
from holdfast.journal.journal import Journal
from holdfast.journal.records import Forked
from holdfast.journal.run_state import Spending
from holdfast.plan.naming import base_name
from holdfast.stores.base import RunInfo
from holdfast.stores.mending import repaired_as
from holdfast.values import RunStatus
from holdfast.views.amounts import Charge, Portion, Row, as_json, row_of, rows, total
from holdfast.views.bookkeeping import Books
from holdfast.views.plain import CODEC, ViewCodec, iso, when
from holdfast.views.state_ledger import lines_of, spending_of


@dataclass(frozen=True, slots=True)
class RunLedger:
    """What one run has used up. `charges` are its own: what it inherited from before it was forked is apart."""

    run_id: str
    workflow: str
    status: RunStatus
    started_at: float
    charges: tuple[Charge, ...]
    inherited: Spending
    """What the runs that it was forked from had spent by then."""
    kept: Portion
    """The finished steps that it stands on, inherited ones included."""
    saved: Portion
    """Those that were finished when it was last taken up, and did not run again."""
    adopted: Portion
    """Steps that were given the result of another run instead of running: what that run had paid for them."""
    resumes: int
    driving: float
    """Seconds from each taking up to its end, added up."""

    @property
    def own(self) -> Row:
        """All that it used up itself."""
        return row_of(self.run_id, self.charges)

    @property
    def total(self) -> Spending:
        """What it spent, from the beginning of the first run that it goes back to."""
        return total(self.own.spent, self.inherited)

    def by_step(self, *, ids: bool = False) -> list[Row]:
        """What each step used up, the dearest first; with `ids` each visit and each item for itself."""
        return rows(self.charges, "step", ids=ids)

    def by_model(self) -> list[Row]:
        """What each model was paid, the dearest first."""
        return rows(self.charges, "model")

    def as_json(self, *, ids: bool = False) -> dict[str, Any]:
        """Keys: run_id, workflow, status, started_at, total, own, inherited, kept, saved, adopted, resumes,
        driving_seconds, steps, models."""
        return {
            "run_id": self.run_id,
            "workflow": self.workflow,
            "status": str(self.status),
            "started_at": iso(when(self.started_at)),
            "total": as_json(self.total),
            "own": self.own.as_json(),
            "inherited": as_json(self.inherited),
            "kept": self.kept.as_json(),
            "saved": self.saved.as_json(),
            "adopted": self.adopted.as_json(),
            "resumes": self.resumes,
            "driving_seconds": round(self.driving, 6),
            "steps": [row.as_json() for row in self.by_step(ids=ids)],
            "models": [row.as_json() for row in self.by_model()],
        }


def ledger(journal: Journal, run_id: str, *, upto: int | None = None) -> RunLedger:
    """What a run has used up, by its whole journal, or up to and with entry `upto`."""
    info = journal.info(run_id)
    books = _books(journal, info, upto)
    return RunLedger(
        run_id=info.run,
        workflow=info.workflow,
        status=RunStatus(info.status),
        started_at=info.created_at,
        charges=books.charges,
        inherited=books.inherited,
        kept=books.kept(),
        saved=books.saved,
        adopted=_adopted(journal, books),
        resumes=books.resumes,
        driving=books.driving,
    )


def _books(journal: Journal, info: RunInfo, upto: int | None = None) -> Books:
    codec = ViewCodec()
    run, history = journal.history(info, codec, upto)
    books = Books(info.run, info.workflow, functools.partial(_parting, journal, info))
    earlier = list[Mapping[str, Any]]()
    pruned = bool(run.frames)
    for entry, found in history:
        if pruned:
            books.begin_with(run, entry.at)
            pruned = False
        for record in found:
            books.take(record, entry.seq, entry.at)
            if isinstance(record, Forked):
                earlier = lines_of(record.run, codec)
            apply(run, record, entry.at)
    inherited = {str(line.get("id")) for line in earlier}
    books.inherited = total(books.inherited, spending_of(earlier))
    for line in lines_of(run, codec):
        if str(line.get("id")) not in inherited:
            name = base_name(str(line.get("step", "")))
            books.add_line(
                name, str(line.get("model", "")), spending_of([line]), info.created_at, str(line.get("id"))
            )
    books.close(run.status == RunStatus.RUNNING)
    return books


def _parting(journal: Journal, own: RunInfo, other: str) -> int | None:
    """The entry of a run at which another, or one that this goes back to, was forked; `None` if it was not."""
    found, seen = journal.store.runs(run=other), set[bytes]()
    while found and found[0].key not in seen:
        info = found[0]
        seen.add(info.key)
        first = next(iter(journal.store.read(info.run, 0, 1)), None)
        fork = None if first is None else journal.fork_of(info, first, CODEC)
        if fork is None or info.parent == own.key:
            return None if fork is None else fork.seq
        found = journal.store.runs(key=info.parent)
    return None


def _adopted(journal: Journal, books: Books) -> Portion:
    """What was paid, in other runs, for the steps that were not run; of runs that are gone nothing is known."""
    by_origin: dict[str, list[str]] = {}
    for step, origin in books.adopted.items():
        by_origin.setdefault(origin, []).append(step)
    steps, seconds, cost = len(books.adopted), 0.0, 0.0
    for origin, names in by_origin.items():
        for info in journal.store.runs(run=origin):
            try:
                portion = _books(journal, info).portion_of(names)
            except CorruptJournal:
                continue
            seconds, cost = seconds + portion.seconds, cost + portion.cost
    return Portion(steps, seconds, cost)


def family(journal: Journal, run_id: str) -> list[RunInfo]:
    """A run, those that it goes back to, and all that were forked from any of these; the first of all first."""
    info = journal.info(run_id)
    seen = {info.key}
    while info.parent and (found := journal.store.runs(key=info.parent)) and found[0].key not in seen:
        info = found[0]
        seen.add(info.key)
    found, seen = [info], {info.key}
    for member in found:
        forks = [fork for fork in journal.store.runs(parent=member.key) if fork.key not in seen]
        seen |= {fork.key for fork in forks}
        found += sorted(forks, key=lambda fork: fork.created_at)
    return found


def charges_of(
    journal: Journal,
    runs: Iterable[str],
    *,
    since: float | None = None,
    unreadable: Callable[[str, HoldfastError], None] | None = None,
) -> Iterator[Charge]:
    """What several runs used up themselves, read one after the other; with `since` only from that time on.

    A damaged run that was repaired as another is left out: what could be read of it is that run's. `unreadable` is told
    of runs that cannot be read; without it they raise.
    """
    for run_id in runs:
        if not _counts(journal, run_id):
            continue
        try:
            charges = ledger(journal, run_id).charges
        except (CorruptJournal, CodecError) as error:
            if unreadable is None:
                raise
            unreadable(run_id, error)
            continue
        for charge in charges:
            if since is None or charge.at >= since:
                yield charge


def _counts(journal: Journal, run_id: str) -> bool:
    """Whether what a run used up is its own."""
    found = journal.store.runs(run=run_id)
    return not any(repaired_as(info) and journal.store.runs(run=repaired_as(info)) for info in found)
