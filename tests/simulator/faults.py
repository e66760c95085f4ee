"""What may go wrong in a simulation, when, and to whom."""

from __future__ import annotations

from typing import NamedTuple

CRASH = "crash"
"""The process that is at work dies, wherever it is."""
CRASH_BEFORE = "crash-before-commit"
"""The process that commits next dies before anything of it is stored."""
CRASH_AFTER = "crash-after-commit"
"""The process that commits next dies after all of it is stored, before it hears of that."""
TORN = "torn-batch"
"""Of the next commit only the first appends are stored, and the process dies."""
LOST_REPLY = "lost-reply"
"""The next commit is stored, and whoever made it is told that it failed."""
REFUSED = "refused-commit"
"""The next commit is not stored, and fails."""
PAUSE = "zombie"
"""The process that is at work stands still for longer than its lease, and then goes on as if nothing was."""
CUT_OFF = "partition"
"""The process that is at work does not reach the server for a while: its calls hang, and fail."""
FULL = "disk-full"
"""The server refuses all that is to be stored, for a while."""
SLOW = "slow-disk"
"""All threads take long for a while."""
JUMP = "clock-jump"
"""The wall clock of the process that is at work jumps, forward or back."""
STOP = "worker-stop"
"""The worker is told to stop, as by SIGTERM; the amount says whether at once."""
DUPLICATE_WAKE = "duplicate-wake"
"""A process is told to take up a run, whoever drives it."""
LOST_WAKE = "lost-wake"
"""The next time that a run is queued, nobody is told."""

AT_COMMIT = (CRASH_BEFORE, CRASH_AFTER, TORN, LOST_REPLY, REFUSED)
"""Those that wait for the next commit."""


class Fault(NamedTuple):
    """A fault at one point: the n-th event, or boundary of a store call, of the simulation.

    `amount` is what it needs: seconds of a pause, a partition, a clock's jump, or until a dead process is there again.
    """

    kind: str
    at: int
    amount: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind} at moment {self.at} ({self.amount:g})"
