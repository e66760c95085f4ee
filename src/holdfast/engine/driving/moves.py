"""Moving on: the end of a wave, what comes next, and opening sub-graphs."""

from __future__ import annotations

from collections.abc import Collection

from holdfast import clock
from holdfast.data.ops import Op, advance
from holdfast.data.state import State
from holdfast.engine.driving.decide import qualified
from holdfast.engine.driving.gates import Gates
from holdfast.engine.driving.route import RouteFailed, choose, first_targets, merge_targets, to_targets
from holdfast.engine.driving.saving import Saving
from holdfast.journal.records import FrameOpened, Target, WaveFinished
from holdfast.journal.run_state import EVERY_KEY, Frame, Step
from holdfast.plan.graph import Graph

Waiting = dict[str, tuple[str, ...]]


class Moves:
    """Finds and records what follows finished steps. What cannot be found raises `RouteFailed`."""

    def __init__(self, graph: Graph, saving: Saving, gates: Gates) -> None:
        self._graph, self._saving, self._gates = graph, saving, gates
        self._codec = saving.settings.codec
        self._interrupt_after = saving.settings.interrupt_after
        self.adopted: Collection[str] = ()
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
            state = State.view(cells, self._codec, self._saving.run_id, "", steps[-1].node, clock.time())
            targets, waiting = await self._find_next(graph, steps, state, frame.waiting)
            targets = targets or _closing(graph, steps, len(frame.active) - len(steps))
        except RouteFailed:
            raise
        except Exception as error:
            raise RouteFailed(steps[-1].node, str(error)) from error
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
            raise RouteFailed(node, f"routing after node {node!r} failed: {error!r}") from error
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
                if qualified(step) in self._interrupt_after and step.id not in self.adopted:
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
        state = State.view(begun, self._codec, self._saving.run_id, "", step.node, clock.time())
        try:
            targets = await first_targets(child, state, self._codec)
        except RouteFailed:
            raise
        except Exception as error:
            raise RouteFailed(step.node, str(error)) from error
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
