"""The clock that all time-dependent code reads; a test can replace it.

Call `clock.time()`; never write `from holdfast.clock import time`, which would bypass the replacement.
"""

from __future__ import annotations

import time as _standard
from collections.abc import Callable
from time import monotonic, perf_counter, sleep, time
from typing import Any

__all__ = ["glance", "loop_factory", "monotonic", "perf_counter", "sleep", "time", "visible_time"]

_real_time = time

loop_factory: Callable[[], Any] | None = None
"""Makes the event loops that Holdfast runs by itself; `None` is asyncio's own way."""


def glance(seconds: float) -> float:
    """How long to wait at once where somebody looks every so many seconds whether waiting is still wanted."""
    return seconds


def visible_time() -> float:
    """Return `time()` for what users see; where they replaced `time.time` itself, that is what they see."""
    return _standard.time() if time is _real_time else time()
