"""What leaves a node without being its failure: signals that no `except Exception` can swallow."""

from __future__ import annotations

from holdfast.errors import HoldfastError
from holdfast.journal.records import Paused
from holdfast.journal.run_state import SLEEP


class PauseSignal(BaseException):
    """Leaves a node that waits for an answer. No `except Exception` can swallow it."""

    def __init__(self, *asked: Paused) -> None:
        self.asked = asked
        what = "its time" if asked[0].kind == SLEEP else f"an answer to {asked[0].prompt!r}"
        super().__init__(f"waiting for {what}")


class StopSignal(BaseException):
    """Leaves a node because the run is to stop, or because this attempt was left: it timed out, or the run went on.

    Every call of `ctx` that has an effect raises it in an attempt that was left, before the effect.
    """


class Terminated(SystemExit):
    """SIGTERM arrived. Any other `SystemExit` is a node's own, and a failure like another."""


class StepInterrupted(HoldfastError):
    """An interrupted step, or a function given to `once`, may not be repeated unasked."""
