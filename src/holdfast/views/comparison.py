"""What differs between two checkpoints, and what two runs did differently: steps, results, time, money, code."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import CodecError, StateInvalid
from holdfast.graph.graph import base_name
from holdfast.journal.checkpoint_ids import checkpoint_id
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.records import Record, Spent, StepFailed
from holdfast.journal.run_state import DONE, RunState, Spending
from holdfast.names import LazyModule
from holdfast.state.ops import Op, Slot
from holdfast.state.standard_types import Allowance
from holdfast.state.types import Handler, Types
from holdfast.stores.base import RunInfo
from holdfast.views.changes import Change, Difference, MapEdited
from holdfast.views.charges import spending_of, total
from holdfast.views.differences import difference
from holdfast.views.family import Branch
from holdfast.views.history import texts_of
from holdfast.views.patch import Operation, json_patch
from holdfast.views.plain import LenientCodec, View, size_text, when
from holdfast.views.projection import GIVEN, FinishedStep, Projection, project

if TYPE_CHECKING:
    from holdfast.views import notebook
else:
    notebook = LazyModule("views.notebook")

# What differs between two checkpoints: their states and positions.


FACTS = ("workflow", "status", "wave", "node", "next", "pauses")
"""The facts about two positions that are compared."""


class _NoTypes(Types):
    def named(self, name: str) -> Handler | None:
        return None


PLAIN_CODEC = LenientCodec(_NoTypes())
"""Reads every type of the user's as plain data, so that it is looked into, none of the user's code is run, and
differences are the same wherever they are made."""


@dataclass(frozen=True, slots=True)
class Side(View):
    """The position of a run at a checkpoint."""

    JSON: ClassVar[str] = "run_id workflow checkpoint_id status wave node next pauses at"
    run_id: str
    workflow: str
    checkpoint_id: str
    """The newest checkpoint there; empty before the first."""
    at: dt.datetime
    status: str
    wave: int
    node: str
    """The node that finished last."""
    next: tuple[str, ...]
    """The nodes that were under way or to run next."""
    pauses: tuple[str, ...]
    """The names of what it waited for."""

    @classmethod
    def of(cls, loaded: Loaded) -> Side:
        """The place of a run as loaded."""
        run = loaded.run
        open_steps = (step for step in run.active() if step.status != DONE)
        upcoming = [step.node for step in open_steps if step.id not in run.frames]
        return cls(
            loaded.info.run,
            loaded.info.workflow,
            checkpoint_id(loaded.info.key, run.saved_seq) if run.saved_seq else "",
            when(run.updated_at),
            str(run.status),
            run.root.waves,
            base_name(run.root.last_node),
            tuple(dict.fromkeys(map(base_name, upcoming))),
            tuple(pause.name or base_name(pause.node) for pause in run.pauses.values()),
        )


@dataclass(frozen=True, slots=True)
class StateDifference(View):
    """What differs between two checkpoints; false if the states do not. Values of user types are plain data in it."""

    JSON: ClassVar[str] = (
        "one other same changes=state.count facts=changed_facts state=state.as_json not_compared"
    )

    one: Side
    other: Side
    state: Difference
    before: Mapping[str, Any]
    """The values of the keys that differ, at the one checkpoint."""
    after: Mapping[str, Any]
    """The same at the other."""
    not_compared: Mapping[str, str]
    """The keys that were not compared, and why: they are too large together, or cannot be read."""

    def __bool__(self) -> bool:
        return bool(self.state) or bool(self.not_compared)

    @property
    def same(self) -> bool:
        """Whether the states are the same, as far as they were compared."""
        return not self

    def changed_facts(self) -> dict[str, dict[str, Any]]:
        """Return what else differs, by name."""
        return {name: {"from": one, "to": other} for name, (one, other) in self.facts.items()}

    @property
    def facts(self) -> dict[str, tuple[Any, Any]]:
        """What else differs: workflow, status, wave, node, next, pauses; each as it was and is."""
        pairs = {name: (getattr(self.one, name), getattr(self.other, name)) for name in FACTS}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def _repr_html_(self) -> str:
        return notebook.difference_html(self)

    @property
    def patch(self) -> list[Operation]:
        """The difference of the states as JSON Patch (RFC 6902), on what `holdfast show RUN --state` prints.

        It leaves out the keys of `not_compared`.
        """
        return json_patch(dict(self.before), dict(self.after))


def load_plainly(journal: Journal, info: RunInfo, seq: int | None = None) -> Loaded:
    """Return a run at an entry, for `state_difference`."""
    return journal.load(info, PLAIN_CODEC, seq)


def state_difference(
    one: Loaded, other: Loaded, keys: Sequence[str] = (), allowance: Allowance | None = None
) -> StateDifference:
    """What makes the root state of `one` that of `other`; with `keys` of those keys only.

    Both come from `load_plainly`. A value that is stored as the same bytes in both is not decoded. Unless their keys
    are named, values that `allowance` does not take are not compared.
    """
    allowance = allowance or Allowance()
    mine, theirs = one.run.root.cells, other.run.root.cells
    every = list(dict.fromkeys((*mine, *theirs)))
    wanted = _wanted(every, keys, hide=_is_of_file(one.run, allowance) or _is_of_file(other.run, allowance))
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    changed: dict[str, Change] = {}
    not_compared: dict[str, str] = {}
    for key in wanted:
        slots = [cells[key] for cells in (mine, theirs) if key in cells]
        stored = [slot.written() for slot in slots]
        if len(slots) == 2 and (slots[0] is slots[1] or (stored[0] is not None and stored[0] == stored[1])):
            continue
        raws = [raw for written in stored for _, raw, *_ in written or ()]
        if not keys and not allowance.takes(*raws):
            not_compared[key] = f"changed, {size_text(sum(map(len, raws)))}; name it with --key"
            continue
        try:
            values = list(map(_value, slots))
        except (CodecError, TypeError) as error:
            not_compared[key] = f"it cannot be read here: {error}"
            continue
        if len(slots) == 2:
            found = difference(*values).change
            if found is None:
                continue
            changed[key] = found
        if key in mine:
            before[key] = values[0]
        if key in theirs:
            after[key] = values[-1]
    state = MapEdited(
        {key: value for key, value in after.items() if key not in mine},
        {key: value for key, value in before.items() if key not in theirs},
        changed,
    )
    found_any = Difference(state if before or after else None)
    return StateDifference(Side.of(one), Side.of(other), found_any, before, after, not_compared)


def _wanted(every: Sequence[str], keys: Sequence[str], *, hide: bool) -> list[str]:
    """The keys to compare: those named, else all but what the helper nodes of a workflow file keep."""
    unknown = [key for key in keys if key not in every]
    if unknown:
        known = ", ".join(every) or "none"
        raise StateInvalid(f"neither state has a key {unknown[0]!r}; there are: {known}")
    if keys:
        return list(dict.fromkeys(keys))
    return [key for key in every if not hide or ":" not in key]


def _is_of_file(run: RunState, allowance: Allowance) -> bool:
    config = PLAIN_CODEC.decode(run.config) if run.config and allowance.takes(run.config) else {}
    return isinstance(config, Mapping) and isinstance(config.get("workflow_file"), Mapping)


def _value(slot: Slot) -> Any:
    written = slot.written()
    if written is not None and len(written) == 1 and written[0][0] == "set":
        return PLAIN_CODEC.decode(written[0][1])
    return slot.get()


# What two runs did differently.


MOST_DIFFERENCES = 100
"""Of more steps whose results differ only the names are given."""


@dataclass(frozen=True, slots=True)
class ComparedRun(View):
    """What one of two runs did since they diverged."""

    JSON: ClassVar[str] = (
        "run_id workflow status steps seconds failed_attempts *spending whole_cost=whole.cost interventions"
    )

    run_id: str
    workflow: str
    status: str
    steps: int
    """How many steps it finished."""
    seconds: float
    """How long those took, and the attempts that failed."""
    failed_attempts: int
    spending: Spending
    whole: Spending
    """What it used up since its beginning, in the runs that it was forked from, too."""
    interventions: tuple[str, ...]
    """What was done to it from outside."""


@dataclass(frozen=True, slots=True)
class StepDifference(View):
    """A step that both ran, and whose results differ; `result` is `None` if they were not compared."""

    JSON: ClassVar[str] = "step result=result.as_json reason"

    step: str
    result: Difference | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Comparison(View):
    """What two runs did differently since they diverged, or, if they are not related, at all."""

    JSON: ClassVar[str] = (
        "one other related=is_related ancestor diverging same only_one only_other differing code state problems"
    )

    one: ComparedRun
    other: ComparedRun
    ancestor: Branch | None
    """The last position that both have in common; `None` if they are not related."""
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
    """What is no longer known."""

    @property
    def is_related(self) -> bool:
        """Whether both come from one run."""
        return self.ancestor is not None


@dataclass(frozen=True, slots=True)
class _Side:
    """One of two runs, without what both have in common."""

    known: Projection
    steps: dict[str, FinishedStep]
    records: list[tuple[RunInfo, Record]]
    digests: dict[str, bytes]

    @classmethod
    def of(cls, known: Projection, common: list[tuple[RunInfo, int]]) -> _Side:
        last = {info.key: seq for info, seq in common}
        steps = {name: each for name, each in known.finishes.items() if each.seq > last.get(each.info.key, 0)}
        records = [(info, record) for info, seq, record in known.events if seq > last.get(info.key, 0)]
        return cls(known, steps, records, {name: _digest(each) for name, each in steps.items()})

    def view(self) -> ComparedRun:
        known, records = self.known, [record for _, record in self.records]
        return ComparedRun(
            known.info.run,
            known.info.workflow,
            str(known.run.status),
            len(self.steps),
            sum(each.record.seconds for each in self.steps.values() if not each.record.origin)
            + sum(record.seconds for record in records if isinstance(record, StepFailed)),
            sum(isinstance(record, StepFailed) for record in records),
            total(*(spending_of(record) for record in records if isinstance(record, Spent))),
            total(*known.run.spending.values()),
            tuple(
                text
                for info, record in self.records
                if not isinstance(record, (Spent, StepFailed))
                for text in texts_of(record, info.run)
            ),
        )


def _digest(finish: FinishedStep) -> bytes:
    digest = hashlib.blake2b(repr(_outcome(finish)).encode("utf-8", "backslashreplace"), digest_size=16)
    for op in finish.record.ops:
        digest.update(f"{op.kind}\n{op.key}\n{op.limit}\n{len(op.raw)}\n".encode("utf-8", "backslashreplace"))
        digest.update(op.raw)
    return digest.digest()


def _outcome(finish: FinishedStep) -> tuple[Any, str]:
    """Return which nodes a step chose to run next, and why it did not run: it was skipped, or given its result."""
    goto, skipped = finish.record.goto, finish.record.skipped
    chosen = None if goto is None else tuple((target.node, target.key) for target in goto)
    how = "its result was given" if skipped.startswith(GIVEN) else "it was skipped" if skipped else ""
    return chosen, how


def comparison(
    journal: Journal,
    one: tuple[RunInfo, int | None],
    other: tuple[RunInfo, int | None],
    code: Mapping[str, str],
) -> Comparison:
    """Compare two runs, each as it is now or as it was at an entry. `code` says which nodes' code differs."""
    loaded = [journal.load(info, PLAIN_CODEC, seq) for info, seq in (one, other)]
    known = [project(journal, PLAIN_CODEC, info, seq) for info, seq in (one, other)]
    common = list(_common(*known))
    sides = [_Side.of(each, common) for each in known]
    mine, theirs = sides[0].digests, sides[1].digests
    allowance = Allowance()
    state = state_difference(loaded[0], loaded[1], allowance=allowance)
    unlike = [step for step, digest in mine.items() if theirs.get(step, digest) != digest]
    problems = [f"not all is known of {each.info.run}: {each.lost}" for each in known if each.lost]
    return Comparison(
        sides[0].view(),
        sides[1].view(),
        Branch.at(journal, *common[-1]) if common else None,
        _diverging(mine, theirs),
        len(mine.keys() & theirs.keys()) - len(unlike),
        tuple(step for step in mine if step not in theirs),
        tuple(step for step in theirs if step not in mine),
        tuple(
            _step_difference(sides[0].steps[step], sides[1].steps[step], place, allowance)
            for place, step in enumerate(unlike)
        ),
        code,
        state,
        tuple(dict.fromkeys(problems)),
    )


def _common(one: Projection, other: Projection) -> Iterator[tuple[RunInfo, int]]:
    """Yield the parts that two histories have in common, oldest first, each with its last common entry."""
    chains = [each.segment.chain(each.seq) for each in (one, other)]
    for (mine, my_end), (theirs, their_end) in zip(*chains, strict=False):
        if mine.info.key != theirs.info.key or (mine.base and mine.start != theirs.start):
            return
        yield mine.info, min(my_end, their_end)
        if my_end != their_end:
            return


def _diverging(mine: Mapping[str, bytes], theirs: Mapping[str, bytes]) -> str | None:
    """Return the first step, in the order of either, that the other did not do, or did differently."""
    found = []
    for steps, others in ((mine, theirs), (theirs, mine)):
        different = (place for place in enumerate(steps) if others.get(place[1]) != steps[place[1]])
        found += [next(different, (len(steps), None))]
    return min(found, key=lambda place: (place[1] is None, place[0]))[1]


def _step_difference(
    mine: FinishedStep, theirs: FinishedStep, place: int, allowance: Allowance
) -> StepDifference:
    step, (chosen, how), (other, otherwise) = mine.step, _outcome(mine), _outcome(theirs)
    sides = ((how, mine.info.run), (otherwise, theirs.info.run)) if how != otherwise else ()
    reason = ", ".join(f"{why} in {run}" for why, run in sides if why)
    if "it was skipped" in (how, otherwise) and reason:
        return StepDifference(step, None, reason)
    if chosen != other and not reason:
        return StepDifference(step, None, "it chose other next steps")
    if place >= MOST_DIFFERENCES:
        return StepDifference(step, None, reason)
    raws = [op.raw for each in (mine, theirs) for op in each.record.ops if op.kind != "drop"]
    if not allowance.takes(*raws):
        return StepDifference(step, None, f"{size_text(sum(map(len, raws)))}, not compared")
    try:
        return StepDifference(step, difference(_values(mine.record.ops), _values(theirs.record.ops)), reason)
    except CodecError as error:
        return StepDifference(step, None, f"it cannot be read here: {error}")


def _values(ops: tuple[Op, ...]) -> dict[str, Any]:
    """Return what a step did to which key; a key that it only adds to is given with the kind of that."""
    found: dict[str, Any] = {}
    for op in ops:
        name = op.key if op.kind == "set" else f"{op.key} ({op.kind})"
        found[name] = None if op.kind == "drop" else PLAIN_CODEC.decode(op.raw)
    return found


def step_name(step: str) -> str:
    """Return a step as people name it: without the visit, if it is the first."""
    return "/".join(base_name(part).removesuffix("#1") for part in step.split("/"))
