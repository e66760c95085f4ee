"""`App`: a compiled graph, ready to be run, resumed, watched and looked at."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.engine import checkpoint_files as files
from holdfast.engine.blocking import Blocking, StreamQueue, run_blocking
from holdfast.engine.commands.app_methods import Steerable
from holdfast.engine.loop import Execution
from holdfast.engine.resume import ResumeOptions, find_checkpoint
from holdfast.engine.runner import Caller, ObserverLike, Runner, state_of
from holdfast.engine.settings import Outcome, Pause, Settings, one_of, public_pauses
from holdfast.engine.submission import DEFAULT_QUEUE, Place, When, id_of_key, requeue
from holdfast.engine.time_travel.app_methods import Accounting, RunningAgain, Travelling
from holdfast.errors import CheckpointNotFound, RunExists, StateInvalid
from holdfast.events import Event, MultiObserver, resolve_observer
from holdfast.graph.graph import Graph
from holdfast.journal.copying import delete_run
from holdfast.journal.run_state import Checkpoint, read_mark
from holdfast.state.state import State
from holdfast.stores.base import RunInfo, Store
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.engine.resume_plan import ResumePlan


Input = Mapping[str, Any] | Any | None


class App(Steerable, RunningAgain, Travelling, Accounting):
    """A compiled graph on a store. It holds no run: one app may drive any number of them at once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._runner = Runner(settings)

    # Running.

    def invoke(
        self,
        input: Input = None,
        *,
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        checkpoint: str | Path | None = None,
        reuse: str | None = None,
        observer: ObserverLike = None,
    ) -> Outcome:
        """Start a run and drive it until it completes, pauses or is cancelled.

        `checkpoint` resumes instead: a file of `save_checkpoint`, or whatever `resume` takes. A failure
        raises `ExecutionError`, Ctrl+C and SIGTERM save the run first. Works inside a running event loop.

        `reuse` names another run of this workflow: what it has finished is not run again where the node's code and
        its inputs are the same. Without an input that run's own is taken; its config holds where none is given.
        """
        return Blocking(
            lambda private, hold: self._runner.invoke(
                input, run_id, config, checkpoint, self._caller(observer, private, hold), reuse=reuse
            )
        ).run()

    async def ainvoke(
        self,
        input: Input = None,
        *,
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        checkpoint: str | Path | None = None,
        reuse: str | None = None,
        observer: ObserverLike = None,
    ) -> Outcome:
        """As `invoke`. Sync nodes and the store's syncs run in worker threads, so the loop is never blocked."""
        return await self._runner.invoke(
            input, run_id, config, checkpoint, self._caller(observer), reuse=reuse
        )

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
        rerun_changed: bool = False,
        rename_keys: Mapping[str, str] | None = None,
        plan: ResumePlan | str | None = None,
        trust: bool | str = False,
        observer: ObserverLike = None,
    ) -> Outcome:
        """Take a run up where it stopped. Finished steps do not run again.

        `target` is a run id, a checkpoint id, a workflow name (its latest unfinished run) or a checkpoint
        file. A checkpoint that is not the run's newest starts a new run from there.

        `answer` answers the only pause, `answers` several by name or id. `config` overrides the saved
        config, `update` changes the state first. `if_interrupted` overrides what the nodes say for steps
        that were running when the process died. `on_change` and `remap` say what to do about a graph that
        changed. `takeover` takes a run from a driver that is known to be dead or to hang; if it is alive
        after all, its next save is refused and it stops.

        `remap` renames nodes, `outer/old` in a sub-graph; `rename_keys` renames keys of the state. With `plan`, one of
        `plan_resume` or its id, exactly that is done, or, if it no longer holds, nothing: `PlanOutdated` says why.

        With `rerun_changed` the run, even a completed one, is taken back to before the first finished step that the
        graph at hand does otherwise; that step and what comes after it run again, and everything else is kept.

        A run from outside (`import_run`) is not resumed before somebody confirmed what it would run with: without
        `trust`, `ForeignRun` is raised, whose `disclosure` tells that. `trust` is `True`, or the error's `digest`,
        which confirms what was shown and nothing else.
        """
        options = ResumeOptions(
            answer,
            answers,
            config,
            update,
            if_interrupted,
            on_change,
            remap,
            takeover,
            rerun_changed=rerun_changed,
            rename_keys=rename_keys,
            plan=plan,
            trust=trust,
        )
        return Blocking(
            lambda private, hold: self._runner.resume(target, options, self._caller(observer, private, hold))
        ).run()

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
        rerun_changed: bool = False,
        rename_keys: Mapping[str, str] | None = None,
        plan: ResumePlan | str | None = None,
        trust: bool | str = False,
        observer: ObserverLike = None,
    ) -> Outcome:
        """As `resume`, in the running event loop."""
        options = ResumeOptions(
            answer,
            answers,
            config,
            update,
            if_interrupted,
            on_change,
            remap,
            takeover,
            rerun_changed=rerun_changed,
            rename_keys=rename_keys,
            plan=plan,
            trust=trust,
        )
        return await self._runner.resume(target, options, self._caller(observer))

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
        yield from queue.drain(
            Blocking(
                lambda private, hold: self._runner.invoke(
                    input, run_id, config, checkpoint, self._caller(queue, private, hold), answers
                )
            )
        )

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
        work = self._runner.invoke(input, run_id, config, checkpoint, self._caller(queue), answers)
        async with contextlib.aclosing(queue.drain_async(work)) as events:
            async for event in events:
                yield event

    def submit(
        self,
        input: Input = None,
        *,
        run_id: str | None = None,
        key: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = 0,
        when: When = None,
        config: Mapping[str, Any] | None = None,
        reuse: str | None = None,
    ) -> str:
        """Store a new run for workers to drive, and answer its id at once.

        Of the runs of a `queue` those of a higher `priority` begin first. `when` is a time, or a delay as
        `timedelta` or in seconds, before which it does not begin. Submitting again under the same `key`
        answers the id of the run that is there, whatever the input. For `reuse` see `invoke`.
        """
        place = Place.of(queue, priority, when)
        if key is None:
            name = self._runner.new_run_id(run_id)
        elif run_id is None:
            name = id_of_key(self.name, key)
        else:
            raise StateInvalid("give either run_id= or key=, not both")
        if key is not None and self.store.runs(run=name):
            return name
        try:
            run_blocking(lambda: self._runner.submit(input, name, dict(config or {}), place, reuse))
        except RunExists:
            if key is None:
                raise
        return name

    async def aexecute(
        self,
        run_id: str,
        *,
        idle_timeout: float = 1.0,
        observer: ObserverLike = None,
        hold: Callable[[Execution], None] | None = None,
    ) -> Outcome:
        """Drive a run of the fleet as far as it goes without waiting; what workers do.

        Gates stay closed. When all there is to do for longer than `idle_timeout` seconds is to wait, for a
        retry, a `ctx.sleep` or a question's timeout, the run is left to whoever takes it up when its time has
        come. `hold` is given the drive, so that it can be asked to stop.
        """
        caller = dataclasses.replace(self._caller(observer, hold=hold), idle_timeout=idle_timeout)
        return await self._runner.resume(run_id, ResumeOptions(approve=False), caller)

    def requeue(
        self,
        run_id: str,
        *,
        queue: str | None = None,
        priority: int | None = None,
        when: When = None,
        trust: bool | str = False,
    ) -> RunInfo:
        """Let workers go on with a run that stopped, past its gates; see `resume` for its steps, and for `trust`."""
        self._refuse_other_workflow(run_id)
        known = self._settings.journal.info(run_id)
        urgency = known.priority if priority is None else priority
        place = Place.of(queue or known.queue or DEFAULT_QUEUE, urgency, when)
        return requeue(self._settings.journal, run_id, place, codec=self._settings.codec, trust=trust)

    def plan_resume(
        self,
        target: str,
        answer: Any = None,
        *,
        answers: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        if_interrupted: str | None = None,
        on_change: str | None = None,
        remap: Mapping[str, str] | None = None,
        takeover: bool = False,
        rerun_changed: bool = False,
        rename_keys: Mapping[str, str] | None = None,
    ) -> ResumePlan:
        """What `resume(target, …)` with these options would do with every step, and why; it touches nothing."""
        options = ResumeOptions(
            answer,
            answers,
            config,
            update,
            if_interrupted,
            on_change,
            remap,
            takeover,
            rerun_changed=rerun_changed,
            rename_keys=rename_keys,
        )
        from holdfast.engine.resume_plan import plan_resume

        return plan_resume(self._settings, target, options)

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
        from holdfast.graph.drawing import mermaid

        return mermaid(self.outline())

    def runs(
        self, *, status: str | None = None, tag: str | None = None, limit: int | None = None
    ) -> list[RunInfo]:
        """This workflow's runs, last touched first; with `tag` those that are tagged with it."""
        if status is not None:
            one_of("status", status, tuple(RunStatus))
        wanted = None if status is None else [status]
        if tag is None:
            return self.store.runs(workflow=self.name, status=wanted, limit=limit)
        found = self.store.runs(workflow=self.name, status=wanted)
        return [info for info in found if tag in info.tags][:limit]

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
        return state_of(journal.load(info, codec, upto), self._settings)

    def checkpoints(self, run_id: str) -> list[Checkpoint]:
        """A run's checkpoints, oldest first."""
        info = self._settings.journal.info(run_id)
        return [read_mark(info.key, mark, run_id) for mark in reversed(self.store.marks(run_id))]

    def pauses(self, run_id: str) -> tuple[Pause, ...]:
        """What a run waits for."""
        loaded = self._settings.journal.load(self._settings.journal.info(run_id), self._settings.codec)
        return public_pauses(loaded.run, self._settings.codec)

    def delete(self, run_id: str) -> bool:
        """Remove a run and all its checkpoints; `False` if there is none. A run that is driven is refused."""
        self._refuse_other_workflow(run_id)
        for info in self.store.runs(run=run_id):
            self._runner.refuse_owned(info)
        return delete_run(self._settings.journal, run_id)

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

    def _caller(
        self, observer: ObserverLike, private: bool = False, hold: Callable[[Execution], None] | None = None
    ) -> Caller:
        own, given = self._settings.observer, resolve_observer(observer)
        both = MultiObserver(own, given) if own is not None and given is not None else own or given
        return Caller(both, private, hold) if hold is not None else Caller(both, private)
