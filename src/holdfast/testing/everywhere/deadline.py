"""A call that may take so long and no longer, in this process."""

from __future__ import annotations

import contextvars
import ctypes
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from holdfast.testing.crashing_store import Crash

Result = TypeVar("Result")

_AGAIN = 1.0
"""Raised once more after so many seconds, if somebody caught it and went on."""


class Late(Crash):
    """It took too long; like a death, nothing that catches an `Exception` can swallow it."""


def within(seconds: float, call: Callable[[], Result], give_up: Callable[[], object]) -> Result:
    """What `call` returns; raise `Late` if that takes longer, `give_up` called first.

    In the main thread an alarm goes off in the call itself, whatever it does there; an alarm that somebody else has set
    is kept, and goes off instead if it is due earlier. Elsewhere the call is made in another thread, in which `Late` is
    raised as soon as it does something in Python; until then it is left behind.
    """
    if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
        return _with_alarm(seconds, call, give_up)
    return _in_thread(seconds, call, give_up)


def _with_alarm(seconds: float, call: Callable[[], Result], give_up: Callable[[], object]) -> Result:
    def ring(number: int, frame: FrameType | None) -> None:
        give_up()
        raise Late

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
    for _ in range(10):  # Somebody may catch it.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Late))
        thread.join(_AGAIN / 5)
        if not thread.is_alive():
            break
    raise Late
