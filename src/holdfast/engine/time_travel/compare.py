"""Comparing two runs that somebody names, their code included."""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.engine.graph_changes import changed_nodes
from holdfast.engine.time_travel.checkpoints import Moment, find_moment
from holdfast.errors import CheckpointNotFound
from holdfast.journal.journal import Journal
from holdfast.state.encryption import Seal
from holdfast.stores.base import RunInfo, Store
from holdfast.views.comparison import Comparison, comparison
from holdfast.views.diff.states import StateDifference, load_plainly, state_difference
from holdfast.views.plain import CODEC


def compare_runs(store: Store, one: str, other: str) -> Comparison:
    """What two runs did differently; see `App.compare`. None of their code has to be at hand."""
    return compare_moments(Journal(store, Seal.from_environment(os.environ)), one, other)


def compare_moments(journal: Journal, one: str, other: str) -> Comparison:
    """As `compare_runs`, through journals that may have a key of their own."""
    first, second = find_moment(journal.store, one), find_moment(journal.store, other)
    outlines = [journal.load(each.info, CODEC, each.seq).run.outline for each in (first, second)]
    code: dict[str, str] = {}
    if first.info.workflow == second.info.workflow and all(outlines) and outlines[0] != outlines[1]:
        code = changed_nodes(outlines[0], outlines[1])
    return comparison(journal, (first.info, first.seq), (second.info, second.seq), code)


# What differs between two moments that somebody names.


def diff_states(
    store: Store, one: str, other: str | None = None, *, keys: Sequence[str] = ()
) -> StateDifference:
    """What differs between two moments of any runs in a store; none of their code has to be at hand.

    A moment is a run id, a checkpoint id, a workflow's name (its latest run), `RUN@3` (after wave 3), `RUN@-1`
    (one checkpoint before the newest) or `RUN@NODE` (after a node's last finish). One moment alone is compared
    with the checkpoint before it. `keys` restricts it to some keys of the state.
    """
    return diff_moments(Journal(store, Seal.from_environment(os.environ)), one, other, keys)


def diff_moments(
    journal: Journal, one: str, other: str | None = None, keys: Sequence[str] = ()
) -> StateDifference:
    """As `diff_states`, through journals that may have a key of their own."""
    first, second = _pair(journal.store, one, other)
    return state_difference(
        load_plainly(journal, first.info, first.seq), load_plainly(journal, second.info, second.seq), keys
    )


def _pair(store: Store, one: str, other: str | None) -> tuple[Moment, Moment]:
    moment = find_moment(store, one)
    if other is not None:
        return moment, find_moment(store, other)
    info = moment.info
    found = store.marks(info.run, None if moment.seq is None else moment.seq + 1, 2)
    if len(found) == 2:
        return Moment(info, found[1].seq), Moment(info, found[0].seq)
    start = _start(store, info) if found else None
    if start is None or start >= found[0].seq:
        raise CheckpointNotFound(
            f"run {info.run!r} has nothing saved before that to compare with; give two moments"
        )
    return Moment(info, start), Moment(info, found[0].seq)


def _start(store: Store, info: RunInfo) -> int | None:
    """The entry before a run's first step, if it is still there."""
    try:
        return find_moment(store, f"{info.run}@0").seq
    except CheckpointNotFound:
        return None
