"""What people said of a run and of its checkpoints, as readers see it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from holdfast.journal.checkpoints import checkpoint_id
from holdfast.journal.run_state import Remark, RunState
from holdfast.stores.base import RunInfo
from holdfast.views.plain import iso, plain, when


@dataclass(frozen=True, slots=True)
class NoteView:
    """One note: when it was written, by whom, and what it says."""

    at: dt.datetime
    by: str
    text: str

    def as_json(self) -> dict[str, Any]:
        """Keys: at, by, text."""
        return {"at": iso(self.at), "by": plain(self.by), "text": plain(self.text)}


@dataclass(frozen=True, slots=True)
class RemarkView:
    """What was said of one checkpoint, or, without one, of the run."""

    seq: int
    checkpoint_id: str
    tags: tuple[str, ...]
    keep: bool
    """Whether retention leaves it alone."""
    notes: tuple[NoteView, ...]

    def as_json(self) -> dict[str, Any]:
        """Keys: seq, checkpoint_id, tags, keep, notes."""
        return {
            "seq": self.seq,
            "checkpoint_id": self.checkpoint_id or None,
            "tags": [plain(tag) for tag in self.tags],
            "keep": self.keep,
            "notes": [note.as_json() for note in self.notes],
        }


def remark_views(info: RunInfo, run: RunState) -> tuple[RemarkView, ...]:
    """What was said of a run, then of its checkpoints in their order."""
    return tuple(remark_at(info, run, seq) for seq in sorted(run.remarks))


def remark_at(info: RunInfo, run: RunState, seq: int) -> RemarkView:
    """What was said of the checkpoint at an entry, or, with 0, of the run."""
    remark = run.remarks.get(seq) or Remark()
    notes = tuple(NoteView(when(at), by, text) for at, by, text in remark.notes)
    ident = checkpoint_id(info.key, seq) if seq else ""
    return RemarkView(seq, ident, remark.tags if seq else info.tags, remark.keep, notes)
