"""Repairing what a check found: nothing that is damaged is lost, and nothing is done twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.data.seal import Seal
from holdfast.engine.driver import describe, is_driven
from holdfast.errors import HoldfastError, RunConflict, RunNotFound
from holdfast.journal.journal import Journal
from holdfast.journal.pruning import add_snapshot
from holdfast.repair.aside import Aside
from holdfast.repair.report import FACTS, INBOX, NOTHING, SNAPSHOT, Damage, Progress, RunReport
from holdfast.repair.rewriting import Rewriting
from holdfast.repair.run_check import REPAIRED_AS, RunCheck
from holdfast.stores.base import RunInfo, Store
from holdfast.stores.mending import Mender, mending
from holdfast.values import RunStatus


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done about one run, in sentences. `new_run` has what was intact, if its journal was damaged.

    `refused` says why nothing could be done.
    """

    run: str
    done: tuple[str, ...] = ()
    new_run: str = ""
    refused: str = ""

    def as_json(self) -> dict[str, Any]:
        """Keys: run_id, new_run_id, done, refused."""
        facts = {"run_id": self.run, "new_run_id": self.new_run or None}
        return {**facts, "done": list(self.done), "refused": self.refused or None}


@dataclass(frozen=True, slots=True)
class StoreRepair:
    """What was done about a store: about its medium, and about each run that something was wrong with."""

    medium: tuple[str, ...] = ()
    runs: tuple[Repair, ...] = ()
    aside: tuple[str, ...] = ()
    """The files that hold what was replaced."""

    @property
    def did_nothing(self) -> bool:
        return not self.medium and not self.runs

    def as_json(self) -> dict[str, Any]:
        """Keys: medium, runs, aside."""
        runs = [repair.as_json() for repair in self.runs]
        return {"medium": list(self.medium), "runs": runs, "aside": list(self.aside)}


def repair_run(store: Store, run: str, *, seal: Seal | None = None, aside: Path | None = None) -> Repair:
    """Repair one run; raises what stands in the way: `RunNotFound`, `RunConflict` if it is driven.

    A damaged journal is left as it is, with the status `damaged`; a new run has what is intact of it and can be
    resumed. Damaged snapshots are written anew, and facts are made to agree with the journal; the bytes that were
    there before are in the folder `aside`, by default `lost+found` beside the store.
    """
    done = repair_store(store, [run], seal=seal, aside=aside)
    repair = done.runs[0] if done.runs else Repair(run)
    if repair.refused:
        raise RunConflict(repair.refused)
    return repair


def repair_store(
    store: Store,
    runs: Sequence[str] | None = None,
    *,
    seal: Seal | None = None,
    aside: Path | None = None,
    progress: Progress | None = None,
) -> StoreRepair:
    """Repair the medium and every run, or only the runs that are named. Done again, it does nothing."""
    journal = Journal(store, seal)
    with mending(store) as mender:
        kept = Aside(aside or mender.beside())
        medium = mender.mend(kept.keep) if runs is None else []
        infos = {info.run: info for info in mender.runs().infos}
        for run in runs or ():
            if run not in infos:
                raise RunNotFound(
                    f"no run {run!r} in {store.url}; `holdfast runs` lists those that are there"
                )
        wanted = list(infos) if runs is None else list(dict.fromkeys(runs))
        repairs = []
        for number, run in enumerate(wanted):
            if progress is not None:
                progress(number, len(wanted), run)
            repair = _Repairing(journal, mender, infos[run], kept).repair()
            repairs += [repair] if repair is not None else []
    return StoreRepair(tuple(medium), tuple(repairs), tuple(map(str, kept.kept)))


class _Repairing:
    """One run."""

    def __init__(self, journal: Journal, mender: Mender, info: RunInfo, aside: Aside) -> None:
        self._journal, self._mender, self._info, self._aside = journal, mender, info, aside
        self._check = RunCheck(journal, mender, info)
        self._done: list[str] = []
        self._new_run = ""

    def repair(self) -> Repair | None:
        """What was done; `None` if there was nothing to do."""
        run = self._info.run
        try:
            report = self._check.report()
            if report.is_fine or report.repaired_as:
                return None
            if is_driven(self._journal.store, self._info):
                raise RunConflict(
                    f"run {run!r} is being driven by {describe(self._info.driver)}; pause it first"
                )
            if self._check.sealed:
                raise HoldfastError(f"run {run!r} is encrypted; set HOLDFAST_KEY to its key to repair it")
            if report.needs_new_run:
                self._rewrite(report)
            else:
                for damage in report.damages:
                    self._right(damage)
        except HoldfastError as error:
            return Repair(run, tuple(self._done), self._new_run, str(error))
        except Exception as error:  # What is in a damaged store must not keep other runs from being repaired.
            return Repair(run, tuple(self._done), self._new_run, f"{type(error).__name__}: {error}")
        done = tuple(dict.fromkeys(self._done))
        return Repair(run, done, self._new_run) if done else None

    def _rewrite(self, report: RunReport) -> None:
        info = self._info
        if report.intact is not None:
            self._new_run = Rewriting(self._journal, self._mender, info, report).write()
            self._done.append(f"run {self._new_run!r} has what is intact, and can be resumed")
        tags = (*info.tags, f"{REPAIRED_AS}{self._new_run or NOTHING}")
        damaged = RunStatus.DAMAGED.value
        facts = dataclasses.replace(info, status=damaged, driver="", queue="", due_at=None, tags=tags)
        self._mender.put_facts(facts, report.head)
        self._done.append("it stays as it is, with the status damaged")

    def _right(self, damage: Damage) -> None:
        if damage.part == SNAPSHOT and damage.seq:
            self._renew_snapshot(damage.seq)
        elif damage.part == FACTS:
            self._right_facts()
        elif damage.part == INBOX and damage.seq:
            self._void_message(damage.seq)

    def _renew_snapshot(self, seq: int) -> None:
        """A snapshot is only a cache while the journal reaches back."""
        info, run = self._info, self._info.run
        for found in self._mender.snapshots(run):
            if found.number == seq:
                self._aside.keep(f"{run}.snapshot-{seq}", found.raw)
        self._mender.drop_snapshot(run, seq)
        if seq > self._check.head:
            self._done.append(f"the snapshot at {seq} is put aside")
            return
        codec = self._check.codec
        loaded = self._journal.load(info, codec, seq)
        add_snapshot(self._journal, run, self._journal.make_snapshot(loaded, codec))
        self._done.append(f"the snapshot at {seq} is written anew")

    def _right_facts(self) -> None:
        best, info = self._check.best, self._info
        if best is None:
            return
        run = best.run
        running = run.status == RunStatus.RUNNING
        fitting = info.status in (RunStatus.QUEUED, RunStatus.INTERRUPTED) and info.status != run.status
        keeps = fitting and run.status in (RunStatus.QUEUED, RunStatus.INTERRUPTED)
        facts = dataclasses.replace(
            info,
            workflow=run.workflow,
            status=info.status if keeps else str(run.status),
            driver=run.driver if running else "",
            created_at=info.created_at or run.started_at,
            updated_at=info.updated_at or run.updated_at,
        )
        first = self._check.first
        if first is not None and first.seq == 1:
            facts = dataclasses.replace(facts, parent=self._check.parent_of(first))
        self._mender.put_facts(facts, self._check.head)
        self._done.append("its facts agree with its journal again")

    def _void_message(self, number: int) -> None:
        for found in self._mender.messages(self._info.run):
            if found.number == number:
                self._aside.keep(f"{self._info.run}.message-{number}", found.raw)
                self._mender.void_message(self._info.run, number)
                self._done.append(f"message {number} is put aside; the run will refuse it")
