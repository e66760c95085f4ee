"""Waves: what follows finished steps, the fast path of lone steps, sub-graphs, and the end of an execution."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast import clock
from holdfast.engine.attempt import Attempt, Results, fault_of
from holdfast.engine.commands.inbox import POLL, Inbox
from holdfast.engine.decide import (
    ParallelWrite,
    RouteFailed,
    certain_of,
    merge_targets,
    qualified,
    to_targets,
)
from holdfast.engine.once import StepInterrupted
from holdfast.engine.saving import Saving
from holdfast.errors import ExecutionError, MaxIterationsExceeded, Remedy, StepChanged, problem_of
from holdfast.graph.graph import Graph, Node, Send, base_name
from holdfast.journal.records import FrameOpened, RunEnded, StepAdvanced, Target, WaveFinished
from holdfast.journal.run_state import DONE, EVERY_KEY, FAILED, ONE_OFF, Frame, Step
from holdfast.state.codec import Codec
from holdfast.state.ops import Op, advance
from holdfast.state.schema import EVERYWHERE
from holdfast.state.state import State, state_view
from holdfast.stores.base import in_memory_only
from holdfast.values import START, RunStatus

if TYPE_CHECKING:
    from holdfast.engine.loop import Execution

logger = logging.getLogger("holdfast")

Emit = Callable[..., None]


async def choose(graph: Graph, node: str, state: State, emit: Emit | None) -> list[str | Send]:
    """Return the nodes and items that follow `node`, by its routing function or its edges; joins excepted."""
    if node in graph.exits:
        return []
    route = graph.route_from.get(node)
    if route is not None:
        chosen = route.choose(state)
        if inspect.isawaitable(chosen):
            chosen = await chosen
        is_one = isinstance(chosen, (str, Send)) or not isinstance(chosen, Iterable)
        return [_translate(node, item, route.mapping) for item in ((chosen,) if is_one else chosen)]
    edges = graph.edges_from.get(node, ())
    for edge in edges:
        if edge.when is None:
            continue
        result = edge.when(state)
        if inspect.isawaitable(result):
            result = await result
        if emit is not None:
            facts = {"from": node, "to": edge.target, "name": edge.label, "result": bool(result)}
            emit("edge.evaluate", node, **facts)
        if result:
            return [edge.target]
    plain: list[str | Send] = [edge.target for edge in edges if edge.when is None]
    if edges and not plain:
        raise RouteFailed(
            node,
            f"no valid edge transition from node: {node} (no condition was true; "
            "add an edge without `when` as the fallback)",
        )
    return plain


def _translate(node: str, item: Any, mapping: Mapping[Any, str] | None) -> str | Send:
    if isinstance(item, Send):
        return item
    if mapping is not None:
        if item not in mapping:
            known = ", ".join(map(repr, mapping))
            raise RouteFailed(
                node, f"the route from {node!r} returned {item!r}, which is not in its mapping ({known})"
            )
        return mapping[item]
    if not isinstance(item, str):
        raise RouteFailed(node, f"the route from {node!r} returned {item!r}; return node names, Sends or END")
    return item


async def first_targets(graph: Graph, state: State, codec: Codec) -> tuple[Target, ...]:
    """Return the nodes a graph begins with."""
    chosen = await choose(graph, START, state, None)
    return merge_targets(graph, [(START, to_targets(graph, START, chosen, codec))])


@contextmanager
def _routing(node: str, said: str = "") -> Iterator[None]:
    """Turn any error of this block into a `RouteFailed` of a node, with its message or what is said of it."""
    try:
        yield
    except RouteFailed:
        raise
    except Exception as error:
        raise RouteFailed(node, f"{said}{error!r}" if said else problem_of(error)) from error


_WAVE_EVENTS = ("wave.start", "state.update", "cycle.detected")
"""Events that only the loop tells."""


class Waves:
    """Finds and records what follows finished steps. What cannot be found raises `RouteFailed`.

    There is a short way for the commonest graphs, which records what the loop would record, and the loop goes on where
    it stops: `by_edge` ends a wave without asking conditions or routing functions, and `run_on` runs and saves sync
    steps for as long as there is nothing to decide, to ask or to look at.
    """

    def __init__(self, execution: Execution, results: Results) -> None:
        self._execution, self._results = execution, results
        self._graph, self._saving, self._run = execution.graph, execution.saving, execution.run
        self._codec, self._interrupt_after = execution.codec, execution.settings.interrupt_after
        self.reused: Collection[str] = ()
        """The steps that did not run, so that nobody is asked what to do after them."""
        self._taken: list[tuple[str, str]] = []
        """The edges that the last wave took, from one node to another; found only if somebody listens."""
        self._chosen: dict[str, str] = {}
        """The names of the conditions that chose them, by the node that they are asked after."""
        rules, schema = execution.rules, execution.graph.schema
        gated = rules.interrupt_before or self._interrupt_after
        is_plain = rules.barrier and not gated and self._run.reuse is None
        reduces = any(schema.reduces(key) for key in schema.channels)
        tells_all = any(self._saving.hears(type_) for type_ in _WAVE_EVENTS)
        saves = execution.private and self._saving.saves_every_wave
        is_certain = execution.settings.guesses is None
        self._may_run_on = is_plain and saves and is_certain and not reduces and not tells_all

    async def by_choice(self, frame: Frame, names: tuple[str, ...] | None) -> None:
        """Record the end of a wave, asking conditions and routing functions what follows."""
        emit = self._evaluated if self._saving.observer is not None else None
        record, steps = await self.following(frame, names, emit)
        self.end_wave(record, frame, steps)

    async def following(
        self, frame: Frame, names: tuple[str, ...] | None, emit: Emit | None
    ) -> tuple[WaveFinished, list[Step]]:
        """Return the end of a wave and its steps; `emit` tells what conditions said. Nothing is recorded."""
        graph = self._graph.at(frame.path)
        steps = list(frame.active.values()) if names is None else [frame.active[name] for name in names]
        waiting = dict(frame.waiting)
        with _routing(steps[-1].node):
            ops = [op for step in steps for op in step.ops]
            cells = advance(frame.cells, ops)
            reduced: list[Op] = []
            if any(op.kind == "reduce" for op in ops):
                reduced = graph.schema.reduce(self._codec, cells, ops)
                cells = advance(cells, reduced)
            state = state_view(cells, self._codec, self._saving.run_id, "", steps[-1].node, clock.time())
            targets = await self._find_next(graph, steps, state, waiting, emit)
            if not targets:
                targets = closing(graph, steps, len(frame.active) - len(steps))
                self._taken += [(steps[-1].node, target.node) for target in targets if emit is not None]
        return WaveFinished(frame.path, tuple(reduced), targets, tuple(waiting.items()), names), steps

    def end_wave(self, record: WaveFinished, frame: Frame, steps: list[Step]) -> None:
        """Record the end of a wave together with the gates after it: without them it would go past them."""

        def end() -> None:
            self._saving.record(record)
            self._saving.mark(frame, [step.node for step in steps], [target.node for target in record.next])
            for step in steps if self._interrupt_after else ():
                if qualified(step) in self._interrupt_after and step.id not in self.reused:
                    self._results.pause_at("after", step)
            if self._saving.observer is not None:
                self._tell_wave(frame, steps, record.next)

        self._saving.writer.together(end)

    async def _find_next(
        self,
        graph: Graph,
        steps: list[Step],
        state: State,
        waiting: dict[str, tuple[str, ...]],
        emit: Emit | None,
    ) -> tuple[Target, ...]:
        """Return what finished steps lead to; `waiting` learns of the joins that they have reached."""
        found: list[tuple[str, list[Target]]] = []
        chosen_for: set[str] = set()
        for node, goto in ((step.node, step.goto) for step in steps):
            if goto is not None:
                found.append((node, list(goto)))
            if goto is not None or node in chosen_for:
                continue
            chosen_for.add(node)
            with _routing(node, f"routing after {base_name(node)!r} failed: "):
                chosen = await choose(graph, node, state, emit)
            found.append((node, to_targets(graph, node, chosen, self._codec)))
            for join in graph.joins_from.get(node, ()):
                arrived = waiting.get(join.id, ())
                arrived = arrived if node in arrived else (*arrived, node)
                if len(arrived) == len(join.sources):
                    waiting.pop(join.id, None)
                    found.append((node, to_targets(graph, node, [join.target], self._codec)))
                else:
                    waiting[join.id] = arrived
        if emit is not None:
            self._taken = [(node, to.node) for node, targets in found for to in targets]
        return merge_targets(graph, found)

    def _evaluated(self, type: str, node: str, /, **data: Any) -> None:
        """Tell the observers what a condition said, and remember its name for the transition that it makes."""
        if data["result"]:
            self._chosen[node] = data["name"]
        self._saving.emit(type, node, **data)

    def _say_transitions(self, graph: Graph, taken: Iterable[tuple[str, str]]) -> None:
        """Tell the observers which edges were taken, each with its name."""
        for source, target in taken if self._saving.hears("edge.transition") else ():
            plain = (edge.label for edge in graph.edges_from.get(source, ()) if edge.target == target)
            name = self._chosen[source] if source in self._chosen else next(plain, "")
            self._saving.say("edge.transition", source, **{"from": source, "to": target, "name": name})
        self._taken, self._chosen = [], {}

    def _tell_wave(self, frame: Frame, steps: list[Step], targets: tuple[Target, ...]) -> None:
        """Tell the observers of the end of a wave."""
        say, state = self._saving.say, self._saving.state(frame)
        self._say_transitions(self._graph.at(frame.path), self._taken)
        keys = sorted({op.key for step in steps for op in step.ops})
        nodes = list(dict.fromkeys(step.node for step in steps))
        say("state.update", nodes[0] if len(nodes) == 1 else "", keys=keys, nodes=nodes, state=state)
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
        shared = tuple(parent.schema.channels)
        if parent.schema.is_open and child.schema.is_open:
            shared = EVERY_KEY
        elif not child.schema.is_open:
            own_keys = child.schema.channels
            shared = tuple(key for key in own_keys if parent.schema.is_open or key in shared)
        cells = self._saving.run.frames[step.frame].cells
        inherited = {key: cells[key] for key in cells if shared == EVERY_KEY or key in shared}
        own = [op for op in step.item if child.schema.is_open or op.key in child.schema.channels]
        known = {*inherited, *(op.key for op in own)}
        fresh = [op for op in child.schema.initial(self._codec, {}) if op.key not in known]
        begun = advance(inherited, [*fresh, *own])
        state = state_view(begun, self._codec, self._saving.run_id, "", step.node, clock.time())
        with _routing(step.node):
            targets = await first_targets(child, state, self._codec)
        reduced = tuple(key for key in shared if child.schema.reduces(key) and parent.schema.reduces(key))
        self._saving.record(FrameOpened(step.id, shared, (*fresh, *own), targets, reduced))

    def by_edge(self, frame: Frame, names: tuple[str, ...] | None) -> bool:
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
        if self._interrupt_after:
            self._taken = [(step.node, target.node) for target in targets]
            self.end_wave(record, frame, [step])
            return True
        self._saving.record(record)
        self._saving.mark(frame, [step.node], [target.node for target in targets])
        if self._saving.observer is not None:
            self._taken = [(step.node, target.node) for target in targets]
            self._tell_wave(frame, [step], targets)
        return True

    def run_on(self, step: Step) -> tuple[Step, Attempt | None]:
        """Run `step`, whose start is saved, and those after it.

        Return the last one begun with its attempt, or with `None` if this path cannot run it.
        """
        execution, run, root = self._execution, self._run, self._run.frames[""]
        is_lone = len(run.frames) == 1 and len(root.active) == 1 and not root.waiting
        if not self._may_run_on or not is_lone or run.pauses:
            return step, None
        loop = asyncio._get_running_loop()
        # A sync node may run an event loop of its own here just as it may in a worker thread.
        asyncio._set_running_loop(None)
        try:
            node = self._graph.nodes[step.node]
            while node.runs_inline and node.is_plain:
                execution.inline = True
                try:
                    if execution.stop is not None:
                        return step, None  # The loop finds the same.
                    execution.lease.refuse()
                    attempt = execution.prepare(step)
                    attempt.run_inline()
                finally:
                    execution.inline = False
                following = self._after(step, attempt)
                if following is None or not self._move_on(step, attempt, following.name):
                    return step, attempt
                (step,) = root.active.values()
                node = following
            return step, None
        finally:
            asyncio._set_running_loop(loop)

    def _after(self, step: Step, attempt: Attempt) -> Node | None:
        """Return the node to go on with at once, if there is nothing else to do before."""
        execution = self._execution
        if attempt.error is not None or type(attempt.value) is not dict or ONE_OFF in step.notes:
            return None
        if execution.stop is not None or execution.pausing is not None or execution.inbox.waiting:
            return None
        graph = self._graph
        node = graph.nodes.get(graph.only_next.get(step.node, ""))
        if node is None or not node.is_plain or clock.perf_counter() - execution.inbox.polled > POLL:
            return None
        return node if self._run.frames[""].waves + 1 < graph.max_iterations else None

    def _move_on(self, step: Step, attempt: Attempt, node: str) -> bool:
        root, reads = self._run.frames[""], self._graph.nodes[step.node].reads
        try:
            certain = EVERYWHERE if reads is None else certain_of(reads)
            ops = self._graph.schema.resolve(self._codec, root.cells, attempt.value, certain)
        except Exception:
            return False  # The loop finds the same, and records it.
        name, saving = f"{node}#{root.visits.get(node, 0) + 1}", self._saving
        if saving.observer is not None:
            saving.say_complete(step, ops, attempt.seconds)
        saving.record(StepAdvanced(step.id, tuple(ops), name, attempt.seconds))
        saving.mark(root, [step.node], [node])
        saving.flush()
        if saving.observer is not None:
            self._say_transitions(self._graph, [(step.node, node)])
            for upcoming in root.active.values():
                saving.say_start(upcoming)
            saving.tell_saved()
        return True


def closing(graph: Graph, steps: list[Step], others: int) -> tuple[Target, ...]:
    """Return the last node, if nothing else is left to run and it has not run."""
    if graph.last is None or others or any(step.node == graph.last for step in steps):
        return ()
    return (Target(graph.last),)


@functools.cache
def _tell_once(run_id: str, how: str) -> None:
    """Warn, once for each run, that a paused run does not outlive the process."""
    logger.warning("run %s waits, and is kept%s", run_id, how)


class Ending:
    """The end of one execution, recorded and reported to observers. Why it failed is left in `failure`."""

    def __init__(self, saving: Saving, results: Results, inbox: Inbox) -> None:
        self._saving, self._results, self._inbox = saving, results, inbox
        self._say = saving.say
        self.failure: ExecutionError | None = None

    def exceed(self, frame: Frame, limit: int) -> None:
        """Fail the run because it has used up its iterations."""
        node = next(iter(frame.active.values())).node
        remedy = Remedy("set_max_iterations", self._saving.run_id, {"limit": 2 * limit})
        self.fail(f"max iterations ({limit}) exceeded", node, None, MaxIterationsExceeded, remedy)

    def fail(
        self,
        reason: str,
        node: str,
        cause: BaseException | None,
        kind: type[ExecutionError] = ExecutionError,
        *remedies: Remedy,
    ) -> None:
        """End the run as failed."""
        self.failure = self._execution_error(reason, node, cause, kind, *remedies)
        self.end(RunStatus.FAILED, reason, node)

    def end(self, status: RunStatus, reason: str = "", node: str = "", due_at: float | None = None) -> None:
        """Record how the run ends here; `due_at` is when it wants to go on."""
        run, writer = self._saving.run, self._saving.writer
        if status == RunStatus.FAILED and self.failure is None:
            step = next(step for step in run.active() if step.status == FAILED)
            while (
                step.id in run.frames
            ):  # It runs the function of a workflow; what that called may be the reason.
                called = (inner for inner in run.frames[step.id].active.values() if inner.status == FAILED)
                if (failed := next(called, None)) is None:
                    break
                step = failed
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
                settings = self._saving.settings
                kept = in_memory_only(settings.journal.store, settings.store_option)
                _tell_once(self._saving.run_id, kept)
            times = [pause.expires_at for pause in run.pauses.values() if pause.expires_at is not None]
            due_at = min(times, default=None)
        now = clock.time()
        facts = dataclasses.replace(writer.info, status=str(status), updated_at=now, owner="", due_at=due_at)

        def record() -> None:
            self._saving.record(RunEnded(status, fault, node))
            writer.set_info(facts)

        writer.together(record)
        if due_at is None:
            self._saving.settings.journal.deadlines.forget(self._saving.run_id)
        if self._saving.observer is not None:
            self._say_end(status, reason, node)

    def _remedies(self, cause: BaseException | None) -> tuple[Remedy, ...]:
        """Return what can be done about a failure: a resume, unless that would only repeat it."""
        name = self._saving.run_id
        if isinstance(cause, ParallelWrite):
            failed = [step.id for step in self._saving.run.active() if step.status == FAILED][:1]
            return (*(Remedy("skip", name, {"step": step}) for step in failed), Remedy("reuse", name))
        if isinstance(cause, StepInterrupted):
            return (Remedy("settle", name),)
        if isinstance(cause, StepChanged):
            return cause.remedies
        return (Remedy("resume", name),)

    def _say_end(self, status: RunStatus, reason: str, node: str) -> None:
        run = self._saving.run
        if status == RunStatus.COMPLETED:
            facts = {"exit_point": run.root.last_node, "iterations": run.root.waves}
            self._say("graph.complete", **facts, state=self._saving.state())
        elif status == RunStatus.FAILED:
            self._say("graph.fail", error=reason, node=node, state=self._saving.state())
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
                checkpoint_path=self._results.files.get(pause.id),
            )

    def _execution_error(
        self,
        message: str,
        node: str,
        cause: BaseException | None,
        kind: type[ExecutionError] = ExecutionError,
        *remedies: Remedy,
    ) -> ExecutionError:
        settings = self._saving.settings
        kept = f"finished steps are kept{in_memory_only(settings.journal.store, settings.store_option)}"
        remedies = remedies or self._remedies(cause)
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
