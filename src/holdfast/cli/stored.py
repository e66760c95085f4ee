"""What a stored run has, for those who go on with it: what is kept, what failed, and its workflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.display.progress import DONE, HELPERS, PENDING, place_of
from holdfast.errors import HoldfastError
from holdfast.views.counts import NOTHING, Counts, counted, statuses, steps_in
from holdfast.views.state_ledger import spent_by

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.engine.settings import Settings
    from holdfast.flows.flow import Flow
    from holdfast.journal.journal import Journal, Loaded
    from holdfast.journal.run_state import RunState
    from holdfast.stores.base import RunInfo

REPLANNED = "replanned"
"""Where a run's config says when it was last given another version of its workflow file."""

MANY_ENTRIES = 5000
"""A journal with more entries is not read as a whole to tell how long the finished steps took."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The finished steps of a stored run and what they cost; and the attempt that failed, if one did."""

    counts: Counts = NOTHING
    """The finished steps and items, those of open sub-workflows included."""
    steps: int = 0
    """The finished steps of the workflow itself."""
    seconds: float = 0.0
    cost: float = 0.0
    spent: float = 0.0
    """US dollars that the run has spent, in vain too."""
    failed_step: str = ""
    failed_attempt: int = 0
    statuses: tuple[tuple[str, str], ...] = ()
    """Each finished step of a workflow file with its status."""
    items: tuple[tuple[str, str], ...] = ()
    """The items of for-each steps under way, by the names of their steps: done, failed or pending."""
    adopted: int = 0
    """How many of the steps were given the results of another run."""


def kept_of(app: App, run_id: str) -> Kept | None:
    """What is kept of a run; `None` if nothing is, or the store does not say."""
    from holdfast.engine.runner import state_of
    from holdfast.journal.run_state import FAILED

    settings = app.settings
    try:
        loaded = settings.journal.load(settings.journal.info(run_id), settings.codec)
        state = state_of(loaded, settings)
        failed = next((step for step in loaded.run.active() if step.status == FAILED), None)
        spent = spent_by(loaded.run, settings.codec).cost
        seconds, cost = _kept(settings, loaded, spent)
        return Kept(
            counts=counted(loaded.run),
            steps=steps_in(state),
            seconds=seconds,
            cost=cost,
            spent=spent,
            failed_step="" if failed is None else place_of(failed.id, failed.node).label,
            failed_attempt=0 if failed is None else failed.attempt,
            statuses=tuple(statuses(state)),
            items=_open_items(loaded.run),
            adopted=_adopted(app, loaded) if loaded.run.reuse is not None else 0,
        )
    except HoldfastError:
        return None


def _open_items(run: RunState) -> tuple[tuple[str, str], ...]:
    from holdfast.journal.run_state import DONE as FINISHED

    items = (step for step in run.active() if step.key is not None)
    return tuple((step.id, DONE if step.status == FINISHED else PENDING) for step in items)


def _adopted(app: App, loaded: Loaded) -> int:
    from holdfast.journal.records import StepFinished

    settings = app.settings
    _, history = settings.journal.history(loaded.info, settings.codec)
    found = [record for _, records in history for record in records if isinstance(record, StepFinished)]
    return adopted_steps(app, {record.step for record in found if record.origin}).steps


def adopted_steps(app: App, ids: Iterable[str]) -> Counts:
    """How many steps of the workflow itself, and items, are over by what was taken over, and not run."""
    nodes = app.settings.graph.nodes
    own = {place_of(name) for name in ids if "/" not in name}
    whole = [place for place in own if place.role == "done" or f"{place.path[0]}:done" not in nodes]
    steps = {place.path for place in whole if place.role not in HELPERS.values()}
    return Counts(len(steps), sum(place.key is not None for place in own))


def kept_at(app: App, info: RunInfo, seq: int | None) -> Kept | None:
    """What of a run is kept that goes on from where it, or another, stood at an entry; `None` if nothing is."""
    from holdfast.engine.runner import state_of

    settings = app.settings
    if not seq:
        return None
    try:
        loaded = settings.journal.load(info, settings.codec, seq)
    except HoldfastError:
        return None
    state, spent = state_of(loaded, settings), spent_by(loaded.run, settings.codec).cost
    kept = Kept(counted(loaded.run), steps_in(state), loaded.run.seconds, spent, spent)
    return replace(kept, statuses=tuple(statuses(state))) if kept.steps else None


def counts_of(app: App, run_id: str) -> Counts:
    """How many steps and items of a run are finished."""
    settings = app.settings
    return counted(settings.journal.load(settings.journal.info(run_id), settings.codec).run)


def _kept(settings: Settings, loaded: Loaded, spent: float) -> tuple[float, float]:
    """The time and the money that went into the finished steps; of a very long journal with what was in vain."""
    from holdfast.views.ledger import ledger

    if loaded.seq > MANY_ENTRIES:
        return loaded.run.seconds, spent
    kept = ledger(settings.journal, loaded.info.run).kept
    return min(kept.seconds, loaded.run.seconds), kept.cost


def stored_flow(info: RunInfo, config: Mapping[str, Any], file: Path | None = None) -> Flow:
    """The workflow of a stored run; of one from outside what came with it, whatever files are on this machine."""
    from holdfast.flows.flow import flow_of_run
    from holdfast.flows.reading.problems import FlowInvalid

    try:
        return flow_of_run(config, file=file, prefer="saved" if info.origin else "file")
    except FlowInvalid as error:
        if file is not None or Path(error.problems[0].position.file).is_file():
            raise
        raise click.UsageError(
            f"{error}\nthis is what run {info.run!r} has for its workflow file; go on with a file that can be used: "
            f"holdfast resume {info.run} --workflow FILE"
        ) from None


def config_of(journal: Journal, info: RunInfo) -> dict[str, Any]:
    """The config that a run was started with; it says which workflow file the run is of."""
    from holdfast.data.codec import Codec

    codec = Codec()
    return config_in(journal.load(info, codec).run)


def config_in(run: RunState) -> dict[str, Any]:
    """The config of a run that was loaded."""
    from holdfast.data.codec import Codec

    found = Codec().decode(run.config, lenient=True) if run.config else {}
    return dict(found) if isinstance(found, dict) else {}
