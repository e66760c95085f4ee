"""Who drives a run: naming this process, and telling whether another driver is still alive."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import clock
from holdfast.journal.writer import Writer
from holdfast.stores.base import RunInfo, Store, leases_of
from holdfast.threads import locked
from holdfast.values import RunStatus


@functools.cache
def _host() -> dict[str, str]:
    """This machine, its last boot, and the space that its process ids belong to."""
    boot = space = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with contextlib.suppress(OSError):
        space = str(Path("/proc/self/ns/pid").readlink())
    return {"host": socket.gethostname(), "boot": boot, "space": space}


def _started(pid: int) -> str:
    """When a process started, so that a reused process id is not taken for the same; empty if unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def this_owner(store: Store) -> str:
    """This process, as text for the journal; with its lease, where the store has leases."""
    leases = leases_of(store)
    return _driver(os.getpid(), "" if leases is None else leases.lease())


@functools.cache
def _driver(pid: int, lease: str) -> str:
    facts = {**_host(), "pid": pid, "started": _started(pid)}
    return json.dumps({**facts, "lease": lease} if lease else facts)


def describe(driver: str) -> str:
    """A driver for people."""
    facts = _facts(driver)
    return f"process {facts.get('pid')} on {facts.get('host', '?')}"


def _facts(driver: str) -> dict[str, Any]:
    try:
        facts = json.loads(driver)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def is_alive(driver: str, store: Store) -> bool:
    """Whether that driver may still be at work.

    Where the store has leases, a driver whose lease ran out is not, wherever it is; otherwise `False` only
    if it is certain that it is not.
    """
    facts = _facts(driver)
    if not facts:
        return False
    lease = facts.get("lease")
    leases = leases_of(store)
    if isinstance(lease, str) and leases is not None:
        return leases.is_live(lease) and (not is_here(driver) or _may_run(facts))
    return _may_run(facts)


def liveness(store: Store) -> Callable[[str], bool]:
    """`is_alive` for the drivers of one store."""
    return functools.partial(is_alive, store=store)


def _may_run(facts: dict[str, Any]) -> bool:
    """Whether a driver's process may still be there: `False` only if it is certain that it is not."""
    here = _host()
    if facts.get("host") != here["host"]:
        return True
    if facts.get("boot") != here["boot"]:
        return False
    if facts.get("space") != here["space"]:
        return True
    pid = facts.get("pid")
    if not isinstance(pid, int):
        return False
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _started(pid) == facts.get("started") and not _is_zombie(pid)


def is_here(driver: str) -> bool:
    """Whether that driver's process can be seen from here, so that `is_alive` is certain."""
    facts, here = _facts(driver), _host()
    return all(facts.get(key) == here[key] for key in here)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def _place(store: Store) -> str:
    return f"memory:{id(store)}" if store.url.startswith("memory:") else store.url


class ActiveRuns:
    """The runs that this process is driving now."""

    def __init__(self) -> None:
        self.reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Begin anew: a forked child drives none of its parent's runs."""
        self._lock = threading.Lock()
        self._drives: dict[tuple[str, str], Any] = {}
        self._unsaved: set[tuple[str, str]] = set()

    def enter(self, store: Store, run: str, drive: Any) -> bool:
        """Claim a run for a drive; `False` if this process drives it already."""
        self.find(store, run)
        return locked(self._lock, self._enter, (_place(store), run), drive)

    def _enter(self, place: tuple[str, str], drive: Any) -> bool:
        if place in self._drives and not _is_over(self._drives[place]):
            return False
        self._drives[place] = drive
        return True

    def leave(self, store: Store, run: str, drive: Any = None) -> None:
        """Give a run up; with a drive, only if it is that one's."""
        place = (_place(store), run)
        if drive is None or self._drives.get(place) is drive:
            self._drives.pop(place, None)

    def note_unsaved(self, store: Store, run: str) -> None:
        """Remember that a drive stopped in order, and that its store could not take down so much as that."""
        self._unsaved.add((_place(store), run))

    def take_unsaved(self, store: Store, run: str) -> bool:
        """Whether the last drive of a run here could not store how it stopped; from now on it is not remembered."""
        place = (_place(store), run)
        is_known = place in self._unsaved
        self._unsaved.discard(place)
        return is_known

    def of(self, store: Store) -> list[str]:
        """The runs of a store that this process drives."""
        place = _place(store)
        return [
            run for (own, run), drive in self._drives.copy().items() if own == place and not _is_over(drive)
        ]

    def find(self, store: Store, run: str) -> Any:
        """The drive of a run, or `None`."""
        drive = self._drives.get((_place(store), run))
        if drive is None or not _is_over(drive):
            return drive
        self.leave(store, run, drive)
        drive.give_up()
        return None


def _is_over(drive: Any) -> bool:
    """Whether a drive has ended, be it that an exception or a closed event loop kept it from leaving its run."""
    return bool(getattr(drive, "is_over", False))


active_runs = ActiveRuns()


def has_owner(store: Store, info: RunInfo) -> bool:
    """Whether somebody drives a run: this process, or another that is alive as far as can be told."""
    if active_runs.find(store, info.run) is not None:
        return True
    return info.status == RunStatus.RUNNING and is_alive(info.driver, store)


# Whether another process has taken a run over from one that was thought dead.


OLD_NEWS, LOOKS = 0.1, 3
"""After how many seconds an answer about others is too old to go by, and how often to ask for a newer one."""


class LeaseCheck:
    """Asked before every step: looks into the journal only when this process's lease may have lapsed since."""

    def __init__(self, store: Store, writer: Writer) -> None:
        leases = leases_of(store)
        self._writer = writer
        self._lapses = None if leases is None else leases.lapses
        self._seen = 0 if self._lapses is None else self._lapses()

    @property
    def is_possible(self) -> bool:
        """Whether this process may have been thought dead since it last looked."""
        return self._lapses is not None and self._lapses() != self._seen

    def refuse(self) -> None:
        """Raise `RunConflict` if this process may have been thought dead, and another has taken the run over.

        A save would find out too, but only after a step that somebody else has run meanwhile.
        """
        if self._lapses is None:
            return
        lapses = self._lapses()
        if lapses != self._seen:
            self._look()
            self._seen = lapses

    def _look(self) -> None:
        """Look whether another has appended to the run. An answer that was long on its way tells nothing of now."""
        for _ in range(LOOKS):
            began = clock.monotonic()
            self._writer.refuse_if_behind()
            if clock.monotonic() - began < OLD_NEWS:
                return
