"""How things look in text: durations, money, times, and data that came from strangers."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import os
import sysconfig
import time
import traceback
from collections.abc import Mapping, Set
from functools import lru_cache
from pathlib import Path
from typing import Any

from holdfast.cli.output import visible

__all__ = [
    "as_json",
    "clock",
    "count",
    "duration",
    "moment",
    "money",
    "one_line",
    "plain",
    "visible",
]


def one_line(text: str, limit: int = 200) -> str:
    """The beginning of a text as one harmless line."""
    line = " ".join(visible(text).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def duration(seconds: float) -> str:
    """A length of time: `0.2s`, `12s`, `2m05s`, `1h02m`, `3d04h`."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    for small, large, size, small_size in (("s", "m", 60, 1), ("m", "h", 3600, 60)):
        if whole < size * (60 if large == "m" else 24):
            return f"{whole // size}{large}{whole % size // small_size:02}{small}"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def money(dollars: float) -> str:
    """An amount of US dollars; small ones with as many digits as they need."""
    if dollars == 0 or abs(dollars) >= 0.1:
        return f"${dollars:.2f}"
    return f"${dollars:.{min(8, 1 - math.floor(math.log10(abs(dollars))))}f}"


def clock(at: float) -> str:
    """The local time of day."""
    return _clock(int(at))


@lru_cache(maxsize=8)
def _clock(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))


def moment(at: dt.datetime) -> str:
    """A date and a local time, to the second."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def count(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def plain(value: Any) -> Any:
    """A value as JSON can hold it; what JSON does not know becomes text, bytes become base64."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Set):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return value.isoformat()
    return str(value)


def as_json(value: Any, indent: int | None = 2) -> str:
    """A value as JSON text."""
    return visible(json.dumps(plain(value), indent=indent, ensure_ascii=False))


# Tracebacks as their readers need them: the code of the user, without Holdfast's own frames.


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
