"""`App`: a compiled graph, ready to be run, resumed, watched, commanded and looked at."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from holdfast.engine.blocking import (
    AsyncEventStream,
    Blocking,
    EventStream,
    StreamQueue,
    is_watched,
    run_blocking,
)
from holdfast.engine.loop import Execution
from holdfast.engine.runner import Main, state_of
from holdfast.engine.settings import Outcome, Pause, ignore, one_of
from holdfast.engine.time_travel.app import TimeTravelApp
from holdfast.errors import CheckpointNotFound, HoldfastError, RunExists, StateInvalid
from holdfast.events import Event, MultiObserver, ObserverLike, in_dialect
from holdfast.graph.graph import mermaid
from holdfast.journal.checkpoint_ids import Checkpoint, decode_checkpoint
from holdfast.names import LazyModule
from holdfast.state.state import StateT
from holdfast.stores.base import RunInfo
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.engine import checkpoint_files, continuation, resume, resume_plan, submission, text_streams
    from holdfast.engine.commands import control
    from holdfast.engine.commands.control import Duration, Receipt, Step, Update
    from holdfast.engine.commands.inbox import RunCommand
    from holdfast.engine.resume import ResumeKeywords
    from holdfast.engine.resume_plan import ResumePlan
    from holdfast.engine.submission import When
    from holdfast.journal import copying
    from holdfast.views import live, notebook
else:
    # What a run that is only started does without is loaded when it is first used.
    checkpoint_files, continuation = LazyModule("engine.checkpoint_files"), LazyModule("engine.continuation")
    resume, resume_plan = LazyModule("engine.resume"), LazyModule("engine.resume_plan")
    submission, control = LazyModule("engine.submission"), LazyModule("engine.commands.control")
    copying, text_streams = LazyModule("journal.copying"), LazyModule("engine.text_streams")
    live, notebook = LazyModule("views.live"), LazyModule("views.notebook")


Input = Mapping[str, Any] | Any | None


class App(TimeTravelApp[StateT]):
    """A compiled graph on a store. It holds no run: one app may execute any number of them at once.

    `App[MyState]` is the app of `StateGraph(MyState)`: type checkers know its states as that TypedDict.
    """

    # Running.

    def invoke(
        self,
        input: Input = None,
        *,
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        checkpoint: str | Path | None = None,
        reuse: str | None = None,
        if_exists: str = "fail",
        observer: ObserverLike = None,
        progress: bool | None = None,
    ) -> Outcome[StateT]:
        """Start a run and execute it until it completes, pauses or is cancelled.

        `if_exists` says what to do if a run of this id exists: "fail" raises `RunExists`. "resume" continues it if it
        stopped, also by a crash; one that is completed, cancelled or waits is returned as it is, and runs nothing.
        "return" returns every run as it is. An input has to be the one that the run began with, or `None`.

        `checkpoint` resumes instead: a file of `save_checkpoint`, or whatever `resume` takes; an input is then an
        update of the saved state. A failure raises `ExecutionError`, or, if the graph was compiled with
        `raise_exceptions=False`, is an outcome with an `error`. Ctrl+C and SIGTERM save the run first. Works inside
        a running event loop.

        `progress` shows the steps while they run, in a terminal or a notebook and nowhere else. Without a word a run
        that takes longer than half a second is shown if there is no observer; HOLDFAST_PROGRESS=0 turns that off.

        `reuse` names another run of this workflow: what it has finished is not run again where the node's code and
        its inputs are the same. Without an input that run's own is taken; its config holds where none is given.
        """
        how: dict[str, Any] = {"run_id": run_id, "config": config, "checkpoint": checkpoint, "reuse": reuse}
        how["if_exists"] = if_exists
        if not is_watched(progress, observer):
            return Blocking(self._invocation(input, observer, **how)).run()
        with live.shown(self, observer, at_once=progress is not None) as both:
            return Blocking(self._invocation(input, both, **how)).run()

    async def ainvoke(
        self,
        input: Input = None,
        *,
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        checkpoint: str | Path | None = None,
        reuse: str | None = None,
        if_exists: str = "fail",
        observer: ObserverLike = None,
        progress: bool | None = None,
    ) -> Outcome[StateT]:
        """As `invoke`. Sync nodes and the store's syncs run in worker threads, so the loop is never blocked."""
        how: dict[str, Any] = {"run_id": run_id, "config": config, "checkpoint": checkpoint, "reuse": reuse}
        how["if_exists"] = if_exists
        return await self._awaited(lambda both: self._invocation(input, both, **how), observer, progress)

    def stream(
        self,
        input: Input = None,
        *,
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        checkpoint: str | Path | None = None,
        answers: Mapping[str, Any] | None = None,
        if_exists: str = "fail",
        observer: ObserverLike = None,
        dialect: str | None = None,
    ) -> EventStream:
        """Start a run, or resume one with `checkpoint`, and yield its events as they happen.

        The run starts when the first event is taken; a stream from which none is ever taken runs nothing, and warns.
        The run goes on in a thread of its own, however slowly the events are taken. Leaving the loop early saves and
        stops the run. Nothing is shown of it: that is the caller's, who has the events. A failure is raised
        after its `graph.fail` event, or, with `raise_exceptions=False`, is that event and nothing else. `stats`
        of the stream counts its events. A run that `if_exists` (see `invoke`) returns as it is has no events.

        `dialect` names the events as another system does: "task" (`task_start`, `checkpoint_saved`), "agent"
        (`agent_started`, `route_taken`) or "state" (`state`, `interrupt`, `final`); see `holdfast.events.DIALECTS`.
        """
        queue = StreamQueue()
        both = self._both(queue, observer, dialect)
        how: dict[str, Any] = {"run_id": run_id, "config": config, "checkpoint": checkpoint}
        how["if_exists"] = if_exists
        events = queue.drain(Blocking(self._invocation(input, both, answers=answers, **how)))
        return EventStream(events, queue)

    def astream(
        self,
        input: Input = None,
        *,
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        checkpoint: str | Path | None = None,
        answers: Mapping[str, Any] | None = None,
        if_exists: str = "fail",
        observer: ObserverLike = None,
        dialect: str | None = None,
    ) -> AsyncEventStream:
        """As `stream`, in the running event loop."""
        queue = StreamQueue()
        both = self._both(queue, observer, dialect)
        how: dict[str, Any] = {"run_id": run_id, "config": config, "checkpoint": checkpoint}
        how["if_exists"] = if_exists
        return AsyncEventStream(queue, self._invocation(input, both, answers=answers, **how))

    def follow(self, run_id: str, *, after: str | None = None) -> Iterator[Event]:
        """Yield what the steps of a run stream (`ctx.stream`), as `node.stream` events, until its execution ends.

        It reads a run that this process executes, from any thread, beside `stream` and other readers. `after` is the
        `cursor` of the last event that was read: what follows it comes without a gap and without repeats. Without one
        the text is read from its beginning. Of each run the last million characters or 10,000 pieces are kept, and of
        runs that have ended the last few: where something is gone, `StreamDropped` says so.
        """
        return text_streams.follow(self._settings, run_id, after)

    def afollow(self, run_id: str, *, after: str | None = None) -> AsyncIterator[Event]:
        """As `follow`, in the running event loop."""
        return text_streams.afollow(self._settings, run_id, after)

    def _both(self, queue: StreamQueue, observer: ObserverLike, dialect: str | None) -> ObserverLike:
        own = in_dialect(queue, self._settings.dialect if dialect is None else dialect)
        return own if observer is None else MultiObserver(own, observer)

    def _invocation(self, input: Input, observer: ObserverLike, **how: Any) -> Main:
        return self._main(observer, lambda caller: self._runner.invoke(input, caller, **how))

    def resume(
        self,
        target: str | Path,
        answer: Any = None,
        *,
        answers: Mapping[str, Any] | None = None,
        observer: ObserverLike = None,
        progress: bool | None = None,
        **options: Unpack[ResumeKeywords],
    ) -> Outcome[StateT]:
        """Resume a run where it stopped. Finished steps do not run again.

        `target` is a run id, a checkpoint id, a workflow name (its latest unfinished run) or a checkpoint
        file. A checkpoint that is not the run's newest starts a new run from there.

        `answer` answers the only pause, `answers` several by name or id. `config` overrides the saved
        config, `update` changes the state first. `if_interrupted` overrides what the nodes say for steps
        that were running when the process died. `on_change` and `remap` say what to do about a graph that
        changed. `takeover` takes a run from an owner that is known to be dead or to hang; if it is alive
        after all, its next save is refused and it stops.

        `remap` renames nodes, `outer/old` in a sub-graph; `rename_keys` renames keys of the state. With `plan`, one of
        `plan_resume` or its id, exactly that is done, or, if it no longer holds, nothing: `PlanOutdated` says why.

        With `rerun_changed` the run, even a completed one, is taken back to before the first finished step that the
        graph at hand does otherwise; that step and what comes after it run again, and everything else is kept.

        A run from outside (`import_run`) is not resumed before somebody confirmed what it would run with: without
        `trust`, `ForeignRun` is raised, whose `disclosure` tells that. `trust` is `True`, or the error's `digest`,
        which confirms what was shown and nothing else. `progress` is as for `invoke`.
        """
        given: dict[str, Any] = {"answer": answer, "answers": answers, **options}
        if not is_watched(progress, observer):
            return Blocking(self._resumption(target, observer, **given)).run()
        with live.shown(self, observer, at_once=progress is not None) as both:
            return Blocking(self._resumption(target, both, **given)).run()

    async def aresume(
        self,
        target: str | Path,
        answer: Any = None,
        *,
        answers: Mapping[str, Any] | None = None,
        observer: ObserverLike = None,
        progress: bool | None = None,
        **options: Unpack[ResumeKeywords],
    ) -> Outcome[StateT]:
        """As `resume`, in the running event loop."""
        given: dict[str, Any] = {"answer": answer, "answers": answers, **options}
        return await self._awaited(lambda both: self._resumption(target, both, **given), observer, progress)

    async def _awaited(
        self, main: Callable[[ObserverLike], Main], observer: ObserverLike, progress: bool | None
    ) -> Outcome[StateT]:
        """Return the outcome, and show the steps if somebody looks at them; a view begins and ends in a thread."""
        if not is_watched(progress, observer):
            return await main(observer)(False, ignore)
        view = contextlib.ExitStack()

        def begin() -> ObserverLike:
            return view.enter_context(live.shown(self, observer, at_once=progress is not None))

        beginning = asyncio.ensure_future(asyncio.to_thread(begin))
        try:
            return await main(await asyncio.shield(beginning))(False, ignore)
        finally:
            await asyncio.wait([beginning])
            await asyncio.to_thread(view.close)

    async def aexecute(
        self,
        run_id: str,
        *,
        idle_timeout: float = 1.0,
        observer: ObserverLike = None,
        hold: Callable[[Execution], None] = ignore,
    ) -> Outcome[StateT]:
        """Execute a run of the fleet as far as it goes without waiting; what workers do.

        Gates stay closed. When all there is to do for longer than `idle_timeout` seconds is to wait, for a
        retry, a `ctx.sleep` or a question's timeout, the run is left until its time has come. `hold` is
        given the execution, so that it can be asked to stop.
        """
        return await self._resumption(run_id, observer, idle_timeout, approve=False)(False, hold)

    def _resumption(
        self, target: str | Path, observer: ObserverLike, idle_timeout: float | None = None, **options: Any
    ) -> Main:
        chosen = resume.ResumeOptions(**options)
        return self._main(
            observer, lambda caller: continuation.resume(self._runner, target, chosen, caller), idle_timeout
        )

    def plan_resume(
        self,
        target: str,
        answer: Any = None,
        *,
        answers: Mapping[str, Any] | None = None,
        **options: Unpack[ResumeKeywords],
    ) -> ResumePlan:
        """Return what `resume(target, …)` with these options would do with every step, and why; touch nothing."""
        return resume_plan.plan_resume(
            self._settings, target, resume.ResumeOptions(answer, answers, **options)
        )

    def submit(
        self,
        input: Input = None,
        *,
        run_id: str | None = None,
        key: str | None = None,
        queue: str = "default",
        priority: int = 0,
        when: When = None,
        config: Mapping[str, Any] | None = None,
        reuse: str | None = None,
        if_exists: str = "fail",
    ) -> str:
        """Store a new run for workers to execute, and return its id at once.

        Of the runs of a `queue` those of a higher `priority` begin first. `when` is a time, or a delay as
        `timedelta` or in seconds, before which it does not begin. Submitting again under the same `key`
        returns the id of the run that is there, whatever the input. For `reuse` see `invoke`. If a run of the `run_id`
        exists, `if_exists="resume"` queues it again if it failed or was interrupted, and "return" only returns its id.
        """
        place = submission.Place.of(queue, priority, when)
        if key is not None and run_id is not None:
            raise StateInvalid("give either run_id= or key=, not both")
        if if_exists != "fail" and (
            found := continuation.Existing.find(self._runner, run_id, if_exists, key=key)
        ):
            return found.submitted(input, place)
        name = submission.id_of_key(self.name, key) if key is not None else None
        if name is not None and self.store.runs(run=name):
            return name
        name = name or self._runner.new_run_id(run_id, may_exist=if_exists != "fail")
        try:
            run_blocking(lambda: self._runner.submit(input, name, dict(config or {}), place, reuse))
        except RunExists:
            if key is None and if_exists == "fail":
                raise
        return name

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
        place = submission.Place.of(queue or known.queue or submission.DEFAULT_QUEUE, urgency, when)
        return submission.requeue(
            self._settings.journal, run_id, place, codec=self._settings.codec, trust=trust
        )

    # Commands to runs, in whatever process they execute.

    def cancel(self, run_id: str, reason: str = "cancelled", *, by: str = "") -> RunStatus:
        """Stop a run for good or until it is resumed. A run that is executing, in any process, stops soon.

        Return the status the run then has: `running` if its owner has still to notice.
        """
        return self._stop(run_id, "cancel", reason, by)

    def pause(self, run_id: str, reason: str = "paused", *, by: str = "") -> RunStatus:
        """Let a run that is executing, in any process, save itself and stop, so that `resume` goes on with it."""
        return self._stop(run_id, "pause", reason, by)

    def _stop(self, run_id: str, kind: str, reason: str, by: str) -> RunStatus:
        self._refuse_other_workflow(run_id)
        settings = self._settings
        return control.stop(settings.journal, run_id, kind, reason, by=by, codec=settings.codec)

    def answer(
        self,
        run_id: str,
        answer: Any = None,
        *,
        answers: Mapping[str, Any] | None = None,
        by: str = "",
        timeout: float = 2.0,
    ) -> Receipt:
        """Answer what a run waits for without executing it, and return what became of the answer.

        If nobody executes the run, it is `applied` now, and the next `resume` goes on with it. Otherwise the process
        that does takes it, or refuses it if somebody else was faster; if that is not known within `timeout` seconds,
        the receipt is `waiting`, and `answer_status(receipt.handle)` tells later. Answers that do not fit raise.
        """
        self._refuse_other_workflow(run_id)
        journal, codec, retention = self._settings.journal, self._settings.codec, self._settings.retention
        own: dict[str, Any] = {"codec": codec, "retention": retention}
        return control.answer(journal, run_id, answer, answers=answers, by=by, timeout=timeout, **own)

    def answer_status(self, handle: str) -> Receipt:
        """Return what became of an answer that was `waiting`, by its handle; also long after, and in any process."""
        return control.find_receipt(self._settings.journal, handle, self._settings.codec)

    def extend(
        self, run_id: str, duration: Duration = 86_400.0, *, pause: str = "", by: str = "", reason: str = ""
    ) -> str:
        """Let the open questions of a run, or the one with that name or id, take an answer for so long from now.

        This works for expired questions, too. `duration` is a `timedelta` or seconds. Return as `edit` does.
        """
        return self._send(run_id, control.extend(self.pauses(run_id), duration, pause), by, reason, 0.0)

    def edit(
        self, run_id: str, update: Update, *, by: str = "", reason: str = "", timeout: float = 0.0
    ) -> str:
        """Change the state of a run, as its reducers take the update; a tuple as key is a place inside a value.

        Like every command this is applied between two steps, by the process that executes the run, or at once if
        none does, and the journal tells who asked for it and why. Return the status that the run then has, or
        `"asked"` if it is not applied within `timeout` seconds. What cannot be done raises `CommandRefused` with the
        reason, if it is known by then.
        """
        return self._send(run_id, control.edit(update, self._settings.codec), by, reason, timeout)

    def skip(self, run_id: str, step: str, *, by: str = "", reason: str = "", timeout: float = 0.0) -> str:
        """Skip a step that is ready, waits, failed or is in doubt; return as `edit` does.

        `step` is a step's id, or a node's name, which means all its steps; `outer/inner` in a sub-graph.
        """
        return self._send(run_id, control.skip(step), by, reason, timeout)

    def modify(
        self, run_id: str, step: str, update: Update, *, by: str = "", reason: str = "", timeout: float = 0.0
    ) -> str:
        """Let a step that has not begun see other values than the state has; return as `edit` does."""
        return self._send(run_id, control.modify(step, update, self._settings.codec), by, reason, timeout)

    def inject(
        self,
        run_id: str,
        steps: Step | Iterable[Step],
        *,
        frame: str = "",
        follow: bool = False,
        by: str = "",
        reason: str = "",
        timeout: float = 0.0,
    ) -> str:
        """Run further steps now: nodes' names or `Send`s; return as `edit` does.

        They join the steps that are about to run, or are running. Their updates count, and nothing follows them,
        unless `follow` says that what usually does shall. `frame` is the sub-graph they are of.
        """
        command = control.inject(steps, self._settings.codec, frame=frame, follow=follow)
        return self._send(run_id, command, by, reason, timeout)

    def replan(
        self,
        run_id: str,
        steps: Step | Iterable[Step],
        *,
        frame: str = "",
        follow: bool = True,
        by: str = "",
        reason: str = "",
        timeout: float = 0.0,
    ) -> str:
        """Run these steps instead of all that are neither running nor finished; return as `edit` does.

        Nothing follows what is running then, so that without steps the run ends after it.
        """
        command = control.replan(steps, self._settings.codec, frame=frame, follow=follow)
        return self._send(run_id, command, by, reason, timeout)

    def _send(self, run_id: str, command: RunCommand, by: str, reason: str, timeout: float) -> str:
        self._refuse_other_workflow(run_id)
        how: dict[str, Any] = {"codec": self._settings.codec, "graph": self._settings.graph}
        journal = self._settings.journal
        return control.send(journal, run_id, command, by=by, reason=reason, timeout=timeout, **how)

    # Looking.

    def outline(self) -> dict[str, Any]:
        """Return the graph as plain data, with a fingerprint per node."""
        return self._settings.graph.outline()

    def _repr_html_(self) -> str:
        return notebook.graph_html(self)

    def draw(self) -> str:
        """Return the graph as Mermaid text."""
        return mermaid(self.outline())

    def runs(
        self, *, status: str | None = None, tag: str | None = None, limit: int | None = None
    ) -> list[RunInfo]:
        """Return this workflow's runs, last touched first; with `tag` those that are tagged with it."""
        if status is not None:
            one_of("status", status, tuple(RunStatus))
        wanted = None if status is None else [status]
        if tag is None:
            return self.store.runs(workflow=self.name, status=wanted, limit=limit)
        found = self.store.runs(workflow=self.name, status=wanted)
        return [info for info in found if tag in info.tags][:limit]

    def get_state(self, run_id: str, *, checkpoint_id: str | None = None) -> StateT:
        """Return a run's state, now or as it was at a checkpoint."""
        journal, codec = self._settings.journal, self._settings.codec
        info = journal.info(run_id)
        upto = None
        if checkpoint_id is not None:
            found, upto = resume.find_checkpoint(self.store, checkpoint_id)
            if found.run != run_id:
                raise CheckpointNotFound(
                    f"checkpoint not found: {checkpoint_id} (it is one of run {found.run!r})"
                )
        return cast(StateT, state_of(journal.load(info, codec, upto), self._settings))

    def checkpoints(self, run_id: str) -> list[Checkpoint]:
        """Return a run's checkpoints, oldest first."""
        info = self._settings.journal.info(run_id)
        return [
            decode_checkpoint(info.key, stored, run_id) for stored in reversed(self.store.checkpoints(run_id))
        ]

    def pauses(self, run_id: str) -> tuple[Pause, ...]:
        """Return what a run waits for."""
        own = self._settings
        return control.waiting(own.journal, run_id, codec=own.codec, retention=own.retention)

    def delete(self, run_id: str) -> bool:
        """Remove a run and all its checkpoints; `False` if there is none. A run that is executing is refused."""
        self._refuse_other_workflow(run_id)
        for info in self.store.runs(run=run_id):
            self._runner.refuse_owned(info)
        return copying.delete_run(self._settings.journal, run_id)

    # Checkpoint files.

    def save_checkpoint(
        self,
        file_path: str | Path,
        state: Mapping[str, Any],
        node: str,
        config: Mapping[str, Any] | None = None,
    ) -> Path | None:
        """Write a state and the node to go on with into a pickle file, which `load_checkpoint` reads; return its path.

        A node that the graph does not have is refused. What cannot be written raises an error, or, with
        `raise_exceptions=False`, is logged, reported as the event `checkpoint.fail`, and `None` is returned.
        """
        try:
            self._refuse_other_node(file_path, node)
            return checkpoint_files.save(Path(file_path), state, node, config or {})
        except HoldfastError as error:
            self._raise_or_report(error, node)
            return None

    @classmethod
    def load_checkpoint(cls, file_path: str | Path) -> dict[str, Any]:
        """Return the content of a checkpoint file: state, node, config, timestamp, version.

        Only plain data and registered types are read; a file that names anything else is refused.
        """
        return checkpoint_files.load(Path(file_path))

    def resume_from_checkpoint(
        self, file_path: str | Path, config: Mapping[str, Any] | None = None, *, update: Input = None
    ) -> Any:
        """Continue from a checkpoint: an id runs at once and returns the `Outcome`, a file yields events.

        For an id see `resume`. A checkpoint file, named by its path, starts a new run with the node saved in it; the
        run starts when the first event is taken. `config` is laid over the saved one, and
        `update` changes the saved state first, by its reducers.
        """
        if not isinstance(file_path, (str, os.PathLike)):
            raise HoldfastError(f"a checkpoint is found by its id or its file, not by {file_path!r:.80}")
        is_file = os.path.isfile(file_path)  # noqa: PTH113 - whatever the name is, this does not raise.
        if resume.is_checkpoint_file(file_path) or (is_file and not self.store.runs(run=str(file_path))):
            return self.stream(update, checkpoint=Path(file_path), config=config)
        return self.resume(file_path, config=config, update=update)
