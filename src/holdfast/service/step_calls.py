"""The calls of the steps of a function: what each was given, and what it returned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import CodecError
from holdfast.functions.steps import ARGUMENTS, DIGEST
from holdfast.journal.encoding import Track
from holdfast.journal.fold import parts_of
from holdfast.journal.journal import Journal
from holdfast.journal.records import Record, StepCalled, StepFinished
from holdfast.journal.run_state import step_id
from holdfast.state.ops import Op
from holdfast.views.plain import CODEC, ViewCodec
from holdfast.views.waterfall import Span

OUTPUT = "output"
"""The key of an update that has what a call returned."""


def calls_of(journal: Journal, run_id: str, spans: Sequence[Span], most: int) -> list[dict[str, Any]]:
    """Return the calls that executions of steps are of; a value of more than `most` bytes is `None`, with its size.

    `arguments` of calls before what is stored are missing; of large ones there is a preview.
    """
    ends = {span.step: span for span in spans}
    found: dict[str, dict[str, Any]] = {
        span.step: {"step": span.step, "label": span.label, "status": span.status} for span in spans
    }
    for record in _records(journal, run_id, spans):
        match record:
            case StepCalled(frame, node, visit, key, item) if (
                ident := step_id(frame, node, visit, key)
            ) in ends:
                given = {op.key: op for op in item}
                found[ident] |= _part("arguments", given.get(ARGUMENTS), most)
                found[ident]["is_preview"] = DIGEST in given
            case StepFinished(step=ident, ops=ops) if ident in ends:
                found[ident] |= _part("output", next((op for op in ops if op.key == OUTPUT), None), most)
    return list(found.values())


def _records(journal: Journal, run_id: str, spans: Sequence[Span]) -> Iterator[Record]:
    """Yield the records from the begin of the first execution to the end of the last."""
    if not spans:
        return
    info, first = journal.info(run_id), next(iter(journal.store.read(run_id)), None)
    start = min(span.first for span in spans) - 1
    if first is not None and first.seq > 1:  # What came before was pruned.
        start = max(start, first.seq)
    track = journal.load(info, CODEC, start).track if start > 0 else Track()
    for entry in journal.store.read(run_id, max(0, start)):
        if entry.seq > max(span.last for span in spans):
            return
        for record in journal.records(info, entry, track, CODEC):
            yield from parts_of(record)


def _part(name: str, op: Op | None, most: int) -> Mapping[str, Any]:
    """Return a value of a call under its name, and its size if it is too large to be read."""
    if op is None:
        return {}
    if len(op.raw) > most:
        return {name: None, f"{name}_bytes": len(op.raw)}
    try:
        return {name: ViewCodec().decode(op.raw)}
    except CodecError as error:
        return {name: f"<unreadable here: {error}>"}
