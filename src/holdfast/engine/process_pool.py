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

from holdfast.engine.main_program import Surroundings, refuse_while_loading
from holdfast.engine.threads import workers
from holdfast.errors import ExecutorLost

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from holdfast.engine.process_worker import main; main()"
)
_GLANCE = 1.0
"""How often, in seconds, a worker that says nothing is looked at."""

_PATIENCE = 2.0


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Worker:
    """One process, in a group of its own, so that no Ctrl+C reaches it and all that it starts ends with it.

    It is started anew instead of forked, which a program with threads must not do, and not by multiprocessing,
    which would run the main program once more in it.
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

    def answer(self, data: bytes) -> bytes:
        """What it makes of a task; `ExecutorLost` if it dies over it."""
        try:
            self._ours.send(tuple(Surroundings.here()))
            self._ours.send_bytes(data)
            # What it started may hold its end open when it is gone.
            while not self._ours.poll(_GLANCE):
                if self._process.poll() is not None and not self._ours.poll(0):
                    raise EOFError
            return self._ours.recv_bytes()
        except (EOFError, OSError):
            raise ExecutorLost(f"the worker process {self._end()} before the step was finished") from None

    def _end(self) -> str:
        self.kill()
        code = self._process.returncode
        if code >= 0:
            return f"exited with code {code}"
        return f"was ended by {signal.Signals(-code).name}"

    def kill(self) -> None:
        """End it, whatever it does, and all that it started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def leave(self) -> None:
        """Let it end, when it is idle."""
        self._ours.close()

    def gone(self) -> None:
        """Wait for its end, but not for long."""
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()

    def forget(self) -> None:
        """It is another process's: leave it alone."""
        self._ours.close()
        self._process.returncode = 0


class _Job(concurrent.futures.Future[bytes]):
    """A task. To cancel it while it is worked on ends the process that does so."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data
        self._worker: _Worker | None = None
        self._guard = threading.Lock()

    def cancel(self) -> bool:
        if super().cancel():
            return True
        with self._guard:
            if self._worker is not None:
                self._worker.kill()
        return False

    def answered_by(self, worker: _Worker) -> bytes:
        with self._guard:
            self._worker = worker
        try:
            return worker.answer(self.data)
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
            worker = None
            try:
                worker = self._take()
                answer = job.answered_by(worker)
            except BaseException as error:
                self._drop(worker)
                job.set_exception(error)
                continue
            with self._lock:
                self._idle.append(worker)
            job.set_result(answer)

    def _next(self) -> _Job | None:
        with self._lock:
            if self._jobs and not self._is_over:
                return self._jobs.popleft()
            self._busy -= 1
            return None

    def _take(self) -> _Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        worker = _Worker()
        with self._lock:
            self._all.add(worker)
        return worker

    def _drop(self, worker: _Worker | None) -> None:
        if worker is not None:
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
        for worker in idle:
            worker.gone()

    def forget(self) -> None:
        """Leave the workers to the process that this one was forked from."""
        for worker in self._all:
            worker.forget()
