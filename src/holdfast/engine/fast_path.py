"""The fast path: lone steps, each followed by the only node that can follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast import clock
from holdfast.engine.attempt import Result, attempt_inline
from holdfast.engine.commands.inbox import POLL
from holdfast.engine.once import StopSignal
from holdfast.engine.routing import certain_of
from holdfast.engine.waves import Waves, closing
from holdfast.graph.graph import Node
from holdfast.journal.records import StepAdvanced, Target, WaveFinished
from holdfast.journal.run_state import ONE_OFF, Frame, Step
from holdfast.state.schema import EVERYWHERE

if TYPE_CHECKING:
    from holdfast.engine.loop import Execution

_WAVE_EVENTS = ("wave.start", "state.update", "cycle.detected")
"""Events that only the loop tells."""


class FastPath:
    """The short way for the commonest graphs. It records what the loop would record, which goes on where it stops.

    `end_wave` ends a wave without asking conditions or routing functions. `run_on` runs and saves sync steps for as
    long as there is nothing to decide, to ask or to look at.
    """

    def __init__(self, execution: Execution, waves: Waves, config: Mapping[str, Any]) -> None:
        self._execution, self._waves, self._config = execution, waves, config
        self._graph, self._saving, self._run = execution.graph, execution.saving, execution.run
        self._codec, rules, schema = execution.codec, execution.rules, execution.graph.schema
        gated = rules.interrupt_before or waves.interrupt_after
        is_plain = rules.barrier and not gated and self._run.reuse is None
        reduces = any(schema.reduces(key) for key in schema.channels)
        tells_all = any(self._saving.hears(type_) for type_ in _WAVE_EVENTS)
        saves = execution.private and self._saving.saves_every_wave
        self._may_run = is_plain and saves and not reduces and not tells_all

    def end_wave(self, frame: Frame, names: tuple[str, ...] | None) -> bool:
        """Record the end of a wave of one step that only one node can follow; return False for any other wave."""
        if len(frame.active) != 1:
            return False
        (step,) = frame.active.values()
        graph = self._graph if not frame.path else self._graph.at(frame.path)
        only = graph.only_next.get(step.node)
        if only is None or step.goto is not None:
            return False
        for op in step.ops:
            if op.kind == "reduce":
                return False
        targets = (Target(only),) if only in graph.nodes else closing(graph, [step], 0)
        waiting = tuple(frame.waiting.items()) if frame.waiting else ()
        record = WaveFinished(frame.path, (), targets, waiting, names)
        if self._waves.interrupt_after:
            self._waves.end_wave(record, frame, [step])
            return True
        self._saving.record(record)
        self._saving.mark(frame, [step.node], [target.node for target in targets])
        if self._saving.observer is not None:
            self._waves.tell_wave(frame, [step], targets)
        return True

    def may_run(self) -> bool:
        """Return True if the run is one step of the root graph and nothing else."""
        run = self._run
        root = run.frames[""]
        lone = len(run.frames) == 1 and len(root.active) == 1 and not root.waiting
        return self._may_run and lone and not run.pauses

    def run_on(self, step: Step) -> tuple[Step, Result | None]:
        """Run `step`, whose start is saved, and those after it.

        Return the last one begun with its result, or with `None` if this path cannot run it.
        """
        execution, root = self._execution, self._run.frames[""]
        loop = asyncio._get_running_loop()
        # A sync node may run an event loop of its own here just as it may in a worker thread.
        asyncio._set_running_loop(None)
        try:
            node = self._graph.nodes[step.node]
            while node.runs_inline:
                execution.inline = True
                try:
                    result = self._attempt(step)
                finally:
                    execution.inline = False
                following = self._after(step, result)
                if following is None or not self._move_on(step, result, following.name):
                    return step, result
                (step,) = root.active.values()
                node = following
            return step, None
        finally:
            asyncio._set_running_loop(loop)

    def _attempt(self, step: Step) -> Result:
        execution = self._execution
        if execution.stop is not None:
            return Result(step, error=StopSignal())
        execution.lease.refuse()
        node, state, context = execution.prepare(step)
        return attempt_inline(node, step, state, context, self._config)

    def _after(self, step: Step, result: Result) -> Node | None:
        """Return the node to go on with at once, if there is nothing else to do before."""
        execution = self._execution
        if result.error is not None or type(result.value) is not dict or ONE_OFF in step.notes:
            return None
        if execution.stop is not None or execution.pausing is not None or execution.inbox.has_commands:
            return None
        graph = self._graph
        node = graph.nodes.get(graph.only_next.get(step.node, ""))
        if node is None or node.graph is not None or clock.perf_counter() - execution.inbox.polled > POLL:
            return None
        return node if self._run.frames[""].waves + 1 < graph.max_iterations else None

    def _move_on(self, step: Step, result: Result, node: str) -> bool:
        root, reads = self._run.frames[""], self._graph.nodes[step.node].reads
        try:
            certain = EVERYWHERE if reads is None else certain_of(reads)
            ops = self._graph.schema.resolve(self._codec, root.cells, result.value, certain)
        except Exception:
            return False  # The loop finds the same, and records it.
        name, saving = f"{node}#{root.visits.get(node, 0) + 1}", self._saving
        if saving.observer is not None:
            facts = {"step": step.id, "error": False, "seconds": result.seconds}
            saving.say("node.complete", step.node, **facts, update={op.key: op.value for op in ops})
        saving.record(StepAdvanced(step.id, tuple(ops), name, result.seconds))
        saving.save_move(step.node, node)
        if saving.observer is not None:
            saving.say("edge.transition", step.node, **{"from": step.node, "to": node})
            saving.say("node.start", node, step=name, attempt=1, iteration=root.waves + 1)
            saving.tell_saved()
        return True
