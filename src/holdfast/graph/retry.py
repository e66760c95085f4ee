"""`Retry`: when a failed attempt is tried again, and how long to wait before."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import ExecutorLost, HoldfastError

Reasons = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry policy of a step. Attempts are journalled, so a crash does not reset them.

    `delay` seconds pass before the second attempt; `backoff="exponential"` doubles it each time, up to
    `max_delay`. `on` says which failures are worth it: exception types, or a function of the exception. An
    exception with a number `retry_after` asks for at least so many seconds, which pass up to `max_delay`.
    """

    attempts: int = 3
    delay: float | dt.timedelta = 0.5
    backoff: str = "exponential"
    max_delay: float = 60.0
    on: Reasons = Exception

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or self.attempts < 1:
            raise HoldfastError(f"Retry: attempts must be at least 1, not {self.attempts!r}")
        if self.backoff not in ("exponential", "fixed"):
            raise HoldfastError(f"Retry: backoff must be 'exponential' or 'fixed', not {self.backoff!r}")
        if not isinstance(self.delay, (int, float, dt.timedelta)) or self._base() < 0 or self.max_delay < 0:
            raise HoldfastError(
                f"Retry: delays must be seconds or timedeltas and not negative: {self.delay!r}"
            )
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        if not callable(self.on) and not all(isinstance(kind, type) for kind in kinds):
            raise HoldfastError(f"Retry: on must be exception types or a function, not {self.on!r}")

    def delay_after(self, tried: int, error: BaseException) -> float | None:
        """Seconds to wait before the next attempt, or `None` to give up after `tried` attempts."""
        if tried >= self.attempts or not self._covers(error):
            return None
        delay = self._base()
        if self.backoff == "exponential":
            delay *= 2.0 ** min(tried - 1, 60)
        wanted = getattr(error, "retry_after", None)
        if isinstance(wanted, (int, float)) and wanted > delay:
            delay = float(min(wanted, self.max_delay))
        return min(delay, self.max_delay)

    def _base(self) -> float:
        return self.delay.total_seconds() if isinstance(self.delay, dt.timedelta) else self.delay

    def _covers(self, error: BaseException) -> bool:
        if isinstance(self.on, (type, tuple)):
            return isinstance(error, self.on)
        return bool(self.on(error))


AFTER_A_LOSS = Retry(attempts=3, delay=0.25, on=ExecutorLost)
"""The policy of nodes that have none: only steps whose executor was lost are tried again."""
