"""Continuing stored runs: resuming them, forking an older checkpoint, starting from a checkpoint file."""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import clock
from holdfast.engine.graph_changes import Reconciled, check_names, reconcile
from holdfast.engine.owner import active_runs, this_owner
from holdfast.engine.resume import (
    ResumeOptions,
    answered_now,
    find_run,
    is_at_rest,
    is_checkpoint_file,
    load_latest,
    refuse_finished,
)
from holdfast.engine.resume import edits as edits_of
from holdfast.engine.runner import Runner, state_of
from holdfast.engine.settings import Caller, Outcome, Stats, public_pauses
from holdfast.errors import GraphChanged, RunConflict, StateInvalid
from holdfast.events import Event, Observer, tell
from holdfast.journal import records
from holdfast.journal.journal import Loaded
from holdfast.journal.run_state import DONE
from holdfast.journal.writer import Writer
from holdfast.names import LazyModule
from holdfast.state.state import origin_of
from holdfast.stores.base import RunInfo
from holdfast.values import END, RunStatus

if TYPE_CHECKING:
    from holdfast.engine import checkpoint_files, confirmation, resume_plan
    from holdfast.engine.commands import subject
    from holdfast.engine.time_travel import edits, rerun, rewind
else:
    checkpoint_files, confirmation = LazyModule("engine.checkpoint_files"), LazyModule("engine.confirmation")
    resume_plan, subject = LazyModule("engine.resume_plan"), LazyModule("engine.commands.subject")
    edits, rerun = LazyModule("engine.time_travel.edits"), LazyModule("engine.time_travel.rerun")
    rewind = LazyModule("engine.time_travel.rewind")

logger = logging.getLogger("holdfast")

_FOR_WORKERS = (RunStatus.QUEUED, RunStatus.PAUSED, RunStatus.RUNNING)
_MOST_CHANGES = 10
"""How many changes of a graph a warning names; an event names all."""


async def go_on_from(
    runner: Runner, checkpoint: str | Path, run_id: str | None, options: Mapping[str, Any], caller: Caller
) -> Outcome:
    """Go on from a checkpoint file, or from whatever `resume` takes, with options of a resume."""
    return await resume(runner, checkpoint, ResumeOptions(**options), caller, run_id)


async def resume(
    runner: Runner, target: str | Path, options: ResumeOptions, caller: Caller, run_id: str | None = None
) -> Outcome:
    """Resume the run that `target` names, or start one from the older checkpoint or file that it names.

    `run_id` is for the run of a file.
    """
    options.check()
    store, settings = runner.journal.store, runner.settings
    if is_checkpoint_file(target) and not store.runs(run=str(target)):
        options.refuse_answers("a checkpoint file")
        return await _from_file(runner, Path(target), run_id, options, caller)
    if run_id is not None:
        raise StateInvalid("give either run_id= or checkpoint=, not both")
    facts, seq = find_run(store, str(target))
    loaded = load_latest(runner.journal, facts, settings.codec)
    info, run = loaded.info, loaded.run
    if run.outline:
        runner.refuse_other_workflow(info)
    is_newest = seq is None or seq == run.saved_seq
    if is_newest:
        check_names(info.run, run, settings.graph, options.remap or {})
    confirmed = _confirmed(runner, loaded, options)[1] if is_newest else None
    if options.plan is not None:
        resume_plan.refuse_outdated(settings, str(target), options)
    if seq is not None and not is_newest:
        options.refuse_rerun()
        return await _fork(runner, info, seq, options, caller)
    plan = rerun.plan_changes(settings, loaded, options) if options.rerun_changed else None
    if plan is None or plan.seq is None:
        refuse_finished(info, unchanged=options.rerun_changed)
    if caller.idle_timeout is not None:
        _refuse_unqueued(facts, info)
    runner.refuse_owned(info, options.takeover)
    if plan is not None and plan.seq is not None:
        return await rewind.rewind(runner, loaded, plan, options, caller)
    answered = answered_now(info, run, options, settings, sleeps=caller.idle_timeout is None)
    at_rest = is_at_rest(info, run, options, answered, settings.rules.barrier)
    if at_rest and confirmed is None and not store.inbox(info.run, run.inbox_seen):
        return _unchanged(runner, loaded)
    reconciled = reconciled_graph(runner, loaded, options, caller.observer)
    writer = runner.writer(loaded)
    if plan is not None:
        writer.record(plan.reusing())
    for record in answered:
        writer.record(record)
    return await go_on(runner, loaded, writer, reconciled, options, caller)


def _confirmed(
    runner: Runner, loaded: Loaded, options: ResumeOptions
) -> tuple[RunInfo, records.Confirmed | None]:
    """Return the facts of a run that may run, and what to record; refuse a foreign run that nobody confirmed."""
    if not loaded.info.origin:
        return loaded.info, None
    return confirmation.confirm(runner.journal, loaded.info, loaded.run, options.trust, options.config)


def _refuse_unqueued(facts: RunInfo, info: RunInfo) -> None:
    """Refuse a run that was stopped after a worker had found it; one that was moved here is queued by its facts."""
    was_moved = facts.status == RunStatus.QUEUED and info.status == RunStatus.INTERRUPTED
    if info.status not in _FOR_WORKERS and not was_moved:
        raise RunConflict(f"run {info.run!r} is {info.status}; workers leave it alone until it is requeued")


def reconciled_graph(
    runner: Runner, loaded: Loaded, options: ResumeOptions, observer: Observer | None
) -> Reconciled:
    """Return what to go on with, after comparing the graph with the one that the run started with."""
    name = loaded.info.run
    reconciled = reconcile(runner.settings, loaded.run, name, options)
    changes = list(reconciled.changes)
    if changes:
        left = len(changes) - _MOST_CHANGES
        more = f"; and {left} more" if left > 0 else ""
        listed = "; ".join(changes[:_MOST_CHANGES]) + more
        logger.warning("run %s goes on with a changed graph: %s", name, listed)
        if observer is not None:
            tell(observer, Event("graph.changed", name, data={"changes": changes}))
    return reconciled


async def go_on(
    runner: Runner,
    loaded: Loaded,
    writer: Writer,
    reconciled: Reconciled,
    options: ResumeOptions,
    caller: Caller,
) -> Outcome:
    """Record that a run is resumed, and execute it."""
    store, run, settings = runner.journal.store, loaded.run, reconciled.settings
    codec = runner.settings.codec
    config, owner = {**codec.decode(run.config), **(options.config or {})}, this_owner(store)
    info, confirmed = _confirmed(runner, dataclasses.replace(loaded, run=writer.run), options)
    if confirmed is not None:
        writer.record(confirmed)
    for record in reconciled.records:
        writer.record(record)
    if options.update:
        subject.Subject(info.run, writer.run, codec, settings.graph).warn_of_chosen_route()
    approve = options.approve and info.status == RunStatus.PAUSED
    encoded = runner.encoded_config(config) if options.config else b""
    unsaved = active_runs.take_unsaved(store, info.run)
    if unsaved and run.status == RunStatus.RUNNING and run.owner == owner:
        # This process did not die: its last save failed. Nothing of what was running then crashed.
        writer.record(records.RunEnded(RunStatus.INTERRUPTED))
    writer.record(records.Resumed(owner, approve, encoded))
    running, now = RunStatus.RUNNING.value, clock.time()
    writer.set_info(dataclasses.replace(info, status=running, updated_at=now, owner=owner, due_at=None))
    policy = settings.policy
    saves_late = caller.idle_timeout is not None and not policy.saves_wave(1)
    if policy.on_save_error == "continue" or saves_late:
        # A process that cannot store that it owns the run does not execute it: nobody else may take it for waiting.
        if caller.private:
            writer.flush()
        else:
            await writer.flush_async()
    if caller.observer is not None:
        name, node = info.run, run.root.last_node
        upcoming = ", ".join(step.node for step in run.active() if step.status != DONE)
        tell(caller.observer, Event("checkpoint.load", name, node, {"node": node, "run_id": name}))
        facts = {"checkpoint_node": node, "resume_node": upcoming, "run_id": name}
        tell(caller.observer, Event("checkpoint.resume", name, node, facts))
    return await runner.execute(
        writer,
        settings,
        config,
        caller,
        kept=run.steps_done,
        if_interrupted=options.if_interrupted,
        resumed=True,
    )


def _unchanged(runner: Runner, loaded: Loaded) -> Outcome:
    """Return the outcome of a paused run that a resume leaves as it is."""
    run, state = loaded.run, state_of(loaded, runner.settings)
    cost = sum(spending.cost for spending in run.spending.values())
    stats = Stats(steps_kept=run.steps_done, waves=run.root.waves, seconds=run.seconds, cost=cost)
    pauses, ident = (
        public_pauses(run, runner.settings.codec, runner.settings.retention),
        origin_of(state).checkpoint_id,
    )
    return Outcome(RunStatus(run.status), state, loaded.info.run, ident, pauses, stats)


async def _fork(runner: Runner, info: RunInfo, seq: int, options: ResumeOptions, caller: Caller) -> Outcome:
    """Start a new run from an older checkpoint of a run; that run is left as it is."""
    options.refuse_answers("an older checkpoint, where nothing has been asked yet")
    owner, access = this_owner(runner.journal.store), edits.Access.of(runner.settings)
    updated = bool(options.update)
    fork = rewind.begin_fork(access, info, seq, str(uuid.uuid4()), owner=owner, updated=updated)
    forked = fork.loaded
    _confirmed(runner, forked, options)
    reconciled = reconciled_graph(runner, forked, options, caller.observer)
    await fork.store()
    return await go_on(runner, forked, fork.writer, reconciled, options, caller)


async def _from_file(
    runner: Runner, path: Path, run_id: str | None, options: ResumeOptions, caller: Caller
) -> Outcome:
    """Start a new run from a checkpoint file, past the gate that the file was written at."""
    settings, given = runner.settings, dict(options.config or {})
    found = checkpoint_files.read(path, settings.codec)
    content, provenance = found.content, None
    if found.has_workflow and "workflow_file" not in given:
        provenance = confirmation.admitted_file(found.disclosure(), options.trust, str(found.path))
    nodes = tuple(content.get("next") or (content["node"],))
    for node in nodes:
        if node not in settings.graph.nodes and node != END:
            raise GraphChanged(f"{path} is to go on with step {node!r}: node not found: {node}")
    # With a workflow of the caller's own nothing else of the file's config is taken.
    config = given if "workflow_file" in given else {**content["config"], **given}
    run, owner = runner.new_run_id(run_id), this_owner(runner.journal.store)
    first = () if provenance is None else (provenance.record(),)
    writer = await runner.new_run(content["state"], run, config, owner, nodes=nodes, first=first)
    for edited in edits_of(settings.graph, writer.run, options.update or {}, settings.codec):
        writer.record(edited)
    if provenance is not None:
        writer.set_info(dataclasses.replace(writer.info, origin=provenance.text()))
    if gate := str(content.get("gate", "")):
        # Starting from a gate's file passes the gate: the run waited there, and was resumed.
        now = clock.time()
        for step in [step for step in writer.run.root.active.values() if step.node == gate]:
            writer.record(records.Paused(f"{step.id}:before", "before", step.id, gate, since=now))
        writer.record(records.Resumed(owner, approve=True))
    return await runner.start(writer, config, caller)
