"""Continuing stored runs: resuming them, forking an older checkpoint, starting from a checkpoint file."""

from __future__ import annotations

import dataclasses
import logging
import os
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
from holdfast.engine.runner import Runner, passed_over, state_of
from holdfast.engine.settings import Caller, Outcome, Stats, one_of, public_pauses
from holdfast.errors import (
    AnswerRejected,
    ExecutionError,
    GraphChanged,
    Remedy,
    RunConflict,
    RunExists,
    RunFinished,
    StateInvalid,
)
from holdfast.events import Event, Observer, tell
from holdfast.journal import records
from holdfast.journal.journal import Loaded
from holdfast.journal.run_state import DONE
from holdfast.journal.writer import Writer
from holdfast.names import LazyModule
from holdfast.state.ops import Op
from holdfast.state.schema import as_mapping
from holdfast.state.state import origin_of
from holdfast.stores.base import RunInfo
from holdfast.values import END, RunStatus

if TYPE_CHECKING:
    from holdfast.engine import checkpoint_files, confirmation, resume_plan, submission
    from holdfast.engine.commands import subject
    from holdfast.engine.time_travel import edits, rerun, rewind
else:
    checkpoint_files, confirmation = LazyModule("engine.checkpoint_files"), LazyModule("engine.confirmation")
    resume_plan, subject = LazyModule("engine.resume_plan"), LazyModule("engine.commands.subject")
    edits, rerun = LazyModule("engine.time_travel.edits"), LazyModule("engine.time_travel.rerun")
    rewind, submission = LazyModule("engine.time_travel.rewind"), LazyModule("engine.submission")

logger = logging.getLogger("holdfast")

_FOR_WORKERS = (RunStatus.QUEUED, RunStatus.PAUSED, RunStatus.RUNNING)
_MOST_CHANGES = 10
"""How many changes of a graph a warning names; an event names all."""


async def go_on_from(
    runner: Runner, checkpoint: str | Path, run_id: str | None, options: Mapping[str, Any], caller: Caller
) -> Outcome:
    """Go on from a checkpoint file, whatever its name, or from whatever `resume` takes, with options of a resume."""
    if not isinstance(checkpoint, (str, os.PathLike)):
        raise StateInvalid(f"checkpoint= is an id or the path of a file, not {checkpoint!r:.80}")
    if os.path.isfile(checkpoint):  # noqa: PTH113 - whatever the name is, this does not raise.
        checkpoint = checkpoint if runner.journal.store.runs(run=str(checkpoint)) else Path(checkpoint)
    return await resume(runner, checkpoint, ResumeOptions(**options), caller, run_id)


async def resume(
    runner: Runner, target: str | Path, options: ResumeOptions, caller: Caller, run_id: str | None = None
) -> Outcome:
    """Resume the run that `target` names, or start one from the older checkpoint or file that it names.

    `run_id` is for the run of a file.
    """
    store, settings = runner.journal.store, runner.settings
    options.check(settings.graph)
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
        return recorded_outcome(runner, loaded)
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
    """Return what to go on with, after comparing the graph with the one that the run started with.

    Observers hear first that the run was loaded, so that they hear it of a run that cannot go on, too.
    """
    name, node = loaded.info.run, loaded.run.root.last_node
    tell_loaded(observer, name, node)
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


def tell_loaded(observer: Observer | None, run_id: str, node: str) -> None:
    """Tell observers that a run was loaded, and the node that it finished last."""
    if observer is not None:
        tell(observer, Event("checkpoint.load", run_id, node, {"node": node, "run_id": run_id}))


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


def recorded_outcome(runner: Runner, loaded: Loaded) -> Outcome:
    """Return the outcome of a run as it is stored; nothing of it runs."""
    run, state, settings = loaded.run, state_of(loaded, runner.settings), runner.settings
    cost = sum(spending.cost for spending in run.spending.values())
    stats = Stats(steps_kept=run.steps_done, waves=run.root.waves, seconds=run.seconds, cost=cost)
    pauses = public_pauses(run, settings.codec, settings.retention)
    failure = None
    if run.status == RunStatus.FAILED:
        remedies, name = Remedy("resume", loaded.info.run), loaded.info.run
        problem = f"run {name!r} failed" if run.fault is None else run.fault.message
        failure = ExecutionError(problem, remedies=remedies, node=run.fault_node, state=state, run_id=name)
    return Outcome(
        RunStatus(run.status),
        state,
        loaded.info.run,
        origin_of(state).checkpoint_id,
        pauses,
        stats,
        passed_over(run),
        error=failure,
    )


# Starting a run, or continuing the one that has its id.


IF_EXISTS = ("fail", "resume", "return")


async def is_first(writer: Writer, caller: Caller) -> bool:
    """Store that a run begins, before anything of it runs; return False if another has begun it meanwhile."""
    try:
        if caller.private:
            writer.flush()
        else:
            await writer.flush_async()
    except RunExists:
        return False
    return True


@dataclasses.dataclass(frozen=True, slots=True)
class Existing:
    """The run that has the id of one that was to begin, and whether it is resumed, or returned as it is."""

    runner: Runner
    info: RunInfo
    if_exists: str

    @classmethod
    def find(
        cls, runner: Runner, run_id: str | None, if_exists: str, *, key: str | None = None
    ) -> Existing | None:
        """Return the run of that id, or `None`; one of another workflow is refused."""
        one_of("if_exists", if_exists, IF_EXISTS)
        if key is not None:
            raise StateInvalid("give either key= or if_exists=, not both: the run of a key is submitted once")
        if run_id is None:
            raise StateInvalid(
                f"if_exists={if_exists!r} says what to do with a run that exists; name it with run_id="
            )
        for info in runner.journal.store.runs(run=run_id) if isinstance(run_id, str) else ():
            runner.refuse_other_workflow(info)
            return cls(runner, info, if_exists)
        return None

    async def outcome(
        self,
        input: Any,
        config: Mapping[str, Any] | None,
        answers: Mapping[str, Any] | None,
        caller: Caller,
    ) -> Outcome:
        """Resume the run if it stopped; else, or if it is only to be returned, return its recorded outcome.

        A cancelled run, and one that waits, stay as they are: their gates stay closed.
        """
        runner, name = self.runner, self.info.run
        self.refuse_other_input(input)
        loaded = load_latest(runner.journal, self.info, runner.settings.codec)
        is_over = loaded.info.status in (RunStatus.COMPLETED, RunStatus.CANCELLED)
        if self.if_exists == "return" or is_over:
            if answers:
                raise AnswerRejected(
                    f"run {name!r} is {loaded.info.status} and not resumed: it takes no answers"
                )
            return recorded_outcome(runner, loaded)
        saved = runner.settings.codec.decode(loaded.run.config, lenient=True) if loaded.run.config else {}
        changed = {key: value for key, value in (config or {}).items() if saved.get(key) != value}
        options = ResumeOptions(answers=answers, config=changed or None, approve=False)
        try:
            return await resume(runner, name, options, caller)
        except RunFinished:
            return recorded_outcome(runner, load_latest(runner.journal, self.info, runner.settings.codec))

    def submitted(self, input: Any, place: submission.Place) -> str:
        """Queue the run again if it is to be resumed and failed or was interrupted; return its id."""
        journal, stopped = self.runner.journal, (RunStatus.FAILED, RunStatus.INTERRUPTED)
        self.refuse_other_input(input)
        if self.if_exists == "resume" and self.info.status in stopped:
            submission.requeue(journal, self.info.run, place, codec=self.runner.settings.codec)
        return self.info.run

    def refuse_other_input(self, input: Any) -> None:
        """Refuse an input other than the one that the run began with; none at all is not compared.

        A key that is left out and has a default is not compared either: defaults may differ from day to day. Nor is a
        key that the run did not begin with and that has its default, nor, of a schema that names its keys, one that
        it has no longer: the workflow has changed, and not what it is asked for.
        """
        runner, name = self.runner, self.info.run
        if input is None:
            return
        codec, values, schema = (
            runner.settings.codec,
            as_mapping(input, "the input"),
            runner.settings.graph.schema,
        )
        now = {op.key: op for op in schema.initial(codec, values)}
        _, entries = runner.journal.history(self.info, codec, 1)
        begun = [each for _, found in entries for each in found if isinstance(each, records.RunStarted)]
        if not begun:
            logger.warning("run %s: the input is not compared: the one it began with is not stored", name)
            return
        then = {op.key: op for op in begun[0].ops if schema.is_open or op.key in schema.channels}
        compared = [key for key in {**then, **now} if key in values or key not in now]
        if new := values.keys() - then.keys():
            default = {op.key: op for op in schema.initial(codec, {})}
            same = {key for key in new if key in default and not _differing(key, default[key], now.get(key))}
            compared = [key for key in compared if key not in same]
        differ = [name for key in compared for name in _differing(key, then.get(key), now.get(key))]
        if differ:
            raise RunExists(
                f"run {name!r} exists and began with another input: {', '.join(map(repr, sorted(differ)))} "
                f"{'differs' if len(differ) == 1 else 'differ'}; to continue it, give the same input or none",
                remedies=Remedy("choose_run_id"),
                run_id=name,
            )


def _differing(key: str, one: Op | None, other: Op | None) -> list[str]:
    """Return the names of what differs in two inputs of a key; dicts and sets may be in another order."""
    if one is None or other is None or one.raw == other.raw:
        return [] if one is not None and other is not None else [key]
    then, now = one.value, other.value
    if then == now:
        return []
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        names = [
            name for name in {**then, **now} if name not in then or name not in now or then[name] != now[name]
        ]
        return [f"{key}.{name}" for name in names]
    return [key]


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
