"""`CheckpointData`: one checkpoint of one run as a plain value, by the names that its readers know it under."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, TypedDict, Unpack

from holdfast import clock
from holdfast.engine.decide import qualified
from holdfast.errors import HoldfastError, RunConflict, RunExists, suggestion
from holdfast.journal.checkpoint_ids import checkpoint_id, encode_mark, new_run_key
from holdfast.journal.fold import apply
from holdfast.journal.journal import Journal
from holdfast.journal.records import (
    Answered,
    Forked,
    Noted,
    Record,
    Reset,
    RunEnded,
    RunStarted,
    StateEdited,
    StepFinished,
    StepStarted,
    Target,
    WaveFinished,
)
from holdfast.journal.run_state import ABOUT_DOUBTS, DONE, RUNNING, RunState, Step, node_of
from holdfast.journal.writer import Writer
from holdfast.state.codec import Codec
from holdfast.state.ops import Op
from holdfast.state.schema import Schema
from holdfast.state.state import State, origin_of, state_view
from holdfast.stores.base import Entry, RunInfo
from holdfast.values import START, RunStatus, utc_time
from holdfast.views.plain import plain

SAVED_AT, SAVED_DATA = "timestamp", "checkpoint"
"""The notes under which a checkpoint that was saved by hand keeps the time of its state, and its facts."""


@dataclass(frozen=True, slots=True)
class PauseMetadata:
    """A question that a run asked. `block_id` identifies it in an answer; `response` is `None` until it is answered."""

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

    def __reduce__(self) -> tuple[Any, ...]:
        return (dict, (dict(self),))


class OtherNames(TypedDict, total=False):
    """What a checkpoint can also be made with: the same facts under the names of other systems."""

    current_agent: str
    in_progress: str | None
    completed_agents: Iterable[str]
    completed_blocks: Iterable[str]
    agent_outputs: Mapping[str, Any]
    context: Mapping[str, Any]
    context_snapshot: Mapping[str, Any]
    execution_waves: Sequence[Sequence[Any]] | None
    pause_metadata: PauseMetadata | Mapping[str, Any] | None
    dag_structure: Mapping[str, Any]
    execution_config: Mapping[str, Any]
    layer_index: int


_FIELD_OF = {
    "current_agent": "current",
    "in_progress": "started",
    "completed_agents": "completed",
    "completed_blocks": "completed",
    "agent_outputs": "outputs",
    "context": "state",
    "context_snapshot": "state",
    "pause_metadata": "pauses",
    "dag_structure": "outline",
    "execution_config": "config",
    "layer_index": "completed_waves",
}


def _same(name: str, doc: str) -> Any:
    """Return a property that is another name of a field."""
    return property(attrgetter(name), doc=doc)


@dataclass(frozen=True, init=False)
class CheckpointData:
    """A run at one of its checkpoints.

    Only what finished is in `completed` and `outputs`; nodes are named `outer/inner` in a sub-graph.
    What pruning dropped is missing from `workflow_inputs`, `outputs` and `decisions`. The same facts have the
    names of other systems, too, which the constructor takes as well: `context_snapshot` for `state`, and so on.
    """

    checkpoint_id: str
    run_id: str
    workflow_name: str
    workflow_inputs: dict[str, Any]
    """The state that the run began with."""
    status: RunStatus
    current: tuple[str, ...]
    """The nodes that run, or are about to."""
    started: tuple[str, ...]
    """Those of `current` whose start is recorded and whose end is not."""
    completed: tuple[str, ...]
    outputs: Mapping[str, Any]
    """What each finished step returned, by step id: `outer#1/node#2[item]`."""
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
    journal: str = field(repr=False, compare=False)
    """All that a resume needs, as text, in a checkpoint that a store of your own is given; keep it as it is."""
    waves: tuple[tuple[Any, ...], ...] | None = field(repr=False)
    """The waves that the checkpoint was made with; without them they are those of the outline."""

    def __init__(
        self,
        checkpoint_id: str = "",
        workflow_name: str = "",
        workflow_inputs: Mapping[str, Any] | None = None,
        *,
        run_id: str = "",
        status: str = RunStatus.INTERRUPTED,
        current: Iterable[str] = (),
        started: Iterable[str] = (),
        completed: Iterable[str] = (),
        outputs: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        outline: Mapping[str, Any] | None = None,
        iteration: int | None = None,
        completed_waves: int = 0,
        pauses: Iterable[PauseMetadata | Mapping[str, Any]] = (),
        decisions: Iterable[PauseMetadata | Mapping[str, Any]] = (),
        created_at: dt.datetime | str | None = None,
        updated_at: dt.datetime | str | None = None,
        journal: str = "",
        waves: Iterable[Iterable[Any]] | None = None,
        **other_names: Unpack[OtherNames],
    ) -> None:
        created = _time("created_at", created_at)
        updated = created if updated_at is None else _time("updated_at", updated_at)
        given = {
            "checkpoint_id": checkpoint_id,
            "run_id": run_id,
            "workflow_name": workflow_name,
            "workflow_inputs": workflow_inputs,
            "status": status,
            "current": current,
            "started": started,
            "completed": completed,
            "outputs": outputs,
            "state": state,
            "config": config,
            "outline": outline,
            "iteration": iteration,
            "completed_waves": completed_waves,
            "pauses": pauses,
            "decisions": decisions,
            "created_at": created,
            "updated_at": updated,
            "journal": journal,
            "waves": waves,
            **_renamed(other_names),
        }
        for name, value in _checked(given).items():
            object.__setattr__(self, name, value)

    id = _same("checkpoint_id", "The checkpoint's id.")
    workflow_id = _same("workflow_name", "The workflow's name.")
    timestamp = _same("created_at", "When this checkpoint was saved.")
    layer_index = _same("completed_waves", "How many layers are complete: the run goes on with the next.")
    dag_structure = _same("outline", "The graph as plain data.")
    execution_config = _same("config", "The config of the run.")

    def __getitem__(self, key: str) -> Any:
        return self.state[key]

    @property
    def checkpoint_node(self) -> str:
        """The node that produced the state; empty before the first."""
        return origin_of(self.state).checkpoint_node

    @property
    def context(self) -> dict[str, Any]:
        """The state as a plain dict, which may be changed."""
        return self.state.to_dict()

    context_snapshot = context

    @property
    def current_agent(self) -> str:
        """The first node that runs or is about to; empty at the end."""
        return self.current[0] if self.current else ""

    @property
    def in_progress(self) -> str | None:
        """The first node whose start is recorded and whose end is not; `started` has all of them."""
        return self.started[0] if self.started else None

    @property
    def completed_agents(self) -> list[str]:
        """The nodes that have finished, in order."""
        return list(self.completed)

    completed_blocks = completed_agents

    @property
    def agent_outputs(self) -> dict[str, Any]:
        """What each finished node returned last, by node."""
        return {node_of(step) or step: value for step, value in self.outputs.items()}

    @property
    def pause_metadata(self) -> PauseMetadata | None:
        """The first question that waits for an answer."""
        return self.pauses[0] if self.pauses else None

    @property
    def execution_waves(self) -> list[list[Any]]:
        """The graph's nodes by wave, each as its definition: its `id` and what the outline says of it."""
        found = _waves(self.outline) if self.waves is None else self.waves
        return [list(wave) for wave in found]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, which `from_dict` reads. Values that JSON lacks are shown as text or objects."""
        facts = {name: plain(value) for name, value in facts_of(self).items()}
        facts["state"] = {key: plain(self.state[key]) for key in self.state}
        return facts

    @classmethod
    def from_dict(cls, source: Mapping[str, Any]) -> CheckpointData:
        """From plain data, such as parsed JSON; unknown keys are refused, missing ones have their defaults."""
        if not isinstance(source, Mapping):
            raise HoldfastError(f"a checkpoint is read from a mapping, not from {_shown(source)}")
        facts = dict(source)
        node, at = facts.pop("checkpoint_node", ""), facts.pop("state_timestamp", None)
        if isinstance(facts.get("state"), Mapping):
            origin = {"checkpoint_id": facts.get("checkpoint_id", ""), "checkpoint_node": node}
            facts["state"] = State(facts["state"], run_id=facts.get("run_id") or None, timestamp=at, **origin)
        return cls(**facts)


CheckpointState = CheckpointData
"""The name that interactive servers have for it."""


def facts_of(data: CheckpointData) -> dict[str, Any]:
    """Return a checkpoint's fields by name, as plain values, but for its state, of which only the origin is here."""
    facts = {each.name: getattr(data, each.name) for each in dataclasses.fields(data) if each.name != "state"}
    facts["status"] = str(data.status)
    facts["outputs"] = dict(data.outputs)
    for name in ("pauses", "decisions"):
        facts[name] = [dataclasses.asdict(each) for each in facts[name]]
    if data.waves is None:
        del facts["waves"]
    origin = origin_of(data.state)
    return {**facts, "checkpoint_node": origin.checkpoint_node, "state_timestamp": origin.timestamp}


def _renamed(other_names: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given under names of other systems, under ours."""
    found: dict[str, Any] = {}
    for name, value in other_names.items():
        if name == "execution_waves":
            found["waves"] = value
        elif name not in _FIELD_OF:
            known = [*(each.name for each in dataclasses.fields(CheckpointData)), *_FIELD_OF]
            raise HoldfastError(f"CheckpointData has no field {name!r}{suggestion(name, known)}")
        elif name in ("current_agent", "in_progress", "pause_metadata"):
            found[_FIELD_OF[name]] = () if value in (None, "") else (value,)
        else:
            found[_FIELD_OF[name]] = value
    if found.get("started") and not found.get("current"):
        found["current"] = found["started"]
    return found


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a checkpoint as their types; refuse what cannot be of them."""
    for name in ("checkpoint_id", "run_id", "workflow_name", "journal"):
        if not isinstance(given[name], str):
            raise _unfit(name, "text", given[name])
    for name in ("workflow_inputs", "outputs", "config", "outline"):
        value = {} if given[name] is None else given[name]
        if not isinstance(value, Mapping):
            raise _unfit(name, "a mapping", value)
        given[name] = value if isinstance(value, Outputs) else dict(value)
    for name in ("current", "started", "completed"):
        names = _sequence(name, given[name])
        if not all(isinstance(each, str) for each in names):
            raise _unfit(name, "names of nodes", given[name])
        given[name] = names
    for name in ("pauses", "decisions"):
        given[name] = tuple(_pause(name, each) for each in _sequence(name, given[name]))
    if given["waves"] is not None:
        given["waves"] = tuple(
            _sequence("execution_waves", wave) for wave in _sequence("execution_waves", given["waves"])
        )
    if given["iteration"] is None:
        given["iteration"] = len(given["completed"])
    for name in ("iteration", "completed_waves"):
        if not isinstance(given[name], int) or isinstance(given[name], bool) or given[name] < 0:
            raise _unfit(name, "a count", given[name])
    try:
        given["status"] = RunStatus(given["status"])
    except ValueError:
        raise _unfit("status", f"one of {', '.join(RunStatus)}", given["status"]) from None
    given["state"] = _state(given)
    given["run_id"] = given["run_id"] or origin_of(given["state"]).run_id
    return given


def _state(given: Mapping[str, Any]) -> State:
    state = {} if given["state"] is None else given["state"]
    if isinstance(state, State):
        return state
    if not isinstance(state, Mapping):
        raise _unfit("state", "a mapping", state)
    run_id = given["run_id"] or given["checkpoint_id"] or None
    node = given["completed"][-1] if given["completed"] else ""
    at = given["updated_at"].timestamp()
    return State(
        state, run_id=run_id, checkpoint_id=given["checkpoint_id"], checkpoint_node=node, timestamp=at
    )


def _sequence(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise _unfit(name, "a list", value)
    return tuple(value)


def _pause(name: str, value: Any) -> PauseMetadata:
    if isinstance(value, PauseMetadata):
        return value
    if not isinstance(value, Mapping) or not {"block_id", "prompt"} <= value.keys() <= _OF_PAUSE:
        raise _unfit(name, "a PauseMetadata, or a mapping of block_id, prompt and response", value)
    return PauseMetadata(**value)


_OF_PAUSE = {each.name for each in dataclasses.fields(PauseMetadata)}


def _time(name: str, value: Any) -> dt.datetime:
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            raise _unfit(name, "a time such as 2026-01-31T12:00:00+00:00", value) from None
    found = dt.datetime.fromtimestamp(clock.time(), dt.UTC) if value is None else value
    if not isinstance(found, dt.datetime):
        raise _unfit(name, "a datetime", value)
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


def _unfit(name: str, wanted: str, value: Any) -> HoldfastError:
    return HoldfastError(f"{name} of a checkpoint must be {wanted}, not {_shown(value)}")


def _shown(value: Any) -> str:
    return f"{value!r:.80} ({type(value).__name__})"


def _waves(outline: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Return a graph's nodes by the first wave that each can be in; edges that lead back are left out.

    A node that joins several comes after all of them. What is no outline has no waves.
    """
    try:
        nodes = {name: {"id": name, **facts} for name, facts in outline.get("nodes", {}).items()}
    except (AttributeError, TypeError):
        return []
    depths, found = _depths(_successors(outline)), dict[int, list[dict[str, Any]]]()
    for name, facts in nodes.items():
        found.setdefault(depths.get(name, 1), []).append(facts)
    return [found[depth] for depth in sorted(found)]


def _successors(outline: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what each node of an outline leads to; what is no outline leads nowhere."""
    after: dict[str, list[str]] = {}
    try:
        edges = [(edge[0], edge[1]) for edge in outline.get("edges", ())]
        edges += [(source, target) for sources, target in outline.get("joins", ()) for source in sources]
        edges += [(source, target) for source, targets in outline.get("routes", ()) for target in targets]
        for source, target in edges:
            after.setdefault(source, []).append(target)
    except (AttributeError, IndexError, TypeError, ValueError):
        return {}
    return after


def layer_count(outline: Mapping[str, Any]) -> int | None:
    """Return how many layers a graph has, which may also be a list of tasks; `None` if it may loop, or is not known."""
    nodes, after = outline.get("nodes"), _successors(outline)
    if isinstance(tasks := outline.get("tasks"), list) and nodes is None:
        try:
            nodes = {task["id"]: task.get("depends_on") or task.get("dependsOn") or [START] for task in tasks}
        except (AttributeError, KeyError, TypeError):
            return None
        after = _successors({"joins": [(sources, name) for name, sources in nodes.items()]})
    depths = _depths(after)
    edges = [(source, target) for source, targets in after.items() for target in targets]
    leads_back = any(depths.get(target, 0) <= depths.get(source, 0) for source, target in edges)
    if not isinstance(nodes, Mapping) or not nodes or leads_back or not depths.keys() >= nodes.keys():
        return None
    return max(depths[name] for name in nodes)


def _depths(after: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return how many edges the longest way from the start to each node has, without edges that lead back."""
    depths, order, state = {START: 0}, list[str](), dict[str, int]()
    forward: dict[str, list[str]] = {}
    stack = [(START, iter(after.get(START, ())))]
    state[START] = 1
    while stack:
        name, rest = stack[-1]
        target = next(rest, None)
        if target is None:
            stack.pop()
            state[name] = 2
            order.append(name)
        elif state.get(target) != 1:  # An edge to a node that this way has passed leads back.
            forward.setdefault(name, []).append(target)
            if target not in state:
                state[target] = 1
                stack.append((target, iter(after.get(target, ()))))
    for name in reversed(order):
        for target in forward.get(name, ()):
            depths[target] = max(depths.get(target, 0), depths[name] + 1)
    return depths


# Reading checkpoints from journals.


def read_checkpoints(
    journal: Journal, info: RunInfo, codec: Codec, after: int = 0
) -> Iterator[CheckpointData]:
    """Every checkpoint of a run after that entry, oldest first, in one pass over its journal."""
    run, history = journal.history(info, codec)
    reading = Reading(info, run, codec)
    for entry, found in history:
        reading.take(entry, found)
        if entry.mark is not None and entry.seq > after:
            yield reading.data(entry.seq, entry.at)


def read_checkpoint(journal: Journal, info: RunInfo, codec: Codec, seq: int | None) -> CheckpointData:
    """A run at its checkpoint `seq`, or, without one, as it stands now."""
    run, history = journal.history(info, codec, seq)
    reading = Reading(info, run, codec)
    marked, at = 0, info.created_at
    for entry, found in history:
        reading.take(entry, found)
        if entry.mark is not None:
            marked, at = entry.seq, entry.at
    return reading.data(marked, at)


class Reading:
    """A fold of a journal that also keeps the inputs, the finished steps and the answers."""

    def __init__(self, info: RunInfo, run: RunState, codec: Codec) -> None:
        self.info, self.run, self.codec = info, run, codec
        self.inputs: dict[str, Any] = {}
        self.finished = [_Finished("", node) for node in run.path]
        self.decisions: list[PauseMetadata] = []

    def take(self, entry: Entry, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, Answered) and record.pause in self.run.pauses:
                pause = self.run.pauses[record.pause]
                is_word = pause.kind in ABOUT_DOUBTS
                response = record.value.decode() if is_word else self.codec.decode(record.value)
                self.decisions.append(PauseMetadata(pause.name, pause.prompt, response))
            apply(self.run, record, entry.at)
            if isinstance(record, StepFinished) and not record.skipped:
                step = self.run.step(record.step)
                if step.node != START:
                    self.finished.append(_Finished(step.id, qualified(step), step.ops))
            elif isinstance(record, RunStarted):
                self.inputs = {op.key: op.value for op in record.ops}
            elif isinstance(record, (Forked, Reset)):
                self.finished = [_Finished("", node) for node in self.run.path]

    def data(self, seq: int, at: float) -> CheckpointData:
        run, info = self.run, self.info
        ident = checkpoint_id(info.key, seq) if seq else ""
        upcoming = [step for step in run.active() if step.status != DONE and step.id not in run.frames]
        by_hand = step_saved_by_hand(run)
        if by_hand is not None:
            return self._saved_by_hand(by_hand, ident, at)
        return CheckpointData(
            checkpoint_id=ident,
            run_id=info.run,
            workflow_name=info.workflow,
            workflow_inputs=dict(self.inputs),
            status=RunStatus(run.status),
            current=tuple(qualified(step) for step in upcoming),
            started=tuple(qualified(step) for step in upcoming if step.status == RUNNING),
            completed=tuple(done.node for done in self.finished),
            outputs=Outputs(self.finished),
            state=state_view(run.root.cells, self.codec, info.run, ident, run.root.last_node, run.updated_at),
            config=self.codec.decode(run.config) if run.config else {},
            outline=run.outline,
            iteration=len(self.finished),
            completed_waves=run.root.waves,
            pauses=tuple(
                PauseMetadata(pause.name or pause.node, pause.prompt) for pause in run.pauses.values()
            ),
            decisions=tuple(self.decisions),
            created_at=utc_time(at),
            updated_at=utc_time(max(info.updated_at, at)),
        )

    def _saved_by_hand(self, step: Step, ident: str, at: float) -> CheckpointData:
        """Return a checkpoint that was saved by hand: what was saved, or what is known of a state that was."""
        run, info, codec = self.run, self.info, self.codec
        completed = tuple(done.node for done in self.finished)
        facts: dict[str, Any] = {
            "run_id": info.run,
            "workflow_name": info.workflow,
            "workflow_inputs": dict(self.inputs),
            "completed": completed,
            "outputs": Outputs(self.finished),
            "completed_waves": len(completed),
            "created_at": utc_time(at),
            "updated_at": utc_time(max(info.updated_at, at)),
        }
        if SAVED_DATA in step.notes:
            facts = codec.decode(step.notes[SAVED_DATA])
        node = facts.pop("checkpoint_node", "" if step.node == START else step.node)
        facts.pop("state_timestamp", None)
        facts["checkpoint_id"] = ident = facts.get("checkpoint_id") or ident
        time = codec.decode(step.notes[SAVED_AT])
        return CheckpointData(
            state=state_view(run.root.cells, codec, facts["run_id"], ident, node, time), **facts
        )


def step_saved_by_hand(run: RunState) -> Step | None:
    """The step recorded for the node that a manually saved state names, if the last checkpoint was saved manually."""
    done = [step for step in run.root.active.values() if step.status == DONE and SAVED_AT in step.notes]
    return done[0] if done and not run.outline else None


# Saving checkpoints by hand: a journal in which the nodes that a checkpoint names have just finished.


_ANY_KEY = Schema.of(None)


def save_by_hand(journal: Journal, codec: Codec, run: str, data: CheckpointData, *, is_whole: bool) -> str:
    """Save a checkpoint as the newest of a run; return its id. With `is_whole` all its facts, else only its state.

    A graph that resumes the run continues after the nodes of its last wave, or, if there are none, begins with this
    state. A run of a graph can only be saved by that graph.
    """
    while True:
        writer = _writer(
            journal, codec, run, data.workflow_name, data.updated_at.timestamp() if is_whole else None
        )
        writer.together(functools.partial(_record_saving, writer, data, is_whole))
        try:
            writer.flush()
        except (RunConflict, RunExists):
            continue  # Somebody saved the same run meanwhile: save after them.
        return (is_whole and data.checkpoint_id) or checkpoint_id(writer.info.key, writer.run.saved_seq)


def _writer(journal: Journal, codec: Codec, run: str, workflow: str, at: float | None = None) -> Writer:
    """Return the writer of a run that is saved by hand; its age counts from `at`, by default from now."""
    now, stored = clock.time(), journal.store.runs(run=run)
    now = now if at is None else min(now, at)
    if not stored:
        info = RunInfo(run, new_run_key(), workflow or "state", RunStatus.INTERRUPTED.value, now, now)
        return Writer.create(journal, info, codec, durable=True)
    found = journal.load(stored[0], codec)
    if step_saved_by_hand(found.run) is None:
        raise RunExists(
            f"run {run!r} is one of workflow {stored[0].workflow!r}, whose graph saves it; change its "
            "state with resume(…, update=…), or save this one under a run id of its own"
        )
    writer = Writer(journal, found, codec, durable=True)
    writer.set_info(dataclasses.replace(stored[0], updated_at=now))
    return writer


def _record_saving(writer: Writer, data: CheckpointData, is_whole: bool) -> None:
    """Record that the nodes of a checkpoint's last wave have just finished and left its state."""
    codec, state = writer.codec, data.state
    nodes = _last_nodes(data)
    targets = tuple(Target(node) for node in nodes or [START])
    if writer.seq == 0:
        ops = _ANY_KEY.replace(codec, {}, state)
        owner, config = "", codec.encode(data.config)
        writer.record(RunStarted(writer.info.workflow, tuple(ops), targets, config, {}, owner))
    else:
        cells = writer.run.root.cells
        ops = _ANY_KEY.replace(codec, cells, state)
        ops += [Op("drop", key, b"") for key in cells if key not in state]
        writer.record(WaveFinished("", (), targets))
        writer.record(StateEdited("", tuple(ops)))
    for step in list(writer.run.root.active):
        writer.record(StepStarted(step, 1))
        writer.record(Noted(step, SAVED_AT, codec.encode(origin_of(state).timestamp)))
        if is_whole:
            writer.record(Noted(step, SAVED_DATA, codec.encode({**facts_of(data), "journal": ""})))
        writer.record(StepFinished(step))
    writer.record(RunEnded(RunStatus.INTERRUPTED))
    writer.mark(encode_mark(writer.run.root.waves, nodes, [], ""))


def _last_nodes(data: CheckpointData) -> list[str]:
    """Return the nodes that a graph goes on after: those of the last completed wave, else the one of the state."""
    waves = data.execution_waves if data.completed_waves else []
    wave = waves[data.completed_waves - 1] if 0 < data.completed_waves <= len(waves) else []
    named: list[Any] = [node.get("id") if isinstance(node, Mapping) else node for node in wave]
    if named and all(isinstance(node, str) and node for node in named):
        return named
    node = origin_of(data.state).checkpoint_node
    return [node] if node else []
