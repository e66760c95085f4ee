"""One execution of a run under test: from its start, or from where the last one crashed, to its end or its crash."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import ctypes
import dataclasses
import functools
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from holdfast import clock
from holdfast.engine.app import App
from holdfast.engine.once import StepInterrupted
from holdfast.engine.settings import Outcome, Pause
from holdfast.errors import CodecError, ExecutionError, HoldfastError, RunConflict, RunNotFound
from holdfast.graph.builder import StateGraph
from holdfast.graph.graph import Graph
from holdfast.journal.journal import Journal
from holdfast.journal.records import StepAdvanced, StepFinished
from holdfast.journal.run_state import ABOUT_DOUBTS
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.everywhere import effects as bodies
from holdfast.testing.everywhere.boundaries import EXECUTION, Boundary, Watch, WatchedStore, own_trace
from holdfast.testing.everywhere.effects import (
    ObservedEffect,
    effects_go_to,
    effects_of,
    observed_effects,
    runs_here,
    watched_graph,
)
from holdfast.testing.everywhere.judging import (
    CONFLICT,
    NOT_STORABLE,
    RETRIED,
    UNANSWERED,
    Finding,
    Judge,
    Wanted,
)
from holdfast.testing.fakes import Answers
from holdfast.testing.ledger import FINISHED, FileLedger, read_journal
from holdfast.testing.time_skipping import skipping_time
from holdfast.testing.wrapped_store import Crash
from holdfast.values import RunStatus

# What is tested: a graph, an app, a function that makes one, or a workflow file; made ready for each execution.


@dataclass(frozen=True)
class Ready:
    """A workflow that can be run: its app on a store, and what its run is given."""

    app: App
    inputs: Any
    config: dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """What was given to be tested, and how it is compiled."""

    given: Any
    inputs: Any
    config: Mapping[str, Any] | None = None
    durability: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def settled(self) -> Subject:
        """The same, compiled once for all executions, where it need not be made again."""
        __tracebackhide__ = True
        is_graph = isinstance(self.given, (StateGraph, App))
        return dataclasses.replace(self, given=self.ready()) if is_graph else self

    def ready(self) -> Ready:
        """Return the workflow, made again if a function makes it; not yet on a store of its own."""
        __tracebackhide__ = True
        if isinstance(self.given, Ready):
            return self.given
        made = self._made()
        config = dict(self.config or {})
        if isinstance(made, App):
            return Ready(self._of_app(made), self.inputs, config)
        if isinstance(made, StateGraph):
            options = {"durability": self.durability or _durability_of(self.options), **self.options}
            try:
                return Ready(made.compile(MemoryStore(), **options), self.inputs, config)
            except HoldfastError as error:
                # It is about the graph, not about where that is checked.
                raise error.with_traceback(None) from error.__cause__
        return self._of_workflow(made, config)

    def _made(self) -> Any:
        __tracebackhide__ = True
        given = self.given
        if callable(given) and not _is_workflow(given):
            given = given()
        if isinstance(given, (str, os.PathLike)):
            from holdfast.workflows.workflow import load_workflow

            return load_workflow(Path(given))
        if not _is_workflow(given):
            raise HoldfastError(
                "crash_everywhere takes a StateGraph, an App, a function that returns one, or the path of a "
                f"workflow file, not {type(given).__name__}"
            )
        return given

    def _of_app(self, app: App) -> App:
        __tracebackhide__ = True
        if self.options:
            raise HoldfastError(
                f"an app is compiled already: {', '.join(self.options)} cannot be given; give its graph instead"
            )
        if self.durability is None:
            return app
        policy = dataclasses.replace(app._settings.policy, durability=self.durability)
        return App(dataclasses.replace(app._settings, policy=policy))

    def _of_workflow(self, workflow: Any, config: dict[str, Any]) -> Ready:
        app = workflow.open(MemoryStore(), durability=self.durability, **self.options)
        inputs = workflow.begin(workflow.read_inputs(dict(self.inputs or {})))
        return Ready(app, inputs, {**workflow.config(), **config})


def _is_workflow(given: Any) -> bool:
    """Return True for a graph, an app or a `Workflow`, without importing what only workflow files need."""
    return isinstance(given, (StateGraph, App)) or type(given).__module__ == "holdfast.workflows.workflow"


def _durability_of(options: Mapping[str, Any]) -> str | None:
    return None if "policy" in options else "full"


def on_store(app: App, store: Store, changed: Callable[[Any, Any], Any]) -> App:
    """The app on another store, its graph changed; nothing else of it is, but that it is not noted where it runs."""
    settings = app._settings
    journal = Journal(store, settings.journal.seal)
    graph = changed(settings.graph, settings.outline)
    return App(dataclasses.replace(settings, journal=journal, graph=graph, facts=None))


# A call that may take so long and no longer.


Result = TypeVar("Result")

_AGAIN = 0.1
"""A late call is broken off again after so many seconds, if somebody caught it and went on."""

_TRIES = 20
"""How often a safe place to break it off is waited for; then it is broken off anywhere."""

_TRACERS = ("coverage",)
"""Code that holds locks which nobody else releases, and is soon done."""


class Late(Crash):
    """A call that took too long; like a crash, nothing that catches an `Exception` can swallow it."""


def within(seconds: float, call: Callable[[], Result], give_up: Callable[[], object]) -> Result:
    """Return what `call` returns, in a thread; raise `Late` if that takes longer, `give_up` called first.

    The body of a step is broken off by a `Late` wherever it is. An event loop is not: its tasks are cancelled, for what
    is raised between any two instructions of it, or of Holdfast, leaves locks behind that nobody releases. Only what
    stops for neither is broken off anywhere, and left behind if it does nothing in Python for long.
    """
    future: concurrent.futures.Future[Result] = concurrent.futures.Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), name="holdfast-execution", daemon=True)
    try:
        thread.start()
        return future.result(seconds)
    except concurrent.futures.TimeoutError:
        if future.done():
            raise
        give_up()
        _break_off(thread)
        raise Late from None
    except (KeyboardInterrupt, SystemExit):
        if not future.done():  # It was not raised by the call: somebody stops this process.
            give_up()
        raise


def _break_off(thread: threading.Thread) -> None:
    for times in range(2 * _TRIES):
        frame = sys._current_frames().get(thread.ident or 0)
        if _may_be_broken_off(frame, anywhere=times > _TRIES):
            identity, kind = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Late)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, kind)
        else:
            _cancel_tasks(frame)
        thread.join(_AGAIN)
        if not thread.is_alive():
            return


def _may_be_broken_off(frame: FrameType | None, anywhere: bool) -> bool:
    """Return whether something may be raised in this frame: if it belongs to a body, and not to what that calls."""
    if _package(frame) in _TRACERS:
        return False
    while frame is not None and not anywhere:
        if frame.f_globals.get("__name__") == bodies.__name__:
            return True
        if _package(frame) in ("holdfast", "asyncio"):
            return False
        frame = frame.f_back
    return anywhere


def _package(frame: FrameType | None) -> str:
    return "" if frame is None else str(frame.f_globals.get("__name__")).partition(".")[0]


def _cancel_tasks(frame: FrameType | None) -> None:
    """Cancel, soon, all that is done in the event loop that runs this frame, if there is one."""
    while frame is not None and frame.f_code is not asyncio.BaseEventLoop.run_forever.__code__:
        frame = frame.f_back
    if frame is None:
        return
    loop: asyncio.AbstractEventLoop = frame.f_locals["self"]

    def cancel() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()

    with contextlib.suppress(RuntimeError):  # It is about to end anyway.
        loop.call_soon_threadsafe(cancel)


RUN = "run"
ANSWERED, DECIDED = "answered", "decided"


@dataclass(frozen=True)
class Trial:
    """What every execution of a test has in common."""

    subject: Subject
    answers: Answers
    judge: Judge
    skip_time: bool = True


_MOST_TIMES = 50
"""So often a run may come to the same pause; then it goes in circles."""


@dataclass
class End:
    """How an execution ended that did not crash."""

    status: str = ""
    error: str = ""
    state: dict[str, Any] = field(default_factory=dict)
    """The encoded state, in hexadecimal digits, by key."""
    boundaries: list[Boundary] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    observed: list[ObservedEffect] = field(default_factory=list)
    differing: list[list[str | int]] = field(default_factory=list)
    resumes: int = 0
    questions: int = 0
    asked: list[str] = field(default_factory=list)
    """What answers were looked for, by whatever name they could be found."""
    decisions: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    """The questions whose time ran out, because the test has no answer to them."""
    unwatched: list[str] = field(default_factory=list)
    reason: str = ""
    """What kind of failure it ended with, as far as there is advice for it."""

    @property
    def passed_over(self) -> bool:
        """Whether somebody decided to pass an interrupted step over."""
        return any(decision.startswith("skip") for decision in self.decisions)


class Execution:
    """One execution of a run under test; with a `timeout` it ends itself when it takes longer."""

    def __init__(
        self, trial: Trial, ledger: FileLedger, store: Store, watch: Watch, timeout: float | None = None
    ) -> None:
        self._trial, self._ledger, self._watch, self._timeout = trial, ledger, watch, timeout
        self._end = End()
        self._met: Counter[str] = Counter()
        ready = trial.subject.ready()
        settings = ready.app._settings
        self._readable = settings.journal.seal is None
        self._store = WatchedStore(store, watch, settings.codec, self._readable)
        self._app = on_store(ready.app, self._store, functools.partial(watched_graph, watch=watch))
        self._ready, self._codec = ready, settings.codec
        self._end.unwatched = _unwatched(settings.graph)

    def run(self, wanted: Wanted | None) -> End:
        """Execute the run to its end, and judge it; a crash is let through."""
        known = self._store.runs(run=RUN)
        self._ledger.write(EXECUTION, "resumes" if known else "begins")
        if known:
            self._note_what_is_finished()
        with effects_go_to(self._ledger), self._time():
            try:
                state = self._in_time(known[0].status if known else "")
            except Crash:
                raise
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                if self._watch.dead:
                    raise
                state = None
                self._failed(error)
            self._watch.refuse_if_dead()
            self._finish(state, wanted)
        return self._end

    def _time(self) -> contextlib.AbstractContextManager[object]:
        if (
            not self._trial.skip_time or clock.loop_factory is not None
        ):  # It is skipped already, or not to be.
            return contextlib.nullcontext()
        return skipping_time()

    def _note_what_is_finished(self) -> None:
        """Write into the ledger what the journal holds as finished: acknowledged or not, it may not run again."""
        if not self._readable:
            return
        for _, record in read_journal(self._store.inner, RUN, self._codec).records:
            if isinstance(record, (StepFinished, StepAdvanced)):
                self._ledger.write(FINISHED, record.step)

    def _in_time(self, status: str) -> Mapping[str, Any] | None:
        if self._timeout is None:
            return self._executed(status)
        return within(self._timeout, functools.partial(self._executed, status), self._watch.give_up)

    def _executed(self, status: str) -> Mapping[str, Any] | None:
        app = self._app
        if status == RunStatus.COMPLETED:
            self._end.status = status
            return app.get_state(RUN)
        outcome = self._begun(status)
        while outcome.status == RunStatus.PAUSED:
            self._met.update(pause.id for pause in outcome.pauses)
            again = next((pause for pause in outcome.pauses if self._met[pause.id] > _MOST_TIMES), None)
            if again is not None:
                self._end.status = "error"
                self._end.error = (
                    f"the run has come to the same pause {_MOST_TIMES} times: {again.name or again.kind!r}"
                )
                return None
            answers = self._answered(outcome)
            if answers is None:
                return None
            outcome = self._resumed(answers)
        self._end.status = str(outcome.status)
        if outcome.status != RunStatus.COMPLETED:
            self._end.error = f"the run ended as {outcome.status}: {'; '.join(outcome.warnings)}"
        return outcome.state

    def _begun(self, status: str) -> Outcome:
        if status:
            with contextlib.suppress(RunNotFound):
                return self._resumed({})
        return self._app.invoke(self._ready.inputs, run_id=RUN, config=self._ready.config)

    def _resumed(self, answers: dict[str, Any]) -> Outcome:
        self._end.resumes += 1
        return self._app.resume(RUN, answers=answers, config=self._ready.config or None)

    def _answered(self, outcome: Outcome) -> dict[str, Any] | None:
        """The answers to all that the run waits for; `None`, with the reason, if one is missing."""
        found: dict[str, Any] = {}
        running_out: list[Pause] = []
        for pause in outcome.pauses:
            if pause.kind in ("before", "after"):
                continue  # A plain resume passes the gate.
            self._end.asked += self._trial.answers.names_of(pause)
            known, value = self._trial.answers.find(pause)
            if not known and pause.kind in ABOUT_DOUBTS:
                known, value = True, self._decided(pause)
            if not known and pause.expires_at is not None and self._trial.skip_time:
                running_out.append(pause)
                continue
            if not known:
                self._end.status = "error"
                self._end.error, self._end.reason = str(self._trial.answers.missing(pause)), UNANSWERED
                return None
            self._end.questions += 1
            self._ledger.write(ANSWERED, pause.id)
            found[pause.id] = value
        if running_out and not found:
            self._let_run_out(running_out)
        return found

    def _let_run_out(self, pauses: list[Pause]) -> None:
        """Nobody answers: let time pass until the first of these questions has run out."""
        due = {pause.name: pause.expires_at.timestamp() for pause in pauses if pause.expires_at is not None}
        name = min(due, key=lambda name: due[name])
        self._end.unanswered.append(name)
        clock.sleep(max(due[name] - clock.time(), 0.0) + 0.001)

    def _decided(self, pause: Pause) -> str:
        """What a careful person says of an interrupted step: pass it over if it took effect, else run it again."""
        done = any(effect.step == pause.step for effect in effects_of(self._ledger.lines()))
        decision = "skip" if done and pause.kind == "in_doubt" else "rerun"
        self._end.decisions.append(f"{decision} {pause.step}")
        self._ledger.write(DECIDED, pause.step, decision)
        return decision

    def _failed(self, error: BaseException) -> None:
        end = self._end
        end.status, end.error = "error", own_trace(error)
        if isinstance(error, ExecutionError) and isinstance(error.cause, StepInterrupted):
            end.status, end.error = "refused", str(error)
        elif isinstance(error, ExecutionError) and _retries(self._app._settings.graph, error.node or ""):
            end.reason = RETRIED
        cause = error.cause if isinstance(error, ExecutionError) else error
        for kind, reason in ((CodecError, NOT_STORABLE), (RunConflict, CONFLICT)):
            end.reason = reason if isinstance(cause, kind) else end.reason

    def _finish(self, state: Mapping[str, Any] | None, wanted: Wanted | None) -> None:
        end, judge = self._end, self._trial.judge
        plain = {} if state is None else dict(getattr(state, "to_dict", lambda: state)())
        end.state = {key: self._codec.encode(value).hex() for key, value in plain.items()}
        end.boundaries = list(self._watch.seen)
        seen = judge.seen(end.status, plain, self._ledger.lines())
        end.observed = observed_effects(seen.effects)
        lines = self._ledger.lines()
        facts = (end.status, end.error, seen, wanted, self._codec, lines)
        end.findings = judge.findings(*facts, skipped=end.passed_over, reason=end.reason)
        if self._readable and self._app._settings.policy.saves_wave(0):
            end.findings += judge.of_journal(lines, self._store.inner, RUN, self._codec)
        if wanted is not None and end.status == RunStatus.COMPLETED:
            end.differing = [list(path) for path in wanted.differing(plain, self._codec)]


def _unwatched(graph: Graph) -> list[str]:
    return [name for name, node in graph.nodes.items() if node.graph is None and not runs_here(node)]


def _retries(graph: Graph, path: str) -> bool:
    """Whether the node at a path of names has a `Retry`."""
    for name in path.split("/"):
        node = graph.nodes.get(name)
        if node is None:
            return False
        if node.graph is None:
            return node.retry is not None and node.retry.attempts > 1
        graph = node.graph
    return False
