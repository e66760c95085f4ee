"""Where the lives of a run are lived: in processes that are killed, or, fast, in this one."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol, cast

from holdfast.errors import HoldfastError
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.everywhere import judging as advice
from holdfast.testing.everywhere.boundaries import Boundary, Watch, own_trace
from holdfast.testing.everywhere.effects import Deed, OpenLedger
from holdfast.testing.everywhere.judging import Finding, Wanted
from holdfast.testing.everywhere.lives import End, Life, Trial
from holdfast.testing.invariants import FileLedger, Line
from holdfast.testing.wrapped_store import Crash, WrappedStore, kill_process, raise_crash

StoreMaker = Callable[[Path], "Store | str"]

_NOT_IN_MEMORY = 'what is kept in memory dies with its process; use mode="fast", or another store'
_NAMED = {"sqlite": "sqlite:///{}/runs.db", "file": "file:///{}/runs"}


_SOON_NEEDED = (
    "holdfast.stores.sqlite.store",
    "holdfast.stores.files.store",
    "holdfast.testing.time_skipping",
)
"""Imported once, not by every child."""


DID_NOT_END = "did not end within"


class Died(Exception):
    """A life ended as it was doomed to."""


class Place(Protocol):
    """Where one run is kept, with its ledger, from one life to the next."""

    def live(self, trial: Trial, doom: Boundary | None, wanted: Wanted | None) -> End:
        """Live once: how it ended. Raises `Died` if it died where it was to."""
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
    """Lives in this process. A life that dies raises `Crash`; what its threads still do counts for nothing."""

    def __init__(self, folder: Path, make_store: StoreMaker | None, timeout: float) -> None:
        self._ledger = OpenLedger(folder.with_suffix(".ledger"))
        self._folder, self._make_store, self._timeout = folder, make_store, timeout
        self._store: Store | None = None

    def live(self, trial: Trial, doom: Boundary | None, wanted: Wanted | None) -> End:
        __tracebackhide__ = True
        watch = Watch(self._ledger, doom, raise_crash)
        life = Life(trial, self._ledger, self._opened(), watch, self._timeout)
        try:
            with contextlib.nullcontext() if wanted is None else _unheard():
                return life.live(wanted)
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
    """Let what a life prints go nowhere: the undisturbed one has printed it."""
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


class FolderPlace:
    """Lives in processes of their own, one after the other, that leave what they know in a folder."""

    def __init__(self, folder: Path, make_store: StoreMaker, start: str, timeout: float) -> None:
        folder.mkdir(parents=True)
        self._folder, self._make_store, self._start, self._timeout = folder, make_store, start, timeout
        self._groups: list[int] = []

    def live(self, trial: Trial, doom: Boundary | None, wanted: Wanted | None) -> End:
        __tracebackhide__ = True
        for name in ("end", "trouble", "refused"):
            (self._folder / name).unlink(missing_ok=True)
        orders = Orders(self._folder, self._make_store, trial, doom, wanted)
        process = _forked(orders) if self._start == "fork" else _spawned(orders)
        self._groups.append(process)
        code = _waited(process, self._folder, self._timeout)
        if code == -signal.SIGKILL and doom is not None and not (self._folder / "late").exists():
            raise Died
        if (self._folder / "refused").exists():
            raise HoldfastError((self._folder / "refused").read_text("utf-8"))
        return self._end(code, wanted)

    def _end(self, code: int, wanted: Wanted | None) -> End:
        if (self._folder / "late").exists():
            (self._folder / "late").unlink()
            return _late("process", self._timeout, wanted)
        if code != 0:
            trouble = self._folder / "trouble"
            told = trouble.read_text("utf-8") if trouble.exists() else ""
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return _troubled(told or f"the process ended with {how}: {self._output()}", wanted)
        if not (self._folder / "end").exists():
            return _troubled(f"a body ended the process, with exit code 0: {self._output()}", wanted)
        plain = json.loads((self._folder / "end").read_text("utf-8"))
        return End(
            **{
                **plain,
                "boundaries": [Boundary(*each) for each in plain["boundaries"]],
                "findings": [Finding(*each) for each in plain["findings"]],
                "deeds": [Deed(*each) for each in plain["deeds"]],
            }
        )

    def _output(self) -> str:
        output = self._folder / "output"
        return output.read_text("utf-8", "replace")[-2000:] if output.exists() else ""

    def lines(self) -> list[Line]:
        return list(FileLedger(self._folder / "ledger").lines())

    def leave(self) -> None:
        for group in self._groups:
            _kill_group(group)


def _late(what: str, seconds: float, wanted: Wanted | None) -> End:
    return _troubled(f"the {what} {DID_NOT_END} {seconds:g} seconds", wanted)


def _troubled(error: str, wanted: Wanted | None) -> End:
    kind = "run" if wanted is None else "resume"
    fix = advice.of_failure(error, undisturbed=wanted is None)
    what = "the process of the run came to a bad end"
    if DID_NOT_END in error:
        what = "the run did not come to its end in time"
    return End("error", error, findings=[Finding(kind, what, fix, "", error, kind)])


@dataclasses.dataclass(frozen=True)
class Orders:
    """What a process is to do: live once, and leave in its folder how it ended."""

    folder: Path
    make_store: StoreMaker
    trial: Trial
    doom: Boundary | None
    wanted: Wanted | None

    def follow(self) -> None:
        """Live; called in the process that may die. What goes wrong is left in the folder too."""
        try:
            self._live()
        except BaseException as error:
            with contextlib.suppress(BaseException):
                (self.folder / "trouble").write_text(own_trace(error), "utf-8")
            raise

    def _live(self) -> None:
        ledger = FileLedger(self.folder / "ledger", sync=False)
        watch = Watch(ledger, self.doom, kill_process)
        end = Life(self.trial, ledger, self._opened(), watch).live(self.wanted)
        (self.folder / "end").write_text(json.dumps(dataclasses.asdict(end)), "utf-8")

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


def _forked(orders: Orders) -> int:
    """Follow the orders in a fork of this process, in a group of its own; its id."""
    for module in _SOON_NEEDED:
        importlib.import_module(module)
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # The child never waits for what a thread of this process may hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            _redirect(orders.folder / "output")
            orders.follow()
            code = 0
        except BaseException:
            pass  # It is written down.
        finally:
            os._exit(code)
    return pid


def _redirect(path: Path) -> None:
    """Let what a life prints go to a file: nobody wants to read it some dozens of times."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(handle, number)
    sys.stdout = sys.stderr = os.fdopen(handle, "w", buffering=1, encoding="utf-8", errors="replace")


def _waited(pid: int, folder: Path, timeout: float) -> int:
    """The exit code of a process, negative for a signal. It does not outlive the time limit, nor whoever waits."""
    end, pause = time.monotonic() + timeout, 0.0005
    try:
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                (folder / "late").touch()
                return _ended(pid)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.01)
    except BaseException:
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            _ended(pid)
        raise


def _ended(pid: int) -> int:
    """The exit code of a process that is killed, with all that it started."""
    _kill_group(pid)
    os.kill(pid, signal.SIGKILL)  # One that is very young does not lead its group yet.
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _kill_group(pid: int) -> None:
    """Kill what a process started that led a group of its own, as far as it is still there and in that group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


_FOLLOW = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    sys.path[:] = pickle.load(file)
    orders = pickle.load(file)
orders.follow()
"""


class _Sending(pickle.Pickler):
    """Refuses what a fresh interpreter, whose main program is another, could not find."""

    def persistent_id(self, given: Any) -> None:
        if getattr(given, "__module__", None) == "__main__" and isinstance(given, (type, FunctionType)):
            raise pickle.PicklingError(f"{given.__qualname__!r} is part of the program that was started")


def _spawned(orders: Orders) -> int:
    """As `_forked`, in a fresh interpreter, to which everything is sent."""
    packed = io.BytesIO()
    try:
        _Sending(packed).dump(list(sys.path))
        _Sending(packed).dump(orders)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise HoldfastError(
            "a fresh interpreter cannot be sent this workflow: give crash_everywhere a function of a module that "
            f"makes the graph, and functions of a module as invariant, same, answers and store; or "
            f"use mode='fast' ({error})"
        ) from error
    path = orders.folder / "orders"
    path.write_bytes(packed.getvalue())
    with (orders.folder / "output").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _FOLLOW, path], stdout=output, stderr=output, start_new_session=True
        )
    process.returncode = 0  # It is waited for by its id.
    return process.pid
