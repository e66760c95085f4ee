"""The time, as everything that decides by it reads it; a test may put another clock in its place.

Read as `clock.time()`, never `from holdfast.clock import time`, so that a clock that is put in place is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, perf_counter, sleep, time
from typing import Any

__all__ = ["glance", "loop_factory", "monotonic", "perf_counter", "sleep", "time"]

loop_factory: Callable[[], Any] | None = None
"""Makes the event loops that Holdfast runs by itself; `None` is asyncio's own way."""


def glance(seconds: float) -> float:
    """How long to wait at once where somebody looks every so many seconds whether waiting is still wanted."""
    return seconds
