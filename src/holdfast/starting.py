"""Starting threads so that the start succeeds or fails, and never hangs."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable

_LOOK_EVERY = 0.05


def started(thread: threading.Thread) -> Callable[[], bool]:
    """Start a thread; returns a function that tells whether the thread is over.

    Raises `RuntimeError` or `MemoryError` if it cannot be started. Without memory a new thread may end before it has
    said that it runs; `Thread.start` alone would then wait for ever.
    """
    life = _Life(thread)
    # CPython gives these two to the new thread, and waits for the second.
    thread._bootstrap = life.first  # type: ignore[attr-defined]
    thread._started = _Started(life)  # type: ignore[attr-defined]
    thread.start()
    return life.is_over


class _Life:
    """Knows whether a thread lives: the first function that it calls is then referred to by it, and by nobody else."""

    def __init__(self, thread: threading.Thread) -> None:
        self.thread = weakref.ref(thread)
        self.first: functools.partial[None] | None = functools.partial(thread._bootstrap)  # type: ignore[attr-defined]
        self._seen = weakref.ref(self.first)

    def begin(self) -> None:
        """Leave the function to the thread."""
        thread = self.thread()
        if thread is not None and self.first is not None:
            del thread._bootstrap  # type: ignore[attr-defined]
        self.first = None

    def is_over(self) -> bool:
        """Whether nobody refers to it any more."""
        return self._seen() is None


class _Started(threading.Event):
    """What is waited for when a thread is started: that it runs, or that it was lost."""

    def __init__(self, life: _Life) -> None:
        super().__init__()
        self._life = life

    def wait(self, timeout: float | None = None) -> bool:
        self._life.begin()
        while not self.is_set():
            if self._life.is_over() and not self.is_set():
                raise RuntimeError("the new thread was lost before it could begin")
            try:
                super().wait(_LOOK_EVERY)
            except MemoryError:  # The thread may run all the same.
                time.sleep(_LOOK_EVERY)
        return True
