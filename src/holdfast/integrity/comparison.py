"""Whether two folds of a journal are the same run, however they were stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from holdfast.engine.runner import tags_of
from holdfast.errors import CodecError, HoldfastError
from holdfast.journal.run_state import Frame, Remark, RunState, Step
from holdfast.state.codec import Codec
from holdfast.state.ops import Op
from holdfast.stores.base import RunInfo
from holdfast.stores.integrity import Standing
from holdfast.values import RunStatus

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


# The facts of a run as its journal tells them, and what of them it does not tell.


_WAITING = (RunStatus.QUEUED.value, RunStatus.INTERRUPTED.value)


class Told(NamedTuple):
    """What a journal tells of a run: its state, the tags that were ever removed from it, and whether all of that.

    `parent` is the key of the run that it is read through, `None` where that is not known.
    """

    run: RunState
    removed: frozenset[str]
    from_the_beginning: bool
    parent: bytes | None


class Righted(NamedTuple):
    """Facts that agree with a journal, and what could not be verified of them, in words."""

    info: RunInfo
    unverified: tuple[str, ...] = ()


def righted(standing: Standing, told: Told, codec: Codec) -> Righted:
    """A run's facts as its journal has them; what cannot be believed is kept only where nothing else is known."""
    info, run = standing.info, told.run
    waits = info.status in _WAITING and str(run.status) in _WAITING
    facts = replace(
        info,
        workflow=run.workflow,
        status=info.status if waits else str(run.status),
        driver=run.driver if run.status == RunStatus.RUNNING else "",
        parent=info.parent if told.parent is None else told.parent,
    )
    if not standing.problem:
        return Righted(replace(facts, tags=tuple(dict.fromkeys((*facts.tags, *missing_tags(info, run))))))
    tags, are_known = _tags(info, told, codec)
    facts = replace(facts, created_at=run.started_at, updated_at=run.updated_at, tags=tags)
    others = ("queue", "priority", "due time", "whether the end of its journal is there")
    return Righted(facts, others if are_known else ("tags", *others))


def missing_tags(info: RunInfo, run: RunState) -> list[str]:
    """The tags that a run was given, and its facts lack."""
    return [tag for tag in _given(run) if tag not in info.tags]


def _given(run: RunState) -> tuple[str, ...]:
    return (run.remarks.get(0) or Remark()).tags


def _tags(info: RunInfo, told: Told, codec: Codec) -> tuple[tuple[str, ...], bool]:
    """The tags of a run, and whether they are known: those that it was forked with are in its facts alone."""
    known = told.from_the_beginning and told.parent == b""
    try:
        config = codec.decode(told.run.config) if told.run.config else {}
    except HoldfastError:
        config, known = {}, False
    begun = tags_of(config) if isinstance(config, Mapping) else ()
    first = begun if known else (*begun, *(tag for tag in info.tags if tag.isprintable()))
    left = [tag for tag in first if tag not in told.removed]
    return tuple(dict.fromkeys((*left, *_given(told.run)))), known
