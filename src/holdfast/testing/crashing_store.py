"""A store that crashes the process at the append you choose."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Literal, NoReturn

from holdfast.errors import HoldfastError
from holdfast.stores.base import Append, Conflict, Store
from holdfast.testing.wrapped_store import WrappedStore

Point = Literal["before", "committed", "acknowledged"]
POINTS: tuple[Point, ...] = ("before", "committed", "acknowledged")


class Crash(BaseException):
    """Stands for the death of the process, inside it. No `except Exception` can swallow it."""


def kill_process() -> NoReturn:
    """Die the way the out-of-memory killer does it: at once, with nothing cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process survived SIGKILL")


def raise_crash() -> NoReturn:
    """Leave the run as a dead process would, but stay alive: raise `Crash`."""
    raise Crash("the process died here")


class CrashingStore(WrappedStore):
    """A store that works until its `at`-th commit, and there crashes the process.

    `point` says when: "before" the commit (nothing of it is stored), "committed" (it is stored but the
    engine never hears of it), or "acknowledged" (the engine hears of it, and does nothing more). `how` is
    what happens then: `kill_process`, or `raise_crash` for tests within one process, after which this
    store refuses every commit with `Crash`. `commits` counts; with `at=0` there is no crash.

        app = graph.compile(CrashingStore(open_store("sqlite:///runs.db"), at=3, point="committed"))
    """

    def __init__(
        self, inner: Store, at: int, point: Point = "committed", how: Callable[[], object] = kill_process
    ) -> None:
        if point not in POINTS:
            raise HoldfastError(f"point must be one of {', '.join(map(repr, POINTS))}, not {point!r}")
        super().__init__(inner)
        self.at, self.point, self.how = at, point, how
        self.commits = 0
        self.crashed = False
        self._lock = threading.Lock()

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        with self._lock:
            if self.crashed:
                raise Crash("the process died before this commit")
            self.commits += 1
            due = self.commits == self.at
            if due and self.point == "before":
                self._crash()
            answers = self.inner.commit(appends)
            if due and self.point == "committed":
                self._crash()
            if due:
                when_caller_returns(self._crash)
        return answers

    def _crash(self) -> None:
        self.crashed = True
        self.how()


def when_caller_returns(crash: Callable[[], None]) -> None:
    """Crash as soon as the module that called the store has returned to whoever called it."""
    frame = sys._getframe(2)
    module = frame.f_globals.get("__name__")
    while frame.f_back is not None and frame.f_back.f_globals.get("__name__") == module:
        frame = frame.f_back

    def watch(current: FrameType, event: str, _: Any) -> None:
        if current is frame and event == "return":
            sys.setprofile(None)
            crash()

    sys.setprofile(watch)
