"""Replacements of clocks, randomness, threads and process identity by those of a simulation."""

from __future__ import annotations

import functools
import json
import logging
import os
import uuid
from collections.abc import Callable
from typing import Any

from holdfast import clock, threads
from holdfast.engine import attempt, owner
from holdfast.fleet import worker
from holdfast.journal import checkpoint_ids as checkpoints
from tests.simulator.process import Process
from tests.simulator.world import World


class _Threads:
    """Runs steps of a process as events of its own."""

    def __init__(self, world: World) -> None:
        self._world = world

    def submit(self, function: Callable[[], None]) -> None:
        process = self._world.current
        assert process is not None
        process.submit(function)


class _Identity:
    """Return the machine on which a simulated process runs."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _process(self) -> Process:
        assert self._world.current is not None
        return self._world.current

    def host(self) -> dict[str, str]:
        process = self._process()
        return {"host": process.machine, "boot": str(process.number), "space": ""}

    def owner(self, pid: int, lease: str) -> str:
        process = self._process()
        return _named(process.machine, process.number, pid, lease)


@functools.lru_cache(maxsize=512)
def _named(machine: str, number: int, pid: int, lease: str) -> str:
    facts = {"host": machine, "boot": str(number), "space": "", "pid": pid, "started": "", "lease": lease}
    return json.dumps(facts)


# Nobody changes what is said of an owner.
_facts = functools.lru_cache(maxsize=512)(owner._facts)


class _Traces:
    """Report what went wrong, and not where: finding the lines takes longer than everything else in a failing step."""

    def format_exception(self, error: BaseException) -> list[str]:
        return [f"{type(error).__qualname__}: {error}"]


def _uuid4(bits: Callable[[int], int]) -> Callable[[], uuid.UUID]:
    return lambda: uuid.UUID(int=bits(128), version=4)


_TRACES = _Traces()
_LOGGERS = tuple(logging.getLogger(name) for name in ("holdfast", "holdfast.fleet", "holdfast.nodes"))


class Seams:
    """A context in which the engine runs in a simulation. Nothing real may run beside it."""

    def __init__(self, world: World) -> None:
        identity, choices = _Identity(world), world.choices
        self._seams: tuple[tuple[Any, str, Any], ...] = (
            (clock, "time", world.wall_time),
            (clock, "monotonic", world.true_time),
            (clock, "perf_counter", world.true_time),
            (clock, "sleep", world.sleep),
            (owner, "_host", identity.host),
            (owner, "_owner", identity.owner),
            (owner, "_facts", _facts),
            (os, "getpid", _no_pid),
            (threads, "workers", _Threads(world)),
            (attempt, "traceback", _TRACES),
            (worker, "random", choices),
            (checkpoints, "secrets", choices),
            (uuid, "uuid4", _uuid4(choices.randbits)),
            *((logger, "disabled", True) for logger in _LOGGERS),
        )
        self._before: list[tuple[Any, str, Any]] = []

    def put_in_place(self) -> None:
        """Let the simulation answer everything that the engine asks from now on."""
        self._before = [(place, name, getattr(place, name)) for place, name, _ in self._seams]
        owner.active_runs.reset()
        for place, name, value in self._seams:
            setattr(place, name, value)

    def take_away(self) -> None:
        """Everything is as it was."""
        for place, name, value in self._before:
            setattr(place, name, value)
        owner.active_runs.reset()


def _no_pid() -> int:
    """The process id of all simulated processes, so that no journal depends on the real one."""
    return 0
