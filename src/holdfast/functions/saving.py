"""Saving while a workflow's function runs: the intent of a step and all that was finished before it in one commit."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from holdfast.engine.loop import Execution
from holdfast.errors import ExecutionError, HoldfastError, RunConflict, StoreError
from holdfast.journal.run_state import Step
from holdfast.threads import in_background

logger = logging.getLogger("holdfast")

SOON = 0.01
"""Seconds after which a finished step is stored, if its function has called no other step by then."""


class BodySaving:
    """What one function has recorded, on its way to the store.

    A step begins once its intent is stored; the results of the steps before it are stored with that. If no step begins
    soon, they are stored without. `refuse` leaves the function with an error.
    """

    def __init__(self, host: Execution, path: str, refuse: Callable[[BaseException], NoReturn]) -> None:
        self._host, self._path, self._refuse = host, path, refuse
        self._finished: list[str] = []
        """The nodes of the steps that finished since the last checkpoint."""
        self._unsealed: list[str] = []
        """The nodes of a checkpoint that is not due yet: what is recorded meanwhile becomes a part of it."""
        self._upcoming: list[str] = []
        """The nodes of the steps that begin once it is stored."""
        self._waiting: list[asyncio.Future[None]] = []
        self._lock = threading.RLock()

    def finished(self, step: Step) -> None:
        """Have a finished step stored soon, or with the next one."""
        self._finished.append(step.node)
        _late.add(self)

    def _mark(self) -> None:
        (nodes, self._finished), (upcoming, self._upcoming) = (self._finished, []), (self._upcoming, [])
        self._unsealed += nodes
        frame = self._host.run.frames.get(self._path)
        if self._unsealed and frame is not None:
            found = self._unsealed if len(self._unsealed) == 1 else list(dict.fromkeys(self._unsealed))
            self._host.saving.mark(frame, found, upcoming)

    def _seal(self) -> None:
        """Make a checkpoint of exactly what is recorded: other threads and tasks record on until it is stored.

        If another function has saved all of that meanwhile, the next checkpoint of this one tells of it.
        """
        if not self._host.saving.writer.has_pending:
            self._upcoming = []
            return
        self._mark()
        if self._host.saving._is_due():
            self._host.saving.writer.seal_part()
            self._unsealed = []

    def save(self, step: Step | None = None) -> None:
        """Store what was recorded, and what is about to begin; an error of that is not the step's."""
        _late.discard(self)
        try:
            with self._lock: self._save(step)  # fmt: skip  # noqa: E701
        except HoldfastError as error:
            self._refuse(error)

    def _save(self, step: Step | None) -> None:
        with self._host.storing():
            if step is not None:
                self._upcoming.append(step.node)
            with self._host.saving.writer.lock: self._seal()  # fmt: skip  # noqa: E701
            self._host.saving.save_here()

    async def save_async(self, step: Step | None = None) -> None:
        """As `save`, once for all steps that begin in the same turn of the event loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._host._loop:
            self.save(step)
            return
        if step is not None:
            self._upcoming.append(step.node)
        waiter = loop.create_future()
        loop.call_soon(self._save_soon)
        self._waiting.append(waiter)
        await waiter

    def _save_soon(self) -> None:
        """Save for all who wait by now: the first of them had this called, and the others find that it was done."""
        if not self._waiting:
            return
        waiting = self._waiting
        try:
            self._waiting = []
            self._save_for(waiting)
        except BaseException as error:  # Of a signal handler: nobody else is going to answer them.
            _settle(waiting, error)
            raise

    def _save_for(self, waiting: list[asyncio.Future[None]]) -> None:
        if self._host.private:
            try:
                self.save()
            except BaseException as error:
                _settle(waiting, error)
            else:
                _settle(waiting)
            return
        assert self._host._loop is not None
        name = f"{self._path}:save"
        refusals: list[BaseException] = []
        task = self._host._loop.create_task(self._save_beside(refusals))
        task.add_done_callback(lambda done: _settle(waiting, _error_of(done, refusals)))
        task.add_done_callback(lambda _: self._host._tasks.pop(name, None))
        self._host._tasks[name] = task

    async def _save_beside(self, refusals: list[BaseException]) -> None:
        """Save without blocking the event loop; note what went wrong."""
        _late.discard(self)
        try:
            with self._host.storing():
                with self._host.saving.writer.lock: self._seal()  # fmt: skip  # noqa: E701
                await self._host.saving.save()
        except (ExecutionError, RunConflict, StoreError) as error:
            with suppress(HoldfastError):
                self._refuse(error)
            refusals.append(error)

    def save_late(self) -> None:
        """Store finished steps that no other followed, from a thread beside the function."""
        host = self._host
        if host.has_left_run or not host.saving.saves_every_wave:
            return
        try:
            self.save()
        except BaseException as error:
            if not host.has_left_run:
                logger.warning("run %s: finished steps could not be stored: %s", host.run_id, error)

    def refuse_taken_over(self) -> None:
        """Leave the function if another process has taken the run over."""
        if not self._host.lease.is_possible:
            return
        try:
            with self._host.storing():
                self._host.lease.refuse()
        except HoldfastError as error:
            self._refuse(error)

    async def refuse_taken_over_async(self) -> None:
        """As `refuse_taken_over`, without blocking an event loop that others share."""
        if self._host.lease.is_possible:
            await in_background(self.refuse_taken_over)

    def mark_end(self) -> None:
        """Make what was finished last a checkpoint."""
        self._mark()

    def mark_stop(self) -> None:
        """Bring a checkpoint that is not stored yet up to where the function was left."""
        if self._unsealed:
            self._mark()

    def close(self) -> None:
        """Have nothing more stored from beside the function."""
        _late.discard(self)


def _error_of(done: asyncio.Task[None], refusals: list[BaseException]) -> BaseException | None:
    """Return why nothing was saved; an interrupted save has saved nothing."""
    if done.cancelled() or done.exception():
        return asyncio.CancelledError()
    return refusals[0] if refusals else None


def _settle(waiting: list[asyncio.Future[None]], error: BaseException | None = None) -> None:
    try:
        for waiter in waiting:
            _settle_one(waiter, error)
    except BaseException as interruption:  # Of a signal handler.
        for waiter in waiting:
            _settle_one(waiter, error or interruption)
        raise


def _settle_one(waiter: asyncio.Future[None], error: BaseException | None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)


class _Late:
    """A thread that stores what functions have finished and no step follows. It rests while there is nothing."""

    def __init__(self) -> None:
        self._due: dict[BodySaving, float] = {}
        self._wake, self._rests = threading.Event(), False
        self._thread: threading.Thread | None = None

    def add(self, saving: BodySaving) -> None:
        """Have something stored soon."""
        self._due[saving] = time.monotonic() + SOON
        if self._thread is None or not self._thread.is_alive():  # A forked child has none.
            self._thread = threading.Thread(target=self._work, name="holdfast-late", daemon=True)
            self._thread.start()
        elif self._rests:
            self._wake.set()

    def discard(self, saving: BodySaving) -> None:
        """It was stored."""
        self._due.pop(saving, None)

    def _work(self) -> None:
        while True:
            if not self._due:
                self._rests = True
                if not self._due:
                    self._wake.wait()
                self._wake.clear()
                self._rests = False
            time.sleep(SOON)
            now = time.monotonic()
            for saving, due in list(self._due.items()):
                if due <= now and self._due.pop(saving, None) is not None:  # Else it was stored meanwhile.
                    saving.save_late()


_late = _Late()
