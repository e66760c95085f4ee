"""Going back: what a fork, a rollback, a promotion and a rerun record, and running on from there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast import clock
from holdfast.engine.confirmation import confirm
from holdfast.engine.continuation import go_on, reconciled_graph
from holdfast.engine.graph_changes import Reconciled, renamed_outline, sources_turned
from holdfast.engine.owner import this_owner
from holdfast.engine.resume import ResumeOptions, as_journalled
from holdfast.engine.runner import Runner
from holdfast.engine.settings import Caller, Outcome, Settings
from holdfast.engine.submission import Place
from holdfast.engine.time_travel.checkpoints import Position, find_position
from holdfast.engine.time_travel.edits import (
    Access,
    Edit,
    RerunOptions,
    apply_edit,
    mark_of,
    refuse_owned,
)
from holdfast.engine.time_travel.rerun import Rerun, plan_rerun_from
from holdfast.engine.waves import first_targets
from holdfast.errors import (
    CannotRerun,
    CheckpointNotFound,
    CommandRefused,
    RunNotFound,
    StateInvalid,
    problem_of,
)
from holdfast.events import Observer
from holdfast.graph.graph import outline_at
from holdfast.journal.checkpoint_ids import checkpoint_id, mark_facts, new_run_key
from holdfast.journal.copying import add_snapshot
from holdfast.journal.encoding import Track, encode_run
from holdfast.journal.fold import apply
from holdfast.journal.journal import Journal, Loaded, genesis
from holdfast.journal.provenance import set_back
from holdfast.journal.records import Commanded, Forked, Reset, Reusing, RunEnded, RunStarted, Steered
from holdfast.journal.run_state import (
    DONE,
    EVERY_STEP,
    RunState,
    at_checkpoint,
    copy_run,
    names_within,
    renamed_path,
)
from holdfast.journal.writer import Writer
from holdfast.state.codec import TolerantCodec
from holdfast.state.state import state_view
from holdfast.stores.base import RunInfo
from holdfast.values import START, RunStatus
from holdfast.views.family import ancestors

_DEEP = 16
"""A fork of a fork of … this often gets a snapshot of its own, so that reading it stays cheap."""


class Fork(NamedTuple):
    """A run that is about to be stored, and the run that it begins as."""

    writer: Writer
    base: Loaded

    @property
    def loaded(self) -> Loaded:
        """The fork as if it had been loaded."""
        return dataclasses.replace(self.base, info=self.writer.info, run=self.writer.run)

    async def store(self) -> None:
        """Store the fork, and make sure that it can be read whatever becomes of its parent meanwhile."""
        await self.writer.flush_async()
        self.make_safe()

    def make_safe(self) -> None:
        """Give a fork that was just stored a snapshot, if its parent is gone by now, or far away.

        A later prune or delete of the parent finds the fork, and does the same.
        """
        writer, base = self
        journal = writer.journal
        there = next(iter(journal.store.read(base.info.run, base.seq - 1, base.seq)), None)
        if base.depth >= _DEEP or there is None or there.chain != base.chain:
            weight, sealed = writer.weight, writer.sealed
            loaded = Loaded(writer.info, writer.run, writer.track, writer.seq, writer.chain, weight, sealed)
            add_snapshot(journal, writer.info.run, journal.make_snapshot(loaded, writer.codec))


def begin_fork(
    access: Access,
    parent: RunInfo,
    seq: int | None,
    run: str,
    *,
    owner: str = "",
    updated: bool = False,
    plan: Rerun | None = None,
) -> Fork:
    """Return a new run that begins at entry `seq` of `parent`, or where it is now; nothing is stored yet.

    With 0 it begins as its parent began. If its state is going to be `updated`, no step remembers anything; else the
    steps that the `plan` of a rerun affects do not.
    """
    base, now, status = _loaded_at(access, parent, seq), clock.time(), RunStatus.RUNNING.value
    origin, workflow = set_back(parent.origin), parent.workflow
    info = RunInfo(
        run, new_run_key(), workflow, status, now, now, owner, parent.tags, parent=parent.key, origin=origin
    )
    writer = Writer.create(
        access.journal, info, access.codec, durable=access.durable, base=base if base.seq else None
    )
    if base.seq == 0:
        writer.record(_started(access, parent)._replace(owner=owner, parent=(parent.run, 0)))
        return Fork(writer, base)
    start = at_checkpoint(base.run)
    forget = EVERY_STEP if updated else plan.forgotten(start) if plan is not None else ()
    writer.record(Forked(parent.run, base.seq, start, owner, b"", parent.key, base.chain, forget))
    writer.mark(_mark_at(access.journal, base) or mark_of(writer.run))
    return Fork(writer, base)


def _loaded_at(access: Access, info: RunInfo, seq: int | None) -> Loaded:
    """Return a run at an entry; with 0 as it was when nothing of it had run."""
    if seq == 0:
        first = RunState()
        apply(first, _started(access, info), info.created_at)
        return Loaded(info, first, Track(), 0, genesis(info.run, info.key), 0)
    loaded = access.journal.load(info, access.codec, seq)
    if seq is not None and loaded.seq != seq:
        raise CheckpointNotFound(f"run {info.run!r} has no entry {seq}; its last is {loaded.seq}")
    return loaded


def _started(access: Access, info: RunInfo) -> RunStarted:
    """Return the record that a run began with."""
    entry = next(iter(access.journal.store.read(info.run, 0, 1)), None)
    found = access.journal.records(info, entry, Track(), access.codec) if entry is not None else []
    if not found or not isinstance(found[0], RunStarted):
        raise CannotRerun(f"run {info.run!r} no longer tells how it began")
    return found[0]


def _mark_at(journal: Journal, loaded: Loaded) -> bytes | None:
    """Return the mark of the checkpoint that a run is loaded at, if it is one."""
    found = journal.store.checkpoints(loaded.info.run, loaded.seq + 1, 1)
    return mark_facts(found[0].facts) if found and found[0].seq == loaded.seq else None


def fork_run(
    access: Access,
    position: Position,
    run: str,
    edit: Edit | None = None,
    *,
    tags: Sequence[str] | None = None,
) -> str:
    """Store a new run, called `run`, that begins at a position of another, and is not executed; return its id."""
    edit = edit or Edit()
    updated = bool(edit.update) or edit.as_node is not None
    fork = begin_fork(access, position.info, position.seq, run, updated=updated)
    writer = fork.writer
    mark = apply_edit(writer, access, edit, position.info.run)
    if mark is not None:
        writer.mark(mark)
    _record_who(writer, "fork", edit.by, edit.reason)
    writer.record(RunEnded(RunStatus.INTERRUPTED))
    facts = dataclasses.replace(writer.info, status=RunStatus.INTERRUPTED.value, updated_at=clock.time())
    writer.set_info(facts if tags is None else dataclasses.replace(facts, tags=_checked(tags)))
    writer.flush()
    fork.make_safe()
    return run


def _record_who(writer: Writer, command: str, by: str, why: str = "") -> None:
    """Record who asked for a new run, if that is known."""
    if by:
        writer.record(Commanded(writer.run.inbox_seen, command, "", by, why))


def _checked(tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, str) or not all(isinstance(tag, str) and tag and tag.isprintable() for tag in tags):
        raise StateInvalid(f"tags are a list of printable texts, not {tags!r:.80}")
    return tuple(dict.fromkeys(tags))


# Rollback and promotion.


def roll_back(access: Access, position: Position, *, by: str = "", reason: str = "") -> str:
    """Roll a run back to an earlier entry of its own; return the id of the new checkpoint.

    As after a fork from there, questions are asked again and gates are closed again. What came after stays in the
    journal, and a rollback can return to it.
    """
    loaded = access.load_unowned(position.info.run)
    if position.seq is None:
        raise CheckpointNotFound(
            f"name the checkpoint that run {position.info.run!r} is rolled back to: its id, a wave or a node"
        )
    there = access.journal.load(position.info, access.codec, position.seq)
    completed = there.run.status == RunStatus.COMPLETED
    ended = RunEnded(RunStatus.COMPLETED if completed else RunStatus.INTERRUPTED)
    facts = dataclasses.replace(loaded.info, due_at=None, origin=set_back(loaded.info.origin))
    record = _reset_to(access, there, at_checkpoint(there.run), by, reason)
    return _reset(access, loaded, there, record, ended, facts)


def promote_fork(
    access: Access, fork: RunInfo, into: RunInfo | None = None, *, by: str = "", reason: str = ""
) -> str:
    """Promote a fork's result to the run that it was forked from, or to an earlier ancestor.

    Returns the id of the checkpoint that the run now has. The fork stays; promoting it again changes nothing, unless
    one of the two went on meanwhile.
    """
    journal = access.journal
    target = _target(journal, fork, into)
    if fork.workflow != target.workflow:
        raise CommandRefused(
            f"run {fork.run!r} is of workflow {fork.workflow!r}, and {target.run!r} of {target.workflow!r}"
        )
    theirs = as_journalled(journal.load(fork, access.codec))
    confirm(journal, fork, theirs.run)
    refuse_owned(journal.store, theirs.info)
    loaded = access.load_unowned(target.run)
    if _is_promoted(journal, loaded, theirs):
        return checkpoint_id(target.key, loaded.run.saved_seq)
    status = RunStatus(theirs.run.status)
    if status == RunStatus.RUNNING or (status == RunStatus.QUEUED and not loaded.info.queue):
        status = RunStatus.INTERRUPTED
    due_at = theirs.info.due_at if loaded.info.queue and status == RunStatus.PAUSED else None
    facts = dataclasses.replace(loaded.info, due_at=due_at, origin=loaded.info.origin or fork.origin)
    copy = copy_run(theirs.run)
    if (reuse := copy.reuse) is not None:
        # What the fork reuses of itself, the run reuses of the fork.
        source, key = (reuse.source, reuse.key) if reuse.source else (fork.run, fork.key)
        needs = tuple((own or fork.key, seq) for own, seq in reuse.needs)
        copy.reuse = reuse._replace(source=source, key=key, needs=needs)
    record = _reset_to(access, theirs, copy, by, reason)
    record = record._replace(source=fork.run, key=fork.key, renew=True)
    ended = RunEnded(status, theirs.run.fault, theirs.run.fault_node)
    return _reset(access, loaded, theirs, record, ended, facts)


def _reset_to(access: Access, source: Loaded, run: RunState, by: str, why: str) -> Reset:
    track = Track()
    track.copy_from(source.track)
    return Reset("", source.seq, encode_run(run, track, access.codec), run, by, why)


def _reset(
    access: Access, loaded: Loaded, source: Loaded, record: Reset, ended: RunEnded, facts: RunInfo
) -> str:
    """Store that a run continues where `source` is; return the id of the checkpoint that this makes."""
    writer = access.writer(loaded)
    writer.record(record)
    writer.record(ended)
    writer.mark(_mark_at(access.journal, source) or mark_of(writer.run))
    writer.set_info(dataclasses.replace(facts, status=str(ended.status), owner="", updated_at=clock.time()))
    writer.flush()
    return checkpoint_id(loaded.info.key, writer.seq)


def _is_promoted(journal: Journal, loaded: Loaded, theirs: Loaded) -> bool:
    """Return True if the last thing that happened to a run is the promotion of the fork as it still is."""
    last = next(iter(journal.store.read(loaded.info.run, loaded.seq - 1)), None)
    if last is None or last.seq == 1 or last.mark is None:
        return False
    place = theirs.info.key, theirs.seq
    found = journal.skimmed(loaded.info, last, TolerantCodec())
    return any(isinstance(record, Reset) and (record.key, record.seq) == place for record in found)


def _target(journal: Journal, fork: RunInfo, into: RunInfo | None) -> RunInfo:
    """Return the run to promote a fork to: its parent, or the ancestor that is named."""
    if into is not None and into.key == fork.key:
        raise CommandRefused(f"run {fork.run!r} cannot be promoted to itself")
    if not fork.parent:
        raise CommandRefused(f"run {fork.run!r} is not a fork of another; there is nothing to promote it to")
    found = list(ancestors(journal.store, fork))
    if not found:
        raise RunNotFound(
            f"the run that {fork.run!r} was forked from is gone; there is nothing to promote it to"
        )
    for info in found:
        if into is None or info.key == into.key:
            return info
    names = ", ".join(repr(info.run) for info in found)
    raise CommandRefused(
        f"run {fork.run!r} was not forked from {into.run if into else ''!r}; it can be promoted to what it comes "
        f"from: {names}"
    )


# Reruns.


def rewind_records(
    access: Access, plan: Rerun, why: str, by: str = "", *, updated: bool = False
) -> tuple[Reset, Reusing]:
    """Return what a run records that is itself taken back, to keep what is not affected.

    If its state is going to be `updated`, no step remembers anything.
    """
    loaded = _loaded_at(access, plan.base, plan.seq)
    run = at_checkpoint(loaded.run) if loaded.seq else loaded.run
    record = _reset_to(access, loaded, run, by, why)
    if plan.source.key != plan.base.key:
        record = record._replace(source=plan.base.run, key=plan.base.key)
    forget = EVERY_STEP if updated else plan.forgotten(run)
    return record._replace(forget=forget, renew=True), plan.reusing()


async def restarted_graphs(
    settings: Settings, run: RunState, run_id: str, remap: Mapping[str, str]
) -> list[Steered]:
    """Return the changes with which graphs that have just begun begin with what they begin with now."""
    found, outline = [], renamed_outline(run.outline, remap)
    for path, frame in run.frames.items():
        now = renamed_path(path, remap)
        names = names_within(path, remap)
        saved, present = outline_at(outline, now), outline_at(settings.outline, now)
        same = _entrances(saved) == _entrances(present) and START not in sources_turned(saved, present)
        done = any(step.status == DONE for step in frame.active.values())
        if frame.waves or done or same or not run.outline:
            continue
        try:
            state = state_view(frame.cells, settings.codec, run_id, "", "", run.updated_at)
            targets = await first_targets(settings.graph.at(now), state, settings.codec)
        except Exception as error:
            raise CannotRerun(
                f"run {run_id!r}: what it begins with now is not known: {problem_of(error)}"
            ) from error
        wanted = {(target.node, target.key) for target in targets}
        known = {(names.get(step.node, step.node), step.key): step.id for step in frame.active.values()}
        drop = tuple(name for place, name in known.items() if place not in wanted)
        add = tuple(target for target in targets if (target.node, target.key) not in known)
        if drop or add:
            found.append(Steered(path, drop, (), add, why="the graph begins otherwise now", uncounted=True))
    return found


def _entrances(outline: Mapping[str, Any]) -> list[Any]:
    return [list(each) for part in ("edges", "routes") for each in outline.get(part, ()) if each[0] == START]


def plan_step(runner: Runner, target: str, step: str, options: RerunOptions) -> tuple[Loaded, Rerun]:
    """Return a run, and the plan of a rerun of one of its steps."""
    position = find_position(runner.journal.store, target)
    loaded = as_journalled(runner.journal.load(position.info, runner.settings.codec, position.seq))
    if loaded.run.outline:
        runner.refuse_other_workflow(loaded.info)
    plan = plan_rerun_from(runner.settings, loaded, step)
    options.check(plan.step, step, position)
    return loaded, plan


async def rerun_step(
    runner: Runner, target: str, step: str, options: RerunOptions, caller: Caller
) -> Outcome:
    """Run a step of a run, and what follows it, again: in a new run, or in that run itself."""
    loaded, plan = plan_step(runner, target, step, options)
    resuming = ResumeOptions(config=options.config, trust=options.trust)
    resuming.check(runner.settings.graph)
    confirm(runner.journal, loaded.info, loaded.run, options.trust, options.config)
    if options.in_place:
        runner.refuse_owned(loaded.info)
        reason = f"{step} is to run again"
        return await rewind(runner, loaded, plan, resuming, caller, reason, options)
    owner, run = this_owner(runner.journal.store), runner.new_run_id(options.run_id)
    updated, access = bool(options.update), Access.of(runner.settings)
    fork = begin_fork(access, plan.base, plan.seq or 0, run, owner=owner, updated=updated, plan=plan)
    fork.writer.record(plan.reusing(elsewhere=True))
    return await _run_on(runner, fork.loaded, fork.writer, plan, resuming, caller, options, fork)


async def queue_rerun(runner: Runner, target: str, step: str, options: RerunOptions, place: Place) -> RunInfo:
    """Store a new run in which workers run a step of a run, and what follows it, again; return its facts."""
    loaded, plan = plan_step(runner, target, step, options)
    resuming = ResumeOptions(config=options.config, trust=options.trust)
    resuming.check(runner.settings.graph)
    if options.in_place:
        raise CannotRerun("workers run a step again in a new run; a rerun in place is executed at once")
    confirm(runner.journal, loaded.info, loaded.run, options.trust, options.config)
    run, access = runner.new_run_id(options.run_id), Access.of(runner.settings)
    fork = begin_fork(access, plan.base, plan.seq or 0, run, updated=bool(options.update), plan=plan)
    fork.writer.record(plan.reusing(elsewhere=True))
    await _record_differences(runner, fork.loaded, fork.writer, plan, resuming, options, None)
    _record_who(fork.writer, "rerun", options.by)
    fork.writer.record(RunEnded(RunStatus.QUEUED))
    fork.writer.set_info(place.on(fork.writer.info))
    await fork.store()
    return fork.writer.info


async def rewind(
    runner: Runner,
    loaded: Loaded,
    plan: Rerun,
    options: ResumeOptions,
    caller: Caller,
    why: str = "it is done otherwise now",
    overrides: RerunOptions | None = None,
) -> Outcome:
    """Take a run itself back to an earlier entry, and go on from there; what is not affected is kept."""
    options.refuse_answers("a run that is taken back, and asks again what it comes to,")
    overrides = overrides or RerunOptions()
    info = dataclasses.replace(loaded.info, origin=set_back(loaded.info.origin))
    loaded = dataclasses.replace(loaded, info=info)
    writer, updated = runner.writer(loaded), bool(overrides.update)
    for record in rewind_records(Access.of(runner.settings), plan, why, overrides.by, updated=updated):
        writer.record(record)
    return await _run_on(runner, loaded, writer, plan, options, caller, overrides)


async def _run_on(
    runner: Runner,
    loaded: Loaded,
    writer: Writer,
    plan: Rerun,
    options: ResumeOptions,
    caller: Caller,
    overrides: RerunOptions,
    fork: Fork | None = None,
) -> Outcome:
    """Record what is different this time, before anything runs, and go on."""
    reconciled = await _record_differences(runner, loaded, writer, plan, options, overrides, caller.observer)
    if fork is not None:
        await fork.store()
    return await go_on(runner, loaded, writer, reconciled._replace(records=()), options, caller)


async def _record_differences(
    runner: Runner,
    loaded: Loaded,
    writer: Writer,
    plan: Rerun,
    options: ResumeOptions,
    overrides: RerunOptions,
    observer: Observer | None,
) -> Reconciled:
    """Record what is different this time, and where the run goes on; return what it goes on with."""
    for steered in await restarted_graphs(runner.settings, writer.run, writer.info.run, options.remap or {}):
        writer.record(steered)
    reconciled = reconciled_graph(runner, loaded, options, observer)
    for record in reconciled.records:
        writer.record(record)
    overrides.record(writer, reconciled.settings, plan.step, plan.called)
    writer.mark(mark_of(writer.run))
    return reconciled
