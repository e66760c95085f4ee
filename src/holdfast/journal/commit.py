"""Group commit: the appends of many runs share transactions and syncs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from holdfast.errors import RunConflict, RunExists, StoreError
from holdfast.stores.base import Append, Conflict, Store

logger = logging.getLogger("holdfast")

Result = TypeVar("Result")


class Appender(Protocol):
    """Whoever has something to append: a run's `Writer`."""

    lock: threading.RLock

    def build(self) -> Append: ...
    def settle(self, conflict: Conflict | None) -> None: ...
    def adopt(self, conflict: Conflict) -> bool: ...


class Pool(Protocol):
    """Where commits are made that must not block an event loop: one thread."""

    def submit(self, function: Callable[..., Any], /, *args: Any) -> object: ...


@dataclass(slots=True)
class _Job:
    writer: Appender
    done: bool = False
    error: BaseException | None = None
    future: Any = None


class Committer:
    """Group commit: while one transaction syncs, the appends of other runs gather for the next."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store) if hasattr(store, "__weakref__") else lambda: store
        self.reset()

    def reset(self) -> None:
        """Begin anew: a forked child has neither its parent's threads nor what they hold."""
        self._queue: list[_Job] = []
        self._mutex = threading.Lock()
        self._leader = threading.Lock()
        self._scheduled: set[Any] = set()
        self._pool: Pool | None = None

    def work_in(self, pool: Pool) -> None:
        """Commit, for event loops, in a pool of one thread that is given."""
        self._pool = pool

    def commit(self, writer: Appender) -> None:
        """Store a writer's records from this thread, with whatever else is waiting."""
        if self._leader.acquire(False):
            try:
                if not self._queue:
                    with writer.lock:
                        self._store_one(writer)
                    return
            finally:
                self._leader.release()
        job = _Job(writer)
        with self._mutex:
            self._queue.append(job)
        self._lead(job)
        if job.error is not None:
            raise job.error

    def _store_one(self, writer: Appender) -> None:
        append = writer.build()
        if append.entries:
            (conflict,) = self._open_store().commit((append,))
            if conflict is not None:
                conflict = self._commit_rest(writer, conflict)
            writer.settle(conflict)

    def _commit_rest(self, writer: Appender, conflict: Conflict) -> Conflict | None:
        """If the conflict is with the writer's own earlier commit, commit what that one lacked."""
        if not writer.adopt(conflict):
            return conflict
        rest = writer.build()
        return self._open_store().commit((rest,))[0] if rest.entries or rest.info else None

    def _open_store(self) -> Store:
        store = self._store()
        if store is None:
            raise StoreError("the store is gone")
        return store

    async def commit_async(self, writer: Appender) -> None:
        """Store a writer's records without blocking the event loop."""
        loop = asyncio.get_running_loop()
        job = _Job(writer, future=loop.create_future())
        with self._mutex:
            self._queue.append(job)
        if loop not in self._scheduled:
            self._scheduled.add(loop)
            # After the callbacks that are ready now: their runs' appends join this commit.
            loop.call_soon(self._send, loop)
        await settled(job.future)

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled.discard(loop)
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="holdfast-commit")
        self._pool.submit(self._lead, None)

    def _lead(self, own: _Job | None) -> None:
        with self._leader:
            if own is not None and own.done:
                return
            with self._mutex:
                batch, self._queue = self._queue, []
            if batch:
                self._run(batch)

    def _run(self, batch: Sequence[_Job]) -> None:
        jobs = _first_per_writer(batch)
        for job in jobs:
            job.writer.lock.acquire()
        try:
            self._store_all(jobs)
        except BaseException as error:  # Whatever a store raises: those who wait for it must hear of it.
            for job in jobs:
                job.error = job.error or error
        finally:
            for job in jobs:
                job.writer.lock.release()
        errors = {id(job.writer): job.error for job in jobs}
        loops: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
        for job in batch:
            job.error = errors[id(job.writer)]
            job.done = True
            if job.future is not None:
                loops.setdefault(job.future.get_loop(), []).append(job)
        for loop, waiting in loops.items():
            _call(loop, waiting)

    def _store_all(self, jobs: Sequence[_Job]) -> None:
        ready: list[tuple[_Job, Append]] = []
        for job in jobs:
            try:
                append = job.writer.build()
            except Exception as error:
                job.error = error
                continue
            if append.entries:
                ready.append((job, append))
        if not ready:
            return
        try:
            answers = self._open_store().commit([append for _, append in ready])
        except StoreError as error:
            for job, _ in ready:
                job.error = error
            return
        for (job, _), conflict in zip(ready, answers, strict=True):
            try:
                if conflict is not None:
                    conflict = self._commit_rest(job.writer, conflict)
                job.writer.settle(conflict)
            except (RunConflict, RunExists, StoreError) as error:
                job.error = error


async def settled(future: asyncio.Future[Result]) -> Result:
    """Return what a future comes to. A task that is cancelled meanwhile is cancelled once the future is done.

    For work in a thread, which cannot be stopped: whoever cancels may rely on it that nothing is still under way.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return future.result()
    if not future.cancelled():
        future.exception()  # Nobody else looks at it.
    raise cancelled


def _first_per_writer(batch: Sequence[_Job]) -> list[_Job]:
    if len(batch) == 1:
        return list(batch)
    return list({id(job.writer): job for job in batch}.values())


def _call(loop: asyncio.AbstractEventLoop, jobs: list[_Job]) -> None:
    try:
        loop.call_soon_threadsafe(_answer, jobs)
    except RuntimeError:
        logger.warning("an event loop was closed while %d appends were stored", len(jobs))


def _answer(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(None)


_committers: weakref.WeakKeyDictionary[Any, Committer] = weakref.WeakKeyDictionary()
_committers_lock = threading.Lock()


def _reset_after_fork() -> None:
    global _committers_lock
    _committers_lock = threading.Lock()
    for committer in list(_committers.values()):
        committer.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def committer_of(store: Store) -> Committer:
    """The one committer of a store, shared by every journal on it."""
    with _committers_lock:
        committer = _committers.get(store)
        if committer is None:
            committer = _committers[store] = Committer(store)
        return committer
