"""What an app can run again: a step and what follows it, or what its graph now does otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.engine.blocking import Blocking
from holdfast.engine.driving.drive import Drive
from holdfast.engine.outcome import Outcome
from holdfast.engine.resume import ResumeOptions
from holdfast.engine.runner import Caller, ObserverLike, Runner

if TYPE_CHECKING:  # What only some need is loaded by those who do.
    from holdfast.engine.commands.phrasing import Update
    from holdfast.engine.travel.rerun import Rerun
    from holdfast.engine.travel.rerunner import Rerunner


class RunningAgain:
    """The part of an app that goes back with runs and keeps what need not run again."""

    _runner: Runner

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
        from holdfast.engine.travel.given import Given
        from holdfast.engine.travel.repeating import RerunOptions

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
        from holdfast.engine.travel.given import Given
        from holdfast.engine.travel.repeating import RerunOptions

        options = RerunOptions(Given(input, output, update, by), config, in_place, run_id, trust)
        return await self._rerunner.rerun(run, step, options, self._caller(observer))

    def plan_changes(self, run: str, remap: Mapping[str, str] | None = None) -> Rerun | None:
        """What `resume(run, rerun_changed=True)` would take the run back for, if it would; it touches nothing."""
        return self._rerunner.plan_changes(run, ResumeOptions(remap=remap, rerun_changed=True))

    def plan_rerun(self, run: str, step: str) -> Rerun:
        """What `rerun` would keep and what it would run again, and why; it touches nothing."""
        from holdfast.engine.travel.repeating import RerunOptions

        return self._rerunner.plan_rerun(run, step, RerunOptions())[1]

    def _caller(
        self, observer: ObserverLike, private: bool = False, hold: Callable[[Drive], None] | None = None
    ) -> Caller:
        raise NotImplementedError

    @property
    def _rerunner(self) -> Rerunner:
        from holdfast.engine.travel.rerunner import Rerunner

        return Rerunner(self._runner)
