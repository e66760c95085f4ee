"""Checking a whole store: its medium, then every run; nothing stops it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.data.seal import Seal
from holdfast.errors import HoldfastError, RunNotFound
from holdfast.journal.journal import Journal
from holdfast.repair.report import Progress, RunReport, StoreReport
from holdfast.repair.settling import settled, unlooked
from holdfast.stores.base import RunInfo, Store
from holdfast.stores.mending import Mender, mending


def check_store(
    store: Store,
    runs: Sequence[str] | None = None,
    *,
    seal: Seal | None = None,
    progress: Progress | None = None,
) -> StoreReport:
    """Verify every run, or those that are named: chains, snapshots, checkpoints, facts, inboxes, and the medium.

    Nothing is changed, and no damage stops it. `seal` holds the key of encrypted runs; without it only their
    chains are verified. `progress` is told how far it is. A run that is not there raises `RunNotFound`.
    """
    journal = Journal(store, seal)
    with mending(store) as mender:
        infos, problems = mender.runs()
        wanted = _wanted(infos, runs, store)
        medium = [*problems, *_asked(mender)] if runs is None else problems
        found = []
        for number, info in enumerate(wanted):
            if progress is not None:
                progress(number, len(wanted), info.run)
            report = _checked(journal, mender, info)
            found += [report] if report is not None else []
        leftovers = tuple(mender.leftovers()) if runs is None else ()
    return StoreReport(store.url, tuple(found), tuple(dict.fromkeys(medium)), leftovers)


def _wanted(infos: list[RunInfo], runs: Sequence[str] | None, store: Store) -> list[RunInfo]:
    ordered = sorted(infos, key=lambda info: (-info.updated_at, info.run))
    if runs is None:
        return ordered
    known = {info.run: info for info in ordered}
    for run in runs:
        if run not in known:
            raise RunNotFound(f"no run {run!r} in {store.url}; `holdfast runs` lists those that are there")
    return [known[run] for run in dict.fromkeys(runs)]


def _asked(mender: Mender) -> list[str]:
    """What is wrong with the medium: what others are writing just now may look wrong once."""
    try:
        found = mender.problems()
        if not found:
            return []
        again = set(mender.problems())
        return [problem for problem in found if problem in again]
    except HoldfastError as error:
        return [str(error)]


def _checked(journal: Journal, mender: Mender, info: RunInfo) -> RunReport | None:
    """One run; `None` if it is gone."""
    try:
        look = settled(journal, mender, info.run)
    except Exception as error:  # Whatever is in a damaged store, the other runs are looked at.
        return unlooked(info, error)
    return None if look is None else look.report
