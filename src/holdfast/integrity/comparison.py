"""Comparing two folds of a journal, and correcting a run's facts by its journal."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from holdfast.engine.runner import tags_of
from holdfast.errors import CodecError, HoldfastError
from holdfast.journal.run_state import Annotation, Frame, RunState, Step
from holdfast.state.codec import Codec
from holdfast.state.ops import Op
from holdfast.stores.base import RunInfo
from holdfast.stores.integrity import Observed
from holdfast.values import RunStatus

_OF_THE_WRITER = ("started_at", "updated_at", "faults", "inherited_seconds")
"""Fields that only the writer of a run knows exactly: the times of its records, not only of its entries."""
_BY_PARTS = ("frames", "pauses")


def difference(one: RunState, other: RunState, codec: Codec) -> str:
    """Return in what two runs differ, in a few words; empty if they are the same."""
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


_WAITING = (RunStatus.QUEUED.value, RunStatus.INTERRUPTED.value)


class Corrected(NamedTuple):
    """Facts that agree with a journal, and the names of those that could not be verified."""

    info: RunInfo
    unverified: tuple[str, ...] = ()


def corrected(
    seen: Observed, run: RunState, removed: Collection[str], parent: bytes | None, is_all: bool, codec: Codec
) -> Corrected:
    """Return a run's facts as its journal has them; damaged facts are kept only where nothing else is known.

    `removed` are the tags that were ever removed, `parent` is the key of the run that it is read through, if that is
    known, and `is_all` says whether the journal has all that ever happened to the run.
    """
    info = seen.info
    waits = info.status in _WAITING and str(run.status) in _WAITING
    facts = replace(
        info,
        workflow=run.workflow,
        status=info.status if waits else str(run.status),
        owner=run.owner if run.status == RunStatus.RUNNING else "",
        parent=info.parent if parent is None else parent,
    )
    if not seen.problem:
        return Corrected(replace(facts, tags=(*facts.tags, *missing_tags(info, run))))
    begun = _begun_with(run, codec)
    is_known = is_all and begun is not None
    kept = () if is_known else (tag for tag in info.tags if tag.isprintable())
    tags = [tag for tag in (*(begun or ()), *kept) if tag not in removed]
    facts = replace(
        facts,
        created_at=run.started_at,
        updated_at=run.updated_at,
        tags=tuple(dict.fromkeys((*tags, *_given(run)))),
    )
    others = ("queue", "priority", "due time", "whether the end of its journal is there")
    return Corrected(facts, others if is_known else ("tags", *others))


def missing_tags(info: RunInfo, run: RunState) -> list[str]:
    """Return the tags that a run was given, and its facts lack."""
    return [tag for tag in _given(run) if tag not in info.tags]


def _given(run: RunState) -> tuple[str, ...]:
    return (run.annotations.get(0) or Annotation()).tags


def _begun_with(run: RunState, codec: Codec) -> tuple[str, ...] | None:
    """Return the tags that a run was started with; `None` if its config cannot be read."""
    try:
        config = codec.decode(run.config) if run.config else {}
    except HoldfastError:
        return None
    return tags_of(config) if isinstance(config, Mapping) else ()
