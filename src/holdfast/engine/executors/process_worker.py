"""A worker process: it does one task after the other until nobody wants it any more."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import queue
import signal
import sys
import threading
from typing import Any

from holdfast.engine.executors.remote import MainProcess, MainProgram, perform
from holdfast.threads import started

BEGUN = b"begun"
"""Says that a task was taken: from here on it may have effects."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, main: MainProgram, where: MainProcess) -> None:
        super().__init__(io.BytesIO(data))
        self._main, self._where = main, where

    def find_class(self, module: str, name: str) -> Any:
        if module in ("__main__", "__mp_main__"):
            self._main.load(self._where)
        return super().find_class(module, name)


class _Worker:
    """Does what comes in over a connection. Without it, there is nobody left to work for."""

    def __init__(self, connection: Any) -> None:
        self._connection, self._main = connection, MainProgram()
        self._tasks: queue.SimpleQueue[tuple[MainProcess, bytes] | None] = queue.SimpleQueue()
        self._is_busy = False

    def work(self) -> None:
        started(threading.Thread(target=self._listen, name="holdfast-listen", daemon=True))
        while (task := self._tasks.get()) is not None:
            where, data = task
            if not self._sent(BEGUN):
                return
            where.enter()
            reply = perform(data, lambda raw, where=where: _Unpickler(raw, self._main, where).load())  # type: ignore[misc]
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # It is the task's to close or replace.
                    stream.flush()
            self._is_busy = False
            self._sent(reply)

    def _sent(self, message: bytes) -> bool:
        try:
            self._connection.send_bytes(message)
        except OSError:
            return False
        return True

    def _listen(self) -> None:
        try:
            while True:
                where = MainProcess(*self._connection.recv())
                data = self._connection.recv_bytes()
                self._is_busy = True
                self._tasks.put((where, data))
        except (EOFError, OSError):
            pass
        if self._is_busy:  # The process that wanted this is gone: end it, and all that it started.
            os.killpg(0, signal.SIGKILL)
        self._tasks.put(None)


def main() -> None:
    """Work for the process that started this one, which is at the other end of the descriptor in the arguments."""
    from multiprocessing.connection import Connection

    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    _Worker(Connection(descriptor)).work()
