"""A run's checkpoints, newest first, each with what happened since the one before; read page by page."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, overload

from holdfast.errors import CodecError, CorruptJournal
from holdfast.graph.graph import base_name
from holdfast.journal.checkpoint_ids import Checkpoint, read_mark
from holdfast.journal.journal import Journal, genesis, verified_entries
from holdfast.journal.records import (
    Commanded,
    Confirmed,
    Described,
    Forked,
    FrameOpened,
    GraphChanged,
    Migrated,
    MovedOn,
    Paused,
    Record,
    Remarked,
    Reset,
    Resumed,
    Reusing,
    RunEnded,
    RunStarted,
    Spent,
    StateEdited,
    Steered,
    StepFailed,
    StepFinished,
    WaveFinished,
)
from holdfast.journal.run_state import Remark, Spending, frame_of
from holdfast.journal.sealing import is_sealed
from holdfast.state.ops import Op
from holdfast.stores.base import Entry, Mark, RunInfo, Store
from holdfast.values import RunStatus, readable_step
from holdfast.views.plain import CODEC, View, ViewCodec
from holdfast.views.timeline import reset_told, tell_run
from holdfast.views.usage import NOTHING, total

# What a stretch of a journal tells: time, money, failed attempts, changed keys, and what else happened, in.


_ENDS = {
    RunStatus.PAUSED: "pause",
    RunStatus.FAILED: "failure",
    RunStatus.COMPLETED: "end",
    RunStatus.INTERRUPTED: "interruption",
    RunStatus.CANCELLED: "cancellation",
    RunStatus.QUEUED: "queued",
}

_RANKS = ("start", "resume", "edit", "wave", "migration", *_ENDS.values(), "fork", "rollback", "promotion")
"""What a checkpoint is named for, the most telling last."""

KINDS = _RANKS

_LEDGER = "ledger"


@dataclass(frozen=True, slots=True)
class KeyChange(View):
    """What was done to a key of the state: `set`, `append`, `merge` …; `size` is in bytes, as stored."""

    JSON: ClassVar[str] = "key kinds bytes=size frame"
    key: str
    kinds: tuple[str, ...]
    size: int
    frame: str = ""
    """The sub-graph's step whose state it is; empty for the run's own."""


@dataclass(frozen=True, slots=True)
class Happened:
    """What happened in a stretch of a journal."""

    kind: str = "start"
    seconds: float = 0.0
    """How long the steps took that finished."""
    failed: int = 0
    """How many attempts failed."""
    failed_seconds: float = 0.0
    size: int = 0
    """Bytes of the journal."""
    spending: Spending = NOTHING
    changes: tuple[KeyChange, ...] = ()
    told: tuple[str, ...] = ()


@dataclass(slots=True)
class Happening:
    """Takes records in, one by one, until a stretch is over."""

    run_id: str
    size: int = 0
    _kinds: set[str] = field(default_factory=set)
    _seconds: float = 0.0
    _failed: int = 0
    _failed_seconds: float = 0.0
    _spent: list[Spending] = field(default_factory=list)
    _ledger: list[Op] = field(default_factory=list)
    _changes: dict[tuple[str, str], tuple[dict[str, None], int]] = field(default_factory=dict)
    _told: list[str] = field(default_factory=list)

    def over(self) -> Happened:
        """What happened; begins anew."""
        happened = Happened(
            max(self._kinds, key=_RANKS.index, default="start"),
            self._seconds,
            self._failed,
            self._failed_seconds,
            self.size,
            total(*self._spent) if self._spent else total(*map(_line, _lines(self._ledger))),
            tuple(
                KeyChange(key, tuple(kinds), size, frame)
                for (frame, key), (kinds, size) in self._changes.items()
            ),
            tuple(self._told),
        )
        self.__init__(self.run_id)  # type: ignore[misc]
        return happened

    def take(self, record: Record) -> None:
        """Take one more record in."""
        match record:
            case MovedOn():
                self._seconds += record.seconds
                self._kinds.add("wave")
                self._change("", record.ops)
            case StepFinished():
                self._finish(record)
            case StepFailed():
                self._failed += 1
                self._failed_seconds += record.seconds
                if record.retry_at is None:
                    self._told.append(f"{readable_step(record.step)} failed: {record.fault}")
            case WaveFinished():
                self._kinds.add("wave")
                self._change(record.frame, record.ops)
            case RunStarted():
                self._kinds.add("start")
                self._change("", record.ops)
            case FrameOpened():
                self._change(record.step, record.ops)
            case Spent():
                self._spend(record)
            case RunEnded():
                self._kinds.add(_ENDS[RunStatus(record.status)])
                if record.fault is not None and record.status != RunStatus.FAILED:
                    self._tell(record)
            case StateEdited():
                self._edit(record)
            case Migrated():
                self._kinds.add("migration")
                self._change(record.frame, record.ops)
                self._told.append(f"state brought from version {record.since!r} to {record.until!r}")
            case Forked():
                self._kinds.add("fork")
                self._tell(record)
            case Reset():
                self._kinds.add("rollback" if record.is_of(self.run_id) else "promotion")
                self._told.append(reset_told(record, self.run_id))
            case Resumed():
                self._kinds.add("resume")
            case Commanded() if not record.refused:
                pass
            case Described() if "start" in self._kinds:
                pass  # Where a run begins is told of the run; here it counts where that changed.
            case (
                Commanded()
                | Confirmed()
                | Described()
                | GraphChanged()
                | Paused()
                | Remarked()
                | Reusing()
                | Steered()
            ):
                self._tell(record)
            case _:
                pass

    def _finish(self, record: StepFinished) -> None:
        self._seconds += record.seconds
        self._change(frame_of(record.step), [op for op in record.ops if op.kind != "reduce"])
        if record.skipped:
            self._told.append(f"{readable_step(record.step)} skipped: {record.skipped}")
        elif record.origin:
            self._told.append(f"{readable_step(record.step)} taken over from {record.origin}")

    def _edit(self, record: StateEdited) -> None:
        self._kinds.add("edit")
        self._change(record.frame, record.ops)
        keys, by = (
            ", ".join(dict.fromkeys(op.key for op in record.ops)),
            f" by {record.by}" if record.by else "",
        )
        self._told.append(f"state changed from outside{by}: {keys}")

    def _spend(self, record: Spent) -> None:
        unpriced = record.calls * (record.cost is None)
        self._spent.append(
            Spending(record.calls, record.input_tokens, record.output_tokens, record.cost or 0.0, unpriced)
        )

    def _change(self, frame: str, ops: Any) -> None:
        for op in ops:
            kinds, size = self._changes.get((frame, op.key), ({}, 0))
            self._changes[frame, op.key] = ({**kinds, op.kind: None}, size + len(op.raw))
            if op.key == _LEDGER and op.kind == "append":
                self._ledger.append(op)

    def _tell(self, record: Record) -> None:
        told = tell_run(record, ViewCodec())
        if told is not None:
            self._told.append(told[2])


def _lines(ops: list[Op]) -> list[Any]:
    """The lines that a workflow file of an earlier version kept of its agents' calls."""
    found, codec = list[Any](), ViewCodec()
    for op in ops:
        try:
            lines = codec.decode(op.raw)
        except CodecError:
            continue
        found += [line for line in lines if isinstance(line, dict)] if isinstance(lines, list) else []
    return found


def _line(line: dict[str, Any]) -> Spending:
    cost = line.get("cost")
    known = isinstance(cost, (int, float))
    given, made = (
        value if isinstance(value := line.get(f"{way}_tokens"), int) else 0 for way in ("input", "output")
    )
    return Spending(1, given, made, float(cost) if isinstance(cost, (int, float)) else 0.0, int(not known))


UNREMARKED = Remark()


@dataclass(frozen=True, slots=True)
class Point(View):
    """A checkpoint, and what happened since the one before it."""

    JSON: ClassVar[str] = (
        "checkpoint_id=id seq wave kind frame nodes next created_at seconds "
        "failed_attempts=happened.failed failed_seconds=happened.failed_seconds bytes=size *spending "
        "changes told tags notes keep=remark.keep"
    )
    checkpoint: Checkpoint
    happened: Happened
    remark: Remark = UNREMARKED

    @property
    def id(self) -> str:
        """The checkpoint's id."""
        return self.checkpoint.id

    @property
    def seq(self) -> int:
        """The number of its entry in the journal."""
        return self.checkpoint.seq

    @property
    def wave(self) -> int | None:
        """How many waves of the run were completed, as `RUN@N` counts them; `None` inside a sub-graph."""
        return self.checkpoint.run_wave

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that had just finished."""
        return self.checkpoint.nodes

    @property
    def next(self) -> tuple[str, ...]:
        """The nodes that were about to run."""
        return self.checkpoint.next

    @property
    def frame(self) -> str:
        """The sub-graph's step that it is inside of; empty for the run itself."""
        return self.checkpoint.frame

    @property
    def created_at(self) -> dt.datetime:
        """When it was saved."""
        return self.checkpoint.created_at

    @property
    def kind(self) -> str:
        """What it was saved for: `wave`, `pause`, `failure`, `end`, `fork`, `rollback`, `promotion`, `edit` …"""
        return self.happened.kind

    @property
    def seconds(self) -> float:
        """How long the steps took that finished."""
        return self.happened.seconds

    @property
    def size(self) -> int:
        """How many bytes it added to the journal."""
        return self.happened.size

    @property
    def cost(self) -> float:
        """US dollars that were spent, as far as prices are known."""
        return self.happened.spending.cost

    @property
    def spending(self) -> Spending:
        """Calls, tokens and money."""
        return self.happened.spending

    @property
    def changes(self) -> tuple[KeyChange, ...]:
        """What was done to which key of the state."""
        return self.happened.changes

    @property
    def told(self) -> tuple[str, ...]:
        """What else happened, in words."""
        return self.happened.told

    @property
    def tags(self) -> tuple[str, ...]:
        """The words that people tagged it with."""
        return self.remark.tags

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes that people wrote to it."""
        return tuple(text for _, _, text in self.remark.notes)


@dataclass(frozen=True, slots=True)
class History(View, Sequence[Point]):
    """A page of a run's checkpoints, newest first."""

    JSON: ClassVar[str] = "run_id workflow status checkpoints=points more since=since.told"
    run_id: str
    workflow: str
    status: str
    points: tuple[Point, ...]
    more: bool
    """Whether there are older ones; `before=page[-1].id` is the next page."""
    since: Happened
    """What happened after the newest checkpoint; nothing on a later page."""

    @overload
    def __getitem__(self, index: int) -> Point: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Point]: ...
    def __getitem__(self, index: int | slice) -> Point | Sequence[Point]:
        return self.points[index]

    def __len__(self) -> int:
        return len(self.points)


def history(journal: Journal, info: RunInfo, limit: int | None = None, before: int | None = None) -> History:
    """The newest `limit` checkpoints of a run that lie before entry `before`.

    Only their entries are read, and those since the newest: of values that are stored as differences nothing is put
    together, so that no entry before the page is needed.
    """
    store = journal.store
    marks = store.marks(info.run, before, None if limit is None else limit + 1)
    after = marks[limit].seq if limit is not None and len(marks) > limit else 0
    upto = None if before is None else marks[0].seq if marks else 0
    happening, points, remarks = Happening(info.run), list[Point](), dict[int, Remark]()
    for entry in _entries(store, info, after, upto) if upto != 0 else ():
        for record in journal.skimmed(info, entry, CODEC):
            happening.take(record)
            if isinstance(record, Remarked):
                remarks[record.at] = _remarked(remarks.get(record.at), record, entry.at)
        happening.size += len(entry.body)
        if entry.mark is not None:
            mark = Mark(entry.seq, entry.at, entry.mark, len(entry.body))
            points.append(Point(read_mark(info.key, mark, info.run), happening.over()))
    if before is not None and points:
        remarks = journal.load(info, CODEC).run.remarks
    shown = points[::-1][:limit]
    return History(
        info.run,
        info.workflow,
        info.status,
        tuple(Point(point.checkpoint, point.happened, remarks.get(point.seq, UNREMARKED)) for point in shown),
        bool(after) or len(points) > len(shown),
        happening.over(),
    )


def _entries(store: Store, info: RunInfo, after: int, upto: int | None) -> Iterator[Entry]:
    """The entries after one that is given, each checked against its predecessor; the first of a pruned run is not."""
    entries = store.read(info.run, max(0, after - 1), upto)
    first = next(entries, None)
    if first is None or (after and first.seq != after):
        raise CorruptJournal(f"run {info.run!r}: entry {after or 1} is missing", run=info.run, seq=after or 1)
    if after:
        return verified_entries(entries, info.run, after, first.chain, is_sealed(first.body))
    if first.seq == 1:
        chain = genesis(info.run, info.key)
        return verified_entries(itertools.chain([first], entries), info.run, 0, chain, False)
    later = verified_entries(entries, info.run, first.seq, first.chain, is_sealed(first.body))
    return itertools.chain([first], later)


def _remarked(known: Remark | None, record: Remarked, at: float) -> Remark:
    known = known or Remark()
    notes = (*known.notes, (at, record.by, record.text)) if record.text else known.notes
    tags = [*(tag for tag in known.tags if tag not in record.remove), *record.add]
    return Remark(notes, tuple(dict.fromkeys(tags)), known.keep if record.keep is None else record.keep)


def steps_told(nodes: Sequence[str]) -> str:
    """Nodes as the steps they belong to, those that occur several times counted."""
    counts: dict[str, int] = {}
    for name in map(base_name, nodes):
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(name if times == 1 else f"{name} ({times})" for name, times in counts.items()) or "-"
