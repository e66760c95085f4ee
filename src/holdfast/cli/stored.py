"""What a stored run has, for those who go on with it: what is kept, what failed, and its workflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.cli.display.progress import place_of
from holdfast.cli.display.text import cost_of
from holdfast.errors import HoldfastError
from holdfast.views.counts import NOTHING, Counts, counted, statuses, steps_in

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.engine.settings import Settings
    from holdfast.journal.journal import Journal, Loaded
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
    failed_step: str = ""
    failed_attempt: int = 0
    statuses: tuple[tuple[str, str], ...] = ()
    """Each finished step of a workflow file with its status."""


def kept_of(app: App, run_id: str) -> Kept | None:
    """What is kept of a run; `None` if nothing is, or the store does not say."""
    from holdfast.engine.runner import state_of
    from holdfast.journal.run_state import FAILED

    settings = app.settings
    try:
        loaded = settings.journal.load(settings.journal.info(run_id), settings.codec)
        state = state_of(loaded, settings)
        failed = next((step for step in loaded.run.active() if step.status == FAILED), None)
        return Kept(
            counts=counted(loaded.run),
            steps=steps_in(state),
            seconds=_seconds(settings, loaded),
            cost=cost_of(state.get("ledger")),
            failed_step="" if failed is None else place_of(failed.id, failed.node).label,
            failed_attempt=0 if failed is None else failed.attempt,
            statuses=tuple(statuses(state)),
        )
    except HoldfastError:
        return None


def counts_of(app: App, run_id: str) -> Counts:
    """How many steps and items of a run are finished."""
    settings = app.settings
    return counted(settings.journal.load(settings.journal.info(run_id), settings.codec).run)


def _seconds(settings: Settings, loaded: Loaded) -> float:
    """The time that the finished steps took; of a very long journal that of failed attempts is in it."""
    from holdfast.journal.records import MovedOn, StepFinished

    if loaded.seq > MANY_ENTRIES:
        return loaded.run.seconds
    start, history = settings.journal.history(loaded.info, settings.codec)
    finished = start.seconds
    for _, records in history:
        for record in records:
            parts = record.parts() if isinstance(record, MovedOn) else (record,)
            finished += sum(
                part.seconds for part in parts if isinstance(part, StepFinished) and not part.skipped
            )
    return min(finished, loaded.run.seconds)


def config_of(journal: Journal, info: RunInfo) -> dict[str, Any]:
    """The config that a run was started with; it says which workflow file the run is of."""
    from holdfast.data.codec import Codec

    codec = Codec()
    run = journal.load(info, codec).run
    found = codec.decode(run.config, lenient=True) if run.config else {}
    return dict(found) if isinstance(found, dict) else {}
