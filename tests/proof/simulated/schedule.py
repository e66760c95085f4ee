"""One schedule, from its seed or its choices to its verdict."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.invariants import Violation
from tests.simulator import Choices, Simulation
from tests.simulator.world import EPOCH

from .checking import Reading, check, result_of
from .operating import Operation
from .scenario import PRIVATE, Scenario, draw
from .shapes import shapes
from .stage import Stage, enter

PATIENCE = 150.0
"""How many simulated seconds a run may take after the last of what went wrong."""
AFTERMATH = 0.4
MOST_MOMENTS = 30_000


class Verdict(NamedTuple):
    """What became of a schedule."""

    scenario: Scenario
    violations: tuple[Violation, ...]
    struck: tuple[str, ...]
    """The kinds of faults that came about."""
    moments: int
    choices: tuple[int, ...]
    trace: tuple[str, ...]
    told: tuple[str, ...] = ()
    """What people were told became of their answers."""

    @property
    def digest(self) -> str:
        """A checksum of all that happened."""
        return hashlib.blake2b("\n".join(self.trace).encode(), digest_size=16).hexdigest()


def run(seed: int | str, *, trace: bool = False) -> Verdict:
    """The schedule of a seed."""
    return play(Choices(seed), trace=trace)


def replay(choices: Sequence[int], *, trace: bool = False) -> Verdict:
    """The schedule of recorded choices."""
    return play(Choices(given=choices), trace=trace)


def play(choices: Choices, *, trace: bool = False, scenario: Scenario | None = None) -> Verdict:
    """Return the schedule of these choices."""
    scenario = draw(choices) if scenario is None else scenario
    with Simulation(choices=choices, faults=scenario.faults, trace=trace) as simulation:
        world = simulation.world
        operation, stage = Operation(simulation, scenario), Stage(simulation)
        enter(stage)
        operation.begin()
        over = False
        while world.moment < MOST_MOMENTS:
            # One that stood still may yet do harm when it goes on.
            over = operation.is_over and (
                world.all_back_at == EPOCH or world.now > world.all_back_at + AFTERMATH
            )
            if over or not world.step(world.calm_at + PATIENCE):
                break
        found = check(operation, stage, over)
    enter(None)
    return Verdict(
        scenario,
        tuple(found),
        tuple(fault.kind for fault in world.struck),
        world.moment,
        tuple(choices.made),
        tuple(world.trace or ()),
        tuple(receipt.status for receipt in operation.receipts),
    )


def undisturbed(name: str) -> dict[str, Any]:
    """How the runs of a shape end if nothing goes wrong."""
    shape = next(shape for shape in shapes() if shape.name == name)
    with Simulation(choices=Choices(given=())) as simulation:
        operation = Operation(simulation, Scenario(PRIVATE, shape, 1, 1, (), "", 0.0))
        enter(Stage(simulation))
        operation.begin()
        simulation.run(lambda: operation.is_over, EPOCH + 60)
        kept = simulation.server.kept["run0"]
        assert kept.info.status == "completed", f"{name} is {kept.info.status}"
        reading = Reading(kept, shape.app._settings.codec, 0.0)
        reading.read()
    return result_of(reading.bodies, reading.codec)
