"""Keeping a run safe while it is driven: what is saved when, and what is told once it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from holdfast import clock
from holdfast.engine import checkpoint_files as files
from holdfast.engine.attempt import Result, fault_of
from holdfast.engine.decide import Rules
from holdfast.engine.once import PauseSignal, StepInterrupted, StopSignal
from holdfast.engine.routing import Meaning, ParallelWrite, ParallelWrites, RouteFailed, meaning
from holdfast.engine.settings import Settings
from holdfast.errors import CodecError, ExecutionError, ExecutorLost, Remedy, StoreError, problem_of
from holdfast.events import Event, Observer, tell, wanted
from holdfast.graph.graph import Graph, Node, base_name
from holdfast.graph.retry import AFTER_A_LOSS
from holdfast.journal.checkpoint_ids import checkpoint_id, encode_mark
from holdfast.journal.records import Noted, Paused, StepFailed, StepFinished
from holdfast.journal.run_state import DONE, IN_DOUBT, INTERRUPTED, STILL_IN_DOUBT, Frame, Step
from holdfast.journal.writer import Writer
from holdfast.state.ops import advance
from holdfast.state.state import State, overlaid, state_view
from holdfast.values import END, RunStatus, step_label

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
            for pause in self._patience():
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
            for pause in self._patience():
                clock.sleep(pause)
                if self._flushed_at_last():
                    return
            self._refuse_lost_pause(error)
        else:
            if self.marked or self._errors_in_a_row:
                self._saved()

    def _patience(self) -> tuple[float, ...]:
        """How long to wait before each further try: a run that goes on saves later, one that ends cannot."""
        return (0.05, 0.2, 1.0) if self.run.status != RunStatus.RUNNING else ()

    def _flushed_at_last(self) -> bool:
        try:
            self.writer.flush()
        except StoreError:
            return False
        self._saved()
        return True

    def _refuse_lost_pause(self, error: StoreError) -> None:
        """A pause that is not saved is none: nobody could answer it."""
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
        """A save failed: stop the run, or go on and save later, as the policy says."""
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
        """Whether an observer listens to events of a type."""
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
        """The state now."""
        run = self.run
        frame = run.root if frame is None else frame
        ident: Any = partial(checkpoint_id, self.writer.info.key, run.saved_seq) if run.saved_seq else ""
        return state_view(frame.cells, self._codec, self.run_id, ident, frame.last_node, run.updated_at)


# Pausing a run at a gate, or because nobody knows what became of a step.


_QUESTIONS = {
    "poison": "was started {crashes} times without a stored outcome",
    "in_doubt": "was interrupted and may or may not have taken effect",
}


class Gates:
    """Records the pauses of one drive, and writes the checkpoint files of its gates."""

    def __init__(self, saving: Saving, config: Mapping[str, Any]) -> None:
        self._saving, self._settings, self._config = saving, saving.settings, config
        self.files: dict[str, str | None] = {}
        """The checkpoint file of each pause."""

    def before(self, step: Step) -> None:
        """Pause before a step, or only say so."""
        self._close("before", step)
        if self._settings.notify:
            step.passed = True

    def after(self, step: Step) -> None:
        """Pause after a step, or only say so."""
        self._close("after", step)

    def ask_what(self, step: Step, kind: str) -> None:
        """Pause until somebody says what to do with an interrupted step."""
        what = _QUESTIONS[kind].format(crashes=step.crashes)
        prompt = f"step {step_label(step.id)!r} {what}; rerun, skip or fail it?"
        schema = self._settings.codec.encode({"enum": ["rerun", "skip", "fail"]})
        pause = f"{step.id}:{kind}"
        self._saving.record(
            Paused(pause, kind, step.id, step.node, INTERRUPTED, prompt, schema, since=clock.time())
        )

    def _close(self, kind: str, step: Step) -> None:
        path = self._save_file(step, kind)
        if self._settings.notify:
            facts = {"kind": kind, "step": step.id, "state": self._saving.state(), "notify": True}
            self._saving.say("pause", step.node, **facts, checkpoint_path=path)
            return
        pause = f"{step.id}:{kind}"
        self.files[pause] = path
        prompt = f"paused {kind} {base_name(step.node)!r}"
        self._saving.record(Paused(pause, kind, step.id, step.node, prompt=prompt, since=clock.time()))

    def _save_file(self, step: Step, kind: str) -> str | None:
        """Write the checkpoint file of a gate, if there is a folder for them; its path."""
        directory = self._settings.checkpoint_dir
        if directory is None:
            return None
        run = self._saving.run
        upcoming = [other for other in run.active() if other.status != DONE]
        if len(upcoming) > 1 or step.frame:
            logger.warning(
                "run %s: a checkpoint file at node %r holds the main state only; %d other steps are under way",
                self._saving.run_id,
                step.node,
                len(upcoming) - (kind == "before"),
            )
        nodes = tuple(dict.fromkeys(other.node for other in run.root.active.values() if other.status != DONE))
        nodes = nodes or (END,)
        gate = step.node if kind == "before" and not step.frame else ""
        path = files.automatic_path(directory, step.node)
        try:
            files.save(path, self._saving.state(), gate or nodes[0], self._config, nodes, gate)
        except (StoreError, CodecError) as error:
            self._saving.failed(error if isinstance(error, StoreError) else StoreError(problem_of(error)))
            return None
        return str(path)


# What came of attempts: updates, pauses and failures, recorded.


def graph_of(graph: Graph, step: Step) -> Graph:
    """The (sub-)graph that a step belongs to."""
    return graph.at(step.frame) if step.frame else graph


def state_for(saving: Saving, step: Step) -> State:
    """The state as a step sees it."""
    state = saving.state(saving.run.frames[step.frame])
    return overlaid(state, advance({}, step.item)) if step.item else state


class Results:
    """Records what came of the attempts of one drive."""

    def __init__(self, graph: Graph, rules: Rules, saving: Saving, writes: ParallelWrites) -> None:
        self._graph, self._rules, self._saving, self._codec = graph, rules, saving, saving.settings.codec
        self._record, self._say, self._writes = saving.record, saving.say, writes
        self.causes: dict[str, BaseException] = {}
        """The exceptions of the last failures, by step."""
        self.retries = 0
        self.stopped = False
        """Whether a node was left because the run is to stop."""

    def take(self, result: Result) -> None:
        """Record what came of an attempt. One that was left because the run is to stop changes nothing."""
        step, error = result.step, result.error
        if error is None:
            try:
                ops, goto = self._meaning(step, result.value, result.state)
            except Exception as problem:
                self.failed(step, problem, result.seconds, repeatable=False)
                return
            self._record(StepFinished(step.id, ops, goto, result.seconds))
            if self._saving.observer is not None:
                facts = {"step": step.id, "error": False, "seconds": result.seconds}
                self._say("node.complete", step.node, **facts, update={op.key: op.value for op in ops})
        elif isinstance(error, PauseSignal):
            for paused in error.asked:
                self._record(paused)
        elif isinstance(error, StopSignal):
            self.stopped = True
        elif isinstance(error, ExecutorLost) and not self._may_rerun(step):
            self._doubt(step, error)
        else:
            self.failed(step, error, result.seconds, repeatable=not isinstance(error, StepInterrupted))

    def _meaning(self, step: Step, value: Any, given: State | None) -> Meaning:
        """Return the changes and the next nodes that a step's value asks for; raise if they cannot be applied."""
        graph, frame = graph_of(self._graph, step), self._saving.run.frames[step.frame]
        ops, goto = meaning(graph, self._codec, frame, step, value, given)
        self._writes.check(graph, frame, step, ops)
        return ops, goto

    def close_frame(self, step: Step) -> None:
        """Record that the sub-graph that a step is has come to its end, with what it hands to its parent."""
        graph, frames = graph_of(self._graph, step), self._saving.run.frames
        ops = [op for logged in (frames[step.id].log or {}).values() for op in logged]
        try:
            self._writes.check(graph, frames[step.frame], step, ops)
        except ParallelWrite as error:
            raise RouteFailed(step.node, problem_of(error)) from error
        self._record(StepFinished(step.id, promoted=True))
        self._say("node.complete", step.node, step=step.id, error=False)

    def _may_rerun(self, step: Step) -> bool:
        """Whether a step may be repeated unasked although it may have taken effect."""
        node = graph_of(self._graph, step).nodes[step.node]
        return (self._rules.if_interrupted or node.if_interrupted) == "rerun"

    def _doubt(self, step: Step, error: ExecutorLost) -> None:
        """Take a step whose executor was lost for what it is: interrupted, as by a crash."""
        self._record(Noted(step.id, STILL_IN_DOUBT, b""))
        step.status, step.crashes = IN_DOUBT, step.crashes + 1
        self._say("node.error", step.node, step=step.id, attempt=step.attempt, error=str(fault_of(error)))

    def failed(self, step: Step, error: BaseException, seconds: float, repeatable: bool = True) -> None:
        """Record a failure: it is tried again, passed over, or the end of the run."""
        node = graph_of(self._graph, step).nodes[step.node]
        fault = fault_of(error)
        delay = _delay(node, step, error) if repeatable else None
        retry_at = None
        if delay is not None:
            retry_at = self._saving.settings.journal.deadlines.after(self._saving.run_id, delay)
        self.causes[step.id] = error
        self._record(StepFailed(step.id, step.attempt, fault, retry_at, seconds))
        self._say("node.error", step.node, step=step.id, attempt=step.attempt, error=str(fault))
        if delay is not None:
            self.retries += 1
            self._say("node.retry", step.node, step=step.id, attempt=step.attempt, delay=delay)
            return
        if node.on_error is not None and self._stood_in(node, step, error, seconds):
            return
        if self._saving.policy.on_failure == "continue":
            logger.warning(
                "run %s: node %r failed, going on without: %s", self._saving.run_id, step.node, fault
            )
            self._record(StepFinished(step.id, skipped=str(fault)))
            self._say("node.warning", step.node, step=step.id, error=str(fault))
        self._say("node.complete", step.node, step=step.id, error=True, seconds=seconds)

    def _stood_in(self, node: Node, step: Step, error: BaseException, seconds: float) -> bool:
        """Whether the node's `on_error` gave a result that stands in for the failed step's own."""
        assert node.on_error is not None
        state = state_for(self._saving, step)
        try:
            value = node.on_error(state, error)
            ops, goto = self._meaning(step, value, state)
        except Exception as problem:
            if problem is not error:
                logger.exception("run %s: on_error of node %r failed", self._saving.run_id, step.node)
            return False
        fault = str(fault_of(error))
        logger.warning("run %s: node %r failed, going on: %s", self._saving.run_id, step.node, fault)
        self._record(StepFinished(step.id, ops, goto, 0.0, skipped=fault))
        self._say("node.warning", step.node, step=step.id, error=fault)
        self._say("node.complete", step.node, step=step.id, error=True, seconds=seconds)
        return True

    def refuse(self, step: Step) -> None:
        """Record that an interrupted step may not be repeated."""
        error = StepInterrupted(
            f"step {step_label(step.id)!r} was interrupted and may or may not have taken effect; "
            "it is not repeated unasked"
        )
        self.failed(step, error, 0.0, repeatable=False)


def _delay(node: Node, step: Step, error: BaseException) -> float | None:
    """Seconds until a failed attempt is repeated, or `None`; a retry rule that fails repeats nothing."""
    rule = node.retry if node.retry is not None else AFTER_A_LOSS
    try:
        return rule.delay_after(step.tried, error)
    except Exception:
        logger.exception("the retry rule of node %r failed", node.name)
        return None
