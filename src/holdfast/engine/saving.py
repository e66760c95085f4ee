"""Saving an executing run: what is saved when, and what observers are told once it is."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from holdfast import clock
from holdfast.engine.settings import Settings
from holdfast.errors import ExecutionError, Remedy, StoreError, problem_of
from holdfast.events import Event, Observer, tell, wanted
from holdfast.journal.checkpoint_ids import checkpoint_id, encode_mark
from holdfast.journal.run_state import Frame
from holdfast.journal.writer import Writer
from holdfast.state.state import State, state_view
from holdfast.values import RunStatus

logger = logging.getLogger("holdfast")

LARGE_CHECKPOINT = 500 * 1024


class Saving:
    """One run's records on their way to the store, and its events on their way to the observers.

    Events about what was recorded are told after it is saved, so whoever hears of a step may rely on it.
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
        self._events: list[tuple[str, str, dict[str, Any]]] = []
        self._mark_place = 0

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
            self.failed(error)
            for pause in self._retry_delays():
                await asyncio.sleep(pause)
                if self._flushed_at_last():
                    return
            self._refuse_lost_pause(error)
        else:
            self._saved()

    def flush(self) -> None:
        """Save everything now, whatever is due."""
        try:
            self.writer.flush()
        except StoreError as error:
            self.failed(error)
            for pause in self._retry_delays():
                clock.sleep(pause)
                if self._flushed_at_last():
                    return
            self._refuse_lost_pause(error)
        else:
            if self.marked or self._errors_in_a_row:
                self._saved()

    def _retry_delays(self) -> tuple[float, ...]:
        """Return the delays before further tries: a run that goes on saves later, one that ends cannot."""
        return (0.05, 0.2, 1.0) if self.run.status != RunStatus.RUNNING else ()

    def _flushed_at_last(self) -> bool:
        try:
            self.writer.flush()
        except StoreError:
            return False
        self._saved()
        return True

    def _refuse_lost_pause(self, error: StoreError) -> None:
        """Raise if a pause could not be stored: nobody could answer it."""
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
            if self.observer is not None and self.hears("checkpoint.save"):
                self._tell_checkpoint()

    def save_move(self, left: str, node: str) -> None:
        """Save a lone step's way from node `left` to `node` as a checkpoint of its own."""
        self.writer.mark(encode_mark(self.run.frames[""].waves, [left], [node], ""))
        self.marked, self._mark_place = True, len(self._events)
        self.flush()

    def _saved(self) -> None:
        self._errors_in_a_row = 0
        self._wave_is_due = False
        if not self.marked:
            return
        self.marked = False
        if self.writer.last_size > LARGE_CHECKPOINT:
            logger.warning(
                "run %s: a checkpoint of %d KB was saved; large values slow every resume",
                self.run_id,
                self.writer.last_size // 1024,
            )
        if self.observer is not None and self.hears("checkpoint.save"):
            self._tell_checkpoint()

    def _tell_checkpoint(self) -> None:
        node = self.run.root.last_node
        facts = {
            "node": node,
            "checkpoint_id": self.checkpoint_id,
            "timestamp": clock.time(),
            "run_id": self.run_id,
            "size": self.writer.last_size,
        }
        # Told where it was marked: after the wave that it saves, before what follows.
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
            node=self.run.root.last_node,
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

    def hears(self, type: str) -> bool:
        """Return whether an observer listens to events of a type."""
        return self._wants is None or type in self._wants

    def tell_saved(self) -> None:
        """Tell what was waiting to be saved."""
        events, self._events, self._mark_place = self._events, [], 0
        for type_, node, data in events:
            self.emit(type_, node, **data)

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
