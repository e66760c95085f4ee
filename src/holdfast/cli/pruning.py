"""Which runs and checkpoints may go, and removing them. A run that a live process drives is never touched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from holdfast.engine.driver import is_driven
from holdfast.engine.housekeeping import kept_checkpoints, last_successful
from holdfast.journal.journal import Journal
from holdfast.journal.pruning import delete_run, held_back, needed_by, prune_run
from holdfast.stores.base import Mark, RunInfo
from holdfast.values import RunStatus


@dataclass(frozen=True, slots=True)
class Removal:
    """What goes of one run: so many of its oldest checkpoints, or the `whole` run with all of them."""

    info: RunInfo
    checkpoints: int
    whole: bool
    horizon: int = 0
    """The entry of the oldest checkpoint that stays."""

    def as_json(self) -> dict[str, Any]:
        """Keys: run_id, workflow, status, checkpoints, whole."""
        facts = {"run_id": self.info.run, "workflow": self.info.workflow, "status": self.info.status}
        return {**facts, "checkpoints": self.checkpoints, "whole": self.whole}


def planned(
    journal: Journal, *, before: float | None = None, keep: int | None = None, workflow: str | None = None
) -> list[Removal]:
    """What goes if runs not touched since `before` are dropped and each workflow keeps `keep` checkpoints.

    A workflow's last successful run stays, and so does the newest checkpoint of a run that can be resumed,
    unless it is too old. Checkpoints that somebody wants kept stay in any case, and their runs with them, and so does
    what an unfinished run that stays is to be given.
    """
    found: list[Removal] = []
    runs = journal.store.runs(workflow=workflow, before=before if keep is None else None)
    for name in dict.fromkeys(info.workflow for info in runs):
        of_name = [info for info in runs if info.workflow == name]
        marks = {info.run: _marks(journal, info) for info in of_name}
        last_good = {info.run for info in last_successful(journal.store, name)}
        kept = _newest(marks, keep)
        for info in of_name:
            if is_driven(journal.store, info):
                continue
            removal = _removal(info, marks[info.run], kept, before, info.run in last_good)
            if removal is not None:
                removal = _without_kept(journal, removal, marks[info.run])
            found += [removal] if removal else []
    going = {removal.info.run for removal in found if removal.whole}
    return [
        removal
        for removal in found
        if not removal.whole or going.issuperset(needed_by(journal, removal.info))
    ]


def _newest(marks: dict[str, list[Mark]], keep: int | None) -> set[tuple[str, int]] | None:
    if keep is None:
        return None
    every = sorted(((mark.at, mark.seq, run) for run, found in marks.items() for mark in found), reverse=True)
    return {(run, seq) for _, seq, run in every[:keep]}


def _removal(
    info: RunInfo, marks: list[Mark], kept: set[tuple[str, int]] | None, before: float | None, last_good: bool
) -> Removal | None:
    touched = max([info.updated_at, *(mark.at for mark in marks[:1])])
    if before is not None and touched < before and not last_good:
        return Removal(info, len(marks), True)
    if kept is None or not marks:
        return None
    staying = [mark for mark in marks if (info.run, mark.seq) in kept]
    if not staying and info.status == RunStatus.COMPLETED and not last_good:
        return Removal(info, len(marks), True)
    horizon = (staying or marks[:1])[-1].seq
    older = sum(mark.seq < horizon for mark in marks)
    return Removal(info, older, False, horizon) if older else None


def _without_kept(journal: Journal, removal: Removal, marks: list[Mark]) -> Removal | None:
    """What may go of a run of which somebody wants checkpoints kept for good."""
    held = kept_checkpoints(journal, removal.info)
    if not held and removal.whole:
        return removal
    horizon = min([*held, *([removal.horizon] if removal.horizon else [])])
    horizon = held_back(journal, removal.info, horizon)
    older = sum(mark.seq < horizon for mark in marks)
    return Removal(removal.info, older, False, horizon) if older else None


def whole_runs(journal: Journal, workflow: str) -> tuple[list[Removal], list[RunInfo]]:
    """The removal of every run of a workflow, and the runs that stay because a live process drives them."""
    runs = journal.store.runs(workflow=workflow)
    going = [info for info in runs if not is_driven(journal.store, info)]
    staying = [info for info in runs if is_driven(journal.store, info)]
    return [Removal(info, len(_marks(journal, info)), True) for info in going], staying


def _marks(journal: Journal, info: RunInfo) -> list[Mark]:
    """The checkpoints of a run; those of one whose journal is damaged do not count."""
    return [] if info.status == RunStatus.DAMAGED else journal.store.marks(info.run)


def carry_out(journal: Journal, removals: Iterable[Removal]) -> list[Removal]:
    """Remove what was planned; answer what went. A run that somebody took up meanwhile stays."""
    gone, removals = [], list(removals)
    going = {removal.info.run for removal in removals if removal.whole}
    for removal in removals:
        run = removal.info.run
        now = journal.store.runs(run=run)
        if not now or is_driven(journal.store, now[0]) or now[0].updated_at != removal.info.updated_at:
            continue
        if removal.whole:
            delete_run(journal, run, going=going)
        else:
            prune_run(journal, now[0], removal.horizon)
        gone.append(removal)
    return gone
