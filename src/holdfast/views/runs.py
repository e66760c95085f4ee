"""Reading views of runs from their journals, without the workflow and without its code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.errors import CheckpointNotFound, CodecError, CorruptJournal, Remedy
from holdfast.graph.graph import base_name
from holdfast.journal.checkpoint_ids import (
    Checkpoint,
    checkpoint_id,
    decode_checkpoint,
    is_checkpoint_id,
    locate_checkpoint,
)
from holdfast.journal.journal import Journal, unknown_run
from holdfast.journal.provenance import Provenance
from holdfast.journal.records import RunStarted
from holdfast.journal.run_state import Pause, RunState
from holdfast.state.ops import Op, advance
from holdfast.state.state import State, state_view
from holdfast.stores.base import RunInfo, StoredCheckpoint, newest_checkpoints
from holdfast.values import RunStatus
from holdfast.views.charges import total
from holdfast.views.plain import Unread, ViewCodec, read_or_unread, when
from holdfast.views.run_view import (
    Counts,
    FaultView,
    Owner,
    PauseView,
    RunLine,
    RunView,
    StepView,
    annotation_views,
    counted,
    groups_of,
    mark_shared_names,
)
from holdfast.views.tally import Tallies, step_views
from holdfast.views.timeline import read_environment

IsAlive = Callable[[str], bool]
"""Returns True if the owner that a run's facts name may still be alive."""


def run_list(
    journal: Journal,
    *,
    workflow: str | None = None,
    status: Sequence[str] | None = None,
    queue: str | None = None,
    tag: str | None = None,
    limit: int | None = 50,
    is_alive: IsAlive | None = None,
) -> list[RunLine]:
    """Return the runs that match, the last changed first. No run's values are read."""
    if queue is None and tag is None:
        found = journal.store.runs(workflow=workflow, status=status, limit=limit)
    else:
        every = journal.store.runs(workflow=workflow, status=status)
        found = [info for info in every if queue in (None, info.queue) and (tag is None or tag in info.tags)]
        found = found[:limit]
    stored = newest_checkpoints(
        journal.store, [info.run for info in found if info.status != RunStatus.DAMAGED]
    )
    asked_once = None if is_alive is None else functools.cache(is_alive)
    looked_after = [(info, *_looked_after(journal, info, asked_once)) for info in found]
    return [
        _line(now, stored.get(info.run), alive) if now is info else run_line(journal, now, is_alive)
        for info, now, alive in looked_after
    ]


def run_line(journal: Journal, info: RunInfo, is_alive: IsAlive | None = None) -> RunLine:
    """Return one run as a line of a list."""
    info, alive = _looked_after(journal, info, is_alive)
    stored = journal.store.checkpoints(info.run, limit=1) if info.status != RunStatus.DAMAGED else []
    return _line(info, stored[0] if stored else None, alive)


def _line(info: RunInfo, stored: StoredCheckpoint | None, alive: bool | None) -> RunLine:
    try:
        return _readable_line(
            info, None if stored is None else decode_checkpoint(info.key, stored, info.run), alive
        )
    except (ValueError, OverflowError, OSError) as error:
        text = f"the facts of run {info.run!r} are damaged ({error})"
        raise CorruptJournal(text, run=info.run) from None


def _readable_line(info: RunInfo, newest: Checkpoint | None, alive: bool | None) -> RunLine:
    return RunLine(
        run_id=info.run,
        workflow=info.workflow,
        status=RunStatus(info.status),
        owner=Owner.read(info.owner, alive),
        started_at=when(info.created_at),
        updated_at=max(when(info.updated_at), newest.created_at) if newest else when(info.updated_at),
        wave=newest.run_wave if newest else 0,
        next=tuple(dict.fromkeys(map(base_name, newest.next))) if newest else (),
        queue=info.queue,
        priority=info.priority,
        due_at=None if info.due_at is None else when(info.due_at),
        tags=info.tags,
    )


def _looked_after(journal: Journal, info: RunInfo, is_alive: IsAlive | None) -> tuple[RunInfo, bool | None]:
    """Return a run's facts and whether its owner is alive. One that seems dead is read again."""
    if is_alive is None or info.status != RunStatus.RUNNING:
        return info, None
    if is_alive(info.owner):
        return info, True
    info = journal.info(info.run)
    return (info, is_alive(info.owner)) if info.status == RunStatus.RUNNING else (info, None)


def find_run_info(journal: Journal, target: str) -> RunInfo:
    """Return the run of a run id, a checkpoint id or a workflow's name (its latest run)."""
    store = journal.store
    if found := store.runs(run=target) or store.runs(workflow=target, limit=1):
        return found[0]
    if is_checkpoint_id(target) and (found := store.runs(key=locate_checkpoint(target)[0])):
        return found[0]
    raise unknown_run(store, target)


def find_checkpoint_info(journal: Journal, ident: str) -> tuple[RunInfo, int]:
    """Return the run and the entry of a checkpoint; raise `CheckpointNotFound` if it is not stored."""
    key, seq = locate_checkpoint(ident)
    for info in journal.store.runs(key=key):
        if any(stored.seq == seq for stored in journal.store.checkpoints(info.run, before=seq + 1, limit=1)):
            return info, seq
    raise CheckpointNotFound(
        f"checkpoint not found: {ident} (in {journal.store.url})", remedies=Remedy("list_checkpoints")
    )


def run_pauses(journal: Journal, info: RunInfo) -> tuple[PauseView, ...]:
    """Return the pauses of a run, read from its nearest snapshot on."""
    codec = ViewCodec()
    run = journal.load(info, codec).run
    return _pauses(info, run, codec, _config(run, codec))


def run_view(
    journal: Journal, run_id: str, *, upto: int | None = None, is_alive: IsAlive | None = None
) -> RunView:
    """Return a run as it is now, or as it was at entry `upto`, in one pass over its journal."""
    info = journal.info(run_id)
    line = run_line(journal, info, is_alive)
    codec = ViewCodec()
    run, history = journal.history(info, codec, upto)
    tallies, initial = Tallies(run), tuple[Op, ...]()
    count = size = newest = 0
    for entry, found in history:
        for record in found:
            tallies.take(record, entry.at)
            if isinstance(record, RunStarted):
                initial = record.ops
        size += len(entry.body)
        if entry.mark is not None:
            newest, count = entry.seq, count + 1
    ident = checkpoint_id(info.key, newest) if newest else ""
    state = state_view(run.root.cells, codec, run_id, ident, run.root.last_node, run.updated_at)
    # What is read first is read whatever the rest needs: what the run is, what it waits for, its inputs, its output.
    config = _config(run, codec)
    pauses, facts = _pauses(info, run, codec, config), read_environment(run.facts, codec)
    is_file = isinstance(config.get("workflow_file"), Mapping)
    inputs = _inputs(state) if is_file else state_view(advance({}, initial), codec, run_id, ident, "", 0.0)
    if is_file:
        read_or_unread(lambda: state.get("output"))
    return RunView(
        line=line,
        steps=_steps(tallies, line, state if is_file else None),
        pauses=pauses,
        inputs=inputs,
        state=state,
        config=config,
        outline=run.outline,
        ledger=total(*run.spending.values()),
        fault=_fault(run),
        done=_done(run) if is_file else Counts(run.steps_done),
        seconds=run.seconds,
        checkpoints=count,
        checkpoint_id=ident,
        size=size,
        parent=run.parent,
        commands_refused=run.refused,
        refusals=tuple(run.refusals),
        facts=facts,
        annotations=annotation_views(info, run),
        provenance=Provenance.of(info),
        codec=codec,
    )


def _inputs(state: State) -> Mapping[str, Any]:
    found = read_or_unread(lambda: state.get("inputs"))
    return {"inputs": found} if isinstance(found, Unread) else found if isinstance(found, Mapping) else {}


def _done(run: RunState) -> Counts:
    """Count the finished steps as people see them; if that takes more than can be read, every node."""
    try:
        return counted(run)
    except CodecError:
        return Counts(run.steps_done)


def _steps(tallies: Tallies, line: RunLine, state: State | None) -> tuple[StepView, ...]:
    outline = tallies.run.outline
    executed = line.status == RunStatus.RUNNING and not line.is_dead
    views = step_views(tallies, outline, executed=executed, is_file=state is not None)
    previews = ViewCodec()
    if state is None:
        return tuple(replace(view, _previews=previews) for view in views)
    groups = groups_of(outline)
    return tuple(
        replace(view, _previews=previews, _state=state, _members=groups.get(view.name, ())) for view in views
    )


def _config(run: RunState, codec: ViewCodec) -> Mapping[str, Any]:
    try:
        config = codec.decode(run.config) if run.config else {}
    except CodecError:
        return {}
    return config if isinstance(config, Mapping) else {}


def _fault(run: RunState) -> FaultView | None:
    """Return why the run stopped: as the failed step says it, which knows nothing of runs and resumes."""
    of_steps = (step.fault for step in run.active() if step.fault is not None and step.node == run.fault_node)
    fault = next(of_steps, run.fault) if run.fault is not None else None
    if fault is None:
        return None
    return FaultView(base_name(run.fault_node), fault.type, fault.message, fault.trace)


def _pauses(
    info: RunInfo, run: RunState, codec: ViewCodec, config: Mapping[str, Any]
) -> tuple[PauseView, ...]:
    is_of_program = not info.queue and "workflow_file" not in config
    return mark_shared_names([_pause(info, pause, is_of_program, codec) for pause in run.pauses.values()])


def _pause(info: RunInfo, pause: Pause, is_of_program: bool, codec: ViewCodec) -> PauseView:
    schema = codec.decode(pause.schema) if pause.schema else None
    return PauseView(
        run_id=info.run,
        id=pause.id,
        kind=pause.kind,
        step=base_name(pause.node),
        name=pause.name,
        prompt=pause.prompt,
        schema=schema if isinstance(schema, Mapping) else None,
        since=when(pause.since),
        until=None if pause.expires_at is None else when(pause.expires_at),
        node=pause.node,
        is_of_program=is_of_program,
    )
