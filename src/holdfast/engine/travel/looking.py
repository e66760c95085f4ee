"""Looking at the past of a run: its checkpoints page by page, and the runs that it is related to."""

from __future__ import annotations

import os

from holdfast.data.seal import Seal
from holdfast.engine.resume import find_checkpoint
from holdfast.engine.travel.moments import Moment, find_moment
from holdfast.errors import CheckpointNotFound, StateInvalid
from holdfast.journal.checkpoints import is_checkpoint_id
from holdfast.journal.journal import Journal
from holdfast.stores.base import Store
from holdfast.views.family import Family, family
from holdfast.views.history import History, history

Place = str | int
"""A checkpoint of a run: its id, the number of a wave, or what follows the `@` of a moment."""


def find_place(store: Store, run: str, place: Place | None) -> Moment:
    """The moment of a run that a place means; without one, what `run` says itself."""
    if place is None:
        return find_moment(store, run)
    if isinstance(place, bool) or not isinstance(place, (str, int)):
        raise StateInvalid(
            f"a checkpoint is named by its id, the number of a wave, or '@…', not {place!r:.80}"
        )
    info = find_moment(store, run).info
    text = str(place).removeprefix("@")
    if is_checkpoint_id(text):
        found, seq = find_checkpoint(store, text)
        if found.key != info.key:
            raise CheckpointNotFound(f"checkpoint not found: {text} (it is one of run {found.run!r})")
        return Moment(info, seq)
    return find_moment(store, f"{info.run}@{text}")


def history_page(journal: Journal, run: str, limit: int | None = None, before: str | None = None) -> History:
    """As `run_history`, through journals that may have a key of their own."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise StateInvalid(f"limit must be a whole number of 1 or more, not {limit!r}")
    end = None if before is None else find_place(journal.store, run, before)
    moment = find_moment(journal.store, run)
    seq = moment.seq + 1 if moment.seq is not None else None
    return history(journal, moment.info, limit, end.seq if end is not None else seq)


def run_history(store: Store, run: str, *, limit: int | None = None, before: str | None = None) -> History:
    """A run's checkpoints, newest first, each with what happened since the one before; see `App.history`.

    None of the workflow's code has to be at hand.
    """
    return history_page(Journal(store, Seal.from_environment(os.environ)), run, limit, before)


def family_of(journal: Journal, run: str) -> Family:
    """As `run_forks`, through journals that may have a key of their own."""
    return family(journal, find_moment(journal.store, run).info)


def run_forks(store: Store, run: str) -> Family:
    """The runs that a run comes from and those that come from it; none of the workflow's code has to be at hand."""
    return family_of(Journal(store, Seal.from_environment(os.environ)), run)
