"""A run as lines of JSON, one record each: for reading and searching, not for carrying."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from holdfast.data.budget import MOST_MEMORY
from holdfast.data.codec import Codec
from holdfast.data.ops import Op
from holdfast.errors import CodecError
from holdfast.journal.bodies import is_sealed
from holdfast.journal.checkpoints import read_mark
from holdfast.journal.journal import Journal
from holdfast.journal.records import Record
from holdfast.journal.run_state import RunState
from holdfast.stores.base import Entry, Mark, RunInfo
from holdfast.views.plain import ViewCodec, iso, plain, read_or_told, when

VERSION = 1
# Each line reads its own values. Together they may need what one value may need, so that each alone is always read.


def lines_of(journal: Journal, run: str) -> Iterator[str]:
    """The facts of a run, and then every record of its journal, each as one line of JSON."""
    info = journal.info(run)
    begun, history = journal.history(info, ViewCodec(MOST_MEMORY))
    yield _line(_facts(info))
    for number, (entry, records) in enumerate(history):
        if number == 0 and not records:
            yield _line(_at(entry, "Beginning") | {"state": _state(begun)})
        for record in records:
            yield _line(_at(entry, type(record).__name__) | _fields(record, ViewCodec(MOST_MEMORY)))
        if entry.mark is not None:
            yield _line(_checkpoint(info, entry))


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _facts(info: RunInfo) -> dict[str, Any]:
    return {
        "holdfast": VERSION,
        "run_id": plain(info.run),
        "workflow": plain(info.workflow),
        "status": info.status,
        "created_at": iso(when(info.created_at)),
        "updated_at": iso(when(info.updated_at)),
        "tags": [plain(tag) for tag in info.tags],
    }


def _at(entry: Entry, kind: str) -> dict[str, Any]:
    return {"seq": entry.seq, "at": iso(when(entry.at)), "type": kind}


def _checkpoint(info: RunInfo, entry: Entry) -> dict[str, Any]:
    found = read_mark(info.key, Mark(entry.seq, entry.at, entry.mark or b"", len(entry.body)), info.run)
    facts = {"checkpoint_id": found.id, "wave": found.wave, "nodes": found.nodes, "next": found.next}
    told: dict[str, Any] = plain({**facts, "frame": found.frame, "bytes": found.size})
    return _at(entry, "Checkpoint") | told


def _state(run: RunState) -> dict[str, Any]:
    """The state of every frame where the journal begins in the middle."""
    return {
        path: {key: plain(read_or_told(slot.get)) for key, slot in frame.cells.items()}
        for path, frame in run.frames.items()
    }


def _fields(record: Record, codec: Codec) -> dict[str, Any]:
    """The fields of any record; what it began as is told by what it was begun from."""
    return {name: _plain(value, codec) for name, value in record._asdict().items() if name not in _LEFT_OUT}


_LEFT_OUT = ("run", "body", "chain")


def _plain(value: Any, codec: Codec) -> Any:
    if isinstance(value, Op):
        change = {"op": value.kind, "key": plain(value.key), "bytes": len(value.raw)}
        return change if value.kind == "drop" else {**change, "value": _decoded(value.raw, codec)}
    if isinstance(value, bytes):
        return _decoded(value, codec) if value else None
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(item, codec) for name, item in value._asdict().items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, codec) for item in value]
    return plain(value)


def _decoded(raw: bytes, codec: Codec) -> Any:
    """A stored value as JSON has it; bytes that are none as they are."""
    try:
        return plain(codec.decode(raw))
    except CodecError as error:
        if is_sealed(raw):
            raise
        if raw.isascii():
            return raw.decode("ascii")
        return {"$type": "bytes", "base64": base64.b64encode(raw).decode(), "text": f"not read: {error}"}
