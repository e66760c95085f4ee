"""Where a run under test is executed: in processes that are killed, or, fast, in this one."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.process
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

from holdfast.errors import HoldfastError
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.everywhere.boundaries import Boundary, Watch, own_trace
from holdfast.testing.everywhere.executions import End, Execution, Trial
from holdfast.testing.everywhere.judging import LATE, Finding, Wanted, of_failure
from holdfast.testing.ledger import FileLedger, Line
from holdfast.testing.wrapped_store import Crash, WrappedStore, kill_process, raise_crash

StoreMaker = Callable[[Path], "Store | str"]

_NOT_IN_MEMORY = 'what is kept in memory dies with its process; use mode="fast", or another store'
_NAMED = {"sqlite": "sqlite:///{}/runs.db", "file": "file:///{}/runs"}


class Died(Exception):
    """An execution crashed where it was to."""


class Place(Protocol):
    """One run under test with its store and its ledger, from one execution to the next."""

    def execute(self, trial: Trial, crash_at: Boundary | None, wanted: Wanted | None) -> End:
        """Execute the run once, and return how that ended. Raise `Died` if it crashed where it was to."""
        ...

    def lines(self) -> list[Line]:
        """The ledger so far."""
        ...

    def leave(self) -> None:
        """End what programs of the killed processes are still at work."""
        ...


def store_maker(store: Any) -> StoreMaker:
    """A function of a folder that opens a store in it, of what the caller gave."""
    __tracebackhide__ = True
    if callable(store):
        maker: StoreMaker = store
        return maker
    if isinstance(store, str) and store in _NAMED:
        return _Named(_NAMED[store])
    if store == "memory":
        raise HoldfastError(_NOT_IN_MEMORY)
    raise HoldfastError(
        f'store is "sqlite", "file", or a function that takes a folder and returns a store or its URL, not {store!r}'
    )


@dataclasses.dataclass(frozen=True)
class _Named:
    url: str

    def __call__(self, folder: Path) -> str:
        return self.url.format(folder)


class FastPlace:
    """A run executed in this process. A crash raises `Crash`; what its threads still do is refused."""

    def __init__(self, folder: Path, make_store: StoreMaker | None, timeout: float) -> None:
        self._ledger = FileLedger(folder.with_suffix(".ledger"), sync=False)
        self._folder, self._make_store, self._timeout = folder, make_store, timeout
        self._store: Store | None = None

    def execute(self, trial: Trial, crash_at: Boundary | None, wanted: Wanted | None) -> End:
        __tracebackhide__ = True
        watch = Watch(self._ledger, crash_at, raise_crash)
        execution = Execution(trial, self._ledger, self._opened(), watch, self._timeout)
        try:
            with contextlib.nullcontext() if wanted is None else _unheard():
                return execution.run(wanted)
        except Crash:
            if watch.is_late:
                return _late("run", self._timeout, wanted)
            raise Died from None

    def _opened(self) -> Store:
        __tracebackhide__ = True
        if self._store is None:
            if self._make_store is None:
                self._store = MemoryStore()
            else:
                self._folder.mkdir(parents=True)
                self._store = _opened(self._make_store, self._folder)
        return self._store

    def lines(self) -> list[Line]:
        return list(self._ledger.lines())

    def leave(self) -> None:
        return


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Discard what an execution prints: the undisturbed one has printed it."""
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


class FolderPlace:
    """A run executed in processes of their own, one after the other, that leave what they know in a folder."""

    def __init__(self, folder: Path, make_store: StoreMaker, start: str, timeout: float) -> None:
        folder.mkdir(parents=True)
        self._folder, self._make_store, self._start, self._timeout = folder, make_store, start, timeout
        self._groups: list[int] = []

    def execute(self, trial: Trial, crash_at: Boundary | None, wanted: Wanted | None) -> End:
        __tracebackhide__ = True
        for name in ("end", "trouble", "refused"):
            (self._folder / name).unlink(missing_ok=True)
        orders = Orders(self._folder, self._make_store, trial, crash_at, wanted)
        process = _started(orders, self._start)
        assert process.pid is not None
        self._groups.append(process.pid)
        try:
            process.join(self._timeout)
            is_late = process.is_alive()
        finally:  # It does not outlive the time limit, nor who waits for it.
            if process.is_alive():
                _kill_group(process.pid)
                process.kill()
            process.join()
        if is_late:
            return _late("process", self._timeout, wanted)
        code = process.exitcode or 0
        if code == -signal.SIGKILL and crash_at is not None:
            raise Died
        if (self._folder / "refused").exists():
            raise HoldfastError((self._folder / "refused").read_text("utf-8"))
        return self._end(code, wanted)

    def _end(self, code: int, wanted: Wanted | None) -> End:
        if code != 0:
            trouble = self._folder / "trouble"
            text = trouble.read_text("utf-8") if trouble.exists() else ""
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return _troubled(text or f"the process ended with {how}: {self._output()}", wanted)
        if not (self._folder / "end").exists():
            return _troubled(f"a body ended the process, with exit code 0: {self._output()}", wanted)
        end: End = pickle.loads((self._folder / "end").read_bytes())
        return end

    def _output(self) -> str:
        output = self._folder / "output"
        return output.read_text("utf-8", "replace")[-2000:] if output.exists() else ""

    def lines(self) -> list[Line]:
        return list(FileLedger(self._folder / "ledger").lines())

    def leave(self) -> None:
        for group in self._groups:
            _kill_group(group)


def _late(what_of: str, seconds: float, wanted: Wanted | None) -> End:
    what = "the run did not come to its end in time"
    return _troubled(f"the {what_of} did not end within {seconds:g} seconds", wanted, what, LATE)


def _troubled(
    error: str,
    wanted: Wanted | None,
    what: str = "the process of the run came to a bad end",
    reason: str = "",
) -> End:
    kind = "run" if wanted is None else "resume"
    fix = of_failure(reason, undisturbed=wanted is None)
    return End("error", error, findings=[Finding(kind, what, fix, "", error, kind)], reason=reason)


@dataclasses.dataclass(frozen=True)
class Orders:
    """What a process is to do: execute the run once, and leave in its folder how that ended."""

    folder: Path
    make_store: StoreMaker
    trial: Trial
    crash_at: Boundary | None
    wanted: Wanted | None

    def follow(self) -> None:
        """Execute the run; called in the process that may be killed. What goes wrong is left in the folder too."""
        with contextlib.suppress(OSError, AttributeError):
            os.setsid()
        _redirect(self.folder / "output")
        try:
            self._execute()
        except BaseException as error:
            with contextlib.suppress(BaseException):
                (self.folder / "trouble").write_text(own_trace(error), "utf-8")
            raise

    def _execute(self) -> None:
        ledger = FileLedger(self.folder / "ledger", sync=False)
        watch = Watch(ledger, self.crash_at, kill_process)
        end = Execution(self.trial, ledger, self._opened(), watch).run(self.wanted)
        (self.folder / "end").write_bytes(pickle.dumps(end))

    def _opened(self) -> Store:
        made = self.make_store(self.folder)
        try:
            store = _store_of(made)
            if _is_in_memory(store):
                raise HoldfastError(_NOT_IN_MEMORY)
        except HoldfastError as error:
            (self.folder / "refused").write_text(str(error), "utf-8")
            raise
        return store


def _opened(make_store: StoreMaker, folder: Path) -> Store:
    __tracebackhide__ = True
    return _store_of(make_store(folder))


def _store_of(made: object) -> Store:
    __tracebackhide__ = True
    if isinstance(made, str):
        return open_store(made)
    if isinstance(made, type) or not callable(getattr(made, "commit", None)):
        raise HoldfastError(f"the function given as store has to return a store or its URL, not {made!r:.80}")
    return cast(Store, made)


def _is_in_memory(store: Store) -> bool:
    while isinstance(store, WrappedStore):
        store = store.inner
    return isinstance(store, MemoryStore)


def _started(orders: Orders, how: str) -> multiprocessing.process.BaseProcess:
    """Follow the orders in a process of its own: a fork of this one, or a fresh interpreter to which all is sent."""
    sys.stdout.flush()
    sys.stderr.flush()
    context: Any = multiprocessing.get_context(how)
    process: multiprocessing.process.BaseProcess = context.Process(target=orders.follow)
    try:
        with warnings.catch_warnings():
            # The child never waits for what a thread of this process may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise HoldfastError(
            "a fresh interpreter cannot be sent this workflow: give crash_everywhere a function of a module that "
            f"makes the graph, and functions of a module as invariant, same, answers and store; or "
            f"use mode='fast' ({error})"
        ) from error
    return process


def _redirect(path: Path) -> None:
    """Send what an execution prints to a file: nobody wants to read it some dozens of times."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(handle, number)
    sys.stdout = sys.stderr = os.fdopen(handle, "w", buffering=1, encoding="utf-8", errors="replace")


def _kill_group(pid: int) -> None:
    """Kill what a process started that led a group of its own, as far as it is still there and in that group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
