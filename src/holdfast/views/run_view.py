"""What readers see of a run: a line of a list, or the whole picture; each has `as_json` for plain data."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.data.state import State, origin_of
from holdfast.journal.provenance import Provenance
from holdfast.journal.run_state import Refusal, Spending
from holdfast.values import RunStatus
from holdfast.views.counts import Counts
from holdfast.views.flow_values import members_of, step_output
from holdfast.views.pause_view import PauseView
from holdfast.views.plain import ViewCodec, iso, pairs_of, plain, read_or_told, when
from holdfast.views.remarks import RemarkView
from holdfast.views.step_view import FaultView, StepView


@dataclass(frozen=True, slots=True)
class Driver:
    """The process that drives a run, or drove it last; `alive` is `None` where nobody looked."""

    host: str = ""
    pid: int = 0
    alive: bool | None = None

    @classmethod
    def read(cls, text: str, alive: bool | None) -> Driver:
        """A driver as a run's facts name it."""
        try:
            facts = json.loads(text)
            return cls(str(facts["host"]), int(facts["pid"]), alive)
        except (ValueError, KeyError, TypeError):
            return cls(alive=alive)

    def as_json(self) -> dict[str, Any]:
        """Keys: host, pid, alive."""
        return {"host": self.host, "pid": self.pid, "alive": self.alive}


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run in a list of runs: no more than its plain facts and its newest checkpoint's place."""

    run_id: str
    workflow: str
    status: RunStatus
    driver: Driver
    started_at: dt.datetime
    updated_at: dt.datetime
    wave: int | None = 0
    """How many waves are completed, as `RUN@N` counts them; `None` if its newest checkpoint is inside a sub-graph."""
    next: tuple[str, ...] = ()
    """The steps that were about to run at its newest checkpoint."""
    queue: str = ""
    """The queue whose workers drive it; none if it is not theirs."""
    priority: int = 0
    due_at: dt.datetime | None = None
    """When a worker is to take it up."""
    tags: tuple[str, ...] = ()

    @property
    def goes_on(self) -> bool:
        """Whether it is driven, or will be without anybody's doing."""
        if self.status == RunStatus.RUNNING:
            return not self.is_dead or bool(self.queue)
        is_asleep = self.status == RunStatus.PAUSED and self.due_at is not None
        return self.status == RunStatus.QUEUED or (is_asleep and bool(self.queue))

    @property
    def is_dead(self) -> bool:
        """Whether it counts as running although the process that drove it is gone."""
        return self.status == RunStatus.RUNNING and self.driver.alive is False

    @property
    def is_orphaned(self) -> bool:
        """Whether it is dead, and the workers' to go on with."""
        return self.is_dead and bool(self.queue)

    def as_json(self) -> dict[str, Any]:
        """Keys: run_id, workflow, status, dead, started_at, updated_at, wave, next, queue, priority, due_at, tags."""
        return {
            "run_id": self.run_id,
            "workflow": self.workflow,
            "status": str(self.status),
            "dead": self.is_dead,
            "started_at": iso(self.started_at),
            "updated_at": iso(self.updated_at),
            "wave": self.wave,
            "next": list(self.next),
            "queue": self.queue,
            "priority": self.priority,
            "due_at": iso(self.due_at),
            "tags": list(self.tags),
        }


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a run's steps used up; `cost` is in US dollars, `unpriced` counts calls whose price is not known."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0

    @classmethod
    def of(cls, spending: Spending) -> Ledger:
        """What a run has spent."""
        return cls(*spending)

    def as_json(self) -> dict[str, Any]:
        """Keys: calls, input_tokens, output_tokens, cost, unpriced."""
        names = ("calls", "input_tokens", "output_tokens", "cost", "unpriced")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as it stands: its facts, its steps, what it waits for and what came of it."""

    line: RunLine
    steps: tuple[StepView, ...]
    pauses: tuple[PauseView, ...]
    inputs: Mapping[str, Any]
    state: State
    """Values are decoded when they are looked at."""
    config: Mapping[str, Any]
    outline: Mapping[str, Any]
    """Its graph as plain data."""
    ledger: Ledger
    fault: FaultView | None
    done: Counts
    """The finished steps; of a workflow file as people see them, and the items apart."""
    seconds: float
    """Time spent in steps, over all drives."""
    checkpoints: int
    checkpoint_id: str
    """Its newest checkpoint."""
    size: int
    """Bytes of its journal."""
    parent: tuple[str, int] | None = None
    """The run it was forked from, and where."""
    commands_refused: int = 0
    """How many of the commands that it was given were refused."""
    refusals: tuple[Refusal, ...] = ()
    """The last of them, each with its reason."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Where it was last driven: host, platform, python, holdfast, packages, git, and what was added."""
    remarks: tuple[RemarkView, ...] = ()
    """What was said of it and of its checkpoints."""
    provenance: Provenance | None = None
    """Where it came from, and who confirmed it, if it came from outside."""
    codec: ViewCodec = field(default_factory=ViewCodec, repr=False, compare=False)
    """What reads the values of the state, within the limit that they have together."""

    @property
    def steps_done(self) -> int:
        """How many steps are finished, each visit for itself."""
        return self.done.steps

    @property
    def run_id(self) -> str:
        return self.line.run_id

    @property
    def visible_state(self) -> Mapping[str, Any]:
        """The state; of a workflow file without what its helper nodes keep. See `Unread` for what is too much."""
        if self.flow is None:
            return self.state
        return {key: self._read(key) for key in self.state if ":" not in key}

    def _read(self, key: str) -> Any:
        return read_or_told(lambda: self.state.get(key))

    def value(self, key: str) -> Any:
        """Return the value of one key of the state, however much was read before."""
        with self.codec.alone():
            return self.state[key]

    @property
    def flow(self) -> Mapping[str, Any] | None:
        """The workflow file it was started with: path, digest, source, base; `None` for a Python graph."""
        found = self.config.get("flow")
        return found if isinstance(found, Mapping) else None

    @property
    def tags(self) -> tuple[str, ...]:
        """What it is tagged with: by its config, and since."""
        return self.line.tags

    @property
    def output(self) -> Any:
        """What it resulted in: a workflow file's output; of a Python graph the final state. Else `None`."""
        if self.flow is not None and "last" in self.outline:
            return self._read("output")
        if self.line.status != RunStatus.COMPLETED:
            return None
        if self.flow is None:
            return dict(pairs_of(self.state))
        name = origin_of(self.state).checkpoint_node.partition(":")[0]
        return read_or_told(lambda: step_output(self.state, name, members_of(self.outline, name)))

    def step(self, name: str) -> StepView | None:
        """The step of that name."""
        return next((step for step in self.steps if step.name == name), None)

    def as_json(self, *, state: bool = False) -> dict[str, Any]:
        """The keys of its line, and: driver, flow, parent, provenance, inputs, output, steps, steps_done,
        items_done, seconds, pauses, ledger, checkpoints, checkpoint_id, bytes, commands_refused, refusals, facts,
        remarks, error; with `state` also state."""
        flow = None if self.flow is None else {key: plain(self.flow.get(key)) for key in ("path", "digest")}
        facts = {
            **self.line.as_json(),
            "driver": self.line.driver.as_json(),
            "flow": flow,
            "tags": [plain(tag) for tag in self.tags],
            "parent": None if self.parent is None else {"run_id": self.parent[0], "seq": self.parent[1]},
            "provenance": None if self.provenance is None else _provenance_as_json(self.provenance),
            "inputs": plain(self.inputs),
            "output": plain(self.output),
            "steps": [step.as_json() for step in self.steps],
            "steps_done": self.done.steps,
            "items_done": self.done.items,
            "seconds": round(self.seconds, 6),
            "pauses": [pause.as_json() for pause in self.pauses],
            "ledger": self.ledger.as_json(),
            "checkpoints": self.checkpoints,
            "checkpoint_id": self.checkpoint_id,
            "bytes": self.size,
            "commands_refused": self.commands_refused,
            "refusals": [
                {"command": plain(told.command), "reason": plain(told.reason), "by": plain(told.by)}
                for told in self.refusals
            ],
            "facts": plain(self.facts),
            "remarks": [remark.as_json() for remark in self.remarks],
            "error": None if self.fault is None else self.fault.as_json(),
        }
        return {**facts, "state": plain(self.visible_state)} if state else facts


def _provenance_as_json(origin: Provenance) -> dict[str, Any]:
    """Keys: source, at, signed_by, confirmed_by, confirmed_at."""
    confirmed = origin.confirmation
    return {
        "source": plain(origin.source),
        "at": iso(when(origin.at)),
        "signed_by": origin.signed_by or None,
        "confirmed_by": None if confirmed is None else plain(confirmed.by),
        "confirmed_at": None if confirmed is None else iso(when(confirmed.at)),
    }
