"""Pausing a run for somebody's response, and resuming it with one, by checkpoint id."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast import clock
from holdfast.checkpoints.store import CheckpointData, CheckpointStore, PauseMetadata
from holdfast.engine.app import App
from holdfast.engine.owner import has_owner
from holdfast.engine.resume import refuse_finished
from holdfast.engine.settings import CheckpointPolicy, Outcome
from holdfast.errors import HoldfastError, RunConflict, suggestion
from holdfast.journal.checkpoint_ids import checkpoint_id, encode_mark
from holdfast.journal.records import Paused, RunEnded
from holdfast.journal.run_state import FAILED, READY, RunState, Step
from holdfast.journal.writer import Writer
from holdfast.stores.base import RunInfo
from holdfast.values import RunStatus


@dataclass(frozen=True, slots=True)
class Result:
    """What came of resuming: an outcome, or the error in words. Nothing is raised."""

    outcome: Outcome | None = None
    error: str = ""

    @classmethod
    def success(cls, outcome: Outcome) -> Result:
        """The run went on, and completed, paused again or was cancelled."""
        return cls(outcome)

    @classmethod
    def failure(cls, error: str) -> Result:
        """The run could not be resumed, or failed."""
        return cls(None, error)

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
        _refuse_owned(app, info)
        writer = Writer(journal, loaded, app._settings.codec, durable=True)
        _record_pause(writer, _waiting_step(loaded.run, run_id, block_id), block_id, prompt)
        writer.flush()
    return checkpoint_id(info.key, loaded.run.saved_seq)


def resume_workflow(app: App, checkpoint_id: str, response: Any = "") -> Result:
    """Resume a run from a checkpoint, with a response to what it waits for there.

    The response answers the pause; if the state has a `context`, it is also found there, as
    `context["blocks"][block_id]["outputs"]["response"]`. Without one, only gates are passed.
    """
    data = CheckpointStore(app).load(checkpoint_id)
    if data is None:
        return Result.failure(f"Checkpoint not found: {checkpoint_id}")
    try:
        return Result.success(_resume(app, data, response))
    except HoldfastError as error:
        return Result.failure(str(error))


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


def _refuse_owned(app: App, info: RunInfo) -> None:
    if has_owner(app.store, info):
        raise RunConflict(
            f"run {info.run!r} is being executed; let one of its nodes call ctx.ask, or cancel the run first"
        )


def _waiting_step(run: RunState, run_id: str, block_id: str) -> Step:
    able = [step for step in run.active() if step.status in (READY, FAILED) and step.id not in run.frames]
    for step in able:
        if step.node == block_id:
            return step
    if not able:
        raise HoldfastError(f"run {run_id!r} has no step that could wait for {block_id!r}; resume it first")
    return able[0]


def _record_pause(writer: Writer, step: Step, block_id: str, prompt: str) -> None:
    now, root = clock.time(), writer.run.root
    writer.record(Paused(f"{step.id}:{block_id}", "ask", step.id, step.node, block_id, prompt, since=now))
    writer.record(RunEnded(RunStatus.PAUSED))
    writer.set_info(dataclasses.replace(writer.info, status=RunStatus.PAUSED.value, updated_at=now, owner=""))
    writer.mark(encode_mark(root.waves, [], [step.node], ""))


# `GraphConfig` and `CheckpointConfig`: a graph's settings as plain data, for files and registries.


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Which store a graph saves to, after every how many waves, and whether a completed run stays.

    `store` is a registered name or a store's URL. An `interval` of 0 turns checkpoints off.
    """

    store: str = "memory"
    interval: int = 0
    preserve: bool = False

    def __post_init__(self) -> None:
        self.policy()

    def policy(self) -> CheckpointPolicy:
        """The same as a policy: a save that fails stops the run, and without saves a failed run leaves nothing."""
        return CheckpointPolicy(
            interval=self.interval,
            on_failure="pause" if self.interval else "rollback",
            preserve="all" if self.preserve else "none",
        )

    @classmethod
    def from_dict(cls, source: Mapping[str, Any]) -> CheckpointConfig:
        """From plain data, such as parsed JSON; unknown keys are refused, missing ones have their defaults."""
        return cls(**_known(cls, source))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which `from_dict` reads."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class GraphConfig:
    """A graph's name, the registered name of its observer, its iteration limit, and its checkpoints."""

    name: str
    observer: str = "slog"
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which `from_dict` reads."""
        return dataclasses.asdict(self)


def default_checkpoint_config() -> CheckpointConfig:
    """Checkpoints off, in memory once they are turned on."""
    return CheckpointConfig()


def default_graph_config(name: str) -> GraphConfig:
    """A graph that logs its events and saves nothing."""
    return GraphConfig(name)


def _known(kind: type[Any], source: Mapping[str, Any]) -> dict[str, Any]:
    names = [each.name for each in dataclasses.fields(kind)]
    for key in source:
        if key not in names:
            raise HoldfastError(f"{kind.__name__} has no setting {key!r}{suggestion(str(key), names)}")
    return dict(source)
