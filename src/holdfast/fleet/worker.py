"""A worker: it claims runs, executes many at once, and hands them over when it stops."""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
import logging
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from holdfast.engine.app import App
from holdfast.engine.blocking import new_loop
from holdfast.engine.loop import Execution
from holdfast.engine.retention import trim_history
from holdfast.errors import (
    CorruptJournal,
    ExecutionError,
    HoldfastError,
    Remedy,
    ResourceExhausted,
    RunConflict,
    RunFinished,
    RunNotFound,
    StoreError,
    UnknownWorkflow,
    problem_of,
)
from holdfast.events import Observer
from holdfast.fleet.catalog import Catalog, HasApp
from holdfast.fleet.claims import Claim, Claims, LocalClaims, PostgresClaims, Wanted
from holdfast.fleet.queues import is_postgres
from holdfast.fleet.schedules import Schedules, submitting
from holdfast.stores.base import Leases, Store
from holdfast.threads import in_background
from holdfast.values import RunStatus

logger = logging.getLogger("holdfast.fleet")

LOOK_EVERY = 0.5
"""The seconds between two looks for runs that nobody announced: those that are due, or orphaned."""

AGAIN_AFTER = 1.0
"""The seconds that a run rests that was claimed too early, could not be saved, or has another owner."""

SHORTAGES = 30
"""The claims, or executions, in a row that may lack descriptors, threads or memory before the worker ends."""

TICK = 1.0
"""The seconds between two looks at the schedules."""

TRIM_EVERY = 60.0
"""The seconds between two looks for runs that exceed the history."""

LAST_SECONDS = 10.0
"""The seconds that a worker waits, after its grace, for executions to save what they can."""


class History(NamedTuple):
    """How many ended runs of a store's queues are kept, and for how long; without a value, all of them."""

    runs: int | None = None
    max_age: dt.timedelta | None = None


class WorkerEvent(NamedTuple):
    """What a worker did with a run: `kind` is taken, conflict, refused, or the status of the run afterwards."""

    kind: str
    run: str
    workflow: str
    queue: str
    text: str = ""
    due_at: float | None = None
    remedies: tuple[Remedy, ...] = ()
    """What can be done about a run that failed or was refused."""


class Worker:
    """A worker that executes the runs of a store's queues, up to `concurrency` at once, until it is stopped.

    Any number of workers may share a store, each in a process of its own, on any machine that reaches it. A run has
    one owner at a time: the journal refuses a second one. The runs of a worker that dies are executed by another
    when its lease has run out.

    `catalog` has the graphs that it knows; a few apps or functions suffice, and `Worker([report])` works on the store
    of these. `idle_timeout` is how long a run that only waits is
    kept; `grace` how long steps may take to finish when the worker is stopped, before another worker runs them
    again; `history` which runs that have ended it keeps. A worker that cannot reach its store retries; one whose
    process has no more descriptors, threads or memory ends after a while, with `ResourceExhausted`, so that another
    can be started.
    """

    def __init__(
        self,
        store: Store | Iterable[App | HasApp],
        catalog: Catalog | Iterable[App | HasApp] | None = None,
        *,
        concurrency: int = 10,
        queues: tuple[str, ...] = (),
        idle_timeout: float = 1.0,
        grace: float = 30.0,
        history: History | None = None,
        observer: Observer | None = None,
        tell: Callable[[WorkerEvent], None] | None = None,
    ) -> None:
        if concurrency < 1:
            raise HoldfastError(f"a worker executes at least one run at once, not {concurrency!r}")
        if history is not None and history.runs is not None and history.runs < 0:
            raise HoldfastError(f"a history has at least 0 runs, not {history.runs!r}")
        self._history = history
        store, catalog = _place_of(store, catalog)
        known = catalog if isinstance(catalog, Catalog) else Catalog(catalog)
        self._store, self._catalog, self._concurrency = store, known, concurrency
        self._idle_timeout, self._grace, self._observer, self._tell = idle_timeout, grace, observer, tell
        wanted = Wanted(queues, known.workflows)
        self.claims: Claims = (
            PostgresClaims(store, wanted) if is_postgres(store) else LocalClaims(store, wanted)
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._executions: dict[str, Execution] = {}
        self._asides: set[asyncio.Future[None]] = set()
        self._shortages: Counter[str] = Counter()
        self._lacks: Exception | None = None
        self._stopping = threading.Event()
        self._at_once = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None

    def run(self, *, until_idle: bool = False) -> None:
        """Work until `stop`, SIGTERM or Ctrl+C; with `until_idle` also until there is nothing left to do."""
        with self._signals(), new_loop() as runner:
            runner.run(self.arun(until_idle=until_idle))

    def stop(self, *, at_once: bool = False) -> None:
        """Claim no more runs, let steps finish within the grace (not `at_once`), hand the runs over, and end.

        May be called from any thread.
        """
        self._at_once = self._at_once or at_once
        self._stopping.set()
        self._nudge()

    def look(self) -> None:
        """Look for runs at once, instead of a little later. May be called from any thread."""
        self._nudge()

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopping.is_set()

    async def arun(self, *, until_idle: bool = False) -> None:
        """Work as `run` does, in the running event loop and without handling signals."""
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        if isinstance(self._store, Leases):
            await in_background(self._store.lease)
        unsubscribe = self.claims.on_change(self._nudge)
        duties = [self._submit_scheduled()] if is_postgres(self._store) else []
        if self._history is not None:
            duties.append(self._trim_history(self._history))
        tasks = [self._loop.create_task(duty) for duty in duties]
        try:
            while not self._stopping.is_set():
                found = await self._claim()
                for claim in found:
                    self._begin(claim)
                if until_idle and not self._tasks and not found and await self._is_idle():
                    break
                if not found:
                    await self._rest()
            await self._drain()
            if self._history is not None:
                await self._trim(self._history)
            if self._asides:
                await asyncio.wait(self._asides)
            if self._lacks is not None:
                raise ResourceExhausted(
                    f"the worker ends, as {SHORTAGES} times in a row its process lacked what it needs "
                    f"({self._lacks}); its runs are left to others"
                ) from self._lacks
        finally:
            for task in tasks:
                task.cancel()
            unsubscribe()
            self._loop = None

    async def _submit_scheduled(self) -> None:
        """Submit what is scheduled, when it is due, until the worker stops."""
        schedules, submit = Schedules(self._store), submitting(self._store, self._catalog)
        while not self._stopping.is_set():
            try:
                await in_background(schedules.tick, submit, self._catalog.workflows)
            except StoreError as error:
                logger.warning("nothing can be scheduled: %s", error)
            await asyncio.sleep(TICK)

    async def _trim_history(self, history: History) -> None:
        """Delete the runs that exceed the history, now and again, until the worker stops."""
        while not self._stopping.is_set():
            await self._trim(history)
            await asyncio.sleep(TRIM_EVERY)

    async def _trim(self, history: History) -> None:
        try:
            gone = await in_background(trim_history, self._store, history.runs, history.max_age)
            if gone:
                logger.info("deleted %d ended runs", gone)
        except HoldfastError as error:
            logger.warning("the history cannot be trimmed: %s", error)

    async def _claim(self) -> list[Claim]:
        room = self._concurrency - len(self._tasks)
        if room <= 0:
            return []
        try:
            found = await in_background(self.claims.claim, room, frozenset(self._tasks))
        except (StoreError, OSError, MemoryError) as error:
            logger.warning("no runs can be claimed: %s", error)
            self._count_shortage("claims", error)
            await self._rest(AGAIN_AFTER)
            return []
        self._shortages["claims"] = 0
        return found

    def _count_shortage(self, what: str, error: Exception) -> None:
        """Count a failure for lack of resources; stop the worker after too many in a row."""
        self._shortages[what] = self._shortages[what] + 1 if _is_shortage(error) else 0
        if self._shortages[what] >= SHORTAGES:
            self._lacks = error
            self.stop()

    async def _is_idle(self) -> bool:
        try:
            return await in_background(self.claims.count_waiting, AGAIN_AFTER) == 0
        except (StoreError, OSError, MemoryError):
            return False

    async def _rest(self, seconds: float = LOOK_EVERY) -> None:
        """Wait for a nudge, at most `seconds`, more or less: workers that look at the same time clash."""
        assert self._wake is not None
        try:
            async with asyncio.timeout(seconds * random.uniform(0.8, 1.2)):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _nudge(self) -> None:
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None and not loop.is_closed():
            loop.call_soon_threadsafe(wake.set)

    def _begin(self, claim: Claim) -> None:
        def end(_: asyncio.Task[None]) -> None:
            self._tasks.pop(claim.run, None)
            self._executions.pop(claim.run, None)
            self._nudge()

        task = asyncio.get_running_loop().create_task(self._execute(claim), name=f"holdfast {claim.run}")
        self._tasks[claim.run] = task
        task.add_done_callback(end)

    async def _execute(self, claim: Claim) -> None:
        """Execute a run and release its claim; count a strike against a run that cannot be executed."""
        rest, strike = AGAIN_AFTER, ""
        try:
            rest = await self._load_and_execute(claim)
        except (RunConflict, RunFinished, RunNotFound) as error:
            self._say("conflict", claim, error)
        except UnknownWorkflow as error:
            rest = 0.0
            logger.warning("runs of workflow %r are left to others: %s", claim.workflow, error)
            self.claims.avoid(claim.workflow)
        except Exception as error:
            is_damaged = isinstance(error, CorruptJournal)
            if not is_damaged and (isinstance(error, StoreError) or _is_shortage(error)):
                logger.warning("run %s is left for now: %s", claim.run, error)
                self._count_shortage("executions", error)
            elif not is_damaged and isinstance(error, HoldfastError):
                # Another version of the graph, a missing key or package: another worker may be able to.
                self.claims.leave(claim.run)
                self._say("refused", claim, error)
            else:
                if not is_damaged:
                    logger.exception("run %s cannot be executed", claim.run)
                strike = f"{type(error).__name__}: {problem_of(error)}"
                self._say("refused", claim, error)
        finally:
            self._executions.pop(claim.run, None)
        settle = (
            partial(self.claims.strike, claim.run, strike)
            if strike
            else partial(self.claims.release, claim.run, rest)
        )
        try:
            await in_background(settle)
        except StoreError as error:
            logger.warning(
                "run %s: its claim runs out by itself, it cannot be given back: %s", claim.run, error
            )

    async def _load_and_execute(self, claim: Claim) -> float:
        """Execute a run as far as it goes; return how long it is to rest before it is claimed again."""
        run = claim.run
        app, announcer = await in_background(self._catalog.of_run, self._store, run, claim.workflow)
        if self._stopping.is_set():
            return 0.0
        self._say("taken", claim, claim.why)
        is_new = False
        if announcer is not None and claim.why == "queued":
            is_new = len(await in_background(self._store.checkpoints, run, limit=2)) < 2

        def hold(execution: Execution) -> None:
            self._executions[run] = execution
            if self._stopping.is_set():
                self._ask_to_leave(execution)
            if is_new and announcer is not None:
                task = asyncio.get_running_loop().create_task(in_background(_guarded(announcer.started), run))
                self._asides.add(task)
                task.add_done_callback(self._asides.discard)

        due_at, rest, problem = None, 0.0, ""
        try:
            outcome = await app.aexecute(
                run, idle_timeout=self._idle_timeout, observer=self._observer, hold=hold
            )
        except ExecutionError as error:
            if isinstance(error.cause, StoreError):
                raise error.cause from error.cause.__cause__  # Nothing says yet that it failed.
            status, problem = "failed", problem_of(error)
            self._say(status, claim, error)
        else:
            status = str(outcome.status)
            if status != RunStatus.COMPLETED:
                facts = await in_background(self._store.runs, run=run)
                due_at = facts[0].due_at if facts else None
            rest = AGAIN_AFTER if outcome.stats.steps_run == 0 and due_at is not None else 0.0
            self._say(status, claim, ", ".join(pause.name or pause.node for pause in outcome.pauses), due_at)
        if announcer is not None:
            await in_background(_guarded(announcer.ended), run, status, problem)
        self._shortages["executions"] = 0
        return rest

    def _ask_to_leave(self, execution: Execution) -> None:
        if self._at_once:
            execution.request_stop(RunStatus.QUEUED, "the worker stops")
        else:
            execution.request_pause("the worker stops", RunStatus.QUEUED)

    async def _drain(self) -> None:
        """Let executions finish within the grace period, then release the rest to other workers."""
        for execution in list(self._executions.values()):
            self._ask_to_leave(execution)
        if not self._at_once:
            await self._until_all_left(self._grace)
        self._at_once = True
        for execution in list(self._executions.values()):
            self._ask_to_leave(execution)
        await self._until_all_left(LAST_SECONDS)
        if self._tasks:
            # They wait for a store that does not answer, and would go on doing so.
            logger.warning("%d runs are left as they are, as the store does not answer", len(self._tasks))
            self._store.close()
        for task in self._tasks.values():
            task.cancel()

    async def _until_all_left(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        was_at_once = self._at_once
        while self._tasks and loop.time() < deadline and self._at_once == was_at_once:
            await asyncio.wait(self._tasks.values(), timeout=min(0.2, max(0.0, deadline - loop.time())))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop the worker on SIGTERM and Ctrl+C; at once on the second."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(number: int, frame: Any) -> None:
            self.stop(at_once=self._stopping.is_set())

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _say(self, kind: str, claim: Claim, what: str | Exception = "", due_at: float | None = None) -> None:
        """Report what became of a run. An error in `tell` does not lose the run's claim."""
        if self._tell is None:
            return
        text = problem_of(what) if isinstance(what, Exception) else what
        remedies = what.remedies if isinstance(what, HoldfastError) else ()
        try:
            self._tell(WorkerEvent(kind, claim.run, claim.workflow, claim.queue, text, due_at, remedies))
        except BrokenPipeError:
            logger.warning("nobody reads what this worker reports: it stops")
            self._tell = None
            self.stop()
        except Exception:
            logger.exception("reporting on run %s failed", claim.run)


_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def _place_of(store: Any, catalog: Any) -> tuple[Store, Catalog | list[App | HasApp]]:
    """Return the store that a worker works on, and what it knows; without a store, that of what it knows."""
    if isinstance(store, str):
        raise HoldfastError(f"a worker is given a store, not {store!r}; open it with open_store({store!r})")
    if catalog is not None:
        return store, catalog if isinstance(catalog, Catalog) else list(catalog)
    known = list(store)
    stores = {each.app.store.url: each.app.store for each in known}
    if len(stores) != 1:
        found = ", ".join(map(repr, stores)) or "none"
        raise HoldfastError(
            f"a worker works on one store, and its workflows have {found}; give it: Worker(store, …)"
        )
    return next(iter(stores.values())), known


def _is_shortage(error: BaseException) -> bool:
    """Return whether something failed because this process has no more descriptors, threads or memory."""
    chain = [error]
    for cause in chain:
        if isinstance(cause, (ResourceExhausted, MemoryError)):
            return True
        if isinstance(cause, OSError) and cause.errno in _SHORT:
            return True
        causes = (cause.__cause__, cause.__context__)
        chain += [each for each in causes if each is not None and each not in chain]
    try:  # Libraries in C do not say why they cannot open anything.
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as reason:
        return reason.errno in _SHORT
    return False


def _guarded(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a function that logs what goes wrong in a hook."""

    def call(run: str, *facts: str) -> None:
        try:
            hook(run, *facts)
        except Exception:
            logger.exception("a hook of run %s failed", run)

    return call
