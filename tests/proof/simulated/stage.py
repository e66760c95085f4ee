"""Where the bodies of simulated steps say what they do: a ledger of one schedule, outside its store."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast import Context
from tests.simulator import Process, Simulation

_DURATIONS = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.004, 0.03, 0.3, 1.4)


class Begun(NamedTuple):
    """The body of a step, or of something that a step does once, began."""

    run: str
    step: str
    key: str
    attempt: int
    process: Process
    moment: int
    time: float
    looked_at: float
    """When the process last looked whether it may have been thought dead."""


class Fired(NamedTuple):
    """A step went on after a sleep, and what time it was then."""

    run: str
    step: str
    process: Process
    time: float
    most_ahead: float


class Stage:
    """What the bodies of one schedule did, in order."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.world = simulation, simulation.world
        self.begun: list[Begun] = []
        self.fired: list[Fired] = []

    def begins(self, ctx: Context, key: str = "") -> None:
        """Note that a body begins. What a dead process does is nothing."""
        world = self.world
        process = world.current
        assert process is not None
        if process.alive:
            self.begun.append(
                Begun(
                    ctx.run_id,
                    ctx.step,
                    key,
                    ctx.attempt,
                    process,
                    world.moment,
                    world.now,
                    process.looked_at,
                )
            )
            if world.trace is not None:
                world.trace.append(f"{world.now:.5f} {process.name} runs {ctx.run_id} {ctx.step} {key}")

    def fires(self, ctx: Context) -> None:
        """Note that a sleep is over."""
        process = self.world.current
        assert process is not None
        if process.alive:
            self.fired.append(Fired(ctx.run_id, ctx.step, process, self.world.now, process.most_ahead))

    def duration(self) -> float:
        """How long the body takes."""
        return _DURATIONS[self.simulation.choices.pick(len(_DURATIONS))]


_stage: list[Any] = [None]


def stage() -> Stage:
    """The stage of the schedule that is under way."""
    found = _stage[0]
    assert isinstance(found, Stage)
    return found


def enter(new: Stage | None) -> None:
    """Let the bodies of all shapes report to this stage."""
    _stage[0] = new
