"""Saving an executing run: what is saved when, what observers hear once it is, and what steps have stored."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast import clock
from holdfast.engine.attempt import Attempt
from holdfast.engine.commands.inbox import Inbox
from holdfast.engine.context import Context
from holdfast.engine.once import StopSignal
from holdfast.engine.settings import Caller, Settings
from holdfast.errors import ExecutionError, Remedy, RunConflict, StoreError, problem_of
from holdfast.events import Event, LateData, Observer, tell, wanted
from holdfast.journal.checkpoint_ids import checkpoint_id, encode_mark
from holdfast.journal.records import Noted, OnceFailed, OnceStarted, Spent
from holdfast.journal.run_state import Frame, RunState, Step, node_of
from holdfast.journal.writer import Writer
from holdfast.names import LazyModule
from holdfast.state.ops import Op, advance
from holdfast.state.state import State, limited, overlaid, state_view
from holdfast.stores.base import Store, leases_of
from holdfast.threads import in_background
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.engine import retention
    from holdfast.views import plain
else:
    retention = LazyModule("engine.retention")
    plain = LazyModule("views.plain")

logger = logging.getLogger("holdfast")

LARGE_CHECKPOINT = 500 * 1024

PRUNE_EVERY = 20
"""After how many new checkpoints old ones are dropped, where a retention limits their number."""

FAR_BEHIND = 1
"""How many times in a row pruning may still be busy with an earlier request before the run waits for it."""


class Saving:
    """One run's records on their way to the store, and its events on their way to the observers.

    Events about what was recorded are sent after it is saved, so an observer that hears of a step may rely on it.
    """

    def __init__(self, settings: Settings, writer: Writer, observer: Observer | None) -> None:
        self.settings, self.policy, self.writer, self.observer = settings, settings.policy, writer, observer
        self.run, self.run_id, self.record = writer.run, writer.info.run, writer.record
        self.errors = 0
        self._codec = settings.codec
        self.marked = False
        self.saves_every_wave = self.policy.interval == 1 and self.policy.durability != "exit"
        self._wants = wanted(observer)
        self._errors_in_a_row = 0
        self._wave_is_due = False
        self._events: list[tuple[str, str, Mapping[str, Any]]] = []
        self._mark_place = 0
        keep = None if settings.retention is None else settings.retention.max_checkpoints
        self._prune_every = math.inf if keep is None else max(PRUNE_EVERY, keep // 10)
        self._prune_at = self.run.saved_seq + self._prune_every
        self._behind = 0
        """How many times in a row pruning was asked for before it had done what was asked earlier."""

    def save_here(self) -> None:
        """Save what is due, in this thread, then tell what was waiting for it."""
        if (self.saves_every_wave and self.run.status == RunStatus.RUNNING) or self._is_due():
            self.flush()
        if self._events:
            self.tell_saved()

    async def save(self) -> None:
        """As `save_here`, without blocking the event loop."""
        if self._is_due():
            await self.flush_async()
        self.tell_saved()

    async def flush_async(self) -> None:
        """As `flush`, without blocking the event loop."""
        try:
            await self.writer.flush_async()
        except StoreError as error:
            for pause in self._more_tries(error):
                await asyncio.sleep(pause)
        else:
            self._saved()
            if self._behind >= FAR_BEHIND:
                await in_background(self._catch_up)

    def flush(self) -> None:
        """Save everything now, whatever is due."""
        try:
            self.writer.flush()
        except StoreError as error:
            for pause in self._more_tries(error):
                clock.sleep(pause)
        else:
            if self.marked or self._errors_in_a_row:
                self._saved()
                if self._behind >= FAR_BEHIND:
                    self._catch_up()

    def _more_tries(self, error: StoreError) -> Iterator[float]:
        """Try to save again after each of the seconds to wait: a run that goes on saves later, one that ends cannot.

        Raise if a pause could not be stored: nobody could answer it.
        """
        self.failed(error)
        for pause in (0.05, 0.2, 1.0) if self.run.status != RunStatus.RUNNING else ():
            yield pause
            with suppress(StoreError):
                self.writer.flush()
                self._saved()
                return
        if self.run.status == RunStatus.PAUSED:
            raise self._error(error) from error

    def _is_due(self) -> bool:
        status = self.run.status
        if status == RunStatus.RUNNING:
            return self.saves_every_wave or self._wave_is_due
        leaves_nothing = status == RunStatus.FAILED and self.policy.on_failure == "rollback"
        unsaved_end = leaves_nothing or (status == RunStatus.COMPLETED and self.policy.interval == 0)
        return not unsaved_end or self.writer.stored > 0

    def mark(self, frame: Frame, nodes: list[str], next_: list[str]) -> None:
        """Make what is recorded so far a checkpoint, if one is due after this wave; without `nodes` it always is."""
        if not self.saves_every_wave and nodes:
            if self.policy.saves_wave(frame.waves):
                self._wave_is_due = True
            if self.policy.interval > 1 and frame.waves % self.policy.interval:
                return
        if len(next_) > 1:
            next_ = list(dict.fromkeys(next_))
        self.writer.mark(encode_mark(frame.waves, nodes, next_, frame.path))
        self.marked, self._mark_place = True, len(self._events)

    def part(self) -> None:
        """Make what was recorded up to the last checkpoint an entry of its own, stored with what follows it."""
        if self.writer.seal_part() and self.marked:
            self.marked = False
            self._tell_checkpoint()

    def _saved(self) -> None:
        self._errors_in_a_row = 0
        self._wave_is_due = False
        if not self.marked:
            return
        self.marked = False
        if self.run.saved_seq >= self._prune_at:
            self._prune()
        if (size := self.writer.last_size) > LARGE_CHECKPOINT:
            text = "run %s: a checkpoint of %d KB was saved; large values slow every resume"
            logger.warning(text, self.run_id, size // 1024)
        if self.observer is not None:
            self._tell_checkpoint()

    def _prune(self) -> None:
        """Have old checkpoints of this run dropped beside its steps."""
        self._prune_at = self.run.saved_seq + self._prune_every
        workflow = self.writer.info.workflow
        is_behind = retention.janitor.ran(self.settings, workflow, self.run_id, is_executing=True)
        self._behind = self._behind + 1 if is_behind else 0

    def _catch_up(self) -> None:
        """Wait for pruning that is far behind, so that the number of checkpoints stays bounded."""
        self._behind = 0
        retention.janitor.wait_for(self.settings, self.run_id)

    def _tell_checkpoint(self) -> None:
        if self.observer is None or not self.hears("checkpoint.save"):
            return
        node = self.run.root.last_node
        facts = {
            "node": node,
            "checkpoint_id": self.checkpoint_id,
            "timestamp": clock.time(),
            "run_id": self.run_id,
            "size": self.writer.last_size,
        }
        # Reported where it was recorded: after the wave that it saves, before what follows.
        self._events.insert(self._mark_place, ("checkpoint.save", node, facts))

    def failed(self, error: StoreError) -> None:
        """Stop the run after a failed save, or go on and save later, as the policy says."""
        self.errors += 1
        self._errors_in_a_row += 1
        self.emit("checkpoint.fail", error=problem_of(error), consecutive=self._errors_in_a_row)
        if self.policy.on_save_error == "fail":
            raise self._error(error) from error
        logger.warning("run %s: checkpoint save failed, going on without: %s", self.run_id, error)

    def _error(self, error: StoreError) -> ExecutionError:
        kept = "what was saved before is kept" if self.writer.stored else "nothing of this run was saved"
        return ExecutionError(
            f"checkpoint save failed: {problem_of(error)}; {kept}",
            remedies=Remedy("resume", self.run_id) if self.writer.stored else (),
            node=self.run.root.last_node or next((step.node for step in self.run.active()), ""),
            state=self.state(),
            path=tuple(self.run.path),
            run_id=self.run_id,
            cause=error,
        )

    def emit(self, type: str, node: str = "", /, **data: Any) -> None:
        """Tell the observers now, if there are any."""
        if self.observer is not None:
            tell(self.observer, Event(type, self.run_id, node, data))

    def say(self, type: str, node: str = "", /, **data: Any) -> None:
        """Tell the observers once what was recorded is saved."""
        if self.observer is not None and self.hears(type):
            self._events.append((type, node, data))

    def say_start(self, step: Step) -> None:
        """Tell the observers of the start of a step, with a preview of what it sees."""
        if self.observer is not None and self.hears("node.start"):
            state, data = self.state_for(step), {**self._facts(step), "attempt": step.attempt}
            late = {
                "input": lambda: plain.preview_state(state),
                "input_size": lambda: plain.state_size(state),
            }
            self._events.append(("node.start", step.node, LateData(data, late)))

    def say_complete(self, step: Step, ops: Sequence[Op] | None, seconds: float) -> None:
        """Tell the observers of the end of a step, with a preview of what it changed; without ops it failed."""
        if self.observer is None or not self.hears("node.complete"):
            return
        data = {**self._facts(step), "error": ops is None, "seconds": seconds}
        late: dict[str, Callable[[], Any]] = {}
        if ops is not None:
            late["update"] = lambda: {op.key: op.value for op in ops if op.kind != "drop"}
            late["output"] = lambda: plain.preview_ops(ops)
            late["output_size"] = lambda: sum(len(op.key) + len(op.raw) for op in ops)
        self._events.append(("node.complete", step.node, LateData(data, late)))

    def _facts(self, step: Step) -> dict[str, Any]:
        iteration = self.run.frames[step.frame].waves + 1
        return {"node": step.node, "step": step.id, "iteration": iteration}

    def hears(self, type: str) -> bool:
        """Return whether an observer listens to events of a type."""
        return self._wants is None or type in self._wants

    def tell_saved(self) -> None:
        """Tell what was waiting to be saved."""
        events, self._events, self._mark_place = self._events, [], 0
        for type_, node, data in events:
            if self.observer is not None:
                tell(self.observer, Event(type_, self.run_id, node, data))

    @property
    def checkpoint_id(self) -> str:
        """The newest checkpoint; empty before the first."""
        seq = self.run.saved_seq
        return checkpoint_id(self.writer.info.key, seq) if seq else ""

    def state(self, frame: Frame | None = None) -> State:
        """Return the state now."""
        run = self.run
        frame = run.root if frame is None else frame
        ident: Any = partial(checkpoint_id, self.writer.info.key, run.saved_seq) if run.saved_seq else ""
        return state_view(frame.cells, self._codec, self.run_id, ident, frame.last_node, run.updated_at)

    def state_for(self, step: Step) -> State:
        """Return the state as a step sees it."""
        state = self.state(self.run.frames[step.frame])
        return overlaid(state, advance({}, step.item)) if step.item else state


OLD_NEWS, LOOKS = 0.1, 3
"""Seconds after which an answer about others is too old, and how often to ask for a newer one."""


class LeaseCheck:
    """A check before every step that no other process took the run over.

    It reads the journal only if this process's lease may have lapsed since the last check.
    """

    def __init__(self, store: Store, writer: Writer) -> None:
        leases = leases_of(store)
        self._writer = writer
        self._lapses = None if leases is None else leases.lapses
        self._seen = 0 if self._lapses is None else self._lapses()

    @property
    def is_possible(self) -> bool:
        """Whether the lease may have lapsed since the last check."""
        return self._lapses is not None and self._lapses() != self._seen

    def refuse(self) -> None:
        """Raise `RunConflict` if the lease lapsed and another process has taken the run over.

        A save would find out too, but only after a step that somebody else has run meanwhile. An answer that took
        too long to be true now is asked for again.
        """
        if self._lapses is None:
            return
        lapses = self._lapses()
        if lapses != self._seen:
            for _ in range(LOOKS):
                began = clock.monotonic()
                self._writer.refuse_if_behind()
                if clock.monotonic() - began < OLD_NEWS:
                    break
            self._seen = lapses


class Storing:
    """A block in which something of a step is stored: an error of that is noted as none of the step's."""

    __slots__ = ("_context", "_host")

    def __init__(self, host: StepHost, context: Context | None) -> None:
        self._host, self._context = host, context

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (ExecutionError, RunConflict, StoreError)):
            if self._context is not None and (self._context._is_over or self._host.has_left_run):
                raise StopSignal from None
            self._host.unsaved.append(error)


class StepHost:
    """What the steps of an execution share: the run, its records on their way to the store, and whether to stop."""

    inbox: Inbox

    def __init__(
        self,
        settings: Settings,
        writer: Writer,
        caller: Caller,
        config: Mapping[str, Any],
        if_interrupted: str | None,
    ) -> None:
        self.settings, self.config = settings, config
        self.private, self.idle_timeout = caller.private, caller.idle_timeout
        self.graph, self.codec, self.rules = settings.graph, settings.codec, settings.rules
        if if_interrupted is not None:
            self.rules = dataclasses.replace(self.rules, if_interrupted=if_interrupted)
        self.saving = Saving(settings, writer, caller.observer)
        self.run: RunState = writer.run
        self.run_id, self.generation = writer.info.run, writer.run.generation
        self.lease = LeaseCheck(settings.journal.store, writer)
        self.steps_run = 0
        self.stop: RunStatus | None = None
        """How the run is to stop at once, if it is."""
        self.inline = False
        """Whether a node is running in this very thread."""
        self.thread = 0
        """The thread of the event loop."""
        self._branches_due: dict[str, float] = {}
        """When each branch that has a timeout has to be over; a resume gives it all of its time again."""
        self.wanted_again: set[str] = set()
        """The interrupted steps of which somebody said that they are to run again."""
        self.unsaved: list[ExecutionError | RunConflict | StoreError] = []
        """Why something that steps had to have stored was not."""
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def has_left_run(self) -> bool:
        """Whether this execution has left the run: nothing that its steps still say is recorded."""
        return self._loop is None or self.run.status != RunStatus.RUNNING

    async def look_now(self) -> None:
        """Look into the inbox, without blocking an event loop that others share."""
        if self.private:
            self.inbox.look()
        else:
            await self.inbox.look_async()

    def prepare(self, step: Step) -> Attempt:
        """Return an attempt of a step, to be run."""
        graph = self.graph.at(step.frame) if step.frame else self.graph
        node, state = graph.nodes[step.node], self.saving.state_for(step)
        is_function = node.graph is not None and node.function is not None and not step.frame
        self.steps_run += not is_function  # What it calls is counted.
        if self.saving.observer is not None:
            state._observer = self.saving.observer
        if node.reads is not None:
            state = limited(state, node.reads, node.name, [op.key for op in step.item])
        context = Context(self, step, self.config, node.is_async) if node.wants_context else None
        if node.branch_timeout is not None and context is not None:
            due = clock.monotonic() + node.branch_timeout
            context._due = self._branches_due.setdefault(step.frame, due)
        return Attempt(node, step, state, context, self.config)

    def record_of_step(self, record: Noted | OnceStarted | OnceFailed, context: Context) -> None:
        """Append a record of a step; raise `StopSignal` if its attempt is over or this process has left the run."""
        # What ends an attempt or the run is recorded either before this or after it.
        with self.saving.writer.lock:
            if context._is_over or self.has_left_run:
                raise StopSignal
            self.saving.record(record)

    def note(self, record: Noted | OnceStarted, context: Context) -> None:
        """Record what a step must remember, and store it before returning."""
        with self._undisturbed() as inline:
            self.record_of_step(record, context)
            if self.settings.policy.saves_wave(0):
                with self.storing(context):
                    self.saving.flush()
                    self.lease.refuse()
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

    def spend(self, record: Spent, store: bool) -> None:
        """Record what a step used up; with `store` it is stored before returning, wherever that blocks nobody."""
        if self.run.status != RunStatus.RUNNING:
            text = "run %s: step %s spent something after the run had stopped"
            logger.warning(text, self.run_id, record.step)
            return
        self.saving.record(record)
        self.saving.emit("node.spend", node_of(record.step).rpartition("/")[2], **record._asdict())
        blocks = not self.private and self._loop is not None and asyncio._get_running_loop() is self._loop
        if not store or blocks or not self.settings.policy.saves_wave(0):
            return
        with self._undisturbed(), self.storing():  # What was paid for is not thrown away for a signal either.
            self.saving.flush()

    @contextmanager
    def _undisturbed(self) -> Iterator[bool]:
        """Let no signal part a commit in this block from its acknowledgement; yield whether one could have."""
        inline = self.inline and threading.get_ident() == self.thread
        if inline:
            self.inline = False
        try:
            yield inline
        finally:
            if inline:
                self.inline = True

    def storing(self, context: Context | None = None) -> Storing:
        """Store something of a step in this block: an error of that is not the step's failure."""
        return Storing(self, context)

    def spent(self) -> float:
        """Return the US dollars that the run's steps are known to have spent."""
        return sum(spending.cost for spending in list(self.run.spending.values()))

    def deadline_after(self, seconds: float) -> float:
        """Return the wall time that is so many seconds away, and begin to wait for it."""
        return self.settings.journal.deadlines.after(self.run_id, seconds)

    def time_left(self, deadline: float) -> float:
        """Return how many seconds this process still waits for a deadline of the run; 0 or less if it has passed."""
        return self.settings.journal.deadlines.left(self.run_id, deadline)
