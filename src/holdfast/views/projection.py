"""The projection of a journal into step facts: what a run has finished, what of it still counts, and what it cost.

A history is a chain of segments. A fork continues a segment of its parent, a rollback an earlier segment of the same
run, a promotion a segment of the fork; what is on the chain counts, everything else was undone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from holdfast.errors import CorruptJournal
from holdfast.journal.fold import apply, seconds_once
from holdfast.journal.journal import Journal
from holdfast.journal.records import (
    Forked,
    Record,
    Reset,
    Resumed,
    Reusing,
    RunEnded,
    RunStarted,
    Spent,
    StateEdited,
    Steered,
    StepCalled,
    StepFailed,
    StepFinished,
    StepStarted,
    WaveFinished,
)
from holdfast.journal.run_state import RunState, Spending, node_of, renamed_path
from holdfast.state.codec import Codec
from holdfast.state.ops import Cells, Op
from holdfast.stores.base import RunInfo
from holdfast.values import START, RunStatus
from holdfast.views.charges import Accounts, Charge, Portion, total

GIVEN = "its result was given"
"""The beginning of the reason of a skipped step whose result a person gave."""


class Inputs(NamedTuple):
    """What a step was given: the state of its graph, the run's config, and the outline of its node then."""

    cells: Cells
    config: bytes
    outline: Mapping[str, Any]


class FinishedStep(NamedTuple):
    """The end of a step: in which run, at which entry, with which changes, from which inputs, at which cost."""

    info: RunInfo
    seq: int
    record: StepFinished
    item: tuple[Op, ...]
    inputs: Inputs | None
    cost: float
    began: int = 0
    """When it began and ended, counted in records: a step that began after the end of another may depend on it."""
    ended: int = 0
    asked: bool = False
    """Whether a person answered it."""
    outline: Mapping[str, Any] = {}
    """The graph that it ran with."""
    added: int = 0
    """The entry at which a person added it to the run; 0 if the run came to it by itself."""
    charges: tuple[int, ...] = ()
    """Its charges, as indexes into those of its run."""
    is_call: bool = False
    """Whether a function called it."""

    @property
    def step(self) -> str:
        """The step's id."""
        return self.record.step

    @property
    def node(self) -> str:
        """The step's node, with those that it is nested in."""
        return node_of(self.record.step)


@dataclass(slots=True)
class Segment:
    """A part of a run's journal, from entry `start` on; it continues `base` at its entry `upto`."""

    info: RunInfo
    start: int
    base: Segment | None = None
    upto: int = 0
    finished: list[FinishedStep] = field(default_factory=list)
    followed: list[tuple[int, str, set[str]]] = field(default_factory=list)
    """The entries at which nodes were followed by others."""
    spare: dict[str, FinishedStep] = field(default_factory=dict)
    """The results that may be reused when the run comes to their steps."""
    forgotten: tuple[str, ...] = ()
    """The nodes that finished before what is stored."""
    lost: str = ""
    """Why no more is known of them."""
    origin: Segment | None = None
    """What a lost run, which this one continues, was forked from: its entries up to `upto` count, too."""

    def chain(self, upto: int = sys.maxsize) -> list[tuple[Segment, int]]:
        """Return the segments up to this one, oldest first, each with its last entry that counts."""
        found: list[tuple[Segment, int]] = []
        segment = self
        while True:
            found.append((segment, upto))
            if segment.base is None:
                return found[::-1]
            upto, segment = segment.upto, segment.base

    def finishes(self, upto: int = sys.maxsize) -> dict[str, FinishedStep]:
        """Return the last finish of each step that counts at an entry, in order."""
        found: dict[str, FinishedStep] = {}
        for segment, end in self.chain(upto):
            for each in segment.finished:
                if each.seq <= end:
                    found.pop(each.step, None)
                    found[each.step] = each
        return found

    def all_followed(self) -> dict[str, set[str]]:
        """Return the nodes that were seen to follow each node."""
        found: dict[str, set[str]] = {}
        for segment, end in self.chain():
            for seq, node, targets in segment.followed:
                if seq <= end:
                    found.setdefault(node, set()).update(targets)
        return found

    def spare_at(self, upto: int = sys.maxsize) -> dict[str, FinishedStep]:
        """Return the results that may still be reused at an entry."""
        taken = {each.step for each in self.finished if each.seq <= upto}
        return {name: each for name, each in self.spare.items() if name not in taken}


@dataclass(slots=True)
class Projection:
    """What is known of a run up to some entry."""

    info: RunInfo
    segment: Segment
    finishes: dict[str, FinishedStep]
    """Each step's last finish that counts, in order."""
    spare: dict[str, FinishedStep]
    """Results that were put aside for reuse, and whose steps the run has not come to yet."""
    followed: dict[str, set[str]]
    """The nodes that were seen to follow each node."""
    run: RunState
    seq: int
    """The last entry that was read."""
    clock: int
    """How many records were read, those of the runs that it was forked from included."""
    begun: RunStarted | None
    events: list[tuple[RunInfo, int, Record]]
    """The failures, costs and interventions of this run and of those that it was forked from."""
    charges: tuple[Charge, ...]
    """What the run used up by its own journal."""
    inherited: Spending
    """What the runs that it was forked from had spent by then."""
    kept: Portion
    """The finished steps that it stands on, inherited ones included."""
    saved: Portion
    """Those that were finished when it was last resumed."""
    resumes: int
    executed_seconds: float
    """The time from the begin of each execution to its end."""
    bodies: Mapping[str, tuple[Op, ...]]
    """The finished steps that ran a function which called others, each with what it was called with."""

    @property
    def forgotten(self) -> tuple[str, ...]:
        """The nodes of steps of which only this is known: they finished before what is stored."""
        return self.segment.chain()[0][0].forgotten

    @property
    def lost(self) -> str:
        """Why no more is known of the forgotten nodes; empty if nothing is forgotten."""
        return self.segment.chain()[0][0].lost

    def counts(self, key: bytes, seq: int) -> bool:
        """Return True if an entry of a run, by its key, is a part of this history that was not undone."""
        chain = self.segment.chain()
        return any(part.info.key == key and part.start <= seq <= end for part, end in chain)

    def renamed(self, remap: Mapping[str, str]) -> Projection:
        """Return the same with the steps known by the names that their nodes have now."""
        followed = {
            renamed_node(name, remap): {renamed_node(each, remap) for each in names}
            for name, names in self.followed.items()
        }
        finishes, spare = _renamed(self.finishes, remap), _renamed(self.spare, remap)
        return replace(self, finishes=finishes, spare=spare, followed=followed)

    def written(self) -> dict[str, set[str]]:
        """Return the keys that the finished steps of each node have written."""
        found: dict[str, set[str]] = {}
        for finish in self.finishes.values():
            found.setdefault(finish.node, set()).update(op.key for op in finish.record.ops)
        return found

    def available(self, after: int, remap: Mapping[str, str]) -> dict[str, FinishedStep]:
        """Return the results that another run may reuse: what is put aside, and what finished after an entry."""
        late = {
            name: each
            for name, each in self.finishes.items()
            if not after or (each.info.key == self.info.key and each.seq > after)
        }
        return _renamed({**self.spare, **late}, remap)


def project(
    journal: Journal,
    codec: Codec,
    info: RunInfo,
    upto: int | None = None,
    *,
    inputs: bool = False,
    values: bool = True,
    parents: bool = True,
) -> Projection:
    """Return the projection of a run, up to and with entry `upto`.

    With `inputs` also what its steps were given. Without `values` the changes that steps made are left out, and without
    `parents` what the run inherited.
    """
    return _Projector(journal, codec, inputs, values).project(info, upto, parents)


class _Projector:
    """The projections of several runs, each made once."""

    def __init__(self, journal: Journal, codec: Codec, inputs: bool, values: bool) -> None:
        self.journal, self.codec, self.inputs, self.values = journal, codec, inputs, values
        self._known: dict[tuple[bytes, int | None], Projection | None] = {}

    def project(self, info: RunInfo, upto: int | None, parents: bool = True) -> Projection:
        place = info.key, upto
        if place not in self._known:
            self._known[place] = None
            self._known[place] = self.journal.read_whole(
                info.run, lambda: _Reader(self, info, parents).read(upto)
            )
        found = self._known[place]
        if found is None:
            raise CorruptJournal(f"run {info.run!r} continues itself", run=info.run)
        return found


class _Reader:
    """One run being read, record by record."""

    def __init__(self, projector: _Projector, info: RunInfo, parents: bool) -> None:
        self._projector, self._info, self._parents = projector, info, parents
        self._run = RunState()
        self._own: list[Segment] = []
        """The segments of this run, in the order of their first entries."""
        self._accounts = Accounts(info)
        self._events: list[tuple[RunInfo, int, Record]] = []
        self._clock = 0
        self._begun: RunStarted | None = None
        self._inputs: dict[str, Inputs] = {}
        self._costs: dict[str, float] = {}
        self._began: dict[str, int] = {}
        self._pairs: set[tuple[str, str]] = set()
        """The nodes that are known to have been called after each other since the run was last set back."""
        self._bodies: dict[str, tuple[Op, ...]] = {}
        self._added: dict[str, int] = {}
        """By step that a person added to the run, the entry."""
        self._edit: StateEdited | None = None
        """The last change of the state from outside, which may be what a step is to have returned."""
        self._undone: dict[str, FinishedStep] | None = None
        """The results that the run was just taken back behind, until it says which of them are reused."""
        self._inherited, self._base, self._saved = Spending(), Portion(), Portion()
        self._resumes, self._executed, self._last = 0, 0.0, 0.0
        self._execution: float | None = None
        """When the execution began that has not ended."""

    def read(self, upto: int | None) -> Projection:
        """Read the run up to an entry."""
        self._run, history = self._projector.journal.history(self._info, self._projector.codec, upto)
        seq = 0
        for entry, found in history:
            if not self._own:
                self._open_first(entry.seq, entry.at)
            for record in found:
                self._take(record, entry.seq, entry.at)
                apply(self._run, record, entry.at)
                self._taken(record, entry.seq)
            seq, self._last = entry.seq, entry.at
        if not self._own:
            self._own.append(Segment(self._info, 0))
        if self._run.status == RunStatus.RUNNING:
            self._end_execution(self._last)
        segment = self._own[-1]
        return Projection(
            info=self._info,
            segment=segment,
            finishes=segment.finishes(),
            spare=segment.spare_at(),
            followed=segment.all_followed(),
            run=self._run,
            seq=seq,
            clock=self._clock,
            begun=self._begun,
            events=self._events,
            charges=self._accounts.closed(self._counts()),
            inherited=self._inherited,
            kept=self._accounts.portion(self._base, self._counts()),
            saved=self._saved,
            resumes=self._resumes,
            executed_seconds=self._executed,
            bodies=self._bodies,
        )

    def _open_first(self, seq: int, at: float) -> None:
        run = self._run
        if not run.frames:
            self._own.append(Segment(self._info, 0))
            return
        self._continue_lost(seq, run, f"run {self._info.run!r} was pruned")
        self._accounts.begin_with(run, at)
        self._inherited = total(*run.inherited.values())
        self._base = Portion(run.steps_done, run.seconds, total(*run.spending.values()).cost)
        self._execution = at if run.owner else None

    def _take(self, record: Record, seq: int, at: float) -> None:
        """Learn from a record that is about to be applied to the run."""
        self._clock += 1
        if isinstance(record, StepFailed):
            record = record._replace(seconds=seconds_once(self._run, record))
        self._accounts.take(record, at)
        if isinstance(record, (StepFailed, Spent, StateEdited, Steered, Reset)):
            self._events.append((self._info, seq, record))
        match record:
            case StepStarted(step=step):
                self._began[step] = self._clock
                self._look(step)
            case Spent(step=step):
                self._costs[step] = self._costs.get(step, 0.0) + (record.cost or 0.0)
            case StepFinished():
                self._finish(record, seq, at)
            case StepCalled(frame=frame, node=node):
                self._follow_call(frame, node, seq)
            case WaveFinished(frame=frame):
                names = self._run.frames[frame].active if record.steps is None else record.steps
                prefix = f"{node_of(frame)}/" if frame else ""
                targets = {prefix + target.node for target in record.next}
                self._own[-1].followed += [(seq, node_of(name), targets) for name in names]
            case RunStarted():
                self._begun, self._execution = record, at
            case Forked():
                self._fork(record, seq)
                self._execution = at
            case Reset():
                self._reset(record, seq)
            case Reusing():
                self._reuse(record, seq)
            case Resumed():
                self._end_execution(self._last)
                self._execution = at
                kept = self._accounts.portion(self._base, self._counts())
                if kept.steps:
                    self._resumes, self._saved = self._resumes + 1, kept
            case RunEnded():
                self._end_execution(at)

    def _follow_call(self, path: str, node: str, seq: int) -> None:
        """Learn that a step which a function calls may depend on all that was called before, by outer functions too."""
        called = f"{node_of(path)}/{node}"
        while path:
            frame, prefix = self._run.frames.get(path), node_of(path)
            if frame is not None and not frame.is_body:
                return
            for before in frame.visits if frame is not None else ():
                pair = f"{prefix}/{before}", called
                if pair not in self._pairs:
                    self._pairs.add(pair)
                    self._own[-1].followed.append((seq, pair[0], {pair[1]}))
            path = path.rpartition("/")[0]

    def _taken(self, record: Record, seq: int) -> None:
        """Learn from a record that was applied to the run."""
        if isinstance(record, StateEdited):
            self._edit = record
        elif isinstance(record, Steered):
            steps = self._run.frames[record.frame].active
            new = list(steps)[len(steps) - len(record.add) :] if not record.uncounted else ()
            self._added |= dict.fromkeys(new, seq)
        else:
            self._edit = None

    def _look(self, step: str) -> None:
        if self._projector.inputs:
            frame = self._run.frames[self._run.step(step).frame]
            outline = node_outline(self._run.outline, node_of(step))
            self._inputs[step] = Inputs(frame.cells, self._run.config, outline)

    def _finish(self, record: StepFinished, seq: int, at: float) -> None:
        name, segment = record.step, self._own[-1]
        before = segment.spare.get(name) if record.origin else None
        is_own = before is not None and before.info.key == self._info.key
        charges = self._accounts.finish(
            record, seq, at, before.charges if before is not None and is_own else ()
        )
        if record.promoted and self._run.frames[name].is_body:
            self._bodies[name] = self._run.step(name).item
        if record.promoted or name.rpartition("/")[2].startswith(START):
            return
        if name not in self._inputs:
            self._look(name)
        step, outline = self._run.step(name), before.outline if before is not None else self._run.outline
        if self._edit is not None and record.skipped.startswith(GIVEN) and not record.ops:
            record = record._replace(ops=self._edit.ops)
        found = FinishedStep(
            self._info,
            seq,
            record if self._projector.values else record._replace(ops=()),
            step.item,
            self._inputs.pop(name, None),
            self._costs.pop(name, 0.0),
            self._began.pop(name, self._clock),
            self._clock,
            bool(step.answers),
            outline,
            self._added.pop(name, 0),
            charges,
            self._run.frames[step.frame].is_body,
        )
        segment.finished.append(found)

    # Where a history continues.

    def _fork(self, record: Forked, seq: int) -> None:
        self._inherited = total(*record.run.spending.values())
        self._base = Portion(record.run.steps_done, record.run.seconds, self._inherited.cost)
        parent = self._projector.journal.store.runs(key=record.key) if record.key and self._parents else []
        if not parent:
            self._continue_lost(seq, record.run, "", (record.parent, record.seq))
            return
        base = self._projector.project(parent[0], record.seq)
        self._own.append(Segment(self._info, seq, base.segment, record.seq))
        self._clock, self._begun = max(self._clock, base.clock), base.begun
        self._bodies = {**base.bodies, **self._bodies}
        self._events = [*base.events, *self._events]

    def _continue_lost(
        self, seq: int, run: RunState, lost: str, parent: tuple[str, int] | None = None
    ) -> None:
        """Open the first segment where what came before it, in this run or in its parent, is not stored."""
        base, (name, upto) = None, parent or run.parent or ("", 0)
        if name:
            if parent or not self._projector.journal.store.runs(key=self._info.parent):
                lost = f"run {name!r}, which run {self._info.run!r} was forked from, is gone"
            info = replace(self._info, run=name, key=self._info.parent, parent=b"")
            base = Segment(info, 0, forgotten=tuple(run.path), lost=lost)
        self._own.append(Segment(self._info, seq, base, upto, forgotten=tuple(run.path), lost=lost))

    def _reset(self, record: Reset, seq: int) -> None:
        last = self._own[-1]
        before = {**last.spare_at(), **last.finishes()}
        if record.is_of(self._info.run):
            base = self._own_at(record.seq)
        else:
            base = self._elsewhere(record)
        if base is None:
            name, (parent, upto) = record.source or self._info.run, record.run.parent or ("", 0)
            lost = f"what run {name!r} did up to its entry {record.seq} is no longer stored"
            origin = self._own_at(upto) if parent == self._info.run else None
            for info in self._projector.journal.store.runs(run=parent) if parent and origin is None else ():
                origin = self._projector.project(info, upto).segment
            path = tuple(record.run.path)
            segment = Segment(self._info, seq, None, upto, forgotten=path, lost=lost, origin=origin)
        else:
            segment = Segment(self._info, seq, base, record.seq, spare=base.spare_at(record.seq))
        self._own.append(segment)
        known = segment.finishes()
        self._undone = {name: each for name, each in before.items() if name not in known}
        self._inputs, self._costs, self._began, self._added = {}, {}, {}, {}
        self._pairs.clear()

    def _own_at(self, seq: int) -> Segment | None:
        return next((each for each in reversed(self._own) if each.start <= seq), None)

    def _elsewhere(self, record: Reset) -> Segment | None:
        """Return the segment of the other run that this one continues; `None` if it is not all stored any more."""
        store = self._projector.journal.store
        for info in store.runs(key=record.key) if record.key else store.runs(run=record.source):
            found = self._projector.project(info, record.seq)
            if found.seq == record.seq:
                self._clock = max(self._clock, found.clock)
                return found.segment
        return None

    def _reuse(self, record: Reusing, seq: int) -> None:
        """Put aside the results that may be reused."""
        last, remap = self._own[-1], dict(record.remap)
        if record.rerun is not None:
            pool: dict[str, FinishedStep] = {}
            if not record.source or record.key == self._info.key:
                pool = _renamed(last.spare_at() if self._undone is None else self._undone, remap)
            else:
                for info in self._projector.journal.store.runs(key=record.key):
                    pool = self._projector.project(info, record.upto).available(record.after, remap)
            known, again = last.finishes(), set(record.rerun)
            spare = {
                name: each
                for name, each in pool.items()
                if name not in known and not {name, node_of(name)} & again
            }
            self._own.append(Segment(self._info, seq, last, seq, spare=spare))
        self._undone = None

    # Executions.

    def _end_execution(self, at: float) -> None:
        if self._execution is not None:
            self._executed += max(0.0, at - self._execution)
        self._execution = None

    def _counts(self) -> Callable[[int], bool]:
        """Return what tells whether an entry of this run counts where it stands."""
        chain = self._own[-1].chain()
        while (origin := chain[0][0].origin) is not None:
            chain = [*origin.chain(chain[0][0].upto), *chain]
        own = [(part.start, end) for part, end in chain if part.info.key == self._info.key]
        return lambda seq: any(start <= seq <= end for start, end in own)


def _renamed(finishes: dict[str, FinishedStep], remap: Mapping[str, str]) -> dict[str, FinishedStep]:
    """Return steps by the names that they have after nodes were renamed."""
    if not remap:
        return finishes
    names = {name: renamed_path(name, remap) for name in finishes}
    return {
        names[name]: each._replace(record=each.record._replace(step=names[name]))
        for name, each in finishes.items()
    }


def renamed_node(node: str, remap: Mapping[str, str]) -> str:
    """Return what a node, `outer/inner` if it is nested, is called after some were renamed."""
    if not remap:
        return node
    return node_of(renamed_path("/".join(f"{part}#1" for part in node.split("/")), remap))


def node_outline(outline: Mapping[str, Any], node: str) -> Mapping[str, Any]:
    """Return what an outline says of a node, `outer/inner` if it is nested; nothing if it does not know it."""
    found: Mapping[str, Any] = {"graph": outline}
    for part in node.split("/"):
        found = found.get("graph", {}).get("nodes", {}).get(part, {})
    return found
