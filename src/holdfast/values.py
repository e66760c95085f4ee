"""The small words everyone shares: statuses, the ends of a graph, labels of steps."""

import datetime as dt
from enum import StrEnum
from urllib.parse import unquote

START = "__start__"
"""Where every graph begins: `add_edge(START, first)`."""

END = "__end__"
"""Where a branch of a graph ends: `add_edge(last, END)`."""

RESULT = "result"
"""The key of the state that has what the function of a workflow returned."""


_LAST = dt.datetime(9999, 12, 31, tzinfo=dt.UTC)


def utc_time(at: float) -> dt.datetime:
    """A time in seconds since 1970, in UTC; one that calendars do not reach is the last day that all of them do."""
    return dt.datetime.fromtimestamp(at, dt.UTC) if at < _LAST.timestamp() else _LAST


class RunStatus(StrEnum):
    """How a run stands. Every status but `completed` and `damaged` can be resumed; a `queued` run waits for a worker.

    A `damaged` run is one that was repaired: a new run has what could be read of it.
    """

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    COMPLETED = "completed"
    DAMAGED = "damaged"


def step_label(step: str) -> str:
    """Return a step as messages name it: `outer/work[a/b]` for `outer:workflow#1/work:item#1[a%2Fb]`."""
    return readable_step("/".join(map(_label, step.split("/"))))


def _label(part: str) -> str:
    name, _, rest = part.partition("#")
    visit, bracket, key = rest.partition("[")
    return f"{name.partition(':')[0] or name}{f'#{visit}' if visit not in ('', '1') else ''}{bracket}{key}"


def readable_step(step: str) -> str:
    """A step's name with the keys of its items as they are, for people: `work#1[a/b]` for `work#1[a%2Fb]`."""
    return unquote(step) if "%" in step else step
