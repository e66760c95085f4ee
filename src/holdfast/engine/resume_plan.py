"""What a resume would do with every step of a run, and why, before it does anything."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any

from holdfast import clock
from holdfast.engine.blocking import run_blocking
from holdfast.engine.decide import (
    MAX_CRASHES,
    AskWhat,
    ExceedIterations,
    Gate,
    OpenFrame,
    Reconcile,
    RefuseStep,
    RouteOn,
    Rules,
    SkipStep,
    Start,
    decide,
    qualified,
)
from holdfast.engine.graph_changes import (
    NEW_NODE,
    changed_nodes,
    changes_between,
    check_names,
    graph_at,
    name_now,
    planned_migrations,
    reconcile,
)
from holdfast.engine.owner import describe, has_owner
from holdfast.engine.resume import (
    ResumeOptions,
    answered_now,
    as_journalled,
    find_run,
    is_at_rest,
    refuse_finished,
)
from holdfast.engine.settings import Settings
from holdfast.engine.time_travel.edits import Access
from holdfast.engine.time_travel.rerun import KEPT, RERUN, UNDONE, Rerun, RerunStep, Savings, plan_changes
from holdfast.engine.time_travel.reuse import ReusableSteps
from holdfast.engine.time_travel.rewind import restarted_graphs, rewind_records
from holdfast.errors import GraphChanged, HoldfastError, PlanOutdated, Remedy, RunFinished, StateInvalid
from holdfast.graph.graph import Graph, outline_names
from holdfast.journal.fold import apply
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.records import GraphChanged as Changed
from holdfast.journal.records import Resumed, RunStarted
from holdfast.journal.run_state import (
    DONE,
    EVERY_STEP,
    FAILED,
    GATED,
    IN_DOUBT,
    INTERRUPTED,
    MORE_ITERATIONS,
    RETRYING,
    RUNNING,
    STILL_IN_DOUBT,
    WAITING,
    RunState,
    Step,
    at_checkpoint,
    begun_onces,
    copy_run,
    forget_notes,
    node_of,
    step_id,
)
from holdfast.state.codec import Codec
from holdfast.values import END, START, RunStatus
from holdfast.views.projection import FinishedStep, node_outline, project

IN_QUESTION, ASKED, NEXT, ORPHANED, NEW = "in_doubt", "asked", "next", "orphaned", "new"
_STOPPED = "it was running when its process stopped"
_GONE = "the workflow no longer has it"


@dataclass(frozen=True, slots=True)
class PlannedStep(RerunStep):
    """One step and what becomes of it: kept, rerun, in_doubt, asked, next, orphaned or new.

    `seconds` and `cost` are what a finished step took; `expected_seconds` and `expected_cost` what one that is to
    run may take, by earlier steps of its node, or `None` if there were none. Of nodes that are new or gone, and of
    what finished before all that is stored, there is no step.
    """

    expected_seconds: float | None = None
    expected_cost: float | None = None


@dataclass(frozen=True, slots=True)
class ResumePlan(Savings[PlannedStep]):
    """What a resume would do. Hand it to `resume(…, plan=…)` to have exactly this done, or nothing."""

    run_id: str
    workflow: str
    status: str
    steps: tuple[PlannedStep, ...]
    changes: tuple[str, ...]
    """How the graph differs from the one that the run was saved with."""
    migrations: tuple[str, ...] = ()
    """How the state is migrated to the version that the graph has now."""
    back_to: int | None = None
    """The entry that the run is taken back to, to run again what changed."""
    refused: str = ""
    """Why the resume would be refused; empty if it would not."""
    remedies: tuple[Remedy, ...] = ()
    """What can be done about a refusal."""
    id: str = ""
    head: int = 0
    """The last entry of the run."""
    outline: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def seconds_to_come(self) -> float | None:
        """The time that the steps that are about to run may take; `None` if that is not known of all of them."""
        return _total([step.expected_seconds for step in self.of(RERUN, NEXT)])

    @property
    def cost_to_come(self) -> float | None:
        """US dollars that they may cost."""
        return _total([step.expected_cost for step in self.of(RERUN, NEXT)])


def _total(expected: list[float | None]) -> float | None:
    known = [value for value in expected if value is not None]
    return sum(known) if len(known) == len(expected) else None


# The steps that a run had not finished, by the very decisions that an execution would make.


class _Unfinished:
    """The steps of a run that are not finished: `before` as it was saved, `after` as it is when it goes on."""

    def __init__(
        self, settings: Settings, rules: Rules, before: RunState, after: RunState, name: str, *, refused: bool
    ) -> None:
        self._graph, self._after, self._refused = settings.graph, after, refused
        self._before = {step.id: step for step in before.active()}
        # A refused resume decides nothing, nor does one of a run whose open sub-graphs are gone; the rest is planned.
        decides = not refused and all(graph_at(settings.graph, path) is not None for path in after.frames)
        self._decisions = _decisions(settings.graph, after, rules) if decides else {}
        self._reusable = ReusableSteps.of(settings.journal, settings.graph, settings.codec, after, name)

    def steps(self) -> Iterator[PlannedStep]:
        """Yield every step that is about to run, waits, or is done, and what follows those that are done."""
        for step in self._after.active():
            if step.node != START and step.id not in self._after.frames:
                yield PlannedStep(step.id, qualified(step), *self._planned(step))
        yield from () if self._refused else self._following()

    def _planned(self, step: Step) -> tuple[str, str]:
        """Return what becomes of a step, and why."""
        inner = graph_at(self._graph, step.frame)
        if inner is None or step.node not in inner.nodes:
            if step.status == DONE and step.goto is not None:
                return KEPT, f"finished; {_GONE}"
            return ORPHANED, f"{_GONE}; put it back, or remap it to its new name"
        if step.status == DONE:
            return KEPT, "finished"
        if isinstance(self._decisions.get(step.id), Start) and self._reusable is not None:
            taken = self._reusable.taken(step)
            if taken is not None:
                return KEPT, f"reused from {taken.origin!r}"
        what, reason = self._decided(step)
        keys = ", ".join(map(repr, begun_onces(self._before.get(step.id, step))))
        return what, reason + (f"; in doubt inside it: once {keys}" if keys else "")

    def _decided(self, step: Step) -> tuple[str, str]:
        match self._decisions.get(step.id):
            case Start() | OpenFrame():
                return self._begun(step)
            case Gate():
                return ASKED, "it waits at a gate"
            case AskWhat(kind="poison"):
                times = f"{MAX_CRASHES} times by now: somebody has to say what to do with it"
                return ASKED, f"{_STOPPED}, {times}"
            case AskWhat(kind=kind) if kind == MORE_ITERATIONS:
                return ASKED, "the iterations are used up: somebody is asked for more"
            case AskWhat():
                return ASKED, f"{_STOPPED}; somebody is asked what to do with it"
            case SkipStep():
                return IN_QUESTION, f"{_STOPPED}; it is skipped"
            case RefuseStep():
                return IN_QUESTION, f"{_STOPPED} and may not be repeated unasked: the run fails"
            case Reconcile():
                return IN_QUESTION, f"{_STOPPED}; its own function looks whether it was done"
            case ExceedIterations(limit=limit):
                return IN_QUESTION, f"the iteration budget of {limit} is used up: the run fails before it"
        if step.status == GATED:
            return ASKED, "it waits at a gate"
        if step.status == WAITING:
            pauses = [pause for pause in self._after.pauses.values() if pause.step == step.id]
            prompts = "; ".join(pause.prompt or pause.kind for pause in pauses)
            return ASKED, f"it waits for an answer: {prompts}"
        what, reason = self._begun(step)
        return what, reason if self._refused else f"{reason}, when there is room"

    def _begun(self, step: Step) -> tuple[str, str]:
        """Return why a step is about to run."""
        before = self._before.get(step.id, step)
        in_doubt = before.status in (RUNNING, IN_DOUBT) or STILL_IN_DOUBT in before.notes
        if in_doubt or (before.status == WAITING and INTERRUPTED in step.answers):
            return RERUN, f"{_STOPPED}; it runs again"
        if before.status == FAILED:
            return RERUN, f"it failed: {before.fault}"
        if before.status == RETRYING:
            return RERUN, f"attempt {before.attempt} failed: {before.fault}"
        if before.status == WAITING:
            return NEXT, "what it waited for is there"
        return NEXT, "its gate is passed" if before.status == GATED else "it comes next"

    def _following(self) -> Iterator[PlannedStep]:
        """Yield the steps that follow, or may follow, finished waves whose routing is not decided yet."""
        for decision in self._decisions.values():
            if not isinstance(decision, RouteOn):
                continue
            frame, graph = decision.frame, graph_at(self._graph, decision.frame.path)
            prefix = f"{node_of(frame.path)}/" if frame.path else ""
            for name in (decision.steps or frame.active) if graph is not None else ():
                step = frame.active[name]
                for target, is_certain in _targets(graph, step).items():
                    how = "follows" if is_certain else "may follow"
                    yield PlannedStep("", prefix + target, NEXT, f"it {how} {step.node!r}")


def _targets(graph: Graph | None, step: Step) -> dict[str, bool]:
    """Return the nodes that come after a step, and whether each of them is certain to."""
    assert graph is not None
    if step.goto is not None:
        return dict.fromkeys((chosen.node for chosen in step.goto), True)
    only = graph.only_next.get(step.node)
    if only is not None:
        return {only: True} if only != END else {}
    found = {edge.target: edge.when is None for edge in graph.edges_from.get(step.node, ())}
    route = graph.route_from.get(step.node)
    found |= dict.fromkeys((route.mapping or {}).values() if route is not None else (), False)
    found |= {join.target: False for join in graph.joins_from.get(step.node, ())}
    return {target: is_certain for target, is_certain in found.items() if target != END}


def _under_way(run: RunState, later: RunState) -> Iterator[tuple[str, str, str]]:
    """Yield the steps of a run that are not finished: id, node, and what became of them.

    The id is the one that a step has when the run comes to its node again from where it is `later`.
    """
    for step in run.active():
        if step.node != START and step.status != DONE and step.id not in run.frames:
            why = f"it failed: {step.fault}" if step.fault is not None else "it had not finished"
            frame = later.frames.get(step.frame)
            stays = frame is None or step.id in frame.active
            visit = step.visit if frame is None or stays else frame.visits.get(step.node, 0) + 1
            yield step_id(step.frame, step.node, visit, step.key), qualified(step), why


def _decisions(graph: Graph, run: RunState, rules: Rules) -> dict[str, Any]:
    """Return what is decided first about each step, and, by its path, about each frame."""
    found: dict[str, Any] = {}
    for decision in decide(graph, run, rules):
        if isinstance(decision, RouteOn):
            found[f"{decision.frame.path}:on"] = decision
        elif isinstance(decision, ExceedIterations):
            found |= dict.fromkeys(decision.frame.active, decision)
        elif (step := getattr(decision, "step", None)) is not None:
            found[step.id] = decision
    return found


# What the plan of a resume was made of, in a short text, and what is different when it no longer holds.


_NO_MATTER = ("plan", "takeover", "approve")
_PARTS = 5


def identity_of(loaded: Loaded, options: ResumeOptions, outline: Any, outcomes: Sequence[Any]) -> str:
    """The id of a plan: the run's last entry and its checksum, and digests of options, graph and what was planned."""
    given = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(options)
        if field.name not in _NO_MATTER and not any(getattr(options, field.name) is x for x in (None, False))
    }
    parts = (
        str(loaded.seq),
        loaded.chain.hex()[:8],
        _digest(given),
        _digest(outline),
        _digest(list(outcomes)),
    )
    return "-".join(parts)


def what_moved(journal: Journal, codec: Codec, run: str, given: str, now: str) -> list[str]:
    """What is different from when a plan was made, in words; empty if nothing is."""
    if given == now:
        return []
    then, current = given.split("-"), now.split("-")
    if len(then) != _PARTS or not then[0].isdecimal():
        raise StateInvalid(
            f"{given!r} is not the id of a plan; plan_resume(…).id is one, and so is what --plan shows"
        )
    if then[0] != current[0]:
        return [
            f"the run advanced from entry {then[0]} to {current[0]}{_by(journal, codec, run, int(then[0]))}"
        ]
    if then[1] != current[1]:
        return ["it was made for another run, or for this one before its store was restored"]
    moved = []
    if then[2] != current[2]:
        moved.append("other options are given than it was made for")
    if then[3] != current[3]:
        moved.append("the workflow changed again")
    return moved or ["time has passed: what was waited for is over, or its owner changed"]


def _by(journal: Journal, codec: Codec, run: str, after: int) -> str:
    """Who advanced a run, if its journal tells."""

    def find() -> str:
        owner = ""
        for entry, found in journal.history(journal.info(run), codec)[1]:
            for record in found:
                if isinstance(record, (RunStarted, Resumed)) and (entry.seq > after or not owner):
                    owner = record.owner or owner
        return owner

    owner = journal.read_whole(run, find)
    return f" (executed by {describe(owner)})" if owner else ""


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def plan_resume(settings: Settings, target: str, options: ResumeOptions | None = None) -> ResumePlan:
    """The plan for what `target` names; a run that is completed, or not there, is refused."""
    options = options or ResumeOptions()
    options.check(settings.graph)
    return _Planner(settings, target, options).plan()


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


class _Planner:
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
        self._fitted = self._run
        """The run when it is made to fit the graph."""
        self._refused = ""
        self._remedies: tuple[Remedy, ...] = ()
        self._past = project(journal, codec, info, self._loaded.seq)
        self._remap = dict(options.remap or {})

    def plan(self) -> ResumePlan:
        run, saved = self._run, self._run.outline
        back = self._back()
        later = self._prepared(back)
        now = self._now.outline
        changes = changes_between(saved, now, self._remap) if saved else []
        changed = changed_nodes(saved, now, self._remap) if saved else {}
        steps = [*self._finished(back, changed), *self._unfinished(back, later, changed)]
        steps += self._reused_later(later, {step.step for step in steps})
        known = {node for step in steps for node in (step.node, step.node.rpartition("/")[0])}
        steps += [step for step in self._nodes(changed) if step.node not in known]
        outcomes = [(step.step, step.node, step.what) for step in steps] + [self._refused]
        return ResumePlan(
            run_id=self._info.run,
            workflow=self._info.workflow,
            status=str(run.status),
            steps=tuple(steps),
            changes=tuple(changes),
            migrations=tuple(self._migrations()),
            back_to=None if back is None else back.seq,
            refused=self._refused,
            remedies=self._remedies,
            id=identity_of(self._loaded, self._options, self._settings.outline, outcomes),
            head=self._loaded.seq,
            outline=self._settings.outline,
        )

    def _back(self) -> Rerun | None:
        """Return how far the run is taken back, if that is asked for and something changed."""
        back = None
        if self._options.rerun_changed and not self._forks:
            try:
                back = plan_changes(self._settings, self._loaded, self._options)
            except RunFinished:
                raise
            except HoldfastError as error:
                self._refused, self._remedies = error.problem, error.remedies
                return None
        if back is None and not self._forks:
            refuse_finished(self._info, unchanged=self._options.rerun_changed)
        return back

    # What is recorded before anything runs.

    def _prepared(self, back: Rerun | None) -> RunState:
        """Return the run as it will be when it goes on."""
        settings, run = self._settings, copy_run(self._run)
        if has_owner(settings.journal.store, self._info) and not self._options.takeover and not self._forks:
            self._refused = self._refused or f"it is being executed by {describe(self._info.owner)}"
        try:
            own, other = settings.graph.name, self._info.workflow
            if own != other and run.outline:
                raise GraphChanged(
                    f"run {self._info.run!r} is of workflow {other!r}, and this one is {own!r}"
                )
            check_names(self._info.run, run, settings.graph, self._remap)
            self._prepare(run, back)
        except HoldfastError as error:
            if not self._refused:
                self._refused, self._remedies = error.problem, error.remedies
            now = set(outline_names(settings.outline))
            self._remap = {old: new for old, new in self._remap.items() if new in now}
            run = self._renamed()
        return run

    def _renamed(self) -> RunState:
        """Return the run as it was saved, with the names that its nodes have now."""
        run = copy_run(self._run)
        apply(run, Changed(run.outline, tuple(self._remap.items())), run.updated_at)
        return run

    def _prepare(self, run: RunState, back: Rerun | None) -> None:
        settings, options, info, now = self._settings, self._options, self._info, clock.time()
        goes_back = back is not None and back.seq is not None
        found: list[Any] = []
        if goes_back or self._forks:
            options.refuse_answers("a run that is taken back, and asks again what it comes to,")
            if back is not None:
                found += rewind_records(Access.of(settings), back, "")
        else:
            found += answered_now(info, run, options, settings, sleeps=True)
            if is_at_rest(info, run, options, found, settings.rules.barrier):
                return
            if back is not None:
                found.insert(0, back.reusing())
        for record in found:
            apply(run, record, now)
        if goes_back:
            for record in run_blocking(lambda: restarted_graphs(settings, run, info.run, self._remap)):
                apply(run, record, now)
        self._fitted = copy_run(run)
        reconciled = reconcile(settings, run, info.run, options)
        self._now = reconciled.settings
        for record in reconciled.records:
            apply(run, record, now)
        approve = options.approve and info.status == RunStatus.PAUSED
        apply(run, Resumed("", approve), now)

    def _migrations(self) -> list[str]:
        try:
            return planned_migrations(self._fitted, self._now.graph, self._remap)
        except (HoldfastError, KeyError):
            return []

    # Steps.

    def _finished(self, back: Rerun | None, changed: Mapping[str, str]) -> Iterator[PlannedStep]:
        """Yield the finished steps, in order; of those before what is stored only the node is known."""
        again = {step.step: step for step in back.steps} if back is not None else {}
        for node in self._forgotten():
            yield PlannedStep("", node, KEPT, "finished")
        for name, found in {**self._past.finishes, **self._past.spare}.items():
            what, reason, took = KEPT, self._why_kept(found, changed), (found.record.seconds, found.cost)
            expected: tuple[float | None, float | None] = (None, None)
            if name in again and again[name].what == RERUN:
                what, reason, expected = RERUN, again[name].reason, self._expected(found.node)
            elif name in again and again[name].what == UNDONE:
                what, reason = ORPHANED, again[name].reason
            yield PlannedStep(name, found.node, what, reason, *took, *expected)

    def _forgotten(self) -> list[str]:
        """Return the nodes that finished before what is stored; those whose wave has not finished are steps."""
        nodes = list(self._past.forgotten)
        for step in self._run.active():
            if step.status == DONE and step.id not in self._past.finishes and step.node in nodes:
                nodes.remove(step.node)
        return nodes

    def _reused_later(self, run: RunState, known: set[str]) -> Iterator[PlannedStep]:
        """Yield the steps that another run finished, and whose results this one reuses when it comes to them."""
        reuse, settings = run.reuse, self._now
        if reuse is None or reuse.rerun is None or reuse.key in (b"", self._info.key):
            return
        reusable = ReusableSteps.of(settings.journal, settings.graph, settings.codec, run, self._info.run)
        for name, found in reusable.promised().items() if reusable is not None else ():
            if name not in known and not _was_passed(run, name):
                reason = f"reused from {found.record.origin or found.info.run!r}"
                yield PlannedStep(name, node_of(name), KEPT, reason, found.record.seconds, found.cost)

    def _why_kept(self, found: FinishedStep, changed: Mapping[str, str]) -> str:
        record, node = found.record, found.node
        if record.skipped:
            return f"passed over: {record.skipped}"
        why = "finished" if not record.origin else f"reused from {record.origin!r}"
        new = name_now(node, self._remap)
        if not self._run.outline:
            return why
        if new != node:
            why += f"; it is called {new!r} now"
        if node in outline_names(self._run.outline) and new not in outline_names(self._now.outline):
            return f"{why}; {_GONE}"
        return f"{why}; {changed[new]}" if new in changed and changed[new] != NEW_NODE else why

    def _unfinished(
        self, back: Rerun | None, run: RunState, changed: Mapping[str, str]
    ) -> Iterator[PlannedStep]:
        """Yield the steps that were not finished, and those that come next otherwise."""
        rules = self._now.rules
        if self._options.if_interrupted is not None:
            rules = dataclasses.replace(rules, if_interrupted=self._options.if_interrupted)
        known = {*self._past.finishes, *self._past.spare}
        saved, refused = self._renamed(), bool(self._refused)
        found = list(_Unfinished(self._now, rules, saved, run, self._info.run, refused=refused).steps())
        for step in found:
            if step.step not in known:
                yield self._explained(step, changed) if step.what in (RERUN, NEXT) else step
        if back is None:
            return
        known, now = known | {step.step for step in found}, set(outline_names(self._now.outline))
        # Steps that were under way, which the run comes to again after it was taken back.
        for name, node, reason in _under_way(saved, run):
            if name not in known and node not in now:
                yield PlannedStep(name, node, ORPHANED, f"removed: {_GONE}; {reason}")
            elif name not in known:
                why = back.nodes.get(node, reason)
                yield PlannedStep(name, node, RERUN, why, 0.0, 0.0, *self._expected(node))

    def _explained(self, step: PlannedStep, changed: Mapping[str, str]) -> PlannedStep:
        """Return a step that is about to run with what changed of it, and what it may take."""
        reason, why = step.reason, changed.get(step.node, "")
        if why and why != NEW_NODE:
            reason = f"{reason}; {why}"
        update = self._options.update or ()
        reads = node_outline(self._now.outline, step.node).get("reads") or update
        if touched := sorted(set(update) & set(reads)):
            reason = f"{reason}; input changed: {', '.join(map(repr, touched))}"
        seconds, cost = self._expected(step.node)
        return dataclasses.replace(step, reason=reason, expected_seconds=seconds, expected_cost=cost)

    def _nodes(self, changed: Mapping[str, str]) -> Iterator[PlannedStep]:
        """Yield the nodes that are new in the graph, and those that it no longer has and that did not run."""
        for node, reason in changed.items():
            if reason == NEW_NODE:
                yield PlannedStep("", node, NEW, "the workflow has it now", 0.0, 0.0, *self._expected(node))
        now = set(outline_names(self._now.outline))
        for node in outline_names(self._run.outline):
            if name_now(node, self._remap) not in now:
                yield PlannedStep("", node, ORPHANED, f"removed: {_GONE}, and it has not run")

    def _expected(self, node: str) -> tuple[float | None, float | None]:
        """Return what a step of a node may take, by the mean of those before."""
        ran = [
            found
            for found in self._past.finishes.values()
            if name_now(found.node, self._remap) == node
            and not found.record.skipped
            and not found.record.origin
        ]
        if not ran:
            return None, None
        return fmean(found.record.seconds for found in ran), fmean(found.cost for found in ran)


def _was_passed(run: RunState, name: str) -> bool:
    """Return True if a run has come to a step, or to one that it is in, before where it is."""
    frame = run.root
    for path in accumulate(name.split("/"), "{}/{}".format):
        node, _, visit = path.rpartition("/")[2].partition("[")[0].rpartition("#")
        if path not in frame.active and frame.visits.get(node, 0) >= int(visit):
            return True
        if path not in run.frames:
            return False
        frame = run.frames[path]
    return False
