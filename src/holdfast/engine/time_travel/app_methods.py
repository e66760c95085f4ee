"""What an app can do with the past of its runs: look, fork, change, go back, compare, promote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.engine.blocking import Blocking
from holdfast.engine.resume import ResumeOptions
from holdfast.engine.runner import AppBase, ObserverLike, state_of
from holdfast.engine.settings import Outcome
from holdfast.state.state import State

if TYPE_CHECKING:
    from holdfast.engine.commands.control import Update
    from holdfast.engine.time_travel.checkpoints import Moment, Place
    from holdfast.engine.time_travel.rerun import Rerun
    from holdfast.engine.time_travel.rerunner import Rerunner
    from holdfast.views.comparison import Comparison
    from holdfast.views.diff.states import StateDifference
    from holdfast.views.family import Family
    from holdfast.views.history import History
    from holdfast.views.usage import RunLedger


class Travelling(AppBase):
    """The part of an app that goes back and forth in time. A run is named by its id, its workflow's latest by name."""

    def history(self, run: str, *, limit: int | None = None, before: str | None = None) -> History:
        """A run's checkpoints, newest first, each with what happened since the one before.

        `limit` is how many at most; `before` is the id of a checkpoint, or a place such as `"@3"`, to go on from, for
        the next page. A page costs what is on it, however long the run is.
        """
        from holdfast.engine.time_travel.checkpoints import history_page

        return history_page(self._settings.journal, run, limit, before)

    def state_at(self, run: str, checkpoint: Place) -> State:
        """A run's state as it was at a checkpoint.

        `checkpoint` is its id, the number of a wave, for the last time that the run came to its end, or a place as in
        `RUN@…`: `-1` in `"@-1"` is one before the newest, `"@draft"` is after the last finish of a node, `"@draft#2"`
        after its second.
        """
        moment = self._place(run, checkpoint)
        settings = self._settings
        return state_of(settings.journal.load(moment.info, settings.codec, moment.seq), settings)

    def forks(self, run: str) -> Family:
        """The runs that a run comes from and those that come from it: where each was forked, and what it cost."""
        from holdfast.engine.time_travel.checkpoints import family_of

        return family_of(self._settings.journal, run)

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
        """Begin a new run where another stood, and answer its id; nothing is driven until it is resumed.

        `at` is a place as in `state_at`; without it the run as it stands is meant. `update` changes the state of the
        new run, as `edit` does. With `as_node` it counts as what that node returned: what follows the node comes
        next, and its routes are asked when the run is driven. The new run is read through the journal of the old
        one, which is left as it is; pruning or deleting that one does it no harm.
        """
        from holdfast.engine.time_travel.fork import Edit, Hands, fork_run

        moment = self._own(self._place(run, at))
        name = self._runner.new_run_id(run_id)
        edit = Edit(update, as_node, by, reason)
        return fork_run(Hands.of(self._settings), moment, name, edit, tags=tags)

    def update_state(
        self,
        run: str,
        update: Update | None = None,
        *,
        as_node: str | None = None,
        by: str = "",
        reason: str = "",
    ) -> str:
        """Change the state of a run that nobody drives; answer the id of the checkpoint that this makes.

        With `as_node` the update counts as what that node returned, as in `fork`; a completed run goes on then when it
        is resumed. A run that is driven is refused: `edit` changes its state between two steps.
        """
        from holdfast.engine.time_travel.checkpoints import find_moment
        from holdfast.engine.time_travel.fork import Edit, Hands, update_state

        info = self._own(find_moment(self._settings.journal.store, run)).info
        return update_state(Hands.of(self._settings), info.run, Edit(update, as_node, by, reason))

    def rollback(self, run: str, to: Place, *, by: str = "", reason: str = "") -> str:
        """Roll a run back to an earlier checkpoint; return the id of the checkpoint that this makes.

        A resume goes on from there: the steps that came after run again, with the idempotency keys that they had. Its
        questions are asked again, its gates are closed again; what `ctx.once` remembered in an unfinished step stays
        remembered. Nothing is deleted: what came after stays in the
        history, and the run can be set to it in the same way. A run that is driven is refused.
        """
        from holdfast.engine.time_travel.fork import Hands
        from holdfast.engine.time_travel.promote import roll_back

        moment = self._own(self._place(run, to))
        return roll_back(Hands.of(self._settings), moment, by=by, reason=reason)

    def promote(self, fork: str, *, into: str | None = None, by: str = "", reason: str = "") -> str:
        """Promote a fork's result to the run that it was forked from, or to its ancestor `into`.

        Answers the id of the checkpoint that this run now stands at. Its own history stays, and can be gone back to
        with `rollback`; the fork stays, too. A fork that waits for an answer makes the run wait for the same. Runs that
        are driven are refused.
        """
        from holdfast.engine.time_travel.checkpoints import find_moment
        from holdfast.engine.time_travel.fork import Hands
        from holdfast.engine.time_travel.promote import promote_fork

        store = self._settings.journal.store
        own = self._own(find_moment(store, fork)).info
        target = None if into is None else self._own(find_moment(store, into)).info
        return promote_fork(Hands.of(self._settings), own, target, by=by, reason=reason)

    def compare(self, one: str, other: str) -> Comparison:
        """What two runs, usually forks of one, did differently: where they part, which steps only one ran, whose
        results differ, time, money, status, code. Both are moments: runs, checkpoints, `RUN@3` …
        """
        from holdfast.engine.time_travel.compare import compare_moments

        return compare_moments(self._settings.journal, one, other)

    def diff(self, one: str, other: str | None = None, *, keys: Sequence[str] = ()) -> StateDifference:
        """What differs between two moments of any runs of the store, or between one and the checkpoint before it.

        A moment is a run id, a checkpoint id, a workflow's name, `RUN@3`, `RUN@-1` or `RUN@NODE`; see `diff_states`.
        """
        from holdfast.engine.time_travel.compare import diff_moments

        return diff_moments(self._settings.journal, one, other, keys)

    def _place(self, run: str, at: Place | None) -> Moment:
        from holdfast.engine.time_travel.checkpoints import find_place

        return find_place(self._settings.journal.store, run, at)

    def _own(self, moment: Moment) -> Moment:
        self._runner.refuse_other_workflow(moment.info)
        return moment


# What an app can run again: a step and what follows it, or what its graph now does otherwise.


class RunningAgain(Travelling):
    """The part of an app that goes back with runs and keeps what need not run again."""

    def rerun(
        self,
        run: str,
        step: str,
        *,
        input: Update | None = None,
        output: Any = ...,
        update: Update | None = None,
        config: Mapping[str, Any] | None = None,
        in_place: bool = False,
        run_id: str | None = None,
        by: str = "",
        trust: bool | str = False,
        observer: ObserverLike = None,
    ) -> Outcome:
        """Run a step of a run, and all that comes after it, again; everything else that was finished is kept.

        This is a new run, which begins at the checkpoint before the step; with `in_place` the run itself is taken
        back there. `step` is a step's id, such as `draft#2` or `work#1[key]`, or a node's name for its last visit.

        `input` lets this step see other values than the state has, as `modify` does. `output` is taken for what it
        returned, instead of running it; a function is given the state. `update` changes the state first, as `edit`
        does, and `config` is laid over the config. `trust` is as for `resume`.
        """
        from holdfast.engine.time_travel.fork import Given
        from holdfast.engine.time_travel.rerunner import RerunOptions

        options = RerunOptions(Given(input, output, update, by), config, in_place, run_id, trust)
        return Blocking(
            lambda private, hold: self._rerunner.rerun(
                run, step, options, self._caller(observer, private, hold)
            )
        ).run()

    async def arerun(
        self,
        run: str,
        step: str,
        *,
        input: Update | None = None,
        output: Any = ...,
        update: Update | None = None,
        config: Mapping[str, Any] | None = None,
        in_place: bool = False,
        run_id: str | None = None,
        by: str = "",
        trust: bool | str = False,
        observer: ObserverLike = None,
    ) -> Outcome:
        """As `rerun`, in the running event loop."""
        from holdfast.engine.time_travel.fork import Given
        from holdfast.engine.time_travel.rerunner import RerunOptions

        options = RerunOptions(Given(input, output, update, by), config, in_place, run_id, trust)
        return await self._rerunner.rerun(run, step, options, self._caller(observer))

    def plan_changes(self, run: str, remap: Mapping[str, str] | None = None) -> Rerun | None:
        """What `resume(run, rerun_changed=True)` would take the run back for, if it would; it touches nothing."""
        return self._rerunner.plan_changes(run, ResumeOptions(remap=remap, rerun_changed=True))

    def plan_rerun(self, run: str, step: str) -> Rerun:
        """What `rerun` would keep and what it would run again, and why; it touches nothing."""
        from holdfast.engine.time_travel.rerunner import RerunOptions

        return self._rerunner.plan_rerun(run, step, RerunOptions())[1]

    @property
    def _rerunner(self) -> Rerunner:
        from holdfast.engine.time_travel.rerunner import Rerunner

        return Rerunner(self._runner)


# What an app says and tells of its runs: tags, notes, kept checkpoints, costs.


class Accounting(RunningAgain):
    """The part of an app that speaks of runs, whoever drives them and whether they are over."""

    def cost(self, run: str) -> RunLedger:
        """What a run has used up, over all its drives: tokens, money and time, by step and by model.

        `run` may also be a checkpoint, or a moment as `RUN@3`: what it had used up by then.
        """
        from holdfast.engine.time_travel.checkpoints import find_moment
        from holdfast.views.usage import ledger

        moment = find_moment(self._settings.journal.store, run)
        return ledger(self._settings.journal, moment.info.run, upto=moment.seq)

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

        `run` is a run id, or a moment as `RUN@3` or a checkpoint's id, which is that checkpoint; so is `checkpoint`, a
        place as in `state_at`. Whatever is said of a run, completed ones included, is in its journal, with who said
        it. Returns as `edit` does.
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
        from holdfast.engine.commands import control
        from holdfast.engine.time_travel.checkpoints import find_moment

        settings = self._settings
        self._runner.refuse_other_workflow(find_moment(settings.journal.store, run).info)
        how: dict[str, Any] = {
            "checkpoint": checkpoint,
            "by": by,
            "timeout": timeout,
            "codec": settings.codec,
        }
        return control.annotate(settings.journal, run, **what, **how)
