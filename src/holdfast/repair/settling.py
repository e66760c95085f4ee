"""Checking a run that others may be working on: what is seen only once is no damage."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from holdfast.journal.journal import Journal
from holdfast.repair.report import STORE, Damage, RunReport
from holdfast.repair.run_check import RunCheck
from holdfast.stores.base import RunInfo
from holdfast.stores.mending import Mender, Standing, changed_meanwhile

_TRIES = 6


class Look(NamedTuple):
    """A check of a run, and how the run stood before it. `error` is what stopped it."""

    check: RunCheck
    report: RunReport
    error: Exception | None = None


def settled(journal: Journal, mender: Mender, run: str) -> Look | None:
    """A run in which nothing is wrong, or the same twice while nobody changed it; `None` if it is gone."""
    before: Look | None = None
    for _ in range(_TRIES):
        standing = mender.standing(run)
        if standing is None:
            return None
        look = _looked(journal, mender, standing)
        if look.report.is_fine:
            return look
        if before is not None and _is_same(before, look):
            return look
        last, before = before, look
    assert before is not None and last is not None
    if mender.standing(run) is None:
        return None
    # It changes all the time; what is damaged in it stays so.
    common = tuple(damage for damage in before.report.damages if damage in last.report.damages)
    return Look(before.check, replace(before.report, damages=common), before.error or changed_meanwhile(run))


def _is_same(one: Look, other: Look) -> bool:
    stamps = one.check.standing.stamp == other.check.standing.stamp
    return stamps and one.report.damages == other.report.damages


def _looked(journal: Journal, mender: Mender, standing: Standing) -> Look:
    check = RunCheck(journal, mender, standing)
    try:
        return Look(check, check.report())
    except Exception as error:  # Whatever is in a damaged store, the other runs are looked at.
        return Look(check, unlooked(standing.info, error), error)


def unlooked(info: RunInfo, error: Exception) -> RunReport:
    """The report of a run that could not be looked at."""
    damage = Damage(STORE, f"it cannot be looked at: {type(error).__name__}: {error}")
    return RunReport(info.run, info.workflow, info.status, (damage,))
