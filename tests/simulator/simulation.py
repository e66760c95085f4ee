"""A simulation: processes around one server, executed from a seed until nothing is left to do."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any

from holdfast.engine.app import App
from holdfast.journal.commit import committer_of
from holdfast.journal.journal import Journal
from tests.simulator.choices import Choices
from tests.simulator.connection import Connection
from tests.simulator.faults import Fault
from tests.simulator.process import Crashed, Process
from tests.simulator.seams import Seams
from tests.simulator.world import NEVER, World

LEASE_SECONDS = 1.0


class Simulation:
    """The processes of one simulation. Use it in a `with` block: inside, the engine sees only the simulated time.

    The same seed, or the same `choices`, and the same `faults` give the same simulation, to the byte. With `crash_at`
    the process that commits dies at that boundary: 1 is before the first commit is stored, 2 after that, and so on.
    """

    def __init__(
        self,
        seed: int | str = 0,
        *,
        choices: Choices | None = None,
        faults: Sequence[Fault] = (),
        crash_at: int = 0,
        lease_seconds: float = LEASE_SECONDS,
        trace: bool = False,
    ) -> None:
        self.choices = Choices(seed) if choices is None else choices
        self.world = World(self.choices, faults)
        self.world.crash_at = crash_at
        self.server = self.world.server
        self._lease_seconds = lease_seconds
        self._numbers: dict[str, int] = {}
        self._connections: dict[Process, Connection] = {}
        self._apps: dict[tuple[App, Process], App] = {}
        self._seams = Seams(self.world)
        if trace:
            self.world.trace = []

    def __enter__(self) -> Simulation:
        self._seams.put_in_place()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for process in self._connections:
                self.world.current = process
                process.die()
                process.bury()
            self.world.end()
            self._connections.clear()
            self._apps.clear()
        finally:
            self._seams.take_away()

    def process(self, machine: str = "machine") -> Process:
        """A new process on a machine, with a connection to the server."""
        number = self._numbers[machine] = self._numbers.get(machine, 0) + 1
        process = Process(self.world, machine, number, self._lease_seconds)  # type: ignore[abstract]
        self.world.processes.append(process)
        self.server.processes[process.lease] = process
        connection = self._connections[process] = Connection(self.world, self.server, process)
        committer_of(connection).work_in(process)
        return process

    @property
    def boundaries(self) -> int:
        """How many boundaries of commits there were: at each of them a process could have died."""
        return self.world.boundaries

    def store(self, process: Process) -> Connection:
        """The server as a process sees it."""
        return self._connections[process]

    def app(self, app: App, process: Process) -> App:
        """The same graph, on the store of a process."""
        known = self._apps.get((app, process))
        if known is None:
            settings = app._settings
            journal = Journal(self._connections[process], settings.journal.seal)
            known = self._apps[app, process] = App(dataclasses.replace(settings, journal=journal))
        return known

    def start(
        self, process: Process, work: Coroutine[Any, Any, Any], then: Callable[[asyncio.Task[Any]], object]
    ) -> None:
        """Let a process do something; `then` is called with the task when it is done."""
        process.create_task(work).add_done_callback(then)

    def finish(self, process: Process, work: Coroutine[Any, Any, Any], limit: float = 3600.0) -> Any:
        """What comes of work that a process does, within `limit` simulated seconds.

        Raises `Crashed` if the process dies over it.
        """
        done: list[asyncio.Task[Any]] = []
        self.start(process, work, done.append)
        end = self.world.now + limit
        while not done and process.alive:
            if not self.world.step(end):
                raise TimeoutError(f"nothing came of it within {limit:g} simulated seconds")
        if not done:
            raise Crashed
        return done[0].result()

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass."""
        end = self.world.now + seconds
        while self.world.step(end):
            continue

    def run(self, is_over: Callable[[], bool], limit: float = NEVER) -> bool:
        """Go on until something is so; `False` if it is not so at the time `limit`, or can never be."""
        while not is_over():
            if not self.world.step(limit):
                return False
        return True
