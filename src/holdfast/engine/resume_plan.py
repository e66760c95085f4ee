"""What a resume would do with every step of a run, and why, before it does anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from holdfast import clock
from holdfast.engine.blocking import run_blocking
from holdfast.engine.changes import NEW_NODE, changed_nodes, changes_between, name_now
from holdfast.engine.driver import describe, is_driven
from holdfast.engine.fates import NEXT, ORPHANED, Fates
from holdfast.engine.migrating import planned_migrations
from holdfast.engine.plan_identity import identity_of, what_moved
from holdfast.engine.reconciling import reconcile
from holdfast.engine.resume import (
    ResumeOptions,
    answered_now,
    as_journalled,
    find_run,
    is_at_rest,
    refuse_finished,
)
from holdfast.engine.settings import Settings
from holdfast.engine.travel.past import Finish, past_of
from holdfast.engine.travel.repeating import rerun_of_changes
from holdfast.engine.travel.rerun import KEPT, RERUN, UNDONE, Rerun
from holdfast.engine.travel.reusing import Adoption
from holdfast.engine.travel.taking_back import begun_anew, reused, taken_back
from holdfast.errors import GraphChanged, HoldfastError, PlanOutdated, RunFinished
from holdfast.journal.fold import apply
from holdfast.journal.records import GraphChanged as Changed
from holdfast.journal.records import Resumed
from holdfast.journal.run_state import (
    DONE,
    EVERY_STEP,
    RunState,
    at_checkpoint,
    copy_run,
    forget_notes,
    node_of,
)
from holdfast.plan.naming import outline_names
from holdfast.values import RunStatus

NEW = "new"


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step and what becomes of it: kept, rerun, in_doubt, asked, next, orphaned or new.

    `seconds` and `cost` are what a finished step took; `expected_seconds` and `expected_cost` what one that is to
    run may take, by earlier steps of its node, or `None` if there were none. Of nodes that are new or gone, and of
    what finished before all that is stored, there is no step.
    """

    step: str
    node: str
    what: str
    reason: str
    seconds: float = 0.0
    cost: float = 0.0
    expected_seconds: float | None = None
    expected_cost: float | None = None


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """What a resume would do. Hand it to `resume(…, plan=…)` to have exactly this done, or nothing."""

    run_id: str
    workflow: str
    status: str
    steps: tuple[PlannedStep, ...]
    changes: tuple[str, ...]
    """How the graph differs from the one that the run was saved with."""
    seconds_saved: float
    """The time that the kept steps took."""
    cost_saved: float = 0.0
    """US dollars that the kept steps cost."""
    seconds_to_come: float | None = None
    """What the steps that are about to run may take; `None` if that is not known of all of them."""
    cost_to_come: float | None = None
    migrations: tuple[str, ...] = ()
    """How the state is brought to the version that the graph has now."""
    back_to: int | None = None
    """The entry that the run is taken back to, to run again what changed."""
    refused: str = ""
    """Why the resume would be refused; empty if it would not."""
    id: str = ""
    head: int = 0
    """The last entry of the run."""
    outline: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    def of(self, what: str) -> tuple[PlannedStep, ...]:
        """The steps that this becomes of."""
        return tuple(step for step in self.steps if step.what == what)


def plan_resume(settings: Settings, target: str, options: ResumeOptions | None = None) -> ResumePlan:
    """The plan for what `target` names; a run that is completed, or not there, is refused."""
    options = options or ResumeOptions()
    options.check()
    return _Planning(settings, target, options).plan()


def refuse_outdated(settings: Settings, target: str, options: ResumeOptions) -> None:
    """Raise `PlanOutdated` if a resume would not do what was planned."""
    planned, now = options.plan, plan_resume(settings, target, dataclasses.replace(options, plan=None))
    given = planned.id if isinstance(planned, ResumePlan) else str(planned)
    moved = what_moved(settings.journal, settings.codec, now.run_id, given, now.id)
    if not moved:
        return
    if isinstance(planned, ResumePlan):
        if planned.run_id != now.run_id:
            moved = [f"it was made for run {planned.run_id!r}"]
        again = changed_nodes(planned.outline, now.outline)
        moved += [f"{node!r} is another since: {reason}" for node, reason in again.items()]
    raise PlanOutdated(now.run_id, moved)


class _Planning:
    """One look at a run and at the graph to go on with."""

    def __init__(self, settings: Settings, target: str, options: ResumeOptions) -> None:
        self._settings, self._options = settings, options
        journal, codec = settings.journal, settings.codec
        info, seq = find_run(journal.store, target)
        self._loaded = as_journalled(journal.load(info, codec))
        self._forks = seq is not None and seq != self._loaded.run.saved_seq
        if self._forks:
            place = journal.load(info, codec, seq)
            run = at_checkpoint(place.run)
            forget_notes(run, EVERY_STEP if options.update else ())
            self._loaded = dataclasses.replace(place, run=run)
        self._info, self._run = self._loaded.info, self._loaded.run
        self._now = settings
        self._stands = self._run
        """The run as it stands when it is made to fit the graph."""
        self._refused = ""
        self._past = past_of(journal, codec, info, self._loaded.seq)
        self._remap = dict(options.remap or {})

    def plan(self) -> ResumePlan:
        run, settings = self._run, self._settings
        saved, differs = run.outline, bool(run.outline)
        back = self._back()
        prepared = self._prepared(back)
        changes = changes_between(saved, self._now.outline, self._remap) if differs else []
        changed = changed_nodes(saved, self._now.outline, self._remap) if differs else {}
        steps = [*self._finished(back, changed), *self._active(back, prepared, changed)]
        steps += self._taken_later(prepared, {step.step for step in steps})
        known = {step.node for step in steps}
        known |= {step.node.rpartition("/")[0] for step in steps}
        steps += [step for step in self._nodes(changed) if step.node not in known]
        running = [step for step in steps if step.what in (RERUN, NEXT)]
        kept = [step for step in steps if step.what == KEPT]
        plan = ResumePlan(
            self._info.run,
            self._info.workflow,
            str(run.status),
            tuple(steps),
            tuple(changes),
            sum(step.seconds for step in kept),
            sum(step.cost for step in kept),
            _total([step.expected_seconds for step in running]),
            _total([step.expected_cost for step in running]),
            tuple(self._migrations()),
            None if back is None else back.seq,
            self._refused,
            "",
            self._loaded.seq,
            settings.outline,
        )
        fates = [(step.step, step.node, step.what) for step in steps] + [self._refused]
        identity = identity_of(self._loaded, self._options, settings.outline, fates)
        return dataclasses.replace(plan, id=identity)

    def _back(self) -> Rerun | None:
        """How far the run is taken back, if that is wished and something changed."""
        back = None
        if self._options.rerun_changed and not self._forks:
            try:
                back = rerun_of_changes(self._settings, self._loaded, self._options)
            except RunFinished:
                raise
            except HoldfastError as error:
                self._refused = str(error)
                return None
        if back is None and not self._forks:
            refuse_finished(self._info, unchanged=self._options.rerun_changed)
        return back

    # What is recorded before anything runs.

    def _prepared(self, back: Rerun | None) -> RunState:
        """The run as it will stand when it is driven on."""
        settings, run = self._settings, copy_run(self._run)
        if is_driven(settings.journal.store, self._info) and not self._options.takeover and not self._forks:
            self._refused = self._refused or f"it is being driven by {describe(self._info.driver)}"
        try:
            self._refuse_other_workflow()
            self._prepare(run, back)
        except HoldfastError as error:
            self._refused = self._refused or str(error)
            now = set(outline_names(settings.outline))
            self._remap = {old: new for old, new in self._remap.items() if new in now}
            run = self._renamed()
        return run

    def _renamed(self) -> RunState:
        """The run as it was saved, with the names that its nodes have now."""
        run = copy_run(self._run)
        apply(run, Changed(run.outline, tuple(self._remap.items())), run.updated_at)
        return run

    def _refuse_other_workflow(self) -> None:
        own, other = self._settings.graph.name, self._info.workflow
        if own != other and self._run.outline:
            raise GraphChanged(f"run {self._info.run!r} is of workflow {other!r}, and this graph is {own!r}")

    def _prepare(self, run: RunState, back: Rerun | None) -> None:
        settings, options, info, now = self._settings, self._options, self._info, clock.time()
        goes_back = back is not None and back.seq is not None
        found: list[Any] = []
        if goes_back or self._forks:
            options.refuse_answers("a run that is taken back, and asks again what it comes to,")
            if back is not None:
                found += taken_back(settings.journal, settings.codec, back, "")
        else:
            found += answered_now(info, run, options, settings, sleeps=True)
            if is_at_rest(info, run, options, found, settings.rules.barrier):
                return
            if back is not None:
                found.insert(0, reused(back))
        for record in found:
            apply(run, record, now)
        if goes_back:
            for record in run_blocking(lambda: begun_anew(settings, run, info.run, self._remap)):
                apply(run, record, now)
        self._stands = copy_run(run)
        reconciled = reconcile(settings, run, info.run, options)
        self._now = reconciled.settings
        for record in reconciled.records:
            apply(run, record, now)
        approve = options.approve and info.status == RunStatus.PAUSED
        apply(run, Resumed("", approve), now)

    def _migrations(self) -> list[str]:
        try:
            return planned_migrations(self._stands, self._now.graph, self._remap)
        except (HoldfastError, KeyError):
            return []

    # Steps.

    def _finished(self, back: Rerun | None, changed: Mapping[str, str]) -> Iterator[PlannedStep]:
        """The finished steps, in order; of those before what is stored only the node is known."""
        again = {step.step: step for step in back.steps} if back is not None else {}
        for node in self._forgotten():
            yield PlannedStep("", node, KEPT, "finished")
        for name, found in {**self._past.finishes, **self._past.spare}.items():
            seconds, cost = found.record.seconds, found.cost
            if name in again and again[name].what == RERUN:
                expected = self._expected(found.node)
                yield PlannedStep(name, found.node, RERUN, again[name].reason, seconds, cost, *expected)
            elif name in again and again[name].what == UNDONE:
                yield PlannedStep(name, found.node, ORPHANED, again[name].reason, seconds, cost)
            else:
                yield PlannedStep(name, found.node, KEPT, self._why_kept(found, changed), seconds, cost)

    def _forgotten(self) -> list[str]:
        """The nodes that finished before what is stored; those whose wave has not finished are told of as steps."""
        nodes = list(self._past.forgotten)
        for step in self._run.active():
            if step.status == DONE and step.id not in self._past.finishes and step.node in nodes:
                nodes.remove(step.node)
        return nodes

    def _taken_later(self, run: RunState, known: set[str]) -> Iterator[PlannedStep]:
        """The steps that another run finished, and that this one is given when it comes to them."""
        reuse = run.reuse
        if reuse is None or reuse.rerun is None or reuse.key in (b"", self._info.key):
            return
        settings = self._now
        adoption = Adoption.of(settings.journal, settings.graph, settings.codec, run, self._info.run)
        for name, found in adoption.promised().items() if adoption is not None else ():
            if name not in known and not _was_passed(run, name):
                reason = f"adopted from {found.record.origin or found.info.run!r}"
                yield PlannedStep(name, node_of(name), KEPT, reason, found.record.seconds, found.cost)

    def _why_kept(self, found: Finish, changed: Mapping[str, str]) -> str:
        record, node = found.record, found.node
        if record.skipped:
            return f"passed over: {record.skipped}"
        why = "finished" if not record.origin else f"adopted from {record.origin!r}"
        new = name_now(node, self._remap)
        if not self._run.outline:
            return why
        if new != node:
            why += f"; it is called {new!r} now"
        if node in outline_names(self._run.outline) and new not in outline_names(self._now.outline):
            return f"{why}; the graph no longer has it"
        return f"{why}; {changed[new]}" if new in changed and changed[new] != NEW_NODE else why

    def _active(self, back: Rerun | None, run: RunState, changed: Mapping[str, str]) -> Iterator[PlannedStep]:
        """The steps that were not finished, and those that come next otherwise."""
        rules = self._now.rules
        if self._options.if_interrupted is not None:
            rules = dataclasses.replace(rules, if_interrupted=self._options.if_interrupted)
        finished = {**self._past.finishes, **self._past.spare}
        before = self._renamed()
        fates = Fates(self._now, rules, before, run, self._info.run, refused=bool(self._refused))
        for fate in fates.told():
            if fate.step in finished:
                continue
            reason = fate.reason
            why = changed.get(fate.node, "")
            if fate.what in (RERUN, NEXT):
                if why and why != NEW_NODE:
                    reason = f"{reason}; {why}"
                touched = sorted(set(self._options.update or ()) & self._reads(fate.node))
                if touched:
                    reason = f"{reason}; input changed: {', '.join(map(repr, touched))}"
                yield PlannedStep(
                    fate.step, fate.node, fate.what, reason, 0.0, 0.0, *self._expected(fate.node)
                )
            else:
                yield PlannedStep(fate.step, fate.node, fate.what, reason, fate.seconds, fate.cost)
        if back is not None:
            yield from self._left(back, run, {fate.step for fate in fates.told()} | set(finished))

    def _left(self, back: Rerun, run: RunState, known: set[str]) -> Iterator[PlannedStep]:
        """The steps that were under way, which the run comes to again after it was taken back."""
        now = set(outline_names(self._now.outline))
        for step, node, reason in Fates.under_way(self._renamed(), run):
            if step not in known and node not in now:
                yield PlannedStep(step, node, ORPHANED, f"removed: the graph no longer has it; {reason}")
            elif step not in known:
                why = back.nodes.get(node, reason)
                yield PlannedStep(step, node, RERUN, why, 0.0, 0.0, *self._expected(node))

    def _reads(self, node: str) -> set[str]:
        outline: Any = {"graph": self._now.outline}
        for part in node.split("/"):
            outline = outline.get("graph", {}).get("nodes", {}).get(part, {})
        return set(outline.get("reads") or self._options.update or ())

    def _nodes(self, changed: Mapping[str, str]) -> Iterator[PlannedStep]:
        """The nodes that the graph has now, and those that it no longer has and that did not run."""
        for node, reason in changed.items():
            if reason == NEW_NODE:
                yield PlannedStep("", node, NEW, "the graph has it now", 0.0, 0.0, *self._expected(node))
        now = set(outline_names(self._now.outline))
        for node in outline_names(self._run.outline):
            if name_now(node, self._remap) not in now:
                yield PlannedStep(
                    "", node, ORPHANED, "removed: the graph no longer has it, and it has not run"
                )

    def _expected(self, node: str) -> tuple[float | None, float | None]:
        """What a step of a node may take, by the mean of those before."""
        ran = [
            found
            for found in self._past.finishes.values()
            if name_now(found.node, self._remap) == node
            and not found.record.skipped
            and not found.record.origin
        ]
        if not ran:
            return None, None
        return sum(found.record.seconds for found in ran) / len(ran), sum(found.cost for found in ran) / len(
            ran
        )


def _was_passed(run: RunState, name: str) -> bool:
    """Whether a run has come to a step, or to one that it is in, before where it stands."""
    frame = run.root
    for path in accumulate(name.split("/"), "{}/{}".format):
        node, _, visit = path.rpartition("/")[2].partition("[")[0].rpartition("#")
        if path not in frame.active and frame.visits.get(node, 0) >= int(visit):
            return True
        if path not in run.frames:
            return False
        frame = run.frames[path]
    return False


def _total(expected: list[float | None]) -> float | None:
    known = [value for value in expected if value is not None]
    return sum(known) if len(known) == len(expected) else None
