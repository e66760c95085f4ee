"""`App`: a compiled graph, ready to be run, resumed, watched and looked at."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from holdfast.engine.blocking import Blocking, Main, StreamQueue, run_blocking
from holdfast.engine.loop import Execution
from holdfast.engine.runner import ObserverLike, state_of
from holdfast.engine.settings import Outcome, Pause, ignore, one_of, public_pauses
from holdfast.engine.time_travel.app_methods import TimeTravel
from holdfast.errors import CheckpointNotFound, RunExists, StateInvalid
from holdfast.events import Event
from holdfast.journal.checkpoint_ids import Checkpoint, decode_checkpoint
from holdfast.state.state import State
from holdfast.stores.base import RunInfo
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.engine.commands.control import Receipt, Step, Update
    from holdfast.engine.commands.inbox import RunCommand
    from holdfast.engine.resume import ResumeKeywords
    from holdfast.engine.resume_plan import ResumePlan
    from holdfast.engine.submission import When


Input = Mapping[str, Any] | Any | None


class App(TimeTravel):
    """A compiled graph on a store. It holds no run: one app may execute any number of them at once."""

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
        """Start a run and execute it until it completes, pauses or is cancelled.

        `checkpoint` resumes instead: a file of `save_checkpoint`, or whatever `resume` takes. A failure
        raises `ExecutionError`, Ctrl+C and SIGTERM save the run first. Works inside a running event loop.

        `reuse` names another run of this workflow: what it has finished is not run again where the node's code and
        its inputs are the same. Without an input that run's own is taken; its config holds where none is given.
        """
        how: dict[str, Any] = {"run_id": run_id, "config": config, "checkpoint": checkpoint, "reuse": reuse}
        return Blocking(self._invocation(input, observer, **how)).run()

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
        how: dict[str, Any] = {"run_id": run_id, "config": config, "checkpoint": checkpoint, "reuse": reuse}
        return await self._invocation(input, observer, **how)(False, ignore)

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
        how: dict[str, Any] = {"run_id": run_id, "config": config, "checkpoint": checkpoint}
        yield from queue.drain(Blocking(self._invocation(input, queue, answers=answers, **how)))

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
        how: dict[str, Any] = {"run_id": run_id, "config": config, "checkpoint": checkpoint}
        work = self._invocation(input, queue, answers=answers, **how)(False, ignore)
        async with contextlib.aclosing(queue.drain_async(work)) as events:
            async for event in events:
                yield event

    def _invocation(self, input: Input, observer: ObserverLike, **how: Any) -> Main:
        return lambda private, hold: self._runner.invoke(input, self._caller(observer, private, hold), **how)

    def resume(
        self,
        target: str | Path,
        answer: Any = None,
        *,
        answers: Mapping[str, Any] | None = None,
        observer: ObserverLike = None,
        **options: Unpack[ResumeKeywords],
    ) -> Outcome:
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
        which confirms what was shown and nothing else.
        """
        return Blocking(self._resumption(target, observer, answer=answer, answers=answers, **options)).run()

    async def aresume(
        self,
        target: str | Path,
        answer: Any = None,
        *,
        answers: Mapping[str, Any] | None = None,
        observer: ObserverLike = None,
        **options: Unpack[ResumeKeywords],
    ) -> Outcome:
        """As `resume`, in the running event loop."""
        work = self._resumption(target, observer, answer=answer, answers=answers, **options)
        return await work(False, ignore)

    async def aexecute(
        self,
        run_id: str,
        *,
        idle_timeout: float = 1.0,
        observer: ObserverLike = None,
        hold: Callable[[Execution], None] = ignore,
    ) -> Outcome:
        """Execute a run of the fleet as far as it goes without waiting; what workers do.

        Gates stay closed. When all there is to do for longer than `idle_timeout` seconds is to wait, for a
        retry, a `ctx.sleep` or a question's timeout, the run is left until its time has come. `hold` is
        given the execution, so that it can be asked to stop.
        """
        return await self._resumption(run_id, observer, idle_timeout, approve=False)(False, hold)

    def _resumption(
        self, target: str | Path, observer: ObserverLike, idle_timeout: float | None = None, **options: Any
    ) -> Main:
        from holdfast.engine.continuation import resume
        from holdfast.engine.resume import ResumeOptions

        chosen = ResumeOptions(**options)

        def main(private: bool, hold: Callable[[Execution], None]) -> Coroutine[Any, Any, Outcome]:
            caller = dataclasses.replace(self._caller(observer, private, hold), idle_timeout=idle_timeout)
            return resume(self._runner, target, chosen, caller)

        return main

    def plan_resume(
        self,
        target: str,
        answer: Any = None,
        *,
        answers: Mapping[str, Any] | None = None,
        **options: Unpack[ResumeKeywords],
    ) -> ResumePlan:
        """Return what `resume(target, …)` with these options would do with every step, and why; touch nothing."""
        from holdfast.engine.resume import ResumeOptions
        from holdfast.engine.resume_plan import plan_resume

        return plan_resume(self._settings, target, ResumeOptions(answer, answers, **options))

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
    ) -> str:
        """Store a new run for workers to execute, and return its id at once.

        Of the runs of a `queue` those of a higher `priority` begin first. `when` is a time, or a delay as
        `timedelta` or in seconds, before which it does not begin. Submitting again under the same `key`
        returns the id of the run that is there, whatever the input. For `reuse` see `invoke`.
        """
        from holdfast.engine.submission import Place, id_of_key

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
        from holdfast.engine.submission import DEFAULT_QUEUE, Place, requeue

        self._refuse_other_workflow(run_id)
        known = self._settings.journal.info(run_id)
        urgency = known.priority if priority is None else priority
        place = Place.of(queue or known.queue or DEFAULT_QUEUE, urgency, when)
        return requeue(self._settings.journal, run_id, place, codec=self._settings.codec, trust=trust)

    # Commands to runs, in whatever process they execute.

    def cancel(self, run_id: str, reason: str = "cancelled", *, by: str = "") -> RunStatus:
        """Stop a run for good or until it is resumed. A run that is executing, in any process, stops soon.

        Return the status the run then has: `running` if its owner has still to notice.
        """
        from holdfast.engine.commands import control

        self._refuse_other_workflow(run_id)
        return control.cancel(self._settings.journal, run_id, reason, by=by, codec=self._settings.codec)

    def pause(self, run_id: str, reason: str = "paused", *, by: str = "") -> RunStatus:
        """Let a run that is executing, in any process, save itself and stop, so that `resume` goes on with it."""
        from holdfast.engine.commands import control

        self._refuse_other_workflow(run_id)
        return control.pause(self._settings.journal, run_id, reason, by=by, codec=self._settings.codec)

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
        from holdfast.engine.commands import control

        self._refuse_other_workflow(run_id)
        journal, codec, retention = self._settings.journal, self._settings.codec, self._settings.retention
        own: dict[str, Any] = {"codec": codec, "retention": retention}
        return control.answer(journal, run_id, answer, answers=answers, by=by, timeout=timeout, **own)

    def answer_status(self, handle: str) -> Receipt:
        """Return what became of an answer that was `waiting`, by its handle; also long after, and in any process."""
        from holdfast.engine.commands import control

        return control.find_receipt(self._settings.journal, handle, self._settings.codec)

    def edit(
        self, run_id: str, update: Update, *, by: str = "", reason: str = "", timeout: float = 0.0
    ) -> str:
        """Change the state of a run, as its reducers take the update; a tuple as key is a place inside a value.

        Like every command this is applied between two steps, by the process that executes the run, or at once if
        none does, and the journal tells who asked for it and why. Return the status that the run then has, or
        `"asked"` if it is not applied within `timeout` seconds. What cannot be done raises `CommandRefused` with the
        reason, if it is known by then.
        """
        from holdfast.engine.commands import control

        return self._send(run_id, control.edit(update, self._settings.codec), by, reason, timeout)

    def skip(self, run_id: str, step: str, *, by: str = "", reason: str = "", timeout: float = 0.0) -> str:
        """Skip a step that is ready, waits, failed or is in doubt; return as `edit` does.

        `step` is a step's id, or a node's name, which means all its steps; `outer/inner` in a sub-graph.
        """
        from holdfast.engine.commands import control

        return self._send(run_id, control.skip(step), by, reason, timeout)

    def modify(
        self, run_id: str, step: str, update: Update, *, by: str = "", reason: str = "", timeout: float = 0.0
    ) -> str:
        """Let a step that has not begun see other values than the state has; return as `edit` does."""
        from holdfast.engine.commands import control

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
        from holdfast.engine.commands import control

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
        from holdfast.engine.commands import control

        command = control.replan(steps, self._settings.codec, frame=frame, follow=follow)
        return self._send(run_id, command, by, reason, timeout)

    def _send(self, run_id: str, command: RunCommand, by: str, reason: str, timeout: float) -> str:
        from holdfast.engine.commands import control

        self._refuse_other_workflow(run_id)
        how: dict[str, Any] = {"codec": self._settings.codec, "graph": self._settings.graph}
        journal = self._settings.journal
        return control.send(journal, run_id, command, by=by, reason=reason, timeout=timeout, **how)

    # Looking.

    def outline(self) -> dict[str, Any]:
        """Return the graph as plain data, with a fingerprint per node."""
        return self._settings.graph.outline()

    def draw(self) -> str:
        """Return the graph as Mermaid text."""
        from holdfast.graph.graph import mermaid

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

    def get_state(self, run_id: str, *, checkpoint_id: str | None = None) -> State:
        """Return a run's state, now or as it was at a checkpoint."""
        from holdfast.engine.resume import find_checkpoint

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
        """Return a run's checkpoints, oldest first."""
        info = self._settings.journal.info(run_id)
        return [
            decode_checkpoint(info.key, stored, run_id) for stored in reversed(self.store.checkpoints(run_id))
        ]

    def pauses(self, run_id: str) -> tuple[Pause, ...]:
        """Return what a run waits for."""
        loaded = self._settings.journal.load(self._settings.journal.info(run_id), self._settings.codec)
        return public_pauses(loaded.run, self._settings.codec)

    def delete(self, run_id: str) -> bool:
        """Remove a run and all its checkpoints; `False` if there is none. A run that is executing is refused."""
        from holdfast.journal.copying import delete_run

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
        from holdfast.engine import checkpoint_files as files

        return files.save(Path(file_path), state, node, config or {})

    @classmethod
    def load_checkpoint(cls, file_path: str | Path) -> dict[str, Any]:
        """Return the content of a checkpoint file: state, node, config, timestamp, version.

        Only plain data and registered types are read; a file that names anything else is refused.
        """
        from holdfast.engine import checkpoint_files as files

        return files.load(Path(file_path))

    def resume_from_checkpoint(
        self, file_path: str | Path, config: Mapping[str, Any] | None = None
    ) -> Iterator[Event]:
        """Start a new run from a checkpoint file, beginning with the node saved in it; yields its events.

        `config` is laid over the saved one.
        """
        return self.stream(checkpoint=file_path, config=config)
