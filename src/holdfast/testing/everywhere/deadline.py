"""A call that may take so long and no longer, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from holdfast.testing.crashing_store import Crash
from holdfast.testing.everywhere import bodies

Result = TypeVar("Result")

_AGAIN = 0.1
"""Tried once more after so many seconds, if it was no good moment, or if somebody caught it and went on."""

_PATIENCE = 20
"""How often a good moment is waited for."""

_TRACERS = ("coverage",)
"""Whatever these do is soon done, and they hold locks that nobody would ever release."""


class Late(Crash):
    """It took too long; like a death, nothing that catches an `Exception` can swallow it."""


def within(seconds: float, call: Callable[[], Result], give_up: Callable[[], object]) -> Result:
    """What `call` returns; raise `Late` if that takes longer, `give_up` called first.

    The body of a step is broken off by a `Late` wherever it is. An event loop is not: its tasks are cancelled, for what
    is raised between any two instructions of it, or of Holdfast, leaves locks behind that nobody releases. Only what
    heeds neither is broken off anywhere.

    In the main thread an alarm does this; one that somebody else has set is kept, and goes off instead if it is due
    earlier. Elsewhere the call is made in another thread, and left behind if it does nothing in Python for long.
    """
    if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
        return _with_alarm(seconds, call, give_up)
    return _in_thread(seconds, call, give_up)


def _with_alarm(seconds: float, call: Callable[[], Result], give_up: Callable[[], object]) -> Result:
    rings = 0

    def ring(number: int, frame: FrameType | None) -> None:
        nonlocal rings
        rings += 1
        give_up()
        if _may_be_broken_off(frame, anywhere=rings > _PATIENCE):
            raise Late
        _cancel_tasks(frame)

    left, interval = signal.getitimer(signal.ITIMER_REAL)
    if 0 < left <= seconds:
        return call()
    begun = time.monotonic()
    earlier = signal.signal(signal.SIGALRM, ring)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
            return call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - begun)), interval)


def _in_thread(seconds: float, call: Callable[[], Result], give_up: Callable[[], object]) -> Result:
    returned: list[Result] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            returned.append(call())
        except BaseException as error:
            raised.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), name="holdfast-life", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if returned:
        return returned[0]
    give_up()
    for times in range(2 * _PATIENCE):
        frame = sys._current_frames().get(thread.ident or 0)
        if _may_be_broken_off(frame, anywhere=times > _PATIENCE):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Late)
            )
        else:
            _cancel_tasks(frame)
        thread.join(_AGAIN)
        if not thread.is_alive():
            break
    raise Late


def _may_be_broken_off(frame: FrameType | None, anywhere: bool) -> bool:
    """Whether something may be raised in this frame: if it belongs to a body, and not to what that calls of ours."""
    if _package(frame) in _TRACERS:
        return False
    while frame is not None and not anywhere:
        if frame.f_globals.get("__name__") == bodies.__name__:
            return True
        if _package(frame) in ("holdfast", "asyncio"):
            return False
        frame = frame.f_back
    return anywhere


def _package(frame: FrameType | None) -> str:
    return "" if frame is None else str(frame.f_globals.get("__name__")).partition(".")[0]


def _cancel_tasks(frame: FrameType | None) -> None:
    """Cancel, soon, all that is done in the event loop that runs this frame, if there is one."""
    while frame is not None and frame.f_code is not asyncio.BaseEventLoop.run_forever.__code__:
        frame = frame.f_back
    if frame is None:
        return
    loop: asyncio.AbstractEventLoop = frame.f_locals["self"]

    def cancel() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()

    with contextlib.suppress(RuntimeError):  # It is about to end anyway.
        loop.call_soon_threadsafe(cancel)
