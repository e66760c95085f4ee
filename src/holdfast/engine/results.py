"""What comes of attempts: updates, pauses at gates, questions about interrupted steps, failures."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from holdfast import clock
from holdfast.engine.attempt import Result, fault_of
from holdfast.engine.decide import Rules
from holdfast.engine.once import PauseSignal, StepInterrupted, StopSignal
from holdfast.engine.routing import Meaning, ParallelWrite, ParallelWrites, RouteFailed, meaning
from holdfast.engine.saving import Saving
from holdfast.errors import CodecError, ExecutorLost, StoreError, problem_of
from holdfast.graph.graph import AFTER_A_LOSS, Graph, Node, base_name
from holdfast.journal.records import Noted, Paused, StepFailed, StepFinished
from holdfast.journal.run_state import DONE, IN_DOUBT, INTERRUPTED, STILL_IN_DOUBT, Step
from holdfast.state.ops import advance
from holdfast.state.state import State, overlaid
from holdfast.values import END, step_label

logger = logging.getLogger("holdfast")

_QUESTIONS = {
    "poison": "was started {crashes} times without a stored outcome",
    "in_doubt": "was interrupted and may or may not have taken effect",
}


class Gates:
    """The pauses of one execution, recorded, and the checkpoint files of its gates."""

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
        from holdfast.engine import checkpoint_files as files

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


def graph_of(graph: Graph, step: Step) -> Graph:
    """Return the (sub-)graph that a step belongs to."""
    return graph.at(step.frame) if step.frame else graph


def state_for(saving: Saving, step: Step) -> State:
    """Return the state as a step sees it."""
    state = saving.state(saving.run.frames[step.frame])
    return overlaid(state, advance({}, step.item)) if step.item else state


class Results:
    """The results of the attempts of one execution, recorded."""

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
        """Return whether a step may be repeated unasked although it may have taken effect."""
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
        if node.on_error is not None and self._used_on_error(node, step, error, seconds):
            return
        if self._saving.policy.on_failure == "continue":
            logger.warning(
                "run %s: node %r failed, going on without: %s", self._saving.run_id, step.node, fault
            )
            self._record(StepFinished(step.id, skipped=str(fault)))
            self._say("node.warning", step.node, step=step.id, error=str(fault))
        self._say("node.complete", step.node, step=step.id, error=True, seconds=seconds)

    def _used_on_error(self, node: Node, step: Step, error: BaseException, seconds: float) -> bool:
        """Return whether the node's `on_error` gave a result that stands in for the failed step's own."""
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
    """Return seconds until a failed attempt is repeated, or `None`; a retry rule that fails repeats nothing."""
    rule = node.retry if node.retry is not None else AFTER_A_LOSS
    try:
        return rule.delay_after(step.tried, error)
    except Exception:
        logger.exception("the retry rule of node %r failed", node.name)
        return None
