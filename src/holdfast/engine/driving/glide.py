"""The commonest path made short: from a lone step to the only node after it, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from holdfast import clock
from holdfast.data.schema import EVERYWHERE
from holdfast.data.state import State
from holdfast.engine.commands.mailbox import POLL, Mailbox
from holdfast.engine.driving.attempt import Result, attempt_inline
from holdfast.engine.driving.changes import certain_of
from holdfast.engine.driving.context import Context, Host, StopSignal
from holdfast.engine.driving.overtaking import Overtaking
from holdfast.engine.driving.saving import Saving
from holdfast.journal.records import MovedOn
from holdfast.journal.run_state import ONE_OFF, Step
from holdfast.plan.graph import Graph, Node
from holdfast.values import RunStatus

_OF_WAVES = ("wave.start", "state.update", "cycle.detected")
"""What only the long path tells."""


class Driver(Host, Protocol):
    """What gliding asks of the drive that it is a part of."""

    stop: RunStatus | None
    pausing: str | None
    inline: bool
    mailbox: Mailbox
    overtaking: Overtaking

    def prepare(self, step: Step) -> tuple[Node, State, Context | None]: ...


class Glide:
    """Runs and saves sync steps for as long as there is nothing to decide, to ask or to look at.

    It records what the loop would have recorded; wherever it stops, the loop goes on from there.
    """

    def __init__(self, driver: Driver, graph: Graph, saving: Saving, config: Mapping[str, Any]) -> None:
        self._driver, self._graph, self._saving, self._config = driver, graph, saving, config
        self._codec, self._run = saving.settings.codec, saving.run
        reduced = any(graph.schema.reduces(key) for key in graph.schema.channels)
        told_all = any(saving.hears(type_) for type_ in _OF_WAVES)
        self._allowed = saving.saves_every_wave and not reduced and not told_all

    def may_begin(self) -> bool:
        """Whether the run is one step of the root graph and nothing else."""
        run = self._run
        root = run.frames[""]
        lone = len(run.frames) == 1 and len(root.active) == 1 and not root.waiting
        return self._allowed and lone and not run.pauses

    def run_on(self, step: Step) -> tuple[Step, Result | None]:
        """Run `step`, whose start is saved, and those after it.

        Answers the last one begun with what came of it, or with `None` if it is not for this path to run.
        """
        driver, root = self._driver, self._run.frames[""]
        loop = asyncio._get_running_loop()
        # A sync node may run an event loop of its own here just as it may in a worker thread.
        asyncio._set_running_loop(None)
        try:
            node = self._graph.nodes[step.node]
            while node.runs_inline:
                driver.inline = True
                try:
                    result = self._attempt(step)
                finally:
                    driver.inline = False
                following = self._after(step, result)
                if following is None or not self._moved_on(step, result, following.name):
                    return step, result
                (step,) = root.active.values()
                node = following
            return step, None
        finally:
            asyncio._set_running_loop(loop)

    def _attempt(self, step: Step) -> Result:
        driver = self._driver
        if driver.stop is not None:
            return Result(step, error=StopSignal())
        driver.overtaking.refuse()
        node, state, context = driver.prepare(step)
        return attempt_inline(node, step, state, context, self._config)

    def _after(self, step: Step, result: Result) -> Node | None:
        """The node to go on with at once, if there is nothing else to do before."""
        driver = self._driver
        if result.error is not None or type(result.value) is not dict or ONE_OFF in step.notes:
            return None
        if driver.stop is not None or driver.pausing is not None:
            return None
        graph = self._graph
        node = graph.nodes.get(graph.only_next.get(step.node, ""))
        if node is None or node.graph is not None or clock.perf_counter() - driver.mailbox.polled > POLL:
            return None
        return node if self._run.frames[""].waves + 1 < graph.max_iterations else None

    def _moved_on(self, step: Step, result: Result, node: str) -> bool:
        root, reads = self._run.frames[""], self._graph.nodes[step.node].reads
        try:
            certain = EVERYWHERE if reads is None else certain_of(reads)
            ops = self._graph.schema.resolve(self._codec, root.cells, result.value, certain)
        except Exception:
            return False  # Whoever takes the result finds the same, and says so.
        name, saving = f"{node}#{root.visits.get(node, 0) + 1}", self._saving
        if saving.observer is not None:
            facts = {"step": step.id, "error": False, "seconds": result.seconds}
            saving.say("node.complete", step.node, **facts, update={op.key: op.value for op in ops})
        saving.record(MovedOn(step.id, tuple(ops), name, result.seconds))
        saving.save_move(step.node, node)
        if saving.observer is not None:
            saving.say("edge.transition", step.node, **{"from": step.node, "to": node})
            saving.say("node.start", node, step=name, attempt=1, iteration=root.waves + 1)
            saving.tell_saved()
        return True
