"""The end of waves, of sub-graphs and of executions: what comes next is found and recorded."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Collection

from holdfast import clock
from holdfast.engine.attempt import Gates, Results, fault_of
from holdfast.engine.commands.inbox import Inbox
from holdfast.engine.decide import qualified
from holdfast.engine.once import StepInterrupted
from holdfast.engine.routing import (
    ParallelWrite,
    RouteFailed,
    choose,
    first_targets,
    merge_targets,
    to_targets,
)
from holdfast.engine.saving import Saving
from holdfast.errors import ExecutionError, MaxIterationsExceeded, Remedy, problem_of
from holdfast.graph.graph import Graph, base_name
from holdfast.journal.records import FrameOpened, RunEnded, Target, WaveFinished
from holdfast.journal.run_state import DONE, EVERY_KEY, FAILED, Frame, Step
from holdfast.state.ops import Op, advance
from holdfast.state.state import State, state_view
from holdfast.stores.base import RunInfo, in_memory_only
from holdfast.values import RunStatus

logger = logging.getLogger("holdfast")

Waiting = dict[str, tuple[str, ...]]


class Waves:
    """Finds and records what follows finished steps. What cannot be found raises `RouteFailed`."""

    def __init__(self, graph: Graph, saving: Saving, gates: Gates) -> None:
        self._graph, self._saving, self._gates = graph, saving, gates
        self._codec = saving.settings.codec
        self.interrupt_after = saving.settings.interrupt_after
        self.reused: Collection[str] = ()
        """The steps that did not run, so that nobody is asked what to do after them."""

    async def by_choice(self, frame: Frame, names: tuple[str, ...] | None) -> None:
        """Record the end of a wave, asking conditions and routing functions what follows."""
        graph = self._graph.at(frame.path)
        steps = list(frame.active.values()) if names is None else [frame.active[name] for name in names]
        try:
            ops = [op for step in steps for op in step.ops]
            cells = advance(frame.cells, ops)
            reduced: list[Op] = []
            if any(op.kind == "reduce" for op in ops):
                reduced = graph.schema.reduce(self._codec, cells, ops)
                cells = advance(cells, reduced)
            state = state_view(cells, self._codec, self._saving.run_id, "", steps[-1].node, clock.time())
            targets, waiting = await self._find_next(graph, steps, state, frame.waiting)
            targets = targets or closing(graph, steps, len(frame.active) - len(steps))
        except RouteFailed:
            raise
        except Exception as error:
            raise RouteFailed(steps[-1].node, problem_of(error)) from error
        self.end_wave(
            WaveFinished(frame.path, tuple(reduced), targets, tuple(waiting.items()), names), frame, steps
        )

    def end_wave(self, record: WaveFinished, frame: Frame, steps: list[Step]) -> None:
        """Record the end of a wave together with the gates after it: without them it would go past them."""

        def end() -> None:
            self._saving.record(record)
            self._saving.mark(frame, [step.node for step in steps], [target.node for target in record.next])
            self._after_wave(frame, steps, record.next)

        self._saving.writer.together(end)

    async def _find_next(
        self, graph: Graph, steps: list[Step], state: State, waiting: Waiting
    ) -> tuple[tuple[Target, ...], Waiting]:
        found: list[tuple[str, list[Target]]] = []
        waiting = dict(waiting)
        chosen_for: set[str] = set()
        for step in steps:
            if step.goto is not None:
                found.append((step.node, list(step.goto)))
            elif step.node not in chosen_for:
                chosen_for.add(step.node)
                found += await self._follow(graph, step.node, state, waiting)
        return merge_targets(graph, found), waiting

    async def _follow(
        self, graph: Graph, node: str, state: State, waiting: Waiting
    ) -> list[tuple[str, list[Target]]]:
        """Return what one finished node leads to; `waiting` learns of the joins that it has reached."""
        emit = self._saving.emit if self._saving.observer is not None else None
        try:
            chosen = await choose(graph, node, state, emit)
        except RouteFailed:
            raise
        except Exception as error:
            raise RouteFailed(node, f"routing after {base_name(node)!r} failed: {error!r}") from error
        found = [(node, to_targets(graph, node, chosen, self._codec))]
        for join in graph.joins_from.get(node, ()):
            arrived = waiting.get(join.id, ())
            arrived = arrived if node in arrived else (*arrived, node)
            if len(arrived) == len(join.sources):
                waiting.pop(join.id, None)
                found.append((node, to_targets(graph, node, [join.target], self._codec)))
            else:
                waiting[join.id] = arrived
        return found

    def _after_wave(self, frame: Frame, steps: list[Step], targets: tuple[Target, ...]) -> None:
        if self.interrupt_after:
            for step in steps:
                if qualified(step) in self.interrupt_after and step.id not in self.reused:
                    self._gates.after(step)
        if self._saving.observer is not None:
            self.tell_wave(frame, steps, targets)

    def tell_wave(self, frame: Frame, steps: list[Step], targets: tuple[Target, ...]) -> None:
        say = self._saving.say
        for step in steps:
            for target in targets:
                say("edge.transition", step.node, **{"from": step.node, "to": target.node})
        say("state.update", keys=sorted({op.key for step in steps for op in step.ops}))
        for name in dict.fromkeys(target.node for target in targets):
            if frame.visits[name] > 1:
                say(
                    "cycle.detected",
                    name,
                    node=name,
                    visit_count=frame.visits[name],
                    iteration=frame.waves + 1,
                    path_length=self._saving.run.steps_done + 1,
                )
        if not targets and not frame.active:
            for join, arrived in frame.waiting.items():
                say("join.incomplete", node=join.partition("/")[0], arrived=list(arrived))

    async def open_frame(self, step: Step) -> None:
        """Begin the sub-graph that a step is: it shares the keys that both graphs declare."""
        parent = self._graph.at(step.frame)
        child = parent.nodes[step.node].graph
        assert child is not None
        shared = _shared_keys(parent, child)
        cells = self._saving.run.frames[step.frame].cells
        inherited = {key: cells[key] for key in cells if shared == EVERY_KEY or key in shared}
        own = [op for op in step.item if child.schema.is_open or op.key in child.schema.channels]
        known = {*inherited, *(op.key for op in own)}
        fresh = [op for op in child.schema.initial(self._codec, {}) if op.key not in known]
        begun = advance(inherited, [*fresh, *own])
        state = state_view(begun, self._codec, self._saving.run_id, "", step.node, clock.time())
        try:
            targets = await first_targets(child, state, self._codec)
        except RouteFailed:
            raise
        except Exception as error:
            raise RouteFailed(step.node, problem_of(error)) from error
        reduced = tuple(key for key in shared if child.schema.reduces(key) and parent.schema.reduces(key))
        self._saving.record(FrameOpened(step.id, shared, (*fresh, *own), targets, reduced))


def closing(graph: Graph, steps: list[Step], others: int) -> tuple[Target, ...]:
    """Return the last node, if nothing else is left to run and it has not run."""
    if graph.last is None or others or any(step.node == graph.last for step in steps):
        return ()
    return (Target(graph.last),)


def _shared_keys(parent: Graph, child: Graph) -> tuple[str, ...]:
    if parent.schema.is_open and child.schema.is_open:
        return EVERY_KEY
    if child.schema.is_open:
        return tuple(parent.schema.channels)
    return tuple(
        key for key in child.schema.channels if parent.schema.is_open or key in parent.schema.channels
    )


@functools.cache
def _tell_once(run_id: str, how: str) -> None:
    """Warn, once for each run, that a paused run does not outlive the process."""
    logger.warning("run %s waits, and is kept%s", run_id, how)


class Ending:
    """The end of one execution, recorded and reported to observers. Why it failed is left in `failure`."""

    def __init__(self, saving: Saving, gates: Gates, results: Results, inbox: Inbox) -> None:
        self._saving, self._gates, self._results, self._inbox = saving, gates, results, inbox
        self._record, self._say = saving.record, saving.say
        self.failure: ExecutionError | None = None

    def exceed(self, frame: Frame, limit: int) -> None:
        """Fail the run because it has used up its iterations."""
        node = next(iter(frame.active.values())).node
        remedies = (Remedy("set_max_iterations", self._saving.run_id, {"limit": 2 * limit}),)
        self.fail(f"max iterations ({limit}) exceeded", node, None, MaxIterationsExceeded, remedies)

    def fail(
        self,
        reason: str,
        node: str,
        cause: BaseException | None,
        kind: type[ExecutionError] = ExecutionError,
        remedies: tuple[Remedy, ...] = (),
    ) -> None:
        """End the run as failed."""
        self.failure = self._execution_error(reason, node, cause, kind, remedies)
        self.end(RunStatus.FAILED, reason, node)

    def end(self, status: RunStatus, reason: str = "", node: str = "", due_at: float | None = None) -> None:
        """Record how the run ends here; `due_at` is when it wants to go on."""
        run, writer = self._saving.run, self._saving.writer
        if status == RunStatus.FAILED and self.failure is None:
            step = next(step for step in run.active() if step.status == FAILED)
            node, reason = step.node, str(step.fault)
            cause = self._results.causes.get(step.id)
            item = "" if step.key is None else f" (item {step.key!r})"
            message = f"step {base_name(qualified(step))!r}{item} failed: {step.fault}"
            self.failure = self._execution_error(message, node, cause)
        self._inbox.close(status == RunStatus.COMPLETED)
        if status != RunStatus.COMPLETED and not self._saving.marked:
            self._saving.mark(run.root, [], [step.node for step in run.active() if step.status != DONE])
        fault = fault_of(self.failure) if status == RunStatus.FAILED and self.failure else None
        if status == RunStatus.PAUSED:
            if self._saving.settings.is_memory_default:
                _tell_once(self._saving.run_id, in_memory_only(self._saving.settings.journal.store))
            times = [pause.expires_at for pause in run.pauses.values() if pause.expires_at is not None]
            due_at = min(times, default=None)
        now = clock.time()
        facts = dataclasses.replace(writer.info, status=str(status), updated_at=now, owner="", due_at=due_at)
        writer.together(lambda: self._record_end(RunEnded(status, fault, node), facts))
        if due_at is None:
            self._saving.settings.journal.deadlines.forget(self._saving.run_id)
        if self._saving.observer is not None:
            self._say_end(status, reason)

    def _record_end(self, ended: RunEnded, facts: RunInfo) -> None:
        self._record(ended)
        self._saving.writer.set_info(facts)

    def _remedies(self, cause: BaseException | None) -> tuple[Remedy, ...]:
        """Return what can be done about a failure: a resume, unless that would only repeat it."""
        name = self._saving.run_id
        if isinstance(cause, ParallelWrite):
            failed = [step.id for step in self._saving.run.active() if step.status == FAILED][:1]
            return (*(Remedy("skip", name, {"step": step}) for step in failed), Remedy("reuse", name))
        return (Remedy("settle" if isinstance(cause, StepInterrupted) else "resume", name),)

    @property
    def _kept(self) -> str:
        """What holds of the finished steps of a run that has stopped."""
        return f"finished steps are kept{in_memory_only(self._saving.settings.journal.store)}"

    def _say_end(self, status: RunStatus, reason: str) -> None:
        run = self._saving.run
        if status == RunStatus.COMPLETED:
            self._say("graph.complete", exit_point=run.root.last_node, iterations=run.root.waves)
        elif status == RunStatus.FAILED:
            self._say("graph.fail", error=reason)
        elif status != RunStatus.PAUSED:
            self._say("graph.cancel", status=str(status), reason=reason)
        for pause in run.pauses.values() if status == RunStatus.PAUSED else ():
            self._say(
                "pause",
                pause.node,
                kind=pause.kind,
                pause=pause.id,
                name=pause.name,
                prompt=pause.prompt,
                state=self._saving.state(),
                checkpoint_path=self._gates.files.get(pause.id),
            )

    def _execution_error(
        self,
        message: str,
        node: str,
        cause: BaseException | None,
        kind: type[ExecutionError] = ExecutionError,
        remedies: tuple[Remedy, ...] = (),
    ) -> ExecutionError:
        kept, remedies = self._kept, remedies or self._remedies(cause)
        if self._saving.policy.on_failure == "rollback":
            kept, remedies = "the run was rolled back: nothing of it is kept", ()
        error = kind(
            f"run {self._saving.run_id!r}: {message}; {kept}",
            remedies=remedies,
            node=node,
            state=self._saving.state(),
            path=(*self._saving.run.path, node),
            run_id=self._saving.run_id,
            cause=cause,
        )
        error.__cause__ = cause
        return error
