"""Going back with a run, in place or in a new one, and running again what is affected."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast import clock
from holdfast.engine.confirmation import confirm, refuse_unconfirmed
from holdfast.engine.continuation import go_on, reconciled_graph
from holdfast.engine.graph_changes import brought_over, changed_nodes, sources_turned, why_changed
from holdfast.engine.owner import this_owner
from holdfast.engine.resume import ResumeOptions, as_journalled
from holdfast.engine.routing import first_targets
from holdfast.engine.runner import Caller, Runner
from holdfast.engine.settings import Outcome, Settings
from holdfast.engine.time_travel.checkpoints import Moment, find_moment
from holdfast.engine.time_travel.fork import Fork, Given, begin_fork, checkpoint_of, forget_all, store_fork
from holdfast.engine.time_travel.rerun import Rerun, plan_rerun, plan_rerun_from
from holdfast.errors import (
    CannotRerun,
    CannotReuse,
    CheckpointNotFound,
    MigrationFailed,
    StateInvalid,
    problem_of,
)
from holdfast.graph.graph import outline_at
from holdfast.journal.checkpoint_ids import new_run_key
from holdfast.journal.encoding import Track, encode_run
from holdfast.journal.fold import apply, fold
from holdfast.journal.journal import Journal, Loaded, genesis
from holdfast.journal.provenance import set_back
from holdfast.journal.records import Reset, Reusing, RunStarted, Steered
from holdfast.journal.run_state import DONE, EVERY_STEP, RunState, at_checkpoint, names_within, renamed_path
from holdfast.journal.writer import Writer
from holdfast.state.codec import Codec
from holdfast.state.schema import as_mapping
from holdfast.state.state import state_view
from holdfast.stores.base import RunInfo
from holdfast.values import START, RunStatus
from holdfast.views.projection import Projection, node_outline, project, renamed_node

# What a run records that goes back, and what it keeps.


def standing_at(journal: Journal, codec: Codec, rerun: Rerun) -> tuple[RunState, Track]:
    """The run as it stands where it is to go on from."""
    info, seq = rerun.base, rerun.seq
    if seq:
        loaded = journal.load(info, codec, seq)
        if loaded.seq != seq:
            raise CheckpointNotFound(f"run {info.run!r} has no entry {seq}; its last is {loaded.seq}")
        return at_checkpoint(loaded.run), loaded.track
    return begun(journal, codec, info)


def begun(journal: Journal, codec: Codec, info: RunInfo) -> tuple[RunState, Track]:
    """A run as it was when nothing of it had run."""
    entry = next(iter(journal.store.read(info.run, 0, 1)))
    run = RunState()
    apply(run, journal.records(info, entry, Track(), codec)[0], entry.at)
    return run, Track()


def taken_back(
    journal: Journal, codec: Codec, rerun: Rerun, why: str, by: str = "", *, updated: bool = False
) -> tuple[Reset, Reusing]:
    """What a run records that is itself taken back, to keep what is not affected.

    It is said whether its state is going to be `updated`: then no step remembers anything.
    """
    assert rerun.seq is not None
    run, track = standing_at(journal, codec, rerun)
    forget = EVERY_STEP if updated else rerun.forgotten(run)
    body = encode_run(run, track, codec)
    base, source = rerun.base, rerun.source
    name, key = ("", b"") if source is not None and source.key == base.key else (base.run, base.key)
    return Reset(name, rerun.seq, body, run, by, why, forget, key, renew=True), reused(rerun)


def reused(rerun: Rerun, *, anew: bool = False) -> Reusing:
    """What the run records to keep what is not affected; or what one records that begins `anew` where it stood."""
    source = rerun.source
    assert source is not None
    after = rerun.seq or 0 if source.key == rerun.base.key else 0
    name, own = (source.run, source.key) if anew else ("", b"")
    needs = tuple((own if key == source.key else key, seq) for key, seq in rerun.needs)
    return Reusing(name, own, after, rerun.upto, rerun.again, rerun.remap, needs)


async def begun_anew(
    settings: Settings, run: RunState, run_id: str, remap: Mapping[str, str]
) -> list[Steered]:
    """What is to be changed so that graphs that have just begun begin with what they begin with now."""
    found = []
    for path, frame in run.frames.items():
        now = renamed_path(path, remap) if path else path
        saved, present = outline_at(run.outline, path), outline_at(settings.outline, now)
        names = names_within(path, remap)
        same = _ways_in(saved) == _ways_in(present) and START not in sources_turned(saved, present, names)
        done = any(step.status == DONE for step in frame.active.values())
        if frame.waves or done or same or not run.outline:
            continue
        try:
            state = state_view(frame.cells, settings.codec, run_id, "", "", run.updated_at)
            targets = await first_targets(settings.graph.at(now), state, settings.codec)
        except Exception as error:
            raise CannotRerun(
                f"run {run_id!r}: what it begins with now cannot be told: {problem_of(error)}"
            ) from error
        wanted = {(target.node, target.key) for target in targets}
        known = {(names.get(step.node, step.node), step.key): step.id for step in frame.active.values()}
        drop = tuple(name for place, name in known.items() if place not in wanted)
        add = tuple(target for target in targets if (target.node, target.key) not in known)
        if drop or add:
            found.append(Steered(path, drop, (), add, why="the graph begins otherwise now", anew=True))
    return found


def _ways_in(outline: Mapping[str, Any]) -> list[Any]:
    return [list(way) for part in ("edges", "routes") for way in outline.get(part, ()) if way[0] == START]


# Beginning again: runs that take over what another has finished, and what is asked for when a step runs ag.


@dataclass(frozen=True, slots=True)
class Source:
    """A run whose finished steps a new one takes over where their code and their inputs are the same."""

    settings: Settings
    past: Projection

    @classmethod
    def find(cls, settings: Settings, target: str) -> Source:
        """The run that is meant, up to the moment that is meant; one of another workflow is refused."""
        if not isinstance(target, str):
            raise StateInvalid(
                f"reuse= names a run by its id, a checkpoint or a workflow's name, not {target!r:.80}"
            )
        moment = find_moment(settings.journal.store, target)
        if moment.info.workflow != settings.graph.name:
            raise CannotReuse(
                f"run {moment.info.run!r} is of workflow {moment.info.workflow!r}, and this one is "
                f"{settings.graph.name!r}; only steps of the same workflow can be taken over"
            )
        refuse_unconfirmed(settings.journal, moment.info, settings.codec)
        return cls(settings, project(settings.journal, settings.codec, moment.info, moment.seq))

    @property
    def reusing(self) -> Reusing:
        """What the new run records."""
        return Reusing(self.past.info.run, self.past.info.key, 0, self.past.seq, None)

    def input(self, given: Any) -> Mapping[str, Any]:
        """The input of the new run: as given, or else that of the source."""
        if given is not None:
            return as_mapping(given, "the input")
        if self.past.begun is None:
            raise CannotReuse(
                f"the inputs of run {self.past.info.run!r} are no longer stored; give the new run its own"
            )
        graph, codec, name = self.settings.graph, self.settings.codec, self.past.info.run
        run = fold([(self.past.begun, 0.0)])
        try:
            for record in brought_over(name, run, graph, codec):
                apply(run, record, 0.0)
        except MigrationFailed as error:
            raise CannotReuse(
                f"the inputs of run {name!r} do not fit the graph at hand: {error}; give the new run its own"
            ) from error
        schema = graph.schema
        return {
            key: slot.get()
            for key, slot in run.root.cells.items()
            if schema.is_open or key in schema.channels
        }

    def config(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """The config of the new run: that of the source, with what is given laid over it; that of a file is whole."""
        saved = self.past.run.config if "flow" not in (given or {}) else b""
        return {**(self.settings.codec.decode(saved) if saved else {}), **(given or {})}


@dataclass(frozen=True, slots=True)
class RerunOptions:
    """What a caller of `rerun` may say."""

    given: Given = field(default_factory=Given)
    config: Mapping[str, Any] | None = None
    in_place: bool = False
    run_id: str | None = None
    trust: bool | str = False

    def check(self, back: Rerun, step: str, moment: Moment) -> None:
        """Refuse what means nothing, or contradicts itself."""
        self.given.check(back.step, step)
        if self.in_place and self.run_id is not None:
            raise CannotRerun(
                "give either a run id for the new run, or in-place, which goes on with the run itself"
            )
        if self.in_place and moment.seq is not None:
            raise CannotRerun(
                "an in-place rerun goes on with a run as it stands; name the run, and not a checkpoint of it"
            )


def rerun_of_changes(settings: Settings, loaded: Loaded, options: ResumeOptions) -> Rerun | None:
    """What runs again because the graph at hand does it otherwise; `None` if nothing that is finished is affected."""
    if options.on_change == "use_saved":
        raise StateInvalid(
            "rerun-changed goes on with the workflow as it is now, and on-change 'use_saved' does not; give one"
        )
    if not loaded.run.outline:
        return None
    remap, past = options.remap or {}, project(settings.journal, settings.codec, loaded.info, loaded.seq)
    seeds = _outdated(past, settings.outline, remap)
    seeds |= changed_nodes(loaded.run.outline, settings.outline, remap)
    back = plan_rerun(settings, loaded, past, seeds, remap) if seeds else None
    return back if back is not None and (back.seq is not None or back.again) else None


def _outdated(past: Projection, outline: Mapping[str, Any], remap: Mapping[str, str]) -> dict[str, str]:
    """The nodes with a step that was finished by other code than now, even if the run went on with this one since."""
    found: dict[str, str] = {}
    looked_at: set[tuple[int, str]] = set()
    for each in (*past.finishes.values(), *past.spare.values()):
        node = each.node
        while node and (id(each.outline), node) not in looked_at:
            looked_at.add((id(each.outline), node))
            now = renamed_node(node, remap)
            one, other = node_outline(each.outline, node), node_outline(outline, now)
            if one and other and (reason := why_changed(one, other)):
                found.setdefault(now, reason)
            node = node.rpartition("/")[0]
    return found


def begin_again(settings: Settings, back: Rerun, run: str, driver: str, *, updated: bool = False) -> Fork:
    """A new run, not yet stored, that begins where something is to run again, and keeps what is not affected.

    It is said whether its state is going to be `updated`: then no step remembers anything.
    """
    journal, codec, durable = settings.journal, settings.codec, settings.policy.durability == "full"
    if back.seq:
        forget = forget_all if updated else back.forgotten
        fork = begin_fork(
            journal, codec, back.base, back.seq, run, driver=driver, durable=durable, forget=forget
        )
    else:
        fork = _from_the_beginning(settings, back.base, run, driver)
    fork.writer.record(reused(back, anew=True))
    return fork


def _from_the_beginning(settings: Settings, parent: RunInfo, run: str, driver: str) -> Fork:
    """A new run that begins as another did, of which no entry holds only that."""
    journal, codec, now = settings.journal, settings.codec, clock.time()
    started = project(journal, codec, parent, 1).begun
    if started is None:
        raise CannotRerun(f"run {parent.run!r} no longer tells how it began")
    info = RunInfo(
        run,
        new_run_key(),
        parent.workflow,
        RunStatus.RUNNING.value,
        now,
        now,
        driver,
        parent.tags,
        parent=parent.key,
        origin=set_back(parent.origin),
    )
    writer = Writer.create(journal, info, codec, durable=settings.policy.durability == "full")
    first, track = begun(journal, codec, parent)
    writer.record(RunStarted(*started[:5], driver, (parent.run, 0)))
    return Fork(writer, Loaded(parent, first, track, 0, genesis(parent.run, parent.key), 0))


@dataclasses.dataclass(frozen=True, slots=True)
class Changes:
    """What runs again because the graph at hand does it otherwise."""

    rerunner: Rerunner
    back: Rerun

    @property
    def goes_back(self) -> bool:
        """Whether finished steps are affected."""
        return self.back.seq is not None

    @property
    def reused(self) -> Reusing:
        """What a run records that need not go back."""
        return reused(self.back)

    async def go_back(self, loaded: Loaded, options: ResumeOptions, caller: Caller) -> Outcome:
        """Take the run back, and go on from there."""
        return await self.rerunner.go_back(loaded, self.back, options, caller, "it is done otherwise now")


def _set_back(info: RunInfo) -> RunInfo:
    return dataclasses.replace(info, origin=set_back(info.origin)) if info.origin else info


class Rerunner:
    """Takes the runs of one compiled graph back."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self._settings = runner, runner.settings
        self._journal, self._codec, self._store = runner.journal, runner.settings.codec, runner.journal.store

    def changes(self, loaded: Loaded, options: ResumeOptions) -> Changes | None:
        """What changed in the graph that affects a run; `None` if nothing does."""
        back = rerun_of_changes(self._settings, loaded, options)
        return None if back is None else Changes(self, back)

    async def go_back(
        self,
        loaded: Loaded,
        back: Rerun,
        options: ResumeOptions,
        caller: Caller,
        why: str,
        given: Given | None = None,
    ) -> Outcome:
        """Take a run back to an earlier entry, and go on from there; what is not affected is kept."""
        options.refuse_answers("a run that is taken back, and asks again what it comes to,")
        loaded = dataclasses.replace(loaded, info=_set_back(loaded.info))
        writer = self._runner.writer(loaded)
        by, updated = (given.by, bool(given.update)) if given is not None else ("", False)
        for record in taken_back(self._journal, self._codec, back, why, by, updated=updated):
            writer.record(record)
        return await self._go_again(loaded, writer, back, options, caller, given)

    async def _go_again(
        self,
        loaded: Loaded,
        writer: Writer,
        back: Rerun,
        options: ResumeOptions,
        caller: Caller,
        given: Given | None,
        fork: Fork | None = None,
    ) -> Outcome:
        """Record what is to be otherwise this time, before anything runs, and go on."""
        run, name = writer.run, writer.info.run
        for steered in await begun_anew(self._settings, run, name, options.remap or {}):
            writer.record(steered)
        reconciled = reconciled_graph(self._runner, loaded, options, caller.observer)
        for record in reconciled.records:
            writer.record(record)
        if given is not None:
            given.take(writer, reconciled.settings, back.step)
        writer.mark(checkpoint_of(writer))
        if fork is not None:
            await store_fork(fork)
        return await go_on(self._runner, loaded, writer, reconciled._replace(records=()), options, caller)

    async def rerun(self, target: str, step: str, options: RerunOptions, caller: Caller) -> Outcome:
        """Run a step of a run, and what follows it, again: in a new run, or in that run itself."""
        loaded, back = self.plan_rerun(target, step, options)
        resuming = ResumeOptions(config=options.config, trust=options.trust)
        resuming.check()
        confirm(self._journal, loaded.info, loaded.run, options.trust, options.config)
        if options.in_place:
            self._runner.refuse_owned(loaded.info)
            return await self.go_back(
                loaded, back, resuming, caller, f"{step} is to run again", options.given
            )
        driver, run = this_owner(self._store), self._runner.new_run_id(options.run_id)
        updated = bool(options.given.update)
        fork = begin_again(self._settings, back, run, driver, updated=updated)
        forked = dataclasses.replace(fork.base, info=fork.writer.info, run=fork.writer.run)
        return await self._go_again(forked, fork.writer, back, resuming, caller, options.given, fork)

    def plan_changes(self, run: str, options: ResumeOptions) -> Rerun | None:
        """What a run is taken back for to do again what the graph at hand does otherwise."""
        options.check()
        loaded = self._journal.load(self._journal.info(run), self._codec)
        back = rerun_of_changes(self._settings, loaded, options)
        return back if back is not None and back.seq is not None else None

    def plan_rerun(self, target: str, step: str, options: RerunOptions) -> tuple[Loaded, Rerun]:
        """A run, and what becomes of its steps if one of them is run again."""
        moment = find_moment(self._store, target)
        loaded = as_journalled(self._journal.load(moment.info, self._codec, moment.seq))
        if loaded.run.outline:
            self._runner.refuse_other_workflow(loaded.info)
        back = plan_rerun_from(self._settings, loaded, step)
        options.check(back, step, moment)
        return loaded, back
