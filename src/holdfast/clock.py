"""The time, as everything that decides by it reads it; a test may put another clock in its place.

Read as `clock.time()`, never `from holdfast.clock import time`, so that a clock that is put in place is seen.
"""

from __future__ import annotations

from time import monotonic, perf_counter, sleep, time

__all__ = ["monotonic", "perf_counter", "sleep", "time"]
