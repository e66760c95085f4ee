"""What runs have used up, from their journals: by step, model, run, workflow or day, each amount counted once."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.errors import CodecError, CorruptJournal, HoldfastError
from holdfast.graph.graph import base_name
from holdfast.journal.fold import apply
from holdfast.journal.journal import Journal
from holdfast.journal.records import (
    Forked,
    Noted,
    Record,
    Reset,
    Resumed,
    RunEnded,
    RunStarted,
    Spent,
    StepFailed,
    StepFinished,
    StepStarted,
)
from holdfast.journal.run_state import RunState, Spending, node_of
from holdfast.state.codec import Codec
from holdfast.stores.base import RunInfo
from holdfast.stores.integrity import repaired_as
from holdfast.values import START, RunStatus
from holdfast.views.plain import CODEC, View, ViewCodec, when

# Amounts of what runs use up, and how they are added: calls, tokens, money, time.


BY = ("step", "model", "run", "workflow", "day")
"""What costs can be told apart by."""


NOTHING = Spending()


def total(*parts: Spending) -> Spending:
    """What several amounts add up to."""
    return Spending(*map(sum, zip(*parts, strict=True))) if parts else Spending()


@dataclass(frozen=True, slots=True)
class Portion(View):
    """Finished steps with the time and the money that went into them."""

    steps: int = 0
    seconds: float = 0.0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Charge:
    """Something that was used up: by which step of which run, when, and whether it was in vain.

    It is a call of a model, or the time of an attempt; then it has no model.
    """

    run: str
    workflow: str
    at: float
    """When it was recorded."""
    step: str
    """The step as people name it."""
    id: str
    """The step's id in its run."""
    model: str | None = None
    spent: Spending = NOTHING
    seconds: float = 0.0
    finished: int = 0
    """1 if this is the attempt that finished a step."""
    wasted: bool = False

    @property
    def day(self) -> str:
        """The day, in UTC, as `2026-01-31`."""
        return when(self.at).date().isoformat()


@dataclass(frozen=True, slots=True)
class Row(View):
    """What was used up by all that have a name in common; `wasted` is how much of it was in vain."""

    JSON: ClassVar[str] = "name steps seconds *spent wasted_cost=wasted.cost wasted_seconds"

    name: str
    steps: int
    seconds: float
    spent: Spending
    wasted: Spending
    wasted_seconds: float


def rows(charges: Iterable[Charge], by: str, *, ids: bool = False) -> list[Row]:
    """Charges added up by one of `BY`, the dearest first; `ids` tells the steps of each run apart.

    By day they are in order. The time of steps belongs to no model, so it is left out there.
    """
    groups: dict[str, list[Charge]] = {}
    for charge in charges:
        if by != "model" or charge.model is not None:
            groups.setdefault(_name(charge, by, ids), []).append(charge)
    found = [row_of(name, group) for name, group in groups.items()]
    if by == "day":
        return sorted(found, key=lambda row: row.name)
    return sorted(found, key=lambda row: (-row.spent.cost, -row.seconds, row.name))


def _name(charge: Charge, by: str, ids: bool) -> str:
    if by == "model":
        return charge.model or ""
    return charge.id if ids and by == "step" else str(getattr(charge, by))


def row_of(name: str, charges: Iterable[Charge]) -> Row:
    """What charges add up to."""
    every = list(charges)
    in_vain = [charge for charge in every if charge.wasted]
    return Row(
        name,
        sum(charge.finished for charge in every if not charge.wasted),
        sum(charge.seconds for charge in every),
        total(*(charge.spent for charge in every if charge.model is not None)),
        total(*(charge.spent for charge in in_vain if charge.model is not None)),
        sum(charge.seconds for charge in in_vain),
    )


# Keeping the books of one run while its records are read: what each step used up, and what of it was in va.


REMEMBERED = ("once:", "awaited:")
"""How the names of results begin that a step does not compute again."""


class Books:
    """What a run used up by its own journal, and how much of it still counts for where the run stands."""

    def __init__(self, run: str, workflow: str, parting: Callable[[str], int | None]) -> None:
        """`parting` finds the entry of this run at which another, or one that it goes back to, was forked from it."""
        self._run, self._workflow, self._parting = run, workflow, parting
        self._charges: list[Charge] = []
        self._open: dict[str, list[int]] = {}
        """By step, the charges of an attempt of which nothing has come yet."""
        self._settled: dict[str, list[int]] = {}
        """By step, the charges that something came of."""
        self._finished: dict[str, int] = {}
        """By step, the entry at which it was finished last."""
        self._rewound: dict[str, list[int]] = {}
        """The same of steps that the run was set to before."""
        self._base = Portion()
        """What was finished before this journal begins."""
        self.reused: dict[str, str] = {}
        """By step, the run that it was given the result of."""
        self.inherited = Spending()
        self.resumes = 0
        self.saved = Portion()
        self.driving = 0.0
        self._began: float | None = None
        self._last = 0.0

    def begin_with(self, run: RunState, at: float) -> None:
        """Take in what is known from before the first record, where a journal was pruned."""
        before = {node: _less(spent, run.inherited.get(node)) for node, spent in run.spending.items()}
        self.inherited = total(*run.inherited.values())
        for node, spent in before.items():
            if any(spent):
                self._add(node, at, model="", spent=spent)
        if (seconds := run.seconds - run.inherited_seconds) > 0:
            self._charges.append(Charge(self._run, self._workflow, at, EARLIER, EARLIER, seconds=seconds))
        self._base = Portion(run.steps_done, run.seconds, total(*run.spending.values()).cost)
        self._began = at if run.driver else None
        self._last = at

    def take(self, record: Record, seq: int, at: float) -> None:
        """Enter one record."""
        match record:
            case Spent(step=step):
                spent = Spending(
                    record.calls,
                    record.input_tokens,
                    record.output_tokens,
                    record.cost or 0.0,
                    record.calls * (record.cost is None),
                )
                self._open.setdefault(step, []).append(self._add(step, at, model=record.model, spent=spent))
            case StepStarted(step=step):
                self._waste(self._open.pop(step, ()))
            case Noted(step=step, key=key) if key.startswith(REMEMBERED):
                self._settle(step)
            case StepFailed(step=step):
                self._waste(self._open.pop(step, ()))
                self._waste([self._add(step, at, seconds=record.seconds)])
            case StepFinished():
                self._finish(record, seq, at)
            case Reset():
                self._rewind(self._point(record))
            case Forked():
                self.inherited = total(*record.run.spending.values())
                self._base = Portion(record.run.steps_done, record.run.seconds, self.inherited.cost)
                self._began = at
            case RunStarted():
                self._began = at
            case Resumed():
                self._resume(at)
            case RunEnded() if self._began is not None:
                self.driving += at - self._began
                self._began = None
        self._last = at

    def close(self, is_driven: bool) -> None:
        """Take the time of a drive into account that has not ended, or died."""
        if self._began is not None and is_driven:
            self.driving += max(0.0, self._last - self._began)
        self._began = None

    def add_line(self, step: str, model: str, spent: Spending, at: float, ident: str) -> None:
        """Enter a line that no record tells of, of a step that finished."""
        self._charges.append(Charge(self._run, self._workflow, at, step, ident, model, spent))
        self._base = dataclasses.replace(self._base, cost=self._base.cost + spent.cost)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All that was used up."""
        return tuple(self._charges)

    def kept(self) -> Portion:
        """The finished steps that the run stands on, those of the runs that it was forked from included."""
        found = [charge for step in self._finished for charge in self._of(step)]
        steps = sum(charge.finished for charge in found)
        seconds, cost = sum(charge.seconds for charge in found), sum(charge.spent.cost for charge in found)
        return Portion(self._base.steps + steps, self._base.seconds + seconds, self._base.cost + cost)

    def portion_of(self, steps: Iterable[str]) -> Portion:
        """What some finished steps took."""
        found = [charge for step in steps for charge in self._of(step)]
        counted = sum(charge.finished for charge in found)
        return Portion(
            counted, sum(charge.seconds for charge in found), sum(charge.spent.cost for charge in found)
        )

    def _of(self, step: str) -> Iterator[Charge]:
        return (self._charges[place] for place in self._settled.get(step, ()))

    def _add(self, step: str, at: float, **amounts: Any) -> int:
        name = base_name(node_of(step) if "#" in step else step)
        charge = Charge(self._run, self._workflow, at, name, step, **amounts)
        self._charges.append(charge)
        return len(self._charges) - 1

    def _settle(self, step: str) -> None:
        self._settled.setdefault(step, []).extend(self._open.pop(step, ()))

    def _finish(self, record: StepFinished, seq: int, at: float) -> None:
        step = record.step
        if record.origin == self._run and step in self._rewound:
            self._settled[step] = self._rewound.pop(step)
            self._waste(self._settled[step], False)
        elif record.origin:
            self.reused[step] = record.origin
        else:
            self._settle(step)
            counts = int(not record.skipped and _is_step(step))
            seconds = 0.0 if record.promoted else record.seconds
            self._settled[step].append(self._add(step, at, seconds=seconds, finished=counts))
        self._finished[step] = seq

    def _point(self, record: Reset) -> int:
        """The entry of this run after which all is undone by setting it to another place."""
        if record.is_of(self._run):
            return record.seq
        parting = self._parting(record.source)
        return parting if parting is not None else sys.maxsize

    def _rewind(self, point: int) -> None:
        for step in [step for step, seq in self._finished.items() if seq > point]:
            del self._finished[step]
            self.reused.pop(step, None)
            self._rewound[step] = self._settled.pop(step, [])
            self._waste(self._rewound[step])
        for step in list(self._open):
            self._waste(self._open.pop(step))

    def _waste(self, places: Iterable[int], wasted: bool = True) -> None:
        for place in places:
            self._charges[place] = dataclasses.replace(self._charges[place], wasted=wasted)

    def _resume(self, at: float) -> None:
        if self._began is not None:
            self.driving += max(0.0, self._last - self._began)
        self._began = at
        kept = self.kept()
        if kept.steps:
            self.resumes, self.saved = self.resumes + 1, kept


EARLIER = "(pruned)"
"""The step that all time is put down to of which the journal no longer tells more."""


def _is_step(step: str) -> bool:
    """Whether a step is one that people count: no helper of another."""
    own = step.rpartition("/")[2]
    return ":" not in own.rpartition("#")[0] and not own.startswith(START)


def _less(whole: Spending, part: Spending | None) -> Spending:
    part = part or Spending()
    return Spending(
        whole.calls - part.calls,
        whole.input_tokens - part.input_tokens,
        whole.output_tokens - part.output_tokens,
        max(0.0, whole.cost - part.cost),
        whole.unpriced - part.unpriced,
    )


# The ledger that the first versions kept in the state of workflow files, line by line.


Line = Mapping[str, Any]
"""What one attempt spent: `id`, `step`, `model`, `input_tokens`, `output_tokens`, `cost`."""

COUNTED = "counted:"
"""What a step remembers, under this and the name of a line that it had remembered, is in the journal's ledger now."""


def lines_of(run: RunState, codec: Codec) -> list[Line]:
    """Every line, each once: of finished waves, of finished steps, and of attempts that only their steps remember."""
    found: dict[str, Line] = {}
    for line in _found(run, codec):
        if isinstance(line, Mapping):
            found.setdefault(str(line.get("id", f"#{len(found)}")), line)
    return list(found.values())


def _found(run: RunState, codec: Codec) -> Iterator[Any]:
    for frame in run.frames.values():
        if "ledger" in frame.cells:
            yield from _listed(frame.cells["ledger"].get())
    for step in run.active():
        for op in step.ops:
            if op.key == "ledger":
                yield from _listed(op.value)
        for key, raw in step.notes.items():
            name = key.removeprefix("once:")
            if name != "reply" and not name.startswith("spent:"):
                continue
            if f"once:{COUNTED}{name}" not in step.notes:
                yield _remembered(raw, codec)


def _listed(lines: Any) -> Iterable[Any]:
    return lines if isinstance(lines, (list, tuple)) else ()


def _remembered(raw: bytes, codec: Codec) -> Any:
    try:
        value = codec.decode(raw)
    except CodecError:
        return None
    return value.get("entry", value if "id" in value else None) if isinstance(value, Mapping) else None


def spending_of(lines: Iterable[Any]) -> Spending:
    """What lines add up to; what is none of them is passed over."""
    found = [line for line in lines if isinstance(line, Mapping)]
    return Spending(
        len(found),
        int(sum(number(line.get("input_tokens")) for line in found)),
        int(sum(number(line.get("output_tokens")) for line in found)),
        float(sum(number(line.get("cost")) for line in found)),
        sum(line.get("cost") is None for line in found),
    )


def number(value: Any) -> float:
    """A number, or 0 for what is none."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


def spent_by(run: RunState, codec: Codec) -> Spending:
    """All that a run has spent: what its journal says, in whichever version it was written, each line once."""
    return total(*run.spending.values(), spending_of(lines_of(run, codec)))


@dataclass(frozen=True, slots=True)
class RunLedger(View):
    """What one run has used up. `charges` are its own: what it inherited from before it was forked is apart."""

    JSON: ClassVar[str] = (
        "run_id workflow status started_at total own inherited kept saved reused resumes driving_seconds=driving "
        "steps=step_rows models=model_rows"
    )

    run_id: str
    workflow: str
    status: RunStatus
    started_at: dt.datetime
    charges: tuple[Charge, ...]
    inherited: Spending
    """What the runs that it was forked from had spent by then."""
    kept: Portion
    """The finished steps that it stands on, inherited ones included."""
    saved: Portion
    """Those that were finished when it was last taken up, and did not run again."""
    reused: Portion
    """Steps that were given the result of another run instead of running: what that run had paid for them."""
    resumes: int
    driving: float
    """Seconds from each taking up to its end, added up."""

    @property
    def own(self) -> Row:
        """All that it used up itself."""
        return row_of(self.run_id, self.charges)

    @property
    def total(self) -> Spending:
        """What it spent, from the beginning of the first run that it goes back to."""
        return total(self.own.spent, self.inherited)

    def by_step(self, *, ids: bool = False) -> list[Row]:
        """What each step used up, the dearest first; with `ids` each visit and each item for itself."""
        return rows(self.charges, "step", ids=ids)

    @property
    def step_rows(self) -> tuple[Row, ...]:
        """What each step used up, the dearest first."""
        return tuple(self.by_step())

    @property
    def model_rows(self) -> tuple[Row, ...]:
        """What each model was paid, the dearest first."""
        return tuple(self.by_model())

    def by_model(self) -> list[Row]:
        """What each model was paid, the dearest first."""
        return rows(self.charges, "model")

    def as_json(self, *, ids: bool = False) -> dict[str, Any]:
        """Return the ledger as plain data; with `ids` each visit and each item of a step is a row."""
        steps = {"steps": [row.as_json() for row in self.by_step(ids=ids)]} if ids else {}
        return {**View.as_json(self), **steps}


def ledger(journal: Journal, run_id: str, *, upto: int | None = None) -> RunLedger:
    """What a run has used up, by its whole journal, or up to and with entry `upto`."""
    info = journal.info(run_id)
    books = _books(journal, info, upto)
    return RunLedger(
        run_id=info.run,
        workflow=info.workflow,
        status=RunStatus(info.status),
        started_at=when(info.created_at),
        charges=books.charges,
        inherited=books.inherited,
        kept=books.kept(),
        saved=books.saved,
        reused=_reused(journal, books),
        resumes=books.resumes,
        driving=books.driving,
    )


def _books(journal: Journal, info: RunInfo, upto: int | None = None) -> Books:
    codec = ViewCodec()
    run, history = journal.history(info, codec, upto)
    books = Books(info.run, info.workflow, functools.partial(_parting, journal, info))
    earlier = list[Mapping[str, Any]]()
    pruned = bool(run.frames)
    for entry, found in history:
        if pruned:
            books.begin_with(run, entry.at)
            pruned = False
        for record in found:
            books.take(record, entry.seq, entry.at)
            if isinstance(record, Forked):
                earlier = lines_of(record.run, codec)
            apply(run, record, entry.at)
    inherited = {str(line.get("id")) for line in earlier}
    books.inherited = total(books.inherited, spending_of(earlier))
    for line in lines_of(run, codec):
        if str(line.get("id")) not in inherited:
            name = base_name(str(line.get("step", "")))
            books.add_line(
                name, str(line.get("model", "")), spending_of([line]), info.created_at, str(line.get("id"))
            )
    books.close(run.status == RunStatus.RUNNING)
    return books


def _parting(journal: Journal, own: RunInfo, other: str) -> int | None:
    """The entry of a run at which another, or one that this goes back to, was forked; `None` if it was not."""
    found, seen = journal.store.runs(run=other), set[bytes]()
    while found and found[0].key not in seen:
        info = found[0]
        seen.add(info.key)
        first = next(iter(journal.store.read(info.run, 0, 1)), None)
        fork = None if first is None else journal.fork_of(info, first, CODEC)
        if fork is None or info.parent == own.key:
            return None if fork is None else fork.seq
        found = journal.store.runs(key=info.parent)
    return None


def _reused(journal: Journal, books: Books) -> Portion:
    """What was paid, in other runs, for the steps that were not run; of runs that are gone nothing is known."""
    by_origin: dict[str, list[str]] = {}
    for step, origin in books.reused.items():
        by_origin.setdefault(origin, []).append(step)
    steps, seconds, cost = len(books.reused), 0.0, 0.0
    for origin, names in by_origin.items():
        for info in journal.store.runs(run=origin):
            try:
                portion = _books(journal, info).portion_of(names)
            except CorruptJournal:
                continue
            seconds, cost = seconds + portion.seconds, cost + portion.cost
    return Portion(steps, seconds, cost)


def family(journal: Journal, run_id: str) -> list[RunInfo]:
    """A run, those that it goes back to, and all that were forked from any of these; the first of all first."""
    info = journal.info(run_id)
    seen = {info.key}
    while info.parent and (found := journal.store.runs(key=info.parent)) and found[0].key not in seen:
        info = found[0]
        seen.add(info.key)
    found, seen = [info], {info.key}
    for member in found:
        forks = [fork for fork in journal.store.runs(parent=member.key) if fork.key not in seen]
        seen |= {fork.key for fork in forks}
        found += sorted(forks, key=lambda fork: fork.created_at)
    return found


def charges_of(
    journal: Journal,
    runs: Iterable[str],
    *,
    since: float | None = None,
    unreadable: Callable[[str, HoldfastError], None] | None = None,
) -> Iterator[Charge]:
    """What several runs used up themselves, read one after the other; with `since` only from that time on.

    A damaged run that was repaired as another is left out: what could be read of it is that run's. `unreadable` is told
    of runs that cannot be read; without it they raise.
    """
    for run_id in runs:
        if not _counts(journal, run_id):
            continue
        try:
            charges = ledger(journal, run_id).charges
        except (CorruptJournal, CodecError) as error:
            if unreadable is None:
                raise
            unreadable(run_id, error)
            continue
        for charge in charges:
            if since is None or charge.at >= since:
                yield charge


def _counts(journal: Journal, run_id: str) -> bool:
    """Whether what a run used up is its own."""
    found = journal.store.runs(run=run_id)
    return not any(repaired_as(info) and journal.store.runs(run=repaired_as(info)) for info in found)
