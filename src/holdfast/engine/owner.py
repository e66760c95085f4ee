"""The owner of a run: the name of this process, and whether the owner of a run is still alive."""

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

from holdfast.stores.base import RunInfo, Store, leases_of
from holdfast.threads import locked
from holdfast.values import RunStatus


@functools.cache
def _host() -> dict[str, str]:
    """Return this machine, its last boot, and the namespace of its process ids."""
    boot = space = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with contextlib.suppress(OSError):
        space = str(Path("/proc/self/ns/pid").readlink())
    return {"host": socket.gethostname(), "boot": boot, "space": space}


def _stat(pid: int) -> list[str]:
    """Return what the system says of a process: first its status, as 20th when it started; nothing if unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _started(stat: list[str]) -> str:
    """Return when a process started, which tells a reused process id apart; empty if unknown."""
    return stat[19] if len(stat) > 19 else ""


def this_owner(store: Store) -> str:
    """Return this process as text for the journal, with its lease, where the store has leases."""
    leases = leases_of(store)
    return _owner(os.getpid(), "" if leases is None else leases.lease())


@functools.cache
def _owner(pid: int, lease: str) -> str:
    facts = {**_host(), "pid": pid, "started": _started(_stat(pid))}
    return json.dumps({**facts, "lease": lease} if lease else facts)


def describe(owner: str) -> str:
    """Return an owner in words."""
    facts = _facts(owner)
    return f"process {facts.get('pid')} on {facts.get('host', '?')}"


def _facts(owner: str) -> dict[str, Any]:
    try:
        facts = json.loads(owner)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def is_alive(owner: str, store: Store) -> bool:
    """Return True if an owner may still be at work.

    Where the store has leases, an owner whose lease ran out is dead, wherever it is; otherwise only one that is
    certainly gone.
    """
    facts = _facts(owner)
    if not facts:
        return False
    lease = facts.get("lease")
    leases = leases_of(store)
    if isinstance(lease, str) and leases is not None:
        return leases.is_live(lease) and (not is_here(owner) or _may_run(facts))
    return _may_run(facts)


def liveness(store: Store) -> Callable[[str], bool]:
    """Return `is_alive` for the owners of one store."""
    return functools.partial(is_alive, store=store)


def _may_run(facts: dict[str, Any]) -> bool:
    """Return False only if an owner's process is certainly gone."""
    here = _host()
    if facts.get("host") != here["host"]:
        return True
    if facts.get("boot") != here["boot"]:
        return False
    if facts.get("space") != here["space"]:
        return True
    pid = facts.get("pid")
    if not isinstance(pid, int) or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    stat = _stat(pid)
    return _started(stat) == facts.get("started") and stat[:1] != ["Z"]


def is_here(owner: str) -> bool:
    """Return True if an owner's process can be seen from here, so that `is_alive` is certain."""
    facts, here = _facts(owner), _host()
    return all(facts.get(key) == here[key] for key in here)


def _place(store: Store) -> str:
    return f"memory:{id(store)}" if store.url.startswith("memory:") else store.url


class ActiveRuns:
    """The runs that this process is executing now."""

    def __init__(self) -> None:
        self.reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Forget all runs: a forked child executes none of its parent's."""
        self._lock = threading.Lock()
        self._executions: dict[tuple[str, str], Any] = {}
        self._unsaved: set[tuple[str, str]] = set()

    def enter(self, store: Store, run: str, execution: Any) -> bool:
        """Claim a run for an execution; return False if this process executes it already."""
        self.find(store, run)
        return locked(self._lock, self._enter, (_place(store), run), execution)

    def _enter(self, place: tuple[str, str], execution: Any) -> bool:
        if place in self._executions and not _is_over(self._executions[place]):
            return False
        self._executions[place] = execution
        return True

    def leave(self, store: Store, run: str, execution: Any = None) -> None:
        """Release a run; with an execution, only if it is that one's."""
        place = (_place(store), run)
        if execution is None or self._executions.get(place) is execution:
            self._executions.pop(place, None)

    def note_unsaved(self, store: Store, run: str) -> None:
        """Remember that an execution stopped in order, but could not store that."""
        self._unsaved.add((_place(store), run))

    def take_unsaved(self, store: Store, run: str) -> bool:
        """Return whether the last execution of a run here could not store how it stopped, and forget that."""
        place = (_place(store), run)
        is_known = place in self._unsaved
        self._unsaved.discard(place)
        return is_known

    def of(self, store: Store) -> list[str]:
        """Return the runs of a store that this process executes."""
        place = _place(store)
        return [
            run
            for (own, run), execution in self._executions.copy().items()
            if own == place and not _is_over(execution)
        ]

    def find(self, store: Store, run: str) -> Any:
        """Return the execution of a run, or `None`."""
        execution = self._executions.get((_place(store), run))
        if execution is None or not _is_over(execution):
            return execution
        self.leave(store, run, execution)
        execution.give_up()
        return None


def _is_over(execution: Any) -> bool:
    """Return True if an execution has ended, even if an exception kept it from leaving its run."""
    return bool(getattr(execution, "is_over", False))


active_runs = ActiveRuns()


def has_owner(store: Store, info: RunInfo) -> bool:
    """Return True if a run is executing: in this process, or in another that is alive as far as can be seen."""
    if active_runs.find(store, info.run) is not None:
        return True
    return info.status == RunStatus.RUNNING and is_alive(info.owner, store)
