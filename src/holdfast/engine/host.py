"""`StepHost`: the part of an execution that its steps talk to: notes, spending, deadlines, stopping."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.engine.commands.inbox import Inbox
from holdfast.engine.once import Policy, StopSignal
from holdfast.engine.owner import LeaseCheck
from holdfast.engine.results import graph_of
from holdfast.engine.saving import Saving
from holdfast.engine.settings import Settings
from holdfast.errors import ExecutionError, RunConflict, StoreError
from holdfast.events import Observer
from holdfast.journal.records import Noted, OnceFailed, OnceStarted, Spent
from holdfast.journal.run_state import RunState, Step, node_of
from holdfast.journal.writer import Writer
from holdfast.threads import in_background
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.engine.context import Context

logger = logging.getLogger("holdfast")


class StepHost:
    """What the steps of an execution share: the run, its records on their way to the store, and whether to stop."""

    inbox: Inbox

    def __init__(
        self,
        settings: Settings,
        writer: Writer,
        observer: Observer | None,
        *,
        private: bool,
        if_interrupted: str | None,
        idle_timeout: float | None,
    ) -> None:
        self.settings, self.private, self.idle_timeout = settings, private, idle_timeout
        self.graph, self.codec, self.rules = settings.graph, settings.codec, settings.rules
        if if_interrupted is not None:
            self.rules = dataclasses.replace(self.rules, if_interrupted=if_interrupted)
        self.saving = Saving(settings, writer, observer)
        self.run: RunState = writer.run
        self.run_id, self.generation = writer.info.run, writer.run.generation
        self.lease = LeaseCheck(settings.journal.store, writer)
        self.stop: RunStatus | None = None
        """How the run is to stop at once, if it is."""
        self.inline = False
        """Whether a node is running in this very thread."""
        self.thread = 0
        """The thread of the event loop."""
        self.wanted_again: set[str] = set()
        """The interrupted steps of which somebody said that they are to run again."""
        self.unsaved: list[ExecutionError | RunConflict | StoreError] = []
        """Why something that steps had to have stored was not."""
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_left(self) -> bool:
        """Whether this execution is over, or stops at once: steps that still run are left to themselves."""
        return self.stop is not None or self._loop is None

    @property
    def has_left_run(self) -> bool:
        """Whether this execution has left the run: nothing that its steps still say is recorded."""
        return self._loop is None or self.run.status != RunStatus.RUNNING

    def record_of_step(self, record: Noted | OnceStarted | OnceFailed, context: Context) -> None:
        """Record something of a step; one whose attempt, or whose run, was left gets a `StopSignal` instead."""
        # What ends an attempt or the run is recorded either before this or after it.
        with self.saving.writer.lock:
            if context.is_over or self.has_left_run:
                raise StopSignal
            self.saving.record(record)

    def note(self, record: Noted | OnceStarted, context: Context) -> None:
        """Record what a step must remember, and store it before returning."""
        inline = self.inline and threading.get_ident() == self.thread
        if inline:
            self.inline = False  # A signal must not part a commit from its acknowledgement.
        try:
            self.record_of_step(record, context)
            if self.settings.policy.saves_wave(0):
                with self.storing(context):
                    self.saving.flush()
                    self.lease.refuse()
        finally:
            if inline:
                self.inline = True
        if inline and self.stop is not None:
            raise StopSignal

    async def note_async(self, record: Noted | OnceStarted, context: Context) -> None:
        """As `note`, without blocking an event loop that others share."""
        if self.private or asyncio.get_running_loop() is not self._loop:
            self.note(record, context)
            return
        self.record_of_step(record, context)
        if self.settings.policy.saves_wave(0):
            with self.storing(context):
                await self.saving.flush_async()
                if self.lease.is_possible:
                    await in_background(self.lease.refuse)

    def once_policy(self, step: Step, policy: Policy | None) -> Policy:
        """Return what is done about a function given to `once` that was interrupted; its own policy is `policy`.

        The caller of this execution comes first, then that policy, then the node's. Where a node's own function has
        looked, or somebody has said that the step is to run again, that holds for its functions, too.
        """
        own = self.rules.if_interrupted or policy
        if own is not None:
            return own
        of_node = graph_of(self.graph, step).nodes[step.node].if_interrupted
        return "rerun" if callable(of_node) or step.id in self.wanted_again else of_node

    def spend(self, record: Spent, store: bool) -> None:
        """Record what a step used up; with `store` it is stored before returning, wherever that blocks nobody."""
        if self.run.status != RunStatus.RUNNING:
            logger.warning(
                "run %s: step %s spent something after the run had stopped", self.run_id, record.step
            )
            return
        self.saving.record(record)
        self.saving.emit("node.spend", node_of(record.step).rpartition("/")[2], **record._asdict())
        blocks = not self.private and self._loop is not None and asyncio._get_running_loop() is self._loop
        if not store or blocks or not self.settings.policy.saves_wave(0):
            return
        # A signal must not part a commit from its acknowledgement. What was paid for is not thrown away for one either.
        inline, self.inline = self.inline, False
        try:
            with self.storing():
                self.saving.flush()
        finally:
            self.inline = inline

    @contextmanager
    def storing(self, context: Context | None = None) -> Iterator[None]:
        """Store something of a step in this block: an error of that is not the step's failure."""
        try:
            yield
        except (ExecutionError, RunConflict, StoreError) as error:
            if context is not None and (context.is_over or self.has_left_run):
                raise StopSignal from None
            self.unsaved.append(error)
            raise

    def spent(self) -> float:
        """Return the US dollars that the run's steps are known to have spent."""
        return sum(spending.cost for spending in list(self.run.spending.values()))

    def emit(self, type: str, node: str = "", /, **data: Any) -> None:
        """Tell the observers, if there are any."""
        self.saving.emit(type, node, **data)

    def deadline_after(self, seconds: float) -> float:
        """Return the wall time that is so many seconds away, and begin to wait for it."""
        return self.settings.journal.deadlines.after(self.run_id, seconds)

    def time_left(self, deadline: float) -> float:
        """Return how many seconds this process still waits for a deadline of the run; 0 or less if it has passed."""
        return self.settings.journal.deadlines.left(self.run_id, deadline)

    def stop_wanted(self) -> bool:
        """Return True if the run is to stop; look into the inbox now and then."""
        if self.stop is None and self.inbox.is_due:
            self.inbox.look()
        return self.stop is not None
