"""Worker processes that each do one task at a time, seen from both ends: one that dies takes only its own with it."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import io
import json
import os
import pickle
import queue
import runpy
import signal
import subprocess
import sys
import threading
import types
from multiprocessing.connection import Connection, Pipe
from multiprocessing.spawn import get_executable
from typing import Any, NamedTuple

from holdfast.engine.executors.remote import perform
from holdfast.errors import ExecutorLost, HoldfastError
from holdfast.threads import GUARD, MainLoading, refuse_while_loading, started, workers

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from holdfast.engine.executors.process_pool import main; main()"
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


class _Process:
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

    def do(self, data: bytes) -> bytes | None:
        """Return what it makes of a task; `None` if it is gone before it begins, `ExecutorLost` if it dies over it."""
        has_begun = False
        try:
            self._ours.send(tuple(MainProcess.here()))
            self._ours.send_bytes(data)
            self._next()
            has_begun = True
            return self._next()
        except (EOFError, OSError):
            self.kill()
            self.gone()
            if not has_begun:
                return None
            code = self._process.returncode
            how = f"exited with code {code}"
            if code is not None and code < 0:
                how = f"was ended by {signal.Signals(-code).name}"
            raise ExecutorLost(f"the worker process {how} before the step was finished") from None

    def _next(self) -> bytes:
        # What it started may hold its end open when it is gone.
        while not self._ours.poll(_GLANCE):
            if not self.is_alive() and not self._ours.poll(0):
                raise EOFError
        return self._ours.recv_bytes()

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
        self._worker: _Process | None = None
        self._guard = threading.Lock()

    def cancel(self) -> bool:
        if super().cancel():
            return True
        with self._guard:
            self.is_unwanted = True
            if self._worker is not None:
                self._worker.kill()
        return False

    def done_by(self, worker: _Process) -> bytes | None:
        """Return what a worker makes of it; nothing if it is gone before it has begun."""
        with self._guard:
            self._worker = worker
        try:
            return worker.do(self.data)
        finally:
            with self._guard:
                self._worker = None


class ProcessPool(concurrent.futures.Executor):
    """At most `size` worker processes, started when they are needed. It does nothing but `perform`."""

    def __init__(self, size: int | None = None) -> None:
        self._size = size or processors()
        self._lock = threading.Lock()
        self._jobs: collections.deque[_Job] = collections.deque()
        self._all: set[_Process] = set()
        self._idle: list[_Process] = []
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
                answer = job.done_by(worker)
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

    def _take(self) -> _Process:
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                break
            if worker.is_alive():
                return worker
            self._drop(worker)
        worker = _Process()
        with self._lock:
            self._all.add(worker)
        return worker

    def _drop(self, worker: _Process) -> None:
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


# What runs in a worker process.


class MainProcess(NamedTuple):
    """What of the main process a task may rely on."""

    path: tuple[str, ...]
    folder: str
    main_name: str | None
    """The main program's name, if it was started as a module."""
    main_file: str | None
    arguments: tuple[str, ...]

    @classmethod
    def here(cls) -> MainProcess:
        main = sys.modules.get("__main__")
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        try:
            folder = os.getcwd()  # noqa: PTH109
        except OSError:
            folder = ""
        return cls(tuple(sys.path), folder, spec.name if spec else None, file, tuple(sys.argv))

    def enter(self) -> None:
        """Make this process look the same."""
        sys.path.extend(place for place in self.path if place not in sys.path)
        with contextlib.suppress(OSError):
            os.chdir(self.folder)


class MainProgram:
    """The main program, loaded once it is needed: for functions and types that it defines."""

    def __init__(self) -> None:
        self._loaded = False

    def load(self, where: MainProcess) -> None:
        if self._loaded:
            return
        MainLoading.is_under_way = True
        sys.argv = list(where.arguments)
        try:
            # The name by which multiprocessing, too, knows the main program in its children.
            if where.main_name is not None:
                found = runpy.run_module(where.main_name, run_name="__mp_main__", alter_sys=True)
            else:
                found = runpy.run_path(where.main_file or "", run_name="__mp_main__")
        except HoldfastError:
            raise
        except (Exception, SystemExit) as error:
            raise HoldfastError(f"the main program cannot be loaded: {error}; {GUARD}") from error
        finally:
            MainLoading.is_under_way = False
        main = types.ModuleType("__mp_main__")
        main.__dict__.update(found)
        sys.modules["__main__"] = sys.modules["__mp_main__"] = main
        self._loaded = True


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
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    _Worker(Connection(descriptor)).work()
