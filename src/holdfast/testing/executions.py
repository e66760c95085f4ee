"""One execution of a run under test: in a process that is killed, or, fast, in this one; and how it ended."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import ctypes
import dataclasses
import functools
import multiprocessing
import multiprocessing.process
import os
import pickle
import signal
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, cast

from holdfast import clock
from holdfast.engine.app import App
from holdfast.engine.once import StepInterrupted
from holdfast.engine.settings import Outcome, Pause
from holdfast.errors import CodecError, ExecutionError, HoldfastError, RunConflict, RunNotFound
from holdfast.functions.workflows import WorkflowFunction
from holdfast.graph.builder import StateGraph
from holdfast.graph.graph import Graph
from holdfast.journal.journal import Journal
from holdfast.journal.records import StepAdvanced, StepFinished
from holdfast.journal.run_state import ABOUT_DOUBTS
from holdfast.state.state import State
from holdfast.stores import open_store
from holdfast.stores.base import Store, is_in_memory
from holdfast.stores.memory import MemoryStore
from holdfast.testing import boundaries as bodies
from holdfast.testing.boundaries import Boundary, Watch, WatchedStore, runs_here, watched_graph
from holdfast.testing.fakes import Answers
from holdfast.testing.judging import (
    CONFLICT,
    LATE,
    NOT_STORABLE,
    RETRIED,
    UNANSWERED,
    Finding,
    Judge,
    Wanted,
    of_failure,
    own_trace,
)
from holdfast.testing.ledger import (
    EXECUTION,
    FINISHED,
    Effect,
    FileLedger,
    Line,
    effects_go_to,
    effects_of,
    read_journal,
)
from holdfast.testing.time_skipping import skipping_time
from holdfast.testing.wrapped_store import Crash, WrappedStore, kill_process, raise_crash
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
        is_graph = isinstance(self.given, (StateGraph, App, WorkflowFunction))
        return dataclasses.replace(self, given=self.ready()) if is_graph else self

    def ready(self) -> Ready:
        """Return the workflow, made again if a function makes it; not yet on a store of its own."""
        __tracebackhide__ = True
        if isinstance(self.given, Ready):
            return self.given
        made = self._made()
        config = dict(self.config or {})
        if isinstance(made, WorkflowFunction):
            return Ready(self._of_app(made.app), made.inputs_of(self.inputs), config)
        if isinstance(made, App):
            return Ready(self._of_app(made), self.inputs, config)
        if isinstance(made, StateGraph):
            durability = self.durability or (None if "policy" in self.options else "full")
            try:
                app = made.compile(MemoryStore(), **{"durability": durability, **self.options})
            except HoldfastError as error:
                # It is about the graph, not about where that is checked.
                raise error.with_traceback(None) from error.__cause__
            return Ready(app, self.inputs, config)
        app = made.open(MemoryStore(), durability=self.durability, **self.options)
        return Ready(app, made.begin(made.read_inputs(dict(self.inputs or {}))), {**made.config(), **config})

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
                "crash_everywhere takes a StateGraph, an App, a function under @workflow, a function that returns one "
                f"of these, or the path of a workflow file, not {type(given).__name__}"
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


def _is_workflow(given: Any) -> bool:
    """Return True for a graph, an app or a `Workflow`, without importing what only workflow files need."""
    return (
        isinstance(given, (StateGraph, App, WorkflowFunction))
        or type(given).__module__ == "holdfast.workflows.workflow"
    )


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
    """Schedule the cancellation of all tasks of the event loop that runs this frame, if there is one."""
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
    observed: list[Effect] = field(default_factory=list)
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
        journal = Journal(self._store, settings.journal.seal)
        graph = watched_graph(settings.graph, settings.outline, watch)
        # Nothing else of the app is another, but that it is not noted where it runs.
        self._app = App(dataclasses.replace(settings, journal=journal, graph=graph, facts=None))
        self._ready, self._codec = ready, settings.codec
        nodes = settings.graph.nodes.items()
        self._end.unwatched = [name for name, node in nodes if node.graph is None and not runs_here(node)]

    def run(self, wanted: Wanted | None) -> End:
        """Execute the run to its end, and judge it; a crash is let through."""
        known = self._store.runs(run=RUN)
        self._ledger.write(EXECUTION, "resumes" if known else "begins")
        if known:
            self._note_what_is_finished()
        is_skipped = not self._trial.skip_time or clock.loop_factory is not None
        execute = functools.partial(self._executed, known[0].status if known else "")
        with effects_go_to(self._ledger), contextlib.nullcontext() if is_skipped else skipping_time():
            try:
                state = (
                    execute()
                    if self._timeout is None
                    else within(self._timeout, execute, self._watch.give_up)
                )
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

    def _note_what_is_finished(self) -> None:
        """Write into the ledger what the journal holds as finished: acknowledged or not, it may not run again."""
        if not self._readable:
            return
        for _, record in read_journal(self._store.inner, RUN, self._codec).records:
            if isinstance(record, (StepFinished, StepAdvanced)):
                self._ledger.write(FINISHED, record.step)

    def _executed(self, status: str) -> Mapping[str, Any] | None:
        app: App[State] = self._app
        if status == RunStatus.COMPLETED:
            self._end.status = status
            return app.get_state(RUN)
        outcome: Outcome[State] | None = None
        if status:
            with contextlib.suppress(RunNotFound):
                outcome = self._resumed({})
        if outcome is None:
            outcome = app.invoke(self._ready.inputs, run_id=RUN, config=self._ready.config)
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

    def _resumed(self, answers: dict[str, Any]) -> Outcome:
        self._end.resumes += 1
        return self._app.resume(RUN, answers=answers, config=self._ready.config or None)

    def _answered(self, outcome: Outcome) -> dict[str, Any] | None:
        """The answers to all that the run waits for; `None`, with the reason, if one is missing."""
        found: dict[str, Any] = {}
        running_out: list[tuple[float, str]] = []
        for pause in outcome.pauses:
            if pause.kind in ("before", "after"):
                continue  # A plain resume passes the gate.
            self._end.asked += self._trial.answers.names_of(pause)
            known, value = self._trial.answers.find(pause)
            if not known and pause.kind in ABOUT_DOUBTS:
                known, value = True, self._decided(pause)
            if not known and pause.expires_at is not None and self._trial.skip_time:
                running_out.append((pause.expires_at.timestamp(), pause.name))
                continue
            if not known:
                self._end.status = "error"
                self._end.error, self._end.reason = str(self._trial.answers.missing(pause)), UNANSWERED
                return None
            self._end.questions += 1
            self._ledger.write(ANSWERED, pause.id)
            found[pause.id] = value
        if running_out and not found:  # Nobody answers: let time pass until the first question has run out.
            due, name = min(running_out)
            self._end.unanswered.append(name)
            clock.sleep(max(due - clock.time(), 0.0) + 0.001)
        return found

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
        end.observed = list(seen.effects)
        lines = self._ledger.lines()
        facts = (end.status, end.error, seen, wanted, self._codec, lines)
        end.findings = judge.findings(*facts, skipped=end.passed_over, reason=end.reason)
        if self._readable and self._app._settings.policy.saves_wave(0):
            end.findings += judge.of_journal(lines, self._store.inner, RUN, self._codec)
        if wanted is not None and end.status == RunStatus.COMPLETED:
            end.differing = [list(path) for path in wanted.differing(plain, self._codec)]


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


# Where a run under test is executed: in processes that are killed, or, fast, in this one.


StoreMaker = Callable[[Path], "Store | str"]

_NOT_IN_MEMORY = 'what is kept in memory dies with its process; use mode="fast", or another store'
_NAMED = {"sqlite": "sqlite:///{}/runs.db", "file": "file:///{}/runs"}


class Died(Exception):
    """An execution crashed where it was to."""


class Place:
    """One run under test with its store and its ledger, from one execution to the next."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = FileLedger(ledger, sync=False)

    def execute(self, trial: Trial, crash_at: Boundary | None, wanted: Wanted | None) -> End:
        """Execute the run once, and return how that ended. Raise `Died` if it crashed where it was to."""
        raise NotImplementedError

    def lines(self) -> list[Line]:
        """The ledger so far."""
        return self._ledger.lines()

    def leave(self) -> None:
        """End what programs of the killed processes are still at work."""


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


class FastPlace(Place):
    """A run executed in this process. A crash raises `Crash`; what its threads still do is refused."""

    def __init__(self, folder: Path, make_store: StoreMaker | None, timeout: float) -> None:
        super().__init__(folder.with_suffix(".ledger"))
        self._folder, self._make_store, self._timeout = folder, make_store, timeout
        self._store: Store | None = None

    def execute(self, trial: Trial, crash_at: Boundary | None, wanted: Wanted | None) -> End:
        __tracebackhide__ = True
        watch = Watch(self._ledger, crash_at, raise_crash)
        if self._store is None and self._make_store is not None:
            self._folder.mkdir(parents=True)
        if self._store is None:
            make = self._make_store
            self._store = MemoryStore() if make is None else _store_of(make(self._folder))
        execution = Execution(trial, self._ledger, self._store, watch, self._timeout)
        try:
            with contextlib.nullcontext() if wanted is None else _unheard():
                return execution.run(wanted)
        except Crash:
            if watch.is_late:
                return _late("run", self._timeout, wanted)
            raise Died from None


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Discard what an execution prints: the undisturbed one has printed it."""
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


class FolderPlace(Place):
    """A run executed in processes of their own, one after the other, that leave what they know in a folder."""

    def __init__(self, folder: Path, make_store: StoreMaker, start: str, timeout: float) -> None:
        folder.mkdir(parents=True)
        super().__init__(folder / "ledger")
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
        if refused := self._left("refused"):
            raise HoldfastError(refused)
        if code == 0 and (self._folder / "end").exists():
            end: End = pickle.loads((self._folder / "end").read_bytes())
            return end
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        text = f"the process ended with {how}" if code else "a body ended the process, with exit code 0"
        trouble = self._left("trouble") if code else ""
        return _troubled(trouble or f"{text}: {self._left('output')[-2000:]}", wanted)

    def _left(self, name: str) -> str:
        """The text that the process left under a name."""
        path = self._folder / name
        return path.read_text("utf-8", "replace") if path.exists() else ""

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
            ledger = FileLedger(self.folder / "ledger", sync=False)
            watch = Watch(ledger, self.crash_at, kill_process)
            end = Execution(self.trial, ledger, self._opened(), watch).run(self.wanted)
            (self.folder / "end").write_bytes(pickle.dumps(end))
        except BaseException as error:
            with contextlib.suppress(BaseException):
                (self.folder / "trouble").write_text(own_trace(error), "utf-8")
            raise

    def _opened(self) -> Store:
        made = self.make_store(self.folder)
        try:
            store = inner = _store_of(made)
            while isinstance(inner, WrappedStore):
                inner = inner.inner
            if is_in_memory(inner):
                raise HoldfastError(_NOT_IN_MEMORY)
        except HoldfastError as error:
            (self.folder / "refused").write_text(str(error), "utf-8")
            raise
        return store


def _store_of(made: Any) -> Store:
    __tracebackhide__ = True
    if isinstance(made, str) or (hasattr(made, "save") and not isinstance(made, type)):
        return open_store(made)
    if isinstance(made, type) or not callable(getattr(made, "commit", None)):
        raise HoldfastError(f"the function given as store has to return a store or its URL, not {made!r:.80}")
    return cast(Store, made)


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
