"""What a stretch of a journal tells: time, money, failed attempts, changed keys, and what else happened, in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.data.ops import Op
from holdfast.errors import CodecError
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
from holdfast.journal.run_state import Spending, frame_of
from holdfast.values import RunStatus, readable_step
from holdfast.views.amounts import NOTHING, total
from holdfast.views.plain import ViewCodec, plain
from holdfast.views.timeline import reset_told, tell_run

_ENDS = {
    RunStatus.PAUSED: "pause",
    RunStatus.FAILED: "failure",
    RunStatus.COMPLETED: "end",
    RunStatus.INTERRUPTED: "interruption",
    RunStatus.CANCELLED: "cancellation",
    RunStatus.QUEUED: "queued",
}

_RANKS = ("start", "resume", "edit", "wave", "migration", *_ENDS.values(), "fork", "rollback", "adoption")
"""What a checkpoint is named for, the most telling last."""

KINDS = _RANKS

_LEDGER = "ledger"


@dataclass(frozen=True, slots=True)
class KeyChange:
    """What was done to a key of the state: `set`, `append`, `merge` …; `size` is in bytes, as stored."""

    key: str
    kinds: tuple[str, ...]
    size: int
    frame: str = ""
    """The sub-graph's step whose state it is; empty for the run's own."""

    def as_json(self) -> dict[str, Any]:
        """Keys: key, kinds, bytes, frame."""
        return {"key": plain(self.key), "kinds": list(self.kinds), "bytes": self.size, "frame": self.frame}


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
                self._kinds.add("rollback" if record.is_of(self.run_id) else "adoption")
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
