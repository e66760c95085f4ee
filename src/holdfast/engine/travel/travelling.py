"""What an app can do with the past of its runs: look, fork, change, go back, compare, adopt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.data.state import State
from holdfast.engine.runner import Runner, state_of
from holdfast.engine.settings import Settings

if TYPE_CHECKING:  # What only some need is loaded by those who do.
    from holdfast.engine.commands.phrasing import Update
    from holdfast.engine.travel.looking import Place
    from holdfast.engine.travel.moments import Moment
    from holdfast.views.comparison import Comparison
    from holdfast.views.diff.states import StateDifference
    from holdfast.views.family import Family
    from holdfast.views.history import History


class Travelling:
    """The part of an app that goes back and forth in time. A run is named by its id, its workflow's latest by name."""

    _settings: Settings
    _runner: Runner

    def history(self, run: str, *, limit: int | None = None, before: str | None = None) -> History:
        """A run's checkpoints, newest first, each with what happened since the one before.

        `limit` is how many at most; `before` is the id of a checkpoint, or a place such as `"@3"`, to go on from, for
        the next page. A page costs what is on it, however long the run is.
        """
        from holdfast.engine.travel.looking import history_page

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
        from holdfast.engine.travel.looking import family_of

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
        from holdfast.engine.travel.editing import Edit, Hands
        from holdfast.engine.travel.forking import fork_run

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
        from holdfast.engine.travel.editing import Edit, Hands, update_state
        from holdfast.engine.travel.moments import find_moment

        info = self._own(find_moment(self._settings.journal.store, run)).info
        return update_state(Hands.of(self._settings), info.run, Edit(update, as_node, by, reason))

    def rollback(self, run: str, to: Place, *, by: str = "", reason: str = "") -> str:
        """Let a run stand where it stood at an earlier checkpoint; answer the id of the checkpoint that this makes.

        A resume goes on from there: the steps that came after run again, with the idempotency keys that they had. Its
        questions are asked again, its gates are closed again; what `ctx.once` remembered in an unfinished step stays
        remembered. Nothing is deleted: what came after stays in the
        history, and the run can be set to it in the same way. A run that is driven is refused.
        """
        from holdfast.engine.travel.adopting import roll_back
        from holdfast.engine.travel.editing import Hands

        moment = self._own(self._place(run, to))
        return roll_back(Hands.of(self._settings), moment, by=by, reason=reason)

    def adopt(self, fork: str, *, into: str | None = None, by: str = "", reason: str = "") -> str:
        """Make what a fork came to the outcome of the run that it was forked from, or of its ancestor `into`.

        Answers the id of the checkpoint that this run now stands at. Its own history stays, and can be gone back to
        with `rollback`; the fork stays, too. A fork that waits for an answer makes the run wait for the same. Runs that
        are driven are refused.
        """
        from holdfast.engine.travel.adopting import adopt_fork
        from holdfast.engine.travel.editing import Hands
        from holdfast.engine.travel.moments import find_moment

        store = self._settings.journal.store
        own = self._own(find_moment(store, fork)).info
        target = None if into is None else self._own(find_moment(store, into)).info
        return adopt_fork(Hands.of(self._settings), own, target, by=by, reason=reason)

    def compare(self, one: str, other: str) -> Comparison:
        """What two runs, usually forks of one, did differently: where they part, which steps only one ran, whose
        results differ, time, money, status, code. Both are moments: runs, checkpoints, `RUN@3` …
        """
        from holdfast.engine.travel.comparing import compare_moments

        return compare_moments(self._settings.journal, one, other)

    def diff(self, one: str, other: str | None = None, *, keys: Sequence[str] = ()) -> StateDifference:
        """What differs between two moments of any runs of the store, or between one and the checkpoint before it.

        A moment is a run id, a checkpoint id, a workflow's name, `RUN@3`, `RUN@-1` or `RUN@NODE`; see `diff_states`.
        """
        from holdfast.engine.travel.differing import diff_moments

        return diff_moments(self._settings.journal, one, other, keys)

    def _place(self, run: str, at: Place | None) -> Moment:
        from holdfast.engine.travel.looking import find_place

        return find_place(self._settings.journal.store, run, at)

    def _own(self, moment: Moment) -> Moment:
        self._runner.refuse_other_workflow(moment.info)
        return moment
