"""`App`: a compiled graph, ready to be run, resumed, watched and looked at."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.data.codec import Codec
from holdfast.data.frozen import freeze
from holdfast.data.ops import advance
from holdfast.data.schema import as_mapping
from holdfast.data.state import State
from holdfast.engine import files
from holdfast.engine.blocking import Blocking, StreamQueue
from holdfast.engine.drive import Drive, first_targets
from holdfast.engine.driver import active_runs, describe, is_alive, this_driver
from holdfast.engine.housekeeping import janitor
from holdfast.engine.inbox import cancel_message
from holdfast.engine.outcome import Figures, Outcome, public_pauses
from holdfast.engine.policy import one_of
from holdfast.engine.resume import (
    as_saved,
    changes_between,
    check_nodes,
    find_checkpoint,
    find_run,
    refuse_finished,
    take_answers,
)
from holdfast.engine.settings import Settings
from holdfast.errors import (
    AnswerRejected,
    CheckpointNotFound,
    ExecutionError,
    GraphChanged,
    HoldfastError,
    RunConflict,
    RunExists,
    StateInvalid,
)
from holdfast.events import Event, MultiObserver, Observer, resolve_observer, tell
from holdfast.journal import records
from holdfast.journal.checkpoints import Checkpoint, checkpoint_id, new_run_key, read_mark
from holdfast.journal.fold import EVERY_KEY, RunState, at_checkpoint
from holdfast.journal.journal import Loaded, Writer
from holdfast.journal.records import Target
from holdfast.journal.wire import encode_run
from holdfast.plan.draw import mermaid
from holdfast.plan.graph import IF_INTERRUPTED, Graph
from holdfast.stores.base import RunInfo, Store
from holdfast.values import END, RunStatus

Input = Mapping[str, Any] | Any | None
ObserverLike = Observer | str | Callable[[Event], object] | None


class App:
    """A compiled graph on a store. It holds no run: one app may drive any number of them at once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    # Running.

    def invoke(
        self,
        input: Input = None,
        *,
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        checkpoint: str | Path | None = None,
        observer: ObserverLike = None,
    ) -> Outcome:
        """Start a run and drive it until it completes, pauses or is cancelled.

        `checkpoint` resumes instead: a file of `save_checkpoint`, or whatever `resume` takes. A failure
        raises `ExecutionError`, Ctrl+C and SIGTERM save the run first. Works inside a running event loop.
        """
        return Blocking(
            lambda private, hold: self._invoke(input, run_id, config, checkpoint, observer, private, hold)
        ).run()

    async def ainvoke(
        self,
        input: Input = None,
        *,
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        checkpoint: str | Path | None = None,
        observer: ObserverLike = None,
    ) -> Outcome:
        """As `invoke`. Sync nodes and the store's syncs run in worker threads, so the loop is never blocked."""
        return await self._invoke(input, run_id, config, checkpoint, observer, False, _ignore)

    def resume(
        self,
        target: str | Path,
        answer: Any = None,
        *,
        answers: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        if_interrupted: str | None = None,
        on_change: str | None = None,
        remap: Mapping[str, str] | None = None,
        takeover: bool = False,
        observer: ObserverLike = None,
    ) -> Outcome:
        """Take a run up where it stopped. Finished steps do not run again.

        `target` is a run id, a checkpoint id, a workflow name (its latest unfinished run) or a checkpoint
        file. A checkpoint that is not the run's newest starts a new run from there.

        `answer` answers the only pause, `answers` several by name or id. `config` overrides the saved
        config, `update` changes the state first. `if_interrupted` overrides what the nodes say for steps
        that were running when the process died. `on_change` and `remap` say what to do about a graph that
        changed. `takeover` takes a run from a driver on another machine that is known to be dead.
        """
        options = _ResumeOptions(answer, answers, config, update, if_interrupted, on_change, remap, takeover)
        return Blocking(lambda private, hold: self._resume(target, options, observer, private, hold)).run()

    async def aresume(
        self,
        target: str | Path,
        answer: Any = None,
        *,
        answers: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        if_interrupted: str | None = None,
        on_change: str | None = None,
        remap: Mapping[str, str] | None = None,
        takeover: bool = False,
        observer: ObserverLike = None,
    ) -> Outcome:
        """As `resume`, in the running event loop."""
        options = _ResumeOptions(answer, answers, config, update, if_interrupted, on_change, remap, takeover)
        return await self._resume(target, options, observer, False, _ignore)

    def stream(
        self,
        input: Input = None,
        *,
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        checkpoint: str | Path | None = None,
        answers: Mapping[str, Any] | None = None,
    ) -> Iterator[Event]:
        """Start a run, or resume one with `checkpoint`, and yield its events as they happen.

        The run goes on in a thread of its own, however slowly the events are taken. Leaving the loop
        early saves and stops the run. A failure is raised after its `graph.fail` event.
        """
        queue = StreamQueue()

        def main(private: bool, hold: Callable[[Drive], None]) -> Coroutine[Any, Any, Outcome]:
            if checkpoint is not None and answers is not None:
                options = _ResumeOptions(None, answers, config)
                return self._resume(checkpoint, options, queue, private, hold)
            return self._invoke(input, run_id, config, checkpoint, queue, private, hold)

        yield from queue.drain(Blocking(main))

    async def astream(
        self,
        input: Input = None,
        *,
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        checkpoint: str | Path | None = None,
        answers: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Event]:
        """As `stream`, in the running event loop."""
        queue = StreamQueue()
        if checkpoint is not None and answers is not None:
            work = self._resume(checkpoint, _ResumeOptions(None, answers, config), queue, False, _ignore)
        else:
            work = self._invoke(input, run_id, config, checkpoint, queue, False, _ignore)
        async with contextlib.aclosing(queue.drain_async(work)) as events:
            async for event in events:
                yield event

    def cancel(self, run_id: str, reason: str = "cancelled") -> RunStatus:
        """Stop a run for good or until it is resumed. A run that is being driven, in any process, stops soon.

        Answers the status the run then has: `running` if its driver has still to notice.
        """
        store, journal = self._settings.journal.store, self._settings.journal
        info = journal.info(run_id)
        refuse_finished(info)
        drive = active_runs.find(store, run_id)
        if drive is not None:
            drive.request_stop(RunStatus.CANCELLED, reason)
            return RunStatus.RUNNING
        if info.status == RunStatus.RUNNING and is_alive(info.driver):
            store.post(run_id, cancel_message(reason))
            return RunStatus.RUNNING
        if info.status == RunStatus.CANCELLED:
            return RunStatus.CANCELLED
        loaded = _as_journalled(journal.load(info, self._settings.codec))
        refuse_finished(loaded.info)
        self._refuse_driven(loaded.info, takeover=False)
        writer = self._writer(loaded)
        writer.record(records.RunEnded(RunStatus.CANCELLED), time.time())
        writer.set_info(
            dataclasses.replace(info, status=RunStatus.CANCELLED.value, updated_at=time.time(), driver="")
        )
        writer.flush()
        return RunStatus.CANCELLED

    # Looking.

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

    def outline(self) -> dict[str, Any]:
        """The graph as plain data, with a fingerprint per node."""
        return self._settings.graph.outline()

    def draw(self) -> str:
        """The graph as Mermaid text."""
        return mermaid(self.outline())

    def runs(self, *, status: str | None = None, limit: int | None = None) -> list[RunInfo]:
        """This workflow's runs, last touched first."""
        wanted = None if status is None else [status]
        return self.store.runs(workflow=self.name, status=wanted, limit=limit)

    def get_state(self, run_id: str, *, checkpoint_id: str | None = None) -> State:
        """A run's state, now or as it was at a checkpoint."""
        journal, codec = self._settings.journal, self._settings.codec
        info = journal.info(run_id)
        upto = None
        if checkpoint_id is not None:
            found, upto = find_checkpoint(self.store, checkpoint_id)
            if found.run != run_id:
                raise CheckpointNotFound(
                    f"checkpoint not found: {checkpoint_id} (it is one of run {found.run!r})"
                )
        return _state_of(journal.load(info, codec, upto), self._settings)

    def checkpoints(self, run_id: str) -> list[Checkpoint]:
        """A run's checkpoints, oldest first."""
        info = self._settings.journal.info(run_id)
        return [read_mark(info.key, mark, run_id) for mark in reversed(self.store.marks(run_id))]

    def pauses(self, run_id: str) -> tuple[Any, ...]:
        """What a run waits for."""
        loaded = self._settings.journal.load(self._settings.journal.info(run_id), self._settings.codec)
        return public_pauses(loaded.run, self._settings.codec)

    def delete(self, run_id: str) -> bool:
        """Remove a run and all its checkpoints; `False` if there is none."""
        return self.store.delete(run_id)

    # Checkpoint files.

    def save_checkpoint(
        self,
        file_path: str | Path,
        state: Mapping[str, Any],
        node: str,
        config: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a state and the node to go on with into a pickle file, which `load_checkpoint` reads."""
        return files.save(Path(file_path), state, node, config or {})

    @classmethod
    def load_checkpoint(cls, file_path: str | Path) -> dict[str, Any]:
        """The content of a checkpoint file: state, node, config, timestamp, version.

        Only plain data and registered types are read; a file that names anything else is refused.
        """
        return files.load(Path(file_path))

    def resume_from_checkpoint(
        self, file_path: str | Path, config: Mapping[str, Any] | None = None
    ) -> Iterator[Event]:
        """Start a new run from a checkpoint file, beginning with the node saved in it; yields its events.

        `config` is laid over the saved one.
        """
        return self.stream(checkpoint=file_path, config=config)

    # How it is done.

    async def _invoke(
        self,
        input: Input,
        run_id: str | None,
        config: Mapping[str, Any] | None,
        checkpoint: str | Path | None,
        observer: ObserverLike,
        private: bool,
        hold: Callable[[Drive], None],
    ) -> Outcome:
        if checkpoint is not None:
            if input is not None:
                raise StateInvalid("give either an input or checkpoint=, not both; use resume(…, update=…)")
            if files.is_file(checkpoint):
                return await self._from_file(Path(checkpoint), run_id, config, observer, private, hold)
            if run_id is not None:
                raise StateInvalid("give either run_id= or checkpoint=, not both")
            return await self._resume(checkpoint, _ResumeOptions(config=config), observer, private, hold)
        values = as_mapping(input, "the input")
        return await self._start(values, run_id, dict(config or {}), observer, private, hold)

    async def _start(
        self,
        values: Mapping[str, Any],
        run_id: str | None,
        config: dict[str, Any],
        observer: ObserverLike,
        private: bool,
        hold: Callable[[Drive], None],
        nodes: tuple[str, ...] | None = None,
        gate: str = "",
    ) -> Outcome:
        settings = self._settings
        graph, codec = settings.graph, settings.codec
        run = self._new_run_id(run_id)
        ops = graph.schema.initial(codec, values)
        cells = advance({}, ops)
        now = time.time()
        listener = self._observer(observer)
        state = State.view(cells, codec, run, "", "", now)
        if nodes is None:
            try:
                targets = await first_targets(graph, state, codec)
            except HoldfastError:
                raise
            except Exception as error:
                raise ExecutionError(
                    f"the first node cannot be chosen: {error}", state=state, cause=error
                ) from error
        else:
            targets = tuple(Target(node) for node in nodes if node != END)
        driver = this_driver()
        info = RunInfo(run, new_run_key(), graph.name, RunStatus.RUNNING.value, now, now, driver)
        writer = Writer.create(settings.journal, info, codec, durable=settings.policy.durability == "full")
        writer.record(
            records.RunStarted(
                graph.name, tuple(ops), targets, codec.encode(config), settings.outline, driver
            ),
            now,
        )
        if gate:
            _pass_gate(writer, gate, driver)
        if listener is not None:
            tell(listener, Event("state.create", run, data={"keys": len(cells)}))
            tell(listener, Event("graph.start", run, data={"workflow": graph.name}))
        return await self._drive(writer, settings, config, listener, private, hold, kept=0)

    def _new_run_id(self, run_id: str | None) -> str:
        if run_id is None:
            return str(uuid.uuid4())
        if not isinstance(run_id, str) or not run_id.strip() or not run_id.isprintable():
            raise StateInvalid(f"a run id must be printable text, not {run_id!r}")
        if self.store.runs(run=run_id):
            raise RunExists(
                f"run {run_id!r} exists in {self.store.url}; resume it, or give the new run another run_id"
            )
        return run_id

    async def _resume(
        self,
        target: str | Path,
        options: _ResumeOptions,
        observer: ObserverLike,
        private: bool,
        hold: Callable[[Drive], None],
    ) -> Outcome:
        if files.is_file(target):
            options.refuse_answers("a checkpoint file")
            return await self._from_file(Path(target), None, options.config, observer, private, hold)
        options.check()
        settings, journal, codec = self._settings, self._settings.journal, self._settings.codec
        info, seq = find_run(journal.store, str(target))
        loaded = _as_journalled(journal.load(info, codec))
        info = loaded.info
        if seq is not None and seq != loaded.run.saved_seq:
            return await self._fork(info, seq, options, observer, private, hold)
        refuse_finished(info)
        self._refuse_driven(info, options.takeover)
        answered = take_answers(info, loaded.run, options.answer, options.answers, codec, settings.retention)
        listener = self._observer(observer)
        gates = any(pause.kind in ("before", "after") for pause in loaded.run.pauses.values())
        if info.status == RunStatus.PAUSED and not answered and not gates and not options.update:
            return self._outcome_of(loaded)
        settings = self._reconciled(loaded, options, listener)
        writer = self._writer(loaded)
        for record in answered:
            writer.record(record, time.time())
        return await self._go_on(loaded, writer, settings, options, listener, private, hold)

    async def _go_on(
        self,
        loaded: Loaded,
        writer: Writer,
        settings: Settings,
        options: _ResumeOptions,
        listener: Observer | None,
        private: bool,
        hold: Callable[[Drive], None],
    ) -> Outcome:
        codec, run, info = settings.codec, loaded.run, loaded.info
        now = time.time()
        config = codec.decode(run.config)
        if options.config:
            config = {**config, **options.config}
        if settings.outline != run.outline or options.remap:
            remap = tuple((options.remap or {}).items())
            writer.record(records.GraphChanged(settings.outline, remap), now)
        if options.update:
            for edit in _edits(settings.graph, run, options.update, codec):
                writer.record(edit, now)
        driver = this_driver()
        approve = info.status == RunStatus.PAUSED
        writer.record(records.Resumed(driver, approve, codec.encode(config) if options.config else b""), now)
        writer.set_info(
            dataclasses.replace(info, status=RunStatus.RUNNING.value, updated_at=now, driver=driver)
        )
        if listener is not None:
            node = run.root.last_node
            upcoming = [step.node for step in run.active() if step.status != "done"]
            tell(listener, Event("checkpoint.load", info.run, node, {"node": node, "run_id": info.run}))
            facts = {"checkpoint_node": node, "resume_node": ", ".join(upcoming), "run_id": info.run}
            tell(listener, Event("checkpoint.resume", info.run, node, facts))
        return await self._drive(
            writer, settings, config, listener, private, hold, run.steps_done, options.if_interrupted
        )

    async def _fork(
        self,
        info: RunInfo,
        seq: int,
        options: _ResumeOptions,
        observer: ObserverLike,
        private: bool,
        hold: Callable[[Drive], None],
    ) -> Outcome:
        """A new run from an older checkpoint of a run; that run is left as it is."""
        options.refuse_answers("an older checkpoint, where nothing has been asked yet")
        settings, journal, codec = self._settings, self._settings.journal, self._settings.codec
        loaded = journal.load(info, codec, seq)
        loaded.run = at_checkpoint(loaded.run)
        listener = self._observer(observer)
        settings = self._reconciled(loaded, options, listener)
        now, driver, run = time.time(), this_driver(), str(uuid.uuid4())
        own = RunInfo(run, new_run_key(), info.workflow, RunStatus.RUNNING.value, now, now, driver)
        writer = Writer.create(journal, own, codec, durable=settings.policy.durability == "full")
        body = encode_run(loaded.run, loaded.track, codec)
        writer.record(records.Forked(info.run, seq, body, loaded.run, driver, b""), now)
        return await self._go_on(
            dataclasses.replace(loaded, info=own, run=writer.run),
            writer,
            settings,
            options,
            listener,
            private,
            hold,
        )

    async def _from_file(
        self,
        path: Path,
        run_id: str | None,
        config: Mapping[str, Any] | None,
        observer: ObserverLike,
        private: bool,
        hold: Callable[[Drive], None],
    ) -> Outcome:
        content = files.load(path, self._settings.codec)
        nodes = tuple(content.get("next") or (content["node"],))
        for node in nodes:
            if node not in self.graph.nodes and node != END:
                raise GraphChanged(f"{path} is to go on with node {node!r}: node not found: {node}")
        merged = {**content["config"], **(config or {})}
        gate = str(content.get("gate", ""))
        return await self._start(content["state"], run_id, merged, observer, private, hold, nodes, gate)

    async def _drive(
        self,
        writer: Writer,
        settings: Settings,
        config: Mapping[str, Any],
        listener: Observer | None,
        private: bool,
        hold: Callable[[Drive], None],
        kept: int,
        if_interrupted: str | None = None,
    ) -> Outcome:
        drive = Drive(
            settings,
            writer,
            config=freeze(dict(config))[0],
            observer=listener,
            private=private,
            if_interrupted=if_interrupted,
        )
        run = writer.info.run
        if not active_runs.enter(self.store, run, drive):
            raise RunConflict(f"run {run!r} is being driven by this process already")
        hold(drive)
        try:
            status = await drive.drive()
        finally:
            active_runs.leave(self.store, run)
            janitor.ran(settings, writer.info.workflow)
        self._clean_up(settings, run, status)
        if status == RunStatus.FAILED:
            assert drive.failure is not None
            raise drive.failure
        return self._outcome(drive, status, kept)

    def _clean_up(self, settings: Settings, run: str, status: RunStatus) -> None:
        policy = settings.policy
        unwanted = status == RunStatus.COMPLETED and policy.preserve == "none"
        if unwanted or (status == RunStatus.FAILED and policy.on_failure == "rollback"):
            self.store.delete(run)

    def _outcome(self, drive: Drive, status: RunStatus, kept: int) -> Outcome:
        run = drive.run
        warnings = [f"step {step!r} failed and was passed over: {fault}" for step, fault in run.faults]
        if self._settings.policy.on_failure != "continue":
            warnings = []
        if drive.save_errors:
            warnings.append(f"{drive.save_errors} checkpoint(s) could not be saved when they were due")
        figures = Figures(
            steps_run=drive.steps_run,
            steps_kept=kept,
            waves=run.root.waves,
            retries=drive.retries,
            seconds=run.seconds,
            commits=drive.writer.commits,
            bytes_written=drive.writer.bytes_written,
            save_errors=drive.save_errors,
        )
        pauses = public_pauses(run, self._settings.codec)
        return Outcome(
            status, drive.state(), drive.run_id, drive.checkpoint_id, pauses, figures, tuple(warnings)
        )

    def _outcome_of(self, loaded: Loaded) -> Outcome:
        state = _state_of(loaded, self._settings)
        pauses = public_pauses(loaded.run, self._settings.codec)
        figures = Figures(
            steps_kept=loaded.run.steps_done, waves=loaded.run.root.waves, seconds=loaded.run.seconds
        )
        return Outcome(
            RunStatus(loaded.run.status), state, loaded.info.run, state.checkpoint_id, pauses, figures
        )

    def _writer(self, loaded: Loaded) -> Writer:
        durable = self._settings.policy.durability == "full"
        return Writer(self._settings.journal, loaded, self._settings.codec, durable=durable)

    def _observer(self, observer: ObserverLike) -> Observer | None:
        own, given = self._settings.observer, resolve_observer(observer)
        if own is not None and given is not None:
            return MultiObserver(own, given)
        return given if own is None else own

    def _refuse_driven(self, info: RunInfo, takeover: bool) -> None:
        if active_runs.find(self.store, info.run) is not None:
            raise RunConflict(f"run {info.run!r} is being driven by this process already")
        if info.status == RunStatus.RUNNING and is_alive(info.driver) and not takeover:
            raise RunConflict(
                f"run {info.run!r} is being driven by {describe(info.driver)}; wait for it, cancel the run, "
                "or, if that machine is known to be dead, resume with takeover=True"
            )

    def _reconciled(self, loaded: Loaded, options: _ResumeOptions, listener: Observer | None) -> Settings:
        """The settings to go on with, after comparing the graph with the one that the run started with."""
        settings, run = self._settings, loaded.run
        on_change = options.on_change or settings.on_change
        known = run.outline and run.outline != settings.outline
        changes = changes_between(run.outline, settings.outline) if known else []
        if changes:
            listed = "; ".join(changes)
            if on_change == "fail":
                raise GraphChanged(f"the graph changed since run {loaded.info.run!r} was saved: {listed}")
            if on_change == "use_saved":
                saved = as_saved(settings.graph, run.outline)
                return dataclasses.replace(settings, graph=saved, outline=run.outline)
            files.logger.warning("run %s goes on with a changed graph: %s", loaded.info.run, listed)
            if listener is not None:
                tell(listener, Event("graph.changed", loaded.info.run, data={"changes": changes}))
        check_nodes(loaded.info.run, run, settings.graph, options.remap or {})
        return settings


@dataclasses.dataclass(frozen=True, slots=True)
class _ResumeOptions:
    answer: Any = None
    answers: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None
    update: Mapping[str, Any] | None = None
    if_interrupted: str | None = None
    on_change: str | None = None
    remap: Mapping[str, str] | None = None
    takeover: bool = False

    def check(self) -> None:
        """Refuse values that mean nothing."""
        if self.if_interrupted is not None:
            one_of("if_interrupted", self.if_interrupted, IF_INTERRUPTED)
        if self.on_change is not None:
            one_of("on_change", self.on_change, ("warn", "fail", "use_saved"))

    def refuse_answers(self, what: str) -> None:
        """Refuse answers where there is nothing to answer."""
        if self.answer is not None or self.answers:
            raise AnswerRejected(f"{what} takes no answers")


def _edits(graph: Graph, run: RunState, update: Mapping[str, Any], codec: Codec) -> list[records.StateEdited]:
    """An update of the state from outside: of the run's own, and of what open sub-graphs share of it."""
    edits = []
    for frame in run.frames.values():
        own = not frame.path or frame.shared == EVERY_KEY
        values = {key: value for key, value in update.items() if own or key in frame.shared}
        schema = graph.at(frame.path).schema
        ops = schema.resolve(codec, frame.cells, values)
        ops += schema.reduce(codec, frame.cells, [ops])
        edits.append(records.StateEdited(frame.path, tuple(op for op in ops if op.kind != "reduce")))
    return edits


def _as_journalled(loaded: Loaded) -> Loaded:
    """A loaded run with the status and the driver that its journal tells.

    Its plain facts were read a moment earlier, and another driver may have taken the run up in between.
    """
    facts = dataclasses.replace(loaded.info, status=str(loaded.run.status), driver=loaded.run.driver)
    return dataclasses.replace(loaded, info=facts)


def _state_of(loaded: Loaded, settings: Settings) -> State:
    run, frame = loaded.run, loaded.run.root
    ident = checkpoint_id(loaded.info.key, run.saved_seq) if run.saved_seq else ""
    return State.view(frame.cells, settings.codec, loaded.info.run, ident, frame.last_node, run.updated_at)


def _pass_gate(writer: Writer, node: str, driver: str) -> None:
    """Record that a run waited before `node` and was taken up again: resuming from a gate's file passes it."""
    now = time.time()
    for step in [step for step in writer.run.root.active.values() if step.node == node]:
        writer.record(records.Paused(f"{step.id}:before", "before", step.id, node), now)
    writer.record(records.Resumed(driver, approve=True), now)


def _ignore(drive: Drive) -> None:
    return None
