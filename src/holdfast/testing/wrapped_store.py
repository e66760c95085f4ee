"""A store around another store, to watch or disturb what passes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from types import FrameType
from typing import Any, Literal, NoReturn

from holdfast.errors import HoldfastError
from holdfast.stores.base import (
    Append,
    Conflict,
    Entry,
    Message,
    RunInfo,
    Snapshot,
    Store,
    StoredCheckpoint,
    namespace_of,
)


class WrappedStore:
    """Hands every call to the store inside; override what you want to see or to spoil."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url, self.namespace = inner.url, namespace_of(inner)

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        return self.inner.commit(appends)

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        return self.inner.read(run, after, upto)

    def checkpoints(
        self, run: str, before: int | None = None, limit: int | None = None
    ) -> list[StoredCheckpoint]:
        return self.inner.checkpoints(run, before, limit)

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        return self.inner.snapshot(run, upto)

    def runs(self, **wanted: Any) -> list[RunInfo]:
        return self.inner.runs(**wanted)

    def prune(self, run: str, horizon: Snapshot, *, forks: Collection[bytes] | None = None) -> int:
        return self.inner.prune(run, horizon, forks=forks)

    def delete(self, run: str, *, forks: Collection[bytes] | None = None) -> bool:
        return self.inner.delete(run, forks=forks)

    def post(self, run: str, body: bytes, number: int | None = None) -> int:
        return self.inner.post(run, body, number)

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        return self.inner.inbox(run, after)

    def close(self) -> None:
        self.inner.close()


# A store that crashes the process at the append you choose.


Point = Literal["before", "committed", "acknowledged"]
POINTS: tuple[Point, ...] = ("before", "committed", "acknowledged")


class Crash(BaseException):
    """A simulated crash of the process. It is a `BaseException`, so `except Exception` does not catch it."""


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
    """Crash as soon as the module that called the store has returned to its caller."""
    frame = sys._getframe(2)
    module = frame.f_globals.get("__name__")
    while frame.f_back is not None and frame.f_back.f_globals.get("__name__") == module:
        frame = frame.f_back

    def watch(current: FrameType, event: str, _: Any) -> None:
        if current is frame and event == "return":
            sys.setprofile(None)
            crash()

    sys.setprofile(watch)
