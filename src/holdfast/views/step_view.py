"""What readers see of a step: how it stands, how long it took, what it left behind, why it failed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.data.codec import Codec
from holdfast.data.ops import Op
from holdfast.data.state import State
from holdfast.errors import CodecError
from holdfast.views.flow_values import step_output
from holdfast.views.plain import (
    CODEC,
    TOO_BIG_TO_PREVIEW,
    Unread,
    iso,
    plain,
    preview,
    read_or_told,
    size_text,
)

MANY_ITEMS = 1000
"""The outputs of more items than this are not decoded for a preview."""


@dataclass(frozen=True, slots=True)
class Items:
    """How far a for-each has come."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    skipped: int = 0
    running: int = 0

    def as_json(self) -> dict[str, int]:
        """Keys: total, completed, failed, skipped, running."""
        names = ("total", "completed", "failed", "skipped", "running")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class FaultView:
    """Why a step, or the run, failed."""

    step: str
    type: str
    message: str
    trace: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    def as_json(self) -> dict[str, Any]:
        """Keys: step, type, message, trace."""
        texts = {"step": self.step, "type": self.type, "message": self.message, "trace": self.trace}
        return {name: plain(text) for name, text in texts.items()}


@dataclass(frozen=True, slots=True)
class StepView:
    """A step of a run's workflow, over all its visits.

    `status` is `pending` (not reached), `next`, `running`, `retrying`, `waiting` (for an answer or at a
    gate), `interrupted`, `failed`, `skipped` or `completed`. In a sub-graph the name is `outer/inner`.
    """

    name: str
    status: str
    visits: int = 0
    attempts: int = 0
    seconds: float = 0.0
    started_at: dt.datetime | None = None
    ended_at: dt.datetime | None = None
    retry_at: dt.datetime | None = None
    items: Items | None = None
    fault: FaultView | None = None
    note: str = ""
    """Why it was skipped."""
    _ops: tuple[Op, ...] = field(default=(), repr=False, compare=False)
    _state: State | None = field(default=None, repr=False, compare=False)
    """Of a workflow file's step the state, in which for-each steps and groups keep their outputs."""
    _members: tuple[str, ...] = field(default=(), repr=False)
    _previews: Codec = field(default=CODEC, repr=False, compare=False)
    """What reads values for previews, over all steps of the run; they are not kept."""

    @property
    def output(self) -> Any:
        """What it left behind last: the output of a workflow file's step, the update of a Python node."""
        return read_or_told(lambda: self._output(self.result))

    def _output(self, result: Any) -> Any:
        if isinstance(result, Mapping) and "output" in result:
            return result["output"]
        return result if self._state is None else step_output(self._state, self.name, self._members)

    @property
    def item_results(self) -> Mapping[str, Mapping[str, Any]]:
        """What became of the finished items of a workflow file's for-each, by key."""
        found = None if self._state is None else self._state.get(f"{self.name}:items")
        return found if isinstance(found, Mapping) else {}

    @property
    def item_errors(self) -> dict[str, Any]:
        """Why items failed, by key."""
        results = read_or_told(lambda: self.item_results)
        if isinstance(results, Unread):
            return {"": results}
        return {key: item["error"] for key, item in results.items() if "error" in item}

    @property
    def result(self) -> Any:
        """All that it left behind last, decoded when it is first asked for; `None` if nothing."""
        return self._result(lambda op: read_or_told(lambda: op.value))

    def _result(self, read: Callable[[Op], Any]) -> Any:
        for op in self._ops:
            if op.key == self.name and op.kind == "set":
                return read(op)
        return {op.key: read(op) for op in self._ops if op.kind != "drop"} or None

    def preview(self, width: int = 80) -> str:
        """Its output on one line; of a very large one only its size, of many items only their number."""
        size = sum(len(op.raw) for op in self._ops if op.kind != "drop")
        if size > TOO_BIG_TO_PREVIEW:
            return f"<{size_text(size)}>"
        if self._state is not None and self.items is not None and self.items.total > MANY_ITEMS:
            return f"<{self.items.completed} outputs>"
        try:
            output = self._output(self._result(lambda op: self._previews.decode(op.raw)))
        except CodecError as error:
            return f"<unreadable here: {error}>"[:width]
        return "" if output is None else preview(output, width)

    def as_json(self, *, full: bool = False) -> dict[str, Any]:
        """Keys: name, status, visits, attempts, seconds, started_at, ended_at, retry_at, items, error, note,
        preview; with `full` also output and result."""
        facts: dict[str, Any] = {
            "name": self.name,
            "status": self.status,
            "visits": self.visits,
            "attempts": self.attempts,
            "seconds": round(self.seconds, 6),
            "started_at": iso(self.started_at),
            "ended_at": iso(self.ended_at),
            "retry_at": iso(self.retry_at),
            "items": None if self.items is None else self.items.as_json(),
            "error": None if self.fault is None else self.fault.as_json(),
            "note": plain(self.note),
            "preview": self.preview(),
        }
        if not full:
            return facts
        errors = {} if self.items is None else {"errors": plain(self.item_errors)}
        return {**facts, "output": plain(self.output), "result": plain(self.result), **errors}
