"""What comes of driving a run."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any

from holdfast.data.codec import Codec
from holdfast.data.state import State
from holdfast.journal.run_state import Pause as FoldedPause
from holdfast.journal.run_state import RunState
from holdfast.values import RunStatus, moment


@dataclass(frozen=True, slots=True)
class Pause:
    """Something a run waits for.

    `kind` is `ask` (an answer to `ctx.ask`), `before` or `after` (a gate; plain `resume` passes it),
    `in_doubt` or `poison` (what to do with an interrupted step). Answer by `name`, or by `id` where
    several pauses have one name.
    """

    id: str
    kind: str
    node: str
    step: str
    name: str
    prompt: str
    schema: dict[str, Any] | None
    since: dt.datetime
    expires_at: dt.datetime | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What a drive did and what it cost."""

    steps_run: int = 0
    """Attempts made by this drive."""
    steps_kept: int = 0
    """Steps that were finished before this drive and did not run again."""
    waves: int = 0
    """Waves completed, over all drives of the run."""
    retries: int = 0
    seconds: float = 0.0
    """Time spent in steps, over all drives of the run."""
    commits: int = 0
    bytes_written: int = 0
    save_errors: int = 0
    cost: float = 0.0
    """US dollars that the run is known to have spent, over all its drives."""
    steps_adopted: int = 0
    """Steps that this drive was given the results of, instead of running them."""
    seconds_saved: float = 0.0
    """How long they took where they ran."""
    cost_saved: float = 0.0
    """US dollars that they are known to have cost there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run stands now: completed, paused or cancelled. A failure is raised instead."""

    status: RunStatus
    state: State
    run_id: str
    checkpoint_id: str
    pauses: tuple[Pause, ...] = ()
    figures: Figures = field(default_factory=Figures)
    warnings: tuple[str, ...] = ()
    """What went wrong and was passed over: failed steps under on_failure="continue", unsaved checkpoints."""
    adopted: tuple[str, ...] = ()
    """The steps that this drive was given the results of, instead of running them, by their ids."""


def public_pauses(run: RunState, codec: Codec) -> tuple[Pause, ...]:
    """A run's pauses as people see them, in the order of the steps, not of who was first to ask."""
    order = {step.id: index for index, step in enumerate(run.active())}
    pauses = sorted(run.pauses.values(), key=lambda pause: order.get(pause.step, 0))
    return tuple(_public(pause, codec) for pause in pauses)


def _public(pause: FoldedPause, codec: Codec) -> Pause:
    return Pause(
        id=pause.id,
        kind=pause.kind,
        node=pause.node,
        step=pause.step,
        name=pause.name,
        prompt=pause.prompt,
        schema=codec.decode(pause.schema) if pause.schema else None,
        since=moment(pause.since),
        expires_at=None if pause.expires_at is None else moment(pause.expires_at),
    )
