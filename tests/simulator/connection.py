"""A process's connection to the simulated server: a store with leases, every call of which may be disturbed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Unpack

from holdfast.stores.base import (
    Append,
    Conflict,
    Entry,
    Message,
    RunFilter,
    RunInfo,
    Snapshot,
    StoredCheckpoint,
)
from tests.simulator.process import Process
from tests.simulator.server import Server
from tests.simulator.world import World


class Connection:
    """What a process of a simulation has for a store."""

    def __init__(self, world: World, server: Server, process: Process) -> None:
        self._world, self._server, self._process = world, server, process
        self.url = f"simulated:{process.name}"

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        world, process = self._world, self._process
        world.call(process, "commit")
        world.cross_boundary(process)
        if world.armed:
            return world.disturbed_commit(process, appends)
        answers = self._server.commit(process, world.moment, appends)
        if world.trace is not None:
            world.trace_commit(process, appends, answers)
        world.cross_boundary(process)
        world.reply(process, "commit")
        return answers

    def read(self, run: str, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        self._world.call(self._process, "read")
        found = self._server.read(run, after, upto)
        self._world.reply(self._process, "read")
        return found

    def checkpoints(
        self, run: str, before: int | None = None, limit: int | None = None
    ) -> list[StoredCheckpoint]:
        self._world.call(self._process, "checkpoints")
        found = self._server.checkpoints(run, before, limit)
        self._world.reply(self._process, "checkpoints")
        return found

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        self._world.call(self._process, "snapshot")
        return self._server.snapshot(run, upto)

    def runs(self, **wanted: Unpack[RunFilter]) -> list[RunInfo]:
        self._world.call(self._process, "runs")
        found = self._server.runs(**wanted)
        self._world.reply(self._process, "runs")
        return found

    def prune(self, run: str, horizon: Snapshot, *, forks: Collection[bytes] | None = None) -> int:
        self._world.call(self._process, "prune")
        dropped = self._server.prune(run, horizon, forks)
        self._world.reply(self._process, "prune")
        return dropped

    def delete(self, run: str, *, forks: Collection[bytes] | None = None) -> bool:
        self._world.call(self._process, "delete")
        gone = self._server.delete(run, forks)
        self._world.reply(self._process, "delete")
        return gone

    def post(self, run: str, body: bytes, number: int | None = None) -> int:
        self._world.call(self._process, "post")
        posted = self._server.post(run, body, number)
        self._world.reply(self._process, "post")
        return posted

    def inbox(self, run: str, after: int = 0) -> list[Message]:
        self._world.call(self._process, "inbox")
        found = self._server.inbox(run, after)
        self._world.reply(self._process, "inbox")
        return found

    def close(self) -> None:
        return None

    def lease(self) -> str:
        return self._process.lease

    def is_live(self, lease: str) -> bool:
        self._world.call(self._process, "is_live")
        return self._server.is_live(lease)

    def lapses(self) -> int:
        return self._process.count_lapses()
