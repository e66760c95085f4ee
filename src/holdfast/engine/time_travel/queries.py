"""Questions about the past of runs, which need none of their code: history, forks, comparisons, differences."""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.engine.graph_changes import changed_nodes
from holdfast.engine.time_travel.checkpoints import Position, find_place, find_position
from holdfast.errors import CheckpointNotFound, StateInvalid
from holdfast.journal.journal import Journal
from holdfast.journal.sealing import Seal
from holdfast.stores.base import Store
from holdfast.views.comparison import (
    Comparison,
    StateDifference,
    comparison,
    load_plainly,
    state_difference,
)
from holdfast.views.family import Family, family
from holdfast.views.history import History, history
from holdfast.views.plain import CODEC


def _journal(store: Store | Journal) -> Journal:
    """Return the journal of a store, read with the key of the environment."""
    return store if isinstance(store, Journal) else Journal(store, Seal.from_environment(os.environ))


def run_history(
    store: Store | Journal, run: str, *, limit: int | None = None, before: str | None = None
) -> History:
    """Return a run's checkpoints, newest first, each with what happened since the one before; see `App.history`."""
    journal = _journal(store)
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise StateInvalid(f"limit must be a whole number of 1 or more, not {limit!r}")
    position = find_position(journal.store, run)
    seq = position.seq + 1 if position.seq is not None else None
    if before is not None:
        seq = find_place(journal.store, run, before).seq or seq
    return journal.read_whole(position.info.run, lambda: history(journal, position.info, limit, seq))


def run_forks(store: Store | Journal, run: str) -> Family:
    """Return the runs that a run comes from and those that come from it."""
    journal = _journal(store)
    return family(journal, find_position(journal.store, run).info)


def compare_runs(store: Store | Journal, one: str, other: str) -> Comparison:
    """Return what two runs did differently; see `App.compare`."""
    journal = _journal(store)
    first, second = find_position(journal.store, one), find_position(journal.store, other)
    outlines = [journal.load(each.info, CODEC, each.seq).run.outline for each in (first, second)]
    code: dict[str, str] = {}
    if first.info.workflow == second.info.workflow and all(outlines) and outlines[0] != outlines[1]:
        code = changed_nodes(outlines[0], outlines[1])
    return comparison(journal, (first.info, first.seq), (second.info, second.seq), code)


def diff_states(
    store: Store | Journal, one: str, other: str | None = None, *, keys: Sequence[str] = ()
) -> StateDifference:
    """Return what differs between two checkpoints of any runs in a store.

    A checkpoint is named by a run id, a checkpoint id, a workflow's name (its latest run), `RUN@3` (after wave 3),
    `RUN@-1` (one checkpoint before the newest) or `RUN@NODE` (after a node's last finish). One alone is compared with
    the checkpoint before it. `keys` restricts it to some keys of the state.
    """
    journal = _journal(store)
    loaded = [load_plainly(journal, each.info, each.seq) for each in _pair(journal.store, one, other)]
    return state_difference(loaded[0], loaded[1], keys)


def _pair(store: Store, one: str, other: str | None) -> tuple[Position, Position]:
    position = find_position(store, one)
    if other is not None:
        return position, find_position(store, other)
    info = position.info
    found = store.checkpoints(info.run, None if position.seq is None else position.seq + 1, 2)
    if len(found) == 2:
        return Position(info, found[1].seq), Position(info, found[0].seq)
    try:
        start = find_position(store, f"{info.run}@0").seq if found else None
    except CheckpointNotFound:
        start = None
    if start is None or start >= found[0].seq:
        raise CheckpointNotFound(
            f"run {info.run!r} has nothing saved before that to compare with; give two checkpoints"
        )
    return Position(info, start), Position(info, found[0].seq)
