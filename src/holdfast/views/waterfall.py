"""What took the time of a run: every step that was executed, with its attempts, waits and pauses."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.journal.fold import parts_of
from holdfast.journal.journal import Journal, genesis, verified_entries
from holdfast.journal.records import (
    Answered,
    FrameOpened,
    Paused,
    Record,
    Resumed,
    RunEnded,
    StepFailed,
    StepFinished,
    StepStarted,
)
from holdfast.journal.sealing import is_sealed
from holdfast.stores.base import Entry
from holdfast.values import START, RunStatus
from holdfast.views.plain import CODEC, read_or_unread
from holdfast.views.progress import ITEM, ending_of, place_of

RUNNING, WAITING, DONE, FAILED, SKIPPED, REUSED, INTERRUPTED = (
    *("running", "waiting", "completed", "failed"),
    *("skipped", "reused", "interrupted"),
)
RETRY = "retrying"

_ODD = re.compile(rb"skipped|failed")

SMALL = 64 * 1024
"""How many bytes the result of a step has at most whose status is read."""


@dataclass(slots=True)
class Part:
    """A stretch of a step: an attempt, a wait before the next one, or a pause."""

    kind: str
    """`attempt`, `retry` (waiting for the next attempt) or `pause`."""
    number: int
    """Which attempt it is, or follows."""
    began: float
    ended: float | None = None
    status: str = RUNNING

    def end(self, at: float, status: str) -> None:
        """End it."""
        self.ended, self.status = at, status

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data; times are in seconds since 1970."""
        return dataclasses.asdict(self)


@dataclass(slots=True)
class Span:
    """One execution of one step, from its first attempt on."""

    step: str
    """Its id, `outer#1/node#2[item]`."""
    name: str
    """The name of the step in its workflow, `outer/node`."""
    label: str
    """The name for people: `node[item] (2)`."""
    status: str = RUNNING
    parts: list[Part] = field(default_factory=list)
    note: str = ""
    first: int = 0
    """The entry in which it began."""
    last: int = 0
    """The newest entry that tells of it."""

    @property
    def attempts(self) -> int:
        """How many attempts it took."""
        return max((part.number for part in self.parts), default=0)

    @property
    def began(self) -> float:
        """When it began."""
        return self.parts[0].began

    @property
    def ended(self) -> float | None:
        """When it ended; `None` while it is not over."""
        return self.parts[-1].ended

    def stopped(self, at: float, waiting: Sequence[str]) -> Span:
        """Return it as it is in a run that nobody executes since then; `waiting` are the ids of steps that wait."""
        if self.status != RUNNING or self.ended is not None:
            return self
        is_caller = any(step.startswith(f"{self.step}/") for step in waiting)
        status, last = WAITING if is_caller else INTERRUPTED, dataclasses.replace(self.parts[-1])
        last.end(max(at, last.began), DONE if is_caller else INTERRUPTED)
        return dataclasses.replace(self, status=status, parts=[*self.parts[:-1], last])

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data; times are in seconds since 1970."""
        return {
            **dataclasses.asdict(self),
            "attempts": self.attempts,
            "began": self.began,
            "ended": self.ended,
        }

    def begin(self, kind: str, number: int, at: float) -> None:
        """Begin another part; what was not over ends there."""
        if self.parts and self.parts[-1].ended is None:
            self.parts[-1].end(at, INTERRUPTED if kind == "attempt" == self.parts[-1].kind else DONE)
        self.parts.append(Part(kind, number, at))

    def end(self, at: float, status: str, note: str = "") -> None:
        """End the step, or its last part."""
        if self.parts and self.parts[-1].ended is None:
            self.parts[-1].end(at, status)
        self.status, self.note = status, note


_ENDS = (RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.INTERRUPTED, RunStatus.QUEUED)


class Waterfall:
    """The steps of a run in the order in which they began; `read` takes in what was stored since."""

    def __init__(self, journal: Journal, run_id: str, *, of_file: bool = True) -> None:
        self._journal, self._info, self._of_file = journal, journal.info(run_id), of_file
        self.spans: list[Span] = []
        self._open: dict[str, Span] = {}
        self._pauses: dict[str, str] = {}
        self._seq, self._chain, self._sealed = 0, genesis(run_id, self._info.key), False
        self._last, self._now = 0.0, 0

    def read(self) -> None:
        """Take in the entries that were stored since the last read."""
        for entry in self._entries():
            self._now = entry.seq
            for record in self._journal.skimmed(self._info, entry, CODEC):
                for part in parts_of(record):
                    self._take(part, entry.at)
            self._seq, self._chain, self._sealed = entry.seq, entry.chain, is_sealed(entry.body)
            self._last = entry.at

    def _entries(self) -> Iterator[Entry]:
        entries = self._journal.store.read(self._info.run, self._seq)
        first = next(entries, None)
        if first is None:
            return
        if first.seq == self._seq + 1:
            verified = verified_entries([first], self._info.run, self._seq, self._chain, self._sealed)
            yield from verified
        else:  # What came before was pruned.
            yield first
        yield from verified_entries(entries, self._info.run, first.seq, first.chain, is_sealed(first.body))

    def _take(self, record: Record | Any, at: float) -> None:
        match record:
            case StepStarted(step=step, attempt=attempt):
                self._begin(step, attempt, at)
            case FrameOpened(step=step):
                self._begin(step, 1, at)
            case StepFinished(step=step):
                self._finish(record, step, at)
            case StepFailed(step=step):
                self._fail(record, step, at)
            case Paused(step=step, pause=pause) if step:
                self._pauses[pause] = step
                span = self._open.get(step) or self._new(step)
                span.begin("pause", span.attempts, at)
                span.status, span.last = WAITING, self._now
            case Answered(pause=pause):
                span_of = self._open.get(self._pauses.pop(pause, ""))
                if span_of is not None and span_of.parts[-1].kind == "pause":
                    span_of.parts[-1].end(at, DONE)
            case Resumed():
                self._interrupt(self._last or at)
            case RunEnded(status=status) if RunStatus(status) in _ENDS:
                self._interrupt(at)

    def _new(self, step: str) -> Span:
        place = place_of(step, "", self._of_file)
        found = Span(step, "/".join(place.path), place.label, first=self._now)
        if not self._of_file or place.role in ("", ITEM):
            self.spans.append(found)
        self._open[step] = found
        return found

    def _begin(self, step: str, attempt: int, at: float) -> None:
        if step.rpartition("/")[2].startswith(START):
            return
        span = self._open.get(step) or self._new(step)
        # A step that was answered goes on with its attempt.
        number = span.parts[-1].number if span.parts and span.parts[-1].kind == "pause" else attempt
        span.begin("attempt", number, at)
        span.status, span.last = RUNNING, self._now

    def _finish(self, record: StepFinished, step: str, at: float) -> None:
        if step.rpartition("/")[2].startswith(START):
            return
        span = self._open.get(step) or self._new(step)
        del self._open[step]
        if not span.parts:  # Its begin is not stored any more.
            span.begin("attempt", 1, at - record.seconds)
        status = ending_of(record.skipped, span.note)
        if status == DONE:
            status = REUSED if record.origin else self._said(record, span)
        note = record.skipped or (f"reused from {record.origin}" if record.origin else "")
        span.end(at, status, note)
        span.last = self._now

    def _said(self, record: StepFinished, span: Span) -> str:
        """Return how a step of a workflow file says that it ended."""
        own = [op.raw for op in record.ops if op.kind == "set" and op.key == span.name]
        is_odd = self._of_file and own and len(own[0]) < SMALL and _ODD.search(own[0])
        said = read_or_unread(lambda: CODEC.decode(own[0])) if is_odd else None
        status = said.get("status") if isinstance(said, dict) else None
        return str(status) if status in (SKIPPED, FAILED) else DONE

    def _fail(self, record: StepFailed, step: str, at: float) -> None:
        span = self._open.get(step) or self._new(step)
        if not span.parts:
            span.begin("attempt", record.attempt, at - record.seconds)
        span.end(at, FAILED, str(record.fault))
        span.last = self._now
        if record.retry_at is not None:
            span.begin("retry", record.attempt, at)
            span.status = RETRY

    def _interrupt(self, at: float) -> None:
        """Mark the attempts under way as interrupted: their process is gone, or was stopped."""
        for span in self._open.values():
            if span.parts and span.parts[-1].ended is None and span.parts[-1].kind != "pause":
                span.end(max(at, span.parts[-1].began), INTERRUPTED)
