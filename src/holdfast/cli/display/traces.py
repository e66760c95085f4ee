"""Tracebacks as their readers need them: the code of the user, without Holdfast's own frames."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

OWN = f"{Path(__file__).resolve().parents[2]}{os.sep}"
"""The folder of Holdfast's own code."""
_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
_FRAME = '  File "'


def user_trace(trace: str) -> str:
    """A stored traceback without Holdfast's own frames; empty if it has no others."""
    kept: list[str] = []
    own, others = False, False
    for line in trace.splitlines():
        if line.startswith(_FRAME):
            own = line.startswith((f"{_FRAME}{OWN}", f"{_FRAME}<frozen"))
            others = others or not own
        elif not line.startswith("    "):
            own = False
        if not own:
            kept.append(line)
    return "\n".join(kept) if others else ""


def place_in_code(error: BaseException | None) -> str:
    """Where the user's code raised an error: `acts.py:6, in boom`; empty if none of it is on the way."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    found = [frame for frame in frames if not frame.filename.startswith((OWN, "<"))]
    if not found:
        return ""
    own_code = [frame for frame in found if not frame.filename.startswith(_LIBRARIES)]
    last = (own_code or found)[-1]
    return f"{_short(last.filename)}:{last.lineno}, in {last.name}"


def _short(filename: str) -> str:
    try:
        return str(Path(filename).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return filename
