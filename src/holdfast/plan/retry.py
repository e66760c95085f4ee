"""`Retry`: when a failed attempt is tried again, and how long to wait before."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import GraphInvalid

Reasons = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how patiently a step is tried. Attempts are journalled, so a crash does not reset them.

    `delay` seconds pass before the second attempt; `backoff="exponential"` doubles it each time, up to
    `max_delay`. `on` says which failures are worth it: exception types, or a function of the exception.
    """

    attempts: int = 3
    delay: float | dt.timedelta = 0.5
    backoff: str = "exponential"
    max_delay: float = 60.0
    on: Reasons = Exception

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise GraphInvalid("Retry", [f"attempts must be at least 1, not {self.attempts!r}"])
        if self.backoff not in ("exponential", "fixed"):
            raise GraphInvalid("Retry", [f"backoff must be 'exponential' or 'fixed', not {self.backoff!r}"])
        if self._base() < 0 or self.max_delay < 0:
            raise GraphInvalid("Retry", ["delays cannot be negative"])

    def delay_after(self, tried: int, error: BaseException) -> float | None:
        """Seconds to wait before the next attempt, or `None` to give up after `tried` attempts."""
        if tried >= self.attempts or not self._covers(error):
            return None
        delay = self._base()
        if self.backoff == "exponential":
            delay *= 2.0 ** min(tried - 1, 60)
        return min(delay, self.max_delay)

    def _base(self) -> float:
        return self.delay.total_seconds() if isinstance(self.delay, dt.timedelta) else self.delay

    def _covers(self, error: BaseException) -> bool:
        if isinstance(self.on, (type, tuple)):
            return isinstance(error, self.on)
        return bool(self.on(error))
