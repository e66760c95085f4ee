"""Group commit: the appends of many runs share transactions and syncs."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from holdfast.errors import HoldfastError, RunConflict, RunExists, StoreError
from holdfast.stores.base import Append, Conflict, Message, Store, inboxes
from holdfast.threads import in_background, locked, settled, started, warn_of_blocking

logger = logging.getLogger("holdfast")


class Appender(Protocol):
    """Something with entries to append: a run's `Writer`."""

    def build(self) -> Append: ...
    def settle(self, append: Append, conflict: Conflict | None) -> None: ...
    def recognise(self, conflict: Conflict) -> bool: ...


class Pool(Protocol):
    """Where commits are made that must not block an event loop, in place of threads."""

    def submit(self, function: Callable[..., Any], /, *args: Any) -> object: ...


@dataclass(slots=True)
class _Job:
    writer: Appender
    done: bool = False
    error: BaseException | None = None
    future: Any = None


class Committer:
    """Group commit: while one transaction syncs, the appends of other runs gather for the next.

    Jobs stay in the queue until they are answered. A leader that is interrupted leaves those that wait in threads of
    their own to lead themselves, and gives those that wait in event loops its error: nobody waits for ever. To
    commit a writer once more is harmless: it knows again what it has stored.
    """

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store) if hasattr(store, "__weakref__") else lambda: store
        self.reset()

    def reset(self) -> None:
        """Begin again: a forked child has neither its parent's threads nor what they hold."""
        self._queue: list[_Job] = []
        self._leader = threading.Lock()
        self._alone: Appender | None = None
        self._scheduled: set[Any] = set()
        self._pool: Pool | None = None

    def work_in(self, pool: Pool) -> None:
        """Commit, for event loops, in what is given, in place of threads."""
        self._pool = pool

    def commit(self, writer: Appender) -> None:
        """Store a writer's records from this thread, with whatever else is waiting."""
        if not self._leader.locked():
            with self._leader: is_stored = self._stored_alone(writer)  # fmt: skip  # noqa: E701
            if is_stored:
                return
        job = _Job(writer)
        self._queue.append(job)
        while not job.done:
            self._lead(job)
        if job.error is not None:
            raise job.error

    def is_storing(self, writer: Appender) -> bool:
        """Return whether a commit of a writer's records is, or may be, under way."""
        return self._alone is writer or any(job.writer is writer for job in list(self._queue))

    def wait(self) -> None:
        """Wait until the commit that is under way, if there is one, is done."""
        locked(self._leader, lambda: None)

    def _stored_alone(self, writer: Appender) -> bool:
        """Store a writer's records, unless others are waiting, too."""
        if self._queue:
            return False
        self._alone = writer
        append = writer.build()
        if append.entries:
            try:
                (conflict,) = self._open_store().commit((append,))
            except (HoldfastError, MemoryError):
                raise
            except Exception as error:
                raise _failure(error) from error
            if conflict is not None:
                append, conflict = self._commit_rest(writer, append, conflict)
            writer.settle(append, conflict)
        self._alone = None
        return True

    def _commit_rest(
        self, writer: Appender, append: Append, conflict: Conflict
    ) -> tuple[Append, Conflict | None]:
        """If the conflict is with the writer's own earlier commit, commit what that one lacked."""
        if not writer.recognise(conflict):
            return append, conflict
        rest = writer.build()
        return rest, self._open_store().commit((rest,))[0] if rest.entries or rest.info else None

    def _open_store(self) -> Store:
        store = self._store()
        if store is None:
            raise StoreError("the store is gone")
        return store

    async def commit_async(self, writer: Appender) -> None:
        """Store a writer's records without blocking the event loop."""
        loop = asyncio.get_running_loop()
        job = _Job(writer, future=loop.create_future())
        self._queue.append(job)
        if loop not in self._scheduled:
            # After the callbacks that are ready now: their runs' appends join this commit.
            loop.call_soon(self._send, loop)
            self._scheduled.add(loop)
        try:
            await asyncio.wait((job.future,))
        except asyncio.CancelledError:
            if not job.done:
                loop.call_soon(self._send, loop)  # The one that was to send it may have been interrupted.
                await settled(job.future)
            raise
        job.future.result()

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._scheduled.discard(loop)
            if self._pool is not None:
                self._pool.submit(self._lead, None)
                return
            try:
                started(threading.Thread(target=_Errand(self), name="holdfast-commit"))
            except (RuntimeError, MemoryError) as error:
                # There can be no more threads: better late than never.
                warn_of_blocking(error)
                self._lead(None)
        except BaseException as error:
            self._scheduled.discard(loop)
            _give_up(self.waiting(), error)
            raise

    def _lead(self, own: _Job | None) -> None:
        locked(self._leader, self._led, own)

    def _led(self, own: _Job | None) -> None:
        try:
            if own is None or not own.done:
                batch = list(self._queue)
                self._run([job for job in batch if not job.done])
                del self._queue[: len(batch)]
        except BaseException as error:
            _give_up(self.waiting(), error)
            raise

    def waiting(self) -> list[_Job]:
        """Return the jobs that wait in event loops."""
        return [job for job in list(self._queue) if job.future is not None]

    def _run(self, batch: Sequence[_Job]) -> None:
        jobs = list({id(job.writer): job for job in batch}.values())
        try:
            self._store_all(jobs)
        except Exception as error:
            for job in jobs:
                job.error = job.error or error
        errors = {id(job.writer): job.error for job in jobs}
        for job in batch:
            job.error = errors[id(job.writer)]
            job.done = True
        _tell([job for job in batch if job.future is not None])

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
        except Exception as error:  # Whatever a store raises: those who wait for it must hear of it.
            for job, _ in ready:
                job.error = _failure(error)
            return
        for (job, append), conflict in zip(ready, answers, strict=True):
            try:
                if conflict is not None:
                    append, conflict = self._commit_rest(job.writer, append, conflict)
                job.writer.settle(append, conflict)
            except (RunConflict, RunExists, StoreError) as error:
                job.error = error


def _failure(error: Exception) -> Exception:
    """Return why a commit failed, as a `StoreError`: stores of others raise what they like."""
    if isinstance(error, (HoldfastError, MemoryError)):
        return error
    text = " ".join(filter(None, [f"{type(error).__name__}:", str(error)])).removesuffix(":")
    failure = StoreError(text, raised=error)
    failure.__cause__ = error
    return failure


class _Errand:
    """The work of a committing thread. If the thread is ended before it is done, those who wait get an error."""

    def __init__(self, committer: Committer) -> None:
        self._committer, self._jobs = committer, committer.waiting()

    def __call__(self) -> None:
        # Those who wait get the error, here or at the latest when this errand is gone.
        with suppress(BaseException):
            self._committer._lead(None)
            self._jobs = []

    def __del__(self) -> None:
        left = [job for job in self._jobs if not job.future.done()]
        if left:
            _give_up(left, StoreError("the thread that commits was ended from outside"))


def _give_up(jobs: Sequence[_Job], error: BaseException) -> None:
    """Give an error to jobs that wait in event loops: nobody else is going to answer them.

    What was meant for the thread that commits, such as Ctrl+C, is not passed on: their commit just failed.
    """
    if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)):
        cause, error = error, StoreError(f"a commit was interrupted by {type(error).__name__}")
        error.__cause__ = cause
    for job in jobs:
        if not job.done:
            job.error, job.done = error, True
    _tell(jobs)


def _tell(jobs: Sequence[_Job]) -> None:
    """Answer those that wait in event loops, each in its own."""
    loops: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in jobs:
        loops.setdefault(job.future.get_loop(), []).append(job)
    for loop, waiting in loops.items():
        try:
            loop.call_soon_threadsafe(_answer, waiting)
        except RuntimeError:
            logger.warning("an event loop was closed while %d appends were stored", len(waiting))


def _answer(jobs: list[_Job]) -> None:
    try:
        for job in jobs:
            _answer_one(job, job.error)
    except BaseException as error:
        for job in jobs:
            _answer_one(job, job.error or error)
        raise


def _answer_one(job: _Job, error: BaseException | None) -> None:
    if job.future.done():
        return
    if error is not None:
        job.future.set_exception(error)
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
    """Return the one committer of a store, shared by every journal on it."""
    found = _committers.get(store)
    return found or locked(_committers_lock, _committers.setdefault, store, Committer(store))


# Group look: the inboxes of many runs are read in one question.


_Asked = list[tuple[str, int, asyncio.Future[list[Message]]]]


class Inboxes:
    """Reads inboxes without blocking an event loop; those that are asked for in one turn of it are read together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked: dict[asyncio.AbstractEventLoop, _Asked] = {}

    async def look(self, run: str, after: int) -> list[Message]:
        """Return the messages of a run after number `after`; maybe some more, if others have asked for those."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Message]] = loop.create_future()
        asked = self._asked.get(loop)
        if asked is None:
            asked = []
            # After the callbacks that are ready now: what their runs ask for joins this question.
            loop.call_soon(self._send, loop, asked)
            self._asked[loop] = asked
        asked.append((run, after, future))
        return await future

    def _send(self, loop: asyncio.AbstractEventLoop, asked: _Asked) -> None:
        try:
            self._asked.pop(loop, None)
            wanted: dict[str, int] = {}
            for run, after, _ in asked:
                wanted[run] = min(after, wanted.get(run, after))
            reading = loop.create_task(in_background(inboxes, self._store, wanted))
            reading.add_done_callback(partial(_answer_looks, asked))
        except BaseException as error:  # The loop is about to end, or something came in between.
            for _, _, future in asked:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, RuntimeError):
                raise


def _answer_looks(asked: _Asked, reading: asyncio.Future[dict[str, list[Message]]]) -> None:
    error = None if reading.cancelled() else reading.exception()
    for run, _, future in asked:
        if future.done():
            continue
        if reading.cancelled():
            future.cancel()
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(reading.result().get(run, []))
