"""What a person gives a step that runs again: other input, its output, another state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.engine.commands.ground import Ground, NeedsGraph
from holdfast.engine.commands.meant import Refused
from holdfast.engine.commands.phrasing import Update, changes_of
from holdfast.engine.commands.steering import modify
from holdfast.engine.driving.changes import meaning
from holdfast.engine.settings import Settings
from holdfast.engine.travel.editing import Edit, Hands, edited
from holdfast.engine.travel.past import GIVEN
from holdfast.errors import CannotRerun
from holdfast.journal.records import Record, StepFinished
from holdfast.journal.run_state import (
    RunState,
    frame_of,
)
from holdfast.journal.writer import Writer


@dataclass(frozen=True, slots=True)
class Given:
    """What the step that is run again gets: other values than the state has, or, instead of being run, its result.

    `output` is what it is to have returned, or a function of the state that says so.
    """

    input: Update | None = None
    output: Any = ...
    update: Update | None = None
    """Changes of the state, for all."""
    by: str = ""

    @property
    def is_for_one(self) -> bool:
        """Whether anything is given to the step itself."""
        return bool(self.input) or self.output is not ...

    def check(self, step: str, name: str) -> None:
        """Refuse what means nothing for the step that is meant."""
        if self.input is not None and self.output is not ...:
            raise CannotRerun(
                "give either input= or output=: a step whose output is given does not look at its input"
            )
        if self.is_for_one and not step:
            raise CannotRerun(
                f"{name!r} stands for several steps; name one of them by its id, such as 'work#1[key]'"
            )

    def take(self, writer: Writer, settings: Settings, name: str) -> None:
        """Record what is given to a run, and to its step of that id, which is about to run."""
        if self.update:
            edited(writer, Hands.of(settings), Edit(self.update, None, self.by, "rerun"))
        for record in self._records(settings, writer.run, writer.info.run, name) if self.is_for_one else ():
            writer.record(record)

    def _records(self, settings: Settings, run: RunState, run_id: str, name: str) -> list[Record]:
        frame = run.frames.get(frame_of(name))
        step = frame.active.get(name) if frame is not None else None
        if frame is None or step is None:
            raise CannotRerun(
                f"step {name!r} is not what comes next at the checkpoint before it, as not every wave was saved there; "
                "change the state with update= instead"
            )
        ground = Ground(run_id, run, settings.codec, settings.graph, driven=False)
        try:
            if self.input:
                return modify(ground, name, changes_of("rerun", self.input, settings.codec), self.by, "rerun")
            state, graph = ground.state_for(step), ground.graph_at(step.frame)
            value = self.output(state) if callable(self.output) else self.output
            ops, goto = meaning(graph, settings.codec, frame, step, value, state)
        except Refused as refusal:
            raise CannotRerun(f"run {run_id!r}: {refusal}") from None
        except NeedsGraph:
            raise CannotRerun(f"the graph at hand has no step {name!r}") from None
        return [StepFinished(name, ops, goto, skipped=GIVEN)]
