"""Loading what a command needs without losing a Ctrl+C: libraries may swallow one that arrives in their midst."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Hold Ctrl+C back while something is loaded; one that came meanwhile is raised afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt
