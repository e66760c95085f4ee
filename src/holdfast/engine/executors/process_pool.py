"""Worker processes that each do one task at a time: one that dies takes nothing with it but its own."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from multiprocessing.connection import Pipe
from multiprocessing.spawn import get_executable
from typing import Any

from holdfast.engine.executors.remote import MainProcess
from holdfast.errors import ExecutorLost
from holdfast.threads import refuse_while_loading, workers

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from holdfast.engine.executors.process_worker import main; main()"
)
_GLANCE = 1.0
"""Seconds between two looks at a worker that says nothing."""

_END_TIMEOUT = 2.0
"""Seconds that a worker may take to end."""

_STARTS = 3
"""How many workers a task is given to that are gone before they begin it."""


def processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Worker:
    """One process, in a group of its own, so that no Ctrl+C reaches it and all that it starts ends with it.

    It is a new program: a process with threads must not fork, and multiprocessing would run the main program once
    more in it.
    """

    def __init__(self) -> None:
        self._ours, theirs = Pipe()
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        program = [os.fsdecode(get_executable()), *flags, "-c", _PROGRAM]
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [*program, str(number), json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                pass_fds=[number],
                process_group=0,
            )

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def begin(self, data: bytes) -> bool:
        """Give it a task; whether it has taken it."""
        try:
            self._ours.send(tuple(MainProcess.here()))
            self._ours.send_bytes(data)
            self._next()
        except (EOFError, OSError):
            self._end()
            return False
        return True

    def answer(self) -> bytes:
        """Return what it makes of the task; `ExecutorLost` if it dies over it."""
        try:
            return self._next()
        except (EOFError, OSError):
            raise ExecutorLost(f"the worker process {self._end()} before the step was finished") from None

    def _next(self) -> bytes:
        # What it started may hold its end open when it is gone.
        while not self._ours.poll(_GLANCE):
            if not self.is_alive() and not self._ours.poll(0):
                raise EOFError
        return self._ours.recv_bytes()

    def _end(self) -> str:
        self.kill()
        self.gone()
        code = self._process.returncode
        if code is None or code >= 0:
            return f"exited with code {code}"
        return f"was ended by {signal.Signals(-code).name}"

    def kill(self) -> None:
        """End it, whatever it does, and all that it started; it is not waited for."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def leave(self) -> None:
        """Let it end, when it is idle."""
        self._ours.close()

    def gone(self) -> None:
        """Wait for its end, but not for long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_TIMEOUT)

    def forget(self) -> None:
        """Leave it alone: it belongs to another process."""
        self._ours.close()
        self._process.returncode = 0


class _Job(concurrent.futures.Future[bytes]):
    """A task. To cancel it while it is worked on ends the process that does so."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data
        self.is_unwanted = False
        self._worker: _Worker | None = None
        self._guard = threading.Lock()

    def cancel(self) -> bool:
        if super().cancel():
            return True
        with self._guard:
            self.is_unwanted = True
            if self._worker is not None:
                self._worker.kill()
        return False

    def answered_by(self, worker: _Worker) -> bytes | None:
        """Return what a worker makes of it; nothing if it is gone before it has begun."""
        with self._guard:
            self._worker = worker
        try:
            return worker.answer() if worker.begin(self.data) else None
        finally:
            with self._guard:
                self._worker = None


class ProcessPool(concurrent.futures.Executor):
    """At most `size` worker processes, started when they are needed. It does nothing but `perform`."""

    def __init__(self, size: int | None = None) -> None:
        self._size = size or processors()
        self._lock = threading.Lock()
        self._jobs: collections.deque[_Job] = collections.deque()
        self._all: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._busy = 0
        self._is_over = False

    def submit(self, function: Any, data: bytes, /) -> concurrent.futures.Future[bytes]:  # type: ignore[override]
        """Have a task, packed as bytes, done."""
        refuse_while_loading()
        job = _Job(data)
        with self._lock:
            if self._is_over:
                raise RuntimeError("the program is ending")
            self._jobs.append(job)
            if self._busy < self._size:
                self._busy += 1
                workers.submit(self._serve)
        return job

    def _serve(self) -> None:
        """Do what waits, from a thread of this process."""
        while (job := self._next()) is not None:
            if not job.set_running_or_notify_cancel():
                continue
            try:
                answer = self._answer(job)
            except BaseException as error:
                job.set_exception(error)
            else:
                job.set_result(answer)

    def _answer(self, job: _Job) -> bytes:
        for _ in range(_STARTS):
            if job.is_unwanted:
                break
            worker = self._take()
            try:
                answer = job.answered_by(worker)
            except BaseException:
                self._drop(worker)
                raise
            if answer is not None:
                with self._lock:
                    self._idle.append(worker)
                return answer
            self._drop(worker)
        raise ExecutorLost("no worker process began the step")

    def _next(self) -> _Job | None:
        with self._lock:
            if self._jobs and not self._is_over:
                return self._jobs.popleft()
            self._busy -= 1
            return None

    def _take(self) -> _Worker:
        while (worker := self._idle_one()) is not None:
            if worker.is_alive():
                return worker
            self._drop(worker)
        worker = _Worker()
        with self._lock:
            self._all.add(worker)
        return worker

    def _idle_one(self) -> _Worker | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _drop(self, worker: _Worker) -> None:
        worker.leave()
        with self._lock:
            self._all.discard(worker)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all workers now, whatever they do."""
        with self._lock:
            self._is_over = True
            idle, busy = self._idle, self._all.difference(self._idle)
            self._idle, self._all = [], set()
        for worker in busy:
            worker.kill()
        for worker in idle:
            worker.leave()
        for worker in (*busy, *idle):
            worker.gone()

    def forget(self) -> None:
        """Leave the workers to the process that this one was forked from."""
        for worker in self._all:
            worker.forget()
