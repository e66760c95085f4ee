"""Starting and executing runs: what happens before and after an execution."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import uuid
import weakref
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from holdfast import clock
from holdfast.engine.environment import Environment
from holdfast.engine.loop import Execution
from holdfast.engine.owner import active_runs, describe, has_owner, is_alive, is_here, this_owner
from holdfast.engine.settings import Caller, Outcome, Settings, Stats, ignore, public_pauses
from holdfast.engine.waves import first_targets
from holdfast.errors import (
    AnswerRejected,
    CodecError,
    ExecutionError,
    GraphChanged,
    HoldfastError,
    Remedy,
    RunConflict,
    RunExists,
    StateInvalid,
    StoreError,
    problem_of,
    suggestion,
)
from holdfast.events import Event, MultiObserver, ObserverLike, resolve_observer, tell
from holdfast.graph.graph import Graph, base_name
from holdfast.journal import records
from holdfast.journal.checkpoint_ids import checkpoint_id, encode_mark, new_run_key
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.records import Target
from holdfast.journal.run_state import RunState
from holdfast.journal.writer import Writer
from holdfast.names import LazyModule
from holdfast.state.codec import Codec
from holdfast.state.ops import advance, freeze
from holdfast.state.schema import as_mapping
from holdfast.state.state import State, StateT, state_view
from holdfast.stores.base import RunInfo, Store, is_in_memory
from holdfast.threads import in_background
from holdfast.values import END, RunStatus, step_label

if TYPE_CHECKING:
    from holdfast.engine import checkpoint_files, continuation, retention
    from holdfast.engine.commands import control
    from holdfast.engine.submission import Place
    from holdfast.engine.time_travel import reuse as reusing
    from holdfast.journal import copying
else:
    checkpoint_files = LazyModule("engine.checkpoint_files")
    continuation = LazyModule("engine.continuation")
    retention = LazyModule("engine.retention")
    control = LazyModule("engine.commands.control")
    reusing = LazyModule("engine.time_travel.reuse")
    copying = LazyModule("journal.copying")

logger = logging.getLogger("holdfast")

Main = Callable[[bool, Callable[[Execution], None]], Coroutine[Any, Any, Outcome]]

_NO_CONFIG = Codec().encode({})


class Runner:
    """Starts and executes the runs of one compiled graph."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.journal = settings, settings.journal
        self._codec, self._store = settings.codec, settings.journal.store
        self._is_durable = settings.policy.durability == "full"
        self.environment = Environment(settings.graph, settings.codec, settings.facts)

    async def invoke(
        self,
        input: Any,
        caller: Caller,
        *,
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        checkpoint: str | Path | None = None,
        answers: Mapping[str, Any] | None = None,
        reuse: str | None = None,
        if_exists: str = "fail",
    ) -> Outcome:
        """Start a run of an input, or go on from a checkpoint, with answers to what it waits for.

        A new run reuses what run `reuse` has finished, as far as it is the same. `if_exists` says what to do with a
        run that has the id already.
        """
        if checkpoint is not None:
            for name, given in (("reuse", reuse), ("if_exists", if_exists if if_exists != "fail" else None)):
                if given is not None:
                    raise StateInvalid(
                        f"give either {name}= or checkpoint=, not both: {name}= is for a new run"
                    )
            how = {"update": input, "config": config, "answers": answers}
            return await continuation.go_on_from(self, checkpoint, run_id, how, caller)
        if config is not None and not isinstance(config, Mapping):
            raise StateInvalid(f"config must be a mapping such as {{'name': value}}, not {config!r:.80}")
        if if_exists != "fail":
            existing = continuation.Existing.find(self, run_id, if_exists)
            if existing is not None:
                return await existing.outcome(input, config, answers, caller)
        if answers:
            raise AnswerRejected("a new run takes no answers")
        values, options, first = self.inputs(input, dict(config or {}), reuse)
        owner, name = this_owner(self._store), self.new_run_id(run_id, may_exist=if_exists != "fail")
        writer = await self.new_run(values, name, options, owner, first=first)
        if if_exists != "fail" and not await continuation.is_first(writer, caller):
            again: dict[str, Any] = {
                "config": config,
                "answers": answers,
                "reuse": reuse,
                "if_exists": if_exists,
            }
            return await self.invoke(input, caller, run_id=run_id, **again)
        return await self.start(writer, options, caller)

    def inputs(
        self, input: Any, config: dict[str, Any], reuse: str | None
    ) -> tuple[Mapping[str, Any], dict[str, Any], tuple[records.Record, ...]]:
        """Return the input and the config of a new run, and what it records first if it reuses another's results."""
        if reuse is None:
            return as_mapping(input, "the input"), config, ()
        source = reusing.ReuseSource.find(self.settings, reuse)
        return source.input(input), source.config(config), (source.reusing,)

    async def submit(
        self, input: Any, run_id: str, config: dict[str, Any], place: Place, reuse: str | None = None
    ) -> None:
        """Store a new run for workers to execute."""
        values, config, first = self.inputs(input, config, reuse)
        writer = await self.new_run(values, run_id, config, "", first=first)
        upcoming = [step.node for step in writer.run.active()]
        writer.record(records.RunEnded(RunStatus.QUEUED))
        writer.mark(encode_mark(0, [], list(dict.fromkeys(upcoming)), ""))
        writer.set_info(place.on(writer.info))
        await writer.flush_async()

    async def new_run(
        self,
        values: Mapping[str, Any],
        run: str,
        config: dict[str, Any],
        owner: str,
        *,
        nodes: tuple[str, ...] | None = None,
        first: tuple[records.Record, ...] = (),
    ) -> Writer:
        """Return a new run, not yet stored: where the graph begins, or with `nodes`."""
        graph, codec = self.settings.graph, self._codec
        if graph.check_config is not None:
            graph.check_config(config)
        ops = graph.schema.initial(codec, values)
        now = clock.time()
        if nodes is None:
            state = state_view(advance({}, ops), codec, run, "", "", now)
            try:
                targets = await first_targets(graph, state, codec)
            except HoldfastError:
                raise
            except Exception as error:
                problem = f"the first node cannot be chosen: {error}"
                raise ExecutionError(problem, state=state, cause=error) from error
        else:
            targets = tuple(Target(node) for node in nodes if node != END)
        status, tags = RunStatus.RUNNING.value, tags_of(config)
        info = RunInfo(run, new_run_key(), graph.name, status, now, now, owner, tags)
        writer = Writer.create(self.journal, info, codec, durable=self._is_durable)
        encoded, outline = self.encoded_config(config), self.settings.outline
        writer.record(records.RunStarted(graph.name, tuple(ops), targets, encoded, outline, owner))
        for record in first:
            writer.record(record)
        return writer

    async def start(self, writer: Writer, config: Mapping[str, Any], caller: Caller) -> Outcome:
        """Execute a new run."""
        if caller.observer is not None:
            run, keys = writer.info.run, len(writer.run.root.cells)
            tell(caller.observer, Event("state.create", run, data={"keys": keys}))
            tell(caller.observer, Event("graph.start", run, data={"workflow": self.settings.graph.name}))
        return await self.execute(writer, self.settings, config, caller)

    def writer(self, loaded: Loaded) -> Writer:
        """Return a writer that goes on where a loaded run ends."""
        return Writer(self.journal, loaded, self._codec, durable=self._is_durable)

    def encoded_config(self, config: Mapping[str, Any]) -> bytes:
        """Return a config as it is stored; refuse what cannot be stored."""
        if not config:
            return _NO_CONFIG
        plain = "give plain data: None, booleans, numbers, texts, lists, tuples and dicts"
        checkpoint_files.check_config(config, Remedy(text=plain))
        try:
            return self._codec.encode(dict(config))
        except CodecError as error:
            raise CodecError(f"config: {error}") from None

    def refuse_other_workflow(self, info: RunInfo) -> None:
        """Refuse a run of another workflow: its gates, code and state are not this graph's."""
        own = self.settings.graph.name
        if info.workflow != own:
            raise GraphChanged(
                f"run {info.run!r} is of workflow {info.workflow!r}, and this one is {own!r}; if the workflow "
                f"was renamed, give it its old name, {info.workflow!r}, to go on with the run"
            )

    def refuse_owned(self, info: RunInfo, takeover: bool = False) -> None:
        """Refuse a run that another process is executing, as far as can be seen from here."""
        if active_runs.find(self._store, info.run) is not None:
            raise self._own_already(info.run)
        if takeover or info.status != RunStatus.RUNNING or not is_alive(info.owner, self._store):
            return
        certain, hopeless = ", as far as this process can see", "is known to be dead"
        if is_here(info.owner):
            certain, hopeless = ", which is alive", "hangs for good"
        raise RunConflict(
            f"run {info.run!r} is being executed by {describe(info.owner)}{certain}; wait for it, or cancel the "
            f"run; if that process {hopeless}, take it over",
            remedies=Remedy("resume", info.run, {"takeover": True}),
        )

    def _own_already(self, run: str) -> RunConflict:
        return RunConflict(f"run {run!r} is being executed by this process already")

    def new_run_id(self, run_id: str | None, *, may_exist: bool = False) -> str:
        """Return the id of a new run: as given, if it is valid and free, else a random one."""
        if run_id is None:
            return str(uuid.uuid4())
        if not isinstance(run_id, str) or not run_id.strip() or not run_id.isprintable():
            raise StateInvalid(f"a run id must be printable text, not {run_id!r}")
        if not may_exist and (known := self._store.runs(run=run_id)):
            remedies = [Remedy("resume", run_id)]
            if known[0].status == RunStatus.COMPLETED:
                remedies = [Remedy("read", run_id), Remedy("delete", run_id)]
            elif known[0].status == RunStatus.QUEUED:
                remedies = []
            elif has_owner(self._store, known[0]):
                remedies = [Remedy("cancel", run_id)]
            raise RunExists(
                f"run {run_id!r} exists and is {known[0].status}",
                remedies=[*remedies, Remedy("choose_run_id")],
                run_id=run_id,
                store=self._store.url,
            )
        return run_id

    async def execute(
        self,
        writer: Writer,
        settings: Settings,
        config: Mapping[str, Any],
        caller: Caller,
        *,
        kept: int = 0,
        if_interrupted: str | None = None,
        resumed: bool = False,
    ) -> Outcome:
        """Execute a run until it stops; `kept` counts the steps that were finished before."""
        frozen = freeze(dict(config))[0]
        execution = Execution(
            settings, writer, caller, frozen, if_interrupted=if_interrupted, resumed=resumed
        )
        run = writer.info.run
        work, unfollow = execution.begun(), None
        try:
            if not active_runs.enter(self._store, run, execution):
                raise self._own_already(run)
            caller.hold(execution)
            unfollow = self.environment.follow(writer)
            status = await work
        finally:
            work.close()
            active_runs.leave(self._store, run, execution)
            if execution.saving.errors and writer.has_unsaved:
                active_runs.note_unsaved(self._store, run)
            if unfollow is not None:
                unfollow()
            if settings.retention is not None:
                retention.janitor.ran(settings, writer.info.workflow, run)
        await self._process_inbox(execution, status)
        self._delete_unwanted(execution, status)
        if execution.ending.failure is not None and caller.raises:
            raise execution.ending.failure
        return self._outcome(execution, status, kept)

    async def _process_inbox(self, execution: Execution, status: RunStatus) -> None:
        """Apply commands that came in while the execution was ending: their senders relied on it."""
        if status == RunStatus.COMPLETED or not execution.saving.writer.stored:
            return

        def process() -> None:
            if self._store.inbox(execution.run_id, execution.run.inbox_seen):
                control.process_inbox(self.journal, execution.run_id, self._codec, self.settings.graph)

        try:
            if execution.private:
                process()
            else:
                await in_background(process)
        except (StoreError, RunConflict) as error:
            logger.warning("run %s: its inbox could not be processed: %s", execution.run_id, error)

    def _delete_unwanted(self, execution: Execution, status: RunStatus) -> None:
        """Delete a run that the policy does not keep, unless somebody annotated or needs it."""
        policy, run = execution.settings.policy, execution.run
        unwanted = status == RunStatus.COMPLETED and policy.preserve == "none"
        unwanted = unwanted or (status == RunStatus.FAILED and policy.on_failure == "rollback")
        if not unwanted or any(annotation.keep for annotation in run.annotations.values()):
            return
        if not copying.needed_by(self.journal, execution.saving.writer.info):
            copying.delete_run(self.journal, execution.run_id)

    def _outcome(self, execution: Execution, status: RunStatus, kept: int) -> Outcome:
        run, saving, reused = execution.run, execution.saving, execution.reusable
        ahead = execution.speculation
        warnings = [*passed_over(run)]
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
        stats = Stats(
            steps_run=execution.steps_run,
            steps_kept=kept,
            waves=run.root.waves,
            retries=execution.results.retries,
            seconds=run.seconds,
            commits=saving.writer.commits,
            bytes_written=saving.writer.bytes_written,
            save_errors=saving.errors,
            cost=execution.spent(),
            steps_reused=0 if reused is None else len(reused.steps),
            seconds_saved=0.0 if reused is None else reused.seconds,
            cost_saved=0.0 if reused is None else reused.cost,
            steps_speculated=0 if ahead is None else ahead.taken,
            guesses_dropped=0 if ahead is None else ahead.dropped,
            seconds_gained=0.0 if ahead is None else ahead.gained,
        )
        return Outcome(
            status,
            saving.state(),
            execution.run_id,
            saving.checkpoint_id,
            public_pauses(run, self._codec, self.settings.retention),
            stats,
            tuple(warnings),
            tuple(reused.steps) if reused is not None else (),
            execution.ending.failure,
        )


def passed_over(run: RunState) -> tuple[str, ...]:
    """Return what failed in a run that went on without it."""
    return tuple(
        f"step {step_label(step)!r} failed and was passed over: {fault}" for step, fault in run.faults
    )


class AppBase(Generic[StateT]):
    """The base of `App`: a compiled graph on a store, and the runner of its runs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._runner = Runner(settings)
        self._runner.environment.app = weakref.ref(self)
        known_apps.add(self)

    @property
    def graph(self) -> Graph:
        """The graph that this app runs."""
        return self._settings.graph

    @property
    def name(self) -> str:
        """The workflow's name."""
        return self._settings.graph.name

    @property
    def store(self) -> Store:
        """The store that this app's runs are kept in."""
        return self._settings.journal.store

    def on_store(self, store: Store) -> Self:
        """Return this app on another store; the same app for its own."""
        own = self._settings
        if is_same_store(own.journal.store, store):
            return self
        journal = Journal(store, own.journal.seal)
        return type(self)(dataclasses.replace(own, journal=journal, is_memory_default=False))

    def _refuse_other_workflow(self, run_id: str) -> None:
        for info in self.store.runs(run=run_id):
            self._runner.refuse_other_workflow(info)

    def _refuse_other_node(self, path: str | Path, node: str) -> None:
        """Refuse to save a checkpoint file for a node that the graph does not have."""
        nodes = self._settings.graph.nodes
        if node not in nodes and node != END:
            raise StateInvalid(f"checkpoint {path}: node not found: {node}{suggestion(node, nodes)}")

    def _raise_or_report(self, error: HoldfastError, node: str) -> None:
        """Raise why a checkpoint file of a node was not saved, or log it and report it to the observer."""
        if self._settings.raise_exceptions:
            raise error
        logger.error("%s", error)
        if self._settings.observer is not None:
            facts = {"error": problem_of(error), "consecutive": 1}
            tell(self._settings.observer, Event("checkpoint.fail", "", node, facts))

    def _caller(
        self, observer: ObserverLike, private: bool = False, hold: Callable[[Execution], None] = ignore
    ) -> Caller:
        own, given = self._settings.observer, resolve_observer(observer)
        both = MultiObserver(own, given) if own is not None and given is not None else own or given
        return Caller(both, private, hold, raises=self._settings.raise_exceptions)

    def _main(
        self,
        observer: ObserverLike,
        work: Callable[[Caller], Coroutine[Any, Any, Outcome]],
        idle_timeout: float | None = None,
    ) -> Main:
        """Return the coroutine that does some work for a caller; if nothing is to be raised, it has an outcome.

        Workers, which have an `idle_timeout`, get every failure as an exception.
        """

        async def main(private: bool, hold: Callable[[Execution], None]) -> Outcome:
            caller = self._caller(observer, private, hold)
            if idle_timeout is not None:
                caller = dataclasses.replace(caller, idle_timeout=idle_timeout, raises=True)
            try:
                return await work(caller)
            except HoldfastError as error:
                if caller.raises:
                    raise
                return _failed(error, caller)

        return main


def _failed(error: HoldfastError, caller: Caller) -> Outcome:
    """Return the outcome of what could not be executed, or not to its end, and report it to the observers."""
    run_id, state = "", State()
    if isinstance(error, ExecutionError):
        run_id, state = error.run_id or "", State(error.state or {})
    logger.error("%s", error)
    if caller.observer is not None:
        tell(
            caller.observer,
            Event("graph.fail", run_id, data={"error": problem_of(error), "node": "", "state": state}),
        )
    return Outcome(RunStatus.FAILED, state, run_id, "", error=error)


class KnownApps:
    """The apps of this process: those that were registered, and, as long as they are in use, all others."""

    def __init__(self) -> None:
        self._registered: dict[str, AppBase] = {}
        self._numbers = itertools.count()
        self._in_use: weakref.WeakValueDictionary[int, AppBase] = weakref.WeakValueDictionary()

    def add(self, app: AppBase) -> None:
        """Know an app until nobody uses it any more."""
        self._in_use[next(self._numbers)] = app

    def register(self, app: AppBase) -> None:
        """Know an app from now on, as the one of its workflow."""
        self._registered[app.name] = app

    def registered(self, workflow: str) -> AppBase | None:
        """Return the app that was registered for a workflow."""
        return self._registered.get(workflow)

    def in_use(self, workflow: str, store: Store) -> list[AppBase]:
        """Return the apps of a workflow that are in use, oldest first: those on that store, or else all."""
        found = [app for app in self._in_use.values() if app.name == workflow]
        return [app for app in found if is_same_store(app.store, store)] or found

    def stores(self) -> list[Store]:
        """Return the stores that the apps are on."""
        apps = (*self._registered.values(), *self._in_use.values())
        return list({id(app.store): app.store for app in apps}.values())


known_apps = KnownApps()

AnyApp = TypeVar("AnyApp", bound=AppBase)


def register(app: AnyApp) -> AnyApp:
    """Make an app the one of its workflow in this process, and return it: `holdfast.resume(id)` finds it by that name.

    A later app with the same name replaces it. Apps that are in use are found without this.
    """
    if not isinstance(app, AppBase):
        raise HoldfastError(f"register takes a compiled graph, StateGraph(…).compile(…), not {app!r:.80}")
    known_apps.register(app)
    return app


def is_same_store(one: Store, other: Store) -> bool:
    """Return whether two stores are the same, or opened with the same URL."""
    return one is other or (one.url == other.url and not is_in_memory(one))


def tags_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the tags that a config names; whatever else stands there is left alone."""
    tags = config.get("tags")
    if not isinstance(tags, (list, tuple)):
        return ()
    return tuple(tag for tag in tags if isinstance(tag, str) and tag.isprintable())


def state_of(loaded: Loaded, settings: Settings) -> State:
    """Return the state that a loaded run is in."""
    run, frame = loaded.run, loaded.run.root
    ident = checkpoint_id(loaded.info.key, run.saved_seq) if run.saved_seq else ""
    return state_view(frame.cells, settings.codec, loaded.info.run, ident, frame.last_node, run.updated_at)
