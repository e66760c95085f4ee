"""What two runs did differently: where they part, the steps that only one ran, results, time, money, code."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from holdfast.errors import CodecError, CorruptJournal
from holdfast.graph.graph import base_name
from holdfast.journal.checkpoint_ids import checkpoint_id, read_mark
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.records import Record, Reset, Spent, StateEdited, Steered, StepFailed, StepFinished
from holdfast.journal.run_state import Spending
from holdfast.state.ops import Op
from holdfast.state.standard_types import Allowance
from holdfast.stores.base import RunInfo
from holdfast.values import START
from holdfast.views.diff.changes import Difference
from holdfast.views.diff.difference import difference
from holdfast.views.diff.states import PLAIN_CODEC, StateDifference, state_difference
from holdfast.views.family import Branch, Stretch, entries_of, lineage, parting
from holdfast.views.history import Happening
from holdfast.views.plain import View, size_text
from holdfast.views.usage import total

MOST_DIFFERENCES = 100
"""Of more steps whose results differ only the names are told."""


@dataclass(frozen=True, slots=True)
class Tale(View):
    """What one of the two runs did since they parted."""

    JSON: ClassVar[str] = (
        "run_id workflow status steps seconds failed_attempts *spending whole_cost interventions"
    )
    run_id: str
    workflow: str
    status: str
    steps: int
    """How many steps it finished."""
    seconds: float
    """How long those took."""
    failed_attempts: int
    spending: Spending
    whole: Spending
    """What it used up since its beginning, in the runs that it was forked from, too."""
    interventions: tuple[str, ...]
    """What was done to it from outside."""

    @property
    def whole_cost(self) -> float:
        """US dollars since its beginning."""
        return self.whole.cost


@dataclass(frozen=True, slots=True)
class StepDifference(View):
    """A step that both ran, and whose results differ; `result` is `None` if they were not looked into."""

    JSON: ClassVar[str] = "step result=tree reason"

    step: str
    result: Difference | None
    reason: str = ""

    @property
    def tree(self) -> dict[str, Any] | None:
        """What differs, as plain data."""
        return None if self.result is None else self.result.as_json()


@dataclass(frozen=True, slots=True)
class Comparison(View):
    """What two runs did differently since they parted, or, if they are not related, at all."""

    JSON: ClassVar[str] = (
        "one other related=is_related ancestor diverging same only_one only_other differing code "
        "state problems"
    )
    one: Tale
    other: Tale
    ancestor: Branch | None
    """The last point that both have in common; `None` if they are not related."""
    diverging: str | None
    """The first step that only one of them ran, or whose result differs."""
    same: int
    """How many steps did the same in both."""
    only_one: tuple[str, ...]
    only_other: tuple[str, ...]
    differing: tuple[StepDifference, ...]
    code: Mapping[str, str]
    """The nodes whose code differs, with the reason."""
    state: StateDifference
    problems: tuple[str, ...]
    """What can no longer be told."""

    @property
    def is_related(self) -> bool:
        """Whether both come from one run."""
        return self.ancestor is not None


@dataclass(slots=True)
class _Done:
    """A step as it was finished last."""

    seq: int
    ops: tuple[Op, ...]
    how: tuple[Any, ...]
    digest: bytes
    seconds: float


@dataclass(slots=True)
class _Walk:
    """What a run did along its stretches."""

    steps: dict[str, _Done] = field(default_factory=dict)
    failed: int = 0
    spent: list[Spending] = field(default_factory=list)
    interventions: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def follow(self, journal: Journal, stretches: list[Stretch], after: int) -> None:
        for stretch in stretches:
            own: dict[str, int] = {}
            try:
                for entry, records in entries_of(journal, stretch, after, PLAIN_CODEC):
                    for record in records:
                        self._take(record, entry.seq, stretch.name, own)
                        if isinstance(record, Reset):
                            self._reset(journal, record, entry.seq, stretch, after, own)
            except CorruptJournal as error:
                self.problems.append(f"what {stretch.name} did can no longer be told as a whole: {error}")
            after = 0

    def _take(self, record: Record, seq: int, run: str, own: dict[str, int]) -> None:
        match record:
            case StepFinished(step=step) if not step.rpartition("/")[2].startswith(START):
                self.steps.pop(step, None)
                self.steps[step] = _done(record, seq)
                own[step] = seq
            case StepFailed():
                self.failed += 1
            case Spent(calls=calls, cost=cost):
                tokens = (record.input_tokens, record.output_tokens)
                self.spent.append(Spending(calls, *tokens, cost or 0.0, calls * (cost is None)))
            case StateEdited() | Steered() | Reset():
                self._tell(record, run)

    def _reset(
        self, journal: Journal, record: Reset, seq: int, stretch: Stretch, after: int, own: dict[str, int]
    ) -> None:
        """Take over what was done up to the place that the run was set to, its own or a fork's, and nothing else."""
        back, theirs = record.seq, list[Stretch]()
        if not record.is_of(stretch.name):
            back, theirs = _since(journal, record, stretch.name)
        walk = _Walk()
        if back > after:
            walk.follow(journal, [stretch._replace(upto=back)], after)
        walk.follow(journal, theirs, 0)
        for step in own:
            self.steps.pop(step, None)
        own.clear()
        own.update(dict.fromkeys(walk.steps, seq))
        self.steps |= walk.steps
        self.problems += walk.problems

    def _tell(self, record: Record, run: str) -> None:
        happening = Happening(run)
        happening.take(record)
        self.interventions += happening.over().told


def _since(journal: Journal, record: Reset, run: str) -> tuple[int, list[Stretch]]:
    """The entry at which a fork that was promoted left a run, and the stretches that it went since, oldest first."""
    found = journal.store.runs(key=record.key) if record.key else journal.store.runs(run=record.source)
    line = lineage(journal, found[0], record.seq, PLAIN_CODEC) if found else []
    for place, stretch in enumerate(line):
        if stretch.name == run:
            return stretch.upto or 0, line[:place][::-1]
    return 0, [Stretch(record.source, b"", None, record.seq)]


def _done(record: StepFinished, seq: int) -> _Done:
    digest = hashlib.blake2b(digest_size=16)
    goto = None if record.goto is None else tuple((target.node, target.key) for target in record.goto)
    how = (goto, bool(record.skipped))
    digest.update(repr(how).encode("utf-8", "backslashreplace"))
    for op in record.ops:
        digest.update(f"{op.kind}\n{op.key}\n{op.limit}\n{len(op.raw)}\n".encode("utf-8", "backslashreplace"))
        digest.update(op.raw)
    return _Done(seq, record.ops, how, digest.digest(), record.seconds)


def comparison(
    journal: Journal,
    one: tuple[RunInfo, int | None],
    other: tuple[RunInfo, int | None],
    code: Mapping[str, str],
) -> Comparison:
    """Compare two runs, each as it stands or as it stood at an entry. `code` says which nodes' code differs."""
    loaded = [journal.load(info, PLAIN_CODEC, seq) for info, seq in (one, other)]
    lines = [lineage(journal, info, seq, PLAIN_CODEC) for info, seq in (one, other)]
    point = parting(journal, *lines)
    walks = [_Walk(), _Walk()]
    stretches = [line[::-1] for line in lines] if point is None else [point.ones, point.others]
    for walk, own in zip(walks, stretches, strict=True):
        walk.follow(journal, own, point.seq if point is not None else 0)
    ancestor = None
    if point is not None:
        ancestor = _branch(journal, point.name, point.info, point.seq)
    mine, theirs = walks[0].steps, walks[1].steps
    allowance = Allowance()
    state = state_difference(loaded[0], loaded[1], allowance=allowance)
    unlike = [step for step, done in mine.items() if step in theirs and theirs[step].digest != done.digest]
    return Comparison(
        _tale(loaded[0], walks[0]),
        _tale(loaded[1], walks[1]),
        ancestor,
        _diverging(mine, theirs),
        len(mine.keys() & theirs.keys()) - len(unlike),
        tuple(step for step in mine if step not in theirs),
        tuple(step for step in theirs if step not in mine),
        tuple(_step(step, mine[step], theirs[step], place, allowance) for place, step in enumerate(unlike)),
        code,
        state,
        tuple(dict.fromkeys([*walks[0].problems, *walks[1].problems])),
    )


def _branch(journal: Journal, name: str, info: RunInfo | None, seq: int) -> Branch:
    if info is None:
        return Branch(name, seq, is_there=False)
    marks = journal.store.marks(info.run, seq + 1, 1)
    if not marks:
        return Branch(name, seq)
    point = read_mark(info.key, marks[0], info.run)
    return Branch(name, seq, checkpoint_id(info.key, point.seq), point.run_wave, point.nodes)


def _tale(loaded: Loaded, walk: _Walk) -> Tale:
    run = loaded.run
    return Tale(
        loaded.info.run,
        loaded.info.workflow,
        str(run.status),
        len(walk.steps),
        sum(done.seconds for done in walk.steps.values()),
        walk.failed,
        total(*walk.spent),
        total(*run.spending.values()),
        tuple(walk.interventions),
    )


def _diverging(mine: Mapping[str, _Done], theirs: Mapping[str, _Done]) -> str | None:
    """The first step, in the order of either, that the other did not do, or did otherwise."""
    found = []
    for steps, others in ((mine, theirs), (theirs, mine)):
        for place, (step, done) in enumerate(steps.items()):
            if step not in others or others[step].digest != done.digest:
                found.append((place, step))
                break
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _step(step: str, mine: _Done, theirs: _Done, place: int, allowance: Allowance) -> StepDifference:
    if mine.how != theirs.how:
        reason = (
            "it was passed over in one of them"
            if mine.how[1] != theirs.how[1]
            else "it led on to other steps"
        )
        return StepDifference(step, None, reason)
    if place >= MOST_DIFFERENCES:
        return StepDifference(step, None)
    raws = [op.raw for done in (mine, theirs) for op in done.ops if op.kind != "drop"]
    if not allowance.takes(*raws):
        return StepDifference(step, None, f"{size_text(sum(map(len, raws)))}, not compared")
    try:
        return StepDifference(step, difference(_values(mine.ops), _values(theirs.ops)))
    except CodecError as error:
        return StepDifference(step, None, f"it cannot be read here: {error}")


def _values(ops: tuple[Op, ...]) -> dict[str, Any]:
    """What a step did to which key; a key that it only adds to is told with the kind of that."""
    found: dict[str, Any] = {}
    for op in ops:
        name = op.key if op.kind == "set" else f"{op.key} ({op.kind})"
        found[name] = None if op.kind == "drop" else PLAIN_CODEC.decode(op.raw)
    return found


def step_name(step: str) -> str:
    """A step as people name it: without the visit, if it is the first."""
    return "/".join(base_name(part).removesuffix("#1") for part in step.split("/"))
