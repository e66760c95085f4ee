"""`CheckpointData`: one checkpoint of one run as a plain value, read from the run's journal."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.data.codec import Codec
from holdfast.data.ops import Op
from holdfast.data.state import State
from holdfast.engine.driving.decide import qualified
from holdfast.journal.checkpoints import checkpoint_id
from holdfast.journal.fold import apply
from holdfast.journal.journal import Journal
from holdfast.journal.records import Answered, Forked, Record, Reset, RunStarted, StepFinished
from holdfast.journal.run_state import ABOUT_DOUBTS, DONE, RUNNING, Pause, RunState, Step
from holdfast.stores.base import Entry, RunInfo
from holdfast.values import START, RunStatus

SAVED_AT = "timestamp"
"""The note under which a state that was saved by hand keeps its own time."""


@dataclass(frozen=True, slots=True)
class PauseMetadata:
    """A question that a run asked. `block_id` is what it is answered by; `response` is `None` until then."""

    block_id: str
    prompt: str
    response: Any = None


class _Finished(NamedTuple):
    """A step that finished: its id (empty if pruning forgot it), its node, its changes."""

    step: str
    node: str
    ops: tuple[Op, ...] = ()


class Outputs(Mapping[str, dict[str, Any]]):
    """The update of each finished step, by step id, in order. Values are decoded when they are looked at."""

    def __init__(self, finished: Sequence[_Finished]) -> None:
        self._ops = {done.step: done.ops for done in finished if done.step}

    def __getitem__(self, step: str) -> dict[str, Any]:
        return {op.key: op.value for op in self._ops[step] if op.kind != "drop"}

    def __iter__(self) -> Iterator[str]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)

    def __repr__(self) -> str:
        return f"Outputs({dict(self)!r})"


@dataclass(frozen=True, slots=True)
class CheckpointData:
    """A run as it stood at one of its checkpoints.

    Only what finished is in `completed` and `outputs`; nodes are named `outer/inner` in a sub-graph.
    What pruning dropped is missing from `workflow_inputs`, `outputs` and `decisions`.
    """

    checkpoint_id: str
    run_id: str
    workflow_name: str
    workflow_inputs: dict[str, Any]
    """The state that the run began with."""
    status: RunStatus
    current: tuple[str, ...]
    """The nodes that run, or are about to."""
    in_progress: tuple[str, ...] | None
    """Those of `current` whose start is recorded and whose end is not."""
    completed: tuple[str, ...]
    state: State
    config: dict[str, Any]
    outline: dict[str, Any]
    """The graph as plain data; empty for a state that was saved by hand."""
    iteration: int
    """How many steps have finished."""
    completed_waves: int
    """A count: the run goes on with the wave after these."""
    pauses: tuple[PauseMetadata, ...]
    """The questions that wait for an answer."""
    decisions: tuple[PauseMetadata, ...]
    """The questions that were answered, in order."""
    created_at: dt.datetime
    """When this checkpoint was saved."""
    updated_at: dt.datetime
    """When the run was last saved."""
    _finished: tuple[_Finished, ...] = field(repr=False, compare=False, default=())

    @property
    def outputs(self) -> Outputs:
        """What each finished step returned, by step id: `outer#1/node#2[item]`."""
        return Outputs(self._finished)

    @property
    def pause(self) -> PauseMetadata | None:
        """The first question that waits for an answer."""
        return self.pauses[0] if self.pauses else None


def read_checkpoints(journal: Journal, info: RunInfo, codec: Codec) -> Iterator[CheckpointData]:
    """Every checkpoint of a run, oldest first, in one pass over its journal."""
    run, history = journal.history(info, codec)
    reading = _Reading(info, run, codec)
    for entry, found in history:
        reading.take(entry, found)
        if entry.mark is not None:
            yield reading.data(entry.seq, entry.at)


def read_checkpoint(journal: Journal, info: RunInfo, codec: Codec, seq: int | None) -> CheckpointData:
    """A run at its checkpoint `seq`, or, without one, as it stands now."""
    run, history = journal.history(info, codec, seq)
    reading = _Reading(info, run, codec)
    marked, at = 0, info.created_at
    for entry, found in history:
        reading.take(entry, found)
        if entry.mark is not None:
            marked, at = entry.seq, entry.at
    return reading.data(marked, at)


class _Reading:
    """A fold that also keeps what a fold forgets: the inputs, what finished, what was answered."""

    def __init__(self, info: RunInfo, run: RunState, codec: Codec) -> None:
        self.info, self.run, self.codec = info, run, codec
        self.inputs: dict[str, Any] = {}
        self.finished = [_Finished("", node) for node in run.path]
        self.decisions: list[PauseMetadata] = []

    def take(self, entry: Entry, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, Answered) and record.pause in self.run.pauses:
                self._answered(self.run.pauses[record.pause], record.value)
            apply(self.run, record, entry.at)
            if isinstance(record, StepFinished) and not record.skipped:
                step = self.run.step(record.step)
                if step.node != START:
                    self.finished.append(_Finished(step.id, qualified(step), step.ops))
            elif isinstance(record, RunStarted):
                self.inputs = {op.key: op.value for op in record.ops}
            elif isinstance(record, (Forked, Reset)):
                self.finished = [_Finished("", node) for node in self.run.path]

    def _answered(self, pause: Pause, raw: bytes) -> None:
        asked_what_to_do = pause.kind in ABOUT_DOUBTS
        response = raw.decode() if asked_what_to_do else self.codec.decode(raw)
        self.decisions.append(PauseMetadata(pause.name, pause.prompt, response))

    def data(self, seq: int, at: float) -> CheckpointData:
        run, info = self.run, self.info
        ident = checkpoint_id(info.key, seq) if seq else ""
        upcoming = [step for step in run.active() if step.status != DONE and step.id not in run.frames]
        started = tuple(qualified(step) for step in upcoming if step.status == RUNNING)
        by_hand = step_saved_by_hand(run)
        return CheckpointData(
            checkpoint_id=ident,
            run_id=info.run,
            workflow_name=info.workflow,
            workflow_inputs=dict(self.inputs),
            status=RunStatus(run.status),
            current=tuple(qualified(step) for step in upcoming),
            in_progress=started or None,
            completed=tuple(done.node for done in self.finished),
            state=self._state(ident, by_hand),
            config=self.codec.decode(run.config) if run.config else {},
            outline=run.outline,
            iteration=len(self.finished),
            completed_waves=run.root.waves if by_hand is None else len(self.finished),
            pauses=tuple(
                PauseMetadata(pause.name or pause.node, pause.prompt) for pause in run.pauses.values()
            ),
            decisions=tuple(self.decisions),
            created_at=dt.datetime.fromtimestamp(at, dt.UTC),
            updated_at=dt.datetime.fromtimestamp(max(info.updated_at, at), dt.UTC),
            _finished=tuple(self.finished),
        )

    def _state(self, ident: str, by_hand: Step | None) -> State:
        root, node, at = self.run.root, self.run.root.last_node, self.run.updated_at
        if by_hand is not None:
            node = "" if by_hand.node == START else by_hand.node
            at = self.codec.decode(by_hand.notes[SAVED_AT])
        return State.view(root.cells, self.codec, self.info.run, ident, node, at)


def step_saved_by_hand(run: RunState) -> Step | None:
    """The step that stands for the node a state came from, if the run's last checkpoint was saved by hand."""
    done = [step for step in run.root.active.values() if step.status == DONE and SAVED_AT in step.notes]
    return done[0] if done and not run.outline else None
