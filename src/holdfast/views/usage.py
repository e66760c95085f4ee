"""What runs have used up, from their journals: each amount counted once, in the run that paid it."""

from __future__ import annotations

import datetime as dt
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.errors import CodecError, CorruptJournal, HoldfastError
from holdfast.journal.journal import Journal
from holdfast.journal.run_state import Spending
from holdfast.stores.base import RunInfo
from holdfast.stores.inspection import repaired_as
from holdfast.values import RunStatus
from holdfast.views.charges import Charge, Portion, Row, row_of, rows, total
from holdfast.views.plain import View, ViewCodec, when
from holdfast.views.projection import Projection, project


@dataclass(frozen=True, slots=True)
class RunLedger(View):
    """What one run has used up. `charges` are its own, without what it inherited from before it was forked."""

    JSON: ClassVar[str] = (
        "run_id workflow status started_at total own inherited kept saved reused resumes executed_seconds "
        "steps=by_step models=by_model"
    )

    run_id: str
    workflow: str
    status: RunStatus
    started_at: dt.datetime
    charges: tuple[Charge, ...]
    inherited: Spending
    """What the runs that it was forked from had spent by then."""
    kept: Portion
    """The finished steps that it stands on, inherited ones included."""
    saved: Portion
    """The steps that were finished when it was last resumed, and did not run again."""
    reused: Portion
    """Steps that took the result of another run instead of running: what that run had paid for them."""
    resumes: int
    executed_seconds: float
    """The time from the begin of each execution to its end."""

    @property
    def own(self) -> Row:
        """All that it used up itself."""
        return row_of(self.run_id, self.charges)

    @property
    def total(self) -> Spending:
        """What it spent, with the runs that it was forked from."""
        return total(self.own.spent, self.inherited)

    def by_step(self, *, ids: bool = False) -> list[Row]:
        """Return what each step used up, the dearest first; with `ids` each visit and each item for itself."""
        return rows(self.charges, "step", ids=ids)

    def by_model(self) -> list[Row]:
        """Return what each model was paid, the dearest first."""
        return rows(self.charges, "model")

    def as_json(self, *, ids: bool = False) -> dict[str, Any]:
        """Return the ledger as plain data; with `ids` each visit and each item of a step is a row."""
        steps = {"steps": [row.as_json() for row in self.by_step(ids=ids)]} if ids else {}
        return {**View.as_json(self), **steps}


def ledger(journal: Journal, run_id: str, *, upto: int | None = None) -> RunLedger:
    """Return what a run has used up, by its whole journal, or up to and with entry `upto`."""
    info = journal.info(run_id)
    known = project(journal, ViewCodec(), info, upto, values=False, parents=False)
    return RunLedger(
        run_id=info.run,
        workflow=info.workflow,
        status=RunStatus(info.status),
        started_at=when(info.created_at),
        charges=known.charges,
        inherited=known.inherited,
        kept=known.kept,
        saved=known.saved,
        reused=_reused(journal, known),
        resumes=known.resumes,
        executed_seconds=known.executed_seconds,
    )


def _reused(journal: Journal, known: Projection) -> Portion:
    """Return what other runs paid for the steps that were not run; of runs that are gone nothing is known."""
    by_origin: dict[str, list[str]] = {}
    for finish in known.finishes.values():
        if finish.info.key == known.info.key and finish.record.origin and not finish.charges:
            by_origin.setdefault(finish.record.origin, []).append(finish.step)
    paid: list[Charge] = []
    for origin, names in by_origin.items():
        for info in journal.store.runs(run=origin):
            try:
                other = project(journal, ViewCodec(), info, values=False, parents=False)
            except CorruptJournal:
                continue
            found = (other.finishes.get(name) for name in names)
            paid += [other.charges[place] for each in found if each is not None for place in each.charges]
    seconds, cost = sum(each.seconds for each in paid), sum(each.spent.cost for each in paid)
    return Portion(sum(map(len, by_origin.values())), seconds, cost)


def charges_of(
    journal: Journal,
    runs: Iterable[str],
    *,
    since: float | None = None,
    unreadable: Callable[[str, HoldfastError], None] | None = None,
) -> Iterator[Charge]:
    """Yield what several runs used up themselves, one run after the other; with `since` only from that time on.

    A damaged run that was repaired as another is left out: what could be read of it is that run's. `unreadable` is
    called for runs that cannot be read; without it they raise.
    """
    store = journal.store
    for run_id in runs:
        if any(repaired_as(info) and store.runs(run=repaired_as(info)) for info in store.runs(run=run_id)):
            continue
        try:
            info = journal.info(run_id)
            charges = project(journal, ViewCodec(), info, values=False, parents=False).charges
        except (CorruptJournal, CodecError) as error:
            if unreadable is None:
                raise
            unreadable(run_id, error)
            continue
        for charge in charges:
            if since is None or charge.at >= since:
                yield charge


MOST_CHARGES = 200_000
"""How many charges are remembered; of more, the runs that were asked for longest ago are read again."""


class KnownCharges:
    """What runs have used up, each read from its journal once, and again when the run has gone on."""

    def __init__(self, journal: Journal, most: int = MOST_CHARGES) -> None:
        self._journal, self._most, self._lock = journal, most, threading.Lock()
        self._known: OrderedDict[bytes, tuple[object, tuple[Charge, ...] | None]] = OrderedDict()
        self._size = 0

    def of(self, infos: Sequence[RunInfo]) -> tuple[list[Charge], list[str]]:
        """Return the charges of runs, and the runs that cannot be read."""
        found: list[Charge] = []
        unreadable = []
        for info in infos:
            charges = self._of(info)
            if charges is None:
                unreadable.append(info.run)
            else:
                found += charges
        return found, unreadable

    def _of(self, info: RunInfo) -> tuple[Charge, ...] | None:
        version = info.run, info.status, info.updated_at, info.origin
        with self._lock:
            if info.key in self._known and self._known[info.key][0] == version:
                self._known.move_to_end(info.key)
                return self._known[info.key][1]
        unread: list[str] = []
        charges = tuple(
            charges_of(self._journal, [info.run], unreadable=lambda run, error: unread.append(run))
        )
        kept = None if unread else charges
        if info.status not in (RunStatus.QUEUED, RunStatus.RUNNING):
            self._keep(info.key, version, kept)
        return kept

    def _keep(self, key: bytes, version: object, charges: tuple[Charge, ...] | None) -> None:
        with self._lock:
            before = self._known.pop(key, (None, None))[1]
            self._known[key] = version, charges
            self._size += len(charges or ()) - len(before or ())
            while self._size > self._most and len(self._known) > 1:
                _, (_, dropped) = self._known.popitem(last=False)
                self._size -= len(dropped or ())
