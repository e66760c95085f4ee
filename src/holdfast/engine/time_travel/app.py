"""The part of `App` about the past of runs: history, forks, rollback, comparison, reruns, costs, notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from holdfast.engine.blocking import Blocking
from holdfast.engine.runner import AppBase, Main, state_of
from holdfast.engine.settings import Outcome, ignore
from holdfast.events import ObserverLike
from holdfast.names import LazyModule
from holdfast.state.state import StateT

if TYPE_CHECKING:
    from holdfast.engine import resume
    from holdfast.engine.commands import control
    from holdfast.engine.commands.control import Update
    from holdfast.engine.time_travel import checkpoints, edits, queries, rerun, rewind
    from holdfast.engine.time_travel.checkpoints import Place, Position
    from holdfast.engine.time_travel.edits import Access, RerunKeywords
    from holdfast.engine.time_travel.rerun import Rerun
    from holdfast.views import usage
    from holdfast.views.comparison import Comparison, StateDifference
    from holdfast.views.family import Family
    from holdfast.views.history import History
    from holdfast.views.usage import RunLedger
else:
    # What a run that is only started does without is loaded when it is first used.
    resume, control = LazyModule("engine.resume"), LazyModule("engine.commands.control")
    checkpoints, edits = LazyModule("engine.time_travel.checkpoints"), LazyModule("engine.time_travel.edits")
    queries, rerun = LazyModule("engine.time_travel.queries"), LazyModule("engine.time_travel.rerun")
    rewind, usage = LazyModule("engine.time_travel.rewind"), LazyModule("views.usage")


class TimeTravelApp(AppBase[StateT]):
    """The methods of an app about the past of runs. A run is named by its id, the latest of a workflow by its name."""

    def history(self, run: str, *, limit: int | None = None, before: str | None = None) -> History:
        """Return a run's checkpoints, newest first, each with what happened since the one before.

        `limit` is how many at most; `before` is a checkpoint, named by its id or as in `"@3"`, for the next page. A
        page costs what is on it, however long the run is.
        """
        return queries.run_history(self._settings.journal, run, limit=limit, before=before)

    def state_at(self, run: str, checkpoint: Place) -> StateT:
        """Return a run's state as it was at a checkpoint.

        `checkpoint` is its id, the number of a wave, for the last time that the run came to its end, or what follows
        `RUN` in `RUN@…`: `"@-1"` is one before the newest, `"@draft"` is after the last finish of a node, `"@draft#2"`
        after its second.
        """
        position, settings = self._position(run, checkpoint), self._settings
        state = state_of(settings.journal.load(position.info, settings.codec, position.seq), settings)
        return cast(StateT, state)

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
    ) -> Outcome[StateT]:
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
    ) -> Outcome[StateT]:
        """As `rerun`, in the running event loop."""
        return await self._rerun(run, step, observer, **options)(False, ignore)

    def _rerun(self, run: str, step: str, observer: ObserverLike, **options: Unpack[RerunKeywords]) -> Main:
        chosen = edits.RerunOptions(**options)
        return self._main(observer, lambda caller: rewind.rerun_step(self._runner, run, step, chosen, caller))

    def plan_changes(self, run: str, remap: Mapping[str, str] | None = None) -> Rerun | None:
        """Return what `resume(run, rerun_changed=True)` would take the run back for, if it would; change nothing."""
        options, journal = resume.ResumeOptions(remap=remap, rerun_changed=True), self._settings.journal
        options.check(self._settings.graph)
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
