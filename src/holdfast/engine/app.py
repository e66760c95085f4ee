"""`App`: a compiled graph, ready to be run, resumed, watched, commanded and looked at."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from holdfast.engine.blocking import AsyncEventStream, Blocking, EventStream, StreamQueue, run_blocking
from holdfast.engine.loop import Execution
from holdfast.engine.runner import AppBase, Main, state_of
from holdfast.engine.settings import Outcome, Pause, ignore, one_of
from holdfast.errors import CheckpointNotFound, HoldfastError, RunExists, StateInvalid
from holdfast.events import MultiObserver, ObserverLike, in_dialect
from holdfast.graph.graph import mermaid
from holdfast.journal.checkpoint_ids import Checkpoint, decode_checkpoint
from holdfast.names import LazyModule
from holdfast.state.state import State
from holdfast.stores.base import RunInfo
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.engine import checkpoint_files, continuation, resume, resume_plan, submission
    from holdfast.engine.commands import control
    from holdfast.engine.commands.control import Duration, Receipt, Step, Update
    from holdfast.engine.commands.inbox import RunCommand
    from holdfast.engine.resume import ResumeKeywords
    from holdfast.engine.resume_plan import ResumePlan
    from holdfast.engine.submission import When
    from holdfast.engine.time_travel import checkpoints, edits, queries, rerun, rewind
    from holdfast.engine.time_travel.checkpoints import Place, Position
    from holdfast.engine.time_travel.edits import Access, RerunKeywords
    from holdfast.engine.time_travel.rerun import Rerun
    from holdfast.journal import copying
    from holdfast.views import usage
    from holdfast.views.comparison import Comparison, StateDifference
    from holdfast.views.family import Family
    from holdfast.views.history import History
    from holdfast.views.usage import RunLedger
else:
    # What a run that is only started does without is loaded when it is first used.
    checkpoint_files, continuation = LazyModule("engine.checkpoint_files"), LazyModule("engine.continuation")
    resume, resume_plan = LazyModule("engine.resume"), LazyModule("engine.resume_plan")
    submission, control = LazyModule("engine.submission"), LazyModule("engine.commands.control")
    checkpoints, edits = LazyModule("engine.time_travel.checkpoints"), LazyModule("engine.time_travel.edits")
    queries, rerun = LazyModule("engine.time_travel.queries"), LazyModule("engine.time_travel.rerun")
    rewind, usage = LazyModule("engine.time_travel.rewind"), LazyModule("views.usage")
    copying = LazyModule("journal.copying")


Input = Mapping[str, Any] | Any | None


class App(AppBase):
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

        `checkpoint` resumes instead: a file of `save_checkpoint`, or whatever `resume` takes; an input is then an
        update of the saved state. A failure raises `ExecutionError`, or, if the graph was compiled with
        `raise_exceptions=False`, is an outcome with an `error`. Ctrl+C and SIGTERM save the run first. Works inside
        a running event loop.

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
        observer: ObserverLike = None,
        dialect: str | None = None,
    ) -> EventStream:
        """Start a run, or resume one with `checkpoint`, and yield its events as they happen.

        The run starts when the first event is taken; a stream from which none is ever taken runs nothing, and warns.
        The run goes on in a thread of its own, however slowly the events are taken. Leaving the loop
        early saves and stops the run. A failure is raised after its `graph.fail` event, or, with
        `raise_exceptions=False`, is that event and nothing else. `stats` of the stream counts its events.

        `dialect` names the events as another system does: "task" (`task_start`, `checkpoint_saved`), "agent"
        (`agent_started`, `route_taken`) or "state" (`state`, `interrupt`, `final`); see `holdfast.events.DIALECTS`.
        """
        queue = StreamQueue()
        both = self._both(queue, observer, dialect)
        how: dict[str, Any] = {"run_id": run_id, "config": config, "checkpoint": checkpoint}
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
        observer: ObserverLike = None,
        dialect: str | None = None,
    ) -> AsyncEventStream:
        """As `stream`, in the running event loop."""
        queue = StreamQueue()
        both = self._both(queue, observer, dialect)
        how: dict[str, Any] = {"run_id": run_id, "config": config, "checkpoint": checkpoint}
        return AsyncEventStream(queue, self._invocation(input, both, answers=answers, **how))

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
    ) -> str:
        """Store a new run for workers to execute, and return its id at once.

        Of the runs of a `queue` those of a higher `priority` begin first. `when` is a time, or a delay as
        `timedelta` or in seconds, before which it does not begin. Submitting again under the same `key`
        returns the id of the run that is there, whatever the input. For `reuse` see `invoke`.
        """
        place = submission.Place.of(queue, priority, when)
        if key is None:
            name = self._runner.new_run_id(run_id)
        elif run_id is None:
            name = submission.id_of_key(self.name, key)
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

    def get_state(self, run_id: str, *, checkpoint_id: str | None = None) -> State:
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
        return state_of(journal.load(info, codec, upto), self._settings)

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

    # The past of runs. A run is named by its id, the latest of a workflow by its name.

    def history(self, run: str, *, limit: int | None = None, before: str | None = None) -> History:
        """Return a run's checkpoints, newest first, each with what happened since the one before.

        `limit` is how many at most; `before` is a checkpoint, named by its id or as in `"@3"`, for the next page. A
        page costs what is on it, however long the run is.
        """
        return queries.run_history(self._settings.journal, run, limit=limit, before=before)

    def state_at(self, run: str, checkpoint: Place) -> State:
        """Return a run's state as it was at a checkpoint.

        `checkpoint` is its id, the number of a wave, for the last time that the run came to its end, or what follows
        `RUN` in `RUN@…`: `"@-1"` is one before the newest, `"@draft"` is after the last finish of a node, `"@draft#2"`
        after its second.
        """
        position, settings = self._position(run, checkpoint), self._settings
        return state_of(settings.journal.load(position.info, settings.codec, position.seq), settings)

    def forks(self, run: str) -> Family:
        """Return the runs that a run comes from and those that come from it: where each was forked, and its cost."""
        return queries.run_forks(self._settings.journal, run)

    def fork(
        self,
        run: str,
        at: Place | None = None,
        *,
        update: Update | None = None,
        as_node: str | None = None,
        run_id: str | None = None,
        tags: Sequence[str] | None = None,
        by: str = "",
        reason: str = "",
    ) -> str:
        """Start a new run at a checkpoint of another, and return its id; nothing runs until it is resumed.

        `at` is a checkpoint as in `state_at`; without it, the run as it is now. `update` changes the state of the new
        run, as `edit` does. With `as_node` it counts as what that node returned: what follows the node comes next, and
        its routes are asked when the run is resumed. The new run is read through the journal of the old one, which is
        left as it is; pruning or deleting that one does it no harm.
        """
        position = self._own(self._position(run, at))
        edit = edits.Edit(update, as_node, by, reason)
        return rewind.fork_run(self._access, position, self._runner.new_run_id(run_id), edit, tags=tags)

    def update_state(
        self,
        run: str,
        update: Update | None = None,
        *,
        as_node: str | None = None,
        by: str = "",
        reason: str = "",
    ) -> str:
        """Change the state of a run that no process executes; return the id of the checkpoint that this makes.

        With `as_node` the update counts as what that node returned, as in `fork`; a completed run goes on then when it
        is resumed. A run that is being executed is refused: `edit` changes its state between two steps.
        """
        info = self._own(self._position(run)).info
        return edits.update_state(self._access, info.run, edits.Edit(update, as_node, by, reason))

    def rollback(self, run: str, to: Place, *, by: str = "", reason: str = "") -> str:
        """Roll a run back to an earlier checkpoint; return the id of the checkpoint that this makes.

        A resume goes on from there: the steps that came after run again, with the idempotency keys that they had. Its
        questions are asked again, its gates are closed again; what `ctx.once` remembered in an unfinished step stays
        remembered. Nothing is deleted: what came after stays in the history, and a rollback can return to it. A run
        that is being executed is refused.
        """
        return rewind.roll_back(self._access, self._own(self._position(run, to)), by=by, reason=reason)

    def promote(self, fork: str, *, into: str | None = None, by: str = "", reason: str = "") -> str:
        """Promote a fork's result to the run that it was forked from, or to its ancestor `into`.

        Returns the id of the checkpoint that this run now has. Its own history stays, and `rollback` can return to it;
        the fork stays, too. A fork that waits for an answer makes the run wait for the same. Runs that are being
        executed are refused.
        """
        own = self._own(self._position(fork)).info
        target = None if into is None else self._own(self._position(into)).info
        return rewind.promote_fork(self._access, own, target, by=by, reason=reason)

    def compare(self, one: str, other: str) -> Comparison:
        """Return what two runs, usually forks of one, did differently.

        That is where they diverge, which steps only one ran, whose results differ, time, money, status, code. Both are
        named by a run, a checkpoint, `RUN@3` …
        """
        return queries.compare_runs(self._settings.journal, one, other)

    def diff(self, one: str, other: str | None = None, *, keys: Sequence[str] = ()) -> StateDifference:
        """Return what differs between two checkpoints of any runs of the store, or between one and the one before it.

        A checkpoint is named by a run id, a checkpoint id, a workflow's name, `RUN@3`, `RUN@-1` or `RUN@NODE`; see
        `diff_states`.
        """
        return queries.diff_states(self._settings.journal, one, other, keys=keys)

    @property
    def _access(self) -> Access:
        return edits.Access.of(self._settings)

    def _position(self, run: str, at: Place | None = None) -> Position:
        return checkpoints.find_place(self._settings.journal.store, run, at)

    def _own(self, position: Position) -> Position:
        self._runner.refuse_other_workflow(position.info)
        return position

    def rerun(
        self, run: str, step: str, *, observer: ObserverLike = None, **options: Unpack[RerunKeywords]
    ) -> Outcome:
        """Run a step of a run, and all that comes after it, again; everything else that was finished is kept.

        This is a new run, which begins at the checkpoint before the step; with `in_place` the run itself is taken
        back there. `step` is a step's id, such as `draft#2` or `work#1[key]`, or a node's name for its last visit.

        `input` lets this step see other values than the state has, as `modify` does. `output` is taken for what it
        returned, instead of running it; a function is given the state. `update` changes the state first, as `edit`
        does, and `config` is laid over the config. `run_id` is the id of the new run, `by` says who asked for it, and
        `trust` is as for `resume`.
        """
        return Blocking(self._rerun(run, step, observer, **options)).run()

    async def arerun(
        self, run: str, step: str, *, observer: ObserverLike = None, **options: Unpack[RerunKeywords]
    ) -> Outcome:
        """As `rerun`, in the running event loop."""
        return await self._rerun(run, step, observer, **options)(False, ignore)

    def _rerun(self, run: str, step: str, observer: ObserverLike, **options: Unpack[RerunKeywords]) -> Main:
        chosen = edits.RerunOptions(**options)
        return self._main(observer, lambda caller: rewind.rerun_step(self._runner, run, step, chosen, caller))

    def plan_changes(self, run: str, remap: Mapping[str, str] | None = None) -> Rerun | None:
        """Return what `resume(run, rerun_changed=True)` would take the run back for, if it would; change nothing."""
        options, journal = resume.ResumeOptions(remap=remap, rerun_changed=True), self._settings.journal
        options.check()
        plan = rerun.plan_changes(
            self._settings, journal.load(journal.info(run), self._settings.codec), options
        )
        return plan if plan is not None and plan.seq is not None else None

    def plan_rerun(self, run: str, step: str) -> Rerun:
        """Return what `rerun` would keep and what it would run again, and why; change nothing."""
        return rewind.plan_step(self._runner, run, step, edits.RerunOptions())[1]

    def cost(self, run: str) -> RunLedger:
        """Return what a run has used up, over all its executions: tokens, money and time, by step and by model.

        `run` may also be a checkpoint, named by its id or as `RUN@3`: what the run had used up by then.
        """
        position = self._position(run)
        return usage.ledger(self._settings.journal, position.info.run, upto=position.seq)

    def tag(
        self,
        run: str,
        *tags: str,
        remove: Iterable[str] = (),
        checkpoint: Place | None = None,
        by: str = "",
        timeout: float = 0.0,
    ) -> str:
        """Add tags to a run, or to a checkpoint, and remove others; the tags of a run find it again.

        `run` is a run id, or a checkpoint, named by its id or as `RUN@3`; so is `checkpoint`, as in `state_at`. Tags
        and notes of a run, completed ones included, are in its journal, with who wrote them. Returns as `edit` does.
        """
        return self._annotate(run, checkpoint, by, timeout, add=tags, remove=remove)

    def note(
        self, run: str, text: str, *, checkpoint: Place | None = None, by: str = "", timeout: float = 0.0
    ) -> str:
        """Write a note to a run, or to a checkpoint; see `tag`."""
        return self._annotate(run, checkpoint, by, timeout, text=text)

    def keep(
        self,
        run: str,
        checkpoint: Place | None = None,
        *,
        keep: bool = True,
        by: str = "",
        timeout: float = 0.0,
    ) -> str:
        """Have retention and pruning leave a checkpoint, by default the newest, and its run alone; see `tag`."""
        return self._annotate(run, checkpoint, by, timeout, keep=keep)

    def _annotate(self, run: str, checkpoint: Place | None, by: str, timeout: float, **what: Any) -> str:
        self._own(self._position(run))
        journal, what["codec"] = self._settings.journal, self._settings.codec
        return control.annotate(journal, run, checkpoint=checkpoint, by=by, timeout=timeout, **what)

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
        is_file = os.path.isfile(file_path)  # noqa: PTH113 - whatever the name is, this does not raise.
        if resume.is_checkpoint_file(file_path) or (is_file and not self.store.runs(run=str(file_path))):
            return self.stream(update, checkpoint=Path(file_path), config=config)
        return self.resume(file_path, config=config, update=update)
