"""How facts read on pages: times, durations, statuses, sizes, amounts, and values of workflows as bounded text."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast import clock
from holdfast.errors import HoldfastError
from holdfast.views.plain import escaped, size_text

MOST_SHOWN = 100_000
"""How many characters of one value a page shows."""

SIGNS = {
    "queued": "○",
    "running": "●",
    "paused": "?",
    "completed": "✓",
    "failed": "✕",
    "cancelled": "■",
    "dead": "!",
    "pending": "○",
    "next": "○",
    "retrying": "↻",
    "waiting": "?",
    "interrupted": "!",
    "skipped": "»",
}
"""The sign of each status, so that none is known by its colour alone."""


HELP = {
    "answer": "Answer its question on the page of the run.",
    "cancel": "Cancel the run, or wait until it has stopped.",
    "choose_run_id": "Choose another id.",
    "confirm": "Somebody has to confirm it first: `holdfast resume` in a terminal shows what it would run with.",
    "fork": "Fork it at a checkpoint instead.",
    "list_checkpoints": "Choose a checkpoint on the page State.",
    "list_runs": "Look for it on the page Runs.",
    "list_workflows": "The page Workflows lists what this server has.",
    "plan": "Load this page again for the plan as it is now.",
    "rerun": "Run the step again from its own page.",
    "resume": "Resume the run.",
    "settle": "Find out what became of the step; then run it again, or skip it, from its own page.",
    "skip": "Skip the step from its own page.",
}
"""The remedies of errors, as pages say them."""


def said(error: HoldfastError) -> list[str]:
    """Return an error and its remedies in the words of pages."""
    helping = [remedy.text or HELP.get(remedy.action, "") for remedy in error.remedies]
    return [error.public_problem, *(text for text in helping if text)]


class Shown(NamedTuple):
    """A value as text, cut if it is long."""

    text: str
    left_out: str = ""


def shown(value: Any, most: int = MOST_SHOWN) -> Shown:
    """Return a value as text: a text as it is, anything else as indented JSON; at most so many characters."""
    if isinstance(value, str):
        return _cut(value, most)
    pieces: list[str] = []
    size = 0
    for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        # A value is not encoded further than it is shown.
        pieces.append(piece)
        size += len(piece)
        if size > most:
            return Shown(_harmless("".join(pieces)[:most]), "the value is longer")
    return Shown(_harmless("".join(pieces)))


def _cut(text: str, most: int) -> Shown:
    if len(text) <= most:
        return Shown(_harmless(text))
    return Shown(_harmless(text[:most]), f"{len(text) - most:,} more characters")


def _harmless(text: str) -> str:
    """Return text in which controls and directions of writing are seen instead of followed; lines stay lines."""
    return "\n".join(escaped(line.rstrip("\r")) for line in text.split("\n"))


def read_time(at: str | dt.datetime | float | None) -> dt.datetime | None:
    """Return a time as the views and the journal have it."""
    if at is None or at == "":
        return None
    if isinstance(at, str):
        return dt.datetime.fromisoformat(at)
    return at if isinstance(at, dt.datetime) else dt.datetime.fromtimestamp(at, dt.UTC)


def clock_time(at: str | dt.datetime | float | None) -> str:
    """Return a time in UTC, to the second."""
    found = read_time(at)
    return "" if found is None else found.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def hour(at: str | dt.datetime | float | None) -> str:
    """Return the time of a day in UTC, to the millisecond."""
    found = read_time(at)
    return "" if found is None else found.astimezone(dt.UTC).strftime("%H:%M:%S.%f")[:-3]


def is_dated(events: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the times of events need their days: they are not all of today."""
    return bool({clock_time(each["at"])[:10] for each in events} - {clock_time(clock.time())[:10]})


def ago(at: str | dt.datetime | float | None) -> str:
    """Return how long ago a time was, or in how long it will be."""
    found = read_time(at)
    if found is None:
        return ""
    seconds = clock.time() - found.timestamp()
    if abs(seconds) < 1:
        return "now"
    text = rough(abs(seconds))
    return f"{text} ago" if seconds > 0 else f"in {text}"


def rough(seconds: float) -> str:
    """Return a duration to one unit: `12 s`, `3 min`, `5 h`, `2 d`."""
    for unit, size, least in (("d", 86_400, 172_800), ("h", 3_600, 7_200), ("min", 60, 120)):
        if seconds >= least:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def lasted(seconds: float | None) -> str:
    """Return a duration: `12 ms`, `3.4 s`, `2 min 5 s`, `3 h 12 min`."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def money(amount: float | None) -> str:
    """Return an amount in dollars, with as many places as a small one needs."""
    if not amount:
        return "$0"
    return f"${amount:,.2f}" if abs(amount) >= 0.1 else f"${amount:.4f}"


def one_line(value: Any, most: int = 120) -> str:
    """Return a text as one line of harmless characters."""
    text = without_request(escaped(" ".join(str(value).split())))
    return text if len(text) <= most else f"{text[: most - 1]}…"


_REQUEST = re.compile(r" \(request [0-9a-f]{16}-[0-9a-f]{16}\)")


def without_request(text: str) -> str:
    """Return a text without the number of the request that somebody's name is journalled with."""
    return _REQUEST.sub("", text)


def status_sign(status: str) -> str:
    """Return the sign of a status."""
    return SIGNS.get(str(status), "○")


def short_url(url: str) -> str:
    """Return the address of a store without a password and without its folders."""
    kind, _, rest = url.partition("://")
    return f"{kind}: {rest.rpartition('@')[2].rpartition('/')[2] or rest}" if rest else url


def mark(name: str) -> str:
    """Return the id of an element for a name, whatever signs that has."""
    return f"m{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def tidy(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts without those that are empty."""
    return {name: value for name, value in facts.items() if value not in (None, "", [], {}, ())}


FILTERS: dict[str, Callable[..., Any]] = {
    "ago": ago,
    "clock_time": clock_time,
    "hour": hour,
    "is_dated": is_dated,
    "iso": lambda at: "" if (found := read_time(at)) is None else found.isoformat(timespec="milliseconds"),
    "lasted": lasted,
    "mark": mark,
    "money": money,
    "one_line": one_line,
    "shown": shown,
    "sign": status_sign,
    "size": size_text,
    "tidy": tidy,
}
"""What templates can say a fact with."""
