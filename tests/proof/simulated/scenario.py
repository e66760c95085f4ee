"""What a schedule is about, drawn from its choices: workflows, processes, faults, and what somebody asks for."""

from __future__ import annotations

from typing import NamedTuple

from tests.simulator import Choices, Fault, faults

from .shapes import Shape, drawn

PRIVATE, SHARED, FLEET = "blocking", "async", "fleet"
"""Driven by one caller that may block, by one in an event loop, or by workers."""

_MODES = (PRIVATE,) * 12 + (SHARED,) * 5 + (FLEET,) * 2
_COUNTS = (0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3)
_PAUSES = (1.6, 0.8, 1.2, 2.0, 0.3, 1.8, 4.0)
_BACK = (0.2, 0.0, 1.0, 2.0)
_WINDOWS = (0.5, 0.05, 1.5, 3.0)
_JUMPS = (5.0, -5.0, 60.0, -60.0, 0.5, -0.5)

KINDS: tuple[tuple[str, tuple[float, ...], int], ...] = (
    (faults.CRASH, _BACK, 6),
    (faults.CRASH_BEFORE, _BACK, 2),
    (faults.CRASH_AFTER, _BACK, 3),
    (faults.LOST_REPLY, (0.0,), 3),
    (faults.REFUSED, (0.0,), 1),
    (faults.TORN, _BACK, 1),
    (faults.PAUSE, _PAUSES, 8),
    (faults.CUT_OFF, _WINDOWS, 2),
    (faults.FULL, _WINDOWS, 1),
    (faults.SLOW, _WINDOWS, 1),
    (faults.JUMP, _JUMPS, 2),
    (faults.STOP, (0.0, 1.0), 2),
    (faults.DUPLICATE_WAKE, (0.0,), 2),
    (faults.LOST_WAKE, (0.0,), 1),
)
_DRAWN = tuple((kind, amounts) for kind, amounts, weight in KINDS for _ in range(weight))

(
    CANCEL,
    CANCEL_AND_REQUEUE,
    PRUNE,
    ANSWER_TWICE,
    ANSWER_LATE,
    SUBMIT_TWICE,
    DUE_LATER,
    STOP_AND_RESUME,
    ANSWER_SOON,
) = (
    "cancel",
    "cancel-and-requeue",
    "prune",
    "answer-twice",
    "answer-late",
    "submit-twice",
    "due-later",
    "pause-and-requeue",
    "answer-while-driven",
)
WISHES = (
    CANCEL,
    CANCEL_AND_REQUEUE,
    PRUNE,
    PRUNE,
    ANSWER_TWICE,
    ANSWER_LATE,
    SUBMIT_TWICE,
    DUE_LATER,
    STOP_AND_RESUME,
    ANSWER_SOON,
)


class Scenario(NamedTuple):
    """One schedule before it is run."""

    mode: str
    shape: Shape
    runs: int
    machines: int
    faults: tuple[Fault, ...]
    wish: str
    wish_after: float

    def __str__(self) -> str:
        told = f"{self.mode}: {self.runs} x {self.shape.name} on {self.machines}"
        wish = f", {self.wish} after {self.wish_after:g} s" if self.wish else ""
        return f"{told}{wish}; " + ("; ".join(map(str, self.faults)) or "no faults")


_SPAN = {PRIVATE: 24, SHARED: 48, FLEET: 110}
"""About how many moments a small workflow takes."""


def draw(choices: Choices) -> Scenario:
    """Return the scenario of the next choices; zeros give the simplest."""
    pick = choices.pick
    mode, shape = _MODES[pick(len(_MODES))], drawn()[pick(len(drawn()))]
    runs = machines = 1
    wish, after = "", 0.0
    if mode == FLEET:
        runs, machines = (1, 1, 1, 1, 1, 1, 2, 3)[pick(8)], (2, 1, 2, 2, 3)[pick(5)]
        chosen = pick(3 * len(WISHES))
        if 0 < chosen <= len(WISHES):
            wish, after = WISHES[chosen - 1], (0.0, 0.005, 0.02, 0.1, 0.6, 2.0)[pick(6)]
    elif pick(4) == 3:
        machines = 2
    span, found = _SPAN[mode], list[Fault]()
    for _ in range(_COUNTS[pick(len(_COUNTS))]):
        kind, amounts = _DRAWN[pick(len(_DRAWN))]
        found.append(Fault(kind, 1 + pick(span), amounts[pick(len(amounts))]))
    return Scenario(mode, shape, runs, machines, tuple(found), wish, after)
