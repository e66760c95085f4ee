"""Beginning runs and taking them up again: what happens before and after a drive."""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import clock
from holdfast.engine import checkpoint_files as files
from holdfast.engine.checkpoint_files import check_config
from holdfast.engine.environment import Surroundings
from holdfast.engine.graph_changes import Reconciled, reconcile
from holdfast.engine.loop import Execution
from holdfast.engine.owner import active_runs, describe, has_owner, is_alive, is_here, this_owner
from holdfast.engine.resume import (
    ResumeOptions,
    answered_now,
    find_run,
    is_at_rest,
    load_latest,
    refuse_finished,
)
from holdfast.engine.retention import has_kept, janitor
from holdfast.engine.routing import first_targets
from holdfast.engine.settings import Outcome, Settings, Stats, public_pauses
from holdfast.engine.submission import Place
from holdfast.errors import (
    CodecError,
    ExecutionError,
    GraphChanged,
    HoldfastError,
    Remedy,
    RunConflict,
    RunExists,
    StateInvalid,
    StoreError,
)
from holdfast.events import Event, MultiObserver, Observer, resolve_observer, tell
from holdfast.graph.graph import Graph, base_name
from holdfast.journal import records
from holdfast.journal.checkpoint_ids import checkpoint_id, encode_mark, new_run_key
from holdfast.journal.copying import delete_run, needed_by
from holdfast.journal.journal import Loaded
from holdfast.journal.provenance import Provenance
from holdfast.journal.records import Target
from holdfast.journal.run_state import DONE, RunState
from holdfast.journal.writer import Writer
from holdfast.state.codec import Codec
from holdfast.state.ops import advance, freeze
from holdfast.state.schema import as_mapping
from holdfast.state.state import State, origin_of
from holdfast.stores.base import RunInfo, Store
from holdfast.threads import in_background
from holdfast.values import END, RunStatus, step_label

if TYPE_CHECKING:  # What only some need is loaded by those who do.
    from holdfast.engine.time_travel.rerunner import Source

logger = logging.getLogger("holdfast")


_NO_CONFIG = Codec().encode({})
_FOR_WORKERS = (RunStatus.QUEUED, RunStatus.PAUSED, RunStatus.RUNNING)
_TOLD = 10
"""How many changes of a graph are told in a warning; an event tells all."""


def _refuse_unqueued(facts: RunInfo, info: RunInfo) -> None:
    """Refuse a run that was stopped after a worker had found it; one that was moved here is queued by its facts."""
    was_moved = facts.status == RunStatus.QUEUED and info.status == RunStatus.INTERRUPTED
    if info.status not in _FOR_WORKERS and not was_moved:
        raise RunConflict(f"run {info.run!r} is {info.status}; workers leave it alone until it is requeued")


def ignore(execution: Execution) -> None:
    """Do nothing with an execution."""


ObserverLike = Observer | str | Callable[[Event], object] | None


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """Who wants a run driven. `private` says that the event loop may be blocked; `hold` is given the drive.

    `idle_timeout` is how long a drive that has nothing to do waits; see `Execution`.
    """

    observer: Observer | None
    private: bool = False
    hold: Callable[[Execution], None] = ignore
    idle_timeout: float | None = None


class Runner:
    """Starts, resumes and forks the runs of one compiled graph."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.journal = settings, settings.journal
        self._codec, self._store = settings.codec, settings.journal.store
        self._surroundings = Surroundings(settings.graph, settings.codec, settings.facts)

    async def invoke(
        self,
        input: Any,
        run_id: str | None,
        config: Mapping[str, Any] | None,
        checkpoint: str | Path | None,
        caller: Caller,
        answers: Mapping[str, Any] | None = None,
        reuse: str | None = None,
    ) -> Outcome:
        """Start a run of an input, or go on from a checkpoint, with answers to what it waits for.

        A new run is given what run `reuse` has finished, as far as it is the same.
        """
        options = ResumeOptions(answers=answers, config=config)
        options.check()
        if checkpoint is None:
            options.refuse_answers("a new run")
            source = None if reuse is None else self._source(reuse)
            values = as_mapping(input, "the input") if source is None else source.input(input)
            config = dict(config or {}) if source is None else source.config(config)
            return await self._start(values, run_id, config, caller, source=source)
        if reuse is not None:
            raise StateInvalid("give either reuse= or checkpoint=, not both: reuse= is for a new run")
        if input is not None:
            raise StateInvalid("give either an input or checkpoint=, not both; use resume(…, update=…)")
        if files.is_file(checkpoint):
            options.refuse_answers("a checkpoint file")
            return await self._from_file(Path(checkpoint), run_id, config, caller)
        if run_id is not None:
            raise StateInvalid("give either run_id= or checkpoint=, not both")
        return await self.resume(checkpoint, options, caller)

    async def resume(self, target: str | Path, options: ResumeOptions, caller: Caller) -> Outcome:
        """Take up what `target` names."""
        options.check()
        if files.is_file(target) and not self._store.runs(run=str(target)):
            options.refuse_answers("a checkpoint file")
            return await self._from_file(Path(target), None, options.config, caller, options.trust)
        facts, seq = find_run(self._store, str(target))
        loaded = load_latest(self.journal, facts, self._codec)
        info, run = loaded.info, loaded.run
        if run.outline:
            self.refuse_other_workflow(info)
        confirmed = None
        if seq is None or seq == run.saved_seq:
            _, confirmed = self._confirmed(info, run, options)
        if options.plan is not None:
            from holdfast.engine.resume_plan import refuse_outdated

            refuse_outdated(self.settings, str(target), options)
        if seq is not None and seq != run.saved_seq:
            options.refuse_rerun()
            return await self._fork(info, seq, options, caller)
        again = None
        if options.rerun_changed:
            from holdfast.engine.time_travel.rerunner import Rerunner

            again = Rerunner(self).changes(loaded, options)
        if again is None or not again.goes_back:
            refuse_finished(info, unchanged=options.rerun_changed)
        if caller.idle_timeout is not None:
            _refuse_unqueued(facts, info)
        self.refuse_owned(info, options.takeover)
        if again is not None and again.goes_back:
            return await again.go_back(loaded, options, caller)
        answered = answered_now(info, run, options, self.settings, sleeps=caller.idle_timeout is None)
        at_rest = is_at_rest(info, run, options, answered, self.settings.rules.barrier)
        if at_rest and confirmed is None and not self._has_messages(info.run, run):
            return self._as_it_stands(loaded)
        reconciled = self.reconciled(loaded, options, caller.observer)
        writer = self.writer(loaded)
        if again is not None:
            writer.record(again.reused)
        for record in answered:
            writer.record(record)
        return await self.go_on(loaded, writer, reconciled, options, caller)

    def _confirmed(
        self, info: RunInfo, run: RunState, options: ResumeOptions
    ) -> tuple[RunInfo, records.Confirmed | None]:
        """The facts of a run that may run, and what to record; one from outside that nobody confirmed is refused."""
        if not info.origin:
            return info, None
        from holdfast.engine.confirmation import confirm

        return confirm(self.journal, info, run, options.trust, options.config)

    def _has_messages(self, name: str, run: RunState) -> bool:
        return bool(self._store.inbox(name, run.inbox_seen))

    def _source(self, reuse: str) -> Source:
        from holdfast.engine.time_travel.rerunner import Source

        return Source.find(self.settings, reuse)

    def writer(self, loaded: Loaded) -> Writer:
        """A writer that goes on where a loaded run ends."""
        return Writer(self.journal, loaded, self._codec, durable=self._is_durable)

    @property
    def _is_durable(self) -> bool:
        return self.settings.policy.durability == "full"

    def refuse_other_workflow(self, info: RunInfo) -> None:
        """Refuse a run of another workflow: its gates, code and state are not this graph's."""
        own = self.settings.graph.name
        if info.workflow != own:
            raise GraphChanged(
                f"run {info.run!r} is of workflow {info.workflow!r}, and this one is {own!r}; if the workflow "
                f"was renamed, give it its old name, {info.workflow!r}, to go on with the run"
            )

    def refuse_owned(self, info: RunInfo, takeover: bool = False) -> None:
        """Refuse a run that somebody is driving, as far as can be told from here."""
        if active_runs.find(self._store, info.run) is not None:
            raise RunConflict(f"run {info.run!r} is being executed by this process already")
        if takeover or info.status != RunStatus.RUNNING or not is_alive(info.driver, self._store):
            return
        certain, hopeless = ", as far as can be told from here", "is known to be dead"
        if is_here(info.driver):
            certain, hopeless = ", which is alive", "hangs for good"
        raise RunConflict(
            f"run {info.run!r} is being executed by {describe(info.driver)}{certain}; wait for it, or cancel the "
            f"run; if that process {hopeless}, take it over",
            remedies=Remedy("resume", info.run, {"takeover": True}),
        )

    async def _start(
        self,
        values: Mapping[str, Any],
        run_id: str | None,
        config: dict[str, Any],
        caller: Caller,
        nodes: tuple[str, ...] | None = None,
        gate: str = "",
        source: Source | None = None,
        provenance: Provenance | None = None,
    ) -> Outcome:
        """Begin a new run: where the graph begins, or with `nodes`, past the gate before `gate`."""
        run, driver = self.new_run_id(run_id), this_owner(self._store)
        writer = await self._begun(values, run, config, driver, nodes)
        if source is not None:
            writer.record(source.reusing)
        if provenance is not None:
            writer.set_info(dataclasses.replace(writer.info, origin=provenance.text()))
            writer.record(provenance.record())
        if gate:
            _pass_gate(writer, gate, driver)
        if caller.observer is not None:
            keys = len(writer.run.root.cells)
            tell(caller.observer, Event("state.create", run, data={"keys": keys}))
            tell(caller.observer, Event("graph.start", run, data={"workflow": self.settings.graph.name}))
        return await self._drive(writer, self.settings, config, caller)

    async def submit(
        self, input: Any, run_id: str, config: dict[str, Any], place: Place, reuse: str | None = None
    ) -> None:
        """Store a new run for workers to drive."""
        source = None if reuse is None else self._source(reuse)
        values = as_mapping(input, "the input") if source is None else source.input(input)
        config = config if source is None else source.config(config)
        writer = await self._begun(values, run_id, config, "", None)
        if source is not None:
            writer.record(source.reusing)
        upcoming = [step.node for step in writer.run.active()]
        writer.record(records.RunEnded(RunStatus.QUEUED))
        writer.mark(encode_mark(0, [], list(dict.fromkeys(upcoming)), ""))
        writer.set_info(place.on(writer.info))
        await writer.flush_async()

    async def _begun(
        self,
        values: Mapping[str, Any],
        run: str,
        config: dict[str, Any],
        driver: str,
        nodes: tuple[str, ...] | None,
    ) -> Writer:
        """A new run, not yet stored: where the graph begins, or with `nodes`."""
        graph, codec = self.settings.graph, self._codec
        ops = graph.schema.initial(codec, values)
        cells, now = advance({}, ops), clock.time()
        if nodes is None:
            targets = await self._first_targets(State.view(cells, codec, run, "", "", now))
        else:
            targets = tuple(Target(node) for node in nodes if node != END)
        status, tags = RunStatus.RUNNING.value, tags_of(config)
        info = RunInfo(run, new_run_key(), graph.name, status, now, now, driver, tags)
        writer = Writer.create(self.journal, info, codec, durable=self._is_durable)
        encoded, outline = self._encoded_config(config), self.settings.outline
        writer.record(records.RunStarted(graph.name, tuple(ops), targets, encoded, outline, driver))
        return writer

    def _encoded_config(self, config: Mapping[str, Any]) -> bytes:
        if not config:
            return _NO_CONFIG
        check_config(
            config, Remedy(text="give plain data: None, booleans, numbers, texts, lists, tuples and dicts")
        )
        try:
            return self._codec.encode(dict(config))
        except CodecError as error:
            raise CodecError(f"config: {error}") from None

    async def _first_targets(self, state: State) -> tuple[Target, ...]:
        try:
            return await first_targets(self.settings.graph, state, self._codec)
        except HoldfastError:
            raise
        except Exception as error:
            raise ExecutionError(
                f"the first node cannot be chosen: {error}", state=state, cause=error
            ) from error

    def new_run_id(self, run_id: str | None) -> str:
        """The id of a new run: as given, if it can be one and is free, else a random one."""
        if run_id is None:
            return str(uuid.uuid4())
        if not isinstance(run_id, str) or not run_id.strip() or not run_id.isprintable():
            raise StateInvalid(f"a run id must be printable text, not {run_id!r}")
        if known := self._store.runs(run=run_id):
            remedies = [Remedy("resume", run_id)]
            if known[0].status == RunStatus.COMPLETED:
                remedies = [Remedy("read", run_id), Remedy("delete", run_id)]
            elif known[0].status == RunStatus.QUEUED:
                remedies = []
            elif self._is_driven(known[0]):
                remedies = [Remedy("cancel", run_id)]
            raise RunExists(
                f"run {run_id!r} exists in {self._store.url} and is {known[0].status}",
                remedies=[*remedies, Remedy("choose_run_id")],
                run_id=run_id,
            )
        return run_id

    def _is_driven(self, info: RunInfo) -> bool:
        """Whether some process executes a run now, as far as can be told from here."""
        return active_runs.find(self._store, info.run) is not None or has_owner(self._store, info)

    async def _from_file(
        self,
        path: Path,
        run_id: str | None,
        config: Mapping[str, Any] | None,
        caller: Caller,
        trust: bool | str = False,
    ) -> Outcome:
        found = files.read(path, self._codec)
        content, provenance = found.content, None
        if found.has_workflow and "flow" not in (config or {}):
            provenance = self._trusted_file(found, trust)
        nodes = tuple(content.get("next") or (content["node"],))
        for node in nodes:
            if node not in self.settings.graph.nodes and node != END:
                raise GraphChanged(f"{path} is to go on with step {node!r}: node not found: {node}")
        merged = {**content["config"], **(config or {})}
        if "flow" in (config or {}):
            merged = dict(config or {})  # With a workflow of one's own nothing else of the file's is taken.
        gate = str(content.get("gate", ""))
        return await self._start(content["state"], run_id, merged, caller, nodes, gate, provenance=provenance)

    def _trusted_file(self, found: files.CheckpointFile, trust: bool | str) -> Provenance:
        """Where a run comes from that a checkpoint file with a workflow in it begins; refused unless it is trusted."""
        from holdfast.engine.confirmation import admitted_file

        return admitted_file(found.disclosure(), trust, str(found.path))

    async def _fork(self, info: RunInfo, seq: int, options: ResumeOptions, caller: Caller) -> Outcome:
        """A new run from an older checkpoint of a run; that run is left as it is."""
        from holdfast.engine.time_travel.fork import begin_fork, forget_all, store_fork

        options.refuse_answers("an older checkpoint, where nothing has been asked yet")
        driver, run = this_owner(self._store), str(uuid.uuid4())
        forget = forget_all if options.update else None
        fork = begin_fork(
            self.journal,
            self._codec,
            info,
            seq,
            run,
            driver=driver,
            durable=self._is_durable,
            forget=forget,
        )
        writer = fork.writer
        self._confirmed(writer.info, writer.run, options)
        forked = dataclasses.replace(fork.base, info=writer.info, run=writer.run)
        reconciled = self.reconciled(forked, options, caller.observer)
        await store_fork(fork)
        return await self.go_on(forked, writer, reconciled, options, caller)

    async def go_on(
        self, loaded: Loaded, writer: Writer, reconciled: Reconciled, options: ResumeOptions, caller: Caller
    ) -> Outcome:
        codec, run, info, settings = self._codec, loaded.run, loaded.info, reconciled.settings
        config, driver = {**codec.decode(run.config), **(options.config or {})}, this_owner(self._store)
        info, confirmed = self._confirmed(info, writer.run, options)
        if confirmed is not None:
            writer.record(confirmed)
        for record in reconciled.records:
            writer.record(record)
        if options.update:
            from holdfast.engine.commands.subject import Subject

            Subject(info.run, writer.run, codec, settings.graph).warn_of_chosen_route()
        approve = options.approve and info.status == RunStatus.PAUSED
        encoded = self._encoded_config(config) if options.config else b""
        unsaved = active_runs.take_unsaved(self._store, info.run)
        if unsaved and run.status == RunStatus.RUNNING and run.driver == driver:
            # This process did not die: its last save failed. Nothing of what was running then crashed.
            writer.record(records.RunEnded(RunStatus.INTERRUPTED))
        writer.record(records.Resumed(driver, approve, encoded))
        running, now = RunStatus.RUNNING.value, clock.time()
        facts = dataclasses.replace(info, status=running, updated_at=now, driver=driver, due_at=None)
        writer.set_info(facts)
        policy = settings.policy
        if policy.on_save_error == "continue" or (
            caller.idle_timeout is not None and not policy.saves_wave(1)
        ):
            # Nobody else may take it for a run that still waits, and who cannot say that he has it does not.
            if caller.private:
                writer.flush()
            else:
                await writer.flush_async()
        if caller.observer is not None:
            node = run.root.last_node
            upcoming = ", ".join(step.node for step in run.active() if step.status != DONE)
            place = {"node": node, "run_id": info.run}
            tell(caller.observer, Event("checkpoint.load", info.run, node, place))
            place = {"checkpoint_node": node, "resume_node": upcoming, "run_id": info.run}
            tell(caller.observer, Event("checkpoint.resume", info.run, node, place))
        return await self._drive(
            writer, settings, config, caller, run.steps_done, options.if_interrupted, True
        )

    def reconciled(self, loaded: Loaded, options: ResumeOptions, observer: Observer | None) -> Reconciled:
        """What to go on with, after comparing the graph with the one that the run started with."""
        name = loaded.info.run
        reconciled = reconcile(self.settings, loaded.run, name, options)
        changes = list(reconciled.changes)
        if changes:
            more = f"; and {len(changes) - _TOLD} more" if len(changes) > _TOLD else ""
            told = "; ".join(changes[:_TOLD]) + more
            logger.warning("run %s goes on with a changed graph: %s", name, told)
            if observer is not None:
                tell(observer, Event("graph.changed", name, data={"changes": changes}))
        return reconciled

    async def _drive(
        self,
        writer: Writer,
        settings: Settings,
        config: Mapping[str, Any],
        caller: Caller,
        kept: int = 0,
        if_interrupted: str | None = None,
        resumed: bool = False,
    ) -> Outcome:
        drive = Execution(
            settings,
            writer,
            config=freeze(dict(config))[0],
            observer=caller.observer,
            private=caller.private,
            if_interrupted=if_interrupted,
            resumed=resumed,
            idle_timeout=caller.idle_timeout,
        )
        run = writer.info.run
        work, unfollow = drive.begun(), None
        try:
            if not active_runs.enter(self._store, run, drive):
                raise RunConflict(f"run {run!r} is being executed by this process already")
            caller.hold(drive)
            unfollow = self._surroundings.follow(writer) if self._surroundings.is_wanted else None
            status = await work
        finally:
            work.close()
            active_runs.leave(self._store, run, drive)
            if drive.saving.errors and writer.has_unsaved:
                active_runs.note_unsaved(self._store, run)
            if unfollow is not None:
                unfollow()
            janitor.ran(settings, writer.info.workflow)
        await self._see_to_messages(drive, status)
        unwanted = status == RunStatus.COMPLETED and settings.policy.preserve == "none"
        unwanted = unwanted or (status == RunStatus.FAILED and settings.policy.on_failure == "rollback")
        if unwanted and not has_kept(drive.run) and not needed_by(self.journal, writer.info):
            delete_run(self.journal, run)
        if drive.failure is not None:
            raise drive.failure
        return self._outcome(drive, status, kept)

    async def _see_to_messages(self, drive: Execution, status: RunStatus) -> None:
        """Obey what came in while the drive was ending: whoever sent it relied on the drive."""
        if status == RunStatus.COMPLETED or not drive.saving.writer.stored:
            return
        try:
            if drive.private:
                self._see_to(drive)
            else:
                await in_background(self._see_to, drive)
        except (StoreError, RunConflict) as error:
            logger.warning("run %s: its inbox could not be seen to: %s", drive.run_id, error)

    def _see_to(self, drive: Execution) -> None:
        if self._store.inbox(drive.run_id, drive.run.inbox_seen):
            from holdfast.engine.commands.control import process_inbox

            process_inbox(self.journal, drive.run_id, self._codec, self.settings.graph)

    def _outcome(self, drive: Execution, status: RunStatus, kept: int) -> Outcome:
        run, saving = drive.run, drive.saving
        warnings = [
            f"step {step_label(step)!r} failed and was passed over: {fault}" for step, fault in run.faults
        ]
        for join, arrived in run.root.waiting.items() if status == RunStatus.COMPLETED else ():
            node, *sources = join.split("/")
            missing = ", ".join(repr(base_name(source)) for source in sources if source not in arrived)
            warnings.append(
                f"{base_name(node)!r} did not run: it waits for {missing}, which did not run either"
            )
        if saving.errors:
            warnings.append(f"{saving.errors} checkpoint(s) could not be saved when they were due")
        if saving.writer.has_unsaved and saving.writer.stored:
            warnings.append("the end of this run could not be saved; a resume would repeat its last steps")
        reusable = drive.reusable
        stats = Stats(
            steps_run=drive.steps_run,
            steps_kept=kept,
            waves=run.root.waves,
            retries=drive.retries,
            seconds=run.seconds,
            commits=saving.writer.commits,
            bytes_written=saving.writer.bytes_written,
            save_errors=saving.errors,
            cost=drive.spent(),
            steps_reused=len(reusable.steps) if reusable is not None else 0,
            seconds_saved=reusable.seconds if reusable is not None else 0.0,
            cost_saved=reusable.cost if reusable is not None else 0.0,
        )
        pauses = public_pauses(run, self._codec)
        ident = saving.checkpoint_id
        reused = tuple(reusable.steps) if reusable is not None else ()
        return Outcome(status, saving.state(), drive.run_id, ident, pauses, stats, tuple(warnings), reused)

    def _as_it_stands(self, loaded: Loaded) -> Outcome:
        run, state = loaded.run, state_of(loaded, self.settings)
        cost = sum(spending.cost for spending in run.spending.values())
        stats = Stats(steps_kept=run.steps_done, waves=run.root.waves, seconds=run.seconds, cost=cost)
        pauses = public_pauses(run, self._codec)
        return Outcome(
            RunStatus(run.status), state, loaded.info.run, origin_of(state).checkpoint_id, pauses, stats
        )


class AppBase:
    """The base of `App`: a compiled graph on a store, and the runner of its runs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._runner = Runner(settings)

    @property
    def graph(self) -> Graph:
        """The graph that this app runs."""
        return self._settings.graph

    @property
    def name(self) -> str:
        """The workflow's name."""
        return self._settings.graph.name

    @property
    def settings(self) -> Settings:
        """What the graph was compiled with."""
        return self._settings

    @property
    def store(self) -> Store:
        """The store that this app's runs are kept in."""
        return self._settings.journal.store

    def _refuse_other_workflow(self, run_id: str) -> None:
        for info in self.store.runs(run=run_id):
            self._runner.refuse_other_workflow(info)

    def _caller(
        self, observer: ObserverLike, private: bool = False, hold: Callable[[Execution], None] = ignore
    ) -> Caller:
        own, given = self._settings.observer, resolve_observer(observer)
        both = MultiObserver(own, given) if own is not None and given is not None else own or given
        return Caller(both, private, hold)


def tags_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The words to find a run by that its config names; whatever else stands there is left alone."""
    tags = config.get("tags")
    if not isinstance(tags, (list, tuple)):
        return ()
    return tuple(tag for tag in tags if isinstance(tag, str) and tag.isprintable())


def state_of(loaded: Loaded, settings: Settings) -> State:
    """The state that a loaded run is in."""
    run, frame = loaded.run, loaded.run.root
    ident = checkpoint_id(loaded.info.key, run.saved_seq) if run.saved_seq else ""
    return State.view(frame.cells, settings.codec, loaded.info.run, ident, frame.last_node, run.updated_at)


def _pass_gate(writer: Writer, node: str, driver: str) -> None:
    """Record that a run waited before `node` and was taken up again: resuming from a gate's file passes it."""
    now = clock.time()
    for step in [step for step in writer.run.root.active.values() if step.node == node]:
        writer.record(records.Paused(f"{step.id}:before", "before", step.id, node, since=now))
    writer.record(records.Resumed(driver, approve=True))
