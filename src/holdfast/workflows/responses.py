"""Pausing a run for somebody's response, and resuming it with one, by checkpoint id."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast import clock
from holdfast.checkpoints.data import CheckpointData, PauseMetadata
from holdfast.checkpoints.store import JournalCheckpointStore
from holdfast.engine.app import App
from holdfast.engine.owner import has_owner
from holdfast.engine.resume import refuse_finished
from holdfast.engine.settings import Outcome
from holdfast.errors import CheckpointNotFound, HoldfastError, RunConflict, RunNotFound
from holdfast.journal.checkpoint_ids import checkpoint_id, encode_mark
from holdfast.journal.records import Paused, RunEnded
from holdfast.journal.run_state import FAILED, READY
from holdfast.journal.writer import Writer
from holdfast.names import LazyModule
from holdfast.stores.base import Store
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.workflows import workflow
else:
    workflow = LazyModule("workflows.workflow")


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
    if not isinstance(app, App):
        raise HoldfastError(
            f"pause_workflow takes a compiled graph and the id of its run, not {app!r:.80}; write "
            "pause_workflow(app, run_id, block_id, prompt)"
        )
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


def resume_workflow(
    checkpoint_id: str,
    response: Any = "",
    *,
    app: App | None = None,
    store: Store | str | os.PathLike[str] | None = None,
) -> Result:
    """Resume a run from a checkpoint, with a response to the question that it waits for.

    Nothing but the id is needed: without `app` the workflow is found as `holdfast.resume` finds it, in `store`, in the
    default store or in those of the apps of this process. The response answers the pause; if the state has a
    `context`, it is also stored there, as `context["blocks"][block_id]["outputs"]["response"]`. Without a response,
    the run only passes gates.
    """
    if not isinstance(checkpoint_id, str):
        raise HoldfastError(
            f"a checkpoint is found by its id, not by {checkpoint_id!r:.80}; write "
            "resume_workflow(checkpoint_id, response, app=app)"
        )
    try:
        used = _app_of(checkpoint_id, store) if app is None else app
        data = None if used is None else JournalCheckpointStore(used).load(checkpoint_id)
        if used is None or data is None:
            return Result(error=f"Checkpoint not found: {checkpoint_id}")
        outcome = _resume(used, data, response)
    except HoldfastError as error:
        return Result(error=str(error))
    return Result(outcome) if outcome.error is None else Result(error=str(outcome.error))


def _app_of(checkpoint_id: str, store: Store | str | os.PathLike[str] | None) -> App | None:
    """Return the app that continues the run of a checkpoint, if there is such a checkpoint."""
    try:
        return workflow.app_of_run(checkpoint_id, store=store)
    except (RunNotFound, CheckpointNotFound):
        return None


def _resume(app: App, data: CheckpointData, response: Any) -> Outcome:
    pause = data.pause_metadata
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
