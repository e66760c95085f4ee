"""`decide`: what happens next, and what a node's result means. Pure: no clock, no I/O, no user code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.errors import StateInvalid, suggestion
from holdfast.graph.graph import Command, Graph, Node, Send, all_successors
from holdfast.journal.records import Answered, Target
from holdfast.journal.run_state import (
    DONE,
    EXPIRED,
    FAILED,
    GATED,
    INTERRUPTED,
    MORE_ITERATIONS,
    OUTPUT,
    READY,
    RETRYING,
    RUNNING,
    SLEEP,
    WAITING,
    WHOLE,
    Frame,
    RunState,
    Step,
    Write,
)
from holdfast.state.codec import Codec
from holdfast.state.ops import SCALARS, UNREAD, Op, make_op
from holdfast.state.schema import EVERYWHERE, Certain, Schema, as_mapping
from holdfast.state.state import State, changed_since
from holdfast.values import END, RunStatus, step_label

MAX_CRASHES = 3
"""A step that was running this many times when its process died is not started again unasked."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The options of an execution that decisions depend on."""

    interrupt_before: Collection[str] = frozenset()
    barrier: bool = True
    max_parallel: int = 256
    if_interrupted: str | None = None
    """Overrides what the nodes say, for one resume."""
    asks_for_more: bool = False
    """Whether somebody is asked for more iterations when a run has used them up."""


class Start(NamedTuple):
    """Run this step now, or at `at`."""

    step: Step
    at: float | None = None


class RouteOn(NamedTuple):
    """These steps are finished, with a barrier all of the frame's: apply their changes and find what comes next."""

    frame: Frame
    steps: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class StepDecision:
    """A decision about one step."""

    step: Step


class OpenFrame(StepDecision):
    """Begin the sub-graph that this step is."""


class CloseFrame(StepDecision):
    """The sub-graph that this step is has come to its end."""


class Gate(StepDecision):
    """Pause before this step."""


class SkipStep(StepDecision):
    """Pass over this interrupted step."""


class RefuseStep(StepDecision):
    """This interrupted step may not be repeated: the run fails."""


class Reconcile(StepDecision):
    """Ask the node's own function whether this interrupted step was done."""


@dataclass(frozen=True, slots=True)
class AskWhat(StepDecision):
    """Pause until somebody says what to do with this step.

    `kind` is in_doubt or poison if it was interrupted, or asks for more iterations.
    """

    kind: str


@dataclass(frozen=True, slots=True)
class ExceedIterations:
    """The frame has used up its iterations."""

    frame: Frame
    limit: int


@dataclass(frozen=True, slots=True)
class End:
    """Nothing runs and nothing can: the execution is over."""

    status: RunStatus


AboutDoubt = AskWhat | SkipStep | RefuseStep | Reconcile
Decision = Start | OpenFrame | CloseFrame | RouteOn | Gate | AboutDoubt | ExceedIterations | End

_ANSWERS: dict[str, type[Start] | type[SkipStep] | type[RefuseStep]] = {
    "rerun": Start,
    "skip": SkipStep,
    "fail": RefuseStep,
}


def decide(graph: Graph, run: RunState, rules: Rules) -> list[Decision]:
    """Return what is to be done now. An empty list means: wait for what is running."""
    if len(run.frames) == 1 and not run.pauses and len(run.root.active) == 1:
        return _lone(graph, run, run.root, rules)
    decisions: list[Decision] = []
    running = 0
    failed = False
    for frame in run.frames.values():
        if frame.is_body:
            continue
        for step in frame.active.values():
            if step.status == RUNNING and (step.id not in run.frames or run.frames[step.id].is_body):
                running += 1
            elif step.status == FAILED:
                failed = True
    room = rules.max_parallel - running
    for frame in run.frames.values():
        if frame.is_body:
            continue  # Its steps are begun by the function that calls them.
        found = _frame(graph.at(frame.path), run, frame, rules, failed, room)
        room -= sum(isinstance(decision, Start) for decision in found)
        decisions += found
    if decisions or running:
        return decisions
    if failed:
        return [End(RunStatus.FAILED)]
    return [End(RunStatus.PAUSED if run.pauses else RunStatus.COMPLETED)]


def _lone(graph: Graph, run: RunState, frame: Frame, rules: Rules) -> list[Decision]:
    """Decide the common case of a single step, without the bookkeeping that several need."""
    (step,) = frame.active.values()
    status = step.status
    if status == DONE:
        return [RouteOn(frame, None if rules.barrier else (step.id,))]
    if status == RUNNING:
        return []
    if status == FAILED:
        return [End(RunStatus.FAILED)]
    plain = status == READY and not rules.interrupt_before and graph.nodes[step.node].graph is None
    if plain and frame.waves < graph.max_iterations:
        return [Start(step)]
    return _frame(graph, run, frame, rules, False, 1)


def _frame(
    graph: Graph, run: RunState, frame: Frame, rules: Rules, failed: bool, room: int
) -> list[Decision]:
    decisions: list[Decision] = []
    done: list[str] = []
    exhausted, limit = frame.waves >= graph.max_iterations, graph.max_iterations
    if exhausted:
        limit += run.more_iterations(frame.path)
        exhausted = frame.waves >= limit
    places = _places(graph, frame) if graph.parallel_limits else None
    gated = any(pause.kind == "after" for pause in run.pauses.values()) if run.pauses else False
    for step in frame.active.values():
        status = step.status
        if status == DONE:
            done.append(step.id)
        elif status == WAITING and not failed and _may_go_on(run, step):
            decisions.append(Start(step))
        elif status in (RUNNING, WAITING, GATED, FAILED) or failed or gated:
            continue
        elif exhausted and status == READY:
            if not rules.asks_for_more or MORE_ITERATIONS in step.answers:
                return [ExceedIterations(frame, limit)]
            if not any(pause.name == MORE_ITERATIONS for pause in run.pauses.values()):
                return [AskWhat(step, MORE_ITERATIONS)]
        else:
            decision = next_of(graph, step, rules)
            if isinstance(decision, (Start, OpenFrame)):
                if places is not None and step.node in places:
                    places[step.node] -= 1
                    if places[step.node] < 0:
                        continue
                if isinstance(decision, Start):
                    if room <= 0:
                        continue
                    room -= 1
            decisions.append(decision)
    if done and not failed:
        if rules.barrier:
            if len(done) == len(frame.active):
                decisions.append(RouteOn(frame, None))
        elif ready := _settled(frame):
            decisions.append(RouteOn(frame, ready))
    elif frame.path and not frame.active and not gated:
        decisions.append(CloseFrame(run.step(frame.path)))
    return decisions


def _may_go_on(run: RunState, step: Step) -> bool:
    """Return whether nothing that a workflow's function called waits any more, so that the function may run again."""
    if step.id not in run.frames:
        return False
    inner = f"{step.id}/"
    return not any(pause.step == step.id or pause.step.startswith(inner) for pause in run.pauses.values())


def next_of(graph: Graph, step: Step, rules: Rules) -> Decision:
    """Return what is to be done with a step that is ready, waits for another attempt, or is in doubt."""
    node = graph.nodes[step.node]
    if step.status == RETRYING:
        return Start(step, step.retry_at)
    if step.status == READY:
        if rules.interrupt_before and not step.passed and qualified(step) in rules.interrupt_before:
            return Gate(step)
        return OpenFrame(step) if node.graph is not None and node.function is None else Start(step)
    answer = step.answers.get(INTERRUPTED)
    if answer is not None:
        return _ANSWERS[answer.decode()](step)
    if step.crashes >= MAX_CRASHES and rules.if_interrupted is None:
        return AskWhat(step, "poison")
    policy = rules.if_interrupted or node.if_interrupted
    if callable(policy):
        return Reconcile(step)
    return AskWhat(step, "in_doubt") if policy == "ask" else _ANSWERS[policy](step)


def _places(graph: Graph, frame: Frame) -> dict[str, int]:
    """Return how many more steps of each limited node may run."""
    places = dict(graph.parallel_limits)
    for step in frame.active.values():
        if step.node in places and step.status == RUNNING:
            places[step.node] -= 1
    return places


def _settled(frame: Frame) -> tuple[str, ...]:
    """Return the finished steps whose node has no unfinished item left: what follows it may begin."""
    unfinished = {(step.node, step.visit) for step in frame.active.values() if step.status != DONE}
    return tuple(
        step.id
        for step in frame.active.values()
        if step.status == DONE and (step.node, step.visit) not in unfinished
    )


def qualified(step: Step) -> str:
    """Return a step's node with the nodes it is nested in: `outer/inner`."""
    if not step.frame:
        return step.node
    parts = [part.rpartition("#")[0] for part in step.frame.split("/")]
    return "/".join([*parts, step.node])


def elapsed(run: RunState, has_passed: Callable[[float], bool], *, sleeps: bool = False) -> list[Answered]:
    """Return what time has settled: sleeps that are over, and questions that nobody answered in time.

    `has_passed` tells of a deadline whether it has passed. With `sleeps` all sleeps are over: an execution that does
    not leave the run waits for the rest in its nodes. A question that has expired is reported to its
    node, which decides what comes of it.
    """
    over = [
        pause
        for pause in run.pauses.values()
        if (pause.expires_at is not None and has_passed(pause.expires_at)) or (sleeps and pause.kind == SLEEP)
    ]
    return [Answered(pause.id, EXPIRED, "time") for pause in over]


class RouteFailed(Exception):
    """No next node could be found; `node` is the one whose routing failed."""

    def __init__(self, node: str, message: str) -> None:
        self.node = node
        super().__init__(message)


def to_targets(graph: Graph, node: str, chosen: Iterable[str | Send], codec: Codec) -> list[Target]:
    """Return targets of what a node's routing chose. A bad name or item is refused here."""
    targets = []
    for item in chosen:
        if isinstance(item, Send):
            way, name = "sends", item.node
            if not isinstance(item.item, Mapping):
                raise RouteFailed(
                    node, f"Send({name!r}, …) needs a mapping to lay over the state, not {item.item!r:.80}"
                )
            ops = tuple(make_op(codec, "set", str(key), value) for key, value in item.item.items())
            target = Target(name, "" if item.key is None else str(item.key), ops)
        elif isinstance(item, str):
            way, name, target = "leads", item, Target(item)
        else:
            raise RouteFailed(
                node, f"the route from {node!r} leads to {item!r}; give node names, Sends or END"
            )
        if name in graph.nodes:
            targets.append(target)
        elif name != END or way == "sends":
            raise RouteFailed(
                node,
                f"the route from {node!r} {way} to {name!r}: node not found: {name}{suggestion(name, graph.nodes)}",
            )
    return targets


def merge_targets(graph: Graph, found: Iterable[tuple[str, list[Target]]]) -> tuple[Target, ...]:
    """Return one wave's targets: each plain node once, items keyed by their key or index, all in node order."""
    plain: dict[str, Target] = {}
    items: dict[str, dict[str, Target]] = {}
    for node, targets in found:
        for target in targets:
            if target.key is None:
                plain.setdefault(target.node, target)
                continue
            keyed = items.setdefault(target.node, {})
            key = target.key or str(len(keyed))
            if key in keyed:
                raise RouteFailed(
                    node, f"two items for node {target.node!r} have the key {key!r}; keys must differ"
                )
            try:
                key.encode()
            except UnicodeEncodeError:
                raise StateInvalid(f"item key {key!r} is not valid text") from None
            keyed[key] = Target(target.node, key, target.item)
    result = list(plain.values())
    for keyed in items.values():
        result += keyed.values()
    if len(result) > 1:
        result.sort(key=lambda target: graph.order[target.node])
    return tuple(result)


Meaning = tuple[tuple[Op, ...], tuple[Target, ...] | None]


def meaning(graph: Graph, codec: Codec, frame: Frame, step: Step, value: Any, given: State | None) -> Meaning:
    """Return the changes and the next nodes that `value`, returned for `step`, asks for; nonsense is refused.

    `given` is the state that the step received.
    """
    node = graph.nodes[step.node]
    if frame.is_body:
        return output_of(codec, value), None
    ops, goto = _asked(graph, node, codec, frame, step, value, given)
    if node.clears:
        ops = (*ops, *(Op("drop", key, b"") for key in node.clears if key in frame.cells))
    return ops, goto


def output_of(codec: Codec, value: Any) -> tuple[Op, ...]:
    """Return what is recorded of a value that a step of a function returned."""
    known = value if type(value) in SCALARS else UNREAD
    return (Op("set", OUTPUT, codec.encode(value), known, codec=codec),)


def _asked(
    graph: Graph, node: Node, codec: Codec, frame: Frame, step: Step, value: Any, given: State | None
) -> Meaning:
    cells, certain = frame.cells, _certain(frame)
    if node.reads is not None:
        certain = certain_of(node.reads, certain)
    if type(value) is dict:
        return tuple(graph.schema.resolve(codec, cells, value, certain)), None
    if isinstance(value, Send):
        raise StateInvalid(f"node {step.node!r} returned a Send; return Command(goto=Send(…)) instead")
    goto: tuple[Target, ...] | None = None
    if isinstance(value, Command):
        if value.goto is not None:
            chosen = value.goto if isinstance(value.goto, (list, tuple)) else (value.goto,)
            goto = tuple(to_targets(graph, step.node, chosen, codec))
        value = value.update
    if value is None:
        return (), goto
    if isinstance(value, State):
        known, before = cells if certain is EVERYWHERE and not step.item else {}, given or State()
        ops = graph.schema.replace(codec, known, changed_since(value, before))
        return (*ops, *(Op("drop", key, b"") for key in before if key not in value)), goto
    update = as_mapping(value, f"what node {step.node!r} returns")
    return tuple(graph.schema.resolve(codec, cells, update, certain)), goto


def _certain(frame: Frame) -> Certain:
    """Return the keys of which it is certain what a step of this frame will change when its wave ends.

    A sub-graph's changes end up in its parent, which may hold something else by then; what the sub-graph
    itself has set before is certain.
    """
    if len(frame.active) > 1:
        return _SIBLINGS if frame.log is None else _NOWHERE
    if frame.log is None:
        return EVERYWHERE
    return Certain({key for key, ops in frame.log.items() if ops[0].kind == "set"})


def certain_of(reads: Collection[str], certain: Certain = EVERYWHERE) -> Certain:
    """Return the certain keys among those that a node declares to read.

    Whatever else it sets is recorded as it is, even if the state held just that: where the node's result is taken over
    in a run that differs only in what the node does not read, it comes to the same.
    """
    return Certain(reads if certain.keys is None else {key for key in certain.keys if key in reads})


_SIBLINGS, _NOWHERE = Certain((), passed_on=True), Certain(())


class ParallelWrite(StateInvalid):
    """Two parallel steps set the same key, and nothing says how the two results become one."""


class ParallelWrites:
    """What parallel steps wrote: those of one wave and, without a barrier, those that do not follow each other.

    All that is decided by is a part of the run, so that a resumed run decides as one that was never interrupted.
    """

    def __init__(self, barrier: bool) -> None:
        self._barrier = barrier
        self._siblings: dict[str, tuple[int, dict[str, Write]]] = {}
        self._following: dict[tuple[str, str], frozenset[str]] = {}

    def check(self, graph: Graph, frame: Frame, step: Step, ops: Sequence[Op]) -> None:
        """Raise `ParallelWrite` if these changes of a step and those of a parallel step replace each other.

        They count as written from here on.
        """
        if not ops or frame.is_body or (self._barrier and len(frame.active) == 1):
            return
        waves, siblings = self._siblings.get(frame.path, (-1, {}))
        if waves != frame.waves:
            siblings = {}
            for other in frame.active.values():
                if other.status == DONE:
                    _note(siblings, frame, other, other.ops)
            self._siblings[frame.path] = frame.waves, siblings
        for key, whole in {op.key: op.kind in WHOLE for op in ops}.items():
            write = siblings.get(key)
            if write is not None and write.step != step.id and (whole or write.whole):
                raise ParallelWrite(_refusal(graph.schema, key, write.step, step.id))
            write = None if self._barrier else frame.writes.get(key)
            if write is None or not (whole or write.whole):
                continue
            if write.wave > step.begun or step.node not in self._after(graph, frame, write.node):
                raise ParallelWrite(_refusal(graph.schema, key, write.step, step.id))
        _note(siblings, frame, step, ops)

    def recount(self) -> None:
        """Forget what was counted of the waves that are under way: steps got their results from elsewhere."""
        self._siblings.clear()

    def _after(self, graph: Graph, frame: Frame, node: str) -> frozenset[str]:
        """Return every node that may come after a node, directly or not."""
        place = (frame.path, node)
        if place not in self._following:
            leads, found, todo = all_successors(graph, {}), set[str](), [node]
            while todo:
                fresh = leads.get(todo.pop(), set()) - found
                found |= fresh
                todo += fresh
            self._following[place] = frozenset(found)
        return self._following[place]


def _note(siblings: dict[str, Write], frame: Frame, step: Step, ops: Iterable[Op]) -> None:
    for op in ops:
        if op.key not in siblings or op.kind in WHOLE:
            siblings[op.key] = Write(step.id, step.node, op.kind in WHOLE, frame.waves)


def _refusal(schema: Schema, key: str, one: str, other: str) -> str:
    channel = schema.channels.get(key)
    problem = f"the parallel steps {step_label(one)!r} and {step_label(other)!r} both set state key {key!r}"
    if channel is None or channel.reducer is None:
        return (
            f"{problem}, which has no reducer: one of the two results would be lost; declare how results are put "
            f"together, such as {key}: Annotated[list, append], or let each step set a key of its own"
        )
    return (
        f"{problem}, and one of the two replaces what the other adds with the reducer: it returned a whole State "
        f"(return {{{key!r}: …}} instead), or it finished before the key had its reducer"
    )
