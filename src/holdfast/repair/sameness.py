"""Whether two folds of a journal are the same run, however they were stored."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from holdfast.data.codec import Codec
from holdfast.data.ops import Op
from holdfast.errors import CodecError
from holdfast.journal.run_state import Frame, RunState, Step

_OF_THE_WRITER = ("started_at", "updated_at", "faults", "inherited_seconds")
"""Whoever writes a run knows its records' own times, who reads it only those of the entries; and the first versions
remembered other failures, and not how long a fork's steps had taken before it."""
_BY_PARTS = ("frames", "pauses")


def difference(one: RunState, other: RunState, codec: Codec) -> str:
    """In what two runs differ, in a few words; empty if they are the same."""
    for field in fields(RunState):
        if field.name not in (*_OF_THE_WRITER, *_BY_PARTS) and getattr(one, field.name) != getattr(
            other, field.name
        ):
            return field.name
    if _pauses(one) != _pauses(other):
        return "pauses"
    if one.frames.keys() != other.frames.keys():
        return "sub-graphs"
    for path, frame in one.frames.items():
        if what := _difference(frame, other.frames[path], codec):
            return f"{what} of {path}" if path else what
    return ""


def _pauses(run: RunState) -> dict[str, Any]:
    return {name: replace(pause, since=0.0) for name, pause in run.pauses.items()}


def _difference(one: Frame, other: Frame, codec: Codec) -> str:
    for name in ("visits", "waves", "last_node", "shared", "reduced", "waiting"):
        if getattr(one, name) != getattr(other, name):
            return name
    if one.cells.keys() != other.cells.keys():
        return "keys of the state"
    for key, slot in one.cells.items():
        if not _same(slot.encoded(codec), other.cells[key].encoded(codec), codec):
            return f"state {key!r}"
    if _logged(one) != _logged(other):
        return "changes"
    if list(map(_step, one.active.values())) != list(map(_step, other.active.values())):
        return "steps under way"
    return ""


def _same(one: bytes, other: bytes, codec: Codec) -> bool:
    if one == other:
        return True
    try:
        return bool(codec.decode(one) == codec.decode(other))
    except CodecError:
        return False


def _logged(frame: Frame) -> Any:
    return (
        None if frame.log is None else {key: [_op(op) for op in ops] for key, ops in frame.log.items() if ops}
    )


def _op(op: Op) -> tuple[Any, ...]:
    return op.kind, op.key, bytes(op.raw), op.limit


def _step(step: Step) -> dict[str, Any]:
    facts = {name: getattr(step, name) for name in Step.__dataclass_fields__}
    goto = None if step.goto is None else [(t.node, t.key, [_op(op) for op in t.item]) for t in step.goto]
    return {**facts, "ops": [_op(op) for op in step.ops], "item": [_op(op) for op in step.item], "goto": goto}
