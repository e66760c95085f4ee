"""`CheckpointStore`: any store seen as a place for checkpoints; pausing and resuming runs by checkpoint id."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from holdfast import clock
from holdfast.engine.app import App
from holdfast.engine.decide import qualified
from holdfast.engine.owner import has_owner
from holdfast.engine.resume import find_checkpoint, refuse_finished
from holdfast.engine.retention import expire_runs, prune_workflow
from holdfast.engine.settings import CheckpointPolicy, Outcome, Retention
from holdfast.errors import CheckpointNotFound, HoldfastError, RunConflict, RunExists, suggestion
from holdfast.journal.checkpoint_ids import checkpoint_id, encode_mark, is_checkpoint_id, new_run_key
from holdfast.journal.copying import delete_run, prune_run
from holdfast.journal.fold import apply
from holdfast.journal.journal import Journal
from holdfast.journal.records import (
    Answered,
    Forked,
    Noted,
    Paused,
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
from holdfast.journal.run_state import ABOUT_DOUBTS, DONE, FAILED, READY, RUNNING, RunState, Step
from holdfast.journal.sealing import Seal
from holdfast.journal.writer import Writer
from holdfast.state.codec import Codec, TolerantCodec
from holdfast.state.ops import Op
from holdfast.state.schema import Schema
from holdfast.state.state import State, origin_of, state_view
from holdfast.stores import open_store
from holdfast.stores.base import Entry, RunInfo, Store
from holdfast.threads import in_background
from holdfast.values import START, RunStatus

# `CheckpointData`: one checkpoint of one run as a plain value, read from the run's journal.


SAVED_AT = "timestamp"
"""The note under which a state that was saved by hand keeps its own time."""


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


@dataclass(frozen=True, slots=True)
class CheckpointData:
    """A run at one of its checkpoints.

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


def read_checkpoints(
    journal: Journal, info: RunInfo, codec: Codec, after: int = 0
) -> Iterator[CheckpointData]:
    """Every checkpoint of a run after that entry, oldest first, in one pass over its journal."""
    run, history = journal.history(info, codec)
    reading = _Reading(info, run, codec)
    for entry, found in history:
        reading.take(entry, found)
        if entry.mark is not None and entry.seq > after:
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
        started = tuple(qualified(step) for step in upcoming if step.status == RUNNING)
        by_hand = step_saved_by_hand(run)
        node, updated_at = run.root.last_node, run.updated_at
        if by_hand is not None:
            node = "" if by_hand.node == START else by_hand.node
            updated_at = self.codec.decode(by_hand.notes[SAVED_AT])
        return CheckpointData(
            checkpoint_id=ident,
            run_id=info.run,
            workflow_name=info.workflow,
            workflow_inputs=dict(self.inputs),
            status=RunStatus(run.status),
            current=tuple(qualified(step) for step in upcoming),
            in_progress=started or None,
            completed=tuple(done.node for done in self.finished),
            state=state_view(run.root.cells, self.codec, info.run, ident, node, updated_at),
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


def step_saved_by_hand(run: RunState) -> Step | None:
    """The step recorded for the node that a manually saved state names, if the last checkpoint was saved manually."""
    done = [step for step in run.root.active.values() if step.status == DONE and SAVED_AT in step.notes]
    return done[0] if done and not run.outline else None


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

Checkpoints = list[CheckpointData]
RunIds = list[str]

_ANY_KEY = Schema.of(None)


def _in_thread(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """The async twin of a method: it works in a thread, so the event loop is never blocked."""

    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await in_background(method, self, *args, **kwargs)

    twin.__doc__ = f"As `{method.__name__}`, without blocking the event loop."
    return twin


class CheckpointStore:
    """The checkpoints of a store: those of graphs' runs, and states that were saved by hand.

    `store` is a store, whatever `open_store` takes, or an app, whose store, types and key it then
    shares. Every method may be called from any thread, and has an async twin: `asave`, `aload`, ….
    """

    def __init__(
        self,
        store: Store | App | str | os.PathLike[str] | None = None,
        *,
        encryption_key: str | None = None,
    ) -> None:
        if isinstance(store, App):
            self._journal = store._settings.journal
            self._codec: Codec = TolerantCodec(store._settings.codec.types)
        else:
            seal = Seal.chosen(encryption_key or None, None, os.environ)
            self._journal = Journal(open_store(store), seal)
            self._codec = TolerantCodec()

    @property
    def store(self) -> Store:
        """The store that this is a view of."""
        return self._journal.store

    # One checkpoint.

    def save(self, state: State, *, workflow: str = "state") -> str:
        """Save a state as the newest checkpoint of its run; return the checkpoint's id.

        A graph that resumes the run continues after `state.checkpoint_node`, or, if no node made this state, begins
        with this state. A run of a graph can only be saved by that graph.
        """
        while True:
            writer = self._writer(state, workflow)
            _record_saving(writer, state)
            try:
                writer.flush()
            except (RunConflict, RunExists):
                continue  # Somebody saved the same run meanwhile: save after them.
            return checkpoint_id(writer.info.key, writer.run.saved_seq)

    def load(self, ident: str) -> CheckpointData | None:
        """The checkpoint of that id, or the run of that id as it stands now; `None` if there is neither."""
        found = self._find(ident)
        return None if found is None else read_checkpoint(self._journal, found[0], self._codec, found[1])

    def load_state(self, ident: str) -> State:
        """The state of a checkpoint, or of a run as it stands now; `CheckpointNotFound` if there is neither."""
        found = self.load(ident)
        if found is None:
            raise CheckpointNotFound(f"checkpoint not found: {ident} (in {self.store.url})")
        return found.state

    def delete(self, ident: str) -> None:
        """Remove a run, or a checkpoint with those before it; nothing happens if there is neither.

        A journal can lose its past but not its middle. With its newest checkpoint goes the whole run.
        """
        found = self._find(ident)
        if found is None:
            return
        info, seq = found
        newer = [each.seq for each in self.store.checkpoints(info.run) if seq is not None and each.seq > seq]
        if not newer:
            delete_run(self._journal, info.run)
        else:
            prune_run(self._journal, info, newer[-1])

    # Many checkpoints.

    def list(self) -> RunIds:
        """The ids of all runs, last saved first."""
        return [info.run for info in self.store.runs()]

    def list_checkpoints(self, workflow: str | None = None) -> Checkpoints:
        """Every checkpoint, or those of one workflow, newest first."""
        found = [
            (data.created_at, index, data)
            for info in self.store.runs(workflow=workflow)
            for index, data in enumerate(read_checkpoints(self._journal, info, self._codec))
        ]
        found.sort(key=lambda item: item[:2], reverse=True)
        return [data for _, _, data in found]

    def latest(self, workflow: str) -> CheckpointData | None:
        """The newest checkpoint of a workflow."""
        newest = [(stored[0].at, info, stored[0].seq) for info, stored in self._marked(workflow)]
        if not newest:
            return None
        _, info, seq = max(newest, key=lambda item: item[0])
        return read_checkpoint(self._journal, info, self._codec, seq)

    def prune(self, max_age_days: float | None = None, max_count: int | None = None) -> int:
        """Keep at most `max_count` checkpoints per workflow and drop runs untouched for `max_age_days`.

        The oldest go first. A workflow's last successful run stays, and so does the newest checkpoint of
        a run that can be resumed, unless it is too old. Answers how many checkpoints went.
        """
        age = None if max_age_days is None else dt.timedelta(days=max_age_days)
        retention = Retention(max_age=age, max_checkpoints=max_count)
        workflows = {info.workflow for info in self.store.runs()}
        gone = sum(prune_workflow(self._journal, workflow, retention) for workflow in workflows)
        return gone if age is None else gone + self._expire(age, keep_successful=True)

    def prune_old_checkpoints(self, workflow: str, keep_count: int = 5) -> int:
        """Keep the newest checkpoints of a workflow; answer how many went. See `prune` for what stays."""
        return prune_workflow(self._journal, workflow, Retention.recent(keep_count))

    def cleanup_expired(self, max_age_hours: float = 24) -> int:
        """Drop the runs that nobody touched for so long, successful or not; answer how many checkpoints went."""
        return self._expire(dt.timedelta(hours=max_age_hours), keep_successful=False)

    asave = _in_thread(save)
    aload = _in_thread(load)
    aload_state = _in_thread(load_state)
    adelete = _in_thread(delete)
    alist = _in_thread(list)
    alist_checkpoints = _in_thread(list_checkpoints)
    alatest = _in_thread(latest)
    aprune = _in_thread(prune)
    aprune_old_checkpoints = _in_thread(prune_old_checkpoints)
    acleanup_expired = _in_thread(cleanup_expired)

    # How it is done.

    def _find(self, ident: str) -> tuple[RunInfo, int | None] | None:
        if found := self.store.runs(run=ident):
            return found[0], None
        if not is_checkpoint_id(ident):
            return None
        try:
            return find_checkpoint(self.store, ident)
        except CheckpointNotFound:
            return None

    def _marked(self, workflow: str | None = None) -> Any:
        for info in self.store.runs(workflow=workflow):
            if stored := self.store.checkpoints(info.run):
                yield info, stored

    def _expire(self, max_age: dt.timedelta, *, keep_successful: bool) -> int:
        counts = {info.run: len(stored) for info, stored in self._marked()}
        expire_runs(self.store, max_age, keep_successful=keep_successful)
        return sum(count for run, count in counts.items() if not self.store.runs(run=run))

    def _writer(self, state: State, workflow: str) -> Writer:
        now, run_id = clock.time(), origin_of(state).run_id
        stored = self.store.runs(run=run_id)
        if not stored:
            info = RunInfo(run_id, new_run_key(), workflow, RunStatus.INTERRUPTED.value, now, now)
            return Writer.create(self._journal, info, self._codec, durable=True)
        loaded = self._journal.load(stored[0], self._codec)
        if step_saved_by_hand(loaded.run) is None:
            raise RunExists(
                f"run {run_id!r} is one of workflow {stored[0].workflow!r}, whose graph saves it; change its "
                "state with resume(…, update=…), or save this one under a run id of its own"
            )
        writer = Writer(self._journal, loaded, self._codec, durable=True)
        writer.set_info(dataclasses.replace(stored[0], updated_at=now))
        return writer


def _record_saving(writer: Writer, state: State) -> None:
    """Record that `state.checkpoint_node` has just finished and left this state; nothing follows it yet."""
    codec, origin = writer.codec, origin_of(state)
    node = origin.checkpoint_node or START
    if writer.seq == 0:
        ops = _ANY_KEY.replace(codec, {}, state)
        owner, config = "", codec.encode({})
        writer.record(RunStarted(writer.info.workflow, tuple(ops), (Target(node),), config, {}, owner))
    else:
        cells = writer.run.root.cells
        ops = _ANY_KEY.replace(codec, cells, state)
        ops += [Op("drop", key, b"") for key in cells if key not in state]
        writer.record(WaveFinished("", (), (Target(node),)))
        writer.record(StateEdited("", tuple(ops)))
    (step,) = writer.run.root.active
    writer.record(StepStarted(step, 1))
    writer.record(Noted(step, SAVED_AT, codec.encode(origin.timestamp)))
    writer.record(StepFinished(step))
    writer.record(RunEnded(RunStatus.INTERRUPTED))
    nodes = [origin.checkpoint_node] if origin.checkpoint_node else []
    writer.mark(encode_mark(writer.run.root.waves, nodes, [], ""))


# Pausing a run for somebody's response, and resuming it with one, by checkpoint id.


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a resume: an outcome, or the error as text. Errors are not raised."""

    outcome: Outcome | None = None
    error: str = ""

    @property
    def is_success(self) -> bool:
        return self.outcome is not None


def pause_workflow(app: App, run_id: str, block_id: str, prompt: str) -> str:
    """Pause a run that has no owner for a response to `prompt`; return the id of the checkpoint it waits at.

    The node `block_id`, if it is about to run, or else the first node that is, waits, and gets the
    response from `ctx.ask(…, name=block_id)`. A run that waits for that response already, because a
    node asked for it, is left as it is.
    """
    journal = app._settings.journal
    info = journal.info(run_id)
    refuse_finished(info)
    loaded = journal.load(info, app._settings.codec)
    if not any(pause.name == block_id for pause in loaded.run.pauses.values()):
        if has_owner(app.store, info):
            raise RunConflict(
                f"run {run_id!r} is being executed; let one of its nodes call ctx.ask, or cancel the run first"
            )
        writer = Writer(journal, loaded, app._settings.codec, durable=True)
        _record_pause(writer, block_id, prompt)
        writer.flush()
    return checkpoint_id(info.key, loaded.run.saved_seq)


def resume_workflow(app: App, checkpoint_id: str, response: Any = "") -> Result:
    """Resume a run from a checkpoint, with a response to the question that it waits for.

    The response answers the pause; if the state has a `context`, the response is also stored there, as
    `context["blocks"][block_id]["outputs"]["response"]`. Without a response, the run only passes gates.
    """
    data = CheckpointStore(app).load(checkpoint_id)
    if data is None:
        return Result(error=f"Checkpoint not found: {checkpoint_id}")
    try:
        outcome = _resume(app, data, response)
    except HoldfastError as error:
        return Result(error=str(error))
    return Result(outcome) if outcome.error is None else Result(error=str(outcome.error))


def _resume(app: App, data: CheckpointData, response: Any) -> Outcome:
    pause = data.pause
    if pause is None or response in ("", None):
        return app.resume(data.checkpoint_id or data.run_id)
    newest = app.get_state(data.run_id).checkpoint_id == data.checkpoint_id
    run_id = data.run_id
    if not newest:
        # A new run begins at an older checkpoint, where the node asks its question again.
        asked = app.resume(data.checkpoint_id)
        if not any(waiting.name == pause.block_id for waiting in asked.pauses):
            return asked
        run_id = asked.run_id
    update = _response_in_context(app, app.get_state(run_id), pause, response)
    return app.resume(run_id, answers={pause.block_id: response}, update=update)


def _response_in_context(
    app: App, state: Mapping[str, Any], pause: PauseMetadata, response: Any
) -> dict[str, Any] | None:
    schema = app.graph.schema
    context = state.get("context", {} if "context" in schema.channels else None)
    if not isinstance(context, Mapping):
        return None
    blocks = context.get("blocks", {})
    block = blocks.get(pause.block_id, {})
    outputs = {**block.get("outputs", {}), "response": response}
    return {"context": {**context, "blocks": {**blocks, pause.block_id: {**block, "outputs": outputs}}}}


def _record_pause(writer: Writer, block_id: str, prompt: str) -> None:
    """Record that the step of the node `block_id`, or else the first that is about to run, waits."""
    run, now = writer.run, clock.time()
    able = [step for step in run.active() if step.status in (READY, FAILED) and step.id not in run.frames]
    if not able:
        raise HoldfastError(
            f"run {writer.info.run!r} has no step that could wait for {block_id!r}; resume it first"
        )
    step = next((step for step in able if step.node == block_id), able[0])
    writer.record(Paused(f"{step.id}:{block_id}", "ask", step.id, step.node, block_id, prompt, since=now))
    writer.record(RunEnded(RunStatus.PAUSED))
    writer.set_info(dataclasses.replace(writer.info, status=RunStatus.PAUSED.value, updated_at=now, owner=""))
    writer.mark(encode_mark(run.root.waves, [], [step.node], ""))


# `GraphConfig` and `CheckpointConfig`: a graph's settings as plain data, for files and registries.


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """The store that a graph saves to, the number of waves between checkpoints, and whether a completed run is kept.

    `store` is a registered name or a store's URL. An `interval` of 0 turns checkpoints off.
    """

    store: str = "memory"
    interval: int = 0
    preserve: bool = False

    def __post_init__(self) -> None:
        self.policy()

    def policy(self) -> CheckpointPolicy:
        """These settings as a policy: a failed save stops the run; if checkpoints are off, a failed run is not kept."""
        return CheckpointPolicy(
            interval=self.interval,
            on_failure="pause" if self.interval else "rollback",
            preserve="all" if self.preserve else "none",
        )

    @classmethod
    def from_dict(cls, source: Mapping[str, Any]) -> CheckpointConfig:
        """From plain data, such as parsed JSON; unknown keys are refused, missing ones have their defaults."""
        return cls(**_known(cls, source))

    def merge(self, other: CheckpointConfig | Mapping[str, Any]) -> CheckpointConfig:
        """Return these settings with others put over them: what a mapping names, or what is no default in a config."""
        return dataclasses.replace(self, **_chosen(CheckpointConfig, other))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which `from_dict` reads."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class GraphConfig:
    """A graph's name, the registered name of its observer, or several, its iteration limit, and its checkpoints."""

    name: str
    observer: str | Sequence[str] = "slog"
    max_iterations: int = 1000
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    @classmethod
    def from_dict(cls, source: Mapping[str, Any]) -> GraphConfig:
        """From plain data, such as parsed JSON; unknown keys are refused, missing ones have their defaults."""
        known = _known(cls, source)
        if "name" not in known:
            raise HoldfastError("GraphConfig needs a name")
        if "checkpoint" in known:
            known["checkpoint"] = CheckpointConfig.from_dict(known["checkpoint"])
        return cls(**known)

    def merge(self, other: GraphConfig | Mapping[str, Any]) -> GraphConfig:
        """Return these settings with others put over them, those of the checkpoints one by one; see there."""
        chosen = _chosen(GraphConfig, other)
        if "checkpoint" in chosen:
            chosen["checkpoint"] = self.checkpoint.merge(chosen["checkpoint"])
        return dataclasses.replace(self, **chosen)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which `from_dict` reads."""
        return dataclasses.asdict(self)


def default_checkpoint_config() -> CheckpointConfig:
    """Checkpoints off, in memory once they are turned on."""
    return CheckpointConfig()


def default_graph_config(name: str) -> GraphConfig:
    """Return the config of a graph that logs its events and saves nothing."""
    return GraphConfig(name)


def _known(kind: type[Any], source: Mapping[str, Any]) -> dict[str, Any]:
    names = [each.name for each in dataclasses.fields(kind)]
    for key in source:
        if key not in names:
            raise HoldfastError(f"{kind.__name__} has no setting {key!r}{suggestion(str(key), names)}")
    return dict(source)


def _chosen(kind: type[Any], other: Any) -> dict[str, Any]:
    """Return the settings that a mapping names, or those of a config that are not the defaults."""
    if isinstance(other, Mapping):
        return _known(kind, other)
    if not isinstance(other, kind):
        raise HoldfastError(f"merge takes a {kind.__name__} or a mapping, not {other!r:.80}")
    values = {each.name: getattr(other, each.name) for each in dataclasses.fields(kind)}
    default = kind("") if "name" in values else kind()
    return {name: value for name, value in values.items() if value != getattr(default, name)}
