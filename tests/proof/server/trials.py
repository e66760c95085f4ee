"""One run that executes while its server is disturbed, and the check of its invariants."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from holdfast import (
    END,
    START,
    App,
    Context,
    ExecutionError,
    HoldfastError,
    NotPaused,
    Outcome,
    Pause,
    RunConflict,
    RunExists,
    RunFinished,
    RunNotFound,
    State,
    StateGraph,
    StoreError,
)
from holdfast.events import CallbackObserver
from holdfast.journal.records import Answered, Noted, StepAdvanced, StepFinished
from holdfast.stores.base import Append, Conflict
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing import Crash
from tests.crash.workflows import WORKFLOWS, Work, Workflow
from tests.crash.workflows import Ledger as WorkLedger
from tests.invariants import (
    CONSUMED,
    DUE,
    FINISHED,
    FIRED,
    NOT_STRANDED,
    RECOVERY,
    SAME_RESULT,
    STORED,
    Ledger,
    Line,
    Violation,
    check_run,
    read_journal,
)

MOST_ATTEMPTS = 12


class Witnessed(PostgresStore):
    """The store whose acknowledgements a ledger hears of before the engine does; all else is as it is."""

    ledger: Ledger | None = None
    commits_left: int | None = None
    """After so many commits, whoever drives through this store dies."""

    def __enter__(self) -> Witnessed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        ledger = self.ledger
        answers = super().commit(appends)
        if self.commits_left is not None:
            self.commits_left -= 1
            if self.commits_left < 0:
                raise Crash("the driver died here")
        if ledger is not None:
            for append, conflict in zip(appends, answers, strict=True):
                for entry in append.entries if conflict is None else ():
                    ledger.write(STORED, f"{append.run}:{entry.seq}", entry.chain.hex())
        return answers


def waiting(ledger: WorkLedger, pause: float) -> Workflow:
    """Sleeps durably, then asks, and writes to the ledger when it continues."""
    noted = cast(Ledger, ledger)

    def rest(state: Any, ctx: Context) -> dict[str, Any]:
        noted.write("start", ctx.step)
        until = ctx.once("until", lambda: time.time() + 0.03)
        noted.write(DUE, ctx.step, repr(until))
        ctx.sleep(0.03)
        noted.write(FIRED, ctx.step, repr(time.time()))
        return {"log": ["rested"]}

    def ask(state: Any, ctx: Context) -> dict[str, Any]:
        noted.write("start", ctx.step)
        said = ctx.ask("Which?", name="which")
        return {"log": [f"took {said}"]}

    graph = StateGraph(Work, name="waiting")
    graph.add_node("rest", rest)
    graph.add_node("ask", ask)
    graph.add_edge(START, "rest")
    graph.add_edge("rest", "ask")
    graph.add_edge("ask", END)
    return Workflow(graph, {"n": 0}, answers={"which": "this"})


WORK: dict[str, Callable[[WorkLedger, float], Workflow]] = {**WORKFLOWS, "waiting": waiting}


@dataclass
class Result:
    """What came of one trial."""

    state: str = ""
    stops: int = 0
    """How often the run stopped with a clear error and had to be resumed."""
    conflicts: int = 0
    violations: list[Violation] = field(default_factory=list)


class Trial:
    """One run of one workflow, in this process, from its beginning to its end."""

    def __init__(self, workflow: str, run: str, direct: PostgresStore, durability: str = "full") -> None:
        self.run, self.direct = run, direct
        self.ledger = Ledger()
        self.workflow = WORK[workflow](cast(WorkLedger, self.ledger), 0.0)
        self._durability = durability
        self.result = Result()

    def drive(self, store: Witnessed, rest: float = 0.0, attempts: int = MOST_ATTEMPTS) -> Result:
        """Execute the run through `store` until it is completed, resuming it as often as it stops."""
        store.ledger = self.ledger
        app = self.workflow.graph.compile(store, durability=self._durability, **self.workflow.options)
        for _ in range(attempts):
            try:
                self._completed(app, self._begin_or_go_on(app))
                return self.result
            except HoldfastError as error:
                cause = error.cause if isinstance(error, ExecutionError) else error
                # A run may exist after all: its creation was under way when its connection was lost.
                if not isinstance(cause, (StoreError, RunConflict, RunFinished, RunExists, NotPaused)):
                    self._violated(RECOVERY, f"it ended with {type(error).__name__}: {error}")
                    return self.result
                self.result.stops += 1
                self.result.conflicts += isinstance(error, (RunConflict, RunFinished))
                self._note_what_is_stored()
                time.sleep(rest)
        self._violated(NOT_STRANDED, f"not completed after {attempts} attempts")
        return self.result

    def take_over(self, store: Witnessed, seconds: float = 30.0) -> bool:
        """Execute the run through another store when its owner counts as dead; return False if it was done."""
        store.ledger = self.ledger
        app = self.workflow.graph.compile(store, durability=self._durability, **self.workflow.options)
        self._note_what_is_stored()
        deadline = time.monotonic() + seconds
        while True:
            try:
                self._completed(app, self._resume(app))
                return True
            except Crash:
                store.commits_left = None
                self._note_what_is_stored()
                return True
            except RunFinished:
                return False
            except RunConflict:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def check(self, wanted: str) -> Result:
        """Hold what happened against the invariants and against the run that nobody disturbed."""
        result = self.result
        if wanted and result.state != wanted:
            self._violated(SAME_RESULT, f"the result is {result.state}, undisturbed it is {wanted}")
        result.violations += check_run([*self.ledger.lines(), *self._consumed()], self.direct, self.run)
        facts = self.direct.runs(run=self.run)
        if not facts or facts[0].status != "completed":
            self._violated(NOT_STRANDED, f"stored as {facts[0].status if facts else 'nothing'}")
        return result

    def _consumed(self) -> list[Line]:
        """A line for every answer that the journal took in."""
        records = [record for _, record in read_journal(self.direct, self.run).records]
        return [Line(CONSUMED, each.pause) for each in records if isinstance(each, Answered)]

    def check_recovery(self) -> None:
        """Resuming what is completed is refused and changes nothing."""
        before = list(self.direct.read(self.run))
        app = self.workflow.graph.compile(self.direct, **self.workflow.options)
        try:
            app.resume(self.run)
            self._violated(RECOVERY, "a completed run could be resumed")
        except HoldfastError:
            pass
        if list(self.direct.read(self.run)) != before:
            self._violated(RECOVERY, "resuming a completed run changed its journal")

    def keep(self, state: State) -> None:
        """Record the result of the run."""
        self.result.state = json.dumps(state.to_dict(), sort_keys=True)

    def _violated(self, invariant: Any, what: str) -> None:
        self.result.violations.append(Violation(invariant, what))

    def _given(self) -> dict[str, Any]:
        return {"observer": CallbackObserver(self.ledger.observe)}

    def _begin_or_go_on(self, app: App) -> Outcome | State:
        known = app.store.runs(run=self.run)
        if known and known[0].status == "completed":
            return app.get_state(self.run)
        if not known:
            return self._start(app)
        try:
            return self._resume(app)
        except RunNotFound:
            return self._start(app)

    def _start(self, app: App) -> Outcome:
        if self.workflow.is_async:
            return asyncio.run(app.ainvoke(self.workflow.input, run_id=self.run, **self._given()))
        return app.invoke(self.workflow.input, run_id=self.run, **self._given())

    def _resume(self, app: App, answers: dict[str, Any] | None = None) -> Outcome:
        if self.workflow.is_async:
            return asyncio.run(app.aresume(self.run, answers=answers, **self._given()))
        return app.resume(self.run, answers=answers, **self._given())

    def _completed(self, app: App, outcome: Outcome | State) -> None:
        while isinstance(outcome, Outcome) and outcome.status == "paused":
            outcome = self._resume(app, {pause.id: self._answer(pause) for pause in outcome.pauses})
        state = outcome.state if isinstance(outcome, Outcome) else outcome
        self.keep(state)
        if isinstance(outcome, Outcome) and outcome.status != "completed":
            self._violated(NOT_STRANDED, f"it ended as {outcome.status}")

    def _answer(self, pause: Pause) -> Any:
        return "rerun" if pause.kind == "poison" else self.workflow.answers[pause.name]

    def _note_what_is_stored(self) -> None:
        """What the journal holds as finished, acknowledged or not, may not run again."""
        for _, record in read_journal(self.direct, self.run).records:
            if isinstance(record, (StepFinished, StepAdvanced)):
                self.ledger.write(FINISHED, record.step)
            elif isinstance(record, Noted):
                self.ledger.write(FINISHED, f"{record.step}:{record.key}")
