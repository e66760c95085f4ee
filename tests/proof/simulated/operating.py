"""The actors of a schedule: callers, workers, and somebody who answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast import App, Retention
from holdfast.engine.commands import control
from holdfast.engine.commands.control import Receipt
from holdfast.engine.continuation import resume
from holdfast.engine.resume import ResumeOptions
from holdfast.engine.retention import prune_workflow
from holdfast.engine.settings import Caller
from holdfast.engine.submission import Place, requeue
from holdfast.errors import (
    AnswerRejected,
    ExecutionError,
    HoldfastError,
    NotPaused,
    RunConflict,
    RunExists,
    RunFinished,
    RunNotFound,
    StoreError,
)
from holdfast.fleet.claims import LocalClaims
from holdfast.fleet.worker import Worker, WorkerEvent
from holdfast.state.codec import Codec
from holdfast.stores.base import RunInfo
from holdfast.values import RunStatus
from tests.simulator import Crashed, Fault, Process, Simulation, faults

from . import scenario as wishes
from .scenario import FLEET, PRIVATE, Scenario

_OVER = (RunStatus.COMPLETED.value, RunStatus.FAILED.value, RunStatus.CANCELLED.value)
_PASSING = (RunConflict, StoreError, ExecutionError, AnswerRejected, NotPaused)
"""What may come of any command while things go wrong; whoever sent it tries again."""


class Claims(LocalClaims):
    """Claims of a store that notifies when something is queued, unless the notification is lost."""

    listeners: list[Callable[[], None]]

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(callback)
        return lambda: None


class Operation:
    """Keeps the processes of a scenario alive, and its runs going, until all are over."""

    def __init__(self, simulation: Simulation, scenario: Scenario) -> None:
        self.simulation, self.scenario, self.world = simulation, scenario, simulation.world
        self.names = [f"run{index}" for index in range(scenario.runs)]
        self.open = set(self.names)
        self.claimed: list[tuple[str, str, bool]] = []
        """What somebody was told of a run: the status, and whether the server knew of it."""
        self.cancelled: set[str] = set()
        self.may_be_cancelled = scenario.wish == wishes.CANCEL
        self.refusals = 0
        self._workers: dict[str, Worker] = {}
        self._listeners: dict[str, list[Callable[[], None]]] = {}
        self._client: Process | None = None
        self._wished = False
        self.receipts: list[Receipt] = []
        """What people were told of their answers; each has a name of its own."""
        self._people = 0
        self.world.on_death = self._again
        self.world.on_fault = self._trouble
        self.world.server.told = self._told

    def begin(self) -> None:
        """Start all processes."""
        for index in range(self.scenario.machines):
            self._start(f"m{index + 1}")
        if self.scenario.mode == FLEET:
            self._start("client")

    @property
    def is_over(self) -> bool:
        """Return whether every run has ended."""
        return not self.open

    def _start(self, machine: str) -> None:
        process = self.simulation.process(machine)
        if machine == "client":
            self._be_client(process)
        elif self.scenario.mode == FLEET:
            self._be_worker(process)
        else:
            self._do(process, self._drive(process, self.scenario.mode == PRIVATE))

    def _again(self, process: Process) -> None:
        self._start(process.machine)

    def _do(self, process: Process, work: Coroutine[Any, Any, Any]) -> None:
        self.simulation.start(process, work, lambda task: self._done(process, task))

    def _done(self, process: Process, task: asyncio.Task[Any]) -> None:
        error = task.exception() if not task.cancelled() else None
        if error is not None and process.alive and not isinstance(error, Crashed):
            self.world.complain(process, error)

    # What the server tells.

    def _told(self, info: RunInfo) -> None:
        if info.status in _OVER:
            if info.status == RunStatus.CANCELLED and not self.may_be_cancelled:
                self._later(0.3, info.run, self._requeue)
            else:
                self.open.discard(info.run)
                return
        else:
            self.open.add(info.run)
        if self.scenario.mode != FLEET:
            return
        if info.status == RunStatus.PAUSED:
            late = self.scenario.wish == wishes.ANSWER_LATE
            self._later(3.0 if late else 0.01, info.run, self._answer)
            if self.scenario.wish == wishes.ANSWER_TWICE:
                self._later(0.012, info.run, self._answer)
        elif info.status == RunStatus.INTERRUPTED:
            self._later(0.3, info.run, self._requeue)
        elif info.status == RunStatus.QUEUED:
            if self.world.drops_wakes:
                self.world.drops_wakes -= 1
                return
            for callbacks in self._listeners.values():
                for callback in callbacks:
                    callback()

    # Callers.

    async def _drive(self, process: Process, private: bool) -> None:
        """Start the run, or go on with it, until it is completed, as a person with a shell would."""
        app = self.simulation.app(self.scenario.shape.app, process)
        runner, caller, (name,) = app._runner, Caller(None, private), self.names
        answers = True
        while True:
            try:
                if found := app.store.runs(run=name):
                    waits = found[0].status == RunStatus.PAUSED
                    options = self._options(app, name, answers) if waits else ResumeOptions()
                    outcome = await resume(runner, name, options, caller)
                elif process.machine == "m1":
                    outcome = await runner.invoke(self.scenario.shape.input, caller, run_id=name)
                else:
                    await asyncio.sleep(0.2)
                    continue
            except (RunFinished, RunExists, RunNotFound):
                if name not in self.open:
                    return
                await asyncio.sleep(0.2)
            except AnswerRejected:
                answers = False  # It comes too late: the run goes on without it.
            except RunConflict:
                await asyncio.sleep(0.8)
            except _PASSING:
                await asyncio.sleep(0.3)
            else:
                answers = True
                if outcome.warnings and not self.scenario.shape.is_strict:
                    await asyncio.sleep(0.5)  # It says that its end could not be saved.
                    continue
                self._heard(name, outcome.status)
                if outcome.status == RunStatus.COMPLETED:
                    return
                if outcome.status == RunStatus.FAILED:
                    return

    def _options(self, app: App, name: str, answering: bool) -> ResumeOptions:
        answers: dict[str, Any] = {}
        for pause in app.pauses(name):
            if pause.kind == "ask" and answering:
                answers[pause.id] = "yes"
            elif pause.kind in ("in_doubt", "poison"):
                answers[pause.id] = "rerun"
        return ResumeOptions(answers=answers or None)

    def _heard(self, run: str, status: str) -> None:
        kept = self.world.server.kept.get(run)
        known = kept is not None and (status != RunStatus.COMPLETED or kept.info.status == status)
        self.claimed.append((run, str(status), known))

    # Workers.

    def _be_worker(self, process: Process) -> None:
        app = self.simulation.app(self.scenario.shape.app, process)
        worker = Worker(self.simulation.store(process), [app], idle_timeout=0.4, grace=2.0, tell=self._tell)
        claims = Claims(worker.claims._store, worker.claims._wanted)  # type: ignore[attr-defined]
        self._listeners[process.machine] = claims.listeners = []
        worker.claims = claims
        self._workers[process.machine] = worker
        self._do(process, self._work(process, worker))

    async def _work(self, process: Process, worker: Worker) -> None:
        await worker.arun()
        # It was told to stop, and is started anew.
        self.world.at(self.world.now + 0.2, self._restart, process)

    def _restart(self, process: Process) -> None:
        if process.alive:
            self.world.kill(process, 0.0)

    def _tell(self, event: WorkerEvent) -> None:
        if event.kind == RunStatus.COMPLETED:
            self._heard(event.run, event.kind)
        elif event.kind == "refused":
            self.refusals += 1
            process = self.world.current
            if process is not None and process.alive:
                self.world.complain(process, f"refused {event.run}: {event.text}")

    def _trouble(self, fault: Fault, process: Process) -> None:
        """Faults that only this scenario knows how to make."""
        if fault.kind == faults.STOP:
            worker = self._workers.get(process.machine)
            if worker is not None:
                worker.stop(at_once=bool(fault.amount))
        elif fault.kind == faults.DUPLICATE_WAKE and process.machine != "client":
            app = self.simulation.app(self.scenario.shape.app, process)
            self._do(process, self._take_up(app, self.names[-1]))

    async def _take_up(self, app: App, run: str) -> None:
        try:
            await app.aexecute(run, idle_timeout=1.0)
        except (HoldfastError, StoreError):
            return

    # The client.

    def _be_client(self, process: Process) -> None:
        self._client = process
        app = self.simulation.app(self.scenario.shape.app, process)
        for name in self.names:
            self._do(process, self._submit(app, name))
        for kept in list(self.world.server.kept.values()):
            if kept.info.status in (RunStatus.PAUSED, RunStatus.INTERRUPTED, RunStatus.CANCELLED):
                self._told(kept.info)
        if self.scenario.wish and not self._wished:
            self._later(self.scenario.wish_after, self.names[0], self._wish)

    def _later(self, seconds: float, run: str, what: Callable[[App, str], None]) -> None:
        """Let the client do something soon, and again until nothing goes wrong with it."""
        self.world.at(self.world.now + seconds, self._ask_client, run, what)

    def _ask_client(self, run: str, what: Callable[[App, str], None]) -> None:
        client = self._client
        if client is not None and client.alive:
            app = self.simulation.app(self.scenario.shape.app, client)
            self._do(client, self._insist(app, run, what))

    async def _insist(self, app: App, run: str, what: Callable[[App, str], None]) -> None:
        for _ in range(60):
            try:
                await asyncio.to_thread(what, app, run)
            except _PASSING:
                await asyncio.sleep(0.5)
            except (RunFinished, RunNotFound):
                return
            else:
                return

    async def _submit(self, app: App, name: str) -> None:
        wish = self.scenario.wish
        due = self.world.wall_time() + 1.5 if wish == wishes.DUE_LATER else None
        for _ in range(2 if wish == wishes.SUBMIT_TWICE else 1):
            while True:
                try:
                    await app._runner.submit(self.scenario.shape.input, name, {}, Place(due_at=due))
                except (StoreError, ExecutionError):
                    await asyncio.sleep(0.2)
                except (RunExists, RunConflict):
                    break
                else:
                    break

    def _answer(self, app: App, run: str) -> None:
        journal = app._settings.journal
        for pause in control.waiting(journal, run):
            if pause.kind in ("in_doubt", "poison"):
                control.answer(journal, run, answers={pause.id: "rerun"}, codec=Codec())
            elif pause.kind == "ask":
                self._say_yes(app, run, pause.id)

    def _say_yes(self, app: App, run: str, pause: str) -> None:
        """Answer a question, or let two people do that, of whom the first does not wait to hear what became of it."""
        are_two = self.scenario.wish == wishes.ANSWER_SOON
        for timeout in (0.0, 1.0) if are_two else (1.0,):
            self._people += 1
            options = {"codec": Codec(), "by": f"person {self._people}", "timeout": timeout}
            with contextlib.suppress(*((NotPaused, AnswerRejected) if are_two else ())):
                journal = app._settings.journal
                self.receipts.append(control.answer(journal, run, answers={pause: "yes"}, **options))

    def _requeue(self, app: App, run: str) -> None:
        status = app._settings.journal.info(run).status
        if status in (RunStatus.CANCELLED, RunStatus.INTERRUPTED):
            requeue(app._settings.journal, run, codec=app._settings.codec)

    def _wish(self, app: App, run: str) -> None:
        wish, journal = self.scenario.wish, app._settings.journal
        if wish in (wishes.CANCEL, wishes.CANCEL_AND_REQUEUE):
            control.stop(journal, run, "cancel")
        elif wish == wishes.STOP_AND_RESUME:
            control.stop(journal, run, "pause")
        elif wish == wishes.ANSWER_SOON:
            self._answer(app, run)
        elif wish == wishes.PRUNE:
            prune_workflow(journal, app.name, Retention.latest_only())
        self._wished = True
