"""The steps of a run as bars in time: where each attempt, wait and pause is on a scale from 0 to 1000."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.web.pages.wording import lasted

WIDTH = 1000.0
LEAST = 4.0
"""How wide a bar is at least, so that it is seen."""

YEAR = 31_536_000.0
MOST_STEPS = 4
STEPS = (
    *(each / 1000 for each in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(60.0 * each for each in (1, 2, 5, 10, 15, 30)),
    *(3_600.0 * each for each in (1, 2, 3, 6, 12)),
    *(86_400.0 * each for each in (1, 2, 5, 10, 20, 50, 100)),
)
"""How far apart the times on a scale may be, in seconds."""


def bars(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of a waterfall with the places of their bars, and the scale."""
    spans, now = found["spans"], found["now"]
    begin = min((span["began"] for span in spans), default=now)
    end = max((_end(span, now) for span in spans), default=now)
    step, parts = scale(end - begin)
    whole = step * parts
    rows = [
        {
            **span,
            "after": lasted(span["began"] - begin),
            "took": lasted(_end(span, now) - span["began"]),
            "is_open": span["ended"] is None,
            "bars": list(_bars(span["parts"], begin, whole, now)),
            "retries": span["attempts"] - 1 if span["attempts"] > 1 else 0,
        }
        for span in spans
    ]
    ticks = ["0", *(tick(step * each) for each in range(1, parts + 1))]
    return {
        "rows": rows,
        "ticks": ticks,
        "first": found["first"],
        "last": found["first"] + len(spans),
        "total": found["total"],
        "begin": begin if spans else None,
    }


def scale(seconds: float) -> tuple[float, int]:
    """Return the step of a scale that reaches so far, and of how many steps it is: at most four."""
    step = next((each for each in STEPS if each * MOST_STEPS >= seconds), 0.0)
    step = step or math.ceil(seconds / MOST_STEPS / YEAR) * YEAR
    return step, max(1, math.ceil(seconds / step - 1e-9))


def tick(seconds: float) -> str:
    """Return a time of a scale in one unit: `200 ms`, `1.5 min`."""
    for unit, size in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds * 1000:g} ms"


def _end(span: Mapping[str, Any], now: float) -> float:
    return now if span["ended"] is None else float(span["ended"])


def _bars(
    parts: Sequence[Mapping[str, Any]], begin: float, whole: float, now: float
) -> Sequence[dict[str, Any]]:
    made = []
    for part in parts:
        ended = now if part["ended"] is None else part["ended"]
        x = min(WIDTH - LEAST, max(0.0, (part["began"] - begin) / whole * WIDTH))
        width = min(WIDTH - x, max(LEAST, (ended - part["began"]) / whole * WIDTH))
        kind = part["status"] if part["kind"] == "attempt" else part["kind"]
        word = {"retry": "wait before the next attempt", "pause": "pause"}.get(
            part["kind"], f"attempt {part['number']}: {part['status']}"
        )
        made.append(
            {
                "kind": kind,
                "x": f"{x:.1f}",
                "width": f"{width:.1f}",
                "text": f"{word}, {lasted(ended - part['began'])}",
            }
        )
    return made
