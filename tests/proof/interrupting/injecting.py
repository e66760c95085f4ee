"""Raising an exception at a chosen place of Holdfast's own code, in whatever thread comes there.

A place is a line or, for real signals, an instruction at which CPython looks for them: a call, a jump back, the
entry of a function. `Counting` sees which places a run passes, and how often; `Raising` strikes at one of them.
"""

from __future__ import annotations

import asyncio
import ctypes
import dis
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import holdfast

SOURCE = str(Path(next(iter(holdfast.__path__))))
PARTS = ("engine", "journal", "stores", "state", "functions", "dags", "threads.py")
SIGNAL = signal.SIGUSR1

LINE_KINDS: dict[str, type[BaseException]] = {
    "interrupt": KeyboardInterrupt,
    "exit": SystemExit,
    "cancelled": asyncio.CancelledError,
}
"""Raised at lines; `cancelled` only at those of coroutines."""
KINDS = (*LINE_KINDS, "cancel", "signal")
"""`cancel` cancels the task that awaits the run, `signal` sends a real signal, whose handler raises."""

_CHECKING = {
    dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME") if name in dis.opmap
}

Tracer = Callable[[FrameType, str, Any], Any]


class Place(NamedTuple):
    """The n-th time that a line, or an instruction, of a file is about to be executed."""

    file: str
    at: int
    nth: int = 1
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.at}:{self.nth}"


def read_place(text: str) -> Place:
    """The opposite of `str`."""
    file, at, nth = text.rsplit(":", 2)
    return Place(file, int(at), int(nth))


class Counting:
    """Counts how often each place is passed."""

    def __init__(self, kind: str) -> None:
        self._kind, self._by_code = kind, kind == "signal"
        self._wanted: dict[CodeType, str] = {}
        self.passed: Counter[tuple[str, int]] = Counter()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread, and those that begin meanwhile."""
        if not self._by_code:  # Signals are handled in the main thread only.
            threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Tracer | None:
        code = frame.f_code
        if code not in self._wanted:
            self._wanted[code] = _own_file(code, self._kind)
        if not self._wanted[code]:
            return None
        if self._by_code:
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._see

    def _see(self, frame: FrameType, event: str, argument: Any) -> Tracer | None:
        if event == "line":
            return self._pass(frame, (self._wanted[frame.f_code], frame.f_lineno))
        if event == "opcode" and frame.f_code.co_code[frame.f_lasti] in _CHECKING:
            return self._pass(
                frame, (f"{self._wanted[frame.f_code]}:{frame.f_code.co_qualname}", frame.f_lasti)
            )
        return self._see

    def _pass(self, frame: FrameType, place: tuple[str, int]) -> Tracer | None:
        self.passed[place] += 1
        return self._see


class Raising(Counting):
    """Strikes once, at one place."""

    def __init__(self, kind: str, place: Place, task: Callable[[], asyncio.Task[Any] | None]) -> None:
        super().__init__(kind)
        self._place, self._task = place, task
        self.struck: str = ""
        """Where it did."""

    def _pass(self, frame: FrameType, place: tuple[str, int]) -> Tracer | None:
        super()._pass(frame, place)
        if place != self._place[:2] or self.passed[place] < self._place.nth or self.struck:
            return self._see
        if _is_finalizing(frame):  # What is raised there reaches nobody.
            return self._see
        name = threading.current_thread().name
        self.struck = f"{frame.f_code.co_qualname} line {frame.f_lineno} in {name}"
        if self._kind == "cancel":
            task = self._task()
            if task is not None:
                task.get_loop().call_soon_threadsafe(task.cancel)
            return self._see
        sys.settrace(None)
        if self._kind == "signal":
            # No call from here on: the first instruction that looks for signals has to be one of the run's own.
            _RAISE[SIGNAL]
            return None
        raise LINE_KINDS[self._kind]


class _WithoutCall:
    """`_RAISE[number]` raises a signal without any instruction that looks for signals."""

    _function = ctypes.CDLL(None)["raise"]
    _function.argtypes = (ctypes.c_int,)
    __getitem__ = _function


_RAISE: Any = _WithoutCall()


def exit_in_our_code(number: int, frame: FrameType | None) -> None:
    """As `exit_on_signal`, unless the signal arrived in called code: asyncio does not survive it in its own."""
    if frame is not None and frame.f_code.co_filename.startswith(SOURCE):
        exit_on_signal(number, frame)


def exit_on_signal(number: int, frame: FrameType | None) -> None:
    """What the handlers of containers do."""
    sys.exit(0)


def _is_finalizing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _own_file(code: CodeType, kind: str) -> str:
    """The file, as places name it, of code that is to be watched; else nothing."""
    name = code.co_filename
    if not name.startswith(SOURCE):
        return ""
    file = name[len(SOURCE) + 1 :]
    if not file.startswith(PARTS) or (kind == "cancelled" and not code.co_flags & 0x80):
        return ""
    return file
