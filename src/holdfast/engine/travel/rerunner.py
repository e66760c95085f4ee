"""Going back with a run, in place or in a new one, and running again what is affected."""

from __future__ import annotations

import dataclasses

from holdfast.engine.confirmation import confirm
from holdfast.engine.driver import this_driver
from holdfast.engine.outcome import Outcome
from holdfast.engine.resume import ResumeOptions, as_journalled
from holdfast.engine.runner import Caller, Runner
from holdfast.engine.travel.editing import checkpoint_of
from holdfast.engine.travel.forking import Fork, store_fork
from holdfast.engine.travel.given import Given
from holdfast.engine.travel.moments import find_moment
from holdfast.engine.travel.repeating import RerunOptions, begin_again, rerun_of_changes
from holdfast.engine.travel.rerun import Rerun
from holdfast.engine.travel.rerunning import plan_rerun_from
from holdfast.engine.travel.taking_back import begun_anew, reused, taken_back
from holdfast.journal.journal import Loaded
from holdfast.journal.provenance import set_back
from holdfast.journal.records import Reusing
from holdfast.journal.writer import Writer
from holdfast.stores.base import RunInfo


@dataclasses.dataclass(frozen=True, slots=True)
class Changes:
    """What runs again because the graph at hand does it otherwise."""

    rerunner: Rerunner
    back: Rerun

    @property
    def goes_back(self) -> bool:
        """Whether finished steps are affected."""
        return self.back.seq is not None

    @property
    def reused(self) -> Reusing:
        """What a run records that need not go back."""
        return reused(self.back)

    async def go_back(self, loaded: Loaded, options: ResumeOptions, caller: Caller) -> Outcome:
        """Take the run back, and go on from there."""
        return await self.rerunner.go_back(loaded, self.back, options, caller, "it is done otherwise now")


def _set_back(info: RunInfo) -> RunInfo:
    return dataclasses.replace(info, origin=set_back(info.origin)) if info.origin else info


class Rerunner:
    """Takes the runs of one compiled graph back."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self._settings = runner, runner.settings
        self._journal, self._codec, self._store = runner.journal, runner.settings.codec, runner.journal.store

    def changes(self, loaded: Loaded, options: ResumeOptions) -> Changes | None:
        """What changed in the graph that affects a run; `None` if nothing does."""
        back = rerun_of_changes(self._settings, loaded, options)
        return None if back is None else Changes(self, back)

    async def go_back(
        self,
        loaded: Loaded,
        back: Rerun,
        options: ResumeOptions,
        caller: Caller,
        why: str,
        given: Given | None = None,
    ) -> Outcome:
        """Take a run back to an earlier entry, and go on from there; what is not affected is kept."""
        options.refuse_answers("a run that is taken back, and asks again what it comes to,")
        loaded = dataclasses.replace(loaded, info=_set_back(loaded.info))
        writer = self._runner.writer(loaded)
        by, updated = (given.by, bool(given.update)) if given is not None else ("", False)
        for record in taken_back(self._journal, self._codec, back, why, by, updated=updated):
            writer.record(record)
        return await self._go_again(loaded, writer, back, options, caller, given)

    async def _go_again(
        self,
        loaded: Loaded,
        writer: Writer,
        back: Rerun,
        options: ResumeOptions,
        caller: Caller,
        given: Given | None,
        fork: Fork | None = None,
    ) -> Outcome:
        """Record what is to be otherwise this time, before anything runs, and go on."""
        run, name = writer.run, writer.info.run
        for steered in await begun_anew(self._settings, run, name, options.remap or {}):
            writer.record(steered)
        reconciled = self._runner.reconciled(loaded, options, caller.observer)
        for record in reconciled.records:
            writer.record(record)
        if given is not None:
            given.take(writer, reconciled.settings, back.step)
        writer.mark(checkpoint_of(writer))
        if fork is not None:
            await store_fork(fork)
        return await self._runner.go_on(loaded, writer, reconciled._replace(records=()), options, caller)

    async def rerun(self, target: str, step: str, options: RerunOptions, caller: Caller) -> Outcome:
        """Run a step of a run, and what follows it, again: in a new run, or in that run itself."""
        loaded, back = self.plan_rerun(target, step, options)
        resuming = ResumeOptions(config=options.config, trust=options.trust)
        resuming.check()
        confirm(self._journal, loaded.info, loaded.run, options.trust, options.config)
        if options.in_place:
            self._runner.refuse_driven(loaded.info)
            return await self.go_back(
                loaded, back, resuming, caller, f"{step} is to run again", options.given
            )
        driver, run = this_driver(self._store), self._runner.new_run_id(options.run_id)
        updated = bool(options.given.update)
        fork = begin_again(self._settings, back, run, driver, updated=updated)
        forked = dataclasses.replace(fork.base, info=fork.writer.info, run=fork.writer.run)
        return await self._go_again(forked, fork.writer, back, resuming, caller, options.given, fork)

    def plan_changes(self, run: str, options: ResumeOptions) -> Rerun | None:
        """What a run is taken back for to do again what the graph at hand does otherwise."""
        options.check()
        loaded = self._journal.load(self._journal.info(run), self._codec)
        back = rerun_of_changes(self._settings, loaded, options)
        return back if back is not None and back.seq is not None else None

    def plan_rerun(self, target: str, step: str, options: RerunOptions) -> tuple[Loaded, Rerun]:
        """A run, and what becomes of its steps if one of them is run again."""
        moment = find_moment(self._store, target)
        loaded = as_journalled(self._journal.load(moment.info, self._codec, moment.seq))
        if loaded.run.outline:
            self._runner.refuse_other_workflow(loaded.info)
        back = plan_rerun_from(self._settings, loaded, step)
        options.check(back, step, moment)
        return loaded, back
