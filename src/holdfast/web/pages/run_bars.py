"""The steps of a run as bars in time: where each attempt, wait and pause is on a scale from 0 to 1000."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.web.pages.wording import lasted

WIDTH = 1000.0
LEAST = 4.0
"""How wide a bar is at least, so that it is seen."""


def bars(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of a waterfall with the places of their bars, and the scale."""
    spans, now = found["spans"], found["now"]
    begin = min((span["began"] for span in spans), default=now)
    end = max((_end(span, now) for span in spans), default=now)
    whole = max(end - begin, 1e-3)
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
    ticks = [(each * 250, lasted(whole * each / 4) if each else "0") for each in range(5)]
    return {
        "rows": rows,
        "ticks": ticks,
        "first": found["first"],
        "last": found["first"] + len(spans),
        "total": found["total"],
        "begin": begin if spans else None,
    }


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
