"""A run's checkpoints, newest first, each with what happened since the one before; read page by page."""

from __future__ import annotations

import dataclasses
import datetime as dt
import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, overload

from holdfast.errors import CorruptJournal
from holdfast.graph.graph import base_name
from holdfast.journal.checkpoint_ids import Checkpoint, decode_checkpoint
from holdfast.journal.fold import apply
from holdfast.journal.journal import Journal, genesis, verified_entries
from holdfast.journal.records import (
    Commanded,
    Confirmed,
    Described,
    Forked,
    FrameOpened,
    GraphChanged,
    Migrated,
    Paused,
    Record,
    Reset,
    Resumed,
    Reusing,
    RunAnnotated,
    RunEnded,
    RunStarted,
    Spent,
    StateEdited,
    Steered,
    StepAdvanced,
    StepFailed,
    StepFinished,
    WaveFinished,
)
from holdfast.journal.run_state import Annotation, RunState, Spending, frame_of
from holdfast.journal.sealing import is_sealed
from holdfast.names import LazyModule
from holdfast.state.ops import Op
from holdfast.stores.base import Entry, RunInfo, Store, StoredCheckpoint
from holdfast.values import RunStatus
from holdfast.views.charges import NOTHING, spending_of, total
from holdfast.views.plain import CODEC, View, ViewCodec
from holdfast.views.timeline import tell

if TYPE_CHECKING:
    from holdfast.views import notebook
else:
    notebook = LazyModule("views.notebook")

_ENDS = {
    RunStatus.PAUSED: "pause",
    RunStatus.FAILED: "failure",
    RunStatus.COMPLETED: "end",
    RunStatus.INTERRUPTED: "interruption",
    RunStatus.CANCELLED: "cancellation",
    RunStatus.QUEUED: "queued",
}

KINDS = ("start", "resume", "edit", "wave", "migration", *_ENDS.values(), "fork", "rollback", "promotion")
"""What a checkpoint is named for, the most telling last."""

_SHOWN = Confirmed, Forked, GraphChanged, Migrated, Paused, RunAnnotated, Reset, Reusing, StateEdited, Steered
"""The records that are always put in words."""

_NO_ANNOTATION = Annotation()


@dataclass(frozen=True, slots=True)
class KeyChange(View):
    """What was done to a key of the state: `set`, `append`, `merge` …; `size` is in bytes, as stored."""

    JSON: ClassVar[str] = "key kinds bytes=size frame"

    key: str
    kinds: tuple[str, ...]
    size: int
    frame: str = ""
    """The sub-graph's step whose state it is; empty for the run's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened(View):
    """What happened in a stretch of a journal."""

    kind: str = "start"
    """What a checkpoint was saved for: `wave`, `pause`, `failure`, `end`, `fork`, `rollback`, `promotion`, `edit` …"""
    seconds: float = 0.0
    """How long the steps took that finished."""
    failed_attempts: int = 0
    failed_seconds: float = 0.0
    size: int = 0
    """Bytes of the journal."""
    spending: Spending = NOTHING
    """Calls, tokens and money."""
    changes: tuple[KeyChange, ...] = ()
    """What was done to which key of the state."""
    events: tuple[str, ...] = ()
    """What else happened, in words."""

    @property
    def cost(self) -> float:
        """US dollars that were spent, as far as prices are known."""
        return self.spending.cost


@dataclass(slots=True)
class _Stretch:
    """A stretch of a journal, to which records are added one by one."""

    run_id: str
    size: int = 0
    kinds: set[str] = field(default_factory=set)
    seconds: float = 0.0
    failed: int = 0
    failed_seconds: float = 0.0
    spent: list[Spending] = field(default_factory=list)
    changes: dict[tuple[str, str], tuple[dict[str, None], int]] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """Return what happened, as the fields of `Happened`."""
        changes = self.changes.items()
        return {
            "kind": max(self.kinds, key=KINDS.index, default="start"),
            "seconds": self.seconds,
            "failed_attempts": self.failed,
            "failed_seconds": self.failed_seconds,
            "size": self.size,
            "spending": total(*self.spent),
            "changes": tuple(
                KeyChange(key, tuple(kinds), size, frame) for (frame, key), (kinds, size) in changes
            ),
            "events": tuple(self.events),
        }

    def take(self, record: Record) -> None:
        """Add one more record."""
        match record:
            case StepAdvanced(ops=ops):
                self.seconds += record.seconds
                self._count("wave", "", ops)
            case StepFinished(step=step):
                self.seconds += record.seconds
                self._count("", frame_of(step), [op for op in record.ops if op.kind != "reduce"])
            case StepFailed():
                self.failed += 1
                self.failed_seconds += record.seconds
            case WaveFinished(frame=frame, ops=ops):
                self._count("wave", frame, ops)
            case RunStarted(ops=ops):
                self._count("start", "", ops)
            case FrameOpened(step=step, ops=ops):
                self._count("", step, ops)
            case StateEdited(frame=frame, ops=ops):
                self._count("edit", frame, ops)
            case Migrated(frame=frame, ops=ops):
                self._count("migration", frame, ops)
            case Spent():
                self.spent.append(spending_of(record))
            case RunEnded(status=status):
                self.kinds.add(_ENDS[RunStatus(status)])
            case Forked():
                self.kinds.add("fork")
            case Reset():
                self.kinds.add("rollback" if record.is_of(self.run_id) else "promotion")
            case Resumed():
                self.kinds.add("resume")
        if self._is_shown(record):
            self.events += texts_of(record, self.run_id)

    def _is_shown(self, record: Record) -> bool:
        match record:
            case StepFailed():
                return record.retry_at is None
            case StepFinished():
                return bool(record.skipped or record.origin)
            case RunEnded():
                return record.fault is not None and record.status != RunStatus.FAILED
            case Commanded():
                return bool(record.refused)
            case Described():
                return "start" not in self.kinds  # The run itself tells where it began.
        return isinstance(record, _SHOWN)

    def _count(self, kind: str, frame: str, ops: Iterable[Op]) -> None:
        if kind:
            self.kinds.add(kind)
        for op in ops:
            kinds, size = self.changes.get((frame, op.key), ({}, 0))
            self.changes[frame, op.key] = ({**kinds, op.kind: None}, size + len(op.raw))


def texts_of(record: Record, run_id: str) -> list[str]:
    """Return a record of a run in words; nothing if it tells people nothing."""
    found = tell(record, ViewCodec(), run_id)
    return [] if found is None else [found[2]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(Happened):
    """A checkpoint, and what happened since the one before it."""

    JSON: ClassVar[str] = (
        "checkpoint_id=id seq wave kind frame nodes next created_at seconds failed_attempts failed_seconds "
        "bytes=size *spending changes events tags notes keep=annotation.keep"
    )

    id: str
    seq: int
    """The number of its entry in the journal."""
    wave: int | None
    """How many waves of the run were completed, as `RUN@N` counts them; `None` inside a sub-graph."""
    frame_wave: int = 0
    """The same inside of the sub-graph; in a function, how many calls it had made."""
    frame: str
    """The sub-graph's step that it is inside of; empty for the run itself."""
    nodes: tuple[str, ...]
    """The nodes that had just finished."""
    next: tuple[str, ...]
    """The nodes that were about to run."""
    created_at: dt.datetime
    annotation: Annotation = _NO_ANNOTATION
    """What people said of it."""

    @property
    def tags(self) -> tuple[str, ...]:
        """The words that people tagged it with."""
        return self.annotation.tags

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes that people wrote to it."""
        return tuple(text for _, _, text in self.annotation.notes)


@dataclass(frozen=True, slots=True)
class History(View, Sequence[Point]):
    """A page of a run's checkpoints, newest first."""

    JSON: ClassVar[str] = "run_id workflow status checkpoints=points more since=since.events"
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

    def _repr_html_(self) -> str:
        return notebook.history_html(self)


def history(journal: Journal, info: RunInfo, limit: int | None = None, before: int | None = None) -> History:
    """The newest `limit` checkpoints of a run that lie before entry `before`.

    Only the entries of this page, and those after the newest checkpoint, are read. Values that are stored as
    differences are not rebuilt, so no earlier entry is needed.
    """
    store = journal.store
    stored = store.checkpoints(info.run, before, None if limit is None else limit + 1)
    after = stored[limit].seq if limit is not None and len(stored) > limit else 0
    upto = None if before is None else stored[0].seq if stored else 0
    stretch, points, annotated = _Stretch(info.run), list[Point](), RunState()
    for entry in _entries(store, info, after, upto) if upto != 0 else ():
        for record in journal.skimmed(info, entry, CODEC):
            stretch.take(record)
            if isinstance(record, RunAnnotated):
                apply(annotated, record, entry.at)
        stretch.size += len(entry.body)
        if entry.mark is not None:
            found = decode_checkpoint(info.key, StoredCheckpoint.of(entry), info.run)
            position = {
                name: getattr(found, name) for name in ("id", "seq", "frame", "nodes", "next", "created_at")
            }
            points.append(Point(wave=found.run_wave, frame_wave=found.wave, **position, **stretch.facts()))
            stretch = _Stretch(info.run)
    if before is not None and points:
        annotated = journal.load(info, CODEC).run
    shown = points[::-1][:limit]
    return History(
        info.run,
        info.workflow,
        info.status,
        tuple(
            dataclasses.replace(each, annotation=annotated.annotations.get(each.seq, each.annotation))
            for each in shown
        ),
        bool(after) or len(points) > len(shown),
        Happened(**stretch.facts()),
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


def steps_text(nodes: Sequence[str]) -> str:
    """Nodes as the steps they belong to, those that occur several times counted."""
    counts: dict[str, int] = {}
    for name in map(base_name, nodes):
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(name if times == 1 else f"{name} ({times})" for name, times in counts.items()) or "-"


# Lists of checkpoints, of one run or of many.


@dataclass(frozen=True, slots=True)
class CheckpointView(View):
    """A checkpoint of a run."""

    JSON: ClassVar[str] = (
        "checkpoint_id=saved.id run_id seq=saved.seq wave=saved.run_wave nodes=saved.nodes next=saved.next "
        "created_at=saved.created_at bytes=saved.size"
    )

    run_id: str
    saved: Checkpoint


def latest_runs(store: Store, workflow: str | None, limit: int) -> list[RunInfo]:
    """Return the runs that have the newest `limit` checkpoints of a store, or of a workflow, and perhaps others."""
    # A run that is not running was updated with its newest checkpoint.
    running = store.runs(workflow=workflow, status=[RunStatus.RUNNING])
    others = store.runs(workflow=workflow, limit=limit)
    known = {info.run: info for info in (*others, *running)}
    return [info for info in known.values() if info.status != RunStatus.DAMAGED]


def checkpoint_list(store: Store, infos: Iterable[RunInfo], limit: int) -> list[CheckpointView]:
    """Return the newest `limit` checkpoints of these runs, newest first."""
    of_runs = [
        [
            CheckpointView(info.run, decode_checkpoint(info.key, each, info.run))
            for each in store.checkpoints(info.run, limit=limit)
        ]
        for info in infos
    ]
    merged = heapq.merge(*of_runs, key=lambda found: (found.saved.created_at, found.saved.seq), reverse=True)
    return list(itertools.islice(merged, limit))
