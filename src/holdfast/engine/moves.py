"""Moving on: the end of a wave, what comes next, and opening sub-graphs."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from holdfast import clock
from holdfast.engine.attempt import Result, attempt_inline, fault_of
from holdfast.engine.commands.inbox import POLL, Inbox
from holdfast.engine.context import Context, Host, StopSignal
from holdfast.engine.decide import qualified
from holdfast.engine.once import StepInterrupted
from holdfast.engine.owner import LeaseCheck
from holdfast.engine.routing import (
    ParallelWrite,
    RouteFailed,
    certain_of,
    choose,
    first_targets,
    merge_targets,
    to_targets,
)
from holdfast.engine.saving import Gates, Results, Saving
from holdfast.errors import ExecutionError, MaxIterationsExceeded, Remedy, problem_of
from holdfast.graph.graph import Graph, Node, base_name
from holdfast.journal.records import FrameOpened, MovedOn, RunEnded, Target, WaveFinished
from holdfast.journal.run_state import DONE, EVERY_KEY, FAILED, ONE_OFF, Frame, Step
from holdfast.state.ops import Op, advance
from holdfast.state.schema import EVERYWHERE
from holdfast.state.state import State, state_view
from holdfast.stores.base import RunInfo, in_memory_only
from holdfast.values import RunStatus

Waiting = dict[str, tuple[str, ...]]


class Moves:
    """Finds and records what follows finished steps. What cannot be found raises `RouteFailed`."""

    def __init__(self, graph: Graph, saving: Saving, gates: Gates) -> None:
        self._graph, self._saving, self._gates = graph, saving, gates
        self._codec = saving.settings.codec
        self._interrupt_after = saving.settings.interrupt_after
        self.reused: Collection[str] = ()
        """The steps that did not run, so that nobody is asked what to do after them."""

    def plainly(self, frame: Frame, names: tuple[str, ...] | None) -> bool:
        """Record the end of a wave of one step after which there is no choice; `False` if this is none."""
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
        targets = (Target(only),) if only in graph.nodes else _closing(graph, [step], 0)
        waiting = tuple(frame.waiting.items()) if frame.waiting else ()
        record = WaveFinished(frame.path, (), targets, waiting, names)
        if self._interrupt_after:
            self._end_wave(record, frame, [step])
            return True
        self._saving.record(record)
        self._saving.mark(frame, [step.node], [target.node for target in targets])
        if self._saving.observer is not None:
            self._say_wave(frame, [step], targets)
        return True

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
            targets = targets or _closing(graph, steps, len(frame.active) - len(steps))
        except RouteFailed:
            raise
        except Exception as error:
            raise RouteFailed(steps[-1].node, problem_of(error)) from error
        self._end_wave(
            WaveFinished(frame.path, tuple(reduced), targets, tuple(waiting.items()), names), frame, steps
        )

    def _end_wave(self, record: WaveFinished, frame: Frame, steps: list[Step]) -> None:
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
        """What one finished node leads to; `waiting` learns of the joins that it has reached."""
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
        if self._interrupt_after:
            for step in steps:
                if qualified(step) in self._interrupt_after and step.id not in self.reused:
                    self._gates.after(step)
        if self._saving.observer is not None:
            self._say_wave(frame, steps, targets)

    def _say_wave(self, frame: Frame, steps: list[Step], targets: tuple[Target, ...]) -> None:
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


def _closing(graph: Graph, steps: list[Step], others: int) -> tuple[Target, ...]:
    """The last node, if nothing else is left to run and it has not run."""
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


# The commonest path made short: from a lone step to the only node after it, again and again.


_OF_WAVES = ("wave.start", "state.update", "cycle.detected")
"""What only the long path tells."""


class Driver(Host, Protocol):
    """What gliding asks of the drive that it is a part of."""

    stop: RunStatus | None
    pausing: str | None
    inline: bool
    inbox: Inbox
    overtaking: LeaseCheck

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
        if node is None or node.graph is not None or clock.perf_counter() - driver.inbox.polled > POLL:
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


# How a drive ends: the run completed, failed, paused, stopped, or left until its time.


logger = logging.getLogger("holdfast")


@functools.cache
def _tell_once(run_id: str, how: str) -> None:
    """Warn, once for each run, that a paused run does not outlive the process."""
    logger.warning("run %s waits, and is kept%s", run_id, how)


class Ending:
    """Records and tells the end of one drive. Why it failed is left in `failure`."""

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
        """Record how the run ends here; `due_at` is when it wants to be taken up again."""
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
        facts = dataclasses.replace(writer.info, status=str(status), updated_at=now, driver="", due_at=due_at)
        writer.together(lambda: self._record_end(RunEnded(status, fault, node), facts))
        if due_at is None:
            self._saving.settings.journal.deadlines.forget(self._saving.run_id)
        if self._saving.observer is not None:
            self._say_end(status, reason)

    def _record_end(self, ended: RunEnded, facts: RunInfo) -> None:
        self._record(ended)
        self._saving.writer.set_info(facts)

    def _remedy(self, cause: BaseException | None) -> Remedy:
        """Return what can be done about a failure: a resume, unless that would only repeat it."""
        if isinstance(cause, StepInterrupted):
            return Remedy("settle", self._saving.run_id)
        if isinstance(cause, ParallelWrite):
            return Remedy("reuse", self._saving.run_id)
        return Remedy("resume", self._saving.run_id)

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
        kept, remedies = self._kept, remedies or (self._remedy(cause),)
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
